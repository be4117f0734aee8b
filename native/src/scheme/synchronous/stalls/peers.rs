//! Simulated contributors, tabs and native peers, with the production driver.
//!
//! A pass is computed at once and takes its time by the clock of the test. Meanwhile the contributor receives nothing:
//! its only thread computes. The timers of a throttled tab are late, too.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use barnraise_contributor::{
    COMMANDS_MAX, Config, ContributorCommand, ContributorEvent, Credentials, Platform, PlatformError,
    contribute,
};
use barnraise_learning::{ComputeDevice, DeviceChoice};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{KeyPair, UnixTime};
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::receipt::Receipt;
use barnraise_simulation::{Cpu, StreamEnd, VirtualNetwork};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Contribution};
use barnraise_swarm::pacing::{Duty, PacingSettings};
use barnraise_swarm::random::SplitMix64;
use futures::channel::mpsc;
use libp2p::PeerId;
use tokio::task::{JoinHandle, spawn_local};

use super::backbone::SimulatedBackbone;
use super::link::StallableLink;
use crate::host::peer_id;

/// Delay of a browser's timers in a hidden tab.
const TIMERS_OF_HIDDEN: Duration = Duration::from_secs(1);

/// Kind of a contributor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContributorRole {
    Tab,
    Native,
}

/// Stage of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PassStage {
    Other,
    /// It has begun, at that moment.
    Begun(Moment),
}

/// One contributor.
pub(super) struct SimulatedContributor {
    pub(super) role: ContributorRole,
    pub(super) id: PeerId,
    group: AddressGroup,
    backbone: Rc<SimulatedBackbone>,
    pub(super) link: Rc<StallableLink>,
    cpu: Cpu,
    /// Stalled until then, also in the middle of a pass.
    stalled_until: Cell<Moment>,
    origin: Moment,
    /// Duration of an undisturbed pass, and the factor by which it is slowed down.
    own_pass: Duration,
    slower: Cell<u32>,
    pub(super) was_slowed: Cell<bool>,
    /// Share of the time in which it computes.
    percent: Cell<u8>,
    stage: Cell<PassStage>,
    shards: RefCell<HashMap<Sha256Hash, Vec<u8>>>,
    commands: RefCell<Option<mpsc::Sender<ContributorCommand>>>,
    task: RefCell<Option<JoinHandle<()>>>,
    pub(super) is_wanted: Cell<bool>,
    /// What its page shows.
    pub(super) told: RefCell<Activity>,
    pub(super) contribution: RefCell<Contribution>,
    pub(super) receipts: RefCell<Vec<Receipt>>,
    /// When its last contribution was accepted.
    pub(super) accepted_at: Cell<Moment>,
    /// Since when it has been undisturbed.
    pub(super) since: Cell<Moment>,
}

struct AsShipped(Rc<SimulatedContributor>);

impl Platform for AsShipped {
    type Stream = StreamEnd;

    fn now(&self) -> Moment {
        let peer = &self.0;
        match peer.stage.replace(PassStage::Other) {
            // Read at the beginning of a pass, which has ended by the clock of the test.
            PassStage::Begun(at) => at - peer.origin,
            PassStage::Other => peer.now() - peer.origin,
        }
    }

    fn unix_time(&self) -> UnixTime {
        UnixTime(1_800_000_000 + (self.0.now() - self.0.origin).as_secs())
    }

    fn device_kind(&self, _: DeviceChoice) -> DeviceKind {
        match self.0.role {
            ContributorRole::Tab => DeviceKind::BrowserCpu,
            ContributorRole::Native => DeviceKind::NativeCpu,
        }
    }

    async fn sleep_until(&self, at: Moment) {
        let at = self.0.origin + at;
        let least = match self.0.role {
            ContributorRole::Tab if self.0.is_slowed() => self.0.now() + TIMERS_OF_HIDDEN,
            ContributorRole::Tab | ContributorRole::Native => at,
        };
        self.0.network().sleep_until(at.max(least)).await;
    }

    /// Called only at the beginning of a pass.
    async fn yield_now(&self) {
        let (peer, now) = (&self.0, self.0.now());
        peer.cpu.stop_until(now + peer.own_pass * peer.slower.get());
        tokio::task::yield_now().await;
        peer.stage.set(PassStage::Begun(now));
    }

    async fn connect(&self) -> Result<Vec<u8>, PlatformError> {
        self.0.link.dial().await?;
        Ok(self.0.backbone.id.to_bytes())
    }

    fn set_other_backbones(&self, _: Vec<String>) {}

    async fn disconnect(&self) {
        self.0.link.hang_up();
    }

