//! Pictures in an archive: ZIP, or tar, which may be compressed by gzip or Zstandard.
//!
//! The archive is read twice from front to back: for the names of the pictures, then for their contents. Nothing of it is
//! written to the disk, so that no name in it leads anywhere. What it says of itself is never trusted: entries, names, the
//! bytes of a picture and of all are bounded. Blocking: call it from a thread that may block.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use tar::EntryType;
use zip::ZipArchive;

use crate::data::unpack;

/// Most entries of an archive, those that are no pictures included.
const ENTRIES_MAX: usize = 2_000_000;
/// Longest name of an entry, with its folders, in bytes.
const NAME_BYTES_MAX: usize = 1024;
/// Most bytes of the file of a picture.
const PICTURE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most bytes of a tar file after decompression, and of all pictures of a ZIP file.
const UNPACKED_BYTES_MAX: u64 = 256 * 1024 * 1024 * 1024;
/// Most bytes of an extended header of a tar file, of which the path is used.
const EXTENSIONS_BYTES_MAX: u64 = 64 * 1024;
/// First bytes of a ZIP file; the second ones are of one without entries.
const ZIP_MAGIC: [[u8; 4]; 2] = [*b"PK\x03\x04", *b"PK\x05\x06"];

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PictureArchiveError {
    /// It breaks off, or it is none.
    #[error("a ZIP file or a tar file is wanted, whole; tar may be compressed by gzip or Zstandard: {0}")]
    Read(#[from] io::Error),
    /// The list of a ZIP file's entries.
    #[error("the list of its entries cannot be read: {0}")]
    Zip(#[from] zip::result::ZipError),
    /// More entries than are counted.
    #[error("it has more than {ENTRIES_MAX} entries")]
    Entries,
    /// A name that nobody gave.
    #[error("an entry has a name of more than {NAME_BYTES_MAX} bytes; it begins with {begin:?}")]
    Name {
        /// Its first characters.
        begin: String,
    },
    /// A bomb, perhaps.
    #[error("it unpacks to more than {UNPACKED_BYTES_MAX} bytes")]
    Unpacked,
}

/// Names of all entries that are files, with their folders, in the order of the archive.
pub(super) fn names(path: &Path) -> Result<Vec<String>, PictureArchiveError> {
    let mut names = Vec::new();
    if is_zip(path)? {
        let archive = open_zip(path)?;
        for name in (0..archive.len()).filter_map(|index| archive.name_for_index(index)) {
            check_name(name.as_bytes())?;
            if !name.ends_with('/') {
                names.push(name.to_owned());
            }
        }
    } else {
        walk_tar(path, UNPACKED_BYTES_MAX, |name, _| names.push(name))?;
    }
    Ok(names)
}

/// Gives each wanted file to `read`: its name and its content, or why that cannot be read.
pub(super) fn contents(
    path: &Path,
    is_wanted: impl Fn(&str) -> bool,
    mut read: impl FnMut(&str, io::Result<Vec<u8>>),
) -> Result<(), PictureArchiveError> {
    if !is_zip(path)? {
        return walk_tar(path, UNPACKED_BYTES_MAX, |name, content| {
            if is_wanted(&name) {
                read(&name, picture(content));
            }
        });
    }
    let mut archive = open_zip(path)?;
    let mut n_bytes = 0;
    for index in 0..archive.len() {
        let Some(name) = archive.name_for_index(index).map(str::to_owned) else { continue };
        if is_wanted(&name) {
            let content = archive.by_index(index).map_err(io::Error::other).and_then(picture);
            n_bytes += content.as_ref().map_or(0, |content| content.len() as u64);
            if n_bytes > UNPACKED_BYTES_MAX {
                return Err(PictureArchiveError::Unpacked);
            }
            read(&name, content);
        }
    }
    Ok(())
}

fn is_zip(path: &Path) -> io::Result<bool> {
    let mut begin = [0; 4];
    let mut file = File::open(path)?;
    Ok(match file.read_exact(&mut begin) {
        Ok(()) => ZIP_MAGIC.contains(&begin),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
        Err(error) => return Err(error),
    })
}

fn open_zip(path: &Path) -> Result<ZipArchive<BufReader<File>>, PictureArchiveError> {
    let archive = ZipArchive::new(BufReader::new(File::open(path)?))?;
    match archive.len() <= ENTRIES_MAX {
        true => Ok(archive),
        false => Err(PictureArchiveError::Entries),
    }
}

/// Gives each file of a tar file to `visit`. Its own long names are read here, bounded, in place of those of the library.
fn walk_tar(
    path: &Path,
    unpacked_bytes_max: u64,
    mut visit: impl FnMut(String, &mut dyn Read),
) -> Result<(), PictureArchiveError> {
    let mut archive = tar::Archive::new(unpack::open(path)?.take(unpacked_bytes_max));
    let walked = walk_entries(&mut archive, &mut visit);
    match archive.into_inner().limit() {
        0 => Err(PictureArchiveError::Unpacked),
        _ => walked,
    }
}

fn walk_entries(
    archive: &mut tar::Archive<impl Read>,
    visit: &mut impl FnMut(String, &mut dyn Read),
) -> Result<(), PictureArchiveError> {
    // What the entry before says of the name of the next one.
    let mut long_name: Option<Vec<u8>> = None;
    for (nth, entry) in archive.entries()?.raw(true).enumerate() {
        let mut entry = entry?;
        if nth >= ENTRIES_MAX {
            return Err(PictureArchiveError::Entries);
        }
        match entry.header().entry_type() {
            EntryType::GNULongName => {
                let mut name = Vec::new();
                (&mut entry).take(NAME_BYTES_MAX as u64 + 2).read_to_end(&mut name)?;
                while name.last() == Some(&0) {
                    name.pop();
                }
                long_name = Some(name);
            }
            EntryType::XHeader => {
                let extensions = unpack::read_bounded(&mut entry, EXTENSIONS_BYTES_MAX)?;
                let extensions =
                    extensions.ok_or_else(|| io::Error::other("an extended header is too long"))?;
                if let Some(name) = extended_name(&extensions) {
                    long_name = Some(name);
                }
            }
            EntryType::Regular | EntryType::Continuous => {
                let name = long_name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
                check_name(&name)?;
                visit(String::from_utf8_lossy(&name).into_owned(), &mut entry);
            }
            EntryType::XGlobalHeader | EntryType::GNULongLink => {}
            _ => long_name = None,
        }
    }
    Ok(())
}

/// The path in an extended header of POSIX.
fn extended_name(extensions: &[u8]) -> Option<Vec<u8>> {
    let mut extensions = tar::PaxExtensions::new(extensions).filter_map(Result::ok);
    extensions.find(|extension| extension.key_bytes() == b"path").map(|path| path.value_bytes().to_vec())
}

fn check_name(name: &[u8]) -> Result<(), PictureArchiveError> {
    match name.len() <= NAME_BYTES_MAX {
        true => Ok(()),
        false => {
            let begin = String::from_utf8_lossy(name).chars().take(40).collect();
            Err(PictureArchiveError::Name { begin })
        }
    }
}

fn picture(content: impl Read) -> io::Result<Vec<u8>> {
    let too_long = || io::Error::other(format!("the file has more than {PICTURE_BYTES_MAX} bytes"));
    unpack::read_bounded(content, PICTURE_BYTES_MAX)?.ok_or_else(too_long)
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
