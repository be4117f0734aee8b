//! Commands of an operator to a running backbone: each comes as an event and has a reply.
//!
//! The effect of a command is stored before it is applied. A rollback restores the parameters of an earlier checkpoint
//! *as a later epoch*: one checkpoint is written, and until it is complete nothing has happened. So a crash leaves no
//! half of it, the journal is not cut, accepted contributions stay credited, and no contributor has parameters of an
//! epoch that now means another model.

use std::collections::{BTreeMap, HashMap};

use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::{Refusal, RefusalReason};
use barnraise_swarm::PeerKey;
use tokio::sync::watch;

use super::super::learner::LearnerError;
use super::{Core, name};
use crate::host::access::Gate;
use crate::host::clock::WallClock;
use crate::host::operator::request::{OperatorCommand, OperatorError, OperatorReply, OperatorRequest};
use crate::host::operator::settings::{EffectiveSettings, SettingsChange};
use crate::host::operator::state::{
    BLOCKED_MAX, Blocked, OperatorState, OperatorStateError, OperatorStateStore, Paused,
};
use crate::host::operator::view::{BlockedView, ContributorView, PauseView, PeerList, RunState, RunView};
use crate::storage::checkpoint::Checkpoint;

/// Stored commands of the operator, and what the core needs to carry out new ones.
pub struct OperatorControl {
    kept: OperatorState,
    store: OperatorStateStore,
    gate: Gate,
    clock: WallClock,
    n_others: usize,
    /// Settings of the configuration, which hold where the operator changed nothing.
    file: EffectiveSettings,
    /// Weights in force of the sources of a stream.
    stream_weights: watch::Sender<BTreeMap<String, f64>>,
}

impl OperatorControl {
    /// Reads the commands that are still in effect.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn resume(
        store: OperatorStateStore,
        gate: Gate,
        clock: WallClock,
        n_others: usize,
        file: EffectiveSettings,
    ) -> Result<Self, OperatorStateError> {
        let mut kept = store.load().await?;
        if n_others > 0 {
            // Set while the run had one backbone.
            kept.settings = kept.settings.among_others();
        }
        let (stream_weights, _) = watch::channel(kept.settings.over(&file).stream_weights);
        let operating = Self { kept, store, gate, clock, n_others, file, stream_weights };
        operating.close_gate();
        Ok(operating)
    }

    /// Weights of the sources of a stream, as the operator changes them.
    pub(crate) fn stream_weights(&self) -> watch::Receiver<BTreeMap<String, f64>> {
        self.stream_weights.subscribe()
    }

    fn close_gate(&self) {
        let blocked = self.kept.blocked.iter();
        let blocked: HashMap<PeerKey, String> =
            blocked.map(|blocked| (PeerKey(blocked.peer.clone()), blocked.reason.clone())).collect();
        self.gate.set_blocked(blocked);
    }

    /// Why the run is paused, while it is.
    pub(super) fn paused_for(&self) -> Option<&str> {
        self.kept.paused.as_ref().map(|paused| paused.reason.as_str())
    }

    async fn keep(&mut self, kept: OperatorState) -> Result<(), OperatorStateError> {
        self.store.save(&kept).await?;
        self.kept = kept;
        Ok(())
    }

    fn require_sole_backbone(&self, alone: bool, why: &'static str) -> Result<(), OperatorError> {
        let others = self.n_others;
        if others > 0 && !alone { Err(OperatorError::Others { others, why }) } else { Ok(()) }
    }
}

/// The message for contributors that the run is paused, and why.
pub(super) fn pause_notice(reason: &str) -> BackboneToContributor {
    BackboneToContributor::Refused(Refusal::Paused { reason: RefusalReason::of(reason) })
}

impl Core {
    /// Takes commands of an operator, and applies those given before the last stop.
    #[must_use]
    pub fn with_operator(mut self, operating: OperatorControl) -> Self {
        self.apply(&operating.kept.settings.over(&operating.file));
        if let Some(Paused { reason, since }) = &operating.kept.paused {
            // The person who started it may not be the one who paused it.
            tracing::warn!(%reason, since, "the run is paused still, until `barnraise run resume`");
            self.round.pause();
        }
        Self { operating: Some(operating), ..self }
    }

    pub(super) async fn on_operator_request(&mut self, request: OperatorRequest) -> Result<(), LearnerError> {
        let OperatorRequest { command, answer } = request;
        // A core without an operator drops the request.
        if self.operating.is_none() {
            return Ok(());
        }
        let rolled_back = match command {
            OperatorCommand::RollBack { epoch, alone } => Some(self.roll_back(epoch, alone).await?),
            _ => None,
        };
        let Some(mut operating) = self.operating.take() else { return Ok(()) };
        let reply = match rolled_back {
            Some(done) => done.map(|()| self.show(&operating)),
            None => self.execute(&mut operating, command).await,
        };
        self.operating = Some(operating);
        // The client may be gone; the command stays in effect.
        let _ = answer.send(reply);
        Ok(())
    }

