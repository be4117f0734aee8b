//! A cache of what follows each prefix, nothing included.
//!
//! What was found is used until it is due for another lookup; an entry in it counts no longer than the record that it is from.
//! An entry that is used late is looked up again while it is still good, so that a trainer that searches every second waits for
//! no prefix that it uses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dht::experts::{ExpertHost, read_branch, read_host};
use barnraise_protocol::dht::{Record, SUBKEYS_MAX, UnixMillis};
use barnraise_protocol::experts::{ExpertPrefix, ExpertUid, LayerId};

use crate::Moment;

/// A prefix of the uids of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GridPrefix {
    /// The layer.
    pub layer: LayerId,
    /// The prefix.
    pub prefix: ExpertPrefix,
}

/// What was found under a prefix is used for so long: as long may an expert that appears be unknown.
const PREFIX_LIFETIME: Duration = Duration::from_secs(30);
/// A prefix that is used after this is looked up again meanwhile.
const REFRESH_AFTER: Duration = Duration::from_secs(15);
/// That nothing is under a prefix is believed for so long.
const ABSENT_LIFETIME: Duration = Duration::from_secs(5);
/// Most prefixes that are cached.
pub(super) const CACHED_PREFIXES_MAX: usize = 8192;
/// Most next indices of all of them, and hosts.
pub(super) const CACHED_ENTRIES_MAX: usize = 64 * 1024;

/// What follows a prefix, shared by all who use it.
#[derive(Debug, Clone)]
pub(super) enum NextIndices {
    /// Some expert is below each of these.
    Branches(Arc<[NextBranch]>),
    /// These are experts.
    Hosts(Arc<[NextExpert]>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct NextBranch {
    pub(super) index: u16,
    pub(super) expires_at: Moment,
}

#[derive(Debug, Clone)]
pub(super) struct NextExpert {
    pub(super) index: u16,
    /// Of the last of its hosts.
    pub(super) expires_at: Moment,
    pub(super) hosts: Arc<[ExpertHost]>,
}

#[derive(Debug)]
struct CachedPrefix {
    next: NextIndices,
    refresh_at: Moment,
    expires_at: Moment,
}

/// What was found lately.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    prefixes: HashMap<GridPrefix, CachedPrefix>,
    by_expiration: BTreeSet<(Moment, GridPrefix)>,
    n_entries: usize,
}

impl NextIndices {
    /// What the records of a prefix say, `wall` being now by the clock of the records. Malformed and expired records are left
    /// out.
    pub(super) fn read(now: Moment, wall: UnixMillis, has_hosts: bool, records: &[Record]) -> Self {
        let living = records.iter().take(SUBKEYS_MAX).filter(|record| record.expires_at > wall);
        let living = living
            .map(|record| (record, now + Duration::from_millis(record.expires_at.0.saturating_sub(wall.0))));
        if !has_hosts {
            let branches = living.filter_map(|(record, expires_at)| Some((read_branch(record)?, expires_at)));
            // Each index once, also where it was sent several times.
            let branches: BTreeMap<u16, Moment> = branches.collect();
            let branch = |(index, expires_at)| NextBranch { index, expires_at };
            return Self::Branches(branches.into_iter().map(branch).collect());
        }
        let mut experts: BTreeMap<u16, (Moment, Vec<ExpertHost>)> = BTreeMap::new();
        for (record, expires_at) in living {
            if let Some((index, host)) = read_host(record) {
                let (latest, hosts) = experts.entry(index).or_default();
                *latest = (*latest).max(expires_at);
                hosts.push(host);
            }
        }
        let expert = |(index, (expires_at, hosts)): (u16, (Moment, Vec<ExpertHost>))| NextExpert {
            index,
            expires_at,
            hosts: hosts.into(),
        };
        Self::Hosts(experts.into_iter().map(expert).collect())
    }

    /// Next indices and hosts.
    fn n_entries(&self) -> usize {
        match self {
            Self::Branches(branches) => branches.len(),
            Self::Hosts(experts) => experts.iter().map(|expert| expert.hosts.len()).sum(),
        }
    }
}

impl PrefixCache {
    /// What follows a prefix, and whether it is time to look it up again; `None` where that is not known.
    pub(super) fn get(&self, now: Moment, prefix: &GridPrefix) -> Option<(NextIndices, bool)> {
        let cached = self.prefixes.get(prefix).filter(|cached| cached.expires_at > now)?;
        Some((cached.next.clone(), cached.refresh_at <= now))
    }

