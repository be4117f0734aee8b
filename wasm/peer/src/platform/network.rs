//! libp2p in the tab: one connection to the backbone, by the best way that works here.
//!
//! WebTransport comes first, then WebRTC, then WebSocket: each has a head start, and the next is tried beside
//! it where that takes long or fails. What worked last begins the next time.
//!
//! A task owns the swarm and is told to dial or to hang up. The backbone's addresses are asked of its
//! web server before each dial, because they name certificates that live for days; where it does not answer,
//! other peers of the DHT are asked ([`places`]). It never reconnects by itself: the contributor decides when.

mod addresses;
mod places;
mod swarm;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use barnraise_contributor::race;
use barnraise_messages::{PeerToPage, Way};
use futures::channel::{mpsc, oneshot};
use futures::{SinkExt, StreamExt, select_biased};
use libp2p::identity::Keypair;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm};
use wasm_bindgen_futures::spawn_local;

use addresses::dialable;
pub(crate) use addresses::fetch_status;
use places::{Attempt, Known, Place};
use swarm::BehaviourEvent;
pub use swarm::{Behaviour, swarm};

use crate::page;

/// How long a way may take before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(1500);
/// How long another peer of the DHT may take to be reached: a connection is given up on soon after.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the web server may take: a dial is given up on soon after.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long is waited for one backbone where there is another one: a machine that is off says nothing.
const FIRST_OF_TWO_MAX: Duration = Duration::from_secs(2);
/// Room for orders to the task.
const ORDERS_MAX: usize = 4;
/// Longest reason of a failed dial.
const REASON_CHARS_MAX: usize = 400;

enum Order {
    Dial { peer: PeerId, addresses: Vec<Multiaddr>, answer: oneshot::Sender<Result<(), String>> },
    HangUp { answer: oneshot::Sender<()> },
}

/// A handle to the task that owns the swarm.
pub(super) struct Network {
    origin: String,
    orders: mpsc::Sender<Order>,
    control: libp2p_stream::Control,
    /// What worked last.
    way: Cell<Option<Way>>,
    /// Who is connected: the backbone, or somebody who may know where it is.
    connected: Rc<RefCell<Option<PeerId>>>,
    /// Since the web server answered first.
    known: Rc<RefCell<Option<Known>>>,
    /// Other backbones of the run, the next one to try first.
    elsewhere: RefCell<VecDeque<Place>>,
    /// Whether one of them is tried first: in turn with the page's own backbone, until one lets this peer in.
    is_away: Cell<bool>,
    /// Whether the connection is to one of them.
    went_away: Cell<bool>,
}

impl Network {
    /// Starts the task; nothing is dialled yet. `way` is what worked the last time.
    pub(super) fn start(origin: String, keypair: Keypair, way: Option<Way>) -> Result<Self, String> {
        let swarm = swarm(keypair)?;
        let control = swarm.behaviour().streams.new_control();
        let (orders, receiver) = mpsc::channel(ORDERS_MAX);
        let connected = Rc::default();
        let task =
            Task { swarm, connected: Rc::clone(&connected), dials: Vec::new(), link: None, hang_up: None };
        spawn_local(task.run(receiver));
        Ok(Self {
            origin,
            orders,
            control,
            way: Cell::new(way),
            connected,
            known: Rc::default(),
            elsewhere: RefCell::default(),
            is_away: Cell::new(false),
            went_away: Cell::new(false),
        })
    }

    /// Dials the backbone, or another one of the run where it is away; the page is told by which way, and what kept
    /// the others. The bytes of its peer id.
    pub(super) async fn connect(&self) -> Result<Vec<u8>, String> {
        let (is_away, has_others) = (self.is_away.get(), !self.elsewhere.borrow().is_empty());
        // First, as whoever asked may give up waiting.
        self.is_away.set(!is_away && has_others);
        if !has_others {
            return self.connect_to(is_away).await;
        }
        let first = places::within(FIRST_OF_TWO_MAX, self.connect_to(is_away)).await;
        match first {
            Ok(backbone) => Ok(backbone),
            Err(reason) => {
                self.is_away.set(is_away);
                self.disconnect().await;
                let second = self.connect_to(!is_away).await;
                second.map_err(|second| format!("{reason}; {second}"))
            }
        }
    }

