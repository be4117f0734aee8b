//! A cache of records that are looked up often. It is apart from the records that a peer stores as one of the closest: a
//! cached record may be evicted at any moment.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use barnraise_protocol::dht::{DhtRefusal, Record, RecordKey, UnixMillis};

use super::storage::{Eviction, Storage, StorageLimits};
use crate::PeerKey;

/// Capacity of the cache, and when it refreshes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLimits {
    /// Records, bytes and shares. Default 4,096 records, 8 MiB, 1,024 records of a sender, 256 of an owner.
    pub storage: StorageLimits,
    /// A key that was used is looked up again this long before its first record expires. Default 5 s.
    pub refresh_before: Duration,
    /// Most keys that are looked up again at the same time. Default 16.
    pub refreshes_max: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        let storage = StorageLimits {
            records_max: 4096,
            bytes_max: 8 * 1024 * 1024,
            records_per_sender_max: 4096,
            records_per_owner_max: 256,
            ..StorageLimits::default()
        };
        Self { storage, refresh_before: Duration::from_secs(5), refreshes_max: 16 }
    }
}

/// Records that were found lately; evicts the least recently used.
#[derive(Debug)]
pub struct Cache {
    limits: CacheLimits,
    storage: Storage,
    /// Keys that were used since they were found, by the time of their refresh.
    due: BTreeSet<(UnixMillis, RecordKey)>,
    due_of: HashMap<RecordKey, UnixMillis>,
}

impl Cache {
    /// An empty cache.
    pub fn new(limits: CacheLimits) -> Self {
        let storage = Storage::new(limits.storage.clone(), Eviction::LeastRecentlyUsed);
        Self { limits, storage, due: BTreeSet::new(), due_of: HashMap::new() }
    }

    /// Caches a record while there is room; `sender` is the peer that found it.
    ///
    /// # Errors
    /// Why the record is refused.
    pub fn store(&mut self, now: UnixMillis, sender: &PeerKey, record: Record) -> Result<(), DhtRefusal> {
        self.storage.store(now, sender, record)
    }

    /// The cached records of `key`. The key is refreshed before they expire.
    pub fn get(&mut self, now: UnixMillis, key: &RecordKey) -> Vec<Record> {
        let records = self.storage.get(now, key);
        if let Some(first) = records.iter().map(|record| record.expires_at).min()
            && !self.due_of.contains_key(key)
        {
            let due = first.before(self.limits.refresh_before);
            self.due.insert((due, *key));
            self.due_of.insert(*key, due);
        }
        records
    }

    /// The same without a refresh, for lookups of other peers.
    pub fn peek(&mut self, now: UnixMillis, key: &RecordKey) -> Vec<Record> {
        self.storage.get(now, key)
    }

    /// Keys to look up again now; each once per use.
    pub fn due(&mut self, now: UnixMillis) -> Vec<RecordKey> {
        let mut keys = Vec::new();
        while keys.len() < self.limits.refreshes_max
            && let Some(&(due, key)) = self.due.first()
            && due <= now
        {
            self.due.remove(&(due, key));
            self.due_of.remove(&key);
            keys.push(key);
        }
        keys
    }

    /// When the next key is due.
    pub fn next_deadline(&self) -> Option<UnixMillis> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Records cached.
    pub fn n_records(&self) -> usize {
        self.storage.n_records()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::dht::RecordName;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_000_000);

    #[test]
    fn keys_that_were_used_are_looked_up_again_a_few_at_a_time() {
        let limits = CacheLimits {
            refresh_before: Duration::from_secs(5),
            refreshes_max: 2,
            ..CacheLimits::default()
        };
        let mut cache = Cache::new(limits);
        let secs = |secs| NOW.after(Duration::from_secs(secs));
        let record = |label: u8| Record::new(RecordName::value(&[label]), None, vec![], secs(10));
        let keys = [1, 2, 3, 4].map(|label| record(label).name.key());
        assert_eq!(cache.n_records(), 0);
        for label in 1..=4 {
            cache.store(NOW, &PeerKey(vec![1]), record(label)).unwrap();
        }
        assert_eq!(cache.n_records(), 4);
        for key in &keys[..3] {
            assert_eq!(cache.get(NOW, key).len(), 1);
        }
        assert_eq!(cache.peek(NOW, &keys[3]).len(), 1, "no use of its own");
        assert_eq!(cache.next_deadline(), Some(secs(5)));
        assert_eq!(cache.due(UnixMillis(secs(5).0 - 1)), []);
        let mut due = cache.due(secs(5));
        assert_eq!(due.len(), 2);
        due.extend(cache.due(secs(5)));
        due.sort_unstable();
        let mut used = keys[..3].to_vec();
        used.sort_unstable();
        assert_eq!(due, used);
        assert_eq!((cache.due(secs(5)), cache.next_deadline()), (vec![], None));
    }
}
