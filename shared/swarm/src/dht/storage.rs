//! Records that a peer stores for others, until they expire.
//!
//! The stored record of a subkey does not depend on the order of arrival: it is the one that supersedes all others. When
//! the storage is full, records of the sender with the most records are evicted, so a peer with ten thousand records
//! evicts its own. Signatures are checked before anything changes.

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::{
    DICTIONARY_BYTES_MAX, DhtRefusal, Record, RecordKey, SUBKEYS_MAX, Subkey, UnixMillis,
};

use crate::PeerKey;

/// Capacity, quotas and the longest lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageLimits {
    /// Records in all. Default 16,384.
    pub records_max: usize,
    /// Their bytes, by [`Record::n_bytes`]. Default 32 MiB.
    pub bytes_max: usize,
    /// Records that one peer sent. Default 4,096.
    pub records_per_sender_max: usize,
    /// Records that one key signed. Default 1,024.
    pub records_per_owner_max: usize,
    /// How far in the future a record may expire. Default 24 h, and 30 s for clocks that differ.
    pub lifetime_max: Duration,
}

impl Default for StorageLimits {
    fn default() -> Self {
        Self {
            records_max: 16 * 1024,
            bytes_max: 32 * 1024 * 1024,
            records_per_sender_max: 4096,
            records_per_owner_max: 1024,
            lifetime_max: Duration::from_secs(24 * 3600 + 30),
        }
    }
}

/// Which record of the sender with the most records is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// The record that expires first.
    EarliestExpiry,
    /// The least recently used record.
    LeastRecentlyUsed,
}

type EntryId = u64;

#[derive(Debug)]
struct Entry {
    record: Record,
    key: RecordKey,
    sender: PeerKey,
    /// The sender's record with the smallest rank is evicted first.
    rank: u64,
}

#[derive(Debug, Default)]
struct Slot {
    entries: BTreeMap<Option<Subkey>, EntryId>,
    n_bytes: usize,
}

/// The records that a peer stores.
#[derive(Debug)]
pub struct Storage {
    limits: StorageLimits,
    eviction: Eviction,
    entries: HashMap<EntryId, Entry>,
    slots: HashMap<RecordKey, Slot>,
    n_bytes: usize,
    by_expiry: BTreeSet<(UnixMillis, EntryId)>,
    by_sender: HashMap<PeerKey, BTreeSet<(u64, EntryId)>>,
    /// Senders by their number of records; the last one has the most.
    senders: BTreeSet<(usize, PeerKey)>,
    by_owner: HashMap<PublicKey, usize>,
    next_id: EntryId,
    uses: u64,
}

impl Storage {
    /// An empty storage.
    pub fn new(limits: StorageLimits, eviction: Eviction) -> Self {
        Self {
            limits,
            eviction,
            entries: HashMap::new(),
            slots: HashMap::new(),
            n_bytes: 0,
            by_expiry: BTreeSet::new(),
            by_sender: HashMap::new(),
            senders: BTreeSet::new(),
            by_owner: HashMap::new(),
            next_id: 0,
            uses: 0,
        }
    }

    /// Stores a record that `sender` sent over its own connection.
    ///
    /// # Errors
    /// Why the record is refused; nothing has changed then.
    pub fn store(&mut self, now: UnixMillis, sender: &PeerKey, record: Record) -> Result<(), DhtRefusal> {
        self.on_timeout(now);
        record.check_shape()?;
        record.check_time(now, self.limits.lifetime_max)?;
        let key = record.name.key();
        let held = self.slots.get(&key).and_then(|slot| slot.entries.get(&record.subkey)).copied();
        if let Some(old) = held.and_then(|id| self.entries.get(&id)) {
            if old.record == record {
                return Ok(());
            }
            if !record.supersedes(&old.record) {
                return Err(DhtRefusal::Older { held: old.record.expires_at });
            }
        }
        let evicted = self.make_room(&key, &record, sender, held)?;
        // The most expensive check comes last.
        record.check_signature()?;
        for id in evicted.into_iter().chain(held) {
            self.remove(id);
        }
        self.insert(key, record, sender.clone());
        Ok(())
    }

