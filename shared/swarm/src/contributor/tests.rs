#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod counts;
mod delayed;

use std::ops::{Deref, DerefMut};

use super::*;
use crate::activity::Interruption;
use crate::session::{PROOF_MAX, SILENCE_MAX, STOP_TIMEOUT};

const S: Duration = Duration::from_secs(1);

/// A contributor and its session, as every driver has both.
struct Peer {
    contributor: Contributor,
    session: Session,
}

impl Peer {
    fn next_action(&mut self, now: Moment) -> ContributorAction {
        self.contributor.next_action(&mut self.session, now)
    }

    fn on_connected(&mut self, now: Moment, contribution_samples_max: u32, micro_batch_size: u32) {
        self.session.on_connected(now);
        self.contributor.on_connected(contribution_samples_max, micro_batch_size);
    }

    fn on_answer(&mut self, now: Moment, answer: &Result<Accepted, ContributionRefusal>) {
        self.contributor.on_answer(&self.session, now, answer);
    }

    fn computes_meanwhile(&self) -> bool {
        self.contributor.computes_meanwhile(&self.session)
    }
}

impl Deref for Peer {
    type Target = Contributor;

    fn deref(&self) -> &Contributor {
        &self.contributor
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Contributor {
        &mut self.contributor
    }
}

fn connected() -> Peer {
    let mut peer = Peer { contributor: Contributor::new(100), session: Session::new(1) };
    peer.session.start(Moment::ZERO);
    assert_eq!(peer.next_action(Moment::ZERO), ContributorAction::Connect);
    peer.on_connected(Moment::ZERO, 256, 64);
    assert!(matches!(peer.next_action(Moment::ZERO), ContributorAction::Wait(Some(_))));
    peer.on_epoch(3);
    assert_eq!(peer.next_action(Moment::ZERO), ContributorAction::FetchState);
    peer.on_state(3);
    peer
}

fn compute(peer: &mut Peer, want_total: u32) {
    assert_eq!(peer.next_action(Moment::ZERO), ContributorAction::ComputeBatch);
    peer.on_batch(64, 10.0);
    match peer.next_action(Moment::ZERO) {
        ContributorAction::SendReport(report) => {
            assert_eq!((report.epoch, report.n_samples), (3, want_total));
        }
        other => panic!("{other:?}"),
    }
}

fn accepted(id: u64) -> Result<Accepted, ContributionRefusal> {
    Ok(Accepted { contribution_id: id, epoch: 3, n_samples: 128 })
}

#[test]
fn an_epoch_from_parameters_to_acceptance() {
    let mut peer = connected();
    compute(&mut peer, 64);
    compute(&mut peer, 128);
    peer.on_due(3);
    let taken = ContributorAction::TakeGradient { contribution_id: 100, epoch: 3, n_samples: 128 };
    assert_eq!(peer.next_action(S), taken);
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
    peer.on_answer(S, &accepted(100));
    assert!(matches!(peer.next_action(S), ContributorAction::Wait(Some(_))), "waits for the next epoch");
    peer.on_epoch(4);
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
    assert_eq!(peer.sample_counts().n_samples_accepted, 128);
}

#[test]
fn a_connection_must_show_soon_that_it_survived_another_network() {
    let woke = 100 * S;
    let mut peer = peer_at(woke);
    assert!(!peer.session.on_woke(woke, false));
    assert_eq!(
        peer.next_action(woke + PROOF_MAX - S),
        ContributorAction::ComputeBatch,
        "training goes on meanwhile"
    );
    let mut silent = peer_at(woke);
    assert!(!silent.session.on_woke(woke, false));
    assert!(matches!(silent.next_action(woke + PROOF_MAX), ContributorAction::Wait(Some(_))));
    assert!(silent.session.down().is_some(), "nothing was heard in time");
    // One message is enough.
    let mut heard = peer_at(woke);
    heard.session.on_woke(woke, false);
    heard.session.on_message(woke + S);
    assert_eq!(heard.next_action(woke + PROOF_MAX), ContributorAction::ComputeBatch);
}

/// Connected, with the last message at that time.
fn peer_at(heard_at: Moment) -> Peer {
    let mut peer = connected();
    peer.session.on_message(heard_at);
    peer
}

#[test]
fn a_round_that_goes_on_is_computed_for_again_without_fetching() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(3);
    peer.next_action(S);
    peer.on_answer(S, &accepted(100));
    peer.on_epoch(3);
    assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch);
}

