//! The loop of a contributor: wait for anything, let the state machine decide, start what it wants.
//!
//! At any time there is at most one operation on the network, one on the device and one shard transfer, beside the
//! session, which is always read. Completions are handled in the order in which they come.

mod background;
mod offline;
mod outcomes;
mod publish;
mod shards;
mod sleep;
mod start;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use barnraise_learning::{ComputeDevice, DeviceChoice, Trainer};
use barnraise_protocol::DisplayName;
use barnraise_protocol::bulk::Partial;
use barnraise_protocol::contribute::{BackboneToContributor, OTHER_BACKBONES_MAX};
use barnraise_protocol::framing::FrameError;
use barnraise_protocol::gradient::PreparedContribution;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::state::{EpochParameters, PartialState};
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Contribution, Interruption};
use barnraise_swarm::compression::Compressor;
use barnraise_swarm::contributor::{Contributor, STOP_TIMEOUT};
use barnraise_swarm::pacing::{Pacer, PassTime};
use barnraise_swarm::rhythm::OWN_STALL_MIN;
use barnraise_swarm::samples::SampleStream;
use barnraise_swarm::shards::Exchange;
use barnraise_swarm::uplink::Uplink;
use futures::channel::{mpsc, oneshot};
use futures::future::{Fuse, FutureExt, LocalBoxFuture};
use futures::select_biased;
use futures::stream::StreamExt;

use crate::access::{AccessTicket, Credentials};
use crate::commitment::CommitmentSigner;
use crate::compute::ComputeOutcome;
use crate::event::{ContributorCommand, ContributorEvent};
use crate::meter::TrafficMeter;
use crate::network::{self, NetOutcome, SessionReader, SessionWriter, ShardOutcome, TransferProgress};
use crate::operation::{CountedStream, NetworkOperation};
use crate::platform::Platform;
use crate::speed::Speed;
use background::BackgroundRequest;
use publish::Published;
use sleep::SleepWatch;

/// Interval between looks at a running operation.
const TICK: Duration = Duration::from_millis(200);
/// An unused connection is closed after so long.
const IDLE_LINK_MAX: Duration = Duration::from_secs(60);
/// Pause before a failed shard is fetched again.
const SHARD_RETRY: Duration = Duration::from_secs(1);
/// How long a computation on a lost device may take to report the loss.
const LOST_DEVICE_GRACE: Duration = Duration::from_secs(2);

/// Configuration of a contributor.
#[derive(Debug, Clone)]
pub struct Config {
    /// The device that computes; when it is lost, the CPU takes over.
    pub device: ComputeDevice,
    /// Whether the CPU may compute instead where it turns out to be faster.
    pub is_device_free: bool,
    /// First contribution id; the following ones count up. This peer's key must have used none of them, so it is drawn
    /// at random: a clock may be set back. It is below 2^52, since a page counts in JavaScript's numbers.
    pub first_contribution_id: u64,
    /// Decides the order of the data and the jitter of reconnections.
    pub seed: u64,
    /// Credentials for runs that are not open.
    pub credentials: Credentials,
}

/// Contributes as `commands` say until their channel closes; then delivers finished work.
pub async fn contribute<P: Platform>(
    platform: &P,
    config: Config,
    commands: mpsc::Receiver<ContributorCommand>,
    events: impl FnMut(ContributorEvent),
) -> Contribution {
    let mut driver = Driver::new(platform, config, commands, events);
    loop {
        driver.step();
        driver.publish(false);
        if driver.is_finished() {
            break;
        }
        driver.arm_timer();
        let wake = driver.wait().await;
        driver.on_wake(wake);
    }
    driver.publish(true);
    platform.disconnect().await;
    driver.contribution()
}

type FusedTask<'a, T> = Fuse<LocalBoxFuture<'a, T>>;
type SessionMessage<P> = (SessionReader<P>, Result<BackboneToContributor, FrameError>);

/// The operation in progress on the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NetKind {
    Connect {
        is_joining: bool,
    },
    /// For the state machine, or for a background request.
    State {
        is_background: bool,
    },
    Report,
    /// Renewal of the access token.
    Renew,
    Offer {
        epoch: u64,
    },
    Leave,
    /// Reads what an earlier visit cached, while no backbone answers.
    Offline,
}

/// The operation in progress on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComputeKind {
    /// Compares two devices before the first batch.
    Trial,
    Batch,
    Gradient,
    Prediction,
}

/// A connection to a backbone, with its streams.
struct BackboneConnection<P: Platform> {
    id: u64,
    session: Option<SessionWriter<P>>,
    /// Whether anything was received over it.
    is_proven: bool,
    state: Option<CountedStream<P>>,
    gradient: Option<CountedStream<P>>,
    shard: Option<CountedStream<P>>,
    used_at: Moment,
}

