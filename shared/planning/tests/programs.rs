//! The interior point method and the search against an independent simplex method and brute force, on small
//! random instances.

use barnraise_planning::{MeasuredPeer, PairLimit, PlanningProblem};
use proptest::prelude::*;

use crate::support::simplex::SimplexProgram;
use crate::support::{self, id, is_close, problem, work};

/// The batch size and the vector's length of [`work`].
const BATCH: u64 = 100;
const VECTOR: f64 = 1e6;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Returns {
    /// All `g_ij` are free, and `M_i` is `max(d_i, u_i)`.
    Free,
    /// One number a reducer, as in eq. (6), with the maximum `M_i`.
    Alike,
}

/// DeDLOC's program (5) as it is printed, with all its `n^3` rows and the transfers within a node. The unit is
/// one megabyte per second.
fn program_five(peers: &[MeasuredPeer], limits: &[PairLimit], returns: Returns) -> f64 {
    let n = peers.len();
    let mega = |bytes_per_s: f64| bytes_per_s / VECTOR;
    let mut program = SimplexProgram::default();
    let steps = program.variable(1.0);
    let c: Vec<usize> = (0..n).map(|_| program.variable(0.0)).collect();
    let mut table = |is_there: &dyn Fn(usize, usize) -> bool| -> Vec<Vec<Option<usize>>> {
        let mut row = |i: usize| (0..n).map(|j| is_there(i, j).then(|| program.variable(0.0))).collect();
        (0..n).map(&mut row).collect()
    };
    let a = table(&|_, reducer| peers[reducer].is_reachable);
    let mut g = table(&|reducer, receiver| {
        peers[reducer].is_reachable && (reducer == receiver || peers[receiver].receives)
    });
    let n_receivers = peers.iter().filter(|peer| peer.receives).count();
    let large = |i: usize| match n_receivers - usize::from(peers[i].receives) {
        n_others @ 1.. if returns == Returns::Alike => mega(peers[i].upload_bytes_per_s) / n_others as f64,
        _ => mega(peers[i].download_bytes_per_s.max(peers[i].upload_bytes_per_s)),
    };
    if returns == Returns::Alike {
        for (i, row) in g.iter_mut().enumerate() {
            let own = row[i];
            row.iter_mut().flatten().for_each(|it| *it = own.unwrap());
        }
    }

    let mut computed = vec![(steps, 1.0)];
    computed.extend(peers.iter().zip(&c).map(|(peer, &c)| (c, -peer.samples_per_s / BATCH as f64)));
    program.at_most(&computed, 0.0);
    for i in (0..n).filter(|&i| peers[i].receives) {
        let mut got = vec![(steps, 1.0)];
        got.extend((0..n).filter_map(|j| g[j][i]).map(|it| (it, -1.0)));
        program.at_most(&got, 0.0);
    }
    for i in (0..n).filter(|&i| peers[i].is_reachable) {
        let large = large(i);
        for returned in g[i].iter().flatten() {
            for k in 0..n {
                program.at_most(&[(*returned, 1.0), (a[k][i].unwrap(), -1.0), (c[k], large)], large);
            }
        }
    }
    for i in 0..n {
        let others = || (0..n).filter(move |&j| j != i);
        let down: Vec<_> =
            others().flat_map(|j| a[j][i].into_iter().chain(g[j][i])).map(|it| (it, 1.0)).collect();
        program.at_most(&down, mega(peers[i].download_bytes_per_s));
        let up: Vec<_> =
            others().flat_map(|j| a[i][j].into_iter().chain(g[i][j])).map(|it| (it, 1.0)).collect();
        program.at_most(&up, mega(peers[i].upload_bytes_per_s));
        program.at_most(&[(c[i], 1.0)], 1.0);
    }
    for limit in limits {
        let (from, to) = (position(peers, limit, true), position(peers, limit, false));
        let both: Vec<_> = a[from][to].into_iter().chain(g[from][to]).map(|it| (it, 1.0)).collect();
        program.at_most(&both, mega(limit.bytes_per_s));
    }
    program.maximum()
}

