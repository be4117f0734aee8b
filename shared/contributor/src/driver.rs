//! The loop of a contributor: wait for anything, let the state machine decide, start what it wants.
//!
//! There is one operation on the network, one on the device and one shard at a time, and a session that
//! is listened to throughout; whatever completes first is handled first.

mod errands;
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
use barnraise_protocol::contribute::{BackboneToContributor, ELSEWHERE_MAX};
use barnraise_protocol::framing::FrameError;
use barnraise_protocol::gradient::Prepared;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::state::{PartialState, State};
use barnraise_swarm::Moment;
use barnraise_swarm::activity::Contribution;
use barnraise_swarm::compression::Compressor;
use barnraise_swarm::conduct::{Pacer, PassTime};
use barnraise_swarm::contributor::{Contributor, GONE_SILENT, STOP_TIMEOUT};
use barnraise_swarm::rhythm::DEAF_MIN;
use barnraise_swarm::samples::SampleStream;
use barnraise_swarm::shards::Exchange;
use barnraise_swarm::uplink::Uplink;
use futures::channel::{mpsc, oneshot};
use futures::future::{Fuse, FutureExt, LocalBoxFuture};
use futures::select_biased;
use futures::stream::StreamExt;

use crate::access::{Credentials, Ticket};
use crate::accounting::Accountant;
use crate::compute::ComputeOutcome;
use crate::event::{Command, Event};
use crate::meter::Meter;
use crate::network::{self, NetOutcome, Progress, SessionReader, SessionWriter, ShardOutcome};
use crate::operation::{Operation, Stream};
use crate::platform::Platform;
use crate::speed::Speed;
use errands::Errand;
pub(crate) use offline::Kept;
use publish::Published;
use sleep::SleepWatch;

/// How often a running operation is looked at.
const TICK: Duration = Duration::from_millis(200);
/// A connection that nothing needs is kept for so long.
const IDLE_LINK_MAX: Duration = Duration::from_secs(60);
/// Pause before a shard that failed is wanted again.
const SHARD_RETRY: Duration = Duration::from_secs(1);
/// How long a computation on a lost device may take to say so.
const LOST_DEVICE_GRACE: Duration = Duration::from_secs(2);

/// Who contributes.
#[derive(Debug, Clone)]
pub struct Config {
    /// What computes; when it is lost, the CPU goes on.
    pub device: ComputeDevice,
    /// Whether the CPU may compute instead where it turns out to be faster.
    pub is_device_free: bool,
    /// The first of as many contribution ids as there will be, none of which this peer's key has used before: drawn at
    /// random from those below 2^52, since a clock may be set back and a page counts in JavaScript's numbers.
    pub first_contribution_id: u64,
    /// Decides the order of the data and the jitter of reconnections.
    pub seed: u64,
    /// Gets it into a run that is not open.
    pub credentials: Credentials,
}

/// Contributes as `commands` say until they end; then finished work is delivered.
pub async fn contribute<P: Platform>(
    platform: &P,
    config: Config,
    commands: mpsc::Receiver<Command>,
    events: impl FnMut(Event),
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

type Task<'a, T> = Fuse<LocalBoxFuture<'a, T>>;
type Heard<P> = (SessionReader<P>, Result<BackboneToContributor, FrameError>);

/// What is under way on the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NetKind {
    Connect {
        is_joining: bool,
    },
    /// For the state machine, or for an errand.
    State {
        is_errand: bool,
    },
    Report,
    /// Of the access token.
    Renew,
    Offer {
        epoch: u64,
    },
    Leave,
    /// Of an earlier visit, where no backbone answers.
    Kept,
}

/// What is under way on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComputeKind {
    /// Of two devices, before the first batch.
    Trial,
    Batch,
    Gradient,
    Prediction,
}

/// A connection.
struct Link<P: Platform> {
    id: u64,
    session: Option<SessionWriter<P>>,
    /// Whether anything has come over it.
    is_proven: bool,
    state: Option<Stream<P>>,
    gradient: Option<Stream<P>>,
    shard: Option<Stream<P>>,
    used_at: Moment,
}

