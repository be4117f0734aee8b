//! The preflight before anything large is fetched: transports, adapter, memory, cost, and advice.

use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::process::BackboneProcess;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use libp2p::multihash::Multihash;

use super::support::{QUICK, SOON, test_run, turn};

/// All that a visitor downloads before the click, as it is sent.
const BYTES_BEFORE_START_MAX: u64 = 435_000;
/// SHA-256 in the table of multihashes.
const SHA_256: u64 = 0x12;
/// Bytes of the page and of all that it fetched; what is loaded says how much of it came over the network.
const TRANSFERRED: &str = r"
    [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
        .reduce((sum, entry) => sum + entry.transferSize, 0)
";
/// Once nothing is asked or tried any more.
const DONE: &str =
    "element('preflight').dataset.state !== 'asking' && text('preflight-data').includes('program')";

/// Opens the page and waits for the end of the preflight; nothing large may have come by then.
async fn looked_at(backbone: &BackboneProcess, name: &str, graphics: Graphics) -> Result<Tab> {
    let tab = Tab::open(name, graphics, &backbone.page()).await?;
    tab.until(DONE, SOON).await?;
    let transferred = tab.read(TRANSFERRED).await?.as_u64().context("a sum of bytes")?;
    ensure!(transferred > 10_000, "{transferred} bytes are less than the page");
    ensure!(transferred < BYTES_BEFORE_START_MAX, "{transferred} bytes before the click");
    let longest = tab.read("Number(document.body.dataset.longestMs ?? 0)").await?;
    eprintln!("{name}: {transferred} bytes before the click, longest task {longest} ms");
    Ok(tab)
}

/// Opens what is behind the summary, as a keyboard does, and takes pictures.
async fn pictures(tab: &Tab, name: &str) -> Result<()> {
    tab.read("void element('preflight-summary').focus()").await?;
    tab.pictures(&format!("preflight-{name}")).await?;
    tab.click("#preflight-summary").await?;
    ensure!(tab.read("element('preflight').open").await? == true, "a click opens it");
    for (viewport, wider) in tab.pictures(&format!("preflight-{name}-open")).await? {
        ensure!(wider == 0, "{name}: {wider} px wider than a {} of {} px", viewport.name, viewport.width);
    }
    Ok(())
}

/// The mark of a transport's line.
async fn way(tab: &Tab, way: &str) -> Result<String> {
    let mark =
        format!("document.querySelector('#preflight-transports [data-transport={way}]').dataset.state");
    Ok(tab.read(&mark).await?.as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_visitor_learns_what_works_before_anything_large_is_fetched() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?.with_listen(&[
        "/ip4/127.0.0.1/udp/0/quic-v1/webtransport",
        "/ip4/127.0.0.1/udp/0/webrtc-direct",
        "/ip4/127.0.0.1/tcp/0/ws",
    ]);
    let backbone = test_run.backbone().await?;
    let tab = looked_at(&backbone, "preflight-good", Graphics::SoftwareAdapter).await?;
    let summary = tab.text("preflight-summary").await?;
    ensure!(summary.starts_with("This browser can take part"), "{summary}");
    ensure!(summary.contains("WebTransport works"), "{summary}");
    for each in ["WebTransport", "WebRTC", "WebSocket"] {
        ensure!(way(&tab, each).await? == "works", "{each}: {}", tab.text("preflight-transports").await?);
    }
    let graphics = tab.text("preflight-graphics").await?;
    ensure!(graphics.contains("in software") && graphics.contains("Buffers up to"), "{graphics}");
    let browser = tab.text("preflight-browser").await?;
    ensure!(browser.starts_with("Chrome 1"), "{browser}");
    ensure!(tab.text("preflight-processor").await?.contains("thread"));
    let data = tab.text("preflight-data").await?;
    ensure!(data.contains(" MB for the program") && data.contains("with each step"), "{data}");
    pictures(&tab, "good").await?;
    // What was found out is where the tab begins.
    tab.click("#toggle").await?;
    tab.until("element('connection').dataset.transport === 'WebTransport'", SOON).await?;
    Ok(())
}

#[tokio::test]
async fn without_an_adapter_the_processor_is_offered_and_what_to_do_is_said() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = looked_at(&backbone, "preflight-no-adapter", Graphics::NoAdapter).await?;
    let summary = tab.text("preflight-summary").await?;
    ensure!(summary.contains("on its processor, as WebGPU has no graphics processor"), "{summary}");
    let graphics = tab.text("preflight-graphics").await?;
    ensure!(graphics.contains("more slowly") && graphics.contains("chrome://flags"), "{graphics}");
    pictures(&tab, "no-adapter").await
}

/// As behind a firewall that drops UDP: the address is listed, and nothing ever answers at it.
#[tokio::test]
async fn where_udp_is_dropped_the_visitor_reads_which_way_is_left() -> Result<()> {
    let _turn = turn().await;
    let silent = UdpSocket::bind("127.0.0.1:0")?;
    let announced = Multiaddr::empty()
        .with(Protocol::Ip4([127, 0, 0, 1].into()))
        .with(Protocol::Udp(silent.local_addr()?.port()))
        .with(Protocol::QuicV1)
        .with(Protocol::WebTransport)
        .with(Protocol::Certhash(Multihash::wrap(SHA_256, &[7; 32])?));
    let sections = format!("{QUICK}\n[network]\nannounce = [\"{announced}\"]\n");
    let mut test_run = test_run(&sections)?.with_listen(&["/ip4/127.0.0.1/tcp/0/ws"]);
    let backbone = test_run.backbone().await?;
    let tab = looked_at(&backbone, "preflight-no-udp", Graphics::NoAdapter).await?;
    let summary = tab.text("preflight-summary").await?;
    ensure!(summary.contains("WebSocket works, WebTransport does not"), "{summary}");
    let ways = tab.text("preflight-transports").await?;
    // Chromium may give up before the page does, and has words of its own for it.
    let reasons = ["nothing answered.", "Opening handshake failed."];
    let is_told = |reason| ways.contains(&format!("WebTransport does not work: {reason}"));
    ensure!(reasons.into_iter().any(is_told), "{ways}");
    ensure!(ways.contains("WebTransport needs UDP") && ways.contains("another network"), "{ways}");
    ensure!(way(&tab, "WebTransport").await? == "fails", "{ways}");
    ensure!(way(&tab, "WebSocket").await? == "works", "{ways}");
    pictures(&tab, "no-udp").await?;
    // The tab does not wait for what was seen not to work.
    tab.click("#toggle").await?;
    tab.until("element('connection').dataset.transport === 'WebSocket'", SOON).await?;
    tab.until("text('connection') === 'Connected by WebSocket.'", SOON).await?;
    drop(silent);
    Ok(())
}
