//! Any sequence of queries, records, failures and pauses: no limit is passed, no prefix is looked up twice at a time, and each
//! query has its result once, by its deadline, with experts that were announced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::dht::Record;
use barnraise_protocol::experts::GridShape;

use super::tests::{HeldRecords, LAYER, SECOND, grid, host, some_uids, wall};
use super::*;
use crate::Moment;
use crate::random::SplitMix64;

const SIDES: [u16; 3] = [5, 4, 3];

#[derive(Debug, Arbitrary)]
enum SearchOperation {
    /// Scores are bytes, so that some are equal.
    Begin {
        scores: [i8; 12],
        n_active: u8,
        n_rows: u8,
        seconds: u8,
    },
    Cancel {
        which: u8,
    },
    /// One of the open lookups finds what there is.
    Find {
        which: u8,
    },
    /// A peer that has other records under a key than belong there, or bytes of its own, does not pass the checks of the DHT;
    /// a record of any label and value does.
    Forge {
        which: u8,
        label: Vec<u8>,
        value: Vec<u8>,
    },
    Fail {
        which: u8,
    },
    /// Of a prefix that was not asked for.
    Stray {
        index: u16,
    },
    Pass {
        seconds: u8,
    },
    Fault {
        is_host: bool,
        is_absurd: bool,
    },
    Answered,
}

struct SearchWorld {
    now: Moment,
    grid: GridShape,
    held: HeldRecords,
    search: ExpertSearch,
    in_flight: Vec<GridPrefix>,
    open: BTreeMap<QueryId, (Moment, usize, usize)>,
    n_selected: usize,
}

impl SearchWorld {
    fn new() -> Self {
        let grid = grid(&SIDES);
        let mut held = HeldRecords::default();
        let mut random = SplitMix64::new(5);
        for at in 0..2 {
            held.announce(
                &host(at),
                wall(Duration::from_secs(300)),
                &some_uids(&grid, 30, &mut random),
                at.into(),
            );
        }
        Self {
            now: Moment::ZERO,
            grid,
            held,
            search: ExpertSearch::new(1),
            in_flight: Vec::new(),
            open: BTreeMap::new(),
            n_selected: 0,
        }
    }

    fn on(&mut self, operation: &SearchOperation) {
        let now = self.now;
        match operation {
            SearchOperation::Begin { scores, n_active, n_rows, seconds } => {
                let (n_active, n_rows) = (usize::from(n_active % 8), usize::from(n_rows % 4));
                let scores = scores.iter().cycle().map(|score| f32::from(*score) / 4.0);
                let scores: Vec<f32> = scores.take(n_rows * self.grid.n_scores()).collect();
                let deadline = now + Duration::from_secs((*seconds).into());
                let query = ExpertQuery { layer: LAYER, grid: self.grid, n_active, scores, deadline };
                if let Ok(id) = self.search.begin(now, query) {
                    self.open.insert(id, (deadline, n_rows, n_active));
                }
            }
            SearchOperation::Cancel { which } => {
                let open = self.open.keys().nth(usize::from(*which)).copied();
                if let Some(id) = open {
                    self.search.cancel(id);
                    self.open.remove(&id);
                }
            }
            SearchOperation::Find { which } => {
                if let Some(prefix) = self.take(*which) {
                    self.search.on_records(now, wall(now), prefix, &self.held.get(&prefix));
                }
            }
            SearchOperation::Forge { which, label, value } => {
                if let Some(prefix) = self.take(*which) {
                    let mut records = self.held.get(&prefix);
                    let name = barnraise_protocol::dht::RecordName::dictionary(b"forged");
                    let place = Some(barnraise_protocol::dht::Subkey::new(label.clone()));
                    records.push(Record::new(name, place, value.clone(), wall(now + SECOND)));
                    self.search.on_records(now, wall(now), prefix, &records);
                }
            }
            SearchOperation::Fail { which } => {
                if let Some(prefix) = self.take(*which) {
                    self.search.on_failed(now, prefix);
                }
            }
            SearchOperation::Stray { index } => {
                let Ok(prefix) = barnraise_protocol::experts::ExpertPrefix::new(&[*index]) else { return };
                let prefix = GridPrefix { layer: LAYER, prefix };
                if !self.in_flight.contains(&prefix) {
                    self.search.on_records(now, wall(now), prefix, &self.held.get(&prefix));
                    self.search.on_failed(now, prefix);
                }
            }
            SearchOperation::Pass { seconds } => {
                self.now += Duration::from_secs((*seconds).into());
                self.search.on_timeout(self.now);
                self.in_flight.clear();
                let late = self.search.next_deadline().is_some_and(|due| due <= self.now);
                assert!(!late, "what is due was done");
            }
            SearchOperation::Fault { is_host, is_absurd } => {
                let fault = if *is_absurd { HostFault::Absurd } else { HostFault::Failed };
                self.search.on_host_fault(now, host(u8::from(*is_host)).public(), fault);
            }
            SearchOperation::Answered => self.search.on_host_answered(&host(0).public()),
        }
        self.drain();
    }

