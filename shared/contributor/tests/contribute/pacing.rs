//! Pacing of a contributor, on a simulated clock: no test depends on the speed of the machine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use barnraise_contributor::{ContributorCommand, ContributorEvent, Platform, PlatformError};
use barnraise_learning::DeviceChoice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::Activity;
use barnraise_swarm::pacing::{Duty, PacingSettings, PassTime};

use super::backbone::{CutStream, InMemoryBackbone, MICRO_BATCH, TestPlatform};
use super::{ENDLESS, Script, play_on};

/// Duration of each pass, independent of its size.
const PASS: Duration = Duration::from_millis(100);
/// The clock advances by this when it is read,
const GLANCE: Duration = Duration::from_micros(10);
/// and by this per poll of a sleep.
const WAIT: Duration = Duration::from_millis(1);

/// Stage of the contributor's pass.
#[derive(Debug, Clone, Copy, PartialEq)]
enum PassStage {
    Between,
    Begins,
    Computes,
}

/// A platform on which a pass takes [`PASS`], and everything else hardly any time.
struct ClockedPlatform {
    platform: Rc<TestPlatform>,
    now: Cell<Moment>,
    stage: Cell<PassStage>,
    /// Start of each pass.
    began: RefCell<Vec<Moment>>,
}

impl ClockedPlatform {
    fn new(backbone: &Rc<InMemoryBackbone>) -> Rc<Self> {
        Rc::new(Self {
            platform: TestPlatform::new(backbone),
            now: Cell::default(),
            stage: Cell::new(PassStage::Between),
            began: RefCell::default(),
        })
    }

    fn pass(&self, time: Duration) -> Moment {
        self.now.set(self.now.get() + time);
        self.now.get()
    }

    fn n_passes(&self) -> usize {
        self.began.borrow().len()
    }

    /// Times from the start of each pass to the next. The first pass only warms up.
    fn gaps(&self) -> Vec<Duration> {
        self.began.borrow().windows(2).skip(1).map(|pair| pair[1] - pair[0]).collect()
    }
}

impl Platform for ClockedPlatform {
    type Stream = CutStream;

    fn now(&self) -> Moment {
        match self.stage.get() {
            PassStage::Between => self.pass(GLANCE),
            PassStage::Begins => {
                self.stage.set(PassStage::Computes);
                self.began.borrow_mut().push(self.now.get());
                self.now.get()
            }
            PassStage::Computes => {
                self.stage.set(PassStage::Between);
                self.pass(PASS)
            }
        }
    }

    fn unix_time(&self) -> UnixTime {
        self.platform.unix_time()
    }

    fn device_kind(&self, choice: DeviceChoice) -> DeviceKind {
        self.platform.device_kind(choice)
    }

    async fn sleep_until(&self, at: Moment) {
        std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            if self.pass(WAIT) >= at { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    async fn yield_now(&self) {
        self.platform.yield_now().await;
        // Only a pass begins with a yield.
        self.stage.set(PassStage::Begins);
    }

    async fn connect(&self) -> Result<Vec<u8>, PlatformError> {
        self.platform.connect().await
    }

    fn set_other_backbones(&self, addresses: Vec<String>) {
        self.platform.set_other_backbones(addresses);
    }

    async fn disconnect(&self) {
        self.platform.disconnect().await;
    }

    async fn open(&self, protocol: &'static str) -> Result<CutStream, PlatformError> {
        self.platform.open(protocol).await
    }

    async fn cached(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        self.platform.cached(sha256).await
    }

    async fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) {
        self.platform.cache(sha256, bytes).await;
    }
}

fn pacing(percent: u8, is_gentle: bool) -> ContributorCommand {
    ContributorCommand::Pacing(PacingSettings {
        duty: Duty::of_percent(percent).unwrap(),
        is_gentle,
        ..PacingSettings::default()
    })
}

/// The times of passes that the contributor reported.
fn passes(script: &Script) -> Vec<PassTime> {
    let pass = |event: &ContributorEvent| match event {
        ContributorEvent::Contribution(given) => given.pass,
        _ => None,
    };
    script.events.borrow().iter().filter_map(pass).collect()
}

#[test]
fn a_contributor_rests_as_its_duty_asks() {
    for (percent, is_resting) in [(100, false), (20, true)] {
        let backbone = InMemoryBackbone::new(1, ENDLESS);
        let platform = ClockedPlatform::new(&backbone);
        let ((), given) = play_on(&backbone, &*platform, async |mut script| {
            script.send(pacing(percent, false));
            script.send(ContributorCommand::Start);
            script.until(|_| platform.n_passes() >= 7).await;
        });
        let gaps = platform.gaps();
        assert!(gaps.len() >= 5, "{gaps:?}");
        assert!(gaps.iter().all(|gap| (*gap >= 5 * PASS) == is_resting), "{percent} %: {gaps:?}");
        assert_eq!(
            given.n_samples_computed,
            backbone.n_samples_accepted(),
            "all computed samples are delivered"
        );
    }
}

#[test]
fn stop_and_start_do_not_wait_for_the_end_of_a_rest() {
    let backbone = InMemoryBackbone::new(1, ENDLESS);
    let platform = ClockedPlatform::new(&backbone);
    play_on(&backbone, &*platform, async |mut script| {
        script.send(pacing(5, false));
        script.send(ContributorCommand::Start);
        script.until(|script| script.n_samples_computed() >= 2 * u64::from(MICRO_BATCH)).await;
        let n_passes = platform.n_passes();
        script.send(ContributorCommand::Stop);
        script.until(|script| script.activities().ends_with(&[Activity::Idle])).await;
        let last = platform.began.borrow()[n_passes - 1];
        assert_eq!(platform.n_passes(), n_passes);
        assert!(platform.now.get() < last + PASS + Duty::MIN.rest_after(PASS), "it was still resting");
        assert_eq!(script.backbone.n_samples_accepted(), script.n_samples_computed());
        // A higher duty ends the rest that a lower one began.
        script.send(pacing(100, false));
        script.send(ContributorCommand::Start);
        script.until(|_| platform.n_passes() >= n_passes + 5).await;
        let gaps = platform.gaps();
        assert!(gaps[gaps.len() - 4..].iter().all(|gap| *gap < 5 * PASS), "{gaps:?}");
    });
}

/// Each pass takes 100 ms, so batches are halved down to one sample; all count by their samples.
#[test]
fn a_gentle_contributor_cuts_its_batches() {
    let backbone = InMemoryBackbone::new(1, ENDLESS);
    let platform = ClockedPlatform::new(&backbone);
    let ((), given) = play_on(&backbone, &*platform, async |mut script| {
        script.send(pacing(100, true));
        script.send(ContributorCommand::Start);
        script.until(|script| passes(script).iter().any(|pass| pass.n_samples == 1)).await;
        let passes = passes(&script);
        assert!(passes.iter().all(|pass| pass.n_samples <= MICRO_BATCH / 2), "{passes:?}");
        assert!(passes.iter().all(|pass| pass.milliseconds >= 100.0), "{passes:?}");
    });
    assert_eq!((given.n_refused, given.last_refusal), (0, None));
    assert_eq!(given.n_samples_computed, backbone.n_samples_accepted());
}
