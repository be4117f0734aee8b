//! The search against brute force, with failures and answers in any order; caches, hosts, limits; announcements.

mod announcing;
mod exact;
mod hosts;
mod limits;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::experts::{AnnouncedExpert, LIFETIME, announce, key};
use barnraise_protocol::dht::{Record, RecordKey, UnixMillis};
use barnraise_protocol::experts::{ExpertPrefix, ExpertUid, GridShape, LayerId};

use super::*;
use crate::Moment;
use crate::random::SplitMix64;

pub(super) const RUN: &str = "barn";
pub(super) const LAYER: LayerId = LayerId(3);
const START: UnixMillis = UnixMillis(1_795_000_000_000);
pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn wall(now: Moment) -> UnixMillis {
    START.after(now)
}

pub(super) fn host(at: u8) -> KeyPair {
    KeyPair::from_seed(&[at + 1; 32])
}

pub(super) fn uid(indices: &[u16]) -> ExpertUid {
    ExpertUid::new(indices).unwrap()
}

pub(super) fn place(indices: &[u16]) -> GridPrefix {
    GridPrefix { layer: LAYER, prefix: ExpertPrefix::new(indices).unwrap() }
}

pub(super) fn grid(sides: &[u16]) -> GridShape {
    GridShape::new(sides).unwrap()
}

/// Some uids of a grid, each with this probability in 100.
pub(super) fn some_uids(grid: &GridShape, percent: usize, random: &mut SplitMix64) -> Vec<ExpertUid> {
    (0..).map_while(|number| grid.uid(number)).filter(|_| random.below(100) < percent).collect()
}

/// What a DHT holds.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldRecords(BTreeMap<RecordKey, Vec<Record>>);

impl HeldRecords {
    /// The host announces these experts.
    pub(super) fn announce(
        &mut self,
        host: &KeyPair,
        expires_at: UnixMillis,
        uids: &[ExpertUid],
        n_waiting: u32,
    ) {
        let experts: Vec<AnnouncedExpert> =
            uids.iter().map(|uid| AnnouncedExpert { uid: *uid, n_waiting, n_steps: 7 }).collect();
        let records = announce(host, (RUN, LAYER), &experts, &[vec![4, 127, 0, 0, 1]], expires_at).unwrap();
        for record in records {
            let held = self.0.entry(record.name.key()).or_default();
            match held.iter_mut().find(|other| other.subkey == record.subkey) {
                Some(other) if record.supersedes(other) => *other = record,
                Some(_) => {}
                None => held.push(record),
            }
        }
    }

    pub(super) fn of(uids: &[ExpertUid]) -> Self {
        let mut held = Self::default();
        held.announce(&host(0), wall(LIFETIME), uids, 0);
        held
    }

    pub(super) fn get(&self, prefix: &GridPrefix) -> Vec<Record> {
        self.0.get(&key(RUN, prefix.layer, &prefix.prefix)).cloned().unwrap_or_default()
    }
}

/// The best experts of a row among all of these.
pub(super) fn brute_force(
    grid: &GridShape,
    scores: &[f32],
    n_active: usize,
    alive: &[ExpertUid],
) -> Vec<(ExpertUid, f32)> {
    let score = |uid: &ExpertUid| {
        let mut before = 0;
        uid.indices().iter().zip(grid.sides()).fold(0.0, |sum, (index, side)| {
            let of_dimension = scores[before + usize::from(*index)];
            before += usize::from(*side);
            sum + of_dimension
        })
    };
    let unique: BTreeSet<&ExpertUid> = alive.iter().collect();
    let mut all: Vec<(ExpertUid, f32)> = unique.into_iter().map(|uid| (*uid, score(uid))).collect();
    all.sort_by(|(a, a_score), (b, b_score)| b_score.total_cmp(a_score).then(a.cmp(b)));
    all.truncate(n_active);
    all
}

pub(super) fn query(grid: GridShape, n_active: usize, scores: Vec<f32>) -> ExpertQuery {
    ExpertQuery { layer: LAYER, grid, n_active, scores, deadline: Moment::MAX }
}

pub(super) fn uids(row: &RowSelection) -> Vec<(ExpertUid, f32)> {
    row.experts.iter().map(|expert| (expert.uid, expert.score)).collect()
}

/// Answers lookups until the query is over. Returns its rows and the prefixes that were looked up.
pub(super) fn finish(
    search: &mut ExpertSearch,
    now: Moment,
    held: &HeldRecords,
    wanted: QueryId,
) -> (Vec<RowSelection>, Vec<GridPrefix>) {
    let mut looked_up = Vec::new();
    while let Some(action) = search.poll_action(now) {
        search.check();
        match action {
            ExpertSearchAction::LookUp(prefixes) => {
                for prefix in prefixes {
                    search.on_records(now, wall(now), prefix, &held.get(&prefix));
                    looked_up.push(prefix);
                }
            }
            ExpertSearchAction::Selected { query, rows } => {
                assert_eq!(query, wanted);
                return (rows, looked_up);
            }
        }
    }
    panic!("the query waits for nothing and is not over");
}
