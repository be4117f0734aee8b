//! How a host hands its places over.

use super::*;

fn handover(n_places: u16, limit: Duration) -> Handover {
    Handover::new(secs(0), key(1), (0..n_places).map(|index| place(&[index])), limit)
}

/// All that it wants now.
fn actions(handover: &mut Handover, now: Moment) -> Vec<HandoverAction> {
    std::iter::from_fn(|| handover.poll_action(now)).collect()
}

fn given_back(indices: impl IntoIterator<Item = u16>) -> Vec<HandoverAction> {
    indices.into_iter().map(|index| HandoverAction::GiveBack(place(&[index]))).collect()
}

#[test]
fn places_are_handed_over_a_few_at_a_time_and_the_next_ones_when_those_are_taken() {
    let mut drain = handover(6, secs(60));
    assert_eq!(actions(&mut drain, secs(0)), given_back(0..4), "no more at a time");
    assert_eq!((drain.n_left(), drain.is_over(secs(0))), (6, false));
    drain.on_given_back(secs(2), &place(&[0]));
    drain.on_given_back(secs(2), &place(&[1]));
    assert_eq!((actions(&mut drain, secs(2)), drain.next_deadline(secs(2))), (vec![], Some(secs(3))));
    let asked = vec![HandoverAction::Ask(vec![place(&[0]), place(&[1])])];
    assert_eq!(actions(&mut drain, secs(3)), asked);
    assert_eq!(actions(&mut drain, secs(9)), [], "one question at a time");
    // The backbone may not have heard of it yet.
    drain.on_holders(secs(9), &[(place(&[0]), Some(key(1))), (place(&[1]), None)]);
    assert_eq!(actions(&mut drain, secs(9)), []);
    assert_eq!(actions(&mut drain, secs(10)), asked);
    drain.on_failed(secs(10));
    assert_eq!(actions(&mut drain, secs(11)), asked);
    drain.on_holders(secs(11), &[(place(&[0]), Some(key(2))), (place(&[1]), Some(key(3)))]);
    assert_eq!((drain.n_taken(), drain.n_left()), (2, 4));
    assert_eq!(actions(&mut drain, secs(11)), given_back(4..6));
    (2..6).for_each(|index| drain.on_given_back(secs(12), &place(&[index])));
    let taken: Vec<_> = (2..6).map(|index| (place(&[index]), Some(key(2)))).collect();
    // What it did not ask for changes nothing.
    drain.on_holders(secs(13), &[taken.clone(), vec![(place(&[7]), Some(key(2)))]].concat());
    assert!(drain.is_over(secs(13)));
    assert_eq!((drain.n_taken(), drain.n_left()), (6, 0));
}

#[test]
fn what_nobody_takes_stays_when_the_time_is_over() {
    let mut drain = handover(6, secs(60));
    actions(&mut drain, secs(0));
    drain.on_lost(secs(0), &place(&[5]));
    (0..3).for_each(|index| drain.on_given_back(secs(1), &place(&[index])));
    assert_eq!([59, 60, 61].map(|at| drain.time_left(secs(at))), [secs(1), secs(0), secs(0)]);
    assert_eq!(drain.next_deadline(secs(60)), None);
    assert_eq!(actions(&mut drain, secs(60)), []);
    assert!(!drain.is_over(secs(60)), "the state of one is on its way");
    drain.on_given_back(secs(61), &place(&[3]));
    assert!(drain.is_over(secs(61)));
    assert_eq!((drain.n_taken(), drain.n_left()), (0, 6));
    let vacant: Vec<ExpertPlace> = drain.vacant().collect();
    assert_eq!(vacant, [0, 1, 2, 3, 5].map(|index| place(&[index])));
}

#[test]
fn a_place_whose_lease_is_lost_is_not_handed_over_before_another_host_has_it() {
    let mut drain = handover(6, secs(60));
    actions(&mut drain, secs(0));
    (0..4).for_each(|index| drain.on_given_back(secs(1), &place(&[index])));
    [4, 5, 9].iter().for_each(|index| drain.on_lost(secs(30), &place(&[*index])));
    assert_eq!((drain.n_taken(), drain.n_left(), drain.is_over(secs(30))), (0, 6, false));
    let asked: Vec<ExpertPlace> = (0..6).map(|index| place(&[index])).collect();
    assert_eq!(actions(&mut drain, secs(31)), [HandoverAction::Ask(asked.clone())]);
    let taken: Vec<_> = asked.into_iter().map(|place| (place, Some(key(2)))).collect();
    drain.on_holders(secs(32), &taken);
    assert_eq!((drain.n_taken(), drain.n_left(), drain.is_over(secs(32))), (6, 0, true));
}

#[test]
fn a_place_that_is_given_back_for_a_host_is_its_own_for_a_while() {
    let mut host = Host::new(2, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), vec![lease(1, 1), lease(2, 1)]);
    host.holder.on_heir(place(&[1]), key(3));
    [1, 2].iter().for_each(|index| host.holder.on_given_up(secs(1), &place(&[*index])));
    let released = |index, to| LeaseAsk::Release { place: place(&[index]), copy: 0, term: 1, to };
    let asks = vec![released(1, Some(key(3))), released(2, None)];
    assert_eq!(host.asks(secs(1)), Some((asks, 0)));
}

#[test]
fn a_host_that_hands_over_takes_nothing_and_one_that_stays_claims_what_nobody_took() {
    let mut host = Host::new(2, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), vec![lease(1, 1), lease(2, 1)]);
    host.holder.on_leaving();
    host.holder.on_given_up(secs(1), &place(&[1]));
    let released = LeaseAsk::Release { place: place(&[1]), copy: 0, term: 1, to: None };
    assert_eq!(host.asks(secs(1)), Some((vec![released], 0)));
    host.holder.on_answer(secs(1), vec![LeaseVerdict::Released], Vec::new());
    assert_eq!(host.asks(secs(8)), None, "it has room, and looks for nothing");
    // What it still holds it renews.
    let renewal = LeaseAsk::Renew { lease: lease(2, 1), load: ExpertLoad::default() };
    assert_eq!(host.asks(secs(10)), Some((vec![renewal], 0)));
    host.holder.on_answer(secs(10), vec![LeaseVerdict::Granted(lease(2, 1))], Vec::new());
    host.holder.on_staying(secs(11), [place(&[1]), place(&[2])]);
    assert_eq!(host.asks(secs(11)), Some((vec![LeaseAsk::Claim(place(&[1]))], 0)));
}