    /// The experts under prefixes that were found: each with its layer, its hosts and the most steps that one of them announces.
    pub(super) fn experts(&self, now: Moment) -> impl Iterator<Item = (LayerId, ExpertUid, u32, u64)> {
        let found = self.prefixes.iter().filter(move |(_, cached)| cached.expires_at > now);
        found.flat_map(move |(place, cached)| {
            let experts: &[NextExpert] = match &cached.next {
                NextIndices::Hosts(experts) => experts,
                NextIndices::Branches(_) => &[],
            };
            experts.iter().filter(move |expert| expert.expires_at > now).filter_map(|expert| {
                let uid = ExpertUid::try_from(place.prefix.then(expert.index).ok()?).ok()?;
                let n_steps = expert.hosts.iter().map(|host| host.n_steps).max().unwrap_or_default();
                Some((place.layer, uid, u32::try_from(expert.hosts.len()).unwrap_or(u32::MAX), n_steps))
            })
        })
    }

    /// Keeps what was found. Where there is no room, what expires first goes, but never what was found just now: a row waits
    /// for it.
    pub(super) fn insert(&mut self, now: Moment, prefix: GridPrefix, next: NextIndices) {
        self.remove(&prefix);
        let n_entries = next.n_entries();
        let (refresh_at, expires_at) = match n_entries {
            0 => (now + ABSENT_LIFETIME, now + ABSENT_LIFETIME),
            _ => (now + REFRESH_AFTER, now + PREFIX_LIFETIME),
        };
        self.n_entries += n_entries;
        self.by_expiration.insert((expires_at, prefix));
        self.prefixes.insert(prefix, CachedPrefix { next, refresh_at, expires_at });
        while self.prefixes.len() > CACHED_PREFIXES_MAX || self.n_entries > CACHED_ENTRIES_MAX {
            let first = self.by_expiration.iter().map(|(_, first)| *first).find(|first| *first != prefix);
            let Some(first) = first else { break };
            self.remove(&first);
        }
    }

    /// Forgets what expired.
    pub(super) fn expire(&mut self, now: Moment) {
        while let Some(&(expires_at, prefix)) = self.by_expiration.first()
            && expires_at <= now
        {
            self.remove(&prefix);
        }
    }

