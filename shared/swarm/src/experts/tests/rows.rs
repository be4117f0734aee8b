//! The search of one row, step by step.

use super::super::hosts::HostRecords;
use super::super::prefixes::{NextBranch, NextIndices};
use super::super::row::{LivingHosts, PrefixState, RowScores, RowSearch};
use super::*;

/// A row of a grid of two dimensions, and what is known of its prefixes.
struct SearchedRow {
    grid: GridShape,
    scores: Vec<f32>,
    search: RowSearch,
    /// Of these prefixes it is known what follows them: branches of the root, or an expert.
    known: BTreeMap<ExpertPrefix, NextIndices>,
    looked_up: Vec<u16>,
    hosts: HostRecords,
}

impl SearchedRow {
    fn new(first: &[f32], second: &[f32], n_active: usize) -> Self {
        let grid = grid(&[first.len() as u16, second.len() as u16]);
        let scores = [first, second].concat();
        let highest = RowScores::highest(&grid, &scores);
        let search = RowSearch::new(RowScores { grid: &grid, scores: &scores, highest: &highest }, n_active);
        let mut row = Self {
            grid,
            scores,
            search,
            known: BTreeMap::new(),
            looked_up: Vec::new(),
            hosts: HostRecords::new(1),
        };
        row.branches((0..first.len() as u16).map(|index| (index, Moment::MAX)));
        row
    }

    fn branches(&mut self, branches: impl Iterator<Item = (u16, Moment)>) {
        let branches = branches.map(|(index, expires_at)| NextBranch { index, expires_at });
        self.known.insert(ExpertPrefix::EMPTY, NextIndices::Branches(branches.collect()));
    }

    /// One expert is below a prefix.
    fn know(&mut self, first: u16, second: u16) {
        let held = HeldRecords::of(&[uid(&[first, second])]);
        let now = Moment::ZERO;
        let next = NextIndices::read(now, wall(now), true, &held.get(&place(&[first])));
        self.known.insert(place(&[first]).prefix, next);
    }

    /// Nothing is below a prefix.
    fn know_nothing(&mut self, first: u16) {
        self.known.insert(place(&[first]).prefix, NextIndices::Hosts(Vec::new().into()));
    }

    /// Goes on at 1 s. Returns what it waits for.
    fn advance(&mut self, open_max: usize) -> Vec<u16> {
        let highest = RowScores::highest(&self.grid, &self.scores);
        let row = RowScores { grid: &self.grid, scores: &self.scores, highest: &highest };
        let living = LivingHosts { now: SECOND, records: &self.hosts };
        self.search.advance(living, row, open_max, |prefix| {
            self.looked_up.extend(prefix.indices().first().filter(|first| !self.looked_up.contains(first)));
            self.known.get(prefix).cloned().map_or(PrefixState::Pending, PrefixState::Known)
        });
        let mut pending: Vec<u16> = self.search.pending().map(|prefix| prefix.indices()[0]).collect();
        pending.sort_unstable();
        pending
    }

    /// Its experts, and whether they are the best.
    fn selected(self) -> (Vec<(ExpertUid, f32)>, bool) {
        let selection = self.search.into_selection(<[_]>::to_vec);
        (uids(&selection), selection.is_exact)
    }
}

#[test]
fn where_too_many_prefixes_are_open_the_best_half_stays_and_the_result_says_so() {
    let falling: Vec<f32> = (0..16).map(|at| -(at as f32)).collect();
    for (open_max, n_looked_up, is_exact) in [(12, 16, true), (11, 9, false), (10, 9, false)] {
        let mut row = SearchedRow::new(&falling, &[0.0], 1);
        assert_eq!(row.advance(open_max), [0, 1, 2, 3], "a few at a time, the best first");
        (0..16).for_each(|first| row.know_nothing(first));
        assert_eq!(row.advance(open_max), []);
        assert!(row.search.is_done());
        let in_order: Vec<u16> = (0..n_looked_up).collect();
        assert_eq!(row.looked_up, in_order, "{open_max}");
        assert_eq!(row.selected(), (vec![], is_exact));
    }
}

#[test]
fn prefixes_that_have_nothing_better_any_more_are_not_too_many() {
    // The only expert of the first has 10; bounds are 5 above their first score.
    let first = [10.0, 9.0, 9.0, 9.0, 8.0, 8.0, 8.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    let mut row = SearchedRow::new(&first, &[0.0, 5.0], 1);
    assert_eq!(row.advance(100), [0, 1, 2, 3]);
    row.know(0, 0);
    assert_eq!(row.advance(2), [1, 2, 3, 4], "two are open that may be better, and five that are not");
    (1..12).for_each(|first| row.know_nothing(first));
    assert_eq!(row.advance(2), []);
    assert_eq!(row.looked_up, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(row.selected(), (vec![(uid(&[0, 0]), 10.0)], true));
}

#[test]
fn of_equal_experts_the_first_is_chosen_however_late_it_is_found() {
    let mut row = SearchedRow::new(&[1.0, 1.0, 1.0], &[0.0], 1);
    assert_eq!(row.advance(100), [0, 1, 2]);
    row.know(1, 0);
    assert_eq!(row.advance(100), [0, 2], "they may have one as good");
    row.know(2, 0);
    assert_eq!(row.advance(100), [0]);
    row.know(0, 0);
    assert_eq!(row.advance(100), []);
    assert_eq!(row.selected(), (vec![(uid(&[0, 0]), 1.0)], true));
}

#[test]
fn the_more_a_row_has_seen_the_more_prefixes_it_waits_for() {
    let mut row = SearchedRow::new(&[0.0; 500], &[0.0], 1);
    let mut waits = Vec::new();
    loop {
        let pending = row.advance(1000);
        waits.push(pending.len());
        if pending.is_empty() {
            break;
        }
        pending.into_iter().for_each(|first| row.know_nothing(first));
    }
    assert_eq!(waits[..6], [4, 5, 10, 20, 40, 64], "with the root");
    assert!(waits[6..].iter().all(|n| *n <= 64), "{waits:?}");
    let mut wide = SearchedRow::new(&[0.0; 500], &[0.0], 9);
    assert_eq!(wide.advance(1000).len(), 9, "as many as it wants experts");
}

#[test]
fn a_branch_counts_until_it_expires() {
    let mut row = SearchedRow::new(&[0.0; 3], &[0.0], 1);
    let just_after = SECOND + Duration::from_millis(1);
    row.branches([(0, SECOND), (1, just_after), (2, Moment::ZERO)].into_iter());
    assert_eq!(row.advance(100), [1]);
}

#[test]
fn a_row_that_wants_nothing_finds_nothing() {
    let mut row = SearchedRow::new(&[0.0; 3], &[0.0], 0);
    assert_eq!(row.advance(100), []);
    assert_eq!(row.selected(), (vec![], true));
}