#[test]
fn what_was_due_again_and_again_while_batches_were_computed_is_delivered_though_it_is_not_due_now() {
    let mut peer = connected();
    compute(&mut peer, 64);
    // The backbone waits for less time than a batch takes.
    for total in (128..).step_by(64).take(MISSED_MAX as usize - 1) {
        peer.on_due(3);
        peer.on_epoch(3);
        assert!(matches!(peer.next_action(S), ContributorAction::SendReport(_)));
        compute(&mut peer, total);
    }
    assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch);
    peer.on_due(3);
    peer.on_epoch(3);
    peer.on_batch(64, 10.0);
    let n_samples = 64 * (MISSED_MAX + 1);
    let taken = ContributorAction::TakeGradient { contribution_id: 100, epoch: 3, n_samples };
    assert_eq!(peer.next_action(S), taken);
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
    peer.on_answer(S, &accepted(100));
    assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch, "nothing is due now");

    // Counted: from now on it waits until they are due.
    peer.on_batch(64, 10.0);
    assert!(matches!(peer.next_action(S), ContributorAction::SendReport(_)));
}

#[test]
fn who_missed_several_steps_delivers_each_batch_until_one_counts() {
    let mut peer = connected();
    let mut epoch = 3;
    for _ in 0..MISSED_MAX {
        assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch);
        peer.on_batch(64, 10.0);
        assert!(matches!(peer.next_action(S), ContributorAction::SendReport(_)));
        peer.on_due(epoch);
        epoch += 1;
        peer.on_epoch(epoch);
        peer.on_state(epoch);
    }
    for (id, answer) in
        [(100, Err(ContributionRefusal::Epoch { want: epoch + 1, got: epoch })), (101, accepted(101))]
    {
        assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch);
        peer.on_batch(64, 10.0);
        let taken = ContributorAction::TakeGradient { contribution_id: id, epoch, n_samples: 64 };
        assert_eq!(peer.next_action(S), taken);
        assert_eq!(peer.next_action(S), ContributorAction::Offer);
        peer.on_answer(S, &answer);
    }
    assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch);
    peer.on_batch(64, 10.0);
    assert!(matches!(peer.next_action(S), ContributorAction::SendReport(_)), "one has counted");
}

#[test]
fn a_lost_acknowledgement_is_offered_again_under_the_same_name() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(3);
    peer.next_action(S);
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
    peer.session.on_disconnected(S, Interruption::other("cut"));
    let ContributorAction::Wait(Some(retry_at)) = peer.next_action(S) else { panic!() };
    assert_eq!(peer.next_action(retry_at), ContributorAction::Connect);
    peer.on_connected(retry_at, 256, 64);
    assert_eq!(peer.next_action(retry_at), ContributorAction::Offer);
    peer.on_answer(retry_at, &Err(ContributionRefusal::Duplicate { contribution_id: 100 }));
    assert_eq!((peer.sample_counts().n_accepted, peer.sample_counts().n_refused), (1, 0));
}

#[test]
fn work_survives_a_reconnection_within_the_epoch_and_is_dropped_after_it() {
    let mut peer = connected();
    compute(&mut peer, 64);
    for (epoch, action) in [(3, None), (4, Some(ContributorAction::FetchState))] {
        peer.session.on_disconnected(S, Interruption::other("cut"));
        peer.on_connected(S, 256, 64);
        peer.on_epoch(epoch);
        match action {
            Some(action) => assert_eq!(peer.next_action(S), action),
            None => {
                assert!(matches!(peer.next_action(S), ContributorAction::SendReport(r) if r.n_samples == 64));
            }
        }
    }
    peer.on_state(4);
    assert_eq!(peer.sample_counts().n_samples_late, 64);
}

#[test]
fn a_full_contribution_is_delivered_before_it_is_due() {
    let mut peer = connected();
    (1..=3).for_each(|n| compute(&mut peer, 64 * n));
    peer.next_action(S);
    peer.on_batch(64, 10.0);
    assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { n_samples: 256, .. }));
    peer.on_answer(S, &accepted(100));
    assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch, "and goes on");
}

#[test]
fn stopping_delivers_what_is_finished() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.session.stop(S);
    assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { n_samples: 64, .. }));
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
    peer.on_answer(S, &Err(ContributionRefusal::Busy));
    assert!(matches!(peer.next_action(S), ContributorAction::Wait(Some(_))));
    assert_eq!(peer.next_action(S + S), ContributorAction::Offer);
    peer.on_answer(S + S, &accepted(100));
    assert_eq!(peer.next_action(S + S), ContributorAction::Leave);
    assert_eq!(peer.next_action(S + S), ContributorAction::Wait(None));
}

