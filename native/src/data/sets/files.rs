//! The files of a named data set, from the first place that has them whole.
//!
//! Places are the operator's folder alone where one is named; else folders of this system, the cache, hosts that have each
//! file, and archives that have all of them. A file from any place is used only if, after decompression, its length and
//! SHA-256 are the known ones: the headers of gzip differ between places, the content does not.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::archive::{Archive, ArchiveError};
use super::spec::{FileError, FileSpec, checked};
use crate::data::download::download;
use crate::data::unpack;
use crate::part;

/// Bytes that a gzip stream may have beyond its content: far more than gzip ever adds.
const GZIP_OVERHEAD_MAX: u64 = 1024 * 1024;

/// Places to look for the files of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// The operator's folder, which excludes all other places.
    pub named: Option<PathBuf>,
    /// Folders that hold the files, compressed or not; never written to.
    pub folders: Vec<PathBuf>,
    /// Where downloads are kept.
    pub cache: PathBuf,
    /// Hosts, without the slash before the file's name.
    pub base_urls: Vec<String>,
    /// Whether hosts have the files with `.gz` behind their names.
    pub are_packed: bool,
    /// Where no host has a file.
    pub archives: Vec<Archive>,
}

/// Why the files of a data set cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// No place had the file undamaged.
    #[error("{file} could not be had:{}", attempts.iter().map(|a| format!("\n  {a}")).collect::<String>())]
    Unavailable {
        /// Its name.
        file: String,
        /// Each place that was tried, with its error.
        attempts: Vec<String>,
    },
    /// The folder that the operator named does not have it.
    #[error(
        "data.folder = {}: {file} {reason}. All files of the set are wanted there, compressed or not; without \
         data.folder they are fetched",
        folder.display()
    )]
    Named {
        /// The folder.
        folder: PathBuf,
        /// The file's name, without `.gz`.
        file: String,
        /// What is wrong with it.
        reason: NamedFileError,
    },
    /// The cache folder cannot be written.
    #[error("cache folder {}: {source}", folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// What is wrong with a file in the operator's folder.
#[derive(Debug, thiserror::Error)]
pub enum NamedFileError {
    /// There is none of its name.
    #[error("is not there")]
    Missing,
    /// It is another one.
    #[error("is another one: {0}")]
    Other(FileError),
}

impl Sources {
    /// The content of all files, whole and checked, in the order of `specs`.
    ///
    /// # Errors
    /// A file that no place has.
    pub fn load(&self, specs: &[FileSpec]) -> Result<Vec<Vec<u8>>, FilesError> {
        specs.iter().map(|spec| self.load_file(spec, specs)).collect()
    }

    fn load_file(&self, spec: &FileSpec, all: &[FileSpec]) -> Result<Vec<u8>, FilesError> {
        let packed = format!("{}.gz", spec.name);
        if let Some(folder) = &self.named {
            return read_named(folder, &packed, spec);
        }
        let mut attempts = Vec::new();
        let folders = self.folders.iter().chain([&self.cache]);
        let installed = folders.flat_map(|folder| [folder.join(&packed), folder.join(&spec.name)]);
        for path in installed.filter(|path| path.exists()) {
            match read_checked(&path, spec) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "broken data file, fetching it again");
                    attempts.push(format!("{}: {error}", path.display()));
                }
            }
        }
        let part = |name: &str| {
            let cache = |source| FilesError::Cache { folder: self.cache.clone(), source };
            part::beside(&self.cache.join(name)).map_err(cache)
        };
        let name = if self.are_packed { &packed } else { &spec.name };
        for base_url in &self.base_urls {
            let url = format!("{base_url}/{name}");
            match self.fetch(&url, part(name)?, (name, spec)) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => {
                    tracing::warn!(%url, %error, "data file could not be fetched");
                    attempts.push(format!("{url}: {error}"));
                }
            }
        }
        for archive in &self.archives {
            match self.unpack(archive, part("archive")?, (spec, all)) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => {
                    tracing::warn!(url = archive.url, %error, "data files could not be fetched");
                    attempts.push(format!("{}: {error}", archive.url));
                }
            }
        }
        Err(FilesError::Unavailable { file: spec.name.clone(), attempts })
    }

    /// Downloads a file into `part`, checks it, and only then gives it its name in the cache.
    fn fetch(
        &self,
        url: &str,
        part: NamedTempFile,
        (name, spec): (&str, &FileSpec),
    ) -> Result<Vec<u8>, FileError> {
        tracing::info!(%url, "fetching data file");
        download(url, part.path(), spec.n_bytes + GZIP_OVERHEAD_MAX)?;
        let bytes = read_checked(part.path(), spec)?;
        part.persist(self.cache.join(name)).map_err(io::Error::from)?;
        Ok(bytes)
    }

    /// Downloads an archive into `part`, keeps those of its files that are the known ones, and gives the wanted one.
    fn unpack(
        &self,
        archive: &Archive,
        part: NamedTempFile,
        (wanted, all): (&FileSpec, &[FileSpec]),
    ) -> Result<Vec<u8>, ArchiveError> {
        tracing::info!(url = archive.url, "fetching data files");
        let unpacked = archive.fetch(part.path(), all);
        drop(part);
        let mut found = Err(ArchiveError::Missing { file: wanted.name.clone() });
        for (name, content) in unpacked? {
            let Some(spec) = all.iter().find(|spec| spec.name == name) else { continue };
            let checked =
                checked(content, spec).map_err(|source| ArchiveError::File { file: name.clone(), source });
            if let Ok(content) = &checked {
                part::write(&self.cache.join(&name), content)?;
            }
            if name == wanted.name {
                found = checked;
            }
        }
        found
    }
}

/// The content of one file of the operator's folder.
fn read_named(folder: &Path, packed: &str, spec: &FileSpec) -> Result<Vec<u8>, FilesError> {
    let named = |reason| FilesError::Named { folder: folder.to_owned(), file: spec.name.clone(), reason };
    let there = [folder.join(packed), folder.join(&spec.name)].into_iter().find(|path| path.exists());
    let path = there.ok_or_else(|| named(NamedFileError::Missing))?;
    read_checked(&path, spec).map_err(|error| named(NamedFileError::Other(error)))
}

/// Reads at most one byte more than the file should have.
fn read_checked(path: &Path, spec: &FileSpec) -> Result<Vec<u8>, FileError> {
    let content = unpack::content(BufReader::new(File::open(path)?))?;
    let bytes = unpack::read_bounded(content, spec.n_bytes)?;
    checked(bytes.ok_or(FileError::Length { want: spec.n_bytes, got: spec.n_bytes + 1 })?, spec)
}