    fn remove(&mut self, prefix: &GridPrefix) {
        if let Some(cached) = self.prefixes.remove(prefix) {
            self.n_entries -= cached.next.n_entries();
            self.by_expiration.remove(&(cached.expires_at, *prefix));
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let n_entries: usize = self.prefixes.values().map(|cached| cached.next.n_entries()).sum();
        assert_eq!((n_entries, self.by_expiration.len()), (self.n_entries, self.prefixes.len()));
        assert!(self.prefixes.len() <= CACHED_PREFIXES_MAX && n_entries <= CACHED_ENTRIES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HeldRecords, LAYER, SECOND, host, place, uid, wall};
    use super::*;

    /// What follows a prefix at `now`, when its records were announced by two hosts at 0 for 105 s and for 110 s.
    fn found(now: Moment, prefix: &GridPrefix, has_hosts: bool) -> NextIndices {
        let mut held = HeldRecords::default();
        held.announce(&host(0), wall(105 * SECOND), &[uid(&[1, 0]), uid(&[1, 2])], 0);
        held.announce(&host(1), wall(110 * SECOND), &[uid(&[1, 0])], 0);
        NextIndices::read(now, wall(now), has_hosts, &held.get(prefix))
    }

    fn nothing() -> NextIndices {
        NextIndices::Branches(Arc::new([]))
    }

    fn branches(n: u16) -> NextIndices {
        NextIndices::Branches((0..n).map(|index| NextBranch { index, expires_at: Moment::MAX }).collect())
    }

    /// Some prefix.
    fn prefix(number: usize) -> GridPrefix {
        place(&[(number / 512) as u16, (number % 512) as u16])
    }

    #[test]
    fn records_count_to_the_millisecond() {
        let n_entries = |at_ms| found(Duration::from_millis(at_ms), &place(&[1]), true).n_entries();
        assert_eq!((n_entries(104_999), n_entries(105_000)), (3, 1));
        assert_eq!((n_entries(109_999), n_entries(110_000)), (1, 0));
        let NextIndices::Branches(root) = found(100 * SECOND, &place(&[]), false) else { panic!() };
        assert_eq!((root.len(), root[0].index, root[0].expires_at), (1, 1, 110 * SECOND));
    }

    #[test]
    fn the_experts_that_are_told_are_those_that_are_there() {
        let mut cache = PrefixCache::default();
        cache.insert(79 * SECOND, place(&[]), found(79 * SECOND, &place(&[]), false));
        cache.insert(79 * SECOND, place(&[1]), found(79 * SECOND, &place(&[1]), true));
        let told = |cache: &PrefixCache, at_ms| -> Vec<(LayerId, ExpertUid, u32, u64)> {
            cache.experts(Duration::from_millis(at_ms)).collect()
        };
        let both = vec![(LAYER, uid(&[1, 0]), 2, 7), (LAYER, uid(&[1, 2]), 1, 7)];
        assert_eq!(told(&cache, 104_999), both);
        assert_eq!(told(&cache, 105_000), both[..1]);
        assert_eq!(told(&cache, 108_999), both[..1]);
        assert_eq!(told(&cache, 109_000), [], "what was found is too old");
    }

    #[test]
    fn what_was_found_is_due_and_forgotten_to_the_millisecond() {
        let mut cache = PrefixCache::default();
        cache.insert(Moment::ZERO, prefix(0), branches(3));
        cache.insert(Moment::ZERO, prefix(1), nothing());
        let due = |cache: &PrefixCache, number, at_ms| {
            cache.get(Duration::from_millis(at_ms), &prefix(number)).map(|(_, is_due)| is_due)
        };
        let of_some = [14_999, 15_000, 29_999, 30_000].map(|at| due(&cache, 0, at));
        assert_eq!(of_some, [Some(false), Some(true), Some(true), None]);
        assert_eq!([4_999, 5_000].map(|at| due(&cache, 1, at)), [Some(false), None]);
        for (at_ms, n_left) in [(4_999, 2), (5_000, 1), (29_999, 1), (30_000, 0)] {
            cache.expire(Duration::from_millis(at_ms));
            assert_eq!((cache.prefixes.len(), cache.by_expiration.len()), (n_left, n_left), "{at_ms}");
        }
    }

    #[test]
    fn the_cache_forgets_what_expires_first_and_never_what_was_found_just_now() {
        let mut cache = PrefixCache::default();
        (0..CACHED_PREFIXES_MAX)
            .for_each(|at| cache.insert(SECOND * (at / 4096) as u32, prefix(at), branches(1)));
        assert_eq!(cache.prefixes.len(), CACHED_PREFIXES_MAX, "as many as there may be");
        let is_known = |cache: &PrefixCache, at| cache.get(SECOND, &prefix(at)).is_some();
        cache.insert(SECOND, prefix(9000), nothing());
        assert_eq!((is_known(&cache, 0), is_known(&cache, 1), is_known(&cache, 9000)), (false, true, true));
        cache.insert(SECOND, prefix(9001), branches(1));
        assert_eq!(
            (is_known(&cache, 1), is_known(&cache, 9000), is_known(&cache, 9001)),
            (true, false, true)
        );
        cache.check();
        // Likewise by what is in them.
        let mut cache = PrefixCache::default();
        (0..128).for_each(|at| cache.insert(Moment::ZERO, prefix(at), branches(512)));
        assert_eq!((cache.prefixes.len(), cache.n_entries), (128, CACHED_ENTRIES_MAX));
        cache.insert(SECOND, prefix(7), branches(512));
        assert_eq!(cache.n_entries, CACHED_ENTRIES_MAX, "in the place of the one before");
        cache.insert(SECOND, prefix(500), branches(1));
        assert_eq!((is_known(&cache, 0), is_known(&cache, 1), is_known(&cache, 500)), (false, true, true));
        cache.check();
    }
}