    /// One of the others, or the page's own backbone.
    async fn connect_to(&self, is_away: bool) -> Result<Vec<u8>, String> {
        self.went_away.set(is_away);
        if is_away { self.connect_elsewhere().await } else { self.connect_home().await }
    }

    /// Where other backbones of the run are, as the one that is connected says.
    pub(super) fn elsewhere(&self, addresses: &[String]) {
        let mut rest = addresses.to_vec();
        let mut places = VecDeque::new();
        // Those of one backbone after the other's.
        while let Ok((peer, ways)) = dialable(&rest, self.is_secure()) {
            let id = peer.to_string();
            let n_before = rest.len();
            rest.retain(|address| !address.ends_with(&id));
            if rest.len() == n_before {
                break;
            }
            places.push_back(Place { peer, ways });
        }
        self.elsewhere.replace(places);
        // Who says so has let this peer in.
        self.is_away.set(self.went_away.get());
    }

    async fn connect_elsewhere(&self) -> Result<Vec<u8>, String> {
        let place = {
            let mut places = self.elsewhere.borrow_mut();
            let has_more = places.len() > 1;
            places.rotate_left(usize::from(has_more));
            places.back().cloned()
        };
        let place = place.ok_or("no other backbone is known")?;
        let backbone = place.peer;
        let (way, failures) = self.reach(place).await?;
        page::post(&PeerToPage::Connected { way, failures });
        Ok(backbone.to_bytes())
    }

    /// Asks where the backbone is and dials it.
    async fn connect_home(&self) -> Result<Vec<u8>, String> {
        let place = match places::within(STATUS_TIMEOUT, fetch_status(&self.origin)).await {
            Ok(status) => {
                let (peer, ways) = dialable(&status.addresses, self.is_secure())?;
                let place = Place { peer, ways };
                let before = self.known.take();
                self.known.replace(Some(Known::new(status.run.run_id, place.clone(), before)));
                place
            }
            Err(unreachable) => self.find().await.map_err(|reason| format!("{unreachable}; {reason}"))?,
        };
        let backbone = place.peer;
        let (way, failures) = self.reach(place).await?;
        page::post(&PeerToPage::Connected { way, failures });
        self.learn(backbone);
        Ok(backbone.to_bytes())
    }

    fn is_secure(&self) -> bool {
        self.origin.starts_with("https:")
    }

    /// Where the backbone may be while its web server is away.
    async fn find(&self) -> Result<Place, String> {
        let attempt =
            self.known.borrow_mut().as_mut().map(|known| (known.run_id.clone(), known.next_attempt()));
        let (run_id, wanted, contact) = match attempt {
            None => return Err("the run was never heard of".to_owned()),
            Some((_, Attempt::Again(backbone))) => return Ok(backbone),
            Some((run_id, Attempt::Ask { contact, wanted })) => (run_id, wanted, contact),
        };
        let asked = contact.peer;
        let asking = async {
            places::within(CONTACT_TIMEOUT, self.reach(contact)).await?;
            places::newest(self.control.clone(), asked, &run_id, wanted, self.is_secure()).await
        };
        let found = asking.await;
        self.disconnect().await;
        let place = found?;
        if let Some(known) = self.known.borrow_mut().as_mut() {
            known.backbone = place.clone();
        }
        Ok(place)
    }

    /// Remembers other peers of the DHT, for when the backbone is not where it was.
    fn learn(&self, backbone: PeerId) {
        let run_id = self.known.borrow().as_ref().map(|known| known.run_id.clone());
        let Some(run_id) = run_id else { return };
        let (control, known, is_secure) = (self.control.clone(), Rc::clone(&self.known), self.is_secure());
        spawn_local(async move {
            // Whoever knows nobody else has forgotten nobody either.
            let found = places::contacts(control, backbone, &run_id, is_secure).await.unwrap_or_default();
            if let Some(known) = known.borrow_mut().as_mut().filter(|_| !found.is_empty()) {
                known.contacts = found;
            }
        });
    }

