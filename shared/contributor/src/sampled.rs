//! A participant of runs without a server (MoDEST §3) on the kit: it trains when it is in a sample, and aggregates where no peer that
//! can be dialled does.
//!
//! Those who have a connection with it, its backbone and the aggregators that it calls on, open streams on that. Others reach it
//! through relays where it has a place, so that the run goes on among tabs while no backbone answers. What is next in the run is
//! decided by [`SampledPeer`]; this carries it out on the kit.

mod alone;
mod encoded;
mod handed_in;
mod member;
mod training;
mod turns;

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use barnraise_learning::{ComputeDevice, FrozenWeights, ModelError, ParameterLayout, Trainer};
use barnraise_protocol::access::{AccessMode, PublicKey};
use barnraise_protocol::contribute::{BackboneToContributor, RunProgress};
use barnraise_protocol::run::{RunDescription, Sampled, run_hash};
use barnraise_protocol::sampled::{self, Aggregates, SampledRoles};
use barnraise_protocol::state::EncodedState;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Interruption, SampleCounts};
use barnraise_swarm::sampled::{
    CollectedModels, SampledAction, SampledIdentity, SampledModel, SampledPeer, SampledSettings,
};
use barnraise_swarm::session::SessionAction;
use futures::future::{Fuse, LocalBoxFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

pub use self::encoded::{EncodedModel, EncodedModels, encode, sketch_of};
use self::handed_in::HandedIn;
use self::member::{Member, MemberError, MemberSettings};
use self::training::TakenRound;
pub use self::training::{local_trainer, shards_of, trained_model};
pub use self::turns::OfferTurns;
use crate::error::OperationError;
use crate::kit::operation::NetworkOperation;
use crate::kit::scheme::{SampleSource, SchemeParticipant};
use crate::kit::{Kit, Outcome};
use crate::platform::{IncomingStreams, Platform};

/// Longest time for telling others that this participant leaves.
const LEAVE_MAX: Duration = Duration::from_secs(3);
/// How long nothing is looked at, at least and at most.
const LOOK_SOON: Duration = Duration::from_millis(5);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time before it joins, for places: what it tells of itself first has them then, and is not signed twice.
const PLACES_MAX: Duration = Duration::from_secs(3);

/// What the device does for a round.
#[derive(Debug, Default)]
enum RoundWork {
    /// Nothing.
    #[default]
    None,
    /// The model is to be loaded.
    Ordered { round: u64, model: SampledModel },
    /// So many batches are still to be made.
    Running { round: u64, model: SampledModel, n_batches: u32 },
    /// The result is being taken out of the trainer.
    Taking { round: u64, model: SampledModel },
}

impl RoundWork {
    /// What was computed is lost, and is computed anew.
    fn begin_again(&mut self) {
        *self = match std::mem::take(self) {
            Self::Running { round, model, .. } | Self::Taking { round, model } => {
                Self::Ordered { round, model }
            }
            other => other,
        };
    }
}

/// A participant of sampled runs.
pub(crate) struct SampledParticipant<'a, P: Platform> {
    scheme: Sampled,
    member: Rc<Member<'a, P>>,
    /// What it trains on, and how many samples that are.
    source: SampleSource,
    n_samples: usize,
    /// Streams that others open here; while it takes part.
    incoming: Option<IncomingStreams<P::Stream>>,
    /// Conversations.
    work: FuturesUnordered<LocalBoxFuture<'a, ()>>,
    /// Ends with the connection to the backbone.
    watch: Fuse<LocalBoxFuture<'a, MemberError>>,
    lost: Option<MemberError>,
    /// Whether the driver has something to look at.
    has_news: bool,
    /// Models that it averages.
    collected: CollectedModels,
    /// Where others reach it, as it told them.
    reached_at: Vec<Vec<u8>>,
    /// When that is looked at next.
    reach_look_at: Moment,
    /// It joins through this backbone, at this time at the latest.
    joins: Option<(PublicKey, Moment)>,
    /// It has taken part before, and knows others.
    has_joined: bool,
    /// The last round that its user was told of while no backbone answered.
    told_round: u64,
    round: RoundWork,
    taken: Outcome<TakenRound>,
    handed_in: HandedIn,
    /// Since when it leaves, until when.
    leaving: Option<Moment>,
    counts: SampleCounts,
    next_contribution_id: u64,
}

