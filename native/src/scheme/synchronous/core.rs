//! The backbone's driver of the collection round: one task that owns the round and the model, and receives
//! every event through one bounded channel.
//!
//! `barnraise-swarm` decides; the core acts: it journals contributions before they are acknowledged, commits
//! steps before they are published, and notifies contributors.

mod beside;
mod coordination;
#[cfg(test)]
pub(super) mod crash;
mod disk;
mod event;
mod following;
pub mod operator;
mod progress;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::Refusal;
use barnraise_protocol::contribute::{BackboneToContributor, Join};
use barnraise_protocol::gradient::ContributionRefusal;
use barnraise_protocol::receipt::Receipt;
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::AddressGroup;
use barnraise_swarm::collection::{CollectionAction, CollectionRound, Ticket};
use barnraise_swarm::robust::{ClipVerdict, OUTLIER_ROUNDS, OutlierTracker, PeerOutcome};
use barnraise_swarm::{Moment, PeerKey};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Span;

use self::beside::Inbox;
use self::coordination::{ContributorStatistics, Coordination};
use self::disk::DeferredWrites;
pub use self::event::{AcceptedOffer, CoreEvent, DeclinedOffer};
use self::operator::OperatorControl;
use super::aggregators::Aggregators;
use super::learner::{Learner, LearnerError};
use super::metrics::Metrics;
use crate::computing::compute;
use crate::host::contributions::Crediting;
use crate::host::sessions::{SessionId, Sessions, check_join};
use crate::host::states::PublishedState;
use crate::host::status::StatusPublisher;
use crate::storage::checkpoint::{CheckpointError, Checkpoints};
use crate::storage::disk_space::DiskSpace;
use crate::storage::journal::{CommitRecord, Journal, JournalEntry, JournalError};

/// Events that may wait for the core; a sender beyond waits itself.
pub const EVENTS_MAX: usize = 256;
/// Interval between progress messages to contributors and the page.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

struct PendingContribution {
    entry: Option<JournalEntry>,
    receipt: Option<Receipt>,
    answer: oneshot::Sender<Result<Receipt, ContributionRefusal>>,
}

/// Where the core publishes what others read.
#[derive(Debug)]
pub struct Outputs {
    /// Parameters for contributors and the evaluator.
    pub state: watch::Sender<PublishedState>,
    /// For the page.
    pub status: StatusPublisher,
    /// For the DHT.
    pub stands: watch::Sender<barnraise_protocol::dht::progress::LocalProgress>,
}

/// Where the core stores contributions and models, and how often it writes a checkpoint.
#[derive(Debug, Clone)]
pub struct CoreStorage {
    /// Contributions and steps since the last checkpoint.
    pub journal: Journal,
    /// Model, optimizer state and history.
    pub checkpoints: Checkpoints,
    /// Free space of the disk that they are on.
    pub disk_space: DiskSpace,
    /// Steps between two checkpoints.
    pub checkpoint_every_epochs: u64,
}

/// The core of a backbone.
pub struct Core {
    description: Arc<RunDescription>,
    learner: Learner,
    round: CollectionRound,
    storage: CoreStorage,
    outputs: Outputs,
    metrics: Metrics,
    crediting: Crediting,
    far_off: OutlierTracker,
    sessions: Sessions,
    waiting: HashMap<Ticket, PendingContribution>,
    /// Transfers in progress; a message aborts one.
    receiving: HashMap<Ticket, oneshot::Sender<()>>,
    started: Instant,
    inbox: Inbox,
    progress_every: Duration,
    progress_at: Instant,
    /// With the other aggregators; without any this one is a group by itself.
    coordination: Coordination,
    /// `None` for a run without an operator.
    operating: Option<OperatorControl>,
    /// Writes put off while the disk takes none.
    disk: DeferredWrites,
    /// Trace span from the first request for gradients to the new model.
    collecting: Span,
}

impl Core {
    /// A core that continues from `learner` and `round`.
    pub fn new(
        description: Arc<RunDescription>,
        learner: Learner,
        round: CollectionRound,
        storage: CoreStorage,
        outputs: Outputs,
        metrics: Metrics,
        crediting: Crediting,
    ) -> Self {
        let me = crediting.reducer();
        let coordination = Coordination::new(&learner, me, description.scheme.step_samples());
        let now = Instant::now();
        Self {
            description,
            learner,
            round,
            storage,
            outputs,
            metrics,
            crediting,
            far_off: OutlierTracker::default(),
            sessions: Sessions::default(),
            waiting: HashMap::new(),
            receiving: HashMap::new(),
            started: now,
            inbox: Inbox::closed(),
            progress_every: PROGRESS_EVERY,
            progress_at: now,
            coordination,
            operating: None,
            disk: DeferredWrites::default(),
            collecting: Span::none(),
        }
    }

