//! Connections that nobody needs: silent ones, ones that become peers over and over, and ones of garbage.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use barnraise_tests::client::{TestClient, within};
use barnraise_tests::source_proxy::{SourceProxy, connect_from, socket_address};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::RUN;
use super::attacked_run::{AttackEnd, AttackedRun};

const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(20);
/// Connections at once; the backbone takes fewer handshakes.
const FLOOD: u8 = 40;

/// An address of which the backbone has not heard.
fn stranger(number: u8) -> IpAddr {
    [127, 0, 0, number].into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_connections_costs_the_others_nothing() {
    let mut attacked = AttackedRun::of(RUN, false).await;
    let backbone = socket_address(&attacked.tcp()).unwrap();
    // As many connections as come about are ended, and the rest never comes about.
    attacked.endures(&["handshake_gave_way"], AttackEnd::Refused, move || say_nothing(backbone)).await;
    attacked.endures(&["handshake_timeout"], AttackEnd::Refused, move || wait_for_the_end(backbone)).await;
    attacked.endures(&["handshake_failed"], AttackEnd::Refused, move || write_garbage(backbone)).await;
    let proxy = SourceProxy::open(stranger(200), &attacked.tcp()).await.unwrap();
    let address = proxy.address();
    attacked.endures(&["connection_rate"], AttackEnd::Refused, move || become_peers(address.clone())).await;
    attacked.has_trained().await;
}

/// Connections that say nothing: each time more than may be under way, from two addresses of many.
async fn say_nothing(backbone: SocketAddr) {
    for number in (10..=250).step_by(2).cycle() {
        let connecting = (0..FLOOD).map(|at| connect_from(stranger(number + at % 2), backbone));
        let _kept = futures::future::join_all(connecting).await;
        tokio::time::sleep(BETWEEN_CONNECTIONS * FLOOD.into()).await;
    }
}

/// A few silent connections at a time: each is ended by the backbone.
async fn wait_for_the_end(backbone: SocketAddr) {
    for number in (10..=250).cycle() {
        let mut silent = connect_from(stranger(number), backbone).await.unwrap();
        is_ended(&mut silent).await;
    }
}

/// Bytes that are no handshake, from one address after the other, so that each is looked at.
async fn write_garbage(backbone: SocketAddr) {
    let mut ending = JoinSet::new();
    for number in (10..=250).cycle() {
        ending.spawn(async move {
            let mut stream = connect_from(stranger(number), backbone).await.unwrap();
            let garbage: Vec<u8> = (0..200u8).map(|n| n.wrapping_mul(number) ^ 0x5a).collect();
            // It may be ended before all is written.
            let _ = stream.write_all(&garbage).await;
            is_ended(&mut stream).await;
        });
        while ending.len() > 10 {
            ending.join_next().await.unwrap().unwrap();
        }
        tokio::time::sleep(BETWEEN_CONNECTIONS).await;
    }
}

/// Each time somebody new, with a whole handshake; soon that is refused.
async fn become_peers(backbone: libp2p::Multiaddr) {
    loop {
        // Refused from some moment on, which is what is waited for outside.
        drop(TestClient::connect(backbone.clone()).await);
        tokio::time::sleep(BETWEEN_CONNECTIONS).await;
    }
}

async fn is_ended(stream: &mut TcpStream) {
    let ended = async {
        let mut buffer = [0; 1024];
        // What the backbone says of itself first is no answer.
        while stream.read(&mut buffer).await.is_ok_and(|n_bytes| n_bytes > 0) {}
    };
    within("the end of a connection", ended).await.unwrap();
}
