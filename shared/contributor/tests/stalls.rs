//! A contributor that computes has something accepted, or is told why not, in virtual time: contributors and the backbone stand
//! still for seconds at random moments, are slow in between, are stopped and started, and work for a part of the time.
//!
//! The contributors are the driver that the tab and the native peer ship, over the conversations as they are, with real
//! gradients of a tiny model; the backbone is its averaging round behind the same conversations. Time passes where
//! somebody waits, and in each pass, in which a contributor hears nothing: its only thread computes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod backbone;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use barnraise_contributor::{COMMANDS_MAX, Command, Config, Credentials, Event, Platform, contribute};
use barnraise_learning::{ComputeDevice, DeviceChoice};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_swarm::activity::Activity;
use barnraise_swarm::conduct::{Conduct, Duty};
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::{Moment, PeerKey};
use futures::channel::mpsc;
use tokio::task::spawn_local;

use backbone::{Backbone, CutStream, Halting, MICRO_BATCH, TestPlatform, clock, contributor_key};

const N_SEEDS: u64 = 500;
/// How long there is trouble, and how long none afterwards.
const TROUBLE: Duration = Duration::from_secs(45);
const CALM: Duration = Duration::from_secs(35);
/// Micro-batches of a step.
const STEP_PASSES: u32 = 4;
const COLLECT: Duration = Duration::from_secs(2);
/// The slowest peer's pass at its own speed, and so many times slower it may become.
const PASS_MS_MAX: usize = 900;
const SLOWER_MAX: usize = 8;
/// The longest that anybody stands still.
const STALL_MS_MAX: usize = 20_000;
/// From one trouble to the next.
const PAUSE_MS_MAX: usize = 6000;
/// Longer than a contributor waits until it dials a backbone again that did not answer.
const DIALS_AGAIN: Duration = Duration::from_secs(21);

/// One contributor as the world around it sees it.
struct Peer {
    platform: TestPlatform,
    /// It stands still until then.
    halted_until: Rc<Cell<Moment>>,
    pass: Cell<Duration>,
    /// Where it is in a pass: it has begun, and it has ended.
    stage: Cell<u8>,
    began: Cell<Moment>,
    commands: RefCell<mpsc::Sender<Command>>,
    told: RefCell<Activity>,
    n_accepted: Cell<u64>,
    /// It was told that the run goes on without it.
    is_missed: Cell<bool>,
    is_wanted: Cell<bool>,
    /// Since when nothing has been against its computing.
    since: Cell<Moment>,
}

/// On which a pass holds the only thread for as long as it takes.
struct Busy(Rc<Peer>);

impl Platform for Busy {
    type Stream = CutStream;

    fn now(&self) -> Moment {
        let peer = &self.0;
        match peer.stage.get() {
            // Asked when the pass begins, which is over by the clock of the world.
            1 => {
                peer.stage.set(0);
                peer.began.get()
            }
            _ => peer.platform.now(),
        }
    }

    fn unix_time(&self) -> UnixTime {
        self.0.platform.unix_time()
    }

    fn device_kind(&self, choice: DeviceChoice) -> DeviceKind {
        self.0.platform.device_kind(choice)
    }

    async fn sleep_until(&self, at: Moment) {
        self.0.platform.sleep_until(at).await;
    }

    /// Nothing but a pass begins so.
    async fn yield_now(&self) {
        let peer = &self.0;
        peer.began.set(peer.platform.now());
        let until = clock::now() + peer.pass.get();
        peer.halted_until.set(until.max(peer.halted_until.get()));
        tokio::task::yield_now().await;
        peer.stage.set(1);
    }

    async fn connect(&self) -> Result<Vec<u8>, String> {
        self.0.platform.connect().await
    }

    fn elsewhere(&self, addresses: Vec<String>) {
        self.0.platform.elsewhere(addresses);
    }

    async fn disconnect(&self) {
        self.0.platform.disconnect().await;
    }

    async fn open(&self, protocol: &'static str) -> Result<CutStream, String> {
        self.0.platform.open(protocol).await
    }