/// The run that is described, and everything that belongs to it.
struct RunContext {
    description: Rc<RunDescription>,
    /// Of its model.
    n_parameters: usize,
    /// `None` while it is in use.
    trainer: Option<Trainer>,
    compressor: Compressor,
    /// `None` unless the run recomputes contributions.
    commitment_signer: Option<CommitmentSigner>,
    /// A contribution that was too late for its epoch, to be offered unchanged in a later one.
    late: Option<Rc<PreparedContribution>>,
    /// Epoch of the parameters in the trainer, and the time of their arrival.
    loaded: Option<(u64, Moment)>,
    /// Parameters that wait for the trainer, and whether they are for a background request.
    waiting_parameters: Option<(EpochParameters, bool)>,
    /// Parameters for the next epoch's gradients.
    next_parameters: Option<EpochParameters>,
    /// Whether the trainer has computed anything on its device.
    is_warm: bool,
    samples: SampleStream,
    exchange: Exchange,
    /// No shard is requested before the first survey of its holders, or before this moment.
    survey_by: Option<Moment>,
    /// An interrupted shard is resumed before any other.
    wanted_shard: Option<ShardId>,
    partial_state: Option<PartialState>,
    partial_shard: Option<(ShardId, Partial)>,
}

/// A completed operation.
enum Wake<P: Platform> {
    Command(Option<ContributorCommand>),
    SessionMessage(SessionMessage<P>),
    Net(NetOutcome<P>),
    Compute(Box<ComputeOutcome>),
    Shard(ShardOutcome<P>),
    Timer,
}

struct Driver<'a, P: Platform, F> {
    platform: &'a P,
    commands: mpsc::Receiver<ContributorCommand>,
    events: F,
    device: ComputeDevice,
    is_device_free: bool,
    /// Name on the leaderboard.
    name: Option<DisplayName>,
    /// Device and name that the session announced.
    joined_as: Option<(DeviceChoice, Option<DisplayName>)>,
    seed: u64,
    contributor: Contributor,
    ticket: Rc<AccessTicket>,
    meter: Rc<TrafficMeter>,
    uplink: Uplink,
    speed: Speed,
    pacer: Pacer,
    /// Time of the newest pass.
    pass: Option<PassTime>,
    loss: Option<f32>,
    run: Option<RunContext>,
    link: Option<BackboneConnection<P>>,
    /// Peer id of the backbone that was dialled last, in bytes.
    backbone: Option<Vec<u8>>,
    /// Whether the run has other backbones.
    has_other_backbones: bool,
    n_links: u64,
    prepared: Option<Rc<PreparedContribution>>,
    /// An offer of `prepared` was cut before its answer: the backbone may have counted it.
    is_offer_cut: bool,
    requests: VecDeque<BackgroundRequest>,
    /// When parameters were cached last.
    cached_at: Option<Moment>,

    session: FusedTask<'a, SessionMessage<P>>,
    net: FusedTask<'a, NetOutcome<P>>,
    net_kind: Option<NetKind>,
    net_cancel: Option<oneshot::Sender<()>>,
    net_progress: TransferProgress,
    /// Set while the backbone recomputes the offered contribution: how many more of this peer's it will recompute in any
    /// case.
    checking: Rc<Cell<Option<u32>>>,
    compute: FusedTask<'a, ComputeOutcome>,
    compute_kind: Option<ComputeKind>,
    lost_at: Option<Moment>,
    shard: FusedTask<'a, ShardOutcome<P>>,
    shard_id: Option<ShardId>,
    shard_cancel: Option<oneshot::Sender<()>>,
    shard_progress: TransferProgress,
    shard_retry_at: Moment,
    timer: FusedTask<'a, ()>,
    timer_at: Option<Moment>,

    /// When the state machine has its next action.
    wait_until: Option<Moment>,
    /// End of the last known interval in which this contributor processed no messages.
    deaf_until: Moment,
    /// Bytes received from the backbone at the last check.
    bytes_received: u64,
    sleep_watch: SleepWatch,
    is_idle: bool,
    is_starved: bool,
    is_closed: bool,
    stop_deadline: Option<Moment>,
    /// The activity that it ended with: [`Activity::NotAdmitted`] or [`Activity::Broken`].
    fatal_error: Option<Activity>,
    published: Published,
}

