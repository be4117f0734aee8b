//! The strategies that a plan recovers according to the paper (DeDLOC §3.2), its Table 1, and properties of all
//! plans.

use barnraise_planning::{
    AveragingPlan, Bottleneck, MeasuredPeer, PairLimit, PeerId, PlanError, PlanningProblem, RoundWorkload,
    Updates,
};
use proptest::prelude::*;

use crate::support::{helper, id, is_close, peer, problem, work};

const MEGA: f64 = 1e6;

fn fractions(plan: &AveragingPlan) -> Vec<f64> {
    plan.roles.iter().map(|role| role.fraction).collect()
}

fn ids(peers: &[MeasuredPeer]) -> Vec<PeerId> {
    peers.iter().map(|peer| peer.id.clone()).collect()
}

#[test]
fn equal_peers_do_butterfly_all_reduce() {
    for n in [2, 3, 8, 24] {
        // So much computing that each is needed.
        let peers: Vec<MeasuredPeer> = (0..n).map(|i| peer(i, 10.0, 20.0 * MEGA)).collect();
        let plan = problem(peers, &[], work(10 * n as u64)).plan().unwrap();
        assert!(plan.roles.iter().all(|role| role.contributes), "{plan:?}");
        assert!(fractions(&plan).iter().all(|&it| is_close(it, 1.0 / n as f64, 1e-6)), "{plan:?}");
        // Each sends and returns (n - 1)/n of the vector, both at once.
        let wanted = 20.0 * MEGA * n as f64 / (2.0 * (n as f64 - 1.0));
        assert!(is_close(plan.averaging_bytes_per_s, wanted, 1e-6), "{plan:?}");
        assert_eq!(plan.limits, [Bottleneck::Compute]);
        assert_eq!(plan.bound_steps_per_s.unwrap(), plan.steps_per_s);
    }
}

#[test]
fn one_peer_with_great_bandwidth_and_little_computing_becomes_the_parameter_server() {
    let mut peers: Vec<MeasuredPeer> = (0..8).map(|i| peer(i, 10.0, MEGA)).collect();
    peers.push(peer(8, 0.0, 100.0 * MEGA));
    let plan = problem(peers, &[], work(80)).plan().unwrap();
    assert!(plan.roles[..8].iter().all(|role| role.contributes && role.fraction < 1e-6), "{plan:?}");
    assert!(!plan.roles[8].contributes && plan.roles[8].fraction > 1.0 - 1e-5, "{plan:?}");
    // Workers send and get the whole vector once: nothing could be faster.
    assert!(is_close(plan.averaging_bytes_per_s, MEGA, 1e-6), "{plan:?}");
}

#[test]
fn peers_without_accelerators_are_summation_services_as_in_byte_ps() {
    let n = 6;
    let workers = (0..n).map(|i| peer(i, 10.0, MEGA));
    for n_helpers in [1, 3, 6] {
        let helpers = (0..n_helpers).map(|i| helper(n + i, MEGA));
        let peers: Vec<MeasuredPeer> = workers.clone().chain(helpers).collect();
        let plan = problem(peers, &[], work(60)).plan().unwrap();
        // A helper sums 1/n of its bandwidth and returns it n times over; what is left, the workers do.
        let (n, k) = (n as f64, n_helpers as f64);
        let rate = (k / n + n / (n - 2.0)) / (1.0 + n / (n - 2.0)) * MEGA;
        assert!(is_close(plan.averaging_bytes_per_s, rate, 1e-6), "{plan:?}");
        for role in &plan.roles {
            let share = if role.contributes { (MEGA - rate) / (n - 2.0) } else { MEGA / n };
            assert!((role.fraction - share / rate).abs() < 1e-6, "{role:?} of {plan:?}");
            assert_eq!(role.contributes, role.receives);
        }
    }
}

