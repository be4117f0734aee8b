//! Durable storage: objects in a folder or in S3, checkpoints and the journal of accepted contributions.
//!
//! An object is written whole or not at all, and [`Storage::put`] returns only when a crash of the
//! machine can no longer lose it. Nothing here reads an object that is larger than its reader
//! allows, and nothing is overwritten in place.

pub mod bound;
pub mod checkpoint;
pub mod disk_space;
mod files;
#[cfg(test)]
mod fuzz;
pub mod journal;
pub mod model_store;
mod s3;
pub mod schema;
#[cfg(test)]
pub(crate) mod simulated;

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use barnraise_protocol::sealed::SealError;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{GetResult, ObjectStore, ObjectStoreExt, PutPayload};

pub use self::files::{DirectoryEntry, Disk, Files};
pub use self::s3::{S3Url, S3UrlError};

/// Name of the file whose lock says that a process uses the folder.
const LOCK_FILE: &str = "lock";

/// A process that only checks whether a folder is in use holds its lock for less than this.
const LOOK_MAX: Duration = Duration::from_millis(50);

/// Size of the pieces in which a file is read.
const PIECE_BYTES: u64 = 256 * 1024;

/// Why something could not be stored or read back.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The folder cannot be used.
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
    /// The object store returned an error.
    #[error("object {path}: {source}")]
    Object {
        /// The object, or the prefix of a listing.
        path: String,
        /// What the store said.
        source: object_store::Error,
    },
    /// The disk returned an error.
    #[error("object {path}: cannot {what}: {source}")]
    File {
        /// The object, or the prefix of a listing.
        path: String,
        /// What was tried.
        what: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Larger than the reader allows.
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
        /// The prefix.
        url: String,
        /// Peer id of the backbone whose objects are there.
        by: String,
        /// Peer id of this backbone.
        here: String,
    },
}

/// Why a stored object cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Its envelope or its content.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// Larger than any that is written.
    #[error("it has {got} bytes, at most {max} are read")]
    TooLarge {
        /// The reader's limit.
        max: u64,
        /// Its size.
        got: u64,
    },
    /// In the folder of another epoch.
    #[error("it is of epoch {got}, its folder is of epoch {want}")]
    Epoch {
        /// Of the folder.
        want: u64,
        /// Of the object.
        got: u64,
    },
    /// Shorter than its header says.
    #[error("its list of samples is cut")]
    SamplesCut,
    /// Deleted meanwhile.
    #[error("it vanished while it was read")]
    Vanished,
}

impl StorageError {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            Self::File { source, .. } | Self::Folder { source, .. } => {
                matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
            }
            Self::Locked { .. } | Self::Object { .. } | Self::Taken { .. } | Self::TooLarge { .. } => false,
        }
    }
}

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its name.
    pub location: ObjectPath,
    /// Its length.
    pub size: u64,
    /// When it was written.
    pub modified: SystemTime,
}

/// An object that could not be used and was moved aside.
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
    backend: StorageBackend,
    /// Held for as long as any clone lives.
    _lock: Option<Arc<File>>,
}

