//! Three tabs and two native peers that train a run as it is shipped, and how fast, with and without an attacker.
//!
//! They compute for a small share of the time: all of them are on one machine, and one contributor's computing must not
//! slow the others down. The backbone has a processor of its own, which the attacker uses only while the backbone is
//! idle. The tabs are on this machine itself, the native peers each
//! come from an address of their own, and so does the attacker.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libp2p::PeerId;
use serde_json::json;

use crate::artifacts;
use crate::attack::{Attack, AttackCounts, AttackMachine, AttackTarget};
use crate::browser::{Graphics, Tab};
use crate::load::ProcessUsage;
use crate::process::{BackboneProcess, HANG, PeerProcess, TestRun, metric};
use crate::processors::ProcessorSet;
use crate::source_proxy::SourceProxy;
use crate::verdict::WindowSpeeds;

/// Of the run that is attacked: steps are short, so that a window has many of them, and what is learnt settles within a test.
pub const RUN: &str = r#"
[run]
id = "open-run"

[model]
kind = { mlp = { hidden = [64] } }

[scheme.synchronous]
target_batch_size = 4096

[network]
operator = "127.0.0.1:0"
upnp = false

[evaluation]
every_epochs = 20
"#;

/// That take part.
const N_TABS: usize = 3;
/// Where the native peers come from.
const NATIVE_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 4))];
/// Steps until everybody's first contributions were recomputed, and all have found their pace.
const SETTLING_STEPS: u64 = 5;
/// After an attack its connections end, and the run stops waiting for its claimed samples.
const RECOVERY: Duration = Duration::from_secs(2);
/// A browser may take as long to start on a busy machine.
const LONG: Duration = Duration::from_secs(300);
/// The newest evaluations, whose mean is the accuracy of a run.
const EVALUATIONS: usize = 5;

/// The run and its honest contributors; all end when dropped.
#[derive(Debug)]
pub struct OpenRun {
    tabs: Vec<Tab>,
    natives: Vec<PeerProcess>,
    _proxies: Vec<SourceProxy>,
    backbone: BackboneProcess,
    test_run: TestRun,
    speeds: WindowSpeeds,
    n_machines: u16,
    /// Samples that attackers were acknowledged for.
    n_accepted_of_machines: u64,
    _affinity: ContributorAffinity,
}

/// Pins this process, and all that it starts, to the contributors' processors; undone when dropped.
#[derive(Debug)]
struct ContributorAffinity;

impl ContributorAffinity {
    fn begin() -> Result<Self> {
        ProcessorSet::Contributors.pin_process(std::process::id()).map(|()| Self)
    }
}

impl Drop for ContributorAffinity {
    fn drop(&mut self) {
        // Slower is all that it would be.
        let _ = ProcessorSet::Whole.pin_process(std::process::id());
    }
}

/// Measurements over one window.
#[derive(Debug, Clone, Copy)]
pub struct MeasurementWindow {
    /// Accepted samples of honest contributors per second.
    pub speed: f64,
    /// The most memory that the backbone had, KiB.
    pub rss_max_kib: u64,
    /// Growth of its folder, bytes.
    pub grown_bytes: i64,
    /// Optimizer steps.
    pub n_steps: u64,
}

impl OpenRun {
    /// Starts a run of these sections, with the operator's page and the shipped defaults; its
    /// contributors compute for `percent` of the time each, and have found their pace.
    ///
    /// # Errors
    /// Where something of it does not start.
    pub async fn start(sections: &str, percent: u8) -> Result<Self> {
        let affinity = ContributorAffinity::begin()?;
        let mut test_run = TestRun::as_shipped(sections)?.with_page(artifacts::web_root()?);
        let backbone = test_run.backbone().await?;
        ProcessorSet::Backbone.pin_process(backbone.pid()?)?;
        let mut tabs = Vec::new();
        for number in 0..N_TABS {
            tabs.push(tab(&backbone, &format!("open-run-{number}"), percent).await?);
        }
        let (mut natives, mut proxies) = (Vec::new(), Vec::new());
        for from in NATIVE_ADDRESSES {
            let proxy = SourceProxy::open(from, &backbone.tcp()?).await?;
            let address = proxy.address().to_string();
            natives.push(test_run.join(&[&address, "--throttle", &percent.to_string()])?);
            proxies.push(proxy);
        }
        for tab in &tabs {
            // The first ones of a key are recomputed.
            tab.until("value('accepted') >= 4", LONG).await?;
        }
        let all = (N_TABS + NATIVE_ADDRESSES.len()) as u32;
        let here = backbone.wait_for("all are here", |progress| progress.n_contributors == all).await?;
        backbone.wait_for_epoch(here.epoch + SETTLING_STEPS).await?;
        let speeds = WindowSpeeds::default();
        Ok(Self {
            tabs,
            natives,
            _proxies: proxies,
            backbone,
            test_run,
            speeds,
            n_machines: 0,
            n_accepted_of_machines: 0,
            _affinity: affinity,
        })
    }