impl<'a, P: Platform> SampledParticipant<'a, P> {
    /// A participant that takes no part yet.
    ///
    /// # Errors
    /// The platform accepts no streams of others; this peer has no key; the model has no layout; or samples of the user's own are
    /// none of the run.
    pub(crate) fn start(
        kit: &Kit<'a, P>,
        run: &RunDescription,
        scheme: &Sampled,
    ) -> Result<Self, Interruption> {
        let (NetworkOperation { platform, meter, .. }, _) = kit.operation();
        // Other participants open streams here, or this one does nothing.
        drop(platform.accept(sampled::PROTOCOL).map_err(|_| Interruption::Sampled)?);
        let key = kit.ticket.signing_key().ok_or(NoKey).map_err(Interruption::other)?;
        let (source, n_samples) = match &kit.own_data {
            Some(samples) => {
                if !run.data.manifest.describes(samples) {
                    return Err(Interruption::other(OtherData));
                }
                (SampleSource::Own(Arc::clone(samples)), samples.n_samples())
            }
            None => shards_to_train_on(run, scheme, key.public()),
        };
        let algorithm = SampledSettings::of(scheme);
        let settings = MemberSettings {
            codec: scheme.state_codec,
            n_parameters: ParameterLayout::of_run(run).map_err(Interruption::other)?.n_parameters(),
            ping_timeout: algorithm.ping_timeout,
        };
        let identity = SampledIdentity {
            key,
            run: run_hash(run).map_err(Interruption::other)?,
            // Beyond that of every earlier visit: no participant joins and leaves once a second. Where the clock was set back, others
            // remember a later one, and this peer goes on from that.
            counter: platform.unix_time().0,
            roles: SampledRoles { trains: true, aggregates: Aggregates::Never },
            addresses: Vec::new(),
            seed: kit.seed(),
        };
        let mut peer = SampledPeer::new(algorithm, identity);
        if run.access.mode != AccessMode::Open {
            peer = peer.by_approval(run.authority(), platform.unix_time());
        }
        Ok(Self {
            scheme: *scheme,
            member: Rc::new(Member::new((platform, meter), settings, peer)),
            source,
            n_samples,
            incoming: None,
            work: FuturesUnordered::new(),
            watch: Fuse::terminated(),
            lost: None,
            has_news: false,
            collected: CollectedModels::new(scheme.average),
            reached_at: Vec::new(),
            reach_look_at: Moment::ZERO,
            joins: None,
            has_joined: false,
            told_round: 0,
            round: RoundWork::None,
            taken: Rc::default(),
            handed_in: HandedIn::default(),
            leaving: None,
            counts: kit.counts_before.clone(),
            next_contribution_id: kit.next_contribution_id,
        })
    }

    /// Whether everybody may take part.
    fn is_open(&self) -> bool {
        self.member.look(|peer| peer.registry().is_open())
    }

    /// Tells the members whether this one may take part, and until when. The time of day ends the access of others.
    fn look_at_access(&self, kit: &Kit<'a, P>) {
        if !self.is_open() {
            let time = kit.platform.unix_time();
            self.member.with(|peer, now| {
                peer.on_clock(time);
                if let Some(token) = kit.ticket.token() {
                    peer.on_approval(now, token);
                }
            });
        }
    }

    /// Tells the run that it is there, through the backbone that it is connected to.
    fn join(&mut self, home: PublicKey) {
        self.has_joined = true;
        self.lost = None;
        self.member.set_home(home);
        self.watch = Rc::clone(&self.member).watch(home).boxed_local().fuse();
        self.member.with(|peer, now| peer.join(now, vec![home]));
    }

    /// Begins to leave: it tells others.
    fn leave(&mut self, now: Moment) {
        if self.leaving.is_some() {
            return;
        }
        self.leaving = Some(now + LEAVE_MAX);
        self.rest();
        self.member.with(|peer, now| peer.leave(now));
        self.carry_out();
    }

    fn has_left(&self, now: Moment) -> bool {
        self.leaving.is_some_and(|until| self.work.is_empty() || now >= until)
    }

    /// Holds no conversation, and computes nothing.
    fn rest(&mut self) {
        self.incoming = None;
        self.joins = None;
        self.watch = Fuse::terminated();
        self.work.clear();
        self.round = RoundWork::None;
        self.collected = CollectedModels::new(self.scheme.average);
        self.member.with(|peer, _| {
            if let Some(round) = peer.aggregated_round() {
                peer.on_collected_lost(round);
            }
        });
    }

