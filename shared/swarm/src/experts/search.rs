//! Finds the best experts of the rows of batches (Learning@home appendix B, algorithm 1, with the bounds that [`super`]
//! describes).
//!
//! A prefix that several rows, or several queries, wait for is looked up once. After each `on_*` the driver drains
//! [`ExpertSearch::poll_action`].

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::{KEYS_MAX, Record, UnixMillis};
use barnraise_protocol::experts::{ExpertPrefix, ExpertUid, GridShape, LayerId};

use super::hosts::{HostFault, HostRecords};
use super::prefixes::{GridPrefix, NextIndices, PrefixCache};
use super::row::{LivingHosts, PrefixState, RowScores, RowSearch, RowSelection};
use crate::Moment;

/// Most queries at a time, those included whose result was not taken yet.
pub const QUERIES_MAX: usize = 64;
/// Most rows of a query.
pub const QUERY_ROWS_MAX: usize = 1024;
/// Most experts of a row, the paper's k.
pub const ACTIVE_MAX: usize = 64;
/// Most prefixes that one query looks up or takes from the cache. Then it has the best of those.
pub const QUERY_PREFIXES_MAX: usize = 1024;
/// Most prefixes in one lookup. A lookup ends with its slowest key, so that few at a time are soonest there.
pub const LOOKUP_KEYS_MAX: usize = 8;
/// Most prefixes that are being looked up.
pub const PREFIXES_IN_FLIGHT_MAX: usize = 256;
/// Rows that have as many experts as they want do not wait longer than this for a prefix that may have better ones: where all
/// replicas of its records have died, its lookup takes seconds. What is found later is kept for the next query.
pub(super) const LOOKUP_PATIENCE: Duration = Duration::from_secs(1);
/// A lookup that was neither found nor failed after this has failed.
pub(super) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Most open prefixes of all rows of a query.
const OPEN_PREFIXES_MAX: usize = 1 << 20;

const _: () = assert!(LOOKUP_KEYS_MAX <= KEYS_MAX && LOOKUP_KEYS_MAX <= PREFIXES_IN_FLIGHT_MAX);

/// Rows of a batch, and how many experts each of them goes to.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertQuery {
    /// The layer.
    pub layer: LayerId,
    /// Its grid.
    pub grid: GridShape,
    /// Experts of a row at most, 1 to [`ACTIVE_MAX`].
    pub n_active: usize,
    /// Scores of the gating function, `[n_rows, n_scores of the grid]`, with at most [`QUERY_ROWS_MAX`] rows. A row with a score
    /// that is not finite gets no expert.
    pub scores: Vec<f32>,
    /// When the result is wanted, with what was found by then.
    pub deadline: Moment,
}

/// Name of a query among those of one [`ExpertSearch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueryId(pub u64);

/// Why a query is not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Too many are open.
    #[error("{QUERIES_MAX} queries are open: take their results first")]
    Queries,
    /// Scores that are no rows of the grid, or too many.
    #[error("{got} scores, 1 to {QUERY_ROWS_MAX} rows of {row} are possible")]
    Scores {
        /// Scores of a row.
        row: usize,
        /// All that came.
        got: usize,
    },
    /// No experts wanted, or too many.
    #[error("{got} experts for each row, 1 to {ACTIVE_MAX} are possible")]
    Active {
        /// What was wanted.
        got: usize,
    },
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpertSearchAction {
    /// Look these prefixes up, 1 to [`LOOKUP_KEYS_MAX`], all of one run: for each of them [`ExpertSearch::on_records`] or
    /// [`ExpertSearch::on_failed`].
    LookUp(Vec<GridPrefix>),
    /// A query is over. No answer.
    Selected {
        /// Which one.
        query: QueryId,
        /// For each row.
        rows: Vec<RowSelection>,
    },
}

