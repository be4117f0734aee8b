//! The backbone's driver of the averaging round: one task that owns the round and the model, and hears
//! everything through one bounded channel.
//!
//! What is decided is decided in `barnraise-swarm`; here it is done: contributions are journaled before
//! they are acknowledged, steps are made and journaled before they are shown, contributors are told.

#[cfg(test)]
pub(super) mod crash;
mod disk;
mod event;
mod following;
pub mod operator;
mod progress;
mod together;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::api::{HistoryPoint, LIVE_STEPS_MAX, LiveProgress, RunStatus};
use barnraise_protocol::contribute::{BackboneToContributor, Join};
use barnraise_protocol::gradient::Refusal;
use barnraise_protocol::receipt::Receipt;
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::robust::{FAR_ROUNDS, FarOff, PeerOutcome, Verdict};
use barnraise_swarm::round::{AddressGroup, AveragingRound, MeanOfRound, RoundAction, Ticket};
use barnraise_swarm::{Moment, PeerKey};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{Instrument as _, Span};

use self::disk::WaitsForDisk;
pub use self::event::{CoreEvent, Declined, Place, SessionId};
use self::operator::Operating;
use self::together::Crowd;
pub use self::together::Together;
use super::learner::{Learner, LearnerError, PublishedState, StepBy};
use super::metrics::Metrics;
use crate::contributions::Crediting;
use crate::storage::checkpoint::{CheckpointError, Checkpoints};
use crate::storage::journal::{CommitRecord, Journal, JournalEntry, JournalError};
use crate::storage::room::Room;

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
    /// On the disk that they are on.
    pub room: Room,
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
    sessions: BTreeMap<PeerKey, Session>,
    next_session: u64,
    waiting: HashMap<Ticket, Waiting>,
    /// Transfers under way, each ended by this.
    receiving: HashMap<Ticket, oneshot::Sender<()>>,
    started: Instant,
    progress_every: Duration,
    unpublished_steps: VecDeque<HistoryPoint>,
    /// Since the page was told.
    has_evaluated: bool,
    /// Where others aggregate the run too.
    together: Option<Together>,
    /// Where somebody operates the run.
    operating: Option<Operating>,
    /// While nothing can be stored.
    disk: WaitsForDisk,
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
            sessions: BTreeMap::new(),
            next_session: 0,
            waiting: HashMap::new(),
            receiving: HashMap::new(),
            started: Instant::now(),
            progress_every: PROGRESS_EVERY,
            unpublished_steps: VecDeque::new(),
            has_evaluated: false,
            together: None,
            operating: None,
            disk: WaitsForDisk::default(),
            collecting: Span::none(),
        }
    }

    /// Others aggregate the run too, if there are any.
    #[must_use]
    pub fn with(self, together: Option<Together>) -> Self {
        Self { together, ..self }
    }

    /// Tells so often how the run stands, where a test would wait for it.
    #[cfg(test)]
    fn telling_every(self, progress_every: Duration) -> Self {
        Self { progress_every, ..self }
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
        let mut ticks = tokio::time::interval(self.progress_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        tokio::pin!(shutdown);
        if self.together.is_some() {
            // A crash may have come in the middle of following others.
            let carried = self.carry_later_epochs().await;
            self.survive(carried).await?;
        }
        // The one before may have ended between the last contribution of a step and the step.
        self.round.resume(self.now());
        let acted = self.act().await;
        self.survive(acted).await?;
        loop {
            let together = self.together.as_ref().and_then(Together::next_deadline);
            let deadline = self.round.next_deadline().into_iter().chain(together).min();
            let wait = deadline.map_or(Duration::from_secs(3600), |at| at.saturating_sub(self.now()));
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                _ = ticks.tick() => {
                    self.look_at_disk().await?;
                    self.publish_progress();
                }
                event = events.recv() => match event {
                    Some(event) => {
                        let heard = self.on_event(event).await;
                        self.survive(heard).await?;
                    }
                    None => break,
                },
                () = tokio::time::sleep(wait) => {}
            }
            // Here and not in its branch: a flood of events must not put the deadline off.
            let now = self.now();
            self.round.on_timeout(now);
            let acted = self.act().await;
            self.survive(acted).await?;
        }
        self.save_checkpoint().await
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    async fn on_event(&mut self, event: CoreEvent) -> Result<(), LearnerError> {
        let now = self.now();
        match event {
            CoreEvent::Join { peer, group, join, messages, answer } => {
                // A sender that is gone closed its stream meanwhile: its `Leave` follows.
                let _ = answer.send(self.on_join(peer, group, &join, messages));
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
            CoreEvent::Offer { peer, offer, answer } => self.on_offer(&peer, &offer, answer),
            CoreEvent::TransferFailed(ticket) => {
                self.receiving.remove(&ticket);
                self.round.on_transfer_failed(now, ticket);
            }
            CoreEvent::Gradient { ticket, entry, values, answer } => {
                self.receiving.remove(&ticket);
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
        group: AddressGroup,
        join: &Join,
        messages: mpsc::Sender<BackboneToContributor>,
    ) -> Result<SessionId, String> {
        if join.run_id != self.description.run_id {
            return Err(format!("the run here is `{}`, not `{}`", self.description.run_id, join.run_id));
        }
        if PublicKey::of_peer_id(&peer.0).is_none() {
            return Err("contributions are credited to Ed25519 keys, this peer has another kind".into());
        }
        self.round.on_join(peer.clone(), join.device, group).map_err(|error| error.to_string())?;
        self.crediting.on_join(self.now(), peer.clone());
        let id = SessionId(self.next_session);
        self.next_session += 1;
        let welcome = BackboneToContributor::Welcome(self.progress());
        // The channel is new and empty.
        let _ = messages.try_send(welcome);
        if let Some(elsewhere) = self.elsewhere() {
            let _ = messages.try_send(elsewhere);
        }
        if let Some(notice) = self.pause_notice() {
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
                RoundAction::Persist { ticket, epoch, sequence, group } => {
                    self.persist(ticket, epoch, sequence, group).await;
                }
                RoundAction::Abandon(ticket) => {
                    if let Some(end) = self.receiving.remove(&ticket) {
                        // Who receives it may be through by now.
                        let _ = end.send(());
                    }
                }
                RoundAction::Evict(peer) => self.give_seat_of(&peer),
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

    async fn persist(&mut self, ticket: Ticket, epoch: u64, sequence: u32, group: AddressGroup) {
        let waiting = self.waiting.get_mut(&ticket);
        let entry = waiting.and_then(|waiting| waiting.entry.take());
        let Some(mut entry) = entry.filter(|_| self.storing.room.trouble().is_none()) else {
            return self.round.on_persist_failed(self.now(), ticket);
        };
        let peer = PeerKey(entry.peer.clone());
        entry.group = group;
        self.crediting.stamp(self.now(), &peer, &mut entry);
        if let Err(error) = self.storing.journal.append(epoch, sequence, &entry).await {
            tracing::error!(epoch, sequence, %error, "a contribution could not be stored");
            self.round.on_persist_failed(self.now(), ticket);
            if let JournalError::Storage(error) = &error {
                self.on_disk_error(error).await;
            }
            return;
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

    pub(super) async fn step(&mut self, mean: MeanOfRound) -> Result<(), LearnerError> {
        let MeanOfRound { epoch, n_samples, .. } = mean;
        let (seqs, aggregation) = (mean.sequences.clone(), mean.aggregation);
        let learning_rate = self.learner.learning_rate();
        let record = CommitRecord { epoch, n_samples, seqs, aggregation, together: None, learning_rate };
        match self.storing.journal.commit(&record).await {
            Err(JournalError::Storage(error)) => {
                self.put_off(mean, &error).await;
                return Ok(());
            }
            committed => committed?,
        }
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

    /// The journal has all that it would have: where it cannot be written, it is written later.
    async fn save_checkpoint(&mut self) -> Result<(), LearnerError> {
        if self.disk.moving.is_some() {
            return self.finish_moving().await;
        }
        let checkpoint = self.learner.checkpoint()?;
        let oldest = match self.storing.checkpoints.save(&checkpoint).await {
            Err(CheckpointError::Storage(error)) => {
                tracing::error!(epoch = checkpoint.epoch, %error, "a checkpoint could not be stored");
                self.put_off_checkpoint(&error).await;
                return Ok(());
            }
            saved => saved?,
        };
        // The journal reaches back to the oldest checkpoint, in case the newer ones turn out broken; one
        // epoch more names the contributions whose acknowledgement may have been lost.
        self.crediting.forget_before(oldest.saturating_sub(1));
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

    /// The seat is another's by now.
    fn give_seat_of(&mut self, peer: &PeerKey) {
        tracing::info!(
            peer = name(peer),
            "all seats are taken: one gives way to a contributor from elsewhere"
        );
        let why = "all seats of this backbone are taken, and many of them from your address: try again later";
        self.tell(peer, BackboneToContributor::Refused(why.into()));
        if self.sessions.remove(peer).is_some() {
            self.crediting.on_leave(peer);
        }
    }
}

/// As an operator knows it from other lines of the log.
fn name(peer: &PeerKey) -> String {
    libp2p::PeerId::from_bytes(&peer.0).map_or_else(|_| format!("{peer:?}"), |id| id.to_string())
}
