//! Limits of a round, each at its boundary, and what a driver sees of it.

use super::*;

const UNKNOWN: AddressGroup = AddressGroup::UNKNOWN;

#[test]
fn the_length_of_a_gradient_is_measured_before_it_is_offered_to_the_round() {
    assert_eq!(MeasuredGradient::from(vec![3.0, -4.0]).norm(), 5.0);
    assert_eq!(MeasuredGradient::from(Vec::new()).norm(), 0.0);
}

#[test]
fn a_driver_sees_whether_there_is_something_to_do() {
    let mut round = joined(&[1]);
    assert!(!round.has_actions());
    contribute(&mut round, S, 1, &offer(1, 0, 40), [1.0; N]);
    assert!(round.has_actions(), "what is stored, and its acknowledgement");
    actions(&mut round);
    assert!(!round.has_actions());
    contribute(&mut round, S, 1, &offer(2, 0, 60), [1.0; N]);
    // The step is the last action, for the peer that computes its mean.
    for _ in 0..3 {
        assert!(round.poll_collected().is_none());
        assert!(round.poll_message().is_some() || round.poll_action().is_some());
    }
    assert!(round.poll_message().is_none() && round.has_actions());
    let collected = round.poll_collected().unwrap();
    assert!(!round.has_actions() && round.poll_collected().is_none());
    assert_eq!((collected.mean().n_samples, round.mean().n_samples), (100, 100));
}

#[test]
fn samples_that_are_counted_on_their_way_and_reported_add_up() {
    let mut round = joined(&[1, 2, 3]);
    contribute(&mut round, S, 1, &offer(1, 0, 20), [1.0; N]);
    round.on_report(S, &peer(1), &report(0, 3)).unwrap();
    round.on_offer(S, &peer(2), &offer(1, 0, 30)).unwrap();
    round.on_report(S, &peer(3), &report(0, 7)).unwrap();
    assert_eq!((round.n_samples(), round.n_samples_believed()), (60, 60));
    assert_eq!(actions(&mut round).len(), 2, "stored and acknowledged: not enough for a step");
    round.on_report(S, &peer(3), &report(0, 47)).unwrap();
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)], "as many as a step needs");
}

#[test]
fn a_contribution_for_which_there_was_no_slot_is_not_taken_from_its_peers_allowance() {
    let mut round =
        CollectionRound::new(CollectionConfig { in_flight_max: 1, target_batch_size: 1000, ..config() }, 0);
    for name in [1, 2] {
        round.on_join(peer(name), DeviceKind::NativeCpu, UNKNOWN).unwrap();
    }
    let first = round.on_offer(S, &peer(1), &offer(1, 0, 100)).unwrap();
    assert_eq!(round.on_offer(S, &peer(2), &offer(1, 0, 100)), Err(ContributionRefusal::Busy));
    assert!(round.contributors[&peer(2)].was_put_off && !round.contributors[&peer(1)].was_put_off);
    round.on_gradient(S, first, vec![1.0; N]);
    round.on_persisted(S, first);
    contribute(&mut round, S, 2, &offer(1, 0, 100), [1.0; N]);
}

#[test]
fn each_transfer_has_a_ticket_and_a_deadline_of_its_own() {
    let mut round = joined(&[1, 2, 3]);
    let tickets =
        [1, 2, 3].map(|name| round.on_offer(S * u32::from(name), &peer(name), &offer(1, 0, 10)).unwrap());
    assert_eq!(tickets, [0, 1, 2].map(Ticket));
    for seconds in [11, 12, 13] {
        assert_eq!(round.next_deadline(), Some(S * seconds));
        round.on_timeout(S * seconds);
    }
    assert_eq!(actions(&mut round), tickets.map(CollectionAction::Abandon));
    assert_eq!(round.next_deadline(), None);
    // Where rounds wait for longer, transfers do too.
    let config = CollectionConfig { collect_timeout: 30 * S, ..config() };
    let mut round = CollectionRound::new(config, 0);
    round.on_join(peer(1), DeviceKind::NativeCpu, UNKNOWN).unwrap();
    round.on_offer(S, &peer(1), &offer(1, 0, 10)).unwrap();
    assert_eq!(round.next_deadline(), Some(31 * S));
}