#[derive(Debug)]
struct OpenQuery {
    id: QueryId,
    query: ExpertQuery,
    /// `[n_rows, n_dimensions]`.
    highest: Vec<f32>,
    rows: Vec<RowSearch>,
    /// Prefixes that it used or asked for.
    used: HashSet<ExpertPrefix>,
    failed: HashSet<ExpertPrefix>,
}

/// What a query goes by.
#[derive(Clone, Copy)]
struct KnownPrefixes<'k> {
    cache: &'k PrefixCache,
    is_late: &'k dyn Fn(&GridPrefix) -> bool,
}

#[derive(Debug, Clone, Copy)]
struct OpenLookup {
    /// Length of a prefix whose next indices are experts.
    n_before_hosts: usize,
    began_at: Moment,
    /// It took longer than [`LOOKUP_PATIENCE`].
    is_late: bool,
}

/// The searches of a trainer in one run.
#[derive(Debug)]
pub struct ExpertSearch {
    cache: PrefixCache,
    hosts: HostRecords,
    queries: Vec<OpenQuery>,
    selected: VecDeque<ExpertSearchAction>,
    in_flight: BTreeMap<GridPrefix, OpenLookup>,
    /// Prefixes that rows wait for, with the length of those whose next indices are experts; some of these rows may have found
    /// better experts since.
    wanted: BTreeMap<GridPrefix, usize>,
    /// Prefixes that are still good and due for another lookup.
    refreshed: BTreeMap<GridPrefix, usize>,
    n_queries: u64,
}

impl ExpertSearch {
    /// A search that knows nothing yet. `seed` decides among hosts of the same expert.
    pub fn new(seed: u64) -> Self {
        Self {
            cache: PrefixCache::default(),
            hosts: HostRecords::new(seed),
            queries: Vec::new(),
            selected: VecDeque::new(),
            in_flight: BTreeMap::new(),
            wanted: BTreeMap::new(),
            refreshed: BTreeMap::new(),
            n_queries: 0,
        }
    }

    /// Begins a query.
    ///
    /// # Errors
    /// A query beyond the limits, or scores that are no rows of its grid.
    pub fn begin(&mut self, now: Moment, query: ExpertQuery) -> Result<QueryId, QueryError> {
        let (row, got) = (query.grid.n_scores(), query.scores.len());
        if self.queries.len() + self.selected.len() >= QUERIES_MAX {
            return Err(QueryError::Queries);
        }
        if !(1..=ACTIVE_MAX).contains(&query.n_active) {
            return Err(QueryError::Active { got: query.n_active });
        }
        if got == 0 || got % row != 0 || got / row > QUERY_ROWS_MAX {
            return Err(QueryError::Scores { row, got });
        }
        let id = QueryId(self.n_queries);
        self.n_queries += 1;
        self.queries.push(OpenQuery::new(id, query));
        self.go_on(now, None);
        Ok(id)
    }

    /// Ends a query whose result nobody waits for any more.
    pub fn cancel(&mut self, query: QueryId) {
        self.queries.retain(|open| open.id != query);
        self.forget_unwanted();
    }

    /// A lookup found these records under a prefix, none included. Their signatures were checked; `wall` is now by the clock
    /// of their expirations.
    pub fn on_records(&mut self, now: Moment, wall: UnixMillis, prefix: GridPrefix, records: &[Record]) {
        let Some(lookup) = self.in_flight.remove(&prefix) else { return };
        let has_hosts = prefix.prefix.len() == lookup.n_before_hosts;
        self.cache.insert(now, prefix, NextIndices::read(now, wall, has_hosts, records));
        self.go_on(now, Some(prefix));
    }

    /// A lookup of a prefix failed: the queries that wait for it go on without.
    pub fn on_failed(&mut self, now: Moment, prefix: GridPrefix) {
        if self.in_flight.remove(&prefix).is_some() {
            self.fail(prefix);
            self.go_on(now, Some(prefix));
        }
    }

    /// A host has answered a request well.
    pub fn on_host_answered(&mut self, host: &PublicKey) {
        self.hosts.on_answered(host);
    }

