//! Deadlines and limits, each at the moment and the number where it begins.

use super::*;

/// How long an averaging may last after others have finished it, and members may take to begin it.
const PATIENCE: Duration = Duration::from_nanos(333_333_333);
const NANO: Duration = Duration::from_nanos(1);

fn own_ready(n_samples: u64) -> Ready {
    Ready { n_samples, loss: 1.0 }
}

fn busy(epoch: u64, n_samples: u64) -> AggregatorStatus {
    AggregatorStatus { is_busy: true, ..ready(epoch, n_samples) }
}

/// A peer without samples and contributors.
fn idle(epoch: u64) -> AggregatorStatus {
    AggregatorStatus { n_contributors: 0, ..standing(epoch, 0) }
}

fn actions(me: &mut Matchmaking) -> Vec<MatchmakingAction> {
    std::iter::from_fn(|| me.poll_action()).collect()
}

/// The members of the only proposal.
fn proposed(me: &mut Matchmaking) -> Vec<PeerKey> {
    match &actions(me)[..] {
        [MatchmakingAction::Propose { members, .. }] => {
            members.iter().map(|(peer, _)| peer.clone()).collect()
        }
        others => panic!("{others:?}"),
    }
}

/// Peer 1 averages with these others from one second on.
fn averaging(epoch: u64, others: &[u8]) -> Matchmaking {
    let mut me = Matchmaking::new(CONFIG, peer(1), standing(epoch, 0));
    for &other in others {
        me.on_status(at(1000), peer(other), ready(epoch, 60));
    }
    me.on_ready(at(1000), own_ready(120));
    actions(&mut me);
    let members: Vec<(u8, u64)> =
        [(1, 120)].into_iter().chain(others.iter().map(|&other| (other, 60))).collect();
    me.on_proposal(at(1000), Proposal { nonce: 5, ..proposal(epoch, &members) }).unwrap();
    assert_eq!(actions(&mut me).len(), 1);
    assert!(me.own().is_busy);
    me
}

#[test]
fn no_more_peers_are_known_than_a_group_has_members() {
    let mut me = one(0);
    let other = |number: usize| PeerKey(number.to_be_bytes().to_vec());
    for number in 0..MEMBERS_MAX {
        me.on_status(at(0), other(number), standing(0, 1));
    }
    assert_eq!(me.n_samples_elsewhere(at(0)), MEMBERS_MAX as u64 - 1);
    me.on_status(at(1), other(0), standing(0, 11));
    assert_eq!(me.n_samples_elsewhere(at(1)), MEMBERS_MAX as u64 + 9, "a known one still is heard");
    let mut me = one(1);
    me.on_status(at(0), peer(1), standing(0, 1));
    assert_eq!(me.known_peers(at(0)).count(), 0, "its own status from elsewhere");
}

#[test]
fn a_peer_is_forgotten_at_the_end_of_its_silence() {
    let mut me = one(1);
    assert_eq!(me.next_deadline(), None);
    me.on_status(at(1000), peer(2), standing(0, 30));
    me.on_status(at(3000), peer(3), standing(0, 30));
    assert_eq!(me.next_deadline(), Some(at(6000)));
    assert_eq!((me.n_samples_elsewhere(at(6000) - NANO), me.n_samples_elsewhere(at(6000))), (60, 30));
    me.on_timeout(at(6000) - NANO);
    assert_eq!(me.next_deadline(), Some(at(6000)));
    me.on_timeout(at(6000));
    assert_eq!(me.next_deadline(), Some(at(8000)));
    me.on_timeout(at(8000));
    assert_eq!(me.next_deadline(), None);
}

