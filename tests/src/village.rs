//! Three tabs and two native peers that train a run as it is shipped, and how fast, with and without an attacker.
//!
//! They compute for a small share of the time, as visitors' machines do beside other things: all of them are on one
//! machine, and what one of them computes shall not be what the others lack. The backbone has a processor of its own,
//! which the attacker has where the backbone does not want it. The tabs are on this machine itself, the native peers each
//! come from an address of their own, and so does the attacker.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libp2p::PeerId;
use serde_json::json;

use crate::artifacts;
use crate::attack::{Attack, Deeds, Machine, Target};
use crate::browser::{Graphics, Tab};
use crate::doorway::Doorway;
use crate::load::ProcessUsage;
use crate::process::{Backbone, HANG, Joined, World, metric};
use crate::processors::Side;
use crate::verdict::Turns;

/// Of the run that is attacked: steps are short, so that a window has many of them, and what is learnt settles within a test.
pub const RUN: &str = r#"
[run]
id = "open-run"
model = { mlp = { hidden = [64] } }
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
/// After an attack its connections end, and who waited for what it claimed goes on.
const RECOVERY: Duration = Duration::from_secs(2);
/// A browser may take as long to start on a busy machine.
const LONG: Duration = Duration::from_secs(300);
/// The newest evaluations, whose mean is the accuracy of a run.
const EVALUATIONS: usize = 5;

/// The run and its honest contributors; all end when dropped.
#[derive(Debug)]
pub struct Village {
    tabs: Vec<Tab>,
    natives: Vec<Joined>,
    _doorways: Vec<Doorway>,
    backbone: Backbone,
    world: World,
    turns: Turns,
    n_machines: u16,
    /// Samples that attackers were acknowledged for.
    n_accepted_of_machines: u64,
    _held: Held,
}

/// This process, and what it starts, where contributors are; it ends when dropped.
#[derive(Debug)]
struct Held;

impl Held {
    fn begin() -> Result<Self> {
        Side::Contributors.holds_process(std::process::id()).map(|()| Self)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Slower is all that it would be.
        let _ = Side::Whole.holds_process(std::process::id());
    }
}

/// What happened while somebody looked.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Samples of honest contributors that were accepted each second.
    pub speed: f64,
    /// The most memory that the backbone had, KiB.
    pub rss_max_kib: u64,
    /// By which its folder grew, bytes.
    pub grown_bytes: i64,
    /// Optimizer steps.
    pub n_steps: u64,
}

impl Village {
    /// A run of these sections, with the operator's page, as its operator gets it who changes nothing else; its
    /// contributors compute for so many percent of the time each, and have found their pace.
    ///
    /// # Errors
    /// Where something of it does not start.
    pub async fn gather(sections: &str, percent: u8) -> Result<Self> {
        let held = Held::begin()?;
        let mut world = World::as_shipped(sections)?.with_page(artifacts::web_root()?);
        let backbone = world.backbone().await?;
        Side::Backbone.holds_process(backbone.pid()?)?;
        let mut tabs = Vec::new();
        for number in 0..N_TABS {
            tabs.push(tab(&backbone, &format!("village-{number}"), percent).await?);
        }
        let (mut natives, mut doorways) = (Vec::new(), Vec::new());
        for from in NATIVE_ADDRESSES {
            let doorway = Doorway::open(from, &backbone.tcp()?).await?;
            let address = doorway.address().to_string();
            natives.push(world.join(&[&address, "--throttle", &percent.to_string()])?);
            doorways.push(doorway);
        }
        for tab in &tabs {
            // The first ones of a key are recomputed.
            tab.until("value('accepted') >= 4", LONG).await?;
        }
        let all = (N_TABS + NATIVE_ADDRESSES.len()) as u32;
        let here = backbone.wait_for("all are here", |progress| progress.n_contributors == all).await?;
        backbone.wait_for_epoch(here.epoch + SETTLING_STEPS).await?;
        let turns = Turns::default();
        Ok(Self {
            tabs,
            natives,
            _doorways: doorways,
            backbone,
            world,
            turns,
            n_machines: 0,
            n_accepted_of_machines: 0,
            _held: held,
        })
    }

    /// The speeds so far.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The backbone, to be asked.
    pub fn backbone(&self) -> &Backbone {
        &self.backbone
    }

    /// A window in peace.
    ///
    /// # Errors
    /// Where the backbone does not answer.
    pub async fn in_peace(&mut self, length: Duration) -> Result<Window> {
        let window = self.window(length, None).await?;
        self.turns.in_peace(window.speed);
        Ok(window)
    }

