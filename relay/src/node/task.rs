//! The task that owns the swarm: commands in, events out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use libp2p::core::ConnectedPoint;
use libp2p::core::transport::ListenerId;
use libp2p::metrics::{Metrics, Recorder as _};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol, Swarm, autonat, dcutr, identify, kad, relay};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::circuits::Circuits;
use super::connections::Connections;
use super::introductions::Introductions;
use super::listen::{causes, check_free, check_listening, dial_error, listen_error, listen_reason};
use super::lookup::Lookups;
use super::network::{NodeBehaviour, NodeBehaviourEvent, NodeNetwork, NodeSwarmEvent, is_loopback};
use super::reachability::{ReachabilityAction, Reservations};
use super::reserved::ReservedPeers;
use super::routing::{self, Contact};
use super::{NodeConfig, NodeError, NodeEvent, NodeState, Path};
use crate::memory::{self, ConnectionPeak};
use crate::source::is_relayed;
use crate::streams::{OpenError, OpenRequest, Registry};
use crate::usage::Usage;

/// A bound socket has its address at once; one on every interface waits for the system to list them.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a shutdown waits for connections to say goodbye.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) type DialReply = oneshot::Sender<Result<(), NodeError>>;

/// What a handle asks of the task.
#[derive(Debug)]
pub(super) enum NodeCommand {
    Dial(DialRequest),
    Contacts { reply: oneshot::Sender<Vec<Contact>> },
    Open { peer: PeerId, protocol: StreamProtocol, reply: oneshot::Sender<Result<Stream, OpenError>> },
    ConnectedPeers { reply: oneshot::Sender<Vec<PeerId>> },
    Path { peer: PeerId, reply: oneshot::Sender<Option<Path>> },
    Disconnect { peer: PeerId },
    Reserve { relay: Multiaddr },
    Shutdown { reply: oneshot::Sender<()> },
}

/// A peer to connect with, at any of these addresses.
#[derive(Debug)]
pub(super) struct DialRequest {
    pub(super) peer: PeerId,
    pub(super) addresses: Vec<Multiaddr>,
    pub(super) reply: DialReply,
}

struct PendingDial {
    address: Multiaddr,
    reply: DialReply,
}

/// A dial that succeeded through a relay and waits for a direct connection until `until`.
struct HopefulDial {
    peer: PeerId,
    until: Instant,
    reply: DialReply,
}

pub(super) struct NodeTask {
    swarm: Swarm<NodeBehaviour>,
    commands: mpsc::Receiver<NodeCommand>,
    events: broadcast::Sender<NodeEvent>,
    shared: NodeState,
    registry: Registry,
    metrics: Metrics,
    relayed: Circuits,
    reserved: ReservedPeers,
    usage: Option<Arc<Usage>>,
    connections: Connections,
    peak: ConnectionPeak,
    introductions: Introductions<DialRequest>,
    dials: HashMap<ConnectionId, PendingDial>,
    hopeful: Vec<HopefulDial>,
    hole_punch_timeout: Duration,
    is_relay: bool,
    /// Nobody but this machine can reach the node.
    is_local: bool,
    reservations: Reservations,
    lookups: Lookups,
    circuits: HashMap<ListenerId, Multiaddr>,
    quic_tasks: TaskTracker,
    _rotation: Option<AbortOnDropHandle<()>>,
}

impl NodeTask {
    pub(super) fn new(
        network: NodeNetwork,
        config: &NodeConfig,
        commands: mpsc::Receiver<NodeCommand>,
        events: broadcast::Sender<NodeEvent>,
        shared: NodeState,
        registry: Registry,
        rotation: Option<AbortOnDropHandle<()>>,
    ) -> Self {
        Self {
            swarm: network.swarm,
            commands,
            events,
            shared,
            registry,
            metrics: network.metrics,
            relayed: network.circuits,
            reserved: network.reserved,
            usage: network.usage,
            connections: Connections::default(),
            peak: ConnectionPeak::default(),
            introductions: Introductions::new(),
            dials: HashMap::new(),
            hopeful: Vec::new(),
            hole_punch_timeout: config.hole_punch_timeout,
            is_relay: config.relay_service.is_some(),
            is_local: config.listen.iter().all(is_loopback),
            reservations: Reservations::new(&config.relays, Instant::now()),
            lookups: Lookups::new(),
            circuits: HashMap::new(),
            quic_tasks: network.quic_tasks,
            _rotation: rotation,
        }
    }

