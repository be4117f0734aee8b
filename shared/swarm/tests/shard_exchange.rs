//! Peers with small buffers exchange the shards of a data set, in virtual time from a printed seed: the backbone sends
//! each shard about once, for any number of peers and passes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dataset::{LabelledImages, Samples};
use barnraise_protocol::dht::shards::ShardSet;
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::PeerKey;
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::samples::SampleStream;
use barnraise_swarm::shards::{Exchange, ShardSource, Survey};

const N_SHARDS: u32 = 200;
const N_PASSES: u32 = 3;
/// Rounds between surveys. A peer takes one shard a round; the others learn of it with the next survey.
const SURVEY_EVERY: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HolderKind {
    Honest,
    /// Claims all shards, and sends wrong bytes.
    Poisons,
    /// Claims all shards, and never answers.
    Silent,
}

struct ShardPeer {
    key: PeerKey,
    kind: HolderKind,
    kept: ShardSet,
    exchange: Exchange,
    samples: SampleStream,
}

#[derive(Debug, Default)]
struct ExchangeStatistics {
    n_from_backbone: u32,
    n_from_peers: u32,
    n_from_buffer: u32,
    n_wrong: u64,
}

/// Bytes that identify a shard.
fn bytes_of(shard: u32) -> [u8; 4] {
    shard.to_le_bytes()
}

fn run(seed: u64, n_peers: u32, n_kept: u64, n_hostile: u32) -> ExchangeStatistics {
    let mut random = SplitMix64::new(seed);
    let size = bytes_of(0).len() as u64;
    let mut peers: Vec<ShardPeer> = (0..n_peers)
        .map(|n| ShardPeer {
            key: PeerKey(n.to_le_bytes().to_vec()),
            kind: match n {
                n if n >= n_hostile => HolderKind::Honest,
                n if n % 2 == 0 => HolderKind::Poisons,
                _ => HolderKind::Silent,
            },
            kept: ShardSet::default(),
            exchange: Exchange::new(vec![size as u32; N_SHARDS as usize], n_kept * size, random.next_u64()),
            samples: SampleStream::new(N_SHARDS, usize::MAX, random.next_u64()),
        })
        .collect();
    let mut announced: BTreeMap<PeerKey, ShardSet> = BTreeMap::new();
    let mut seen = ExchangeStatistics::default();
    for round in 0..N_SHARDS * N_PASSES {
        if round % SURVEY_EVERY == 0 {
            announced = peers.iter().map(|peer| (peer.key.clone(), announced_shards(peer))).collect();
        }
        let mut order: Vec<usize> = (0..peers.len()).collect();
        random.shuffle(&mut order);
        for at in order.into_iter().filter(|&at| at >= n_hostile as usize) {
            take_one(&mut peers, at, &announced, Duration::from_secs(u64::from(round)), &mut seen);
        }
    }
    seen.n_wrong = peers.iter().map(|peer| peer.exchange.traffic().n_wrong).sum();
    seen
}

fn announced_shards(peer: &ShardPeer) -> ShardSet {
    match peer.kind {
        HolderKind::Honest => peer.kept.clone(),
        HolderKind::Poisons | HolderKind::Silent => (0..N_SHARDS).collect(),
    }
}

/// A peer takes the next shard of its pass.
fn take_one(
    peers: &mut [ShardPeer],
    at: usize,
    announced: &BTreeMap<PeerKey, ShardSet>,
    now: Duration,
    seen: &mut ExchangeStatistics,
) {
    let holders = announced.iter().filter(|(key, _)| **key != peers[at].key);
    let holders = holders.map(|(key, shards)| (key.clone(), shards.clone())).collect();
    let survey = Survey { here: peers[at].key.clone(), kept: peers[at].kept.clone(), holders };
    let peer = &mut peers[at];
    peer.exchange.on_survey(survey);
    let exchange = &peer.exchange;
    let Some(ShardId::Numbered(shard)) = peer.samples.next_fetch_by(|shard| exchange.rarity(shard)) else {
        panic!("there is always a next one");
    };
    let nothing = Samples::Images(LabelledImages::default());
    peer.samples.on_shard(&Arc::new(nothing));
    if peer.kept.contains(shard) {
        seen.n_from_buffer += 1;
        return;
    }
    let bytes = bytes_of(shard);
    loop {
        let source = peers[at].exchange.source(now, shard, 0);
        let answer = match &source {
            ShardSource::Backbone => Some(bytes),
            ShardSource::Peer(key) => {
                let other = peers.iter().find(|peer| peer.key == *key).unwrap();
                match other.kind {
                    HolderKind::Honest => other.kept.contains(shard).then_some(bytes),
                    HolderKind::Poisons => Some([0xff; 4]),
                    HolderKind::Silent => None,
                }
            }
        };
        let exchange = &mut peers[at].exchange;
        match answer {
            Some(answer) if answer == bytes => {
                exchange.on_delivered(shard, &source, &bytes);
                match source {
                    ShardSource::Backbone => seen.n_from_backbone += 1,
                    ShardSource::Peer(_) => seen.n_from_peers += 1,
                }
                break;
            }
            Some(_) => drop(exchange.on_wrong(shard, &source)),
            None => exchange.on_failed(now, shard, &source, &[]),
        }
    }
    let peer = &mut peers[at];
    if let Some(evicted) = peer.exchange.room_for(shard) {
        for &gone in &evicted {
            peer.kept.remove(gone);
        }
        peer.kept.insert(shard);
        peer.exchange.on_kept(shard, &evicted);
    }
}

#[test]
fn the_backbone_sends_each_shard_about_once() {
    for (seed, n_peers) in [(1, 8), (2, 16), (3, 64)] {
        // All peers together have room for at least twice the data.
        let n_kept = u64::from((2 * N_SHARDS).div_ceil(n_peers).max(10));
        let seen = run(seed, n_peers, n_kept, 0);
        let times = f64::from(seen.n_from_backbone) / f64::from(N_SHARDS);
        println!(
            "seed {seed}: {n_peers} peers, {n_kept} of {N_SHARDS} shards each, {N_PASSES} passes: the backbone \
             sent each shard {times:.2} times; {seen:?}"
        );
        assert_eq!(
            seen.n_from_backbone + seen.n_from_peers + seen.n_from_buffer,
            n_peers * N_SHARDS * N_PASSES
        );
        assert!(times < 1.6, "{times} times");
        assert!(seen.n_from_peers > 10 * seen.n_from_backbone, "{seen:?}");
    }
}

#[test]
fn each_peer_takes_wrong_bytes_from_each_byzantine_holder_at_most_once() {
    let (seed, n_peers, n_hostile) = (4, 16, 4);
    let seen = run(seed, n_peers, 50, n_hostile);
    let times = f64::from(seen.n_from_backbone) / f64::from(N_SHARDS);
    println!("seed {seed}: {n_hostile} of {n_peers} are Byzantine: {times:.2} times; {seen:?}");
    let n_honest = u64::from(n_peers - n_hostile);
    assert!((1..=n_honest * u64::from(n_hostile / 2)).contains(&seen.n_wrong), "{seen:?}");
    assert!(seen.n_from_peers > seen.n_from_backbone, "{seen:?}");
}