/// A run as far as it is known.
struct Run {
    description: Rc<RunDescription>,
    /// `None` while it is in use.
    trainer: Option<Trainer>,
    compressor: Compressor,
    /// Where contributions are recomputed.
    accountant: Option<Accountant>,
    /// What came too late for its epoch, to be offered as it is in a later one.
    kept: Option<Rc<Prepared>>,
    /// Epoch of the parameters in the trainer, and when they came.
    loaded: Option<(u64, Moment)>,
    /// Parameters that wait for the trainer, and whether an errand wants them.
    parked: Option<(State, bool)>,
    /// Parameters for the gradients of the next epoch.
    aside: Option<State>,
    /// Whether the trainer has computed anything on its device.
    is_warm: bool,
    samples: SampleStream,
    exchange: Exchange,
    /// No shard is wanted before somebody has found out who keeps which, or this moment.
    survey_by: Option<Moment>,
    /// A shard that was cut is fetched further before any other.
    wanted_shard: Option<ShardId>,
    partial_state: Option<PartialState>,
    partial_shard: Option<(ShardId, Partial)>,
}

/// Whatever completed.
enum Wake<P: Platform> {
    Command(Option<Command>),
    Heard(Heard<P>),
    Net(NetOutcome<P>),
    Compute(Box<ComputeOutcome>),
    Shard(ShardOutcome<P>),
    Timer,
}

struct Driver<'a, P: Platform, F> {
    platform: &'a P,
    commands: mpsc::Receiver<Command>,
    events: F,
    device: ComputeDevice,
    is_device_free: bool,
    /// How this contributor wants to be called.
    name: Option<DisplayName>,
    /// What the session says that computes here, and who that is.
    joined_as: Option<(DeviceChoice, Option<DisplayName>)>,
    seed: u64,
    contributor: Contributor,
    ticket: Rc<Ticket>,
    meter: Rc<Meter>,
    uplink: Uplink,
    speed: Speed,
    pacer: Pacer,
    /// Of the newest pass.
    pass: Option<PassTime>,
    loss: Option<f32>,
    run: Option<Run>,
    link: Option<Link<P>>,
    /// Bytes of the peer id of the backbone that was dialled last.
    backbone: Option<Vec<u8>>,
    /// Whether the run has others.
    has_others: bool,
    n_links: u64,
    prepared: Option<Rc<Prepared>>,
    /// An offer of what is prepared got no answer: it may have counted.
    is_offer_cut: bool,
    errands: VecDeque<Errand>,
    /// When the newest parameters were kept.
    kept_at: Option<Moment>,

    session: Task<'a, Heard<P>>,
    net: Task<'a, NetOutcome<P>>,
    net_kind: Option<NetKind>,
    net_cancel: Option<oneshot::Sender<()>>,
    net_progress: Progress,
    /// What is offered is computed once more by the backbone before it counts, and so many of this peer's in any case.
    checking: Rc<Cell<Option<u32>>>,
    compute: Task<'a, ComputeOutcome>,
    compute_kind: Option<ComputeKind>,
    lost_at: Option<Moment>,
    shard: Task<'a, ShardOutcome<P>>,
    shard_id: Option<ShardId>,
    shard_cancel: Option<oneshot::Sender<()>>,
    shard_progress: Progress,
    shard_retry_at: Moment,
    timer: Task<'a, ()>,
    timer_at: Option<Moment>,

    /// When the state machine wants to be asked again.
    wait_until: Option<Moment>,
    /// Until when this contributor was deaf, as far as that is known.
    deaf_until: Moment,
    /// What had come of the backbone when that was looked at last.
    bytes_heard: u64,
    sleep_watch: SleepWatch,
    is_idle: bool,
    is_starved: bool,
    is_closed: bool,
    stop_deadline: Option<Moment>,
    broken: Option<String>,
    published: Published,
}

