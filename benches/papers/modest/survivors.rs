//! Real processes and tabs, each native one with pictures of its own, of which most are killed in the middle: the run goes on, and
//! what the survivors come to beside what they come to by themselves. Not in the paper, whose §4.7 crashes peers in simulation.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use barnraise_native::data::sets::{Dataset, FileSpecs, NamedSet};
use barnraise_protocol::dataset::LabelledImages;
use barnraise_tests::artifacts;
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::process::{BackboneProcess, PeerProcess, TestRun};
use clap::Args;
use image::{GrayImage, Luma};

use crate::ratio::table;

/// Pictures of each native peer.
const PICTURES_EACH: usize = 300;
/// Between two looks at the round.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Longer than anything waited for took on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(900);
const RUN: &str = r#"
[run]
id = "survivors"
title = "Digits, without a server"
purpose = "A small network that its participants train among themselves, each on pictures of its own."

[model]
kind = { mlp = { hidden = [64] } }

[data]
set = "mnist"

[scheme.sampled]
sample_size = 8
n_aggregators = 3
success_fraction = 0.75
ping_timeout = "2s"
activity_window = 18
round_estimate = "3s"
local_shards = 1
schedule = { peak = 0.05 }

[evaluation]
every_epochs = 5
"#;

#[derive(Debug, Clone, Args)]
pub(crate) struct SurvivorArgs {
    /// Native peers
    #[arg(long, default_value_t = 40)]
    peers: usize,
    /// Tabs of Chromium, which train on data of the run
    #[arg(long, default_value_t = 4)]
    tabs: usize,
    /// Of both, in percent, those that are killed
    #[arg(long, default_value_t = 80)]
    killed: usize,
    /// Rounds until then, and from then on
    #[arg(long, default_value_t = 60)]
    rounds: u64,
}

/// Those who take part beside the one that evaluates.
struct Participants {
    backbone: BackboneProcess,
    peers: Vec<PeerProcess>,
    tabs: Vec<Tab>,
    /// Its files are there until all have ended.
    _test_run: TestRun,
}

/// A stretch of a run.
struct Stretch {
    seconds_a_round: f64,
    /// Until the first new round.
    first_s: f64,
    accuracy: f32,
}

/// Prints the table.
pub(super) async fn run(args: &SurvivorArgs) -> Result<()> {
    let left = |n: usize| n - n * args.killed / 100;
    let (peers_left, tabs_left) = (left(args.peers), left(args.tabs));
    ensure!(peers_left >= 8, "{peers_left} peers are left, a sample is of 8");
    let folder = tempfile::tempdir()?;
    let folders = pictures(folder.path(), args.peers)?;
    let head = ["participants", "accuracy", "s a round", "s to the first round"].map(str::to_owned);
    let mut rows = vec![head.to_vec()];
    let mut row = |who: String, stretch: &Stretch| {
        let Stretch { seconds_a_round, first_s, accuracy } = stretch;
        let accuracy = format!("{:.1} %", 100.0 * accuracy);
        rows.push(vec![who, accuracy, format!("{seconds_a_round:.1}"), format!("{first_s:.1}")]);
        println!("{}", table(&rows));
    };

    let mut all = Participants::start(&folders, args.tabs).await?;
    let before = all.stretch(args.rounds).await?;
    row(format!("{} peers, {} tabs", args.peers, args.tabs), &before);
    // The first ones are left.
    for peer in all.peers.split_off(peers_left) {
        peer.kill().await?;
    }
    for tab in all.tabs.split_off(tabs_left) {
        tab.close().await?;
    }
    let after = all.stretch(args.rounds).await?;
    row(format!("{peers_left} peers, {tabs_left} tabs are left"), &after);
    all.end().await?;

    let mut few = Participants::start(&folders[..peers_left], tabs_left).await?;
    let alone = few.stretch(2 * args.rounds).await?;
    row(format!("{peers_left} peers, {tabs_left} tabs from the beginning"), &alone);
    few.end().await
}

impl Participants {
    async fn start(folders: &[PathBuf], n_tabs: usize) -> Result<Self> {
        let mut test_run = TestRun::new(RUN)?.with_page(artifacts::web_root()?);
        let backbone = test_run.backbone().await?;
        let page = backbone.page();
        let join = |folder: &PathBuf| test_run.join(&[&page, "--data", &folder.display().to_string()]);
        let peers = folders.iter().map(join).collect::<Result<Vec<_>>>()?;
        let mut tabs = Vec::new();
        for number in 0..n_tabs {
            let url = format!("{page}/?device=cpu");
            let tab = Tab::open(&format!("survivor-{number}"), Graphics::NoAdapter, &url).await?;
            tab.until("doing() === 'idle' && !element('toggle').disabled", WAIT_MAX).await?;
            tab.click("#toggle").await?;
            tabs.push(tab);
        }
        for peer in &peers {
            peer.wait_for_log("trained").await?;
        }
        for tab in &tabs {
            tab.until("value('accepted') >= 1", WAIT_MAX).await?;
        }
        Ok(Self { backbone, peers, tabs, _test_run: test_run })
    }

    /// Waits for so many rounds more.
    async fn stretch(&mut self, n_rounds: u64) -> Result<Stretch> {
        let first = self.backbone.status().await?.progress.epoch;
        let (began, mut first_s) = (Instant::now(), None);
        loop {
            let progress = self.backbone.status().await?.progress;
            if progress.epoch > first {
                first_s.get_or_insert(began.elapsed().as_secs_f64());
            }
            if progress.epoch >= first + n_rounds {
                let seconds_a_round = began.elapsed().as_secs_f64() / (progress.epoch - first) as f64;
                let accuracy = progress.test_accuracy.context("nothing was evaluated")?;
                return Ok(Stretch { seconds_a_round, first_s: first_s.unwrap_or_default(), accuracy });
            }
            ensure!(began.elapsed() < WAIT_MAX, "round {} of {}", progress.epoch, first + n_rounds);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn end(self) -> Result<()> {
        for tab in self.tabs {
            tab.close().await?;
        }
        for peer in self.peers {
            peer.kill().await?;
        }
        self.backbone.kill().await
    }
}

/// A folder for each of `n`, with digits that no other has.
fn pictures(folder: &Path, n: usize) -> Result<Vec<PathBuf>> {
    let cache = artifacts::target_dir()?.join("test-cache");
    let data = Dataset::load(&NamedSet::Mnist.sources(&cache), &FileSpecs::mnist())?;
    let LabelledImages { images, labels } = data.train;
    let (height, width) = (u32::from(data.shape.height), u32::from(data.shape.width));
    let pictures: Vec<_> = images.chunks((height * width) as usize).zip(labels).collect();
    ensure!(pictures.len() >= n * PICTURES_EACH, "too few pictures for {n} peers");
    let write = |(number, pictures): (usize, &[(&[u8], u8)])| {
        let of_peer = folder.join(number.to_string());
        for (number, (picture, label)) in pictures.iter().enumerate() {
            let class = of_peer.join(label.to_string());
            std::fs::create_dir_all(&class)?;
            let pixel = |x: u32, y: u32| Luma([picture[(y * width + x) as usize]]);
            GrayImage::from_fn(width, height, pixel).save(class.join(format!("{number}.png")))?;
        }
        Ok(of_peer)
    };
    pictures.chunks(PICTURES_EACH).take(n).enumerate().map(write).collect()
}
