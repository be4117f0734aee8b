//! A run that anybody may join: the shares of one address, with any number of keys.

use super::*;
use crate::collection::TRANSFER_BYTES_PER_SECOND_MIN;

const MS: Duration = Duration::from_millis(1);
/// Address of the attacker.
const BAD: AddressGroup = AddressGroup(666);

fn open_config() -> CollectionConfig {
    CollectionConfig {
        is_open: true,
        micro_batch_size: 10,
        samples_per_second_max: 1_000_000,
        aggregation: Aggregation::MeanOfAddresses { places: 16 },
        ..config()
    }
}

/// A round with an honest contributor for each name, each at an address of its own.
fn open(names: &[u8]) -> CollectionRound {
    let mut round = CollectionRound::new(open_config(), 0);
    for &name in names {
        round.on_join(peer(name), DeviceKind::BrowserCpu, AddressGroup(name.into())).unwrap();
    }
    round
}

fn bad(key: u16) -> PeerKey {
    PeerKey(vec![255, (key >> 8) as u8, key as u8])
}

fn offer_of(
    round: &mut CollectionRound,
    now: Moment,
    peer: &PeerKey,
    id: u64,
    n: u32,
) -> Result<Ticket, ContributionRefusal> {
    let offer = offer(id, round.epoch(), n);
    round.on_offer(now, peer, &offer)
}

fn deliver(round: &mut CollectionRound, now: Moment, peer: &PeerKey, id: u64, n: u32, value: f32) {
    let ticket = offer_of(round, now, peer, id, n).unwrap();
    round.on_gradient(now, ticket, vec![value; N]);
    round.on_persisted(now, ticket);
}

fn step(actions: &[CollectionAction]) -> Option<&CollectedMean> {
    actions.iter().find_map(|action| match action {
        CollectionAction::Step(mean) => Some(mean),
        _ => None,
    })
}

#[test]
fn of_a_crowd_elsewhere_one_is_believed_as_much() {
    let mut round = open(&[1, 2]);
    deliver(&mut round, S, &peer(1), 1, 50, 1.0);
    deliver(&mut round, S, &peer(2), 1, 50, 1.0);
    actions(&mut round);
    round.on_stepped(S);
    actions(&mut round);
    round.on_report(S, &peer(1), &report(1, 50)).unwrap();
    round.on_report(S, &peer(2), &report(1, 10)).unwrap();
    round.on_other_aggregators(S, OtherAggregators { n_samples: 40, is_closing: false });
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(1)]);
}

#[test]
fn an_address_moves_a_step_no_more_than_all_others_together() {
    let mut round = open(&[1, 2]);
    for key in 0..3 {
        round.on_join(bad(key), DeviceKind::NativeCpu, BAD).unwrap();
    }
    deliver(&mut round, S, &peer(1), 1, 10, 1.0);
    deliver(&mut round, S, &peer(2), 1, 10, 1.0);
    // Four times the others' samples, under three keys.
    (0..3).zip([30, 30, 20]).for_each(|(key, n)| deliver(&mut round, S, &bad(key), 1, n, -1.0));
    let actions = actions(&mut round);
    let mean = step(&actions).unwrap();
    assert_eq!((mean.n_samples, mean.gradient[0]), (100, 0.0));
    assert_eq!(mean.aggregation, Aggregation::MeanOfAddresses { places: 16 });
}

#[test]
fn a_restart_gives_addresses_the_weight_that_they_had() {
    let mut live = open(&[1, 2]);
    deliver(&mut live, S, &peer(1), 1, 90, 0.3);
    deliver(&mut live, S, &peer(2), 1, 20, -0.7);
    let mean = step(&actions(&mut live)).unwrap().clone();
    let mut restored = CollectionRound::new(CollectionConfig { is_open: false, ..open_config() }, 0);
    restored.aggregate_by(mean.aggregation);
    restored.restore(peer(1), AddressGroup(1), &offer(1, 0, 90), &[0.3; N], 0).unwrap();
    restored.restore(peer(2), AddressGroup(2), &offer(1, 0, 20), &[-0.7; N], 1).unwrap();
    assert_eq!(restored.mean(), mean);
}