impl<'a, P: Platform, F: FnMut(Event)> Driver<'a, P, F> {
    fn new(platform: &'a P, config: Config, commands: mpsc::Receiver<Command>, events: F) -> Self {
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
            ticket: Rc::new(Ticket::new(config.credentials)),
            meter: Rc::default(),
            uplink: Uplink::default(),
            speed: Speed::default(),
            pacer: Pacer::default(),
            pass: None,
            loss: None,
            run: None,
            link: None,
            backbone: None,
            has_others: false,
            n_links: 0,
            prepared: None,
            is_offer_cut: false,
            errands: VecDeque::new(),
            kept_at: None,
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
            bytes_heard: 0,
            sleep_watch: SleepWatch::default(),
            is_idle: true,
            is_starved: false,
            is_closed: false,
            stop_deadline: None,
            broken: None,
            published: Published::default(),
        }
    }

    /// What completes first. The session comes before what it may change.
    async fn wait(&mut self) -> Wake<P> {
        select_biased! {
            command = self.commands.next() => Wake::Command(command),
            heard = &mut self.session => Wake::Heard(heard),
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
                self.errands.clear();
                self.stop();
            }
            Wake::Heard((reader, message)) => self.on_heard(reader, message),
            Wake::Net(outcome) => self.on_net(outcome),
            Wake::Compute(outcome) => self.on_compute(*outcome),
            Wake::Shard(outcome) => self.on_shard(outcome),
            Wake::Timer => self.on_timer(),
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Start => {
                self.broken = None;
                self.stop_deadline = None;
                self.contributor.start(self.platform.now());
                self.is_idle = false;
            }
            Command::Stop => self.stop(),
            Command::Conduct(conduct) => self.pacer.set(conduct),
            Command::Name(name) => self.name = name,
            Command::Predict { request, pixels } => self.push_errand(Errand::Predict { request, pixels }),
            Command::LoadGallery => self.push_errand(Errand::Gallery),
            Command::Woke => self.on_woke(false),
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
        // What was finished is still delivered; nothing new is fetched.
        if matches!(
            self.net_kind,
            Some(NetKind::Connect { is_joining: true } | NetKind::State { is_errand: false })
        ) {
            self.cancel_net();
        }
    }

    fn on_heard(&mut self, reader: SessionReader<P>, message: Result<BackboneToContributor, FrameError>) {
        let now = self.platform.now();
        let message = match message {
            Ok(message) => message,
            Err(error) => {
                self.disconnect(error.to_string());
                return;
            }
        };
        self.session = network::listen::<P>(reader).boxed_local().fuse();
        self.contributor.on_heard(now);
        match message {
            BackboneToContributor::Welcome(progress) | BackboneToContributor::Progress(progress) => {
                (self.events)(Event::Progress(progress));
            }
            BackboneToContributor::EpochStarted(epoch) => self.contributor.on_epoch(epoch),
            BackboneToContributor::GradientDue(epoch) => self.contributor.on_due(epoch),
            BackboneToContributor::Refused(reason) => self.fail(format!("the backbone says: {reason}")),
            BackboneToContributor::Elsewhere(mut addresses) => {
                addresses.truncate(ELSEWHERE_MAX);
                self.has_others = !addresses.is_empty();
                self.contributor.set_others(self.has_others);
                self.platform.elsewhere(addresses);
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
                // The computation will never end: what it holds is given up with it.
                self.compute = Fuse::terminated();
                let kind = self.compute_kind.take();
                self.on_device_lost(kind, "it stopped answering");
            }
        }
    }

    /// What was not heard while this contributor stood still is not held against the backbone.
    fn notice_deafness(&mut self) {
        let now = self.platform.now();
        let Some(at) = self.timer_at else { return };
        let deaf = now.saturating_sub(at.max(self.deaf_until));
        if deaf >= DEAF_MIN {
            self.deaf_until = now;
            self.contributor.on_deaf(now, deaf);
        }
    }

    /// A connection on which nothing comes is left, with all that is under way on it.
    fn notice_silence(&mut self) {
        if self.link.is_none() {
            return;
        }
        let now = self.platform.now();
        let bytes_heard = self.meter.of_backbone();
        if std::mem::replace(&mut self.bytes_heard, bytes_heard) != bytes_heard {
            self.contributor.on_sign(now);
        }
        if self.contributor.is_silent(now) {
            self.disconnect(GONE_SILENT.to_owned());
        }
    }

    /// The connection is of no more use.
    fn disconnect(&mut self, reason: String) {
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

    fn operation(&self) -> (Operation<'a, P>, oneshot::Sender<()>) {
        let (cancel, cancelled) = oneshot::channel();
        let meter = Rc::clone(&self.meter);
        (Operation { platform: self.platform, meter, cancelled }, cancel)
    }

    /// Something that trying again does not mend: contributing ends.
    fn give_up(&mut self, reason: &str) {
        self.broken = Some(reason.to_owned());
        self.drop_link();
        let now = self.platform.now();
        self.prepared = None;
        self.contributor.on_gradient_lost();
        self.contributor.on_trainer_lost();
        self.contributor.stop(now);
        self.fail_errands(reason);
    }

    fn fail(&mut self, message: String) {
        (self.events)(Event::Failed { message });
    }

    fn is_finished(&self) -> bool {
        self.is_closed && self.is_idle && self.net_kind.is_none() && self.compute_kind.is_none()
    }

    /// Wakes for the next deadline, and every [`TICK`] while something is under way.
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
