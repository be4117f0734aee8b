//! Credit for the contributions to a run: receipts, the database, and the task that fills it.

use std::sync::Arc;

use barnraise_protocol::access::KeyPair;
use libp2p::PeerId;

use crate::config::RunConfig;
use crate::host::clock::system_clock;
use crate::host::contributions::{
    CaughtUp, Crediting, Issuer, KnownReceipts, Recording, RefusalCounts, Store, WorkMeter,
};
use crate::storage::journal::Journal;

/// The parts that give credit for contributions.
pub(crate) struct Credit {
    pub(crate) store: Store,
    pub(crate) issuer: Issuer,
    pub(crate) work: Arc<WorkMeter>,
    /// Writes into the database, until it is told to stop.
    pub(crate) recording: Recording,
    pub(crate) crediting: Crediting,
}

/// The counters of a driver that the database follows.
pub(crate) struct CreditCounters {
    pub(crate) refused: RefusalCounts,
    pub(crate) caught_up: CaughtUp,
}

impl Credit {
    /// Opens the database of a run that goes on from `epoch`.
    pub(super) async fn open(
        config: &RunConfig,
        (here, key): (PeerId, KeyPair),
        (journal, epoch): (&Journal, u64),
        counters: CreditCounters,
    ) -> anyhow::Result<Self> {
        let (folder, url) = (&config.storage.folder, config.contributions.database.as_deref());
        let store = Store::open(folder, url, &config.run.id, here).await?;
        let (issuer, work) = (Issuer::new(&config.run.id, key), Arc::new(WorkMeter::default()));
        let known = KnownReceipts::restore(journal, epoch, &issuer).await?;
        let (recording, recorder) = Recording::new(
            store.clone(),
            journal.clone(),
            issuer.clone(),
            epoch,
            counters.refused,
            Arc::clone(&work),
        )
        .await?;
        let recording = recording.marking(counters.caught_up);
        let crediting = Crediting::new(issuer.clone(), known, recorder, Arc::clone(&work), system_clock());
        Ok(Self { store, issuer, work, recording, crediting })
    }
}
