#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod limits;

use std::collections::BTreeSet;

use barnraise_protocol::matchmaking::{ProposedMember, ProposedReducer};

use super::*;

const CONFIG: MatchmakingConfig = MatchmakingConfig {
    target_batch_size: 100,
    silence: Duration::from_secs(5),
    gather: Duration::from_secs(1),
    retry: Duration::from_millis(200),
};

fn peer(number: u8) -> PeerKey {
    PeerKey(vec![number])
}

fn model(epoch: u64) -> ModelVersion {
    ModelVersion { n_samples_total: 100 * epoch, epoch, hash: Sha256Hash::of(&epoch.to_le_bytes()) }
}

fn standing(epoch: u64, n_samples: u64) -> AggregatorStatus {
    AggregatorStatus {
        n_samples,
        n_contributors: 1,
        samples_per_second: 1.0,
        download_bytes_per_s: 1e6,
        upload_bytes_per_s: 1e6,
        ..AggregatorStatus::new(model(epoch))
    }
}

fn ready(epoch: u64, n_samples: u64) -> AggregatorStatus {
    let ready = Some(Ready { n_samples, loss: 1.0 });
    AggregatorStatus { is_closing: true, ready, ..standing(epoch, n_samples) }
}

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn one(number: u8) -> Matchmaking {
    Matchmaking::new(CONFIG, peer(number), standing(0, 0))
}

fn proposal(epoch: u64, members: &[(u8, u64)]) -> Proposal {
    let member =
        |&(number, n_samples): &(u8, u64)| ProposedMember { peer: peer(number).0, n_samples, n_reduced: 5 };
    let members = members.iter().map(member).collect();
    let (nonce, group_size, reducers) = (1, MEMBERS_MAX as u16, Vec::new());
    Proposal { model: model(epoch), nonce, group_size, members, reducers, check_seed: 0, loss: 1.0 }
}

#[test]
fn a_peer_that_hears_of_no_other_steps_alone() {
    let mut peer = one(1);
    peer.on_ready(at(0), Ready { n_samples: 120, loss: 1.0 });
    assert_eq!(peer.poll_action(), Some(MatchmakingAction::StepAlone));
    peer.on_stepped(at(1), model(1));
    assert_eq!(peer.own().ready, None);
    assert_eq!(peer.poll_action(), None);
}

#[test]
fn a_peer_reopens_where_its_samples_are_not_enough_after_all() {
    let mut peer = one(1);
    peer.on_ready(at(0), Ready { n_samples: 80, loss: 1.0 });
    assert_eq!(peer.poll_action(), Some(MatchmakingAction::Reopen));
    assert_eq!((peer.own().ready, peer.own().is_closing), (None, false));
}

#[test]
fn those_with_the_same_model_count_together() {
    let mut me = one(1);
    me.on_status(at(0), peer(2), standing(0, 30));
    me.on_status(at(0), peer(3), standing(1, 50));
    me.on_status(at(0), peer(4), ready(0, 20));
    assert_eq!(me.n_samples_elsewhere(at(0)), 50);
    assert!(!me.is_closing_elsewhere(at(0)), "what was collected is not enough");
    me.on_own_status(at(0), standing(0, 50));
    assert!(me.is_closing_elsewhere(at(0)), "with what is here it is");
    me.on_status(at(0), peer(4), AggregatorStatus { is_busy: true, ..ready(0, 20) });
    assert!(!me.is_closing_elsewhere(at(0)), "it averages already");
    me.on_own_status(at(0), standing(0, 0));
    me.on_status(at(0), peer(4), ready(0, 20));
    me.on_status(at(1000), peer(2), AggregatorStatus { is_closing: true, ..standing(0, 30) });
    assert!(me.is_closing_elsewhere(at(1000)));
    me.on_gone(at(1000), &peer(2));
    assert_eq!(me.n_samples_elsewhere(at(1000)), 20);
    assert_eq!(me.n_samples_elsewhere(at(5000)), 0, "a silent peer is not counted");
}

/// The collected samples stay as they are.
#[test]
fn a_link_that_turns_out_to_be_another_one_is_told() {
    let mut me = one(1);
    me.on_status(at(0), peer(2), standing(0, 90));
    me.on_ready(at(0), Ready { n_samples: 20, loss: 1.0 });
    let measured = AggregatorStatus { download_bytes_per_s: 5e6, upload_bytes_per_s: 2e6, ..standing(0, 20) };
    me.on_own_status(at(1), measured);
    let own = me.own();
    assert_eq!((own.download_bytes_per_s, own.upload_bytes_per_s), (5e6, 2e6));
    assert_eq!(own.ready.map(|ready| ready.n_samples), Some(20));
}

