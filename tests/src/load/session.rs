//! One session: a swarm with the behaviours of a tab, and a relay's client, which dials the relay over one transport
//! and the node behind it through a circuit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{
    Multiaddr, PeerId, Stream, StreamProtocol, Swarm, Transport as _, identify, noise, ping, relay, tcp,
    websocket, yamux,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::webtransport::WebTransportDialer;
use super::{HEARTBEAT, HEARTBEAT_BYTES, PULL};

/// As a tab's.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// After this long nobody answers.
const DIAL_TIMEOUT: Duration = Duration::from_secs(20);
/// One question of [`LoadSession::pull`].
const PIECE_BYTES: u64 = 64 * 1024;

/// How the relay is dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransportKind {
    /// WebTransport: preferred.
    WebTransport,
    /// WebSocket: works in every browser.
    WebSocket,
}

impl TransportKind {
    /// The address of this transport among those of a relay.
    pub fn of(self, addresses: &[Multiaddr]) -> Option<&Multiaddr> {
        addresses.iter().find(|address| {
            address.iter().any(|part| match self {
                Self::WebTransport => part == Protocol::WebTransport,
                Self::WebSocket => matches!(part, Protocol::Ws(_)),
            })
        })
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WebTransport => "WebTransport",
            Self::WebSocket => "WebSocket",
        })
    }
}

/// Why a session did not come about, or ended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SessionError {
    /// The transports cannot be made, or the addresses not be dialled.
    #[error("{0}")]
    Setup(String),
    /// The relay, or the node behind it, does not answer.
    #[error("no connection: {0}")]
    Dial(String),
    /// A connection that stood ended.
    #[error("the connection with {with} ended: {cause}")]
    Dropped {
        /// The relay or the node behind it.
        with: PeerId,
        /// As the swarm says.
        cause: String,
    },
    /// A conversation broke.
    #[error("a conversation ended: {0}")]
    Stream(String),
}

#[derive(NetworkBehaviour)]
struct SessionBehaviour {
    relay_client: relay::client::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    streams: libp2p_stream::Behaviour,
}

/// An open session; it leaves when this is dropped.
pub struct LoadSession {
    target: PeerId,
    control: libp2p_stream::Control,
    ended: watch::Sender<Option<SessionError>>,
    n_heartbeats: Arc<AtomicU64>,
    driver: JoinHandle<()>,
    listener: Option<JoinHandle<()>>,
}

impl LoadSession {
    /// Dials `relay`, then the node of `circuit` through it, and opens the conversation that stays open.
    ///
    /// # Errors
    /// Where a dial or the conversation fails.
    pub async fn open(relay: &Multiaddr, circuit: &Multiaddr) -> Result<Self, SessionError> {
        let target = named_by(circuit)?;
        let through = relay.clone().with(Protocol::P2pCircuit).with(Protocol::P2p(target));
        let mut session = Box::pin(Self::dial(&[relay.clone(), through])).await?;
        let stream = session.conversation(HEARTBEAT).await?;
        let (counter, ending) = (Arc::clone(&session.n_heartbeats), session.ended.clone());
        session.listener = Some(tokio::spawn(async move {
            let error = count_heartbeats(stream, &counter).await;
            ending.send_modify(|ended| _ = ended.get_or_insert(error));
        }));
        Ok(session)
    }

    /// Dials these addresses one after the other; the last is the one that conversations are held with.
    ///
    /// # Errors
    /// Where a dial fails.
    pub async fn dial(addresses: &[Multiaddr]) -> Result<Self, SessionError> {
        let keypair = Keypair::generate_ed25519();
        let mut swarm = swarm(&keypair).map_err(|error| SessionError::Setup(error.to_string()))?;
        let control = swarm.behaviour().streams.new_control();
        let Some(target) = addresses.last() else {
            return Err(SessionError::Setup("there is nobody to dial".into()));
        };
        let target = named_by(target)?;
        for address in addresses {
            let peer = named_by(address)?;
            swarm.dial(address.clone()).map_err(|error| SessionError::Dial(error.to_string()))?;
            let late = |_| SessionError::Dial(format!("nothing within {DIAL_TIMEOUT:?} from {address}"));
            tokio::time::timeout(DIAL_TIMEOUT, connected(&mut swarm, peer)).await.map_err(late)??;
        }
        let ended = watch::Sender::new(None);
        let ending = ended.clone();
        let driver = tokio::spawn(async move {
            let error = until_dropped(&mut swarm).await;
            ending.send_modify(|ended| _ = ended.get_or_insert(error));
        });
        let n_heartbeats = Arc::default();
        Ok(Self { target, control, ended, n_heartbeats, driver, listener: None })
    }

