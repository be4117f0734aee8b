//! The backbone's driver of the averaging round: one task that owns the round and the model, and hears
//! everything through one bounded channel.
//!
//! What is decided is decided in `barnraise-swarm`; here it is done: contributions are journaled before
//! they are acknowledged, steps are made and journaled before they are shown, contributors are told.

mod event;
mod following;
mod low_rank;
pub mod operator;
mod progress;
mod together;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::api::{DeviceCount, HistoryPoint, LIVE_STEPS_MAX, LiveProgress, RunStatus};
use barnraise_protocol::contribute::{BackboneToContributor, DeviceKind, Join, Progress};
use barnraise_protocol::gradient::Refusal;
use barnraise_protocol::receipt::Receipt;
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::history::last_evaluation;
use barnraise_swarm::robust::{FAR_ROUNDS, FarOff, PeerOutcome, Verdict};
use barnraise_swarm::round::{AveragingRound, MeanOfRound, RoundAction, Ticket};
use barnraise_swarm::{Moment, PeerKey};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;
use tracing::{Instrument as _, Span};

pub use self::event::{CoreEvent, Declined, SessionId};
pub use self::low_rank::Factors;
use self::operator::Operating;
use self::together::Crowd;
pub use self::together::Together;
use super::learner::{Learner, LearnerError, PublishedState, StepBy};
use super::metrics::Metrics;
use crate::contributions::Crediting;
use crate::storage::checkpoint::Checkpoints;
use crate::storage::journal::{CommitRecord, Journal, JournalEntry};
use crate::storage::owed::Owed;

/// Events that may wait for the core; a sender beyond waits itself.
pub const EVENTS_MAX: usize = 256;
/// Messages that may wait for one contributor; one that reads slower than that is let go.
pub const SESSION_MESSAGES_MAX: usize = 64;
/// How often contributors and the page are told how the run stands.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

struct Session {
    id: SessionId,
    messages: mpsc::Sender<BackboneToContributor>,
}

struct Waiting {
    entry: Option<JournalEntry>,
    receipt: Option<Receipt>,
    answer: oneshot::Sender<Result<Receipt, Refusal>>,
}

/// Where the core publishes what others read.
#[derive(Debug)]
pub struct Outputs {
    /// Parameters for contributors and the evaluator.
    pub state: watch::Sender<PublishedState>,
    /// `GET /api/run`.
    pub status: watch::Sender<RunStatus>,
    /// `GET /api/events`.
    pub events: broadcast::Sender<LiveProgress>,
    /// For the DHT.
    pub stands: watch::Sender<barnraise_protocol::dht::progress::Progress>,
}

/// How often the core stores all it knows.
#[derive(Debug, Clone)]
pub struct Storing {
    /// Contributions and steps since the last checkpoint.
    pub journal: Journal,
    /// Everything.
    pub checkpoints: Checkpoints,
    /// What means by factors left out.
    pub owed: Owed,
    /// Steps between two checkpoints.
    pub checkpoint_every_epochs: u64,
}

/// The core of a backbone.
pub struct Core {
    description: Arc<RunDescription>,
    learner: Learner,
    round: AveragingRound,
    storing: Storing,
    outputs: Outputs,
    metrics: Metrics,
    crediting: Crediting,
    far_off: FarOff,
    sessions: HashMap<PeerKey, Session>,
    next_session: u64,
    waiting: HashMap<Ticket, Waiting>,
    started: Instant,
    unpublished_steps: VecDeque<HistoryPoint>,
    /// Since the page was told.
    has_evaluated: bool,
    /// Where others aggregate the run too.
    together: Option<Together>,
    /// Where somebody operates the run.
    operating: Option<Operating>,
    /// From the first gradient that is due to the new model, for a trace.
    collecting: Span,
}

impl Core {
    /// A core that goes on where `learner` and `round` stand.
    pub fn new(
        description: Arc<RunDescription>,
        learner: Learner,
        round: AveragingRound,
        storing: Storing,
        outputs: Outputs,
        metrics: Metrics,
        crediting: Crediting,
    ) -> Self {
        Self {
            description,
            learner,
            round,
            storing,
            outputs,
            metrics,
            crediting,
            far_off: FarOff::default(),
            sessions: HashMap::new(),
            next_session: 0,
            waiting: HashMap::new(),
            started: Instant::now(),
            unpublished_steps: VecDeque::new(),
            has_evaluated: false,
            together: None,
            operating: None,
            collecting: Span::none(),
        }
    }

    /// Others aggregate the run too, if there are any.
    #[must_use]
    pub fn with(self, together: Option<Together>) -> Self {
        Self { together, ..self }
    }

