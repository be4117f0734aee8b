//! What this peer's own means lost where they travelled by factors: it comes with the next one.
//!
//! An object for each averaging, `owed/{epoch}/{index}-{nonce}`, written before the averaging that counts begins. Which
//! of them holds follows from the model, which knows the last step that this peer was part of: so a crash, a step that
//! comes from another peer, and a line of models that is left change what is owed as they change the model. Nothing is
//! owed where there is no object.

use barnraise_protocol::TensorCodec;
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

use super::checkpoint::Included;
use super::journal::ENTRY_BYTES_MAX;
use super::sealed::{self, Kind, SealError};
use super::{Storage, StorageError};

const KIND: Kind = Kind { name: *b"owed", what: "owed mean", version: 1 };
const FOLDER: &str = "owed";
/// Averagings of one epoch that are remembered: others may have made the step of one that failed here, and who does not
/// hear of it for so many more has lost what that one owed.
pub const PER_EPOCH_MAX: usize = 8;

#[derive(Serialize, Deserialize)]
struct Header {
    step: Included,
    n_values: u64,
}

/// Why it could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum OwedError {
    /// From the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Another version of this program wrote it.
    #[error("{path}: {source}")]
    Version {
        /// The object.
        path: String,
        /// Which version.
        source: SealError,
    },
    /// Could not be encoded.
    #[error("what is owed after epoch {epoch} cannot be written: {source}")]
    Encode {
        /// Of the step.
        epoch: u64,
        /// Why.
        source: SealError,
    },
}

/// What is owed after each averaging.
#[derive(Debug, Clone)]
pub struct Owed {
    storage: Storage,
}

impl Owed {
    /// Within a storage.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// Stores what is owed once `step` is made, a sum over samples; nothing where `owed` is empty.
    pub async fn write(&self, step: Included, owed: &[f32]) -> Result<(), OwedError> {
        let bytes: Vec<u8> = owed.iter().flat_map(|value| value.to_le_bytes()).collect();
        let header = Header { step, n_values: owed.len() as u64 };
        let sealed = sealed::seal_parts(KIND, &header, &[&bytes]);
        let sealed = sealed.map_err(|source| OwedError::Encode { epoch: step.epoch, source })?;
        let known = self.of_epoch(step.epoch).await?;
        let next = known.last().map_or(0, |(index, ..)| index.saturating_add(1));
        self.storage.put(&path(step, next), sealed).await?;
        let n_beyond = (known.len() + 1).saturating_sub(PER_EPOCH_MAX);
        for (.., path) in known.into_iter().take(n_beyond) {
            self.storage.delete(&path).await?;
        }
        Ok(())
    }

    /// What is owed after `step`, `[n_values]`; empty where that is nothing, or is damaged.
    pub async fn read(&self, step: Included, n_values: usize) -> Result<Vec<f32>, OwedError> {
        let known = self.of_epoch(step.epoch).await?;
        let Some((.., path)) = known.into_iter().rfind(|(_, nonce, _)| *nonce == step.nonce) else {
            return Ok(Vec::new());
        };
        let Some(bytes) = self.storage.get(&path, ENTRY_BYTES_MAX).await? else { return Ok(Vec::new()) };
        sealed::check_version(KIND, &bytes)
            .map_err(|source| OwedError::Version { path: path.to_string(), source })?;
        let decoded = decode(&bytes, step, n_values);
        Ok(decoded.unwrap_or_else(|reason| {
            tracing::error!(%path, reason, "what earlier means lost is lost, for this is damaged");
            Vec::new()
        }))
    }

    /// Forgets what steps before `epoch` owed, but for the one that holds now.
    pub async fn forget_before(&self, epoch: u64, holds: Option<Included>) -> Result<(), OwedError> {
        let (_, folders) = self.storage.list_level(&ObjectPath::from(FOLDER)).await?;
        let epoch_of = |folder: &ObjectPath| folder.filename()?.parse().ok();
        let epochs: Vec<u64> = folders.iter().filter_map(epoch_of).collect();
        for of in epochs.into_iter().filter(|of| *of < epoch) {
            for (_, nonce, path) in self.of_epoch(of).await? {
                if holds != Some(Included { epoch: of, nonce }) {
                    self.storage.delete(&path).await?;
                }
            }
        }
        Ok(())
    }

    /// Index, nonce and object of the averagings of an epoch, oldest first.
    async fn of_epoch(&self, epoch: u64) -> Result<Vec<(u32, u64, ObjectPath)>, OwedError> {
        let (objects, _) = self.storage.list_level(&folder(epoch)).await?;
        let parse = |path: ObjectPath| {
            let (index, nonce) = path.filename()?.split_once('-')?;
            Some((index.parse().ok()?, u64::from_str_radix(nonce, 16).ok()?, path))
        };
        let mut known: Vec<_> = objects.into_iter().filter_map(parse).collect();
        known.sort_by_key(|(index, ..)| *index);
        Ok(known)
    }
}

