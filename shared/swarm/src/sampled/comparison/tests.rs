#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::*;

const S: Duration = Duration::from_secs(1);
/// Offers wait for four seconds, and fewer than most are enough after forty.
const TIMES: ComparisonTimes = ComparisonTimes {
    wait: Duration::from_secs(4),
    few: Duration::from_secs(40),
    patience: Duration::from_secs(20),
};
const SEED: u64 = 7;

fn peer(at: u8) -> PublicKey {
    PublicKey([at; 32])
}

fn model(value: f32) -> SampledModel {
    Arc::new([value, 1.0])
}

fn go_on(comparison: &mut Comparison, now: Moment) -> Turns {
    comparison.go_on(now, &TIMES, || SEED, |seed| Some(ModelSketch::of(&model(0.0), seed)))
}

/// These senders wait, of `n_live` that are numbered from 1.
fn waiting(now: Moment, round: u64, senders: &[u8], n_live: u8) -> Comparison {
    let mut comparison = Comparison::default();
    offer(&mut comparison, now, round, senders);
    assert_eq!((comparison.ask_live(), comparison.ask_live()), (Some(round), None));
    comparison.on_live(round, (1..=n_live).map(peer).collect());
    comparison
}

/// They offer averages of a round.
fn offer(comparison: &mut Comparison, now: Moment, round: u64, senders: &[u8]) {
    for at in senders {
        assert_eq!(comparison.wait(now, peer(*at), round, &TIMES), []);
    }
}

/// Each tells the sketch of its value for round 3. Returns the turns that follow, by sender.
fn told(comparison: &mut Comparison, now: Moment, values: &[(u8, f32)]) -> Turns {
    for (at, value) in values {
        let sketch = ModelSketch::of(&model(*value), SEED);
        assert_eq!(comparison.on_sketch(peer(*at), 3, sketch), None);
    }
    let mut turns = go_on(comparison, now);
    turns.sort_unstable_by_key(|(from, ..)| *from);
    turns
}

fn turn(at: u8, round: u64, turn: OfferTurn) -> (PublicKey, u64, OfferTurn) {
    (peer(at), round, turn)
}

const BUSY: OfferTurn = OfferTurn::Busy;
const DECLINED: OfferTurn = OfferTurn::Declined;
const PULL: OfferTurn = OfferTurn::Pull;

#[test]
fn the_one_that_is_nearest_to_most_is_pulled_and_the_others_are_busy() {
    let mut comparison = waiting(S, 3, &[1, 2, 3, 4, 5], 5);
    let asked = go_on(&mut comparison, S);
    assert_eq!(asked, [1, 2, 3, 4, 5].map(|at| turn(at, 3, OfferTurn::Compare { seed: SEED })));
    assert!(!comparison.is_open_to(S, &peer(6), 3, 4 * S), "the seed is known to some");
    assert_eq!(comparison.wait(S, peer(6), 3, &TIMES), [turn(6, 3, BUSY)]);
    // Two agree, and three are nearer to each other than to them.
    let turns = told(&mut comparison, S, &[(1, 90.0), (2, 5.0), (3, 5.5), (4, 90.0), (5, 6.2)]);
    assert_eq!(turns, [1, 2, 3, 4, 5].map(|at| turn(at, 3, if at == 3 { PULL } else { BUSY })));
    assert_eq!(comparison.wait(S, peer(1), 3, &TIMES), [turn(1, 3, BUSY)], "it was on its way before that");
    assert!(!comparison.is_open_to(2 * S, &peer(1), 3, 4 * S));
    assert!(comparison.is_open_to(5 * S, &peer(1), 3, 4 * S), "it does not come");
    assert_eq!(comparison.is_chosen((S, 20 * S), peer(3), 3, &model(5.5)), Some(true));
    assert_eq!(comparison.is_chosen((S, 20 * S), peer(2), 3, &model(5.0)), None);
}

/// Others may be any number.
#[test]
fn those_that_are_live_and_first_in_the_order_of_the_round_decide() {
    let mut comparison = waiting(S, 3, &[1, 2, 3, 7, 8, 9], 3);
    go_on(&mut comparison, S);
    let values = [(1, 5.0), (2, 5.5), (3, 90.0), (7, 90.0), (8, 90.0), (9, 90.0)];
    let turns = told(&mut comparison, S, &values);
    let pulled: Vec<_> = turns.iter().filter(|(.., turn)| *turn == PULL).map(|(from, ..)| *from).collect();
    assert!(pulled == [peer(1)] || pulled == [peer(2)], "{pulled:?}");
    // Nor are they enough, however many.
    let mut comparison = waiting(S, 3, &[1, 7, 8, 9], 3);
    assert_eq!(go_on(&mut comparison, 4 * S), []);
}

