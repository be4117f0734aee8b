//! A run without a server: a tab trains rounds of it, reached by native aggregators through the backbone that it is connected to,
//! and the run goes on when it is closed. And where the others are gone, it goes on among tabs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_native::host::access::store::Store;
use barnraise_native::host::clock::system_clock;
use barnraise_protocol::sampled::{self, Aggregates, View, ViewDigest};
use barnraise_relay::{Node, NodeConfig};
use barnraise_tests::browser::{DESKTOP, Graphics, PHONE, Tab};
use barnraise_tests::process::{BackboneProcess, HANG, PeerProcess, metric};
use barnraise_tests::{sentences, tables};
use image::{Rgb, RgbImage};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use super::moved::{RELAY, is_known};
use super::support::{LONG, SOON, contributor, stop, test_run, turn};

const SAMPLED: &str = r#"
[run]
id = "sampled-tab"
title = "Garments, without a server"
purpose = "A small network that its participants train among themselves, each on a part of the pictures."

[model]
kind = { mlp = { hidden = [32] } }

[data]
shuffle_buffer_samples = 1000
"#;
/// Two of three train a round, and the models of both are averaged: no round with the tab in its sample goes on without it.
const SCHEME: &str = r#"
[scheme.sampled]
sample_size = 2
n_aggregators = 2
success_fraction = 1.0
ping_timeout = "1s"
activity_window = 6
round_estimate = "1s"
local_shards = 1
schedule = { peak = 0.05 }

[evaluation]
every_epochs = 5

[network]
operator = "127.0.0.1:0"
"#;

/// The native participants leave.
async fn leave(natives: [PeerProcess; 2]) -> Result<()> {
    for native in natives {
        native.interrupt()?;
        ensure!(native.end().await?.status.success());
    }
    Ok(())
}

/// The run goes on, and then its native participants leave.
async fn goes_on(backbone: &BackboneProcess, natives: [PeerProcess; 2]) -> Result<()> {
    let epoch = backbone.status().await?.progress.epoch;
    backbone.wait_for_epoch(epoch + 5).await?;
    leave(natives).await
}

