//! A file of an operator's data: one on this machine, or one that is fetched once and compared with its checksum.
//!
//! Written as a path, or as `{ url = "https://…", sha256 = "…" }`. Nothing that was fetched is used before its SHA-256 is
//! the stated one, at this start and at every later one. Blocking: call it from a thread that may block.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use barnraise_protocol::Sha256Hash;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::download::{DownloadError, download};
use crate::part;

/// Most bytes of a file that is fetched.
const FETCHED_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Bytes that are hashed in one call.
const PIECE_BYTES: usize = 64 * 1024;
/// Bytes at the beginning of a file by which it is known, where to read all of it would take too long.
const KNOWN_BY_BYTES: u64 = 1024 * 1024;
/// Longest name of a file in the cache.
const NAME_CHARS_MAX: usize = 100;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataFile {
    /// On this machine.
    Local(PathBuf),
    /// On a server.
    Fetched(Box<FetchedFile>),
}

/// A file on a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchedFile {
    /// Of HTTPS; HTTP is as good, since the content is known.
    pub url: Url,
    /// Of the file, as it is on the server.
    pub sha256: Sha256Hash,
}

/// Why a file cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DataFileError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The cache folder cannot be written.
    #[error("cache folder {}: {source}", folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The server.
    #[error("{url}: {source}")]
    Download {
        /// The address.
        url: String,
        /// What went wrong.
        source: DownloadError,
    },
    /// Another file than the stated one.
    #[error("{url}: SHA-256 is {got}, the configuration says {want}")]
    Hash {
        /// The address.
        url: String,
        /// From the configuration.
        want: Sha256Hash,
        /// Of what came.
        got: Sha256Hash,
    },
}

impl DataFile {
    /// Where the file is on this machine; fetches it into `cache` if it is not there.
    ///
    /// # Errors
    /// A server without the file, another file, a cache that cannot be written.
    pub fn local(&self, cache: &Path) -> Result<PathBuf, DataFileError> {
        match self {
            Self::Local(path) => Ok(path.clone()),
            Self::Fetched(fetched) => fetched.local(cache),
        }
    }

    /// Whether it is on this machine: nothing has to be fetched.
    pub fn is_here(&self, cache: &Path) -> bool {
        match self {
            Self::Local(_) => true,
            Self::Fetched(fetched) => fetched.path(cache).exists(),
        }
    }

    /// SHA-256 of its bytes: the stated one, or that of the file on this machine.
    ///
    /// # Errors
    /// [`DataFileError::Read`]
    pub fn hash(&self) -> Result<Sha256Hash, DataFileError> {
        match self {
            Self::Local(path) => hash_file(path),
            Self::Fetched(fetched) => Ok(fetched.sha256),
        }
    }

    /// Hash by which a file is known whose bytes are read while a run trains: the stated one, or that of the first bytes of
    /// the file on this machine.
    ///
    /// # Errors
    /// [`DataFileError::Read`]
    pub fn stream_hash(&self) -> Result<Sha256Hash, DataFileError> {
        match self {
            Self::Local(path) => hash_start(path, KNOWN_BY_BYTES),
            Self::Fetched(fetched) => Ok(fetched.sha256),
        }
    }

    /// Makes a relative path one that begins at `base`.
    pub fn take_from(&mut self, base: &Path) {
        if let Self::Local(path) = self {
            *path = base.join(&*path);
        }
    }

    /// Its name without folder and ending, for people.
    pub fn stem(&self) -> Option<String> {
        let name = match self {
            Self::Local(path) => path.clone(),
            Self::Fetched(fetched) => fetched.name().into(),
        };
        name.file_stem().map(|stem| stem.to_string_lossy().into_owned())
    }
}

impl From<PathBuf> for DataFile {
    fn from(path: PathBuf) -> Self {
        Self::Local(path)
    }
}

impl fmt::Display for DataFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
            Self::Fetched(fetched) => fetched.url.fmt(f),
        }
    }
}

impl FetchedFile {
    /// The last part of the address, without what is in no name of a file.
    fn name(&self) -> String {
        let last = self.url.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or_default();
        let known = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
        let name: String = last.chars().filter(known).take(NAME_CHARS_MAX).collect();
        if name.chars().all(|c| c == '.') { "file".to_owned() } else { name }
    }

    fn path(&self, cache: &Path) -> PathBuf {
        cache.join("files").join(self.sha256.to_string()).join(self.name())
    }

    fn local(&self, cache: &Path) -> Result<PathBuf, DataFileError> {
        let path = self.path(cache);
        if path.exists() {
            match hash_file(&path) {
                Ok(got) if got == self.sha256 => return Ok(path),
                _ => tracing::warn!(file = %path.display(), "a fetched file is damaged, fetching it again"),
            }
        }
        let folder = path.parent().unwrap_or(cache);
        let failed = |source| DataFileError::Cache { folder: folder.to_owned(), source };
        let part = part::beside(&path).map_err(failed)?;
        tracing::info!(url = %self.url, "fetching a file");
        self.fetch(part.path())?;
        part.persist(&path).map_err(|error| failed(error.error))?;
        Ok(path)
    }

    fn fetch(&self, part: &Path) -> Result<(), DataFileError> {
        let url = || self.url.to_string();
        let got = download(self.url.as_str(), part, FETCHED_BYTES_MAX)
            .map_err(|source| DataFileError::Download { url: url(), source })?;
        match got == self.sha256 {
            true => Ok(()),
            false => Err(DataFileError::Hash { url: url(), want: self.sha256, got }),
        }
    }
}

