//! A disk that is full or fails: the backbone accepts nothing until writes succeed again, then continues by itself.
//!
//! No contribution is acknowledged before it is stored, and none that was accepted is lost: a step whose commit could
//! not be written is made as soon as it can be. Space is freed by deleting objects set aside as damaged, old
//! checkpoints where there are others, and the journal behind them, once the database has it.

use std::time::Duration;

use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_swarm::collection::{CollectedMean, Ticket};
use barnraise_swarm::{Moment, PeerKey};
use tokio::sync::oneshot;

use super::super::learner::LearnerError;
use super::following::PendingModel;
use super::operator::{OperatorControl, pause_notice};
use super::{AcceptedOffer, Core, DeclinedOffer};
use crate::storage::StorageError;
use crate::storage::disk_space::DiskProblem;

/// Interval between checks of a disk that refuses writes.
const LOOK_EVERY: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2000 });

/// Writes that wait for the disk.
#[derive(Debug, Default)]
pub(super) struct DeferredWrites {
    /// When the disk is checked again.
    look_at: Moment,
    /// Since when nothing is accepted, in seconds since 1970.
    pub(super) since: u64,
    /// A mean that is collected and not committed.
    pub(super) step: Option<CollectedMean>,
    /// The open epoch has to be read from the journal again: an operation with other aggregators was interrupted.
    is_cut: bool,
    /// A checkpoint was due.
    checkpoint: bool,
    /// A received model that memory has and the disk has not.
    pub(super) pending_model: Option<PendingModel>,
}

impl Core {
    /// Why contributors wait, while they do: the disk's reason before the operator's.
    pub(super) fn paused_for(&self) -> Option<String> {
        let disk = self.storage.disk_space.trouble().map(DiskProblem::reason);
        disk.or_else(|| self.operating.as_ref().and_then(OperatorControl::paused_for)).map(str::to_owned)
    }

    /// The message for contributors while the run is paused.
    pub(super) fn pause_notice(&self) -> Option<BackboneToContributor> {
        self.paused_for().map(|reason| pause_notice(&reason))
    }

    /// Refuses an offer whose gradient could not be stored, before it is pulled.
    fn refused_by_disk(
        &mut self,
        ticket: Result<Ticket, ContributionRefusal>,
    ) -> Result<Ticket, ContributionRefusal> {
        match (ticket, self.storage.disk_space.trouble()) {
            (Ok(ticket), Some(_)) => {
                self.round.on_transfer_failed(self.now(), ticket);
                Err(ContributionRefusal::Storage)
            }
            // Of the step that waits for the disk: offered again, it gets its final answer.
            (Err(ContributionRefusal::Epoch { .. } | ContributionRefusal::Busy), Some(_)) => {
                Err(ContributionRefusal::Storage)
            }
            (ticket, _) => ticket,
        }
    }

    /// Answers an offer: whether its gradient is to be received.
    pub(super) fn on_offer(
        &mut self,
        peer: &PeerKey,
        offer: &Offer,
        answer: oneshot::Sender<Result<AcceptedOffer, DeclinedOffer>>,
    ) {
        let now = self.now();
        let ticket = self.round.on_offer(now, peer, offer);
        let ticket = self.refused_by_disk(ticket);
        if let Err(refusal) = &ticket {
            tracing::debug!(?peer, epoch = offer.epoch, %refusal, "offer refused");
        }
        let accepted = ticket.map_err(|refusal| self.decline(peer, refusal)).map(|ticket| {
            let (end, abandoned) = oneshot::channel();
            self.receiving.insert(ticket, end);
            AcceptedOffer { ticket, abandoned }
        });
        if let Err(Ok(unheard)) = answer.send(accepted) {
            self.receiving.remove(&unheard.ticket);
            self.round.on_transfer_failed(now, unheard.ticket);
        }
    }

    /// A write that has to last failed.
    pub(super) async fn on_disk_error(&mut self, error: &StorageError) {
        self.begin_trouble(DiskProblem::of(error), &error.to_string()).await;
    }

