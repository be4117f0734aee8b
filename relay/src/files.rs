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
    let temporary = with_suffix(path, ".new");
    // A leftover of a crash between the two steps below may stand in the way.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(contents)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&temporary, path)?;
    sync_parent(path)
}

/// Makes an empty file at `path` unless there is one, whatever the umask is: mode 0600. One that is there, and others
/// may read, is theirs no longer; `beside` are endings of files that a program makes next to it.
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

/// Elsewhere files are their owner's by what their folder says.
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