#[test]
fn what_a_backbone_cannot_store_is_offered_again_after_seconds_and_not_three_times_in_one() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(3);
    assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { n_samples: 64, .. }));
    let mut n_offered = 0;
    for millisecond in (0..60_000).step_by(50) {
        let now = S + std::time::Duration::from_millis(millisecond);
        peer.session.on_message(now);
        if peer.next_action(now) == ContributorAction::Offer {
            n_offered += 1;
            peer.on_answer(now, &Err(ContributionRefusal::Storage));
        }
    }
    assert!((6..=13).contains(&n_offered), "{n_offered} offers in a minute");
    // A peer that leaves has little time.
    let now = 61 * S;
    peer.session.on_message(now);
    peer.session.stop(now);
    let hands_in = std::iter::successors(Some(now), |at| Some(*at + S / 10)).take(60);
    let n_offered = hands_in.filter(|at| {
        let is_offer = peer.next_action(*at) == ContributorAction::Offer;
        if is_offer {
            peer.on_answer(*at, &Err(ContributionRefusal::Storage));
        }
        is_offer
    });
    assert!(n_offered.count() > 3);
}

#[test]
fn stopping_gives_up_on_a_backbone_that_is_gone() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.session.on_disconnected(S, Interruption::other("cut"));
    peer.session.stop(S);
    assert!(matches!(peer.next_action(S), ContributorAction::Wait(Some(_))));
    assert_eq!(peer.next_action(S + STOP_TIMEOUT), ContributorAction::Leave);
}

#[test]
fn rejoining_keeps_what_is_pending() {
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(3);
    peer.next_action(S);
    peer.session.rejoin(S);
    assert_eq!(peer.next_action(S), ContributorAction::Connect);
    peer.on_connected(S, 256, 64);
    peer.on_epoch(3);
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
}

#[test]
fn a_silent_backbone_is_dialled_again() {
    let mut peer = connected();
    peer.session.on_message(S);
    assert_eq!(peer.next_action(S + SILENCE_MAX - Duration::from_millis(1)), ContributorAction::ComputeBatch);
    assert!(matches!(peer.next_action(S + SILENCE_MAX), ContributorAction::Wait(Some(_))));
    assert!(peer.session.down().is_some());
}

/// A peer that is too slow computes and none of it counts: its user is notified.
#[test]
fn steps_that_are_made_without_what_was_computed_are_counted_until_something_counts() {
    let mut peer = connected();
    for epoch in 4..9 {
        peer.on_batch(64, 1.0);
        peer.on_epoch(epoch);
        peer.on_state(epoch);
    }
    assert_eq!(peer.sample_counts().n_steps_missed, 5);
    // Nothing was computed for these.
    peer.on_epoch(9);
    peer.on_epoch(10);
    assert_eq!(peer.sample_counts().n_steps_missed, 5);
    peer.on_state(10);
    peer.on_batch(64, 1.0);
    peer.on_due(10);
    let ContributorAction::TakeGradient { contribution_id, n_samples, .. } = peer.next_action(S) else {
        panic!()
    };
    peer.on_answer(S, &Ok(Accepted { contribution_id, epoch: 10, n_samples }));
    assert_eq!(peer.sample_counts().n_steps_missed, 0);
    peer.on_epoch(11);
    assert_eq!(peer.sample_counts().n_steps_missed, 0);
}

#[test]
fn what_came_too_late_is_kept_where_it_is_of_use() {
    for late_work in [LateWork::Dropped, LateWork::WithNext, LateWork::ByItself] {
        let mut peer = connected();
        peer.set_late_work(late_work);
        compute(&mut peer, 64);
        assert!(!peer.has_lost_gradient(), "its epoch goes on");
        peer.on_epoch(4);
        if late_work != LateWork::Dropped {
            assert_eq!(peer.next_action(S), ContributorAction::KeepLate { epoch: 3, n_samples: 64 });
        }
        assert_eq!(peer.next_action(S), ContributorAction::FetchState);
        assert_eq!(peer.has_lost_gradient(), late_work == LateWork::Dropped);
        peer.on_state(4);
        assert!(!peer.has_lost_gradient(), "nothing is computed");
        assert_eq!(peer.sample_counts().n_samples_late, 64);
    }
}