impl<'a, P: Platform, F: FnMut(ContributorEvent)> Driver<'a, P, F> {
    fn new(platform: &'a P, config: Config, commands: mpsc::Receiver<ContributorCommand>, events: F) -> Self {
        Self {
            platform,
            commands,
            events,
            device: config.device,
            is_device_free: config.is_device_free,
            name: None,
            joined_as: None,
            seed: config.seed,
            contributor: Contributor::new(config.first_contribution_id, config.seed),
            ticket: Rc::new(AccessTicket::new(config.credentials)),
            meter: Rc::default(),
            uplink: Uplink::default(),
            speed: Speed::default(),
            pacer: Pacer::default(),
            pass: None,
            loss: None,
            run: None,
            link: None,
            backbone: None,
            has_other_backbones: false,
            n_links: 0,
            prepared: None,
            is_offer_cut: false,
            requests: VecDeque::new(),
            cached_at: None,
            session: Fuse::terminated(),
            net: Fuse::terminated(),
            net_kind: None,
            net_cancel: None,
            net_progress: Rc::default(),
            checking: Rc::default(),
            compute: Fuse::terminated(),
            compute_kind: None,
            lost_at: None,
            shard: Fuse::terminated(),
            shard_id: None,
            shard_cancel: None,
            shard_progress: Rc::default(),
            shard_retry_at: Moment::ZERO,
            timer: Fuse::terminated(),
            timer_at: None,
            wait_until: None,
            deaf_until: Moment::ZERO,
            bytes_received: 0,
            sleep_watch: SleepWatch::default(),
            is_idle: true,
            is_starved: false,
            is_closed: false,
            stop_deadline: None,
            fatal_error: None,
            published: Published::default(),
        }
    }

    /// Waits for the first completion. The session has priority over the operations that it may change.
    async fn wait(&mut self) -> Wake<P> {
        select_biased! {
            command = self.commands.next() => Wake::Command(command),
            message = &mut self.session => Wake::SessionMessage(message),
            outcome = &mut self.net => Wake::Net(outcome),
            outcome = &mut self.shard => Wake::Shard(outcome),
            () = &mut self.timer => Wake::Timer,
            outcome = &mut self.compute => Wake::Compute(Box::new(outcome)),
            complete => Wake::Command(None),
        }
    }

    fn on_wake(&mut self, wake: Wake<P>) {
        self.notice_sleep();
        self.notice_deafness();
        match wake {
            Wake::Command(Some(command)) => self.on_command(command),
            Wake::Command(None) => {
                self.is_closed = true;
                self.requests.clear();
                self.stop();
            }
            Wake::SessionMessage((reader, message)) => self.on_message(reader, message),
            Wake::Net(outcome) => self.on_net(outcome),
            Wake::Compute(outcome) => self.on_compute(*outcome),
            Wake::Shard(outcome) => self.on_shard(outcome),
            Wake::Timer => self.on_timer(),
        }
    }

    fn on_command(&mut self, command: ContributorCommand) {
        match command {
            ContributorCommand::Start => {
                self.fatal_error = None;
                self.stop_deadline = None;
                self.contributor.start(self.platform.now());
                self.is_idle = false;
            }
            ContributorCommand::Stop => self.stop(),
            ContributorCommand::Pacing(conduct) => self.pacer.set(conduct),
            ContributorCommand::Name(name) => self.name = name,
            ContributorCommand::Predict { request, pixels } => {
                self.push_request(BackgroundRequest::Predict { request, pixels });
            }
            ContributorCommand::LoadGallery => self.push_request(BackgroundRequest::Gallery),
            ContributorCommand::Woke => self.on_woke(false),
        }
    }

    fn stop(&mut self) {
        let now = self.platform.now();
        if self.is_idle {
            return;
        }
        self.contributor.stop(now);
        self.stop_deadline = Some(now + STOP_TIMEOUT);
        self.cancel_shard();
        // Finished work is still delivered; nothing new is fetched.
        if matches!(
            self.net_kind,
            Some(NetKind::Connect { is_joining: true } | NetKind::State { is_background: false })
        ) {
            self.cancel_net();
        }
    }

    fn on_message(&mut self, reader: SessionReader<P>, message: Result<BackboneToContributor, FrameError>) {
        let now = self.platform.now();
        let message = match message {
            Ok(message) => message,
            Err(error) => {
                self.disconnect(Interruption::other(error));
                return;
            }
        };
        self.session = network::listen::<P>(reader).boxed_local().fuse();
        self.contributor.on_message(now);
        match message {
            BackboneToContributor::Welcome(progress) | BackboneToContributor::Progress(progress) => {
                (self.events)(ContributorEvent::Progress(progress));
            }
            BackboneToContributor::EpochStarted(epoch) => self.contributor.on_epoch(epoch),
            BackboneToContributor::GradientDue(epoch) => self.contributor.on_due(epoch),
            BackboneToContributor::Refused(refusal) => (self.events)(ContributorEvent::Refused { refusal }),
            BackboneToContributor::OtherBackbones(mut addresses) => {
                addresses.truncate(OTHER_BACKBONES_MAX);
                self.has_other_backbones = !addresses.is_empty();
                self.contributor.set_others(self.has_other_backbones);
                self.platform.set_other_backbones(addresses);
            }
        }
    }

