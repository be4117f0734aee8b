//! The dialling side of the libp2p WebTransport specification, which browsers have and nobody needs natively
//! but for tests: a session that trusts the certificates of the address, Noise on its first stream.

use std::collections::HashSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use barnraise_relay::webtransport::{WELL_KNOWN_PATH, WebTransportConnection};
use futures::future::BoxFuture;
use futures::{AsyncWriteExt as _, FutureExt as _};
use libp2p::core::muxing::StreamMuxer as _;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::core::upgrade::OutboundConnectionUpgrade as _;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::multihash::Multihash;
use libp2p::{Multiaddr, PeerId, Transport, noise};
use wtransport::tls::Sha256Digest;
use wtransport::{ClientConfig, Endpoint};

/// Dials, and never listens.
#[derive(Debug)]
pub struct WebTransportDialer {
    keypair: Keypair,
}

/// Why nobody was reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No socket.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// No session.
    #[error(transparent)]
    Session(#[from] wtransport::error::ConnectingError),
    /// No stream for the handshake.
    #[error(transparent)]
    Stream(#[from] barnraise_relay::webtransport::ConnectionError),
    /// No handshake.
    #[error(transparent)]
    Noise(#[from] noise::Error),
    /// Somebody else.
    #[error("{got} answered, {want} was dialled")]
    AnotherPeer {
        /// Of the address.
        want: PeerId,
        /// Of the handshake.
        got: PeerId,
    },
}

struct Goal {
    socket: SocketAddr,
    certhashes: HashSet<Multihash<64>>,
    peer: Option<PeerId>,
}

impl WebTransportDialer {
    /// For this identity.
    #[must_use]
    pub fn new(keypair: Keypair) -> Self {
        Self { keypair }
    }
}

impl Transport for WebTransportDialer {
    type Output = (PeerId, WebTransportConnection);
    type Error = DialError;
    type ListenerUpgrade = futures::future::Pending<Result<Self::Output, DialError>>;
    type Dial = BoxFuture<'static, Result<Self::Output, DialError>>;

    fn listen_on(&mut self, _: ListenerId, address: Multiaddr) -> Result<(), TransportError<DialError>> {
        Err(TransportError::MultiaddrNotSupported(address))
    }

    fn remove_listener(&mut self, _: ListenerId) -> bool {
        false
    }

    fn dial(&mut self, address: Multiaddr, _: DialOpts) -> Result<Self::Dial, TransportError<DialError>> {
        let Some(goal) = goal(&address) else { return Err(TransportError::MultiaddrNotSupported(address)) };
        Ok(connect(self.keypair.clone(), goal).boxed())
    }

    fn poll(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, DialError>> {
        Poll::Pending
    }
}

fn goal(address: &Multiaddr) -> Option<Goal> {
    let (mut ip, mut port, mut certhashes, mut peer, mut is_webtransport) =
        (None, None, HashSet::new(), None, false);
    for part in address.iter() {
        match part {
            Protocol::Ip4(found) => ip = Some(found.into()),
            Protocol::Ip6(found) => ip = Some(found.into()),
            Protocol::Udp(found) => port = Some(found),
            Protocol::WebTransport => is_webtransport = true,
            Protocol::Certhash(hash) => drop(certhashes.insert(hash)),
            Protocol::P2p(found) => peer = Some(found),
            Protocol::P2pCircuit => return None,
            _ => {}
        }
    }
    let socket = SocketAddr::new(ip?, port?);
    is_webtransport.then_some(Goal { socket, certhashes, peer })
}

async fn connect(keypair: Keypair, goal: Goal) -> Result<(PeerId, WebTransportConnection), DialError> {
    let digests = goal.certhashes.iter().filter_map(|hash| hash.digest().try_into().ok());
    let local = SocketAddr::new(
        match goal.socket {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        },
        0,
    );
    let config = ClientConfig::builder()
        .with_bind_address(local)
        .with_server_certificate_hashes(digests.map(Sha256Digest::new))
        .build();
    let endpoint = Endpoint::client(config)?;
    let session = endpoint.connect(format!("https://{}{WELL_KNOWN_PATH}?type=noise", goal.socket)).await?;
    let mut connection = WebTransportConnection::new(session);
    let stream = poll_fn(|cx| Pin::new(&mut connection).poll_outbound(cx)).await?;
    let noise = noise::Config::new(&keypair)?.with_webtransport_certhashes(goal.certhashes);
    let (got, mut handshake) = noise.upgrade_outbound(stream, "/noise").await?;
    // Dropped open, it would be reset, and its last message might not arrive.
    handshake.close().await?;
    match goal.peer {
        Some(want) if want != got => Err(DialError::AnotherPeer { want, got }),
        _ => Ok((got, connection)),
    }
}