    /// Starts what the state machine asks for. Returns whether there was anything.
    fn carry_out(&mut self) -> bool {
        let mut has_any = false;
        while let Some(action) = self.member.poll_action() {
            has_any = true;
            match action {
                SampledAction::Train { round, model } => {
                    self.round = RoundWork::Ordered { round, model };
                    self.has_news = true;
                }
                SampledAction::CancelTraining => self.round = RoundWork::None,
                SampledAction::Collect { round, model } => self.collected.add(round, &model),
                SampledAction::Average { round } => {
                    let average = self.collected.take(round);
                    self.member.with(|peer, now| match average {
                        Some(average) => peer.on_averaged(now, round, &average),
                        None => peer.on_collected_lost(round),
                    });
                }
                SampledAction::Turn { to, task, turn } => self.member.tell_turn(to, task, turn),
                action => self.work.push(Rc::clone(&self.member).carry(action).boxed_local()),
            }
        }
        for round in self.member.take_delivered() {
            self.handed_in.on_taken(round, &mut self.counts);
        }
        has_any
    }

    /// Goes on with the work of the device. Returns whether the next thing can be started at once.
    fn work_on_round(&mut self, kit: &mut Kit<'a, P>) -> Result<bool, ModelError> {
        match &mut self.round {
            RoundWork::Ordered { round, model } => {
                let (round, model) = (*round, model.clone());
                if !kit.load_model(round, &model)? {
                    return Ok(false);
                }
                let n_batches = training::n_batches(&self.scheme, self.n_samples);
                self.round = RoundWork::Running { round, model, n_batches };
                Ok(true)
            }
            RoundWork::Running { n_batches: 1.., .. } => {
                kit.start_batch();
                Ok(false)
            }
            RoundWork::Running { round, model, n_batches: 0 } => {
                let (round, model) = (*round, model.clone());
                let taking =
                    |platform, trainer| async move { training::take(platform, trainer, round).await };
                if kit.run_scheme_compute(&self.taken, taking) {
                    self.round = RoundWork::Taking { round, model };
                }
                Ok(false)
            }
            RoundWork::None | RoundWork::Taking { .. } => {
                let until = self.next_look(kit.platform.now());
                Ok(kit.start_for_session(SessionAction::Wait(Some(until))))
            }
        }
    }

    /// When the state machine has something to do, or the next look is due.
    fn next_look(&self, now: Moment) -> Moment {
        let deadline = self.member.look(SampledPeer::next_deadline);
        deadline.map_or(now + LOOK_EVERY, |deadline| deadline.clamp(now + LOOK_SOON, now + LOOK_EVERY))
    }

    fn is_computing(&self) -> bool {
        !matches!(self.round, RoundWork::None)
    }
}

/// The user brought data for another run.
#[derive(Debug, thiserror::Error)]
#[error("your own data are not of the kind that this run learns from")]
struct OtherData;

/// Members of before and after do not let each other in.
#[derive(Debug, thiserror::Error)]
#[error("who may take part in this run is decided in another way now: press Start to take part in it")]
struct OtherAccess;

/// The shards of a participant, of which it keeps as many samples as there are, and a batch at least; and how many there are.
fn shards_to_train_on(run: &RunDescription, scheme: &Sampled, peer: PublicKey) -> (SampleSource, usize) {
    let of_peer = shards_of(peer, run.data.manifest.shards.len());
    let shards: Vec<u32> = of_peer.into_iter().take(scheme.local_shards as usize).collect();
    let entries = shards.iter().filter_map(|shard| run.data.manifest.numbered(*shard));
    let n_samples = entries.map(|entry| entry.n_samples as usize).sum::<usize>();
    let fewest = scheme.micro_batch_size as usize;
    let capacity = n_samples.max(fewest).min(run.data.shuffle_buffer_samples as usize);
    (SampleSource::Shards(shards, capacity), n_samples)
}

/// Members sign what they tell.
#[derive(Debug, thiserror::Error)]
#[error("members of this run sign with an Ed25519 key, and this peer has none")]
struct NoKey;

