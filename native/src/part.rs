//! Files and their names: one that several programs may use has its name only when it is whole.

use std::io::{self, Write as _};
use std::path::Path;

use tempfile::{Builder, NamedTempFile, TempDir};

/// How the names of what is not whole yet begin.
const PREFIX: &str = ".part-";

/// An empty file beside `path`, in a folder that is made where it is missing. It has a name that no other program uses, and goes
/// away unless [`NamedTempFile::persist`] gives it that of `path`.
pub(crate) fn beside(path: &Path) -> io::Result<NamedTempFile> {
    Builder::new().prefix(PREFIX).tempfile_in(folder_of(path)?)
}

/// The same of a folder, which goes away unless [`persist_folder`] gives it the name of `path`.
pub(crate) fn folder_beside(path: &Path) -> io::Result<TempDir> {
    Builder::new().prefix(PREFIX).tempdir_in(folder_of(path)?)
}

/// Gives a folder its name.
pub(crate) fn persist_folder(part: TempDir, path: &Path) -> io::Result<()> {
    std::fs::rename(part.path(), path)?;
    // Nothing has the name any more under which it would be deleted.
    let _ = part.keep();
    Ok(())
}

/// The folder of `path`, which is made where it is missing.
fn folder_of(path: &Path) -> io::Result<&Path> {
    let folder = path.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(folder)?;
    Ok(folder)
}

/// Writes `path`, all or nothing.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut part = beside(path)?;
    part.write_all(bytes)?;
    part.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<std::ffi::OsString> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        let mut part = beside(&path).unwrap();
        part.write_all(b"thr").unwrap();
        drop(part);
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(names(path.parent().unwrap()), ["file"]);
        // A folder is in its place.
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        assert!(write(&taken, b"one").is_err());
        assert_eq!(names(folder.path()).len(), 2);
    }

    #[test]
    fn a_folder_has_its_name_when_it_is_whole_and_is_gone_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/folder");
        let part = folder_beside(&path).unwrap();
        std::fs::write(part.path().join("file"), "one").unwrap();
        persist_folder(part, &path).unwrap();
        assert_eq!(names(&path), ["file"]);
        let other = folder_beside(&path).unwrap();
        std::fs::write(other.path().join("other"), "two").unwrap();
        // Another folder has the name.
        assert!(persist_folder(other, &path).is_err());
        drop(folder_beside(&path).unwrap());
        assert_eq!(
            (names(path.parent().unwrap()), names(&path)),
            (vec!["folder".into()], vec!["file".into()])
        );
    }
}
