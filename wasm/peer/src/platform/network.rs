//! libp2p in the tab: a connection to the backbone, by the best transport that works here, and links to hosts of experts.
//!
//! WebTransport comes first, then WebRTC, then WebSocket. Each has a head start: the next one is tried in parallel
//! when it takes long or fails. The transport that worked last comes first the next time.
//!
//! A task owns the swarm; commands make it dial or hang up. The backbone's addresses are asked of its
//! web server before each dial, because they name certificates that live for days; where it does not answer,
//! other peers of the DHT are asked ([`lookup`]). It never reconnects by itself: the contributor decides when.
//!
//! A host, or an aggregator of a run without a server, is dialled where it listens for browsers, and else through a relay, for
//! most the backbone ([`links`]). The relay sees nothing of what it carries: the host proves its peer id at its end. No failure
//! there touches the backbone's connection. Those whom the tab dialled may open streams. Others dial it through a relay, where it
//! hosts experts or averages: then it has a place at its backbone, and in a run without a server at another peer of the DHT that is a
//! relay, which may outlast the backbone ([`TabNetwork::addresses`]).

mod addresses;
mod error;
mod incoming;
mod links;
mod lookup;
mod places;
mod reached;
mod swarm;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use barnraise_contributor::{IncomingStreams, PlatformError, race};
use barnraise_messages::{PeerToPage, TransportKind};
use barnraise_swarm::PeerKey;
use futures::channel::{mpsc, oneshot};
use futures::lock::Mutex;
use futures::{SinkExt, StreamExt, select_biased};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm, relay};
use wasm_bindgen_futures::spawn_local;
use web_time::Instant;

pub(crate) use addresses::fetch_status;
use addresses::{Circuit, PageOrigin, TransportAddresses, Way, dialable, ways};
pub use error::NetworkError;
use incoming::IncomingProtocols;
use links::PeerLinks;
use lookup::{DialAttempt, DialTarget, KnownRun};
use places::RelayPlaces;
use swarm::BehaviourEvent;
pub use swarm::{Behaviour, swarm};

use crate::page;

/// Head start of a transport before the next one is tried in parallel.
const HEAD_START: Duration = Duration::from_millis(1500);
/// Time limit for reaching another DHT peer; the connection attempt ends soon after.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the web server; the dial ends soon after.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for one backbone where another one is known: a machine that is off does not answer.
const FIRST_OF_TWO_MAX: Duration = Duration::from_secs(2);
/// Who wants a link that could not be had a moment ago is told so for as long.
const LINK_PAUSE: Duration = Duration::from_secs(2);
/// Most backbones whose addresses are known.
const BACKBONES_MAX: usize = 64;
/// Capacity of the command channel to the task.
const COMMANDS_MAX: usize = 4;

/// Transports that failed, each with its error.
type TransportFailures = Vec<(TransportKind, NetworkError)>;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To be the contributor's backbone, or the peer that is asked for it. There is one at a time.
    Backbone,
    /// To be a link, which a relay carries or nobody does.
    Link { relay: Option<PeerId> },
}

type DialAnswer = oneshot::Sender<Result<(), NetworkError>>;

enum SwarmCommand {
    Dial {
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        purpose: Purpose,
        answer: DialAnswer,
    },
    HangUp {
        answer: oneshot::Sender<()>,
    },
    /// Ask a connected peer for a place by which others reach the tab.
    Reserve {
        relay: PeerId,
        address: Multiaddr,
    },
}

/// An attempt to link to a peer, which all wait for who want a stream there: when the last one failed.
type LinkAttempt = Rc<Mutex<Option<Instant>>>;

/// A handle to the task that owns the swarm.
pub(crate) struct TabNetwork {
    origin: String,
    page: PageOrigin,
    commands: mpsc::Sender<SwarmCommand>,
    control: libp2p_stream::Control,
    incoming: IncomingProtocols,
    /// The transport that worked last.
    transport: Cell<Option<TransportKind>>,
    /// The connected peer: the backbone, or a DHT peer that may know its addresses.
    connected: Rc<RefCell<Option<PeerId>>>,
    /// Connections with others.
    links: Rc<RefCell<PeerLinks>>,
    attempts: RefCell<HashMap<PeerId, LinkAttempt>>,
    places: Rc<RefCell<RelayPlaces>>,
    /// All addresses of backbones and relays, those for native peers too.
    backbone_addresses: Rc<RefCell<HashMap<PeerId, Vec<Multiaddr>>>>,
    /// `None` before the web server answered for the first time.
    known: Rc<RefCell<Option<KnownRun>>>,
    /// Other backbones of the run, the next one to try first.
    other_backbones: RefCell<VecDeque<DialTarget>>,
    /// Whether one of them is dialled next. They alternate with the page's own backbone until one admits this peer.
    is_other_next: Cell<bool>,
    /// Whether the current connection is to one of them.
    is_other_connected: Cell<bool>,
}