/// The fastest averaging of given contributors, in vectors per second: program (2) with fixed `c` and, by eq. (6),
/// one value for all `g_ij` of a reducer.
fn averages_per_s(peers: &[MeasuredPeer], limits: &[PairLimit], contributes: &[bool]) -> f64 {
    let n = peers.len();
    let mut program = SimplexProgram::default();
    let g: Vec<Option<usize>> =
        peers.iter().map(|it| it.is_reachable.then(|| program.variable(1.0))).collect();
    let mut a = vec![vec![None; n]; n];
    for k in (0..n).filter(|&k| contributes[k]) {
        for i in (0..n).filter(|&i| i != k && peers[i].is_reachable) {
            let sent = program.variable(0.0);
            program.at_most(&[(g[i].unwrap(), 1.0), (sent, -1.0)], 0.0);
            a[k][i] = Some(sent);
        }
    }
    let returned = |from: usize, to: usize| g[from].filter(|_| peers[to].receives);
    let mut bound = |pairs: Vec<(usize, usize)>, limit: f64| {
        let terms = pairs.iter().flat_map(|&(from, to)| a[from][to].into_iter().chain(returned(from, to)));
        let terms: Vec<_> = terms.map(|it| (it, 1.0)).collect();
        program.at_most(&terms, limit / VECTOR);
    };
    for (i, peer) in peers.iter().enumerate() {
        let others = || (0..n).filter(move |&j| j != i);
        bound(others().map(|j| (i, j)).collect(), peer.upload_bytes_per_s);
        bound(others().map(|j| (j, i)).collect(), peer.download_bytes_per_s);
    }
    for limit in limits {
        bound(vec![(position(peers, limit, true), position(peers, limit, false))], limit.bytes_per_s);
    }
    program.maximum()
}

fn position(peers: &[MeasuredPeer], limit: &PairLimit, is_from: bool) -> usize {
    let wanted = if is_from { &limit.from } else { &limit.to };
    peers.iter().position(|peer| peer.id == *wanted).unwrap()
}

fn computed_per_s(peers: &[MeasuredPeer], contributes: &[bool]) -> f64 {
    let samples =
        peers.iter().zip(contributes).map(|(peer, &is_in)| if is_in { peer.samples_per_s } else { 0.0 });
    samples.sum::<f64>() / BATCH as f64
}

/// The best of all sets of contributors.
fn best_by_brute_force(peers: &[MeasuredPeer]) -> f64 {
    let sets = 1..1_usize << peers.len();
    let of_set = |set: usize| {
        let contributes: Vec<bool> =
            (0..peers.len()).map(|i| set & (1 << i) != 0 && peers[i].samples_per_s > 0.0).collect();
        if contributes.iter().any(|&is_in| is_in) {
            averages_per_s(peers, &[], &contributes).min(computed_per_s(peers, &contributes))
        } else {
            0.0
        }
    };
    sets.map(of_set).fold(0.0, f64::max)
}

/// Some compute nothing, some cannot be reached, some do not receive; but the first does all of it.
fn any_peers(n: std::ops::Range<usize>) -> impl Strategy<Value = Vec<MeasuredPeer>> {
    let one = (0.0..400.0_f64, 0.2..20.0_f64, 0.2..20.0_f64, 0..5_u8, 0..4_u8, 0..4_u8);
    prop::collection::vec(one, n).prop_map(|drawn| {
        let peer =
            |(i, (speed, down, up, computes, reachable, receives)): (usize, (f64, f64, f64, u8, u8, u8))| {
                MeasuredPeer {
                    id: id(i),
                    samples_per_s: if computes > 0 || i == 0 { speed + 1.0 } else { 0.0 },
                    download_bytes_per_s: down * VECTOR,
                    upload_bytes_per_s: up * VECTOR,
                    is_reachable: reachable > 0 || i == 0,
                    receives: receives > 0 || i == 0,
                }
            };
        drawn.into_iter().enumerate().map(peer).collect()
    })
}

fn any_limits() -> impl Strategy<Value = Vec<(usize, usize, f64)>> {
    prop::collection::vec((0..4_usize, 0..4_usize, 0.1..5.0_f64), 0..4)
}

/// One limit a pair, between different peers that exist.
fn limits_of(drawn: &[(usize, usize, f64)], n_peers: usize) -> Vec<PairLimit> {
    let mut limits: Vec<PairLimit> = Vec::new();
    for &(from, to, mega) in drawn {
        let is_new = limits.iter().all(|limit| (&limit.from, &limit.to) != (&id(from), &id(to)));
        if from != to && from < n_peers && to < n_peers && is_new {
            limits.push(PairLimit { from: id(from), to: id(to), bytes_per_s: mega * VECTOR });
        }
    }
    limits
}

