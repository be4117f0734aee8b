//! How much a report counts and how long its source is waited for, one source and one number at a time.

#![allow(clippy::unwrap_used)]

use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::gradient::Offer;

use super::*;
use crate::collection::contribution::{ContributionStage, InFlightContribution};
use crate::collection::{CollectionConfig, CollectionPhase, OtherAggregators};

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const NS: Duration = Duration::from_nanos(1);
/// A newcomer's patience is a second of it.
const TIMEOUT: Duration = Duration::from_secs(64);

fn config(is_open: bool) -> CollectionConfig {
    CollectionConfig {
        target_batch_size: 100,
        n_parameters: 1,
        codec: TensorCodec::F32,
        slow_codec: None,
        micro_batch_size: 1,
        contribution_samples_max: 1000,
        samples_per_second_max: 1000,
        collect_timeout: TIMEOUT,
        in_flight_max: 8,
        contributors_max: 16,
        is_open,
        aggregation: Aggregation::Mean,
        gradient_norm_max: 1e3,
    }
}

/// A round with these peers, each at an address of its own.
fn round_of(is_open: bool, names: &[u8]) -> CollectionRound {
    let mut round = CollectionRound::new(config(is_open), 0);
    names.iter().for_each(|&name| join(&mut round, name, name.into()));
    round
}

fn join(round: &mut CollectionRound, name: u8, group: u64) {
    round.on_join(peer(name), DeviceKind::NativeCpu, AddressGroup(group)).unwrap();
}

fn peer(name: u8) -> PeerKey {
    PeerKey(vec![name])
}

fn at(group: u64) -> ContributionSource {
    ContributionSource::Group(AddressGroup(group))
}

fn key(name: u8) -> ContributionSource {
    ContributionSource::Peer(peer(name))
}

fn session(round: &mut CollectionRound, name: u8) -> &mut ContributorSession {
    round.contributors.get_mut(&peer(name)).unwrap()
}

fn offer(id: u64, n_samples: u32) -> Offer {
    let (transfer, codec) = (Transfer::of(&[0; 4]), TensorCodec::F32);
    Offer { contribution_id: id, epoch: 0, n_samples, loss: 1.0, n_values: 1, codec, transfer }
}

/// A contribution that counts; it makes its peer no source that delivers.
fn count(round: &mut CollectionRound, name: u8, n_samples: u32) {
    let group = round.group_of(&peer(name));
    let id = round.contributions.n_samples() + 1000;
    round.restore(peer(name), group, &offer(id, n_samples), &[1.0], 0).unwrap();
    (session(round, name).delivered, session(round, name).counted_in) = (0, None);
}

/// A contribution that is being received, or stored.
fn in_flight(round: &mut CollectionRound, name: u8, n_samples: u32, is_receiving: bool) -> Ticket {
    let (peer, group) = (peer(name), round.group_of(&peer(name)));
    let stage =
        if is_receiving { ContributionStage::Receiving } else { ContributionStage::Storing(vec![1.0], 0) };
    let ticket = Ticket(round.in_flight.len() as u64);
    let offer = offer(ticket.0, n_samples);
    let flight = InFlightContribution { peer, group, offer, since: S, deadline: 1000 * S, stage };
    round.in_flight.insert(ticket, flight);
    ticket
}

fn reports(round: &mut CollectionRound, claims: &[(u8, u32)]) {
    claims.iter().for_each(|&(name, n)| session(round, name).outstanding = n);
}

/// A source with this reliability, and patience of a second.
fn reliable(round: &mut CollectionRound, source: ContributionSource, reliability: f64) {
    round.stragglers.record(source, S, TIMEOUT).reliability = reliability;
}