#[test]
fn one_that_is_alone_makes_whole_steps_by_itself() {
    let mut round = open(&[1]);
    for epoch in 0..50 {
        let now = S * (epoch as u32 + 1);
        round.on_report(now, &peer(1), &report(epoch, 100)).unwrap();
        deliver(&mut round, now, &peer(1), epoch + 1, 100, 1.0);
        assert_eq!(step(&actions(&mut round)).map(|mean| mean.n_samples), Some(100));
        round.on_stepped(now);
    }
}

#[test]
fn seats_go_from_the_address_with_the_most_to_one_with_fewer() {
    let mut round = CollectionRound::new(open_config(), 0);
    for key in 0..16 {
        round.on_join(bad(key), DeviceKind::NativeCpu, BAD).unwrap();
    }
    for name in 1..=8 {
        round.on_join(peer(name), DeviceKind::BrowserCpu, AddressGroup(name.into())).unwrap();
        let [CollectionAction::Evict(gone)] = &actions(&mut round)[..] else { panic!("{name}") };
        assert_eq!(gone.0[0], 255, "{name} takes one of the many");
    }
    assert_eq!(round.n_contributors(), 16);
    // The address itself gets no more by coming again under other keys.
    assert_eq!(round.on_join(bad(99), DeviceKind::NativeCpu, BAD), Err(SessionError::Full(16)));
}

#[test]
fn a_seat_that_was_asked_in_vain_is_given_up() {
    let mut round = CollectionRound::new(CollectionConfig { contributors_max: 2, ..open_config() }, 0);
    round.on_join(peer(1), DeviceKind::NativeCpu, AddressGroup(1)).unwrap();
    round.on_join(bad(1), DeviceKind::NativeCpu, BAD).unwrap();
    let late = |round: &mut CollectionRound| round.on_join(peer(2), DeviceKind::NativeCpu, AddressGroup(2));
    for epoch in 0..3 {
        assert_eq!(late(&mut round), Err(SessionError::Full(2)));
        round.on_report(S, &peer(1), &report(epoch, 100)).unwrap();
        deliver(&mut round, S * (epoch as u32 + 1), &peer(1), epoch + 1, 100, 1.0);
        round.on_stepped(S);
        actions(&mut round);
    }
    late(&mut round).unwrap();
    assert_eq!(actions(&mut round), [CollectionAction::Evict(bad(1))]);
}

#[test]
fn a_newcomer_that_claims_and_does_not_deliver_hardly_holds_the_others_up() {
    let mut round = open(&[1, 2]);
    round.on_join(bad(1), DeviceKind::NativeCpu, BAD).unwrap();
    round.on_report(S, &bad(1), &report(0, 100)).unwrap();
    for name in [1, 2] {
        round.on_report(S, &peer(name), &report(0, 50)).unwrap();
    }
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
    for name in [1, 2] {
        deliver(&mut round, S, &peer(name), 1, 50, 1.0);
    }
    // The worth of its samples, an eighth of the second that the epoch took, and a 64th of the timeout.
    let until = round.next_deadline().unwrap();
    assert!(until <= S + S / 8 + S / 64 + MS, "{until:?}");
    actions(&mut round);
    round.on_timeout(until);
    assert_eq!(step(&actions(&mut round)).map(|mean| mean.n_samples), Some(100));
}

