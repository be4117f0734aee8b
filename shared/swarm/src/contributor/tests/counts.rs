//! What a contributor is told about its work, and the messages that it must not be misled by.

use super::*;

/// A contributor that has taken the gradient of 64 samples of epoch 3, under the number 100, to offer it.
fn offering() -> Peer {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(3);
    let taken = ContributorAction::TakeGradient { contribution_id: 100, epoch: 3, n_samples: 64 };
    assert_eq!(peer.next_action(S), taken);
    peer
}

#[test]
fn what_was_done_in_other_runs_stays_on_the_page() {
    let before = SampleCounts { n_accepted: 7, n_samples_computed: 900, ..SampleCounts::default() };
    let contributor = Contributor::new(42).with_counts(before.clone());
    assert_eq!(contributor.sample_counts(), &before);
    assert_eq!((contributor.next_contribution_id(), contributor.run_epoch()), (42, None));
}

#[test]
fn each_contribution_has_a_number_of_its_own_and_the_page_knows_the_epoch() {
    let mut peer = offering();
    assert_eq!((peer.next_contribution_id(), peer.run_epoch()), (101, Some(3)));
    peer.on_answer(S, &accepted(100));
    peer.on_kept(3);
    peer.on_epoch(4);
    assert_eq!(peer.next_action(S), ContributorAction::NameLate { contribution_id: 101, epoch: 4 });
    assert_eq!((peer.next_contribution_id(), peer.run_epoch()), (102, Some(4)));
}

#[test]
fn every_sample_is_counted_under_its_outcome() {
    for n_times in 1..=2 {
        let mut peer = connected();
        for id in 0..4 * n_times {
            peer.on_batch(64, 10.0);
            peer.on_due(3);
            let ContributorAction::TakeGradient { contribution_id, .. } = peer.next_action(S) else {
                panic!("{id}")
            };
            match id % 4 {
                0 => peer.on_answer(S, &accepted(contribution_id)),
                1 => peer.on_gradient_lost(),
                2 => peer.on_unanswered(),
                _ => peer.on_answer(S, &Err(ContributionRefusal::Epoch { want: 4, got: 3 })),
            }
            // Nothing is left to offer, and these events change nothing once more.
            let counts = peer.sample_counts().clone();
            peer.on_gradient_lost();
            peer.on_unanswered();
            peer.on_answer(S, &accepted(contribution_id));
            assert_eq!(peer.sample_counts(), &counts);
            peer.on_epoch(3);
            assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch);
        }
        let counts = peer.sample_counts();
        let n = 64 * n_times;
        assert_eq!((counts.n_samples_computed, counts.n_samples_accepted), (4 * n, n));
        assert_eq!((counts.n_samples_unanswered, counts.n_samples_late), (n, 2 * n));
        assert_eq!((counts.n_accepted, counts.n_refused), (n_times, n_times));
    }
}

#[test]
fn refusals_are_counted_by_reason_and_the_newest_one_is_shown() {
    let mut peer = connected();
    let rate = ContributionRefusal::Rate { max: 1, got: 64 };
    let late = ContributionRefusal::Epoch { want: 4, got: 3 };
    for refusal in [&late, &rate, &rate] {
        peer.on_batch(64, 10.0);
        peer.on_due(3);
        assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { .. }));
        peer.on_answer(S, &Err(refusal.clone()));
        peer.on_epoch(3);
    }
    let counts = peer.sample_counts();
    assert_eq!(counts.refusals, [(late.kind(), 1), (rate.kind(), 2)].into());
    assert_eq!(counts.last_refusal, Some(rate.to_string()));
    assert_eq!((counts.n_refused, counts.n_samples_late), (3, 64), "only one of them was late");
    assert_eq!((counts.n_accepted, counts.n_samples_accepted), (0, 0));
}

#[test]
fn what_the_backbone_had_no_slot_for_is_offered_again_after_its_pause_and_no_sooner() {
    const MS: Duration = Duration::from_millis(1);
    for (refusal, pause) in [
        (ContributionRefusal::Busy, OFFER_AGAIN),
        (ContributionRefusal::NotJoined, OFFER_AGAIN),
        (ContributionRefusal::Storage, OFFER_AGAIN_TO_A_DISK),
    ] {
        let mut peer = offering();
        assert_eq!(peer.next_action(S), ContributorAction::Offer);
        peer.on_answer(S, &Err(refusal));
        let again = S + pause;
        assert_eq!(peer.next_action(again - MS), ContributorAction::Wait(Some(again)));
        assert_eq!(peer.next_action(again), ContributorAction::Offer);
        assert_eq!(peer.sample_counts().n_refused, 0);
    }
}

#[test]
fn a_call_for_samples_of_another_epoch_or_a_second_one_changes_nothing() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(2);
    peer.on_due(4);
    assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch);
    peer.on_due(3);
    peer.on_due(3);
    assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { n_samples: 64, .. }));
}

#[test]
fn where_nothing_was_computed_nothing_is_offered_and_the_next_epoch_is_waited_for() {
    let mut peer = connected();
    peer.on_due(3);
    // Its parameters come once more, as after a reconnection.
    peer.on_state(3);
    assert!(matches!(peer.next_action(S), ContributorAction::Wait(Some(_))));
    assert_eq!(peer.next_contribution_id(), 100);
    // Nor is anything kept for later.
    let mut peer = connected();
    peer.set_late_work(LateWork::WithNext);
    peer.on_epoch(4);
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
}

#[test]
fn parameters_that_are_newer_than_the_announcement_are_computed_with_at_once() {
    let mut peer = connected();
    peer.on_state(5);
    assert_eq!((peer.run_epoch(), peer.next_action(S)), (Some(5), ContributorAction::ComputeBatch));
    // Older ones do not bring the old epoch back.
    peer.on_state(4);
    assert_eq!((peer.run_epoch(), peer.next_action(S)), (Some(5), ContributorAction::FetchState));
}

#[test]
fn a_trainer_that_is_gone_takes_its_gradient_along_and_fetches_parameters() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_trainer_lost();
    assert_eq!(peer.sample_counts().n_samples_late, 64);
    peer.on_due(3);
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
}

#[test]
fn a_round_that_goes_on_is_no_step_that_was_missed() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_epoch(3);
    assert_eq!(peer.sample_counts().n_steps_missed, 0);
    // The step that is then made without these samples is.
    peer.on_epoch(4);
    assert_eq!(peer.sample_counts().n_steps_missed, 1);
}

#[test]
fn one_that_moved_without_a_gradient_waits_for_no_step() {
    let mut peer = connected();
    peer.on_moved(S);
    peer.on_connected(S, 256, 64);
    peer.on_epoch(2);
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
}

#[test]
fn samples_that_were_delivered_when_they_were_due_are_no_call_missed() {
    let mut peer = connected();
    // Each epoch has several rounds, and this peer delivers in each of them.
    for id in 100..100 + 2 * u64::from(MISSED_MAX) {
        assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch);
        peer.on_batch(64, 10.0);
        assert!(matches!(peer.next_action(S), ContributorAction::SendReport(_)), "it is due later: {id}");
        peer.on_due(3);
        assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { .. }));
        peer.on_answer(S, &Err(ContributionRefusal::Rate { max: 1, got: 64 }));
        peer.on_epoch(3);
    }
}