impl TabNetwork {
    /// Starts the task; nothing is dialled yet. `transport` is the one that worked last.
    pub(crate) fn start(
        origin: String,
        keypair: Keypair,
        transport: Option<TransportKind>,
    ) -> Result<Self, NetworkError> {
        let swarm = swarm(keypair)?;
        let control = swarm.behaviour().streams.new_control();
        let incoming = swarm.behaviour().incoming.protocols();
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (connected, links, places) = (Rc::default(), Rc::default(), Rc::default());
        let task = SwarmTask {
            swarm,
            connected: Rc::clone(&connected),
            links: Rc::clone(&links),
            places: Rc::clone(&places),
            dials: Vec::new(),
            connection: None,
            hang_up: None,
        };
        spawn_local(task.run(receiver));
        Ok(Self {
            page: PageOrigin::of(&origin),
            origin,
            commands,
            control,
            incoming,
            transport: Cell::new(transport),
            connected,
            links,
            attempts: RefCell::default(),
            places,
            backbone_addresses: Rc::default(),
            known: Rc::default(),
            other_backbones: RefCell::default(),
            is_other_next: Cell::new(false),
            is_other_connected: Cell::new(false),
        })
    }

    /// Dials the backbone, or another one of the run where it does not answer. Returns the bytes of its peer id; the page
    /// is sent the transport, and why the others failed.
    pub(super) async fn connect(&self) -> Result<Vec<u8>, NetworkError> {
        let (is_other_next, has_other_backbones) =
            (self.is_other_next.get(), !self.other_backbones.borrow().is_empty());
        // Before the dial, as the caller may drop this future.
        self.is_other_next.set(!is_other_next && has_other_backbones);
        if !has_other_backbones {
            return self.connect_to(is_other_next).await;
        }
        let first = lookup::within(FIRST_OF_TWO_MAX, self.connect_to(is_other_next)).await;
        match first {
            Ok(backbone) => Ok(backbone),
            Err(first) => {
                self.is_other_next.set(is_other_next);
                self.disconnect().await;
                let second = self.connect_to(!is_other_next).await;
                second.map_err(|second| NetworkError::both(first, second))
            }
        }
    }

    /// Dials one of the other backbones, or the page's own.
    async fn connect_to(&self, is_other: bool) -> Result<Vec<u8>, NetworkError> {
        self.is_other_connected.set(is_other);
        if is_other { self.connect_other().await } else { self.connect_own().await }
    }

    /// Takes the addresses of the run's other backbones, which the connected backbone sent. It does not send its own: one
    /// that the tab moved to stays known, and is the next to try. The others may be dead.
    pub(super) fn set_other_backbones(&self, addresses: &[String]) {
        let moved_to = self.connected.borrow().filter(|_| self.is_other_connected.get());
        let known = self.other_backbones.take();
        let mut targets: VecDeque<DialTarget> =
            known.into_iter().filter(|known| Some(known.peer) == moved_to).collect();
        self.learn_addresses(addresses);
        let mut rest = addresses.to_vec();
        // Addresses are grouped by backbone.
        while let Ok((peer, transports)) = dialable(&rest, self.page.is_secure) {
            let id = peer.to_string();
            let n_before = rest.len();
            rest.retain(|address| !address.ends_with(&id));
            if rest.len() == n_before {
                break;
            }
            targets.push_back(DialTarget { peer, transports });
        }
        self.other_backbones.replace(targets);
        // A backbone that sends them has admitted this peer.
        self.is_other_next.set(self.is_other_connected.get());
    }

    async fn connect_other(&self) -> Result<Vec<u8>, NetworkError> {
        let target = {
            let mut targets = self.other_backbones.borrow_mut();
            let has_more = targets.len() > 1;
            targets.rotate_left(usize::from(has_more));
            targets.back().cloned()
        };
        let target = target.ok_or(NetworkError::NoOtherBackbone)?;
        let backbone = target.peer;
        let (transport, failures) = self.reach(target).await?;
        post_connected(transport, &failures);
        Ok(backbone.to_bytes())
    }

