//! Prints the size of the linear programs and the time of a plan, on one core; fails where a plan takes too long.
//!
//! `cargo run --release -p barnraise-planning --example plan_speed`

use std::process::ExitCode;
use std::time::Instant;

use barnraise_planning::{
    MeasuredPeer, PairLimit, PeerId, PlanError, PlanningProblem, RoundWorkload, Updates,
};

/// Limits: number of peers, and milliseconds for their plan.
const WANTED: [(usize, f64); 2] = [(24, 50.0), (128, 2000.0)];

fn main() -> Result<ExitCode, PlanError> {
    let mut is_reached = true;
    println!(
        "{:>5} {:>9} {:>9} {:>9} {:>6} {:>11} {:>11} {:>11}",
        "peers", "links", "variables", "rows", "steps", "program ms", "plan ms", "of bound"
    );
    for n_peers in [4, 8, 16, 24, 32, 64, 128] {
        let mut longest_ms = 0.0_f64;
        for scarce in [Scarce::Compute, Scarce::Both, Scarce::Network, Scarce::Pairs] {
            longest_ms = longest_ms.max(report(n_peers, scarce)?);
        }
        if let Some((_, wanted_ms)) = WANTED.iter().find(|(n, _)| *n == n_peers) {
            println!("{n_peers} peers: at most {longest_ms:.0} ms, {wanted_ms:.0} ms are wanted");
            is_reached &= longest_ms < *wanted_ms;
        }
    }
    Ok(if is_reached { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Scarce {
    Compute,
    /// Averaging takes a little longer than computing: the hardest to solve.
    Both,
    Network,
    Pairs,
}

/// Prints one line; returns the milliseconds of the plan.
fn report(n_peers: usize, scarce: Scarce) -> Result<f64, PlanError> {
    let mut problem = fleet(n_peers, scarce, if scarce == Scarce::Compute { 1 << 20 } else { 4096 })?;
    if scarce == Scarce::Both {
        let computing = problem.peers().iter().filter(|peer| peer.samples_per_s > 0.0);
        let contributors: Vec<PeerId> = computing.map(|peer| peer.id.clone()).collect();
        let all_peers = problem.plan_for(&contributors)?;
        let batch = 0.95 * 4096.0 * all_peers.averaging_s / all_peers.compute_s;
        problem = fleet(n_peers, scarce, batch as u64)?;
    }
    let (relaxation, program_ms) = timed(|| problem.relaxation())?;
    let (plan, plan_ms) = timed(|| problem.plan())?;
    println!(
        "{n_peers:>5} {:>9} {:>9} {:>9} {:>6} {program_ms:>11.2} {plan_ms:>11.2} {:>10.1}%",
        format!("{scarce:?}"),
        relaxation.n_variables,
        relaxation.n_constraints,
        relaxation.iterations,
        100.0 * plan.steps_per_s / relaxation.steps_per_s,
    );
    Ok(plan_ms)
}

/// The result of `run`, and its milliseconds on one core.
fn timed<T>(run: impl FnOnce() -> Result<T, PlanError>) -> Result<(T, f64), PlanError> {
    let (begin, begin_ms) = (Instant::now(), processor_ms());
    let result = run()?;
    let wall_ms = begin.elapsed().as_secs_f64() * 1e3;
    let spent = processor_ms().zip(begin_ms).map(|(end, begin)| end - begin);
    Ok((result, spent.unwrap_or(wall_ms)))
}

/// Processor time of this thread (Linux only), which other load does not lengthen.
fn processor_ms() -> Option<f64> {
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    schedule.split_whitespace().next()?.parse::<f64>().ok().map(|nanoseconds| nanoseconds / 1e6)
}

/// Home connections and servers, one in five behind a firewall, one in seven without an accelerator.
fn fleet(n_peers: usize, scarce: Scarce, target_batch_size: u64) -> Result<PlanningProblem, PlanError> {
    let mut state = 1_u64;
    let mut draw = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let peer = |i: usize| {
        let download = 2e6 * 60_f64.powf(draw());
        MeasuredPeer {
            id: PeerId((i as u64).to_be_bytes().to_vec()),
            samples_per_s: if i % 7 == 6 { 0.0 } else { 5.0 + 200.0 * draw() },
            download_bytes_per_s: download,
            upload_bytes_per_s: download * (0.1 + 0.9 * draw()),
            is_reachable: i % 5 != 4,
            receives: i % 7 != 6,
        }
    };
    let peers: Vec<MeasuredPeer> = (0..n_peers).map(peer).collect();
    let limits: Vec<PairLimit> = (0..if scarce == Scarce::Pairs { n_peers } else { 0 })
        .map(|i| PairLimit {
            from: peers[i].id.clone(),
            to: peers[(i * 7 + 1) % n_peers].id.clone(),
            bytes_per_s: 5e5,
        })
        .collect();
    let work = RoundWorkload {
        vector_bytes: 36_000_000,
        n_values: 18_000_000,
        target_batch_size,
        part_values_min: 1024,
        updates: Updates::Delayed,
    };
    PlanningProblem::new(peers, &limits, work)
}
