//! What an operator says to a run that trains: each word comes as an event and has an answer.
//!
//! What a word leaves behind is stored before it takes effect. A run goes back to an earlier checkpoint by having its
//! parameters again *as a later epoch*: one checkpoint is written, and until that is whole nothing has happened. So there
//! is no half of it after a crash, the journal is not cut, what was accepted stays credited, and no contributor is ahead
//! of the run with parameters whose epoch means something else by now.

use std::collections::HashMap;

use barnraise_protocol::contribute::{BackboneToContributor, PAUSED};
use barnraise_swarm::PeerKey;
use tokio::sync::oneshot;

use super::super::learner::LearnerError;
use super::{Core, name};
use crate::access::{Gate, WallClock};
use crate::admin::kept::{BLOCKED_MAX, Blocked, Kept, KeptError, KeptStore, Paused};
use crate::admin::settings::{Change, Effective, SettingError};
use crate::admin::view::{BlockedView, ContributorView, PauseView, PeerList, RunState, RunView};
use crate::storage::checkpoint::CheckpointError;

/// What an operator asks for. `alone` says: although other backbones aggregate the run.
#[derive(Debug, Clone, PartialEq)]
pub enum Word {
    /// How the run stands.
    Show,
    /// No steps until [`Self::Resume`]; contributors and visitors read the reason.
    Pause {
        /// For everybody.
        reason: String,
        /// Although others go on.
        alone: bool,
    },
    /// Go on.
    Resume,
    /// Another setting.
    Set(Change),
    /// The parameters of an earlier checkpoint again.
    RollBack {
        /// Of the checkpoint.
        epoch: u64,
        /// Although others have a model with more samples.
        alone: bool,
    },
    /// Keep a peer out, that reads the reason.
    Block {
        /// Who.
        peer: PeerKey,
        /// For it.
        reason: String,
    },
    /// Let it in again.
    Unblock {
        /// Who.
        peer: PeerKey,
    },
    /// Who takes part: so many from a place on.
    Peers {
        /// The place.
        offset: usize,
        /// How many.
        limit: usize,
    },
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// To [`Word::Peers`].
    Peers(Box<PeerList>),
    /// To all others.
    Run(Box<RunView>),
}

/// A word and where its answer goes.
#[derive(Debug)]
pub struct Asked {
    /// What.
    pub word: Word,
    /// How it ended.
    pub answer: oneshot::Sender<Result<Said, WordError>>,
}

/// Why a word has no effect. Whatever it is, the run goes on as it was.
#[derive(Debug, thiserror::Error)]
pub enum WordError {
    /// Other backbones go on.
    #[error("{others} other backbones aggregate this run and {why}; `alone` does it all the same")]
    Others {
        /// How many.
        others: usize,
        /// What of it.
        why: &'static str,
    },
    /// There is no such checkpoint, or it is damaged.
    #[error("no checkpoint of epoch {epoch} is kept, or it is damaged; there are those of {kept:?}")]
    NoCheckpoint {
        /// That was wanted.
        epoch: u64,
        /// Epochs of those that there are.
        kept: Vec<u64>,
    },
    /// It is the present.
    #[error("the run is at epoch {now}: it goes back to an earlier checkpoint, not to that of {epoch}")]
    NotEarlier {
        /// That was wanted.
        epoch: u64,
        /// Of the run.
        now: u64,
    },
    /// A checkpoint that the run cannot go on from.
    #[error("the checkpoint of epoch {epoch} does not fit the run: {why}")]
    Unfit {
        /// That was wanted.
        epoch: u64,
        /// What does not fit.
        why: String,
    },
    /// A setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Nobody of that name is blocked.
    #[error("the peer is not blocked")]
    NotBlocked,
    /// More than are kept.
    #[error("{BLOCKED_MAX} peers are blocked already: let some in, or close the run with [access]")]
    TooManyBlocked,
    /// It could not be stored, so it was not done.
    #[error("it could not be stored: {0}")]
    Kept(#[from] KeptError),
    /// The store does not answer.
    #[error("the checkpoints cannot be read or written: {0}")]
    Checkpoints(#[from] CheckpointError),
}

/// All that a core needs to hear its operator.
pub struct Operating {
    kept: Kept,
    store: KeptStore,
    gate: Gate,
    clock: WallClock,
    n_others: usize,
    /// What holds where nothing was changed.
    file: Effective,
}

impl Operating {
    /// Goes on with what was said before.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn resume(
        store: KeptStore,
        gate: Gate,
        clock: WallClock,
        n_others: usize,
        file: Effective,
    ) -> Result<Self, KeptError> {
        let mut kept = store.load().await?;
        if n_others > 0 {
            // Set while the run had one backbone: now all of them have to have the same.
            kept.settings.learning_rate_factor = None;
            kept.settings.checkpoint_every_epochs = None;
        }
        let operating = Self { kept, store, gate, clock, n_others, file };
        operating.close_gate();
        Ok(operating)
    }

    fn close_gate(&self) {
        let blocked = self.kept.blocked.iter();
        let blocked: HashMap<PeerKey, String> =
            blocked.map(|blocked| (PeerKey(blocked.peer.clone()), blocked.reason.clone())).collect();
        self.gate.block_only(blocked);
    }

    /// Why the run is paused, while it is.
    pub(super) fn paused_for(&self) -> Option<&str> {
        self.kept.paused.as_ref().map(|paused| paused.reason.as_str())
    }

    async fn keep(&mut self, kept: Kept) -> Result<(), KeptError> {
        self.store.save(&kept).await?;
        self.kept = kept;
        Ok(())
    }

    fn mind_others(&self, alone: bool, why: &'static str) -> Result<(), WordError> {
        let others = self.n_others;
        if others > 0 && !alone { Err(WordError::Others { others, why }) } else { Ok(()) }
    }
}

impl Core {
    /// Hears an operator, and does what was said before the last stop.
    #[must_use]
    pub fn operated(mut self, operating: Operating) -> Self {
        self.apply(&operating.kept.settings.over(&operating.file));
        if let Some(Paused { reason, since }) = &operating.kept.paused {
            // Whoever started it may not be who paused it.
            tracing::warn!(%reason, since, "the run is paused still, until `barnraise run resume`");
            self.round.pause();
        }
        Self { operating: Some(operating), ..self }
    }