    /// A window under attack, by a machine from an address that nobody has heard of; one in peace is to follow.
    ///
    /// # Errors
    /// Where the attack does not begin, or the backbone does not answer.
    pub async fn under_attack(
        &mut self,
        attack: Attack,
        n_keys: usize,
        length: Duration,
    ) -> Result<(Window, Machine)> {
        self.n_machines += 1;
        let [high, low] = self.n_machines.to_be_bytes();
        let from = Ipv4Addr::new(127, 1 + high, low, 9).into();
        let machine = Machine::start(attack, n_keys, from, self.target().await?)?;
        let begun = Instant::now();
        while machine.deeds().n_acts == 0 {
            ensure!(machine.is_at_work(), "{attack}: it could not begin");
            ensure!(begun.elapsed() < HANG, "{attack}: it never began");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let window = self.window(length, Some(&machine)).await?;
        self.turns.under_attack(attack as usize, window.speed);
        Ok((window, machine))
    }

    /// What the machine did in all; it ends.
    pub async fn recover(&mut self, machine: Machine) -> Deeds {
        let deeds = machine.end().await;
        self.n_accepted_of_machines += deeds.n_accepted;
        tokio::time::sleep(RECOVERY).await;
        deeds
    }

    async fn target(&self) -> Result<Target> {
        let page = self.backbone.page();
        let page = page.strip_prefix("http://").context("a page without a scheme")?.parse()?;
        let honest = self.backbone.leader().await?;
        let honest: PeerId = honest.context("nobody is on the leaderboard")?.parse()?;
        Ok(Target { backbone: self.backbone.tcp()?, page, honest })
    }

    async fn window(&self, length: Duration, machine: Option<&Machine>) -> Result<Window> {
        let pid = self.backbone.pid()?;
        // From here on the most that it ever had is the most of this window.
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
        let (before, since, size) = (self.stands(machine).await?, Instant::now(), self.folder_bytes());
        tokio::time::sleep(length).await;
        let after = self.stands(machine).await?;
        let seconds = since.elapsed().as_secs_f64();
        Ok(Window {
            speed: (after.0 - before.0) / seconds,
            rss_max_kib: ProcessUsage::of(pid)?.rss_max_kib,
            grown_bytes: self.folder_bytes() as i64 - size as i64,
            n_steps: after.1 - before.1,
        })
    }

    /// Honest samples that were accepted, and steps that were made.
    async fn stands(&self, machine: Option<&Machine>) -> Result<(f64, u64)> {
        let metrics = self.backbone.metrics().await?;
        let n_all = metric(&metrics, "barnraise_samples_accepted_total")?;
        let n_of_machine = machine.map_or(0, |machine| machine.deeds().n_accepted);
        Ok((n_all - n_of_machine as f64, metric(&metrics, "barnraise_epoch")? as u64))
    }

    fn folder_bytes(&self) -> u64 {
        folder_bytes(&self.world.storage())
    }

    /// Everybody leaves: the mean of the newest accuracies, 0 to 1, and the epoch.
    ///
    /// # Errors
    /// Where somebody was told that more was accepted than the run has counted, or the run has counted something that
    /// nobody was told of.
    pub async fn leave(self) -> Result<(f32, u64)> {
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

/// What the same run reaches in so many steps with nobody but two native peers that never rest.
///
/// # Errors
/// Where something of it does not start, or ends.
pub async fn accuracy_in_peace(sections: &str, n_steps: u64) -> Result<f32> {
    let mut world = World::as_shipped(sections)?;
    let backbone = world.backbone().await?;
    let natives = [world.join(&[&backbone.page()])?, world.join(&[&backbone.page()])?];
    let reached = |progress: &barnraise_protocol::contribute::Progress| progress.epoch >= n_steps;
    let mut epoch = 0;
    // As long as it moves on it may take.
    while !reached(&backbone.wait_for("a step", |progress| progress.epoch > epoch).await?) {
        epoch = backbone.status().await?.progress.epoch;
    }
    drop(natives);
    accuracy(&backbone).await
}

async fn accuracy(backbone: &Backbone) -> Result<f32> {
    let history = backbone.status().await?.history;
    let evaluated: Vec<f32> = history.iter().rev().filter_map(|point| point.test_accuracy).collect();
    ensure!(evaluated.len() >= EVALUATIONS, "{} evaluations", evaluated.len());
    Ok(evaluated[..EVALUATIONS].iter().sum::<f32>() / EVALUATIONS as f32)
}

async fn tab(backbone: &Backbone, name: &str, percent: u8) -> Result<Tab> {
    let tab = Tab::open(name, Graphics::NoAdapter, &format!("{}/?device=cpu", backbone.page())).await?;
    let conduct = json!({ "version": 1, "duty": percent }).to_string();
    tab.run("localStorage.setItem('barnraise.conduct', arguments[0])", vec![conduct.into()]).await?;
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