/// The proposer among three peers that are all ready.
fn proposer(epoch: u64) -> u8 {
    let proposes = |number: u8| {
        let mut me = Matchmaking::new(CONFIG, peer(number), standing(epoch, 0));
        for other in (1..=3).filter(|other| *other != number) {
            me.on_status(at(0), peer(other), ready(epoch, 40));
        }
        me.on_ready(at(0), Ready { n_samples: 40, loss: 1.0 });
        me.poll_action().is_some()
    };
    let proposers: Vec<u8> = (1..=3).filter(|&number| proposes(number)).collect();
    assert_eq!(proposers.len(), 1, "{proposers:?}");
    proposers[0]
}

#[test]
fn one_proposes_and_another_one_in_another_epoch() {
    let proposers: BTreeSet<u8> = (0..30).map(proposer).collect();
    assert_eq!(proposers.len(), 3);
}

#[test]
fn the_next_peer_proposes_where_the_first_does_not() {
    let epoch = (0..30).find(|&epoch| proposer(epoch) == 1).unwrap();
    let mut me = Matchmaking::new(CONFIG, peer(2), standing(epoch, 0));
    me.on_status(at(0), peer(1), ready(epoch, 60));
    me.on_ready(at(0), Ready { n_samples: 60, loss: 1.0 });
    assert_eq!(me.poll_action(), None);
    assert_eq!(me.next_deadline(), Some(at(1000)));
    me.on_timeout(at(1000));
    let Some(MatchmakingAction::Propose { members, .. }) = me.poll_action() else { panic!("its turn") };
    assert_eq!(members.iter().map(|(peer, _)| peer.clone()).collect::<Vec<_>>(), [peer(1), peer(2)]);
    assert_eq!(me.next_deadline(), Some(at(2000)), "later than now, so that nobody spins");
}

#[test]
fn a_peer_that_has_not_collected_is_waited_for_once() {
    let epoch = (0..30).find(|&epoch| proposer(epoch) == 2).unwrap();
    let mut me = Matchmaking::new(CONFIG, peer(2), standing(epoch, 0));
    me.on_status(at(0), peer(1), ready(epoch, 60));
    me.on_status(at(0), peer(3), AggregatorStatus { is_closing: true, ..standing(epoch, 60) });
    me.on_ready(at(0), Ready { n_samples: 60, loss: 1.0 });
    assert_eq!(me.poll_action(), None);
    me.on_timeout(at(1000));
    let Some(MatchmakingAction::Propose { members, .. }) = me.poll_action() else {
        panic!("without the third")
    };
    assert_eq!(members.len(), 2);
}

#[test]
fn a_proposal_is_checked() {
    let mut me = one(1);
    me.on_status(at(0), peer(2), ready(0, 60));
    let good = proposal(0, &[(1, 60), (2, 60)]);
    assert_eq!(me.on_proposal(at(0), good.clone()), Err(ProposalError::NotReady));
    me.on_ready(at(0), Ready { n_samples: 60, loss: 1.0 });
    while me.poll_action().is_some() {}
    assert_eq!(me.on_proposal(at(0), proposal(1, &[(1, 60), (2, 60)])), Err(ProposalError::Model));
    assert_eq!(me.on_proposal(at(0), proposal(0, &[(1, 61), (2, 60)])), Err(ProposalError::NotAMember));
    assert_eq!(me.on_proposal(at(0), proposal(0, &[(2, 60)])), Err(ProposalError::NotAMember));
    assert_eq!(me.on_proposal(at(0), proposal(0, &[(1, 60), (9, 60)])), Err(ProposalError::UnknownMember));
    let bad = Proposal { loss: f32::NAN, ..good.clone() };
    assert_eq!(me.on_proposal(at(0), bad), Err(ProposalError::Loss));
    let reducers = vec![ProposedReducer { peer: vec![9], n_reduced: 1 }; REDUCERS_MAX + 1];
    let n = reducers.len();
    let too_many = Proposal { reducers, ..good.clone() };
    assert_eq!(me.on_proposal(at(0), too_many), Err(ProposalError::Reducers(n)));
    for group_size in [0, 1] {
        let alone = Proposal { group_size, ..good.clone() };
        assert_eq!(me.on_proposal(at(0), alone), Err(ProposalError::GroupSize(group_size)));
    }
    let reducers = vec![ProposedReducer { peer: vec![9], n_reduced: 1 }];
    let members = [good.members.clone(), good.members.clone()].concat();
    let helped = Proposal { reducers, members, group_size: 2, ..good.clone() };
    assert_eq!(me.on_proposal(at(0), helped), Err(ProposalError::ReducersInGrid));
    assert!(me.is_first_attempt());
    assert_eq!(me.on_proposal(at(0), good.clone()), Ok(()));
    assert_eq!(me.poll_action(), Some(MatchmakingAction::Average(good.clone())));
    assert_eq!(me.on_proposal(at(0), good), Err(ProposalError::NotReady), "one at a time");
}

