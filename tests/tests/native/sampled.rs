//! A run without a server: real processes train it, some are killed, the one with the page too, and it goes on.

use std::collections::BTreeSet;

use barnraise_learning::ParameterLayout;
use barnraise_protocol::access::{ContributorToBackbone as Up, PublicKey};
use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::sampled::{self, View, ViewDigest};
use barnraise_protocol::shard::ShardId;
use barnraise_tests::client::{TestClient, within};
use barnraise_tests::process::{BackboneProcess, HANG, PeerProcess, TestRun, metric, status_at};
use barnraise_tests::{sentences, tables};

use super::model_file::download;

const SAMPLED: &str = r#"
[run]
id = "sampled-run"

[model]
kind = { mlp = { hidden = [32] } }

[data]
shuffle_buffer_samples = 1000

[scheme.sampled]
sample_size = 3
n_aggregators = 2
success_fraction = 0.6
ping_timeout = "500ms"
activity_window = 12
round_estimate = "1s"
local_shards = 1
schedule = { peak = 0.05 }

[storage]
checkpoint_every_epochs = 3

[evaluation]
every_epochs = 5
"#;

/// The rounds that a participant has trained, in order, as it logged.
fn logged(peer: &PeerProcess) -> Vec<u64> {
    let log = peer.log().unwrap();
    let rounds = log.lines().filter(|line| line.contains("trained"));
    let round = |line: &str| line.split("round=").nth(1)?.split(' ').next()?.parse().ok();
    rounds.filter_map(round).collect()
}

fn trained(peer: &PeerProcess) -> BTreeSet<u64> {
    logged(peer).into_iter().collect()
}