#[test]
fn among_known_peers_many_small_contributions_are_no_reason_to_refuse_those_of_another() {
    let mut round = joined(&[1]);
    round.config.micro_batch_size = 10;
    // Far more than one address may have in a run that anybody may join.
    for n in 0..64 * 12 {
        let other = PeerKey(vec![9, (n >> 8) as u8, n as u8]);
        round.counts.count(&other, UNKNOWN, 1, 10);
    }
    round.check_counts(&peer(1), &offer(1, 0, 1)).unwrap();
    for _ in 0..2 {
        round.counts.count(&peer(1), UNKNOWN, 1, 10);
    }
    let refused = round.check_counts(&peer(1), &offer(1, 0, 9));
    assert_eq!(refused, Err(ContributionRefusal::TooFew { min: 10, got: 9 }));
    round.check_counts(&peer(1), &offer(1, 0, 10)).unwrap();
    // Eight, and four for the one that a step needs.
    for _ in 2..11 {
        round.counts.count(&peer(1), UNKNOWN, 10, 10);
    }
    round.check_counts(&peer(1), &offer(1, 0, 10)).unwrap();
    round.counts.count(&peer(1), UNKNOWN, 10, 10);
    let refused = round.check_counts(&peer(1), &offer(1, 0, 10));
    assert_eq!(refused, Err(ContributionRefusal::TooMany { epoch: 0 }));
}

/// Whether one of `group` gets a seat where peers have these addresses, and were asked in vain so often.
fn gets_a_seat(is_open: bool, seated: &[(u64, u32)], group: u64) -> Option<u8> {
    let mut round =
        CollectionRound::new(CollectionConfig { is_open, contributors_max: seated.len(), ..config() }, 0);
    for (name, &(group, n_unanswered)) in (1..).zip(seated) {
        round.on_join(peer(name), DeviceKind::NativeCpu, AddressGroup(group)).unwrap();
        round.contributors.get_mut(&peer(name)).unwrap().n_unanswered_requests = n_unanswered;
    }
    let joined = round.on_join(peer(99), DeviceKind::NativeCpu, AddressGroup(group));
    let [gone] = &actions(&mut round)[..] else {
        assert_eq!(joined, Err(SessionError::Full(seated.len())));
        return None;
    };
    let CollectionAction::Evict(gone) = gone else { panic!("{gone:?}") };
    assert!(joined.is_ok() && round.n_contributors() == seated.len());
    Some(gone.0[0])
}

#[test]
fn a_seat_goes_to_an_address_that_has_fewer_even_then() {
    assert_eq!(gets_a_seat(true, &[(1, 0), (1, 0)], 2), Some(2));
    assert_eq!(gets_a_seat(true, &[(1, 0), (1, 0), (2, 0)], 2), None, "then they would have changed places");
    assert_eq!(gets_a_seat(true, &[(1, 0), (1, 0), (1, 0), (2, 0)], 2), Some(3));
    assert_eq!(gets_a_seat(true, &[(1, 0), (2, 0)], 3), None);
    assert_eq!(gets_a_seat(true, &[(1, 0), (1, 2), (1, 1)], 2), Some(2), "who was asked in vain the most");
    assert_eq!(
        gets_a_seat(false, &[(1, 0), (1, 0)], 2),
        None,
        "where peers are known addresses do not count"
    );
}

#[test]
fn a_seat_of_one_that_never_delivers_goes_to_an_address_that_has_no_more() {
    for is_open in [true, false] {
        assert_eq!(gets_a_seat(is_open, &[(1, 2), (2, 2)], 3), None);
        assert_eq!(gets_a_seat(is_open, &[(1, 2), (2, 3)], 3), Some(2));
        assert_eq!(gets_a_seat(is_open, &[(1, 0), (2, 3)], 1), Some(2), "as many are not more");
    }
    assert_eq!(gets_a_seat(true, &[(1, 0), (1, 0), (2, 3)], 1), None);
    assert_eq!(gets_a_seat(false, &[(1, 0), (1, 0), (2, 3)], 1), Some(3));
}

#[test]
fn one_that_comes_again_keeps_its_seat_where_all_are_taken() {
    let mut round = CollectionRound::new(CollectionConfig { contributors_max: 2, ..config() }, 0);
    for name in [1, 2, 1] {
        round.on_join(peer(name), DeviceKind::NativeCpu, UNKNOWN).unwrap();
    }
    assert_eq!((round.n_contributors(), actions(&mut round)), (2, vec![]));
    assert_eq!(Refusal::from(SessionError::Full(2)), Refusal::Full { n_contributors: 2 });
}

/// A round in which gradients were due, and whose only source has left; all reports were believed then.
fn failed(is_open: bool, aggregation: Aggregation) -> Patience {
    let mut round = CollectionRound::new(CollectionConfig { is_open, aggregation, ..config() }, 0);
    for name in [1, 2] {
        round.on_join(peer(name), DeviceKind::NativeCpu, AddressGroup(name.into())).unwrap();
    }
    (round.phase, round.patience) = (CollectionPhase::Collecting { deadline: 9 * S }, Patience::Over);
    round.on_timeout(9 * S);
    assert_eq!(actions(&mut round), [CollectionAction::Announce(0)]);
    round.patience
}

