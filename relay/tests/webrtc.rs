//! The WebRTC-direct listener: its certificate, its bounds, and what it bears.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use barnraise_relay::libp2p::Multiaddr;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::libp2p::multiaddr::Protocol;
use barnraise_relay::{Node, NodeConfig};
use common::*;

/// After this long a test hangs.
const HANG: Duration = Duration::from_secs(120);

fn webrtc(directory: &Path) -> NodeConfig {
    barnraise_relay::install_crypto_provider();
    NodeConfig { listen: vec!["/ip4/127.0.0.1/udp/0/webrtc-direct".parse().unwrap()], ..config(directory) }
}

fn certhash(address: &Multiaddr) -> Protocol<'_> {
    address.iter().find(|part| matches!(part, Protocol::Certhash(_))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_outlives_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let first = echo_node(webrtc(directory.path())).await;
    let before = first.addresses();
    first.shutdown().await;
    let after = echo_node(webrtc(directory.path())).await.addresses();
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_eq!(certhash(&before[0]), certhash(&after[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_certificate_is_named() {
    let directory = tempfile::tempdir().unwrap();
    echo_node(webrtc(directory.path())).await.shutdown().await;
    let path = directory.path().join("certificates/webrtc/certificate.pem");
    std::fs::write(&path, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
    let error = Node::start(Keypair::generate_ed25519(), webrtc(directory.path())).await.unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

/// A client that receives at its address can begin handshakes as often as it likes. What libp2p leaves of each must
/// go, and honest clients get in.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_nobody_finishes_leave_nothing_behind() {
    const BEGUN: u64 = 100;
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut config = webrtc(directory.path());
    config.limits.handshake_timeout = Duration::from_secs(5);
    let node = echo_node(config).await;
    let address = node.addresses()[0].clone();
    let target = ListenTarget::new(&address).socket;
    let sockets: Vec<UdpSocket> = (0..BEGUN).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    for (number, socket) in (0..).zip(&sockets) {
        socket.send_to(&binding_request(number), target).unwrap();
        answer_question(socket, target);
        // It is taken for the beginning of a handshake once the answer has been read.
        socket.send_to(&binding_request(number), target).unwrap();
    }
    until("more than one runtime", || runtimes() > 1).await;
    until("one runtime", || runtimes() <= 1).await;
    let dialer = dialer_of(&address, &webrtc(other.path())).await;
    until_echoed(&dialer, &address).await;
}

/// An attacker who knows only the port's address can forge the source of datagrams, but receives no answer.
#[tokio::test(flavor = "multi_thread")]
async fn greetings_of_who_hears_nothing_begin_no_handshake() {
    const GREETED: u64 = 2000;
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut config = webrtc(directory.path());
    config.limits.pending_handshakes = 16;
    let node = echo_node(config).await;
    let address = node.addresses()[0].clone();
    let target = ListenTarget::new(&address).socket;
    let dialing = dialer_of(&address, &webrtc(other.path())).await;
    for number in 0..GREETED {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&binding_request(number), target).unwrap();
        if number % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    // In the middle of it somebody honest is through, and nobody had to make room.
    until_echoed(&dialing, &address).await;
    let again = dialer_of(&address, &webrtc(other.path())).await;
    until_echoed(&again, &address).await;
    let metrics = node.metrics();
    assert!(metrics.contains("{reason=\"handshake_gave_way\"} 0"), "{metrics}");
}

/// Has a message come back; asks again where its stream or the connection broke off: two ends of webrtc-rs on a busy machine
/// do not bear each lost datagram.
async fn until_echoed(dialer: &Node, address: &Multiaddr) {
    let echoed = async {
        loop {
            // At once where a connection stands.
            if let Ok(peer) = dialer.dial(address.clone()).await
                && let Ok(stream) = dialer.open(peer, ECHO).await
                && let Ok(answer) = try_round_trip(stream, b"hello").await
            {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(HANG, echoed).await.expect("nothing comes back");
    assert_eq!(answer, b"hello");
}

/// Nothing tells that a thread has ended: looks again and again.
async fn until(what: &str, mut is_met: impl FnMut() -> bool) {
    let met = async {
        while !is_met() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, met).await.expect(what);
}

/// Threads of this process that WebRTC runs on; other tests of this file have theirs.
fn runtimes() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.trim() == "webrtc").count()
}

/// Answers the binding request that a greeting is answered with, as ICE wants it.
#[cfg(target_os = "linux")]
fn answer_question(socket: &UdpSocket, target: SocketAddr) {
    socket.set_read_timeout(Some(HANG)).unwrap();
    let mut question = [0; 2048];
    let n_bytes = socket.recv(&mut question).unwrap();
    assert!(n_bytes > 20 && question.starts_with(&[0, 1]));
    let answer = [&[1, 1, 0, 0], &question[4..20]].concat();
    socket.send_to(&answer, target).unwrap();
}

/// The first packet of a WebRTC-direct client: a STUN binding request (RFC 8489) that names its user.
fn binding_request(number: u64) -> Vec<u8> {
    const USERNAME: u16 = 6;
    let user = format!("libp2p+webrtc+v1/{number:064}");
    let user = format!("{user}:{user}");
    let mut attribute = USERNAME.to_be_bytes().to_vec();
    attribute.extend(u16::try_from(user.len()).unwrap().to_be_bytes());
    attribute.extend(user.as_bytes());
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    // What it says of its part in ICE, and its signature: nobody looks at either here.
    attribute.extend([0x80, 0x2a, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x24, 0, 4, 0, 0, 0, 1]);
    attribute.extend([&[0, 8, 0, 20][..], &[7; 20], &[0x80, 0x28, 0, 4, 0, 0, 0, 0]].concat());
    let mut message = vec![0, 1];
    message.extend(u16::try_from(attribute.len()).unwrap().to_be_bytes());
    message.extend(0x2112_a442_u32.to_be_bytes());
    message.extend([0; 4]);
    message.extend(number.to_be_bytes());
    message.extend(attribute);
    message
}
