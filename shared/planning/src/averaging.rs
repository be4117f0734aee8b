//! The fraction of the vector that each peer reduces, for given contributors (DeDLOC §3.2).
//!
//! Symbols of DeDLOC §3.2: contributors `C` (`c_k = 1`) with `m = |C|`, receivers `V` with `v = |V|`, and
//! `R`, the rate in bytes per second at which every receiver gets the whole vector. Peer `i` averages the
//! fraction `r_i / R`. By eq. (6) everybody gets that fraction from it, so all `g_ij` of a realizable plan
//! are one number, `r_i`; and since a reducer is as fast as its slowest sender, `a_ki = r_i` for every
//! contributor. What is left of the constraints (2), each peer for itself but for the sum, is
//!
//! ```text
//! up:    [i in C] (R - r_i) + (v - [i in V]) r_i  <=  u_i      what it sends, what it returns
//! down:  (m - [i in C]) r_i + [i in V] (R - r_i)  <=  d_i      what it is sent, what is returned to it
//!        r_i >= 0, r_i = 0 where nobody can dial i, sum r_i = R
//! ```
//!
//! For a fixed `R` these are an interval for each `r_i`, and `R` is feasible if the sums of their ends enclose
//! it. With every solution its smaller multiples are solutions, so the greatest `R` is found by bisection,
//! exactly, in microseconds. Limits of single pairs couple the `r_i`: then [`pairs`] solves a linear program.
//!
//! This file never chooses the contributors: `search` does.

mod pairs;

use crate::{PlanError, PlanningProblem};

/// Relative difference below which rates are equal: measurements are far coarser.
pub(crate) const TOLERANCE: f64 = 1e-6;

/// Contributors and possible reducers of a round, `[n_peers]`, by position in the problem.
#[derive(Debug, Clone)]
pub(crate) struct RoleAssignment<'a> {
    problem: &'a PlanningProblem,
    contributes: &'a [bool],
    aggregates: &'a [bool],
    /// `m`.
    n_contributors: f64,
    /// `v`.
    n_receivers: f64,
    /// Upper bound of each `r_i` by pair limits, `[n_peers]`; empty where there are none.
    ceilings: Vec<f64>,
}

/// A division of the vector, and its rate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Averaging {
    /// `R`; infinite where nothing has to cross a network.
    pub(crate) bytes_per_s: f64,
    /// `r_i / R`, `[n_peers]`, of sum 1.
    pub(crate) fractions: Vec<f64>,
    /// Iterations of the interior point method; 0 where none was needed.
    pub(crate) iterations: u32,
}

impl<'a> RoleAssignment<'a> {
    pub(crate) fn new(problem: &'a PlanningProblem, contributes: &'a [bool], aggregates: &'a [bool]) -> Self {
        let n_receivers = problem.peers.iter().filter(|peer| peer.receives).count();
        let n_contributors = contributes.iter().filter(|&&is_in| is_in).count();
        Self {
            n_contributors: n_contributors as f64,
            n_receivers: n_receivers as f64,
            ceilings: ceilings(problem, contributes),
            problem,
            contributes,
            aggregates,
        }
    }

    /// The fastest averaging; `None` where some receiver or contributor has no bandwidth.
    pub(crate) fn fastest(&self) -> Result<Option<Averaging>, PlanError> {
        if self.problem.pair_limits.is_empty() || self.is_local().is_some() {
            Ok(self.fastest_by_peer())
        } else {
            pairs::fastest(self)
        }
    }

    /// [`Self::fastest`] with each pair limit taken for one direction at a time: an upper bound of the rate.
    pub(crate) fn fastest_by_peer(&self) -> Option<Averaging> {
        let n_peers = self.problem.peers.len();
        if let Some(alone) = self.is_local() {
            let fractions = (0..n_peers).map(|i| if i == alone { 1.0 } else { 0.0 }).collect();
            return Some(Averaging { bytes_per_s: f64::INFINITY, fractions, iterations: 0 });
        }
        let most = 2.0 * self.problem.fastest_receivable_bytes_per_s();
        let (mut slow, mut fast) = (0.0, most);
        loop {
            let middle = 0.5 * (slow + fast);
            if middle <= slow || middle >= fast {
                break;
            }
            if self.can_average_at(middle) {
                slow = middle;
            } else {
                fast = middle;
            }
        }
        (slow > most * 1e-12).then(|| self.at(slow))
    }

    /// Whether the whole vector can be averaged at this rate, pair limits taken one direction at a time.
    pub(crate) fn can_average_at(&self, bytes_per_s: f64) -> bool {
        if self.is_local().is_some() {
            return true;
        }
        let (mut least, mut most) = (0.0, 0.0);
        for i in 0..self.problem.peers.len() {
            let Some((low, high)) = self.interval(i, bytes_per_s) else { return false };
            least += low;
            most += high;
        }
        least <= bytes_per_s && bytes_per_s <= most
    }

