#![allow(clippy::unwrap_used)]

use super::*;

const S: Duration = Duration::from_secs(1);

fn connected() -> Session {
    let mut peer = Session::new(1);
    peer.start(Moment::ZERO);
    assert_eq!(peer.next_action(Moment::ZERO, true), Some(SessionAction::Connect));
    peer.on_connected(Moment::ZERO);
    assert_eq!(peer.next_action(Moment::ZERO, true), None, "the scheme decides");
    peer
}

#[test]
fn a_participant_that_wakes_up_tries_again_at_once_without_backoff() {
    let mut peer = connected();
    for _ in 0..8 {
        peer.on_disconnected(S, Interruption::other("no answer"));
    }
    let (retry_at, _) = peer.down().unwrap();
    assert!(retry_at > 2 * S, "{retry_at:?}");
    assert!(peer.on_woke(2 * S, false));
    assert_eq!(peer.next_action(2 * S, true), Some(SessionAction::Connect));
    peer.on_disconnected(2 * S, Interruption::other("no answer"));
    let (retry_at, _) = peer.down().unwrap();
    assert!(retry_at < 3 * S, "pauses begin short again: {retry_at:?}");
}

#[test]
fn work_is_begun_by_who_takes_part_and_is_let_in() {
    let mut peer = Session::new(1);
    assert!(!peer.is_at_work());
    peer.start(Moment::ZERO);
    assert!(!peer.is_at_work(), "there is no connection");
    peer.on_connected(Moment::ZERO);
    assert!(peer.is_at_work());
    peer.stop(Moment::ZERO);
    assert!(!peer.is_at_work() && peer.is_stopping());
}

#[test]
fn a_stall_of_its_own_gives_a_connection_longer_to_prove_that_it_is_alive() {
    let mut peer = connected();
    assert!(!peer.on_woke(Moment::ZERO, false));
    let proof_by = peer.silent_at().unwrap();
    peer.on_own_stall(S, S);
    assert_eq!(peer.silent_at(), Some(proof_by + S));
}

#[test]
fn after_a_sleep_nothing_is_waited_for() {
    let mut peer = connected();
    assert!(peer.on_woke(100 * S, true));
    assert_eq!(peer.next_action(100 * S, true), Some(SessionAction::Connect));
}

/// It reports every second: one that died silently is left after two.
#[test]
fn where_there_are_other_backbones_a_silent_one_is_left_soon() {
    let mut peer = connected();
    peer.set_others(true);
    assert!(!peer.is_silent(SILENCE_MAX - S), "nothing is known of it yet");
    let heard = |peer: &mut Session, n| (1..=n).for_each(|word| peer.on_message(word * S));
    heard(&mut peer, 30);
    assert!(!peer.is_silent(31 * S) && peer.is_silent(32 * S));
    assert!(matches!(peer.next_action(33 * S, true), Some(SessionAction::Wait(Some(_)))));
    assert_eq!(peer.down().and_then(|(_, why)| why), Some(&Interruption::Silent));
    // Bytes of an incomplete message are a sign of life, and silence while this peer was stalled does not count.
    let mut peer = connected();
    peer.set_others(true);
    heard(&mut peer, 30);
    peer.on_partial_message(31 * S);
    assert!(!peer.is_silent(32 * S));
    peer.on_own_stall(60 * S, 28 * S);
    assert!(!peer.is_silent(60 * S) && peer.is_silent(61 * S));
    // The only backbone is waited for.
    peer.set_others(false);
    assert!(!peer.is_silent(61 * S) && peer.is_silent(31 * S + 28 * S + SILENCE_MAX));
}

#[test]
fn one_that_stops_has_so_long_to_deliver_and_leaves_sooner_when_it_has() {
    const MS: Duration = Duration::from_millis(1);
    let stopping = || {
        let mut peer = connected();
        peer.stop(S);
        peer.on_message(S + STOP_TIMEOUT - MS);
        peer
    };
    let mut peer = stopping();
    assert_eq!(peer.next_action(S, false), None, "it delivers");
    // To ask for it again gives no more time.
    peer.stop(5 * S);
    assert_eq!(peer.next_action(S + STOP_TIMEOUT - MS, false), None);
    assert_eq!(peer.next_action(S + STOP_TIMEOUT, false), Some(SessionAction::Leave));
    assert_eq!(stopping().next_action(S, true), Some(SessionAction::Leave));
    peer.on_left();
    assert_eq!(peer.down(), Some((Moment::ZERO, None)));
    assert_eq!(peer.next_action(2 * S, false), Some(SessionAction::Wait(None)));
    // One that takes no part does not begin by stopping.
    peer.stop(2 * S);
    assert!(!peer.is_stopping());
    assert_eq!(peer.next_action(2 * S, false), Some(SessionAction::Wait(None)));
}

#[test]
fn the_next_attempt_is_made_when_its_time_has_come() {
    let mut peer = connected();
    peer.on_disconnected(10 * S, Interruption::other("cut"));
    let (retry_at, reason) = peer.down().unwrap();
    assert!(retry_at > 10 * S && reason == Some(&Interruption::other("cut")));
    let before = retry_at - Duration::from_millis(1);
    assert_eq!(peer.next_action(before, true), Some(SessionAction::Wait(Some(retry_at))));
    assert_eq!(peer.next_action(retry_at, true), Some(SessionAction::Connect));
    // One that is asked for again does not wait.
    peer.start(10 * S);
    assert_eq!(peer.next_action(10 * S, true), Some(SessionAction::Connect));
}

#[test]
fn a_device_that_changed_its_network_has_less_time_than_a_silent_one_and_no_more() {
    let mut peer = connected();
    assert_eq!(peer.silent_at(), Some(SILENCE_MAX));
    peer.on_message(2 * S);
    assert_eq!(peer.silent_at(), Some(2 * S + SILENCE_MAX));
    peer.on_woke(3 * S, false);
    assert_eq!(peer.silent_at(), Some(3 * S + PROOF_MAX));
    peer.on_partial_message(4 * S);
    assert_eq!(peer.silent_at(), Some(4 * S + SILENCE_MAX), "it has shown that it is alive");
    // The silence before counts as well.
    peer.on_woke(11 * S, false);
    assert_eq!(peer.silent_at(), Some(4 * S + SILENCE_MAX));
}

#[test]
fn a_new_session_is_begun_where_there_is_one_and_not_where_the_next_attempt_waits() {
    let mut peer = connected();
    peer.rejoin(S);
    assert_eq!(peer.down(), Some((S, None)));
    assert_eq!(peer.next_action(S, true), Some(SessionAction::Connect));
    peer.on_disconnected(S, Interruption::other("cut"));
    let retry_at = peer.down().map(|(at, _)| at);
    peer.rejoin(S);
    assert_eq!(peer.down().map(|(at, _)| at), retry_at);
    assert_eq!(peer.silent_at(), None);
}
