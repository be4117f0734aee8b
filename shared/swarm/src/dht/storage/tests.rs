#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::RecordName;
use barnraise_protocol::dht::record::RECORD_OVERHEAD_BYTES;

use super::*;

const NOW: UnixMillis = UnixMillis(1_000_000);
/// Bytes of a record of [`value`].
const N_BYTES: usize = 300;
const LIMITS: StorageLimits = StorageLimits {
    records_max: 1000,
    bytes_max: 1 << 30,
    records_per_sender_max: 1000,
    records_per_owner_max: 1000,
    lifetime_max: Duration::from_secs(3600),
};

fn peer(name: u8) -> PeerKey {
    PeerKey(vec![name])
}

fn secs(secs: u64) -> UnixMillis {
    NOW.after(Duration::from_secs(secs))
}

fn sized(name: RecordName, subkey: Option<Subkey>, n_bytes: usize, expires_in_s: u64) -> Record {
    let n_label = subkey.as_ref().map_or(0, |subkey| subkey.label.len());
    let value = vec![0; n_bytes - RECORD_OVERHEAD_BYTES - n_label];
    Record::new(name, subkey, value, secs(expires_in_s))
}

fn value(label: &str, expires_in_s: u64) -> Record {
    sized(RecordName::value(label.as_bytes()), None, N_BYTES, expires_in_s)
}

/// An entry of the one dictionary.
fn entry(subkey: u16, n_bytes: usize, expires_in_s: u64) -> Record {
    let subkey = Subkey::new(subkey.to_be_bytes());
    sized(RecordName::dictionary(b"dictionary"), Some(subkey), n_bytes, expires_in_s)
}

fn storage(limits: StorageLimits) -> Storage {
    Storage::new(limits, Eviction::EarliestExpiry)
}

fn holds(storage: &Storage, record: &Record) -> bool {
    storage.records().any(|(_, held)| held == record)
}

fn store_all(storage: &mut Storage, sender: u8, records: &[&Record]) {
    for record in records {
        storage.store(NOW, &peer(sender), (*record).clone()).unwrap();
    }
}

/// Which of the labels are held.
fn held<'a>(storage: &Storage, labels: &[&'a str]) -> Vec<&'a str> {
    let is_held = |label: &&&str| {
        storage.records().any(|(_, record)| record.name == RecordName::value(label.as_bytes()))
    };
    labels.iter().filter(is_held).copied().collect()
}

#[test]
fn a_full_storage_evicts_what_expires_first_of_the_largest_sender() {
    let mut storage = storage(StorageLimits { records_max: 4, ..LIMITS });
    store_all(&mut storage, 1, &[&value("a", 10), &value("b", 20), &value("c", 30)]);
    store_all(&mut storage, 2, &[&value("d", 5)]);
    assert_eq!(storage.n_records(), 4);
    // A record of a small sender need not outlive it.
    store_all(&mut storage, 3, &[&value("e", 1)]);
    assert_eq!(held(&storage, &["a", "b", "c", "d", "e"]), ["b", "c", "d", "e"]);
    // A record of the largest sender replaces only one that it outlives.
    for expires_in_s in [15, 20] {
        let refused = storage.store(NOW, &peer(1), value("f", expires_in_s));
        assert_eq!(refused, Err(DhtRefusal::Full));
        assert_eq!(held(&storage, &["b", "c", "d", "e"]).len(), 4);
    }
    store_all(&mut storage, 1, &[&value("f", 21)]);
    assert_eq!(held(&storage, &["b", "c", "d", "e", "f"]), ["c", "d", "e", "f"]);
}

#[test]
fn of_two_largest_senders_each_evicts_its_own_records() {
    let mut storage = storage(StorageLimits { records_max: 4, ..LIMITS });
    store_all(&mut storage, 1, &[&value("a", 10), &value("b", 20)]);
    store_all(&mut storage, 9, &[&value("c", 10), &value("d", 20)]);
    store_all(&mut storage, 1, &[&value("e", 30)]);
    assert_eq!(held(&storage, &["a", "b", "c", "d", "e"]), ["b", "c", "d", "e"]);
    store_all(&mut storage, 9, &[&value("f", 30)]);
    assert_eq!(held(&storage, &["a", "b", "c", "d", "e", "f"]), ["b", "d", "e", "f"]);
}

/// Later records of a sender count, and those that are gone do not.
#[test]
fn the_largest_sender_is_the_one_with_the_most_records_now() {
    let mut storage = storage(StorageLimits { records_max: 5, ..LIMITS });
    store_all(&mut storage, 1, &[&value("a", 1), &value("b", 1), &value("c", 1), &value("d", 90)]);
    store_all(&mut storage, 2, &[&value("e", 80)]);
    storage.on_timeout(secs(1));
    assert_eq!(storage.n_records(), 2);
    store_all(&mut storage, 2, &[&value("f", 70), &value("g", 60)]);
    store_all(&mut storage, 3, &[&value("h", 50)]);
    assert_eq!(storage.n_records(), 5);
    store_all(&mut storage, 3, &[&value("i", 50)]);
    assert_eq!(held(&storage, &["d", "e", "f", "g", "h", "i"]), ["d", "e", "f", "h", "i"]);
}

