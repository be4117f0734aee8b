//! A tab of the build before this one, while its run is upgraded.
//!
//! There is one build here. The backbone of the next one is a node with the key, the address and the certificates of the
//! tab's backbone, which says of itself that it is newer, and a page of another build. What the next page dials is this
//! build again.

use anyhow::{Context, Result, ensure};
use barnraise_native::host::http::HttpState;
use barnraise_native::host::page::PageSource;
use barnraise_native::host::site::{Site, SiteRun};
use barnraise_protocol::run;
use barnraise_relay::{Node, NodeConfig, load_or_create_keypair};
use barnraise_tests::artifacts;
use barnraise_tests::browser::Graphics;
use barnraise_tests::process::TestRun;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};

use super::offline::{copy, publish};
use super::support::{QUICK, SOON, contributor, ensure_counted, stop, turn};

#[tokio::test]
async fn a_tab_of_the_build_before_is_up_to_date_after_one_reload_and_loses_nothing() -> Result<()> {
    let _turn = turn().await;
    let folder = tempfile::tempdir()?;
    copy(&artifacts::web_root()?, folder.path())?;
    let mut test_run = TestRun::new(QUICK)?.with_page(folder.path().to_owned());
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "upgraded", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1 && !!navigator.serviceWorker.controller", SOON).await?;
    let build = tab.read("document.body.dataset.build").await?;
    let build = build.as_str().context("the page names no build")?.to_owned();
    let (status, page) = (backbone.status().await?, backbone.page());
    let addresses: Vec<Multiaddr> =
        status.addresses.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
    let given = tab.number("samples").await?;
    ensure!(backbone.terminate().await?.success());

    // Another page, and a node that is newer than the tab.
    let next = "fedcba9876543210".repeat(4);
    publish(folder.path(), &build, &next)?;
    let (_status, shown) = watch::channel(status);
    let (_events, heard) = broadcast::channel(1);
    let http = HttpState::new(PageSource::Folder(folder.path().to_owned()), shown, heard);
    let run = SiteRun { http, is_listed: true, rooms: None, invitations: None };
    let site = Site::new(&PageSource::Folder(folder.path().to_owned()), vec![run]).routes();
    let listener = TcpListener::bind(page.trim_start_matches("http://")).await?;
    let serving = tokio::spawn(axum::serve(listener, site).into_future());
    let keypair = load_or_create_keypair(&test_run.storage().join("identity.key"))?;
    let certificates_dir = Some(test_run.storage().join("certificates"));
    let listen = addresses.iter().map(listened).collect();
    let newer =
        Node::start(keypair, NodeConfig { listen, certificates_dir, ..NodeConfig::default() }).await?;
    let mut asking = newer.accept(run::PROTOCOL)?;
    let asked = tokio::time::timeout(SOON, asking.recv()).await?;
    let (_, mut stream) = asked.context("nobody asks")?;
    run::answer_older_version(&mut stream).await?;
    drop((stream, asking));
    let is_next = format!("document.body.dataset.build === '{next}'");
    // Offered, or taken by itself where no other backbone is tried first.
    tab.until(&format!("!element('renewal').hidden || {is_next}"), SOON).await?;
    newer.shutdown().await;

    // What the next page dials. It goes on by itself.
    let mut test_run = test_run.at("127.0.0.1:0");
    let backbone = test_run.backbone().await?;
    if tab.read(&is_next).await? == false {
        // Without another backbone the tab may load the next page by itself in this moment: then there is nothing to click.
        let _ = tab.click("#reload").await;
    }
    tab.until(&format!("{is_next} && document.documentElement.dataset.program === 'next'"), SOON).await?;
    tab.until(&format!("value('samples') > {given} && value('accepted') >= 1"), SOON).await?;
    ensure!(tab.read(&is_next).await? == true, "one reload");
    let told = stop(&tab).await?;
    ensure!(told as f64 > given, "{told} samples in all, {given} of them before");
    ensure_counted(&backbone, told).await?;
    serving.abort();
    Ok(())
}

/// As it was given to `--listen`.
fn listened(address: &Multiaddr) -> Multiaddr {
    let added = |part: &Protocol<'_>| matches!(part, Protocol::P2p(_) | Protocol::Certhash(_));
    address.iter().filter(|part| !added(part)).collect()
}