/// Steps take a second, and some contributors deliver later than any newcomer is waited for.
#[test]
fn those_who_deliver_late_are_waited_for_once_so_much_is_saved() {
    let late = MS * 200;
    for slow in [&[3][..], &[3, 4]] {
        let mut round = open(&[1, 2]);
        let join = |round: &mut CollectionRound, name: u8| {
            round.on_join(peer(name), DeviceKind::BrowserCpu, AddressGroup(name.into())).unwrap();
        };
        slow.iter().for_each(|&name| join(&mut round, name));
        let (mut now, mut waited, mut n_counted) = (S, Duration::ZERO, 0);
        for id in 1..=200 {
            let epoch = round.epoch();
            for &name in slow.iter().chain(&[1, 2]) {
                round.on_report(now, &peer(name), &report(epoch, 50)).unwrap();
            }
            assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(epoch)]);
            let due = now;
            [1, 2].iter().for_each(|&name| deliver(&mut round, due, &peer(name), id, 50, 1.0));
            let mut made = actions(&mut round);
            while step(&made).is_none() {
                let deadline = round.next_deadline().unwrap();
                if deadline < due + late {
                    now = deadline;
                    round.on_timeout(now);
                } else {
                    now = due + late;
                    slow.iter().for_each(|&name| deliver(&mut round, now, &peer(name), id, 50, 1.0));
                }
                made = actions(&mut round);
            }
            waited += now - due;
            n_counted += (step(&made).unwrap().n_samples - 100) / 50;
            round.on_stepped(now);
            actions(&mut round);
            now += S;
        }
        let n_slow = slow.len() as u32;
        assert!(n_counted >= 10 * u64::from(n_slow), "{n_counted} of {n_slow} in 200 steps");
        // An eighth for as many samples as all others bring, which each has half of, and a sixteenth.
        let allowed = now.mul_f64(f64::from(n_slow) * (0.125 / 2.0 + 1.0 / 16.0)) + n_slow * S / 64;
        assert!(waited <= allowed, "{waited:?} of {now:?}, no more than {allowed:?}");
    }
}

#[test]
fn transfers_that_trickle_give_way() {
    let mut round = open(&[1, 2]);
    for key in 0..8 {
        round.on_join(bad(key), DeviceKind::NativeCpu, BAD).unwrap();
        offer_of(&mut round, S + MS * u32::from(key), &bad(key), 1, 10).unwrap();
    }
    // All slots are taken, and the first of them goes to a peer of another address, at once.
    let ticket = offer_of(&mut round, S * 2, &peer(1), 1, 10).unwrap();
    assert!(actions(&mut round).contains(&CollectionAction::Abandon(Ticket(0))));
    round.on_gradient(S * 2, ticket, vec![1.0; N]);
    round.on_persisted(S * 2, ticket);
    // Another key of the same address finds none.
    round.on_join(bad(8), DeviceKind::NativeCpu, BAD).unwrap();
    offer_of(&mut round, S * 2, &bad(8), 1, 10).unwrap();
    round.on_join(bad(9), DeviceKind::NativeCpu, BAD).unwrap();
    assert_eq!(offer_of(&mut round, S * 2, &bad(9), 1, 10), Err(ContributionRefusal::Busy));
    // And each of them ends by itself, while nothing is due.
    let deadline = round.next_deadline().unwrap();
    assert!(deadline <= S * 12, "{deadline:?}");
    round.on_timeout(S * 13);
    let ended = actions(&mut round);
    let n_ended = ended.iter().filter(|action| matches!(action, CollectionAction::Abandon(_))).count();
    assert_eq!(n_ended, 8, "{ended:?}");
    assert_eq!(round.n_samples(), 10);
}

#[test]
fn a_transfer_has_time_for_its_size() {
    let config = CollectionConfig { n_parameters: 10_000_000, ..open_config() };
    let mut round = CollectionRound::new(config, 0);
    round.on_join(peer(1), DeviceKind::NativeCpu, AddressGroup(1)).unwrap();
    let transfer = Transfer { n_bytes: 40_000_000, ..Transfer::of(&[]) };
    let large = Offer { n_values: 10_000_000, transfer, ..offer(1, 0, 10) };
    round.on_offer(S, &peer(1), &large).unwrap();
    let needed = Duration::from_millis(40_000_000_000 / TRANSFER_BYTES_PER_SECOND_MIN);
    // Ten seconds more for what is no transfer.
    assert_eq!(round.next_deadline(), Some(S + needed + 10 * S));
}