    /// The records of `key` at `now`; counts as a use.
    pub fn get(&mut self, now: UnixMillis, key: &RecordKey) -> Vec<Record> {
        self.on_timeout(now);
        let Some(slot) = self.slots.get(key) else { return Vec::new() };
        let ids: Vec<EntryId> = slot.entries.values().copied().collect();
        if self.eviction == Eviction::LeastRecentlyUsed {
            self.uses += 1;
            ids.iter().for_each(|id| self.set_rank(*id, self.uses));
        }
        ids.iter().filter_map(|id| self.entries.get(id)).map(|entry| entry.record.clone()).collect()
    }

    /// Drops the records that have expired at `now`.
    pub fn on_timeout(&mut self, now: UnixMillis) {
        while let Some(&(expires_at, id)) = self.by_expiry.first()
            && expires_at <= now
        {
            self.remove(id);
        }
    }

    /// When the next record expires.
    pub fn next_deadline(&self) -> Option<UnixMillis> {
        self.by_expiry.first().map(|(expires_at, _)| *expires_at)
    }

    /// All records, in no order.
    pub fn records(&self) -> impl Iterator<Item = (&RecordKey, &Record)> {
        self.entries.values().map(|entry| (&entry.key, &entry.record))
    }

    /// Records held.
    pub fn n_records(&self) -> usize {
        self.entries.len()
    }

    /// Their bytes, by [`Record::n_bytes`].
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// How far in the future a record may expire.
    pub fn lifetime_max(&self) -> Duration {
        self.limits.lifetime_max
    }

    /// The entries to evict for `record`: first in its dictionary, then in the whole storage.
    fn make_room(
        &self,
        key: &RecordKey,
        record: &Record,
        sender: &PeerKey,
        held: Option<EntryId>,
    ) -> Result<Vec<EntryId>, DhtRefusal> {
        let held = held.and_then(|id| self.entries.get(&id));
        let is_new_owner = |owner: &PublicKey| held.is_none_or(|old| old.record.owner() != Some(*owner));
        if let Some(owner) = record.owner().filter(is_new_owner)
            && self.by_owner.get(&owner).is_some_and(|n| *n >= self.limits.records_per_owner_max)
        {
            return Err(DhtRefusal::Quota { max: self.limits.records_per_owner_max as u64 });
        }
        let is_new_sender = held.is_none_or(|old| old.sender != *sender);
        if is_new_sender && self.n_of_sender(sender) >= self.limits.records_per_sender_max {
            return Err(DhtRefusal::Quota { max: self.limits.records_per_sender_max as u64 });
        }
        let held_bytes = held.map_or(0, |old| old.record.n_bytes());
        let mut evicted = self.make_room_in_slot(key, record, sender, held)?;
        let freed: usize =
            evicted.iter().filter_map(|id| self.entries.get(id)).map(|e| e.record.n_bytes()).sum();
        let mut n_records = self.entries.len() + usize::from(held.is_none()) - evicted.len();
        let mut n_bytes = self.n_bytes + record.n_bytes() - held_bytes - freed;
        if n_records <= self.limits.records_max && n_bytes <= self.limits.bytes_max {
            return Ok(evicted);
        }
        let (n_most, largest) = self.senders.last().ok_or(DhtRefusal::Full)?;
        // A sender that has as many records as the largest evicts its own.
        let victim = if self.n_of_sender(sender) >= *n_most { sender } else { largest };
        let held_at = held.map(|_| &record.subkey);
        for (_, id) in self.by_sender.get(victim).into_iter().flatten() {
            let Some(entry) = self.entries.get(id) else { continue };
            let is_same_place = entry.key == *key && held_at == Some(&entry.record.subkey);
            if is_same_place || evicted.contains(id) {
                continue;
            }
            if victim == sender && self.eviction == Eviction::EarliestExpiry && !outlives(record, entry) {
                break;
            }
            evicted.push(*id);
            n_records -= 1;
            n_bytes -= entry.record.n_bytes();
            if n_records <= self.limits.records_max && n_bytes <= self.limits.bytes_max {
                return Ok(evicted);
            }
        }
        Err(DhtRefusal::Full)
    }