#[tokio::test]
async fn a_tab_trains_rounds_of_a_run_without_a_server_which_goes_on_when_it_is_closed() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{SAMPLED}{SCHEME}"))?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let natives = [test_run.join(&[&page])?, test_run.join(&[&page])?];
    for native in &natives {
        native.wait_for_log("trained").await?;
    }
    let tab = contributor(&backbone, "sampled", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 2", LONG).await?;
    backbone.wait_for("three participants", |progress| progress.n_contributors == 3).await?;
    tab.until("text('activity').includes('round')", SOON).await?;
    // It is connected with both native aggregators, through the backbone.
    let circuits = async {
        while metric(&backbone.metrics().await?, "barnraise_relay_circuits")? < 2.0 {
            // One that was cut is made anew.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(SOON, circuits).await.context("it has fewer than two aggregators")??;
    for viewport in [DESKTOP, PHONE] {
        tab.resize(viewport).await?;
        tab.picture(&format!("sampled-{}", viewport.name)).await?;
    }
    tab.resize(DESKTOP).await?;

    // Stopped, it tells that it leaves; and comes back under the same name, to train on two pictures of the visitor's.
    let given = stop(&tab).await?;
    ensure!(given > 0, "what it gave stays on the page");
    backbone.wait_for("two participants", |progress| progress.n_contributors == 2).await?;
    tab.until("text('activity').length > 0 && !document.getElementById('own-files').disabled", SOON).await?;
    tab.click("#own-summary").await?;
    for (name, class) in [("a", 0), ("b", 1)] {
        let photo = test_run.folder().join(format!("{name}.png"));
        let picture = RgbImage::from_fn(60, 40, |x, _| Rgb([(x * 4) as u8, 0, 90 * class]));
        picture.save(&photo)?;
        tab.read(&format!("document.getElementById('own-class').value = '{class}'")).await?;
        tab.choose_file("#own-files", &photo).await?;
        tab.until(&format!("value('own-said') === {}", class + 1), SOON).await?;
    }
    tab.until("text('own-said').includes('2 pictures of 2 classes')", SOON).await?;
    let shown = tab.read("getComputedStyle(element('own-files')).color").await?;
    ensure!(shown == "rgba(0, 0, 0, 0)", "the field says that no file is chosen, in {shown}");
    let broken = test_run.folder().join("broken.png");
    std::fs::write(&broken, b"no picture")?;
    tab.choose_file("#own-files", &broken).await?;
    tab.until("text('own-said').includes('cannot be read')", SOON).await?;
    for viewport in [DESKTOP, PHONE] {
        tab.resize(viewport).await?;
        tab.picture(&format!("sampled-own-{}", viewport.name)).await?;
    }
    tab.resize(DESKTOP).await?;
    tab.click("#toggle").await?;
    tab.until(
        "text('own-summary').includes('2 pictures') && document.getElementById('own-files').disabled",
        SOON,
    )
    .await?;
    tab.until(&format!("value('samples') > {given}"), LONG).await?;
    backbone.wait_for("three participants", |progress| progress.n_contributors == 3).await?;

    // Closed, it says nothing; it is silent in the next sample, and the run goes on.
    tab.close().await?;
    goes_on(&backbone, natives).await
}

/// Waits until the backbone knows so many tabs that average, and that others reach through the relay at this address.
async fn are_reached_through(relay: &Multiaddr, backbone: &BackboneProcess, n_tabs: usize) -> Result<()> {
    let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await?;
    let peer = node.dial(backbone.tcp()?).await?;
    let mut stream = node.open(peer, sampled::PROTOCOL).await?;
    let relay = relay.iter().last().context("a relay has a peer id")?;
    let leads_through_it = |address: &Vec<u8>| {
        let address = Multiaddr::try_from(address.clone()).ok();
        address.is_some_and(|address| {
            address.iter().any(|part| part == relay) && address.iter().last() == Some(Protocol::P2pCircuit)
        })
    };
    let asking = async {
        loop {
            // What it told before is of no interest: a stranger is told all.
            let view = sampled::meet(&mut stream, View::default(), ViewDigest::default()).await?;
            let joined = view.memberships.iter().filter_map(|membership| membership.joined());
            let reached = joined.filter(|joined| {
                joined.roles.aggregates == Aggregates::Relayed
                    && joined.addresses.iter().any(leads_through_it)
            });
            if reached.count() >= n_tabs {
                return anyhow::Ok(());
            }
            // Nothing tells a stranger that somebody has joined.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(HANG, asking).await.context("the tabs get no place at the relay")??;
    node.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn tabs_go_on_alone_through_a_relay_and_their_backbone_follows_them_when_it_is_back() -> Result<()> {
    let _turn = turn().await;
    let mut meeting = test_run("[run]\nid = \"meeting\"\n")?;
    let relay = meeting.relay_here(RELAY).await?;
    let tcp = relay.tcp()?;
    let mut test_run = test_run(&format!("{SAMPLED}{SCHEME}dht_peers = [\"{tcp}\"]\n"))?;
    let backbone = test_run.backbone().await?;
    is_known(tcp, "sampled-tab").await?;
    let native = test_run.join(&[&backbone.page()])?;
    let tabs = [
        contributor(&backbone, "sampled-first", Graphics::NoAdapter, "device=cpu").await?,
        contributor(&backbone, "sampled-second", Graphics::NoAdapter, "device=cpu").await?,
    ];
    for tab in &tabs {
        tab.until("value('accepted') >= 2", LONG).await?;
    }
    native.wait_for_log("trained").await?;
    are_reached_through(tcp, &backbone, 2).await?;
    // In a few rounds more each of them hears of the other.
    let epoch = backbone.status().await?.progress.epoch;
    let before = backbone.wait_for_epoch(epoch + 10).await?.epoch;

    // All that can be dialled are gone, without a word. The relay knows nothing of the run.
    backbone.kill().await?;
    native.kill().await?;
    let mut given = [0.0; 2];
    for (tab, given) in tabs.iter().zip(&mut given) {
        *given = tab.number("accepted").await?;
    }
    for (tab, given) in tabs.iter().zip(given) {
        tab.until(&format!("value('accepted') >= {}", given + 5.0), LONG).await?;
    }
    tabs[0]
        .until("doing() === 'averaging' && text('activity').includes('only tabs are there')", LONG)
        .await?;
    tabs[0].picture("sampled-averaging").await?;
    tabs[0].until(&format!("value('epoch') >= {}", before + 5), SOON).await?;
    let alone = tabs[0].number("epoch").await?;

    // It comes with its last checkpoint, and gets what the tabs have learned since.
    let backbone = test_run.backbone().await?;
    let follows = backbone.wait_for_epoch(alone as u64 + 1).await?.epoch;
    ensure!(backbone.log()?.contains("averaged"), "it takes part in round {follows} and averages nothing");
    let given = tabs[1].number("accepted").await?;
    tabs[1].until(&format!("value('accepted') >= {}", given + 3.0), LONG).await?;
    backbone.wait_for_epoch(follows + 5).await?;
    Ok(())
}

#[tokio::test]
async fn a_page_that_a_participant_shows_takes_visitors_where_the_backbone_is_gone() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{SAMPLED}{SCHEME}"))?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let of_host = test_run.folder().join("host").display().to_string();
    let host = test_run.join(&[&page, "--page", "127.0.0.1:0", "--cache", &of_host])?;
    let other = test_run.join(&[&page])?;
    for native in [&host, &other] {
        native.wait_for_log("trained").await?;
    }
    host.wait_for_log("All of the run's data are kept here").await?;
    backbone.kill().await?;
    let log = host.log()?;
    let shown = log.split("The page of the run is at ").nth(1).and_then(|rest| rest.lines().next());
    let shown = shown.context("no page is shown")?.trim();
    let tab =
        Tab::open("sampled-hosted", Graphics::NoAdapter, &format!("{shown}?autostart=1&device=cpu")).await?;
    tab.until("value('accepted') >= 3", LONG).await?;
    // The page says how far the run is.
    tab.until("value('epoch') >= 3 && text('activity').includes('round')", SOON).await?;
    for viewport in [DESKTOP, PHONE] {
        tab.resize(viewport).await?;
        tab.picture(&format!("sampled-hosted-{}", viewport.name)).await?;
    }
    tab.close().await?;
    leave([host, other]).await
}

#[tokio::test]
async fn a_tab_with_an_invitation_takes_part_until_it_is_taken_back() -> Result<()> {
    let _turn = turn().await;
    let access = "\n[access]\nmode = \"invitation\"\npoll_interval = \"1s\"\n";
    let mut test_run = test_run(&format!("{SAMPLED}{SCHEME}{access}"))?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let link = test_run.command(&["invite", "--uses", "3"]).await?;
    let (_, fragment) = link.trim().split_once('#').context("a link is wanted")?;
    let (_, code) = fragment.split_once('=').context("a code is wanted")?;
    let natives =
        [test_run.join(&[&page, "--invitation", code])?, test_run.join(&[&page, "--invitation", code])?];
    for native in &natives {
        native.wait_for_log("trained").await?;
    }
    let uninvited = contributor(&backbone, "sampled-uninvited", Graphics::NoAdapter, "device=cpu").await?;
    uninvited.until("doing() === 'broken' && text('activity').includes('by invitation')", SOON).await?;
    uninvited.close().await?;
    let url = format!("{page}/?autostart=1&device=cpu#{fragment}");
    let tab = Tab::open("sampled-invited", Graphics::NoAdapter, &url).await?;
    tab.until("value('accepted') >= 2", LONG).await?;
    backbone.wait_for("three participants", |progress| progress.n_contributors == 3).await?;

    let store = Store::open(&test_run.storage()).await?;
    let issued = store.tokens(system_clock()()).await?;
    store.close().await;
    let ids = issued.iter().map(|token| PeerId::from_bytes(&token.peer.to_peer_id()));
    let ids: Vec<String> = ids.map(|id| Ok(id?.to_string())).collect::<Result<_>>()?;
    let logs = [natives[0].log()?, natives[1].log()?].concat();
    // They say which peers they are, and may speak of the tab.
    let is_native = |id: &&String| logs.contains(&format!("as peer {id}"));
    let of_tab = ids.iter().find(|id| !is_native(id)).context("the tab has a token")?;
    test_run.command(&["revoke", of_tab]).await?;
    tab.until("doing() === 'broken' && text('activity').includes('revoked')", SOON).await?;
    backbone.wait_for("two participants", |progress| progress.n_contributors == 2).await?;
    goes_on(&backbone, natives).await
}

#[tokio::test]
async fn a_tab_trains_on_a_table_of_its_visitors_that_it_has_looked_at_before() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{}{SCHEME}", tables::FLOWERS))?;
    test_run.write("flowers.csv", &tables::flowers())?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let natives = [test_run.join(&[&page])?, test_run.join(&[&page])?];
    let tab = Tab::open("sampled-table", Graphics::NoAdapter, &format!("{page}/?device=cpu")).await?;
    // How the run reads its table is known with the first model that was evaluated.
    tab.until("!element('own').hidden && !element('own-table').disabled", LONG).await?;
    ensure!(tab.read("element('own-of-class').hidden").await? == true, "pictures are no rows");
    tab.click("#own-summary").await?;
    tab.until("text('own-columns').includes('petal, sepal, colour, kind')", SOON).await?;

    let other = test_run.folder().join("other.csv");
    std::fs::write(&other, "petal;size\n1;2\n")?;
    tab.choose_file("#own-table", &other).await?;
    let refused = "text('own-said').includes('other.csv cannot be used: it has no column sepal, colour, kind') \
        && text('own-said').includes('it has petal, size')";
    tab.until(refused, LONG).await?;

    let mine = test_run.folder().join("mine.csv");
    std::fs::write(
        &mine,
        "kind,note,colour,sepal,petal\nrose,a,red,1.5,5\nrose,b,red,long,5\ndaisy,c,white,0.5,4\n",
    )?;
    let used = "value('own-said') === 2 && text('own-said').includes('mine.csv: 2 rows of 3') \
        && text('own-said').includes('line 3: column \"sepal\"')";
    tab.choose_file("#own-table", &mine).await?;
    tab.until(used, SOON).await?;
    for (viewport, wider) in tab.pictures("sampled-table").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }
    // It is taken back, and chosen once more.
    tab.click("#own-forget").await?;
    tab.until("value('own-said') === 0 && text('own-said') === ''", SOON).await?;
    tab.choose_file("#own-table", &mine).await?;
    tab.until(used, SOON).await?;

    tab.click("#toggle").await?;
    tab.until("text('own-summary').includes('2 rows') && element('own-table').disabled", SOON).await?;
    tab.until("value('accepted') >= 2", LONG).await?;
    tab.close().await?;
    leave(natives).await
}

#[tokio::test]
async fn a_tab_trains_on_ratings_of_its_visitors() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{}{SCHEME}", tables::FILMS))?;
    test_run.write("films.csv", &tables::films())?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let natives = [test_run.join(&[&page])?, test_run.join(&[&page])?];
    let tab = Tab::open("sampled-ratings", Graphics::NoAdapter, &format!("{page}/?device=cpu")).await?;
    tab.until("!element('own').hidden && !element('own-table').disabled", LONG).await?;
    tab.until("text('own-summary') === 'Train on ratings of your own'", SOON).await?;
    tab.click("#own-summary").await?;
    tab.until("text('own-columns').includes('item, rating. From what is sent')", SOON).await?;

    let mine = test_run.folder().join("mine.csv");
    std::fs::write(&mine, "item;rating\nfilm 1;90\n")?;
    tab.choose_file("#own-table", &mine).await?;
    tab.until("text('own-said').includes('those of the run are 1.5 to 4.5')", LONG).await?;
    std::fs::write(&mine, format!("{}4;no film\n", tables::own_films(true)))?;
    tab.choose_file("#own-table", &mine).await?;
    let used = "value('own-said') === 26 && text('own-said').includes('mine.csv: 26 ratings of 27. Left out: 1 rating') \
        && text('own-said').includes('the run does not know \"no film\"')";
    tab.until(used, SOON).await?;
    for (viewport, wider) in tab.pictures("sampled-ratings").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }
    tab.click("#toggle").await?;
    tab.until("value('accepted') >= 2", LONG).await?;
    tab.close().await?;
    leave(natives).await
}