#[test]
fn what_is_kept_as_it_is_is_named_for_a_later_epoch() {
    let mut peer = connected();
    peer.set_late_work(LateWork::ByItself);
    compute(&mut peer, 64);
    peer.on_epoch(5);
    assert_eq!(peer.next_action(S), ContributorAction::KeepLate { epoch: 3, n_samples: 64 });
    peer.on_kept(3);
    assert_eq!(peer.next_action(S), ContributorAction::NameLate { contribution_id: 100, epoch: 5 });
    peer.on_late(100, 5, 21);
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
    peer.on_answer(S, &Err(ContributionRefusal::Epoch { want: 6, got: 5 }));
    peer.on_kept(5);
    assert_eq!(peer.next_action(S), ContributorAction::FetchState, "the next epoch is not known yet");
    peer.on_epoch(6);
    assert_eq!(peer.next_action(S), ContributorAction::NameLate { contribution_id: 101, epoch: 6 });
    // Stale work that does not count any more is dropped.
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
}

#[test]
fn a_contributor_that_stops_when_the_epoch_is_over_delivers_what_can_be_offered_by_itself() {
    for late_work in [LateWork::Dropped, LateWork::WithNext, LateWork::ByItself] {
        let mut peer = connected();
        peer.set_late_work(late_work);
        compute(&mut peer, 64);
        peer.session.stop(S);
        peer.on_epoch(4);
        if late_work == LateWork::ByItself {
            assert_eq!(peer.next_action(S), ContributorAction::KeepLate { epoch: 3, n_samples: 64 });
            peer.on_kept(3);
            assert_eq!(peer.next_action(S), ContributorAction::NameLate { contribution_id: 100, epoch: 4 });
            peer.on_late(100, 4, 32);
            assert_eq!(peer.next_action(S), ContributorAction::Offer);
            peer.on_answer(S, &accepted(100));
        }
        assert_eq!(peer.next_action(S), ContributorAction::Leave);
        assert_eq!(peer.sample_counts().n_samples_late, 64);
    }
}

#[test]
fn what_is_kept_is_delivered_before_leaving_and_not_to_a_run_that_went_back() {
    let mut peer = connected();
    peer.on_kept(3);
    peer.session.stop(S);
    assert!(!matches!(peer.next_action(S), ContributorAction::Leave));
    peer.on_epoch(4);
    assert_eq!(peer.next_action(S), ContributorAction::NameLate { contribution_id: 100, epoch: 4 });
    peer.on_late(100, 4, 8);
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
    peer.on_answer(S, &accepted(100));
    assert_eq!(peer.next_action(S), ContributorAction::Leave);

    let mut peer = connected();
    peer.on_kept(3);
    peer.on_epoch(2);
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
    peer.on_epoch(4);
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
}

/// A contributor of a run with delayed updates that has delivered its part of epoch 3 and knows of epoch 4.
fn delayed() -> Peer {
    let mut peer = connected();
    peer.set_delayed(true);
    compute(&mut peer, 64);
    peer.on_due(3);
    assert!(!peer.computes_meanwhile(), "what is due is taken first");
    assert_eq!(
        peer.next_action(S),
        ContributorAction::TakeGradient { contribution_id: 100, epoch: 3, n_samples: 64 }
    );
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
    peer
}

#[test]
fn with_delayed_updates_the_device_works_while_gradients_travel_and_parameters_come() {
    let mut peer = delayed();
    assert!(peer.computes_meanwhile());
    peer.on_batch(64, 10.0);
    peer.on_answer(S, &accepted(100));
    assert!(matches!(peer.next_action(S), ContributorAction::Wait(Some(_))), "it is for the next epoch");
    assert!(peer.computes_meanwhile());
    peer.on_batch(64, 10.0);
    peer.on_epoch(4);
    let report = Report { epoch: 4, contribution_id: 101, n_samples: 128, samples_per_second: 10.0 };
    assert_eq!(peer.next_action(S), ContributorAction::SendReport(report));
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
    assert!(!peer.has_lost_gradient(), "it counts in this epoch");
    assert!(peer.computes_meanwhile());
    assert!(peer.leaves_aside(4));
    peer.on_fetched(4);
    assert_eq!(peer.next_action(S), ContributorAction::ComputeBatch);
    peer.on_due(4);
    assert_eq!(
        peer.next_action(S),
        ContributorAction::TakeGradient { contribution_id: 101, epoch: 4, n_samples: 128 }
    );
    assert_eq!(peer.next_action(S), ContributorAction::LoadState);
    peer.on_state(4);
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
    assert!(peer.computes_meanwhile());
    assert_eq!(peer.sample_counts().n_samples_late, 0);
}