#[test]
fn the_model_and_the_readiness_of_a_peer_are_matchmakings_own() {
    let epoch = (0..30).find(|&epoch| proposer(epoch) == 1).unwrap();
    let mut me = Matchmaking::new(CONFIG, peer(1), standing(epoch, 0));
    me.on_status(at(0), peer(2), ready(epoch, 60));
    me.on_status(at(0), peer(3), standing(epoch, 60));
    me.on_ready(at(0), own_ready(60));
    assert!(me.own().is_closing);
    assert_eq!(actions(&mut me), []);
    let claimed = AggregatorStatus { n_contributors: 9, is_busy: true, ..standing(epoch + 1, 7) };
    me.on_own_status(at(1000), claimed);
    let [MatchmakingAction::Propose { model: of, members }] = &actions(&mut me)[..] else {
        panic!("its turn")
    };
    assert_eq!(*of, model(epoch));
    let (_, own) = members[0];
    assert_eq!((own.model, own.ready, own.is_busy), (model(epoch), Some(own_ready(60)), false));
    assert_eq!((own.n_contributors, own.n_samples), (9, 7));
    let mut me = one(1);
    me.on_ready(at(0), own_ready(100));
    assert!(me.own().is_closing);
    me.on_stepped(at(1000), model(1));
    let own = me.own();
    assert_eq!((own.model, own.ready, own.is_closing), (model(1), None, false));
}

#[test]
fn a_batch_is_complete_with_its_last_sample() {
    for (here, elsewhere, is_complete) in [(100, 0, true), (99, 0, false), (60, 40, true), (60, 39, false)] {
        let mut me = one(1);
        if elsewhere > 0 {
            me.on_status(at(0), peer(2), ready(0, elsewhere));
        }
        me.on_own_status(at(0), standing(0, here));
        assert_eq!(me.is_closing_elsewhere(at(0)), elsewhere > 0 && is_complete);
        me.on_ready(at(0), own_ready(here));
        me.on_timeout(at(1000));
        let actions = actions(&mut me);
        let has_reopened = actions.contains(&MatchmakingAction::Reopen);
        assert_eq!(has_reopened, !is_complete, "{here} and {elsewhere}: {actions:?}");
        assert_eq!(me.own().is_closing, is_complete);
        assert_eq!(actions.contains(&MatchmakingAction::StepAlone), here == 100);
    }
}

#[test]
fn a_peer_that_is_about_to_close_is_heard_until_it_has_collected() {
    let mut me = one(1);
    for (status, is_closing) in [
        (standing(0, 10), false),
        (AggregatorStatus { is_closing: true, ..standing(0, 10) }, true),
        (ready(0, 10), false),
        (AggregatorStatus { is_closing: true, ..standing(1, 10) }, false),
    ] {
        let mut me = one(2);
        me.on_status(at(0), peer(1), status);
        assert_eq!(me.is_closing_elsewhere(at(0)), is_closing, "{status:?}");
    }
    // While another one collects, what is here stays collected.
    me.on_status(at(0), peer(2), AggregatorStatus { is_closing: true, ..standing(0, 10) });
    me.on_ready(at(0), own_ready(60));
    assert_eq!(actions(&mut me), []);
    me.on_status(at(1), peer(2), ready(0, 10));
    assert_eq!(actions(&mut me), [MatchmakingAction::Reopen]);
}

#[test]
fn a_proposal_may_be_as_large_as_the_limits() {
    let start = || {
        let mut me = one(1);
        me.on_status(at(0), peer(2), ready(0, 60));
        me.on_ready(at(0), own_ready(60));
        actions(&mut me);
        me
    };
    let reducers = vec![ProposedReducer { peer: vec![9], n_reduced: 1 }; REDUCERS_MAX];
    let good = Proposal { reducers, group_size: GROUP_SIZE_MIN, ..proposal(0, &[(1, 60), (2, 60)]) };
    assert_eq!(start().on_proposal(at(0), good.clone()), Ok(()));
    assert_eq!(start().on_proposal(at(0), Proposal { reducers: vec![], ..good.clone() }), Ok(()));
    // Without reducers it may be a grid.
    let mut me = start();
    me.on_status(at(0), peer(3), ready(0, 60));
    actions(&mut me);
    let members = proposal(0, &[(1, 60), (2, 60), (3, 60)]).members;
    let grid = Proposal { members, reducers: vec![], ..good.clone() };
    let helped = Proposal { reducers: good.reducers, ..grid.clone() };
    assert_eq!(me.on_proposal(at(0), helped), Err(ProposalError::ReducersInGrid));
    assert_eq!(me.on_proposal(at(0), grid), Ok(()));
}

