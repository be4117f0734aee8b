//! The window of a stream on the disk: shards by their numbers, and where the sources are.
//!
//! [`StreamFeed`] makes the shards, as far as a run has trained; [`StreamedShards`] gives them out. A shard is stored
//! before the record that names it, and the record before an old shard is deleted: so a crash anywhere loses nothing, and
//! a start goes on where the record says. Of a full disk the same holds: the shard that has no room waits in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{DataStream, ShardEntry};
use barnraise_protocol::sealed::{self, ObjectKind, SealError};
use barnraise_protocol::streamed::{StreamWindow, StreamedShard};
use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

use super::text::TextError;
use super::text::stream::{StreamPosition, StreamReader, StreamSettings};
use crate::storage::{Storage, StorageError};

const KIND: ObjectKind = ObjectKind { name: *b"strm", what: "record of a stream", version: 1 };
const RECORD: [&str; 2] = ["stream", "record"];
const SHARDS: [&str; 2] = ["stream", "shards"];
const RECORD_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Why a stream cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// From the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The sources.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The record of where it is.
    #[error(
        "stream/record cannot be read: {0}. Take it from a backup; or delete it, and the stream begins again from the start \
         of its sources"
    )]
    Record(#[from] SealError),
    /// No room for a shard, which is not lost.
    #[error("shard {number} of the stream wants {n_bytes} bytes: {source}")]
    Shard {
        /// Its number.
        number: u32,
        /// Its length.
        n_bytes: usize,
        /// What the store said.
        source: StorageError,
    },
    /// The thread that reads has failed.
    #[error("the sources of the stream could not be read: {0}")]
    Thread(#[from] tokio::task::JoinError),
    /// It failed before.
    #[error("the sources of the stream are not read any more: restart the backbone")]
    Ended,
}

/// Shards of a stream that are kept. Cheap to clone; clones share the window.
#[derive(Debug, Clone)]
pub struct StreamedShards {
    storage: Storage,
    window: Arc<RwLock<Arc<StreamWindow>>>,
}

/// What is stored of a stream beside its shards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StreamRecord {
    window: StreamWindow,
    /// After the newest shard.
    position: StreamPosition,
}

/// Reads the sources, as far as the run has trained.
pub struct StreamFeed {
    shards: StreamedShards,
    stream: DataStream,
    settings: Arc<StreamSettings>,
    /// Weights of the sources, by their names.
    weights: BTreeMap<String, f64>,
    /// Samples that the run had trained on at its newest step, and how many shards may still be made until the next one.
    step: (u64, u32),
    /// None while a thread reads.
    reading: Option<StreamReader>,
    record: StreamRecord,
    /// A shard that is not stored yet.
    made: Option<(Bytes, ShardEntry, StreamPosition)>,
}

