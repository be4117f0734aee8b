//! The record that binds a folder to a run: one small object, written before anything else.
//!
//! Journal and checkpoints belong to one model, optimizer and data set: replayed under others they would give another
//! model, or fail. So that configuration is on the disk before the first of them.

use std::collections::BTreeMap;

use barnraise_protocol::sealed::{self, ObjectKind, SealError};
use object_store::path::Path as ObjectPath;

use super::{Storage, StorageError};

pub(super) const KIND: ObjectKind =
    ObjectKind { name: *b"boun", what: "run's record of what it is", version: 2 };
const NAME: &str = "run.bound";
const BYTES_MAX: u64 = 1024 * 1024;

/// Keys of the configuration and their values, as in the file.
pub type BoundValues = BTreeMap<String, String>;

/// Why the record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    /// From the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Another version of this program wrote it.
    #[error("{NAME}: {0}")]
    Version(SealError),
    /// The record is damaged, and nothing else says to which configuration the journal belongs.
    #[error(
        "{NAME} cannot be read: {0}. Take it from a backup; or delete it, and make sure that id, seed, model, optimizer \
         and data are those with which the run was begun: the next start takes them for right"
    )]
    Damaged(SealError),
}

/// The configuration that the folder is bound to; `None` in a new folder.
pub async fn read(storage: &Storage) -> Result<Option<BoundValues>, BoundError> {
    let Some(bytes) = storage.get(&ObjectPath::from(NAME), BYTES_MAX).await? else { return Ok(None) };
    match sealed::open_parts(KIND, &bytes) {
        Ok((values, _)) => Ok(Some(values)),
        Err(error) if error.is_version() => Err(BoundError::Version(error)),
        Err(error) => Err(BoundError::Damaged(error)),
    }
}

/// Binds the folder, durably.
pub async fn write(storage: &Storage, values: &BoundValues) -> Result<(), BoundError> {
    let bytes = sealed::seal_parts(KIND, values, &[]).map_err(BoundError::Damaged)?;
    Ok(storage.put(&ObjectPath::from(NAME), bytes).await?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// As this version wrote it, byte by byte.
    #[tokio::test]
    async fn golden_bytes() {
        let storage = Storage::in_memory();
        let values =
            [("run.id", "r"), ("model.seed", "7")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let values = BoundValues::from(values);
        write(&storage, &values).await.unwrap();
        let bytes = storage.get(&ObjectPath::from(NAME), BYTES_MAX).await.unwrap().unwrap();
        assert_eq!(crate::storage::hex(&bytes), GOLDEN);
        assert_eq!(read(&storage).await.unwrap(), Some(values));
    }

    const GOLDEN: &str = "\
    6261726e72616973626f756e02001b00000000000000f323b0a7fe93e919dc4cecc32a0f5c650a5748fd354ade8062ac9575\
    edfece9517000000020a6d6f64656c2e7365656401370672756e2e69640172\
    ";

    #[tokio::test]
    async fn it_comes_back_and_neither_damage_nor_a_newer_format_is_nothing() {
        let storage = Storage::in_memory();
        assert_eq!(read(&storage).await.unwrap(), None);
        let values = BoundValues::from([("model.seed".to_owned(), "7".to_owned())]);
        write(&storage, &values).await.unwrap();
        assert_eq!(read(&storage).await.unwrap(), Some(values));
        let path = ObjectPath::from(NAME);
        let mut bytes = storage.get(&path, BYTES_MAX).await.unwrap().unwrap().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        storage.put(&path, bytes).await.unwrap();
        let error = read(&storage).await.unwrap_err();
        assert!(matches!(error, BoundError::Damaged(_)) && error.to_string().contains("backup"), "{error}");
        let newer = sealed::seal(ObjectKind { version: 7, ..KIND }, b"of another layout");
        storage.put(&path, newer).await.unwrap();
        let error = read(&storage).await.unwrap_err().to_string();
        assert!(
            error.contains("format 7, this program knows up to 2") && !error.contains("delete"),
            "{error}"
        );
    }
}
