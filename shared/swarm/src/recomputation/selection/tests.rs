use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Transfer;

use super::*;

const HERE: AddressGroup = AddressGroup(1);
const NOW: Moment = Duration::from_secs(10);
const QUICK: Duration = Duration::from_millis(1);

fn offer(id: u64) -> Offer {
    let transfer = Transfer::of(&id.to_le_bytes());
    let codec = TensorCodec::F32;
    Offer { contribution_id: id, epoch: 0, n_samples: 8, loss: 1.0, n_values: 2, codec, transfer }
}

fn peer(name: u8) -> PeerKey {
    PeerKey(vec![name])
}

/// A selection whose peer is no longer new.
fn passed(share: f64, secret: u8) -> Selection {
    let mut selection = Selection::new(share, [secret; 32]);
    for id in 0..u64::from(PROBATION) {
        let n_left = PROBATION - id as u32;
        let chosen = selection.choose(NOW, &peer(1), HERE, &offer(1_000_000 + id));
        assert_eq!(chosen, Some(Reason::Probation { n_left }));
        selection.on_verified(NOW, &peer(1), HERE, &offer(1_000_000 + id), QUICK);
    }
    selection
}

/// A selection whose peer is known well.
fn known(share: f64, secret: u8) -> Selection {
    let mut selection = passed(share, secret);
    selection.restore_passed(peer(1), 1_000_000);
    selection
}

fn chosen(selection: &mut Selection, ids: std::ops::Range<u64>) -> Vec<u64> {
    ids.filter(|&id| selection.choose(NOW, &peer(1), HERE, &offer(id)).is_some()).collect()
}

#[test]
fn as_many_are_chosen_as_are_wanted_and_others_with_another_secret() {
    let of = |share, secret| chosen(&mut known(share, secret), 0..4000);
    assert_eq!(of(0.0, 1).len(), 0);
    assert_eq!(of(1.0, 1).len(), 4000);
    // 400 are expected; five standard deviations are 95.
    assert!((305..=495).contains(&of(0.1, 1).len()), "{}", of(0.1, 1).len());
    assert_eq!(of(0.1, 1), of(0.1, 1), "one that is offered again is chosen again");
    assert_ne!(of(0.1, 1), of(0.1, 2));
}

#[test]
fn the_first_of_a_key_are_always_chosen_until_so_many_were_right() {
    let mut selection = Selection::new(0.0, [1; 32]);
    let probation = Some(Reason::Probation { n_left: PROBATION });
    for id in 0..50 {
        assert_eq!(selection.choose(NOW, &peer(1), HERE, &offer(id)), probation, "nothing was right yet");
    }
    let mut selection = known(0.0, 1);
    assert_eq!(selection.choose(NOW, &peer(1), HERE, &offer(5)), None);
    assert_eq!(selection.choose(NOW, &peer(2), HERE, &offer(5)), probation, "another key is new");
}

#[test]
fn a_key_that_has_just_passed_its_probation_is_drawn_more_often_than_one_that_is_known() {
    let share = |selection: &mut Selection| chosen(selection, 0..4000).len() as f64 / 4000.0;
    let near = |got: f64, want: f64| assert!((got - want).abs() < 0.05, "{got}, {want} is wanted");
    near(share(&mut passed(0.1, 1)), 0.42);
    near(share(&mut known(0.1, 1)), 0.1);
    let mut selection = passed(0.0, 1);
    selection.restore_passed(peer(1), 7);
    near(share(&mut selection), 0.05);
    selection.on_verified(NOW, &peer(1), HERE, &offer(9), Duration::from_secs(3000));
    near(selection.share_of_all(NOW), 0.0);
    let mut selection = passed(0.1, 1);
    selection.on_verified(NOW, &peer(1), HERE, &offer(9), Duration::from_secs(3000));
    assert!((selection.share_of_all(NOW) - 0.1).abs() < 1e-9, "it takes nothing from the share of others");
}

#[test]
fn a_key_is_on_probation_again_when_what_counts_already_could_not_be_recomputed() {
    let mut selection = known(1.0, 1);
    let reason = selection.choose(NOW, &peer(1), HERE, &offer(1)).unwrap();
    assert!(!reason.is_before_counting());
    selection.on_unverified(&peer(1));
    let reason = selection.choose(NOW, &peer(1), HERE, &offer(2)).unwrap();
    assert_eq!(reason, Reason::Probation { n_left: PROBATION });
    assert!(reason.is_before_counting() && Reason::Suspicion.is_before_counting());
    selection.on_unverified(&peer(9));
    assert_eq!(selection.passed().count(), 1, "nothing is remembered of a key that is not known");
}