/// Two that agree have no distance from each other, and one between the other two is the nearest to most.
#[test]
fn two_of_five_that_lie_do_not_win_where_one_honest_one_is_there() {
    for lies in [[90.0, 90.0], [50.0, 90.0]] {
        let mut comparison = waiting(S, 3, &[1, 2, 3], 5);
        assert_eq!(go_on(&mut comparison, 3 * S).len(), 3);
        let turns = told(&mut comparison, 3 * S, &[(1, lies[0]), (2, lies[1]), (3, 5.0)]);
        assert!(turns.contains(&turn(3, 3, PULL)), "it is the nearest to what is known: {turns:?}");
    }
}

#[test]
fn most_of_the_aggregators_are_enough_after_a_moment_and_fewer_after_some_rounds_time() {
    let mut comparison = waiting(S, 3, &[1, 2], 3);
    assert_eq!(comparison.deadline(&TIMES), Some(3 * S));
    assert_eq!(go_on(&mut comparison, 2 * S), []);
    assert_eq!(go_on(&mut comparison, 3 * S).len(), 2);
    // One of the two is silent: it is not most of them that has told.
    assert_eq!(told(&mut comparison, 4 * S, &[(2, 5.0)]), []);
    assert_eq!(go_on(&mut comparison, 5 * S), [turn(2, 3, BUSY)]);
    let late = ModelSketch::of(&model(5.0), SEED);
    assert_eq!(comparison.on_sketch(peer(1), 3, late), Some(BUSY));

    let mut comparison = waiting(S, 3, &[1], 3);
    assert_eq!(go_on(&mut comparison, 5 * S), [turn(1, 3, BUSY)], "it is to offer it again");
    offer(&mut comparison, 41 * S, 3, &[1]);
    assert_eq!(go_on(&mut comparison, 41 * S), [turn(1, 3, PULL)]);
    assert_eq!(comparison.dismiss(3), []);
}

#[test]
fn who_is_not_live_is_not_waited_for() {
    let mut comparison = Comparison::default();
    offer(&mut comparison, 50 * S, 4, &[1]);
    assert_eq!(go_on(&mut comparison, 53 * S), [], "they are asked");
    comparison.on_live(4, [peer(1)].into());
    assert_eq!(go_on(&mut comparison, 53 * S), [turn(1, 4, PULL)]);
    // Where nobody answers, the one that offers is taken.
    let mut comparison = waiting(S, 3, &[1], 0);
    assert_eq!(go_on(&mut comparison, 2 * S), []);
    assert_eq!(go_on(&mut comparison, 3 * S), [turn(1, 3, PULL)]);
}

#[test]
fn of_two_the_one_that_is_nearer_to_what_is_known_is_pulled() {
    for (values, want) in [([(1, 90.0), (2, 5.0)], 2), ([(1, 5.0), (2, 90.0)], 1)] {
        let mut comparison = waiting(S, 3, &[1, 2], 3);
        go_on(&mut comparison, 3 * S);
        let turns = told(&mut comparison, 3 * S, &values);
        assert!(turns.contains(&turn(want, 3, PULL)), "{turns:?}");
    }
}

#[test]
fn who_sends_another_model_than_that_of_its_sketch_is_believed_no_more() {
    let mut comparison = waiting(S, 3, &[1, 2, 3], 3);
    go_on(&mut comparison, S);
    let turns = told(&mut comparison, S, &[(1, 4.0), (2, 5.0), (3, 5.5)]);
    assert!(turns.contains(&turn(2, 3, PULL)));
    // Not even where the next round has begun meanwhile.
    offer(&mut comparison, S, 4, &[3]);
    assert_eq!(comparison.is_chosen((S, 20 * S), peer(2), 3, &model(90.0)), Some(false));
    comparison.end(peer(2), 3);
    assert!(!comparison.is_open_to(S, &peer(2), 4, S) && comparison.is_open_to(S, &peer(1), 4, S));
}

/// One that is ahead keeps out none of those that many are in.
#[test]
fn rounds_wait_beside_each_other_and_those_that_are_over_are_dismissed() {
    let mut comparison = waiting(S, 3, &[1, 2], 3);
    offer(&mut comparison, S, 20, &[9]);
    offer(&mut comparison, 2 * S, 3, &[3]);
    assert_eq!(go_on(&mut comparison, 2 * S).len(), 3, "of round 3");
    let turns = told(&mut comparison, 3 * S, &[(1, 4.0), (2, 5.0), (3, 5.5)]);
    assert!(turns.contains(&turn(2, 3, PULL)), "{turns:?}");
    // A later one of which there are enough does not wait for it, an earlier one does.
    for round in [2, 4] {
        offer(&mut comparison, 3 * S, round, &[1, 2, 3]);
        comparison.on_live(round, [peer(1), peer(2), peer(3)].into());
    }
    assert!(go_on(&mut comparison, 3 * S).iter().all(|(_, round, _)| *round == 4));
    assert_eq!(comparison.dismiss(3), [1, 2, 3].map(|at| turn(at, 2, DECLINED)));
    assert_eq!(go_on(&mut comparison, 5 * S).last(), Some(&turn(9, 20, BUSY)));
}

