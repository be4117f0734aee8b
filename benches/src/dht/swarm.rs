//! Our peers: nodes of this process, each on a TCP port of its own.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use barnraise_protocol::dht::{Freshness, Record, RecordName, Subkey};
use barnraise_relay::dht::{Dht, DhtConfig};
use barnraise_relay::libp2p::Multiaddr;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::{Node, NodeConfig, Routing};
use barnraise_swarm::random::SplitMix64;
use futures::future::join_all;

use super::{DhtArgs, DhtMeasurement};

#[derive(Clone)]
struct SwarmPeer {
    node: Node,
    dht: Dht,
}

/// Peers that die, and before which rounds of all tasks together.
struct PlannedFailures {
    peers: Vec<SwarmPeer>,
    at_rounds: BTreeSet<usize>,
    n_rounds: usize,
}

pub(super) async fn measure(args: &DhtArgs, n_peers: usize) -> Result<DhtMeasurement> {
    let mut random = SplitMix64::new(args.seed);
    let mut peers = swarm(args, n_peers, &mut random).await?;
    tokio::time::sleep(Duration::from_secs(args.settle)).await;
    random.shuffle(&mut peers);
    let n_dying = (args.failure_rate * n_peers as f64) as usize;
    let dying = peers.split_off(n_peers - n_dying);
    let mut rounds: Vec<usize> = (0..args.tasks * args.rounds).collect();
    random.shuffle(&mut rounds);
    let at_rounds = rounds.into_iter().take(n_dying).collect();
    let mortals = Arc::new(Mutex::new(PlannedFailures { peers: dying, at_rounds, n_rounds: 0 }));
    let peers = Arc::new(peers);
    let n_requests =
        |peers: &[SwarmPeer]| peers.iter().map(|peer| peer.dht.counters().requests_sent).sum::<u64>();
    let sent_before = n_requests(&peers);
    let from = Instant::now();
    let tasks = (0..args.tasks).map(|_| {
        let task = work(args.clone(), peers.clone(), mortals.clone(), SplitMix64::new(random.next_u64()));
        tokio::spawn(task)
    });
    let mut sum = DhtMeasurement::default();
    for measured in join_all(tasks.collect::<Vec<_>>()).await {
        let measured = measured?;
        sum.store_s.extend(measured.store_s);
        sum.get_s.extend(measured.get_s);
        sum.n_stores += measured.n_stores;
        sum.n_stored += measured.n_stored;
        sum.n_gets += measured.n_gets;
        sum.n_got += measured.n_got;
    }
    sum.total_s = from.elapsed().as_secs_f64();
    sum.n_requests = n_requests(&peers) - sent_before;
    for peer in peers.iter() {
        peer.node.clone().shutdown().await;
    }
    Ok(sum)
}

async fn swarm(args: &DhtArgs, n_peers: usize, random: &mut SplitMix64) -> Result<Vec<SwarmPeer>> {
    let mut peers: Vec<SwarmPeer> = Vec::new();
    for _ in 0..n_peers {
        let node = NodeConfig {
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse()?],
            routing: Some(Routing::Server),
            ..NodeConfig::default()
        };
        let node = Node::start(Keypair::generate_ed25519(), node).await?;
        for at in sample(random, peers.len(), args.initial_peers) {
            let address: Option<Multiaddr> = peers[at].node.addresses().into_iter().next();
            node.dial(address.context("a peer does not listen")?).await?;
        }
        let dht = Dht::start(node.clone(), DhtConfig::default())?;
        peers.push(SwarmPeer { node, dht });
    }
    Ok(peers)
}

async fn work(
    args: DhtArgs,
    peers: Arc<Vec<SwarmPeer>>,
    mortals: Arc<Mutex<PlannedFailures>>,
    mut random: SplitMix64,
) -> DhtMeasurement {
    let mut measured = DhtMeasurement::default();
    for _ in 0..args.rounds {
        let name = RecordName::dictionary(&random.next_u64().to_le_bytes());
        let from = Instant::now();
        let storing = sample(&mut random, peers.len(), args.store_peers);
        let mut stored: Vec<Record> = Vec::new();
        let stores = storing.into_iter().map(|at| {
            let dht = &peers[at].dht;
            let expires_at = dht.now().after(Duration::from_secs(args.expiration));
            // As long as the hexadecimal UUIDs of hivemind's benchmark.
            let text =
                |random: &mut SplitMix64| format!("{:016x}{:016x}", random.next_u64(), random.next_u64());
            let (subkey, value) = (Subkey::new(text(&mut random)), text(&mut random).into_bytes());
            let record = Record::new(name.clone(), Some(subkey), value, expires_at);
            async move { dht.store(vec![record.clone()]).await.iter().all(Result::is_ok).then_some(record) }
        });
        let stores: Vec<_> = stores.collect();
        measured.n_stores += stores.len();
        stored.extend(join_all(stores).await.into_iter().flatten());
        measured.n_stored += stored.len();
        kill_one(&mortals).await;
        measured.store_s.push(from.elapsed().as_secs_f64());

        let from = Instant::now();
        let getting = sample(&mut random, peers.len(), args.get_peers);
        measured.n_gets += getting.len();
        let gets = getting.into_iter().map(|at| peers[at].dht.get_one(name.key(), Freshness::Newest));
        let found = join_all(gets).await;
        measured.get_s.push(from.elapsed().as_secs_f64());
        let is_whole = |found: &&Vec<Record>| {
            found.len() == stored.len() && found.iter().all(|record| stored.contains(record))
        };
        measured.n_got += found.iter().filter(is_whole).count();
    }
    measured
}

/// Shuts a peer down where one is due, and waits for it as hivemind's benchmark does.
async fn kill_one(mortals: &Mutex<PlannedFailures>) {
    let dying = {
        let mut mortals = mortals.lock().unwrap_or_else(PoisonError::into_inner);
        let round = mortals.n_rounds;
        mortals.n_rounds += 1;
        if mortals.at_rounds.contains(&round) { mortals.peers.pop() } else { None }
    };
    if let Some(SwarmPeer { node, dht }) = dying {
        drop(dht);
        node.shutdown().await;
    }
}

/// Different numbers below `n`, at most `n_wanted` of them.
fn sample(random: &mut SplitMix64, n: usize, n_wanted: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    random.shuffle(&mut all);
    all.truncate(n_wanted);
    all
}
