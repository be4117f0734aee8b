//! Any sequence of records of any senders: no expired record is returned, no older record replaces a newer one, a refused
//! record changes nothing, and the limits hold.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::RecordName;

use super::*;

const LIFETIME: Duration = Duration::from_millis(100);

#[derive(Debug, Arbitrary)]
struct StorageCase {
    n_records: u8,
    n_kilobytes: u8,
    n_of_sender: u8,
    n_of_owner: u8,
    by_use: bool,
    operations: Vec<StorageOperation>,
}

#[derive(Debug, Arbitrary)]
enum StorageOperation {
    Store { sender: u8, what: What },
    Get { place: u8 },
    Pass { millis: u8 },
    Timeout,
}

/// A record among few, so that subkeys repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Arbitrary)]
struct What {
    name: u8,
    subkey: Option<u8>,
    owner: Option<u8>,
    length: u8,
    byte: u8,
    expires: u8,
    is_forged: bool,
}

impl What {
    fn name(self) -> RecordName {
        let label = [self.name % 3];
        let name =
            if self.subkey.is_some() { RecordName::dictionary(&label) } else { RecordName::value(&label) };
        match (self.owner, self.subkey) {
            (Some(owner), None) => name.owned_by(pair(owner).public()),
            _ => name,
        }
    }

    /// Expiration counts from the beginning.
    fn record(self) -> Record {
        static SIGNED: Mutex<Vec<(What, Record)>> = Mutex::new(Vec::new());
        let owner = self.owner.map(|owner| pair(owner).public());
        let subkey = self.subkey.map(|label| Subkey { owner, label: vec![label % 4] });
        let value = vec![self.byte; 16 * usize::from(self.length)];
        let expires_at = UnixMillis(u64::from(self.expires) * 4);
        let Some(owner) = self.owner else { return Record::new(self.name(), subkey, value, expires_at) };
        // Signing is slow.
        let mut signed = SIGNED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, record)) = signed.iter().find(|(what, _)| *what == self) {
            return record.clone();
        }
        let mut record = Record::sign(&pair(owner), self.name(), subkey, value, expires_at).unwrap();
        if self.is_forged {
            record.value.push(0);
        }
        signed.truncate(256);
        signed.push((self, record.clone()));
        record
    }
}

fn pair(name: u8) -> KeyPair {
    KeyPair::from_seed(&[name % 3; 32])
}

type RecordSlot = (RecordKey, Option<Subkey>);

/// The storage and a model of it.
struct StorageModel {
    storage: Storage,
    now: UnixMillis,
    kept: BTreeMap<RecordSlot, (PeerKey, Record)>,
}

impl StorageModel {
    fn new(case: &StorageCase) -> Self {
        let limits = StorageLimits {
            records_max: 1 + usize::from(case.n_records % 16),
            bytes_max: 1024 * (1 + usize::from(case.n_kilobytes % 16)),
            records_per_sender_max: 1 + usize::from(case.n_of_sender % 8),
            records_per_owner_max: 1 + usize::from(case.n_of_owner % 8),
            lifetime_max: LIFETIME,
        };
        let eviction = if case.by_use { Eviction::LeastRecentlyUsed } else { Eviction::EarliestExpiry };
        Self { storage: Storage::new(limits, eviction), now: UnixMillis(0), kept: BTreeMap::new() }
    }

    fn on(&mut self, operation: &StorageOperation) {
        match *operation {
            StorageOperation::Store { sender, what } => self.store(PeerKey(vec![sender % 4]), what.record()),
            StorageOperation::Get { place } => {
                let name = What {
                    name: place,
                    subkey: None,
                    owner: None,
                    length: 0,
                    byte: 0,
                    expires: 0,
                    is_forged: false,
                };
                for key in [name.name().key(), What { subkey: Some(0), ..name }.name().key()] {
                    self.get(key);
                }
            }
            StorageOperation::Pass { millis } => {
                self.now = self.now.after(Duration::from_millis(millis.into()));
            }
            StorageOperation::Timeout => {
                self.storage.on_timeout(self.now);
                self.expire();
            }
        }
        self.check();
    }

