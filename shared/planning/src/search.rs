//! The choice of contributors: the binary `c` of DeDLOC's program (2) (§3.2).
//!
//! For given contributors the fastest averaging is known (`averaging`), and with it the steps per second. Up
//! to [`EXHAUSTIVE_MAX`] peers that compute, all choices are compared, so the result is the optimum. Beyond that,
//! the search begins with several candidates: all peers; the rounded relaxation (5); all peers whose upload,
//! download or speed is at least that of some peer; the peers with the most samples for their cost to the
//! averaging, at several prices. The best of these is improved by single changes and exchanges until
//! none helps. The relaxation's bound limits the distance to the optimum, and
//! ends the search where the contribution of all peers reaches it.
//!
//! A choice is replaced only by one that is better by more than a tolerance. Of peers that are alike the
//! first by id contribute. So noise in the measurements of like peers changes nothing.

use crate::averaging::{Averaging, RoleAssignment, TOLERANCE};
use crate::{PlanError, PlanningProblem};

/// Up to this many peers that compute, the search is exhaustive.
pub const EXHAUSTIVE_MAX: usize = 10;
/// Most passes of improvement: ends a search that would oscillate within the tolerance.
const PASSES_MAX: usize = 64;

/// Lagrange multipliers: the price of a sample in bytes per second of averaging, relative to the mean of all peers.
const PRICES: [f64; 9] = [0.0, 0.05, 0.15, 0.4, 1.0, 2.5, 6.0, 20.0, 1e6];
/// Repetitions of the Lagrangian relaxation: the best rate depends on the choice, and the choice on the rate.
const TRADES: usize = 3;

/// A set of contributors and its speed.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) contributes: Vec<bool>,
    pub(crate) averaging: Averaging,
    pub(crate) steps_per_s: f64,
    samples_per_s: f64,
}

impl Choice {
    /// Compares steps per second, then samples per second, then the rate of averaging.
    fn is_better_than(&self, other: &Self) -> bool {
        let keys = [
            (self.steps_per_s, other.steps_per_s),
            (self.samples_per_s, other.samples_per_s),
            (self.averaging.bytes_per_s, other.averaging.bytes_per_s),
        ];
        let decides = keys.into_iter().find(|(here, there)| is_more(*here, *there) || is_more(*there, *here));
        decides.is_some_and(|(here, there)| here > there)
    }
}

fn is_more(a: f64, b: f64) -> bool {
    a > b * (1.0 + TOLERANCE)
}