/// Table 1: ratios of averaging times, which need no model size. Setups A and B are uniform, C joins them,
/// D adds a server to B.
#[test]
fn the_ratios_of_table_1_are_the_papers() {
    let (a, b) = (|i| peer(i, 1.0, 1000.0 / 8.0 * MEGA), |i| peer(i, 1.0, 200.0 / 8.0 * MEGA));
    let setups: [(&str, Vec<MeasuredPeer>, f64); 4] = [
        ("A", (0..8).map(a).collect(), 1.19 / 1.20),
        ("B", (0..16).map(b).collect(), 5.3 / 5.3),
        ("C", (0..8).map(a).chain((8..24).map(b)).collect(), 5.69 / 2.96),
        ("D", (0..16).map(b).chain([peer(16, 1.0, 2500.0 / 8.0 * MEGA)]).collect(), 5.3 / 3.18),
    ];
    for (name, peers, wanted) in setups {
        let contributors = ids(&peers);
        let problem = problem(peers, &[], work(1));
        let all_reduce = problem.equal_parts().unwrap();
        let ours = problem.plan_for(&contributors).unwrap();
        let ratio = all_reduce.averaging_s / ours.averaging_s;
        assert!(is_close(ratio, wanted, 0.015), "{name}: {ratio} times as fast, in the paper {wanted}");
    }
}

#[test]
fn where_the_network_is_scarce_slow_uplinks_stop_contributing() {
    // Two tabs whose uplink would delay all peers, and more computing than can be averaged.
    let mut peers: Vec<MeasuredPeer> = (0..4).map(|i| peer(i, 1000.0, 10.0 * MEGA)).collect();
    for i in 4..6 {
        peers.push(MeasuredPeer {
            upload_bytes_per_s: 0.05 * MEGA,
            is_reachable: false,
            ..peer(i, 1000.0, 10.0 * MEGA)
        });
    }
    let plan = problem(peers, &[], work(100)).plan().unwrap();
    for role in &plan.roles[4..] {
        assert!(!role.contributes && role.receives && role.part.is_empty(), "{plan:?}");
    }
    assert!(plan.averaging_bytes_per_s > 1.0 * MEGA, "{plan:?}");
    assert!(plan.limits.iter().all(|limit| *limit != Bottleneck::Compute), "{plan:?}");
}

#[test]
fn a_slow_path_between_two_peers_moves_the_parts_elsewhere() {
    let peers: Vec<MeasuredPeer> = (0..4).map(|i| peer(i, 10.0, 10.0 * MEGA)).collect();
    let limit = PairLimit { from: id(0), to: id(1), bytes_per_s: 0.4 * MEGA };
    let plan = problem(peers.clone(), std::slice::from_ref(&limit), work(40)).plan_for(&ids(&peers)).unwrap();
    let over = plan.sends_bytes_per_s(0, 1) + plan.returns_bytes_per_s(0, 1);
    assert!(is_close(over, 0.4 * MEGA, 1e-3), "{over} of {plan:?}");
    assert!(
        plan.limits.contains(&Bottleneck::Pair { from: id(0), to: id(1) })
            || plan.limits == [Bottleneck::Compute]
    );
    assert!(plan.roles[2].fraction > 5.0 * plan.roles[1].fraction, "{plan:?}");
}

#[test]
fn no_peer_reduces_a_part_below_the_minimum() {
    // 40 slow peers beside three fast ones: without a minimum, each of them would get a little.
    let mut peers: Vec<MeasuredPeer> = (0..3).map(|i| peer(i, 1.0, 50.0 * MEGA)).collect();
    peers.extend((3..43).map(|i| peer(i, 1.0, 6.0 * MEGA)));
    let vector = RoundWorkload { n_values: 100_000, ..work(43) };
    let without = problem(peers.clone(), &[], vector.clone()).plan_for(&ids(&peers)).unwrap();
    assert!(without.roles.iter().any(|role| (1..5000).contains(&role.part.end.abs_diff(role.part.start))));
    let with = RoundWorkload { part_values_min: 5000, ..vector };
    let with = problem(peers.clone(), &[], with).plan_for(&ids(&peers)).unwrap();
    for role in &with.roles {
        let size = role.part.end - role.part.start;
        assert!(size == 0 || size >= 5000, "{role:?}");
    }
    assert_eq!(with.roles.last().unwrap().part.end, 100_000);
    // With a minimum above the vector's length, one peer does it all.
    let whole = RoundWorkload { n_values: 100, part_values_min: 1000, ..work(43) };
    let whole = problem(peers, &[], whole).plan().unwrap();
    assert_eq!(whole.roles.iter().filter(|role| !role.part.is_empty()).count(), 1);
}