#[test]
fn the_bytes_of_all_records_stay_within_the_limit() {
    let mut storage = storage(StorageLimits { bytes_max: 3 * N_BYTES, ..LIMITS });
    store_all(&mut storage, 1, &[&value("a", 10), &value("b", 20), &value("c", 30)]);
    assert_eq!((storage.n_records(), storage.n_bytes()), (3, 3 * N_BYTES), "exactly as many as fit");
    // The same number of bytes in the place of another record.
    store_all(&mut storage, 1, &[&value("a", 11)]);
    assert_eq!((storage.n_records(), storage.n_bytes()), (3, 3 * N_BYTES));
    // Two records give way to a longer one.
    let long = |label: &str, expires_in_s| {
        sized(RecordName::value(label.as_bytes()), None, 2 * N_BYTES, expires_in_s)
    };
    store_all(&mut storage, 1, &[&long("d", 40)]);
    assert_eq!(held(&storage, &["a", "b", "c", "d"]), ["c", "d"]);
    assert_eq!(storage.n_bytes(), 3 * N_BYTES);
    // No record is longer than all.
    let longer = sized(RecordName::value(b"e"), None, 3 * N_BYTES + 1, 50);
    assert_eq!(storage.store(NOW, &peer(2), longer), Err(DhtRefusal::Full));
    assert_eq!(held(&storage, &["c", "d"]), ["c", "d"], "a refused record changes nothing");
}

#[test]
fn a_record_that_grows_evicts_others_and_not_itself() {
    let long = |record: Record| Record { value: vec![1; record.value.len() + N_BYTES], ..record };
    let mut storage = storage(StorageLimits { bytes_max: 3 * N_BYTES, ..LIMITS });
    store_all(&mut storage, 1, &[&value("a", 10), &value("b", 20), &value("c", 30)]);
    let grown = long(value("a", 40));
    store_all(&mut storage, 1, &[&grown]);
    assert_eq!(held(&storage, &["a", "b", "c"]), ["a", "c"]);
    assert!(holds(&storage, &grown));
    assert_eq!(storage.n_bytes(), 3 * N_BYTES);
    // So does an entry of a dictionary, which has the key of the others.
    let mut storage = self::storage(StorageLimits { bytes_max: 3 * N_BYTES, ..LIMITS });
    let entries: Vec<Record> = (0..3).map(|subkey| entry(subkey, N_BYTES, 10 + u64::from(subkey))).collect();
    store_all(&mut storage, 1, &entries.iter().collect::<Vec<_>>());
    let grown = Record { expires_at: secs(40), ..long(entries[0].clone()) };
    store_all(&mut storage, 1, &[&grown]);
    assert!(holds(&storage, &grown) && !holds(&storage, &entries[1]) && holds(&storage, &entries[2]));
    assert_eq!(storage.n_bytes(), 3 * N_BYTES);
}

#[test]
fn the_least_recently_used_record_is_evicted_first() {
    let mut storage = Storage::new(StorageLimits { records_max: 3, ..LIMITS }, Eviction::LeastRecentlyUsed);
    store_all(&mut storage, 1, &[&value("a", 30), &value("b", 20), &value("c", 10)]);
    assert_eq!(storage.get(NOW, &value("a", 30).name.key()), [value("a", 30)]);
    // It need not outlive what it replaces.
    store_all(&mut storage, 1, &[&value("d", 1)]);
    assert_eq!(held(&storage, &["a", "b", "c", "d"]), ["a", "c", "d"]);
    store_all(&mut storage, 1, &[&value("e", 40)]);
    assert_eq!(held(&storage, &["a", "b", "c", "d", "e"]), ["a", "d", "e"]);
    // Where the first to expire goes, a use changes nothing.
    let mut storage = self::storage(StorageLimits { records_max: 2, ..LIMITS });
    store_all(&mut storage, 1, &[&value("a", 10), &value("b", 20)]);
    assert_eq!(storage.get(NOW, &value("a", 10).name.key()).len(), 1);
    store_all(&mut storage, 1, &[&value("c", 30)]);
    assert_eq!(held(&storage, &["a", "b", "c"]), ["b", "c"]);
}

