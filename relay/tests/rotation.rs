//! Certificates change under a listener that goes on.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use barnraise_relay::certificates::{Certificates, SERVICE_PERIOD};
use barnraise_relay::libp2p::core::transport::{ListenerId, TransportEvent};
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::libp2p::{Multiaddr, Transport as _};
use barnraise_relay::webtransport::{Transport, WebTransportConfig, WebTransportConnection};
use tokio::sync::mpsc;

use crate::common::*;

enum TransportReport {
    New(Multiaddr),
    Expired(Multiaddr),
    Connection(WebTransportConnection),
}

/// Drives a transport and reports what comes of it.
fn spawn_transport(mut transport: Transport) -> mpsc::Receiver<TransportReport> {
    let (seen, received) = mpsc::channel(16);
    tokio::spawn(async move {
        loop {
            match std::future::poll_fn(|cx| Pin::new(&mut transport).poll(cx)).await {
                TransportEvent::NewAddress { listen_addr, .. } => {
                    seen.send(TransportReport::New(listen_addr)).await.unwrap();
                }
                TransportEvent::AddressExpired { listen_addr, .. } => {
                    seen.send(TransportReport::Expired(listen_addr)).await.unwrap();
                }
                TransportEvent::Incoming { upgrade, .. } => {
                    let seen = seen.clone();
                    tokio::spawn(async move {
                        if let Ok((_, connection)) = upgrade.await {
                            seen.send(TransportReport::Connection(connection)).await.unwrap();
                        }
                    });
                }
                _ => {}
            }
        }
    });
    received
}

async fn connection(seen: &mut mpsc::Receiver<TransportReport>) -> WebTransportConnection {
    match seen.recv().await.unwrap() {
        TransportReport::Connection(connection) => connection,
        TransportReport::New(address) | TransportReport::Expired(address) => {
            panic!("{address} instead of a connection")
        }
    }
}

/// TLS checks validity by the real clock, so the moved one ends at the real time.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_interrupts_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let hand = Arc::new(Mutex::new(SystemTime::now() - SERVICE_PERIOD));
    let shown = Arc::clone(&hand);
    let certificates =
        Certificates::open(directory.path(), Arc::new(move || *shown.lock().unwrap())).unwrap();
    let mut transport =
        Transport::new(Keypair::generate_ed25519(), certificates.clone(), WebTransportConfig::default());
    let listen = "/ip4/127.0.0.1/udp/0/quic-v1/webtransport".parse().unwrap();
    transport.listen_on(ListenerId::next(), listen).unwrap();
    let mut seen = spawn_transport(transport);
    let Some(TransportReport::New(old)) = seen.recv().await else { panic!("no address") };

    let before = WebTransportClient::connect(&old).await;
    let _before_server = connection(&mut seen).await;

    *hand.lock().unwrap() += SERVICE_PERIOD;
    certificates.refresh().unwrap();
    let Some(TransportReport::New(new)) = seen.recv().await else { panic!("the new address comes first") };
    let Some(TransportReport::Expired(expired)) = seen.recv().await else { panic!("then the old one ends") };
    assert_eq!(expired, old);
    let (old_hashes, new_hashes) = (ListenTarget::new(&old).certhashes, ListenTarget::new(&new).certhashes);
    assert_eq!(old_hashes.intersection(&new_hashes).count(), 1, "the next one became the current one");

    // The connection that stands goes on, and both addresses connect to what is served now.
    let mut stream = before.session.open_bi().await.unwrap().await.unwrap();
    stream.0.write_all(b"still there?").await.unwrap();
    for address in [&old, &new] {
        let _client = WebTransportClient::connect(address).await;
        let _server = connection(&mut seen).await;
    }
    let served = before.session.peer_identity().unwrap();
    let now = WebTransportClient::connect(&new).await.session.peer_identity().unwrap();
    assert_ne!(served.as_slice()[0].der(), now.as_slice()[0].der(), "another certificate is served");
}