    /// Dials a peer by the best of its ways; returns which that was, and what kept the others.
    async fn reach(&self, place: Place) -> Result<(Way, Vec<(Way, String)>), String> {
        let Place { peer, mut ways } = place;
        ways.sort_by_key(|(way, _)| (Some(*way) != self.way.get(), *way));
        let order: Vec<Way> = ways.iter().map(|(way, _)| *way).collect();
        let failures = RefCell::new(Vec::new());
        let attempts =
            ways.into_iter().map(|(way, addresses)| {
                let dialled = self.dial(peer, addresses);
                let failures = &failures;
                async move {
                    dialled.await.map(|()| way).map_err(|reason| failures.borrow_mut().push((way, reason)))
                }
            });
        let won = race(attempts, || gloo::timers::future::sleep(HEAD_START)).await;
        let mut failures = failures.into_inner();
        match won {
            Ok((index, way)) => {
                for slow in &order[..index] {
                    if failures.iter().all(|(failed, _)| failed != slow) {
                        failures.push((*slow, "no answer in time".to_owned()));
                    }
                }
                self.way.set(Some(way));
                Ok((way, failures))
            }
            Err(_) => {
                let failures = failures.into_iter().map(|(way, reason)| format!("{way}: {reason}"));
                Err(failures.collect::<Vec<_>>().join("; "))
            }
        }
    }

    async fn dial(&self, peer: PeerId, addresses: Vec<Multiaddr>) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        self.order(Order::Dial { peer, addresses, answer }).await?;
        answered.await.map_err(|_| "another way was faster".to_owned())?
    }

    /// Ends the connection.
    pub(super) async fn disconnect(&self) {
        let (answer, answered) = oneshot::channel();
        if self.order(Order::HangUp { answer }).await.is_ok() {
            // A task that has ended has no connection either.
            let _ = answered.await;
        }
    }

    /// Opens a stream to the backbone, without dialling.
    pub(super) async fn open(&self, protocol: &'static str) -> Result<libp2p::Stream, String> {
        let peer = *self.connected.borrow();
        let peer = peer.ok_or_else(|| "there is no connection".to_owned())?;
        let opened = self.control.clone().open_stream(peer, StreamProtocol::new(protocol)).await;
        opened.map_err(|error| error.to_string())
    }

    async fn order(&self, order: Order) -> Result<(), String> {
        self.orders.clone().send(order).await.map_err(|_| "the network has stopped".to_owned())
    }
}

struct Dial {
    connection: ConnectionId,
    answer: oneshot::Sender<Result<(), String>>,
}

struct Task {
    swarm: Swarm<Behaviour>,
    connected: Rc<RefCell<Option<PeerId>>>,
    dials: Vec<Dial>,
    link: Option<ConnectionId>,
    /// Answered when no connection is left: streams are opened on whichever connection there is, so a
    /// dying one must be gone before the next is dialled.
    hang_up: Option<oneshot::Sender<()>>,
}

