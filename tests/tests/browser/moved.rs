//! A backbone that moves while tabs are at work: nobody tells them, and its web server is gone.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use barnraise_protocol::dht::backbone::{self, BackboneAnnouncement};
use barnraise_protocol::dht::{self, Freshness, UnixMillis};
use barnraise_relay::{Node, NodeConfig};
use barnraise_tests::browser::Graphics;
use barnraise_tests::process::HANG;
use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use super::support::{QUICK, SOON, contributor, ensure_counted, samples, test_run, turn};

pub(super) const RELAY: &str = r#"
    [network]
    http = "127.0.0.1:0"
    listen = ["/ip4/127.0.0.1/udp/0/quic-v1/webtransport", "/ip4/127.0.0.1/tcp/0/ws", "/ip4/127.0.0.1/tcp/0"]
    upnp = false
"#;
/// How far in the future a record may expire, with what clocks may differ.
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600 + 60);

/// Waits until the peer at `address` knows where the run's backbone is.
pub(super) async fn is_known(address: &Multiaddr, run_id: &str) -> Result<()> {
    let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await?;
    let peer = node.dial(address.clone()).await?;
    let mut stream = node.open(peer, dht::PROTOCOL).await?;
    let asking = async {
        loop {
            let now = UnixMillis(0).after(UNIX_EPOCH.elapsed()?);
            let keys = vec![backbone::key(run_id)];
            let records = dht::get(&mut stream, keys, Freshness::Newest, now, LIFETIME_MAX).await?;
            if records.iter().flatten().any(|record| BackboneAnnouncement::read(record).is_some()) {
                return anyhow::Ok(());
            }
            // Nothing tells who asks that a record came.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, asking).await.context("the relay never hears of the backbone")??;
    node.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn a_tab_finds_its_backbone_again_through_the_dht() -> Result<()> {
    let _turn = turn().await;
    let mut meeting = test_run(QUICK)?;
    let relay = meeting.relay_here(RELAY).await?;
    let tcp = relay.tcp()?;
    let mut test_run = test_run(&format!("{QUICK}\n[network]\ndht_peers = [\"{tcp}\"]\n"))?;
    let backbone = test_run.backbone().await?;
    is_known(tcp, "quick").await?;
    let tab = contributor(&backbone, "moved", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let before = backbone.page();
    backbone.kill().await?;
    tab.until("doing() === 'reconnecting'", SOON).await?;
    let accepted = tab.number("accepted").await?;

    test_run.on_other_ports()?;
    let backbone = test_run.backbone().await?;
    ensure!(backbone.page() != before, "it is where it was: {before}");
    tab.until(&format!("value('accepted') > {accepted}"), SOON).await?;
    // Its page is still that of the old address, and says so once it rests.
    tab.click("#toggle").await?;
    tab.until("doing() === 'unreachable'", SOON).await?;
    ensure_counted(&backbone, samples(&tab).await?).await
}
