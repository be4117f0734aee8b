//! The task that owns the swarm: commands in, events out.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol, Swarm, TransportError};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::network::{Behaviour, BehaviourEvent};
use super::{Addresses, NodeError, NodeEvent};
use crate::streams::{OpenError, OpenRequest, Registry};

/// A bound socket has its address at once; one on every interface waits for the system to list them.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a shutdown waits for connections to say goodbye.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

type Event = SwarmEvent<BehaviourEvent>;

/// What a handle asks of the task.
#[derive(Debug)]
pub(super) enum Command {
    Dial { peer: PeerId, address: Multiaddr, reply: oneshot::Sender<Result<(), NodeError>> },
    Open { peer: PeerId, protocol: StreamProtocol, reply: oneshot::Sender<Result<Stream, OpenError>> },
    ConnectedPeers { reply: oneshot::Sender<Vec<PeerId>> },
    Shutdown { reply: oneshot::Sender<()> },
}

struct PendingDial {
    address: Multiaddr,
    reply: oneshot::Sender<Result<(), NodeError>>,
}

pub(super) struct NodeTask {
    swarm: Swarm<Behaviour>,
    commands: mpsc::Receiver<Command>,
    events: broadcast::Sender<NodeEvent>,
    addresses: Addresses,
    registry: Registry,
    dials: HashMap<ConnectionId, PendingDial>,
    quic_tasks: TaskTracker,
    _rotation: Option<AbortOnDropHandle<()>>,
}

impl NodeTask {
    pub(super) fn new(
        (swarm, quic_tasks): (Swarm<Behaviour>, TaskTracker),
        commands: mpsc::Receiver<Command>,
        events: broadcast::Sender<NodeEvent>,
        addresses: Addresses,
        registry: Registry,
        rotation: Option<AbortOnDropHandle<()>>,
    ) -> Self {
        Self {
            swarm,
            commands,
            events,
            addresses,
            registry,
            dials: HashMap::new(),
            quic_tasks,
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
            let command = tokio::select! {
                event = self.swarm.select_next_some() => {
                    self.on_event(event);
                    continue;
                }
                command = self.commands.recv() => command,
            };
            match command {
                Some(Command::Dial { peer, address, reply }) => self.dial(peer, address, reply),
                Some(Command::Open { peer, protocol, reply }) => {
                    self.swarm.behaviour_mut().streams.open(peer, OpenRequest { protocol, reply });
                }
                Some(Command::ConnectedPeers { reply }) => {
                    // Whoever asked may have stopped waiting; so below.
                    let _ = reply.send(self.swarm.connected_peers().copied().collect());
                }
                Some(Command::Shutdown { reply }) => {
                    self.close().await;
                    let _ = reply.send(());
                    return;
                }
                None => return self.close().await,
            }
        }
    }

    fn dial(&mut self, peer: PeerId, address: Multiaddr, reply: oneshot::Sender<Result<(), NodeError>>) {
        if self.swarm.is_connected(&peer) {
            let _ = reply.send(Ok(()));
            return;
        }
        let opts =
            DialOpts::peer_id(peer).addresses(vec![address.clone()]).condition(PeerCondition::Always).build();
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

    fn on_event(&mut self, event: Event) {
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, num_established, .. } => {
                if num_established.get() == 1 {
                    // No receiver is no failure.
                    let _ = self.events.send(NodeEvent::Connected(peer_id));
                }
                if let Some(dial) = self.dials.remove(&connection_id) {
                    let _ = dial.reply.send(Ok(()));
                }
            }
            SwarmEvent::ConnectionClosed { peer_id, num_established, cause, .. } => {
                tracing::debug!(peer = %peer_id, ?cause, "connection closed");
                if num_established == 0 {
                    let _ = self.events.send(NodeEvent::Disconnected(peer_id));
                }
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                if let Some(PendingDial { address, reply }) = self.dials.remove(&connection_id) {
                    let _ = reply.send(Err(dial_error(address, &error)));
                }
            }
            SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
                let error = causes(&error);
                tracing::debug!(from = %send_back_addr, error, "no peer came of a connection");
            }
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "listener"),
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                tracing::warn!(?addresses, ?reason, "listener closed");
                self.publish_addresses();
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                tracing::info!(%address, "listening");
                self.publish_addresses();
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                tracing::info!(%address, "no longer listening");
                self.publish_addresses();
            }
            _ => {}
        }
    }

    fn publish_addresses(&self) {
        self.addresses.set(self.swarm.listeners().cloned().collect());
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

/// libp2p shares TCP ports between processes (`SO_REUSEPORT`): a second node on the port of a first would
/// take half of its connections, and nobody would notice.
fn check_free(address: &Multiaddr) -> io::Result<()> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    match parts.next() {
        Some(Protocol::Tcp(port)) if port != 0 => TcpListener::bind((ip, port)).map(drop),
        _ => Ok(()),
    }
}

fn check_listening(unbound: &mut HashMap<ListenerId, Multiaddr>, event: &Event) -> Result<(), NodeError> {
    match event {
        SwarmEvent::NewListenAddr { listener_id, .. } => {
            unbound.remove(listener_id);
        }
        SwarmEvent::ListenerError { listener_id, error } => {
            if let Some(address) = unbound.get(listener_id) {
                return Err(listen_error(address, causes(error)));
            }
        }
        SwarmEvent::ListenerClosed { listener_id, reason, .. } => {
            if let Some(address) = unbound.get(listener_id) {
                let reason = reason.as_ref().map_or_else(|error| causes(error), |()| "closed".to_owned());
                return Err(listen_error(address, reason));
            }
        }
        _ => {}
    }
    Ok(())
}

fn listen_error(address: &Multiaddr, reason: String) -> NodeError {
    NodeError::Listen { address: address.clone(), reason }
}

fn listen_reason(error: &TransportError<io::Error>) -> String {
    match error {
        TransportError::MultiaddrNotSupported(_) => "want /ip4|ip6/<ip>/tcp/<port>, or \
            /ip4|ip6/<ip>/udp/<port>/quic-v1/webtransport and a directory for certificates"
            .to_owned(),
        TransportError::Other(error) => causes(error),
    }
}

fn dial_error(address: Multiaddr, error: &DialError) -> NodeError {
    let reason = match error {
        // Its own text repeats the address.
        DialError::Transport(errors) => {
            errors.iter().map(|(_, error)| causes(error)).collect::<Vec<_>>().join("; ")
        }
        error => causes(error),
    };
    NodeError::Dial { address, reason }
}

/// The error and what it came from, which libp2p leaves out of the error's own text.
fn causes(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        texts.push(cause.to_string());
        next = cause.source();
    }
    // Some have no text of their own, and some repeat their cause's.
    texts.retain(|text| !text.is_empty());
    texts.dedup_by(|cause, error| error.contains(cause.as_str()));
    texts.join(": ")
}