    /// Coordinates with other aggregators, if the run has any.
    #[must_use]
    pub fn with_others(mut self, others: Option<Aggregators>) -> Self {
        if let Some(others) = others {
            self.coordination = self.coordination.with_others(others);
        }
        self
    }

    /// Publishes progress at this interval, for tests that wait for it.
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
        events: mpsc::Receiver<CoreEvent>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), LearnerError> {
        self.inbox = Inbox::new(events);
        tokio::pin!(shutdown);
        // A crash may have come in the middle of following others.
        let carried = self.carry_later_epochs().await;
        self.survive(carried).await?;
        // The previous process may have ended between the last contribution of a step and the step.
        self.round.resume(self.now());
        let acted = self.act().await;
        self.survive(acted).await?;
        loop {
            let coordination = self.coordination.next_deadline();
            let deadline = self.round.next_deadline().into_iter().chain(coordination).min();
            let wait = deadline.map_or(Duration::from_secs(3600), |at| at.saturating_sub(self.now()));
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = tokio::time::sleep_until(self.progress_at) => {
                    self.look_at_disk().await?;
                    self.publish_progress();
                }
                event = self.inbox.next() => match event {
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
        match self.answer_at_once(event) {
            Some(CoreEvent::Gradient { ticket, entry, values, answer }) => {
                self.receiving.remove(&ticket);
                self.waiting
                    .insert(ticket, PendingContribution { entry: Some(*entry), receipt: None, answer });
                self.round.on_gradient(self.now(), ticket, values);
            }
            Some(CoreEvent::Aggregator { peer, event }) => self.on_aggregator_event(peer, event).await?,
            Some(CoreEvent::Operator(asked)) => self.on_operator_request(asked).await?,
            _ => {}
        }
        Ok(())
    }

    fn on_join(
        &mut self,
        peer: PeerKey,
        group: AddressGroup,
        join: &Join,
        messages: mpsc::Sender<BackboneToContributor>,
    ) -> Result<SessionId, Refusal> {
        check_join(&self.description.identity.run_id, &peer, join)?;
        self.round.on_join(peer.clone(), join.device, group)?;
        self.crediting.on_join(self.now(), peer.clone());
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
        Ok(self.sessions.open(peer, messages))
    }

    /// Does what the round and the coordination with other aggregators ask for, until neither has actions.
    async fn act(&mut self) -> Result<(), LearnerError> {
        loop {
            self.run_collection_actions().await;
            if !self.coordinate().await? {
                return Ok(());
            }
        }
    }

    async fn run_collection_actions(&mut self) {
        loop {
            if let Some(collected) = self.round.poll_collected() {
                let n_bytes = 4 * self.round.config().n_parameters;
                let mean = self.beside(compute(n_bytes, move || collected.mean())).await;
                self.on_collected(mean);
            }
            let Some(action) = self.round.poll_action() else { return };
            match action {
                CollectionAction::Persist { ticket, epoch, sequence, group } => {
                    self.persist(ticket, epoch, sequence, group).await;
                }
                CollectionAction::Step(mean) => self.on_collected(mean),
                message => self.pass_on(message),
            }
        }
    }

    /// Passes a message of the round on to contributors.
    fn pass_on(&mut self, message: CollectionAction) {
        match message {
            CollectionAction::Abandon(ticket) => {
                if let Some(end) = self.receiving.remove(&ticket) {
                    // The receiving task may be done by now.
                    let _ = end.send(());
                }
            }
            CollectionAction::Evict(peer) => self.evict(&peer),
            CollectionAction::Acknowledge(ticket, _) => self.answer(ticket, None),
            CollectionAction::Refuse(ticket, refusal) => self.answer(ticket, Some(refusal)),
            CollectionAction::RequestGradients(epoch) => {
                self.collecting = tracing::debug_span!("round", epoch);
                self.broadcast(&BackboneToContributor::GradientDue(epoch));
            }
            CollectionAction::Announce(epoch) => {
                self.broadcast(&BackboneToContributor::EpochStarted(epoch));
            }
            // They are no messages.
            CollectionAction::Persist { .. } | CollectionAction::Step(_) => {}
        }
    }

    async fn persist(&mut self, ticket: Ticket, epoch: u64, sequence: u32, group: AddressGroup) {
        let waiting = self.waiting.get_mut(&ticket);
        let entry = waiting.and_then(|waiting| waiting.entry.take());
        let Some(mut entry) = entry.filter(|_| self.storage.disk_space.trouble().is_none()) else {
            return self.round.on_persist_failed(self.now(), ticket);
        };
        let peer = PeerKey(entry.peer.clone());
        entry.group = group;
        self.crediting.stamp(self.now(), &peer, &mut entry);
        let journal = self.storage.journal.clone();
        if let Err(error) = self.beside(journal.append(epoch, sequence, &entry)).await {
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

    /// Answers an offer with the refusal, or else with the receipt.
    fn answer(&mut self, ticket: Ticket, refusal: Option<ContributionRefusal>) {
        let Some(PendingContribution { receipt, answer, .. }) = self.waiting.remove(&ticket) else { return };
        let result = refusal.map_or_else(|| receipt.map(Ok), |refusal| Some(Err(refusal)));
        if let Some(result) = result {
            // A contributor that is gone offers again, and gets the same receipt.
            let _ = answer.send(result);
        }
    }

    fn decline(&self, peer: &PeerKey, refusal: ContributionRefusal) -> DeclinedOffer {
        let known = match &refusal {
            ContributionRefusal::Duplicate { contribution_id } => self.crediting.find(peer, *contribution_id),
            _ => None,
        };
        known.map_or(DeclinedOffer::Refused(refusal), |receipt| {
            DeclinedOffer::AlreadyCounted(Box::new(receipt.clone()))
        })
    }

    /// The learner has made the step of `record`.
    fn on_new_model(&mut self, record: &CommitRecord, state: PublishedState) {
        self.outputs.state.send_replace(state);
        self.crediting.on_stepped();
        self.collecting = Span::none();
        let last = self.learner.history().last();
        let loss = last.and_then(|point| point.train_loss);
        let (epoch, n_samples) = (self.learner.epoch(), record.n_samples);
        tracing::info!(epoch, n_samples, loss, n_contributions = record.seqs.len(), "stepped");
        self.outputs.status.on_stepped(last);
    }

    async fn checkpoint_if_due(&mut self) -> Result<(), LearnerError> {
        if self.learner.epoch().is_multiple_of(self.storage.checkpoint_every_epochs) {
            self.save_checkpoint().await?;
        }
        Ok(())
    }

    fn record_outliers(&mut self, epoch: u64, outcomes: &[PeerOutcome]) {
        for PeerOutcome { peer, outcome, .. } in outcomes {
            if outcome.verdict == ClipVerdict::LeftOut {
                let (peer, distance) = (name(peer), outcome.distance);
                tracing::debug!(peer, epoch, distance, "too far from the others to count in the step");
            }
        }
        for peer in self.far_off.on_round(outcomes) {
            let peer = name(&peer);
            tracing::warn!(
                peer,
                epoch,
                rounds = OUTLIER_ROUNDS,
                "far from all others, several steps in a row"
            );
        }
        self.metrics.on_aggregated(outcomes, self.far_off.n_outliers());
    }

    /// A checkpoint that cannot be written is written later: the journal has all of its content.
    async fn save_checkpoint(&mut self) -> Result<(), LearnerError> {
        if self.disk.pending_model.is_some() {
            return self.finish_moving().await;
        }
        let checkpoint = self.beside(self.learner.checkpoint()).await?;
        let (epoch, checkpoints) = (checkpoint.epoch, self.storage.checkpoints.clone());
        let oldest = match self.beside(checkpoints.save(checkpoint)).await {
            Err(CheckpointError::Storage(error)) => {
                tracing::error!(epoch, %error, "a checkpoint could not be stored");
                self.put_off_checkpoint(&error).await;
                return Ok(());
            }
            saved => saved?,
        };
        // The journal reaches back to the oldest checkpoint, in case the newer ones turn out broken; one
        // epoch more names the contributions whose acknowledgement may have been lost.
        self.crediting.forget_before(oldest.saturating_sub(1));
        tracing::debug!(epoch, "checkpoint stored");
        Ok(())
    }

    fn send_to(&mut self, peer: &PeerKey, message: BackboneToContributor) {
        if !self.sessions.send(peer, message) {
            self.remove_session(peer);
        }
    }

    fn broadcast(&mut self, message: &BackboneToContributor) {
        let deaf = self.sessions.send_to_all(message);
        deaf.iter().for_each(|peer| self.remove_session(peer));
    }

    /// Ends the session of a contributor that left or does not read its messages. It may join again.
    fn remove_session(&mut self, peer: &PeerKey) {
        let now = self.now();
        self.sessions.close(peer);
        self.crediting.on_leave(peer);
        self.round.on_leave(now, peer);
    }

    /// Tells an evicted contributor that its seat went to another one.
    fn evict(&mut self, peer: &PeerKey) {
        tracing::info!(
            peer = name(peer),
            "all seats are taken: one gives way to a contributor from elsewhere"
        );
        self.send_to(peer, BackboneToContributor::Refused(Refusal::Evicted));
        if self.sessions.close(peer) {
            self.crediting.on_leave(peer);
        }
    }
}

/// The peer id in base58, as in other lines of the log.
fn name(peer: &PeerKey) -> String {
    libp2p::PeerId::from_bytes(&peer.0).map_or_else(|_| format!("{peer:?}"), |id| id.to_string())
}
