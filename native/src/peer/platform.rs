//! The native implementation of `barnraise_contributor::Platform`: libp2p through `barnraise-relay`, tokio's clock, a
//! cache on disk.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use barnraise_contributor::{PeerShardOutcome, Platform, PlatformError};
use barnraise_learning::DeviceChoice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::run::{self, RunDescription, SignedRun};
use barnraise_relay::{Node, NodeConfig, NodeError, NodeLimits, OpenError, Path, Routing};
use barnraise_swarm::shards::Survey;
use barnraise_swarm::{Moment, PeerKey};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Stream};

use super::address::{self, AddressError};
use super::args::{JoinAddress, RunName};
use super::cache::ShardCache;
use super::find::{self, DialError, FindError};
use super::reducing::{self, Reducing};
use super::sharing::{Sharing, SharingSession};
use crate::config::{LimitsSection, NetworkSection};
use crate::net::announced::open_announced;

/// Timeout of the first connection attempt where another backbone can be tried: a machine that is off never answers.
const FIRST_OF_TWO_MAX: Duration = Duration::from_secs(2);
/// Most connections of a peer that serves shards.
const CONNECTIONS_MAX: u32 = 128;

/// Addresses and relays at which other peers reach this one, from the command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListenConfig {
    /// Addresses to listen on; if empty, ports of the system's choice.
    pub(crate) listen: Vec<Multiaddr>,
    /// Relays through which others may connect.
    pub(crate) relays: Vec<Multiaddr>,
}

/// Where a peer shows the page of a run: browsers come in there.
#[derive(Debug, Clone)]
pub(super) struct PageDoors {
    /// Address of the page.
    pub(super) ip: IpAddr,
    /// Folder for the certificates that browsers are shown.
    pub(super) certificates: PathBuf,
}

impl PageDoors {
    /// By all transports of browsers and of native peers, at ports of the system's choice.
    fn addresses(ip: Ipv4Addr) -> Vec<Multiaddr> {
        let any = || Multiaddr::empty().with(Protocol::Ip4(ip));
        let (tcp, udp) = (any().with(Protocol::Tcp(0)), any().with(Protocol::Udp(0)));
        let quic = || any().with(Protocol::Udp(0)).with(Protocol::QuicV1);
        let (web_socket, web_transport) = (
            any().with(Protocol::Tcp(0)).with(Protocol::Ws("/".into())),
            quic().with(Protocol::WebTransport),
        );
        vec![quic(), tcp, web_transport, udp.with(Protocol::WebRTCDirect), web_socket]
    }
}