#[test]
fn a_peer_that_fell_behind_follows_and_asks_again_a_little_later() {
    let mut me = one(1);
    me.on_status(at(0), peer(2), standing(3, 10));
    me.on_status(at(0), peer(3), standing(0, 10));
    assert_eq!(me.poll_action(), Some(MatchmakingAction::Follow(vec![peer(2)])));
    me.on_status(at(10), peer(2), standing(4, 10));
    assert_eq!(me.poll_action(), None, "one at a time");
    me.on_failed(at(20));
    assert_eq!(me.poll_action(), None);
    assert_eq!(me.next_deadline(), Some(at(220)));
    me.on_timeout(at(220));
    assert_eq!(me.poll_action(), Some(MatchmakingAction::Follow(vec![peer(2)])));
    me.on_stepped(at(300), model(3));
    assert_eq!(me.poll_action(), None, "it is on its way");
    me.on_stepped(at(300), model(4));
    me.on_followed(at(300));
    assert_eq!(me.poll_action(), None);
    me.on_status(at(310), peer(2), standing(5, 10));
    assert_eq!(me.poll_action(), Some(MatchmakingAction::Follow(vec![peer(2)])));
}

#[test]
fn averagings_that_fail_do_not_hold_a_peer_up_for_ever() {
    let mut me = one(1);
    me.on_status(at(0), peer(2), ready(0, 60));
    me.on_ready(at(0), Ready { n_samples: 120, loss: 1.0 });
    for attempt in 0..u64::from(ATTEMPTS_MAX) {
        while me.poll_action().is_some() {}
        me.on_proposal(at(0), proposal(0, &[(1, 120), (2, 60)])).unwrap();
        me.on_failed(at(300 * attempt));
        me.on_timeout(at(300 * attempt + 200));
    }
    let actions: Vec<MatchmakingAction> = std::iter::from_fn(|| me.poll_action()).collect();
    assert_eq!(actions.last(), Some(&MatchmakingAction::StepAlone));
}

#[test]
fn a_peer_that_counts_but_does_not_join_is_not_waited_for_for_ever() {
    let mut me = one(1);
    me.on_status(at(0), peer(2), standing(0, 60));
    me.on_ready(at(0), Ready { n_samples: 60, loss: 1.0 });
    assert_eq!(me.poll_action(), None);
    me.on_timeout(at(1000));
    assert_eq!(me.poll_action(), Some(MatchmakingAction::Reopen));
}

#[test]
fn a_peer_that_announces_a_better_model_and_sends_none_is_not_asked_again_at_once() {
    let mut me = one(1);
    me.on_status(at(0), peer(2), standing(9, 0));
    assert_eq!(me.poll_action(), Some(MatchmakingAction::Follow(vec![peer(2)])));
    me.on_followed(at(10));
    assert_eq!((me.poll_action(), me.next_deadline()), (None, Some(at(210))));
}

#[test]
fn after_a_failure_a_peer_waits_for_the_standings_of_others() {
    let mut me = one(1);
    me.on_status(at(0), peer(2), ready(0, 60));
    me.on_ready(at(0), Ready { n_samples: 120, loss: 1.0 });
    while me.poll_action().is_some() {}
    me.on_proposal(at(0), proposal(0, &[(1, 120), (2, 60)])).unwrap();
    while me.poll_action().is_some() {}
    me.on_failed(at(10));
    me.on_status(at(20), peer(2), standing(1, 0));
    assert_eq!(me.poll_action(), None);
    assert_eq!(me.next_deadline(), Some(at(210)));
    me.on_timeout(at(210));
    assert_eq!(me.poll_action(), Some(MatchmakingAction::Follow(vec![peer(2)])));
}

