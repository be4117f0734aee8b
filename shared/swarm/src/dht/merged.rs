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

    /// The records, by subkey.
    pub fn into_records(self) -> Vec<Record> {
        self.records.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::dht::RecordName;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_000_000);
    const LIFETIME: Duration = Duration::from_secs(60);

    fn entry(subkey: u16, value: u8, expires_in: Duration) -> Record {
        let subkey = Some(Subkey::new(subkey.to_be_bytes()));
        Record::new(RecordName::dictionary(b"dictionary"), subkey, vec![value], NOW.after(expires_in))
    }

    #[test]
    fn the_newest_valid_record_of_each_subkey_is_kept() {
        let mut merged = MergedRecords::default();
        let (old, new) = (entry(1, 1, LIFETIME / 2), entry(1, 1, LIFETIME));
        let invalid = [entry(2, 1, Duration::ZERO), entry(1, 1, LIFETIME + Duration::from_secs(1))];
        assert_eq!(merged.add(NOW, LIFETIME, [old.clone(), invalid[0].clone()]), 1);
        assert_eq!(merged.add(NOW, LIFETIME, [old.clone()]), 1, "valid, if not new");
        assert_eq!(merged.add(NOW, LIFETIME, [new.clone(), entry(2, 1, LIFETIME)]), 2);
        assert_eq!(merged.add(NOW, LIFETIME, [old].into_iter().chain(invalid)), 0);
        assert_eq!(merged.into_records(), [new, entry(2, 1, LIFETIME)]);
    }

    #[test]
    fn records_that_were_checked_before_replace_older_ones_only() {
        let mut merged = MergedRecords::default();
        let (old, new) = (entry(1, 1, LIFETIME / 2), entry(1, 1, LIFETIME));
        merged.add_checked([old.clone()]);
        merged.add_checked([new.clone(), entry(2, 1, LIFETIME)]);
        merged.add_checked([old]);
        assert_eq!(merged.into_records(), [new, entry(2, 1, LIFETIME)]);
    }

    #[test]
    fn peers_together_add_no_more_subkeys_than_a_dictionary_has() {
        let mut merged = MergedRecords::default();
        let n_most = SUBKEYS_MAX as u16;
        let all = (0..=n_most).map(|subkey| entry(subkey, 1, LIFETIME / 2));
        assert_eq!(merged.add(NOW, LIFETIME, all), SUBKEYS_MAX);
        assert_eq!(merged.add(NOW, LIFETIME, [entry(0, 1, LIFETIME)]), 1, "a newer one has its place");
        assert_eq!(merged.into_records().len(), SUBKEYS_MAX);
    }
}
