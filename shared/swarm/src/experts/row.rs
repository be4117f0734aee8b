//! The search for the experts of one row: prefixes in the order of what may be below them.
//!
//! Scores are added from the first dimension to the last, as brute force adds them. Rounding keeps the order of sums, so that a
//! bound that is added in the same order is never below the score of an expert that it is a bound of.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use barnraise_protocol::dht::experts::ExpertHost;
use barnraise_protocol::experts::{ExpertPrefix, ExpertUid, GridShape};

use super::hosts::HostRecords;
use super::prefixes::{NextExpert, NextIndices};
use crate::Moment;

/// Prefixes that a row waits for at a time in the beginning, or as many as it wants experts: on a dense grid those have them.
/// With what it has seen they double, so that a sparse grid, where many are to be seen, takes few round trips more.
const ROW_PREFIXES_MIN: usize = 4;
/// Most prefixes that a row waits for at a time.
const ROW_PREFIXES_MAX: usize = 64;

/// An expert that a row may go to.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedExpert {
    /// Which one.
    pub uid: ExpertUid,
    /// Its score, `Σ_i g_i(x)[u_i]`.
    pub score: f32,
    /// Its hosts, the one to ask first; at least one.
    pub hosts: Vec<ExpertHost>,
}

/// The experts of a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowSelection {
    /// The best ones, best first, at most as many as were wanted. Of equal scores the first uid comes first.
    pub experts: Vec<SelectedExpert>,
    /// Whether no living expert is better: nothing failed, no limit was reached, and there was time.
    pub is_exact: bool,
}

/// What is known of a prefix.
pub(super) enum PrefixState {
    /// What follows it.
    Known(NextIndices),
    /// It is being looked up.
    Pending,
    /// It is being looked up, and for so long that a row that has its experts goes on without.
    Late,
    /// It will not be looked up in this query.
    Unreachable,
}

/// A prefix that was not looked up yet, or an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
struct OpenPrefix {
    /// No expert below it has a higher score.
    bound: f32,
    score: f32,
    prefix: ExpertPrefix,
}

#[derive(Debug, Clone)]
struct FoundExpert {
    score: f32,
    uid: ExpertUid,
    hosts: Arc<[ExpertHost]>,
}

/// The search for one row.
#[derive(Debug)]
pub(super) struct RowSearch {
    n_active: usize,
    open: BinaryHeap<OpenPrefix>,
    /// Those that are being looked up, at most [`ROW_PREFIXES_MAX`].
    pending: Vec<OpenPrefix>,
    n_expanded: usize,
    /// Best first, at most `n_active`.
    best: Vec<FoundExpert>,
    is_exact: bool,
}

/// Scores of a row, `[n_scores]` of its grid, and the grid.
#[derive(Clone, Copy)]
pub(super) struct RowScores<'s> {
    pub(super) grid: &'s GridShape,
    pub(super) scores: &'s [f32],
    /// The highest score of each dimension.
    pub(super) highest: &'s [f32],
}

/// Which hosts may be asked now.
#[derive(Clone, Copy)]
pub(super) struct LivingHosts<'h> {
    pub(super) now: Moment,
    pub(super) records: &'h HostRecords,
}

impl LivingHosts<'_> {
    fn has_any(&self, hosts: &[ExpertHost]) -> bool {
        hosts.iter().any(|host| self.records.is_listened_to(self.now, &host.peer))
    }
}

impl Eq for OpenPrefix {}

impl PartialOrd for OpenPrefix {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OpenPrefix {
    /// The highest bound is the greatest; of equal ones the longest prefix, which is nearest to its experts, then the first.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_bound = compare(self.bound, other.bound);
        by_bound.then(self.prefix.len().cmp(&other.prefix.len())).then_with(|| other.prefix.cmp(&self.prefix))
    }
}

/// Of finite numbers and infinities.
fn compare(a: f32, b: f32) -> Ordering {
    a.partial_cmp(&b).unwrap_or(Ordering::Equal)
}

impl RowScores<'_> {
    /// The highest score of each dimension, `[n_dimensions]`.
    pub(super) fn highest(grid: &GridShape, scores: &[f32]) -> Vec<f32> {
        let (mut highest, mut rest) = (Vec::with_capacity(grid.n_dimensions()), scores);
        for side in grid.sides() {
            let (of_dimension, others) = rest.split_at(rest.len().min(usize::from(*side)));
            highest.push(of_dimension.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            rest = others;
        }
        highest
    }

    fn of(&self, dimension: usize, index: u16) -> Option<f32> {
        let before: usize = self.grid.sides().iter().take(dimension).map(|side| usize::from(*side)).sum();
        let side = *self.grid.sides().get(dimension)?;
        self.scores.get(before + usize::from(index)).copied().filter(|_| index < side)
    }

    /// Upper bound of the experts below a prefix of this length and score.
    fn bound(&self, n_indices: usize, score: f32) -> f32 {
        self.highest.iter().skip(n_indices).fold(score, |sum, highest| sum + highest)
    }
}

impl RowSearch {
    /// A search that begins at the empty prefix. One of a row with a score that is not finite has no result.
    pub(super) fn new(row: RowScores<'_>, n_active: usize) -> Self {
        let mut open = BinaryHeap::new();
        if row.scores.iter().all(|score| score.is_finite()) && n_active > 0 {
            open.push(OpenPrefix { bound: row.bound(0, 0.0), score: 0.0, prefix: ExpertPrefix::EMPTY });
        }
        Self { n_active, open, pending: Vec::new(), n_expanded: 0, best: Vec::new(), is_exact: true }
    }