    /// Fetches the addresses of the page's own backbone and dials it.
    async fn connect_own(&self) -> Result<Vec<u8>, NetworkError> {
        let target = match lookup::within(STATUS_TIMEOUT, async { Ok(fetch_status(&self.origin).await?) })
            .await
        {
            Ok(status) => {
                let (peer, transports) = dialable(&status.addresses, self.page.is_secure)?;
                self.learn_addresses(&status.addresses);
                let target = DialTarget { peer, transports };
                let before = self.known.take();
                self.known.replace(Some(KnownRun::new(status.run.identity.run_id, target.clone(), before)));
                target
            }
            Err(first) => self.find().await.map_err(|second| NetworkError::both(first, second))?,
        };
        let backbone = target.peer;
        let (transport, failures) = self.reach(target).await?;
        post_connected(transport, &failures);
        self.learn(backbone);
        Ok(backbone.to_bytes())
    }

    /// Finds the backbone while its web server does not answer.
    async fn find(&self) -> Result<DialTarget, NetworkError> {
        let attempt =
            self.known.borrow_mut().as_mut().map(|known| (known.run_id.clone(), known.next_attempt()));
        let (run_id, wanted, contact) = match attempt {
            None => return Err(NetworkError::UnknownRun),
            Some((_, DialAttempt::Redial(backbone))) => return Ok(backbone),
            Some((run_id, DialAttempt::AskDht { contact, wanted })) => (run_id, wanted, contact),
        };
        let DialTarget { peer: asked, transports } = contact;
        // Over a link, as the tab may have its place there.
        let link = Box::pin(self.link(asked, || Way::direct(transports)));
        lookup::within(CONTACT_TIMEOUT, link).await?;
        let target = lookup::newest(self.control.clone(), asked, &run_id, wanted, self.page).await?;
        let moved_to = target.transports.iter().flat_map(|(_, addresses)| addresses.clone()).collect();
        self.backbone_addresses.borrow_mut().insert(target.peer, moved_to);
        if let Some(known) = self.known.borrow_mut().as_mut() {
            known.backbone = target.clone();
        }
        Ok(target)
    }

    /// Remembers other DHT peers, in case the backbone moves.
    fn learn(&self, backbone: PeerId) {
        let run_id = self.known.borrow().as_ref().map(|known| known.run_id.clone());
        let Some(run_id) = run_id else { return };
        let (control, known, page) = (self.control.clone(), Rc::clone(&self.known), self.page);
        let addresses = Rc::clone(&self.backbone_addresses);
        spawn_local(async move {
            // An empty answer does not replace the peers known so far.
            let found = lookup::contacts(control, backbone, &run_id, page).await.unwrap_or_default();
            if let Some(known) = known.borrow_mut().as_mut().filter(|_| !found.is_empty()) {
                let (contacts, all): (Vec<DialTarget>, Vec<Vec<Multiaddr>>) = found.into_iter().unzip();
                let of_peers = contacts.iter().map(|contact| contact.peer).zip(all);
                learn_addresses(&mut addresses.borrow_mut(), of_peers);
                known.contacts = contacts;
            }
        });
    }

    /// Dials a peer over its best transport. Returns that transport, and why the others failed.
    async fn reach(&self, target: DialTarget) -> Result<(TransportKind, TransportFailures), NetworkError> {
        let DialTarget { peer, mut transports } = target;
        transports.sort_by_key(|(transport, _)| (Some(*transport) != self.transport.get(), *transport));
        let order: Vec<TransportKind> = transports.iter().map(|(transport, _)| *transport).collect();
        let failures = RefCell::new(Vec::new());
        let attempts = transports.into_iter().map(|(transport, addresses)| {
            let dialled = self.dial(peer, addresses, Purpose::Backbone);
            let failures = &failures;
            async move {
                dialled
                    .await
                    .map(|()| transport)
                    .map_err(|error| failures.borrow_mut().push((transport, error)))
            }
        });
        let won = race(attempts, || gloo::timers::future::sleep(HEAD_START)).await;
        let mut failures = failures.into_inner();
        match won {
            Ok((index, transport)) => {
                for slow in &order[..index] {
                    if failures.iter().all(|(failed, _)| failed != slow) {
                        failures.push((*slow, NetworkError::Slow));
                    }
                }
                self.transport.set(Some(transport));
                Ok((transport, failures))
            }
            Err(_) => Err(NetworkError::Transports(failures)),
        }
    }