#[test]
fn a_sender_has_its_share_of_records_and_no_more() {
    let mut storage = storage(StorageLimits { records_per_sender_max: 2, ..LIMITS });
    store_all(&mut storage, 1, &[&value("a", 10), &value("b", 20)]);
    let quota = Err(DhtRefusal::Quota { max: 2 });
    assert_eq!(storage.store(NOW, &peer(1), value("c", 10)), quota);
    store_all(&mut storage, 2, &[&value("c", 10), &value("d", 10)]);
    // Later ones of its own take no more of it, those of another sender do.
    store_all(&mut storage, 1, &[&value("a", 11)]);
    assert_eq!(storage.store(NOW, &peer(1), value("c", 11)), quota);
    storage.on_timeout(secs(10));
    store_all(&mut storage, 2, &[&value("e", 30)]);
}

#[test]
fn an_owner_has_its_share_of_records_through_any_sender() {
    let owner = KeyPair::from_seed(&[5; 32]);
    let owned = |label: u8, expires_in_s: u64| {
        let name = RecordName::value(&[label]).owned_by(owner.public());
        Record::sign(&owner, name, None, vec![], secs(expires_in_s)).unwrap()
    };
    let mut storage = storage(StorageLimits { records_per_owner_max: 3, ..LIMITS });
    for (sender, expires_in_s) in [(1, 1), (2, 10), (3, 10)] {
        store_all(&mut storage, sender, &[&owned(sender, expires_in_s)]);
    }
    let quota = Err(DhtRefusal::Quota { max: 3 });
    assert_eq!(storage.store(NOW, &peer(4), owned(4, 10)), quota);
    store_all(&mut storage, 4, &[&value("of nobody", 10), &owned(3, 11)]);
    // One has expired: one more has a place.
    storage.on_timeout(secs(1));
    let mut store = |label: u8| storage.store(secs(1), &peer(4), owned(label, 10));
    assert_eq!((store(4), store(5)), (Ok(()), quota));
}

#[test]
fn a_record_is_held_until_it_expires() {
    let mut storage = storage(LIMITS);
    assert_eq!(storage.next_deadline(), None);
    assert_eq!(storage.lifetime_max(), LIMITS.lifetime_max);
    store_all(&mut storage, 1, &[&value("a", 20), &value("b", 10)]);
    assert_eq!(storage.next_deadline(), Some(secs(10)));
    storage.on_timeout(UnixMillis(secs(10).0 - 1));
    assert_eq!(storage.n_records(), 2);
    storage.on_timeout(secs(10));
    assert_eq!((storage.n_records(), storage.n_bytes()), (1, N_BYTES));
    assert_eq!(storage.next_deadline(), Some(secs(20)));
    let key = value("a", 20).name.key();
    assert_eq!(storage.get(UnixMillis(secs(20).0 - 1), &key), [value("a", 20)]);
    assert_eq!(storage.get(secs(20), &key), []);
    assert_eq!((storage.n_records(), storage.n_bytes(), storage.next_deadline()), (0, 0, None));
}

#[test]
fn an_older_record_does_not_replace_a_newer_one() {
    let mut storage = storage(LIMITS);
    store_all(&mut storage, 1, &[&value("a", 20)]);
    let older = Err(DhtRefusal::Older { held: secs(20) });
    assert_eq!(storage.store(NOW, &peer(2), value("a", 19)), older);
    let smaller = Record { value: vec![], ..value("a", 20) };
    assert_eq!(storage.store(NOW, &peer(2), smaller), older);
    assert_eq!(storage.store(NOW, &peer(2), value("a", 20)), Ok(()), "the same again is no change");
    assert_eq!(storage.store(NOW, &peer(2), value("a", 21)), Ok(()));
    assert_eq!(storage.get(NOW, &value("a", 20).name.key()), [value("a", 21)]);
    assert_eq!(storage.n_bytes(), N_BYTES);
}

#[test]
fn a_dictionary_has_as_many_entries_as_fit_and_no_more() {
    let mut storage = storage(LIMITS);
    for subkey in 0..SUBKEYS_MAX as u16 {
        store_all(&mut storage, 1, &[&entry(subkey, 200, 10 + u64::from(subkey))]);
    }
    assert_eq!(storage.n_records(), SUBKEYS_MAX);
    // One of the same sender has to outlive the first that expires.
    let late = |expires_in_s| entry(u16::MAX, 200, expires_in_s);
    assert_eq!(storage.store(NOW, &peer(1), late(10)), Err(DhtRefusal::Full));
    store_all(&mut storage, 1, &[&late(11)]);
    assert_eq!(storage.n_records(), SUBKEYS_MAX);
    assert!(!holds(&storage, &entry(0, 200, 10)) && holds(&storage, &entry(1, 200, 11)));
    // One of a sender with fewer entries does not.
    store_all(&mut storage, 2, &[&entry(u16::MAX - 1, 200, 1)]);
    assert_eq!(storage.n_records(), SUBKEYS_MAX);
    assert!(holds(&storage, &entry(u16::MAX - 1, 200, 1)));
    // A full dictionary is no full storage.
    store_all(&mut storage, 1, &[&value("a", 1)]);
    assert_eq!(storage.n_records(), SUBKEYS_MAX + 1);
    // An entry that is there already needs no place.
    store_all(&mut storage, 1, &[&late(12)]);
    assert_eq!(storage.n_records(), SUBKEYS_MAX + 1);
}