    fn show(&self, operating: &OperatorControl) -> OperatorReply {
        OperatorReply::Run(Box::new(self.view(operating)))
    }

    /// Executes a command that needs no step and no other parameters.
    async fn execute(
        &mut self,
        operating: &mut OperatorControl,
        command: OperatorCommand,
    ) -> Result<OperatorReply, OperatorError> {
        match command {
            // The latter is done.
            OperatorCommand::Show | OperatorCommand::RollBack { .. } => {}
            OperatorCommand::Peers { offset, limit } => return Ok(self.peers(operating, offset, limit)),
            OperatorCommand::Pause { reason, alone } => self.pause(operating, reason, alone).await?,
            OperatorCommand::Resume => self.resume(operating).await?,
            OperatorCommand::Set(change) => self.set(operating, &change).await?,
            OperatorCommand::Block { peer, reason } => self.block(operating, peer, reason).await?,
            OperatorCommand::Unblock { peer } => unblock(operating, &peer).await?,
        }
        Ok(self.show(operating))
    }

    async fn pause(
        &mut self,
        operating: &mut OperatorControl,
        reason: String,
        alone: bool,
    ) -> Result<(), OperatorError> {
        operating.require_sole_backbone(alone, "go on without this one: pause each of them")?;
        let since = operating.kept.paused.as_ref().map_or_else(|| (operating.clock)().0, |was| was.since);
        let paused = Some(Paused { reason, since });
        operating.keep(OperatorState { paused, ..operating.kept.clone() }).await?;
        tracing::info!(epoch = self.round.epoch(), "paused by the operator");
        self.round.pause();
        if let Some(reason) = operating.paused_for() {
            let notice = pause_notice(reason);
            self.broadcast(&notice);
        }
        Ok(())
    }

    async fn resume(&mut self, operating: &mut OperatorControl) -> Result<(), OperatorError> {
        operating.keep(OperatorState { paused: None, ..operating.kept.clone() }).await?;
        tracing::info!(epoch = self.round.epoch(), "resumed by the operator");
        // While the disk takes no writes the run stays paused.
        if self.storage.disk_space.trouble().is_none() {
            self.round.unpause(self.now());
        }
        Ok(())
    }

    async fn set(
        &mut self,
        operating: &mut OperatorControl,
        change: &SettingsChange,
    ) -> Result<(), OperatorError> {
        let settings = operating.kept.settings.changed(change, &operating.file, operating.n_others == 0)?;
        operating.keep(OperatorState { settings, ..operating.kept.clone() }).await?;
        let settings = &operating.kept.settings;
        let now = settings.over(&operating.file);
        self.apply(&now);
        tracing::info!(?settings, "settings changed by the operator");
        operating.stream_weights.send_if_modified(|before| {
            let is_changed = *before != now.stream_weights;
            *before = now.stream_weights;
            is_changed
        });
        Ok(())
    }

    fn apply(&mut self, now: &EffectiveSettings) {
        self.round.limit_by(now.limits());
        self.learner.set_rate_factor(now.learning_rate_factor as f32);
        self.storage.checkpoint_every_epochs = now.checkpoint_every_epochs;
    }

    async fn block(
        &mut self,
        operating: &mut OperatorControl,
        peer: PeerKey,
        reason: String,
    ) -> Result<(), OperatorError> {
        let mut kept = operating.kept.clone();
        kept.blocked.retain(|blocked| blocked.peer != peer.0);
        if kept.blocked.len() >= BLOCKED_MAX {
            return Err(OperatorError::TooManyBlocked);
        }
        let since = (operating.clock)().0;
        kept.blocked.push(Blocked { peer: peer.0.clone(), reason, since });
        operating.keep(kept).await?;
        tracing::info!(peer = name(&peer), "blocked by the operator");
        // Ends its conversations, this session's among them; what it had delivered counts.
        operating.close_gate();
        Ok(())
    }

    /// The outer error is a store that would lose accepted work if the run went on.
    async fn roll_back(
        &mut self,
        epoch: u64,
        alone: bool,
    ) -> Result<Result<(), OperatorError>, LearnerError> {
        let why = "have a model with more samples, which this one would follow at once: stop them, and have them \
            begin with this one's checkpoint";
        let is_sole = self.operating.as_ref().map(|operating| operating.require_sole_backbone(alone, why));
        if let Some(Err(error)) = is_sole {
            return Ok(Err(error));
        }
        if self.disk.pending_model.is_some() {
            let why = "a model of another backbone is being stored: try again once the disk takes it".into();
            return Ok(Err(OperatorError::Unfit { epoch, why }));
        }
        let now = self.learner.epoch();
        if epoch >= now {
            return Ok(Err(OperatorError::NotEarlier { epoch, now }));
        }
        let checkpoint = match self.storage.checkpoints.load(epoch).await {
            Ok(Some(checkpoint)) => checkpoint,
            Ok(None) => {
                let kept = self.storage.checkpoints.kept().await.unwrap_or_default();
                let kept = kept.into_iter().map(|(of, _)| of).collect();
                return Ok(Err(OperatorError::NoCheckpoint { epoch, kept }));
            }
            Err(error) => return Ok(Err(error.into())),
        };
        if checkpoint.run_id != self.description.identity.run_id || checkpoint.model != *self.learner.spec() {
            return Ok(Err(OperatorError::Unfit { epoch, why: "it is of another run or model".into() }));
        }
        // With delayed updates, gradients one epoch behind count: those of the old branch must not.
        let is_delayed = self.description.synchronous().is_some_and(|scheme| scheme.delayed_updates);
        let next = now + 1 + u64::from(is_delayed);
        self.round.hold();
        if let Err(error) = self.begin_branch(checkpoint, next).await? {
            self.round.release(self.now());
            return Ok(Err(error));
        }
        self.save_checkpoint().await?;
        let state = self.beside(self.learner.publish(next)).await?;
        self.outputs.state.send_replace(state);
        self.go_on(true).await?;
        tracing::warn!(from = now, to = epoch, epoch = next, "rolled back by the operator");
        Ok(Ok(()))
    }

