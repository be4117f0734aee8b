//! A WebTransport client that does what a browser does, step by step, and nodes to dial.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code, unreachable_pub)]

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use barnraise_relay::libp2p::core::upgrade::OutboundConnectionUpgrade as _;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::libp2p::multiaddr::Protocol;
use barnraise_relay::libp2p::multihash::Multihash;
use barnraise_relay::libp2p::{Multiaddr, PeerId, noise};
use barnraise_relay::{IncomingStreams, Node, NodeConfig};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::compat::TokioAsyncReadCompatExt as _;
use wtransport::endpoint::endpoint_side;
use wtransport::tls::Sha256Digest;
use wtransport::{ClientConfig, Connection, Endpoint};

pub const ECHO: &str = "/barnraise-test/echo/1";
pub const PATH: &str = "/.well-known/libp2p-webtransport?type=noise";
/// Handshakes of which one succeeds, unless something is broken.
const ATTEMPTS: usize = 5;
/// After this long a test hangs.
const HANG: Duration = Duration::from_secs(120);

/// Both directions of a stream, as libp2p's upgrades want them.
pub type ClientStream =
    tokio_util::compat::Compat<tokio::io::Join<wtransport::RecvStream, wtransport::SendStream>>;

/// A listener's address, parsed.
pub struct ListenTarget {
    pub socket: SocketAddr,
    pub certhashes: HashSet<Multihash<64>>,
    pub peer: Option<PeerId>,
}

impl ListenTarget {
    pub fn new(address: &Multiaddr) -> Self {
        let (mut ip, mut port, mut certhashes, mut peer) = (None, None, HashSet::new(), None);
        for part in address.iter() {
            match part {
                Protocol::Ip4(found) => ip = Some(found.into()),
                Protocol::Ip6(found) => ip = Some(found.into()),
                Protocol::Udp(found) => port = Some(found),
                Protocol::Certhash(hash) => {
                    certhashes.insert(hash);
                }
                Protocol::P2p(found) => peer = Some(found),
                _ => {}
            }
        }
        Self { socket: SocketAddr::new(ip.unwrap(), port.unwrap()), certhashes, peer }
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.socket)
    }

    /// Trusts exactly the hashes of the address, as `serverCertificateHashes` does.
    pub fn client_config(&self) -> ClientConfig {
        let digests = self.certhashes.iter().map(|hash| Sha256Digest::new(hash.digest().try_into().unwrap()));
        let local = match self.socket {
            SocketAddr::V4(_) => "127.0.0.1:0",
            SocketAddr::V6(_) => "[::1]:0",
        };
        ClientConfig::builder()
            .with_bind_address(local.parse().unwrap())
            .with_server_certificate_hashes(digests)
            .build()
    }

    pub fn endpoint(&self) -> Endpoint<endpoint_side::Client> {
        Endpoint::client(self.client_config()).unwrap()
    }
}

/// An authenticated session.
pub struct WebTransportClient {
    pub session: Connection,
    pub server: PeerId,
    pub peer_id: PeerId,
    _endpoint: Endpoint<endpoint_side::Client>,
}

impl WebTransportClient {
    /// On a busy machine a handshake may take too long: it is repeated from another port, as browsers do.
    pub async fn connect(address: &Multiaddr) -> Self {
        let mut failures = Vec::new();
        while failures.len() < ATTEMPTS {
            match Self::try_connect(address).await {
                Ok(client) => return client,
                Err(error) => failures.push(error),
            }
        }
        panic!("{address} cannot be connected with: {failures:?}");
    }

    pub async fn try_connect(address: &Multiaddr) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self::try_handshake(address).await?.0)
    }

    /// The dialer's side of the libp2p WebTransport specification, and the stream of its handshake.
    pub async fn try_handshake(
        address: &Multiaddr,
    ) -> Result<(Self, noise::Output<ClientStream>), Box<dyn std::error::Error + Send + Sync>> {
        let target = ListenTarget::new(address);
        let endpoint = target.endpoint();
        let session = endpoint.connect(target.url(PATH)).await?;
        let keypair = Keypair::generate_ed25519();
        let stream = open_raw(&session).await?;
        let noise = noise::Config::new(&keypair)?.with_webtransport_certhashes(target.certhashes.clone());
        let (server, secured) = noise.upgrade_outbound(stream, "/noise").await?;
        if target.peer.is_some_and(|expected| expected != server) {
            return Err("another peer answered".into());
        }
        let peer_id = keypair.public().to_peer_id();
        Ok((Self { session, server, peer_id, _endpoint: endpoint }, secured))
    }

    /// Opens a stream and negotiates `protocol` with multistream-select 1.0, written out by hand.
    pub async fn open(&self, protocol: &str) -> ClientStream {
        let mut stream = open_raw(&self.session).await.unwrap();
        negotiate(&mut stream, protocol).await;
        stream
    }
}

