//! The messages of the DHT: golden bytes, mutated bytes, and answers of dishonest peers.

use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dataset::{ImageShape, Manifest, SHARDS_MAX, SampleKind, ShardEntry};
use barnraise_protocol::dht::backbone::{self, BACKBONE_ADDRESSES_MAX, BackboneAnnouncement};
use barnraise_protocol::dht::progress::{self, AGGREGATORS_MAX, BackboneProgress, LIFETIME, LocalProgress};
use barnraise_protocol::dht::record::{SUBKEY_BYTES_MAX, VALUE_BYTES_MAX};
use barnraise_protocol::dht::shards::{self, HOLDER_ADDRESSES_MAX, Holder, ShardSet};
use barnraise_protocol::dht::*;
use barnraise_protocol::framing;
use futures::executor::block_on;
use proptest::prelude::*;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use crate::golden::{self, Message, hex};

const NOW: UnixMillis = UnixMillis(1_795_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn owner() -> KeyPair {
    KeyPair::from_seed(&[7; 32])
}

fn check(message: &impl Message, golden: &str) {
    golden::check(message, MESSAGE_BYTES_MAX, golden);
}

fn plain() -> Record {
    Record::new(RecordName::value(b"x"), None, vec![1, 2], UnixMillis(300))
}

fn signed() -> Record {
    let place = Some(Subkey::of_owner(owner().public()));
    Record::sign(&owner(), RecordName::dictionary(b"x"), place, b"v".to_vec(), NOW.after(HOUR)).unwrap()
}

#[test]
fn golden_bytes() {
    let label = hex(&barnraise_protocol::Sha256Hash::of(b"x").0);
    let key = RecordKey([0xab; 32]);
    let keys = "ab".repeat(32);
    check(&PeerToNode::Find(vec![key]), &format!("0001{keys}"));
    let record = format!("0000{label}000201 02ac0200").replace(' ', "");
    check(&PeerToNode::Store { records: vec![plain()], purpose: Purpose::Cache }, &format!("0101{record}01"));
    check(&PeerToNode::Get { keys: vec![key], freshness: Freshness::Newest }, &format!("0201{keys}01"));
    check(&PeerToNode::Put(vec![plain()]), &format!("0301{record}"));
    let peers = vec![PeerAddresses::new(vec![5], [vec![6, 7]])];
    let answers = vec![FindResult { records: vec![plain()], closest: vec![0] }];
    check(&NodeToPeer::Found(FindResponse { answers, peers }), &format!("000101{record}010001010501020607"));
    let older = Err(DhtRefusal::Older { held: UnixMillis(300) });
    check(&NodeToPeer::Stored(vec![Ok(()), older]), "0102000106ac02");
    check(&NodeToPeer::Got(vec![vec![], vec![plain()]]), &format!("02020001{record}"));
    check(&NodeToPeer::Refused(DhtRefusal::Busy), "0309");
    check(&Purpose::Replica, "00");
    check(&Freshness::Any, "00");
    let (small, large) = (UnixMillis(3), UnixMillis(300));
    for (refusal, golden) in [
        (DhtRefusal::TooLong { got: 300, max: 3 }, "00ac0203"),
        (DhtRefusal::Kind, "01"),
        (DhtRefusal::TwoOwners, "02"),
        (DhtRefusal::Signature, "03"),
        (DhtRefusal::Expired { expired_at: small, now: large }, "0403ac02"),
        (DhtRefusal::TooFar { expires_at: large, latest: small }, "05ac0203"),
        (DhtRefusal::Older { held: large }, "06ac02"),
        (DhtRefusal::Quota { max: 300 }, "07ac02"),
        (DhtRefusal::Full, "08"),
        (DhtRefusal::Busy, "09"),
        (DhtRefusal::TooMany { got: 300, max: 3 }, "0aac0203"),
        (DhtRefusal::Unreachable, "0b"),
    ] {
        check(&refusal, golden);
    }
}

/// DHT keys of the records of a run.
#[test]
fn keys_of_a_run_are_the_same_everywhere() {
    let key = |key: RecordKey| hex(&key.0);
    assert_eq!(
        key(backbone::key("barn")),
        "4867f3e5ab5686ff3b6071c3339054f9df7a69e1a1d4c836311af9c971ac5637"
    );
    assert_eq!(
        key(progress::key("barn")),
        "93b81dd7f292728d6ef897faf890eead2b65928ef5b73edea5dfb248307e781e"
    );
    assert_eq!(
        key(shards::key("barn", &manifest(3))),
        "bd8e35798b3504f108471914f50fb765b861d8c046128c725c402ee1ae76b3a7"
    );
}

#[test]
fn a_signed_record_has_the_same_bytes_everywhere() {
    // Both were computed by another implementation; a change here breaks every stored record.
    let bytes = postcard::to_allocvec(&signed()).unwrap();
    let hash = barnraise_protocol::Sha256Hash::of(&bytes).to_string();
    assert_eq!(hash, "ec6e02a4c81b811d0e934b310da0d70f364f2f1a2dd905bfb155c7ebae6bffd5");
    assert_eq!(
        format!("{:?}", RecordName::dictionary(b"x").key()),
        "e79245906b83fc51ea8f8e4594d55c2698540e07666a4950463887fe04c0ca81"
    );
    assert_eq!(signed().check(NOW, HOUR), Ok(()));
    assert!(signed().n_bytes() >= bytes.len());
}

#[test]
fn a_record_is_never_larger_than_it_says() {
    let name = RecordName::dictionary(b"x").owned_by(owner().public());
    let place = Subkey { owner: Some(owner().public()), label: vec![0xff; SUBKEY_BYTES_MAX] };
    let value = vec![0xff; VALUE_BYTES_MAX];
    let record = Record::sign(&owner(), name, Some(place), value, UnixMillis(u64::MAX)).unwrap();
    assert!(postcard::to_allocvec(&record).unwrap().len() <= record.n_bytes());
}

#[test]
fn what_is_wrong_with_a_record_is_said() {
    let of = |record: &Record| record.check(NOW, HOUR).unwrap_err();
    let good = Record { expires_at: NOW.after(HOUR), ..plain() };
    assert_eq!(good.check(NOW, HOUR), Ok(()));
    let too_long = DhtRefusal::TooLong { got: VALUE_BYTES_MAX as u64 + 1, max: VALUE_BYTES_MAX as u64 };
    assert_eq!(of(&Record { value: vec![0; VALUE_BYTES_MAX + 1], ..good.clone() }), too_long);
    assert_eq!(of(&Record { subkey: Some(Subkey::new("a")), ..good.clone() }), DhtRefusal::Kind);
    assert_eq!(of(&Record { name: RecordName::dictionary(b"x"), ..good.clone() }), DhtRefusal::Kind);
    let long = Subkey::new(vec![0; SUBKEY_BYTES_MAX + 1]);
    let long = Record { name: RecordName::dictionary(b"x"), subkey: Some(long), ..good.clone() };
    assert!(matches!(of(&long), DhtRefusal::TooLong { max: 64, .. }));
    let other = KeyPair::from_seed(&[8; 32]).public();
    assert_eq!(of(&Record { name: signed().name.owned_by(other), ..signed() }), DhtRefusal::TwoOwners);
    assert_eq!(of(&Record { signature: None, ..signed() }), DhtRefusal::Signature);
    assert_eq!(of(&Record { signature: signed().signature, ..good.clone() }), DhtRefusal::Signature);
    // The signature covers name, subkey, value and expiration.
    let changed = [
        Record { name: RecordName::dictionary(b"y"), ..signed() },
        Record {
            subkey: Some(Subkey { label: b"z".to_vec(), ..Subkey::of_owner(owner().public()) }),
            ..signed()
        },
        Record { value: b"w".to_vec(), ..signed() },
        Record { expires_at: NOW.after(HOUR / 2), ..signed() },
        Record { subkey: Some(Subkey::of_owner(other)), ..signed() },
    ];
    for record in &changed {
        assert_eq!(of(record), DhtRefusal::Signature);
    }
    assert_eq!(of(&Record { expires_at: NOW, ..good }), DhtRefusal::Expired { expired_at: NOW, now: NOW });
}

#[test]
fn answers_are_held_against_the_question() {
    let (key, other) = (RecordName::value(b"x").key(), RecordName::value(b"y").key());
    let peer = PeerAddresses::new(vec![5], []);
    let answer = |records: Vec<Record>, closest: Vec<u8>| FindResult { records, closest };
    let found = |answers, peers| NodeToPeer::Found(FindResponse { answers, peers });
    assert!(found(vec![answer(vec![plain()], vec![0])], vec![peer.clone()]).found(&[key, other]).is_ok());
    // Each count at its limit, and one above.
    let full = PeerAddresses {
        peer_id: vec![0; PEER_ID_BYTES_MAX],
        addresses: vec![vec![0; ADDRESS_BYTES_MAX]; ADDRESSES_MAX],
    };
    let most = answer(vec![plain(); SUBKEYS_MAX], vec![127; CLOSEST_MAX]);
    assert!(found(vec![most], vec![full; PEERS_MAX]).found(&[key, other]).is_ok());
    assert!(found(vec![], vec![]).found(&[]).is_ok(), "nothing was asked");
    let bad = [
        found(vec![], vec![]),
        found(vec![answer(vec![], vec![]); 3], vec![]),
        found(vec![answer(vec![], vec![1])], vec![peer.clone()]),
        found(vec![answer(vec![], vec![0; CLOSEST_MAX + 1])], vec![peer.clone()]),
        found(vec![answer(vec![], vec![])], vec![peer.clone(); PEERS_MAX + 1]),
        found(vec![answer(vec![], vec![])], vec![PeerAddresses { peer_id: vec![0; 65], addresses: vec![] }]),
        found(
            vec![answer(vec![], vec![])],
            vec![PeerAddresses { addresses: vec![vec![]; 5], ..peer.clone() }],
        ),
        found(vec![answer(vec![], vec![])], vec![PeerAddresses { addresses: vec![vec![0; 161]], ..peer }]),
        found(vec![answer(vec![plain(); SUBKEYS_MAX + 1], vec![])], vec![]),
        // A record of the second key under the first.
        found(vec![answer(vec![signed()], vec![])], vec![]),
        NodeToPeer::Stored(vec![]),
    ];
    for message in bad {
        let text = format!("{message:?}");
        assert!(message.found(&[key, other]).is_err(), "{text}");
    }
    assert!(NodeToPeer::Stored(vec![Ok(())]).stored(1).is_ok());
    assert!(NodeToPeer::Stored(vec![Ok(())]).stored(2).is_err());
    assert!(NodeToPeer::Got(vec![]).stored(0).is_err());
}

#[test]
fn an_answer_always_fits_into_a_message() {
    let peers: Vec<PeerAddresses> = (0..=255)
        .map(|at| PeerAddresses::new(vec![at; PEER_ID_BYTES_MAX], vec![vec![at; ADDRESS_BYTES_MAX]; 9]))
        .collect();
    let large = |at: usize| {
        let name = RecordName::dictionary(&at.to_le_bytes());
        let n_records = DICTIONARY_BYTES_MAX / (VALUE_BYTES_MAX + 256);
        let record = |at: usize| {
            let place = Some(Subkey::new(at.to_le_bytes()));
            Record::new(name.clone(), place, vec![0; VALUE_BYTES_MAX], UnixMillis(u64::MAX))
        };
        (name.key(), (0..n_records).map(record).collect::<Vec<_>>())
    };
    for (n_closest, n_large) in [(20, 64), (20, 0), (4, 1)] {
        let (mut keys, mut builder) = (Vec::new(), FindResponseBuilder::default());
        for at in 0..KEYS_MAX {
            let (key, records) = large(at);
            let records = if at < n_large { records } else { Vec::new() };
            keys.push(key);
            let from = at * n_closest % (peers.len() - n_closest);
            if !builder.push(records, &peers[from..from + n_closest]) {
                break;
            }
        }
        let message = NodeToPeer::Found(builder.finish());
        framing::encode(&message, MESSAGE_BYTES_MAX).unwrap();
        let found = message.found(&keys).unwrap();
        assert!(found.closest(0).eq(&peers[..n_closest]));
    }
}

/// Records that are 4 KiB each, as they are counted.
fn of_4_kib(n_records: usize) -> Vec<Record> {
    let overhead = plain().n_bytes() - plain().value.len();
    vec![Record { value: vec![0; 4096 - overhead], ..plain() }; n_records]
}

#[test]
fn an_answer_is_filled_to_the_last_byte_and_the_last_peer() {
    let peer = |at: u8| PeerAddresses::new(vec![at], []);
    let n_records = RECORDS_BYTES_MAX / 4096;
    let mut builder = FindResponseBuilder::default();
    assert!(builder.push(of_4_kib(n_records - 1), &[]));
    assert!(!builder.push([of_4_kib(1), vec![plain()]].concat(), &[]), "a record more");
    assert!(builder.push(of_4_kib(1), &[]), "exactly as much as there may be");
    assert!(!builder.push(vec![plain()], &[]));
    assert!(builder.push(vec![], &[]));
    assert_eq!(builder.finish().answers.len(), 3);
    let mut builder = FindResponseBuilder::default();
    let peers: Vec<PeerAddresses> = (0..=PEERS_MAX as u8).map(peer).collect();
    let (most, last) = peers.split_at(PEERS_MAX);
    for closest in most.chunks(16) {
        assert!(builder.push(vec![], closest));
    }
    assert!(!builder.push(vec![], last), "a peer more");
    assert!(builder.push(vec![], &[peer(3), peer(100)]), "those that are named already");
    assert_eq!(builder.finish().answers.last().unwrap().closest, [3, 100]);
    // The first key is answered even if its records exceed a message's limits.
    let mut builder = FindResponseBuilder::default();
    assert!(builder.push(of_4_kib(n_records + 1), &[]));
}

#[test]
fn questions_that_ask_too_much_are_refused_with_the_limit() {
    let refusal = |question: PeerToNode| question.check().unwrap_err();
    let too_many = |got: usize, max: usize| DhtRefusal::TooMany { got: got as u64, max: max as u64 };
    let keys = vec![RecordName::value(b"x").key(); KEYS_MAX + 1];
    assert_eq!(refusal(PeerToNode::Find(keys.clone())), too_many(KEYS_MAX + 1, KEYS_MAX));
    assert_eq!(
        refusal(PeerToNode::Get { keys, freshness: Freshness::Any }),
        too_many(KEYS_MAX + 1, KEYS_MAX)
    );
    assert_eq!(PeerToNode::Find(vec![plain().name.key(); KEYS_MAX]).check(), Ok(()));
    assert_eq!(PeerToNode::Put(vec![plain(); RECORDS_MAX]).check(), Ok(()));
    assert_eq!(PeerToNode::Put(of_4_kib(RECORDS_BYTES_MAX / 4096)).check(), Ok(()));
    let records = vec![plain(); RECORDS_MAX + 1];
    assert_eq!(refusal(PeerToNode::Put(records)), too_many(RECORDS_MAX + 1, RECORDS_MAX));
    let large = Record { value: vec![0; VALUE_BYTES_MAX], ..plain() };
    let records = vec![large; RECORDS_BYTES_MAX / VALUE_BYTES_MAX];
    let question = PeerToNode::Store { records, purpose: Purpose::Replica };
    assert!(matches!(refusal(question), DhtRefusal::TooLong { .. }));
}

/// A browser's delegated search, against a dishonest peer.
#[test]
fn a_delegated_search_trusts_signatures_only() {
    let asked = vec![RecordName::value(b"x").key(), signed().name.key()];
    let ask = |answer: NodeToPeer| {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (mut ours, mut theirs) = (ours.compat(), theirs.compat());
        let serving = async {
            let question = receive(&mut theirs, MESSAGE_BYTES_MAX).await.unwrap().unwrap();
            assert_eq!(question.check(), Ok(()));
            reply(&mut theirs, &answer).await.unwrap();
        };
        let asking = get(&mut ours, asked.clone(), Freshness::Newest, NOW, HOUR);
        block_on(futures::future::join(asking, serving)).0
    };
    let forged = Record { value: b"forged".to_vec(), ..signed() };
    let early = Record { expires_at: NOW, ..plain() };
    let late = Record { expires_at: NOW.after(2 * HOUR), ..plain() };
    let got = ask(NodeToPeer::Got(vec![vec![early, late], vec![forged, signed()]])).unwrap();
    assert_eq!(got, [vec![], vec![signed()]]);
    assert_eq!(ask(NodeToPeer::Got(vec![vec![]])).unwrap(), [vec![]]);
    assert!(matches!(ask(NodeToPeer::Got(vec![])), Err(DhtError::Count { .. })));
    assert!(matches!(ask(NodeToPeer::Got(vec![vec![], vec![plain()]])), Err(DhtError::Foreign)));
    assert!(matches!(ask(NodeToPeer::Stored(vec![])), Err(DhtError::Unexpected)));
    let refused = ask(NodeToPeer::Refused(DhtRefusal::Busy)).unwrap_err();
    assert_eq!(refused.to_string(), "too busy, try again later");
}

#[test]
fn every_record_that_is_put_has_its_verdict() {
    let put = |answer: NodeToPeer| {
        let (a, b) = tokio::io::duplex(64 * 1024);
        let (mut a, mut b) = (a.compat(), b.compat());
        let node = async {
            let asked: PeerToNode = framing::read(&mut b, MESSAGE_BYTES_MAX).await.unwrap();
            assert_eq!(asked, PeerToNode::Put(vec![plain(), signed()]));
            framing::write(&mut b, &answer, MESSAGE_BYTES_MAX).await.unwrap();
        };
        let putting = barnraise_protocol::dht::put(&mut a, vec![plain(), signed()]);
        block_on(async { futures::join!(putting, node).0 })
    };
    let verdicts = vec![Ok(()), Err(DhtRefusal::Full)];
    assert_eq!(put(NodeToPeer::Stored(verdicts.clone())).unwrap(), verdicts);
    let fewer = put(NodeToPeer::Stored(vec![Ok(())]));
    assert!(matches!(fewer, Err(DhtError::Count { want: 2, got: 1, .. })));
    assert!(matches!(put(NodeToPeer::Got(vec![])), Err(DhtError::Unexpected)));
    assert_eq!(
        put(NodeToPeer::Refused(DhtRefusal::Busy)).unwrap_err().to_string(),
        DhtRefusal::Busy.to_string()
    );
}

#[test]
fn the_later_record_counts_and_of_two_the_greater() {
    let at = |expires_at: u64, value: u8| Record {
        expires_at: UnixMillis(expires_at),
        value: vec![value],
        ..plain()
    };
    assert!(at(300, 1).supersedes(&at(299, 2)) && !at(299, 2).supersedes(&at(300, 1)));
    assert!(at(300, 2).supersedes(&at(300, 1)) && !at(300, 1).supersedes(&at(300, 2)));
    assert!(!at(300, 1).supersedes(&at(300, 1)), "the same again is nothing new");
}

#[test]
fn what_one_peer_has_no_room_for_another_may_take() {
    for refusal in [DhtRefusal::Quota { max: 1 }, DhtRefusal::Full, DhtRefusal::Busy, DhtRefusal::Unreachable]
    {
        assert!(refusal.is_of_this_peer(), "{refusal}");
    }
    for refusal in [DhtRefusal::Signature, DhtRefusal::Kind, DhtRefusal::Older { held: NOW }] {
        assert!(!refusal.is_of_this_peer(), "{refusal}");
    }
}

#[test]
fn a_backbone_is_found_by_its_run() {
    let addresses = vec![vec![4, 127, 0, 0, 1]; BACKBONE_ADDRESSES_MAX + 3];
    let record = BackboneAnnouncement::sign(&owner(), "barn", addresses, NOW.after(HOUR)).unwrap();
    assert_eq!(record.check(NOW, HOUR), Ok(()));
    assert_eq!(record.name.key(), backbone::key("barn"));
    assert_ne!(record.name.key(), backbone::key("shed"));
    let golden = ["10", &"05047f000001".repeat(BACKBONE_ADDRESSES_MAX)].concat();
    assert_eq!(hex(&record.value), golden);
    let read = BackboneAnnouncement::read(&record).unwrap();
    assert_eq!((read.peer, read.addresses.len()), (owner().public(), BACKBONE_ADDRESSES_MAX));
    // An entry without an owner names no peer.
    assert_eq!(BackboneAnnouncement::read(&Record { subkey: Some(Subkey::new("")), ..record.clone() }), None);
    let of = |addresses: Vec<Vec<u8>>| {
        let value = postcard::to_allocvec(&(addresses,)).unwrap();
        BackboneAnnouncement::read(&Record { value, ..record.clone() }).is_some()
    };
    assert!(of(vec![vec![0; ADDRESS_BYTES_MAX]; BACKBONE_ADDRESSES_MAX]));
    assert!(!of(vec![vec![0; ADDRESS_BYTES_MAX + 1]]) && !of(vec![vec![]; BACKBONE_ADDRESSES_MAX + 1]));
    assert_eq!(BackboneAnnouncement::read(&Record { value: vec![0xff; 40], ..record }), None);
}

fn stands() -> BackboneProgress {
    let progress = LocalProgress {
        epoch: 300,
        n_samples_total: 76_800,
        model: Some(barnraise_protocol::Sha256Hash([0x5a; 32])),
        n_samples: 130,
        n_contributors: 3,
        samples_per_second: 1.5,
    };
    let other = KeyPair::from_seed(&[9; 32]).public();
    let (bytes_per_second, aggregators) = (12 << 20, vec![other]);
    BackboneProgress { peer: owner().public(), progress, bytes_per_second, aggregators, reported_at: NOW }
}

#[test]
fn how_a_run_stands_is_found_by_its_id() {
    let record = stands().sign(&owner(), "barn").unwrap();
    assert_eq!(record.check(NOW, LIFETIME), Ok(()));
    assert!(matches!(record.check(NOW.after(LIFETIME), LIFETIME), Err(DhtRefusal::Expired { .. })));
    assert_eq!(record.name.key(), progress::key("barn"));
    assert_ne!(record.name.key(), progress::key("shed"));
    assert_ne!(record.name.key(), backbone::key("barn"));
    assert_eq!(BackboneProgress::read(&record), Some(stands()));
    let golden = [
        "ac0280d804",
        "01",
        &"5a".repeat(32),
        "820103",
        "0000c03f",
        "80808006",
        "01",
        &hex(&stands().aggregators[0].0),
    ];
    assert_eq!(hex(&record.value), golden.concat());
    // An entry without an owner names no peer.
    assert_eq!(BackboneProgress::read(&Record { subkey: Some(Subkey::new("")), ..record.clone() }), None);
    assert_eq!(BackboneProgress::read(&Record { value: vec![0xff; 90], ..record }), None);
}

#[test]
fn progress_that_no_honest_backbone_has_is_none() {
    let with = |speed: f32, n_others: usize| {
        let mut stands = stands();
        stands.progress.samples_per_second = speed;
        stands.aggregators = vec![owner().public(); n_others];
        BackboneProgress::read(&stands.sign(&owner(), "barn").unwrap())
    };
    for speed in [f32::NAN, f32::INFINITY, -1.0] {
        assert_eq!(with(speed, 1), None, "{speed}");
    }
    let most = with(0.0, AGGREGATORS_MAX + 5).unwrap();
    assert_eq!(most.aggregators.len(), AGGREGATORS_MAX);
    let record = most.sign(&owner(), "barn").unwrap();
    assert!(record.value.len() <= VALUE_BYTES_MAX);
    // One more than there may be.
    let mut value = record.value.clone();
    let at = value.len() - 32 * AGGREGATORS_MAX - 1;
    value[at] += 1;
    value.extend([7; 32]);
    assert_eq!(BackboneProgress::read(&Record { value, ..record }), None);
}

fn manifest(n_shards: u8) -> Manifest {
    let entry = |n: u8| {
        let sha256 = barnraise_protocol::Sha256Hash([n; 32]);
        ShardEntry { sha256, n_bytes: 1, n_samples: 1 }
    };
    let shape = ImageShape { height: 1, width: 1, channels: 1 };
    let samples = SampleKind::Images { shape, class_names: vec!["a".into()] };
    Manifest {
        name: "data".into(),
        samples,
        shards: (0..n_shards).map(entry).collect(),
        gallery: entry(255),
        frozen: Vec::new(),
        preprocessing: None,
        stream: None,
    }
}

#[test]
fn a_holder_is_found_by_run_and_data() {
    let data = manifest(3);
    let shards: ShardSet = [0, 9].into_iter().collect();
    let addresses = vec![vec![4, 127, 0, 0, 1]; HOLDER_ADDRESSES_MAX + 3];
    let record = Holder::sign(&owner(), ("barn", &data), &shards, addresses, NOW.after(HOUR)).unwrap();
    assert_eq!(record.check(NOW, HOUR), Ok(()));
    let golden = ["02", "0102", "08", &"05047f000001".repeat(HOLDER_ADDRESSES_MAX)].concat();
    assert_eq!(hex(&record.value), golden);
    assert_eq!(record.name.key(), shards::key("barn", &data));
    assert_ne!(record.name.key(), shards::key("shed", &data));
    assert_ne!(record.name.key(), shards::key("barn", &manifest(2)));
    let renamed = Manifest { name: "the same".into(), ..data };
    assert_eq!(record.name.key(), shards::key("barn", &renamed));
    let read = Holder::read(&record).unwrap();
    assert_eq!((read.peer, &read.shards), (owner().public(), &shards));
    assert_eq!(read.addresses.len(), HOLDER_ADDRESSES_MAX);
    // An entry without an owner names no peer.
    assert_eq!(Holder::read(&Record { subkey: Some(Subkey::new("")), ..record.clone() }), None);
    for at in 0..record.value.len() {
        let mut value = record.value.clone();
        value.truncate(at);
        assert_eq!(Holder::read(&Record { value, ..record.clone() }), None, "{at} bytes");
    }
    let of = |addresses: Vec<Vec<u8>>| {
        let value = postcard::to_allocvec(&([1u8].as_slice(), addresses)).unwrap();
        Holder::read(&Record { value, ..record.clone() }).is_some()
    };
    assert!(of(vec![vec![0; ADDRESS_BYTES_MAX]; HOLDER_ADDRESSES_MAX]));
    assert!(!of(vec![vec![0; ADDRESS_BYTES_MAX + 1]]) && !of(vec![vec![]; HOLDER_ADDRESSES_MAX + 1]));
    let too_many = [&[0xe3, 0x09][..], &[1; 1251], &[0]].concat();
    assert_eq!(Holder::read(&Record { value: too_many, ..record }), None, "more bits than shards");
}

#[test]
fn addresses_that_are_too_long_are_left_out() {
    let longest = vec![4; ADDRESS_BYTES_MAX];
    let addresses = || [vec![5; ADDRESS_BYTES_MAX + 1], longest.clone(), vec![6; ADDRESS_BYTES_MAX + 9]];
    assert_eq!(PeerAddresses::new(vec![5], addresses()).addresses, std::slice::from_ref(&longest));
    let backbone = BackboneAnnouncement::sign(&owner(), "barn", addresses(), NOW.after(HOUR)).unwrap();
    assert_eq!(BackboneAnnouncement::read(&backbone).unwrap().addresses, std::slice::from_ref(&longest));
    let (data, none) = (manifest(1), ShardSet::default());
    let holder = Holder::sign(&owner(), ("barn", &data), &none, addresses(), NOW.after(HOUR)).unwrap();
    assert_eq!(Holder::read(&holder).unwrap().addresses, [longest]);
}

#[test]
fn the_record_of_a_holder_of_all_shards_fits() {
    let all: ShardSet = (0..u32::MAX).take(SHARDS_MAX + 100).collect();
    assert_eq!(all.len(), SHARDS_MAX);
    assert!(!all.is_empty() && ShardSet::default().is_empty());
    let mut last: ShardSet = [9].into_iter().collect();
    last.remove(9);
    assert_eq!(last, ShardSet::default());
    let addresses = vec![vec![0xff; ADDRESS_BYTES_MAX]; HOLDER_ADDRESSES_MAX];
    let record = Holder::sign(&owner(), ("barn", &manifest(1)), &all, addresses, NOW.after(HOUR)).unwrap();
    assert_eq!(record.check(NOW, HOUR), Ok(()));
    assert!(Holder::read(&record).unwrap().shards == all);
}

proptest! {
    #[test]
    fn progress_of_any_bytes_is_some_or_none(at in 0usize..90, bits in 1u8.., cut in 0usize..90) {
        let record = stands().sign(&owner(), "barn").unwrap();
        let mut value = record.value.clone();
        let at = at % value.len();
        value[at] ^= bits;
        if let Some(read) = BackboneProgress::read(&Record { value, ..record.clone() }) {
            prop_assert!(read.aggregators.len() <= AGGREGATORS_MAX);
        }
        let cut = cut.min(record.value.len() - 1);
        prop_assert_eq!(BackboneProgress::read(&Record { value: record.value[..cut].to_vec(), ..record }), None);
    }

    #[test]
    fn a_set_of_shards_is_a_set(
        inserted in proptest::collection::vec(0u32..200, 0..60),
        removed in proptest::collection::vec(0u32..300, 0..60),
    ) {
        let mut set = ShardSet::default();
        let mut want = std::collections::BTreeSet::new();
        for &shard in &inserted {
            prop_assert_eq!(set.insert(shard), want.insert(shard));
        }
        for &shard in &removed {
            prop_assert_eq!(set.remove(shard), want.remove(&shard));
        }
        prop_assert!(set.iter().eq(want.iter().copied()));
        prop_assert_eq!((set.len(), set.is_empty()), (want.len(), want.is_empty()));
        prop_assert!(want.into_iter().collect::<ShardSet>() == set, "one set, one value");
    }

    #[test]
    fn any_value_is_a_holder_or_none(value in proptest::collection::vec(any::<u8>(), 0..80)) {
        let place = Some(Subkey::of_owner(owner().public()));
        let record = Record::new(RecordName::dictionary(b"x"), place, value, NOW.after(HOUR));
        if let Some(holder) = Holder::read(&record) {
            prop_assert!(holder.addresses.len() <= HOLDER_ADDRESSES_MAX);
        }
    }

    #[test]
    fn bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(question) = framing::decode_payload::<PeerToNode>(&bytes) {
            let _ = question.check();
        }
        if let Ok(answer) = framing::decode_payload::<NodeToPeer>(&bytes) {
            let _ = answer.found(&[RecordName::value(b"x").key()]);
        }
    }

    #[test]
    fn distances_are_those_of_a_metric(ids in any::<[[u8; 32]; 3]>()) {
        let [a, b, c] = ids.map(|bytes| Point::of_peer(&bytes));
        prop_assert_eq!(a.distance(&b), b.distance(&a));
        prop_assert_eq!(a.distance(&a).leading_zeros(), 256);
        // Unidirectional: for a point and a distance there is one other point (Kademlia §2.1).
        prop_assert_eq!(a.distance(&b) == a.distance(&c), b == c);
    }
}
