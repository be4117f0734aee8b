//! One file over HTTP(S), with a progress bar, written beside its place and renamed into it. A connection that breaks is
//! followed by another one for the rest.
//!
//! Blocking: call it from a thread that may block. It never leaves an incomplete file under the final name,
//! and never reads more than the given limit.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use barnraise_protocol::Sha256Hash;
use indicatif::{ProgressBar, ProgressStyle};

use super::resuming::{AT_ONCE, ResumingBody};

/// Why a file could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The server could not be reached, or refused.
    #[error("{0}")]
    Http(#[from] Box<ureq::Error>),
    /// It broke off, or sent more than the file can have.
    #[error("{source}, after {n_bytes} bytes of at most {bytes_max}")]
    Read {
        /// What went wrong.
        source: io::Error,
        /// What had come.
        n_bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The disk.
    #[error("{path}: {source}")]
    Write {
        /// The file.
        path: String,
        /// What went wrong.
        source: io::Error,
    },
}

/// Fetches `url` into a new file at `path`, which must not be the final name. Returns its SHA-256. Errors do not repeat the URL.
///
/// # Errors
/// After an error `path` may hold a part of the file.
pub fn download(url: &str, path: &Path, bytes_max: u64) -> Result<Sha256Hash, DownloadError> {
    let mut body = ResumingBody::open(url, AT_ONCE)?;
    let bar = progress_bar(url, body.length());
    let copied = copy(&mut body, path, bytes_max, &bar);
    bar.finish_and_clear();
    copied.map(|()| body.sha256())
}

fn copy(reader: &mut impl Read, path: &Path, bytes_max: u64, bar: &ProgressBar) -> Result<(), DownloadError> {
    let write = |source| DownloadError::Write { path: path.display().to_string(), source };
    let mut file = File::create(path).map_err(write)?;
    let mut buffer = vec![0; 64 * 1024];
    let mut n_bytes = 0;
    let read = |source, n_bytes| DownloadError::Read { source, n_bytes, bytes_max };
    loop {
        let n = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(read(error, n_bytes)),
        };
        n_bytes += n as u64;
        if n_bytes > bytes_max {
            return Err(read(io::Error::other("the file is too long"), n_bytes));
        }
        file.write_all(buffer.get(..n).unwrap_or_default()).map_err(write)?;
        bar.set_position(n_bytes);
    }
    file.sync_all().map_err(write)
}

/// Draws on a terminal only; a log file gets the lines around it instead.
fn progress_bar(url: &str, n_bytes: Option<u64>) -> ProgressBar {
    let name = url.rsplit('/').next().unwrap_or(url).to_owned();
    let bar = match n_bytes {
        Some(n_bytes) => ProgressBar::new(n_bytes),
        None => ProgressBar::no_length(),
    };
    let template = "{msg} [{bar:30}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_message(name)
}