impl<'a, P: Platform> SchemeParticipant<'a, P> for SampledParticipant<'a, P> {
    /// The run's authority is part of what its members sign: with another one it is another run.
    fn on_access(&mut self, run: &RunDescription) -> Result<(), Interruption> {
        match self.is_open() && run.access.mode == AccessMode::Open {
            true => Ok(()),
            false => Err(Interruption::other(OtherAccess)),
        }
    }

    fn trainer(
        &self,
        run: &RunDescription,
        _frozen: Option<&FrozenWeights>,
        device: ComputeDevice,
    ) -> Result<Trainer, ModelError> {
        let own = match &self.source {
            SampleSource::Own(samples) => Some(&**samples),
            _ => None,
        };
        local_trainer(run, &self.scheme, (self.n_samples, own), device)
    }

    fn sample_source(&self, _run: &RunDescription) -> SampleSource {
        self.source.clone()
    }

    fn start_next(&mut self, kit: &mut Kit<'a, P>) -> Result<bool, ModelError> {
        let now = kit.platform.now();
        self.look_at_access(kit);
        self.look_at_reach(kit);
        if !kit.is_linked() {
            self.joins = None;
            self.join_alone(kit);
            self.tell_round(kit);
            if !kit.session.is_stopping() {
                self.leaving = None;
            } else if self.goes_on_alone() && !self.member.look(SampledPeer::is_handing_in) {
                self.leave(now);
            }
        }
        let is_alone = self.is_alone(kit);
        let is_done = self.has_left(now) || !(kit.is_linked() || is_alone);
        if let Some(action) = kit.session.next_action(now, is_done) {
            match action {
                SessionAction::Leave => self.rest(),
                // It dials nobody for that.
                SessionAction::Connect | SessionAction::Wait(Some(_))
                    if is_alone && kit.session.is_stopping() =>
                {
                    return Ok(kit.start_for_session(SessionAction::Wait(Some(now + LOOK_EVERY))));
                }
                SessionAction::Wait(Some(_)) if is_alone => return self.work_on_round(kit),
                SessionAction::Connect | SessionAction::Wait(_) => {}
            }
            return Ok(kit.start_for_session(action));
        }
        if kit.session.is_stopping() {
            // What is trained is handed in first.
            if !self.member.look(SampledPeer::is_handing_in) {
                self.leave(now);
            }
            return Ok(kit.start_for_session(SessionAction::Wait(Some(now + LOOK_EVERY))));
        }
        if self.leaving.take().is_some() {
            // It is to go on, and the connection stands still.
            self.on_reached(kit);
            return Ok(true);
        }
        if !kit.has_parameters() && !self.is_computing() {
            // A visitor can try them before the first round.
            kit.start_state(false);
            return Ok(false);
        }
        self.work_on_round(kit)
    }

    fn compute_meanwhile(&mut self, kit: &mut Kit<'a, P>) -> Result<(), ModelError> {
        if kit.session.is_at_work() {
            if matches!(self.round, RoundWork::Running { n_batches: 1.., .. }) {
                kit.start_batch();
            }
        } else if self.is_alone(kit) && !kit.session.is_stopping() {
            // A backbone is looked for.
            self.look_at_access(kit);
            self.look_at_reach(kit);
            self.tell_round(kit);
            while self.work_on_round(kit)? {}
        }
        Ok(())
    }

    fn goes_on_alone(&self) -> bool {
        let takes_part = self.incoming.is_some() && self.has_joined;
        takes_part && (self.is_computing() || !self.reached_at.is_empty())
    }

    fn on_reached(&mut self, kit: &mut Kit<'a, P>) {
        let Some(home) = kit.backbone() else {
            return kit
                .fail("The backbone of this run has no Ed25519 key, which its members need".to_owned());
        };
        // One that accepts already goes on; another one does not take its place.
        let incoming = match self.incoming.take() {
            Some(incoming) => incoming,
            None => match kit.platform.accept(sampled::PROTOCOL) {
                Ok(incoming) => incoming,
                Err(error) => return kit.fail(format!("This run needs streams of others, and {error}")),
            },
        };
        self.look_at_access(kit);
        (self.incoming, self.leaving) = (Some(incoming), None);
        match self.has_joined {
            true => self.join(home),
            false => {
                self.joins = Some((home, kit.platform.now() + PLACES_MAX));
                self.look_at_reach(kit);
            }
        }
    }

    fn works_beside(&self) -> bool {
        self.incoming.is_some() || !self.work.is_empty()
    }

    fn poll_beside(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut goes_on = self.carry_out();
            if let Some(incoming) = &mut self.incoming
                && let Poll::Ready(Some((from, stream))) = incoming.poll_next_unpin(context)
            {
                goes_on = true;
                if let Some(place) = self.member.admit(&from) {
                    self.work.push(place.answer(stream).boxed_local());
                }
            }
            if let Poll::Ready(Some(())) = self.work.poll_next_unpin(context) {
                goes_on = true;
            }
            if !goes_on {
                break;
            }
        }
        if let Poll::Ready(error) = self.watch.poll_unpin(context) {
            self.lost = Some(error);
            self.has_news = true;
        }
        match std::mem::take(&mut self.has_news) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn on_beside(&mut self, kit: &mut Kit<'a, P>) {
        if let Some(error) = self.lost.take() {
            self.member.forget_home();
            kit.disconnect(Interruption::other(error));
        }
    }

    /// Such runs have no sessions.
    fn on_session(&mut self, _run: &RunDescription, _progress: RunProgress) {}

    fn on_message(&mut self, _message: BackboneToContributor) {}

    fn on_moved(&mut self, _now: Moment) {}

    fn on_parameters(
        &mut self,
        kit: &mut Kit<'a, P>,
        state: EncodedState,
        is_background: bool,
    ) -> Result<(), ModelError> {
        // Those of the round that is trained stay.
        match self.is_computing() {
            true => Ok(()),
            false => kit.load(state, is_background).map(drop),
        }
    }

    fn on_batch(&mut self, n_samples: u32, _samples_per_second: f32) {
        self.counts.n_samples_computed += u64::from(n_samples);
        if let RoundWork::Running { n_batches, .. } = &mut self.round {
            *n_batches = n_batches.saturating_sub(1);
        }
    }

    fn on_computed(&mut self, kit: &mut Kit<'a, P>) -> Result<(), ModelError> {
        let Some(TakenRound { round, took, result }) = self.taken.take() else { return Ok(()) };
        kit.on_busy(took);
        let model = match std::mem::take(&mut self.round) {
            RoundWork::Taking { round: of, model } if of == round => model,
            // It was overtaken.
            other => {
                self.round = other;
                return Ok(());
            }
        };
        let failure = match result {
            Ok(Some(moved)) => match trained_model(&model, &moved) {
                Ok(trained) => {
                    self.handed_in.add(round, moved.n_samples.into(), &mut self.counts);
                    self.next_contribution_id += 1;
                    self.member.with(|peer, now| peer.on_trained(now, round, trained));
                    return Ok(());
                }
                Err(error) => error.to_string(),
            },
            Ok(None) => "nothing was computed".to_owned(),
            Err(error @ ModelError::Device(_)) => {
                self.round = RoundWork::Taking { round, model };
                return Err(error);
            }
            Err(error) => error.to_string(),
        };
        self.member.with(|peer, _| peer.on_training_failed(round));
        kit.fail(format!("Round {round} could not be trained: {failure}"));
        Ok(())
    }

    fn on_net(&mut self, _kit: &mut Kit<'a, P>) -> Result<(), OperationError> {
        Ok(())
    }

    fn on_computation_lost(&mut self) {
        self.round.begin_again();
    }

    fn on_trainer_lost(&mut self) {
        self.round.begin_again();
    }

    fn on_end(&mut self) {
        self.rest();
        self.leaving = None;
    }

    fn activity(&self, _bytes: (u64, u64)) -> Option<Activity> {
        None
    }

    fn waiting(&self) -> Activity {
        let (n_bytes, epoch) = (self.member.settings().n_bytes(), self.epoch());
        self.member.look(|peer| {
            let own = peer.own_round();
            // What too few have sent may lie here, while the others are in later rounds.
            let is_current = |aggregated: &u64| aggregated.saturating_add(1) >= epoch;
            if let Some(epoch) = peer.aggregated_round().filter(is_current) {
                return Activity::Averaging { epoch };
            }
            if peer.is_handing_in() {
                let bytes = self.member.n_bytes_sent().min(n_bytes);
                return Activity::Sending { epoch: own, bytes, bytes_total: n_bytes };
            }
            if (own == epoch && own > 0) || self.scheme.exchange.is_among_neighbors() {
                return Activity::WaitingForOthers { epoch };
            }
            Activity::WaitingForTurn {
                round: epoch,
                n_trainers: self.n_trainers(),
                sample_size: self.scheme.sample_size.into(),
            }
        })
    }

    fn epoch(&self) -> u64 {
        self.member.look(|peer| peer.round().max(peer.own_round()))
    }

    fn next_contribution_id(&self) -> u64 {
        self.next_contribution_id
    }

    fn counts(&self) -> &SampleCounts {
        &self.counts
    }
}