/// A node that is connected to a backbone.
struct NodeConnection {
    node: Node,
    backbone: PeerId,
    attached: Option<Rc<SharingSession>>,
    reducing: Option<reducing::ReducerSession>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

impl ConnectError {
    /// Whether the address or the run was named wrongly, and a retry does not help.
    pub(super) fn is_mistake(&self) -> bool {
        match self {
            Self::Address(error) => error.is_mistake(),
            Self::Find(error) => error.is_mistake(),
            Self::Node(_) | Self::Dial(_) | Self::Timeout(_) => false,
        }
    }
}

/// Clock, network and shard cache of `barnraise join`.
pub(super) struct NativePlatform {
    address: JoinAddress,
    /// The run to search through the DHT peer at the address, with its authority once that was proven.
    run: RefCell<Option<RunName>>,
    keypair: Keypair,
    cache: ShardCache,
    /// Whether any backbone of the run will do.
    may_change_backbone: bool,
    /// Addresses of other backbones of the run.
    other_backbones: RefCell<Vec<Multiaddr>>,
    /// Whether another backbone is tried first: attempts alternate until a backbone admits this peer.
    prefers_other_backbone: Cell<bool>,
    /// Whether the last attempt was to another backbone.
    tried_other_backbone: Cell<bool>,
    /// The backbone that the DHT search found last.
    found: Cell<Option<PeerId>>,
    /// What was found last is no backbone, but a participant of a run without a server.
    is_participant: Cell<bool>,
    /// Whether the last attempt failed because of a wrong address or run, and not because something is down.
    is_mistake: Cell<bool>,
    sharing: Option<Sharing>,
    reducing: Option<Reducing>,
    /// Where the certificates of a host of experts are kept, which browsers dial.
    certificates_of_host: Option<PathBuf>,
    /// Where it shows the page of a run.
    page: Option<PageDoors>,
    listen_config: ListenConfig,
    started: Instant,
    /// Each connection has its own node, so that a broken one leaves no state for the next.
    connection: RefCell<Option<NodeConnection>>,
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
            may_change_backbone: true,
            other_backbones: RefCell::default(),
            prefers_other_backbone: Cell::new(false),
            tried_other_backbone: Cell::new(false),
            found: Cell::new(None),
            is_participant: Cell::new(false),
            is_mistake: Cell::new(false),
            sharing: None,
            reducing: None,
            certificates_of_host: None,
            page: None,
            listen_config: ListenConfig::default(),
            started: Instant::now(),
            connection: RefCell::new(None),
        }
    }

    /// Never changes to another backbone.
    pub(super) fn without_other_backbones(self) -> Self {
        Self { may_change_backbone: false, ..self }
    }

    /// Sets where other peers reach this one, if it serves them.
    pub(super) fn with_listen_config(self, doors: ListenConfig) -> Self {
        Self { listen_config: doors, ..self }
    }

    /// Exchanges shards with other peers.
    pub(super) fn with_sharing(self, sharing: Sharing) -> Self {
        Self { sharing: Some(sharing), ..self }
    }

    /// Averages parts for the run's backbones.
    pub(super) fn with_reducing(self, reducing: Reducing) -> Self {
        Self { reducing: Some(reducing), ..self }
    }

    /// Listens, for trainers that ask its experts, browsers among them: directly with certificates that are kept in this
    /// folder, and through the backbone.
    pub(super) fn hosting_experts(self, certificates: PathBuf) -> Self {
        Self { certificates_of_host: Some(certificates), ..self }
    }

    /// Listens for visitors of the page of a run, and carries streams between them and others.
    pub(super) fn with_page(self, page: Option<PageDoors>) -> Self {
        Self { page, ..self }
    }

    /// Time since this platform was created.
    pub(super) fn elapsed(&self) -> Moment {
        self.started.elapsed()
    }

    /// Whether the last attempt to connect failed for a reason that is not temporary.
    pub(super) fn is_mistake(&self) -> bool {
        self.is_mistake.get()
    }

    /// Whether what was found by the run's name is a participant of a run without a server.
    pub(super) fn is_participant(&self) -> bool {
        self.is_participant.get()
    }

    /// Whether what the peer describes is the run of the name by which it was found.
    pub(super) fn is_wanted(&self, peer: PeerId, described: &SignedRun) -> bool {
        self.run.borrow().as_ref().is_none_or(|run| find::is_wanted(run, peer, described))
    }

    /// Starts a node. It listens only if it serves shards or averages, or if the backbone is behind a relay and both sides
    /// must dial at once (hole punching).
    async fn start(&self, addresses: &[Multiaddr]) -> Result<Node, ConnectError> {
        let is_behind_relay =
            addresses.iter().all(|address| address.iter().any(|p| p == Protocol::P2pCircuit));
        let shares = self.sharing.as_ref().is_some_and(Sharing::serves);
        let hosts_experts = self.certificates_of_host.is_some();
        let serves = shares || self.reducing.is_some() || hosts_experts || self.page.is_some();
        // For a run on this machine alone, listen on loopback only.
        let is_local =
            addresses.iter().all(is_loopback) && self.page.as_ref().is_none_or(|page| page.ip.is_loopback());
        let ip = if is_local { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        let any = || Multiaddr::empty().with(Protocol::Ip4(ip));
        let quic = || any().with(Protocol::Udp(0)).with(Protocol::QuicV1);
        let listen = match serves || is_behind_relay {
            true if serves && !self.listen_config.listen.is_empty() => self.listen_config.listen.clone(),
            true if self.page.is_some() => PageDoors::addresses(ip),
            true if hosts_experts => {
                vec![quic(), any().with(Protocol::Tcp(0)), quic().with(Protocol::WebTransport)]
            }
            true => vec![quic(), any().with(Protocol::Tcp(0))],
            false => Vec::new(),
        };
        let relays = if serves { self.listen_config.relays.clone() } else { Vec::new() };
        let config = match &self.page {
            Some(page) => page_config(page, listen, relays),
            None => NodeConfig {
                certificates_dir: self.certificates_of_host.clone(),
                ..node_config(listen, relays)
            },
        };
        Ok(Node::start(self.keypair.clone(), config).await?)
    }

    /// Has the backbone and the relays reserve places for a host of experts: browsers reach most machines no other way.
    async fn reserve(&self, node: &Node, backbone: PeerId) {
        for relay in self.listen_config.relays.iter().cloned() {
            node.reserve(relay).await;
        }
        reserve_at(node, backbone).await;
    }

    /// Connects to the backbone at the given address, or to one that the DHT search finds.
    pub(super) async fn connect_home(&self) -> Result<(Node, PeerId), ConnectError> {
        let addresses = address::resolve(&self.address).await?;
        let node = self.start(&addresses).await?;
        let mut peer = find::dial_any(&node, addresses).await?;
        let run = self.run.borrow().clone();
        if let Some(run) = run {
            let (backbone, claim) = find::backbone(&node, peer, &run, self.found.get()).await?;
            let authority = claim.authority;
            if run.authority.is_none() && claim.is_proven() {
                let id = &run.id;
                tracing::info!("the run's authority is {authority}; to insist on it: --run {id}@{authority}");
                self.run.replace(Some(RunName { authority: Some(authority), ..run }));
            }
            peer = backbone;
            // No other one may have what a backbone has: its journal.
            let is_participant = claim.is_signed && !claim.is_of_backbone();
            self.found.set((!is_participant).then_some(peer));
            self.is_participant.set(is_participant);
        }
        if self.certificates_of_host.is_some() {
            self.reserve(&node, peer).await;
        }
        Ok((node, peer))
    }

    /// Has conversations with the run go over a node that is connected to this backbone.
    pub(super) fn use_connection(&self, node: Node, backbone: PeerId) {
        self.connection.replace(Some(NodeConnection { node, backbone, attached: None, reducing: None }));
    }

    /// Connects to another backbone of the run if `is_away`, else to the given one.
    async fn connect_to(&self, is_away: bool) -> Result<(Node, PeerId), ConnectError> {
        self.tried_other_backbone.set(is_away);
        if is_away { self.connect_elsewhere().await } else { self.connect_home().await }
    }

    /// Connects to another backbone of the run, at the addresses that the previous one announced.
    async fn connect_elsewhere(&self) -> Result<(Node, PeerId), ConnectError> {
        let addresses = self.other_backbones.borrow().clone();
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

    async fn connect(&self) -> Result<Vec<u8>, PlatformError> {
        let (is_away, has_others) =
            (self.prefers_other_backbone.get(), !self.other_backbones.borrow().is_empty());
        // Before the attempt, which the caller may cancel.
        self.prefers_other_backbone.set(!is_away && has_others);
        let mut connected = match has_others {
            true => match tokio::time::timeout(FIRST_OF_TWO_MAX, self.connect_to(is_away)).await {
                Ok(connected) => connected,
                Err(_) => Err(ConnectError::Timeout(FIRST_OF_TWO_MAX)),
            },
            false => self.connect_to(is_away).await,
        };
        if has_others && connected.is_err() {
            self.prefers_other_backbone.set(is_away);
            connected = self.connect_to(!is_away).await;
        }
        self.is_mistake.set(connected.as_ref().is_err_and(ConnectError::is_mistake));
        let (node, peer) = connected.map_err(PlatformError::network)?;
        if let Ok(Some(path)) = node.path(peer).await {
            tracing::info!("connected {path}");
        }
        let attached = self.sharing.as_ref().map(|sharing| sharing.attach(node.clone(), peer));
        let attached = attached.transpose().map_err(PlatformError::network)?.map(Rc::new);
        let reducing = self.reducing.as_ref().map(|reducing| reducing.attach(&node, peer));
        let reducing = reducing.transpose().map_err(PlatformError::network)?;
        self.connection.replace(Some(NodeConnection { node, backbone: peer, attached, reducing }));
        Ok(peer.to_bytes())
    }

    fn set_other_backbones(&self, addresses: Vec<String>) {
        if self.may_change_backbone {
            let is_other = self.tried_other_backbone.get();
            let moved_to = self.connection.borrow().as_ref().map(|it| it.backbone).filter(|_| is_other);
            let known = self.other_backbones.take();
            self.other_backbones.replace(others(addresses, &known, moved_to));
            // The backbone that sent this has admitted this peer.
            self.prefers_other_backbone.set(is_other);
        }
    }

    async fn disconnect(&self) {
        let connection = self.connection.take();
        let Some(NodeConnection { node, attached, reducing, .. }) = connection else { return };
        if let Some(reducing) = reducing {
            reducing.farewell().await;
        }
        // No task opens a stream to a peer any more.
        if let Some(attached) = attached.and_then(Rc::into_inner) {
            attached.farewell().await;
        }
        node.shutdown().await;
    }

    async fn open(&self, protocol: &'static str) -> Result<Stream, PlatformError> {
        let connection = self.connection.borrow().as_ref().map(|it| (it.node.clone(), it.backbone));
        let (node, peer) = connection.ok_or(PlatformError::NotConnected)?;
        match node.open(peer, protocol).await {
            // A relay does not speak this protocol, nor does a backbone of another version.
            Err(NodeError::Open { source: OpenError::Unsupported, .. }) if protocol == run::PROTOCOL => {
                self.is_mistake.set(self.run.borrow().is_none());
                Err(PlatformError::NoBackbone { peer: peer.to_string() })
            }
            opened => opened.map_err(PlatformError::network),
        }
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
        if let Some(sharing) = &self.sharing {
            sharing.on_kept();
        }
    }

    async fn kept_token(&self, name: Sha256Hash) -> Option<Vec<u8>> {
        let cache = self.cache.clone();
        tokio::task::spawn_blocking(move || cache.token(name)).await.ok().flatten()
    }

    async fn keep_token(&self, name: Sha256Hash, token: &[u8]) {
        let (cache, token) = (self.cache.clone(), token.to_vec());
        let kept = tokio::task::spawn_blocking(move || cache.put_token(name, &token)).await;
        if let Ok(Err(error)) = kept {
            tracing::warn!(%error, "the access token is not kept on disk, and the next start needs an invitation");
        }
    }

    async fn evict(&self, sha256: Sha256Hash) {
        let cache = self.cache.clone();
        let removed = tokio::task::spawn_blocking(move || cache.remove(sha256)).await;
        if let Ok(Err(error)) = removed {
            tracing::debug!(%error, "a shard could not make way for another");
        }
    }

    fn on_run(&self, run: &RunDescription, n_parameters: usize) {
        if let Some(reducing) = &self.reducing {
            reducing.on_run(run, n_parameters as u64);
        }
        if let Some(sharing) = &self.sharing {
            sharing.on_run(run);
        }
    }

    fn shard_cache_bytes_max(&self) -> u64 {
        // A part is reserved for other files, such as tokens.
        self.cache.bytes_max() - self.cache.bytes_max() / 64
    }

    fn has_peers(&self) -> bool {
        self.sharing.is_some()
    }

    fn survey(&self) -> Option<Survey> {
        self.sharing.as_ref().and_then(Sharing::survey)
    }

    async fn open_host(
        &self,
        host: &PeerKey,
        addresses: &[Vec<u8>],
        protocol: &'static str,
    ) -> Result<Stream, PlatformError> {
        let node = self.connection.borrow().as_ref().map(|it| it.node.clone());
        let node = node.ok_or(PlatformError::NotConnected)?;
        let peer = PeerId::from_bytes(&host.0).map_err(PlatformError::network)?;
        open_announced(&node, peer, addresses, protocol).await.map_err(PlatformError::network)
    }

    async fn open_to(&self, peer: &PeerKey, protocol: &'static str) -> Result<Stream, PlatformError> {
        let attached = self.connection.borrow().as_ref().and_then(|it| it.attached.clone());
        attached.ok_or(PlatformError::NotConnected)?.open(peer, protocol).await
    }

    fn on_peer_shard(&self, peer: &PeerKey, shard: u32, outcome: PeerShardOutcome<'_>) {
        let peer = PeerId::from_bytes(&peer.0).map_or_else(|_| "?".to_owned(), |peer| peer.to_string());
        match outcome {
            PeerShardOutcome::Delivered => tracing::debug!(peer, shard, "a peer passed a shard on"),
            PeerShardOutcome::Failed(error) => {
                tracing::debug!(peer, shard, %error, "a shard is asked for elsewhere");
            }
            PeerShardOutcome::Wrong => {
                tracing::warn!(peer, shard, "wrong bytes of a shard; the sender is not asked again");
            }
        }
    }
}

/// Has a backbone that the node is connected to reserve a place for it. Returns the address of the node through it, without the
/// node's peer id; nothing, where the connection goes through a relay.
pub(super) async fn reserve_at(node: &Node, backbone: PeerId) -> Option<Multiaddr> {
    let Ok(Some(Path::Direct { address, .. })) = node.path(backbone).await else { return None };
    let relay = address.with_p2p(backbone).ok()?;
    node.reserve(relay.clone()).await;
    Some(relay.with(Protocol::P2pCircuit))
}

/// Whether it is an address of this machine alone.
pub(super) fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback(),
        _ => false,
    }
}