    async fn dial(
        &self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        purpose: Purpose,
    ) -> Result<(), NetworkError> {
        let (answer, answered) = oneshot::channel();
        self.command(SwarmCommand::Dial { peer, addresses, purpose, answer }).await?;
        answered.await.map_err(|_| NetworkError::Superseded)?
    }

    fn learn_addresses(&self, addresses: &[String]) {
        let mut fresh: HashMap<PeerId, Vec<Multiaddr>> = HashMap::new();
        for address in addresses.iter().filter_map(|address| address.parse::<Multiaddr>().ok()) {
            if let Some(Protocol::P2p(peer)) = address.iter().last() {
                fresh.entry(peer).or_default().push(address);
            }
        }
        learn_addresses(&mut self.backbone_addresses.borrow_mut(), fresh);
    }

    /// Streams of a protocol that peers open with which a connection stands.
    pub(super) fn accept(
        &self,
        protocol: &'static str,
    ) -> Result<IncomingStreams<libp2p::Stream>, PlatformError> {
        let accepted = self.incoming.accept(StreamProtocol::new(protocol));
        let incoming = accepted.ok_or(PlatformError::Accepted { protocol })?;
        Ok(incoming.map(|(peer, stream)| (PeerKey(peer.to_bytes()), stream)).boxed_local())
    }

    /// Opens a stream to a host of experts, or to an aggregator, at the addresses that it announced. It is dialled to the end also where
    /// who asks for it waits no longer: the next one does not wait for long then.
    pub(crate) async fn open_host(
        self: &Rc<Self>,
        host: PeerId,
        announced: &[Vec<u8>],
        protocol: &'static str,
    ) -> Result<libp2p::Stream, NetworkError> {
        if !self.links.borrow_mut().on_used(&host) {
            let (answer, answered) = oneshot::channel();
            let (network, announced) = (Rc::clone(self), announced.to_vec());
            spawn_local(async move {
                let ways = || ways(host, &announced, network.page);
                // The caller may be gone.
                let _ = answer.send(Box::pin(network.link(host, ways)).await);
            });
            answered.await.map_err(|_| NetworkError::Stopped)??;
        }
        Ok(self.control.clone().open_stream(host, StreamProtocol::new(protocol)).await?)
    }

    /// Opens a stream to the contributor's backbone; where it has none at the moment, to the page's own, over a link.
    pub(crate) async fn open_any_backbone(
        &self,
        protocol: &'static str,
    ) -> Result<libp2p::Stream, NetworkError> {
        let connected = *self.connected.borrow();
        let backbone = match connected {
            Some(backbone) => backbone,
            None => {
                let asking = async { Ok(fetch_status(&self.origin).await?) };
                let status = lookup::within(STATUS_TIMEOUT, asking).await?;
                let (peer, transports) = dialable(&status.addresses, self.page.is_secure)?;
                self.link(peer, || Way::direct(transports)).await?;
                peer
            }
        };
        Ok(self.control.clone().open_stream(backbone, StreamProtocol::new(protocol)).await?)
    }

    /// Connects with a peer unless a connection stands. What others began is waited for, and what failed just now is not
    /// tried again.
    async fn link(&self, peer: PeerId, ways: impl FnOnce() -> Vec<Way>) -> Result<(), NetworkError> {
        let attempt = {
            let mut attempts = self.attempts.borrow_mut();
            attempts.retain(|known, attempt| {
                let failed_at = attempt.try_lock().and_then(|failed_at| *failed_at);
                let is_recent = failed_at.is_some_and(|at| at.elapsed() < LINK_PAUSE);
                *known == peer || Rc::strong_count(attempt) > 1 || is_recent
            });
            Rc::clone(attempts.entry(peer).or_default())
        };
        let mut failed_at = attempt.lock().await;
        if self.links.borrow_mut().on_used(&peer) || *self.connected.borrow() == Some(peer) {
            return Ok(());
        }
        if failed_at.is_some_and(|at| at.elapsed() < LINK_PAUSE) {
            return Err(NetworkError::FailedBefore);
        }
        let attempts = ways().into_iter().map(|way| self.take(peer, way));
        let linked = race(attempts, || gloo::timers::future::sleep(HEAD_START)).await;
        *failed_at = linked.is_err().then(Instant::now);
        linked.map(|_| ()).map_err(NetworkError::Ways)
    }