#[test]
fn updates_at_once_count_both_times() {
    let peers: Vec<MeasuredPeer> = (0..4).map(|i| peer(i, 10.0, MEGA)).collect();
    let delayed = problem(peers.clone(), &[], work(60)).plan().unwrap();
    let at_once = RoundWorkload { updates: Updates::Immediate, ..work(60) };
    let at_once = problem(peers, &[], at_once).plan().unwrap();
    assert!(is_close(1.0 / at_once.steps_per_s, at_once.compute_s + at_once.averaging_s, 1e-9));
    assert!(is_close(1.0 / delayed.steps_per_s, delayed.compute_s.max(delayed.averaging_s), 1e-9));
}

#[test]
fn one_peer_alone_sends_nothing() {
    let alone = problem(vec![peer(0, 10.0, MEGA)], &[], work(20)).plan().unwrap();
    assert_eq!((alone.averaging_s, alone.steps_per_s), (0.0, 0.5));
    assert_eq!(alone.roles[0].part, 0..1 << 40);
    assert_eq!((alone.roles[0].upload_used, alone.sends_bytes_per_s(0, 0)), (0.0, 0.0));
}

#[test]
fn equal_parts_are_for_those_who_can_be_reached() {
    let mut peers: Vec<MeasuredPeer> = (0..5).map(|i| peer(i, 10.0, MEGA)).collect();
    peers[2].is_reachable = false;
    let plan = problem(peers, &[], work(50)).equal_parts().unwrap();
    assert!(plan.roles.iter().all(|role| role.contributes));
    assert_eq!(fractions(&plan), [0.25, 0.25, 0.0, 0.25, 0.25]);
    assert_eq!(plan.bound_steps_per_s, None);
}

#[test]
fn a_plan_is_kept_until_another_is_worth_it_or_a_peer_is_gone() {
    let mut peers: Vec<MeasuredPeer> = (0..6).map(|i| peer(i, 10.0, MEGA)).collect();
    let first = problem(peers.clone(), &[], work(60)).plan().unwrap();
    assert_eq!(problem(peers.clone(), &[], work(60)).replan(Some(&first), 0.1).unwrap(), None);
    // Five per cent faster everywhere is the same plan, only faster.
    for peer in &mut peers {
        peer.upload_bytes_per_s *= 1.05;
    }
    assert_eq!(problem(peers.clone(), &[], work(60)).replan(Some(&first), 0.1).unwrap(), None);
    // A server joins.
    peers.push(helper(6, 100.0 * MEGA));
    let second = problem(peers.clone(), &[], work(60)).replan(Some(&first), 0.1).unwrap().unwrap();
    assert!(second.roles[6].fraction > 0.5, "{second:?}");
    // And leaves: its plan has to be replaced, though the new plan is slower.
    peers.pop();
    let left = problem(peers, &[], work(60));
    assert_eq!(left.steps_per_s_of(&second), None);
    let third = left.replan(Some(&second), 0.1).unwrap().unwrap();
    assert!(third.steps_per_s < second.steps_per_s);
}