    async fn cached(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        self.0.platform.cached(sha256).await
    }

    async fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) {
        self.0.platform.cache(sha256, bytes).await;
    }
}

impl Peer {
    fn start(backbone: &Rc<Backbone>, number: u8, random: &mut SplitMix64) -> Rc<Self> {
        let mut platform = Rc::into_inner(TestPlatform::new(backbone)).unwrap();
        platform.peer = PeerKey(vec![number]);
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let pass = Duration::from_millis(100 + random.below(PASS_MS_MAX - 100) as u64);
        let peer = Rc::new(Self {
            platform,
            halted_until: Rc::new(Cell::new(Moment::ZERO)),
            pass: Cell::new(pass),
            stage: Cell::new(0),
            began: Cell::new(Moment::ZERO),
            commands: RefCell::new(commands),
            told: RefCell::new(Activity::Idle),
            n_accepted: Cell::new(0),
            is_missed: Cell::new(false),
            is_wanted: Cell::new(true),
            since: Cell::new(clock::now()),
        });
        let config = Config {
            device: ComputeDevice::cpu(),
            is_device_free: false,
            first_contribution_id: 1,
            seed: random.next_u64(),
            credentials: Credentials { key: Some(contributor_key()), invitation: None },
        };
        let hearing = Rc::clone(&peer);
        let task = Box::pin(async move {
            let platform = Busy(Rc::clone(&hearing));
            let tell = |event| match event {
                Event::Activity(activity) => drop(hearing.told.replace(activity)),
                Event::Contribution(given) => {
                    hearing.n_accepted.set(given.n_accepted);
                    hearing.is_missed.set(given.steps_missed().is_some());
                }
                _ => {}
            };
            contribute(&platform, config, received, tell).await;
        });
        spawn_local(Halting { halted_until: Rc::clone(&peer.halted_until), task, sleep: None });
        peer.send(Command::Start);
        peer
    }

    fn send(&self, command: Command) {
        self.commands.borrow_mut().try_send(command).unwrap();
    }

    /// Something is against its computing until then.
    fn trouble_until(&self, until: Moment) {
        self.since.set(self.since.get().max(until));
    }

    /// Whether its page says why nothing comes of it: it is not at work, or has no connection and says when it tries again.
    fn says_why_not(&self) -> bool {
        match &*self.told.borrow() {
            Activity::Idle
            | Activity::Stopping
            | Activity::Broken { .. }
            | Activity::Connecting
            | Activity::Reconnecting { .. } => true,
            Activity::SigningIn { .. }
            | Activity::FetchingModel { .. }
            | Activity::FetchingData { .. }
            | Activity::WarmingUp
            | Activity::Training { .. }
            | Activity::Sending { .. }
            | Activity::BeingChecked { .. }
            | Activity::WaitingForOthers { .. } => false,
        }
    }
}

/// Until something is accepted where one contributor computes that nothing befalls: what it was at when the trouble was
/// over, a step alone, three waits for others, and the way there.
fn accepted_within(pass: Duration) -> Duration {
    (2 * STEP_PASSES + 2) * pass + 3 * COLLECT + Duration::from_secs(2)
}

/// What befalls one of them, or the backbone, at random; until when.
fn befall(random: &mut SplitMix64, peers: &[(Rc<Peer>, Duration)], backbone: &Backbone) {
    let now = clock::now();
    let whom = random.below(peers.len() + 1);
    let stall = Duration::from_millis(100 + random.below(STALL_MS_MAX) as u64);
    let Some((peer, own_pass)) = peers.get(whom) else {
        let until = now + stall / 2;
        backbone.halted_until.set(until.max(backbone.halted_until.get()));
        // Those who noticed dial again, in a while.
        peers.iter().for_each(|(peer, _)| peer.trouble_until(until + DIALS_AGAIN));
        return;
    };
    match random.below(5) {
        0 | 1 => {
            let until = now + stall;
            peer.halted_until.set(until.max(peer.halted_until.get()));
            peer.trouble_until(until);
        }
        2 => peer.pass.set(*own_pass * (1 + random.below(SLOWER_MAX) as u32)),
        3 => {
            let is_wanted = !peer.is_wanted.get();
            peer.is_wanted.set(is_wanted);
            peer.send(if is_wanted { Command::Start } else { Command::Stop });
            peer.trouble_until(now);
        }
        _ => {
            let duty = Duty::of_percent([100, 50, 25][random.below(3)]).unwrap();
            peer.send(Command::Conduct(Conduct { duty, ..Conduct::default() }));
        }
    }
}

