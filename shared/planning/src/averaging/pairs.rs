//! The fastest averaging with pair limits, as a linear program over `r` and `R` (DeDLOC §3.2).
//!
//! The rows are those of the parent module and `[i in C] r_j + [j in V] r_i <= t_ij`, which is
//! `a_ij + g_ij <= t_ij` of (2). It never runs where there are no such limits.

use super::{Averaging, RoleAssignment, normalized, number};
use crate::PlanError;
use crate::linear::{LinearProgram, Variable};

pub(super) fn fastest(round: &RoleAssignment<'_>) -> Result<Option<Averaging>, PlanError> {
    let problem = round.problem;
    let unit = problem.unit_bytes_per_s();
    let mut program = LinearProgram::default();
    let rate = program.variable(1.0);
    let shares: Vec<Option<Variable>> =
        round.aggregates.iter().map(|&is_in| is_in.then(|| program.variable(0.0))).collect();
    let sum = shares.iter().flatten().map(|&share| (share, 1.0));
    program.equal(sum.chain([(rate, -1.0)]), 0.0);
    for (i, peer) in problem.peers.iter().enumerate() {
        let (contributes, receives) = (number(round.contributes[i]), number(peer.receives));
        let up = round.n_receivers - receives - contributes;
        let down = round.n_contributors - contributes - receives;
        for (of_rate, of_share, limit) in
            [(contributes, up, peer.upload_bytes_per_s), (receives, down, peer.download_bytes_per_s)]
        {
            let share = shares[i].map(|share| (share, of_share));
            program.at_most([(rate, of_rate)].into_iter().chain(share), (limit / unit).min(1.0));
        }
    }
    for (&(from, to), limit) in &problem.pair_limits {
        let sent = shares[to].map(|share| (share, number(round.contributes[from])));
        let returned = shares[from].map(|share| (share, number(problem.peers[to].receives)));
        program.at_most(sent.into_iter().chain(returned), (limit / unit).min(1.0));
    }
    let optimum = program.solve("program of pair limits")?;
    let shares: Vec<f64> =
        shares.iter().map(|share| share.map_or(0.0, |share| optimum.value(share))).collect();
    if shares.iter().sum::<f64>() < 1e-7 {
        return Ok(None);
    }
    let fractions = normalized(&shares);
    // What the division really gives: the solver's own value is off by its tolerance.
    let bytes_per_s = round.rate_of(&fractions);
    Ok(Some(Averaging { bytes_per_s, fractions, iterations: optimum.iterations }))
}