#[test]
fn errors_name_the_peer_and_the_number() {
    let two = || vec![peer(0, 1.0, MEGA), peer(7, 1.0, MEGA)];
    let refused = |peers, limits: &[PairLimit]| PlanningProblem::new(peers, limits, work(1)).unwrap_err();
    assert_eq!(refused(vec![], &[]), PlanError::NoPeers);
    let many = (0..513).map(|i| peer(i, 1.0, MEGA)).collect();
    assert_eq!(refused(many, &[]), PlanError::TooManyPeers { got: 513, max: 512 });
    assert_eq!(refused([two(), two()].concat(), &[]), PlanError::ListedTwice { peer: id(0) });
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        for field in 0..3 {
            let mut peers = two();
            let peer = &mut peers[1];
            *[&mut peer.samples_per_s, &mut peer.download_bytes_per_s, &mut peer.upload_bytes_per_s][field] =
                bad;
            let error = refused(peers, &[]);
            assert!(matches!(&error, PlanError::BadMeasurement { peer, .. } if *peer == id(7)), "{error}");
            assert!(error.to_string().contains("00000007"), "{error}");
        }
    }
    let limit = |to| PairLimit { from: id(0), to: id(to), bytes_per_s: 1.0 };
    assert_eq!(refused(two(), &[limit(3)]), PlanError::Unknown { peer: id(3) });
    let hidden = two().into_iter().map(|peer| MeasuredPeer { is_reachable: false, ..peer }).collect();
    assert_eq!(refused(hidden, &[]), PlanError::NobodyReachable { n_peers: 2 });
    let not_receiving = two().into_iter().map(|peer| MeasuredPeer { receives: false, ..peer }).collect();
    assert_eq!(refused(not_receiving, &[]), PlanError::NobodyReceives { n_peers: 2 });
    let idle = vec![peer(0, 0.0, MEGA), peer(1, 0.0, MEGA)];
    let idle = problem(idle, &[], work(1));
    assert_eq!(idle.plan().unwrap_err(), PlanError::NobodyContributes { n_peers: 2 });
    assert_eq!(idle.equal_parts().unwrap_err(), PlanError::NobodyContributes { n_peers: 2 });
    // Two receivers without a downlink: the one that does not contribute never gets the average.
    let mut stuck = two();
    stuck.iter_mut().for_each(|peer| peer.download_bytes_per_s = 0.0);
    let stuck = problem(stuck, &[], work(1)).plan().unwrap_err();
    assert_eq!(stuck, PlanError::NobodyContributes { n_peers: 2 });
    let empty = RoundWorkload { n_values: 0, ..work(1) };
    assert!(matches!(PlanningProblem::new(two(), &[], empty), Err(PlanError::EmptyWork { .. })));
}

/// The claims of one peer must not spoil the numbers of the program for the others.
#[test]
fn absurd_claims_of_one_peer_change_little_for_the_others() {
    let honest: Vec<MeasuredPeer> = (0..6).map(|i| peer(i, 10.0, (1.0 + i as f64) * MEGA)).collect();
    let before = problem(honest.clone(), &[], work(20)).plan().unwrap();
    for (speed, bytes_per_s) in [(0.0, 1e300), (1e300, 1e300), (1e300, 1.0), (1e-300, 1e15), (0.0, 0.0)] {
        let mut peers = honest.clone();
        peers.push(MeasuredPeer { samples_per_s: speed, receives: false, ..peer(6, 0.0, bytes_per_s) });
        let plan = problem(peers, &[], work(20)).plan().unwrap();
        assert!(plan.steps_per_s >= before.steps_per_s * (1.0 - 1e-5), "{plan:?}");
        assert!(plan.steps_per_s <= plan.bound_steps_per_s.unwrap() * (1.0 + 1e-5), "{plan:?}");
        assert!(fractions(&plan).iter().all(|it| it.is_finite()));
    }
}

