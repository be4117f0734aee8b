//! Storage and cache of a DHT peer, for any records in any order.

use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::{
    DICTIONARY_BYTES_MAX, DhtRefusal, Record, RecordKind, RecordName, SUBKEYS_MAX, Subkey, UnixMillis,
};
use barnraise_swarm::PeerKey;
use barnraise_swarm::dht::{Cache, CacheLimits, Eviction, MergedRecords, Storage, StorageLimits, handover};
use proptest::prelude::*;

const NOW: UnixMillis = UnixMillis(1_795_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn key(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

fn peer(seed: u8) -> PeerKey {
    PeerKey(key(seed).public().to_peer_id())
}

fn storage() -> Storage {
    Storage::new(StorageLimits::default(), Eviction::EarliestExpiry)
}

fn small(records_max: usize) -> Storage {
    let limits = StorageLimits { records_max, ..StorageLimits::default() };
    Storage::new(limits, Eviction::EarliestExpiry)
}

fn value(label: &str, expires_in_s: u64) -> Record {
    let expires_at = NOW.after(Duration::from_secs(expires_in_s));
    Record::new(RecordName::value(label.as_bytes()), None, b"value".to_vec(), expires_at)
}

fn entry(label: &str, subkey: &str, expires_in_s: u64) -> Record {
    let expires_at = NOW.after(Duration::from_secs(expires_in_s));
    let subkey = Some(Subkey::new(subkey));
    Record::new(RecordName::dictionary(label.as_bytes()), subkey, b"value".to_vec(), expires_at)
}

fn all(storage: &Storage) -> Vec<(RecordName, Option<Subkey>, UnixMillis, Vec<u8>)> {
    let of = |record: &Record| {
        (record.name.clone(), record.subkey.clone(), record.expires_at, record.value.clone())
    };
    let mut records: Vec<_> = storage.records().map(|(_, record)| of(record)).collect();
    records.sort_by_key(|(name, subkey, ..)| (name.key(), subkey.clone()));
    records
}

/// Few names, subkeys, owners, values and times, so that records conflict.
fn any_record() -> impl Strategy<Value = Record> {
    (0..3u8, any::<bool>(), 0..3u8, 0..3u8, 0..3u8, 1..5u64).prop_map(
        |(label, is_dictionary, name_owner, subkey_owner, value, minutes)| {
            let owner = |seed: u8| (seed > 0).then(|| key(seed).public());
            let kind = if is_dictionary { RecordKind::Dictionary } else { RecordKind::Value };
            let name = RecordName { kind, owner: owner(name_owner), ..RecordName::value(&[label]) };
            let subkey = is_dictionary.then(|| Subkey { owner: owner(subkey_owner), label: vec![label] });
            let expires_at = NOW.after(Duration::from_secs(60 * minutes));
            let signer = if name_owner > 0 {
                name_owner
            } else if is_dictionary {
                subkey_owner
            } else {
                0
            };
            if signer > 0 {
                let signed =
                    Record::sign(&key(signer), name.clone(), subkey.clone(), vec![value], expires_at);
                if let Ok(record) = signed {
                    return record;
                }
            }
            // Two owners, or none.
            Record::new(name, subkey, vec![value], expires_at)
        },
    )
}

proptest! {
    #[test]
    fn the_order_of_records_does_not_matter(
        (records, other) in proptest::collection::vec(any_record(), 1..40)
            .prop_flat_map(|records| (Just(records.clone()), Just(records).prop_shuffle())),
    ) {
        let (mut one, mut two) = (storage(), storage());
        for (sender, record) in records.iter().enumerate() {
            let _ = one.store(NOW, &peer(sender as u8 % 4), record.clone());
        }
        for (sender, record) in other.iter().enumerate() {
            let _ = two.store(NOW, &peer(sender as u8 % 3), record.clone());
        }
        prop_assert_eq!(all(&one), all(&two));
        // Merging several peers, each of which lacks some records, gives the same.
        let mut merged = MergedRecords::default();
        merged.add(NOW, HOUR, other.iter().filter(|r| r.name == records[0].name).cloned());
        let mut of_name = merged.into_records();
        of_name.sort_by_key(|record| record.subkey.clone());
        let held = one.get(NOW, &records[0].name.key());
        let content = |records: &[Record]| -> Vec<_> {
            records.iter().map(|r| (r.subkey.clone(), r.expires_at, r.value.clone())).collect()
        };
        prop_assert_eq!(content(&of_name), content(&held));
    }

    #[test]
    fn the_stored_record_is_the_newest_that_its_owner_signed(
        records in proptest::collection::vec(any_record(), 1..40),
    ) {
        let mut storage = storage();
        let mut verdicts = Vec::new();
        for record in &records {
            verdicts.push(storage.store(NOW, &peer(1), record.clone()));
        }
        for (record, verdict) in records.iter().zip(&verdicts) {
            prop_assert_eq!(record.check(NOW, HOUR).is_err(), matches!(
                verdict, Err(DhtRefusal::TwoOwners | DhtRefusal::Signature)
            ) || record.check(NOW, HOUR).is_err() && matches!(verdict, Err(DhtRefusal::Older { .. })));
            let rivals = records.iter().filter(|r| r.name == record.name && r.subkey == record.subkey);
            let good = rivals.filter(|r| r.check(NOW, HOUR).is_ok());
            let newest = good.max_by_key(|r| (r.expires_at, r.value.clone()));
            let held = storage.get(NOW, &record.name.key());
            let held = held.iter().find(|r| r.subkey == record.subkey);
            prop_assert_eq!(held, newest);
        }
    }

    #[test]
    fn bounds_hold_after_every_record(
        sent in proptest::collection::vec((0..4u8, 0..200u16, 0..40u8, 0..600usize, 1..3000u64), 1..300),
    ) {
        let limits = StorageLimits {
            records_max: 60,
            bytes_max: 30_000,
            records_per_sender_max: 40,
            ..StorageLimits::default()
        };
        let mut storage = Storage::new(limits.clone(), Eviction::EarliestExpiry);
        for (sender, label, subkey, n_bytes, seconds) in sent {
            let mut record = entry(&format!("{}", label % 7), &subkey.to_string(), seconds);
            record.value = vec![0; n_bytes];
            let before = storage.n_records();
            let verdict = storage.store(NOW, &peer(sender), record.clone());
            let held = storage.get(NOW, &record.name.key());
            prop_assert!(verdict.is_err() || held.contains(&record));
            prop_assert!(verdict.is_ok() || storage.n_records() == before);
            prop_assert!(storage.n_records() <= limits.records_max && storage.n_bytes() <= limits.bytes_max);
            let n_bytes: usize = storage.records().map(|(_, record)| record.n_bytes()).sum();
            prop_assert_eq!(n_bytes, storage.n_bytes());
        }
        storage.on_timeout(NOW.after(HOUR));
        prop_assert_eq!((storage.n_records(), storage.n_bytes(), storage.next_deadline()), (0, 0, None));
    }
}

#[test]
fn only_the_owner_replaces_a_record_of_its_subkey() {
    let (owner, other) = (key(1), key(2));
    let expires_at = NOW.after(HOUR);
    let place = Subkey::of_owner(owner.public());
    let name = RecordName::dictionary(b"backbones");
    let sign = |value: &[u8], expires_at| {
        Record::sign(&owner, name.clone(), Some(place.clone()), value.to_vec(), expires_at).unwrap()
    };
    let mut storage = storage();
    storage.store(NOW, &peer(1), sign(b"one", expires_at)).unwrap();
    let forged = Record::new(name.clone(), Some(place.clone()), b"two".to_vec(), expires_at.after(HOUR));
    let mut stolen = sign(b"one", expires_at);
    stolen.expires_at = expires_at.after(HOUR);
    for record in [&forged, &stolen] {
        assert_eq!(storage.store(NOW, &peer(2), record.clone()), Err(DhtRefusal::Signature));
    }
    let by_other = Record::sign(&other, name.clone(), Some(place.clone()), vec![], expires_at);
    assert_eq!(by_other, Err(DhtRefusal::Signature));
    // A plain value of the same label is another key, so is one without the owner.
    let owned = RecordName::value(b"backbones").owned_by(owner.public());
    let names = [
        name.clone(),
        RecordName::value(b"backbones"),
        owned.clone(),
        owned.clone().owned_by(other.public()),
    ];
    let keys: std::collections::HashSet<_> = names.iter().map(RecordName::key).collect();
    assert_eq!(keys.len(), names.len());
    // The same record again is no change; the owner's later one is.
    storage.store(NOW, &peer(3), sign(b"one", expires_at)).unwrap();
    storage.store(NOW, &peer(3), sign(b"three", expires_at.after(HOUR))).unwrap();
    let held = DhtRefusal::Older { held: expires_at.after(HOUR) };
    assert_eq!(storage.store(NOW, &peer(1), sign(b"one", expires_at)), Err(held));
    assert_eq!(storage.get(NOW, &name.key())[0].value, b"three");
}

#[test]
fn a_lying_clock_gains_nothing() {
    let mut storage = storage();
    let expired = storage.store(NOW, &peer(1), value("a", 0)).unwrap_err();
    assert_eq!(expired, DhtRefusal::Expired { expired_at: NOW, now: NOW });
    let lifetime_max = storage.lifetime_max();
    let latest = Record { expires_at: NOW.after(lifetime_max), ..value("a", 1) };
    let later = Record { expires_at: UnixMillis(latest.expires_at.0 + 1), ..latest.clone() };
    let too_far = DhtRefusal::TooFar { expires_at: later.expires_at, latest: latest.expires_at };
    assert_eq!(storage.store(NOW, &peer(1), later), Err(too_far));
    storage.store(NOW, &peer(1), latest).unwrap();
    assert!(storage.get(NOW.after(lifetime_max), &RecordName::value(b"a").key()).is_empty());
}

#[test]
fn ten_thousand_records_of_one_sender_push_out_none_of_others() {
    let mut storage = small(1000);
    for at in 0..300 {
        storage.store(NOW, &peer(at as u8 % 3 + 1), value(&format!("honest {at}"), 60)).unwrap();
    }
    let mut n_refused = 0;
    for at in 0..10_000u64 {
        n_refused +=
            usize::from(storage.store(NOW, &peer(9), value(&format!("flood {at}"), 100 + at)).is_err());
    }
    assert_eq!(storage.n_records(), 1000);
    for at in 0..300 {
        let key = RecordName::value(format!("honest {at}").as_bytes()).key();
        assert_eq!(storage.get(NOW, &key).len(), 1, "honest {at}");
    }
    assert_eq!(n_refused, 0, "its later ones replace its own");
    // Records of others evict its own, until they have as many.
    for at in 0..600 {
        let _ = storage.store(NOW, &peer(4), value(&format!("late {at}"), 30));
    }
    let n_late = |label: &str, n: usize, storage: &mut Storage| {
        let held = |at: &usize| {
            !storage.get(NOW, &RecordName::value(format!("{label} {at}").as_bytes()).key()).is_empty()
        };
        (0..n).filter(held).count()
    };
    assert_eq!(n_late("late", 600, &mut storage), 350);
    assert_eq!(n_late("honest", 300, &mut storage), 300);
}

#[test]
fn senders_and_owners_have_shares() {
    let limits =
        StorageLimits { records_per_sender_max: 3, records_per_owner_max: 2, ..StorageLimits::default() };
    let mut storage = Storage::new(limits, Eviction::EarliestExpiry);
    for at in 0..3 {
        storage.store(NOW, &peer(1), value(&format!("{at}"), 60)).unwrap();
    }
    assert_eq!(storage.store(NOW, &peer(1), value("4", 60)), Err(DhtRefusal::Quota { max: 3 }));
    storage.store(NOW, &peer(1), value("0", 61)).unwrap();
    let owned = |label: &str, minutes: u64| {
        let name = RecordName::value(label.as_bytes()).owned_by(key(5).public());
        Record::sign(&key(5), name, None, vec![], NOW.after(Duration::from_secs(60 * minutes))).unwrap()
    };
    // Regardless of the sender.
    storage.store(NOW, &peer(2), owned("a", 1)).unwrap();
    storage.store(NOW, &peer(3), owned("b", 1)).unwrap();
    assert_eq!(storage.store(NOW, &peer(4), owned("c", 1)), Err(DhtRefusal::Quota { max: 2 }));
    storage.store(NOW, &peer(4), owned("b", 2)).unwrap();
    storage.on_timeout(NOW.after(Duration::from_secs(60)));
    storage.store(NOW, &peer(4), owned("c", 1)).unwrap();
}

#[test]
fn a_dictionary_is_shared_fairly_too() {
    let mut storage = storage();
    for at in 0..100 {
        storage.store(NOW, &peer(1), entry("experts", &format!("honest {at}"), 60)).unwrap();
    }
    for at in 0..2000u64 {
        let _ = storage.store(NOW, &peer(2), entry("experts", &format!("flood {at}"), 100 + at));
    }
    let held = storage.get(NOW, &RecordName::dictionary(b"experts").key());
    assert_eq!(held.len(), SUBKEYS_MAX);
    let is_honest = |record: &&Record| record.subkey.as_ref().unwrap().label.starts_with(b"honest");
    assert_eq!(held.iter().filter(is_honest).count(), 100);
    assert!(held.iter().map(Record::n_bytes).sum::<usize>() <= DICTIONARY_BYTES_MAX);
}

#[test]
fn the_cache_evicts_the_least_recently_used_and_names_keys_to_refresh() {
    let limits = CacheLimits {
        storage: StorageLimits { records_max: 2, ..StorageLimits::default() },
        refresh_before: Duration::from_secs(5),
        refreshes_max: 1,
    };
    let mut cache = Cache::new(limits);
    let of = |label: &str| RecordName::value(label.as_bytes()).key();
    cache.store(NOW, &peer(1), value("a", 60)).unwrap();
    cache.store(NOW, &peer(1), value("b", 70)).unwrap();
    assert_eq!(cache.get(NOW, &of("a")).len(), 1);
    assert_eq!(cache.get(NOW, &of("a")).len(), 1);
    cache.store(NOW, &peer(1), value("c", 20)).unwrap();
    assert!(cache.peek(NOW, &of("b")).is_empty(), "the least recently used is evicted");
    assert_eq!(cache.peek(NOW, &of("c")).len(), 1);
    let due = NOW.after(Duration::from_secs(55));
    assert_eq!(cache.next_deadline(), Some(due));
    assert_eq!(cache.due(NOW), []);
    assert_eq!(cache.due(due), [of("a")]);
    assert_eq!((cache.due(due), cache.next_deadline()), (Vec::new(), None));
    // A refreshed key is due again once it was used.
    cache.store(due, &peer(1), value("a", 120)).unwrap();
    assert_eq!(cache.get(due, &of("a")).len(), 1);
    assert_eq!(cache.next_deadline(), Some(NOW.after(Duration::from_secs(115))));
}

#[test]
fn a_newcomer_gets_its_records_from_one_peer_only() {
    use barnraise_protocol::dht::Point;
    let peers: Vec<PeerKey> = (1..=30).map(peer).collect();
    let newcomer = peer(77);
    let mut n_handed = 0;
    for at in 0..60 {
        let record = value(&format!("{at}"), 60);
        let key = record.name.key();
        let by_distance = |peers: &[PeerKey]| {
            let mut peers = peers.to_vec();
            peers.sort_by_key(|peer| Point::of_peer(&peer.0).distance(&Point::of_key(&key)));
            peers
        };
        let holders = by_distance(&peers)[..5].to_vec();
        let with_newcomer = by_distance(&[&peers[..], std::slice::from_ref(&newcomer)].concat());
        let should_keep = with_newcomer[..5].contains(&newcomer);
        let mut handing = 0;
        for here in &holders {
            let mut storage = storage();
            storage.store(NOW, &peer(1), record.clone()).unwrap();
            let others = |_: &_| by_distance(&peers).into_iter().filter(|other| other != here).collect();
            handing += handover(&storage, here, &newcomer, 5, others).len();
        }
        assert_eq!(handing, usize::from(should_keep), "record {at}");
        n_handed += handing;
    }
    assert!(n_handed > 0);
}
