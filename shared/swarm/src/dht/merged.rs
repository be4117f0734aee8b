//! Merges the records that several peers hold of one key.

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::dht::{Record, SUBKEYS_MAX, Subkey, UnixMillis};

/// The newest record of each subkey. Expiration and signature are checked only of records that change it: the same
/// record from five peers costs one signature check.
#[derive(Debug, Clone, Default)]
pub struct MergedRecords {
    records: BTreeMap<Option<Subkey>, Record>,
}

impl MergedRecords {
    /// Adds the records of a peer; returns how many of them were valid, new or not.
    ///
    /// The caller has checked that they belong to the key.
    pub fn add(
        &mut self,
        now: UnixMillis,
        lifetime_max: Duration,
        records: impl IntoIterator<Item = Record>,
    ) -> usize {
        records.into_iter().map(|record| usize::from(self.add_one(now, lifetime_max, record))).sum()
    }

    /// Adds records that were checked when they were stored here.
    pub fn add_checked(&mut self, records: impl IntoIterator<Item = Record>) {
        for record in records {
            if self.records.get(&record.subkey).is_none_or(|held| record.supersedes(held)) {
                self.records.insert(record.subkey.clone(), record);
            }
        }
    }

    fn add_one(&mut self, now: UnixMillis, lifetime_max: Duration, record: Record) -> bool {
        if let Some(held) = self.records.get(&record.subkey)
            && !record.supersedes(held)
        {
            return record == *held;
        }
        let has_place = self.records.len() < SUBKEYS_MAX || self.records.contains_key(&record.subkey);
        if !has_place || record.check(now, lifetime_max).is_err() {
            return false;
        }
        self.records.insert(record.subkey.clone(), record);
        true
    }

    /// Whether no peer had a record.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The records, by subkey.
    pub fn into_records(self) -> Vec<Record> {
        self.records.into_values().collect()
    }
}