impl StreamedShards {
    /// The window now.
    pub fn window(&self) -> Arc<StreamWindow> {
        Arc::clone(&self.window.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The compressed bytes of a shard; none where it is not kept, or is damaged.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn get(&self, number: u32) -> Result<Option<Bytes>, StorageError> {
        let window = self.window();
        let Some(entry) = window.entry(number) else { return Ok(None) };
        let found = self.storage.get(&shard_path(number), entry.n_bytes.into()).await;
        match found {
            Ok(found) => Ok(found.filter(|bytes| Sha256Hash::of(bytes) == entry.sha256)),
            Err(StorageError::TooLarge { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn set(&self, window: &StreamWindow) {
        *self.window.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(window.clone());
    }
}

impl StreamFeed {
    /// Goes on where the record in `storage` says, or begins. Shards that are gone or damaged are left out of the window.
    ///
    /// # Errors
    /// A record that cannot be read, or another tokenizer.
    pub async fn open(
        storage: Storage,
        settings: StreamSettings,
        (stream, tokenizer): (DataStream, &[u8]),
    ) -> Result<Self, FeedError> {
        let found = storage.get(&ObjectPath::from_iter(RECORD), RECORD_BYTES_MAX).await?;
        let mut record: StreamRecord = match &found {
            Some(bytes) => sealed::open_parts(KIND, bytes)?.0,
            None => StreamRecord::default(),
        };
        // It may have been longer at the last start: contributors take no more shards than are kept. Those that left are swept.
        move_to_end(&mut record.window, &stream);
        let shards = StreamedShards { storage, window: Arc::default() };
        shards.set(&record.window);
        let mut whole = Vec::new();
        for shard in &record.window.shards {
            match shards.get(shard.number).await? {
                Some(_) => whole.push(*shard),
                None => tracing::warn!(shard = shard.number, "a shard of the stream is gone or damaged"),
            }
        }
        record.window.shards = whole;
        shards.set(&record.window);
        let reading = Some(settings.stream(tokenizer, &record.position)?);
        let (weights, step) = (settings.weights(), (0, stream.step_shards_max()));
        let settings = Arc::new(settings);
        let feed = Self { shards, stream, settings, weights, step, reading, record, made: None };
        feed.sweep().await?;
        Ok(feed)
    }

    /// The shards that it makes.
    pub fn shards(&self) -> &StreamedShards {
        &self.shards
    }

    /// Reads the sources by other weights from the next shard on.
    pub fn set_weights(&mut self, weights: BTreeMap<String, f64>) {
        if self.weights != weights {
            tracing::info!(
                ?weights,
                shard = self.next_number(),
                "the sources of the stream have other weights"
            );
            self.weights = weights;
        }
    }

    /// Whether a shard is to be made, for a run that has trained on so many samples: its window is not behind, and never
    /// further ahead than it is long. After a source was slow it catches up over several steps, so that contributions to
    /// the shards before are on their way no longer when those are deleted.
    pub fn is_due(&mut self, n_samples: u64) -> bool {
        if self.step.0 != n_samples {
            self.step = (n_samples, self.stream.step_shards_max());
        }
        let (next, n_drawn) = (u64::from(self.next_number()), u64::from(self.stream.window_shards));
        let trained = n_samples / u64::from(self.stream.shard_samples.max(1));
        let is_first_window = next < n_drawn;
        let is_behind = next < trained.saturating_add(n_drawn) && self.step.1 > 0;
        is_first_window || is_behind || self.record.window.drawn().next().is_none()
    }

    fn next_number(&self) -> u32 {
        let shards = self.record.position.n_sequences / u64::from(self.stream.shard_samples.max(1));
        u32::try_from(shards).unwrap_or(u32::MAX)
    }

    /// Makes the next shard, stores it, and drops the oldest. After an error it goes on where it was.
    ///
    /// # Errors
    /// A source that cannot be read, or a disk that has no room.
    pub async fn make(&mut self) -> Result<(), FeedError> {
        let (bytes, entry, position) = match self.made.take() {
            Some(made) => made,
            None => self.read().await?,
        };
        let number = self.next_number();
        let kept = self.keep((number, &bytes), entry, &position).await;
        match kept {
            Err(FeedError::Storage(source)) => {
                let n_bytes = bytes.len();
                self.made = Some((bytes, entry, position));
                Err(FeedError::Shard { number, n_bytes, source })
            }
            kept => {
                self.step.1 = self.step.1.saturating_sub(1);
                kept
            }
        }
    }

    async fn read(&mut self) -> Result<(Bytes, ShardEntry, StreamPosition), FeedError> {
        let mut reading = self.reading.take().ok_or(FeedError::Ended)?;
        let settings = Arc::clone(&self.settings);
        reading.set_weights(&settings, &self.weights);
        let read = tokio::task::spawn_blocking(move || {
            let shard = reading.next_shard(&settings);
            (reading, shard)
        });
        let (reading, shard) = read.await?;
        let position = reading.position();
        self.reading = Some(reading);
        let (bytes, entry) = shard?;
        Ok((bytes.into(), entry, position))
    }

    /// Stores a shard, then the record, and deletes what left the window.
    async fn keep(
        &mut self,
        (number, bytes): (u32, &Bytes),
        entry: ShardEntry,
        position: &StreamPosition,
    ) -> Result<(), FeedError> {
        let storage = &self.shards.storage;
        storage.put(&shard_path(number), bytes.clone()).await?;
        let mut window = self.record.window.clone();
        window.shards.push(StreamedShard { number, entry });
        let left = move_to_end(&mut window, &self.stream);
        let record = StreamRecord { window, position: position.clone() };
        storage.put(&ObjectPath::from_iter(RECORD), sealed::seal_parts(KIND, &record, &[])?).await?;
        self.shards.set(&record.window);
        self.record = record;
        for shard in left {
            // What stays behind is swept at the next start.
            if let Err(error) = storage.delete(&shard_path(shard.number)).await {
                tracing::warn!(shard = shard.number, %error, "an old shard of the stream cannot be deleted");
            }
        }
        Ok(())
    }

    /// Deletes shards that the record does not name.
    async fn sweep(&self) -> Result<(), FeedError> {
        let named: BTreeSet<ObjectPath> =
            self.record.window.shards.iter().map(|shard| shard_path(shard.number)).collect();
        for object in self.shards.storage.list(&ObjectPath::from_iter(SHARDS)).await? {
            if !named.contains(&object.location) {
                self.shards.storage.delete(&object.location).await?;
            }
        }
        Ok(())
    }
}

/// Lets a window end with its newest shard. Returns the shards that are not kept any more.
fn move_to_end(window: &mut StreamWindow, stream: &DataStream) -> Vec<StreamedShard> {
    let end = window.end();
    window.first_drawn = end.saturating_sub(stream.window_shards);
    let oldest = end.saturating_sub(stream.shards_kept());
    window.shards.extract_if(.., |shard| shard.number < oldest).collect()
}

fn shard_path(number: u32) -> ObjectPath {
    let [folder, shards] = SHARDS;
    ObjectPath::from_iter([folder, shards, &number.to_string()])
}

#[cfg(test)]
pub(crate) mod tests;