    /// Why it ended, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<SessionError> {
        self.ended.borrow().clone()
    }

    /// Messages heard so far.
    #[must_use]
    pub fn n_heartbeats(&self) -> u64 {
        self.n_heartbeats.load(Ordering::Relaxed)
    }

    /// Pulls `bytes_per_second` through the circuit for `duration`, in pieces asked for at their time and
    /// compared with what must come; one that comes late is not waited for twice. Returns how much came.
    ///
    /// # Errors
    /// The conversation breaks, or brings something else.
    pub async fn pull(&self, bytes_per_second: u64, duration: Duration) -> Result<u64, SessionError> {
        let broken = |error: std::io::Error| SessionError::Stream(error.to_string());
        let mut stream = self.conversation(PULL).await?;
        let every = Duration::from_secs_f64(PIECE_BYTES as f64 / bytes_per_second as f64);
        let mut ticks = tokio::time::interval(every);
        let mut piece = vec![0; PIECE_BYTES as usize];
        let until = Instant::now() + duration;
        let mut n_bytes = 0;
        while Instant::now() < until {
            ticks.tick().await;
            stream.write_all(&PIECE_BYTES.to_le_bytes()).await.map_err(broken)?;
            stream.flush().await.map_err(broken)?;
            stream.read_exact(&mut piece).await.map_err(broken)?;
            if piece.iter().any(|&byte| byte != 0x5a) {
                return Err(SessionError::Stream("other bytes came than were sent".into()));
            }
            piece.fill(0);
            n_bytes += PIECE_BYTES;
        }
        Ok(n_bytes)
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// Nobody there, or nobody who speaks this.
    pub async fn conversation(&self, protocol: &'static str) -> Result<Stream, SessionError> {
        let mut control = self.control.clone();
        let opening = control.open_stream(self.target, StreamProtocol::new(protocol));
        let late = |_| SessionError::Stream(format!("{protocol}: no answer within {DIAL_TIMEOUT:?}"));
        let opened = tokio::time::timeout(DIAL_TIMEOUT, opening).await.map_err(late)?;
        opened.map_err(|error| SessionError::Stream(format!("{protocol}: {error}")))
    }
}

impl fmt::Debug for LoadSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadSession")
            .field("target", &self.target)
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}

impl Drop for LoadSession {
    fn drop(&mut self) {
        self.driver.abort();
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

fn named_by(address: &Multiaddr) -> Result<PeerId, SessionError> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Ok(peer),
        _ => Err(SessionError::Setup(format!("{address} names no peer"))),
    }
}

fn swarm(keypair: &Keypair) -> Result<Swarm<SessionBehaviour>, noise::Error> {
    let peer_id = keypair.public().to_peer_id();
    let noise = noise::Config::new(keypair)?;
    let (circuits, relay_client) = relay::client::new(peer_id);
    let circuits = circuits
        .upgrade(Version::V1Lazy)
        .authenticate(noise.clone())
        .multiplex(yamux::Config::default())
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)));
    let socket = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let websocket = websocket::Config::new(socket)
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(yamux::Config::default())
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)));
    let webtransport = WebTransportDialer::new(keypair.clone())
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)));
    let transport = circuits
        .or_transport(websocket)
        .map(|either, _| either.into_inner())
        .or_transport(webtransport)
        .map(|either, _| either.into_inner())
        .boxed();
    let behaviour = SessionBehaviour {
        relay_client,
        identify: identify::Behaviour::new(identify::Config::new("/barnraise/1".into(), keypair.public())),
        ping: ping::Behaviour::default(),
        streams: libp2p_stream::Behaviour::new(),
    };
    let config = libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(IDLE_TIMEOUT);
    Ok(Swarm::new(transport, behaviour, peer_id, config))
}

async fn connected(swarm: &mut Swarm<SessionBehaviour>, peer: PeerId) -> Result<(), SessionError> {
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::ConnectionEstablished { peer_id, .. } if peer_id == peer => return Ok(()),
            SwarmEvent::OutgoingConnectionError { error, .. } => {
                return Err(SessionError::Dial(error.to_string()));
            }
            SwarmEvent::ConnectionClosed { peer_id, cause, .. } => return Err(dropped(peer_id, cause)),
            _ => {}
        }
    }
}

async fn until_dropped(swarm: &mut Swarm<SessionBehaviour>) -> SessionError {
    loop {
        if let SwarmEvent::ConnectionClosed { peer_id, cause, .. } = swarm.select_next_some().await {
            return dropped(peer_id, cause);
        }
    }
}

fn dropped(with: PeerId, cause: Option<impl fmt::Display>) -> SessionError {
    let cause = cause.map_or_else(|| "in order".to_owned(), |cause| cause.to_string());
    SessionError::Dropped { with, cause }
}

async fn count_heartbeats(mut stream: Stream, counter: &AtomicU64) -> SessionError {
    let mut message = [0; HEARTBEAT_BYTES];
    loop {
        match stream.read_exact(&mut message).await {
            Ok(()) => counter.fetch_add(1, Ordering::Relaxed),
            Err(error) => return SessionError::Stream(error.to_string()),
        };
    }
}