    /// The speeds so far.
    pub fn speeds(&self) -> &WindowSpeeds {
        &self.speeds
    }

    /// The backbone, to be asked.
    pub fn backbone(&self) -> &BackboneProcess {
        &self.backbone
    }

    /// Measures a baseline window.
    ///
    /// # Errors
    /// Where the backbone does not answer.
    pub async fn measure_baseline(&mut self, length: Duration) -> Result<MeasurementWindow> {
        let window = self.window(length, None).await?;
        self.speeds.add_baseline(window.speed);
        Ok(window)
    }

    /// Measures a window under attack, by a machine from a new address, of one step at least unless the run is stopped; a
    /// baseline window must follow where speeds are compared.
    ///
    /// # Errors
    /// Where the attack does not begin, or the backbone does not answer.
    pub async fn measure_attack(
        &mut self,
        attack: Attack,
        n_keys: usize,
        length: Duration,
    ) -> Result<(MeasurementWindow, AttackMachine)> {
        self.n_machines += 1;
        let [high, low] = self.n_machines.to_be_bytes();
        let from = Ipv4Addr::new(127, 1 + high, low, 9).into();
        let machine = AttackMachine::start(attack, n_keys, from, self.target().await?)?;
        let begun = Instant::now();
        while machine.counts().n_acts == 0 {
            ensure!(machine.is_at_work(), "{attack}: it could not begin");
            ensure!(begun.elapsed() < HANG, "{attack}: it never began");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let window = self.window(length, Some(&machine)).await?;
        self.speeds.add_attack(attack as usize, window.speed);
        Ok((window, machine))
    }

    /// Ends the machine and returns its counts.
    pub async fn recover(&mut self, machine: AttackMachine) -> AttackCounts {
        let counts = machine.end().await;
        self.n_accepted_of_machines += counts.n_accepted;
        tokio::time::sleep(RECOVERY).await;
        counts
    }

    async fn target(&self) -> Result<AttackTarget> {
        let page = self.backbone.page();
        let page = page.strip_prefix("http://").context("a page without a scheme")?.parse()?;
        let honest = self.backbone.leader().await?;
        let honest: PeerId = honest.context("nobody is on the leaderboard")?.parse()?;
        Ok(AttackTarget { backbone: self.backbone.tcp()?, page, honest })
    }

    async fn window(&self, length: Duration, machine: Option<&AttackMachine>) -> Result<MeasurementWindow> {
        let pid = self.backbone.pid()?;
        // From here on the most that it ever had is the most of this window.
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
        let (before, since, size) = (self.totals(machine).await?, Instant::now(), self.folder_bytes());
        tokio::time::sleep(length).await;
        if machine.is_some() {
            // On a busy machine a step may take longer than that; that there is none is seen in the window.
            let _ = self.backbone.wait_for_epoch(before.1 + 1).await;
        }
        let after = self.totals(machine).await?;
        let seconds = since.elapsed().as_secs_f64();
        Ok(MeasurementWindow {
            speed: (after.0 - before.0) / seconds,
            rss_max_kib: ProcessUsage::of(pid)?.rss_max_kib,
            grown_bytes: self.folder_bytes() as i64 - size as i64,
            n_steps: after.1 - before.1,
        })
    }

    /// Honest samples that were accepted, and steps that were made.
    async fn totals(&self, machine: Option<&AttackMachine>) -> Result<(f64, u64)> {
        let metrics = self.backbone.metrics().await?;
        let n_all = metric(&metrics, "barnraise_samples_accepted_total")?;
        let n_of_machine = machine.map_or(0, |machine| machine.counts().n_accepted);
        Ok((n_all - n_of_machine as f64, metric(&metrics, "barnraise_epoch")? as u64))
    }

    fn folder_bytes(&self) -> u64 {
        folder_bytes(&self.test_run.storage())
    }

    /// Stops all contributors, once there are enough accuracies; returns the mean of the newest, 0 to 1, and the epoch.
    ///
    /// # Errors
    /// Where the run stands still, or contributors were told of more accepted samples than the run has counted.
    pub async fn leave(self) -> Result<(f32, u64)> {
        until_evaluated(&self.backbone).await?;
        let mut n_told = self.n_accepted_of_machines;
        for tab in self.tabs {
            tab.click("#toggle").await?;
            tab.until("doing() === 'idle'", LONG).await?;
            n_told += tab.number("samples").await? as u64;
        }
        for native in self.natives {
            native.interrupt()?;
            let given = native.end().await?;
            ensure!(given.status.success(), "{given:?}");
            n_told += given.n_samples;
        }
        let n_counted = self.backbone.samples_counted().await?;
        // What an attacker was not told any more because it ended counts all the same.
        ensure!(n_counted >= n_told, "{n_told} samples were acknowledged, {n_counted} counted");
        let epoch = self.backbone.status().await?.progress.epoch;
        Ok((accuracy(&self.backbone).await?, epoch))
    }
}

/// Accuracy of the same run after so many steps of two native peers that never rest.
///
/// # Errors
/// Where something of it does not start, or ends.
pub async fn baseline_accuracy(sections: &str, n_steps: u64) -> Result<f32> {
    let mut test_run = TestRun::as_shipped(sections)?;
    let backbone = test_run.backbone().await?;
    let natives = [test_run.join(&[&backbone.page()])?, test_run.join(&[&backbone.page()])?];
    let reached = |progress: &barnraise_protocol::contribute::RunProgress| progress.epoch >= n_steps;
    let mut epoch = 0;
    // As long as it moves on it may take.
    while !reached(&backbone.wait_for("a step", |progress| progress.epoch > epoch).await?) {
        epoch = backbone.status().await?.progress.epoch;
    }
    until_evaluated(&backbone).await?;
    drop(natives);
    accuracy(&backbone).await
}

/// Waits for as many evaluations as the accuracy is of, and the first one, of a model that learnt nothing; a slower
/// machine has made fewer steps by then.
async fn until_evaluated(backbone: &BackboneProcess) -> Result<()> {
    while accuracies(backbone).await?.len() <= EVALUATIONS {
        let epoch = backbone.status().await?.progress.epoch;
        backbone.wait_for_epoch(epoch + 1).await?;
    }
    Ok(())
}

/// Newest first.
async fn accuracies(backbone: &BackboneProcess) -> Result<Vec<f32>> {
    let history = backbone.status().await?.history;
    Ok(history.iter().rev().filter_map(|point| point.test_accuracy).collect())
}

async fn accuracy(backbone: &BackboneProcess) -> Result<f32> {
    let evaluated = accuracies(backbone).await?;
    ensure!(evaluated.len() >= EVALUATIONS, "{} evaluations", evaluated.len());
    Ok(evaluated[..EVALUATIONS].iter().sum::<f32>() / EVALUATIONS as f32)
}

async fn tab(backbone: &BackboneProcess, name: &str, percent: u8) -> Result<Tab> {
    let tab = Tab::open(name, Graphics::NoAdapter, &format!("{}/?device=cpu", backbone.page())).await?;
    let settings = json!({ "version": 1, "duty": percent }).to_string();
    tab.run("localStorage.setItem('barnraise.settings', arguments[0])", vec![settings.into()]).await?;
    tab.goto(&format!("{}/?autostart=1&device=cpu", backbone.page())).await?;
    Ok(tab)
}

/// Of all files; one that goes meanwhile is none.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => folder_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}