pub async fn open_raw(
    session: &Connection,
) -> Result<ClientStream, Box<dyn std::error::Error + Send + Sync>> {
    let (send, receive) = session.open_bi().await?.await?;
    Ok(tokio::io::join(receive, send).compat())
}

/// The dialer's side of multistream-select 1.0 for `protocol`, with a listener that agrees.
pub async fn negotiate<S>(stream: &mut S, protocol: &str)
where
    S: futures::AsyncRead + futures::AsyncWrite + Unpin,
{
    for line in ["/multistream/1.0.0", protocol] {
        let length = u8::try_from(line.len() + 1).unwrap();
        assert!(length < 128, "one byte of varint");
        let mut message = vec![length];
        message.extend(line.as_bytes());
        message.push(b'\n');
        stream.write_all(&message).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = vec![0; message.len()];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, message, "the listener repeats what it agrees to");
    }
}

/// A new node that has dialled `address`. On a busy machine a handshake over UDP may take too long, so the dial is
/// repeated from another port, as browsers do.
pub async fn dialer_of(address: &Multiaddr, config: &NodeConfig) -> Node {
    for _ in 0..ATTEMPTS {
        let dialer = Node::start(Keypair::generate_ed25519(), config.clone()).await.unwrap();
        if dialer.dial(address.clone()).await.is_ok() {
            return dialer;
        }
        dialer.shutdown().await;
    }
    panic!("{address} was dialled {ATTEMPTS} times in vain");
}

/// Sends `message`, closes, and reads until the end.
pub async fn round_trip<S>(stream: S, message: &[u8]) -> Vec<u8>
where
    S: futures::AsyncRead + futures::AsyncWrite + Unpin,
{
    try_round_trip(stream, message).await.unwrap()
}

/// The same on a stream that may break off.
pub async fn try_round_trip<S>(mut stream: S, message: &[u8]) -> std::io::Result<Vec<u8>>
where
    S: futures::AsyncRead + futures::AsyncWrite + Unpin,
{
    stream.write_all(message).await?;
    stream.close().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Nothing tells when a metric changes: looks again and again.
pub async fn until_metrics(node: &Node, what: &str, are_met: impl Fn(&str) -> bool) {
    let met = async {
        while !are_met(&node.metrics()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let met = tokio::time::timeout(HANG, met).await;
    met.unwrap_or_else(|_| panic!("{what} is not among the metrics:\n{}", node.metrics()));
}

/// Sends back what comes, each stream in its own task.
pub fn spawn_echo(mut incoming: IncomingStreams) {
    tokio::spawn(async move {
        while let Some((_, stream)) = incoming.recv().await {
            tokio::spawn(async move {
                let (reader, mut writer) = stream.split();
                // A client that leaves in the middle is part of some tests.
                if futures::io::copy(reader, &mut writer).await.is_ok() {
                    let _ = writer.close().await;
                }
            });
        }
    });
}

/// Sends much while it reads, and gets all of it back.
pub async fn echoes_bulk(dialer: &Node, node: &Node, n_bytes: usize) {
    let sent = noise_bytes(n_bytes);
    let (mut reader, mut writer) = dialer.open(node.peer_id(), ECHO).await.unwrap().split();
    let mut received = Vec::new();
    let writing = async {
        writer.write_all(&sent).await.unwrap();
        writer.close().await.unwrap();
    };
    let (_, read) = tokio::join!(writing, reader.read_to_end(&mut received));
    read.unwrap();
    assert!(received == sent);
}

pub fn config(directory: &Path) -> NodeConfig {
    NodeConfig {
        listen: vec![
            "/ip4/127.0.0.1/tcp/0".parse().unwrap(),
            "/ip4/127.0.0.1/udp/0/quic-v1/webtransport".parse().unwrap(),
        ],
        certificates_dir: Some(directory.join("certificates")),
        ..NodeConfig::default()
    }
}

/// A node on both transports that echoes.
pub async fn echo_node(config: NodeConfig) -> Node {
    let node = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
    spawn_echo(node.accept(ECHO).unwrap());
    node
}

/// A node that only dials. It tests nobody's addresses: after a few seconds that would be an event of the other node, amid
/// those that a test waits for.
pub async fn dialer() -> Node {
    let config = NodeConfig { dials_back: false, ..NodeConfig::default() };
    Node::start(Keypair::generate_ed25519(), config).await.unwrap()
}

pub fn webtransport_address(node: &Node) -> Multiaddr {
    let addresses = node.addresses();
    assert!(addresses[0].to_string().contains("/webtransport/"), "webtransport comes first");
    addresses[0].clone()
}

pub fn tcp_address(node: &Node) -> Multiaddr {
    node.addresses().into_iter().find(|address| address.to_string().contains("/tcp/")).unwrap()
}

/// Bytes without a pattern that a shift would hide.
pub fn noise_bytes(n_bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(n_bytes + 8);
    while bytes.len() < n_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(n_bytes);
    bytes
}
