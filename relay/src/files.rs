//! Small private files on disk: written whole or not at all, readable by their owner only.
//!
//! Never overwrites what it could not read, and never deletes: a broken file is set aside under
//! another name for a person to look at.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Longest file this crate reads: a key or a certificate is a few kilobytes at most.
pub(crate) const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Makes `directory` and its parents; on Unix, new ones are open to their owner only.
///
/// # Errors
/// What the operating system said.
pub fn create_private_directory(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// Writes `contents` to `path` so that a crash leaves either the old file or the new one, mode 0600.
///
/// # Errors
/// What the operating system said.
pub fn write_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_on(&mut SystemDisk, path, contents)
}

/// Disk operations, which a test replaces.
trait Disk {
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    fn write_new(&mut self, path: &Path, contents: &[u8]) -> io::Result<()>;
    fn sync(&mut self, path: &Path) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_parent(&mut self, path: &Path) -> io::Result<()>;
}

fn write_on(disk: &mut impl Disk, path: &Path, contents: &[u8]) -> io::Result<()> {
    let temporary = with_suffix(path, ".new");
    // A leftover of a crash between the steps below may stand in the way.
    match disk.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    disk.write_new(&temporary, contents)?;
    disk.sync(&temporary)?;
    disk.rename(&temporary, path)?;
    disk.sync_parent(path)
}

/// The disk of this machine.
struct SystemDisk;

impl Disk for SystemDisk {
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn write_new(&mut self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(path)?.write_all(contents)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        OpenOptions::new().write(true).open(path)?.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_parent(&mut self, path: &Path) -> io::Result<()> {
        sync_parent(path)
    }
}

/// Makes an empty file at `path` unless it exists: mode 0600 under any umask. An existing file that others may read is
/// closed to them; `beside` are endings of files that a program makes next to it.
///
/// # Errors
/// What the operating system said.
pub fn create_private_file(path: &Path, beside: &[&str]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?;
    let others = beside.iter().map(|suffix| with_suffix(path, suffix));
    for file in std::iter::once(path.to_owned()).chain(others.filter(|file| file.exists())) {
        close_to_others(&file)?;
    }
    Ok(())
}

#[cfg(unix)]
fn close_to_others(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = fs::metadata(path)?.permissions().mode();
    match mode & 0o077 {
        0 => Ok(()),
        _ => fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700)),
    }
}

/// Elsewhere the folder's permissions protect the file.
#[cfg(not(unix))]
fn close_to_others(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Reads a whole file of at most [`FILE_BYTES_MAX`] bytes.
pub(crate) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = fs::metadata(path)?.len();
    if bytes > FILE_BYTES_MAX {
        let message = format!("{bytes} bytes, at most {FILE_BYTES_MAX} are read");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    fs::read(path)
}

/// Renames a file that cannot be used, and returns where it lies now.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let mut aside = with_suffix(path, ".broken");
    let mut attempt = 1;
    while aside.exists() {
        aside = with_suffix(path, &format!(".broken-{attempt}"));
        attempt += 1;
    }
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// A rename lasts only once the directory that holds the name is on disk.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    #[cfg(unix)]
    fs::File::open(parent)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = parent;
    Ok(())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use super::*;

    /// A disk with one folder, that fails at some step. What was not synced may be lost, names and bytes alike.
    #[derive(Default, Clone)]
    struct Failing {
        /// What is in each file, and how much of it is synced.
        contents: Vec<(Vec<u8>, usize)>,
        names: BTreeMap<PathBuf, usize>,
        names_synced: BTreeMap<PathBuf, usize>,
        n_until_failure: usize,
    }

    impl Failing {
        fn step(&mut self) -> io::Result<()> {
            self.n_until_failure = self.n_until_failure.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
            Ok(())
        }

        fn id(&self, path: &Path) -> io::Result<usize> {
            Ok(*self.names.get(path).ok_or(io::ErrorKind::NotFound)?)
        }

        /// What may be there under that name once the power is back.
        fn after_power_loss(&self, path: &Path) -> Vec<Option<Vec<u8>>> {
            let of = |id: &usize| {
                let (bytes, n_synced) = &self.contents[*id];
                [bytes[..*n_synced].to_vec(), bytes.clone()]
            };
            let may_be = [self.names.get(path), self.names_synced.get(path)].into_iter();
            may_be.flat_map(|id| id.map_or_else(|| vec![None], |id| of(id).map(Some).into())).collect()
        }
    }

    impl Disk for Failing {
        fn remove(&mut self, path: &Path) -> io::Result<()> {
            self.step()?;
            self.id(path)?;
            self.names.remove(path);
            Ok(())
        }

        fn write_new(&mut self, path: &Path, contents: &[u8]) -> io::Result<()> {
            if self.names.contains_key(path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let step = self.step();
            let n_bytes = if step.is_ok() { contents.len() } else { contents.len() / 2 };
            self.names.insert(path.to_owned(), self.contents.len());
            self.contents.push((contents[..n_bytes].to_vec(), 0));
            step
        }

        fn sync(&mut self, path: &Path) -> io::Result<()> {
            self.step()?;
            let id = self.id(path)?;
            self.contents[id].1 = self.contents[id].0.len();
            Ok(())
        }

        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            self.step()?;
            let id = self.id(from)?;
            self.names.remove(from);
            self.names.insert(to.to_owned(), id);
            Ok(())
        }

        fn sync_parent(&mut self, _path: &Path) -> io::Result<()> {
            self.step()?;
            self.names_synced = self.names.clone();
            Ok(())
        }
    }

    #[test]
    fn at_every_failing_step_the_file_is_the_old_one_or_the_new_one_and_lasts_once_it_is_written() {
        let path = Path::new("/certificates/tls.pem");
        let mut disk = Failing { n_until_failure: 100, ..Failing::default() };
        write_on(&mut disk, path, b"the old one").unwrap();
        for n_steps in 0..8 {
            let mut disk = Failing { n_until_failure: n_steps, ..disk.clone() };
            let written = write_on(&mut disk, path, b"the new one");
            assert_eq!(written.is_ok(), n_steps >= 5, "{n_steps}");
            for found in disk.after_power_loss(path) {
                let is_new = found.as_deref() == Some(b"the new one");
                let is_old = found.as_deref() == Some(b"the old one");
                assert!(if written.is_ok() { is_new } else { is_new || is_old }, "{n_steps}: {found:?}");
            }
            // What it left is in nobody's way.
            disk.n_until_failure = 100;
            write_on(&mut disk, path, b"the next one").unwrap();
            assert!(
                disk.after_power_loss(path).iter().all(|found| found.as_deref() == Some(b"the next one"))
            );
        }
    }
}
