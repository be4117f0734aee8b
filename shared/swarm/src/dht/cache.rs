//! Records that a peer found, or was given, because they are asked for often. Apart from what it keeps as
//! one of the closest: whatever is here may go at any moment.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use barnraise_protocol::dht::{Key, Record, Refusal, UnixMillis};

use super::storage::{Eviction, Storage, StorageLimits};
use crate::PeerKey;

/// How much is cached, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLimits {
    /// Records, bytes and shares. Default 4,096 records, 8 MiB, 1,024 records of a sender, 256 of an owner.
    pub storage: StorageLimits,
    /// A key that was used is searched for again so long before its first record expires. Default 5 s.
    pub refresh_before: Duration,
    /// Most keys that are searched for again at the same time. Default 16.
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

/// What was found lately. The least recently used gives way.
#[derive(Debug)]
pub struct Cache {
    limits: CacheLimits,
    storage: Storage,
    /// When keys that were used since they were found are due to be searched for again.
    due: BTreeSet<(UnixMillis, Key)>,
    due_of: HashMap<Key, UnixMillis>,
}

impl Cache {
    /// Nothing yet.
    pub fn new(limits: CacheLimits) -> Self {
        let storage = Storage::new(limits.storage.clone(), Eviction::LeastRecentlyUsed);
        Self { limits, storage, due: BTreeSet::new(), due_of: HashMap::new() }
    }

    /// Keeps a record for as long as there is place; `sender` is who found it.
    ///
    /// # Errors
    /// Why not.
    pub fn store(&mut self, now: UnixMillis, sender: &PeerKey, record: Record) -> Result<(), Refusal> {
        self.storage.store(now, sender, record)
    }

    /// What is cached of `key`. The key is searched for again before that expires.
    pub fn get(&mut self, now: UnixMillis, key: &Key) -> Vec<Record> {
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

    /// The same for somebody else, which is no reason to search again.
    pub fn peek(&mut self, now: UnixMillis, key: &Key) -> Vec<Record> {
        self.storage.get(now, key)
    }

    /// Keys to search for again now. Each is named once for each time that it is used.
    pub fn due(&mut self, now: UnixMillis) -> Vec<Key> {
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