#[derive(Debug, Clone)]
enum StorageBackend {
    /// A folder of files, which need syncing.
    Files(Arc<dyn Files>),
    /// A store that acknowledges an object once it is durable.
    Objects(Arc<dyn ObjectStore>),
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
        // No other process writes here now, so a staged file is an unfinished upload.
        storage.sweep().map_err(|source| fail("remove unfinished uploads", source))?;
        Ok(storage)
    }

    /// A folder that several processes may use at once, for objects named by their content.
    pub fn open_shared(folder: &Path) -> Result<Self, StorageError> {
        barnraise_relay::create_private_directory(folder).map_err(|source| StorageError::Folder {
            folder: folder.to_owned(),
            what: "create it",
            source,
        })?;
        Ok(Self::on(Arc::new(Disk::new(folder))))
    }

    /// Objects as files of a disk.
    pub fn on(files: Arc<dyn Files>) -> Self {
        Self { backend: StorageBackend::Files(files), _lock: None }
    }

    /// Objects that live as long as the process.
    pub fn in_memory() -> Self {
        Self { backend: StorageBackend::Objects(Arc::new(InMemory::new())), _lock: None }
    }

    /// Removes files that the previous process left unfinished.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        match &self.backend {
            StorageBackend::Files(files) => files::sweep(&**files, Path::new("")),
            StorageBackend::Objects(_) => Ok(()),
        }
    }

    /// Free space in bytes, where that is known.
    pub fn n_bytes_free(&self) -> Option<u64> {
        match &self.backend {
            StorageBackend::Files(files) => files.n_bytes_free(),
            StorageBackend::Objects(_) => None,
        }
    }

    /// Writes an object, whole, and returns once a crash cannot lose it.
    pub async fn put(&self, path: &ObjectPath, bytes: impl Into<PutPayload>) -> Result<(), StorageError> {
        let payload: PutPayload = bytes.into();
        match &self.backend {
            StorageBackend::Objects(store) => {
                let put = store.put(path, payload).await;
                put.map(drop).map_err(|source| object_error(path, source))
            }
            StorageBackend::Files(files) => {
                let pieces: Vec<Bytes> = payload.into_iter().collect();
                let write = move |files: &dyn Files, path: &Path| files::write_whole(files, path, &pieces);
                on_disk(files, path, "write it", write).await
            }
        }
    }

    /// Reads an object of at most `bytes_max` bytes; `None` where there is none.
    pub async fn get(&self, path: &ObjectPath, bytes_max: u64) -> Result<Option<Bytes>, StorageError> {
        match &self.backend {
            StorageBackend::Objects(store) => {
                let Some(result) = object(store, path, bytes_max).await? else { return Ok(None) };
                result.bytes().await.map(Some).map_err(|source| object_error(path, source))
            }
            StorageBackend::Files(files) => {
                let Some(_) = self.n_bytes(path, bytes_max).await? else { return Ok(None) };
                let read = move |files: &dyn Files, path: &Path| files.read(path, 0, bytes_max);
                found(on_disk(files, path, "read it", read).await)
            }
        }
    }

    /// The first bytes of an object, at most so many; `None` where there is none.
    pub async fn get_start(&self, path: &ObjectPath, n_bytes: u64) -> Result<Option<Bytes>, StorageError> {
        match &self.backend {
            StorageBackend::Objects(store) => match store.get_range(path, 0..n_bytes).await {
                Ok(bytes) => Ok(Some(bytes)),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(source) => Err(object_error(path, source)),
            },
            StorageBackend::Files(files) => {
                let read = move |files: &dyn Files, path: &Path| files.read(path, 0, n_bytes);
                found(on_disk(files, path, "read it", read).await)
            }
        }
    }

    /// Reads a range of an object.
    pub async fn get_range(&self, path: &ObjectPath, range: Range<u64>) -> Result<Bytes, StorageError> {
        match &self.backend {
            StorageBackend::Objects(store) => {
                store.get_range(path, range).await.map_err(|source| object_error(path, source))
            }
            StorageBackend::Files(files) => {
                let n_bytes = range.end.saturating_sub(range.start);
                let read = move |files: &dyn Files, path: &Path| files.read(path, range.start, n_bytes);
                on_disk(files, path, "read it", read).await
            }
        }
    }

    /// Opens an object of at most `bytes_max` bytes, to be read piece by piece: its size, and its bytes; `None` where
    /// there is none.
    pub async fn open_object(
        &self,
        path: &ObjectPath,
        bytes_max: u64,
    ) -> Result<Option<(u64, Chunks)>, StorageError> {
        match &self.backend {
            StorageBackend::Objects(store) => {
                let Some(result) = object(store, path, bytes_max).await? else { return Ok(None) };
                let (got, path) = (result.meta.size, path.clone());
                let chunks = result.into_stream().map_err(move |source| object_error(&path, source));
                Ok(Some((got, chunks.boxed())))
            }
            StorageBackend::Files(files) => {
                let Some(n_bytes) = self.n_bytes(path, bytes_max).await? else { return Ok(None) };
                Ok(Some((n_bytes, pieces(Arc::clone(files), path.clone(), n_bytes))))
            }
        }
    }

    /// Length of a file; `None` where there is none, or for an object store.
    async fn n_bytes(&self, path: &ObjectPath, bytes_max: u64) -> Result<Option<u64>, StorageError> {
        let StorageBackend::Files(files) = &self.backend else { return Ok(None) };
        let n_bytes = found(on_disk(files, path, "read it", |files, path| files.n_bytes(path)).await)?;
        n_bytes.map(|got| within(path, got, bytes_max)).transpose()
    }

    /// All objects under a prefix, in the order of their names.
    pub async fn list(&self, prefix: &ObjectPath) -> Result<Vec<ObjectInfo>, StorageError> {
        let mut objects: Vec<ObjectInfo> = match &self.backend {
            StorageBackend::Objects(store) => {
                let listed = store.list(Some(prefix)).map_ok(|meta| ObjectInfo {
                    location: meta.location,
                    size: meta.size,
                    modified: meta.last_modified.into(),
                });
                listed.try_collect().await.map_err(|source| object_error(prefix, source))?
            }
            StorageBackend::Files(files) => {
                found(on_disk(files, prefix, "list it", list_all).await)?.unwrap_or_default()
            }
        };
        objects.sort_by(|a, b| a.location.cmp(&b.location));
        Ok(objects)
    }

    /// Names one level below a prefix: objects, then folders.
    pub async fn list_level(
        &self,
        prefix: &ObjectPath,
    ) -> Result<(Vec<ObjectPath>, Vec<ObjectPath>), StorageError> {
        let (mut objects, mut folders) = match &self.backend {
            StorageBackend::Objects(store) => match store.list_with_delimiter(Some(prefix)).await {
                Ok(level) => {
                    let objects = level.objects.into_iter().map(|meta| meta.location).collect();
                    (objects, level.common_prefixes)
                }
                Err(object_store::Error::NotFound { .. }) => (Vec::new(), Vec::new()),
                Err(source) => return Err(object_error(prefix, source)),
            },
            StorageBackend::Files(files) => {
                let listed = on_disk(files, prefix, "list it", |files, folder| files.list(folder)).await;
                let listed = found(listed)?.unwrap_or_default().into_iter();
                let listed = listed.filter(|listed| listed.is_folder || !files::is_staged(&listed.name));
                let (folders, objects): (Vec<_>, Vec<_>) = listed.partition(|listed| listed.is_folder);
                let names = |listed: Vec<DirectoryEntry>| -> Vec<ObjectPath> {
                    listed.into_iter().map(|listed| prefix.clone().join(listed.name)).collect()
                };
                (names(objects), names(folders))
            }
        };
        objects.sort();
        folders.sort();
        Ok((objects, folders))
    }

    /// Deletes an object; it is no error if it is gone already.
    pub async fn delete(&self, path: &ObjectPath) -> Result<(), StorageError> {
        match &self.backend {
            StorageBackend::Objects(store) => match store.delete(path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(source) => Err(object_error(path, source)),
            },
            StorageBackend::Files(files) => {
                found(on_disk(files, path, "delete it", |files, path| files.remove(path)).await).map(drop)
            }
        }
    }

    /// Deletes all objects under a prefix, and its folder with them: what is left of folders would be read at each start.
    pub async fn delete_all(&self, prefix: &ObjectPath) -> Result<(), StorageError> {
        for object in self.list(prefix).await? {
            self.delete(&object.location).await?;
        }
        let StorageBackend::Files(files) = &self.backend else { return Ok(()) };
        let removed = on_disk(files, prefix, "delete it", |files, folder| files.remove_folder(folder)).await;
        match found(removed) {
            // A file that is not ours.
            Err(StorageError::File { source, .. }) if source.kind() == io::ErrorKind::DirectoryNotEmpty => {
                Ok(())
            }
            removed => removed.map(drop),
        }
    }

    /// Moves an object that cannot be used to `moved_to`, durably, and logs it.
    pub async fn set_aside(
        &self,
        path: &ObjectPath,
        moved_to: &ObjectPath,
        reason: String,
    ) -> Result<SetAside, StorageError> {
        tracing::warn!(%path, %moved_to, %reason, "unusable object set aside");
        match &self.backend {
            StorageBackend::Objects(store) => {
                store.rename(path, moved_to).await.map_err(|source| object_error(path, source))?;
            }
            StorageBackend::Files(files) => {
                let to = PathBuf::from(moved_to.as_ref());
                let moving = move |files: &dyn Files, path: &Path| files::move_away(files, path, &to);
                on_disk(files, path, "move it", moving).await?;
            }
        }
        Ok(SetAside { path: path.to_string(), moved_to: moved_to.to_string(), reason })
    }
}

