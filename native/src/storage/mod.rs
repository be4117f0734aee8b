//! What lasts: objects in a folder, checkpoints and the journal of accepted contributions.
//!
//! An object is written whole or not at all, and [`Storage::put`] returns only when a crash of the
//! machine can no longer lose it. Nothing here reads an object that is larger than its reader
//! allows, and nothing is overwritten in place.

pub mod bound;
pub mod checkpoint;
pub mod journal;
pub mod owed;
mod s3;
pub mod schema;
pub mod sealed;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};

pub use self::s3::{S3Url, S3UrlError};

/// Name of the file whose lock says that a process uses the folder.
const LOCK_FILE: &str = "lock";

/// Whoever only looks whether a folder is in use holds its lock for less than that.
const LOOK_MAX: Duration = Duration::from_millis(50);

/// Why something could not be stored or read back.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The folder cannot be used at all.
    #[error("storage folder {}: cannot {what}: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Two processes on one folder would overwrite each other's checkpoints.
    #[error("storage folder {} is in use by another process", folder.display())]
    Locked {
        /// The folder.
        folder: PathBuf,
    },
    /// The store said no.
    #[error("object {path}: {source}")]
    Object {
        /// The object, or the prefix of a listing.
        path: String,
        /// What the store said.
        source: object_store::Error,
    },
    /// Larger than anything this program writes there.
    #[error("object {path} has {got} bytes, at most {max} are read")]
    TooLarge {
        /// The object.
        path: String,
        /// Its size.
        got: u64,
        /// The reader's limit.
        max: u64,
    },
    /// Two backbones on the same objects would overwrite each other's.
    #[error(
        "{url} has the objects of the backbone {by}, and this one is {here}: give each a prefix of its own; where this \
        one takes the place of that one, put its identity.key into this one's folder"
    )]
    Taken {
        /// Where.
        url: String,
        /// Whose they are.
        by: String,
        /// Who asks.
        here: String,
    },
    /// Written, but not known to be on the disk.
    #[error("object {path} could not be flushed to the disk: {source}")]
    Flush {
        /// The object.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// An object that could not be used and was moved out of the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Where it was.
    pub path: String,
    /// Where it is now.
    pub moved_to: String,
    /// What was wrong with it.
    pub reason: String,
}

/// The bytes of an object, piece by piece.
pub type Chunks = BoxStream<'static, Result<Bytes, StorageError>>;

/// An object store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Storage {
    store: Arc<dyn ObjectStore>,
    /// Set where the objects are files, which need flushing.
    folder: Option<PathBuf>,
    /// Held for as long as any clone lives.
    _lock: Option<Arc<File>>,
}