    /// A host is to be left alone for a while.
    pub fn on_host_fault(&mut self, now: Moment, host: PublicKey, fault: HostFault) {
        self.hosts.on_fault(now, host, fault);
    }

    /// The experts that are known to be hosted: layer, place, hosts and steps.
    pub fn hosted(&self, now: Moment) -> impl Iterator<Item = (LayerId, ExpertUid, u32, u64)> {
        self.cache.experts(now)
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Moment) {
        self.cache.expire(now);
        let mut failed = Vec::new();
        for (prefix, lookup) in &mut self.in_flight {
            lookup.is_late |= lookup.began_at + LOOKUP_PATIENCE <= now;
            if lookup.began_at + LOOKUP_TIMEOUT <= now {
                failed.push(*prefix);
            }
        }
        for prefix in failed {
            self.in_flight.remove(&prefix);
            self.fail(prefix);
        }
        self.go_on(now, None);
    }

    /// When to call [`Self::on_timeout`].
    pub fn next_deadline(&self) -> Option<Moment> {
        let lookups = self
            .in_flight
            .values()
            .map(|lookup| lookup.began_at + if lookup.is_late { LOOKUP_TIMEOUT } else { LOOKUP_PATIENCE });
        self.queries.iter().map(|open| open.query.deadline).chain(lookups).min()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Moment) -> Option<ExpertSearchAction> {
        if let Some(selected) = self.selected.pop_front() {
            return Some(selected);
        }
        let n_free = PREFIXES_IN_FLIGHT_MAX.saturating_sub(self.in_flight.len());
        let mut prefixes = Vec::new();
        while prefixes.len() < n_free.min(LOOKUP_KEYS_MAX)
            && let Some((prefix, n_before_hosts)) = self.next_wanted()
        {
            self.in_flight.insert(prefix, OpenLookup { n_before_hosts, began_at: now, is_late: false });
            prefixes.push(prefix);
        }
        (!prefixes.is_empty()).then_some(ExpertSearchAction::LookUp(prefixes))
    }

    /// The next prefix to look up: first those that a row waits for.
    fn next_wanted(&mut self) -> Option<(GridPrefix, usize)> {
        while let Some(wanted) = self.wanted.pop_first() {
            if !self.in_flight.contains_key(&wanted.0)
                && self.queries.iter().any(|open| open.awaits(&wanted.0))
            {
                return Some(wanted);
            }
        }
        while let Some(refreshed) = self.refreshed.pop_first() {
            if !self.in_flight.contains_key(&refreshed.0) {
                return Some(refreshed);
            }
        }
        None
    }

    fn fail(&mut self, prefix: GridPrefix) {
        for open in self.queries.iter_mut().filter(|open| open.query.layer == prefix.layer) {
            if open.used.contains(&prefix.prefix) {
                open.failed.insert(prefix.prefix);
            }
        }
    }

    /// Lets every row that waits for `prefix`, or every row, go on as far as is known. Ends queries that are done or due.
    fn go_on(&mut self, now: Moment, prefix: Option<GridPrefix>) {
        let Self { cache, hosts, queries, selected, in_flight, wanted, refreshed, .. } = self;
        let is_late = |prefix: &GridPrefix| in_flight.get(prefix).is_some_and(|lookup| lookup.is_late);
        let n_before = queries.len();
        for at in (0..queries.len()).rev() {
            let Some(open) = queries.get_mut(at) else { continue };
            if prefix.is_none_or(|prefix| prefix.layer == open.query.layer) {
                let of_layer = prefix.map(|prefix| prefix.prefix);
                let known = KnownPrefixes { cache, is_late: &is_late };
                open.advance(
                    LivingHosts { now, records: hosts },
                    known,
                    (&mut *wanted, &mut *refreshed),
                    of_layer,
                );
            }
            if open.is_done() || open.query.deadline <= now {
                let OpenQuery { id, rows, .. } = queries.remove(at);
                let rows = rows.into_iter().map(|row| row.into_selection(|all| hosts.order(now, all)));
                selected.push_back(ExpertSearchAction::Selected { query: id, rows: rows.collect() });
            }
        }
        if self.queries.len() < n_before {
            self.forget_unwanted();
        }
    }

