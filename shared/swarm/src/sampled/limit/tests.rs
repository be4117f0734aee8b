#![allow(clippy::unwrap_used)]

use super::*;

const S: Duration = Duration::from_secs(1);

#[test]
fn a_limit_grows_with_time_and_time_that_was_not_used_is_no_credit() {
    let mut limit = RoundLimit::default();
    limit.on_time(9 * S, Some(4 * S), 4 * S);
    assert_eq!(limit.round(), None);
    limit.begin(10 * S, 5);
    limit.begin(10 * S, 90);
    assert_eq!(limit.round(), Some(5), "it begins once");
    // Four rounds in the time of one. What is left of the time counts later.
    let reached: Vec<u64> = [11, 12, 13]
        .map(|at| {
            limit.on_time(at * S + S / 2, Some(4 * S), 4 * S);
            limit.round().unwrap()
        })
        .to_vec();
    assert_eq!(reached, [6, 7, 8]);
    limit.on_time(14 * S, Some(4 * S), 4 * S);
    assert_eq!(limit.round(), Some(9));
    // Further than the time allows is possible within a leap, and moves nothing.
    limit.on_active(14 * S, 12);
    assert_eq!(limit.round(), Some(9));
    limit.on_active(14 * S, 7);
    assert_eq!(limit.round(), Some(7));
    limit.on_time(15 * S, Some(4 * S), 4 * S);
    assert_eq!(limit.round(), Some(8));
    limit.raise(15 * S, 3);
    assert_eq!(limit.round(), Some(8));
    limit.raise(15 * S, u64::MAX);
    limit.on_time(90 * S, Some(4 * S), 4 * S);
    assert_eq!(limit.round(), Some(ROUND_MAX));
}

/// Half of the time of the next one has passed.
#[test]
fn who_tells_of_the_round_that_is_known_takes_no_time_from_the_next() {
    let tells: [fn(&mut RoundLimit, Moment); 2] =
        [|limit, now| limit.raise(now, 5), |limit, now| limit.on_active(now, 5)];
    for tell in tells {
        let mut limit = RoundLimit::default();
        limit.begin(10 * S, 5);
        tell(&mut limit, 10 * S + S / 2);
        limit.on_time(11 * S, Some(4 * S), 4 * S);
        assert_eq!(limit.round(), Some(6));
    }
}

/// The mean is what others may have moved; the estimate is not.
#[test]
fn rounds_that_were_fast_or_slow_have_bounds() {
    let after_a_minute = |mean| {
        let mut limit = RoundLimit::default();
        limit.begin(Moment::ZERO, 0);
        limit.on_time(60 * S, mean, 4 * S);
        limit.round().unwrap()
    };
    assert_eq!(after_a_minute(Some(2 * S)), 120);
    assert_eq!(after_a_minute(Some(3600 * S)), 60);
    assert_eq!([Some(Duration::ZERO), None].map(after_a_minute), [15 * 16; 2]);
}

/// After 128 rounds the first 64 are forgotten.
#[test]
fn the_mean_time_is_that_of_the_last_rounds() {
    let mut pace = RoundPace::default();
    let mut after = |now, round| {
        pace.on_active(now, round, 5 * S);
        pace.mean()
    };
    assert_eq!(after(Moment::ZERO, 10), None, "the first");
    assert_eq!(after(4 * S, 12), Some(2 * S));
    assert_eq!(after(5 * S, 9), Some(2 * S), "an earlier one changes nothing");
    // Ten seconds each, and then one.
    assert_eq!(after(630 * S, 73), Some(10 * S));
    assert_eq!(after(640 * S, 74), Some(10 * S));
    assert_eq!(after(704 * S, 138), Some(704 * S / 128));
    assert_eq!(after(705 * S, 139), Some(S));
}

#[test]
fn a_run_that_stood_still_is_not_slow_for_ever() {
    let (mut pace, night) = (RoundPace::default(), 12 * 3600 * S);
    let mut after = |now, round| {
        pace.on_active(now, round, 5 * S);
        pace.mean().unwrap_or_default()
    };
    // Nobody was there to train the first round.
    assert_eq!(after(Moment::ZERO, 1), Duration::ZERO);
    assert_eq!(after(night, 2), 20 * S);
    assert_eq!(after(night + 4 * S, 3), 12 * S);
    for at in 1..10 {
        assert!(after(night + 4 * S + at * 4 * S, 3 + u64::from(at)) < 12 * S, "{at}");
    }
    assert!(after(2 * night, 13) < 10 * S);
    // One that is slow is known after a few rounds.
    let (mut pace, mut now) = (RoundPace::default(), Moment::ZERO);
    for round in 0..20 {
        pace.on_active(now, round, 5 * S);
        now += 200 * S;
    }
    assert!(pace.mean().unwrap() > 150 * S, "{:?}", pace.mean());
}