    /// Listens on every address, and returns once each is known in full.
    pub(super) async fn listen(&mut self, addresses: &[Multiaddr]) -> Result<(), NodeError> {
        let mut unbound = HashMap::new();
        for address in addresses {
            check_free(address).map_err(|error| listen_error(address, error.to_string()))?;
            let listening = self.swarm.listen_on(address.clone());
            let id = listening.map_err(|error| listen_error(address, listen_reason(&error)))?;
            unbound.insert(id, address.clone());
        }
        let deadline = tokio::time::Instant::now() + LISTEN_TIMEOUT;
        while let Some(address) = unbound.values().next() {
            let Ok(event) = tokio::time::timeout_at(deadline, self.swarm.select_next_some()).await else {
                return Err(listen_error(address, "no interface has such an address".to_owned()));
            };
            check_listening(&mut unbound, &event)?;
            self.on_event(event);
        }
        Ok(())
    }

    pub(super) async fn run(mut self) {
        loop {
            self.act(Instant::now());
            let deadline = self.next_deadline();
            let command = tokio::select! {
                event = self.swarm.select_next_some() => {
                    self.on_event(event);
                    continue;
                }
                () = sleep_until(deadline) => continue,
                Some((peer, addresses)) = self.lookups.next() => {
                    self.on_addresses(peer, addresses);
                    continue;
                }
                command = self.commands.recv() => command,
            };
            match command {
                Some(NodeCommand::Dial(request)) => self.dial_once_introduced(request),
                Some(NodeCommand::Contacts { reply }) => {
                    let kademlia = self.swarm.behaviour_mut().routing.as_mut();
                    let _ =
                        reply.send(kademlia.map(|kademlia| routing::contacts(kademlia)).unwrap_or_default());
                }
                Some(NodeCommand::Open { peer, protocol, reply }) => {
                    // Without a connection the reply is dropped, which says so.
                    if let Some((connection, _)) = self.connections.best(&peer) {
                        let request = OpenRequest { protocol, reply };
                        self.swarm.behaviour_mut().streams.open(peer, connection, request);
                    }
                }
                Some(NodeCommand::ConnectedPeers { reply }) => {
                    // The caller may have stopped waiting; so below.
                    let _ = reply.send(self.swarm.connected_peers().copied().collect());
                }
                Some(NodeCommand::Path { peer, reply }) => {
                    let _ = reply.send(self.connections.best(&peer).map(|(_, path)| path.clone()));
                }
                Some(NodeCommand::Disconnect { peer }) => {
                    // Fails only where the peer left meanwhile.
                    let _ = self.swarm.disconnect_peer_id(peer);
                }
                Some(NodeCommand::Reserve { relay }) => self.reservations.insist(relay, Instant::now()),
                Some(NodeCommand::Shutdown { reply }) => {
                    Box::pin(self.close()).await;
                    let _ = reply.send(());
                    return;
                }
                None => return Box::pin(self.close()).await,
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let hopeful = self.hopeful.iter().map(|dial| dial.until);
        hopeful.chain(self.reservations.next_deadline()).chain(self.introductions.next_deadline()).min()
    }

    /// What is due by the clock.
    fn act(&mut self, now: Instant) {
        for dial in self.hopeful.extract_if(.., |dial| dial.until <= now) {
            let _ = dial.reply.send(Ok(()));
        }
        let late = self.introductions.due(now);
        self.dial_all(late);
        while let Some(action) = self.reservations.poll(now) {
            match action {
                ReachabilityAction::Dial(relay) => {
                    self.dial_relay(&relay);
                }
                ReachabilityAction::Reserve(relay) => {
                    match self.swarm.listen_on(relay.clone().with(Protocol::P2pCircuit)) {
                        Ok(id) => drop(self.circuits.insert(id, relay)),
                        Err(error) => {
                            tracing::warn!(%relay, %error, "cannot be reached through this relay");
                            self.reservations.on_failed(&relay, now);
                        }
                    }
                }
            }
        }
    }

    /// Returns whether a connection with the relay stands or is under way.
    fn dial_relay(&mut self, relay: &Multiaddr) -> bool {
        let Some(Protocol::P2p(peer)) = relay.iter().last() else { return false };
        let opts = DialOpts::peer_id(peer).addresses(vec![relay.clone()]).build();
        match self.swarm.dial(opts) {
            Ok(()) | Err(DialError::DialPeerConditionFalse(_)) => true,
            Err(error) => {
                tracing::debug!(%relay, %error, "not dialled");
                false
            }
        }
    }

    /// Dials, through a relay once that has said at which address it sees this node.
    fn dial_once_introduced(&mut self, request: DialRequest) {
        if !self.hole_punch_timeout.is_zero()
            && !self.swarm.is_connected(&request.peer)
            && let Some((relay, address)) = self.introductions.missing(&request.addresses)
            && self.dial_relay(&address)
        {
            self.introductions.wait(relay, Instant::now() + self.hole_punch_timeout, request);
        } else {
            self.dial(request);
        }
    }

    fn dial_all(&mut self, requests: Vec<DialRequest>) {
        for request in requests {
            self.dial(request);
        }
    }

    fn dial(&mut self, request: DialRequest) {
        let DialRequest { peer, addresses, reply } = request;
        if self.swarm.is_connected(&peer) {
            let _ = reply.send(Ok(()));
            return;
        }
        let address = addresses.first().cloned().unwrap_or_else(|| Protocol::P2p(peer).into());
        let opts = DialOpts::peer_id(peer).condition(PeerCondition::Always);
        let opts = match addresses.as_slice() {
            [_] => opts.addresses(addresses).build(),
            _ => opts.addresses(addresses).extend_addresses_through_behaviour().build(),
        };
        let id = opts.connection_id();
        match self.swarm.dial(opts) {
            Ok(()) => {
                self.dials.insert(id, PendingDial { address, reply });
            }
            Err(error) => {
                let _ = reply.send(Err(dial_error(address, &error)));
            }
        }
    }

    fn on_event(&mut self, event: NodeSwarmEvent) {
        self.metrics.record(&event);
        match event {
            SwarmEvent::ConnectionEstablished {
                peer_id, connection_id, num_established, endpoint, ..
            } => self.on_connected(peer_id, connection_id, &endpoint, num_established.get() == 1),
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, cause, .. } => {
                tracing::debug!(peer = %peer_id, ?cause, "connection closed");
                self.connections.remove(&peer_id, connection_id);
                let n_connections = self.swarm.network_info().connection_counters().num_established();
                if self.peak.has_halved(n_connections) {
                    // Nobody waits for it.
                    drop(tokio::task::spawn_blocking(memory::give_back));
                }
                if num_established == 0 {
                    self.relayed.on_gone(&peer_id);
                    self.reserved.on_gone(&peer_id);
                    let _ = self.events.send(NodeEvent::Disconnected(peer_id));
                    let waiting = self.introductions.on_gone(peer_id);
                    self.dial_all(waiting);
                }
            }
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error, .. } => {
                if let Some(PendingDial { address, reply }) = self.dials.remove(&connection_id) {
                    let _ = reply.send(Err(dial_error(address, &error)));
                } else {
                    tracing::debug!(error = causes(&error), "a dial came to nothing");
                }
                if let Some(peer) = peer_id.filter(|peer| !self.swarm.is_connected(peer)) {
                    let waiting = self.introductions.on_gone(peer);
                    self.dial_all(waiting);
                }
            }
            SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
                self.shared.guard.on_listen_error(&error);
                let error = causes(&error);
                tracing::debug!(from = %send_back_addr, error, "no peer came of a connection");
            }
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "listener"),
            SwarmEvent::ListenerClosed { listener_id, addresses, reason } => {
                if let Some(relay) = self.circuits.remove(&listener_id) {
                    tracing::info!(%relay, ?reason, "no longer reached through this relay");
                    self.reservations.on_failed(&relay, Instant::now());
                } else {
                    tracing::warn!(?addresses, ?reason, "listener closed");
                }
                self.publish_addresses();
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                tracing::info!(%address, "listening");
                self.offer_for_circuits(&address);
                self.publish_addresses();
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                tracing::info!(%address, "no longer listening");
                self.publish_addresses();
            }
            SwarmEvent::ExternalAddrConfirmed { address } if !is_relayed(&address) => {
                tracing::info!(%address, "others can dial this address");
                self.reservations.on_tested(&address, true, Instant::now());
                self.publish_addresses();
            }
            SwarmEvent::ExternalAddrExpired { address } => {
                self.reservations.on_expired(&address);
                self.publish_addresses();
            }
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            _ => {}
        }
    }

    fn on_connected(&mut self, peer: PeerId, id: ConnectionId, endpoint: &ConnectedPoint, is_first: bool) {
        let address = endpoint.get_remote_address();
        self.peak.on_come(self.swarm.network_info().connection_counters().num_established());
        self.connections.add(peer, id, Path::of_endpoint(endpoint));
        if is_first {
            // No receiver is no failure.
            let _ = self.events.send(NodeEvent::Connected(peer));
        }
        let is_direct = !is_relayed(address);
        if is_direct {
            self.fulfil(peer);
        }
        let Some(PendingDial { reply, .. }) = self.dials.remove(&id) else { return };
        if is_direct || self.hole_punch_timeout.is_zero() {
            let _ = reply.send(Ok(()));
        } else {
            let until = Instant::now() + self.hole_punch_timeout;
            self.hopeful.push(HopefulDial { peer, until, reply });
        }
    }

    /// Completes the dials of `peer`: no better connection than the present one will come for now.
    fn fulfil(&mut self, peer: PeerId) {
        for dial in self.hopeful.extract_if(.., |dial| dial.peer == peer) {
            let _ = dial.reply.send(Ok(()));
        }
    }

    fn on_behaviour(&mut self, event: NodeBehaviourEvent) {
        match event {
            NodeBehaviourEvent::Identify(event) => {
                self.metrics.record(&event);
                self.on_identify(event);
            }
            NodeBehaviourEvent::Routing(kad::Event::RoutingUpdated { peer, is_new_peer: true, .. }) => {
                let _ = self.events.send(NodeEvent::Routable(peer));
            }
            NodeBehaviourEvent::Ping(event) => self.metrics.record(&event),
            NodeBehaviourEvent::RelayService(event) => {
                tracing::debug!(?event, "relay");
                self.metrics.record(&event);
                self.relayed.on_event(&event);
                if let Some(usage) = &self.usage {
                    usage.on_event(&event);
                }
            }
            NodeBehaviourEvent::RelayClient(relay::client::Event::ReservationReqAccepted {
                relay_peer_id,
                renewal: false,
                ..
            }) => {
                let ends_with_it =
                    |relay: &&Multiaddr| relay.iter().last() == Some(Protocol::P2p(relay_peer_id));
                if let Some(relay) = self.circuits.values().find(ends_with_it) {
                    tracing::info!(%relay, "reached through this relay");
                    self.reservations.on_reserved(relay);
                }
            }
            NodeBehaviourEvent::HolePunching(event) => {
                self.metrics.record(&event);
                self.on_hole_punched(event);
            }
            NodeBehaviourEvent::Reachability(autonat::v2::client::Event { tested_addr, result, .. }) => {
                tracing::info!(address = %tested_addr, is_open = result.is_ok(), "an address was tested");
                self.reservations.on_tested(&tested_addr, result.is_ok(), Instant::now());
                self.publish_addresses();
            }
            NodeBehaviourEvent::Upnp(event) => tracing::info!(?event, "gateway"),
            _ => {}
        }
    }

    fn on_identify(&mut self, event: identify::Event) {
        let identify::Event::Received { peer_id, info, .. } = event else { return };
        let waiting = self.introductions.on_introduced(peer_id);
        self.dial_all(waiting);
        if info.listen_addrs.iter().all(is_relayed) {
            // It listens nowhere itself, as a tab, to which no hole is punched.
            self.fulfil(peer_id);
        }
        if self.swarm.behaviour().routing.is_enabled()
            && routing::serves(&info)
            && let Some(addresses) = self.lookups.begin(peer_id, info.listen_addrs)
        {
            self.on_addresses(peer_id, addresses);
        }
    }

    fn on_addresses(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        let reach = self.shared.reach.scope();
        if let Some(kademlia) = self.swarm.behaviour_mut().routing.as_mut() {
            routing::on_addresses(kademlia, peer, addresses, reach);
        }
    }

    fn on_hole_punched(&mut self, event: dcutr::Event) {
        let peer = event.remote_peer_id;
        match event.result {
            Ok(_) => tracing::info!(%peer, "connected directly, through both routers"),
            Err(error) => {
                tracing::info!(%peer, %error, "no direct connection came about");
                self.fulfil(peer);
            }
        }
    }

    /// A relay tells peers with a reservation at which addresses they can be reached; it is a server, so these
    /// are the ones it listens on.
    fn offer_for_circuits(&mut self, address: &Multiaddr) {
        if self.is_relay && (!is_loopback(address) || self.is_local) {
            self.swarm.add_external_address(address.clone());
        }
    }

    fn publish_addresses(&self) {
        let listening = self.swarm.listeners().chain(self.swarm.external_addresses());
        let hashes: Vec<Protocol<'static>> = self
            .swarm
            .listeners()
            .find(|address| address.iter().any(|part| part == Protocol::WebTransport))
            .into_iter()
            .flat_map(|address| address.iter().filter(|part| matches!(part, Protocol::Certhash(_))))
            .map(Protocol::acquire)
            .collect();
        let mut seen = HashSet::new();
        let addresses = listening.map(|address| match address.iter().last() {
            // A name or a port that leads to the listener has its certificates.
            Some(Protocol::WebTransport) => hashes.iter().cloned().fold(address.clone(), Multiaddr::with),
            _ => address.clone(),
        });
        let addresses = addresses.filter(|address| seen.insert(address.clone())).collect();
        let is_new = self.shared.reach.addresses.set(addresses);
        if self.shared.reachability.set(self.reservations.reachability()) || is_new {
            let _ = self.events.send(NodeEvent::AddressesChanged);
        }
    }

    /// Ends every connection, and returns once the sockets are free or after [`SHUTDOWN_TIMEOUT`].
    async fn close(mut self) {
        self.registry.close();
        let peers: HashSet<PeerId> = self.swarm.connected_peers().copied().collect();
        for peer in peers {
            // Fails only where the peer left meanwhile.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let goodbyes = async move {
            while self.swarm.connected_peers().next().is_some() {
                let event = self.swarm.select_next_some().await;
                self.on_event(event);
            }
            let quic_tasks = self.quic_tasks.clone();
            drop(self);
            quic_tasks.close();
            quic_tasks.wait().await;
        };
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, goodbyes).await.is_err() {
            tracing::debug!("some connections did not close in time");
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
