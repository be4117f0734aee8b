//! Who contributes: the binary `c` of DeDLOC's program (2).
//!
//! For given contributors the fastest averaging is known (`averaging`), and with it the steps per second. Up
//! to [`EXHAUSTIVE_MAX`] peers that compute, all choices are compared, so the result is the optimum. Beyond,
//! the search begins with everybody, with what the relaxation (5) rounds to, and with everybody whose upload,
//! download or speed is at least that of some peer, and with those who give most samples for what they take
//! from the averaging, at several prices; the best of these is improved by single changes and exchanges until
//! none helps. The relaxation's bound says how far from the optimum that can be at most, and
//! ends the search where everybody's contribution reaches it.
//!
//! Choices are replaced only by what is better by more than a tolerance, and of peers that are alike the
//! first by id contribute, so noise in the measurements of like peers changes nothing.

use crate::averaging::{Averaging, Round, TOLERANCE};
use crate::{PlanError, Situation};

/// With so many peers that compute, or fewer, the search is complete.
pub const EXHAUSTIVE_MAX: usize = 10;
/// Rounds of improvements: ends a search that would go back and forth within the tolerance.
const PASSES_MAX: usize = 64;

/// What a sample is worth in averaging, beside the mean of all.
const PRICES: [f64; 9] = [0.0, 0.05, 0.15, 0.4, 1.0, 2.5, 6.0, 20.0, 1e6];
/// The best rate moves with the choice, and the choice with the rate.
const TRADES: usize = 3;

/// Contributors and what comes of them.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) contributes: Vec<bool>,
    pub(crate) averaging: Averaging,
    pub(crate) steps_per_s: f64,
    samples_per_s: f64,
}

impl Choice {
    /// More steps; of as many, more samples; of as many, faster averaging.
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
    situation: &'a Situation,
    aggregates: &'a [bool],
    /// Positions of those who compute.
    computing: Vec<usize>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(situation: &'a Situation, aggregates: &'a [bool]) -> Self {
        let computing =
            (0..situation.peers.len()).filter(|&i| situation.peers[i].samples_per_s > 0.0).collect();
        Self { situation, aggregates, computing }
    }

    /// The best contributors. `compute_shares` are `c` of the relaxation, `bound` its steps per second.
    pub(crate) fn best(&self, compute_shares: &[f64], bound: f64) -> Result<Choice, PlanError> {
        let everybody = self.set(|_| true);
        let mut best = self.evaluate(&everybody);
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
        let n_peers = self.situation.peers.len();
        let best = self.settled(best.ok_or(PlanError::NobodyContributes { n_peers })?);
        if self.situation.pair_limits.is_empty() {
            return Ok(best);
        }
        // Pair limits were taken one direction at a time so far. What they do together decides between the
        // best choice and everybody.
        let exact = [self.evaluate_exactly(&best.contributes)?, self.evaluate_exactly(&everybody)?];
        let [best, everybody] = exact;
        match (best, everybody) {
            (Some(best), Some(everybody)) => {
                Ok(if everybody.is_better_than(&best) { everybody } else { best })
            }
            (best, everybody) => best.or(everybody).ok_or(PlanError::NobodyContributes { n_peers }),
        }
    }

    /// Of peers that are alike, the first contribute: which of them the search came upon means nothing.
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
        let (one, other) = (&self.situation.peers[i], &self.situation.peers[j]);
        let pairs = [
            (one.samples_per_s, other.samples_per_s),
            (one.download_bytes_per_s, other.download_bytes_per_s),
            (one.upload_bytes_per_s, other.upload_bytes_per_s),
        ];
        one.is_reachable == other.is_reachable
            && one.receives == other.receives
            && pairs.into_iter().all(|(a, b)| !is_more(a, b) && !is_more(b, a))
    }

    /// What given contributors reach, pair limits included.
    pub(crate) fn evaluate_exactly(&self, contributes: &[bool]) -> Result<Option<Choice>, PlanError> {
        let averaging = Round::new(self.situation, contributes, self.aggregates).fastest()?;
        Ok(averaging.and_then(|averaging| self.choice(contributes, averaging)))
    }

    fn evaluate(&self, contributes: &[bool]) -> Option<Choice> {
        let averaging = Round::new(self.situation, contributes, self.aggregates).fastest_by_peer()?;
        self.choice(contributes, averaging)
    }

    fn choice(&self, contributes: &[bool], averaging: Averaging) -> Option<Choice> {
        let samples_per_s = self.situation.samples_per_s(contributes);
        let steps_per_s = self.situation.steps_per_s(samples_per_s, averaging.bytes_per_s);
        (steps_per_s > 0.0).then(|| Choice {
            contributes: contributes.to_vec(),
            averaging,
            steps_per_s,
            samples_per_s,
        })
    }

    fn set(&self, is_in: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut contributes = vec![false; self.situation.peers.len()];
        for &i in &self.computing {
            contributes[i] = is_in(i);
        }
        contributes
    }

    fn compare_all(&self, best: &mut Option<Choice>) {
        for subset in 1..1_u32 << self.computing.len() {
            let mut contributes = vec![false; self.situation.peers.len()];
            for (place, &i) in self.computing.iter().enumerate() {
                contributes[i] = subset & (1 << place) != 0;
            }
            self.try_out(&contributes, best);
        }
    }

    fn begin(&self, compute_shares: &[f64], best: &mut Option<Choice>) {
        self.try_out(&self.set(|i| compute_shares[i] >= 1.0 - TOLERANCE), best);
        let peers = &self.situation.peers;
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

    /// For each number of contributors, those who give most and take least: a contributor gives its samples
    /// and takes from the vector's reducers what it averages less than if it only averaged. How much one is
    /// worth in the other is not known, so several prices are tried out (a Lagrangian relaxation of the
    /// choice).
    fn trade(&self, best: &mut Option<Choice>) {
        let Some(rate) = best.as_ref().map(|best| best.averaging.bytes_per_s) else { return };
        for n_contributors in 1..=self.computing.len() {
            let costs = Round::costs(self.situation, self.aggregates, rate, n_contributors);
            let able: Vec<usize> = self.computing.iter().copied().filter(|&i| costs[i].is_finite()).collect();
            if able.len() < n_contributors {
                continue;
            }
            let cost: f64 = able.iter().map(|&i| costs[i]).sum();
            let samples: f64 = able.iter().map(|&i| self.situation.peers[i].samples_per_s).sum();
            for price in PRICES {
                let price = price * cost / samples;
                let mut order = able.clone();
                let loss = |i: usize| costs[i] - price * self.situation.peers[i].samples_per_s;
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

    /// Takes it if it is better; a choice that cannot be is not evaluated.
    fn try_out(&self, contributes: &[bool], best: &mut Option<Choice>) -> bool {
        if let Some(best) = best {
            let needed = self.situation.bytes_per_s_for(
                best.steps_per_s * (1.0 - TOLERANCE),
                self.situation.samples_per_s(contributes),
            );
            let round = Round::new(self.situation, contributes, self.aggregates);
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
