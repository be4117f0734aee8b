//! The lasting effects of operator commands, stored in the run's folder: a restart goes on with them.

use barnraise_protocol::sealed::{self, ObjectKind, SealError};
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::storage::{Storage, StorageError};

pub(crate) const OPERATOR_STATE: ObjectKind =
    ObjectKind { name: *b"oper", what: "operator state", version: 1 };
const STATE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most blocked peers.
pub const BLOCKED_MAX: usize = 10_000;

/// Why the state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum OperatorStateError {
    /// The storage failed.
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
    /// It is damaged. No default replaces it: a blocked peer must not come back unnoticed.
    #[error(
        "the operator's earlier commands cannot be read, {path}: {source}. Restore the file from a backup, or delete \
         it: then nobody is blocked, nothing is paused, and all settings are those of the file"
    )]
    Seal {
        /// The object.
        path: String,
        /// What is wrong with it.
        source: SealError,
    },
}

/// Pause, settings and blocks of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OperatorState {
    /// The pause, while the run is paused.
    pub paused: Option<Paused>,
    /// Settings that differ from the configuration file.
    pub settings: Settings,
    /// Blocked peers.
    pub blocked: Vec<Blocked>,
}

/// A pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Shown to contributors.
    pub reason: String,
    /// Unix time.
    pub since: u64,
}

/// A blocked peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// Bytes of its peer id.
    pub peer: Vec<u8>,
    /// Sent to the peer.
    pub reason: String,
    /// Unix time.
    pub since: u64,
}

/// Loads and saves the state.
#[derive(Debug, Clone)]
pub struct OperatorStateStore {
    storage: Storage,
}

impl OperatorStateStore {
    /// Within the storage of a run.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// Loads the state; the default where none was saved.
    ///
    /// # Errors
    /// The state cannot be read, or is damaged.
    pub async fn load(&self) -> Result<OperatorState, OperatorStateError> {
        let Some(bytes) = self.storage.get(&path(), STATE_BYTES_MAX).await? else {
            return Ok(OperatorState::default());
        };
        match sealed::open_parts(OPERATOR_STATE, &bytes) {
            Ok((kept, _)) => Ok(kept),
            Err(source) if source.is_version() => {
                Err(OperatorStateError::Version { path: path().to_string(), source })
            }
            Err(source) => Err(OperatorStateError::Seal { path: path().to_string(), source }),
        }
    }

    /// Saves the state durably: it survives a crash once this returns.
    ///
    /// # Errors
    /// The state cannot be written: the earlier one stays.
    pub async fn save(&self, kept: &OperatorState) -> Result<(), OperatorStateError> {
        let bytes = sealed::seal_parts(OPERATOR_STATE, kept, &[]);
        let bytes = bytes.map_err(|source| OperatorStateError::Seal { path: path().to_string(), source })?;
        Ok(self.storage.put(&path(), bytes).await?)
    }
}

fn path() -> ObjectPath {
    ObjectPath::from_iter(["operator", "kept"])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// As this version wrote it, byte by byte.
    #[tokio::test]
    async fn golden_bytes() {
        let storage = Storage::in_memory();
        let store = OperatorStateStore::new(storage.clone());
        let settings = Settings {
            learning_rate_factor: Some(0.5),
            collect_timeout_seconds: Some(2.0),
            samples_per_second_max: Some(300),
            gradient_norm_max: None,
            contributors_max: Some(4),
            checkpoint_every_epochs: Some(5),
            stream_weights: [("books".to_owned(), 2.0)].into(),
        };
        let kept = OperatorState {
            paused: Some(Paused { reason: "new data".into(), since: 7 }),
            settings,
            blocked: vec![Blocked { peer: vec![1, 2], reason: "it floods".into(), since: 8 }],
        };
        store.save(&kept).await.unwrap();
        let bytes = storage.get(&path(), STATE_BYTES_MAX).await.unwrap().unwrap();
        assert_eq!(crate::storage::hex(&bytes), GOLDEN);
        assert_eq!(store.load().await.unwrap(), kept);
    }

    const GOLDEN: &str = "\
    6261726e726169736f70657201004700000000000000471327520dad6f3e668de0f6447df77fbad9a27fbff3f58bacd9bd0e\
    944e23fa4300000001086e657720646174610701000000000000e03f01000000000000004001ac0200010401050105626f6f\
    6b7300000000000000400102010209697420666c6f6f647308\
    ";

    #[tokio::test]
    async fn the_state_survives_a_restart_and_damage_unblocks_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let store = OperatorStateStore::new(Storage::open(folder.path()).unwrap());
        assert_eq!(store.load().await.unwrap(), OperatorState::default());
        let kept = OperatorState {
            paused: Some(Paused { reason: "new data".into(), since: 7 }),
            settings: Settings { learning_rate_factor: Some(0.5), ..Settings::default() },
            blocked: vec![Blocked { peer: vec![1, 2], reason: "it floods".into(), since: 8 }],
        };
        store.save(&kept).await.unwrap();
        assert_eq!(store.load().await.unwrap(), kept);
        let file = folder.path().join("operator/kept");
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        let error = store.load().await.unwrap_err();
        assert!(
            matches!(error, OperatorStateError::Seal { .. }) && error.to_string().contains("from a backup"),
            "{error}"
        );
        std::fs::write(
            &file,
            sealed::seal(ObjectKind { version: 2, ..OPERATOR_STATE }, b"of another layout"),
        )
        .unwrap();
        let error = store.load().await.unwrap_err().to_string();
        assert!(error.contains("operator state format 2, this program knows up to 1"), "{error}");
        assert!(!error.contains("delete it"), "{error}");
    }
}