/// Compares the search with all choices beyond [`EXHAUSTIVE_MAX`](barnraise_planning::EXHAUSTIVE_MAX): ten fleets
/// of twelve peers, network and computing scarce by turns, from a fixed seed.
#[test]
fn the_search_comes_close_to_the_best_of_all_choices() {
    let mut state = 7_u64;
    let mut draw = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    for fleet in 0..10 {
        let mut any = |i: usize| {
            let download = MEGA * 30_f64.powf(draw());
            MeasuredPeer {
                samples_per_s: 5.0 + 200.0 * draw(),
                download_bytes_per_s: download,
                upload_bytes_per_s: download * (0.1 + 0.9 * draw()),
                is_reachable: i == 0 || draw() < 0.7,
                receives: i == 0 || draw() < 0.8,
                ..peer(i, 0.0, 0.0)
            }
        };
        let peers: Vec<MeasuredPeer> = (0..12).map(&mut any).collect();
        let fleet = problem(peers.clone(), &[], work([50, 200, 800][fleet % 3]));
        let of_set = |set: usize| {
            let chosen = peers.iter().enumerate().filter(|(i, _)| set & (1 << i) != 0);
            let contributors: Vec<PeerId> = chosen.map(|(_, peer)| peer.id.clone()).collect();
            fleet.plan_for(&contributors).map_or(0.0, |plan| plan.steps_per_s)
        };
        let best = (1..1_usize << 12).map(of_set).fold(0.0, f64::max);
        let got = fleet.plan().unwrap();
        assert!(got.steps_per_s >= 0.99 * best, "{got:?}, the best is {best}");
    }
}

fn any_peers(n: std::ops::Range<usize>) -> impl Strategy<Value = Vec<MeasuredPeer>> {
    let one = (0.0..400.0_f64, 0.2..20.0_f64, 0.2..20.0_f64, 0..5_u8, 0..4_u8);
    prop::collection::vec(one, n).prop_map(|drawn| {
        let peer =
            |(i, (speed, down, up, computes, reachable)): (usize, (f64, f64, f64, u8, u8))| MeasuredPeer {
                samples_per_s: if computes > 0 || i == 0 { speed + 1.0 } else { 0.0 },
                download_bytes_per_s: down * MEGA,
                upload_bytes_per_s: up * MEGA,
                is_reachable: reachable > 0 || i == 0,
                ..peer(i, 0.0, 0.0)
            };
        drawn.into_iter().enumerate().map(peer).collect()
    })
}

