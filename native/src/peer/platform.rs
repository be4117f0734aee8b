//! The native side of `barnraise_contributor::Platform`: libp2p through a relay node, tokio's clock, a
//! cache on disk.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use barnraise_contributor::Platform;
use barnraise_learning::DeviceChoice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_relay::{Node, NodeConfig};
use barnraise_swarm::Moment;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Stream};

use super::cache::ShardCache;
use super::{address, find};
use crate::cli::{JoinAddress, RunName};

/// Clock, network and shard cache of `barnraise join`.
pub(super) struct NativePlatform {
    address: JoinAddress,
    /// To be found through whoever is at the address; of the authority that was met itself or named who was, once one was.
    run: RefCell<Option<RunName>>,
    keypair: Keypair,
    cache: ShardCache,
    /// Whether any backbone of the run will do.
    moves: bool,
    /// Other backbones of the run.
    elsewhere: RefCell<Vec<Multiaddr>>,
    /// Whether one of them is tried next.
    is_away: Cell<bool>,
    started: Instant,
    /// A node of its own for each connection: nothing of a broken one lives on in the next.
    connection: RefCell<Option<(Node, PeerId)>>,
    /// The backbone that was found last.
    found: Cell<Option<PeerId>>,
}

impl NativePlatform {
    pub(super) fn new(
        address: JoinAddress,
        run: Option<RunName>,
        keypair: Keypair,
        cache: ShardCache,
    ) -> Self {
        Self {
            address,
            run: RefCell::new(run),
            keypair,
            cache,
            moves: true,
            elsewhere: RefCell::default(),
            is_away: Cell::new(false),
            started: Instant::now(),
            connection: RefCell::new(None),
            found: Cell::new(None),
        }
    }

    /// For whoever belongs to one backbone.
    pub(super) fn staying(self) -> Self {
        Self { moves: false, ..self }
    }

    /// Since this platform was made.
    pub(super) fn elapsed(&self) -> Moment {
        self.started.elapsed()
    }

    /// A node that is listened to only where both sides must dial at once to meet: behind a relay.
    async fn start(&self, addresses: &[Multiaddr]) -> Result<Node, String> {
        let is_behind_relay =
            addresses.iter().all(|address| address.iter().any(|p| p == Protocol::P2pCircuit));
        let any = || Multiaddr::empty().with(Protocol::Ip4(Ipv4Addr::UNSPECIFIED));
        let listen = if is_behind_relay {
            vec![any().with(Protocol::Udp(0)).with(Protocol::QuicV1), any().with(Protocol::Tcp(0))]
        } else {
            Vec::new()
        };
        let config = NodeConfig { listen, ..NodeConfig::default() };
        Node::start(self.keypair.clone(), config).await.map_err(|error| error.to_string())
    }

    /// The backbone that was asked for, wherever it is now.
    async fn connect_home(&self) -> Result<(Node, PeerId), String> {
        let addresses = address::resolve(&self.address).await.map_err(|error| error.to_string())?;
        let node = self.start(&addresses).await?;
        let mut peer = find::dial_any(&node, addresses).await?;
        let run = self.run.borrow().clone();
        if let Some(run) = run {
            let found = find::backbone(&node, peer, &run, self.found.get()).await;
            let (backbone, claim) = found.map_err(|error| error.to_string())?;
            let authority = claim.authority;
            if run.authority.is_none() && claim.is_proven() {
                let id = &run.id;
                tracing::info!("the run's authority is {authority}; to insist on it: --run {id}@{authority}");
                self.run.replace(Some(RunName { authority: Some(authority), ..run }));
            }
            peer = backbone;
            self.found.set(Some(peer));
        }
        Ok((node, peer))
    }

    /// Another backbone of the run, of which the one before said where it is.
    async fn connect_elsewhere(&self) -> Result<(Node, PeerId), String> {
        let addresses = self.elsewhere.borrow().clone();
        let node = self.start(&addresses).await?;
        let peer = find::dial_any(&node, addresses).await?;
        tracing::info!(%peer, "another backbone of the run");
        Ok((node, peer))
    }
}

impl Platform for NativePlatform {
    type Stream = Stream;

    fn now(&self) -> Moment {
        self.elapsed()
    }

    fn unix_time(&self) -> UnixTime {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixTime(since_1970.as_secs())
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

    async fn connect(&self) -> Result<Vec<u8>, String> {
        let is_away = self.is_away.get();
        let connected = if is_away { self.connect_elsewhere().await } else { self.connect_home().await };
        match connected {
            Ok((node, peer)) => {
                if let Ok(Some(path)) = node.path(peer).await {
                    tracing::info!("connected {path}");
                }
                self.connection.replace(Some((node, peer)));
                Ok(peer.to_bytes())
            }
            Err(reason) => {
                self.is_away.set(!is_away && !self.elsewhere.borrow().is_empty());
                Err(reason)
            }
        }
    }

    fn elsewhere(&self, addresses: Vec<String>) {
        if self.moves {
            self.elsewhere.replace(address::to_dial(&addresses));
        }
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