    async fn open(&self, protocol: &'static str) -> Result<StreamEnd, PlatformError> {
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

impl SimulatedContributor {
    /// A contributor with this key, whose pass takes `own_pass`; it wants to contribute.
    pub(super) fn start(
        backbone: &Rc<SimulatedBackbone>,
        key: KeyPair,
        (role, number): (ContributorRole, u64),
        (link, own_pass): (Rc<StallableLink>, Duration),
        random: &mut SplitMix64,
    ) -> Rc<Self> {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (cpu, now) = (Cpu::new(link.network()), link.network().now());
        let peer = Rc::new(Self {
            role,
            id: peer_id(key.public()).unwrap(),
            group: AddressGroup(1 + number),
            backbone: Rc::clone(backbone),
            link,
            cpu,
            stalled_until: Cell::new(now),
            origin: now,
            own_pass,
            slower: Cell::new(1),
            was_slowed: Cell::new(false),
            percent: Cell::new(100),
            stage: Cell::new(PassStage::Other),
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
                ContributorEvent::Activity(activity) => drop(peer.told.replace(activity)),
                ContributorEvent::Contribution(given) => drop(peer.contribution.replace(given)),
                ContributorEvent::Receipt(receipt) => {
                    peer.accepted_at.set(peer.now());
                    peer.receipts.borrow_mut().push(receipt.receipt);
                }
                ContributorEvent::Failed { message } => tracing::debug!(message, "told"),
                _ => {}
            };
            contribute(&platform, config, received, tell).await;
        };
        peer.task.replace(Some(spawn_local(peer.cpu.run(task))));
        peer.send(ContributorCommand::Start);
        peer
    }

    fn network(&self) -> &VirtualNetwork {
        self.link.network()
    }

    fn now(&self) -> Moment {
        self.network().now()
    }

    fn send(&self, command: ContributorCommand) {
        if let Some(commands) = &mut *self.commands.borrow_mut() {
            commands.try_send(command).unwrap();
        }
    }

    /// It is disturbed until then.
    pub(super) fn trouble_until(&self, until: Moment) {
        self.since.set(self.since.get().max(until));
    }

    /// Its thread stalls.
    pub(super) fn stall(&self, until: Moment) {
        self.stalled_until.set(until.max(self.stalled_until.get()));
        self.cpu.stop_until(until);
        self.trouble_until(until);
    }

    /// Slows its passes down by a factor from now on, and the rest of the present one.
    pub(super) fn slow(&self, slower: u32) {
        self.was_slowed.set(self.was_slowed.get() || slower > 1);
        let now = self.now();
        let left = self.cpu.stopped_until().saturating_sub(now.max(self.stalled_until.get()));
        let left = left * slower / self.slower.replace(slower);
        let until = now.max(self.stalled_until.get()) + left;
        self.cpu.stop_until(until);
        self.cpu.go_on_at(until);
        self.trouble_until(until);
    }

    pub(super) fn is_slowed(&self) -> bool {
        self.slower.get() > 1
    }

    /// Sets the share of the time in which it computes.
    pub(super) fn work_for(&self, percent: u8) {
        self.percent.set(percent);
        let duty = Duty::of_percent(percent).unwrap();
        self.send(ContributorCommand::Pacing(PacingSettings { duty, ..PacingSettings::default() }));
        self.trouble_until(self.now());
    }

    /// Its user pauses or resumes it.
    pub(super) fn want(&self, is_wanted: bool) {
        if self.is_wanted.replace(is_wanted) != is_wanted {
            self.send(if is_wanted { ContributorCommand::Start } else { ContributorCommand::Stop });
            self.trouble_until(self.now());
        }
    }

    /// Its page becomes visible again.
    pub(super) fn show(&self) {
        if self.role == ContributorRole::Tab {
            self.send(ContributorCommand::Woke);
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

    /// Whether its page says why nothing is accepted: it does not work, or is not connected and says when it tries again.
    pub(super) fn says_why_not(&self) -> bool {
        match &*self.told.borrow() {
            Activity::Idle
            | Activity::Stopping
            | Activity::NotAdmitted { .. }
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
            | Activity::WaitingForOthers { .. }
            | Activity::WaitingForTurn { .. }
            | Activity::Averaging { .. } => false,
        }
    }

    /// Whether its page says that the run goes on without it.
    pub(super) fn is_missed(&self) -> bool {
        self.contribution.borrow().steps_missed().is_some()
    }

    /// Delivers finished work, and ends.
    pub(super) async fn end(&self) {
        self.commands.take();
        let task = self.task.take().unwrap();
        task.await.unwrap();
    }
}
