//! A run with honest contributors, and the check that they train on under attack.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use barnraise_tests::background::Background;
use barnraise_tests::load::ProcessUsage;
use barnraise_tests::process::{BackboneProcess, HANG, TestRun, metric};
use barnraise_tests::verdict::{SpeedVerdict, WindowSpeeds};
use libp2p::Multiaddr;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::honest::HonestContributors;

/// Offers over which a speed is measured.
const OFFERS: u64 = 48;
/// Baseline windows before the first attack, which give the noise.
const BASELINES_FIRST: usize = 3;
/// Windows under an attack until it is clear what it leaves.
const TURNS_MAX: usize = 12;
/// Lowest share of the baseline speed that must remain under attack.
const SHARE_MIN: f64 = 0.8;
/// Memory that an attack may cost the backbone for as long as it lasts.
const RSS_KIB_MAX: u64 = 96 * 1024;

/// Peers that were blocked.
const BLOCKS: &str = "barnraise_blocks_total";

/// How an attack ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttackEnd {
    /// Its requests are refused or ended, and no more.
    Refused,
    /// It is disconnected as well, and denied for a while.
    Blocked,
}

/// A run under attack.
pub(super) struct AttackedRun {
    honest: HonestContributors,
    /// Of all its attacks, by number: the baseline after one is the next one's first.
    speeds: WindowSpeeds,
    n_attacks: usize,
    pub(super) backbone: BackboneProcess,
    pub(super) test_run: TestRun,
    _alone: OwnedMutexGuard<()>,
}

impl AttackedRun {
    /// Of a run of these sections; its contributors come with an invitation where it wants one.
    pub(super) async fn of(sections: &str, is_by_invitation: bool) -> Self {
        let alone = alone().await;
        let mut test_run = TestRun::new(sections).unwrap().with_listen(&["/ip4/127.0.0.1/tcp/0"]);
        let backbone = test_run.backbone().await.unwrap();
        let invitation = match is_by_invitation {
            true => Some(invitation(&mut test_run).await),
            false => None,
        };
        let mut honest = HonestContributors::join(&backbone.tcp().unwrap(), invitation.as_deref()).await;
        let mut speeds = WindowSpeeds::default();
        for _ in 0..BASELINES_FIRST {
            speeds.add_baseline(honest.speed(OFFERS).await);
        }
        Self { honest, speeds, n_attacks: 0, backbone, test_run, _alone: alone }
    }

    /// Where the backbone is reached.
    pub(super) fn tcp(&self) -> Multiaddr {
        self.backbone.tcp().unwrap()
    }

    /// A metric, its labels included in the name.
    pub(super) async fn metric(&self, name: &str) -> f64 {
        let metrics = self.backbone.metrics().await;
        let metrics = metrics.unwrap_or_else(|error| {
            let log = self.backbone.log().unwrap_or_default();
            let end = log.char_indices().rev().nth(4000).map_or(0, |(at, _)| at);
            panic!("{error}; the log of the backbone ends with\n{}", &log[end..])
        });
        metric(&metrics, name).unwrap()
    }

    /// Waits until a metric is more than `before`; nothing tells when it is.
    async fn until_more(&self, name: &str, before: f64) {
        let more = async {
            while self.metric(name).await <= before {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(HANG, more).await;
        waited.unwrap_or_else(|_| panic!("{name} stays at {before}"));
    }

    /// The contributors keep their speed while `attack` runs, which is begun anew each time, is counted under each
    /// of the reasons each time, comes to its end each time, and costs the backbone no memory to speak of. An
    /// attack ends by itself only by a panic.
    pub(super) async fn endures<F>(&mut self, reasons: &[&str], end: AttackEnd, attack: impl Fn() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut counters: Vec<String> = reasons.iter().map(|reason| counter(reason)).collect();
        if end == AttackEnd::Blocked {
            counters.push(BLOCKS.to_owned());
        }
        let blocks_before = self.metric(BLOCKS).await;
        let rss_before = self.rss_kib();
        let number = self.n_attacks;
        self.n_attacks += 1;
        let mut verdict = SpeedVerdict::Unclear;
        for _ in 0..TURNS_MAX {
            let mut before = Vec::new();
            for counter in &counters {
                before.push(self.metric(counter).await);
            }
            let background = Background::start().unwrap();
            let attacking = background.handle().unwrap().spawn(attack());
            for (counter, before) in counters.iter().zip(before) {
                self.until_more(counter, before).await;
            }
            self.speeds.add_attack(number, self.honest.speed(OFFERS).await);
            let grown = self.rss_kib().saturating_sub(rss_before);
            assert!(grown < RSS_KIB_MAX, "{reasons:?}: {grown} KiB more");
            if attacking.is_finished() {
                attacking.await.unwrap();
            } else {
                attacking.abort();
                let _ = attacking.await;
            }
            self.speeds.add_baseline(self.honest.speed(OFFERS).await);
            verdict = self.speeds.verdict(number, SHARE_MIN);
            if verdict != SpeedVerdict::Unclear {
                break;
            }
        }
        let (ratios, noise) = (self.speeds.ratios(number), self.speeds.noise());
        println!("{reasons:?}: {ratios:.2?} of the speed, noise {noise:.2}");
        // What is not clear by then is as it is seen.
        let is_enough = verdict == SpeedVerdict::Enough
            || (verdict == SpeedVerdict::Unclear && self.speeds.ratio(number) >= SHARE_MIN);
        assert!(is_enough, "{reasons:?}: {:.1?}", self.speeds);
        let is_blocked = self.metric(BLOCKS).await > blocks_before;
        assert_eq!(is_blocked, end == AttackEnd::Blocked, "{reasons:?}");
    }

    /// The contributors' work made steps.
    pub(super) async fn has_trained(&self) {
        let epoch = self.backbone.status().await.unwrap().progress.epoch;
        assert!(epoch > 10, "{epoch}");
    }

    fn rss_kib(&self) -> u64 {
        ProcessUsage::of(self.backbone.pid().unwrap()).unwrap().rss_kib
    }
}

/// What is counted for this reason.
fn counter(reason: &str) -> String {
    format!("barnraise_violations_total{{reason=\"{reason}\"}}")
}

/// The code of an invitation for everybody.
pub(super) async fn invitation(test_run: &mut TestRun) -> String {
    let link = test_run.command(&["invite", "--uses", "1000"]).await.unwrap();
    link.trim().split_once("/#invitation=").expect("a link").1.to_owned()
}

/// One attacked run at a time: they would slow each other down.
pub(super) async fn alone() -> OwnedMutexGuard<()> {
    static ALONE: std::sync::OnceLock<Arc<Mutex<()>>> = std::sync::OnceLock::new();
    ALONE.get_or_init(Arc::default).clone().lock_owned().await
}
