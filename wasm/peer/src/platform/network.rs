//! libp2p in the tab: one connection to the backbone, by the best transport that works here.
//!
//! WebTransport comes first, then WebRTC, then WebSocket. Each has a head start: the next one is tried in parallel
//! when it takes long or fails. The transport that worked last comes first the next time.
//!
//! A task owns the swarm; commands make it dial or hang up. The backbone's addresses are asked of its
//! web server before each dial, because they name certificates that live for days; where it does not answer,
//! other peers of the DHT are asked ([`lookup`]). It never reconnects by itself: the contributor decides when.

mod addresses;
mod error;
mod lookup;
mod swarm;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use barnraise_contributor::{PlatformError, race};
use barnraise_messages::{PeerToPage, TransportKind};
use futures::channel::{mpsc, oneshot};
use futures::{SinkExt, StreamExt, select_biased};
use libp2p::identity::Keypair;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm};
use wasm_bindgen_futures::spawn_local;

use addresses::dialable;
pub(crate) use addresses::fetch_status;
pub use error::NetworkError;
use lookup::{DialAttempt, DialTarget, KnownRun};
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
/// Capacity of the command channel to the task.
const COMMANDS_MAX: usize = 4;

/// Transports that failed, each with its error.
type TransportFailures = Vec<(TransportKind, NetworkError)>;

enum SwarmCommand {
    Dial { peer: PeerId, addresses: Vec<Multiaddr>, answer: oneshot::Sender<Result<(), NetworkError>> },
    HangUp { answer: oneshot::Sender<()> },
}

/// A handle to the task that owns the swarm.
pub(super) struct TabNetwork {
    origin: String,
    commands: mpsc::Sender<SwarmCommand>,
    control: libp2p_stream::Control,
    /// The transport that worked last.
    transport: Cell<Option<TransportKind>>,
    /// The connected peer: the backbone, or a DHT peer that may know its addresses.
    connected: Rc<RefCell<Option<PeerId>>>,
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
    pub(super) fn start(
        origin: String,
        keypair: Keypair,
        transport: Option<TransportKind>,
    ) -> Result<Self, NetworkError> {
        let swarm = swarm(keypair)?;
        let control = swarm.behaviour().streams.new_control();
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let connected = Rc::default();
        let task = SwarmTask {
            swarm,
            connected: Rc::clone(&connected),
            dials: Vec::new(),
            connection: None,
            hang_up: None,
        };
        spawn_local(task.run(receiver));
        Ok(Self {
            origin,
            commands,
            control,
            transport: Cell::new(transport),
            connected,
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

    /// Takes the addresses of the run's other backbones, which the connected backbone sent.
    pub(super) fn set_other_backbones(&self, addresses: &[String]) {
        let mut rest = addresses.to_vec();
        let mut targets = VecDeque::new();
        // Addresses are grouped by backbone.
        while let Ok((peer, transports)) = dialable(&rest, self.is_secure()) {
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
                let (peer, transports) = dialable(&status.addresses, self.is_secure())?;
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

    fn is_secure(&self) -> bool {
        self.origin.starts_with("https:")
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
        let asked = contact.peer;
        let asking = async {
            lookup::within(CONTACT_TIMEOUT, self.reach(contact)).await?;
            lookup::newest(self.control.clone(), asked, &run_id, wanted, self.is_secure()).await
        };
        let found = asking.await;
        self.disconnect().await;
        let target = found?;
        if let Some(known) = self.known.borrow_mut().as_mut() {
            known.backbone = target.clone();
        }
        Ok(target)
    }

    /// Remembers other DHT peers, in case the backbone moves.
    fn learn(&self, backbone: PeerId) {
        let run_id = self.known.borrow().as_ref().map(|known| known.run_id.clone());
        let Some(run_id) = run_id else { return };
        let (control, known, is_secure) = (self.control.clone(), Rc::clone(&self.known), self.is_secure());
        spawn_local(async move {
            // An empty answer does not replace the peers known so far.
            let found = lookup::contacts(control, backbone, &run_id, is_secure).await.unwrap_or_default();
            if let Some(known) = known.borrow_mut().as_mut().filter(|_| !found.is_empty()) {
                known.contacts = found;
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
            let dialled = self.dial(peer, addresses);
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

    async fn dial(&self, peer: PeerId, addresses: Vec<Multiaddr>) -> Result<(), NetworkError> {
        let (answer, answered) = oneshot::channel();
        self.command(SwarmCommand::Dial { peer, addresses, answer }).await?;
        answered.await.map_err(|_| NetworkError::Superseded)?
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

/// Tells the page which transport works, and why others do not.
fn post_connected(transport: TransportKind, failures: &[(TransportKind, NetworkError)]) {
    let failures = failures.iter().map(|(transport, error)| (*transport, error.to_string())).collect();
    page::post(&PeerToPage::Connected { transport, failures });
}

struct Dial {
    connection: ConnectionId,
    answer: oneshot::Sender<Result<(), NetworkError>>,
}

struct SwarmTask {
    swarm: Swarm<Behaviour>,
    connected: Rc<RefCell<Option<PeerId>>>,
    dials: Vec<Dial>,
    connection: Option<ConnectionId>,
    /// Answered when no connection is left: streams open on any connection to the peer, so a
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
            SwarmCommand::Dial { peer, addresses, answer } => {
                let options =
                    DialOpts::peer_id(peer).addresses(addresses).condition(PeerCondition::Always).build();
                let connection = options.connection_id();
                match self.swarm.dial(options) {
                    Ok(()) => self.dials.push(Dial { connection, answer }),
                    // The receiver may be gone.
                    Err(error) => drop(answer.send(Err(NetworkError::Dial(Box::new(error))))),
                }
            }
            SwarmCommand::HangUp { answer } => {
                self.dials.clear();
                self.connection = None;
                self.connected.replace(None);
                let peers: Vec<PeerId> = self.swarm.connected_peers().copied().collect();
                for peer in peers {
                    // An error says that it is gone already.
                    let _ = self.swarm.disconnect_peer_id(peer);
                }
                self.hang_up = Some(answer);
                self.answer_hang_up();
            }
        }
    }

    fn take_dial(&mut self, connection: ConnectionId) -> Option<Dial> {
        let index = self.dials.iter().position(|dial| dial.connection == connection)?;
        Some(self.dials.swap_remove(index))
    }

    fn answer_hang_up(&mut self) {
        if self.swarm.connected_peers().next().is_none()
            && let Some(answer) = self.hang_up.take()
        {
            let _ = answer.send(());
        }
    }

    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                match self.take_dial(connection_id) {
                    Some(dial) if !dial.answer.is_canceled() && self.connection.is_none() => {
                        self.connection = Some(connection_id);
                        self.connected.replace(Some(peer_id));
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
            SwarmEvent::ConnectionClosed { connection_id, .. } => {
                if self.connection.take_if(|connection| *connection == connection_id).is_some() {
                    self.connected.replace(None);
                }
                self.answer_hang_up();
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