impl Storage {
    /// A folder of which this process is the only user; created if need be.
    ///
    /// # Errors
    /// [`StorageError::Locked`] while another process uses it.
    pub fn open(folder: &Path) -> Result<Self, StorageError> {
        let mut storage = Self::open_shared(folder)?;
        let fail = |what, source| StorageError::Folder { folder: folder.to_owned(), what, source };
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join(LOCK_FILE))
            .map_err(|source| fail("open its lock file", source))?;
        let mut locked = lock.try_lock();
        if matches!(locked, Err(TryLockError::WouldBlock)) {
            std::thread::sleep(LOOK_MAX);
            locked = lock.try_lock();
        }
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StorageError::Locked { folder: folder.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(fail("lock it", source)),
        }
        storage._lock = Some(Arc::new(lock));
        // Nobody else writes here now, so what looks like an unfinished upload is one.
        sweep(folder).map_err(|source| fail("remove unfinished uploads", source))?;
        Ok(storage)
    }

    /// A folder that several processes may use at once, for objects named by their content.
    pub fn open_shared(folder: &Path) -> Result<Self, StorageError> {
        barnraise_relay::create_private_directory(folder).map_err(|source| StorageError::Folder {
            folder: folder.to_owned(),
            what: "create it",
            source,
        })?;
        let store = LocalFileSystem::new_with_prefix(folder)
            .map_err(|source| StorageError::Object { path: folder.display().to_string(), source })?;
        Ok(Self { store: Arc::new(store), folder: Some(folder.to_owned()), _lock: None })
    }

    /// Objects elsewhere, of whoever is the user of this folder.
    fn beside(&self, store: Arc<dyn ObjectStore>) -> Self {
        Self { store, folder: None, _lock: self._lock.clone() }
    }

    /// Objects that live as long as the process.
    pub fn in_memory() -> Self {
        Self { store: Arc::new(InMemory::new()), folder: None, _lock: None }
    }

    /// Writes an object, whole, and returns once a crash cannot lose it.
    pub async fn put(&self, path: &ObjectPath, bytes: impl Into<PutPayload>) -> Result<(), StorageError> {
        self.store.put(path, bytes.into()).await.map_err(|source| object_error(path, source))?;
        self.flush(path).await
    }

    /// Reads an object of at most `bytes_max` bytes; `None` where there is none.
    pub async fn get(&self, path: &ObjectPath, bytes_max: u64) -> Result<Option<Bytes>, StorageError> {
        let Some(result) = self.find(path, bytes_max).await? else { return Ok(None) };
        result.bytes().await.map(Some).map_err(|source| object_error(path, source))
    }

    /// Opens an object of at most `bytes_max` bytes, to be read piece by piece: its size, and its bytes; `None` where
    /// there is none.
    pub async fn open_object(
        &self,
        path: &ObjectPath,
        bytes_max: u64,
    ) -> Result<Option<(u64, Chunks)>, StorageError> {
        let Some(result) = self.find(path, bytes_max).await? else { return Ok(None) };
        let (got, path) = (result.meta.size, path.clone());
        let chunks = result.into_stream().map_err(move |source| object_error(&path, source));
        Ok(Some((got, chunks.boxed())))
    }

    async fn find(&self, path: &ObjectPath, bytes_max: u64) -> Result<Option<GetResult>, StorageError> {
        let result = match self.store.get(path).await {
            Ok(result) => result,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(source) => return Err(object_error(path, source)),
        };
        let got = result.meta.size;
        if got > bytes_max {
            return Err(StorageError::TooLarge { path: path.to_string(), got, max: bytes_max });
        }
        Ok(Some(result))
    }

    /// All objects under a prefix, in the order of their names.
    pub async fn list(&self, prefix: &ObjectPath) -> Result<Vec<ObjectMeta>, StorageError> {
        let mut objects: Vec<ObjectMeta> = self
            .store
            .list(Some(prefix))
            .try_collect()
            .await
            .map_err(|source| object_error(prefix, source))?;
        objects.sort_by(|a, b| a.location.cmp(&b.location));
        Ok(objects)
    }

    /// Names one level below a prefix: objects, then folders.
    pub async fn list_level(
        &self,
        prefix: &ObjectPath,
    ) -> Result<(Vec<ObjectPath>, Vec<ObjectPath>), StorageError> {
        match self.store.list_with_delimiter(Some(prefix)).await {
            Ok(level) => {
                let mut objects: Vec<_> = level.objects.into_iter().map(|meta| meta.location).collect();
                let mut folders = level.common_prefixes;
                objects.sort();
                folders.sort();
                Ok((objects, folders))
            }
            Err(object_store::Error::NotFound { .. }) => Ok((Vec::new(), Vec::new())),
            Err(source) => Err(object_error(prefix, source)),
        }
    }

    /// Deletes an object; it is no error if it is gone already.
    pub async fn delete(&self, path: &ObjectPath) -> Result<(), StorageError> {
        match self.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(object_error(path, source)),
        }
    }

    /// Moves an object that cannot be used to where nobody looks for it, and says so in the log.
    pub async fn set_aside(
        &self,
        path: &ObjectPath,
        moved_to: &ObjectPath,
        reason: String,
    ) -> Result<SetAside, StorageError> {
        tracing::warn!(%path, %moved_to, %reason, "unusable object set aside");
        self.store.rename(path, moved_to).await.map_err(|source| object_error(path, source))?;
        Ok(SetAside { path: path.to_string(), moved_to: moved_to.to_string(), reason })
    }

    /// `LocalFileSystem` renames a finished file into place but never calls fsync. A process that
    /// dies loses nothing by that, a machine that loses power may: so the file is flushed, then each
    /// folder from it up to the root, where its name, or the name of a new folder, is kept.
    async fn flush(&self, path: &ObjectPath) -> Result<(), StorageError> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let relative = path.to_string();
        let flushed = tokio::task::spawn_blocking(move || {
            let file = folder.join(relative);
            File::open(&file)?.sync_all()?;
            let parents = file.ancestors().skip(1).take_while(|parent| parent.starts_with(&folder));
            parents.into_iter().try_for_each(sync_folder)
        });
        let result = flushed.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        result.map_err(|source| StorageError::Flush { path: path.to_string(), source })
    }
}