/// Bytes per second up and down of each peer, by the flows `a` and `g` one by one.
fn flows(plan: &AveragingPlan, i: usize) -> (f64, f64) {
    let flow = |from, to| plan.sends_bytes_per_s(from, to) + plan.returns_bytes_per_s(from, to);
    let others = || 0..plan.roles.len();
    (others().map(|j| flow(i, j)).sum(), others().map(|j| flow(j, i)).sum())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_plan_is_consistent(
        peers in any_peers(1..16),
        slow in prop::collection::vec((0..16_usize, 0..16_usize, 0.1..5.0_f64), 0..4),
        n_values in 1..2_000_000_u64,
    ) {
        let slow = slow.into_iter().filter(|&(from, to, _)| from < peers.len() && to < peers.len());
        let limit = |(from, to, mega)| PairLimit { from: id(from), to: id(to), bytes_per_s: mega * MEGA };
        let limits: Vec<PairLimit> = slow.map(limit).collect();
        let vector = RoundWorkload { n_values, part_values_min: 100, ..work(100) };
        let plan = problem(peers.clone(), &limits, vector).plan().unwrap();
        prop_assert!(is_close(fractions(&plan).iter().sum(), 1.0, 1e-12));
        let mut end = 0;
        for (i, (role, peer)) in plan.roles.iter().zip(&peers).enumerate() {
            prop_assert_eq!(&role.peer, &peer.id);
            prop_assert_eq!(role.part.start, end);
            end = role.part.end;
            prop_assert!(role.fraction >= 0.0);
            prop_assert!(peer.is_reachable || role.part.is_empty(), "a client averages: {:?}", role);
            prop_assert!(peer.samples_per_s > 0.0 || !role.contributes);
            let size = role.part.end - role.part.start;
            prop_assert!(size == 0 || size >= 100.min(n_values), "{:?}", role);
            let (up, down) = flows(&plan, i);
            prop_assert!(up <= peer.upload_bytes_per_s * (1.0 + 1e-6), "{up} up, {peer:?}");
            prop_assert!(down <= peer.download_bytes_per_s * (1.0 + 1e-6), "{down} down, {peer:?}");
        }
        prop_assert_eq!(end, n_values);
        for limit in limits.iter().filter(|limit| limit.from != limit.to) {
            let place = |id: &PeerId| peers.iter().position(|peer| peer.id == *id).unwrap();
            let (from, to) = (place(&limit.from), place(&limit.to));
            let flow = plan.sends_bytes_per_s(from, to) + plan.returns_bytes_per_s(from, to);
            prop_assert!(flow <= limit.bytes_per_s * (1.0 + 1e-6), "{flow}, {limit:?}");
        }
    }

    /// `a_ij` and `g_ij` satisfy the paper's program (2), and every receiver gets the rate of the plan.
    #[test]
    fn flows_satisfy_the_papers_program(peers in any_peers(2..10)) {
        let plan = problem(peers, &[], work(100)).plan().unwrap();
        let n = plan.roles.len();
        for j in 0..n {
            let kept = plan.averaging_bytes_per_s * plan.roles[j].fraction;
            let got: f64 = (0..n).map(|i| plan.returns_bytes_per_s(i, j)).sum::<f64>() + kept;
            prop_assert!(is_close(got, plan.averaging_bytes_per_s, 1e-9));
            for i in (0..n).filter(|&i| i != j) {
                for k in (0..n).filter(|&k| k != i && plan.roles[k].contributes) {
                    let sent = plan.sends_bytes_per_s(k, i);
                    prop_assert!(plan.returns_bytes_per_s(i, j) <= sent * (1.0 + 1e-12));
                }
            }
        }
    }

    /// Neither the order in which peers are listed nor a second run changes a bit.
    #[test]
    fn the_same_peers_make_the_same_plan(peers in any_peers(2..14), seed in any::<u64>()) {
        let plan = problem(peers.clone(), &[], work(100)).plan().unwrap();
        let mut other = peers;
        other.sort_by_key(|peer| u64::from(peer.id.0[3]).wrapping_add(1).wrapping_mul(seed | 1) >> 7);
        prop_assert_eq!(problem(other, &[], work(100)).plan().unwrap(), plan);
    }

    /// Noise far below the resolution of measurements changes nothing, in particular among peers that are alike.
    #[test]
    fn noise_moves_nothing(
        peers in any_peers(1..4),
        copies in 1..7_usize,
        noise in prop::collection::vec(-1.0..1.0_f64, 54),
    ) {
        let mut peers: Vec<MeasuredPeer> = std::iter::repeat_n(peers, copies).flatten().collect();
        for (i, peer) in peers.iter_mut().enumerate() {
            peer.id = id(i);
        }
        let plan = problem(peers.clone(), &[], work(100)).plan().unwrap();
        for (peer, noise) in peers.iter_mut().zip(noise.chunks(3)) {
            peer.samples_per_s *= 1.0 + 1e-9 * noise[0];
            peer.upload_bytes_per_s *= 1.0 + 1e-9 * noise[1];
            peer.download_bytes_per_s *= 1.0 + 1e-9 * noise[2];
        }
        let noisy = problem(peers, &[], work(100)).plan().unwrap();
        for (one, other) in plan.roles.iter().zip(&noisy.roles) {
            prop_assert_eq!(one.contributes, other.contributes);
            prop_assert!((one.fraction - other.fraction).abs() < 1e-6, "{one:?}, {other:?}");
        }
        prop_assert!(is_close(plan.steps_per_s, noisy.steps_per_s, 1e-8));
    }

    /// One more reducer never slows a plan down.
    #[test]
    fn an_idle_helper_never_slows_a_plan_down(peers in any_peers(1..9), bandwidth in 0.1..50.0_f64) {
        let before = problem(peers.clone(), &[], work(100)).plan().unwrap();
        let mut more = peers;
        more.push(helper(99, bandwidth * MEGA));
        let after = problem(more, &[], work(100)).plan().unwrap();
        prop_assert!(after.steps_per_s >= before.steps_per_s * (1.0 - 1e-5), "{before:?}, {after:?}");
    }
}
