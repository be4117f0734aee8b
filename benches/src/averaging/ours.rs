//! Our peers, each a process: a libp2p node that averages when it is told to.

use std::io::BufRead;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use barnraise_averaging::{AveragingConfig, RoundRegistry};
use barnraise_native::net::platform::NodePlatform;
use barnraise_protocol::average::PROTOCOL;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::libp2p::{Multiaddr, PeerId};
use barnraise_relay::{Node, NodeConfig};
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{Group, GroupMember};
use barnraise_swarm::random::SplitMix64;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::{AveragingTask, Codec, JsonProcess, RoundResult, Swarm};

#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    n_values: usize,
    codec: Codec,
    /// Where others reach it
    #[arg(long, default_value = "127.0.0.1")]
    listen: Ipv4Addr,
    /// Nobody is given up for being slow
    #[arg(long)]
    patient: bool,
}

#[derive(Serialize, Deserialize)]
struct PeerHello {
    address: Multiaddr,
}

/// All peers, in order, to each of them.
#[derive(Serialize, Deserialize)]
struct Introduction {
    me: usize,
    addresses: Vec<Multiaddr>,
    /// Values that each of them averages.
    n_reduced: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct RoundReply {
    error: f64,
}

/// A swarm of ours.
pub(crate) struct OurPeers {
    peers: Vec<JsonProcess>,
    n_rounds: u64,
}

impl OurPeers {
    pub(super) fn start(task: AveragingTask) -> Result<Self> {
        let commands = (0..task.n_peers).map(|_| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["averaging-peer", &task.n_values.to_string(), task.codec.name()]);
            Ok(command)
        });
        let (n, n_values) = (task.n_peers as u64, task.n_values as u64);
        let equal = (0..n).map(|index| n_values * (index + 1) / n - n_values * index / n);
        Self::introduce(commands.collect::<Result<_>>()?, &equal.collect::<Vec<_>>())
    }

    /// Starts a peer by each command and tells all of them of one another, and how many values each averages.
    pub(crate) fn introduce(commands: Vec<Command>, n_reduced: &[u64]) -> Result<Self> {
        let started = commands.into_iter().map(|mut command| JsonProcess::start(&mut command));
        let mut peers = started.collect::<Result<Vec<_>>>()?;
        let mut addresses = Vec::new();
        for peer in &mut peers {
            addresses.push(peer.answer::<PeerHello>()?.address);
        }
        for (me, peer) in peers.iter_mut().enumerate() {
            let introduction =
                Introduction { me, addresses: addresses.clone(), n_reduced: n_reduced.to_vec() };
            peer.tell(&serde_json::to_string(&introduction)?)?;
        }
        for peer in &mut peers {
            peer.answer::<RoundReply>()?;
        }
        Ok(Self { peers, n_rounds: 0 })
    }
}

impl Swarm for OurPeers {
    fn round(&mut self) -> Result<RoundResult> {
        self.n_rounds += 1;
        for peer in &mut self.peers {
            peer.tell(&self.n_rounds.to_string())?;
            peer.answer::<RoundReply>()?;
        }
        // All have their vectors and know the group.
        let from = Instant::now();
        for peer in &mut self.peers {
            peer.tell("average")?;
        }
        let mut error: f64 = 0.0;
        for peer in &mut self.peers {
            peer.answer::<RoundReply>()?;
        }
        let seconds = from.elapsed().as_secs_f64();
        for peer in &mut self.peers {
            peer.tell("compare")?;
            error = error.max(peer.answer::<RoundReply>()?.error);
        }
        Ok(RoundResult { seconds, error, n_averaged: self.peers.len() })
    }

    fn processes(&self) -> Vec<u32> {
        self.peers.iter().map(|peer| peer.child.id()).collect()
    }
}

