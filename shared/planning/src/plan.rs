//! The plan of a round (DeDLOC §3.2): its contributors, the part of each reducer, the predicted speed and its bottlenecks.
//!
//! It never executes a plan. All peers plan from the same records, so all have the same plan.

use std::ops::Range;

use crate::averaging::{RoleAssignment, TOLERANCE};
use crate::parts::parts;
use crate::search::{Choice, Search};
use crate::{PeerId, PlanError, PlanningProblem, Updates};

/// Links with at least this utilization are bottlenecks. Whole values in the parts and the solver's tolerance move loads
/// by less.
const SATURATED: f64 = 0.999;

/// A peer's tasks in a round.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerRole {
    /// The peer.
    pub peer: PeerId,
    /// `c_i = 1`: its gradient counts. A peer that does not contribute only reduces (DeDLOC appendix B).
    pub contributes: bool,
    /// Whether it receives the average of every part.
    pub receives: bool,
    /// The part that it reduces: values `start..end` of the flat vector; may be empty.
    pub part: Range<u64>,
    /// The length of `part` divided by that of the vector (DeDLOC eq. 6).
    pub fraction: f64,
    /// Utilization of its upload while averaging at full speed, 0 to 1.
    pub upload_used: f64,
    /// Utilization of its download, 0 to 1.
    pub download_used: f64,
}

/// A resource that limits the steps per second of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bottleneck {
    /// The computing of gradients.
    Compute,
    /// This peer's upload while averaging.
    Upload(PeerId),
    /// This peer's download while averaging.
    Download(PeerId),
    /// The path between two peers while averaging.
    Pair {
        /// The sender.
        from: PeerId,
        /// The receiver.
        to: PeerId,
    },
}

/// The roles of all peers, and the predicted speed.
#[derive(Debug, Clone, PartialEq)]
pub struct AveragingPlan {
    /// Sorted by id. The parts follow one another in this order and cover the vector without a gap.
    pub roles: Vec<PeerRole>,
    /// Steps per second, by [`crate::RoundWorkload::updates`].
    pub steps_per_s: f64,
    /// Upper bound for any assignment of roles, by the linear program (5), with delayed or immediate updates. `None` where
    /// that program was not solved.
    pub bound_steps_per_s: Option<f64>,
    /// Seconds in which the contributors compute a batch.
    pub compute_s: f64,
    /// Seconds in which one vector is averaged; 0 where nothing crosses a network.
    pub averaging_s: f64,
    /// `R`: bytes per second at which every receiver gets the average; infinite where nothing is sent.
    pub averaging_bytes_per_s: f64,
    /// The bottlenecks.
    pub limits: Vec<Bottleneck>,
    /// Iterations of the interior point method over all programs.
    pub iterations: u32,
}

impl AveragingPlan {
    /// `a_ij`: bytes per second of its gradient that peer `from` sends to `to`, both by position in the
    /// roles.
    #[must_use]
    pub fn sends_bytes_per_s(&self, from: usize, to: usize) -> f64 {
        self.flow(self.roles[from].contributes, from, to, self.roles[to].fraction)
    }

    /// `g_ij`: bytes per second of the average that peer `from` returns to `to`, both by position in the
    /// roles.
    #[must_use]
    pub fn returns_bytes_per_s(&self, from: usize, to: usize) -> f64 {
        self.flow(self.roles[to].receives, from, to, self.roles[from].fraction)
    }

    fn flow(&self, is_there: bool, from: usize, to: usize, fraction: f64) -> f64 {
        if is_there && from != to && fraction > 0.0 { self.averaging_bytes_per_s * fraction } else { 0.0 }
    }
}