    /// Goes on as far as is known. `look_up` says what is known of a prefix; the row waits for those that it says are pending.
    pub(super) fn advance(
        &mut self,
        hosts: LivingHosts<'_>,
        row: RowScores<'_>,
        open_max: usize,
        mut look_up: impl FnMut(&ExpertPrefix) -> PrefixState,
    ) {
        loop {
            let was_full = self.threshold().is_some();
            for pending in std::mem::take(&mut self.pending) {
                self.visit(hosts, row, pending, &mut look_up);
            }
            while self.pending.len() < self.n_pending_max()
                && let Some(next) = self.open.pop()
            {
                if self.is_beaten(next.bound) {
                    self.open.clear();
                    break;
                }
                self.visit(hosts, row, next, &mut look_up);
            }
            // A row that has its experts only now waits no longer for what is late.
            if was_full == self.threshold().is_some() {
                break;
            }
        }
        let best = self.threshold();
        self.pending.retain(|pending| best.is_none_or(|best| pending.bound >= best));
        self.shrink(open_max);
    }

    fn n_pending_max(&self) -> usize {
        self.n_active.max(self.n_expanded).clamp(ROW_PREFIXES_MIN, ROW_PREFIXES_MAX)
    }

    fn visit(
        &mut self,
        hosts: LivingHosts<'_>,
        row: RowScores<'_>,
        open: OpenPrefix,
        look_up: &mut impl FnMut(&ExpertPrefix) -> PrefixState,
    ) {
        if self.is_beaten(open.bound) {
            return;
        }
        match look_up(&open.prefix) {
            PrefixState::Known(next) => {
                self.n_expanded += 1;
                self.expand(hosts, row, open, &next);
            }
            PrefixState::Late if self.threshold().is_some() => self.is_exact = false,
            PrefixState::Pending | PrefixState::Late => self.pending.push(open),
            PrefixState::Unreachable => self.is_exact = false,
        }
    }

    fn expand(&mut self, living: LivingHosts<'_>, row: RowScores<'_>, from: OpenPrefix, next: &NextIndices) {
        let now = living.now;
        let dimension = from.prefix.len();
        let longer = |index: u16| {
            let score = from.score + row.of(dimension, index)?;
            Some((score, from.prefix.then(index).ok()?))
        };
        match next {
            NextIndices::Branches(branches) => {
                for branch in branches.iter().filter(|branch| branch.expires_at > now) {
                    let Some((score, prefix)) = longer(branch.index) else { continue };
                    let bound = row.bound(dimension + 1, score);
                    if !self.is_beaten(bound) {
                        self.open.push(OpenPrefix { bound, score, prefix });
                    }
                }
            }
            NextIndices::Hosts(experts) => {
                let is_alive =
                    |expert: &&NextExpert| expert.expires_at > now && living.has_any(&expert.hosts);
                for expert in experts.iter().filter(is_alive) {
                    let Some((score, prefix)) = longer(expert.index) else { continue };
                    if let Ok(uid) = prefix.try_into() {
                        self.add(FoundExpert { score, uid, hosts: Arc::clone(&expert.hosts) });
                    }
                }
            }
        }
    }

    fn add(&mut self, found: FoundExpert) {
        let is_before = |other: &FoundExpert| {
            compare(found.score, other.score).then_with(|| other.uid.cmp(&found.uid)).is_le()
        };
        // No expert comes twice: each prefix is expanded once, and has each index once.
        self.best.insert(self.best.partition_point(is_before), found);
        self.best.truncate(self.n_active);
    }

    /// Score of the last of the experts that are wanted; none as long as there are fewer.
    fn threshold(&self) -> Option<f32> {
        self.best.get(self.n_active.wrapping_sub(1)).map(|last| last.score)
    }

    /// Whether nothing below a prefix is among the best. At an equal bound an expert with an earlier uid may be.
    fn is_beaten(&self, bound: f32) -> bool {
        self.threshold().is_some_and(|best| bound < best)
    }

    /// Forgets the worse half of the open prefixes where they are too many.
    fn shrink(&mut self, open_max: usize) {
        if self.open.len() <= open_max {
            return;
        }
        let mut open = std::mem::take(&mut self.open).into_vec();
        open.retain(|open| !self.is_beaten(open.bound));
        if open.len() > open_max {
            self.is_exact = false;
            open.sort_unstable_by(|a, b| b.cmp(a));
            open.truncate(open_max / 2);
        }
        self.open = open.into();
    }

    /// Prefixes that it waits for.
    pub(super) fn pending(&self) -> impl Iterator<Item = &ExpertPrefix> {
        self.pending.iter().map(|open| &open.prefix)
    }

    /// Whether nothing more is to be found.
    pub(super) fn is_done(&self) -> bool {
        self.pending.is_empty() && self.open.is_empty()
    }

    /// What was found so far. `order` puts hosts in the order in which they are asked.
    pub(super) fn into_selection(
        self,
        mut order: impl FnMut(&[ExpertHost]) -> Vec<ExpertHost>,
    ) -> RowSelection {
        let is_exact = self.is_exact && self.is_done();
        let select = |FoundExpert { score, uid, hosts }: FoundExpert| {
            let hosts = order(&hosts);
            // Its hosts may have failed since it was found.
            (!hosts.is_empty()).then_some(SelectedExpert { uid, score, hosts })
        };
        RowSelection { experts: self.best.into_iter().filter_map(select).collect(), is_exact }
    }
}