#[tokio::test]
async fn a_tab_trains_on_texts_of_its_visitors() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("[run]\nid = \"rhymes\"\n{}{SCHEME}", sentences::RUN))?;
    test_run.write("house.txt", &sentences::text())?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let natives = [test_run.join(&[&page])?, test_run.join(&[&page])?];
    let tab = Tab::open("sampled-texts", Graphics::NoAdapter, &format!("{page}/?device=cpu")).await?;
    tab.until("!element('own').hidden && !element('own-texts').disabled", LONG).await?;
    ensure!(tab.read("element('own-of-table').hidden").await? == true, "a text is no table");
    tab.click("#own-summary").await?;

    let notes = test_run.folder().join("notes.txt");
    std::fs::write(&notes, [0xff, 0xfe, 0xfd])?;
    tab.choose_file("#own-texts", &notes).await?;
    let refused = "text('own-said') === 'notes.txt cannot be used: not all of it is text in UTF-8.'";
    tab.until(refused, LONG).await?;
    std::fs::write(&notes, "the cat")?;
    tab.choose_file("#own-texts", &notes).await?;
    tab.until("text('own-said').includes('and 32 at least are needed')", SOON).await?;

    std::fs::write(&notes, sentences::of(sentences::OTHER_SENTENCES, 200, 1))?;
    tab.choose_file("#own-texts", &notes).await?;
    let used = "value('own-said') >= 10 && /^notes.txt: [0-9]+ passages[.]$/.test(text('own-said'))";
    tab.until(used, SOON).await?;
    for (viewport, wider) in tab.pictures("sampled-texts").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }
    // Gone with the page, unless it is to be kept.
    tab.reload().await?;
    tab.until("!element('own').hidden && !element('own-texts').disabled", SOON).await?;
    ensure!(tab.read("element('own-keep').checked || value('own-said') > 0").await? == false);
    tab.click("#own-summary").await?;
    tab.choose_file("#own-texts", &notes).await?;
    tab.until(used, LONG).await?;
    tab.click("#own-keep").await?;
    tab.until("element('own-keep').checked && text('own-keep-note').startsWith('It is kept.')", SOON).await?;
    tab.reload().await?;
    let found = "text('own-summary') === 'Trains on notes.txt, which is yours' \
        && element('own-keep').checked && value('accepted') === 0";
    tab.until(found, SOON).await?;
    tab.click("#toggle").await?;
    tab.until("/^Trains on [0-9]+ passages of your own$/.test(text('own-summary'))", SOON).await?;
    tab.until("value('accepted') >= 10", LONG).await?;
    tab.close().await?;
    leave(natives).await
}