    fn expire(&mut self) {
        let now = self.now;
        self.kept.retain(|_, (_, record)| record.expires_at > now);
    }

    fn get(&mut self, key: RecordKey) {
        let mut got = self.storage.get(self.now, &key);
        self.expire();
        got.sort_by(|a, b| a.subkey.cmp(&b.subkey));
        let here = self.kept.iter().filter(|((of, _), _)| *of == key);
        let mut want: Vec<Record> = here.map(|(_, (_, record))| record.clone()).collect();
        want.sort_by(|a, b| a.subkey.cmp(&b.subkey));
        assert_eq!(got, want);
    }

    fn store(&mut self, sender: PeerKey, record: Record) {
        let place = (record.name.key(), record.subkey.clone());
        let n_of = |kept: &BTreeMap<RecordSlot, (PeerKey, Record)>, peer: &PeerKey| {
            kept.values().filter(|(of, _)| of == peer).count()
        };
        let stored = self.storage.store(self.now, &sender, record.clone());
        self.expire();
        let held = self.kept.get(&place).cloned();
        let now_there: BTreeMap<RecordSlot, Record> = self
            .storage
            .records()
            .map(|(key, record)| ((*key, record.subkey.clone()), record.clone()))
            .collect();
        if stored.is_err() {
            let before: BTreeMap<RecordSlot, Record> =
                self.kept.iter().map(|(place, (_, record))| (place.clone(), record.clone())).collect();
            assert_eq!(now_there, before, "a refused record changes nothing");
            return;
        }
        record.check(self.now, LIFETIME).unwrap();
        assert_eq!(now_there.get(&place), Some(&record), "an accepted record is stored");
        if let Some((_, old)) = &held {
            assert!(record.supersedes(old) || record == *old, "{record:?} took the place of {old:?}");
        }
        let is_same = held.as_ref().is_some_and(|(_, old)| *old == record);
        let evicted: Vec<RecordSlot> =
            self.kept.keys().filter(|place| !now_there.contains_key(place)).cloned().collect();
        for place in &evicted {
            let (of, _) = &self.kept[place];
            let (n_own, n_theirs) = (n_of(&self.kept, &sender), n_of(&self.kept, of));
            assert!(
                *of == sender || n_theirs > n_own,
                "{of:?} has {n_theirs}, {sender:?} has {n_own} itself"
            );
        }
        self.kept.retain(|place, _| !evicted.contains(place));
        if !is_same {
            self.kept.insert(place, (sender, record));
        }
    }

    fn check(&self) {
        let Storage { limits, .. } = &self.storage;
        let n_bytes: usize = self.kept.values().map(|(_, record)| record.n_bytes()).sum();
        assert_eq!((self.storage.n_records(), self.storage.n_bytes()), (self.kept.len(), n_bytes));
        assert!(self.kept.len() <= limits.records_max && n_bytes <= limits.bytes_max);
        assert_eq!(
            self.storage.next_deadline(),
            self.kept.values().map(|(_, record)| record.expires_at).min()
        );
        for (peer, of) in &self.storage.by_sender {
            assert!(of.len() <= limits.records_per_sender_max, "{} of {peer:?}", of.len());
        }
        assert!(self.storage.by_owner.values().all(|n| *n > 0 && *n <= limits.records_per_owner_max));
        assert_eq!(self.storage.by_sender.values().map(BTreeSet::len).sum::<usize>(), self.kept.len());
        assert_eq!(self.storage.senders.len(), self.storage.by_sender.len());
        assert_eq!(
            self.storage.slots.values().map(|slot| slot.entries.len()).sum::<usize>(),
            self.kept.len()
        );
    }
}

#[test]
fn dht_storage() {
    fuzz!("dht_storage", |input| {
        let Some(case) = value::<StorageCase>(input) else { return };
        let mut world = StorageModel::new(&case);
        case.operations.iter().take(200).for_each(|operation| world.on(operation));
    });
}