#[test]
fn a_peer_without_a_slot_is_not_at_fault() {
    let config = CollectionConfig { in_flight_max: 1, ..open_config() };
    let mut round = CollectionRound::new(config, 0);
    for name in [1, 2] {
        round.on_join(peer(name), DeviceKind::BrowserCpu, AddressGroup(name.into())).unwrap();
        round.on_report(S, &peer(name), &report(0, 50)).unwrap();
    }
    let first = offer_of(&mut round, S, &peer(1), 1, 50).unwrap();
    assert_eq!(offer_of(&mut round, S, &peer(2), 1, 50), Err(ContributionRefusal::Busy));
    round.on_timeout(round.next_deadline().unwrap());
    assert_eq!(
        actions(&mut round)[..2],
        [CollectionAction::RequestGradients(0), CollectionAction::Abandon(first)]
    );
    // Its reports count as before.
    assert_eq!(round.waiting_reliability(&peer(2)), 1.0);
    assert!(round.waiting_reliability(&peer(1)) < 1.0);
}

#[test]
fn small_contributions_are_what_is_left_over() {
    let mut round = open(&[1]);
    for id in 1..=2 {
        deliver(&mut round, S, &peer(1), id, 1, 1.0);
    }
    assert_eq!(offer_of(&mut round, S, &peer(1), 3, 9), Err(ContributionRefusal::TooFew { min: 10, got: 9 }));
    deliver(&mut round, S, &peer(1), 3, 10, 1.0);
    // Nor do many keys of an address get around it.
    for key in 0..200 {
        round.on_leave(S, &bad(key));
        round.on_join(bad(key), DeviceKind::NativeCpu, BAD).unwrap();
        if let Ok(ticket) = offer_of(&mut round, S, &bad(key), 1, 1) {
            round.on_gradient(S, ticket, vec![1.0; N]);
            round.on_persisted(S, ticket);
        }
        round.on_leave(S, &bad(key));
    }
    assert_eq!(round.n_samples(), 12 + 32);
}

#[test]
fn contributions_of_a_peer_to_an_epoch_are_bounded() {
    let mut round = CollectionRound::new(CollectionConfig { target_batch_size: 1_000, ..open_config() }, 0);
    round.on_join(peer(1), DeviceKind::NativeCpu, AddressGroup(1)).unwrap();
    let mut n_taken = 0;
    while let Ok(ticket) = offer_of(&mut round, S * (n_taken + 1), &peer(1), n_taken.into(), 10) {
        round.on_gradient(S, ticket, vec![1.0; N]);
        round.on_persisted(S, ticket);
        n_taken += 1;
    }
    // Ten of 100 samples are necessary.
    assert_eq!(n_taken, 48);
    let refused = offer_of(&mut round, S * 999, &peer(1), 999, 10);
    assert_eq!(refused, Err(ContributionRefusal::TooMany { epoch: 0 }));
}

/// A backbone that was away follows the others, and its accepted contributions count for the open step, by
/// staleness. Its contributor can still contribute the missing samples, down to a remainder.
#[test]
fn what_is_carried_over_keeps_nobody_from_giving_more() {
    let config = || CollectionConfig { target_batch_size: 1_000, ..open_config() };
    let mut round = CollectionRound::new(config(), 100);
    round.on_join(peer(1), DeviceKind::NativeCpu, AddressGroup(1)).unwrap();
    for sequence in 0..99_u32 {
        let carried = offer(sequence.into(), sequence.into(), 10);
        round.restore(peer(1), AddressGroup(1), &carried, &[1.0; N], sequence).unwrap();
    }
    let samples_of_group = round.counts.of_group(AddressGroup(1)).n_samples;
    assert_eq!(samples_of_group, round.n_samples());
    for (id, n_samples) in [(200, 10), (201, 1), (202, 1)] {
        deliver(&mut round, S * 1_000, &peer(1), id, n_samples, 1.0);
    }
    assert_eq!(round.n_samples(), samples_of_group + 12);
}

/// As [`open`], with `in_flight_max` transfer slots.
fn with_places(in_flight_max: usize, peers: &[(u8, u64)]) -> CollectionRound {
    let config = CollectionConfig { in_flight_max, target_batch_size: 1000, ..open_config() };
    let mut round = CollectionRound::new(config, 0);
    for &(name, group) in peers {
        round.on_join(peer(name), DeviceKind::BrowserCpu, AddressGroup(group)).unwrap();
    }
    round
}

