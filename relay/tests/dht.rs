//! Real swarms on loopback, each peer a node of its own with TCP: what some store, others find, also after
//! peers have died.

use std::collections::HashSet;
use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::{self, DhtError, DhtRefusal, Freshness, Record, RecordKey, RecordName, Subkey};
use barnraise_relay::dht::{Dht, DhtConfig};
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::{Node, NodeConfig, NodeEvent, Routing};
use barnraise_swarm::dht::StorageLimits;
use barnraise_swarm::random::SplitMix64;

use crate::common::{self, tcp_address};

/// Peers that a new one is told of, as in hivemind's benchmark.
const N_INITIAL: usize = 4;
const HOUR: Duration = Duration::from_secs(3600);
/// Peers of this test are slow where the machine is, and not dead. Who dies closes its connections.
const ANSWER_MAX: Duration = Duration::from_secs(60);

struct DhtPeer {
    node: Node,
    dht: Dht,
}

async fn peer(mut config: DhtConfig) -> DhtPeer {
    config.traversal.timeout = ANSWER_MAX;
    config.placement.timeout = ANSWER_MAX;
    let routing = Some(if config.serves { Routing::Server } else { Routing::Client });
    let listen = config.serves.then(|| "/ip4/127.0.0.1/tcp/0".parse().unwrap());
    let node = NodeConfig { listen: listen.into_iter().collect(), routing, ..NodeConfig::default() };
    let node = Node::start(Keypair::generate_ed25519(), node).await.unwrap();
    let dht = Dht::start(node.clone(), config).unwrap();
    DhtPeer { node, dht }
}

async fn swarm(n_peers: usize, random: &mut SplitMix64) -> Vec<DhtPeer> {
    let mut peers: Vec<DhtPeer> = Vec::new();
    for _ in 0..n_peers {
        let new = peer(DhtConfig::default()).await;
        let mut events = new.node.events();
        let mut unknown = HashSet::new();
        for _ in 0..N_INITIAL.min(peers.len()) {
            let known = &peers[random.below(peers.len())].node;
            new.node.dial(tcp_address(known)).await.unwrap();
            unknown.insert(known.peer_id());
        }
        // A connection stands before the other side has said who it is, and only then it is asked anything.
        while !unknown.is_empty() {
            if let NodeEvent::Routable(peer) = events.recv().await.unwrap() {
                unknown.remove(&peer);
            }
        }
        peers.push(new);
    }
    peers
}

/// Half of the records are values, half places in one dictionary, signed by their owners.
fn batch(dht: &Dht, round: usize, n_records: usize) -> Vec<Record> {
    let expires_at = dht.now().after(HOUR);
    let record = |at: usize| match at.is_multiple_of(2) {
        true => {
            let name = RecordName::value(format!("value {round} {at}").as_bytes());
            Record::new(name, None, vec![at as u8; 64], expires_at)
        }
        false => {
            let owner = KeyPair::from_seed(&[at as u8; 32]);
            let name = RecordName::dictionary(format!("dictionary {round}").as_bytes());
            Record::sign(&owner, name, Some(Subkey::of_owner(owner.public())), vec![at as u8], expires_at)
                .unwrap()
        }
    };
    (0..n_records).map(record).collect()
}

