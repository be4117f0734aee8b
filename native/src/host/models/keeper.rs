//! Stores some models on the disk, each as the file that is downloaded. [`ModelStore`] decides which.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::access::UnixTime;
use bytes::Bytes;
use futures::stream::TryStreamExt as _;
use object_store::PutPayload;
use object_store::path::Path as ObjectPath;
use tokio::sync::watch;

use super::{ModelStore, Snapshot, StoredModel};
use crate::storage::{Chunks, ObjectInfo, Storage, StorageError};

const FOLDER: &str = "models";
const SUFFIX: &str = ".safetensors";
/// Largest file that is kept or read: the largest model that there can be, and its header.
pub const KEPT_BYTES_MAX: u64 = 4100 * 1024 * 1024;

const _: () = assert!(
    KEPT_BYTES_MAX as usize
        >= barnraise_learning::graph::PARAMETERS_MAX * 4 + barnraise_learning::tensor_file::HEADER_BYTES_MAX
);

/// Why a model is not kept.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the newest one cannot be read: {0}")]
    Newest(#[from] io::Error),
}

/// The task that keeps models.
#[derive(Debug)]
pub struct Keeper {
    storage: Storage,
    shelf: ModelStore,
    told: watch::Sender<Arc<[StoredModel]>>,
}

impl Keeper {
    /// A keeper of the stored models, and a receiver of their list.
    ///
    /// # Errors
    /// The storage cannot be read.
    pub async fn open(
        storage: Storage,
        ages: &[Duration],
    ) -> Result<(Self, watch::Receiver<Arc<[StoredModel]>>), StorageError> {
        let found = storage.list(&ObjectPath::from(FOLDER)).await?;
        let shelf = ModelStore::new(ages, found.iter().filter_map(kept).collect());
        let (told, reader) = watch::channel(shelf.kept().into());
        Ok((Self { storage, shelf, told }, reader))
    }

    /// Stores models by their age, until their sender is dropped. A full disk costs one earlier model at most.
    pub async fn run(mut self, mut latest: watch::Receiver<Option<Arc<Snapshot>>>) {
        while latest.changed().await.is_ok() {
            let snapshot = latest.borrow_and_update().clone();
            if let Some(snapshot) = snapshot
                && let Err(error) = self.on_model(snapshot).await
            {
                tracing::warn!(%error, "a model could not be kept");
            }
        }
    }

    async fn on_model(&mut self, snapshot: Arc<Snapshot>) -> Result<(), KeepError> {
        let (now, epoch) = (snapshot.made_at, snapshot.epoch);
        if self.shelf.wants(now, epoch) && snapshot.n_bytes <= KEPT_BYTES_MAX {
            let kept = StoredModel { epoch, made_at: now, n_bytes: snapshot.n_bytes };
            let pieces: Vec<Bytes> = snapshot.pieces().try_collect().await?;
            self.storage.put(&path(&kept), PutPayload::from_iter(pieces)).await?;
            self.shelf.add(kept);
        }
        let gone = self.shelf.thin(now, epoch);
        // Before the files are deleted, so that readers do not see a model that is gone.
        self.told.send_if_modified(|told| {
            let is_other = **told != *self.shelf.kept();
            if is_other {
                *told = self.shelf.kept().into();
            }
            is_other
        });
        for kept in gone {
            self.storage.delete(&path(&kept)).await?;
        }
        Ok(())
    }
}

/// The file of a stored model, in pieces; `None` where it is gone.
pub(super) async fn read(storage: &Storage, kept: &StoredModel) -> Result<Option<Chunks>, StorageError> {
    let opened = storage.open_object(&path(kept), KEPT_BYTES_MAX).await?;
    Ok(opened.filter(|(n_bytes, _)| *n_bytes == kept.n_bytes).map(|(_, pieces)| pieces))
}

fn path(kept: &StoredModel) -> ObjectPath {
    let StoredModel { epoch, made_at: UnixTime(seconds), .. } = kept;
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}-{seconds}{SUFFIX}")])
}

/// Parses the name of a model's file; other files are ignored.
fn kept(object: &ObjectInfo) -> Option<StoredModel> {
    let (epoch, seconds) = object.location.filename()?.strip_suffix(SUFFIX)?.split_once('-')?;
    let made_at = UnixTime(seconds.parse().ok()?);
    Some(StoredModel { epoch: epoch.parse().ok()?, made_at, n_bytes: object.size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_name() {
        let kept = StoredModel { epoch: 300, made_at: UnixTime(1_800_000_000), n_bytes: 7 };
        assert_eq!(path(&kept).to_string(), "models/000000000300-1800000000.safetensors");
    }
}