#[test]
fn a_source_that_nothing_is_known_of_is_believed_and_waited_for_a_little() {
    let mut tracker = StragglerTracker::default();
    assert_eq!((tracker.reliability(&key(1)), tracker.needed(&key(1))), (1.0, Duration::ZERO));
    assert_eq!(tracker.patience(&key(1), 999 * S, TIMEOUT), S);
    let record = tracker.record(key(1), 10 * S, TIMEOUT);
    assert_eq!((record.reliability, record.patience, record.at), (1.0, S, 10 * S));
    record.reliability = 0.25;
    record.needed = 3 * S;
    assert_eq!((tracker.reliability(&key(1)), tracker.needed(&key(1))), (0.25, 3 * S));
    // Patience grows by a sixteenth of the time, up to the timeout, and shrinks by no clock.
    let patience = |now: u32| tracker.patience(&key(1), now * S, TIMEOUT);
    assert_eq!(
        [10, 26, 10 + 16 * 62, 10 + 16 * 63, 9999].map(patience),
        [S, 2 * S, 63 * S, TIMEOUT, TIMEOUT]
    );
    assert_eq!(patience(9), S);
    let record = tracker.record(key(1), 26 * S, TIMEOUT);
    assert_eq!((record.reliability, record.patience, record.at), (0.25, 2 * S, 26 * S));
}

#[test]
fn of_sources_the_one_that_was_silent_for_the_longest_is_forgotten() {
    let mut tracker = StragglerTracker::default();
    for n in 0..SOURCES_MAX as u64 {
        tracker.record(at(n), S * (n as u32 + 1), TIMEOUT);
        assert_eq!(tracker.records.len(), n as usize + 1);
    }
    // One that is known takes nobody's place.
    tracker.record(at(0), 99_999 * S, TIMEOUT);
    assert!(tracker.records.len() == SOURCES_MAX && tracker.records.contains_key(&at(1)));
    tracker.record(at(99_999), 99_999 * S, TIMEOUT);
    assert_eq!(tracker.records.len(), SOURCES_MAX);
    assert_eq!([0, 1, 2, 99_999].map(|n| tracker.records.contains_key(&at(n))), [true, false, true, true]);
}

#[test]
fn a_source_is_an_address_where_there_are_several_and_a_key_otherwise() {
    let mut round = round_of(true, &[1]);
    assert_eq!((round.source(&peer(1), AddressGroup(1)), round.is_among_strangers()), (key(1), false));
    join(&mut round, 2, 1);
    assert_eq!((round.source(&peer(2), AddressGroup(1)), round.is_among_strangers()), (key(2), false));
    join(&mut round, 3, 3);
    assert_eq!((round.source(&peer(2), AddressGroup(1)), round.is_among_strangers()), (at(1), true));
    let known = round_of(false, &[1, 2]);
    assert_eq!((known.source(&peer(1), AddressGroup(1)), known.is_among_strangers()), (key(1), false));
}

#[test]
fn where_peers_are_known_a_report_counts_by_the_reliability_of_its_sender() {
    let mut round = round_of(false, &[1, 2, 3]);
    reports(&mut round, &[(1, 40), (2, 30)]);
    reliable(&mut round, key(1), 0.5);
    assert_eq!(round.n_expected(), 70, "nobody has delivered, so all may be slow");
    session(&mut round, 3).counted_in = Some(0);
    assert_eq!(round.n_expected(), 20 + 30);
    count(&mut round, 2, 7);
    in_flight(&mut round, 1, 20, true);
    assert_eq!(round.n_expected(), 7 + (40 + 20) / 2 + 30, "what is received is a claim");
    in_flight(&mut round, 1, 11, false);
    assert_eq!(round.n_expected(), 7 + 30 + 30 + 11, "what is stored is certain");
    // The only one that delivers is believed.
    session(&mut round, 3).counted_in = None;
    session(&mut round, 2).counted_in = Some(0);
    reliable(&mut round, key(2), 0.95);
    assert_eq!(round.n_expected(), 7 + 30 + 30 + 11);
    session(&mut round, 3).counted_in = Some(0);
    assert_eq!(round.n_expected(), 7 + 30 + 28 + 11);
}

