//! Pictures in an archive: ZIP, or tar, which may be compressed by gzip or Zstandard.
//!
//! The archive is read twice from front to back: for the names of the pictures, then for their contents. Nothing of it is
//! written to the disk, so that no name in it leads anywhere; a hard link is another name of a file before it. What it says of
//! itself is never trusted: entries, names, the bytes of a picture and of all are bounded. Blocking: call it from a thread that
//! may block.

use std::collections::BTreeMap;
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

/// What an archive has, in its order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ArchiveListing {
    /// Names of files, with their folders, and the number of the content that each has. Hard links have that of another file.
    pub(super) files: Vec<(String, usize)>,
    /// Names that lead to no file of the archive, and why.
    pub(super) links: Vec<(String, UnusableLink)>,
}

/// Why a link has no content.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnusableLink {
    /// Its file lies in another archive, or behind it.
    #[error("it is a hard link to {target:?}, which is not before it in the archive")]
    Missing { target: String },
    /// Its file may be anywhere.
    #[error("it is a symbolic link to {target:?}: `tar --dereference` packs what it leads to")]
    Symbolic { target: String },
}

/// An entry of a tar file.
enum TarEntry<'a> {
    File(&'a mut dyn Read),
    HardLink { target: String },
    SymbolicLink { target: String },
}

/// Lists all entries that are files or links.
pub(super) fn list(path: &Path) -> Result<ArchiveListing, PictureArchiveError> {
    let mut listing = ArchiveListing::default();
    if is_zip(path)? {
        let archive = open_zip(path)?;
        for index in 0..archive.len() {
            let Some(name) = archive.name_for_index(index) else { continue };
            check_name(name.as_bytes())?;
            if !name.ends_with('/') {
                listing.files.push((name.to_owned(), index));
            }
        }
        return Ok(listing);
    }
    // The content that a name has so far: a later entry of the same name takes the place of an earlier one.
    let (mut of_name, mut n_contents): (BTreeMap<String, usize>, usize) = (BTreeMap::new(), 0);
    walk_tar(path, UNPACKED_BYTES_MAX, |name, entry| {
        let content = match entry {
            TarEntry::File(_) => {
                n_contents += 1;
                Ok(n_contents - 1)
            }
            TarEntry::HardLink { target } => {
                of_name.get(plain(&target)).copied().ok_or(UnusableLink::Missing { target })
            }
            TarEntry::SymbolicLink { target } => Err(UnusableLink::Symbolic { target }),
        };
        match content {
            Ok(content) => {
                of_name.insert(plain(&name).to_owned(), content);
                listing.files.push((name, content));
            }
            Err(error) => listing.links.push((name, error)),
        }
    })?;
    Ok(listing)
}

/// Gives each wanted content to `read`: its number, and its bytes, or why they cannot be read.
pub(super) fn contents(
    path: &Path,
    is_wanted: impl Fn(usize) -> bool,
    mut read: impl FnMut(usize, io::Result<Vec<u8>>),
) -> Result<(), PictureArchiveError> {
    if !is_zip(path)? {
        let mut n_contents = 0;
        return walk_tar(path, UNPACKED_BYTES_MAX, |_, entry| {
            let TarEntry::File(content) = entry else { return };
            if is_wanted(n_contents) {
                read(n_contents, picture(content));
            }
            n_contents += 1;
        });
    }
    let mut archive = open_zip(path)?;
    let mut n_bytes = 0;
    for index in (0..archive.len()).filter(|index| is_wanted(*index)) {
        let content = archive.by_index(index).map_err(io::Error::other).and_then(picture);
        n_bytes += content.as_ref().map_or(0, |content| content.len() as u64);
        if n_bytes > UNPACKED_BYTES_MAX {
            return Err(PictureArchiveError::Unpacked);
        }
        read(index, content);
    }
    Ok(())
}

/// A name as it may be written elsewhere in the archive.
fn plain(name: &str) -> &str {
    name.trim_start_matches("./")
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

/// Gives each file and each link of a tar file to `visit`. Its own long names are read here, bounded, in place of those of the
/// library.
fn walk_tar(
    path: &Path,
    unpacked_bytes_max: u64,
    mut visit: impl FnMut(String, TarEntry<'_>),
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
    visit: &mut impl FnMut(String, TarEntry<'_>),
) -> Result<(), PictureArchiveError> {
    // What the entries before say of the name of the next one, and of where it leads.
    let (mut long_name, mut long_target): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
    for (nth, entry) in archive.entries()?.raw(true).enumerate() {
        let mut entry = entry?;
        if nth >= ENTRIES_MAX {
            return Err(PictureArchiveError::Entries);
        }
        match entry.header().entry_type() {
            EntryType::GNULongName => long_name = Some(gnu_name(&mut entry)?),
            EntryType::GNULongLink => long_target = Some(gnu_name(&mut entry)?),
            EntryType::XHeader => {
                let extensions = unpack::read_bounded(&mut entry, EXTENSIONS_BYTES_MAX)?;
                let extensions =
                    extensions.ok_or_else(|| io::Error::other("an extended header is too long"))?;
                long_name = extension(&extensions, b"path").or(long_name);
                long_target = extension(&extensions, b"linkpath").or(long_target);
            }
            EntryType::Regular | EntryType::Continuous => {
                let name = long_name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
                long_target = None;
                visit(checked_name(&name)?, TarEntry::File(&mut entry));
            }
            kind @ (EntryType::Link | EntryType::Symlink) => {
                let name = long_name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
                let short = || entry.link_name_bytes().unwrap_or_default().into_owned();
                let target = checked_name(&long_target.take().unwrap_or_else(short))?;
                let link = match kind {
                    EntryType::Link => TarEntry::HardLink { target },
                    _ => TarEntry::SymbolicLink { target },
                };
                visit(checked_name(&name)?, link);
            }
            EntryType::XGlobalHeader => {}
            _ => (long_name, long_target) = (None, None),
        }
    }
    Ok(())
}

/// The content of an entry that is a name of the next one.
fn gnu_name(entry: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut name = Vec::new();
    entry.take(NAME_BYTES_MAX as u64 + 2).read_to_end(&mut name)?;
    while name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

/// A value in an extended header of POSIX.
fn extension(extensions: &[u8], key: &[u8]) -> Option<Vec<u8>> {
    let mut extensions = tar::PaxExtensions::new(extensions).filter_map(Result::ok);
    extensions.find(|extension| extension.key_bytes() == key).map(|value| value.value_bytes().to_vec())
}

fn checked_name(name: &[u8]) -> Result<String, PictureArchiveError> {
    check_name(name)?;
    Ok(String::from_utf8_lossy(name).into_owned())
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