fn given(peers: &[MeasuredPeer], limits: &[PairLimit]) -> PlanningProblem {
    problem(peers.to_vec(), limits, work(BATCH))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The smaller program is (5) with (6), and promises no more than (5) as it is printed.
    #[test]
    fn the_relaxation_is_the_papers_program(peers in any_peers(2..5), drawn in any_limits()) {
        let limits = limits_of(&drawn, peers.len());
        // A reducer that alone contributes and receives needs no network, which (5) does not say.
        prop_assume!(peers.iter().filter(|peer| peer.receives).count() > 1);
        let got = given(&peers, &limits).relaxation().unwrap();
        let wanted = program_five(&peers, &limits, Returns::Alike);
        prop_assert!(is_close(got.steps_per_s, wanted, 1e-5), "{got:?}, by simplex {wanted}");
        let printed = program_five(&peers, &limits, Returns::Free);
        prop_assert!(got.steps_per_s <= printed * (1.0 + 1e-5), "{got:?}, as printed {printed}");
    }

    /// For given contributors the division is optimal, with pair limits and without.
    #[test]
    fn a_division_is_as_fast_as_can_be(peers in any_peers(2..6), drawn in any_limits(), set in 1..32_usize) {
        let limits = limits_of(&drawn, peers.len());
        let contributes: Vec<bool> =
            (0..peers.len()).map(|i| set & (1 << i) != 0 && peers[i].samples_per_s > 0.0).collect();
        let contributors: Vec<_> =
            (0..peers.len()).filter(|&i| contributes[i]).map(|i| peers[i].id.clone()).collect();
        let n_receivers = peers.iter().filter(|peer| peer.receives).count();
        let is_network_needed = contributors.len() > 1 || n_receivers > 1;
        prop_assume!(!contributors.is_empty() && is_network_needed);
        let got = given(&peers, &limits).plan_for(&contributors).unwrap();
        let wanted = averages_per_s(&peers, &limits, &contributes);
        prop_assert!(is_close(1.0 / got.averaging_s, wanted, 1e-5), "{got:?}, by simplex {wanted}");
    }

    /// The choice of contributors is the best of all.
    #[test]
    fn the_plan_is_what_brute_force_finds(peers in any_peers(2..6)) {
        prop_assume!(peers.iter().filter(|peer| peer.receives).count() > 1);
        let plan = given(&peers, &[]).plan().unwrap();
        let wanted = best_by_brute_force(&peers);
        prop_assert!(is_close(plan.steps_per_s, wanted, 1e-5), "{plan:?}, by brute force {wanted}");
    }

    /// With and without pair limits: no plan promises more than the relaxation, or less than all peers as contributors.
    #[test]
    fn a_plan_lies_between_its_bounds(peers in any_peers(1..9), drawn in any_limits()) {
        let limits = limits_of(&drawn, peers.len());
        let problem = given(&peers, &limits);
        let plan = problem.plan().unwrap();
        prop_assert!(plan.steps_per_s <= plan.bound_steps_per_s.unwrap() * (1.0 + 1e-5));
        let all_peers: Vec<_> =
            peers.iter().filter(|peer| peer.samples_per_s > 0.0).map(|peer| peer.id.clone()).collect();
        if let Ok(of_all) = problem.plan_for(&all_peers) {
            prop_assert!(plan.steps_per_s >= of_all.steps_per_s * (1.0 - 1e-5));
        }
    }
}

/// Its size allows a program of 24 peers to be solved in milliseconds, and of 128 in about a second;
/// `examples/plan_speed.rs` measures the time.
#[test]
fn the_program_grows_with_the_square_of_the_peers() {
    // One reducer is fast and computing is to spare, so that there is something to solve.
    let peers =
        |n: usize| (0..n).map(|i| support::peer(i, 1e4, (1.0 + i as f64) * VECTOR)).collect::<Vec<_>>();
    for n in [8, 16, 24] {
        let relaxation = given(&peers(n), &[]).relaxation().unwrap();
        assert_eq!(relaxation.n_variables, 1 + 2 * n + n * (n - 1));
        assert_eq!(relaxation.n_constraints, 2 + 3 * n + n * (n - 1));
        assert!((5..60).contains(&relaxation.iterations), "{relaxation:?}");
    }
}