    /// Goes back to a checkpoint, as `epoch`, and stores that it did. On the inner error nothing has changed.
    async fn begin_branch(
        &mut self,
        to: Checkpoint,
        epoch: u64,
    ) -> Result<Result<(), OperatorError>, LearnerError> {
        let back_to = to.epoch;
        let before = self.beside(self.learner.checkpoint()).await?;
        match self.beside(self.learner.going_back(to, epoch)).await {
            Ok(gone_back) => self.learner.on_restored(gone_back),
            Err(error) => {
                return Ok(Err(OperatorError::Unfit { epoch: back_to, why: error.to_string() }));
            }
        }
        let checkpoint = self.beside(self.learner.checkpoint()).await?;
        let checkpoints = self.storage.checkpoints.clone();
        // From here on it lasts: until now a restart finds the old branch, and from now on the new one.
        if let Err(error) = self.beside(checkpoints.begin_branch(checkpoint)).await {
            let restored = self.beside(self.learner.restoring(before)).await?;
            self.learner.on_restored(restored);
            return Ok(Err(error.into()));
        }
        Ok(Ok(()))
    }

    fn view(&self, operating: &OperatorControl) -> RunView {
        let progress = self.progress();
        let OperatorState { paused, settings, blocked } = &operating.kept;
        let by_disk = self
            .storage
            .disk_space
            .trouble()
            .map(|trouble| PauseView { reason: trouble.reason().to_owned(), since: self.disk.since });
        let pause = |paused: &Paused| PauseView { reason: paused.reason.clone(), since: paused.since };
        let paused = by_disk.or_else(|| paused.as_ref().map(pause));
        let state = if paused.is_some() { RunState::Paused } else { RunState::Training };
        RunView {
            run: self.description.identity.run_id.clone(),
            title: self.description.identity.title.clone(),
            state,
            paused,
            epoch: progress.epoch,
            n_samples: self.round.n_samples(),
            target_batch_size: progress.target_batch_size,
            n_samples_total: self.learner.n_samples_total(),
            n_contributors: self.round.n_contributors() as u64,
            samples_per_second: self.round.samples_per_second(),
            train_loss: progress.train_loss,
            test_accuracy: progress.test_accuracy,
            learning_rate: self.learner.learning_rate(),
            n_other_backbones: operating.n_others as u64,
            n_blocked: blocked.len() as u64,
            settings: settings.over(&operating.file),
            changed: settings.clone(),
        }
    }

    fn peers(&self, operating: &OperatorControl, offset: usize, limit: usize) -> OperatorReply {
        let contributors = self.round.contributors().skip(offset).take(limit);
        let contributors = contributors.map(|contributor| ContributorView {
            peer: name(&contributor.peer),
            device: contributor.device,
            n_outstanding: contributor.n_outstanding,
            n_counted: contributor.n_counted,
            samples_per_second: contributor.samples_per_second,
            n_samples_total: None,
            n_bytes_total: None,
        });
        let blocked = operating.kept.blocked.iter().map(|blocked| BlockedView {
            peer: name(&PeerKey(blocked.peer.clone())),
            reason: blocked.reason.clone(),
            since: blocked.since,
        });
        OperatorReply::Peers(Box::new(PeerList {
            contributors: contributors.collect(),
            n_contributors: self.round.n_contributors() as u64,
            blocked: blocked.collect(),
            convicted: Vec::new(),
            hidden: None,
        }))
    }
}

async fn unblock(operating: &mut OperatorControl, peer: &PeerKey) -> Result<(), OperatorError> {
    let mut kept = operating.kept.clone();
    kept.blocked.retain(|blocked| blocked.peer != peer.0);
    if kept.blocked.len() == operating.kept.blocked.len() {
        return Err(OperatorError::NotBlocked);
    }
    operating.keep(kept).await?;
    tracing::info!(peer = name(peer), "let in again by the operator");
    operating.close_gate();
    Ok(())
}