/// `averaging-peer`: averages whenever it is told to.
pub(crate) fn peer(args: &PeerArgs, runtime: &Runtime) -> Result<()> {
    runtime.block_on(async {
        let listen = vec![format!("/ip4/{}/tcp/0", args.listen).parse()?];
        let node =
            Node::start(Keypair::generate_ed25519(), NodeConfig { listen, ..NodeConfig::default() }).await?;
        let mut incoming = node.accept(PROTOCOL)?;
        let address = node.addresses().into_iter().next().context("the node does not listen")?;
        println!("{}", serde_json::to_string(&PeerHello { address })?);
        let introduction: Introduction = serde_json::from_str(&line()?)?;
        let Introduction { me, addresses, n_reduced } = introduction;
        for address in &addresses[me + 1..] {
            node.dial(address.clone()).await?;
        }
        while node.connected_peers().await?.len() + 1 < addresses.len() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("{}", serde_json::to_string(&RoundReply { error: 0.0 })?);

        let registry = Arc::new(RoundRegistry::default());
        let native = NodePlatform::new(node);
        let (taking, platform) = (Arc::clone(&registry), native.clone());
        tokio::spawn(async move {
            while let Some((peer, stream)) = incoming.recv().await {
                let (registry, platform) = (Arc::clone(&taking), platform.clone());
                tokio::spawn(async move { registry.take(&platform, PeerKey(peer.to_bytes()), stream).await });
            }
        });
        let peers: Vec<PeerKey> = addresses.iter().map(key).collect::<Result<_>>()?;
        let config = if args.patient { patient() } else { AveragingConfig::default() };
        while let Ok(round) = line() {
            let group = Arc::new(group(&round, &peers, &n_reduced, args)?);
            let values: Vec<f32> = noise(args.n_values).map(|value| value + me as f32).collect();
            println!("{}", serde_json::to_string(&RoundReply { error: 0.0 })?);
            line()?;
            let averaged = registry.average(&native, &config, &group, &peers[me], values).await?;
            ensure!(averaged.is_complete(), "{:?}", averaged.parts);
            println!("{}", serde_json::to_string(&RoundReply { error: 0.0 })?);
            line()?;
            let mean = (peers.len() - 1) as f64 / 2.0;
            let off = |(value, base): (&f32, f32)| (f64::from(*value) - f64::from(base) - mean).abs();
            let error = averaged.values.iter().zip(noise(args.n_values)).map(off).fold(0.0, f64::max);
            println!("{}", serde_json::to_string(&RoundReply { error })?);
        }
        Ok(())
    })
}

/// The next line of standard input. Nothing else happens between rounds.
fn line() -> Result<String> {
    let line = std::io::stdin().lock().lines().next();
    Ok(line.context("standard input ended")??)
}

fn key(address: &Multiaddr) -> Result<PeerKey> {
    let last = address.to_string();
    let peer = last.rsplit('/').next().unwrap_or_default();
    let peer: PeerId = peer.parse().map_err(|error| anyhow!("{address}: {error}"))?;
    Ok(PeerKey(peer.to_bytes()))
}

/// All peers with equal weights.
fn group(round: &str, peers: &[PeerKey], n_reduced: &[u64], args: &PeerArgs) -> Result<Group> {
    let member = |(peer, &n_reduced): (&PeerKey, &u64)| {
        let peer = peer.clone();
        GroupMember { peer, n_samples: 1, receives: true, n_reduced }
    };
    let members = peers.iter().zip(n_reduced).map(member).collect();
    Ok(Group::new(round.as_bytes(), members, args.n_values, args.codec.ours())?)
}

/// For links so slow that a round takes minutes.
fn patient() -> AveragingConfig {
    AveragingConfig {
        patience: Duration::from_secs(500),
        reducer_timeout: Duration::from_secs(550),
        deadline: Duration::from_secs(600),
        ..AveragingConfig::default()
    }
}

/// About as large as hivemind's. Made anew whenever it is wanted: to keep it would be memory that no averaging needs.
fn noise(n_values: usize) -> impl Iterator<Item = f32> {
    let mut random = SplitMix64::new(1);
    (0..n_values).map(move |_| (random.next_u64() >> 40) as f32 / (1 << 22) as f32 - 2.0)
}