/// The storage is as large as the dictionary: an entry evicts one other, and not one more.
#[test]
fn an_entry_that_is_evicted_from_its_dictionary_frees_its_place_in_the_storage() {
    let n_entries = 4;
    let n_bytes = DICTIONARY_BYTES_MAX / 48;
    let limits = StorageLimits { bytes_max: DICTIONARY_BYTES_MAX, records_max: 48, ..LIMITS };
    let mut storage = storage(limits);
    for subkey in 0..48 {
        store_all(&mut storage, 1, &[&entry(subkey, n_bytes, 10 + u64::from(subkey))]);
    }
    for subkey in 0..n_entries {
        store_all(&mut storage, 1, &[&entry(100 + subkey, n_bytes, 100)]);
        assert_eq!((storage.n_records(), storage.n_bytes()), (48, DICTIONARY_BYTES_MAX));
    }
}

#[test]
fn the_bytes_of_a_dictionary_stay_within_the_limit() {
    let n_bytes = DICTIONARY_BYTES_MAX / 48;
    let mut storage = storage(LIMITS);
    for subkey in 0..47 {
        store_all(&mut storage, 1, &[&entry(subkey, n_bytes, 20 + u64::from(subkey))]);
    }
    let halves = [entry(100, n_bytes / 2, 10), entry(101, n_bytes / 2, 11)];
    store_all(&mut storage, 1, &[&halves[0], &halves[1]]);
    assert_eq!(storage.n_bytes(), DICTIONARY_BYTES_MAX, "exactly as many as fit");
    // Two short entries give way to a long one.
    store_all(&mut storage, 1, &[&entry(102, n_bytes, 50)]);
    assert_eq!((storage.n_records(), storage.n_bytes()), (48, DICTIONARY_BYTES_MAX));
    assert!(!holds(&storage, &halves[0]) && !holds(&storage, &halves[1]));
    // One that grows takes the place of another, and not its own.
    store_all(&mut storage, 1, &[&entry(0, n_bytes + 100, 70)]);
    assert_eq!(storage.n_bytes(), DICTIONARY_BYTES_MAX - n_bytes + 100);
    assert!(holds(&storage, &entry(0, n_bytes + 100, 70)) && !holds(&storage, &entry(1, n_bytes, 21)));
    assert!(holds(&storage, &entry(2, n_bytes, 22)));
}

/// The dictionary and the storage have no room: what the one evicts is counted once by the other.
#[test]
fn an_entry_that_no_place_is_left_for_evicts_as_many_bytes_as_it_needs() {
    let n_bytes = DICTIONARY_BYTES_MAX / 48;
    let bytes_max = DICTIONARY_BYTES_MAX - 900;
    let mut storage = storage(StorageLimits { bytes_max, ..LIMITS });
    store_all(&mut storage, 1, &[&entry(0, 1000, 10)]);
    for subkey in 1..48 {
        store_all(&mut storage, 1, &[&entry(subkey, n_bytes, 10 + u64::from(subkey))]);
    }
    store_all(&mut storage, 1, &[&entry(100, n_bytes, 100)]);
    assert_eq!((storage.n_records(), storage.n_bytes()), (47, 47 * n_bytes));
}

#[test]
fn of_two_senders_with_as_many_entries_each_evicts_its_own() {
    let n_bytes = DICTIONARY_BYTES_MAX / 48;
    let mut storage = storage(LIMITS);
    for subkey in 0..24 {
        store_all(&mut storage, 1, &[&entry(subkey, n_bytes, 20 + u64::from(subkey))]);
        store_all(&mut storage, 9, &[&entry(100 + subkey, n_bytes, 20 + u64::from(subkey))]);
    }
    store_all(&mut storage, 1, &[&entry(200, n_bytes, 50)]);
    assert!(!holds(&storage, &entry(0, n_bytes, 20)) && holds(&storage, &entry(100, n_bytes, 20)));
    store_all(&mut storage, 9, &[&entry(201, n_bytes, 50)]);
    assert!(!holds(&storage, &entry(100, n_bytes, 20)) && holds(&storage, &entry(1, n_bytes, 21)));
    // An old entry of the one with fewer evicts that of the one with more.
    store_all(&mut storage, 3, &[&entry(202, n_bytes, 1)]);
    assert_eq!(storage.n_bytes(), DICTIONARY_BYTES_MAX);
    assert!(holds(&storage, &entry(202, n_bytes, 1)) && !holds(&storage, &entry(101, n_bytes, 21)));
}