#[test]
fn of_two_proposals_the_one_with_the_smaller_nonce_counts_for_a_moment() {
    let other = |nonce: u64| Proposal { nonce, ..proposal(0, &[(1, 120), (2, 60), (3, 60)]) };
    let last = at(1000) + PATIENCE - NANO;
    for (now, nonce, is_taken) in [
        (at(1000), 4, true),
        (last, 4, true),
        (last, 5, false),
        (last, 6, false),
        (at(1000) + PATIENCE, 4, false),
        (at(1000) + PATIENCE, 6, false),
    ] {
        let mut me = averaging(0, &[2, 3]);
        let taken = me.on_proposal(now, other(nonce));
        assert_eq!(taken, if is_taken { Ok(()) } else { Err(ProposalError::NotReady) }, "{nonce} at {now:?}");
        assert_eq!(actions(&mut me).len(), usize::from(is_taken));
    }
    // Time counts from the one that is taken.
    let mut me = averaging(0, &[2, 3]);
    me.on_proposal(last, other(4)).unwrap();
    assert_eq!(me.on_proposal(last, other(4)), Err(ProposalError::NotReady));
    assert_eq!(me.on_proposal(last + PATIENCE - NANO, other(3)), Ok(()));
    // A peer that follows accepts none.
    let mut me = averaging(0, &[2, 3]);
    me.on_status(at(1000), peer(4), standing(1, 0));
    me.on_timeout(at(1000) + PATIENCE);
    assert_eq!(actions(&mut me), [MatchmakingAction::Follow(vec![peer(4)])]);
    assert_eq!(me.on_proposal(at(1000) + PATIENCE, other(1)), Err(ProposalError::NotReady));
}

#[test]
fn an_averaging_that_others_have_finished_goes_on_for_its_patience() {
    let mut me = averaging(0, &[2, 3]);
    me.on_timeout(at(1000));
    assert_eq!(me.next_deadline(), Some(at(6000)), "nobody is ahead: only their silence");
    me.on_status(at(1100), peer(2), standing(1, 0));
    assert_eq!(me.next_deadline(), Some(at(1100) + PATIENCE));
    me.on_status(at(1200), peer(4), standing(1, 0));
    me.on_timeout(at(1100) + PATIENCE - NANO);
    assert_eq!(actions(&mut me), []);
    assert_eq!(me.next_deadline(), Some(at(1100) + PATIENCE), "since the first of them");
    me.on_timeout(at(1100) + PATIENCE);
    assert_eq!(actions(&mut me), [MatchmakingAction::Follow(vec![peer(2), peer(4)])]);
    assert!(me.own().is_busy);
    // The only one that is ahead vanishes: its patience begins anew with the next.
    let mut me = averaging(0, &[2, 3]);
    me.on_status(at(1100), peer(4), standing(1, 0));
    me.on_gone(at(1200), &peer(4));
    me.on_status(at(1300), peer(4), standing(1, 0));
    me.on_timeout(at(1100) + PATIENCE);
    assert_eq!(actions(&mut me), []);
    me.on_timeout(at(1300) + PATIENCE);
    assert_eq!(actions(&mut me), [MatchmakingAction::Follow(vec![peer(4)])]);
}

#[test]
fn an_averaging_in_which_no_other_member_takes_part_is_given_up() {
    let began_by = at(1000) + PATIENCE;
    let elsewhere = (began_by, ready(1, 60));
    for (second, third, is_abandoned) in [
        (elsewhere, elsewhere, true),
        (elsewhere, (began_by - NANO, ready(1, 60)), false),
        (elsewhere, (began_by, busy(1, 60)), false),
        (elsewhere, (began_by, standing(0, 60)), false),
        ((began_by, busy(1, 60)), elsewhere, false),
    ] {
        let mut me = averaging(1, &[2, 3]);
        for (number, (now, status)) in [(3, third), (2, second)] {
            me.on_status(now, peer(number), status);
        }
        me.on_timeout(began_by);
        let expected = if is_abandoned { vec![MatchmakingAction::GiveUp] } else { vec![] };
        assert_eq!(actions(&mut me), expected, "{third:?}");
        assert_eq!((me.own().is_busy, me.is_first_attempt()), (!is_abandoned, !is_abandoned));
    }
    // Too early to tell: they may not have heard of it.
    let mut me = averaging(1, &[2]);
    me.on_status(began_by - NANO, peer(2), ready(1, 60));
    me.on_timeout(began_by - NANO);
    assert_eq!(actions(&mut me), []);
    // A group of one waits for nobody.
    let mut me = one(1);
    me.on_status(at(1000), peer(2), ready(0, 60));
    me.on_ready(at(1000), own_ready(120));
    actions(&mut me);
    me.on_proposal(at(1000), proposal(0, &[(1, 120)])).unwrap();
    assert_eq!(actions(&mut me).len(), 1);
    me.on_timeout(at(9000));
    assert_eq!(actions(&mut me), []);
    assert!(me.own().is_busy);
}

