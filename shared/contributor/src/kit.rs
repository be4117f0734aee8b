//! What every participant has, in a run of any scheme: the link, access, data, the device, pacing, events and the cached
//! model.
//!
//! At any time there is at most one operation on the network, one on the device and one shard transfer, beside the
//! session, which is always read, and what passes ask of experts on other peers. The kit never knows when a scheme
//! computes or sends: that is a [`scheme::SchemeParticipant`]'s.

pub(crate) mod access;
mod background;
pub(crate) mod compute;
pub(crate) mod driver;
mod experts;
mod frozen;
pub(crate) mod meter;
pub(crate) mod model_cache;
pub(crate) mod network;
mod offline;
pub(crate) mod operation;
mod outcomes;
mod publish;
pub(crate) mod scheme;
mod shards;
pub(crate) mod sleep;
mod speed;
mod start;
mod trial;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_learning::{ComputeDevice, DeviceChoice, ModelError, Trainer};
use barnraise_protocol::DisplayName;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::bulk::Partial;
use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::dht::DhtRefusal;
use barnraise_protocol::framing::FrameError;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::state::{EncodedState, PartialState};
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Interruption, SampleCounts};
use barnraise_swarm::pacing::{Pacer, PassTime};
use barnraise_swarm::samples::SampleStream;
use barnraise_swarm::session::Session;
use barnraise_swarm::shards::Exchange;
use barnraise_swarm::uplink::Uplink;
use futures::channel::oneshot;
use futures::future::{Fuse, FutureExt, LocalBoxFuture};

use self::access::{AccessTicket, Credentials};
use self::background::{AskedExperts, BackgroundRequest};
use self::compute::{ComputeOutcome, ComputeResult};
use self::experts::{AnsweredRows, ExpertsAway, GradientVerdict};
use self::frozen::Frozen;
use self::meter::TrafficMeter;
use self::network::{NetOutcome, SessionReader, SessionWriter, ShardOutcome, TransferProgress};
use self::operation::{CountedStream, NetworkOperation};
use self::publish::Published;
use self::sleep::SleepWatch;
use self::speed::Speed;
use crate::event::ContributorEvent;
use crate::experts::SeenSlot;
use crate::platform::Platform;

/// An unused connection is closed after so long.
const IDLE_LINK_MAX: Duration = Duration::from_secs(60);
/// Pause before a failed shard is fetched again.
const SHARD_RETRY: Duration = Duration::from_secs(1);

/// Configuration of a participant.
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

type FusedTask<'a, T> = Fuse<LocalBoxFuture<'a, T>>;
type SessionMessage<P> = (SessionReader<P>, Result<BackboneToContributor, FrameError>);

/// Where an operation of the scheme leaves what came of it.
pub(crate) type Outcome<T> = Rc<Cell<Option<T>>>;

/// The operation in progress on the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NetKind {
    Connect {
        is_joining: bool,
    },
    /// For the scheme, or for a background request.
    State {
        is_background: bool,
    },
    /// Of the scheme.
    Scheme,
    /// Renewal of the access token.
    Renew,
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
    /// Of the scheme.
    Scheme,
    Prediction,
}

/// A connection to a backbone, with its streams.
struct BackboneConnection<P: Platform> {
    id: u64,
    session: Option<SessionWriter<P>>,
    /// Whether anything was received over it.
    is_proven: bool,
    state: Option<CountedStream<P>>,
    shard: Option<CountedStream<P>>,
    /// Idle streams of the scheme's conversations, by protocol.
    of_scheme: BTreeMap<&'static str, CountedStream<P>>,
    used_at: Moment,
}