    /// Connects with a peer in one way.
    async fn take(&self, peer: PeerId, way: Way) -> Result<(), NetworkError> {
        let Circuit { relay, address, to_relay } = match way {
            Way::Direct(addresses) => {
                return self.dial(peer, addresses, Purpose::Link { relay: None }).await;
            }
            Way::Through(circuit) => circuit,
        };
        // For most it is the backbone that the tab is connected to, or another one of the run.
        let to_relay = || Way::direct(self.known_backbone(relay).unwrap_or(to_relay));
        Box::pin(self.link(relay, to_relay)).await?;
        self.dial(peer, vec![address], Purpose::Link { relay: Some(relay) }).await
    }

    /// Addresses of a backbone of the run.
    fn known_backbone(&self, peer: PeerId) -> Option<TransportAddresses> {
        let own = self.known.borrow().as_ref().map(|known| known.backbone.clone());
        let others = self.other_backbones.borrow();
        let mut known = others.iter().chain(&own);
        known.find(|known| known.peer == peer).map(|known| known.transports.clone())
    }

    /// Ends the connection.
    pub(super) async fn disconnect(&self) {
        let (answer, answered) = oneshot::channel();
        if self.command(SwarmCommand::HangUp { answer }).await.is_ok() {
            // A task that has ended has no connection either.
            let _ = answered.await;
        }
    }

    /// Opens a stream to the backbone, without dialling.
    pub(super) async fn open(&self, protocol: &'static str) -> Result<libp2p::Stream, PlatformError> {
        let peer = *self.connected.borrow();
        let peer = peer.ok_or(PlatformError::NotConnected)?;
        let opened = self.control.clone().open_stream(peer, StreamProtocol::new(protocol)).await;
        opened.map_err(PlatformError::network)
    }

    async fn command(&self, command: SwarmCommand) -> Result<(), NetworkError> {
        self.commands.clone().send(command).await.map_err(|_| NetworkError::Stopped)
    }
}

/// Takes the addresses of backbones and relays in place of those that were known.
fn learn_addresses(
    known: &mut HashMap<PeerId, Vec<Multiaddr>>,
    fresh: impl IntoIterator<Item = (PeerId, Vec<Multiaddr>)>,
) {
    if known.len() >= BACKBONES_MAX {
        known.clear();
    }
    known.extend(fresh);
}

/// Tells the page which transport works, and why others do not.
fn post_connected(transport: TransportKind, failures: &[(TransportKind, NetworkError)]) {
    let failures = failures.iter().map(|(transport, error)| (*transport, error.to_string())).collect();
    page::post(&PeerToPage::Connected { transport, failures });
}

struct Dial {
    connection: ConnectionId,
    purpose: Purpose,
    answer: DialAnswer,
}

struct SwarmTask {
    swarm: Swarm<Behaviour>,
    connected: Rc<RefCell<Option<PeerId>>>,
    links: Rc<RefCell<PeerLinks>>,
    places: Rc<RefCell<RelayPlaces>>,
    dials: Vec<Dial>,
    /// With the backbone.
    connection: Option<ConnectionId>,
    /// Answered when only links are left: streams open on any connection to the peer, so a
    /// dying one must be gone before the next is dialled.
    hang_up: Option<oneshot::Sender<()>>,
}

impl SwarmTask {
    async fn run(mut self, mut commands: mpsc::Receiver<SwarmCommand>) {
        loop {
            select_biased! {
                command = commands.next() => match command {
                    Some(command) => self.on_command(command),
                    None => return,
                },
                event = self.swarm.select_next_some() => self.on_event(event),
            }
        }
    }

