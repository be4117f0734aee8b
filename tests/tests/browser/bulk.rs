//! Large models on each transport of a tab: 64 MiB down and 64 MiB up arrive whole, though the reader
//! stands still for seconds in between.
//!
//! The model is so large that its parameters are 64 MiB on the wire, and so is a contribution.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::pause::{Paused, descendants};
use barnraise_tests::process::BackboneProcess;

use super::support::{LONG, SOON, contributor, test_run, turn};

/// 16.8 million parameters of four bytes; one contribution is one step, and is waited for.
const LARGE: &str = r#"
    [run]
    id = "large"
    [model]
    kind = { mlp = { hidden = [3000, 4800] } }
    [data]
    shuffle_buffer_samples = 500
    [scheme.synchronous]
    target_batch_size = 16
    micro_batch_size = 16
    state_codec = "f32"
    gradient_codec = "f32"
    optimizer = { kind = "sgd-momentum", momentum = 0.9 }
    contribution_samples_max = 16
    collect_timeout = "5m"
    [storage]
    checkpoint_every_epochs = 1000
    [evaluation]
    every_epochs = 1000
    [network]
    operator = "127.0.0.1:0"
"#;
const TRANSFER_BYTES: f64 = 64.0 * 1024.0 * 1024.0;
/// The pause comes when so much is through.
const PAUSE_AFTER_BYTES: f64 = 4.0 * 1024.0 * 1024.0;
/// Seconds: longer than any buffer on the way lasts, shorter than what counts as gone.
const PAUSE: Duration = Duration::from_secs(3);
/// How often the counters are read.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[tokio::test]
async fn by_webtransport_64_mib_arrive_both_ways() -> Result<()> {
    arrive_both_ways("WebTransport", "/ip4/127.0.0.1/udp/0/quic-v1/webtransport").await
}

#[tokio::test]
async fn by_webrtc_64_mib_arrive_both_ways() -> Result<()> {
    arrive_both_ways("WebRTC", "/ip4/127.0.0.1/udp/0/webrtc-direct").await
}

#[tokio::test]
async fn by_websocket_64_mib_arrive_both_ways() -> Result<()> {
    arrive_both_ways("WebSocket", "/ip4/127.0.0.1/tcp/0/ws").await
}

async fn arrive_both_ways(way: &str, listen: &str) -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(LARGE)?.with_listen(&[listen]);
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, &format!("bulk-{way}"), Graphics::NoAdapter, "device=cpu").await?;
    pause_the_tab(&tab, &backbone).await?;
    pause_the_backbone(&backbone).await?;
    // Every byte of both transfers went into a hash that was compared.
    tab.until("value('accepted') >= 1", LONG).await?;
    // It says nothing while a busy backbone is silent for so long that the tab connects anew.
    tab.until(&format!("text('connection') === 'Connected by {way}.'"), SOON).await?;
    ensure!(tab.number("refused").await? == 0.0, "refused: {}", tab.text("refusal").await?);
    Ok(())
}

/// Stops the tab's own processes, and with them its worker, in the middle of the download.
async fn pause_the_tab(tab: &Tab, backbone: &BackboneProcess) -> Result<()> {
    until_moved(backbone, "Outbound").await?;
    let paused = Paused::new(descendants(u32::try_from(tab.process_id()?)?, "--type=renderer")?)?;
    let n_sent = moved(backbone, "Outbound").await?;
    ensure!(n_sent < TRANSFER_BYTES, "{n_sent} bytes were sent before the tab could be stopped");
    tokio::time::sleep(PAUSE).await;
    let n_sent = moved(backbone, "Outbound").await?;
    ensure!(n_sent < TRANSFER_BYTES, "{n_sent} bytes were sent to a tab that stands still");
    drop(paused);
    Ok(())
}

/// Stops the backbone in the middle of the upload.
async fn pause_the_backbone(backbone: &BackboneProcess) -> Result<()> {
    let n_received = until_moved(backbone, "Inbound").await?;
    let paused = Paused::new(vec![backbone.pid()?])?;
    ensure!(n_received < TRANSFER_BYTES, "{n_received} bytes came before the backbone could be stopped");
    tokio::time::sleep(PAUSE).await;
    drop(paused);
    Ok(())
}

/// Waits until the transfer is well under way. Nothing tells of its bytes but the counters.
async fn until_moved(backbone: &BackboneProcess, direction: &str) -> Result<f64> {
    let moving = async {
        loop {
            match moved(backbone, direction).await {
                Ok(n_bytes) if n_bytes < PAUSE_AFTER_BYTES => tokio::time::sleep(LOOK_EVERY).await,
                looked => return looked,
            }
        }
    };
    tokio::time::timeout(LONG, moving).await.with_context(|| format!("nothing moves {direction}"))?
}

/// Bytes on all connections of the backbone.
async fn moved(backbone: &BackboneProcess, direction: &str) -> Result<f64> {
    let metrics = backbone.metrics().await?;
    let label = format!("direction=\"{direction}\"");
    let lines = metrics.lines().filter(|line| line.starts_with("libp2p_bandwidth_bytes_total{"));
    let values = lines.filter(|line| line.contains(&label)).filter_map(|line| line.rsplit(' ').next());
    Ok(values.map(str::parse::<f64>).sum::<Result<f64, _>>()?)
}
