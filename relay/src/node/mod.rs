//! A running peer: listens, dials, opens and accepts streams.
//!
//! One tokio task owns the swarm; [`Node`] is a handle to it. Every queue between them is bounded. It never
//! reconnects by itself and never looks into a stream: its opener and its acceptor do.

mod address_limit;
mod buffered;
mod circuits;
mod config;
mod connections;
mod dial_back;
mod error;
mod forwarded;
mod guard;
mod introductions;
mod listen;
mod lookup;
mod muxer;
mod network;
mod passing;
mod path;
mod patience;
mod reachability;
mod reserved;
mod routing;
mod task;
mod tcp_port;
#[cfg(test)]
mod testing;
mod transport;
mod within;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use libp2p::identity::Keypair;
use libp2p::metrics::Registry as MetricsRegistry;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol};
use tokio::sync::{broadcast, mpsc, oneshot};

pub use self::config::{NodeConfig, NodeLimits, RelayLimits};
pub use self::error::NodeError;
pub(crate) use self::guard::Guard;
pub use self::path::Path;
pub use self::reachability::Reachability;
pub use self::routing::Routing;
pub(crate) use self::routing::{Contact, Scope, scope};
use self::task::{DialRequest, NodeCommand, NodeTask};
use crate::certificates::Certificates;
use crate::guard_metrics::{GuardMetrics, Violation};
use crate::streams::{IncomingStreams, Registry};
use crate::{tasks, webrtc};

/// Commands that wait for the swarm's task.
const COMMANDS_MAX: usize = 64;
/// Events that wait for the slowest receiver; it then learns how many it missed.
const EVENTS_MAX: usize = 1024;

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The first connection with a peer stands.
    Connected(PeerId),
    /// The last connection with a peer ended.
    Disconnected(PeerId),
    /// [`Node::addresses`] or [`Node::reachability`] say something else now.
    AddressesChanged,
    /// A peer came into the routing table, with [`NodeConfig::routing`].
    Routable(PeerId),
}

/// A running node; cheap to clone. It stops when the last clone is dropped, and at once with
/// [`shutdown`](Self::shutdown).
#[derive(Clone, Debug)]
pub struct Node {
    peer_id: PeerId,
    shared: NodeState,
    registry: Registry,
    commands: mpsc::Sender<NodeCommand>,
    events: broadcast::Sender<NodeEvent>,
}

impl Node {
    /// Starts a node; it listens on every address when this returns. Needs a tokio runtime.
    ///
    /// # Errors
    /// An address that cannot be listened on is named. Nothing stays running after an error.
    pub async fn start(keypair: Keypair, config: NodeConfig) -> Result<Self, NodeError> {
        crate::memory::keep_a_little();
        let certificates = open_certificates(&config).await?;
        let rotation = certificates.as_ref().map(|of_node| of_node.webtransport.spawn_rotation());
        let registry = Registry::default();
        let mut metrics = MetricsRegistry::default();
        let guard = Guard::new(&config.limits, GuardMetrics::register(&mut metrics));
        let reach = Reach::default();
        let (streams, registered) = (registry.clone(), &mut metrics);
        let network = network::build(&keypair, &config, certificates, streams, &guard, &reach, registered)?;
        let shared = NodeState::new(guard, reach, metrics);
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let mut task = NodeTask::new(
            network,
            &config,
            received,
            events.clone(),
            shared.clone(),
            registry.clone(),
            rotation,
        );
        task.listen(&config.listen).await?;
        tasks::spawn_for_handles("node", task.run());
        Ok(Self { peer_id: keypair.public().to_peer_id(), shared, registry, commands, events })
    }

    /// This node's peer id.
    #[must_use]
    pub fn peer_id(&self) -> PeerId {
        self.peer_id
    }

    /// Where the node listens now and where others reach it, each with its `/p2p/…`; WebTransport first, with
    /// its certificate hashes.
    ///
    /// They change when certificates are rotated and when interfaces come and go, which
    /// [`NodeEvent::AddressesChanged`] tells.
    #[must_use]
    pub fn addresses(&self) -> Vec<Multiaddr> {
        let mut addresses = self.shared.reach.addresses.get();
        addresses.sort_by_key(|address| (!is_webtransport(address), address.to_string()));
        // A circuit's names this node already.
        addresses
            .into_iter()
            .map(|address| address.with_p2p(self.peer_id).unwrap_or_else(|other| other))
            .collect()
    }

