//! The native side of `barnraise_contributor::Platform`: TCP through a relay node, tokio's clock, a
//! cache on disk.

use std::cell::RefCell;
use std::time::Instant;

use barnraise_contributor::Platform;
use barnraise_learning::DeviceChoice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_relay::{Node, NodeConfig};
use barnraise_swarm::Moment;
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId, Stream};

use super::address;
use super::cache::ShardCache;
use crate::cli::JoinAddress;

/// Clock, network and shard cache of `barnraise join`.
pub(super) struct NativePlatform {
    address: JoinAddress,
    keypair: Keypair,
    cache: ShardCache,
    started: Instant,
    /// A node of its own for each connection: nothing of a broken one lives on in the next.
    connection: RefCell<Option<(Node, PeerId)>>,
}

impl NativePlatform {
    pub(super) fn new(address: JoinAddress, keypair: Keypair, cache: ShardCache) -> Self {
        Self { address, keypair, cache, started: Instant::now(), connection: RefCell::new(None) }
    }

    /// Since this platform was made.
    pub(super) fn elapsed(&self) -> Moment {
        self.started.elapsed()
    }

    async fn dial(&self, address: Multiaddr) -> Result<(Node, PeerId), String> {
        let node = Node::start(self.keypair.clone(), NodeConfig::default()).await;
        let node = node.map_err(|error| error.to_string())?;
        let peer = node.dial(address).await.map_err(|error| error.to_string())?;
        Ok((node, peer))
    }
}

impl Platform for NativePlatform {
    type Stream = Stream;

    fn now(&self) -> Moment {
        self.elapsed()
    }

    fn device_kind(&self, choice: DeviceChoice) -> DeviceKind {
        match choice {
            DeviceChoice::Cpu => DeviceKind::NativeCpu,
            DeviceChoice::Wgpu => DeviceKind::NativeWgpu,
            DeviceChoice::Cuda => DeviceKind::NativeCuda,
        }
    }

    async fn sleep_until(&self, at: Moment) {
        tokio::time::sleep(at.saturating_sub(self.elapsed())).await;
    }

    async fn yield_now(&self) {
        tokio::task::yield_now().await;
    }

    async fn connect(&self) -> Result<(), String> {
        let addresses = address::resolve(&self.address).await.map_err(|error| error.to_string())?;
        let mut failures = Vec::new();
        for address in addresses {
            match self.dial(address).await {
                Ok(connection) => {
                    self.connection.replace(Some(connection));
                    return Ok(());
                }
                Err(failure) => failures.push(failure),
            }
        }
        Err(failures.join("; "))
    }

    async fn disconnect(&self) {
        let connection = self.connection.take();
        if let Some((node, _)) = connection {
            node.shutdown().await;
        }
    }

    async fn open(&self, protocol: &'static str) -> Result<Stream, String> {
        let connection = self.connection.borrow().clone();
        let (node, peer) = connection.ok_or("there is no connection")?;
        node.open(peer, protocol).await.map_err(|error| error.to_string())
    }

    async fn cached(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        let cache = self.cache.clone();
        tokio::task::spawn_blocking(move || cache.get(sha256)).await.ok().flatten()
    }

    async fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) {
        let (cache, bytes) = (self.cache.clone(), bytes.to_vec());
        match tokio::task::spawn_blocking(move || cache.put(sha256, &bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a shard is not kept on disk"),
            Err(error) => tracing::debug!(%error, "a shard is not kept on disk"),
        }
    }
}