/// Whether a process uses a folder by [`Storage::open`]; `None` where that cannot be determined.
pub fn is_in_use(folder: &Path) -> Option<bool> {
    let lock = File::open(folder.join(LOCK_FILE)).ok()?;
    match lock.try_lock_shared() {
        Ok(()) => Some(false),
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}

/// Runs blocking file operations on a thread for them.
async fn on_disk<T: Send + 'static>(
    files: &Arc<dyn Files>,
    path: &ObjectPath,
    what: &'static str,
    act: impl FnOnce(&dyn Files, &Path) -> io::Result<T> + Send + 'static,
) -> Result<T, StorageError> {
    let (files, file) = (Arc::clone(files), PathBuf::from(path.as_ref()));
    let done = tokio::task::spawn_blocking(move || act(&*files, &file)).await;
    let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|source| StorageError::File { path: path.to_string(), what, source })
}

async fn object(
    store: &Arc<dyn ObjectStore>,
    path: &ObjectPath,
    bytes_max: u64,
) -> Result<Option<GetResult>, StorageError> {
    match store.get(path).await {
        Ok(result) => {
            within(path, result.meta.size, bytes_max)?;
            Ok(Some(result))
        }
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(source) => Err(object_error(path, source)),
    }
}

/// A missing file is `None`.
fn found<T>(result: Result<T, StorageError>) -> Result<Option<T>, StorageError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(StorageError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn within(path: &ObjectPath, got: u64, max: u64) -> Result<u64, StorageError> {
    if got > max {
        return Err(StorageError::TooLarge { path: path.to_string(), got, max });
    }
    Ok(got)
}

fn pieces(files: Arc<dyn Files>, path: ObjectPath, n_bytes: u64) -> Chunks {
    let places = futures::stream::iter((0..n_bytes).step_by(PIECE_BYTES as usize));
    let read = move |from| {
        let (files, path) = (Arc::clone(&files), path.clone());
        let n_bytes_max = PIECE_BYTES.min(n_bytes - from);
        let read = move |files: &dyn Files, path: &Path| files.read(path, from, n_bytes_max);
        async move { on_disk(&files, &path, "read it", read).await }
    };
    places.then(read).boxed()
}

fn list_all(files: &dyn Files, folder: &Path) -> io::Result<Vec<ObjectInfo>> {
    let (mut folders, mut stored) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for DirectoryEntry { name, is_folder, n_bytes, modified } in files.list(&folder)? {
            let path = folder.join(&name);
            if is_folder {
                folders.push(path);
            } else if !files::is_staged(&name) {
                let location = path.iter().filter_map(|part| part.to_str()).collect();
                stored.push(ObjectInfo { location, size: n_bytes, modified });
            }
        }
    }
    Ok(stored)
}

fn object_error(path: &ObjectPath, source: object_store::Error) -> StorageError {
    StorageError::Object { path: path.to_string(), source }
}

/// Bytes as tests write them down.
#[cfg(test)]
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