impl PlanningProblem {
    /// The plan that makes the most steps per second (DeDLOC §3.2).
    ///
    /// The contributors are optimal where at most [`crate::EXHAUSTIVE_MAX`] peers compute and pairs have no limits, and a
    /// local optimum otherwise; [`AveragingPlan::bound_steps_per_s`] is the upper bound. For given contributors the
    /// division is optimal, but for parts below the minimum size, which go to other reducers.
    ///
    /// # Errors
    /// [`PlanError::NobodyContributes`], and [`PlanError::NotSolved`] where the interior point method fails.
    pub fn plan(&self) -> Result<AveragingPlan, PlanError> {
        let aggregates = self.reachable();
        let relaxation = self.relaxation()?;
        let search = Search::new(self, &aggregates);
        let choice = search.best(&relaxation.compute_shares, relaxation.steps_per_s)?;
        let mut plan = self.with_minimum_parts(choice, aggregates)?;
        plan.bound_steps_per_s = Some(relaxation.steps_per_s);
        plan.iterations += relaxation.iterations;
        Ok(plan)
    }

    /// The fastest division for given contributors, as after a round of computing.
    ///
    /// # Errors
    /// As [`Self::plan`], and [`PlanError::Unknown`].
    pub fn plan_for(&self, contributors: &[PeerId]) -> Result<AveragingPlan, PlanError> {
        let mut contributes = vec![false; self.peers.len()];
        for contributor in contributors {
            contributes[self.position(contributor)?] = true;
        }
        let aggregates = self.reachable();
        let choice = Search::new(self, &aggregates).evaluate_exactly(&contributes)?;
        let choice = choice.ok_or(PlanError::NobodyContributes { n_peers: self.peers.len() })?;
        self.with_minimum_parts(choice, aggregates)
    }

    /// The fallback without a solver: all peers that compute and can send contribute, all reachable peers reduce
    /// equal parts (the first ones by id, where the vector is too short for all).
    ///
    /// # Errors
    /// [`PlanError::NobodyContributes`].
    pub fn equal_parts(&self) -> Result<AveragingPlan, PlanError> {
        let can_contribute = |peer: &crate::MeasuredPeer| {
            peer.samples_per_s > 0.0 && (peer.upload_bytes_per_s > 0.0 || self.peers.len() == 1)
        };
        let contributes: Vec<bool> = self.peers.iter().map(can_contribute).collect();
        let n_parts_max =
            self.work.n_values.checked_div(self.work.part_values_min).unwrap_or(u64::MAX).max(1);
        let n_parts_max = usize::try_from(n_parts_max).unwrap_or(usize::MAX);
        let mut fractions = vec![0.0; self.peers.len()];
        let reducers: Vec<usize> =
            (0..self.peers.len()).filter(|&i| self.peers[i].is_reachable).take(n_parts_max).collect();
        for &reducer in &reducers {
            fractions[reducer] = 1.0 / reducers.len() as f64;
        }
        self.predict(&contributes, &parts(&fractions, self.work.n_values), 0)
    }

    /// Steps per second of a plan that was made from other measurements; `None` if one of its contributors or reducers is
    /// gone or cannot be reached any more. New peers only receive.
    #[must_use]
    pub fn steps_per_s_of(&self, plan: &AveragingPlan) -> Option<f64> {
        let mut contributes = vec![false; self.peers.len()];
        let mut fractions = vec![0.0; self.peers.len()];
        for role in &plan.roles {
            match self.position(&role.peer) {
                Ok(i) if role.fraction == 0.0 || self.peers[i].is_reachable => {
                    contributes[i] = role.contributes;
                    fractions[i] = role.fraction;
                }
                _ if role.contributes || role.fraction > 0.0 => return None,
                _ => {}
            }
        }
        let rate = RoleAssignment::new(self, &contributes, &self.reachable()).rate_of(&fractions);
        Some(self.steps_per_s(self.samples_per_s(&contributes), rate))
    }

    fn reachable(&self) -> Vec<bool> {
        self.peers.iter().map(|peer| peer.is_reachable).collect()
    }

