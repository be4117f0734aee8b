//! The WebTransport listener against a client that does what a browser does.

use std::time::Duration;

use barnraise_relay::NodeEvent;
use barnraise_relay::libp2p::identity::Keypair;
use futures::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _};
use wtransport::error::ConnectingError;
use wtransport::quinn;

use crate::common::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_authenticates_and_echoes() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let mut events = node.events();
    let client = WebTransportClient::connect(&webtransport_address(&node)).await;
    assert_eq!(client.server, node.peer_id());
    assert_eq!(events.recv().await.unwrap(), NodeEvent::Connected(client.peer_id));
    let answer = round_trip(client.open(ECHO).await, b"raise the barn").await;
    assert_eq!(answer, b"raise the barn");
    client.session.close(0_u32.into(), b"");
    assert_eq!(events.recv().await.unwrap(), NodeEvent::Disconnected(client.peer_id));
}

/// js-libp2p closes that stream in order, and gives up where it is told to stop before.
#[tokio::test(flavor = "multi_thread")]
async fn the_stream_of_the_handshake_is_kept_until_the_client_leaves_it() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let (client, mut handshake) =
        WebTransportClient::try_handshake(&webtransport_address(&node)).await.unwrap();
    // By then the node has long been through with the handshake.
    assert_eq!(handshake.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(round_trip(client.open(ECHO).await, b"in").await, b"in");
    handshake.write_all(b"still here").await.unwrap();
    handshake.flush().await.unwrap();
    handshake.close().await.unwrap();
    assert_eq!(round_trip(client.open(ECHO).await, b"and on").await, b"and on");
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_is_served_too() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.listen = vec!["/ip6/::1/udp/0/quic-v1/webtransport".parse().unwrap()];
    let node = echo_node(config).await;
    let client = WebTransportClient::connect(&webtransport_address(&node)).await;
    assert_eq!(round_trip(client.open(ECHO).await, b"six").await, b"six");
}

