//! What an operator's words leave behind: kept in the run's folder, so that a restart goes on with it.

use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::storage::sealed::{self, Kind, SealError};
use crate::storage::{Storage, StorageError};

pub(crate) const KEPT: Kind = Kind { name: *b"oper", what: "operator's words", version: 1 };
const KEPT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most peers that are kept out by name.
pub const BLOCKED_MAX: usize = 10_000;

/// Why it cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
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
    /// It is damaged. Nothing is guessed: who was blocked is not to come back unnoticed.
    #[error(
        "what the operator said before cannot be read, {path}: {source}. Take it from a backup, or delete it: then nobody \
         is blocked, nothing is paused, and all settings are those of the file"
    )]
    Seal {
        /// The object.
        path: String,
        /// What is wrong with it.
        source: SealError,
    },
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Since when the run is paused, and why.
    pub paused: Option<Paused>,
    /// What differs from the file.
    pub settings: Settings,
    /// Who is kept out.
    pub blocked: Vec<Blocked>,
}

/// A pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Contributors read it.
    pub reason: String,
    /// Unix time.
    pub since: u64,
}

/// A peer that is kept out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// Bytes of its id.
    pub peer: Vec<u8>,
    /// It reads it.
    pub reason: String,
    /// Unix time.
    pub since: u64,
}

/// Where it is kept.
#[derive(Debug, Clone)]
pub struct KeptStore {
    storage: Storage,
}

impl KeptStore {
    /// Within a run's storage.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// As it was left.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub async fn load(&self) -> Result<Kept, KeptError> {
        let Some(bytes) = self.storage.get(&path(), KEPT_BYTES_MAX).await? else {
            return Ok(Kept::default());
        };
        match sealed::open_parts(KEPT, &bytes) {
            Ok((kept, _)) => Ok(kept),
            Err(source) if source.is_version() => {
                Err(KeptError::Version { path: path().to_string(), source })
            }
            Err(source) => Err(KeptError::Seal { path: path().to_string(), source }),
        }
    }

    /// Once this returns, a crash does not lose it.
    ///
    /// # Errors
    /// It cannot be written: what was kept before is.
    pub async fn save(&self, kept: &Kept) -> Result<(), KeptError> {
        let bytes = sealed::seal_parts(KEPT, kept, &[]);
        let bytes = bytes.map_err(|source| KeptError::Seal { path: path().to_string(), source })?;
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
        let store = KeptStore::new(storage.clone());
        let settings = Settings {
            learning_rate_factor: Some(0.5),
            collect_timeout_seconds: Some(2.0),
            samples_per_second_max: Some(300),
            gradient_norm_max: None,
            contributors_max: Some(4),
            checkpoint_every_epochs: Some(5),
        };
        let kept = Kept {
            paused: Some(Paused { reason: "new data".into(), since: 7 }),
            settings,
            blocked: vec![Blocked { peer: vec![1, 2], reason: "it floods".into(), since: 8 }],
        };
        store.save(&kept).await.unwrap();
        let bytes = storage.get(&path(), KEPT_BYTES_MAX).await.unwrap().unwrap();
        assert_eq!(sealed::hex(&bytes), GOLDEN);
        assert_eq!(store.load().await.unwrap(), kept);
    }

    const GOLDEN: &str = "\
    6261726e726169736f7065720100380000000000000058b8b545a8afbaf5c8d8cbcf9eec19e513bad0646a4aa06fdf759eb4\
    de46b9353400000001086e657720646174610701000000000000e03f01000000000000004001ac0200010401050102010209\
    697420666c6f6f647308\
    ";

    #[tokio::test]
    async fn what_was_said_holds_over_a_restart_and_damage_is_no_pardon() {
        let folder = tempfile::tempdir().unwrap();
        let store = KeptStore::new(Storage::open(folder.path()).unwrap());
        assert_eq!(store.load().await.unwrap(), Kept::default());
        let kept = Kept {
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
            matches!(error, KeptError::Seal { .. }) && error.to_string().contains("from a backup"),
            "{error}"
        );
        std::fs::write(&file, sealed::seal(Kind { version: 2, ..KEPT }, b"of another layout")).unwrap();
        let error = store.load().await.unwrap_err().to_string();
        assert!(error.contains("operator's words format 2, this program knows up to 1"), "{error}");
        assert!(!error.contains("delete it"), "{error}");
    }
}