    /// Moves parts below the minimum size to other reducers, the smaller half at a time.
    fn with_minimum_parts(
        &self,
        mut choice: Choice,
        mut aggregates: Vec<bool>,
    ) -> Result<AveragingPlan, PlanError> {
        let mut iterations = choice.averaging.iterations;
        loop {
            let ranges = parts(&choice.averaging.fractions, self.work.n_values);
            let n_parts = ranges.iter().filter(|range| !range.is_empty()).count();
            let is_small = |range: &Range<u64>| !range.is_empty() && size(range) < self.work.part_values_min;
            let mut small: Vec<usize> = (0..ranges.len()).filter(|&i| is_small(&ranges[i])).collect();
            if small.is_empty() || n_parts == 1 {
                return self.predict(&choice.contributes, &ranges, iterations);
            }
            small.sort_by_key(|&i| (size(&ranges[i]), std::cmp::Reverse(i)));
            small.truncate(small.len().div_ceil(2).min(n_parts - 1));
            for i in (0..ranges.len()).filter(|&i| ranges[i].is_empty()).chain(small) {
                aggregates[i] = false;
            }
            match Search::new(self, &aggregates).evaluate_exactly(&choice.contributes)? {
                Some(next) => choice = next,
                // No other peer can take it: a small part is better than no average.
                None => return self.predict(&choice.contributes, &ranges, iterations),
            }
            iterations += choice.averaging.iterations;
        }
    }

    fn predict(
        &self,
        contributes: &[bool],
        ranges: &[Range<u64>],
        iterations: u32,
    ) -> Result<AveragingPlan, PlanError> {
        let fractions: Vec<f64> =
            ranges.iter().map(|range| size(range) as f64 / self.work.n_values as f64).collect();
        let reachable = self.reachable();
        let round = RoleAssignment::new(self, contributes, &reachable);
        let rate = round.rate_of(&fractions);
        let samples_per_s = self.samples_per_s(contributes);
        let steps_per_s = self.steps_per_s(samples_per_s, rate);
        if steps_per_s <= 0.0 {
            return Err(PlanError::NobodyContributes { n_peers: self.peers.len() });
        }
        let used = |load: f64, limit: f64| if load > 0.0 { load * rate / limit } else { 0.0 };
        let role = |i: usize| {
            let peer = &self.peers[i];
            let (up, down) = round.loads(i, fractions[i]);
            PeerRole {
                peer: peer.id.clone(),
                contributes: contributes[i],
                receives: peer.receives,
                part: ranges[i].clone(),
                fraction: fractions[i],
                upload_used: used(up, peer.upload_bytes_per_s),
                download_used: used(down, peer.download_bytes_per_s),
            }
        };
        let roles: Vec<PeerRole> = (0..self.peers.len()).map(role).collect();
        let pairs = self
            .pair_limits
            .iter()
            .filter(|&(&(from, to), &limit)| used(round.pair_load(from, to, &fractions), limit) >= SATURATED);
        let pairs = pairs.map(|(&(from, to), _)| Bottleneck::Pair {
            from: self.peers[from].id.clone(),
            to: self.peers[to].id.clone(),
        });
        let mut plan = AveragingPlan {
            steps_per_s,
            bound_steps_per_s: None,
            compute_s: self.work.target_batch_size as f64 / samples_per_s,
            averaging_s: self.work.vector_bytes as f64 / rate,
            averaging_bytes_per_s: rate,
            limits: Vec::new(),
            iterations,
            roles,
        };
        plan.limits = limits(&plan, self.work.updates, pairs.collect());
        Ok(plan)
    }
}

fn size(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// With delayed updates the slower of computing and averaging is the bottleneck, otherwise both are.
fn limits(plan: &AveragingPlan, updates: Updates, pairs: Vec<Bottleneck>) -> Vec<Bottleneck> {
    let mut limits = Vec::new();
    let is_either = updates == Updates::Immediate;
    if is_either || plan.compute_s >= plan.averaging_s * (1.0 - TOLERANCE) {
        limits.push(Bottleneck::Compute);
    }
    if is_either || plan.averaging_s >= plan.compute_s * (1.0 - TOLERANCE) {
        for role in &plan.roles {
            if role.upload_used >= SATURATED {
                limits.push(Bottleneck::Upload(role.peer.clone()));
            }
            if role.download_used >= SATURATED {
                limits.push(Bottleneck::Download(role.peer.clone()));
            }
        }
        limits.extend(pairs);
    }
    limits
}