    /// The cost of each peer as one of `n_contributors`, `[n_peers]`: how much less it can reduce at this rate, in bytes
    /// per second. Infinite for a peer that cannot contribute. Pair limits are left out.
    pub(crate) fn costs(
        problem: &'a PlanningProblem,
        aggregates: &'a [bool],
        bytes_per_s: f64,
        n_contributors: usize,
    ) -> Vec<f64> {
        let n_receivers = problem.peers.iter().filter(|peer| peer.receives).count() as f64;
        let all = vec![true; problem.peers.len()];
        let none = vec![false; problem.peers.len()];
        let most = |contributes: &[bool], i: usize| {
            let n_contributors = n_contributors as f64;
            let round = RoleAssignment {
                problem,
                contributes,
                aggregates,
                n_contributors,
                n_receivers,
                ceilings: Vec::new(),
            };
            round.interval(i, bytes_per_s).map(|interval| interval.1)
        };
        let cost = |i: usize| match (most(&none, i), most(&all, i)) {
            (Some(idle), Some(contributing)) => (idle - contributing).max(0.0),
            (None, Some(_)) => 0.0,
            (_, None) => f64::INFINITY,
        };
        (0..problem.peers.len()).map(cost).collect()
    }

    /// The interval of `r_i` at rate `R`; `None` where it is empty.
    fn interval(&self, i: usize, rate: f64) -> Option<(f64, f64)> {
        let peer = &self.problem.peers[i];
        let (contributes, receives) = (number(self.contributes[i]), number(peer.receives));
        let rows = [
            (contributes, self.n_receivers - receives - contributes, peer.upload_bytes_per_s),
            (receives, self.n_contributors - contributes - receives, peer.download_bytes_per_s),
        ];
        let mut high = if self.aggregates[i] { rate } else { 0.0 };
        high = high.min(self.ceilings.get(i).copied().unwrap_or(f64::INFINITY));
        let mut low: f64 = 0.0;
        for (of_rate, of_share, limit) in rows {
            let left = limit - of_rate * rate;
            if of_share > 0.0 {
                high = high.min(left / of_share);
            } else if of_share < 0.0 {
                low = low.max(left / of_share);
            } else if left < 0.0 {
                return None;
            }
        }
        (low <= high).then_some((low, high))
    }

    /// A division at a feasible rate. Where the limits leave room, each peer takes the same fraction of its
    /// interval: peers with equal measurements get equal parts.
    fn at(&self, rate: f64) -> Averaging {
        let intervals: Vec<(f64, f64)> =
            (0..self.problem.peers.len()).map(|i| self.interval(i, rate).unwrap_or((0.0, 0.0))).collect();
        let least: f64 = intervals.iter().map(|interval| interval.0).sum();
        let most: f64 = intervals.iter().map(|interval| interval.1).sum();
        let part = if most > least { ((rate - least) / (most - least)).clamp(0.0, 1.0) } else { 0.0 };
        let shares: Vec<f64> = intervals.iter().map(|&(low, high)| low + part * (high - low)).collect();
        Averaging { bytes_per_s: rate, fractions: normalized(&shares), iterations: 0 }
    }

    /// The only contributor, where it is also the only receiver and a reducer: nothing crosses the network.
    fn is_local(&self) -> Option<usize> {
        if self.n_contributors != 1.0 || self.n_receivers != 1.0 {
            return None;
        }
        let alone = self.contributes.iter().position(|&is_in| is_in)?;
        (self.problem.peers[alone].receives && self.aggregates[alone]).then_some(alone)
    }

    /// The rate at which a given division averages, pair limits included; infinite if nothing is sent.
    pub(crate) fn rate_of(&self, fractions: &[f64]) -> f64 {
        let mut rate = f64::INFINITY;
        for (i, peer) in self.problem.peers.iter().enumerate() {
            let (up, down) = self.loads(i, fractions[i]);
            for (load, limit) in [(up, peer.upload_bytes_per_s), (down, peer.download_bytes_per_s)] {
                if load > 0.0 {
                    rate = rate.min(limit / load);
                }
            }
        }
        for (&(from, to), limit) in &self.problem.pair_limits {
            let load = self.pair_load(from, to, fractions);
            if load > 0.0 {
                rate = rate.min(limit / load);
            }
        }
        rate
    }

    /// Upload and download of a peer in a round, in vectors, if it reduces this fraction.
    pub(crate) fn loads(&self, i: usize, fraction: f64) -> (f64, f64) {
        let (contributes, receives) = (number(self.contributes[i]), number(self.problem.peers[i].receives));
        let up = contributes * (1.0 - fraction) + (self.n_receivers - receives) * fraction;
        let down = (self.n_contributors - contributes) * fraction + receives * (1.0 - fraction);
        (up, down)
    }

    /// Load from one peer to another in a round, in vectors.
    pub(crate) fn pair_load(&self, from: usize, to: usize, fractions: &[f64]) -> f64 {
        number(self.contributes[from]) * fractions[to]
            + number(self.problem.peers[to].receives) * fractions[from]
    }
}

fn ceilings(problem: &PlanningProblem, contributes: &[bool]) -> Vec<f64> {
    if problem.pair_limits.is_empty() {
        return Vec::new();
    }
    let mut ceilings = vec![f64::INFINITY; contributes.len()];
    for (&(from, to), &limit) in &problem.pair_limits {
        if problem.peers[to].receives {
            ceilings[from] = ceilings[from].min(limit);
        }
        if contributes[from] {
            ceilings[to] = ceilings[to].min(limit);
        }
    }
    ceilings
}

pub(crate) fn number(is_one: bool) -> f64 {
    if is_one { 1.0 } else { 0.0 }
}

/// Divides by the sum, which is above zero for every rate above zero.
fn normalized(shares: &[f64]) -> Vec<f64> {
    let sum: f64 = shares.iter().sum();
    shares.iter().map(|share| share / sum).collect()
}