    /// Accepts streams of `protocol` from now on; at most
    /// [`INCOMING_STREAMS_MAX`](crate::INCOMING_STREAMS_MAX) wait, so take them promptly.
    ///
    /// # Errors
    /// A protocol that does not begin with `/`, or that is being accepted already.
    pub fn accept(&self, protocol: &'static str) -> Result<IncomingStreams, NodeError> {
        let name = stream_protocol(protocol)?;
        self.registry.accept(name).map_err(|_| NodeError::AlreadyAccepted { protocol })
    }

    /// Connects with the peer at `address`, which must end with its `/p2p/…`; at once where a connection
    /// with it stands already. An address behind a relay (`…/p2p-circuit/p2p/…`) is answered once a direct
    /// connection came of it, or will not.
    ///
    /// # Errors
    /// An address without a peer id, or one at which the peer cannot be reached.
    pub async fn dial(&self, address: Multiaddr) -> Result<PeerId, NodeError> {
        let Some(Protocol::P2p(peer)) = address.iter().last() else {
            return Err(NodeError::NoPeerId { address });
        };
        let scope = scope(&address);
        self.ask(|reply| NodeCommand::Dial(DialRequest { peer, addresses: vec![address], reply })).await??;
        self.shared.reach.on_dialled(scope);
        Ok(peer)
    }

    /// Filters addresses that a peer names of itself (binary form) to those that this node may dial. A public node
    /// dials no private network, and none dials itself as the relay to another peer. DNS names are resolved first, and the resolved
    /// addresses are checked.
    pub async fn within_reach(&self, named: &[Vec<u8>]) -> Vec<Multiaddr> {
        let reach = self.shared.reach.scope();
        let named = named.iter().filter_map(|bytes| Multiaddr::try_from(bytes.clone()).ok());
        let mut addresses = lookup::numbers(named.collect()).await;
        let through_itself = Path::Relayed { relay: Some(self.peer_id()) };
        addresses.retain(|address| scope(address) <= reach && Path::of(address) != through_itself);
        addresses
    }

    /// Connects with `peer` at any of the addresses, or at one that the routing table has of it; at once where a
    /// connection with it stands already.
    ///
    /// # Errors
    /// It cannot be reached at any of them.
    pub async fn dial_peer(&self, peer: PeerId, addresses: Vec<Multiaddr>) -> Result<(), NodeError> {
        self.ask(|reply| NodeCommand::Dial(DialRequest { peer, addresses, reply })).await?
    }

    /// All peers in the routing table; none without [`NodeConfig::routing`].
    pub(crate) async fn contacts(&self) -> Result<Vec<Contact>, NodeError> {
        self.ask(|reply| NodeCommand::Contacts { reply }).await
    }

    /// Opens a stream to a peer that a connection stands with.
    ///
    /// # Errors
    /// No connection, a peer that does not speak the protocol, or a connection that fails meanwhile.
    pub async fn open(&self, peer: PeerId, protocol: &'static str) -> Result<Stream, NodeError> {
        let name = stream_protocol(protocol)?;
        let open_error = |source| NodeError::Open { peer, protocol, source };
        let (reply, answer) = oneshot::channel();
        let command = NodeCommand::Open { peer, protocol: name, reply };
        self.commands.send(command).await.map_err(|_| NodeError::Stopped)?;
        // The reply is dropped where there is no connection, or none any more.
        answer.await.unwrap_or(Err(crate::streams::OpenError::NotConnected)).map_err(open_error)
    }

    /// The path of the best connection to `peer`; `None` without a connection.
    ///
    /// # Errors
    /// The node has stopped.
    pub async fn path(&self, peer: PeerId) -> Result<Option<Path>, NodeError> {
        self.ask(|reply| NodeCommand::Path { peer, reply }).await
    }

    /// Closes all connections with `peer`: streams on them fail at once.
    pub async fn disconnect(&self, peer: PeerId) {
        // A node that has stopped has no connections.
        let _ = self.commands.send(NodeCommand::Disconnect { peer }).await;
    }

    /// Has a relay reserve a place for this node from now on, whether or not others can dial it: browsers, say, can dial
    /// neither QUIC nor TCP. The address ends with the relay's `/p2p/…`; a relay that refuses is asked again later.
    pub async fn reserve(&self, relay: Multiaddr) {
        // A node that has stopped is reached by nobody.
        let _ = self.commands.send(NodeCommand::Reserve { relay }).await;
    }

    /// Whether others can dial this node, as far as it was tested (AutoNAT v2).
    #[must_use]
    pub fn reachability(&self) -> Reachability {
        self.shared.reachability.get()
    }