#[test]
fn after_three_failures_a_peer_steps_alone_for_a_while() {
    let mut me = one(1);
    me.on_status(at(1000), peer(2), standing(0, 60));
    for _ in 0..ATTEMPTS_MAX {
        assert_eq!(me.n_samples_elsewhere(at(1000)), 60);
        me.on_failed(at(1000));
        assert!(!me.is_first_attempt());
    }
    assert_eq!(me.n_samples_elsewhere(at(1000)), 0);
    let again = at(1000) + STRAGGLERS_REST * CONFIG.gather;
    me.on_status(again - NANO, peer(2), standing(0, 60));
    assert_eq!(me.n_samples_elsewhere(again - NANO), 0);
    me.on_timeout(again);
    assert_eq!((me.n_samples_elsewhere(again), me.is_first_attempt()), (60, true));
    // Fewer failures are not forgotten before the step.
    me.on_failed(again);
    me.on_timeout(again + Duration::from_secs(600));
    assert!(!me.is_first_attempt());
    me.on_stepped(again + Duration::from_secs(600), model(1));
    assert!(me.is_first_attempt());
}

#[test]
fn a_model_that_nobody_delivers_does_not_hold_up_a_peer_that_has_a_batch() {
    for (n_failures, has_batch, follows) in
        [(3, true, false), (2, true, true), (3, false, true), (0, true, true)]
    {
        let mut me = one(1);
        me.on_status(at(0), peer(2), standing(3, 10));
        assert_eq!(actions(&mut me).len(), 1);
        if has_batch {
            me.on_ready(at(0), own_ready(120));
        }
        for _ in 0..n_failures {
            me.on_failed(at(0));
            me.on_timeout(at(200) - NANO);
            assert_eq!(actions(&mut me), [], "it waits a little");
            me.on_timeout(at(200));
            assert_eq!(actions(&mut me).len(), 1);
            assert!(me.is_first_attempt(), "no averaging failed");
        }
        let follow = matches!(me.phase, MatchmakingPhase::Following);
        assert_eq!(follow, follows, "{n_failures} failures, {has_batch}");
    }
}

/// The attempts count in a row: one that succeeds is forgiven.
#[test]
fn a_peer_that_has_followed_is_ready_again_or_gathers() {
    for has_batch in [true, false] {
        let mut me = one(1);
        me.on_status(at(0), peer(2), standing(3, 10));
        me.on_failed(at(0));
        me.on_timeout(at(200));
        assert_eq!(actions(&mut me).len(), 2);
        me.on_stepped(at(300), model(3));
        if has_batch {
            me.on_ready(at(300), own_ready(120));
            assert_eq!(actions(&mut me), [], "it follows still");
        }
        me.on_followed(at(400));
        assert_eq!(me.n_sync_failures, 0);
        let phase = if has_batch { MatchmakingPhase::Ready(at(400)) } else { MatchmakingPhase::Gathering };
        assert_eq!(me.phase, phase);
        assert!(!me.own().is_busy);
    }
}