    pub(super) async fn on_word(&mut self, asked: Asked) -> Result<(), LearnerError> {
        let Asked { word, answer } = asked;
        // A core that nobody operates drops the question.
        let Some(mut operating) = self.operating.take() else { return Ok(()) };
        let said = self.obey(&mut operating, word).await;
        self.operating = Some(operating);
        // Whoever asked may be gone; what was said holds.
        let _ = answer.send(said?);
        Ok(())
    }

    /// The outer error is a store that would lose accepted work if the run went on.
    async fn obey(
        &mut self,
        operating: &mut Operating,
        word: Word,
    ) -> Result<Result<Said, WordError>, LearnerError> {
        let done = match word {
            Word::Show => Ok(()),
            Word::Peers { offset, limit } => return Ok(Ok(self.peers(operating, offset, limit))),
            Word::Pause { reason, alone } => self.pause(operating, reason, alone).await,
            Word::Resume => self.resume(operating).await,
            Word::Set(change) => self.set(operating, &change).await,
            Word::Block { peer, reason } => self.block(operating, peer, reason).await,
            Word::Unblock { peer } => unblock(operating, &peer).await,
            Word::RollBack { epoch, alone } => self.roll_back(operating, epoch, alone).await?,
        };
        Ok(done.map(|()| Said::Run(Box::new(self.view(operating)))))
    }

    async fn pause(
        &mut self,
        operating: &mut Operating,
        reason: String,
        alone: bool,
    ) -> Result<(), WordError> {
        operating.mind_others(alone, "go on without this one: pause each of them")?;
        let since = operating.kept.paused.as_ref().map_or_else(|| (operating.clock)().0, |was| was.since);
        let paused = Some(Paused { reason, since });
        operating.keep(Kept { paused, ..operating.kept.clone() }).await?;
        tracing::info!(epoch = self.round.epoch(), "paused by the operator");
        self.round.pause();
        if let Some(reason) = operating.paused_for() {
            let notice = BackboneToContributor::Refused(format!("{PAUSED}{reason}"));
            self.tell_all(&notice);
        }
        Ok(())
    }

    async fn resume(&mut self, operating: &mut Operating) -> Result<(), WordError> {
        operating.keep(Kept { paused: None, ..operating.kept.clone() }).await?;
        tracing::info!(epoch = self.round.epoch(), "resumed by the operator");
        // Where the disk takes nothing it goes on as soon as it does.
        if self.storing.room.trouble().is_none() {
            self.round.unpause(self.now());
        }
        Ok(())
    }

    async fn set(&mut self, operating: &mut Operating, change: &Change) -> Result<(), WordError> {
        let settings = operating.kept.settings.changed(change, &operating.file, operating.n_others == 0)?;
        operating.keep(Kept { settings, ..operating.kept.clone() }).await?;
        self.apply(&settings.over(&operating.file));
        tracing::info!(?settings, "settings changed by the operator");
        Ok(())
    }

