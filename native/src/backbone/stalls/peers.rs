//! Contributors as they ship, a tab or a native peer, as the world around them sees them.
//!
//! A pass is computed at once and takes its time by the clock of the test, in which the contributor hears nothing: its only
//! thread computes. A tab that is throttled has its timers late, too.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use barnraise_contributor::{COMMANDS_MAX, Command, Config, Credentials, Event, Platform, contribute};
use barnraise_learning::{ComputeDevice, DeviceChoice};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{KeyPair, UnixTime};
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::receipt::Receipt;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Contribution};
use barnraise_swarm::conduct::{Conduct, Duty};
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::round::AddressGroup;
use futures::channel::mpsc;
use libp2p::PeerId;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::Instant;

use super::backbone::Backbone;
use super::link::{End, Halt, Halting, Link};
use crate::access::peer_id;

/// How late a browser's timers are in a tab that nobody sees.
const TIMERS_OF_HIDDEN: Duration = Duration::from_secs(1);

/// What a contributor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Tab,
    Native,
}

/// Where it is in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Other,
    /// It has begun, at that moment.
    Begun(Instant),
}

/// One contributor.
pub(super) struct Peer {
    pub(super) role: Role,
    pub(super) id: PeerId,
    group: AddressGroup,
    backbone: Rc<Backbone>,
    pub(super) link: Rc<Link>,
    halt: Rc<Halt>,
    /// It stands still until then, also in the middle of a pass.
    stalled_until: Cell<Instant>,
    origin: Instant,
    /// How long a pass takes where nothing slows it down, and so many times longer it takes.
    own_pass: Duration,
    slower: Cell<u32>,
    pub(super) was_slowed: Cell<bool>,
    /// The part of the time in which it computes.
    percent: Cell<u8>,
    stage: Cell<Stage>,
    shards: RefCell<HashMap<Sha256Hash, Vec<u8>>>,
    commands: RefCell<Option<mpsc::Sender<Command>>>,
    task: RefCell<Option<JoinHandle<()>>>,
    pub(super) is_wanted: Cell<bool>,
    /// What its page shows.
    pub(super) told: RefCell<Activity>,
    pub(super) contribution: RefCell<Contribution>,
    pub(super) receipts: RefCell<Vec<Receipt>>,
    /// When something of it was accepted last.
    pub(super) accepted_at: Cell<Instant>,
    /// Since when nothing has been against its computing.
    pub(super) since: Cell<Instant>,
}

struct AsShipped(Rc<Peer>);

impl Platform for AsShipped {
    type Stream = End;

    fn now(&self) -> Moment {
        let peer = &self.0;
        match peer.stage.replace(Stage::Other) {
            // Asked when the pass begins, which is over by the clock of the world.
            Stage::Begun(at) => at - peer.origin,
            Stage::Other => peer.origin.elapsed(),
        }
    }

    fn unix_time(&self) -> UnixTime {
        UnixTime(1_800_000_000 + self.0.origin.elapsed().as_secs())
    }

    fn device_kind(&self, _: DeviceChoice) -> DeviceKind {
        match self.0.role {
            Role::Tab => DeviceKind::BrowserCpu,
            Role::Native => DeviceKind::NativeCpu,
        }
    }

    async fn sleep_until(&self, at: Moment) {
        let at = self.0.origin + at;
        let least = match self.0.role {
            Role::Tab if self.0.is_slowed() => Instant::now() + TIMERS_OF_HIDDEN,
            Role::Tab | Role::Native => at,
        };
        tokio::time::sleep_until(at.max(least)).await;
    }

    /// Nothing but a pass begins so.
    async fn yield_now(&self) {
        let (peer, now) = (&self.0, Instant::now());
        peer.halt.stand_until(now + peer.own_pass * peer.slower.get());
        tokio::task::yield_now().await;
        peer.stage.set(Stage::Begun(now));
    }

    async fn connect(&self) -> Result<Vec<u8>, String> {
        self.0.link.dial().await?;
        Ok(self.0.backbone.id.to_bytes())
    }

    fn elsewhere(&self, _: Vec<String>) {}

    async fn disconnect(&self) {
        self.0.link.hang_up();
    }

    async fn open(&self, protocol: &'static str) -> Result<End, String> {
        let (near, far) = self.0.link.open().await?;
        self.0.backbone.serve((self.0.id, self.0.group), protocol, far);
        Ok(near)
    }

    async fn cached(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        self.0.shards.borrow().get(&sha256).cloned()
    }

    async fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) {
        self.0.shards.borrow_mut().insert(sha256, bytes.to_vec());
    }
}