#[test]
fn among_strangers_a_report_counts_as_much_as_the_samples_of_all_others() {
    let mut round = round_of(true, &[1, 2]);
    session(&mut round, 2).counted_in = Some(0);
    reports(&mut round, &[(1, 100), (2, 20)]);
    assert_eq!(round.n_expected(), 20 + 20);
    count(&mut round, 1, 5);
    count(&mut round, 2, 7);
    session(&mut round, 2).counted_in = Some(0);
    assert_eq!(round.n_expected(), (5 + 7) + (7 + 20) + 20);
    round.other_aggregators = OtherAggregators { n_samples: 3, is_closing: false };
    assert_eq!(round.n_expected(), (5 + 7) + (7 + 20 + 3) + 20);
    in_flight(&mut round, 2, 4, false);
    assert_eq!(round.n_expected(), (5 + 7 + 4) + (7 + 4 + 20 + 3) + 20);
    // Nor more than what is likely to be delivered of it.
    reliable(&mut round, at(1), 0.25);
    assert_eq!(round.n_expected(), (5 + 7 + 4) + 25 + 20);
    // Two keys of an address claim together.
    join(&mut round, 3, 1);
    reports(&mut round, &[(1, 60), (3, 60)]);
    assert_eq!(round.n_expected(), (5 + 7 + 4) + 30 + 20);
}

#[test]
fn a_source_delivers_as_long_as_it_did_in_this_epoch_or_the_one_before() {
    let mut round = round_of(false, &[1, 2]);
    round.epoch = 5;
    for (counted_in, is_known) in [(None, false), (Some(3), false), (Some(4), true), (Some(5), true)] {
        session(&mut round, 1).counted_in = counted_in;
        assert_eq!(round.known_to_deliver().contains(&key(1)), is_known, "{counted_in:?}");
    }
    for (reliability, is_known) in [(RELIABLE - 0.001, false), (RELIABLE, true), (1.0, true)] {
        reliable(&mut round, key(1), reliability);
        assert_eq!(round.known_to_deliver(), BTreeSet::from_iter(is_known.then_some(key(1))));
    }
}

#[test]
fn claims_of_less_reliable_strangers_are_waited_for_longer() {
    let mut known = round_of(false, &[1, 2]);
    reports(&mut known, &[(1, 10)]);
    reliable(&mut known, key(1), 0.5);
    assert_eq!(known.patience_with_claims(), TIMEOUT);
    let mut round = round_of(true, &[1, 2]);
    assert_eq!(round.patience_with_claims(), 16 * TIMEOUT, "where nobody claims");
    reports(&mut round, &[(1, 10)]);
    for (reliability, times) in [(1.0, 1), (0.5, 2), (0.125, 8), (0.01, 16)] {
        reliable(&mut round, at(1), reliability);
        assert_eq!(round.patience_with_claims(), times * TIMEOUT);
    }
    reports(&mut round, &[(2, 10)]);
    reliable(&mut round, at(2), 0.25);
    assert_eq!(round.patience_with_claims(), 4 * TIMEOUT, "the best of them decides");
}

#[test]
fn when_gradients_become_due_all_that_is_reported_or_received_is_claimed() {
    let mut round = round_of(true, &[1, 2, 3]);
    reports(&mut round, &[(1, 40), (2, 30)]);
    in_flight(&mut round, 1, 5, true);
    in_flight(&mut round, 2, 6, false);
    (session(&mut round, 1).delivered, session(&mut round, 1).was_put_off) = (9, true);
    round.stragglers.left.insert(at(9), (1, 1));
    for n in 1..=2 {
        round.record_claims(7 * S);
        assert_eq!([1, 2, 3].map(|name| session(&mut round, name).claimed), [45, 30, 0]);
        assert_eq!([1, 3].map(|name| session(&mut round, name).n_unanswered_requests), [n; 2]);
    }
    assert!(session(&mut round, 1).delivered == 0 && !session(&mut round, 1).was_put_off);
    let tracker = &round.stragglers;
    assert!(tracker.due_since == 7 * S && tracker.has_claims && tracker.left.is_empty());
}

#[test]
fn one_that_leaves_while_gradients_are_due_leaves_its_claims_behind() {
    let mut round = round_of(true, &[1, 2, 3]);
    join(&mut round, 4, 1);
    for (name, claimed, delivered) in [(1, 40, 10), (4, 20, 25), (2, 30, 0), (3, 0, 0)] {
        (session(&mut round, name).claimed, session(&mut round, name).delivered) = (claimed, delivered);
    }
    round.record_departure(&peer(1));
    assert!(round.stragglers.left.is_empty(), "nothing is due");
    round.phase = CollectionPhase::Collecting { deadline: 100 * S };
    [1, 4, 2, 3, 9].into_iter().for_each(|name| round.record_departure(&peer(name)));
    // No source delivers more than it claimed; who claimed nothing failed at nothing.
    assert_eq!(round.stragglers.left, [(at(1), (60, 30)), (at(2), (30, 0))].into());
}