/// The run that is described, and everything that belongs to it in any scheme.
struct RunContext {
    description: Rc<RunDescription>,
    /// Of its model.
    n_parameters: usize,
    /// Of a model that does not train all of its weights.
    frozen: Option<Frozen>,
    /// `None` while it is in use, and before frozen weights are here.
    trainer: Option<Trainer>,
    /// Epoch of the parameters in the trainer, and the time of their arrival.
    loaded: Option<(u64, Moment)>,
    /// Parameters that wait for the trainer, and whether they are for a background request.
    waiting_parameters: Option<(EncodedState, bool)>,
    /// Layers of its model whose experts other peers host.
    n_expert_layers: u32,
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

/// The means of a participant, which its scheme works with.
pub(crate) struct Kit<'a, P: Platform> {
    pub(crate) platform: &'a P,
    /// When to dial, and when to leave.
    pub(crate) session: Session,
    /// Speed of the link to the backbone, as measured by the scheme's transfers.
    pub(crate) uplink: Uplink,
    /// Id of the next contribution, for a scheme that begins ([`Config::first_contribution_id`]).
    pub(crate) next_contribution_id: u64,
    /// Samples and contributions in runs before this one.
    pub(crate) counts_before: SampleCounts,
    /// Access of this peer to the run.
    pub(crate) ticket: Rc<AccessTicket>,
    /// Progress of the operation on the network.
    pub(crate) net_progress: TransferProgress,
    events: &'a mut dyn FnMut(ContributorEvent),
    device: ComputeDevice,
    is_device_free: bool,
    /// Name on the leaderboard.
    name: Option<DisplayName>,
    /// Device and name that the session announced.
    joined_as: Option<(DeviceChoice, Option<DisplayName>)>,
    seed: u64,
    /// Samples of the user's own.
    pub(crate) own_data: Option<Arc<Samples>>,
    /// Whether they changed since the run was described last.
    pub(crate) is_data_new: bool,
    /// Session of the next service of experts, from a number that was drawn at random.
    expert_session: u32,
    meter: Rc<TrafficMeter>,
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
    requests: VecDeque<BackgroundRequest>,
    /// When parameters were cached last.
    cached_at: Option<Moment>,

    messages: FusedTask<'a, SessionMessage<P>>,
    net: FusedTask<'a, NetOutcome<P>>,
    net_kind: Option<NetKind>,
    net_cancel: Option<oneshot::Sender<()>>,
    compute: FusedTask<'a, ComputeOutcome>,
    compute_kind: Option<ComputeKind>,
    /// Asks experts on other peers, for a model that has such.
    experts: FusedTask<'a, ()>,
    /// What it sees of them.
    seen: SeenSlot,
    /// The last record of them that was refused for its time.
    refused_record: Rc<Cell<Option<DhtRefusal>>>,
    answered_rows: AnsweredRows,
    experts_away: ExpertsAway,
    /// Calls of training since experts have answered any.
    n_in_vain: Rc<Cell<u32>>,
    /// Rows that they answered, and how many it were when the newest prediction began.
    n_answered: Rc<Cell<u64>>,
    n_answered_before: u64,
    /// Where those of a prediction are on other machines.
    asked_experts: Option<AskedExperts>,
    lost_at: Option<Moment>,
    shard: FusedTask<'a, ShardOutcome<P>>,
    shard_id: Option<ShardId>,
    shard_cancel: Option<oneshot::Sender<()>>,
    shard_progress: TransferProgress,
    shard_retry_at: Moment,
    timer: FusedTask<'a, ()>,
    timer_at: Option<Moment>,

    /// When the scheme or the session has its next action.
    wait_until: Option<Moment>,
    /// End of the last known interval in which this participant processed no messages.
    deaf_until: Moment,
    /// Bytes received from the backbone at the last check.
    bytes_received: u64,
    sleep_watch: SleepWatch,
    is_idle: bool,
    /// Other threads of this device take part in passes.
    is_divided: bool,
    is_starved: bool,
    stop_deadline: Option<Moment>,
    /// The activity that it ended with: [`Activity::NotAdmitted`] or [`Activity::Broken`].
    fatal_error: Option<Activity>,
    published: Published,
}

impl<'a, P: Platform> Kit<'a, P> {
    fn new(platform: &'a P, config: Config, events: &'a mut dyn FnMut(ContributorEvent)) -> Self {
        Self {
            platform,
            session: Session::new(config.seed),
            uplink: Uplink::default(),
            next_contribution_id: config.first_contribution_id,
            counts_before: SampleCounts::default(),
            ticket: Rc::new(AccessTicket::new(config.credentials)),
            net_progress: Rc::default(),
            events,
            device: config.device,
            is_device_free: config.is_device_free,
            name: None,
            joined_as: None,
            seed: config.seed,
            own_data: None,
            is_data_new: false,
            expert_session: config.first_contribution_id as u32,
            meter: Rc::default(),
            speed: Speed::default(),
            pacer: Pacer::default(),
            pass: None,
            loss: None,
            run: None,
            link: None,
            backbone: None,
            has_other_backbones: false,
            n_links: 0,
            requests: VecDeque::new(),
            cached_at: None,
            messages: Fuse::terminated(),
            net: Fuse::terminated(),
            net_kind: None,
            net_cancel: None,
            compute: Fuse::terminated(),
            compute_kind: None,
            experts: Fuse::terminated(),
            seen: Rc::default(),
            refused_record: Rc::default(),
            answered_rows: AnsweredRows::default(),
            experts_away: ExpertsAway::default(),
            n_in_vain: Rc::default(),
            n_answered: Rc::default(),
            n_answered_before: 0,
            asked_experts: None,
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
            is_divided: false,
            is_starved: false,
            stop_deadline: None,
            fatal_error: None,
            published: Published::default(),
        }
    }

