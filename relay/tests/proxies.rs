//! WebSockets behind a proxy: each visitor has limits of its own, and nobody chooses who it is.

use std::net::{IpAddr, SocketAddr};

use barnraise_relay::libp2p::Multiaddr;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::libp2p::multiaddr::Protocol;
use barnraise_relay::{Node, NodeConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// Connections of one address.
const OF_ADDRESS: u32 = 2;

/// As deploy/nginx.conf has it: what the visitor wrote is replaced by its address.
struct Proxy {
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Reports all its clients as coming from `visitor`.
    async fn open(visitor: IpAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(pass(near, visitor, to));
            }
        });
        Self { address, _task: AbortOnDropHandle::new(task) }
    }
}

async fn pass(mut near: TcpStream, visitor: IpAddr, to: SocketAddr) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(1) = near.read(&mut byte).await else { return };
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let head = head.strip_suffix("\r\n").unwrap();
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    let head = format!("{head}X-Forwarded-For: {visitor}\r\n\r\n");
    if far.write_all(head.as_bytes()).await.is_ok() {
        // Either side may end it.
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    }
}

async fn listening(trusted_proxies: &[&str]) -> (Node, SocketAddr) {
    let trusted_proxies = trusted_proxies.iter().map(|proxy| proxy.parse().unwrap()).collect();
    let listen = vec!["/ip4/127.0.0.1/tcp/0/ws".parse().unwrap()];
    let mut config = NodeConfig { listen, trusted_proxies, ..NodeConfig::default() };
    config.limits.connections_per_address = OF_ADDRESS;
    let node = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
    let address = node.addresses().swap_remove(0);
    let port = address.iter().find_map(|part| if let Protocol::Tcp(port) = part { Some(port) } else { None });
    (node, SocketAddr::from(([127, 0, 0, 1], port.unwrap())))
}

/// How many of so many connections come about for a visitor; they stay.
async fn connect(node: &Node, visitor: &str, n: usize, at: SocketAddr) -> (usize, Vec<Node>) {
    let proxy = Proxy::open(visitor.parse().unwrap(), at).await;
    let address = Multiaddr::from(proxy.address.ip())
        .with(Protocol::Tcp(proxy.address.port()))
        .with(Protocol::Ws("/".into()))
        .with(Protocol::P2p(node.peer_id()));
    let mut dialers = Vec::new();
    let mut n_connected = 0;
    for _ in 0..n {
        let dialer = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
        n_connected += usize::from(dialer.dial(address.clone()).await.is_ok());
        dialers.push(dialer);
    }
    (n_connected, dialers)
}

#[tokio::test(flavor = "multi_thread")]
async fn visitors_of_a_trusted_proxy_have_connections_of_their_own() {
    let (node, at) = listening(&["127.0.0.1"]).await;
    let (n_first, _kept) = connect(&node, "198.51.100.7", 3, at).await;
    let (n_second, _kept_too) = connect(&node, "198.51.100.8", 3, at).await;
    assert_eq!((n_first, n_second), (2, 2), "of an address each");
    let (n_neighbours, _kept) = connect(&node, "2001:db8::1", 1, at).await;
    assert_eq!(n_neighbours, 1);
    let metrics = node.metrics();
    assert!(metrics.contains("{reason=\"connections_of_address\"} 2"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_trusted_is_where_it_is() {
    let (node, at) = listening(&["10.0.0.0/8"]).await;
    let (n_first, _kept) = connect(&node, "198.51.100.7", 2, at).await;
    let (n_second, _kept_too) = connect(&node, "198.51.100.8", 2, at).await;
    assert_eq!((n_first, n_second), (2, 0), "all from one address");
}