    /// Counters and gauges of connections, bytes, relayed circuits and hole punching, in the OpenMetrics text
    /// format without its closing line, so that others can be put behind them.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        self.shared.guard.refresh();
        let metrics = self.shared.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing into a string does not fail.
        let _ = prometheus_client::encoding::text::encode_registry(&mut text, &metrics);
        text
    }

    /// Registers further metrics in the same text.
    pub(crate) fn register_metrics(&self, register: impl FnOnce(&mut MetricsRegistry)) {
        register(&mut self.shared.metrics.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts a violation that cannot be attributed to a peer.
    pub fn count(&self, violation: Violation) {
        self.shared.guard.count(violation);
    }

    /// Counts a violation of `peer`, as its own connection attests. If no
    /// honest peer does this and it exceeds the limit, the peer is disconnected and blocked for a
    /// while ([`NodeLimits::bad_messages_per_peer_and_minute`], [`NodeLimits::block_duration`]).
    pub fn report(&self, peer: PeerId, violation: Violation) {
        self.shared.guard.report(peer, violation);
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.shared.guard
    }

    /// Connections from now on. A receiver that is too slow is told how many events it missed.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.events.subscribe()
    }

    /// Connected peers.
    ///
    /// # Errors
    /// The node has stopped.
    pub async fn connected_peers(&self) -> Result<Vec<PeerId>, NodeError> {
        self.ask(|reply| NodeCommand::ConnectedPeers { reply }).await
    }

    /// Closes every connection and stops; other clones find the node stopped.
    pub async fn shutdown(self) {
        // A node that has stopped already is what was wanted.
        let _ = self.ask(|reply| NodeCommand::Shutdown { reply }).await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> NodeCommand) -> Result<T, NodeError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| NodeError::Stopped)?;
        answer.await.map_err(|_| NodeError::Stopped)
    }
}

/// State that the task writes and the handles read.
#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    reach: Reach,
    reachability: Latest<Reachability>,
    guard: Guard,
    metrics: Arc<Mutex<MetricsRegistry>>,
}

impl NodeState {
    fn new(guard: Guard, reach: Reach, metrics: MetricsRegistry) -> Self {
        Self { reach, reachability: Latest::default(), guard, metrics: Arc::new(Mutex::new(metrics)) }
    }
}

/// From where this node can be reached, and so what it may dial for other peers; clones share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    addresses: Latest<Vec<Multiaddr>>,
    /// Of the addresses that this node was told to dial, the one that is reached from farthest.
    dialled: Latest<Option<Scope>>,
}

impl Reach {
    fn scope(&self) -> Scope {
        routing::reach(self.addresses.get().iter(), self.dialled.get())
    }

    fn on_dialled(&self, scope: Scope) {
        let dialled = self.dialled.get();
        self.dialled.set(Some(dialled.map_or(scope, |before| before.min(scope))));
    }
}

/// The newest of a value.
#[derive(Clone, Debug, Default)]
struct Latest<T>(Arc<RwLock<T>>);

impl<T: Clone + PartialEq> Latest<T> {
    fn get(&self) -> T {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether it is another value than before.
    fn set(&self, value: T) -> bool {
        let mut latest = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = *latest != value;
        *latest = value;
        is_new
    }
}

/// The certificates of the listeners for browsers.
pub(crate) struct NodeCertificates {
    webtransport: Certificates,
    /// Where the node listens for WebRTC.
    webrtc: Option<webrtc::Certificate>,
}

async fn open_certificates(config: &NodeConfig) -> Result<Option<NodeCertificates>, NodeError> {
    let Some(directory) = config.certificates_dir.clone() else { return Ok(None) };
    let clock = Arc::clone(&config.clock);
    let with_webrtc = config.listen.iter().any(is_webrtc);
    let open = move || -> Result<NodeCertificates, NodeError> {
        let webtransport = Certificates::open(&directory, clock)?;
        let webrtc = with_webrtc.then(|| webrtc::certificate(&directory)).transpose()?;
        Ok(NodeCertificates { webtransport, webrtc })
    };
    let opened = tokio::task::spawn_blocking(open).await;
    Ok(Some(opened.map_err(|_| NodeError::Stopped)??))
}

fn stream_protocol(name: &'static str) -> Result<StreamProtocol, NodeError> {
    StreamProtocol::try_from_owned(name.to_owned()).map_err(|_| NodeError::ProtocolName { name })
}

fn is_webtransport(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::WebTransport)
}

fn is_webrtc(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::WebRTCDirect)
}