/// Nobody fills the places with rounds that are not there.
#[test]
fn of_many_rounds_those_of_which_nobody_waits_go_and_then_the_latest() {
    let mut comparison = waiting(S, 3, &[1], 3);
    for round in 30..60 {
        offer(&mut comparison, S, round, &[9]);
        comparison.end(peer(9), round);
    }
    assert_eq!(comparison.rounds.len(), ROUNDS_MAX);
    for round in 4..4 + ROUNDS_MAX as u8 - 1 {
        offer(&mut comparison, S, round.into(), &[round]);
    }
    offer(&mut comparison, S, 5, &[99]);
    assert_eq!(comparison.wait(S, peer(100), 20, &TIMES), [turn(10, 10, BUSY)]);
    assert_eq!(comparison.wait(S, peer(101), 11, &TIMES), [turn(100, 20, BUSY)]);
    assert_eq!(comparison.rounds.len(), ROUNDS_MAX);
}

#[test]
fn where_the_chosen_one_does_not_come_the_others_are_compared_anew() {
    for is_lost in [true, false] {
        let mut comparison = waiting(S, 3, &[1, 2, 3], 3);
        go_on(&mut comparison, S);
        told(&mut comparison, S, &[(1, 4.0), (2, 5.0), (3, 5.5)]);
        assert!(!comparison.is_open_to(S, &peer(1), 3, 20 * S));
        if is_lost {
            comparison.end(peer(2), 3);
        }
        let at = if is_lost { S } else { 21 * S };
        offer(&mut comparison, at, 3, &[1, 3]);
        assert_eq!(go_on(&mut comparison, at + 2 * S).len(), 2);
    }
}

/// Offers of these values are compared. Returns whose is pulled.
fn pulled(comparison: &mut Comparison, at: Moment, values: &[(u8, f32)]) -> Option<PublicKey> {
    offer(comparison, at, 3, &values.iter().map(|(from, _)| *from).collect::<Vec<_>>());
    go_on(comparison, at);
    let turns = told(comparison, at, values);
    turns.into_iter().find(|(.., turn)| *turn == PULL).map(|(from, ..)| from)
}

/// It told the sketch of an honest average, and costs the time in which it was waited for once.
#[test]
fn who_was_chosen_and_did_not_send_in_time_comes_after_those_that_are_as_near() {
    let values = [(1, 4.0), (2, 5.0), (3, 5.5)];
    for is_lost in [true, false] {
        let mut comparison = waiting(S, 3, &[1, 2, 3], 3);
        assert_eq!(pulled(&mut comparison, S, &values), Some(peer(2)));
        if is_lost {
            comparison.end(peer(2), 3);
        }
        assert_eq!(pulled(&mut comparison, 22 * S, &values), Some(peer(3)));
        assert_eq!(comparison.is_chosen((23 * S, 20 * S), peer(3), 3, &model(5.5)), Some(true));
        assert_eq!(comparison.late, [peer(2)].into());
        // Of those that are all late it is the nearest, and comes in time.
        comparison.end(peer(2), 3);
        comparison.late.extend([peer(1), peer(3)]);
        assert_eq!(pulled(&mut comparison, 24 * S, &values), Some(peer(2)));
        assert_eq!(comparison.is_chosen((25 * S, 20 * S), peer(2), 3, &model(5.0)), Some(true));
        assert_eq!(comparison.late, [peer(1), peer(3)].into());
    }
}

#[test]
fn no_average_that_is_far_comes_before_those_of_late_ones() {
    let mut comparison = waiting(S, 3, &[1, 2, 3], 3);
    comparison.late = [peer(1), peer(2)].into();
    let chosen = pulled(&mut comparison, S, &[(1, 4.0), (2, 5.0), (3, 90.0)]);
    assert!(chosen == Some(peer(1)) || chosen == Some(peer(2)), "{chosen:?}");
}

/// A trainer that has another model does not wait for it.
#[test]
fn who_is_not_waited_for_any_more_is_not_late() {
    let mut comparison = waiting(S, 3, &[1, 2, 3], 3);
    assert_eq!(pulled(&mut comparison, S, &[(1, 4.0), (2, 5.0), (3, 5.5)]), Some(peer(2)));
    assert_eq!(comparison.dismiss(3), []);
    comparison.end(peer(2), 3);
    assert_eq!(comparison.late, BTreeSet::new());
}
