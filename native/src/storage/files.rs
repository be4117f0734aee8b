//! The file operations of the storage, behind a trait, so that tests can simulate the disk. Blocks.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use bytes::Bytes;

/// A file or a folder within a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Without its folder.
    pub name: String,
    /// A folder, else a file.
    pub is_folder: bool,
    /// Length of a file.
    pub n_bytes: u64,
    /// When it was last written.
    pub modified: SystemTime,
}

/// A disk. Paths are relative to the storage folder; the empty path is that folder.
///
/// As on any disk, nothing survives a loss of power before it was synced: neither the content of a file, nor its name
/// in a folder, nor its removal.
pub trait Files: fmt::Debug + Send + Sync {
    /// Creates a folder in an existing one; it may exist already.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;
    /// Writes a new file.
    fn write_new(&self, file: &Path, pieces: &[Bytes]) -> io::Result<()>;
    /// Makes the content of a file durable.
    fn sync(&self, file: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// Renames a file; replaces one of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, file: &Path) -> io::Result<()>;
    /// Removes an empty folder.
    fn remove_folder(&self, folder: &Path) -> io::Result<()>;
    /// Length of a file.
    fn n_bytes(&self, file: &Path) -> io::Result<u64>;
    /// Reads at most `n_bytes_max` bytes of a file, from offset `from`.
    fn read(&self, file: &Path, from: u64, n_bytes_max: u64) -> io::Result<Bytes>;
    /// The entries of a folder, in any order.
    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>>;
    /// Free space in bytes, where that is known.
    fn n_bytes_free(&self) -> Option<u64>;
}

/// Writes a file atomically: a loss of power leaves all or nothing of it, and all once this has returned.
///
/// # Errors
/// The file does not exist then, or is still the previous one.
pub(super) fn write_whole(files: &dyn Files, path: &Path, pieces: &[Bytes]) -> io::Result<()> {
    let staged = staged(path);
    let written = write_staged(files, &staged, pieces)
        .and_then(|()| files.sync(&staged))
        .and_then(|()| files.rename(&staged, path));
    if let Err(error) = written {
        // Left behind, it is removed at the next start.
        let _ = files.remove(&staged);
        return Err(error);
    }
    path.ancestors().skip(1).try_for_each(|folder| files.sync_folder(folder))
}

fn write_staged(files: &dyn Files, staged: &Path, pieces: &[Bytes]) -> io::Result<()> {
    match files.write_new(staged, pieces) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        written => return written,
    }
    let parents: Vec<&Path> = staged.ancestors().skip(1).filter(|parent| *parent != Path::new("")).collect();
    parents.into_iter().rev().try_for_each(|folder| files.create_folder(folder))?;
    files.write_new(staged, pieces)
}

/// Digits of a number in the name of a file that is being written, after those of the process.
const STAGED_DIGITS: usize = 10;

/// A unique name for a file that is being written: `name#170000000001`, ….
fn staged(path: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Processes may share a folder.
    name.push(format!("#{}{number:0STAGED_DIGITS$}", std::process::id()));
    path.with_file_name(name)
}

/// Whether it is the name of a file that was being written.
pub(super) fn is_staged(name: &str) -> bool {
    name.rsplit_once('#').is_some_and(|(_, suffix)| {
        suffix.len() > STAGED_DIGITS && suffix.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Removes files that a process left unfinished.
pub(super) fn sweep(files: &dyn Files, folder: &Path) -> io::Result<()> {
    for DirectoryEntry { name, is_folder, .. } in files.list(folder)? {
        let path = folder.join(&name);
        if is_folder {
            match sweep(files, &path) {
                // Such as `lost+found`: this process has written nothing there.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::warn!(folder = %path.display(), %error, "a folder that cannot be read is left as it is");
                }
                swept => swept?,
            }
        } else if is_staged(&name) {
            tracing::info!(file = %path.display(), "unfinished upload removed");
            files.remove(&path)?;
        }
    }
    Ok(())
}

/// Moves a file into another folder, which is created if needed. Durable on return.
pub(super) fn move_away(files: &dyn Files, path: &Path, to: &Path) -> io::Result<()> {
    let parents: Vec<&Path> = to.ancestors().skip(1).filter(|parent| *parent != Path::new("")).collect();
    parents.into_iter().rev().try_for_each(|folder| files.create_folder(folder))?;
    files.rename(path, to)?;
    // The new folder first: a loss of power in between leaves two copies, not none.
    to.ancestors().skip(1).chain(path.ancestors().skip(1)).try_for_each(|folder| files.sync_folder(folder))
}

/// A folder of the machine.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// `folder`, which must exist.
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }
}

impl Files for Disk {
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        match fs::create_dir(self.0.join(folder)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn write_new(&self, file: &Path, pieces: &[Bytes]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(self.0.join(file))?;
        pieces.iter().try_for_each(|piece| file.write_all(piece))
    }

    fn sync(&self, file: &Path) -> io::Result<()> {
        // For Windows a file that is flushed is one that may be written.
        OpenOptions::new().write(true).open(self.0.join(file))?.sync_all()
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        // Windows has no such call and needs none.
        if cfg!(windows) { Ok(()) } else { File::open(self.0.join(folder))?.sync_all() }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        fs::remove_file(self.0.join(file))
    }

    fn remove_folder(&self, folder: &Path) -> io::Result<()> {
        fs::remove_dir(self.0.join(folder))
    }

    fn n_bytes(&self, file: &Path) -> io::Result<u64> {
        Ok(fs::metadata(self.0.join(file))?.len())
    }

    fn read(&self, file: &Path, from: u64, n_bytes_max: u64) -> io::Result<Bytes> {
        let mut file = File::open(self.0.join(file))?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(n_bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let mut listed = Vec::new();
        for entry in fs::read_dir(self.0.join(folder))? {
            let entry = entry?;
            let about = match entry.metadata() {
                Ok(about) => about,
                // It went meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let Ok(name) = entry.file_name().into_string() else { continue };
            let modified = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            listed.push(DirectoryEntry { name, is_folder: about.is_dir(), n_bytes: about.len(), modified });
        }
        Ok(listed)
    }

    #[cfg(unix)]
    fn n_bytes_free(&self) -> Option<u64> {
        let about = rustix::fs::statvfs(&self.0).ok()?;
        Some(about.f_bavail.saturating_mul(about.f_frsize))
    }

    #[cfg(not(unix))]
    fn n_bytes_free(&self) -> Option<u64> {
        None
    }
}