    /// The run's description, once there is one.
    pub(crate) fn description(&self) -> Option<&Rc<RunDescription>> {
        self.run.as_ref().map(|run| &run.description)
    }

    /// Tells the user interface.
    pub(crate) fn tell(&mut self, event: ContributorEvent) {
        (self.events)(event);
    }

    /// A gradient was taken out of the trainer. Returns whether it may be contributed: where experts belong to the model and none
    /// has answered a row of it, it is the gradient of another model, and the user is told so once.
    pub(crate) fn on_gradient_taken(&mut self) -> bool {
        let has_hosted = self.run.as_ref().is_some_and(|run| run.description.model.hosted.is_some());
        if !has_hosted {
            return true;
        }
        let verdict = self.answered_rows.on_gradient(self.n_answered.get());
        if verdict == (GradientVerdict::Unanswered { is_first: true }) {
            self.tell_experts_away("Nothing is contributed");
        }
        verdict == GradientVerdict::Answered
    }

    fn tell_experts_away(&mut self, what: &str) {
        let why = self.refused_record.take().map_or_else(String::new, |refusal| {
            format!(" What hosts announce does not count here: {refusal}. Compare the clocks.")
        });
        self.fail(format!(
            "{what}: the experts of this model are on other machines, and none of them answered.{why}"
        ));
    }

    /// Whether a pass may begin, where experts on other peers belong to the model. The user is told once if not.
    fn may_ask_experts(&mut self) -> bool {
        let Some(run) = &self.run else { return true };
        if run.description.model.hosted.is_none() {
            return true;
        }
        let (now, n_in_vain) = (self.platform.now(), self.n_in_vain.get());
        let may_begin = self.experts_away.may_begin(now, n_in_vain, run.n_expert_layers);
        if !may_begin && self.answered_rows.on_in_vain() {
            self.tell_experts_away("Nothing is computed until experts are back");
        }
        may_begin
    }

    /// Tells the user interface of a failure after which the participant goes on.
    pub(crate) fn fail(&mut self, message: String) {
        self.tell(ContributorEvent::Failed { message });
    }

    /// The connection failed.
    pub(crate) fn disconnect(&mut self, reason: Interruption) {
        self.drop_link();
        self.session.on_disconnected(self.platform.now(), reason);
    }

    fn drop_link(&mut self) {
        self.link = None;
        self.messages = Fuse::terminated();
        self.cancel_net();
        self.cancel_shard();
    }

    fn cancel_net(&mut self) {
        self.net_cancel = None;
    }

    fn cancel_shard(&mut self) {
        self.shard_cancel = None;
    }

    /// Takes the session's writer, if the connection has one and it is not in use.
    pub(crate) fn take_session_writer(&mut self) -> Option<SessionWriter<P>> {
        self.link.as_mut().and_then(|link| link.session.take())
    }

    /// Puts the session's writer back.
    pub(crate) fn put_session_writer(&mut self, writer: SessionWriter<P>) {
        if let Some(link) = &mut self.link {
            link.session = Some(writer);
        }
    }

    /// The backbone that was dialled last, if its peer id is a key's.
    pub(crate) fn backbone(&self) -> Option<PublicKey> {
        self.backbone.as_deref().and_then(PublicKey::of_peer_id)
    }

    /// Megabytes that the user lets it move in a day; `None`: no limit.
    pub(crate) fn day_mb(&self) -> Option<u32> {
        self.pacer.settings().day_mb
    }