/// Waits until one of them has trained a round after `round`.
async fn wait_for_round(peers: &[PeerProcess], round: u64) -> u64 {
    let began = std::time::Instant::now();
    loop {
        let latest = peers.iter().filter_map(|peer| trained(peer).last().copied()).max().unwrap_or_default();
        if latest > round {
            return latest;
        }
        let logs = || peers.iter().map(|peer| peer.log().unwrap()).collect::<Vec<_>>().join("\n---\n");
        assert!(began.elapsed() < HANG, "round {latest}, {round} wanted:\n{}", logs());
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn leave(peers: Vec<PeerProcess>) {
    for peer in peers {
        peer.interrupt().unwrap();
        assert!(peer.end().await.unwrap().status.success());
    }
}

#[tokio::test]
async fn a_run_without_a_server_learns_and_goes_on_when_processes_are_killed() {
    // Trainers compare averages before they take one.
    let robust = SAMPLED.replace("n_aggregators = 2", "n_aggregators = 3\naverage = \"centered-clip\"");
    let mut test_run = TestRun::new(&robust).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let mut peers: Vec<PeerProcess> = (0..7).map(|_| test_run.join(&[&page]).unwrap()).collect();
    // Three are enough for rounds: on a busy machine, many are over before the others have joined.
    let is_met = |shown: &RunProgress| shown.epoch >= 12 && shown.n_contributors >= 5;
    let shown = backbone.wait_for("round 12, and most of the participants", is_met).await.unwrap();

    // Three of seven are gone without a word.
    for peer in peers.drain(..3) {
        peer.kill().await.unwrap();
    }
    backbone.wait_for_epoch(shown.epoch + 15).await.unwrap();
    let accuracy =
        backbone.wait_for("an accuracy", |progress| progress.test_accuracy.is_some_and(|got| got > 0.5));
    let accuracy = accuracy.await.unwrap().test_accuracy.unwrap();
    // The commonest class is a tenth of the test set.
    let status = backbone.status().await.unwrap();
    let majority = status.majority_accuracy.unwrap();
    println!("accuracy {accuracy} in round {}, the commonest class alone {majority}", status.progress.epoch);
    assert!(accuracy > 3.0 * majority);

    // The backbone too, and the others go on.
    backbone.kill().await.unwrap();
    let latest = peers.iter().filter_map(|peer| trained(peer).last().copied()).max().unwrap();
    let later = wait_for_round(&peers, latest + 10).await;

    // It comes back, finds the others again, and follows them.
    let backbone = test_run.backbone().await.unwrap();
    peers.push(test_run.join(&[&backbone.page()]).unwrap());
    backbone.wait_for_epoch(later + 5).await.unwrap();
    // The others may be further than that long before the newcomer has started, which a signal would just end.
    peers.last().unwrap().wait_for_log("trained").await.unwrap();

    // Nobody has trained a round twice.
    for peer in &peers {
        // One look: it goes on meanwhile.
        let logged = logged(peer);
        assert_eq!(logged.len(), logged.iter().collect::<BTreeSet<_>>().len(), "{logged:?}");
    }
    leave(peers).await;
}

/// A folder with pictures of two of the run's classes.
fn pictures(test_run: &TestRun, name: &str, brightness: u8) -> String {
    let folder = test_run.folder().join(name);
    for (class, offset) in [("Trouser", 0u8), ("Sandal", 90)] {
        let of_class = folder.join(class);
        std::fs::create_dir_all(&of_class).unwrap();
        for number in 0..25u8 {
            let luma = image::Luma([brightness.wrapping_add(offset).wrapping_add(number)]);
            image::GrayImage::from_pixel(28, 28, luma).save(of_class.join(format!("{number}.png"))).unwrap();
        }
    }
    folder.display().to_string()
}

/// A folder for shards that no other process has.
fn cache(test_run: &TestRun, name: &str) -> String {
    test_run.folder().join(format!("cache-{name}")).display().to_string()
}

/// A key that lasts longer than a process.
fn identity(test_run: &TestRun, name: &str) -> String {
    test_run.folder().join(format!("{name}.key")).display().to_string()
}

#[tokio::test]
async fn own_pictures_stay_and_a_participant_is_enough_to_join_through() {
    let sections = SAMPLED.replace("sample_size = 3", "sample_size = 2\naverage = \"centered-clip\"")
        + "\n[network]\noperator = \"127.0.0.1:0\"\n";
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let mut peers = Vec::new();
    for (name, brightness) in [("anna", 10), ("ben", 60), ("carla", 120)] {
        let folder = pictures(&test_run, name, brightness);
        peers.push(test_run.join(&[&page, "--data", &folder, "--cache", &cache(&test_run, name)]).unwrap());
    }
    backbone.wait_for_epoch(6).await.unwrap();
    for peer in &peers {
        peer.wait_for_log("trained").await.unwrap();
        // 25 pictures of each of two classes.
        assert!(peer.log().unwrap().contains("n_samples=50"), "{}", peer.log().unwrap());
    }
    let sent = metric(&backbone.metrics().await.unwrap(), "barnraise_shards_sent_total");
    assert_eq!(sent.unwrap(), 0.0, "nobody fetched the data of the run");

    // Nothing is left but the participants.
    backbone.kill().await.unwrap();
    let log = peers[0].log().unwrap();
    let address =
        log.lines().find_map(|line| line.split("Others can join through this machine: ").nth(1)).unwrap();
    let folder = pictures(&test_run, "dora", 180);
    let kept = cache(&test_run, "dora");
    let dora = test_run.join(&[address.trim(), "--data", &folder, "--cache", &kept]).unwrap();
    dora.wait_for_log("trained").await.unwrap();
    // Data of one's own is no shard that others could fetch: a newcomer without any finds none there.
    let without = test_run.join(&[address.trim(), "--cache", &cache(&test_run, "without")]).unwrap();
    without.wait_for_log("no shard of the run's data").await.unwrap();

    peers.push(dora);
    leave(peers).await;
}

/// How a run with this model and data is trained, by two of a sample.
fn of_two(model_and_data: &str) -> String {
    let (_, scheme) = SAMPLED.split_once("[scheme.sampled]").unwrap();
    let scheme = scheme.replace("sample_size = 3", "sample_size = 2");
    format!("{model_and_data}\n[scheme.sampled]{scheme}\n[network]\noperator = \"127.0.0.1:0\"\n")
}

#[tokio::test]
async fn own_tables_are_read_as_that_of_the_run_also_where_a_participant_tells_how() {
    let mut test_run = TestRun::new(&of_two(tables::FLOWERS)).unwrap();
    test_run.write("flowers.csv", &tables::flowers()).unwrap();
    // Columns in another order, beside one that the run does not have.
    let mine = |name: &str, n: usize| {
        let row = |row: usize| {
            let (petal, kind) = [(5, "rose"), (1, "daisy")][row % 2];
            format!("{kind},{name},red,{row},{petal}\n")
        };
        let rows: String = (0..n).map(row).collect();
        test_run.write(&format!("{name}.csv"), &format!("kind,of,colour,sepal,petal\n{rows}")).unwrap();
        test_run.folder().join(format!("{name}.csv")).display().to_string()
    };
    let files = [("anna", 40), ("ben", 50), ("carla", 60)].map(|(name, n)| (name, mine(name, n)));
    let held_out = mine("held-out", 30);
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let join = |test_run: &mut TestRun, at: &str, (name, file): &(&str, String)| {
        test_run.join(&[at, "--data", file, "--cache", &cache(test_run, name)]).unwrap()
    };
    let judge = [&page, "--data", &files[1].1, "--test", &held_out, "--cache", &cache(&test_run, "ben")];
    let mut peers = vec![join(&mut test_run, &page, &files[0]), test_run.join(&judge).unwrap()];
    let has_learned = |log: &str| {
        let mut found = log.split(" on the samples of --test: accuracy ").skip(1);
        found.any(|rest| rest.get(..5).is_some_and(|accuracy| accuracy.parse::<f32>().unwrap() > 0.9))
    };
    peers[1].wait_for_log_where("a model that knows the flowers of --test", has_learned).await.unwrap();
    backbone.wait_for_epoch(6).await.unwrap();
    for (peer, n_samples) in peers.iter().zip(["n_samples=40", "n_samples=50"]) {
        peer.wait_for_log("trained").await.unwrap();
        assert!(peer.log().unwrap().contains(n_samples), "{}", peer.log().unwrap());
    }
    // A file without what is to be told is refused before anything is trained on.
    std::fs::write(test_run.folder().join("other.csv"), "petal,size\n1,2\n").unwrap();
    let other = test_run.folder().join("other.csv").display().to_string();
    for option in ["--data", "--test"] {
        let refused = test_run.join(&[&page, option, &other]).unwrap();
        refused.wait_for_log(&format!("{option} does not fit the run")).await.unwrap();
        refused.wait_for_log("has no column").await.unwrap();
        assert!(!refused.end().await.unwrap().status.success());
    }

    backbone.kill().await.unwrap();
    let log = peers[0].log().unwrap();
    let address =
        log.lines().find_map(|line| line.split("Others can join through this machine: ").nth(1)).unwrap();
    let carla = join(&mut test_run, address.trim(), &files[2]);
    carla.wait_for_log("trains on 60 samples").await.unwrap();
    carla.wait_for_log("trained").await.unwrap();
    peers.push(carla);
    leave(peers).await;
}

/// The newest model: what it has of users, and all else.
async fn users_and_items(backbone: &BackboneProcess, run: &RunDescription) -> (Vec<f32>, Vec<f32>) {
    let layout = ParameterLayout::of_run(run).unwrap();
    let parameters = download(backbone, "/api/model.safetensors", run).await.parameters;
    let of = |is_user: bool| {
        let segments =
            layout.segments().iter().filter(|segment| segment.name.starts_with("user_") == is_user);
        segments.flat_map(|segment| parameters[segment.range()].iter().copied()).collect()
    };
    (of(true), of(false))
}

#[tokio::test]
async fn own_ratings_teach_what_there_is_of_items_and_whose_they_are_stays() {
    let mut test_run = TestRun::new(&of_two(tables::FILMS)).unwrap();
    test_run.write("films.csv", &tables::films()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let mut peers = Vec::new();
    for (name, likes_even) in [("anna", true), ("ben", false)] {
        let file = test_run.folder().join(format!("{name}.csv"));
        std::fs::write(&file, tables::own_films(likes_even)).unwrap();
        let (file, kept) = (file.display().to_string(), cache(&test_run, name));
        peers.push(test_run.join(&[&page, "--data", &file, "--cache", &kept]).unwrap());
    }
    let run = backbone.status().await.unwrap().run;
    backbone.wait_for("a model", |progress| progress.test_accuracy.is_some()).await.unwrap();
    let (users, items) = users_and_items(&backbone, &run).await;
    let round = backbone.status().await.unwrap().progress.epoch;
    backbone.wait_for_epoch(round + 12).await.unwrap();
    // 26 films of each.
    peers.iter().for_each(|peer| assert!(peer.log().unwrap().contains("n_samples=26")));
    let later = users_and_items(&backbone, &run).await;
    assert_eq!(users, later.0, "what there is of the run's users is as it was");
    assert_ne!(items, later.1);
    let sent = metric(&backbone.metrics().await.unwrap(), "barnraise_shards_sent_total");
    assert_eq!(sent.unwrap(), 2.0, "how ratings are read for each, and none of its data");
    // What they learned from their own: the error in the first round and in the last.
    for peer in &peers {
        let log = peer.log().unwrap();
        let losses: Vec<f32> =
            log.split(" loss=").skip(1).filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect();
        assert!(losses.last() < losses.first(), "{losses:?}");
    }
    let other = test_run.folder().join("other.csv");
    std::fs::write(&other, "item,rating\nfilm 3,80\n").unwrap();
    let refused = test_run.join(&[&page, "--data", &other.display().to_string()]).unwrap();
    refused.wait_for_log("those of the run are 1.5 to 4.5").await.unwrap();
    assert!(!refused.end().await.unwrap().status.success());
    let ratings = test_run.folder().join("anna.csv").display().to_string();
    let refused = test_run.join(&[&page, "--test", &ratings]).unwrap();
    refused.wait_for_log("what this one is worth is not seen on other samples").await.unwrap();
    assert!(!refused.end().await.unwrap().status.success());
    leave(peers).await;
}

#[tokio::test]
async fn own_texts_are_trained_on_as_the_runs_tokens() {
    let sections = format!("[run]\nid = \"rhymes\"\n{}", sentences::RUN);
    let mut test_run = TestRun::new(&of_two(&sections)).unwrap();
    test_run.write("house.txt", &sentences::text()).unwrap();
    let notes = test_run.folder().join("notes");
    std::fs::create_dir(&notes).unwrap();
    for (name, seed) in [("monday.txt", 1), ("tuesday.md", 2)] {
        std::fs::write(notes.join(name), sentences::of(sentences::OTHER_SENTENCES, 200, seed)).unwrap();
    }
    let backbone = test_run.backbone().await.unwrap();
    let (page, notes) = (backbone.page(), notes.display().to_string());
    let peers = ["anna", "ben"]
        .map(|name| test_run.join(&[&page, "--data", &notes, "--cache", &cache(&test_run, name)]).unwrap());
    for peer in &peers {
        peer.wait_for_log("samples that are its own").await.unwrap();
        peer.wait_for_log("trained").await.unwrap();
    }
    backbone.wait_for_epoch(3).await.unwrap();
    let sent = metric(&backbone.metrics().await.unwrap(), "barnraise_shards_sent_total");
    assert_eq!(sent.unwrap(), 2.0, "its tokenizer for each, and none of its data");
    leave(peers.into()).await;
}

#[tokio::test]
async fn participants_that_nobody_can_dial_have_the_backbone_as_their_only_aggregator() {
    let sections = SAMPLED.replace("n_aggregators = 2", "n_aggregators = 1");
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let peers: Vec<PeerProcess> = (0..4).map(|_| test_run.join(&[&page, "--share", "0"]).unwrap()).collect();
    backbone.wait_for_epoch(10).await.unwrap();
    for peer in &peers {
        peer.wait_for_log("trained").await.unwrap();
        let log = peer.log().unwrap();
        assert!(log.contains("it trains, and does not aggregate") && !log.contains("averaged"), "{log}");
    }
    assert!(backbone.log().unwrap().contains("averaged"));
    leave(peers).await;
}

#[tokio::test]
async fn among_neighbors_all_train_each_round_also_those_that_a_relay_leads_to() {
    let sections = SAMPLED.replace("n_aggregators = 2", "exchange = \"exponential\"");
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let mut peers: Vec<PeerProcess> = (0..3).map(|_| test_run.join(&[&page]).unwrap()).collect();
    // Nobody dials it.
    peers.push(test_run.join(&[&page, "--share", "0"]).unwrap());
    let learns = |shown: &RunProgress| shown.epoch >= 12 && shown.test_accuracy.is_some_and(|got| got > 0.5);
    let shown = backbone.wait_for("round 12, and an accuracy", learns).await.unwrap();
    for peer in &peers {
        peer.wait_for_log("trained").await.unwrap();
    }
    peers.swap_remove(0).kill().await.unwrap();
    let mut latest = backbone.wait_for_epoch(shown.epoch + 10).await.unwrap().epoch;
    backbone.kill().await.unwrap();
    for peer in &peers[..2] {
        latest = latest.max(wait_for_round(std::slice::from_ref(peer), latest + 5).await);
    }
    // It has the model of a round that is over, and gets that of a neighbour.
    let backbone = test_run.backbone().await.unwrap();
    backbone.wait_for_epoch(latest + 5).await.unwrap();
    leave(peers).await;
}

/// Whether a client is told who takes part that only knows how to ask.
async fn is_told(client: &TestClient) -> bool {
    let mut stream = client.open(sampled::PROTOCOL).await.unwrap();
    let asked = sampled::meet(&mut stream, View::default(), ViewDigest::default());
    within("a view", asked).await.unwrap().is_ok()
}

fn after<'l>(log: &'l str, words: &str) -> &'l str {
    let after = log.split(words).nth(1).unwrap_or_else(|| panic!("`{words}` is wanted in: {log}"));
    after.split([' ', '.', '\n']).next().unwrap_or_default()
}

#[tokio::test]
async fn a_run_by_invitation_samples_those_alone_who_have_access() {
    let sections = SAMPLED.replace("sample_size = 3", "sample_size = 2")
        + "\n[access]\nmode = \"invitation\"\npoll_interval = \"1s\"\n";
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let uninvited = test_run.join(&[&page]).unwrap().end().await.unwrap();
    assert_eq!(uninvited.status.code(), Some(1), "{uninvited:?}");
    assert!(uninvited.log.contains("this run is by invitation"), "{uninvited:?}");
    let link = test_run.command(&["invite", "--uses", "4"]).await.unwrap();
    let code = link.trim().split_once("/#invitation=").expect("a link").1.to_owned();
    let invited = |test_run: &mut TestRun, name: &str| {
        let (key, kept) = (identity(test_run, name), cache(test_run, name));
        test_run.join(&[&page, "--invitation", &code, "--identity", &key, "--cache", &kept]).unwrap()
    };
    let mut peers: Vec<PeerProcess> =
        ["anna", "ben", "carla"].iter().map(|name| invited(&mut test_run, name)).collect();
    for peer in &peers {
        peer.wait_for_log("trained").await.unwrap();
    }
    let is_met = |shown: &RunProgress| shown.epoch >= 6 && shown.n_contributors == 3;
    backbone.wait_for("round 6, and three participants", is_met).await.unwrap();

    // A stranger is told of nobody and gets no data: at the backbone, and at a participant.
    let log = peers[0].log().unwrap();
    let of_anna = log.lines().find_map(|line| line.split("Others can join through this machine: ").nth(1));
    let of_anna: libp2p::Multiaddr = of_anna.unwrap().trim().parse().unwrap();
    for address in [backbone.tcp().unwrap(), of_anna.clone()] {
        let stranger = TestClient::connect(address).await.unwrap();
        assert!(!is_told(&stranger).await);
        let run = stranger.describe().await.unwrap();
        let refused = stranger.shard(&run, ShardId::Numbered(0)).await.unwrap_err().to_string();
        assert!(refused.contains("by invitation"), "{refused}");
    }

    // Who comes back through a participant has no other backbone than before.
    let carla = peers.pop().unwrap();
    carla.interrupt().unwrap();
    assert!(carla.end().await.unwrap().status.success());
    let (key, kept) = (identity(&test_run, "carla"), cache(&test_run, "carla"));
    let through = of_anna.to_string();
    let carla = test_run.join(&[&through, "--identity", &key, "--cache", &kept]).unwrap();
    carla.wait_for_log("trained").await.unwrap();

    // Whose access is taken back is in no sample any longer, and the others go on.
    let peer_id = after(&carla.log().unwrap(), "as peer ").to_owned();
    test_run.command(&["revoke", &peer_id]).await.unwrap();
    let revoked = carla.end().await.unwrap();
    assert_eq!(revoked.status.code(), Some(1), "{revoked:?}");
    assert!(revoked.log.contains("may not take part any longer"), "{revoked:?}");
    backbone.wait_for("two participants", |shown| shown.n_contributors == 2).await.unwrap();
    let round = backbone.status().await.unwrap().progress.epoch;
    backbone.wait_for_epoch(round + 5).await.unwrap();

    // Without the backbone too. Nobody new is let in, and a participant lets in nobody itself.
    backbone.kill().await.unwrap();
    let latest = peers.iter().filter_map(|peer| trained(peer).last().copied()).max().unwrap();
    wait_for_round(&peers, latest + 5).await;
    let stranger = TestClient::connect(of_anna).await.unwrap();
    let refused = stranger.ask(&Up::Redeem { code: code.clone() }).await.unwrap_err().to_string();
    assert!(refused.contains("grants none"), "{refused}");
    assert!(!is_told(&stranger).await);
    leave(peers).await;
}

/// Where a participant says that the page of the run is.
async fn page_of(participant: &PeerProcess) -> String {
    participant.wait_for_log("All of the run's data are kept here").await.unwrap();
    let log = participant.log().unwrap();
    log.split("The page of the run is at ").nth(1).unwrap().lines().next().unwrap().trim().to_owned()
}

#[tokio::test]
async fn where_the_backbone_is_gone_newcomers_find_the_run_at_a_participant_that_shows_its_page() {
    let mut meeting = TestRun::new("[run]\nid = \"meeting\"\n").unwrap();
    let relay = meeting
        .relay_here("[network]\nhttp = \"127.0.0.1:0\"\nlisten = [\"/ip4/127.0.0.1/tcp/0\"]\n")
        .await
        .unwrap();
    let known = relay.tcp().unwrap().to_string();
    let mut test_run = TestRun::new(&format!("{SAMPLED}\n[network]\ndht_peers = [\"{known}\"]\n")).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let authority = backbone.status().await.unwrap().run.access.authority;
    let page = backbone.page();
    let of_anna = cache(&test_run, "anna");
    let held_out = pictures(&test_run, "held-out", 30);
    let shows = ["--page", "127.0.0.1:0", "--test", &held_out, "--relay", &known, "--cache", &of_anna];
    let anna = test_run.join(&[&[&page[..]], &shows[..]].concat()).unwrap();
    let ben = test_run.join(&[&page, "--cache", &cache(&test_run, "ben")]).unwrap();
    let shown = page_of(&anna).await;
    backbone.wait_for_epoch(6).await.unwrap();
    let before = backbone.status().await.unwrap();

    // The page says of the run what the backbone's does, and where the participant is reached.
    let status = status_at(&shown).await.unwrap();
    assert_eq!(status.run, before.run);
    let peer_id = after(&anna.log().unwrap(), "as peer ").to_owned();
    assert!(!status.addresses.is_empty());
    assert!(
        status.addresses.iter().all(|address| address.ends_with(&format!("/p2p/{peer_id}"))),
        "{status:?}"
    );
    backbone.kill().await.unwrap();
    let round = wait_for_round(std::slice::from_ref(&ben), before.progress.epoch + 5).await;

    // By the page, and by the run's name at a peer of the DHT: with nothing but what the participants have.
    let carla = test_run.join(&[&shown, "--cache", &cache(&test_run, "carla")]).unwrap();
    let (name, of_dora) = (format!("sampled-run@{authority}"), cache(&test_run, "dora"));
    let dora = test_run.join(&[&known, "--run", &name, "--cache", &of_dora]).unwrap();
    for newcomer in [&carla, &dora] {
        newcomer.wait_for_log("trained").await.unwrap();
        assert!(trained(newcomer).first().is_some_and(|first| *first >= round));
    }
    // The model is had from them as well: where the page has none that was evaluated, and by the run's name.
    for (number, from) in [vec![&shown[..]], vec![&known, "--run", &name]].into_iter().enumerate() {
        let folder = test_run.folder().join(format!("model-{number}"));
        let told = folder.display().to_string();
        let said = test_run.run(&[&["export", from[0], &told], &from[1..]].concat()).await.unwrap();
        let rounds =
            said.split(" after ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        assert!(said.contains(" rounds is in ") && rounds.is_some_and(|rounds| rounds > round), "{said}");
        let card = std::fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(card.contains("Nobody evaluated it") && folder.join("model.safetensors").exists(), "{card}");
    }
    // It is the run of nobody else.
    let another = format!("sampled-run@{}", PublicKey([7; 32]));
    let strange = test_run.join(&[&known, "--run", &another, "--cache", &of_dora]).unwrap();
    strange.wait_for_log("is not known; 2 others say that they serve it").await.unwrap();
    strange.kill().await.unwrap();
    let status = status_at(&shown).await.unwrap();
    assert!(status.progress.epoch > round && status.progress.n_contributors >= 4, "{:?}", status.progress);
    // What the model was found to be worth there: half of the pictures are of one class.
    assert_eq!(status.majority_accuracy, Some(0.5));
    assert!(status.progress.test_accuracy.is_some(), "{:?}", status.progress);
    leave(vec![anna, ben, carla, dora]).await;
}
