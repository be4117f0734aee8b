//! Writes the states of experts to the disk, and deletes them, beside the batches: one after the other, in the order in which the
//! driver says so.

use std::sync::Arc;

use anyhow::Context;
use barnraise_contributor::hosting::StoredExpert;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::sealed::SealError;
use barnraise_relay::tasks;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::store::{ExpertStore, ExpertStoreError, sealed};

/// States that may wait for the disk, with the one that it writes: they are copies.
const SAVES_MAX: usize = 4;

/// Why a state is not on the disk.
#[derive(Debug, thiserror::Error)]
pub(super) enum SaveError {
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Store(#[from] ExpertStoreError),
}

/// A state that the device gave.
#[derive(Debug)]
pub(super) struct ExpertToSave {
    pub(super) place: ExpertPlace,
    /// Only the expert itself is for the disk: this host never goes on from what a replica has learned.
    pub(super) copy: u8,
    pub(super) stored: StoredExpert,
    /// It was the last one: the device has the expert no longer.
    pub(super) is_last: bool,
}

/// What the task is to do.
enum SavingJob {
    Save(ExpertToSave),
    Forget(ExpertPlace),
}

/// What became of a state.
#[derive(Debug)]
pub(super) struct SavedExpert {
    pub(super) place: ExpertPlace,
    pub(super) copy: u8,
    pub(super) version: CheckpointVersion,
    pub(super) is_last: bool,
    /// For its keepers, also where the disk has not taken it.
    pub(super) bytes: Option<Arc<[u8]>>,
    pub(super) error: Option<SaveError>,
}

/// See the module. What waits is lost when this is dropped.
pub(super) struct ExpertSaver {
    jobs: mpsc::Sender<SavingJob>,
    saved: mpsc::Receiver<SavedExpert>,
    n_waiting: usize,
    _saving: AbortOnDropHandle<()>,
}

impl ExpertSaver {
    pub(super) fn new(store: ExpertStore) -> Self {
        // And one file that is to be deleted.
        let (jobs, mut received) = mpsc::channel(SAVES_MAX + 1);
        let (done, saved) = mpsc::channel(SAVES_MAX);
        let saving = tasks::spawn("storing experts", async move {
            while let Some(job) = received.recv().await {
                match job {
                    SavingJob::Save(expert) => {
                        if done.send(save(&store, expert).await).await.is_err() {
                            return;
                        }
                    }
                    SavingJob::Forget(place) => forget(&store, place).await,
                }
            }
        });
        Self { jobs, saved, n_waiting: 0, _saving: saving }
    }

    /// Whether one more state may be given.
    pub(super) fn has_room(&self) -> bool {
        self.n_waiting < SAVES_MAX
    }

    /// Whether all is on the disk that was given.
    pub(super) fn is_idle(&self) -> bool {
        self.n_waiting == 0
    }

    /// Has a state written, where there is room.
    ///
    /// # Errors
    /// There is none, or the task has ended.
    pub(super) fn save(&mut self, expert: ExpertToSave) -> anyhow::Result<()> {
        let sent = self.jobs.try_send(SavingJob::Save(expert));
        sent.ok().context("the task that stores experts takes no more")?;
        self.n_waiting += 1;
        Ok(())
    }

    /// Has the file of a place deleted. Where anything waits for the disk, it stays until this host begins anew.
    pub(super) fn forget(&self, place: ExpertPlace) {
        if self.jobs.capacity() == self.jobs.max_capacity() {
            drop(self.jobs.try_send(SavingJob::Forget(place)));
        }
    }