#[test]
fn without_them_it_waits() {
    let mut peer = delayed();
    peer.set_delayed(false);
    assert!(!peer.computes_meanwhile());
    assert!(!peer.leaves_aside(4));
    peer.on_answer(S, &accepted(100));
    peer.on_epoch(4);
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
}

#[test]
fn parameters_that_come_after_their_gradient_is_due_are_used_at_once() {
    let mut peer = delayed();
    peer.on_batch(64, 10.0);
    peer.on_answer(S, &accepted(100));
    peer.on_epoch(4);
    assert!(matches!(peer.next_action(S), ContributorAction::SendReport(_)));
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
    peer.on_due(4);
    assert!(
        !peer.computes_meanwhile(),
        "neither for this epoch nor, with parameters of two before, the next"
    );
    assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { epoch: 4, .. }));
    assert!(!peer.computes_meanwhile());
    assert!(!peer.leaves_aside(4));
    peer.on_state(4);
    assert!(peer.computes_meanwhile());
}

#[test]
fn gradients_of_two_epochs_before_are_late() {
    let mut peer = delayed();
    peer.on_batch(64, 10.0);
    peer.on_answer(S, &accepted(100));
    peer.on_epoch(5);
    assert!(!peer.computes_meanwhile());
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
    assert!(!peer.leaves_aside(5));
    peer.on_state(5);
    assert_eq!(peer.sample_counts().n_samples_late, 64);
}

/// For any order of events: but for the first epoch, samples of an epoch were computed with the parameters of the one
/// before. A contributor that was too slow to fetch them in time goes on with the newest, never with older ones.
#[test]
fn delayed_updates_are_exactly_one_round_behind() {
    for seed in 0..20 {
        let mut random = crate::random::SplitMix64::new(seed);
        let mut peer = connected();
        peer.set_delayed(true);
        // Epochs of the loaded parameters, of the gradient, and of the fetched parameters.
        let (mut loaded, mut gradient_of, mut aside) = (3u64, Vec::new(), None);
        let (mut epoch, mut n_taken, mut fetching, mut offering) = (3u64, 0, false, false);
        let (mut is_due, mut caught_up_at, mut n_behind) = (false, 3, 0);
        let mut now = Moment::ZERO;
        for _ in 0..2000 {
            now += Duration::from_millis(10);
            peer.session.on_message(now);
            // Events of the network, in any order.
            match random.below(6) {
                0 if fetching => {
                    fetching = false;
                    if peer.leaves_aside(epoch) {
                        aside = Some(epoch);
                        peer.on_fetched(epoch);
                    } else {
                        assert_eq!(gradient_of, [], "seed {seed}");
                        if loaded + 1 < epoch {
                            caught_up_at = epoch;
                        }
                        loaded = epoch;
                        peer.on_state(epoch);
                    }
                }
                1 if offering => {
                    offering = false;
                    peer.on_answer(now, &accepted(0));
                    if std::mem::take(&mut is_due) {
                        epoch += 1;
                        peer.on_epoch(epoch);
                    }
                }
                2 if !gradient_of.is_empty() && !offering => {
                    is_due = true;
                    peer.on_due(epoch);
                }
                _ => {}
            }
            if !fetching && !offering {
                match peer.next_action(now) {
                    ContributorAction::FetchState => fetching = true,
                    ContributorAction::Offer => offering = true,
                    ContributorAction::TakeGradient { epoch: counts_for, .. } => {
                        let want = counts_for - u64::from(counts_for != caught_up_at);
                        let is_right = gradient_of.iter().all(|of| *of == want);
                        assert!(is_right, "seed {seed}: {gradient_of:?} for {counts_for}");
                        n_behind += usize::from(want < counts_for);
                        gradient_of.clear();
                        n_taken += 1;
                    }
                    ContributorAction::LoadState => {
                        assert_eq!(gradient_of, [], "seed {seed}");
                        loaded = aside.take().unwrap();
                        peer.on_state(loaded);
                    }
                    ContributorAction::ComputeBatch => {
                        gradient_of.push(loaded);
                        peer.on_batch(64, 10.0);
                    }
                    _ => {}
                }
            }
            if (fetching || offering) && peer.computes_meanwhile() {
                gradient_of.push(loaded);
                peer.on_batch(64, 10.0);
            }
        }
        assert!(n_taken > 20 && 2 * n_behind > n_taken, "seed {seed}: {n_behind} of {n_taken}");
        assert_eq!(peer.sample_counts().n_samples_late, 0, "seed {seed}");
    }
}