    fn on_command(&mut self, command: SwarmCommand) {
        match command {
            SwarmCommand::Dial { peer, addresses, purpose, answer } => {
                let options =
                    DialOpts::peer_id(peer).addresses(addresses).condition(PeerCondition::Always).build();
                let connection = options.connection_id();
                match self.swarm.dial(options) {
                    Ok(()) => self.dials.push(Dial { connection, purpose, answer }),
                    // The receiver may be gone.
                    Err(error) => drop(answer.send(Err(NetworkError::Dial(Box::new(error))))),
                }
            }
            SwarmCommand::HangUp { answer } => {
                self.dials.retain(|dial| dial.purpose != Purpose::Backbone);
                let backbone = self.connected.take();
                if let Some(backbone) = backbone {
                    self.links.borrow_mut().forget(&backbone);
                    self.forget_place(&backbone);
                }
                if let Some(connection) = self.connection.take() {
                    self.swarm.close_connection(connection);
                }
                for peer in self.connected_without_link() {
                    // An error says that it is gone already.
                    let _ = self.swarm.disconnect_peer_id(peer);
                }
                self.hang_up = Some(answer);
                self.answer_hang_up();
            }
            SwarmCommand::Reserve { relay, address } => self.reserve(relay, &address),
        }
    }

    fn reserve(&mut self, relay: PeerId, address: &Multiaddr) {
        let of_relay = address.iter().filter(|part| !matches!(part, Protocol::P2p(_)));
        let circuit: Multiaddr = of_relay.chain([Protocol::P2p(relay), Protocol::P2pCircuit]).collect();
        // Asked again where it cannot be.
        let listener = self.swarm.listen_on(circuit).ok();
        let earlier = self.places.borrow_mut().on_listening(relay, listener);
        if let Some(earlier) = earlier {
            self.swarm.remove_listener(earlier);
        }
    }

    fn forget_place(&mut self, relay: &PeerId) {
        let listener = self.places.borrow_mut().forget(relay);
        if let Some(listener) = listener {
            self.swarm.remove_listener(listener);
        }
    }

    fn take_dial(&mut self, connection: ConnectionId) -> Option<Dial> {
        let index = self.dials.iter().position(|dial| dial.connection == connection)?;
        Some(self.dials.swap_remove(index))
    }

    /// Peers with which there is more than a link: the backbone, and those whose connection is being closed. Who reached the tab through
    /// a relay stays.
    fn connected_without_link(&self) -> Vec<PeerId> {
        let links = self.links.borrow();
        self.swarm.connected_peers().filter(|peer| !links.reaches(peer)).copied().collect()
    }

    fn answer_hang_up(&mut self) {
        if self.connected_without_link().is_empty()
            && let Some(answer) = self.hang_up.take()
        {
            let _ = answer.send(());
        }
    }

