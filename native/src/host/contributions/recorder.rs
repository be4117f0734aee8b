//! Keeps the database up to date with the journal: one task that writes accepted contributions in batches.
//!
//! The core never waits for it. Contributions missed by a full queue are read from the journal, and the journal is
//! truncated here, behind what is written.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use barnraise_protocol::receipt::Receipt;
use libp2p::PeerId;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::database::StoreError;
use super::receipts::Issuer;
use super::reducers::ReducerMeter;
use super::relays::{RelayMeter, Relayed};
use super::store::{AggregatorWork, Batch, Store};
use crate::storage::journal::{Journal, JournalError};

/// Contributions that may wait to be written; those beyond are read from the journal later.
const QUEUE_MAX: usize = 16_384;
/// Contributions in one transaction.
const BATCH_MAX: usize = 1024;
/// Interval between writes.
const WRITE_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug)]
enum RecorderMessage {
    /// A contribution is in the journal, and counts.
    Accepted(Receipt),
    /// All remaining checkpoints are of this epoch or later.
    ForgetBefore(u64),
}

/// Sends events to the recording task. Cheap to clone, never blocks.
#[derive(Debug, Clone)]
pub struct Recorder {
    messages: mpsc::Sender<RecorderMessage>,
    missed: Arc<AtomicBool>,
}

impl Recorder {
    /// A contribution is in the journal.
    pub fn on_accepted(&self, receipt: Receipt) {
        if self.messages.try_send(RecorderMessage::Accepted(receipt)).is_err() {
            self.missed.store(true, Ordering::Release);
        }
    }

    /// The journal is needed from `epoch` on only: earlier epochs are deleted once the database has them.
    pub fn forget_before(&self, epoch: u64) {
        // If the queue is full, the next checkpoint sends it again.
        let _ = self.messages.try_send(RecorderMessage::ForgetBefore(epoch));
    }
}

/// When the database was last up to date. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CaughtUp(Arc<Mutex<Instant>>);

impl Default for CaughtUp {
    /// Now, as nothing waits yet.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl CaughtUp {
    /// The last time at which the database was up to date.
    #[must_use]
    pub fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Work of this aggregator since its start.
#[derive(Debug, Default)]
pub struct WorkMeter {
    n_steps: AtomicU64,
    n_bytes: AtomicU64,
    microseconds: AtomicU64,
    /// Contributions through relays.
    pub relays: RelayMeter,
    /// Bytes reduced by native peers.
    pub reducers: ReducerMeter,
}

impl WorkMeter {
    /// It worked for the time `took`.
    pub fn worked(&self, took: Duration) {
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    /// It averaged `n_bytes` encoded bytes.
    pub fn averaged(&self, n_bytes: u64) {
        self.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
    }

    /// It made an optimizer step.
    pub fn stepped(&self) {
        self.n_steps.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> AggregatorWork {
        AggregatorWork {
            n_steps: self.n_steps.load(Ordering::Relaxed),
            n_bytes: self.n_bytes.load(Ordering::Relaxed),
            microseconds: self.microseconds.load(Ordering::Relaxed),
        }
    }
}

/// Reads how many contributions were refused since the start, by reason.
pub type RefusalCounts = Box<dyn Fn() -> BTreeMap<&'static str, u64> + Send + Sync>;

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Another connection does not read what was written.
    #[error(
        "{n_missing} contributions of epoch {epoch} were written to the database and are not in it; they are written \
         again, and the journal keeps them"
    )]
    NotThere {
        /// Epoch of the journal.
        epoch: u64,
        /// Contributions that are missing.
        n_missing: usize,
    },
}

/// The task that writes.
pub struct Recording {
    store: Store,
    journal: Journal,
    issuer: Issuer,
    refused: RefusalCounts,
    work: Arc<WorkMeter>,
    messages: mpsc::Receiver<RecorderMessage>,
    missed: Arc<AtomicBool>,
    /// Taken from the queue and not written yet.
    taken: Vec<Receipt>,
    /// The part of the counts in memory that is written.
    refused_written: BTreeMap<&'static str, u64>,
    work_written: AggregatorWork,
    relayed_written: BTreeMap<PeerId, Relayed>,
    reduced_written: BTreeMap<PeerId, u64>,
    /// All of the journal's earlier epochs are in the database.
    recorded_before: u64,
    forget_before: u64,
    is_failing: bool,
    caught_up: CaughtUp,
}