    /// Decides orders and jitter.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether the trainer has parameters of some epoch.
    pub(crate) fn has_parameters(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.loaded.is_some())
    }

    /// Whether there is a connection.
    pub(crate) fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Takes the stream of an earlier conversation of the scheme, if there is one.
    pub(crate) fn take_stream(&mut self, protocol: &'static str) -> Option<CountedStream<P>> {
        self.link.as_mut().and_then(|link| link.of_scheme.remove(protocol))
    }

    /// Keeps a stream for the next conversation of the scheme.
    pub(crate) fn put_stream(&mut self, protocol: &'static str, stream: Option<CountedStream<P>>) {
        if let (Some(link), Some(stream)) = (&mut self.link, stream) {
            link.of_scheme.insert(protocol, stream);
        }
    }

    /// Context of an operation on the network, and what cancels it when it is dropped.
    pub(crate) fn operation(&self) -> (NetworkOperation<'a, P>, oneshot::Sender<()>) {
        let (cancel, cancelled) = oneshot::channel();
        let meter = Rc::clone(&self.meter);
        (NetworkOperation { platform: self.platform, meter, cancelled }, cancel)
    }

    fn run_net(
        &mut self,
        kind: NetKind,
        cancel: oneshot::Sender<()>,
        task: impl Future<Output = NetOutcome<P>> + 'a,
    ) {
        self.net_kind = Some(kind);
        self.net_cancel = Some(cancel);
        self.net = task.boxed_local().fuse();
    }

    /// Starts an operation of the scheme on the network. When it is done, `outcome` has what came of it, and
    /// [`scheme::SchemeParticipant::on_net`] is called.
    pub(crate) fn run_scheme_net<T: 'a>(
        &mut self,
        cancel: oneshot::Sender<()>,
        outcome: &Outcome<T>,
        task: impl Future<Output = T> + 'a,
    ) {
        let outcome = Rc::clone(outcome);
        self.run_net(NetKind::Scheme, cancel, async move {
            outcome.set(Some(task.await));
            NetOutcome::Scheme
        });
    }

    /// Starts a computation of the scheme on the trainer, which it hands back. When it is done, `outcome` has what came of
    /// it, and [`scheme::SchemeParticipant::on_computed`] is called. Returns whether the trainer is here.
    pub(crate) fn run_scheme_compute<T: 'a, W: Future<Output = (Trainer, T)> + 'a>(
        &mut self,
        outcome: &Outcome<T>,
        work: impl FnOnce(&'a P, Trainer) -> W,
    ) -> bool {
        let Some(trainer) = self.run.as_mut().and_then(|run| run.trainer.take()) else { return false };
        let (outcome, working) = (Rc::clone(outcome), work(self.platform, trainer));
        self.compute_kind = Some(ComputeKind::Scheme);
        let computing = async move {
            let (trainer, done) = working.await;
            outcome.set(Some(done));
            ComputeOutcome { trainer, done: ComputeResult::Scheme }
        };
        self.compute = computing.boxed_local().fuse();
        true
    }

    /// The device was busy for so long with something other than a batch.
    pub(crate) fn on_busy(&mut self, took: Moment) {
        let rest = self.pacer.on_busy(self.platform.now(), took);
        self.speed.add(0, took + rest);
    }

    /// Drops the gradient in the trainer; `false` where the trainer is in use.
    pub(crate) fn drop_gradient(&mut self) -> bool {
        let trainer = self.run.as_mut().and_then(|run| run.trainer.as_mut());
        trainer.map(Trainer::drop_gradient).is_some()
    }

    /// Loads parameters into the trainer. Returns whether they are in it: they may have to wait for it, or be no longer
    /// wanted.
    ///
    /// # Errors
    /// They do not fit the model, or the device is lost.
    pub(crate) fn load(&mut self, state: EncodedState, is_background: bool) -> Result<bool, ModelError> {
        let now = self.platform.now();
        let Some(run) = &mut self.run else { return Ok(false) };
        let Some(trainer) = &mut run.trainer else {
            run.waiting_parameters = Some((state, is_background));
            return Ok(false);
        };
        if is_background && !self.is_idle {
            // Contributing began in the meantime, and the scheme wants another epoch.
            return Ok(false);
        }
        trainer.load_epoch(&state)?;
        trainer.on_epoch(state.epoch);
        run.loaded = Some((state.epoch, now));
        run.samples.on_epoch(state.epoch);
        Ok(true)
    }

    /// Loads the model of a round, which another participant pushed, into the trainer. Returns whether it is in it: the trainer may
    /// be in use.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub(crate) fn load_model(&mut self, round: u64, parameters: &[f32]) -> Result<bool, ModelError> {
        let now = self.platform.now();
        let Some(run) = &mut self.run else { return Ok(false) };
        let Some(trainer) = &mut run.trainer else { return Ok(false) };
        trainer.load_parameters(parameters)?;
        trainer.on_epoch(round);
        run.loaded = Some((round, now));
        Ok(true)
    }
}