#[test]
fn only_among_strangers_a_claim_in_vain_is_waited_for_again() {
    let places = 4;
    assert_eq!(failed(false, Aggregation::Mean), Patience::Over);
    assert_eq!(failed(true, Aggregation::MeanOfAddresses { places }), Patience::Unneeded);
    assert_eq!(failed(true, Aggregation::CenteredClip { places }), Patience::Over);
}

#[test]
fn claims_that_are_not_believed_are_waited_for_once_from_the_moment_on_at_which_they_are_enough() {
    let mut round = joined(&[1, 2]);
    // The second one delivers, and the first one did not.
    contribute(&mut round, S, 2, &offer(1, 0, 10), [1.0; N]);
    actions(&mut round);
    round.on_report(S, &peer(1), &report(0, 89)).unwrap();
    assert_eq!((round.next_deadline(), round.patience), (None, Patience::Unneeded));
    round.on_other_aggregators(S, OtherAggregators { n_samples: 1, is_closing: false });
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)], "it is believed");
    round.on_timeout(round.next_deadline().unwrap());
    assert_eq!(actions(&mut round), [CollectionAction::Announce(0)]);
    round.on_report(3 * S, &peer(1), &report(0, 89)).unwrap();
    assert_eq!((actions(&mut round), round.next_deadline()), (vec![], Some(4 * S)), "half of it now");
    round.on_report(3 * S + S / 2, &peer(1), &report(0, 89)).unwrap();
    round.on_timeout(4 * S - Duration::from_millis(1));
    assert_eq!((actions(&mut round), round.next_deadline()), (vec![], Some(4 * S)));
    round.on_timeout(4 * S);
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
}

#[test]
fn a_step_that_others_make_takes_what_is_here() {
    let mut round = joined(&[1, 2]);
    round.on_report(S, &peer(1), &report(0, 5)).unwrap();
    contribute(&mut round, S, 2, &offer(1, 0, 10), [1.0; N]);
    actions(&mut round);
    round.on_other_aggregators(S, OtherAggregators { n_samples: 0, is_closing: true });
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
    // The same news once more is none.
    round.on_other_aggregators(S, OtherAggregators { n_samples: 0, is_closing: true });
    assert_eq!(actions(&mut round), []);
    round.on_leave(S, &peer(1));
    let got = actions(&mut round);
    assert!(matches!(&got[..], [CollectionAction::Step(mean)] if mean.n_samples == 10), "{got:?}");
}

#[test]
fn nothing_is_due_while_a_step_is_being_made_or_parameters_are_taken() {
    let mut round = joined(&[1, 2]);
    contribute(&mut round, S, 1, &offer(1, 0, 100), [1.0; N]);
    actions(&mut round);
    round.on_report(S, &peer(2), &report(0, 100)).unwrap();
    assert_eq!((round.next_deadline(), round.is_closing(), actions(&mut round)), (None, true, vec![]));
    round.on_timeout(99 * S);
    // A pause that ends meanwhile announces nothing: the epoch is over.
    round.pause();
    round.unpause(99 * S);
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
    assert_eq!(round.on_offer(S, &peer(2), &offer(1, 1, 10)), Err(ContributionRefusal::Busy));
    let want = Err(ContributionRefusal::Epoch { want: 1, got: 2 });
    assert_eq!(round.on_offer(S, &peer(2), &offer(1, 2, 10)), want);
}

#[test]
fn nobody_is_given_up_in_a_pause_or_while_parameters_are_taken() {
    for is_pause in [true, false] {
        let mut round = joined(&[1, 2]);
        round.on_report(S, &peer(1), &report(0, 100)).unwrap();
        assert_eq!(round.next_deadline(), Some(2 * S));
        if is_pause {
            round.pause();
        } else {
            round.hold();
        }
        round.on_timeout(2 * S);
        assert_eq!((round.n_samples(), round.next_deadline()), (100, None));
        assert!(!round.contributors[&peer(1)].is_silent);
        // A transfer that trickles gives its slot back all the same.
        let mut round = joined(&[1, 2]);
        let ticket = round.on_offer(S, &peer(1), &offer(1, 0, 10)).unwrap();
        if is_pause {
            round.pause();
        } else {
            round.hold();
        }
        assert_eq!(round.next_deadline(), Some(11 * S));
        round.on_timeout(11 * S);
        assert!(actions(&mut round).contains(&CollectionAction::Abandon(ticket)));
    }
}