    fn apply(&mut self, now: &Effective) {
        self.round.limit_by(now.limits());
        self.learner.set_rate_factor(now.learning_rate_factor as f32);
        self.storing.checkpoint_every_epochs = now.checkpoint_every_epochs;
    }

    async fn block(
        &mut self,
        operating: &mut Operating,
        peer: PeerKey,
        reason: String,
    ) -> Result<(), WordError> {
        let mut kept = operating.kept.clone();
        kept.blocked.retain(|blocked| blocked.peer != peer.0);
        if kept.blocked.len() >= BLOCKED_MAX {
            return Err(WordError::TooManyBlocked);
        }
        let since = (operating.clock)().0;
        kept.blocked.push(Blocked { peer: peer.0.clone(), reason, since });
        operating.keep(kept).await?;
        tracing::info!(peer = name(&peer), "blocked by the operator");
        // Ends its conversations, this session's among them; what it had delivered counts.
        operating.close_gate();
        Ok(())
    }

    async fn roll_back(
        &mut self,
        operating: &Operating,
        epoch: u64,
        alone: bool,
    ) -> Result<Result<(), WordError>, LearnerError> {
        let why = "have a model with more samples, which this one would follow at once: stop them, and have them \
            begin with this one's checkpoint";
        if let Err(error) = operating.mind_others(alone, why) {
            return Ok(Err(error));
        }
        if self.disk.moving.is_some() {
            let why = "a model of others is being stored: try again once the disk takes it".into();
            return Ok(Err(WordError::Unfit { epoch, why }));
        }
        let now = self.learner.epoch();
        if epoch >= now {
            return Ok(Err(WordError::NotEarlier { epoch, now }));
        }
        let checkpoint = match self.storing.checkpoints.load(epoch).await {
            Ok(Some(checkpoint)) => checkpoint,
            Ok(None) => {
                let kept = self.storing.checkpoints.kept().await.unwrap_or_default();
                let kept = kept.into_iter().map(|(of, _)| of).collect();
                return Ok(Err(WordError::NoCheckpoint { epoch, kept }));
            }
            Err(error) => return Ok(Err(error.into())),
        };
        if checkpoint.run_id != self.description.run_id || checkpoint.model != *self.learner.spec() {
            return Ok(Err(WordError::Unfit { epoch, why: "it is of another run or model".into() }));
        }
        // Where updates are delayed, gradients count that are one epoch behind: these shall not.
        let next = now + 1 + u64::from(self.description.delayed_updates);
        let before = self.learner.checkpoint()?;
        if let Err(error) = self.learner.go_back(checkpoint, next) {
            return Ok(Err(WordError::Unfit { epoch, why: error.to_string() }));
        }
        // From here on it holds: before, a restart finds all as it was, and from now on never again.
        if let Err(error) = self.storing.checkpoints.begin_line(&self.learner.checkpoint()?).await {
            self.learner.restore(before)?;
            return Ok(Err(error.into()));
        }
        self.save_checkpoint().await?;
        self.outputs.state.send_replace(self.learner.publish()?);
        self.go_on(true).await?;
        tracing::warn!(from = now, to = epoch, epoch = next, "rolled back by the operator");
        Ok(Ok(()))
    }

    fn view(&self, operating: &Operating) -> RunView {
        let progress = self.progress();
        let Kept { paused, settings, blocked } = &operating.kept;
        let by_disk = self
            .storing
            .room
            .trouble()
            .map(|trouble| PauseView { reason: trouble.reason().to_owned(), since: self.disk.since });
        let pause = |paused: &Paused| PauseView { reason: paused.reason.clone(), since: paused.since };
        let paused = by_disk.or_else(|| paused.as_ref().map(pause));
        let state = if paused.is_some() { RunState::Paused } else { RunState::Training };
        RunView {
            run: self.description.run_id.clone(),
            title: self.description.title.clone(),
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
            changed: *settings,
        }
    }

    fn peers(&self, operating: &Operating, offset: usize, limit: usize) -> Said {
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
        Said::Peers(Box::new(PeerList {
            contributors: contributors.collect(),
            n_contributors: self.round.n_contributors() as u64,
            blocked: blocked.collect(),
            convicted: Vec::new(),
            hidden: None,
        }))
    }
}

async fn unblock(operating: &mut Operating, peer: &PeerKey) -> Result<(), WordError> {
    let mut kept = operating.kept.clone();
    kept.blocked.retain(|blocked| blocked.peer != peer.0);
    if kept.blocked.len() == operating.kept.blocked.len() {
        return Err(WordError::NotBlocked);
    }
    operating.keep(kept).await?;
    tracing::info!(peer = name(peer), "let in again by the operator");
    operating.close_gate();
    Ok(())
}
