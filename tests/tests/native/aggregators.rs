//! Two backbones of one run: they average, either may die, and both have the same model.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use barnraise_native::config::LinkSpeed;
use barnraise_native::storage::Storage;
use barnraise_native::storage::checkpoint::Checkpoints;
use barnraise_native::storage::journal::Journal;
use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::dht::progress::{self, BackboneProgress, LIFETIME};
use barnraise_protocol::dht::{self, Freshness, UnixMillis};
use barnraise_protocol::{Sha256Hash, average, matchmaking, model};
use barnraise_relay::{Node, NodeConfig};
use barnraise_tests::client::{EpochParameters, TestClient, within};
use barnraise_tests::process::{BackboneProcess, HANG, PeerProcess, TestRun, metric};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use super::{SMALL, patient};

/// Two backbones that know each other.
pub(super) struct TwoAggregators {
    pub(super) one: TestRun,
    pub(super) other: TestRun,
    one_id: String,
    other_id: String,
}

impl TwoAggregators {
    pub(super) async fn new() -> Self {
        Self::of(SMALL).await
    }

    /// They wait for each other and for contributors, however long it takes.
    pub(super) async fn patient() -> Self {
        Self::of(&patient(SMALL)).await
    }

    pub(super) async fn of(sections: &str) -> Self {
        let sections = format!("{sections}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n");
        let (mut one, mut other) = (TestRun::new(&sections).unwrap(), TestRun::new(&sections).unwrap());
        let one_id = one.command(&["id"]).await.unwrap().trim().to_owned();
        let other_id = other.command(&["id"]).await.unwrap().trim().to_owned();
        one.aggregate_with(&[format!("/p2p/{other_id}")]).unwrap();
        Self { one, other, one_id, other_id }
    }

    /// The first does not know where the second one is, and is told by it.
    pub(super) async fn start(&mut self) -> (BackboneProcess, BackboneProcess) {
        let one = self.one.backbone().await.unwrap();
        assert!(one.tcp().unwrap().to_string().ends_with(&self.one_id));
        self.other.aggregate_with(&[one.tcp().unwrap().to_string()]).unwrap();
        let other = self.other.backbone().await.unwrap();
        // From here on either finds the other after a restart.
        self.one.aggregate_with(&[other.tcp().unwrap().to_string()]).unwrap();
        wait_for_link(&one, &self.other_id).await;
        wait_for_link(&other, &self.one_id).await;
        (one, other)
    }
}

pub(super) async fn wait_for_link(backbone: &BackboneProcess, peer: &str) {
    wait_for_log(backbone, &format!("averages with this aggregator peer={peer}")).await;
}