impl Peer {
    /// A contributor with this key, whose pass takes `own_pass`; it wants to contribute.
    pub(super) fn start(
        backbone: &Rc<Backbone>,
        key: KeyPair,
        (role, number): (Role, u64),
        (link, own_pass): (Rc<Link>, Duration),
        random: &mut SplitMix64,
    ) -> Rc<Self> {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let now = Instant::now();
        let peer = Rc::new(Self {
            role,
            id: peer_id(key.public()).unwrap(),
            group: AddressGroup(1 + number),
            backbone: Rc::clone(backbone),
            link,
            halt: Halt::new(),
            stalled_until: Cell::new(now),
            origin: now,
            own_pass,
            slower: Cell::new(1),
            was_slowed: Cell::new(false),
            percent: Cell::new(100),
            stage: Cell::new(Stage::Other),
            shards: RefCell::default(),
            commands: RefCell::new(Some(commands)),
            task: RefCell::default(),
            is_wanted: Cell::new(true),
            told: RefCell::new(Activity::Idle),
            contribution: RefCell::default(),
            receipts: RefCell::default(),
            accepted_at: Cell::new(now),
            since: Cell::new(now),
        });
        let config = Config {
            device: ComputeDevice::cpu(),
            is_device_free: false,
            first_contribution_id: 1,
            seed: random.next_u64(),
            credentials: Credentials { key: Some(key), invitation: None },
        };
        let platform = AsShipped(Rc::clone(&peer));
        let task = async move {
            let peer = Rc::clone(&platform.0);
            let tell = |event| match event {
                Event::Activity(activity) => drop(peer.told.replace(activity)),
                Event::Contribution(given) => drop(peer.contribution.replace(given)),
                Event::Receipt(receipt) => {
                    peer.accepted_at.set(Instant::now());
                    peer.receipts.borrow_mut().push(receipt.receipt);
                }
                Event::Failed { message } => tracing::debug!(message, "told"),
                _ => {}
            };
            contribute(&platform, config, received, tell).await;
        };
        peer.task.replace(Some(spawn_local(Halting::new(&peer.halt, task))));
        peer.send(Command::Start);
        peer
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &mut *self.commands.borrow_mut() {
            commands.try_send(command).unwrap();
        }
    }

    /// Something is against its computing until then.
    pub(super) fn trouble_until(&self, until: Instant) {
        self.since.set(self.since.get().max(until));
    }

    /// Its thread stands still.
    pub(super) fn stall(&self, until: Instant) {
        self.stalled_until.set(until.max(self.stalled_until.get()));
        self.halt.stand_until(until);
        self.trouble_until(until);
    }

    /// Its passes take so many times as long from now on, and what is left of the one that is computed as well.
    pub(super) fn slow(&self, slower: u32) {
        self.was_slowed.set(self.was_slowed.get() || slower > 1);
        let now = Instant::now();
        let left = self.halt.until().saturating_duration_since(now.max(self.stalled_until.get()));
        let left = left * slower / self.slower.replace(slower);
        let until = now.max(self.stalled_until.get()) + left;
        self.halt.stand_until(until);
        self.halt.go_on_at(until);
        self.trouble_until(until);
    }

    pub(super) fn is_slowed(&self) -> bool {
        self.slower.get() > 1
    }

    /// It computes so much of the time.
    pub(super) fn work_for(&self, percent: u8) {
        self.percent.set(percent);
        let duty = Duty::of_percent(percent).unwrap();
        self.send(Command::Conduct(Conduct { duty, ..Conduct::default() }));
        self.trouble_until(Instant::now());
    }

    /// Somebody pauses it, or has it go on.
    pub(super) fn want(&self, is_wanted: bool) {
        if self.is_wanted.replace(is_wanted) != is_wanted {
            self.send(if is_wanted { Command::Start } else { Command::Stop });
            self.trouble_until(Instant::now());
        }
    }

    /// A page that is seen again says so.
    pub(super) fn show(&self) {
        if self.role == Role::Tab {
            self.send(Command::Woke);
        }
    }

    /// From one pass to the next, with the rest after it.
    pub(super) fn pass(&self) -> Duration {
        self.own_pass * self.slower.get() * 100 / u32::from(self.percent.get())
    }

    /// Whether nothing slows it down.
    pub(super) fn is_at_its_own_pace(&self) -> bool {
        self.pass() == self.own_pass
    }

    /// Whether its page says why nothing comes of it: it is not at work, or has no connection and says when it tries again.
    pub(super) fn says_why_not(&self) -> bool {
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

    /// Whether its page says that the run goes on without it.
    pub(super) fn is_missed(&self) -> bool {
        self.contribution.borrow().steps_missed().is_some()
    }

    /// Hands in what is finished, and ends.
    pub(super) async fn end(&self) {
        self.commands.take();
        let task = self.task.take().unwrap();
        task.await.unwrap();
    }
}
