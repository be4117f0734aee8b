//! How a tab reaches the backbone when the best way is closed.

use std::net::UdpSocket;

use anyhow::{Result, ensure};
use barnraise_tests::browser::Graphics;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use libp2p::multihash::Multihash;

use super::village::{QUICK, SOON, contributor, stop, turn, world};

/// SHA-256 in the table of multihashes.
const SHA_256: u64 = 0x12;

#[tokio::test]
async fn the_best_way_is_taken_and_told() -> Result<()> {
    let _turn = turn().await;
    let mut world = world(QUICK)?;
    let backbone = world.backbone().await?;
    let tab = contributor(&backbone, "way-best", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let line = tab.text("connection").await?;
    ensure!(line == "Connected by WebTransport.", "{line}");
    Ok(())
}

/// As behind a firewall that drops UDP: the address is listed, and nothing ever answers at it.
#[tokio::test]
async fn where_udp_is_dropped_the_tab_trains_by_websocket_and_says_why() -> Result<()> {
    let _turn = turn().await;
    let silent = UdpSocket::bind("127.0.0.1:0")?;
    let announced = Multiaddr::empty()
        .with(Protocol::Ip4([127, 0, 0, 1].into()))
        .with(Protocol::Udp(silent.local_addr()?.port()))
        .with(Protocol::QuicV1)
        .with(Protocol::WebTransport)
        .with(Protocol::Certhash(Multihash::wrap(SHA_256, &[7; 32])?));
    let sections = format!("{QUICK}\n[network]\nannounce = [\"{announced}\"]\n");
    let mut world = world(&sections)?.with_listen(&["/ip4/127.0.0.1/tcp/0/ws"]);
    let backbone = world.backbone().await?;
    let tab = contributor(&backbone, "way-websocket", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 3", SOON).await?;
    ensure!(tab.read("element('connection').dataset.way === 'WebSocket'").await? == true);
    // What worked is where a reload begins.
    tab.read("void location.reload()").await?;
    tab.until("element('connection')?.dataset.way === 'WebSocket' && value('accepted') >= 1", SOON).await?;
    let given = stop(&tab).await?;
    ensure!(given > 0, "nothing was given after the reload");
    drop(silent);
    Ok(())
}