    /// Keeps no prefix for which no row waits any more.
    fn forget_unwanted(&mut self) {
        let queries = &self.queries;
        self.wanted.retain(|prefix, _| queries.iter().any(|open| open.awaits(prefix)));
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.cache.check();
        assert!(!self.queries.is_empty() || self.wanted.is_empty(), "nobody waits for them");
        assert!(self.in_flight.len() <= PREFIXES_IN_FLIGHT_MAX);
        assert!(self.queries.len() + self.selected.len() <= QUERIES_MAX);
        assert!(self.hosts.len() <= super::hosts::HOSTS_MAX);
        assert!(self.queries.iter().all(|open| open.used.len() <= QUERY_PREFIXES_MAX));
        assert!(self.wanted.len() <= QUERIES_MAX * QUERY_PREFIXES_MAX);
        assert!(self.refreshed.len() <= PREFIXES_IN_FLIGHT_MAX);
    }
}

impl OpenQuery {
    fn new(id: QueryId, query: ExpertQuery) -> Self {
        let (grid, n_active) = (query.grid, query.n_active);
        let scores = query.scores.chunks_exact(grid.n_scores());
        let (mut highest, mut rows) = (Vec::new(), Vec::with_capacity(scores.len()));
        for scores in scores {
            let of_row = RowScores::highest(&grid, scores);
            rows.push(RowSearch::new(RowScores { grid: &grid, scores, highest: &of_row }, n_active));
            highest.extend(of_row);
        }
        Self { id, query, highest, rows, used: HashSet::new(), failed: HashSet::new() }
    }

    fn advance(
        &mut self,
        hosts: LivingHosts<'_>,
        known: KnownPrefixes<'_>,
        (wanted, refreshed): (&mut BTreeMap<GridPrefix, usize>, &mut BTreeMap<GridPrefix, usize>),
        waited_for: Option<ExpertPrefix>,
    ) {
        let Self { query, highest, rows, used, failed, .. } = self;
        let ExpertQuery { layer, grid, scores, .. } = query;
        let open_max = OPEN_PREFIXES_MAX / rows.len().max(1);
        let scores = scores.chunks_exact(grid.n_scores());
        let scores = scores.zip(highest.chunks_exact(grid.n_dimensions()));
        for (row, (scores, highest)) in rows.iter_mut().zip(scores) {
            let waits = waited_for.is_none_or(|prefix| row.pending().any(|pending| *pending == prefix));
            if row.is_done() || !waits {
                continue;
            }
            row.advance(hosts, RowScores { grid, scores, highest }, open_max, |&prefix| {
                if !used.contains(&prefix) && used.len() >= QUERY_PREFIXES_MAX {
                    return PrefixState::Unreachable;
                }
                used.insert(prefix);
                let place = GridPrefix { layer: *layer, prefix };
                match known.cache.get(hosts.now, &place) {
                    None if failed.contains(&prefix) => PrefixState::Unreachable,
                    None if (known.is_late)(&place) => PrefixState::Late,
                    None => {
                        wanted.insert(place, grid.n_dimensions() - 1);
                        PrefixState::Pending
                    }
                    Some((next, is_due)) => {
                        if is_due && refreshed.len() < PREFIXES_IN_FLIGHT_MAX {
                            refreshed.insert(place, grid.n_dimensions() - 1);
                        }
                        PrefixState::Known(next)
                    }
                }
            });
        }
    }

    /// Whether a row waits for a prefix.
    fn awaits(&self, prefix: &GridPrefix) -> bool {
        let mut pending = self.rows.iter().flat_map(RowSearch::pending);
        self.query.layer == prefix.layer && pending.any(|pending| *pending == prefix.prefix)
    }

    fn is_done(&self) -> bool {
        self.rows.iter().all(RowSearch::is_done)
    }
}
