//! Runs that last: members change and are forgotten, rounds become quick, and strangers would stall them.

use barnraise_protocol::sampled::MEMBER_ADDRESS_BYTES_MAX;

use super::super::joining::RENEW_EVERY;
use super::super::training::{Pushes, REPEATS_MAX};
use super::*;

#[test]
fn who_is_known_by_what_an_earlier_process_told_tells_of_itself_before_it_is_active() {
    let settings = SampledSettings { activity_window: 40, ..SETTINGS };
    let [mut peer, _] = acquainted(settings);
    let mut earlier = stranger(0, settings, BOTH);
    earlier.identity.counter = 7;
    earlier.join(Moment::ZERO, Vec::new());
    earlier.leave(Moment::ZERO);
    let view = earlier.view();
    knows(&mut peer, &earlier);
    assert_eq!(peer.registry.membership(&peer.peer()), view.memberships.first(), "it has left, for others");
    assert_eq!(peer.next_deadline(), Some(RENEW_EVERY));
    peer.on_timeout(RENEW_EVERY);
    assert_eq!((peer.is_registered(), peer.counter()), (true, 10));
}

/// A machine that turns out to be behind a NAT, or that moves.
#[test]
fn a_member_that_changes_tells_so_by_a_later_event_and_not_too_often() {
    let settings = SampledSettings { activity_window: 40, ..SETTINGS };
    let [mut peer, mut other, _] = acquainted(settings);
    let trainer = SampledRoles { trains: true, aggregates: Aggregates::Never };
    peer.on_own_change(S, BOTH, vec![vec![4; MEMBER_ADDRESS_BYTES_MAX + 1]]);
    assert_eq!((actions(&mut peer), peer.counter()), (Vec::new(), 1), "nothing is new");

    peer.on_own_change(2 * S, trainer, vec![vec![4; 8]]);
    assert_eq!((peer.counter(), peer.next_deadline()), (1, Some(RENEW_EVERY)), "it has told a moment ago");
    peer.on_timeout(RENEW_EVERY);
    assert_eq!(peer.counter(), 2);
    for action in actions(&mut peer) {
        if let SampledAction::Meet { view, digest, .. } = action {
            other.on_meet(RENEW_EVERY, peer.peer(), &view, &digest);
        }
    }
    let known = other.registry.membership(&peer.peer()).and_then(Membership::joined);
    let known = known.map(|joined| (joined.roles, joined.addresses.as_slice()));
    assert_eq!(known, Some((trainer, [vec![4; 8]].as_slice())));
    assert!(!other.candidates(1, SampledRoles::is_aggregator).contains(&peer.peer()));
    assert!(other.candidates(1, |roles| roles.trains).contains(&peer.peer()));

    let again = 2 * RENEW_EVERY;
    peer.on_own_change(RENEW_EVERY + S, BOTH, Vec::new());
    peer.on_timeout(again - Duration::from_nanos(1));
    assert_eq!(peer.counter(), 2);
    peer.on_timeout(again);
    assert_eq!(peer.counter(), 3);
}

/// It is offered the model until the end of its own repeats, and of no other's.
#[test]
fn who_is_busy_for_ever_takes_no_offers_from_others() {
    let [_, hostile, other] = acquainted(SETTINGS);
    let mut pushes = Pushes::new(2);
    for _ in 0..REPEATS_MAX {
        pushes.on_pushed(hostile.peer(), (S, PushOutcome::Busy));
        assert_eq!(pushes.take_due(S), [hostile.peer()]);
    }
    pushes.on_pushed(hostile.peer(), (S, PushOutcome::Busy));
    assert_eq!(pushes.take_due(S), []);
    pushes.on_pushed(other.peer(), (S, PushOutcome::Busy));
    assert_eq!(pushes.take_due(S), [other.peer()]);
}

/// Offers cost nothing: a view that is never sent would keep this peer from knowing who is active.
#[test]
fn the_view_of_a_stranger_keeps_out_no_member() {
    let [mut peer, known, _] = acquainted(SETTINGS);
    let stranger = member(9, SETTINGS).peer();
    let task = SampledTask::Train { round: 1 };
    for from in [stranger, known.peer()] {
        let asked = peer.on_offer(Moment::ZERO, from, task).unwrap();
        assert_ne!(asked, ViewDigest::of_everything());
    }
    assert_eq!(peer.view_from.map(|(from, _)| from), Some(known.peer()));
}

/// Each signature and token would be checked, of anybody and as often as it likes.
#[test]
fn who_comes_is_heard_of_itself_alone() {
    let (mut peer, mut other, third) = (member(0, SETTINGS), member(9, SETTINGS), member(8, SETTINGS));
    knows(&mut other, &third);
    other.on_active(Moment::ZERO, 2);
    let view = other.view();
    assert_eq!(view.memberships.len(), 2);
    peer.on_meet(S, other.peer(), &view, &ViewDigest::of_everything());
    assert_eq!(peer.registry.activity_of(&other.peer()), Some(2));
    assert_eq!(peer.registry.membership(&third.peer()), None);
}

/// Rounds took 2 s for hours, as they were estimated to. Then they take an eighth of that, as fast as any peer trains.
#[test]
fn a_run_that_was_slow_for_long_may_be_quick() {
    let settings = SampledSettings { sample_size: 1, n_aggregators: 1, ..SETTINGS };
    let [mut peer] = acquainted(settings);
    let slow = 4000;
    for round in (100..=slow).step_by(100) {
        let now = u32::try_from(round).unwrap() * 2 * S;
        peer.on_time(now);
        peer.on_active(now, round);
    }
    let mut round = slow;
    for nth in 1..=480 {
        let now = 8000 * S + nth * settings.round_estimate / 8;
        peer.on_time(now);
        if peer.round_max() > round {
            round += 1;
            peer.on_active(now, round);
        }
    }
    assert!(round > slow + 360, "{} rounds in the time of 480", round - slow);
}

/// Each proof of activity costs a hash for each round since its peer joined.
#[test]
fn who_joins_a_run_that_is_old_asks_until_it_knows_who_is_active() {
    const N: u8 = 130;
    let [mut home] = acquainted(SETTINGS);
    let others: Vec<PublicKey> = (10..10 + N)
        .map(|at| {
            let mut other = member(at, SETTINGS);
            proves(&mut home, &mut other, 1020);
            other.peer()
        })
        .collect();
    let mut peer = stranger(9, SETTINGS, BOTH);
    peer.join(Moment::ZERO, vec![home.peer()]);
    while meets(&mut peer).contains(&(home.peer(), true)) {
        let answer = home.on_meet(S, peer.peer(), &View::default(), &ViewDigest::default()).unwrap();
        peer.on_met(S, home.peer(), &answer);
    }
    assert!(others.iter().all(|other| peer.registry.activity_of(other) == Some(1020)));
}