/// A volunteer's node: it has few connections, and dials no addresses on request (AutoNAT).
fn node_config(listen: Vec<Multiaddr>, relays: Vec<Multiaddr>) -> NodeConfig {
    let limits = NodeLimits { connections: CONNECTIONS_MAX, ..NodeLimits::default() };
    NodeConfig { listen, relays, limits, dials_back: false, ..NodeConfig::default() }
}

/// As the node of a backbone: visitors come and go, find others through it, and are reached through it.
fn page_config(page: &PageDoors, listen: Vec<Multiaddr>, relays: Vec<Multiaddr>) -> NodeConfig {
    let network = NetworkSection::default();
    NodeConfig {
        listen,
        relays,
        certificates_dir: Some(page.certificates.clone()),
        limits: LimitsSection::default().of_node(network.contributors_max),
        relay_service: Some(network.carried()),
        routing: Some(Routing::Server),
        ..NodeConfig::default()
    }
}

/// Addresses of the other backbones to dial. The connected one does not send its own: one that this peer `moved_to` stays
/// known, as the others may be dead.
fn others(mut sent: Vec<String>, known: &[Multiaddr], moved_to: Option<PeerId>) -> Vec<Multiaddr> {
    let is_moved_to = |address: &&Multiaddr| address.iter().last() == moved_to.map(Protocol::P2p);
    sent.extend(known.iter().filter(is_moved_to).map(ToString::to_string));
    address::to_dial(&sent)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Protocol by which peers ask whether they can be dialled (AutoNAT v2).
    const DIAL_REQUEST: &str = "/libp2p/autonat/2/dial-request";

    async fn started(config: impl FnOnce(Vec<Multiaddr>) -> NodeConfig) -> Node {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        Node::start(Keypair::generate_ed25519(), config(listen)).await.unwrap()
    }

    #[test]
    fn another_backbone_stays_known_when_it_names_the_others() {
        let peers = [PeerId::random(), PeerId::random()];
        let [first, second] = peers.map(|peer| format!("/ip4/192.0.2.1/tcp/1/p2p/{peer}"));
        let known = others(vec![first.clone()], &[], None);
        let all = others(vec![second.clone()], &known, Some(peers[0]));
        let listed = |addresses: &[Multiaddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(listed(&all), [second.clone(), first.clone()]);
        assert_eq!(others(vec![second.clone()], &all, Some(peers[0])), all, "once");
        assert_eq!(listed(&others(vec![first.clone()], &all, None)), [first]);
    }

    #[tokio::test]
    async fn a_volunteer_dials_nobody_back() {
        let stranger = started(|listen| NodeConfig { listen, ..NodeConfig::default() }).await;
        let volunteer = started(|listen| node_config(listen, Vec::new())).await;
        let other = started(|listen| NodeConfig { listen, ..NodeConfig::default() }).await;
        for (node, dials_back) in [(&volunteer, false), (&other, true)] {
            let address = node.addresses().into_iter().find(|address| address.to_string().contains("/tcp/"));
            let peer = stranger.dial(address.unwrap()).await.unwrap();
            let opened = stranger.open(peer, DIAL_REQUEST).await;
            assert_eq!(opened.is_ok(), dials_back, "{:?}", opened.err());
        }
    }
}