/// More than every window together, so that both directions wait for the slow reader many times.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_all_8_mib_in_both_directions() {
    const N_BYTES: usize = 8 * 1024 * 1024;
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.webtransport.stream_receive_window = 64 * 1024;
    config.webtransport.send_window = 64 * 1024;
    let node = echo_node(config).await;
    let client = WebTransportClient::connect(&webtransport_address(&node)).await;
    let (mut reader, mut writer) = client.open(ECHO).await.split();
    let sent = noise_bytes(N_BYTES);
    let writing = async {
        writer.write_all(&sent).await.unwrap();
        writer.close().await.unwrap();
    };
    let reading = async {
        let mut received: Vec<u8> = Vec::with_capacity(N_BYTES);
        let mut piece = [0_u8; 1500];
        loop {
            tokio::task::yield_now().await;
            match reader.read(&mut piece).await.unwrap() {
                0 => return received,
                n_bytes => received.extend(&piece[..n_bytes]),
            }
        }
    };
    let ((), received) = tokio::join!(writing, reading);
    assert!(received == sent, "{} of {N_BYTES} bytes came back, or others", received.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_opens_streams_to_a_client() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let mut events = node.events();
    let client = WebTransportClient::connect(&webtransport_address(&node)).await;
    assert_eq!(events.recv().await.unwrap(), NodeEvent::Connected(client.peer_id));
    let answering = async {
        // Identify and ping come as well; each is refused by name until ours is asked for.
        loop {
            let (mut send, mut receive) = client.session.accept_bi().await.unwrap();
            let mut name = vec![0; 1 + "/multistream/1.0.0\n".len()];
            if receive.read_exact(&mut name).await.is_err() {
                continue;
            }
            send.write_all(&name).await.unwrap();
            let mut length = [0];
            if receive.read_exact(&mut length).await.is_err() {
                continue;
            }
            let mut protocol = vec![0; usize::from(length[0])];
            receive.read_exact(&mut protocol).await.unwrap();
            if protocol != b"/client/1\n" {
                send.write_all(b"\x03na\n").await.unwrap();
                continue;
            }
            send.write_all(&length).await.unwrap();
            send.write_all(&protocol).await.unwrap();
            let mut question = [0; 4];
            receive.read_exact(&mut question).await.unwrap();
            send.write_all(&question).await.unwrap();
            send.finish().await.unwrap();
            return;
        }
    };
    let asking = async {
        let stream = node.open(client.peer_id, "/client/1").await.unwrap();
        round_trip(stream, b"who?").await
    };
    let ((), answer) = tokio::join!(answering, asking);
    assert_eq!(answer, b"who?");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_path_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let target = ListenTarget::new(&webtransport_address(&node));
    for path in ["/", "/.well-known/libp2p-webtransport", "/.well-known/libp2p-webtransport?type=tls"] {
        let refused = target.endpoint().connect(target.url(path)).await;
        assert!(matches!(refused, Err(ConnectingError::SessionRejected)), "{path}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hashes_that_are_not_the_listeners_are_found_out() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let other = echo_node(config(tempfile::tempdir().unwrap().path())).await;
    let address = webtransport_address(&node);
    // One more hash, which TLS does not mind and Noise must.
    let foreign = *ListenTarget::new(&webtransport_address(&other)).certhashes.iter().next().unwrap();
    let peer = address.iter().last().unwrap();
    let mut forged = address.clone();
    forged.pop();
    let forged = forged.with(barnraise_relay::libp2p::multiaddr::Protocol::Certhash(foreign)).with(peer);
    let error = WebTransportClient::try_connect(&forged).await.err().expect("the hashes are not a subset");
    assert!(error.to_string().contains("not a subset"), "{error}");
    assert!(WebTransportClient::try_connect(&address).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_instead_of_noise_ends_the_connection_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let address = webtransport_address(&node);
    let good = WebTransportClient::connect(&address).await;
    let target = ListenTarget::new(&address);
    for garbage in [&[0_u8; 64][..], &[0xff; 200_000], &[0, 32, 1, 2, 3], b"GET / HTTP/1.1\r\n\r\n"] {
        let endpoint = target.endpoint();
        let session = endpoint.connect(target.url(PATH)).await.unwrap();
        let mut stream = open_raw(&session).await.unwrap();
        // The listener may have hung up before the last byte.
        let _ = stream.write_all(garbage).await;
        let _ = stream.close().await;
        session.closed().await;
    }
    assert_eq!(round_trip(good.open(ECHO).await, b"still here").await, b"still here");
    let late = WebTransportClient::connect(&address).await;
    assert_eq!(round_trip(late.open(ECHO).await, b"me too").await, b"me too");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_nothing_is_dropped_within_the_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.webtransport.handshake_timeout = Duration::from_secs(1);
    let node = echo_node(config).await;
    let target = ListenTarget::new(&webtransport_address(&node));
    let endpoint = target.endpoint();
    let silent = async {
        let session = endpoint.connect(target.url(PATH)).await.ok()?;
        let stream = open_raw(&session).await.ok()?;
        session.closed().await;
        Some(stream)
    };
    // On a busy machine the time may be over before its session stands.
    let _silent = silent.await;
    let is_counted = |metrics: &str| metrics.contains("{reason=\"handshake_timeout\"} 1\n");
    until_metrics(&node, "a handshake that took too long", is_counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_handshakes_do_not_block_new_ones() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.webtransport.max_pending_handshakes = 4;
    // Far longer than the test: only giving way can let the newcomers in.
    config.webtransport.handshake_timeout = Duration::from_secs(3600);
    let node = echo_node(config).await;
    let address = webtransport_address(&node);
    let target = ListenTarget::new(&address);
    let mut half_open = Vec::new();
    for _ in 0..12 {
        // QUIC stands, and no HTTP/3 ever comes.
        let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(target.client_config().quic_config().clone());
        let connection = endpoint.connect(target.socket, "localhost").unwrap().await.unwrap();
        half_open.push((endpoint, connection));
    }
    let client = WebTransportClient::connect(&address).await;
    assert_eq!(round_trip(client.open(ECHO).await, b"let me in").await, b"let me in");
    // The oldest gave way.
    half_open[0].1.closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_flood_is_bounded() {
    // Few enough for QUIC to give each stream's credit back at once and not in batches of an eighth.
    const N_STREAMS_MAX: u32 = 6;
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.webtransport.max_streams_per_connection = N_STREAMS_MAX;
    let node = echo_node(config).await;
    let address = webtransport_address(&node);
    let client = WebTransportClient::connect(&address).await;
    let mut flood = Vec::new();
    for _ in 0..N_STREAMS_MAX {
        flood.push(client.open(ECHO).await);
    }
    let mut one_more = Box::pin(open_raw(&client.session));
    let other = WebTransportClient::connect(&address).await;
    let served = async {
        flood[0].write_all(b"ping").await.unwrap();
        flood[0].read_exact(&mut [0; 4]).await.unwrap();
        assert_eq!(round_trip(other.open(ECHO).await, b"others go on").await, b"others go on");
    };
    tokio::select! {
        _ = &mut one_more => panic!("{N_STREAMS_MAX} streams were allowed, one more was opened"),
        () = served => {}
    }
    assert_eq!(round_trip(flood.remove(0), b"").await, b"");
    assert!(one_more.await.is_ok(), "a stream that ended makes place for another");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_is_a_reset_and_not_an_end() {
    let directory = tempfile::tempdir().unwrap();
    let node =
        barnraise_relay::Node::start(Keypair::generate_ed25519(), config(directory.path())).await.unwrap();
    let mut incoming = node.accept(ECHO).unwrap();
    let client = WebTransportClient::connect(&webtransport_address(&node)).await;
    let mut stream = client.open(ECHO).await;
    let (_, mut accepted) = incoming.recv().await.unwrap();
    accepted.write_all(b"half a mess").await.unwrap();
    accepted.flush().await.unwrap();
    let mut received = [0; 11];
    stream.read_exact(&mut received).await.unwrap();
    drop(accepted);
    let end = stream.read(&mut received).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

/// So libp2p's ping does with a client that says that this was its last one, as js-libp2p's does: a reset would
/// overtake the answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_the_last_word_arrives_though_its_stream_is_dropped() {
    const ANSWERS: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let node =
        barnraise_relay::Node::start(Keypair::generate_ed25519(), config(directory.path())).await.unwrap();
    let mut incoming = node.accept(ECHO).unwrap();
    let client = WebTransportClient::connect(&webtransport_address(&node)).await;
    for number in 0..ANSWERS {
        let mut stream = client.open(ECHO).await;
        let (_, mut accepted) = incoming.recv().await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        stream.close().await.unwrap();
        let mut asked = Vec::new();
        accepted.read_to_end(&mut asked).await.unwrap();
        accepted.write_all(&asked).await.unwrap();
        accepted.flush().await.unwrap();
        drop(accepted);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap_or_else(|error| panic!("answer {number}: {error}"));
        assert_eq!(answer, b"ping", "answer {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_flushed_is_reset_even_after_the_last_word() {
    let directory = tempfile::tempdir().unwrap();
    let node =
        barnraise_relay::Node::start(Keypair::generate_ed25519(), config(directory.path())).await.unwrap();
    let mut incoming = node.accept(ECHO).unwrap();
    let client = WebTransportClient::connect(&webtransport_address(&node)).await;
    let mut stream = client.open(ECHO).await;
    let (_, mut accepted) = incoming.recv().await.unwrap();
    stream.close().await.unwrap();
    accepted.read_to_end(&mut Vec::new()).await.unwrap();
    accepted.write_all(b"half a mess").await.unwrap();
    drop(accepted);
    let end = stream.read_to_end(&mut Vec::new()).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_says_goodbye() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let clone = node.clone();
    let client = WebTransportClient::connect(&webtransport_address(&node)).await;
    node.shutdown().await;
    client.session.closed().await;
    assert!(clone.connected_peers().now_or_never().unwrap().is_err(), "the node has stopped");
}

/// What a visitor's tab needs most: a whole state down and a gradient up, many streams at once.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_with_many_streams_are_served_at_once() {
    const N_CLIENTS: usize = 8;
    const N_STREAMS: usize = 16;
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let address = webtransport_address(&node);
    let sent = noise_bytes(64 * 1024);
    let clients = (0..N_CLIENTS).map(|_| async {
        let client = WebTransportClient::connect(&address).await;
        let streams = (0..N_STREAMS).map(|_| async {
            let (mut reader, mut writer) = client.open(ECHO).await.split();
            let writing = async {
                writer.write_all(&sent).await.unwrap();
                writer.close().await.unwrap();
            };
            let mut received = Vec::new();
            let (_, read) = tokio::join!(writing, reader.read_to_end(&mut received));
            read.unwrap();
            received == sent
        });
        futures::future::join_all(streams).await
    });
    let whole = futures::future::join_all(clients).await.concat();
    assert_eq!(whole, vec![true; N_CLIENTS * N_STREAMS]);
}