    /// The next state that was written, or could not be; `None` where the task has ended.
    pub(super) async fn saved(&mut self) -> Option<SavedExpert> {
        let saved = self.saved.recv().await?;
        self.n_waiting = self.n_waiting.saturating_sub(1);
        Some(saved)
    }
}

async fn forget(store: &ExpertStore, place: ExpertPlace) {
    let (layer, uid) = (place.0.0, place.1);
    match store.delete(place).await {
        Ok(()) => tracing::info!(layer, %uid, "another host has an expert: its file is deleted here"),
        Err(error) => tracing::warn!(layer, %uid, %error, "the file of an expert could not be deleted"),
    }
}

async fn save(store: &ExpertStore, expert: ExpertToSave) -> SavedExpert {
    let ExpertToSave { place, copy, stored, is_last } = expert;
    let version = stored.version();
    let (bytes, error) = match sealed(stored).await {
        Ok(bytes) => {
            let saved = if copy == 0 { store.save(place, bytes.clone()).await } else { Ok(()) };
            (Some(bytes), saved.err().map(SaveError::from))
        }
        Err(error) => (None, Some(error.into())),
    };
    SavedExpert { place, copy, version, is_last, bytes, error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_learning::OptimizerState;
    use barnraise_learning::hosted::ExpertState;
    use barnraise_protocol::Sha256Hash;
    use barnraise_protocol::experts::{ExpertUid, LayerId};
    use barnraise_swarm::experts::serving::CountedState;

    use super::*;
    use crate::storage::Storage;
    use crate::storage::simulated::SimulatedDisk;

    fn to_save(n_steps: u64) -> ExpertToSave {
        let optimizer = OptimizerState { n_steps, beta_products: [0.5, 0.25], moments: Vec::new() };
        let state = ExpertState { parameters: vec![0.5; 4], optimizer };
        let stored = StoredExpert { term: 9, state, counted: CountedState::default() };
        ExpertToSave { place: (LayerId(0), ExpertUid::new(&[3]).unwrap()), copy: 0, stored, is_last: false }
    }

    #[tokio::test]
    async fn a_disk_that_hangs_keeps_nobody_waiting_and_has_the_last_state_in_the_end() {
        let disk = SimulatedDisk::new(3);
        let store = ExpertStore::new(Storage::on(Arc::new(disk.clone())), Sha256Hash([7; 32]));
        let mut saver = ExpertSaver::new(store.clone());
        disk.stall(true);
        let all = 1..=SAVES_MAX as u64;
        for n_steps in all.clone() {
            assert!(saver.has_room());
            saver.save(to_save(n_steps)).unwrap();
        }
        assert!(!saver.has_room() && !saver.is_idle());
        disk.stall(false);
        for n_steps in all {
            let saved = saver.saved().await.unwrap();
            assert_eq!((saved.version.n_steps, saved.error.is_none()), (n_steps, true));
        }
        assert!(saver.is_idle());
        let stored = store.load(to_save(1).place).await.unwrap().unwrap();
        assert_eq!(stored.version().n_steps, SAVES_MAX as u64);
        // Where the disk is full, other peers may have room.
        disk.holds(disk.n_bytes_used());
        saver.save(to_save(9)).unwrap();
        let saved = saver.saved().await.unwrap();
        assert!(saved.error.is_some() && saved.bytes.is_some());
        assert_eq!(store.load(to_save(1).place).await.unwrap().unwrap().version(), stored.version());
        // What is deleted before a state is written is not that one.
        disk.holds(u64::MAX);
        saver.forget(to_save(1).place);
        saver.save(to_save(10)).unwrap();
        assert!(saver.saved().await.unwrap().error.is_none());
        assert_eq!(store.load(to_save(1).place).await.unwrap().unwrap().version().n_steps, 10);
        saver.forget(to_save(1).place);
        saver
            .save(ExpertToSave { place: (LayerId(0), ExpertUid::new(&[4]).unwrap()), ..to_save(1) })
            .unwrap();
        saver.saved().await.unwrap();
        assert!(store.load(to_save(1).place).await.unwrap().is_none());
        // A replica is for its keepers.
        saver.save(ExpertToSave { copy: 2, ..to_save(11) }).unwrap();
        let saved = saver.saved().await.unwrap();
        assert!(saved.copy == 2 && saved.bytes.is_some() && saved.error.is_none());
        assert!(store.load(to_save(1).place).await.unwrap().is_none());
    }
}