fn keys(records: &[Record]) -> Vec<RecordKey> {
    let mut keys: Vec<RecordKey> = records.iter().map(|record| record.name.key()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// How many of the records are missing from what was found.
fn n_missing(records: &[Record], found: &[Vec<Record>]) -> usize {
    records.iter().filter(|record| !found.iter().flatten().any(|other| other == *record)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_peers_store_and_find_also_after_six_died() {
    const N_ROUNDS: usize = 8;
    const N_RECORDS: usize = 24;
    let mut random = SplitMix64::new(64);
    let mut peers = swarm(64, &mut random).await;
    let mut stored = Vec::new();
    for round in 0..N_ROUNDS {
        let storing = &peers[random.below(peers.len())];
        let records = batch(&storing.dht, round, N_RECORDS);
        let verdicts = storing.dht.store(records.clone()).await;
        for verdict in verdicts {
            assert_eq!(verdict, Ok(5), "replicas of a record");
        }
        let getting = &peers[random.below(peers.len())];
        let found = getting.dht.get(&keys(&records), Freshness::Newest).await;
        assert_eq!(n_missing(&records, &found), 0, "round {round}");
        stored.push(records);
    }
    random.shuffle(&mut peers);
    for dead in peers.drain(..6) {
        drop(dead.dht);
        dead.node.shutdown().await;
    }
    // One in ten dies, and five peers keep a record: all of them do in one case of a hundred thousand.
    for records in &stored {
        let getting = &peers[random.below(peers.len())];
        let found = getting.dht.get(&keys(records), Freshness::Newest).await;
        assert_eq!(n_missing(records, &found), 0, "after six died");
    }
    let storing = &peers[random.below(peers.len())];
    let records = batch(&storing.dht, N_ROUNDS, N_RECORDS);
    assert!(storing.dht.store(records.clone()).await.iter().all(|verdict| *verdict == Ok(5)));
    let getting = &peers[random.below(peers.len())];
    let found = getting.dht.get(&keys(&records), Freshness::Any).await;
    assert!(found.iter().all(|records| !records.is_empty()));
    assert!(storing.dht.counters().requests_sent > 0);
    // A peer of a crowded corner of the key space may be near no record, and keep none.
    let counters: Vec<_> = peers.iter().map(|peer| peer.dht.counters()).collect();
    assert!(counters.iter().any(|counters| counters.requests_served > 0));
    let kept: u64 = counters.iter().map(|counters| counters.stored_records).sum();
    assert!(kept >= 5 * N_RECORDS as u64, "{kept} replicas of {N_RECORDS} records");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_serves_nothing_has_a_peer_search_and_checks_itself() {
    let mut random = SplitMix64::new(7);
    let peers = swarm(8, &mut random).await;
    let owner = KeyPair::from_seed(&[3; 32]);
    let now = peers[0].dht.now();
    let place = Some(Subkey::of_owner(owner.public()));
    let name = RecordName::dictionary(b"backbones of a run");
    let record = Record::sign(&owner, name.clone(), place, b"here".to_vec(), now.after(HOUR)).unwrap();
    // A browser has no DHT: one stream to whom it is connected with.
    let browser = common::dialer().await;
    browser.dial(tcp_address(&peers[3].node)).await.unwrap();
    let mut stream = browser.open(peers[3].node.peer_id(), dht::PROTOCOL).await.unwrap();
    assert_eq!(dht::put(&mut stream, vec![record.clone()]).await.unwrap(), [Ok(())]);
    let found = peers[5].dht.get_one(name.key(), Freshness::Newest).await;
    assert_eq!(found, std::slice::from_ref(&record));
    let lifetime_max = StorageLimits::default().lifetime_max;
    let keys = vec![RecordName::value(b"nothing").key(), name.key()];
    let found = dht::get(&mut stream, keys, Freshness::Newest, now, lifetime_max).await.unwrap();
    assert_eq!(found, [vec![], vec![record.clone()]]);
    // What expired by its own clock it does not believe.
    let later = now.after(2 * HOUR);
    let found = dht::get(&mut stream, vec![name.key()], Freshness::Any, later, lifetime_max).await.unwrap();
    assert_eq!(found, [vec![]]);
    let mut forged = record;
    forged.value = b"there".to_vec();
    assert_eq!(dht::put(&mut stream, vec![forged]).await.unwrap(), [Err(DhtRefusal::Signature)]);
    let too_many = vec![name.key(); dht::KEYS_MAX + 1];
    let refused = dht::get(&mut stream, too_many, Freshness::Any, now, lifetime_max).await.unwrap_err();
    assert!(matches!(refused, DhtError::Refused(DhtRefusal::TooMany { .. })), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_named_to_nobody_and_keeps_nothing() {
    let mut random = SplitMix64::new(8);
    let peers = swarm(6, &mut random).await;
    let client = peer(DhtConfig { serves: false, ..DhtConfig::default() }).await;
    client.node.dial(tcp_address(&peers[0].node)).await.unwrap();
    let mut n_stored = 0;
    let records = batch(&client.dht, 0, 8);
    // It knows one peer at first, whose answer names the others.
    while n_stored < 8 {
        let verdicts = client.dht.store(records.clone()).await;
        n_stored = verdicts.iter().filter(|verdict| verdict.as_ref().is_ok_and(|n| *n == 5)).count();
    }
    let found = peers[4].dht.get(&keys(&records), Freshness::Newest).await;
    assert_eq!(n_missing(&records, &found), 0);
    let counters = client.dht.counters();
    assert_eq!((counters.stored_records, counters.requests_served), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_streams_costs_the_flooder_only() {
    let mut random = SplitMix64::new(9);
    let peers = swarm(3, &mut random).await;
    let flooder = common::dialer().await;
    let target = &peers[0];
    flooder.dial(tcp_address(&target.node)).await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..40 {
        let mut stream = flooder.open(target.node.peer_id(), dht::PROTOCOL).await.unwrap();
        let question = dht::PeerToNode::Find(vec![RecordName::value(b"x").key()]);
        if let Ok(dht::NodeToPeer::Found(_)) = dht::ask(&mut stream, &question).await {
            streams.push(stream);
        }
    }
    assert_eq!(streams.len(), DhtConfig::default().streams_per_peer);
    assert_eq!(target.dht.counters().streams_refused, 40 - streams.len() as u64);
    let records = batch(&peers[1].dht, 0, 8);
    assert!(peers[1].dht.store(records.clone()).await.iter().all(Result::is_ok));
    let found = peers[2].dht.get(&keys(&records), Freshness::Newest).await;
    assert_eq!(n_missing(&records, &found), 0);
}
