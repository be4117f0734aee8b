//! Peers with small buffers pass the shards of a data set on to each other, in virtual time from a printed seed:
//! the backbone gives each shard away about once, whatever the number of peers and passes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dataset::{LabelledImages, Samples};
use barnraise_protocol::dht::shards::ShardSet;
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::PeerKey;
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::samples::SampleStream;
use barnraise_swarm::shards::{Exchange, Source, Survey};

const N_SHARDS: u32 = 200;
const N_PASSES: u32 = 3;
/// A peer takes a shard each time; what it keeps is known to the others so many times later, at most.
const SURVEY_EVERY: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Honest,
    /// Says that it keeps everything, and sends wrong bytes.
    Poisons,
    /// Says that it keeps everything, and never answers.
    Silent,
}

struct Peer {
    key: PeerKey,
    kind: Kind,
    kept: ShardSet,
    exchange: Exchange,
    samples: SampleStream,
}

#[derive(Debug, Default)]
struct Seen {
    n_from_backbone: u32,
    n_from_peers: u32,
    n_from_buffer: u32,
    n_wrong: u64,
}

/// Bytes that tell which shard they are.
fn bytes_of(shard: u32) -> [u8; 4] {
    shard.to_le_bytes()
}

fn run(seed: u64, n_peers: u32, n_kept: u64, n_hostile: u32) -> Seen {
    let mut random = SplitMix64::new(seed);
    let size = bytes_of(0).len() as u64;
    let mut peers: Vec<Peer> = (0..n_peers)
        .map(|n| Peer {
            key: PeerKey(n.to_le_bytes().to_vec()),
            kind: match n {
                n if n >= n_hostile => Kind::Honest,
                n if n % 2 == 0 => Kind::Poisons,
                _ => Kind::Silent,
            },
            kept: ShardSet::default(),
            exchange: Exchange::new(vec![size as u32; N_SHARDS as usize], n_kept * size, random.next_u64()),
            samples: SampleStream::new(N_SHARDS, usize::MAX, random.next_u64()),
        })
        .collect();
    let mut said: BTreeMap<PeerKey, ShardSet> = BTreeMap::new();
    let mut seen = Seen::default();
    for round in 0..N_SHARDS * N_PASSES {
        if round % SURVEY_EVERY == 0 {
            said = peers.iter().map(|peer| (peer.key.clone(), says(peer))).collect();
        }
        let mut order: Vec<usize> = (0..peers.len()).collect();
        random.shuffle(&mut order);
        for at in order.into_iter().filter(|&at| at >= n_hostile as usize) {
            take_one(&mut peers, at, &said, Duration::from_secs(u64::from(round)), &mut seen);
        }
    }
    seen.n_wrong = peers.iter().map(|peer| peer.exchange.traffic().n_wrong).sum();
    seen
}

fn says(peer: &Peer) -> ShardSet {
    match peer.kind {
        Kind::Honest => peer.kept.clone(),
        Kind::Poisons | Kind::Silent => (0..N_SHARDS).collect(),
    }
}

/// One peer takes the next shard of its pass.
fn take_one(
    peers: &mut [Peer],
    at: usize,
    said: &BTreeMap<PeerKey, ShardSet>,
    now: Duration,
    seen: &mut Seen,
) {
    let holders = said.iter().filter(|(key, _)| **key != peers[at].key);
    let holders = holders.map(|(key, shards)| (key.clone(), shards.clone())).collect();
    let survey = Survey { here: peers[at].key.clone(), kept: peers[at].kept.clone(), holders };
    let peer = &mut peers[at];
    peer.exchange.on_survey(survey);
    let exchange = &peer.exchange;
    let Some(ShardId::Train(shard)) = peer.samples.next_fetch_by(|shard| exchange.rarity(shard)) else {
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
            Source::Backbone => Some(bytes),
            Source::Peer(key) => {
                let other = peers.iter().find(|peer| peer.key == *key).unwrap();
                match other.kind {
                    Kind::Honest => other.kept.contains(shard).then_some(bytes),
                    Kind::Poisons => Some([0xff; 4]),
                    Kind::Silent => None,
                }
            }
        };
        let exchange = &mut peers[at].exchange;
        match answer {
            Some(answer) if answer == bytes => {
                exchange.on_delivered(shard, &source, &bytes);
                match source {
                    Source::Backbone => seen.n_from_backbone += 1,
                    Source::Peer(_) => seen.n_from_peers += 1,
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
fn the_backbone_gives_each_shard_away_about_once() {
    for (seed, n_peers) in [(1, 8), (2, 16), (3, 64)] {
        // All peers together have room for twice the data at least.
        let n_kept = u64::from((2 * N_SHARDS).div_ceil(n_peers).max(10));
        let seen = run(seed, n_peers, n_kept, 0);
        let times = f64::from(seen.n_from_backbone) / f64::from(N_SHARDS);
        println!(
            "seed {seed}: {n_peers} peers, {n_kept} of {N_SHARDS} shards each, {N_PASSES} passes: the backbone \
             gave each shard away {times:.2} times; {seen:?}"
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
fn one_in_four_lies_and_each_peer_falls_for_each_of_them_once() {
    let (seed, n_peers, n_hostile) = (4, 16, 4);
    let seen = run(seed, n_peers, 50, n_hostile);
    let times = f64::from(seen.n_from_backbone) / f64::from(N_SHARDS);
    println!("seed {seed}: {n_hostile} of {n_peers} lie: {times:.2} times; {seen:?}");
    let n_honest = u64::from(n_peers - n_hostile);
    assert!((1..=n_honest * u64::from(n_hostile / 2)).contains(&seen.n_wrong), "{seen:?}");
    assert!(seen.n_from_peers > seen.n_from_backbone, "{seen:?}");
}