pub(crate) struct Search<'a> {
    problem: &'a PlanningProblem,
    aggregates: &'a [bool],
    /// Positions of the peers that compute.
    computing: Vec<usize>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(problem: &'a PlanningProblem, aggregates: &'a [bool]) -> Self {
        let computing = (0..problem.peers.len()).filter(|&i| problem.peers[i].samples_per_s > 0.0).collect();
        Self { problem, aggregates, computing }
    }

    /// The best contributors. `compute_shares` are `c` of the relaxation, `bound` its steps per second.
    pub(crate) fn best(&self, compute_shares: &[f64], bound: f64) -> Result<Choice, PlanError> {
        let all_peers = self.set(|_| true);
        let mut best = self.evaluate(&all_peers);
        let is_bound_reached = |best: &Choice| !is_more(bound, best.steps_per_s);
        if !best.as_ref().is_some_and(is_bound_reached) {
            if self.computing.len() <= EXHAUSTIVE_MAX {
                self.compare_all(&mut best);
            } else {
                self.begin(compute_shares, &mut best);
                for _ in 0..TRADES {
                    self.trade(&mut best);
                    self.improve(&mut best);
                }
            }
        }
        let n_peers = self.problem.peers.len();
        let best = self.settled(best.ok_or(PlanError::NobodyContributes { n_peers })?);
        if self.problem.pair_limits.is_empty() {
            return Ok(best);
        }
        // Pair limits were taken one direction at a time so far. Their joint effect decides between the best choice
        // and all peers.
        let exact = [self.evaluate_exactly(&best.contributes)?, self.evaluate_exactly(&all_peers)?];
        let [best, all_peers] = exact;
        match (best, all_peers) {
            (Some(best), Some(all_peers)) => {
                Ok(if all_peers.is_better_than(&best) { all_peers } else { best })
            }
            (best, all_peers) => best.or(all_peers).ok_or(PlanError::NobodyContributes { n_peers }),
        }
    }

    /// Replaces contributors by the first ones of those that are alike, so that the order of the search does not matter.
    fn settled(&self, mut choice: Choice) -> Choice {
        let mut contributes = choice.contributes.clone();
        for (place, &i) in self.computing.iter().enumerate() {
            let later = self.computing[place + 1..].iter().copied();
            let alike = later.filter(|&j| self.are_alike(i, j)).find(|&j| contributes[j]);
            if let (false, Some(j)) = (contributes[i], alike) {
                contributes.swap(i, j);
            }
        }
        if contributes != choice.contributes
            && let Some(settled) = self.evaluate(&contributes)
        {
            choice = settled;
        }
        choice
    }

    fn are_alike(&self, i: usize, j: usize) -> bool {
        let (one, other) = (&self.problem.peers[i], &self.problem.peers[j]);
        let pairs = [
            (one.samples_per_s, other.samples_per_s),
            (one.download_bytes_per_s, other.download_bytes_per_s),
            (one.upload_bytes_per_s, other.upload_bytes_per_s),
        ];
        one.is_reachable == other.is_reachable
            && one.receives == other.receives
            && pairs.into_iter().all(|(a, b)| !is_more(a, b) && !is_more(b, a))
    }

    /// The choice of given contributors, pair limits included.
    pub(crate) fn evaluate_exactly(&self, contributes: &[bool]) -> Result<Option<Choice>, PlanError> {
        let averaging = RoleAssignment::new(self.problem, contributes, self.aggregates).fastest()?;
        Ok(averaging.and_then(|averaging| self.choice(contributes, averaging)))
    }

    fn evaluate(&self, contributes: &[bool]) -> Option<Choice> {
        let averaging = RoleAssignment::new(self.problem, contributes, self.aggregates).fastest_by_peer()?;
        self.choice(contributes, averaging)
    }

    fn choice(&self, contributes: &[bool], averaging: Averaging) -> Option<Choice> {
        let samples_per_s = self.problem.samples_per_s(contributes);
        let steps_per_s = self.problem.steps_per_s(samples_per_s, averaging.bytes_per_s);
        (steps_per_s > 0.0).then(|| Choice {
            contributes: contributes.to_vec(),
            averaging,
            steps_per_s,
            samples_per_s,
        })
    }

    fn set(&self, is_in: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut contributes = vec![false; self.problem.peers.len()];
        for &i in &self.computing {
            contributes[i] = is_in(i);
        }
        contributes
    }

    fn compare_all(&self, best: &mut Option<Choice>) {
        for subset in 1..1_u32 << self.computing.len() {
            let mut contributes = vec![false; self.problem.peers.len()];
            for (place, &i) in self.computing.iter().enumerate() {
                contributes[i] = subset & (1 << place) != 0;
            }
            self.try_out(&contributes, best);
        }
    }

    fn begin(&self, compute_shares: &[f64], best: &mut Option<Choice>) {
        self.try_out(&self.set(|i| compute_shares[i] >= 1.0 - TOLERANCE), best);
        let peers = &self.problem.peers;
        for least in &self.computing {
            let least = &peers[*least];
            for is_in in [
                self.set(|i| !is_more(least.upload_bytes_per_s, peers[i].upload_bytes_per_s)),
                self.set(|i| !is_more(least.download_bytes_per_s, peers[i].download_bytes_per_s)),
                self.set(|i| !is_more(least.samples_per_s, peers[i].samples_per_s)),
            ] {
                self.try_out(&is_in, best);
            }
        }
    }

    /// For each number of contributors, the peers with the most samples for their cost (a Lagrangian relaxation of the
    /// choice). The cost of a contributor is the rate that it reduces less than if it only averaged. The price of a sample
    /// is unknown, so several are tried.
    fn trade(&self, best: &mut Option<Choice>) {
        let Some(rate) = best.as_ref().map(|best| best.averaging.bytes_per_s) else { return };
        for n_contributors in 1..=self.computing.len() {
            let costs = RoleAssignment::costs(self.problem, self.aggregates, rate, n_contributors);
            let able: Vec<usize> = self.computing.iter().copied().filter(|&i| costs[i].is_finite()).collect();
            if able.len() < n_contributors {
                continue;
            }
            let cost: f64 = able.iter().map(|&i| costs[i]).sum();
            let samples: f64 = able.iter().map(|&i| self.problem.peers[i].samples_per_s).sum();
            for price in PRICES {
                let price = price * cost / samples;
                let mut order = able.clone();
                let loss = |i: usize| costs[i] - price * self.problem.peers[i].samples_per_s;
                order.sort_by(|&i, &j| loss(i).total_cmp(&loss(j)).then(i.cmp(&j)));
                order.truncate(n_contributors);
                self.try_out(&self.set(|i| order.contains(&i)), best);
            }
        }
    }

    fn improve(&self, best: &mut Option<Choice>) {
        let mut contributes = match best {
            Some(choice) => choice.contributes.clone(),
            None => return,
        };
        for _ in 0..PASSES_MAX {
            let mut has_improved = false;
            for (place, &i) in self.computing.iter().enumerate() {
                contributes[i] = !contributes[i];
                if self.try_out(&contributes, best) {
                    has_improved = true;
                    continue;
                }
                for &j in &self.computing[place + 1..] {
                    // With `i` changed already: an exchange of both.
                    if contributes[j] == contributes[i] {
                        contributes[j] = !contributes[j];
                        if self.try_out(&contributes, best) {
                            has_improved = true;
                            break;
                        }
                        contributes[j] = !contributes[j];
                    }
                }
                if let Some(choice) = best {
                    contributes.clone_from(&choice.contributes);
                }
            }
            if !has_improved {
                return;
            }
        }
    }

    /// Takes a choice if it is better; one that cannot be better is not evaluated.
    fn try_out(&self, contributes: &[bool], best: &mut Option<Choice>) -> bool {
        if let Some(best) = best {
            let needed = self.problem.bytes_per_s_for(
                best.steps_per_s * (1.0 - TOLERANCE),
                self.problem.samples_per_s(contributes),
            );
            let round = RoleAssignment::new(self.problem, contributes, self.aggregates);
            if !needed.is_some_and(|needed| round.can_average_at(needed)) {
                return false;
            }
        }
        match self.evaluate(contributes) {
            Some(choice) if best.as_ref().is_none_or(|best| choice.is_better_than(best)) => {
                *best = Some(choice);
                true
            }
            _ => false,
        }
    }
}