fn decode(bytes: &[u8], step: Included, n_values: usize) -> Result<Vec<f32>, String> {
    let (header, values) = sealed::open_parts::<Header>(KIND, bytes).map_err(|error| error.to_string())?;
    if header.step != step {
        return Err(format!("it is of epoch {}", header.step.epoch));
    }
    if header.n_values == 0 && values.is_empty() {
        return Ok(Vec::new());
    }
    if header.n_values != n_values as u64 {
        return Err(format!("{} values, {n_values} are wanted", header.n_values));
    }
    TensorCodec::F32.decode(values, n_values).map_err(|error| error.to_string())
}

fn folder(epoch: u64) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}")])
}

fn path(Included { epoch, nonce }: Included, index: u32) -> ObjectPath {
    folder(epoch).join(format!("{index:08}-{nonce:016x}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn step(epoch: u64, nonce: u64) -> Included {
        Included { epoch, nonce }
    }

    #[tokio::test]
    async fn what_is_owed_is_that_of_the_step_that_was_made() {
        let folder = tempfile::tempdir().unwrap();
        {
            let owed = Owed::new(Storage::open(folder.path()).unwrap());
            owed.write(step(7, 1), &[1.0, -2.0]).await.unwrap();
            owed.write(step(7, u64::MAX), &[3.0, 4.5]).await.unwrap();
            owed.write(step(8, 1), &[]).await.unwrap();
        }
        // After a crash as well.
        let owed = Owed::new(Storage::open(folder.path()).unwrap());
        assert_eq!(owed.read(step(7, 1), 2).await.unwrap(), [1.0, -2.0]);
        assert_eq!(owed.read(step(7, u64::MAX), 2).await.unwrap(), [3.0, 4.5]);
        assert_eq!(owed.read(step(8, 1), 2).await.unwrap(), [0.0; 0]);
        assert_eq!(owed.read(step(7, 2), 2).await.unwrap(), [0.0; 0]);
        assert_eq!(owed.read(step(9, 1), 2).await.unwrap(), [0.0; 0]);
        // Of another model.
        assert_eq!(owed.read(step(7, 1), 3).await.unwrap(), [0.0; 0]);
    }

    #[tokio::test]
    async fn what_is_damaged_is_nothing() {
        let storage = Storage::in_memory();
        let owed = Owed::new(storage.clone());
        owed.write(step(3, 5), &[1.0; 4]).await.unwrap();
        let whole = storage.get(&path(step(3, 5), 0), 1000).await.unwrap().unwrap();
        for index in 0..whole.len() {
            let mut bytes = whole.to_vec();
            bytes[index] ^= 0x10;
            storage.put(&path(step(3, 5), 0), bytes).await.unwrap();
            assert_eq!(owed.read(step(3, 5), 4).await.unwrap(), [0.0; 0], "byte {index}");
        }
        owed.write(step(3, 6), &[f32::NAN; 4]).await.unwrap();
        assert_eq!(owed.read(step(3, 6), 4).await.unwrap(), [0.0; 0]);
    }

    #[tokio::test]
    async fn what_a_newer_program_wrote_is_not_taken_for_nothing() {
        let storage = Storage::in_memory();
        let owed = Owed::new(storage.clone());
        owed.write(step(3, 5), &[1.0; 4]).await.unwrap();
        let newer = sealed::seal(Kind { version: 9, ..KIND }, b"of another layout");
        storage.put(&path(step(3, 5), 0), newer).await.unwrap();
        let error = owed.read(step(3, 5), 4).await.unwrap_err().to_string();
        assert!(error.contains("owed mean format 9, this program knows up to 1"), "{error}");
    }

    #[tokio::test]
    async fn the_disk_does_not_fill() {
        let storage = Storage::in_memory();
        let owed = Owed::new(storage.clone());
        for nonce in 0..40 {
            owed.write(step(2, nonce), &[nonce as f32]).await.unwrap();
        }
        let n_kept =
            |storage: Storage| async move { storage.list(&ObjectPath::from(FOLDER)).await.unwrap().len() };
        assert_eq!(n_kept(storage.clone()).await, PER_EPOCH_MAX);
        assert_eq!(owed.read(step(2, 39), 1).await.unwrap(), [39.0]);
        assert_eq!(owed.read(step(2, 31), 1).await.unwrap(), [0.0; 0]);
        for epoch in 3..20 {
            owed.write(step(epoch, 1), &[epoch as f32]).await.unwrap();
        }
        owed.forget_before(18, Some(step(2, 39))).await.unwrap();
        assert_eq!(n_kept(storage.clone()).await, 3);
        assert_eq!(owed.read(step(2, 39), 1).await.unwrap(), [39.0]);
        owed.forget_before(18, Some(step(19, 1))).await.unwrap();
        assert_eq!(n_kept(storage).await, 2);
    }
}