/// SHA-256 of a file, which is never in memory as a whole.
fn hash_file(path: &Path) -> Result<Sha256Hash, DataFileError> {
    hash_start(path, u64::MAX)
}

/// SHA-256 of the first bytes of a file.
fn hash_start(path: &Path, n_bytes: u64) -> Result<Sha256Hash, DataFileError> {
    let hashed = File::open(path).and_then(|file| {
        let mut file = file.take(n_bytes);
        let (mut hasher, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(Sha256Hash(hasher.finalize().into())),
                n_bytes => hasher.update(piece.get(..n_bytes).unwrap_or_default()),
            }
        }
    });
    hashed.map_err(|source| DataFileError::Read { path: path.to_owned(), source })
}

impl Serialize for DataFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Local(path) => path.serialize(serializer),
            Self::Fetched(fetched) => fetched.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for DataFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DataFileVisitor)
    }
}

struct DataFileVisitor;

impl<'de> Visitor<'de> for DataFileVisitor {
    type Value = DataFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, or { url = \"https://…\", sha256 = \"…\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<DataFile, E> {
        if is_address(text) {
            return Err(E::custom(format!(
                "an address is wanted with its checksum: {{ url = {text:?}, sha256 = \"…\" }}, which \
                 `curl -L ADDRESS | sha256sum` says"
            )));
        }
        Ok(DataFile::Local(text.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DataFile, A::Error> {
        let fetched = FetchedFile::deserialize(MapAccessDeserializer::new(map))?;
        match is_address(fetched.url.as_str()) && fetched.url.has_host() {
            true => Ok(DataFile::Fetched(fetched.into())),
            false => Err(de::Error::custom(format!("an address of HTTPS is wanted, not {}", fetched.url))),
        }
    }
}

fn is_address(text: &str) -> bool {
    ["https://", "http://"].iter().any(|scheme| text.starts_with(scheme))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::io::Write as _;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A server that answers every request with `body`; its address, and how often it was asked.
    fn serving(body: &'static [u8]) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let n_asked = Arc::new(AtomicUsize::new(0));
        let asked = Arc::clone(&n_asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                asked.fetch_add(1, Ordering::SeqCst);
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).unwrap();
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).unwrap();
            }
        });
        (address, n_asked)
    }

    fn fetched(url: &str, sha256: Sha256Hash) -> DataFile {
        DataFile::Fetched(Box::new(FetchedFile { url: url.parse().unwrap(), sha256 }))
    }

    #[test]
    fn a_file_is_fetched_once_and_again_when_it_is_damaged() {
        let (address, n_asked) = serving(b"a,b\n1,2\n");
        let cache = tempfile::tempdir().unwrap();
        let file = fetched(&format!("{address}/some/rows.csv?v=1"), Sha256Hash::of(b"a,b\n1,2\n"));
        assert!(!file.is_here(cache.path()));
        let path = file.local(cache.path()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"a,b\n1,2\n");
        assert_eq!(
            (path.file_name().unwrap().to_str(), file.stem().as_deref()),
            (Some("rows.csv"), Some("rows"))
        );
        assert!(file.is_here(cache.path()));
        assert_eq!(file.local(cache.path()).unwrap(), path);
        assert_eq!(n_asked.load(Ordering::SeqCst), 1);
        std::fs::write(&path, "a,b\n1,3\n").unwrap();
        file.local(cache.path()).unwrap();
        assert_eq!(
            (n_asked.load(Ordering::SeqCst), std::fs::read(&path).unwrap()),
            (2, b"a,b\n1,2\n".to_vec())
        );
    }

    #[test]
    fn another_file_is_refused_with_its_checksum_and_not_kept() {
        let (address, _) = serving(b"other");
        let cache = tempfile::tempdir().unwrap();
        let file = fetched(&address, Sha256Hash::of(b"wanted"));
        let error = file.local(cache.path()).unwrap_err().to_string();
        assert!(error.contains(&Sha256Hash::of(b"other").to_string()), "{error}");
        assert!(!file.is_here(cache.path()));
        let folder = cache.path().join("files").join(Sha256Hash::of(b"wanted").to_string());
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    }

    #[test]
    fn a_path_and_an_address_are_written_as_they_are_read() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct WithFile {
            file: DataFile,
        }
        let hash = Sha256Hash::of(b"");
        for text in [
            "file = \"rows.csv\"\n".to_owned(),
            format!("[file]\nurl = \"https://a.example/b.csv\"\nsha256 = \"{hash}\"\n"),
        ] {
            let section: WithFile = toml::from_str(&text).unwrap();
            assert_eq!(toml::to_string(&section).unwrap(), text);
        }
        let error = |text: &str| toml::from_str::<WithFile>(text).unwrap_err().to_string();
        let bare = error("file = \"https://a.example/b.csv\"");
        assert!(bare.contains("{ url = \"https://a.example/b.csv\", sha256 = \"…\" }"), "{bare}");
        assert!(error(&format!("file = {{ url = \"ftp://a\", sha256 = \"{hash}\" }}")).contains("of HTTPS"));
        assert!(error("file = { url = \"https://a\" }").contains("sha256"));
        assert!(error("file = { url = \"https://a\", sha256 = \"12\" }").contains("64 hexadecimal digits"));
    }
}
