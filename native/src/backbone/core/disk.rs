//! A disk that is full, or fails: nothing is accepted until it takes what has to last, and then all goes on by itself.
//!
//! Nobody is told that something counts which is not stored, and nothing that was accepted is forgotten: a step whose
//! commit could not be written is made as soon as it can be. What may go makes room: what was set aside as damaged, old
//! checkpoints where there are others, and the journal behind them, once the database has it.

use std::time::Duration;

use barnraise_protocol::contribute::{BackboneToContributor, PAUSED};
use barnraise_protocol::gradient::{Offer, Refusal};
use barnraise_swarm::round::{MeanOfRound, Ticket};
use barnraise_swarm::{Moment, PeerKey};
use tokio::sync::oneshot;

use super::super::learner::LearnerError;
use super::following::Moving;
use super::operator::Operating;
use super::{Core, Declined, Place};
use crate::storage::StorageError;
use crate::storage::room::Trouble;

/// A disk in trouble is looked at that often.
const LOOK_EVERY: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2000 });

/// What waits for the disk.
#[derive(Debug, Default)]
pub(super) struct WaitsForDisk {
    /// When it is looked at again.
    look_at: Moment,
    /// Since when nothing is accepted, in seconds since 1970.
    pub(super) since: u64,
    /// Collected, and not committed.
    step: Option<MeanOfRound>,
    /// What is open has to be read from the journal again: something with other aggregators was cut short.
    is_cut: bool,
    /// A checkpoint was due.
    checkpoint: bool,
    /// In the middle of taking another model, where memory and disk do not agree.
    pub(super) moving: Option<Moving>,
}

impl Core {
    /// Why contributors wait, while they do: the disk's reason before the operator's.
    pub(super) fn paused_for(&self) -> Option<String> {
        let disk = self.storing.room.trouble().map(Trouble::reason);
        disk.or_else(|| self.operating.as_ref().and_then(Operating::paused_for)).map(str::to_owned)
    }

    /// What contributors read then.
    pub(super) fn pause_notice(&self) -> Option<BackboneToContributor> {
        self.paused_for().map(|reason| BackboneToContributor::Refused(format!("{PAUSED}{reason}")))
    }

    /// An offer that would be pulled for nothing is not.
    fn refused_by_disk(&mut self, ticket: Result<Ticket, Refusal>) -> Result<Ticket, Refusal> {
        match (ticket, self.storing.room.trouble()) {
            (Ok(ticket), Some(_)) => {
                self.round.on_transfer_failed(self.now(), ticket);
                Err(Refusal::Storage)
            }
            // Of the step that waits for the disk: who offers it again is told what became of it.
            (Err(Refusal::Epoch { .. } | Refusal::Busy), Some(_)) => Err(Refusal::Storage),
            (ticket, _) => ticket,
        }
    }

    /// Whether what is offered is to be received.
    pub(super) fn on_offer(
        &mut self,
        peer: &PeerKey,
        offer: &Offer,
        answer: oneshot::Sender<Result<Place, Declined>>,
    ) {
        let now = self.now();
        let ticket = self.round.on_offer(now, peer, offer);
        let ticket = self.refused_by_disk(ticket);
        if let Err(refusal) = &ticket {
            tracing::debug!(?peer, epoch = offer.epoch, %refusal, "offer refused");
        }
        let place = ticket.map_err(|refusal| self.decline(peer, refusal)).map(|ticket| {
            let (end, abandoned) = oneshot::channel();
            self.receiving.insert(ticket, end);
            Place { ticket, abandoned }
        });
        if let Err(Ok(unheard)) = answer.send(place) {
            self.receiving.remove(&unheard.ticket);
            self.round.on_transfer_failed(now, unheard.ticket);
        }
    }

    /// Something that has to last could not be stored.
    pub(super) async fn on_disk_error(&mut self, error: &StorageError) {
        self.begin_trouble(Trouble::of(error), &error.to_string()).await;
    }