    /// Runs until `shutdown` resolves, then stores a checkpoint.
    ///
    /// # Errors
    /// The store failed in a way that would lose accepted work if the run went on.
    pub async fn run(
        mut self,
        mut events: mpsc::Receiver<CoreEvent>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), LearnerError> {
        let mut ticks = tokio::time::interval(PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        tokio::pin!(shutdown);
        if self.together.is_some() {
            // A crash may have come in the middle of following others.
            self.carry_later_epochs().await?;
            self.round.resume(self.now());
        }
        self.act().await?;
        loop {
            let together = self.together.as_ref().and_then(Together::next_deadline);
            let deadline = self.round.next_deadline().into_iter().chain(together).min();
            let wait = deadline.map_or(Duration::from_secs(3600), |at| at.saturating_sub(self.now()));
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                _ = ticks.tick() => self.publish_progress(),
                event = events.recv() => match event {
                    Some(event) => self.on_event(event).await?,
                    None => break,
                },
                () = tokio::time::sleep(wait) => {}
            }
            // Here and not in its branch: a flood of events must not put the deadline off.
            let now = self.now();
            self.round.on_timeout(now);
            self.act().await?;
        }
        self.save_checkpoint().await
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    async fn on_event(&mut self, event: CoreEvent) -> Result<(), LearnerError> {
        let now = self.now();
        match event {
            CoreEvent::Join { peer, join, messages, answer } => {
                // A sender that is gone closed its stream meanwhile: its `Leave` follows.
                let _ = answer.send(self.on_join(peer, &join, messages));
            }
            CoreEvent::Leave { peer, session } => {
                if self.sessions.get(&peer).is_some_and(|known| known.id == session) {
                    self.let_go(&peer);
                }
            }
            CoreEvent::Report { peer, report, handled: _ } => {
                if let Err(error) = self.round.on_report(now, &peer, &report) {
                    self.tell(&peer, BackboneToContributor::Refused(error.to_string()));
                }
            }
            CoreEvent::Offer { peer, offer, answer } => {
                let ticket = self.round.on_offer(now, &peer, &offer);
                if let Err(refusal) = &ticket {
                    tracing::debug!(?peer, epoch = offer.epoch, %refusal, "offer refused");
                }
                let ticket = ticket.map_err(|refusal| self.decline(&peer, refusal));
                if let Err(Ok(unheard)) = answer.send(ticket) {
                    self.round.on_transfer_failed(now, unheard);
                }
            }
            CoreEvent::TransferFailed(ticket) => self.round.on_transfer_failed(now, ticket),
            CoreEvent::Gradient { ticket, entry, values, answer } => {
                self.waiting.insert(ticket, Waiting { entry: Some(entry), receipt: None, answer });
                self.round.on_gradient(now, ticket, values);
            }
            CoreEvent::Evaluated { epoch, evaluation } => {
                tracing::info!(epoch, accuracy = evaluation.accuracy, loss = evaluation.loss, "evaluated");
                self.learner.on_evaluated(epoch, evaluation.accuracy);
                self.has_evaluated = true;
            }
            CoreEvent::Aggregator { peer, heard } => self.on_heard(peer, heard).await?,
            CoreEvent::Operator(asked) => self.on_word(asked).await?,
        }
        Ok(())
    }

    fn on_join(
        &mut self,
        peer: PeerKey,
        join: &Join,
        messages: mpsc::Sender<BackboneToContributor>,
    ) -> Result<SessionId, String> {
        if join.run_id != self.description.run_id {
            return Err(format!("the run here is `{}`, not `{}`", self.description.run_id, join.run_id));
        }
        if PublicKey::of_peer_id(&peer.0).is_none() {
            return Err("contributions are credited to Ed25519 keys, this peer has another kind".into());
        }
        self.round.on_join(peer.clone(), join.device).map_err(|error| error.to_string())?;
        self.crediting.on_join(self.now(), peer.clone());
        let id = SessionId(self.next_session);
        self.next_session += 1;
        let welcome = BackboneToContributor::Welcome(self.progress());
        // The channel is new and empty.
        let _ = messages.try_send(welcome);
        if let Some(elsewhere) = self.elsewhere() {
            let _ = messages.try_send(elsewhere);
        }
        if let Some(notice) = self.operating.as_ref().and_then(Operating::pause_notice) {
            let _ = messages.try_send(notice);
        }
        if self.round.is_paused() {
            let _ = messages.try_send(BackboneToContributor::GradientDue(self.round.epoch()));
        }
        self.sessions.insert(peer, Session { id, messages });
        Ok(id)
    }

    /// Does everything that the round asks for, and what those ask for who aggregate the run too.
    async fn act(&mut self) -> Result<(), LearnerError> {
        loop {
            self.act_alone().await?;
            if self.together.is_none() || !self.act_together().await? {
                return Ok(());
            }
        }
    }

    async fn act_alone(&mut self) -> Result<(), LearnerError> {
        while let Some(action) = self.round.poll_action() {
            match action {
                RoundAction::Persist { ticket, epoch, sequence } => {
                    self.persist(ticket, epoch, sequence).await;
                }
                RoundAction::Acknowledge(ticket, _) => self.answer(ticket, None),
                RoundAction::Refuse(ticket, refusal) => self.answer(ticket, Some(refusal)),
                RoundAction::RequestGradients(epoch) => {
                    self.collecting = tracing::debug_span!("round", epoch);
                    self.tell_all(&BackboneToContributor::GradientDue(epoch));
                }
                RoundAction::Announce(epoch) => self.tell_all(&BackboneToContributor::EpochStarted(epoch)),
                RoundAction::Step(mean) if self.together.is_some() => self.on_collected(mean),
                RoundAction::Step(mean) => {
                    let MeanOfRound { epoch, n_samples, .. } = mean;
                    let span = tracing::debug_span!(parent: &self.collecting, "step", epoch, n_samples);
                    self.step(mean).instrument(span).await?;
                }
            }
        }
        Ok(())
    }

    async fn persist(&mut self, ticket: Ticket, epoch: u64, sequence: u32) {
        let waiting = self.waiting.get_mut(&ticket);
        let Some(mut entry) = waiting.and_then(|waiting| waiting.entry.take()) else {
            return self.round.on_persist_failed(self.now(), ticket);
        };
        let peer = PeerKey(entry.peer.clone());
        self.crediting.stamp(self.now(), &peer, &mut entry);
        if let Err(error) = self.storing.journal.append(epoch, sequence, &entry).await {
            tracing::error!(epoch, sequence, %error, "a contribution could not be stored");
            return self.round.on_persist_failed(self.now(), ticket);
        }
        let now = self.now();
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            waiting.receipt = self.crediting.on_stored(now, &peer, &entry);
        }
        self.round.on_persisted(now, ticket);
        self.crediting.worked(self.now().saturating_sub(now));
    }