#[test]
fn after_a_partial_mean_a_peer_waits_only_while_others_average() {
    let epoch = (0..30).find(|&epoch| proposer(epoch) == 1).unwrap();
    let (until, again) = (at(4000), at(1000) + CONFIG.retry);
    for is_other_busy in [true, false] {
        let mut me = averaging(epoch, &[2, 3]);
        if is_other_busy {
            me.on_status(at(1000), peer(3), busy(epoch, 60));
        }
        me.on_partial_mean(at(1000), until);
        me.on_timeout(again);
        if is_other_busy {
            assert_eq!(me.next_deadline(), Some(until));
            me.on_timeout(until - NANO);
            assert_eq!(actions(&mut me), []);
            me.on_timeout(until);
        }
        let wanted = if is_other_busy { vec![peer(1), peer(2)] } else { vec![peer(1), peer(2), peer(3)] };
        assert_eq!(proposed(&mut me), wanted);
    }
}

#[test]
fn few_idle_peers_delay_nobody_and_many_take_part() {
    for (n_idle, waits) in [(FOLLOWERS_MAX, false), (FOLLOWERS_MAX + 1, true)] {
        let mut me = one(1);
        for number in 0..n_idle {
            me.on_status(at(0), peer(10 + number as u8), idle(0));
        }
        me.on_ready(at(0), own_ready(120));
        assert_eq!(actions(&mut me).is_empty(), waits, "{n_idle} idle ones");
        me.on_timeout(at(1000));
        assert_eq!(actions(&mut me).is_empty(), !waits);
    }
    // Those that are ready average with it.
    let mut me = one(1);
    let ready = Some(own_ready(0));
    for number in 0..=FOLLOWERS_MAX {
        me.on_status(at(0), peer(10 + number as u8), AggregatorStatus { is_closing: true, ready, ..idle(0) });
    }
    me.on_ready(at(0), own_ready(120));
    me.on_timeout(at(4999));
    assert_eq!(proposed(&mut me).len(), FOLLOWERS_MAX + 2);
}

#[test]
fn an_idle_peer_leaves_the_step_to_those_with_samples() {
    let ready_and_idle = AggregatorStatus { is_closing: true, ready: Some(own_ready(0)), ..idle(0) };
    let mut me = Matchmaking::new(CONFIG, peer(1), idle(0));
    me.on_status(at(0), peer(2), ready(0, 100));
    me.on_ready(at(0), own_ready(0));
    me.on_timeout(at(4000));
    assert_eq!((actions(&mut me), me.next_deadline()), (vec![], Some(at(5000))));
    // It has contributors, so their next samples count on it.
    let mut me = one(1);
    me.on_status(at(0), peer(2), ready(0, 100));
    me.on_ready(at(0), own_ready(0));
    me.on_timeout(at(4000));
    assert_eq!(proposed(&mut me), [peer(1), peer(2)]);
    // Those with samples average without the idle one, though it is ready.
    let mut me = one(1);
    me.on_status(at(0), peer(2), ready(0, 60));
    me.on_status(at(0), peer(3), ready_and_idle);
    me.on_ready(at(0), own_ready(60));
    me.on_timeout(at(4000));
    assert_eq!(proposed(&mut me), [peer(1), peer(2)]);
    // Where all are idle, there is nobody to leave it to.
    let config = MatchmakingConfig { target_batch_size: 0, ..CONFIG };
    let mut me = Matchmaking::new(config, peer(1), idle(0));
    me.on_status(at(0), peer(2), ready_and_idle);
    me.on_ready(at(0), own_ready(0));
    me.on_timeout(at(4000));
    assert_eq!(proposed(&mut me), [peer(1), peer(2)]);
}

#[test]
fn a_peer_with_a_batch_of_its_own_waits_for_those_that_average_and_for_no_others() {
    for (other, first, later) in [
        (busy(0, 60), None, None),
        (standing(0, 5), None, Some(MatchmakingAction::StepAlone)),
        (AggregatorStatus { is_busy: true, ..idle(0) }, Some(MatchmakingAction::StepAlone), None),
    ] {
        let mut me = one(1);
        me.on_status(at(0), peer(2), other);
        me.on_ready(at(0), own_ready(100));
        assert_eq!(me.poll_action(), first, "{other:?}");
        me.on_timeout(at(1000));
        assert_eq!(me.poll_action(), later, "{other:?}");
    }
}

