//! How hard a contributor works, on a clock of the tests' own: nothing here depends on how fast the machine is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use barnraise_contributor::{Command, Event, Platform};
use barnraise_learning::DeviceChoice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::Activity;
use barnraise_swarm::conduct::{Conduct, Duty, PassTime};

use super::backbone::{Backbone, CutStream, MICRO_BATCH, TestPlatform};
use super::{ENDLESS, Script, play_on};

/// What each pass takes, whatever its size.
const PASS: Duration = Duration::from_millis(100);
/// By so much the clock goes on when it is looked at, and when somebody waits for it.
const GLANCE: Duration = Duration::from_micros(10);
const WAIT: Duration = Duration::from_millis(1);

/// Where the contributor is in its pass.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Between,
    Begins,
    Computes,
}

/// A platform on which a pass takes [`PASS`] and all else hardly any time.
struct Clocked {
    platform: Rc<TestPlatform>,
    now: Cell<Moment>,
    stage: Cell<Stage>,
    /// When each pass began.
    began: RefCell<Vec<Moment>>,
}

impl Clocked {
    fn new(backbone: &Rc<Backbone>) -> Rc<Self> {
        Rc::new(Self {
            platform: TestPlatform::new(backbone),
            now: Cell::default(),
            stage: Cell::new(Stage::Between),
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

    /// From the beginning of each pass to that of the next. The first one only warms up.
    fn gaps(&self) -> Vec<Duration> {
        self.began.borrow().windows(2).skip(1).map(|pair| pair[1] - pair[0]).collect()
    }
}

impl Platform for Clocked {
    type Stream = CutStream;

    fn now(&self) -> Moment {
        match self.stage.get() {
            Stage::Between => self.pass(GLANCE),
            Stage::Begins => {
                self.stage.set(Stage::Computes);
                self.began.borrow_mut().push(self.now.get());
                self.now.get()
            }
            Stage::Computes => {
                self.stage.set(Stage::Between);
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
        // Nothing but a pass begins so.
        self.stage.set(Stage::Begins);
    }

    async fn connect(&self) -> Result<Vec<u8>, String> {
        self.platform.connect().await
    }

    fn elsewhere(&self, addresses: Vec<String>) {
        self.platform.elsewhere(addresses);
    }

    async fn disconnect(&self) {
        self.platform.disconnect().await;
    }

    async fn open(&self, protocol: &'static str) -> Result<CutStream, String> {
        self.platform.open(protocol).await
    }

    async fn cached(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        self.platform.cached(sha256).await
    }

    async fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) {
        self.platform.cache(sha256, bytes).await;
    }
}

fn conduct(percent: u8, is_gentle: bool) -> Command {
    Command::Conduct(Conduct { duty: Duty::of_percent(percent).unwrap(), is_gentle, ..Conduct::default() })
}

/// The newest passes of which the contributor told how long they took.
fn passes(script: &Script) -> Vec<PassTime> {
    let pass = |event: &Event| match event {
        Event::Contribution(given) => given.pass,
        _ => None,
    };
    script.events.borrow().iter().filter_map(pass).collect()
}

#[test]
fn a_contributor_rests_as_its_duty_asks() {
    for (percent, is_resting) in [(100, false), (20, true)] {
        let backbone = Backbone::new(1, ENDLESS);
        let platform = Clocked::new(&backbone);
        let ((), given) = play_on(&backbone, &*platform, async |mut script| {
            script.send(conduct(percent, false));
            script.send(Command::Start);
            script.until(|_| platform.n_passes() >= 7).await;
        });
        let gaps = platform.gaps();
        assert!(gaps.len() >= 5, "{gaps:?}");
        assert!(gaps.iter().all(|gap| (*gap >= 5 * PASS) == is_resting), "{percent} %: {gaps:?}");
        assert_eq!(given.n_samples_computed, backbone.n_samples_accepted(), "what was computed is handed in");
    }
}

#[test]
fn nobody_waits_for_the_end_of_a_rest() {
    let backbone = Backbone::new(1, ENDLESS);
    let platform = Clocked::new(&backbone);
    play_on(&backbone, &*platform, async |mut script| {
        script.send(conduct(5, false));
        script.send(Command::Start);
        script.until(|script| script.n_samples_computed() >= 2 * u64::from(MICRO_BATCH)).await;
        let n_passes = platform.n_passes();
        script.send(Command::Stop);
        script.until(|script| script.activities().ends_with(&[Activity::Idle])).await;
        let last = platform.began.borrow()[n_passes - 1];
        assert_eq!(platform.n_passes(), n_passes);
        assert!(platform.now.get() < last + PASS + Duty::MIN.rest_after(PASS), "it was still resting");
        assert_eq!(script.backbone.n_samples_accepted(), script.n_samples_computed());
        // More is asked of it: the rest that was begun for less is over.
        script.send(conduct(100, false));
        script.send(Command::Start);
        script.until(|_| platform.n_passes() >= n_passes + 5).await;
        let gaps = platform.gaps();
        assert!(gaps[gaps.len() - 4..].iter().all(|gap| *gap < 5 * PASS), "{gaps:?}");
    });
}

/// Each takes 100 ms, so they become smaller until there is nothing to halve; all count by their samples.
#[test]
fn a_gentle_contributor_cuts_its_batches() {
    let backbone = Backbone::new(1, ENDLESS);
    let platform = Clocked::new(&backbone);
    let ((), given) = play_on(&backbone, &*platform, async |mut script| {
        script.send(conduct(100, true));
        script.send(Command::Start);
        script.until(|script| passes(script).iter().any(|pass| pass.n_samples == 1)).await;
        let passes = passes(&script);
        assert!(passes.iter().all(|pass| pass.n_samples <= MICRO_BATCH / 2), "{passes:?}");
        assert!(passes.iter().all(|pass| pass.milliseconds >= 100.0), "{passes:?}");
    });
    assert_eq!((given.n_refused, given.last_refusal), (0, None));
    assert_eq!(given.n_samples_computed, backbone.n_samples_accepted());
}
