//! The linear program (5) of DeDLOC, appendix B, in a form without its `n^3` rows.
//!
//! Its optimum is an upper bound for any assignment of roles, and its `c` is where the search for one begins.
//! It never is a plan by itself: with `c_k` between 0 and 1, rows (4) let peer `k` send less than it should.
//! The paper then discards the gradient of that peer, though the objective counted its samples. For example, for
//! eight equal peers with spare computing, (5) sets all `c_k` to a fraction and sends nothing.
//!
//! # The smaller program
//!
//! By eq. (6) a peer reduces the fraction that all receivers can get from it, `min_j g_ij`: a higher rate to
//! some of them is of no use. So all `g_ij` are one variable, `r_i`, as in our plans, and the rows of (5) become
//!
//! ```text
//! xi P = sum r_i                                         for every receiver, xi <= sum_j g_ji / P
//! r_i <= a_ki + (1 - c_k) M_i            for all i, k    rows (4), of which n alike fall together
//! sum_j a_ij + (v - [i in V]) r_i <= u_i
//! sum_k a_ki + [i in V] (xi P - r_i) <= d_i
//! a_ij + [j in V] r_i <= t_ij
//! ```
//!
//! with the `v` receivers `V` of `averaging`. The first is an equation without loss: where computing binds, all
//! `r_i` can be made smaller in proportion, which no row forbids.
//!
//! *Omitted without loss.* `a_ii` crosses no network and appears in no sum of (5), so it can be so
//! large that its row never binds. `c_k` of a peer that computes nothing is best at 0: it adds nothing to the
//! first row of (5) and loosens (4).
//!
//! *Roles.* A peer that cannot be dialled (`a_i = 0`, §3.3) has no `a_ki` and no `r_i`.
//!
//! *The large number.* The paper writes `M_i = d_i` and allows any other that does not bind for `c_k = 0`. The
//! smallest gives the best bound and is the easiest to solve. A reducer that returns `r_i` to `v - [i in V]` others has
//! `M_i = u_i / (v - [i in V])`. Where there are no others, it is `max(d_i, u_i)`.
//!
//! *Truncation.* Speeds of links and computers above ten thousand times the fastest averaging
//! are truncated (`PlanningProblem::unit_bytes_per_s`): all plans stay within the program.
//!
//! There remain about `n^2` variables and as many rows, each with at most three entries but for `O(n)`.

use crate::averaging::{RoleAssignment, number};
use crate::linear::{LinearProgram, Variable};
use crate::problem::ENOUGH;
use crate::{MeasuredPeer, PlanError, PlanningProblem};

/// The optimum of (5).
#[derive(Debug, Clone, PartialEq)]
pub struct Relaxation {
    /// `xi`: an upper bound of the steps per second.
    pub steps_per_s: f64,
    /// `c_i`, `[n_peers]`, between 0 and 1, in the order of [`PlanningProblem::peers`].
    pub compute_shares: Vec<f64>,
    /// Variables of the program that was solved; 0 where computing binds and all contributions can be
    /// averaged in that time, which needs no program.
    pub n_variables: usize,
    /// Rows of the program, without `x >= 0`.
    pub n_constraints: usize,
    /// Iterations of the interior point method.
    pub iterations: u32,
}

/// Units of the program: the solver's tolerances suit numbers near 1.
#[derive(Debug, Clone, Copy)]
struct ProgramScale {
    /// Unit of rates: the greatest bandwidth after truncation.
    bytes_per_s: f64,
    /// Estimate of `xi P`, in that unit.
    steps: f64,
}

struct Variables {
    steps: Variable,
    scale: ProgramScale,
    computes: Vec<Option<Variable>>,
    /// `r_i`.
    aggregates: Vec<Option<Variable>>,
    /// `a_ki`, by sender, then reducer.
    sends: Vec<Vec<Option<Variable>>>,
    /// `v`.
    n_receivers: f64,
}

impl PlanningProblem {
    /// Solves the linear program (5).
    ///
    /// # Errors
    /// [`PlanError::NotSolved`] where the interior point method fails.
    pub fn relaxation(&self) -> Result<Relaxation, PlanError> {
        if let Some(steps_per_s) = self.steps_of_everybody()? {
            let computes = |peer: &MeasuredPeer| if peer.samples_per_s > 0.0 { 1.0 } else { 0.0 };
            let compute_shares = self.peers.iter().map(computes).collect();
            return Ok(Relaxation {
                steps_per_s,
                compute_shares,
                n_variables: 0,
                n_constraints: 0,
                iterations: 0,
            });
        }
        let mut program = LinearProgram::default();
        let variables = self.variables(&mut program);
        self.add_objective(&mut program, &variables);
        self.add_reducers(&mut program, &variables);
        self.add_links(&mut program, &variables);
        let (n_variables, n_constraints) = (program.n_variables(), program.n_constraints());
        let optimum = program.solve("linear program of roles")?;
        let bytes_per_s =
            optimum.value(variables.steps) * variables.scale.steps * variables.scale.bytes_per_s;
        let share = |computes: &Option<Variable>| computes.map_or(0.0, |it| optimum.value(it).min(1.0));
        Ok(Relaxation {
            steps_per_s: (bytes_per_s / self.work.vector_bytes as f64).max(self.steps_of_one_alone()),
            compute_shares: variables.computes.iter().map(share).collect(),
            n_variables,
            n_constraints,
            iterations: optimum.iterations,
        })
    }