#[test]
fn what_was_found_right_is_not_recomputed_when_it_is_offered_again() {
    let mut selection = Selection::new(1.0, [1; 32]);
    assert!(selection.choose(NOW, &peer(1), HERE, &offer(5)).is_some());
    selection.on_verified(NOW, &peer(1), HERE, &offer(5), QUICK);
    assert_eq!(selection.choose(NOW, &peer(1), HERE, &offer(5)), None);
    let other = Offer { transfer: Transfer::of(b"another"), ..offer(5) };
    assert!(selection.choose(NOW, &peer(1), HERE, &other).is_some(), "under the same number");
}

#[test]
fn after_a_conviction_everything_from_the_address_is_recomputed_for_a_while() {
    let mut selection = known(0.0, 1);
    selection.on_convicted(NOW, HERE);
    let choose = |selection: &mut Selection, now, group| selection.choose(now, &peer(1), group, &offer(5));
    assert_eq!(choose(&mut selection, NOW, HERE), Some(Reason::Suspicion));
    assert_eq!(choose(&mut selection, NOW, AddressGroup(2)), None, "elsewhere nothing is suspected");
    assert_eq!(choose(&mut selection, NOW + SUSPICION - QUICK, HERE), Some(Reason::Suspicion));
    assert_eq!(choose(&mut selection, NOW + SUSPICION, HERE), None);
}

#[test]
fn few_pieces_of_evidence_of_an_address_are_kept_for_others() {
    let mut selection = Selection::new(0.0, [1; 32]);
    let n_kept = (0..1000).filter(|_| selection.on_convicted(NOW, HERE)).count();
    assert_eq!(n_kept, EVIDENCE_MAX as usize);
    assert!(selection.on_convicted(NOW, AddressGroup(2)));
    assert!(selection.on_convicted(NOW + 2 * SUSPICION, HERE), "after a time without");
}

/// A device that takes far longer than those of contributors.
#[test]
fn recomputing_takes_a_share_of_the_time_however_slow_the_device_is() {
    for took in [Duration::from_millis(50), Duration::from_secs(1), Duration::from_secs(20)] {
        let mut selection = known(0.05, 1);
        let (mut now, mut busy, mut n_chosen) = (NOW, Duration::ZERO, 0);
        let end = NOW + Duration::from_secs(40_000);
        let mut id = 0;
        while now < end {
            id += 1;
            now += Duration::from_secs(1);
            if selection.choose(now, &peer(1), HERE, &offer(id)).is_some() {
                // It is offered again until it was verified.
                now += took;
                busy += took;
                n_chosen += 1;
                selection.on_verified(now, &peer(1), HERE, &offer(id), took);
            }
        }
        let part = busy.as_secs_f64() / (now - NOW).as_secs_f64();
        println!("{took:?}: {n_chosen} of {id} chosen, {:.1} % of the time", 100.0 * part);
        assert!(part < 0.03 && n_chosen > 30, "{took:?}: {part}, {n_chosen}");
    }
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut selection = Selection::new(0.0, [1; 32]);
    let name = |n: usize| PeerKey(n.to_le_bytes().to_vec());
    for n in 0..KEYS_MAX + 5 {
        for _ in 0..PROBATION {
            selection.on_verified(NOW, &name(n), HERE, &offer(n as u64), QUICK);
        }
    }
    for n in 0..GROUPS_MAX as u64 + 5 {
        selection.on_convicted(NOW, AddressGroup(n));
    }
    assert_eq!((selection.n_right.len(), selection.keys.len()), (KEYS_MAX, KEYS_MAX));
    assert_eq!((selection.of_groups.len(), selection.groups.len()), (GROUPS_MAX, GROUPS_MAX));
    assert_eq!(selection.right.len(), NAMES_MAX);
    assert_eq!(
        (selection.n_left(&name(0)), selection.n_left(&name(5))),
        (PROBATION, 0),
        "who is forgotten passes again"
    );
}

#[test]
fn what_recomputing_takes_halves_the_share_and_is_forgotten() {
    let second = Duration::from_secs;
    let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-4, "{got}, {want} is wanted");
    let mut selection = known(0.5, 1);
    let other = AddressGroup(2);
    assert_eq!(
        (selection.share(), selection.share_of_all(NOW), selection.share_now(NOW, HERE)),
        (0.5, 0.5, 0.5)
    );
    selection.on_verified(second(100), &peer(1), HERE, &offer(1), second(30));
    near(selection.share_of_all(second(100)), 0.25);
    near(selection.share_now(second(100), other), 0.25);
    near(selection.share_now(second(100), HERE), 0.125);
    // A minute is good for 15 s of all addresses, and for 1.2 s of one.
    near(selection.share_of_all(second(160)), 0.5 * (-0.5f64).exp2());
    near(selection.share_now(second(160), HERE), 0.5 * (-(15.0 + 28.8) / 30.0f64).exp2());
    selection.on_verified(second(160), &peer(1), HERE, &offer(2), second(15));
    near(selection.share_of_all(second(160)), 0.25);
    // Recomputing for probation does not lower the share of others.
    selection.on_convicted(second(160), HERE);
    selection.on_verified(second(160), &peer(1), HERE, &offer(3), second(300));
    selection.on_verified(second(160), &peer(9), other, &offer(4), second(300));
    near(selection.share_of_all(second(160)), 0.25);
    near(selection.share_of_all(second(10_000)), 0.5);
}

