//! Prints how large the programs of roles are and how long a plan takes, on one core.
//!
//! `cargo run --release -p barnraise-planning --example plan_speed`

use std::time::Instant;

use barnraise_planning::{PairLimit, Peer, PeerId, PlanError, Situation, Updates, Work};

fn main() -> Result<(), PlanError> {
    println!(
        "{:>5} {:>9} {:>9} {:>9} {:>6} {:>11} {:>11} {:>11}",
        "peers", "links", "variables", "rows", "steps", "program ms", "plan ms", "of bound"
    );
    for n_peers in [4, 8, 16, 24, 32, 64, 128] {
        for scarce in [Scarce::Compute, Scarce::Network, Scarce::Pairs] {
            report(n_peers, scarce)?;
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Scarce {
    Compute,
    Network,
    Pairs,
}

fn report(n_peers: usize, scarce: Scarce) -> Result<(), PlanError> {
    let situation = fleet(n_peers, scarce)?;
    let begin = Instant::now();
    let relaxation = situation.relaxation()?;
    let program_ms = begin.elapsed().as_secs_f64() * 1e3;
    let begin = Instant::now();
    let plan = situation.plan()?;
    let plan_ms = begin.elapsed().as_secs_f64() * 1e3;
    println!(
        "{n_peers:>5} {:>9} {:>9} {:>9} {:>6} {program_ms:>11.2} {plan_ms:>11.2} {:>10.1}%",
        format!("{scarce:?}"),
        relaxation.n_variables,
        relaxation.n_constraints,
        relaxation.iterations,
        100.0 * plan.steps_per_s / relaxation.steps_per_s,
    );
    Ok(())
}

/// Home connections and servers, one in five behind a firewall, one in seven without an accelerator.
fn fleet(n_peers: usize, scarce: Scarce) -> Result<Situation, PlanError> {
    let mut state = 1_u64;
    let mut draw = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let peer = |i: usize| {
        let download = 2e6 * 60_f64.powf(draw());
        Peer {
            id: PeerId((i as u64).to_be_bytes().to_vec()),
            samples_per_s: if i % 7 == 6 { 0.0 } else { 5.0 + 200.0 * draw() },
            download_bytes_per_s: download,
            upload_bytes_per_s: download * (0.1 + 0.9 * draw()),
            is_reachable: i % 5 != 4,
            receives: i % 7 != 6,
        }
    };
    let peers: Vec<Peer> = (0..n_peers).map(peer).collect();
    let limits: Vec<PairLimit> = (0..if scarce == Scarce::Pairs { n_peers } else { 0 })
        .map(|i| PairLimit {
            from: peers[i].id.clone(),
            to: peers[(i * 7 + 1) % n_peers].id.clone(),
            bytes_per_s: 5e5,
        })
        .collect();
    let work = Work {
        vector_bytes: 36_000_000,
        n_values: 18_000_000,
        target_batch_size: if scarce == Scarce::Compute { 1 << 20 } else { 4096 },
        part_values_min: 1024,
        updates: Updates::Delayed,
    };
    Situation::new(peers, &limits, work)
}