    /// `sum s_i / B`, the bound by the first row of (5), if averaging keeps up with all
    /// contributions. Then that is the optimum, with all `c_i = 1`, and there is nothing to solve.
    fn steps_of_everybody(&self) -> Result<Option<f64>, PlanError> {
        let contributes: Vec<bool> = self.peers.iter().map(|peer| peer.samples_per_s > 0.0).collect();
        let steps_per_s = self.samples_per_s(&contributes) / self.work.target_batch_size as f64;
        if steps_per_s == 0.0 {
            return Ok(Some(0.0));
        }
        let aggregates: Vec<bool> = self.peers.iter().map(|peer| peer.is_reachable).collect();
        let averaging = RoleAssignment::new(self, &contributes, &aggregates).fastest()?;
        let needed = steps_per_s * self.work.vector_bytes as f64;
        Ok(averaging.is_some_and(|it| it.bytes_per_s >= needed).then_some(steps_per_s))
    }

    fn scale(&self) -> ProgramScale {
        let bytes_per_s = self.unit_bytes_per_s();
        let computed: f64 = self.peers.iter().map(|peer| peer.samples_per_s).sum();
        let needed = computed * self.work.vector_bytes as f64 / self.work.target_batch_size as f64;
        let averaged = self.fastest_receivable_bytes_per_s().min(needed);
        ProgramScale { bytes_per_s, steps: (averaged / bytes_per_s).clamp(1.0 / ENOUGH, 1.0) }
    }

    /// Steps per second of a reducer that is the only contributor and receiver: the only case beyond `M_i`.
    fn steps_of_one_alone(&self) -> f64 {
        let mut receivers = self.peers.iter().filter(|peer| peer.receives);
        match (receivers.next(), receivers.next()) {
            (Some(peer), None) if peer.is_reachable => {
                peer.samples_per_s / self.work.target_batch_size as f64
            }
            _ => 0.0,
        }
    }

    fn variables(&self, program: &mut LinearProgram) -> Variables {
        let peers = &self.peers;
        let steps = program.variable(1.0);
        let mut one_if = |is_there: bool| is_there.then(|| program.variable(0.0));
        let computes = peers.iter().map(|peer| one_if(peer.samples_per_s > 0.0)).collect();
        let aggregates = peers.iter().map(|peer| one_if(peer.is_reachable)).collect();
        let mut to_reducers =
            |sender: usize| (0..peers.len()).map(|i| one_if(i != sender && peers[i].is_reachable)).collect();
        let sends = (0..peers.len()).map(&mut to_reducers).collect();
        let n_receivers = peers.iter().filter(|peer| peer.receives).count() as f64;
        Variables { steps, scale: self.scale(), computes, aggregates, sends, n_receivers }
    }

    /// `xi <= sum s_i c_i / B` and `xi = sum r_i / P`, both times `P` and in units of bandwidth.
    fn add_objective(&self, program: &mut LinearProgram, variables: &Variables) {
        let scale = variables.scale;
        let per_sample = self.work.vector_bytes as f64 / self.work.target_batch_size as f64;
        let steps = [(variables.steps, scale.steps)].into_iter();
        let computed = self.peers.iter().zip(&variables.computes).filter_map(|(peer, it)| {
            it.map(|it| (it, -(peer.samples_per_s * per_sample / scale.bytes_per_s).min(ENOUGH)))
        });
        program.at_most(steps.clone().chain(computed), 0.0);
        program.equal(steps.chain(variables.aggregates.iter().flatten().map(|it| (*it, -1.0))), 0.0);
        for computes in variables.computes.iter().flatten() {
            program.at_most([(*computes, 1.0)], 1.0);
        }
    }

    /// The rows of (4).
    fn add_reducers(&self, program: &mut LinearProgram, variables: &Variables) {
        let unit = variables.scale.bytes_per_s;
        for (reducer, peer) in self.peers.iter().enumerate() {
            let Some(rate) = variables.aggregates[reducer] else { continue };
            let n_others = variables.n_receivers - number(peer.receives);
            let large = if n_others > 0.0 {
                peer.upload_bytes_per_s / n_others
            } else {
                peer.download_bytes_per_s.max(peer.upload_bytes_per_s)
            };
            let large = (large / unit).min(1.0);
            for (sender, row) in variables.sends.iter().enumerate() {
                let Some(sent) = row[reducer] else { continue };
                let computes = variables.computes[sender].map(|it| (it, large));
                program.at_most([(rate, 1.0), (sent, -1.0)].into_iter().chain(computes), large);
            }
        }
    }

    /// Download, upload and pair limits.
    fn add_links(&self, program: &mut LinearProgram, variables: &Variables) {
        let unit = variables.scale.bytes_per_s;
        let limit = |bytes_per_s: f64| (bytes_per_s / unit).min(1.0);
        for (i, peer) in self.peers.iter().enumerate() {
            let (rate, receives) = (variables.aggregates[i], number(peer.receives));
            let sent = variables.sends[i].iter().flatten().map(|&it| (it, 1.0));
            let returned = rate.map(|rate| (rate, variables.n_receivers - receives));
            program.at_most(sent.chain(returned), limit(peer.upload_bytes_per_s));
            let received = variables.sends.iter().filter_map(|row| row[i]).map(|it| (it, 1.0));
            let average = [(variables.steps, receives * variables.scale.steps)];
            let kept = rate.map(|rate| (rate, -receives));
            program.at_most(received.chain(average).chain(kept), limit(peer.download_bytes_per_s));
        }
        for (&(from, to), bytes_per_s) in &self.pair_limits {
            let sent = variables.sends[from][to].map(|it| (it, 1.0));
            let returned = variables.aggregates[from].map(|it| (it, number(self.peers[to].receives)));
            program.at_most(sent.into_iter().chain(returned), limit(*bytes_per_s));
        }
    }
}