#[test]
fn a_straggler_is_the_last_one_or_one_of_several_of_which_none_is_reliable() {
    let stragglers = |claims: &[(u8, u32)], reliabilities: [f64; 2]| {
        let mut round = round_of(false, &[1, 2, 3]);
        count(&mut round, 3, 50);
        reports(&mut round, claims);
        for (name, reliability) in (1..).zip(reliabilities) {
            reliable(&mut round, key(name), reliability);
        }
        round.update_stragglers(9 * S);
        assert!(round.stragglers.last.values().all(|wait| wait.since == 9 * S && wait.cost.is_zero()));
        round.stragglers.last.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(stragglers(&[(1, 10), (2, 0)], [1.0, 1.0]), [key(1)]);
    assert_eq!(stragglers(&[(1, 10), (2, 10)], [0.5, 0.5]), [key(1), key(2)]);
    assert_eq!(stragglers(&[(1, 10), (2, 10)], [0.5, RELIABLE]), []);
    assert_eq!(stragglers(&[(1, 10), (2, 10)], [1.0, 0.5]), []);
    assert_eq!(stragglers(&[], [1.0, 1.0]), []);
    assert_eq!(stragglers(&[(3, 10)], [1.0, 1.0]), [], "its own samples do not wait for it");
    assert_eq!(stragglers(&[(1, 10), (3, 10)], [0.5, 0.5]), [], "the third is reliable");
}

#[test]
fn what_is_received_is_not_delivered_and_what_is_stored_is() {
    let mut round = round_of(true, &[1, 2, 3]);
    reports(&mut round, &[(1, 10)]);
    in_flight(&mut round, 2, 10, true);
    in_flight(&mut round, 3, 10, false);
    assert_eq!(round.undelivered_sources(), [at(1), at(2)].into());
    count(&mut round, 1, 5);
    count(&mut round, 2, 7);
    assert_eq!([at(1), at(2), at(3)].map(|of| round.n_counted_of(&of)), [5, 7, 0]);
    assert_eq!([at(1), at(2), at(3)].map(|of| round.n_counted_of_others(&of)), [7, 5, 12]);
    assert_eq!((round.n_counted_of(&key(2)), round.n_counted_of(&key(3))), (7, 0));
}

/// A round whose epoch took eight seconds until gradients were due, at nine; the third peer has delivered 40 samples.
fn waiting(names: &[u8]) -> CollectionRound {
    let mut round = round_of(true, names);
    count(&mut round, 3, 40);
    (round.stragglers.epoch_since, round.stragglers.due_since) = (S, 9 * S);
    round
}

#[test]
fn samples_are_worth_an_eighth_of_the_epoch_where_they_are_as_many_as_all_others() {
    let round = waiting(&[1, 2, 3]);
    let pays = [0.0, 10.0, 20.0, 40.0, 80.0].map(|n| round.pays(&at(1), n));
    assert_eq!(pays, [Duration::ZERO, S / 4, S / 2, S, S]);
    assert_eq!(round.pays(&at(3), 0.5), S / 2, "where the others have none, one counts as all");
}

/// Waits for the first peer from 10 s on; `claimed` samples, of which it has delivered some.
fn waiting_for(claimed: u32, delivered: u32, cost: Duration) -> CollectionRound {
    let mut round = waiting(&[1, 2, 3]);
    (session(&mut round, 1).claimed, session(&mut round, 1).delivered) = (claimed, delivered);
    round.stragglers.last.insert(at(1), Wait { since: 10 * S, cost });
    round.stragglers.shared_until = 10 * S;
    round
}

#[test]
fn a_wait_costs_patience_where_it_was_not_worth_it() {
    let left = |n_counted: u32, took: Duration| {
        let mut round = waiting_for(20, 20, Duration::ZERO);
        if n_counted > 0 {
            count(&mut round, 1, n_counted);
        }
        round.charge_all_but(10 * S + took, &BTreeSet::new());
        assert!(round.stragglers.last.is_empty());
        // At ten seconds there was a second of patience, and more of it later.
        round.stragglers.records[&at(1)].patience
    };
    assert_eq!(left(0, Duration::ZERO), S);
    assert_eq!(left(0, 600 * MS), 400 * MS);
    // Twenty samples are worth half a second.
    assert_eq!(left(20, 600 * MS), 900 * MS);
    assert_eq!(left(20, 500 * MS), S);
    assert_eq!(left(20, 100 * MS), S, "what was saved is not paid out");
    assert_eq!(left(20, 5 * S), Duration::ZERO);
}

#[test]
fn a_wait_in_vain_is_twice_as_long_the_next_time_and_one_that_was_not_tells_how_long_it_takes() {
    let needed = |claimed, delivered, took: Duration, before: Duration| {
        let mut round = waiting_for(claimed, delivered, Duration::ZERO);
        reliable(&mut round, at(1), 1.0);
        round.stragglers.records.get_mut(&at(1)).unwrap().needed = before;
        round.charge_all_but(10 * S + took, &BTreeSet::new());
        round.stragglers.needed(&at(1))
    };
    assert_eq!(needed(20, 20, 3 * S, Duration::ZERO), 3 * S);
    assert_eq!(needed(20, 20, 3 * S, 9 * S), 3 * S, "it has become quicker");
    assert_eq!(needed(20, 21, 100 * S, Duration::ZERO), TIMEOUT);
    assert_eq!(needed(20, 19, 3 * S, Duration::ZERO), 6 * S);
    assert_eq!(needed(20, 0, 3 * S, 3 * S), 6 * S);
    assert_eq!(needed(20, 0, 3 * S, 3 * S + NS), 3 * S + NS, "it was not waited for as long");
    assert_eq!(needed(20, 0, 40 * S, Duration::ZERO), TIMEOUT);
}

#[test]
fn those_that_are_waited_for_together_share_the_time() {
    let mut round = waiting_for(20, 0, Duration::ZERO);
    round.stragglers.last.insert(at(2), Wait { since: 10 * S, cost: S });
    round.charge_all_but(14 * S, &[at(1), at(2)].into());
    let cost = |round: &CollectionRound, group| round.stragglers.last[&at(group)].cost;
    assert_eq!((cost(&round, 1), cost(&round, 2), round.stragglers.n_last()), (2 * S, 3 * S, 2));
    assert_eq!(round.stragglers.shared_until, 14 * S);
    assert!(round.stragglers.records.is_empty(), "nobody is charged before it is over");
    round.charge_all_but(15 * S, &[at(2)].into());
    assert_eq!((round.stragglers.n_last(), cost(&round, 2)), (1, 3 * S + S / 2));
    assert_eq!(round.stragglers.records.keys().cloned().collect::<Vec<_>>(), [at(1)]);
    // Where nobody is waited for, time costs nobody anything.
    round.charge_all_but(16 * S, &BTreeSet::new());
    round.charge_all_but(30 * S, &BTreeSet::new());
    assert_eq!((round.stragglers.n_last(), round.stragglers.shared_until), (0, 30 * S));
}

#[test]
fn a_straggler_is_waited_for_as_long_as_its_samples_are_worth_and_its_patience_lasts() {
    let mut round = waiting_for(20, 0, 200 * MS);
    assert_eq!(round.waits_exactly_for(&at(2)), 9 * S + TIMEOUT, "no straggler: until the deadline");
    // Half a second for 20 samples, a second of patience, and 200 ms are over.
    assert_eq!(round.waits_exactly_for(&at(1)), 11 * S + 300 * MS);
    round.stragglers.shared_until = 12 * S;
    assert_eq!(round.waits_exactly_for(&at(1)), 13 * S + 300 * MS);
    round.stragglers.last.insert(at(2), Wait { since: 10 * S, cost: S });
    assert_eq!(round.waits_exactly_for(&at(1)), 14 * S + 600 * MS, "half of the time is the other one's");
    round.stragglers.last.remove(&at(2));
    // Less is likely to come of one that is less reliable, and it had a sixteenth of nine seconds.
    reliable(&mut round, at(1), 0.5);
    assert_eq!(round.waits_exactly_for(&at(1)), 12 * S + 50 * MS + S + 9 * S / 16);
    round.stragglers.records.get_mut(&at(1)).unwrap().patience = TIMEOUT;
    assert_eq!(round.waits_exactly_for(&at(1)), 9 * S + TIMEOUT, "never for longer than the timeout");
}

#[test]
fn a_straggler_that_cannot_come_in_time_is_waited_for_no_longer_than_it_is_worth() {
    let mut round = waiting_for(20, 0, 200 * MS);
    reliable(&mut round, at(1), 1.0);
    let record = round.stragglers.records.get_mut(&at(1)).unwrap();
    (record.at, record.needed) = (10 * S, 1300 * MS);
    assert_eq!(round.waits_exactly_for(&at(1)), 11 * S + 300 * MS, "just in time");
    round.stragglers.records.get_mut(&at(1)).unwrap().needed = 1300 * MS + 2 * NS;
    assert_eq!(round.waits_exactly_for(&at(1)), 10 * S + 300 * MS);
    // Drivers count whole milliseconds: a deadline that is cut off would be over too soon.
    round.stragglers.last.get_mut(&at(1)).unwrap().cost += NS;
    assert_eq!(round.waits_for(&at(1)), 10 * S + 300 * MS);
    round.stragglers.last.get_mut(&at(1)).unwrap().cost -= 2 * NS;
    assert_eq!(round.waits_for(&at(1)), 10 * S + 301 * MS);
}

#[test]
fn the_keys_of_an_address_claim_and_deliver_together() {
    let mut round = round_of(true, &[1, 2]);
    join(&mut round, 3, 1);
    for (name, claimed, delivered) in [(1, 40, 10), (2, 30, 5), (3, 20, 25)] {
        (session(&mut round, name).claimed, session(&mut round, name).delivered) = (claimed, delivered);
    }
    assert_eq!(round.claimed_and_delivered_by(&at(1)), (60, 30), "none delivers for another");
    assert_eq!(round.claimed_and_delivered_by(&at(2)), (30, 5));
    assert_eq!(round.claimed_and_delivered_by(&at(3)), (0, 0));
}

#[test]
fn among_known_peers_a_step_goes_on_without_stragglers_where_it_has_enough_samples() {
    let enough = |n_counted: u32, n_storing: u32, n_elsewhere: u64, is_closing| {
        let mut round = round_of(false, &[1, 2]);
        if n_counted > 0 {
            count(&mut round, 1, n_counted);
        }
        in_flight(&mut round, 1, n_storing, false);
        in_flight(&mut round, 2, 1000, true);
        round.other_aggregators = OtherAggregators { n_samples: n_elsewhere, is_closing };
        assert_eq!(round.may_go_on_early(), round.is_enough_without());
        round.is_enough_without()
    };
    assert!(enough(100, 0, 0, false) && enough(60, 40, 0, false) && enough(60, 10, 30, false));
    assert!(!enough(99, 0, 0, false) && !enough(60, 39, 0, false) && !enough(60, 10, 29, false));
    assert!(enough(1, 0, 0, true) && enough(0, 1, 200, false));
    assert!(!enough(0, 0, 0, true) && !enough(0, 0, 200, false), "without any sample there is no step");
    let mut clipped = round_of(false, &[1, 2]);
    count(&mut clipped, 1, 100);
    clipped.config.aggregation = Aggregation::CenteredClip { places: 4 };
    assert!(!clipped.is_enough_without(), "there, the number of samples does not decide");
}

#[test]
fn the_first_straggler_that_may_be_given_up_sets_the_deadline() {
    let mut round = waiting_for(20, 0, 200 * MS);
    assert_eq!(round.waits_until(), None, "nobody has anything to deliver");
    reports(&mut round, &[(1, 20), (2, 20)]);
    assert_eq!(round.waits_until(), Some(11 * S + 300 * MS));
    // Among peers that are known, and with too few samples, nobody is given up.
    round.config.is_open = false;
    assert_eq!(round.waits_until(), None);
}

#[test]
fn a_straggler_is_given_up_when_its_time_is_over_with_its_transfer_and_nobody_else() {
    let until = 11 * S + 300 * MS;
    let of = |now, are_all| {
        let mut round = waiting_for(20, 0, 200 * MS);
        reports(&mut round, &[(1, 20), (2, 20)]);
        in_flight(&mut round, 1, 5, true);
        in_flight(&mut round, 1, 6, false);
        in_flight(&mut round, 2, 5, true);
        round.give_up_waiting(now, are_all);
        let outstanding = [1, 2, 3].map(|name| session(&mut round, name).outstanding);
        let is_silent = [1, 2, 3].map(|name| session(&mut round, name).is_silent);
        (outstanding, is_silent, round.in_flight.keys().map(|ticket| ticket.0).collect::<Vec<_>>())
    };
    assert_eq!(of(until - MS, false), ([20, 20, 0], [false; 3], vec![0, 1, 2]));
    assert_eq!(of(until, false), ([0, 20, 0], [true, false, false], vec![1, 2]));
    assert_eq!(of(until, true), ([0, 0, 0], [true, true, false], vec![1]));
}

#[test]
fn a_transfer_under_way_goes_on_where_nobody_could_make_up_for_it() {
    let given_up = |is_open, names: &[u8]| {
        let mut round = round_of(is_open, names);
        reports(&mut round, &[(1, 20)]);
        in_flight(&mut round, 1, 5, true);
        round.give_up_waiting(9 * S, false);
        assert_eq!(session(&mut round, 1).outstanding, 20, "with too few samples nobody is given up");
        round.give_up_waiting(9 * S, true);
        assert_eq!(session(&mut round, 1).outstanding, 0);
        round.in_flight.is_empty()
    };
    assert!(!given_up(false, &[1]));
    assert!(given_up(false, &[1, 2]), "the other one could");
    // A transfer has no report: its peer is not silent.
    let mut round = round_of(false, &[1, 2]);
    in_flight(&mut round, 1, 5, true);
    round.give_up_waiting(9 * S, true);
    assert!(round.in_flight.is_empty() && !session(&mut round, 1).is_silent);
}

#[test]
fn what_a_source_delivered_of_its_claims_decides_how_much_it_is_believed() {
    let mut round = round_of(true, &[1, 2, 3, 4]);
    join(&mut round, 5, 5);
    round.stragglers.has_claims = true;
    for (name, claimed, delivered) in [(1, 40, 10), (2, 30, 90), (3, 30, 0), (4, 0, 0), (5, 8, 0)] {
        (session(&mut round, name).claimed, session(&mut round, name).delivered) = (claimed, delivered);
    }
    session(&mut round, 5).was_put_off = true;
    // Of the first address, one has left: together they claimed 80 and delivered 20.
    round.stragglers.left = [(at(1), (40, 10)), (at(7), (9, 0))].into();
    round.settle_claims(20 * S);
    let reliabilities = |round: &CollectionRound| {
        round
            .stragglers
            .records
            .iter()
            .map(|(of, record)| (of.clone(), record.reliability))
            .collect::<Vec<_>>()
    };
    let want = [(at(1), 0.625), (at(2), 1.0), (at(3), 0.5), (at(7), 0.5)];
    assert_eq!(reliabilities(&round), want);
    assert!((1..=5).all(|name| session(&mut round, name).claimed == 0) && round.stragglers.left.is_empty());
    // Settled once: what comes later was not claimed.
    session(&mut round, 1).claimed = 40;
    round.settle_claims(21 * S);
    assert_eq!((reliabilities(&round), session(&mut round, 1).claimed), (want.into(), 40));
    round.stragglers.has_claims = true;
    (session(&mut round, 1).delivered, session(&mut round, 3).delivered) = (40, 0);
    round.settle_claims(22 * S);
    assert_eq!(reliabilities(&round)[0], (at(1), 0.8125));
}

#[test]
fn an_epoch_begins_when_it_begins() {
    let mut round = round_of(true, &[1]);
    round.on_stepped(30 * S);
    assert_eq!(round.stragglers.epoch_since, 30 * S);
}