    /// Keeps a connection that was dialled, unless there is one for the same purpose. Returns whether it is kept.
    fn is_kept(&mut self, peer: PeerId, connection: ConnectionId, purpose: Purpose) -> bool {
        let mut links = self.links.borrow_mut();
        match purpose {
            Purpose::Backbone if self.connection.is_none() => {
                // A link with it is no longer one that makes way for others.
                links.forget(&peer);
                self.connection = Some(connection);
                self.connected.replace(Some(peer));
                true
            }
            Purpose::Link { relay } if !links.contains(&peer) => {
                if let Some(evicted) = links.on_connected(peer, connection, relay) {
                    self.swarm.close_connection(evicted);
                }
                true
            }
            Purpose::Backbone | Purpose::Link { .. } => false,
        }
    }

    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            // Through a place that was reserved: there is no other way to the tab.
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. }
                if endpoint.is_listener() =>
            {
                for evicted in self.links.borrow_mut().on_inbound(peer_id, connection_id) {
                    self.swarm.close_connection(evicted);
                }
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                let dial = self.take_dial(connection_id).filter(|dial| !dial.answer.is_canceled());
                match dial {
                    Some(dial) if self.is_kept(peer_id, connection_id, dial.purpose) => {
                        let _ = dial.answer.send(Ok(()));
                    }
                    // The caller is gone, or another transport was faster.
                    _ => {
                        self.swarm.close_connection(connection_id);
                    }
                }
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                if let Some(dial) = self.take_dial(connection_id) {
                    let _ = dial.answer.send(Err(NetworkError::Dial(Box::new(error))));
                }
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, .. } => {
                if self.connection.take_if(|connection| *connection == connection_id).is_some() {
                    self.connected.replace(None);
                }
                if num_established == 0 {
                    self.forget_place(&peer_id);
                }
                self.links.borrow_mut().on_closed(connection_id);
                self.answer_hang_up();
            }
            SwarmEvent::Behaviour(BehaviourEvent::Circuits(
                relay::client::Event::ReservationReqAccepted { relay_peer_id, .. },
            )) => self.places.borrow_mut().on_held(relay_peer_id),
            SwarmEvent::ListenerClosed { listener_id, .. } => {
                self.places.borrow_mut().on_closed(listener_id);
            }
            _ => {}
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;
    use crate::web::WebError;

    fn network(origin: &str) -> TabNetwork {
        TabNetwork::start(origin.to_owned(), Keypair::generate_ed25519(), None).unwrap()
    }

    #[wasm_bindgen_test]
    fn other_backbones_are_one_target_each() {
        let network = network("http://127.0.0.1:1");
        let peers = [PeerId::random(), PeerId::random()];
        let address = |peer: &PeerId, port: u16| format!("/ip4/192.0.2.1/tcp/{port}/ws/p2p/{peer}");
        let mut addresses = vec!["no address".to_owned(), format!("/ip4/192.0.2.1/tcp/1/p2p/{}", peers[0])];
        for port in 1..3 {
            addresses.extend(peers.iter().map(|peer| address(peer, port)));
        }
        network.set_other_backbones(&addresses);
        let found: Vec<(PeerId, usize)> = network
            .other_backbones
            .borrow()
            .iter()
            .map(|target| (target.peer, target.transports[0].1.len()))
            .collect();
        assert_eq!(found, peers.map(|peer| (peer, 2)));
        network.set_other_backbones(&[]);
        assert!(network.other_backbones.borrow().is_empty());
    }

    #[wasm_bindgen_test]
    fn another_backbone_stays_known_when_it_names_the_others() {
        let network = network("http://127.0.0.1:1");
        let peers = [PeerId::random(), PeerId::random()];
        let [first, second] = peers.map(|peer| [format!("/ip4/192.0.2.1/tcp/1/ws/p2p/{peer}")]);
        let known =
            || -> Vec<PeerId> { network.other_backbones.borrow().iter().map(|target| target.peer).collect() };
        network.set_other_backbones(&first);
        network.connected.replace(Some(peers[0]));
        network.is_other_connected.set(true);
        for _ in 0..2 {
            network.set_other_backbones(&second);
            assert_eq!(known(), peers);
        }
        // The addresses of the page's own are asked of its web server.
        network.connected.replace(Some(peers[1]));
        network.is_other_connected.set(false);
        network.set_other_backbones(&first);
        assert_eq!(known(), [peers[0]]);
    }

    #[wasm_bindgen_test]
    fn streams_of_a_protocol_are_accepted_by_one_at_a_time() {
        let network = network("http://127.0.0.1:1");
        let first = network.accept("/test").unwrap();
        let refused = network.accept("/test").err();
        assert!(matches!(refused, Some(PlatformError::Accepted { protocol: "/test" })), "{refused:?}");
        assert!(network.accept("/other").is_ok());
        drop(first);
        assert!(network.accept("/test").is_ok());
    }

    #[wasm_bindgen_test]
    async fn an_unreachable_backbone_is_reported_with_its_reason() {
        let network = network("http://127.0.0.1:1");
        let refused = network.connect().await.unwrap_err();
        let NetworkError::Both { first, second } = &refused else { panic!("{refused}") };
        assert!(matches!(**first, NetworkError::Web(WebError::NoAnswer { .. })), "{refused}");
        assert!(matches!(**second, NetworkError::UnknownRun), "{refused}");
        let said = refused.to_string();
        assert!(said.contains("the web server does not answer") && said.contains("the run is not known yet"));
        assert!(matches!(network.open("/test").await, Err(PlatformError::NotConnected)));
        network.disconnect().await;
    }

    #[wasm_bindgen_test]
    async fn a_failed_dial_names_the_transports_that_were_tried() {
        let network = network("http://127.0.0.1:1");
        let peer = PeerId::random();
        let address = format!("/ip4/127.0.0.1/tcp/1/ws/p2p/{peer}");
        let (peer, transports) = dialable(&[address], false).unwrap();
        let refused = network.reach(DialTarget { peer, transports }).await.unwrap_err();
        let NetworkError::Transports(failures) = &refused else { panic!("{refused}") };
        assert!(matches!(failures[..], [(TransportKind::WebSocket, NetworkError::Dial(_))]), "{refused}");
        let said = refused.to_string();
        assert!(said.starts_with(&TransportKind::WebSocket.to_string()) && said.contains("no connection"));
    }
}