impl Task {
    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            select_biased! {
                order = orders.next() => match order {
                    Some(order) => self.on_order(order),
                    None => return,
                },
                event = self.swarm.select_next_some() => self.on_event(event),
            }
        }
    }

    fn on_order(&mut self, order: Order) {
        match order {
            Order::Dial { peer, addresses, answer } => {
                let options =
                    DialOpts::peer_id(peer).addresses(addresses).condition(PeerCondition::Always).build();
                let connection = options.connection_id();
                match self.swarm.dial(options) {
                    Ok(()) => self.dials.push(Dial { connection, answer }),
                    // Whoever asked may have gone.
                    Err(error) => drop(answer.send(Err(reason(&error)))),
                }
            }
            Order::HangUp { answer } => {
                self.dials.clear();
                self.link = None;
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
                    Some(dial) if !dial.answer.is_canceled() && self.link.is_none() => {
                        self.link = Some(connection_id);
                        self.connected.replace(Some(peer_id));
                        let _ = dial.answer.send(Ok(()));
                    }
                    // Nobody waits for it any more, or another way was faster.
                    _ => {
                        self.swarm.close_connection(connection_id);
                    }
                }
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                if let Some(dial) = self.take_dial(connection_id) {
                    let _ = dial.answer.send(Err(reason(&error)));
                }
            }
            SwarmEvent::ConnectionClosed { connection_id, .. } => {
                if self.link.take_if(|link| *link == connection_id).is_some() {
                    self.connected.replace(None);
                }
                self.answer_hang_up();
            }
            _ => {}
        }
    }
}

/// What a person can do something with.
fn reason(error: &DialError) -> String {
    let text = match error {
        DialError::Transport(failures) => {
            let failures = failures.iter().map(|(_, error)| causes(error));
            format!("no connection: {}", failures.collect::<Vec<_>>().join("; "))
        }
        other => format!("no connection: {other}"),
    };
    text.chars().take(REASON_CHARS_MAX).collect()
}

/// The error and what it came from, which libp2p leaves out of the error's own text.
fn causes(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<String> =
        std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect();
    // Some have no text of their own, and some repeat their cause's.
    texts.retain(|text| !text.is_empty());
    texts.dedup_by(|cause, error| error.contains(cause.as_str()));
    texts.join(": ")
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    fn network(origin: &str) -> Network {
        Network::start(origin.to_owned(), Keypair::generate_ed25519(), None).unwrap()
    }

    #[wasm_bindgen_test]
    fn other_backbones_are_one_place_each() {
        let network = network("http://127.0.0.1:1");
        let peers = [PeerId::random(), PeerId::random()];
        let address = |peer: &PeerId, port: u16| format!("/ip4/192.0.2.1/tcp/{port}/ws/p2p/{peer}");
        let mut addresses = vec!["no address".to_owned(), format!("/ip4/192.0.2.1/tcp/1/p2p/{}", peers[0])];
        for port in 1..3 {
            addresses.extend(peers.iter().map(|peer| address(peer, port)));
        }
        network.elsewhere(&addresses);
        let found: Vec<(PeerId, usize)> =
            network.elsewhere.borrow().iter().map(|place| (place.peer, place.ways[0].1.len())).collect();
        assert_eq!(found, peers.map(|peer| (peer, 2)));
        network.elsewhere(&[]);
        assert!(network.elsewhere.borrow().is_empty());
    }

    #[wasm_bindgen_test]
    async fn a_backbone_that_is_away_is_told_with_its_reason() {
        let network = network("http://127.0.0.1:1");
        let refused = network.connect().await.unwrap_err();
        assert!(refused.contains("the web server does not answer"), "{refused}");
        assert!(refused.contains("the run was never heard of"), "{refused}");
        assert_eq!(network.open("/test").await.err().as_deref(), Some("there is no connection"));
        network.disconnect().await;
    }

    #[wasm_bindgen_test]
    async fn a_place_where_nobody_is_says_by_which_ways_it_was_tried() {
        let network = network("http://127.0.0.1:1");
        let peer = PeerId::random();
        let address = format!("/ip4/127.0.0.1/tcp/1/ws/p2p/{peer}");
        let (peer, ways) = dialable(&[address], false).unwrap();
        let refused = network.reach(Place { peer, ways }).await.unwrap_err();
        assert!(
            refused.starts_with(&Way::WebSocket.to_string()) && refused.contains("no connection"),
            "{refused}"
        );
    }

    #[wasm_bindgen_test]
    fn an_error_is_told_once_with_what_it_came_from() {
        let inner = std::io::Error::other("the cable is out");
        let outer = std::io::Error::new(std::io::ErrorKind::NotConnected, inner);
        assert_eq!(causes(&outer), "the cable is out");
    }
}