    async fn begin_trouble(&mut self, trouble: Trouble, error: &str) {
        let room = &self.storing.room;
        self.disk.look_at = self.now() + LOOK_EVERY;
        if room.trouble().is_none() {
            self.disk.since = crate::access::system_clock()().0;
            room.set_trouble(Some(trouble));
            let n_bytes_free = room.n_bytes_free();
            tracing::error!(error, n_bytes_free, "{}", trouble.reason());
            self.round.pause();
            if let Some(notice) = self.pause_notice() {
                self.tell_all(&notice);
            }
        }
        if trouble == Trouble::Full {
            self.make_room().await;
        }
    }

    /// Whether the disk takes what will have to be written, before it does not.
    pub(super) async fn look_at_disk(&mut self) -> Result<(), LearnerError> {
        let now = self.now();
        match self.storing.room.trouble() {
            None if self.storing.room.is_enough() => Ok(()),
            None => {
                self.begin_trouble(Trouble::Full, "there is less room than a step and a checkpoint may need")
                    .await;
                Ok(())
            }
            Some(_) if now < self.disk.look_at => Ok(()),
            Some(trouble) => {
                self.disk.look_at = now + LOOK_EVERY;
                if trouble == Trouble::Full {
                    self.make_room().await;
                }
                let is_good = self.storing.room.is_enough() && self.storing.room.takes_writes().await;
                if is_good { self.end_trouble().await } else { Ok(()) }
            }
        }
    }

    async fn end_trouble(&mut self) -> Result<(), LearnerError> {
        self.storing.room.set_trouble(None);
        if let Some(mean) = self.disk.step.take() {
            self.step(mean).await?;
        }
        if std::mem::take(&mut self.disk.is_cut) {
            let read = self.read_again().await;
            self.survive(read).await?;
        }
        if self.storing.room.trouble().is_none() && std::mem::take(&mut self.disk.checkpoint) {
            self.save_checkpoint().await?;
        }
        if self.storing.room.trouble().is_some() {
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
        if self.together.is_some() {
            self.carry_later_epochs().await?;
        }
        self.go_on(false).await
    }

    /// A disk that does not take something ends nothing; what else there is does.
    pub(super) async fn survive(&mut self, done: Result<(), LearnerError>) -> Result<(), LearnerError> {
        let Err(error) = done else { return Ok(()) };
        let Some(of_disk) = error.of_storage() else { return Err(error) };
        self.disk.is_cut = true;
        let (trouble, error) = (Trouble::of(of_disk), error.to_string());
        self.begin_trouble(trouble, &error).await;
        Ok(())
    }

    /// The step is made once its commit can be stored.
    pub(super) async fn put_off(&mut self, mean: MeanOfRound, error: &StorageError) {
        self.disk.step = Some(mean);
        self.on_disk_error(error).await;
    }

    /// The checkpoint is written once there is room. The journal has what it would have.
    pub(super) async fn put_off_checkpoint(&mut self, error: &StorageError) {
        self.disk.checkpoint = true;
        self.on_disk_error(error).await;
    }

    /// Deletes what may go, until there is room.
    async fn make_room(&mut self) {
        let made = self.try_to_make_room().await;
        if let Err(error) = made {
            tracing::warn!(%error, "no room could be made");
        }
    }

    async fn try_to_make_room(&mut self) -> Result<(), LearnerError> {
        let (journal, checkpoints) = (&self.storing.journal, &self.storing.checkpoints);
        if self.storing.room.is_enough() {
            return Ok(());
        }
        journal.forget_set_aside().await?;
        checkpoints.forget_set_aside().await?;
        while !self.storing.room.is_enough()
            && let Some((gone, oldest)) = checkpoints.forget_oldest().await?
        {
            tracing::warn!(epoch = gone, "a checkpoint was deleted to make room");
            self.crediting.forget_before(oldest.saturating_sub(1));
        }
        Ok(())
    }
}