/// After a partial mean a peer makes no step with others, as long as some may still get the mean of all.
#[test]
fn after_a_partial_mean_a_peer_waits_for_those_that_still_average() {
    for do_others_step in [true, false] {
        let mut me = one(1);
        let busy = AggregatorStatus { is_busy: true, ..ready(0, 60) };
        me.on_status(at(0), peer(2), ready(0, 60));
        me.on_status(at(0), peer(3), ready(0, 60));
        me.on_ready(at(0), Ready { n_samples: 120, loss: 1.0 });
        while me.poll_action().is_some() {}
        let members = [(1, 120), (2, 60), (3, 60)];
        me.on_proposal(at(0), Proposal { group_size: 2, ..proposal(0, &members) }).unwrap();
        while me.poll_action().is_some() {}
        me.on_status(at(10), peer(2), busy);
        me.on_partial_mean(at(10), at(9000));
        assert!(!me.is_first_attempt(), "the next one is one group");
        for millis in [250, 3000, 8000] {
            me.on_status(at(millis), peer(2), busy);
            me.on_status(at(millis), peer(3), ready(0, 60));
            me.on_timeout(at(millis));
            assert_eq!(me.poll_action(), None, "after {millis} ms");
            assert!(me.next_deadline().is_some_and(|deadline| deadline <= at(9000)));
        }
        let standing = if do_others_step { standing(1, 0) } else { ready(0, 60) };
        me.on_status(at(8500), peer(2), standing);
        me.on_timeout(at(12_500));
        let action = me.poll_action();
        match do_others_step {
            true => assert_eq!(action, Some(MatchmakingAction::Follow(vec![peer(2)]))),
            false => assert!(matches!(action, Some(MatchmakingAction::Propose { .. })), "{action:?}"),
        }
    }
}

/// A peer that averages past the deadline is not waited for.
#[test]
fn peers_that_average_are_waited_for_until_the_deadline() {
    let mut me = one(1);
    me.on_status(at(0), peer(3), ready(0, 60));
    me.on_ready(at(0), Ready { n_samples: 60, loss: 1.0 });
    while me.poll_action().is_some() {}
    me.on_proposal(at(0), proposal(0, &[(1, 60), (3, 60)])).unwrap();
    while me.poll_action().is_some() {}
    me.on_partial_mean(at(10), at(4000));
    for millis in [300, 3000] {
        me.on_status(at(millis), peer(2), AggregatorStatus { is_busy: true, ..ready(0, 60) });
        me.on_status(at(millis), peer(3), ready(0, 60));
        me.on_timeout(at(millis));
        assert_eq!(me.poll_action(), None);
    }
    me.on_timeout(at(4100));
    assert!(matches!(me.poll_action(), Some(MatchmakingAction::Propose { .. })));
}

#[test]
fn a_peer_one_step_behind_is_waited_for_now_and_then() {
    let mut me = Matchmaking::new(CONFIG, peer(1), standing(5, 0));
    me.on_status(at(0), peer(2), standing(4, 0));
    me.on_ready(at(0), Ready { n_samples: 120, loss: 1.0 });
    assert_eq!(me.poll_action(), None, "it will be here soon");
    me.on_timeout(at(1000));
    assert_eq!(me.poll_action(), Some(MatchmakingAction::StepAlone));
    me.on_stepped(at(1000), model(6));
    me.on_status(at(1000), peer(2), standing(5, 0));
    me.on_ready(at(1000), Ready { n_samples: 120, loss: 1.0 });
    assert_eq!(me.poll_action(), Some(MatchmakingAction::StepAlone), "it was waited for just now");
    me.on_stepped(at(1000), model(7));
    me.on_status(at(11_000), peer(2), standing(6, 0));
    me.on_ready(at(11_000), Ready { n_samples: 120, loss: 1.0 });
    assert_eq!(me.poll_action(), None);
    me.on_status(at(11_100), peer(2), ready(7, 10));
    assert!(me.next_deadline().is_some_and(|deadline| deadline > at(11_100)));
}

#[test]
fn numbers_that_are_not_finite_do_no_harm() {
    let mut me = one(1);
    let bad = AggregatorStatus { samples_per_second: f32::NAN, n_samples: u64::MAX, ..standing(0, 1) };
    me.on_status(at(0), peer(2), bad);
    me.on_status(at(0), peer(3), bad);
    assert_eq!(me.n_samples_elsewhere(at(0)), u64::MAX);
    assert!(me.known_peers(at(0)).all(|(_, standing)| standing.samples_per_second == 0.0));
}
