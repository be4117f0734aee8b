//! Transports of a tab when the preferred one is blocked.

use std::net::UdpSocket;

use anyhow::{Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::process::{BackboneProcess, TestRun};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use libp2p::multihash::Multihash;

use super::support::{QUICK, SOON, contributor, stop, test_run, turn};

/// SHA-256 in the table of multihashes.
const SHA_256: u64 = 0x12;

#[tokio::test]
async fn the_best_way_is_taken_and_told() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "way-best", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let line = tab.text("connection").await?;
    ensure!(line == "Connected by WebTransport.", "{line}");
    Ok(())
}

/// As behind a firewall that knows calls and no QUIC.
#[tokio::test]
async fn where_quic_is_dropped_the_tab_trains_by_webrtc_and_says_why() -> Result<()> {
    let _turn = turn().await;
    let (silent, address) = silent(&[Protocol::QuicV1, Protocol::WebTransport])?;
    let (tab, _test_run, _backbone) =
        trains_by("WebRTC", &[address], "/ip4/127.0.0.1/udp/0/webrtc-direct").await?;
    let line = tab.text("connection").await?;
    ensure!(line.starts_with("Connected by WebRTC, as WebTransport did not work ("), "{line}");
    remembers("WebRTC", &tab).await?;
    drop(silent);
    Ok(())
}

/// As behind a firewall that drops UDP: the addresses are listed, and nothing ever answers at them.
#[tokio::test]
async fn where_udp_is_dropped_the_tab_trains_by_websocket_and_says_why() -> Result<()> {
    let _turn = turn().await;
    let (silent, webtransport) = self::silent(&[Protocol::QuicV1, Protocol::WebTransport])?;
    let (silent_too, webrtc) = self::silent(&[Protocol::WebRTCDirect])?;
    let (tab, _test_run, _backbone) =
        trains_by("WebSocket", &[webtransport, webrtc], "/ip4/127.0.0.1/tcp/0/ws").await?;
    let line = tab.text("connection").await?;
    for way in ["WebTransport", "WebRTC"] {
        ensure!(line.contains(&format!(" {way} did not work (")), "{line}");
    }
    remembers("WebSocket", &tab).await?;
    drop((silent, silent_too));
    Ok(())
}

/// A socket that never answers, and a transport address that leads to it.
fn silent(way: &[Protocol<'static>]) -> Result<(UdpSocket, Multiaddr)> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let host = Multiaddr::empty().with(Protocol::Ip4([127, 0, 0, 1].into()));
    let address = host.with(Protocol::Udp(socket.local_addr()?.port()));
    let address = way.iter().fold(address, |address, part| address.with(part.clone()));
    Ok((socket, address.with(Protocol::Certhash(Multihash::wrap(SHA_256, &[7; 32])?))))
}

/// A tab that trains with a backbone that lists silent addresses beside the one that works.
async fn trains_by(way: &str, silent: &[Multiaddr], works: &str) -> Result<(Tab, TestRun, BackboneProcess)> {
    let announced: Vec<String> = silent.iter().map(|address| format!("\"{address}\"")).collect();
    let sections = format!("{QUICK}\n[network]\nannounce = [{}]\n", announced.join(", "));
    let mut test_run = test_run(&sections)?.with_listen(&[works]);
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, &format!("way-{way}"), Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 3", SOON).await?;
    ensure!(tab.read(&format!("element('connection').dataset.transport === '{way}'")).await? == true);
    Ok((tab, test_run, backbone))
}

/// A reload begins with the transport that worked.
async fn remembers(way: &str, tab: &Tab) -> Result<()> {
    tab.read("void location.reload()").await?;
    let again = format!("element('connection')?.dataset.transport === '{way}' && value('accepted') >= 1");
    tab.until(&again, SOON).await?;
    let given = stop(tab).await?;
    ensure!(given > 0, "nothing was given after the reload");
    Ok(())
}
