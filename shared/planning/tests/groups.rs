//! Numerical tests of groups: averages of vectors, and group sizes against random failures.

use barnraise_planning::PeerId;
use barnraise_planning::groups::size::{best_group_size, expected_iterations, group_size_up_to};
use barnraise_planning::groups::{Grid, groups};
use proptest::prelude::*;

use crate::support::id;

fn average(values: &mut [f64], groups: &[Vec<usize>]) {
    for group in groups {
        let mean = group.iter().map(|&cell| values[cell]).sum::<f64>() / group.len() as f64;
        group.iter().for_each(|&cell| values[cell] = mean);
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64
}

#[test]
fn sides_are_no_longer_than_they_must_be() {
    for (n_peers, group_size, sides) in [
        (8, 2, vec![2, 2, 2]),
        (8, 8, vec![8]),
        (9, 8, vec![3, 3]),
        (6, 3, vec![3, 2]),
        (24, 5, vec![5, 5]),
        // Full ones are longer and better.
        (8, 4, vec![4, 2]),
        (18, 6, vec![6, 3]),
        (18, 5, vec![5, 4]),
        (64, 20, vec![8, 8]),
        (1000, 10, vec![10, 10, 10]),
        (7, 7, vec![7]),
        (1, 4, vec![]),
        (0, 4, vec![]),
        (5, 0, vec![2, 2, 2]),
    ] {
        assert_eq!(
            Grid::new(n_peers, group_size).sides(),
            sides,
            "{n_peers} peers in groups of {group_size}"
        );
    }
}

/// The paper's claim (§3.2): the exact average in log_m n steps.
#[test]
fn full_grids_have_the_exact_mean_after_as_many_rounds_as_they_have_dimensions() {
    for (n_peers, group_size, n_rounds) in
        [(16, 2, 4), (27, 3, 3), (64, 8, 2), (125, 5, 3), (12, 12, 1), (6, 3, 2)]
    {
        let grid = Grid::new(n_peers, group_size);
        assert!(grid.is_full());
        assert_eq!(grid.n_rounds(), n_rounds);
        let mut values: Vec<f64> = (0..n_peers).map(|i| ((i * 7919) % 1009) as f64).collect();
        let wanted = mean(&values);
        for round in 0..n_rounds {
            assert!(variance(&values) > 1e-9, "round {round} was not needed");
            average(&mut values, &grid.groups(round));
        }
        for value in values {
            assert!((value - wanted).abs() < 1e-9 * wanted, "{value}, wanted {wanted}");
        }
    }
}

/// Bit sets of the peers whose values each peer has after all rounds.
fn reached(grid: &Grid, n_peers: usize) -> Vec<u64> {
    let mut reached: Vec<u64> = (0..n_peers).map(|cell| 1 << cell).collect();
    for round in 0..grid.n_rounds() {
        for group in grid.groups(round) {
            let all = group.iter().fold(0, |all, &cell| all | reached[cell]);
            group.iter().for_each(|&cell| reached[cell] = all);
        }
    }
    reached
}

/// Averaging in groups relies on it: a peer with a partial mean follows one with the mean of all, and there is one.
#[test]
fn the_first_peer_has_the_mean_of_all_in_any_grid() {
    for n_peers in 2..=64_usize {
        for group_size in 2..=n_peers {
            let grid = Grid::new(n_peers, group_size);
            let all = u64::MAX >> (64 - n_peers);
            let reached = reached(&grid, n_peers);
            assert_eq!(reached[0], all, "{n_peers} peers in groups of {group_size}");
            let n_whole = reached.iter().filter(|&&of| of == all).count();
            assert!(n_whole == n_peers || !grid.is_full(), "{n_whole} of {n_peers} in {grid:?}");
        }
    }
}

#[test]
fn full_grids_are_taken_where_they_cost_little() {
    let up_to = |n_peers, rate, size_max| group_size_up_to(n_peers, rate, size_max).unwrap().size;
    assert_eq!((up_to(4, 0.01, 256), up_to(4, 0.01, 2), up_to(1, 0.01, 9), up_to(4, 0.01, 0)), (4, 2, 1, 2));
    for n_peers in 2..=256 {
        for rate in [0.0, 0.01, 0.1, 0.5] {
            for size_max in [2, 5, 16, 256] {
                let chosen = group_size_up_to(n_peers, rate, size_max).unwrap();
                assert!((2..=size_max).contains(&chosen.size), "{chosen:?} of {n_peers} up to {size_max}");
                assert_eq!(Grid::new(n_peers, chosen.size).n_rounds(), chosen.n_rounds);
                let best = best_group_size(n_peers, rate).unwrap();
                if best.size <= size_max {
                    let most = 1.25 * best.iterations * (1.0 + 1e-9);
                    assert!(chosen.iterations <= most, "{chosen:?} for {best:?} of {n_peers}");
                }
            }
        }
    }
    // 5 x 4 has two empty cells; 6 x 3 takes a little longer and has none.
    let rate = (1..60).map(|rate| f64::from(rate) / 100.0).find(|&rate| up_to(18, rate, 18) < 18).unwrap();
    let chosen = up_to(18, rate, 18);
    assert!(Grid::new(18, chosen).is_full(), "groups of {chosen} at a rate of {rate}");
    assert!(group_size_up_to(9, f64::NAN, 9).is_err());
}

/// Sums of weighted vectors and sums of weights, averaged side by side, give the mean weighted by samples.
#[test]
fn weighted_means_are_means_of_products_by_means_of_weights() {
    let samples: Vec<f64> = (0..27).map(|i| f64::from(1 + (i * 5) % 13)).collect();
    let gradients: Vec<f64> = (0..27).map(|i| f64::from((i * 17) % 29) - 14.0).collect();
    let mut products: Vec<f64> =
        samples.iter().zip(&gradients).map(|(weight, value)| weight * value).collect();
    let wanted = products.iter().sum::<f64>() / samples.iter().sum::<f64>();
    let mut weights = samples;
    let grid = Grid::new(27, 3);
    for round in 0..3 {
        average(&mut products, &grid.groups(round));
        average(&mut weights, &grid.groups(round));
    }
    for (product, weight) in products.iter().zip(&weights) {
        assert!((product / weight - wanted).abs() < 1e-9);
    }
}

#[test]
fn few_peers_that_hardly_fail_are_one_group_and_many_that_often_do_are_pairs() {
    // "In all our experiments, the optimal group size was m = n due to a small number of participants and
    // very rare significant network failures" (appendix C), with up to 40 participants.
    for n_peers in [8, 16, 24, 40] {
        assert_eq!(best_group_size(n_peers, 0.001).unwrap().size, n_peers);
    }
    // "Any collaboration with a sufficiently high failure rate will converge to m = 2" (section 3.2).
    for n_peers in [4, 16, 64, 256, 1024] {
        assert_eq!(best_group_size(n_peers, 0.7).unwrap().size, 2, "{n_peers}");
    }
}

#[test]
fn the_best_size_is_the_best_of_all_sizes() {
    for n_peers in [2, 3, 9, 24, 60, 128] {
        for failure_rate in [0.0, 0.001, 0.01, 0.05, 0.1, 0.3, 0.6] {
            let best = best_group_size(n_peers, failure_rate).unwrap();
            let all = (2..=n_peers).map(|size| expected_iterations(n_peers, size, failure_rate).unwrap());
            let least = all.fold(f64::INFINITY, f64::min);
            assert!(best.iterations <= least * (1.0 + 1e-9), "{best:?} of {n_peers}, least {least}");
            let again = expected_iterations(n_peers, best.size, failure_rate).unwrap();
            assert!((again / best.iterations - 1.0).abs() < 1e-9);
        }
    }
}

/// The formula against failures drawn from a printed seed.
#[test]
fn expected_iterations_are_what_drawn_failures_take() {
    let mut state = 20_240_607_u64;
    let mut draw = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    for (n_peers, size, failure_rate) in [(16, 16, 0.05), (16, 4, 0.1), (16, 2, 0.3), (64, 8, 0.05)] {
        let wanted = expected_iterations(n_peers, size, failure_rate).unwrap();
        let n_rounds = Grid::new(n_peers, size).n_rounds();
        let n_drawn = 4000;
        let mut n_iterations = 0;
        for _ in 0..n_drawn * n_rounds {
            let mut waiting = n_peers / size;
            while waiting > 0 {
                n_iterations += 1;
                let fails = (0..waiting).filter(|_| (0..size).filter(|_| draw() < failure_rate).count() > 0);
                waiting = fails.count();
            }
        }
        let got = f64::from(n_iterations) / n_drawn as f64;
        assert!((got / wanted - 1.0).abs() < 0.03, "{got} drawn with seed 20240607, {wanted} expected");
    }
}

proptest! {
    /// Each peer is in one group of a round, no group is larger than asked for, and the order of the peers does not
    /// matter.
    #[test]
    fn groups_divide_the_peers(
        n_peers in 0..200_usize,
        group_size in 2..20_usize,
        seed in any::<u64>(),
        epoch in any::<u64>(),
        round in 0..9_usize,
    ) {
        let peers: Vec<PeerId> = (0..n_peers).map(id).collect();
        let divided = groups(&peers, group_size, seed, epoch, round);
        let mut seen: Vec<PeerId> = divided.concat();
        seen.sort();
        prop_assert_eq!(&seen, &peers);
        prop_assert!(divided.iter().all(|group| group.len() <= group_size && !group.is_empty()));
        let backwards: Vec<PeerId> = peers.iter().rev().cloned().collect();
        prop_assert_eq!(groups(&backwards, group_size, seed, epoch, round), divided);
    }

    /// With empty cells the sum stays, no round spreads values, and each pass over the axes brings them
    /// closer.
    #[test]
    fn ragged_grids_contract(
        n_peers in 2..120_usize,
        group_size in 2..12_usize,
        values in prop::collection::vec(-1.0..1.0_f64, 120),
    ) {
        let mut values = values[..n_peers].to_vec();
        let (wanted, begin) = (mean(&values), variance(&values));
        prop_assume!(begin > 1e-6);
        let grid = Grid::new(n_peers, group_size);
        let mut before = begin;
        for round in 0..grid.n_rounds() * 30 {
            average(&mut values, &grid.groups(round));
            let now = variance(&values);
            prop_assert!(now <= before * (1.0 + 1e-12) + 1e-18);
            before = now;
            if round + 1 == grid.n_rounds() {
                prop_assert!(now < 0.9 * begin, "{now} after one pass, {begin} before");
            }
        }
        prop_assert!((mean(&values) - wanted).abs() < 1e-12);
        prop_assert!(before < 1e-6 * begin, "{before} left of {begin}, {grid:?}");
    }

    /// Peers that fail more often are better off in smaller groups.
    #[test]
    fn groups_shrink_as_failures_grow(n_peers in 2..300_usize, rate in 0.0..0.6_f64, more in 0.0..0.3_f64) {
        let [seldom, often] = [rate, rate + more].map(|rate| best_group_size(n_peers, rate).unwrap());
        prop_assert!(often.size <= seldom.size, "{seldom:?}, {often:?}");
        prop_assert!(often.iterations >= seldom.iterations);
    }
}

/// Neighbours change from epoch to epoch and by seed.
#[test]
fn cells_are_assigned_anew_in_each_epoch() {
    let peers: Vec<PeerId> = (0..64).map(id).collect();
    let first = groups(&peers, 8, 1, 0, 0);
    assert_ne!(first, groups(&peers, 8, 1, 1, 0));
    assert_ne!(first, groups(&peers, 8, 2, 0, 0));
    assert_ne!(first, groups(&peers, 8, 1, 0, 1));
    assert_eq!(first, groups(&peers, 8, 1, 0, 2));
}