/// An idle peer collects, and never has anything.
#[test]
fn a_peer_waits_once_for_one_that_collects_nothing() {
    let mut me = one(1);
    me.on_status(at(0), peer(2), AggregatorStatus { is_closing: true, ..idle(0) });
    me.on_ready(at(0), own_ready(50));
    assert_eq!(actions(&mut me), []);
    me.on_timeout(at(1000) - NANO);
    assert_eq!(actions(&mut me), []);
    me.on_timeout(at(1000));
    assert_eq!(actions(&mut me), [MatchmakingAction::Reopen]);
}

#[test]
fn each_peer_waits_one_time_longer_than_the_one_before_it() {
    let mut turns = BTreeSet::new();
    for number in 1..=3 {
        let mut me = one(number);
        for other in (1..=3).filter(|other| *other != number) {
            me.on_status(at(2000), peer(other), ready(0, 40));
        }
        me.on_ready(at(2000), own_ready(40));
        let n_waits = (0..4u64).find(|n_waits| {
            let due = at(2000 + 1000 * n_waits);
            me.on_timeout(due);
            let is_its_turn = !actions(&mut me).is_empty();
            if !is_its_turn {
                assert_eq!(me.next_deadline(), Some(due + CONFIG.gather));
                me.on_timeout(due + CONFIG.gather - NANO);
                assert_eq!(actions(&mut me), []);
            }
            is_its_turn
        });
        turns.insert(n_waits.unwrap());
    }
    assert_eq!(turns, [0, 1, 2].into_iter().collect());
}

#[test]
fn a_peer_that_is_far_behind_is_not_waited_for() {
    for (n_behind, waits) in
        [(0, true), (1, true), (CATCH_UP_EPOCHS_MAX, true), (CATCH_UP_EPOCHS_MAX + 1, false)]
    {
        let mut me = Matchmaking::new(CONFIG, peer(1), standing(9, 0));
        me.on_status(at(0), peer(2), standing(9 - n_behind, 0));
        me.on_ready(at(0), own_ready(120));
        assert_eq!(actions(&mut me).is_empty(), waits, "{n_behind} steps behind");
    }
    // One that did not come in time is not waited for during the next steps.
    let mut me = Matchmaking::new(CONFIG, peer(1), standing(9, 0));
    let rest = at(1000) + STRAGGLERS_REST * CONFIG.gather;
    for (now, waits) in [(at(0), true), (at(1000), false), (rest - NANO, false), (rest, true)] {
        me.on_stepped(now, model(9));
        me.on_status(now, peer(2), standing(8, 0));
        me.on_ready(now, own_ready(120));
        assert_eq!(actions(&mut me).is_empty(), waits, "at {now:?}");
        me.on_timeout(now + if waits && now == at(0) { CONFIG.gather } else { Duration::ZERO });
    }
}

#[test]
fn a_wait_of_nothing_neither_divides_by_it_nor_overflows() {
    for gather in [Duration::ZERO, NANO] {
        let mut me = Matchmaking::new(MatchmakingConfig { gather, ..CONFIG }, peer(1), standing(0, 0));
        me.on_status(at(0), peer(2), standing(0, 60));
        me.phase = MatchmakingPhase::Ready(at(0));
        me.own.ready = Some(own_ready(20));
        me.own.is_closing = true;
        me.on_status(at(9000), peer(2), ready(0, 80));
        assert_eq!(proposed(&mut me), [peer(1), peer(2)]);
    }
}

#[test]
fn numbers_of_others_are_finite_and_not_negative() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let status = AggregatorStatus {
            samples_per_second: bad,
            download_bytes_per_s: bad,
            upload_bytes_per_s: bad,
            ready: Some(Ready { n_samples: 5, loss: bad }),
            ..ready(0, 5)
        };
        let clean = sanitized(status);
        let speeds = [clean.samples_per_second, clean.download_bytes_per_s, clean.upload_bytes_per_s];
        assert_eq!(speeds, [0.0; 3]);
        assert_eq!(clean.ready, Some(Ready { n_samples: 5, loss: 0.0 }));
    }
    let good = ready(0, 5);
    assert_eq!(sanitized(good), good);
    let negative = AggregatorStatus { upload_bytes_per_s: -1.0, ..good };
    assert_eq!(sanitized(negative), AggregatorStatus { upload_bytes_per_s: 0.0, ..good });
}