#[test]
fn what_was_chosen_stays_it_when_there_is_no_time_left() {
    let mut selection = known(1.0, 1);
    assert_eq!(selection.choose(NOW, &peer(1), HERE, &offer(1)), Some(Reason::Chance));
    selection.on_verified(NOW, &peer(1), HERE, &offer(2), Duration::from_secs(3000));
    assert_eq!(selection.choose(NOW, &peer(1), HERE, &offer(3)), None);
    assert_eq!(selection.choose(NOW, &peer(1), HERE, &offer(1)), Some(Reason::Chance));
}

#[test]
fn of_a_suspected_address_one_is_tried_now_and_then() {
    let mut selection = known(0.0, 1);
    assert!((0..3).all(|_| selection.may_try(NOW, HERE)), "nothing is against it");
    selection.on_convicted(NOW, HERE);
    assert!(selection.may_try(NOW, HERE) && !selection.may_try(NOW, HERE));
    let again = NOW + SUSPECTED_EVERY;
    assert!(!selection.may_try(again - QUICK, HERE));
    assert!(selection.may_try(again, HERE) && !selection.may_try(again, HERE));
    assert!(selection.may_try(NOW, AddressGroup(2)), "another one");
}

#[test]
fn each_contribution_that_was_right_lowers_the_share_of_a_key() {
    let mut selection = Selection::new(0.0, [1; 32]);
    let third = |part: f64| part * part * part;
    for (n_right, want) in
        [(0, 1.0), (PROBATION - 1, 1.0), (PROBATION, third(0.75)), (5, third(0.5)), (23, third(0.125))]
    {
        selection.restore_passed(peer(1), n_right);
        assert_eq!((selection.newcomer_share(&peer(1)), n_right), (want, n_right));
        assert_eq!(selection.n_left(&peer(1)), PROBATION.saturating_sub(n_right));
    }
    assert_eq!(selection.newcomer_share(&peer(2)), 1.0);
}

#[test]
fn the_draw_of_a_contribution_is_anywhere_between_nothing_and_one() {
    let selection = Selection::new(0.0, [1; 32]);
    let draws: Vec<f64> = (0..200).map(|id| selection.drawn(&peer(1), &offer(id))).collect();
    assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)), "{draws:?}");
    for tenth in 0..10 {
        let part = f64::from(tenth) / 10.0..f64::from(tenth + 1) / 10.0;
        let n = draws.iter().filter(|draw| part.contains(draw)).count();
        assert!((5..45).contains(&n), "{n} of 200 in {part:?}");
    }
    assert_ne!(selection.drawn(&peer(2), &offer(0)), draws[0], "of another key");
    assert_ne!(Selection::new(0.0, [2; 32]).drawn(&peer(1), &offer(0)), draws[0], "nobody can predict it");
}

#[test]
fn time_that_was_spent_is_forgotten_at_its_rate() {
    let second = Duration::from_secs;
    let mut spent = Spent::default();
    spent.add(second(100), 0.5, second(10));
    assert_eq!([100, 110, 119, 120, 500].map(|at| spent.now(second(at), 0.5)), [10.0, 5.0, 0.5, 0.0, 0.0]);
    assert_eq!(spent.now(second(90), 0.5), 10.0, "a clock that went back");
    spent.add(second(104), 0.5, second(2));
    assert_eq!(spent.now(second(104), 0.5), 10.0);
}

#[test]
fn what_takes_longer_than_a_minute_delays_what_comes_after_it_by_no_more() {
    assert_eq!(rest_after(QUICK), QUICK);
    assert_eq!(rest_after(REST_MAX + QUICK), REST_MAX);
}

#[test]
fn of_what_was_verified_the_newest_are_known_when_they_are_offered_again() {
    let mut selection = Selection::new(0.0, [1; 32]);
    for id in 0..=NAMES_MAX as u64 {
        remember(&mut selection.right, (peer(1), id, offer(id).transfer.sha256));
    }
    let was_verified = |id| selection.was_verified(&peer(1), &offer(id));
    assert_eq!([0, 1, NAMES_MAX as u64].map(was_verified), [false, true, true]);
    assert!(!selection.was_verified(&peer(2), &offer(1)), "under another key");
    let other = Offer { contribution_id: 2, ..offer(1) };
    assert!(!selection.was_verified(&peer(1), &other), "under another number");
}