    /// A refusal, or else the receipt.
    fn answer(&mut self, ticket: Ticket, refusal: Option<Refusal>) {
        let Some(Waiting { receipt, answer, .. }) = self.waiting.remove(&ticket) else { return };
        let result = refusal.map_or_else(|| receipt.map(Ok), |refusal| Some(Err(refusal)));
        if let Some(result) = result {
            // A contributor that is gone offers again, and gets the same receipt.
            let _ = answer.send(result);
        }
    }

    fn decline(&self, peer: &PeerKey, refusal: Refusal) -> Declined {
        let known = match &refusal {
            Refusal::Duplicate { contribution_id } => self.crediting.find(peer, *contribution_id),
            _ => None,
        };
        known.map_or(Declined::Refused(refusal), |receipt| Declined::CountedBefore(Box::new(receipt.clone())))
    }

    async fn step(&mut self, mean: MeanOfRound) -> Result<(), LearnerError> {
        let MeanOfRound { epoch, n_samples, .. } = mean;
        let (seqs, aggregation) = (mean.sequences.clone(), mean.aggregation);
        let learning_rate = self.learner.learning_rate();
        let record = CommitRecord { epoch, n_samples, seqs, aggregation, together: None, learning_rate };
        self.storing.journal.commit(&record).await?;
        let began = self.now();
        self.learner.step(StepBy::from(&mean), learning_rate);
        self.see_who_is_far_off(epoch, &mean.outcomes);
        self.crediting.worked(self.now().saturating_sub(began));
        self.on_new_model(&record)?;
        let now = self.now();
        self.round.on_stepped(now);
        self.checkpoint_if_due().await
    }

    /// The learner has made the step of `record`.
    fn on_new_model(&mut self, record: &CommitRecord) -> Result<(), LearnerError> {
        let began = self.now();
        self.outputs.state.send_replace(self.learner.publish()?);
        self.crediting.worked(self.now().saturating_sub(began));
        self.crediting.on_stepped();
        self.collecting = Span::none();
        let last = self.learner.history().last();
        let loss = last.and_then(|point| point.train_loss);
        let (epoch, n_samples) = (self.learner.epoch(), record.n_samples);
        tracing::info!(epoch, n_samples, loss, n_contributions = record.seqs.len(), "stepped");
        if self.unpublished_steps.len() >= LIVE_STEPS_MAX {
            self.unpublished_steps.pop_front();
        }
        self.unpublished_steps.extend(last);
        Ok(())
    }

    async fn checkpoint_if_due(&mut self) -> Result<(), LearnerError> {
        if self.learner.epoch().is_multiple_of(self.storing.checkpoint_every_epochs) {
            self.save_checkpoint().await?;
        }
        Ok(())
    }

