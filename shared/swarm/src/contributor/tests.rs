#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

const S: Duration = Duration::from_secs(1);

fn connected() -> Contributor {
    let mut peer = Contributor::new(100, 1);
    peer.start(Moment::ZERO);
    assert_eq!(peer.next_action(Moment::ZERO), Action::Connect);
    peer.on_connected(Moment::ZERO, 256, 64);
    assert!(matches!(peer.next_action(Moment::ZERO), Action::Wait(Some(_))));
    peer.on_epoch(3);
    assert_eq!(peer.next_action(Moment::ZERO), Action::FetchState);
    peer.on_state(3);
    peer
}

fn compute(peer: &mut Contributor, want_total: u32) {
    assert_eq!(peer.next_action(Moment::ZERO), Action::ComputeBatch);
    peer.on_batch(64, 10.0);
    match peer.next_action(Moment::ZERO) {
        Action::SendReport(report) => assert_eq!((report.epoch, report.n_samples), (3, want_total)),
        other => panic!("{other:?}"),
    }
}

fn accepted(id: u64) -> Result<Accepted, Refusal> {
    Ok(Accepted { contribution_id: id, epoch: 3, n_samples: 128 })
}

#[test]
fn an_epoch_from_parameters_to_acceptance() {
    let mut peer = connected();
    compute(&mut peer, 64);
    compute(&mut peer, 128);
    peer.on_due(3);
    let taken = Action::TakeGradient { contribution_id: 100, epoch: 3, n_samples: 128 };
    assert_eq!(peer.next_action(S), taken);
    assert_eq!(peer.next_action(S), Action::Offer);
    peer.on_answer(S, &accepted(100));
    assert!(matches!(peer.next_action(S), Action::Wait(Some(_))), "waits for the next epoch");
    peer.on_epoch(4);
    assert_eq!(peer.next_action(S), Action::FetchState);
    assert_eq!(peer.tally().n_samples_accepted, 128);
}

#[test]
fn a_round_that_goes_on_is_computed_for_again_without_fetching() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(3);
    peer.next_action(S);
    peer.on_answer(S, &accepted(100));
    peer.on_epoch(3);
    assert_eq!(peer.next_action(S), Action::ComputeBatch);
}

#[test]
fn a_lost_acknowledgement_is_offered_again_under_the_same_name() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(3);
    peer.next_action(S);
    assert_eq!(peer.next_action(S), Action::Offer);
    peer.on_disconnected(S, "cut".into());
    let Action::Wait(Some(retry_at)) = peer.next_action(S) else { panic!() };
    assert_eq!(peer.next_action(retry_at), Action::Connect);
    peer.on_connected(retry_at, 256, 64);
    assert_eq!(peer.next_action(retry_at), Action::Offer);
    peer.on_answer(retry_at, &Err(Refusal::Duplicate { contribution_id: 100 }));
    assert_eq!((peer.tally().n_accepted, peer.tally().n_refused), (1, 0));
}

#[test]
fn work_survives_a_reconnection_within_the_epoch_and_is_dropped_after_it() {
    let mut peer = connected();
    compute(&mut peer, 64);
    for (epoch, action) in [(3, None), (4, Some(Action::FetchState))] {
        peer.on_disconnected(S, "cut".into());
        peer.on_connected(S, 256, 64);
        peer.on_epoch(epoch);
        match action {
            Some(action) => assert_eq!(peer.next_action(S), action),
            None => assert!(matches!(peer.next_action(S), Action::SendReport(r) if r.n_samples == 64)),
        }
    }
    peer.on_state(4);
    assert_eq!(peer.tally().n_samples_late, 64);
}

#[test]
fn a_full_contribution_is_delivered_before_it_is_due() {
    let mut peer = connected();
    (1..=3).for_each(|n| compute(&mut peer, 64 * n));
    peer.next_action(S);
    peer.on_batch(64, 10.0);
    assert!(matches!(peer.next_action(S), Action::TakeGradient { n_samples: 256, .. }));
    peer.on_answer(S, &accepted(100));
    assert_eq!(peer.next_action(S), Action::ComputeBatch, "and goes on");
}

#[test]
fn stopping_delivers_what_is_finished() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.stop(S);
    assert!(matches!(peer.next_action(S), Action::TakeGradient { n_samples: 64, .. }));
    assert_eq!(peer.next_action(S), Action::Offer);
    peer.on_answer(S, &Err(Refusal::Busy));
    assert!(matches!(peer.next_action(S), Action::Wait(Some(_))));
    assert_eq!(peer.next_action(S + S), Action::Offer);
    peer.on_answer(S + S, &accepted(100));
    assert_eq!(peer.next_action(S + S), Action::Leave);
    assert_eq!(peer.next_action(S + S), Action::Wait(None));
}

#[test]
fn stopping_gives_up_on_a_backbone_that_is_gone() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_disconnected(S, "cut".into());
    peer.stop(S);
    assert!(matches!(peer.next_action(S), Action::Wait(Some(_))));
    assert_eq!(peer.next_action(S + STOP_TIMEOUT), Action::Leave);
}

#[test]
fn rejoining_keeps_what_is_pending() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(3);
    peer.next_action(S);
    peer.rejoin(S);
    assert_eq!(peer.next_action(S), Action::Connect);
    peer.on_connected(S, 256, 64);
    peer.on_epoch(3);
    assert_eq!(peer.next_action(S), Action::Offer);
}

#[test]
fn a_silent_backbone_is_dialled_again() {
    let mut peer = connected();
    peer.on_heard(S);
    assert_eq!(peer.next_action(S + SILENCE_MAX - Duration::from_millis(1)), Action::ComputeBatch);
    assert!(matches!(peer.next_action(S + SILENCE_MAX), Action::Wait(Some(_))));
    assert!(peer.down().is_some());
}

#[test]
fn what_came_too_late_is_kept_where_it_is_of_use() {
    for keeps_late in [false, true] {
        let mut peer = connected();
        peer.set_keeps_late(keeps_late);
        compute(&mut peer, 64);
        peer.on_epoch(4);
        if keeps_late {
            assert_eq!(peer.next_action(S), Action::KeepLate { epoch: 3, n_samples: 64 });
        }
        assert_eq!(peer.next_action(S), Action::FetchState);
        peer.on_state(4);
        assert_eq!(peer.tally().n_samples_late, 64);
    }
}