impl Recording {
    /// A task that continues from the database and the journal of a run at `epoch`.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn new(
        store: Store,
        journal: Journal,
        issuer: Issuer,
        epoch: u64,
        refused: RefusalCounts,
        work: Arc<WorkMeter>,
    ) -> Result<(Self, Recorder), StoreError> {
        // A run that went back to an earlier epoch records the later ones again.
        let recorded_before = store.recorded_before().await?.min(epoch);
        let (sender, messages) = mpsc::channel(QUEUE_MAX);
        // The previous process may have left contributions unwritten.
        let missed = Arc::new(AtomicBool::new(true));
        let recorder = Recorder { messages: sender, missed: Arc::clone(&missed) };
        let recording = Self {
            store,
            journal,
            issuer,
            refused,
            work,
            messages,
            missed,
            taken: Vec::new(),
            refused_written: BTreeMap::new(),
            work_written: AggregatorWork::default(),
            relayed_written: BTreeMap::new(),
            reduced_written: BTreeMap::new(),
            recorded_before,
            forget_before: 0,
            is_failing: false,
            caught_up: CaughtUp::default(),
        };
        Ok((recording, recorder))
    }

    /// The same, which updates `caught_up` for the metrics.
    #[must_use]
    pub fn marking(self, caught_up: CaughtUp) -> Self {
        Self { caught_up, ..self }
    }

    /// Writes until `stop` resolves, then what is left, once.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        let mut ticks = tokio::time::interval(WRITE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let is_last = tokio::select! {
                biased;
                () = &mut stop => true,
                _ = ticks.tick() => false,
            };
            match self.catch_up().await {
                Ok(()) => {
                    self.caught_up.mark();
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!("contributions are recorded again");
                    }
                }
                Err(error) if !self.is_failing => {
                    self.is_failing = true;
                    tracing::error!(%error, "contributions are not recorded; the journal keeps them meanwhile");
                }
                Err(_) => {}
            }
            if is_last {
                return self.store.close().await;
            }
        }
    }

    /// Writes all that waits, then truncates the journal.
    pub(crate) async fn catch_up(&mut self) -> Result<(), RecordError> {
        while self.write_some().await? {}
        if self.missed.swap(false, Ordering::AcqRel)
            && let Err(error) = self.write_from_journal().await
        {
            self.missed.store(true, Ordering::Release);
            return Err(error);
        }
        if self.forget_before > 0 && self.forget_before <= self.recorded_before {
            self.read_back(self.forget_before).await?;
            self.journal.truncate(self.forget_before).await?;
            self.forget_before = 0;
        }
        Ok(())
    }

    /// Checks over another connection that all entries of the journal's earlier epochs are in the database.
    async fn read_back(&mut self, before: u64) -> Result<(), RecordError> {
        for epoch in self.journal.epochs().await?.into_iter().filter(|epoch| *epoch < before) {
            let (mut entries, mut n_missing) = (self.journal.entries(epoch).await?, 0);
            let mut names = Vec::new();
            while let Some((_, name)) = entries.next_name().await? {
                names.push(name);
                if names.len() == BATCH_MAX {
                    n_missing += self.store.n_missing(&std::mem::take(&mut names)).await?;
                }
            }
            if !names.is_empty() {
                n_missing += self.store.n_missing(&names).await?;
            }
            if n_missing > 0 {
                self.recorded_before = self.recorded_before.min(epoch);
                self.missed.store(true, Ordering::Release);
                return Err(RecordError::NotThere { epoch, n_missing });
            }
        }
        Ok(())
    }

    /// Writes a batch of contributions and counts; returns whether more may wait.
    async fn write_some(&mut self) -> Result<bool, RecordError> {
        while self.taken.len() < BATCH_MAX
            && let Ok(message) = self.messages.try_recv()
        {
            match message {
                RecorderMessage::Accepted(receipt) => self.taken.push(receipt),
                // The newest message counts: its epoch is earlier where another branch is followed.
                RecorderMessage::ForgetBefore(epoch) => self.forget_before = epoch,
            }
        }
        let (refused, work, relayed) = ((self.refused)(), self.work.read(), self.work.relays.read());
        // Contributions come in the order of their epochs, and before the message that deletes these: a backbone that
        // accepts nothing has everything recorded. `missed` is read after they were taken: a missed one is noted
        // before.
        let is_whole = !self.missed.load(Ordering::Acquire);
        let told = Some(self.forget_before).filter(|epoch| *epoch > self.recorded_before);
        let newest = self.taken.last().map(|receipt| receipt.epoch).max(told).filter(|_| is_whole);
        let written = &self.refused_written;
        let more = |(reason, n): (&&'static str, &u64)| {
            let more = n.saturating_sub(written.get(reason).copied().unwrap_or_default());
            (more > 0).then_some((*reason, more))
        };
        let carried = |(relay, sums): (&PeerId, &Relayed)| {
            let more = sums.since(self.relayed_written.get(relay).copied().unwrap_or_default());
            (more != Relayed::default()).then(|| (relay.to_string(), more))
        };
        let reduced = self.work.reducers.read();
        let averaged = |(peer, n_bytes): (&PeerId, &u64)| {
            let more = n_bytes.saturating_sub(self.reduced_written.get(peer).copied().unwrap_or_default());
            (more > 0).then(|| (peer.to_string(), more))
        };
        let batch = Batch {
            reduced: reduced.iter().filter_map(averaged).collect(),
            relayed: relayed.iter().filter_map(carried).collect(),
            receipts: std::mem::take(&mut self.taken),
            refused: refused.iter().filter_map(more).collect(),
            work: work.since(self.work_written),
            recorded_before: newest,
        };
        if batch == Batch::default() {
            return Ok(false);
        }
        if let Err(error) = self.store.record(&batch).await {
            self.taken = batch.receipts;
            return Err(error.into());
        }
        (self.refused_written, self.work_written) = (refused, work);
        (self.relayed_written, self.reduced_written) = (relayed, reduced);
        self.recorded_before = newest.unwrap_or(self.recorded_before);
        Ok(batch.receipts.len() == BATCH_MAX)
    }

    /// Writes the journal's entries of the epochs that may be incomplete.
    async fn write_from_journal(&mut self) -> Result<(), RecordError> {
        let mut n_new = 0;
        let from = self.recorded_before;
        for epoch in self.journal.epochs().await?.into_iter().filter(|epoch| *epoch >= from) {
            let mut entries = self.journal.entries(epoch).await?;
            let mut receipts = Vec::new();
            while let Some((_, entry)) = entries.next().await? {
                receipts.extend(self.issuer.receipt(&entry));
                if receipts.len() == BATCH_MAX {
                    let receipts = std::mem::take(&mut receipts);
                    n_new += self.store.record(&Batch { receipts, ..Batch::default() }).await?;
                }
            }
            let rest = Batch { receipts, recorded_before: Some(epoch), ..Batch::default() };
            n_new += self.store.record(&rest).await?;
            self.recorded_before = epoch;
        }
        if n_new > 0 {
            tracing::info!(n_new, "contributions recorded from the journal");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::{KeyPair, UnixTime};

    use super::*;
    use crate::storage::Storage;

    #[tokio::test]
    async fn while_something_waits_for_the_database_it_does_not_count_as_caught_up() {
        let folder = tempfile::tempdir().unwrap();
        let (key, peer) = (KeyPair::from_seed(&[1; 32]), PeerId::random());
        let receipt = Receipt {
            run_id: "barn".into(),
            peer: KeyPair::from_seed(&[2; 32]).public(),
            reducer: key.public(),
            contribution_id: 7,
            epoch: 3,
            n_samples: 64,
            n_bytes: 1000,
            milliseconds: 500,
            issued_at: UnixTime(1_800_000_000),
        };
        // With a database that is away, and with one that is there.
        for is_away in [true, false] {
            let store = Store::open(folder.path(), None, "barn", peer).await.unwrap();
            let journal = Journal::new(Storage::in_memory());
            let issuer = Issuer::new("barn", key.clone());
            let refused: RefusalCounts = Box::new(BTreeMap::<&'static str, u64>::new);
            let work = Arc::new(WorkMeter::default());
            let made = Recording::new(store.clone(), journal, issuer, 0, refused, work).await;
            let (recording, recorder) = made.unwrap();
            recorder.on_accepted(receipt.clone());
            let caught_up = CaughtUp::default();
            let begun = caught_up.last();
            if is_away {
                store.close().await;
            }
            recording.marking(caught_up.clone()).run(std::future::ready(())).await;
            assert_eq!(caught_up.last() == begun, is_away);
        }
    }
}