/// Whether a process uses a folder by [`Storage::open`]; nothing where that cannot be seen from here.
pub fn is_in_use(folder: &Path) -> Option<bool> {
    let lock = File::open(folder.join(LOCK_FILE)).ok()?;
    match lock.try_lock_shared() {
        Ok(()) => Some(false),
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}

/// Makes names within a folder last. Windows has no such call and needs none.
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    if cfg!(windows) {
        return Ok(());
    }
    File::open(folder)?.sync_all()
}

fn object_error(path: &ObjectPath, source: object_store::Error) -> StorageError {
    StorageError::Object { path: path.to_string(), source }
}

/// Removes what interrupted uploads left: `LocalFileSystem` stages `name` as `name#1`, `name#2`, …
fn sweep(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sweep(&entry.path())?;
        } else if is_staged(&entry.file_name().to_string_lossy()) {
            tracing::info!(file = %entry.path().display(), "unfinished upload removed");
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn is_staged(name: &str) -> bool {
    name.rsplit_once('#')
        .is_some_and(|(_, suffix)| !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[tokio::test]
    async fn an_object_comes_back_and_a_missing_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::open(folder.path()).unwrap();
        let path = ObjectPath::from("a/b/c");
        assert!(storage.get(&path, 10).await.unwrap().is_none());
        storage.put(&path, b"hello".to_vec()).await.unwrap();
        assert_eq!(storage.get(&path, 5).await.unwrap().unwrap(), "hello");
        let error = storage.get(&path, 4).await.unwrap_err();
        assert!(matches!(error, StorageError::TooLarge { got: 5, max: 4, .. }), "{error}");
        storage.delete(&path).await.unwrap();
        storage.delete(&path).await.unwrap();
        assert!(storage.get(&path, 5).await.unwrap().is_none());
    }

    #[test]
    fn a_second_user_of_the_folder_is_refused_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(is_in_use(folder.path()), None, "nobody was ever here");
        let first = Storage::open(folder.path()).unwrap();
        assert_eq!(is_in_use(folder.path()), Some(true));
        assert!(matches!(Storage::open(folder.path()), Err(StorageError::Locked { .. })));
        let clone = first.clone();
        drop(first);
        assert!(matches!(Storage::open(folder.path()), Err(StorageError::Locked { .. })));
        drop(clone);
        assert_eq!((is_in_use(folder.path()), is_in_use(folder.path())), (Some(false), Some(false)));
        Storage::open(folder.path()).unwrap();
    }

    #[test]
    fn unfinished_uploads_are_swept_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("journal/1")).unwrap();
        for name in ["journal/1/00.grad#1", "x.ckpt#12"] {
            std::fs::write(folder.path().join(name), b"half").unwrap();
        }
        for name in ["journal/1/00.grad", "a#b", "c#"] {
            std::fs::write(folder.path().join(name), b"whole").unwrap();
        }
        let _storage = Storage::open(folder.path()).unwrap();
        let left: Vec<bool> = ["journal/1/00.grad#1", "x.ckpt#12", "journal/1/00.grad", "a#b", "c#"]
            .map(|name| folder.path().join(name).exists())
            .into();
        assert_eq!(left, [false, false, true, true, true]);
    }
}