    fn take(&mut self, which: u8) -> Option<GridPrefix> {
        let n_open = self.in_flight.len();
        (n_open > 0).then(|| self.in_flight.swap_remove(usize::from(which) % n_open))
    }

    fn drain(&mut self) {
        while let Some(action) = self.search.poll_action(self.now) {
            match action {
                ExpertSearchAction::LookUp(prefixes) => {
                    assert!((1..=LOOKUP_KEYS_MAX).contains(&prefixes.len()));
                    assert!(prefixes.iter().all(|prefix| !self.in_flight.contains(prefix)));
                    self.in_flight.extend(prefixes);
                }
                ExpertSearchAction::Selected { query, rows } => self.on_selected(query, &rows),
            }
        }
        self.search.check();
    }

    fn on_selected(&mut self, query: QueryId, rows: &[RowSelection]) {
        // One that was cancelled after its end.
        let Some((_, n_rows, n_active)) = self.open.remove(&query) else { return };
        assert_eq!(rows.len(), n_rows);
        for row in rows {
            assert!(row.experts.len() <= n_active);
            let unique: BTreeSet<_> = row.experts.iter().map(|expert| expert.uid).collect();
            assert_eq!(unique.len(), row.experts.len());
            assert!(row.experts.is_sorted_by(|a, b| a.score >= b.score));
            for expert in &row.experts {
                assert!(self.grid.contains(&expert.uid) && !expert.hosts.is_empty());
                let hosts = [host(0).public(), host(1).public()];
                assert!(expert.hosts.iter().all(|host| hosts.contains(&host.peer)));
            }
        }
        self.n_selected += 1;
    }
}

#[test]
fn expert_search_sequence() {
    fuzz!("expert_search_sequence", |input| {
        let Some(operations) = value::<Vec<SearchOperation>>(input) else { return };
        let mut world = SearchWorld::new();
        operations.iter().take(200).for_each(|operation| world.on(operation));
    });
}

mod tests {
    use super::*;

    /// Operations by chance reach what the search is for.
    #[test]
    fn sequences_reach_results() {
        let mut random = SplitMix64::new(3);
        let mut world = SearchWorld::new();
        for _ in 0..3000 {
            let which = random.below(256) as u8;
            let operation = match random.below(20) {
                0 => SearchOperation::Begin { scores: [which as i8; 12], n_active: 3, n_rows: 2, seconds: 9 },
                1 => SearchOperation::Pass { seconds: which % 4 },
                2 => SearchOperation::Fail { which },
                _ => SearchOperation::Find { which },
            };
            world.on(&operation);
        }
        assert!(world.n_selected > 50, "{}", world.n_selected);
    }
}