    async fn begin_trouble(&mut self, trouble: DiskProblem, error: &str) {
        let disk_space = &self.storage.disk_space;
        self.disk.look_at = self.now() + LOOK_EVERY;
        if disk_space.trouble().is_none() {
            self.disk.since = crate::host::clock::system_clock()().0;
            disk_space.set_trouble(Some(trouble));
            let n_bytes_free = disk_space.n_bytes_free();
            tracing::error!(error, n_bytes_free, "{}", trouble.reason());
            self.round.pause();
            if let Some(notice) = self.pause_notice() {
                self.broadcast(&notice);
            }
        }
        if trouble == DiskProblem::Full {
            self.make_room().await;
        }
    }

    /// Checks the free space before a write fails, and a failed disk for its return.
    pub(super) async fn look_at_disk(&mut self) -> Result<(), LearnerError> {
        let now = self.now();
        match self.storage.disk_space.trouble() {
            None if self.storage.disk_space.is_enough() => Ok(()),
            None => {
                self.begin_trouble(
                    DiskProblem::Full,
                    "less disk space is free than a step and a checkpoint may need",
                )
                .await;
                Ok(())
            }
            Some(_) if now < self.disk.look_at => Ok(()),
            Some(trouble) => {
                self.disk.look_at = now + LOOK_EVERY;
                if trouble == DiskProblem::Full {
                    self.make_room().await;
                }
                let is_good =
                    self.storage.disk_space.is_enough() && self.storage.disk_space.takes_writes().await;
                if is_good { self.end_trouble().await } else { Ok(()) }
            }
        }
    }

    async fn end_trouble(&mut self) -> Result<(), LearnerError> {
        self.storage.disk_space.set_trouble(None);
        if let Some(mean) = self.disk.step.take() {
            self.step_alone(mean).await?;
        }
        if std::mem::take(&mut self.disk.is_cut) {
            let read = self.read_again().await;
            self.survive(read).await?;
        }
        if self.storage.disk_space.trouble().is_none() && std::mem::take(&mut self.disk.checkpoint) {
            self.save_checkpoint().await?;
        }
        if self.storage.disk_space.trouble().is_some() {
            return Ok(());
        }
        tracing::info!("the disk takes what is written again: contributions are accepted");
        let is_paused = self.operating.as_ref().is_some_and(|operating| operating.paused_for().is_some());
        if !is_paused {
            self.round.unpause(self.now());
        }
        Ok(())
    }

    async fn read_again(&mut self) -> Result<(), LearnerError> {
        self.finish_moving().await?;
        self.carry_later_epochs().await?;
        self.go_on(false).await
    }

    /// Turns a disk error into a pause; other errors end the core.
    pub(super) async fn survive(&mut self, done: Result<(), LearnerError>) -> Result<(), LearnerError> {
        let Err(error) = done else { return Ok(()) };
        let Some(of_disk) = error.of_storage() else { return Err(error) };
        self.disk.is_cut = true;
        let (trouble, error) = (DiskProblem::of(of_disk), error.to_string());
        self.begin_trouble(trouble, &error).await;
        Ok(())
    }

    /// Puts a step off until its commit can be stored.
    pub(super) async fn put_off(&mut self, mean: CollectedMean, error: &StorageError) {
        self.disk.step = Some(mean);
        self.on_disk_error(error).await;
    }

    /// Puts a checkpoint off until it can be stored; until then the journal has its content.
    pub(super) async fn put_off_checkpoint(&mut self, error: &StorageError) {
        self.disk.checkpoint = true;
        self.on_disk_error(error).await;
    }

    /// Deletes what is not needed, until there is enough free space.
    async fn make_room(&mut self) {
        let made = self.try_to_make_room().await;
        if let Err(error) = made {
            tracing::warn!(%error, "no disk space could be freed");
        }
    }

    async fn try_to_make_room(&mut self) -> Result<(), LearnerError> {
        let (journal, checkpoints) = (&self.storage.journal, &self.storage.checkpoints);
        if self.storage.disk_space.is_enough() {
            return Ok(());
        }
        journal.forget_set_aside().await?;
        checkpoints.forget_set_aside().await?;
        while !self.storage.disk_space.is_enough()
            && let Some((gone, oldest)) = checkpoints.forget_oldest().await?
        {
            tracing::warn!(epoch = gone, "a checkpoint was deleted to free disk space");
            self.crediting.forget_before(oldest.saturating_sub(1));
        }
        Ok(())
    }
}