#[test]
fn a_transfer_gives_way_to_an_address_with_two_fewer_or_with_one_fewer_after_its_time() {
    let mut round = with_places(3, &[(1, 1), (2, 1), (3, 2), (4, 3), (5, 2)]);
    let tickets = [1, 2, 3].map(|name| offer_of(&mut round, S, &peer(name), 1, 10).unwrap());
    // One against two: not before the collect timeout has passed.
    assert_eq!(offer_of(&mut round, S + S - MS, &peer(5), 1, 10), Err(ContributionRefusal::Busy));
    assert!(offer_of(&mut round, S + S, &peer(5), 1, 10).is_ok());
    assert_eq!(actions(&mut round), [CollectionAction::Abandon(tickets[0])]);
    let mut round = with_places(3, &[(1, 1), (2, 1), (3, 2), (4, 3)]);
    let tickets = [1, 2, 3].map(|name| offer_of(&mut round, S, &peer(name), 1, 10).unwrap());
    // None against two: at once.
    assert!(offer_of(&mut round, S, &peer(4), 1, 10).is_ok());
    assert_eq!(actions(&mut round), [CollectionAction::Abandon(tickets[0])]);
    // As many against as many: never.
    let mut round = with_places(2, &[(1, 1), (3, 2), (5, 2)]);
    for name in [1, 3] {
        offer_of(&mut round, S, &peer(name), 1, 10).unwrap();
    }
    assert_eq!(offer_of(&mut round, S * 5, &peer(5), 1, 10), Err(ContributionRefusal::Busy));
}

#[test]
fn a_transfer_is_abandoned_when_its_time_is_over_and_not_before() {
    let mut round = with_places(3, &[(1, 1)]);
    let ticket = offer_of(&mut round, S, &peer(1), 1, 10).unwrap();
    round.on_timeout(S * 11 - MS);
    assert_eq!((actions(&mut round), round.next_deadline()), (vec![], Some(S * 11)));
    round.on_timeout(S * 11);
    assert_eq!(actions(&mut round), [CollectionAction::Abandon(ticket)]);
}

#[test]
fn an_address_contributes_to_an_epoch_so_often_and_a_round_counts_so_many() {
    let limits =
        CollectionConfig { target_batch_size: 1000, contribution_samples_max: 1000, ..open_config() };
    let crowded = |n_restored: u32, last: u32| {
        let config = CollectionConfig { micro_batch_size: 1, ..limits.clone() };
        let mut round = CollectionRound::new(config, 0);
        round.on_join(bad(999), DeviceKind::BrowserCpu, BAD).unwrap();
        for n in 0..n_restored {
            let sequence = if n + 1 == n_restored { last } else { n };
            // Twelve of each key, which is as many as one may have.
            round.restore(bad((n / 12) as u16), BAD, &offer(n.into(), 0, 1), &[1.0; N], sequence).unwrap();
        }
        offer_of(&mut round, S, &bad(999), 1, 1)
    };
    assert!(crowded(64 * 12 - 1, 0).is_ok());
    assert_eq!(crowded(64 * 12, 0), Err(ContributionRefusal::TooMany { epoch: 0 }));
    assert!(crowded(1, CONTRIBUTIONS_MAX - 2).is_ok());
    assert_eq!(crowded(1, CONTRIBUTIONS_MAX - 1), Err(ContributionRefusal::TooMany { epoch: 0 }));
}

#[test]
fn one_that_is_alone_is_believed_any_speed_and_one_among_others_is_not() {
    for (others, is_believed) in [(&[][..], true), (&[(2, 2)][..], false), (&[(2, 1)][..], true)] {
        let peers = [&[(1, 1)], others].concat();
        let mut round = with_places(3, &peers);
        round.config.samples_per_second_max = 1;
        deliver(&mut round, S, &peer(1), 1, 100, 1.0);
        assert_eq!(offer_of(&mut round, S, &peer(1), 2, 100).is_ok(), is_believed, "{others:?}");
    }
}
