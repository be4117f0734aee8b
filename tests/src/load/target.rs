//! The node behind the relay: it cannot be dialled, so it reserves a slot at the relay and is reached through it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use barnraise_relay::{IncomingStreams, Node, NodeConfig, NodeEvent};
use bytes::Bytes;
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, Stream};

use super::{HEARTBEAT, HEARTBEAT_BYTES, PULL};
use crate::process::HANG;

/// Most that is sent for one question.
const PULL_BYTES_MAX: u64 = 1024 * 1024;

/// A running node; it stops when this is dropped.
#[derive(Debug)]
pub struct RelayedTarget {
    node: Node,
    circuit: Multiaddr,
}

impl RelayedTarget {
    /// Starts it, and waits until `relay` has taken it in. It says something every `heartbeat` to each session
    /// and takes `n_sessions` of them.
    ///
    /// # Errors
    /// Where it cannot be started, or the relay does not take it in.
    pub async fn start(relay: Multiaddr, n_sessions: u32, heartbeat: Duration) -> Result<Self> {
        let mut config = NodeConfig {
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse()?],
            relays: vec![relay],
            ..NodeConfig::default()
        };
        // As if behind a router: a circuit comes from no address, everybody else is turned away.
        config.limits.connections_per_address = 0;
        config.limits.connections = n_sessions + 8;
        config.limits.pending_handshakes = n_sessions as usize;
        // All circuits of a relay are streams of one connection with it.
        config.limits.streams_per_connection = n_sessions as usize + 64;
        let node = Node::start(Keypair::generate_ed25519(), config).await?;
        let mut events = node.events();
        let (heartbeats, pulls) = (node.accept(HEARTBEAT)?, node.accept(PULL)?);
        serve(heartbeats, move |stream| beat(stream, heartbeat));
        let block: Bytes = vec![0x5a; PULL_BYTES_MAX as usize].into();
        let block = Arc::new(block);
        serve(pulls, move |stream| answer_pulls(stream, Arc::clone(&block)));
        let reached = async {
            loop {
                let is_circuit = |address: &Multiaddr| address.to_string().contains("/p2p-circuit/");
                if let Some(circuit) = node.addresses().into_iter().find(is_circuit) {
                    return anyhow::Ok(circuit);
                }
                while events.recv().await? != NodeEvent::AddressesChanged {}
            }
        };
        let circuit = tokio::time::timeout(HANG, reached).await.context("the relay took nobody in")??;
        Ok(Self { node, circuit })
    }

    /// Its address through the relay.
    #[must_use]
    pub fn circuit(&self) -> &Multiaddr {
        &self.circuit
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }
}

fn serve<F: Future<Output = std::io::Result<()>> + Send + 'static>(
    mut incoming: IncomingStreams,
    handle: impl Fn(Stream) -> F + Send + 'static,
) {
    tokio::spawn(async move {
        while let Some((_, stream)) = incoming.recv().await {
            // A session that leaves ends it with an error.
            tokio::spawn(handle(stream));
        }
    });
}

async fn beat(mut stream: Stream, every: Duration) -> std::io::Result<()> {
    loop {
        stream.write_all(&[1; HEARTBEAT_BYTES]).await?;
        stream.flush().await?;
        tokio::time::sleep(every).await;
    }
}

async fn answer_pulls(mut stream: Stream, block: Arc<Bytes>) -> std::io::Result<()> {
    loop {
        let mut wanted = [0; 8];
        stream.read_exact(&mut wanted).await?;
        let n_bytes = u64::from_le_bytes(wanted).min(PULL_BYTES_MAX) as usize;
        stream.write_all(block.get(..n_bytes).unwrap_or_default()).await?;
        stream.flush().await?;
    }
}
