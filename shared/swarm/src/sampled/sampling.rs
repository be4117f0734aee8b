//! One pass over the candidates of a round, until enough of them have answered (MoDEST algorithm 1, `SAMPLE`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use barnraise_protocol::access::PublicKey;

use crate::Moment;

/// Finds the first live candidates of a round: the first ones are asked in parallel, the others one by one.
///
/// A pass over all candidates that found fewer than wanted is enough with those whose models an aggregator waits for, and
/// with one aggregator. The paper repeats it; with so few live peers it would never end.
#[derive(Debug)]
pub(super) struct Sampling {
    pub(super) round: u64,
    n_wanted: usize,
    /// Enough where the whole pass found no more.
    n_enough: usize,
    ping_timeout: Duration,
    /// In the order in which they are asked.
    candidates: Vec<PublicKey>,
    /// The first of them that are enough, where so many answer; the others are asked after all of these.
    n_first: usize,
    /// Those that may be asked by now.
    n_open: usize,
    n_asked: usize,
    /// Asked and silent so far, with the end of patience.
    waiting: BTreeMap<PublicKey, Moment>,
    answered: BTreeSet<PublicKey>,
    pings: VecDeque<PublicKey>,
    /// When the next pass may begin, if this one finds too few.
    retry_at: Moment,
}

impl Sampling {
    /// Begins to ask for `n_wanted` of the candidates. The peer itself, `own`, has answered already.
    pub(super) fn new(
        now: Moment,
        own: PublicKey,
        round: u64,
        (n_wanted, n_enough): (usize, usize),
        candidates: Vec<PublicKey>,
        ping_timeout: Duration,
    ) -> Self {
        let n_first = candidates.len();
        Self::in_turn(now, own, round, (n_wanted, n_enough), (candidates, n_first), ping_timeout)
    }

    /// The same, of the first `n_first` candidates; of the others only where too few of those answer.
    pub(super) fn in_turn(
        now: Moment,
        own: PublicKey,
        round: u64,
        (n_wanted, n_enough): (usize, usize),
        (candidates, n_first): (Vec<PublicKey>, usize),
        ping_timeout: Duration,
    ) -> Self {
        let mut sampling = Self {
            round,
            n_wanted,
            n_enough,
            ping_timeout,
            answered: candidates.iter().copied().filter(|candidate| *candidate == own).collect(),
            candidates,
            n_first,
            n_open: n_first,
            n_asked: 0,
            waiting: BTreeMap::new(),
            pings: VecDeque::new(),
            retry_at: now + ping_timeout,
        };
        sampling.ask_some(now);
        sampling.go_on(now);
        sampling
    }

    /// Asks nobody, and is to be repeated after a while.
    pub(super) fn later(now: Moment, round: u64, after: Duration) -> Self {
        Self::new(now, PublicKey([0; 32]), round, (1, 1), Vec::new(), after)
    }

    /// Of those that are asked nothing: they are the sample.
    pub(super) fn decided(now: Moment, round: u64, sample: Vec<PublicKey>) -> Self {
        let answered = sample.iter().copied().collect();
        let n = sample.len();
        let asked = Self { n_asked: n, answered, ..Self::later(now, round, Duration::ZERO) };
        Self { n_wanted: n, n_enough: 0, n_first: n, n_open: n, candidates: sample, ..asked }
    }

    /// The next candidate to ping.
    pub(super) fn poll_ping(&mut self) -> Option<PublicKey> {
        self.pings.pop_front()
    }

    /// Every answer counts, a late one too.
    pub(super) fn on_pong(&mut self, now: Moment, from: PublicKey) {
        if self.candidates[..self.n_asked].contains(&from) {
            self.waiting.remove(&from);
            self.answered.insert(from);
            self.go_on(now);
        }
    }

    /// The candidate cannot be reached, which is known before its time is over.
    pub(super) fn on_unreachable(&mut self, now: Moment, peer: PublicKey) {
        if self.waiting.remove(&peer).is_some() {
            self.go_on(now);
        }
    }

    pub(super) fn on_timeout(&mut self, now: Moment) {
        self.waiting.retain(|_, until| *until > now);
        self.go_on(now);
    }

    /// The first `n_wanted` live candidates in the order of the round, once there are so many, or fewer once all were asked.
    pub(super) fn sample(&self) -> Option<Vec<PublicKey>> {
        // Where enough of the first ones are live after all, they are the sample.
        let n_among = if self.are_first_enough() { self.n_first } else { self.n_open };
        let among = &self.candidates[..n_among];
        let live = among.iter().filter(|candidate| self.answered.contains(candidate));
        let sample: Vec<PublicKey> = live.take(self.n_wanted).copied().collect();
        let n_least = if self.n_asked >= n_among { self.n_enough } else { self.n_wanted };
        let is_over = !among.iter().any(|candidate| self.waiting.contains_key(candidate));
        (sample.len() >= n_least && is_over).then_some(sample)
    }

    /// When too few have answered and nobody is left to ask: from when on it is to be repeated.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        let is_over =
            self.waiting.is_empty() && self.n_asked == self.candidates.len() && self.sample().is_none();
        is_over.then_some(self.retry_at)
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.waiting.values().min().copied().or_else(|| self.retry_at())
    }

    fn go_on(&mut self, now: Moment) {
        self.replace_silent(now);
        let is_over = self.waiting.is_empty() && self.n_asked == self.n_open;
        if is_over && self.n_open < self.candidates.len() && !self.are_first_enough() {
            self.n_open = self.candidates.len();
            self.ask_some(now);
            self.replace_silent(now);
        }
    }

    fn replace_silent(&mut self, now: Moment) {
        while self.waiting.is_empty() && self.answered_asked() < self.n_wanted && self.ask_next(now) {}
    }

    /// Whether enough of the first candidates have answered.
    pub(super) fn are_first_enough(&self) -> bool {
        let first = &self.candidates[..self.n_first];
        first.iter().filter(|candidate| self.answered.contains(candidate)).count() >= self.n_enough
    }

    fn ask_some(&mut self, now: Moment) {
        for _ in 0..self.n_wanted {
            self.ask_next(now);
        }
    }

    fn answered_asked(&self) -> usize {
        self.candidates[..self.n_asked].iter().filter(|candidate| self.answered.contains(candidate)).count()
    }

    /// Returns whether there was one more candidate.
    fn ask_next(&mut self, now: Moment) -> bool {
        let Some(candidate) = self.candidates[..self.n_open].get(self.n_asked).copied() else { return false };
        self.n_asked += 1;
        if !self.answered.contains(&candidate) {
            self.waiting.insert(candidate, now + self.ping_timeout);
            self.pings.push_back(candidate);
        }
        true
    }
}

#[cfg(test)]
mod tests;