    fn see_who_is_far_off(&mut self, epoch: u64, outcomes: &[PeerOutcome]) {
        for PeerOutcome { peer, outcome, .. } in outcomes {
            if outcome.verdict == Verdict::LeftOut {
                let (peer, distance) = (name(peer), outcome.distance);
                tracing::debug!(peer, epoch, distance, "too far from the others to count in the step");
            }
        }
        for peer in self.far_off.on_round(outcomes) {
            let peer = name(&peer);
            tracing::warn!(peer, epoch, rounds = FAR_ROUNDS, "far from all others, several steps in a row");
        }
        self.metrics.on_aggregated(outcomes, self.far_off.n_far());
    }

    async fn save_checkpoint(&self) -> Result<(), LearnerError> {
        let checkpoint = self.learner.checkpoint()?;
        let oldest = self.storing.checkpoints.save(&checkpoint).await?;
        // The journal reaches back to the oldest checkpoint, in case the newer ones turn out broken; one
        // epoch more names the contributions whose acknowledgement may have been lost.
        self.crediting.forget_before(oldest.saturating_sub(1));
        self.forget_owed_before(oldest.saturating_sub(1)).await?;
        tracing::debug!(epoch = checkpoint.epoch, "checkpoint stored");
        Ok(())
    }

    fn tell(&mut self, peer: &PeerKey, message: BackboneToContributor) {
        if let Some(session) = self.sessions.get(peer)
            && session.messages.try_send(message).is_err()
        {
            self.let_go(peer);
        }
    }

    fn tell_all(&mut self, message: &BackboneToContributor) {
        let deaf = |(peer, session): (&PeerKey, &Session)| {
            session.messages.try_send(message.clone()).is_err().then(|| peer.clone())
        };
        let deaf: Vec<PeerKey> = self.sessions.iter().filter_map(deaf).collect();
        deaf.iter().for_each(|peer| self.let_go(peer));
    }

    /// Of a contributor that left, or that does not read what it is told: it holds nobody up, and may come back.
    fn let_go(&mut self, peer: &PeerKey) {
        let now = self.now();
        self.sessions.remove(peer);
        self.crediting.on_leave(peer);
        self.round.on_leave(now, peer);
    }

    /// What the contributors of this backbone do.
    fn here(&self) -> Crowd {
        Crowd {
            n_samples: self.round.n_samples(),
            n_contributors: self.round.n_contributors().try_into().unwrap_or(u32::MAX),
            samples_per_second: self.round.samples_per_second(),
        }
    }

    fn progress(&self) -> Progress {
        let last = self.learner.history().last();
        let here = self.here();
        let all = self.together.as_ref().map_or(here, |together| together.all(self.now(), here));
        Progress {
            epoch: self.round.epoch(),
            n_samples: all.n_samples,
            target_batch_size: self.description.target_batch_size,
            n_contributors: all.n_contributors,
            samples_per_second: all.samples_per_second,
            train_loss: last.and_then(|point| point.train_loss),
            test_accuracy: self.learner.history().last_accuracy(),
        }
    }

    fn devices(&self) -> Vec<DeviceCount> {
        let mut counts: HashMap<DeviceKind, u32> = HashMap::new();
        self.round.devices().for_each(|device| *counts.entry(device).or_default() += 1);
        let mut counts: Vec<_> = counts
            .into_iter()
            .map(|(device, n_contributors)| DeviceCount { device, n_contributors })
            .collect();
        counts.sort_by_key(|count| (std::cmp::Reverse(count.n_contributors), count.device as u8));
        counts
    }

    fn publish_progress(&mut self) {
        self.outputs.stands.send_replace(self.stands());
        let (progress, devices) = (self.progress(), self.devices());
        self.tell_all(&BackboneToContributor::Progress(progress));
        let steps: Vec<HistoryPoint> = self.unpublished_steps.drain(..).collect();
        let has_news = std::mem::take(&mut self.has_evaluated) || !steps.is_empty();
        let history = self.learner.history().points();
        let evaluation = last_evaluation(history);
        let paused = self.operating.as_ref().and_then(Operating::paused_for).map(str::to_owned);
        let live =
            LiveProgress { progress, steps, evaluation, devices: devices.clone(), paused: paused.clone() };
        self.outputs.status.send_modify(|status| {
            status.progress = progress;
            status.devices = devices;
            status.paused = paused;
            if has_news {
                status.history = history.to_vec();
            }
        });
        // Last, so that whoever hears of it finds it in the status. No reader, no harm.
        let _ = self.outputs.events.send(live);
    }
}

/// As an operator knows it from other lines of the log.
fn name(peer: &PeerKey) -> String {
    libp2p::PeerId::from_bytes(&peer.0).map_or_else(|_| format!("{peer:?}"), |id| id.to_string())
}