/// Computes on epoch 3, and comes to another backbone, which is at `epoch`.
fn moved(late_work: LateWork, epoch: u64) -> Peer {
    let mut peer = connected();
    peer.set_late_work(late_work);
    compute(&mut peer, 64);
    peer.session.on_disconnected(S, Interruption::other("cut"));
    peer.on_moved(2 * S);
    peer.on_connected(2 * S, 256, 64);
    peer.on_epoch(epoch);
    peer
}

#[test]
fn what_was_computed_for_one_backbone_is_offered_to_the_next_before_its_parameters_are_fetched() {
    let mut peer = moved(LateWork::Dropped, 3);
    assert!(!peer.leaves_aside(4));
    assert_eq!(
        peer.next_action(2 * S),
        ContributorAction::TakeGradient { contribution_id: 100, epoch: 3, n_samples: 64 }
    );
    assert_eq!(peer.next_action(2 * S), ContributorAction::Offer);
    peer.on_answer(2 * S, &accepted(100));
    assert_eq!(peer.next_action(2 * S), ContributorAction::FetchState);
    peer.on_state(3);
    assert_eq!(peer.next_action(2 * S), ContributorAction::ComputeBatch);
    assert_eq!((peer.sample_counts().n_samples_accepted, peer.sample_counts().n_samples_late), (64, 0));
    // Nothing was computed: there is nothing to offer.
    peer.on_moved(3 * S);
    assert_eq!(peer.next_action(3 * S), ContributorAction::FetchState);
}

#[test]
fn where_the_next_backbone_is_further_what_was_computed_is_as_late_as_with_the_one_before() {
    for late_work in [LateWork::Dropped, LateWork::WithNext] {
        let mut peer = moved(late_work, 4);
        if late_work == LateWork::WithNext {
            assert_eq!(peer.next_action(2 * S), ContributorAction::KeepLate { epoch: 3, n_samples: 64 });
        }
        assert_eq!(peer.next_action(2 * S), ContributorAction::FetchState);
    }
}

#[test]
fn what_was_computed_waits_a_little_for_a_backbone_that_is_one_step_behind() {
    let mut peer = moved(LateWork::Dropped, 2);
    assert_eq!(peer.next_action(2 * S), ContributorAction::Wait(Some(2 * S + moved::CATCH_UP)));
    peer.on_epoch(3);
    assert!(matches!(peer.next_action(3 * S), ContributorAction::TakeGradient { epoch: 3, .. }));
    // What was taken and not sent waits as well.
    let mut peer = connected();
    compute(&mut peer, 64);
    peer.on_due(3);
    assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { .. }));
    peer.session.on_disconnected(S, Interruption::other("cut"));
    peer.on_moved(2 * S);
    peer.on_connected(2 * S, 256, 64);
    peer.on_epoch(2);
    assert!(matches!(peer.next_action(2 * S), ContributorAction::Wait(Some(_))));
    peer.on_epoch(3);
    assert_eq!(peer.next_action(2 * S), ContributorAction::Offer);
    // That step is perhaps never made: a peer that waited for it would compute nothing for the one that is.
    let mut peer = moved(LateWork::Dropped, 2);
    assert_eq!(peer.next_action(2 * S + moved::CATCH_UP), ContributorAction::FetchState);
    let mut peer = moved(LateWork::Dropped, 1);
    assert_eq!(peer.next_action(2 * S), ContributorAction::FetchState, "that is no step");
}

#[test]
fn with_delayed_updates_nothing_is_computed_with_parameters_of_the_backbone_before() {
    let mut peer = delayed();
    peer.on_batch(64, 10.0);
    peer.on_answer(S, &accepted(100));
    peer.on_epoch(4);
    peer.on_moved(S);
    peer.on_connected(S, 256, 64);
    peer.on_epoch(4);
    assert!(!peer.computes_meanwhile() && !peer.leaves_aside(4));
    assert_eq!(
        peer.next_action(S),
        ContributorAction::TakeGradient { contribution_id: 101, epoch: 4, n_samples: 64 }
    );
    assert!(!peer.computes_meanwhile());
    assert_eq!(peer.next_action(S), ContributorAction::Offer);
    peer.on_answer(S, &accepted(101));
    assert_eq!(peer.next_action(S), ContributorAction::FetchState);
    assert!(!peer.leaves_aside(4));
}