/// So many moments in which something had to come.
async fn world(seed: u64) -> u64 {
    let mut random = SplitMix64::new(seed);
    let target = STEP_PASSES * MICRO_BATCH;
    let backbone = Backbone::small(target, |run, round| {
        // A contribution may be so large that nobody fills it in time.
        (run.contribution_samples_max, round.contribution_samples_max) = (1 << 20, 1 << 20);
        round.micro_batch_size = MICRO_BATCH;
        round.collect_timeout = COLLECT;
        round.is_open = seed / 4 % 2 == 1;
    });
    spawn_local(Rc::clone(&backbone).keep_time());
    let n_peers = 1 + seed as u8 % 4;
    let peers: Vec<(Rc<Peer>, Duration)> = (0..n_peers)
        .map(|number| {
            let peer = Peer::start(&backbone, number, &mut random);
            let pass = peer.pass.get();
            (peer, pass)
        })
        .collect();
    let began = clock::now();
    let (mut n_accepted, mut accepted_at, mut n_checked) = (0, began, 0);
    let mut next_trouble = began;
    let mut is_calm = false;
    while (clock::now() - began) < TROUBLE + CALM {
        clock::sleep_until(clock::now() + Duration::from_millis(50)).await;
        let now = clock::now();
        if now >= next_trouble && (clock::now() - began) < TROUBLE {
            befall(&mut random, &peers, &backbone);
            next_trouble = now + Duration::from_millis(random.below(PAUSE_MS_MAX) as u64);
        } else if (clock::now() - began) >= TROUBLE && !std::mem::replace(&mut is_calm, true) {
            for (peer, own_pass) in &peers {
                peer.pass.set(*own_pass);
                peer.send(Command::Conduct(Conduct::default()));
                if !peer.is_wanted.replace(true) {
                    peer.send(Command::Start);
                }
            }
        }
        let n_now = backbone.accepted.borrow().len();
        if n_now > n_accepted {
            (n_accepted, accepted_at) = (n_now, now);
        }
        for (peer, own_pass) in &peers {
            // One that rests or is slow takes longer over its passes, which is not what is looked at.
            if peer.says_why_not() || peer.pass.get() != *own_pass || !peer.is_wanted.get() {
                peer.trouble_until(now);
            }
            let within = accepted_within(*own_pass) * if is_calm { 1 } else { 4 };
            if now < peer.since.get() + within {
                continue;
            }
            n_checked += 1;
            let told = peer.told.borrow();
            let waited = now - accepted_at.max(peer.since.get());
            assert!(
                waited <= within,
                "seed {seed}, {:?}: nothing was accepted for {waited:?}, peer {:?} says {told:?}: {}",
                (clock::now() - began),
                peer.platform.peer,
                backbone.describe()
            );
        }
    }
    // In the end all of them gave something, or know that they are too slow for the others.
    for (peer, _) in &peers {
        let is_fair = peer.n_accepted.get() > 0 || peer.is_missed.get();
        assert!(is_fair, "seed {seed}: {:?} gave nothing and was not told", peer.platform.peer);
    }
    n_checked
}

#[test]
fn whoever_computes_has_something_accepted_within_a_stated_time_or_is_told_why_not() {
    let mut n_checked = 0;
    for seed in 0..N_SEEDS {
        println!("seed {seed}");
        n_checked += clock::in_virtual_time(world(seed));
    }
    assert!(n_checked > N_SEEDS * 100, "{n_checked} moments in which something had to come");
}