    /// The entries to evict in one dictionary, by the same rule.
    fn make_room_in_slot(
        &self,
        key: &RecordKey,
        record: &Record,
        sender: &PeerKey,
        held: Option<&Entry>,
    ) -> Result<Vec<EntryId>, DhtRefusal> {
        let Some(slot) = self.slots.get(key) else { return Ok(Vec::new()) };
        let mut n_records = slot.entries.len() + usize::from(held.is_none());
        let mut n_bytes = slot.n_bytes + record.n_bytes() - held.map_or(0, |old| old.record.n_bytes());
        let fits =
            |n_records: usize, n_bytes: usize| n_records <= SUBKEYS_MAX && n_bytes <= DICTIONARY_BYTES_MAX;
        if fits(n_records, n_bytes) {
            return Ok(Vec::new());
        }
        let others = || slot.entries.iter().filter(|(subkey, _)| **subkey != record.subkey);
        let mut of_senders: HashMap<&PeerKey, Vec<(UnixMillis, EntryId)>> = HashMap::new();
        for (id, entry) in others().filter_map(|(_, id)| Some((id, self.entries.get(id)?))) {
            of_senders.entry(&entry.sender).or_default().push((entry.record.expires_at, *id));
        }
        let n_own = of_senders.get(sender).map_or(0, Vec::len);
        let most = of_senders.iter().max_by_key(|(peer, ids)| (ids.len(), **peer)).ok_or(DhtRefusal::Full)?;
        let victim = if n_own >= most.1.len() { sender } else { *most.0 };
        let mut candidates = of_senders.remove(victim).unwrap_or_default();
        candidates.sort_unstable();
        let mut evicted = Vec::new();
        for (_, id) in candidates {
            let Some(entry) = self.entries.get(&id) else { continue };
            if victim == sender && !outlives(record, entry) {
                break;
            }
            evicted.push(id);
            n_records -= 1;
            n_bytes -= entry.record.n_bytes();
            if fits(n_records, n_bytes) {
                return Ok(evicted);
            }
        }
        Err(DhtRefusal::Full)
    }

    fn n_of_sender(&self, sender: &PeerKey) -> usize {
        self.by_sender.get(sender).map_or(0, BTreeSet::len)
    }

    fn insert(&mut self, key: RecordKey, record: Record, sender: PeerKey) {
        let id = self.next_id;
        self.next_id += 1;
        let rank = match self.eviction {
            Eviction::EarliestExpiry => record.expires_at.0,
            // Of the same rank, the older entry has the smaller id.
            Eviction::LeastRecentlyUsed => self.uses,
        };
        let slot = self.slots.entry(key).or_default();
        slot.entries.insert(record.subkey.clone(), id);
        slot.n_bytes += record.n_bytes();
        self.n_bytes += record.n_bytes();
        self.by_expiry.insert((record.expires_at, id));
        if let Some(owner) = record.owner() {
            *self.by_owner.entry(owner).or_default() += 1;
        }
        let of_sender = self.by_sender.entry(sender.clone()).or_default();
        self.senders.remove(&(of_sender.len(), sender.clone()));
        of_sender.insert((rank, id));
        self.senders.insert((of_sender.len(), sender.clone()));
        self.entries.insert(id, Entry { record, key, sender, rank });
    }

    fn remove(&mut self, id: EntryId) {
        let Some(Entry { record, key, sender, rank }) = self.entries.remove(&id) else { return };
        self.n_bytes -= record.n_bytes();
        self.by_expiry.remove(&(record.expires_at, id));
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.entries.remove(&record.subkey);
            slot.n_bytes -= record.n_bytes();
            if slot.entries.is_empty() {
                self.slots.remove(&key);
            }
        }
        if let Some(owner) = record.owner()
            && let Some(n) = self.by_owner.get_mut(&owner)
        {
            *n -= 1;
            if *n == 0 {
                self.by_owner.remove(&owner);
            }
        }
        if let Some(of_sender) = self.by_sender.get_mut(&sender) {
            self.senders.remove(&(of_sender.len(), sender.clone()));
            of_sender.remove(&(rank, id));
            if of_sender.is_empty() {
                self.by_sender.remove(&sender);
            } else {
                self.senders.insert((of_sender.len(), sender));
            }
        }
    }

    fn set_rank(&mut self, id: EntryId, rank: u64) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(of_sender) = self.by_sender.get_mut(&entry.sender) {
            of_sender.remove(&(entry.rank, id));
            of_sender.insert((rank, id));
        }
        entry.rank = rank;
    }
}

fn outlives(record: &Record, entry: &Entry) -> bool {
    record.expires_at > entry.record.expires_at
}