pub(super) async fn wait_for_log(backbone: &BackboneProcess, words: &str) {
    let waiting = async {
        while !backbone.log().unwrap().contains(words) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(HANG, waiting).await;
    assert!(waited.is_ok(), "`{words}` is not in the log: {}", backbone.log().unwrap());
}

/// Where a backbone is dialled: by TCP, or by QUIC where that is all there is.
pub(super) fn dialled(backbone: &BackboneProcess) -> Multiaddr {
    let is_quic = |address: &&Multiaddr| address.to_string().contains("/quic-v1/p2p/");
    match backbone.addresses().iter().find(is_quic) {
        Some(address) => address.clone(),
        None => backbone.tcp().unwrap(),
    }
}

pub(super) async fn state(backbone: &BackboneProcess) -> EpochParameters {
    let client = TestClient::connect(dialled(backbone)).await.unwrap();
    let run = client.describe().await.unwrap();
    client.state(&run).await.unwrap()
}

/// All have the same model in the end, to the last bit, and the same samples in it and about to be; how many. All are
/// asked at once: what one of them has kept open is known to the others only when it is back among them.
pub(super) async fn agreed<'b>(backbones: impl IntoIterator<Item = &'b BackboneProcess>) -> u64 {
    let backbones: Vec<&BackboneProcess> = backbones.into_iter().collect();
    let agreed = async {
        loop {
            let mut seen = Vec::new();
            for backbone in &backbones {
                seen.push((state(backbone).await, backbone.samples_counted().await.ok()));
            }
            if let [(_, Some(counted)), ..] = seen[..]
                && seen.windows(2).all(|pair| pair[0] == pair[1])
            {
                return counted;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let agreed = tokio::time::timeout(HANG, agreed).await;
    let logs =
        || backbones.iter().map(|backbone| backbone.log().unwrap()).collect::<Vec<_>>().join("\n---\n");
    agreed.unwrap_or_else(|_| panic!("{}", logs()))
}

/// What counts in a later step counts by its age, so that it is less than what was given. Those backbones that were
/// killed may have said so, too.
pub(super) fn is_exact(two: &TwoAggregators) -> bool {
    let late = "contributions count for a later step";
    ![&two.one, &two.other].iter().any(|test_run| test_run.logs().unwrap().contains(late))
}

/// The contributors leave; samples of theirs that were accepted.
pub(super) async fn leave(joined: impl IntoIterator<Item = PeerProcess>) -> u64 {
    *leave_after_kills(joined).await.start()
}

/// The contributors leave; the fewest and the most samples of theirs that count. An answer that a killed backbone owes
/// is not known.
pub(super) async fn leave_after_kills(joined: impl IntoIterator<Item = PeerProcess>) -> RangeInclusive<u64> {
    let (mut n_samples, mut n_unanswered) = (0, 0);
    for joined in joined {
        joined.interrupt().unwrap();
        let given = joined.end().await.unwrap();
        assert!(given.status.success(), "{given:?}");
        n_samples += given.n_samples;
        n_unanswered += given.n_unanswered;
    }
    n_samples..=n_samples + n_unanswered
}

/// Each of them averages a few times. One whose contributor came first made steps alone before, and the other one followed.
async fn wait_for_averagings(backbones: &[&BackboneProcess]) {
    let averaged = "barnraise_averagings_total{outcome=\"averaged\"}";
    let averaging = async {
        for backbone in backbones {
            while metric(&backbone.metrics().await.unwrap(), averaged).unwrap() < 5.0 {
                // Nothing tells over HTTP that something was averaged.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    let averaging = tokio::time::timeout(HANG, averaging).await;
    let logs =
        || backbones.iter().map(|backbone| backbone.log().unwrap()).collect::<Vec<_>>().join("\n---\n");
    assert!(averaging.is_ok(), "{}", logs());
}

#[tokio::test]
async fn two_backbones_average_and_have_the_same_model() {
    let mut two = TwoAggregators::new().await;
    let (one, other) = two.start().await;
    let at_one = two.one.join(&[&one.page()]).unwrap();
    let at_other = two.other.join(&[&other.page()]).unwrap();
    one.wait_for_epoch(12).await.unwrap();
    let is_whole = |progress: &RunProgress| progress.n_contributors == 2 && progress.samples_per_second > 0.0;
    one.wait_for("both contributors", is_whole).await.unwrap();
    wait_for_averagings(&[&one, &other]).await;
    let n_samples = leave([at_one, at_other]).await;
    let counted = agreed([&one, &other]).await;
    assert!(counted <= n_samples, "{counted} of {n_samples}");
    assert!(counted == n_samples || !is_exact(&two), "{counted} of {n_samples}");
    for backbone in [one, other] {
        assert!(backbone.terminate().await.unwrap().success());
    }
}

/// What a backbone has measured of its link, sent and received, 0 where it has not.
async fn link(backbone: &BackboneProcess) -> [f64; 2] {
    let metrics = backbone.metrics().await.unwrap();
    ["sent", "received"].map(|direction| {
        let name = format!("barnraise_link_bytes_per_second{{direction=\"{direction}\"}}");
        metric(&metrics, &name).unwrap()
    })
}

/// Bytes per second that a backbone is good for as it tells everybody, once that is not the guess any longer.
async fn told(backbone: &BackboneProcess) -> u64 {
    let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
    let peer = node.dial(backbone.tcp().unwrap()).await.unwrap();
    let mut stream = node.open(peer, dht::PROTOCOL).await.unwrap();
    let asking = async {
        loop {
            let now = UnixMillis(0).after(UNIX_EPOCH.elapsed().unwrap());
            let keys = vec![progress::key("test-run")];
            let records = dht::get(&mut stream, keys, Freshness::Newest, now, 2 * LIFETIME).await.unwrap();
            let said = records.iter().flatten().filter_map(BackboneProgress::read);
            let of_it = said.filter(|said| said.peer.to_peer_id() == peer.to_bytes());
            let mut speeds = of_it.map(|said| said.bytes_per_second);
            if let Some(speed) = speeds.find(|speed| *speed != LinkSpeed::UNMEASURED.as_u64()) {
                return speed;
            }
            // Nothing tells who asks that a record came.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::time::timeout(HANG, asking).await.expect("what was measured is told")
}

/// A model of 35 MB takes a few tenths of a second, of which the fastest say how fast the link is.
#[tokio::test]
async fn backbones_measure_their_links_where_averagings_are_large() {
    let large = SMALL.replace("hidden = [32]", "hidden = [3072, 2048]");
    assert_ne!(large, SMALL);
    let mut two = TwoAggregators::of(&patient(&large)).await;
    let (one, other) = two.start().await;
    assert_eq!((link(&one).await, link(&other).await), ([0.0; 2], [0.0; 2]));
    let at_one = two.one.join(&[&one.page()]).unwrap();
    let at_other = two.other.join(&[&other.page()]).unwrap();
    let measuring = async {
        loop {
            let speeds = [link(&one).await, link(&other).await].concat();
            if speeds.iter().all(|speed| *speed > 0.0) {
                return speeds;
            }
            // Nothing tells over HTTP that something was measured.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    // Steps of such a model take seconds each where others compute, too.
    let speeds = tokio::time::timeout(3 * HANG, measuring).await;
    let speeds = speeds.unwrap_or_else(|_| panic!("{}\n---\n{}", one.log().unwrap(), other.log().unwrap()));
    // Of this machine, which is not known, and two digits.
    for speed in &speeds {
        assert!((1e6..1e11).contains(speed), "{speeds:?}");
        let unit = 10f64.powi(speed.log10().floor() as i32 - 1);
        assert_eq!(speed % unit, 0.0, "{speeds:?}");
    }
    for backbone in [&one, &other] {
        assert!(
            backbone.log().unwrap().contains("measured this machine's link"),
            "{}",
            backbone.log().unwrap()
        );
        assert!((1_000_000..100_000_000_000).contains(&told(backbone).await));
    }
    for joined in [at_one, at_other] {
        joined.kill().await.unwrap();
    }
}

/// Each computes, averages and keeps the model: there is no other machine.
#[tokio::test]
async fn peers_that_do_all_of_it_need_nobody_else() {
    let mut two = TwoAggregators::new().await;
    for test_run in [&two.one, &two.other] {
        test_run
            .configure(|config| {
                config.insert("device".into(), toml::toml! { contributes = true }.into());
            })
            .unwrap();
    }
    let (mut one, mut other) = two.start().await;
    one.wait_for("both", |progress| progress.epoch >= 8 && progress.n_contributors == 2).await.unwrap();
    // One after the other.
    one.kill().await.unwrap();
    let epoch = other.status().await.unwrap().progress.epoch;
    other.wait_for_epoch(epoch + 4).await.unwrap();
    one = two.one.backbone().await.unwrap();
    let epoch = other.status().await.unwrap().progress.epoch;
    one.wait_for_epoch(epoch + 4).await.unwrap();
    other.kill().await.unwrap();
    let epoch = one.status().await.unwrap().progress.epoch;
    one.wait_for_epoch(epoch + 4).await.unwrap();
    other = two.other.backbone().await.unwrap();
    let epoch = one.status().await.unwrap().progress.epoch;
    other.wait_for_epoch(epoch + 4).await.unwrap();
    let loss = one.status().await.unwrap().progress.train_loss.unwrap();
    assert!(loss < 1.5, "{loss}");
}

#[tokio::test]
async fn a_backbone_that_was_killed_takes_the_steps_that_it_missed() {
    let mut two = TwoAggregators::new().await;
    let (one, other) = two.start().await;
    let at_one = two.one.join(&[&one.page()]).unwrap();
    let at_other = two.other.join(&[&other.page()]).unwrap();
    one.wait_for_epoch(4).await.unwrap();
    one.kill().await.unwrap();
    let epoch = other.status().await.unwrap().progress.epoch;
    // Nobody is needed.
    other.wait_for_epoch(epoch + 12).await.unwrap();
    let one = two.one.backbone().await.unwrap();
    let epoch = other.status().await.unwrap().progress.epoch;
    one.wait_for_epoch(epoch + 4).await.unwrap();
    let n_samples = leave_after_kills([at_one, at_other]).await;
    let counted = agreed([&one, &other]).await;
    assert!(counted <= *n_samples.end(), "{counted} of {n_samples:?}");
    assert!(n_samples.contains(&counted) || !is_exact(&two), "{counted} of {n_samples:?}");
    let followed = one.metrics().await.unwrap();
    assert!(followed.contains("barnraise_models_followed_total{what="), "{followed}");
}

/// Its journal says what of its own is in the steps that the other has: nothing of that counts once more.
#[tokio::test]
async fn a_backbone_whose_disk_forgot_a_step_follows_the_other_and_doubles_nothing() {
    let mut two = TwoAggregators::new().await;
    let (one, other) = two.start().await;
    let at_one = two.one.join(&[&one.page()]).unwrap();
    let at_other = two.other.join(&[&other.page()]).unwrap();
    let mut one = one;
    let folder = two.one.storage().join("journal");
    // After the first checkpoint.
    let mut until = 8;
    let damaged = loop {
        until = one.wait_for_epoch(until).await.unwrap().epoch + 3;
        one.kill().await.unwrap();
        if let Some(epoch) = step_behind_checkpoint(&two.one.storage()).await {
            break folder.join(format!("{epoch:012}")).join("mean");
        }
        one = two.one.backbone().await.unwrap();
    };
    std::fs::write(damaged, b"forgotten").unwrap();
    let one = two.one.backbone().await.unwrap();
    wait_for_log(
        &one,
        "this backbone goes back to before this step, and follows the other aggregators from there",
    )
    .await;
    let epoch = other.status().await.unwrap().progress.epoch;
    one.wait_for_epoch(epoch + 4).await.unwrap();
    let n_samples = leave_after_kills([at_one, at_other]).await;
    let counted = agreed([&one, &other]).await;
    assert!(counted <= *n_samples.end(), "{counted} of {n_samples:?}");
    assert!(n_samples.contains(&counted) || !is_exact(&two), "{counted} of {n_samples:?}");
    assert!(one.terminate().await.unwrap().success());
    let set_aside = std::fs::read_dir(folder.join("corrupt")).into_iter().flatten();
    let mut names = set_aside.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.all(|name| !name.ends_with(".grad")), "what was accepted is not damaged");
}

/// The last step of both, where it is made again after a restart and others follow it: the last one of all may have been
/// cut short. A step of its own entries alone would be made again from them.
async fn step_behind_checkpoint(storage: &Path) -> Option<u64> {
    let stored = Storage::open_shared(storage).unwrap();
    let checkpoints = Checkpoints::new(stored.clone(), 1).kept().await.unwrap();
    let newest = checkpoints.into_iter().map(|(epoch, _)| epoch).max()?;
    let journal = Journal::new(stored);
    let mut epochs = journal.epochs().await.unwrap();
    epochs.sort_unstable();
    for epoch in epochs.into_iter().rev().skip(1).filter(|epoch| *epoch >= newest) {
        let commit = journal.commit_of(epoch).await.unwrap();
        if commit.is_some_and(|commit| !commit.unwrap().is_of_entries()) {
            return Some(epoch);
        }
    }
    None
}

#[tokio::test]
async fn who_is_not_of_the_run_is_told_so() {
    let mut two = TwoAggregators::new().await;
    two.other
        .configure(|config| {
            config["scheme"]["synchronous"]["target_batch_size"] = 512.into();
        })
        .unwrap();
    let one = two.one.backbone().await.unwrap();
    two.other.aggregate_with(&[one.tcp().unwrap().to_string()]).unwrap();
    let other = two.other.backbone().await.unwrap();
    wait_for_log(&other, "must be the same in the configurations of all aggregators").await;
}

#[tokio::test]
async fn who_is_not_named_is_not_listened_to() {
    let mut two = TwoAggregators::new().await;
    let (one, _other) = two.start().await;
    let stranger = TestClient::connect(one.tcp().unwrap()).await.unwrap();
    let mut asked = stranger.open(matchmaking::PROTOCOL).await.unwrap();
    let run = stranger.describe().await.unwrap();
    let hello = matchmaking::Hello { run_id: run.identity.run_id, recipe: Sha256Hash::of(b"the same") };
    let refused = matchmaking::introduce(&mut asked, &hello).await.unwrap_err().to_string();
    assert!(refused.contains("not among the [aggregators]"), "{refused}");
    // What is said on the other conversations ends without an answer.
    for protocol in [average::PROTOCOL, model::PROTOCOL] {
        let mut stream = stranger.open(protocol).await.unwrap();
        let _ = stream.write_all(&[1, 1, 0, 0, 0, 0]).await;
        let mut answer = Vec::new();
        let read = within("the end", stream.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.is_empty(), "{protocol}: {read:?} {answer:?}");
    }
}

#[tokio::test]
async fn a_contributor_goes_on_with_another_backbone_when_its_own_is_away() {
    let mut two = TwoAggregators::new().await;
    let (one, other) = two.start().await;
    let joined = two.one.join(&[&one.page()]).unwrap();
    one.wait_for_epoch(3).await.unwrap();
    one.kill().await.unwrap();
    joined.wait_for_log("another backbone of the run").await.unwrap();
    let epoch = other.wait_for_epoch(0).await.unwrap().epoch;
    other.wait_for_epoch(epoch + 5).await.unwrap();
    let is_there = |progress: &RunProgress| progress.n_contributors == 1;
    other.wait_for("its contributor", is_there).await.unwrap();
    // What it may have counted twice would be more than it was told that it gave.
    let one = two.one.backbone().await.unwrap();
    // What was open at the one is in a step of both by then.
    let epoch = other.wait_for_epoch(0).await.unwrap().epoch;
    one.wait_for_epoch(epoch + 3).await.unwrap();
    let given = leave_after_kills([joined]).await;
    let counted = agreed([&one, &other]).await;
    // What counts late counts for less.
    assert!(
        *given.start() > 0 && counted > 0 && counted <= *given.end(),
        "{counted} counted, {given:?} given"
    );
    assert!(given.contains(&counted) || !is_exact(&two), "{counted} counted, {given:?} given");
}