    fn on_timer(&mut self) {
        self.timer_at = None;
        let now = self.platform.now();
        if self.stop_deadline.is_some_and(|deadline| now >= deadline) {
            self.cancel_net();
        }
        if self.compute_kind.is_some() && self.device.is_lost() {
            let lost_at = *self.lost_at.get_or_insert(now);
            if now.saturating_sub(lost_at) >= LOST_DEVICE_GRACE {
                // The computation will never end; it is dropped with all that it holds.
                self.compute = Fuse::terminated();
                let kind = self.compute_kind.take();
                self.on_device_lost(kind, "it stopped answering");
            }
        }
    }

    /// Time in which this contributor processed nothing does not count as silence of the backbone.
    fn notice_deafness(&mut self) {
        let now = self.platform.now();
        let Some(at) = self.timer_at else { return };
        let deaf = now.saturating_sub(at.max(self.deaf_until));
        if deaf >= OWN_STALL_MIN {
            self.deaf_until = now;
            self.contributor.on_own_stall(now, deaf);
        }
    }

    /// Drops a silent connection, with all its operations.
    fn notice_silence(&mut self) {
        if self.link.is_none() {
            return;
        }
        let now = self.platform.now();
        let bytes_heard = self.meter.down_from_backbone();
        if std::mem::replace(&mut self.bytes_received, bytes_heard) != bytes_heard {
            self.contributor.on_partial_message(now);
        }
        if self.contributor.is_silent(now) {
            self.disconnect(Interruption::Silent);
        }
    }

    /// The connection failed.
    fn disconnect(&mut self, reason: Interruption) {
        self.drop_link();
        self.contributor.on_disconnected(self.platform.now(), reason);
    }

    fn drop_link(&mut self) {
        self.link = None;
        self.session = Fuse::terminated();
        self.cancel_net();
        self.cancel_shard();
    }

    fn cancel_net(&mut self) {
        self.net_cancel = None;
    }

    fn cancel_shard(&mut self) {
        self.shard_cancel = None;
    }

    fn operation(&self) -> (NetworkOperation<'a, P>, oneshot::Sender<()>) {
        let (cancel, cancelled) = oneshot::channel();
        let meter = Rc::clone(&self.meter);
        (NetworkOperation { platform: self.platform, meter, cancelled }, cancel)
    }

    /// Ends contributing, for a reason that a retry cannot fix.
    fn give_up(&mut self, reason: Interruption) {
        self.end_as(&reason.clone(), Activity::Broken { reason });
    }

    fn end_as(&mut self, reason: &Interruption, end: Activity) {
        self.fatal_error = Some(end);
        self.drop_link();
        let now = self.platform.now();
        self.prepared = None;
        self.contributor.on_gradient_lost();
        self.contributor.on_trainer_lost();
        self.contributor.stop(now);
        self.fail_requests(reason);
    }

    fn fail(&mut self, message: String) {
        (self.events)(ContributorEvent::Failed { message });
    }

    fn is_finished(&self) -> bool {
        self.is_closed && self.is_idle && self.net_kind.is_none() && self.compute_kind.is_none()
    }

    /// Wakes for the next deadline, and every [`TICK`] while an operation is in progress.
    fn arm_timer(&mut self) {
        let now = self.platform.now();
        let is_busy = self.net_kind.is_some()
            || self.compute_kind.is_some()
            || self.shard_id.is_some()
            || self.published.is_behind
            || !self.is_idle;
        let tick = is_busy.then_some(now + TICK);
        let is_unused = self.is_idle && self.net_kind.is_none();
        let idle_link = self.link.as_ref().filter(|_| is_unused).map(|link| link.used_at + IDLE_LINK_MAX);
        let rest = self.pacer.rests_until(now);
        let wanted = [self.wait_until, tick, idle_link, rest].into_iter().flatten().min();
        let Some(wanted) = wanted else { return };
        if self.timer_at.is_none_or(|at| wanted < at) {
            self.timer_at = Some(wanted);
            self.timer = self.platform.sleep_until(wanted).boxed_local().fuse();
        }
    }
}
