//! The bytes of a file on a server, through connections that break.
//!
//! After a break the server is asked for the rest of the file, if it is the same one (`Range` and `If-Range`, RFC 9110 §13.1.5
//! and §14.2). Where it sends the file from its beginning, what had come is read once more and has to be the same. Each byte
//! is given once, and hashed. Blocking: call it from a thread that may block.

use std::io::{self, Read};
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use sha2::{Digest as _, Sha256};
use ureq::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use ureq::{Agent, Body, BodyReader};

use crate::http_agent::{Patience, agent};

/// A connection on which nothing comes for so long is broken.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Bytes that are read once more in one call.
const PIECE_BYTES: usize = 64 * 1024;
/// Status of a server whose file ends before the range.
const RANGE_NOT_SATISFIABLE: u16 = 416;

/// Pauses before a server is asked again, as long as no new byte comes: for a file that somebody waits for.
pub(super) const AT_ONCE: &[Duration] = &[Duration::ZERO];
/// The same for a file that is read for days, whose server may start anew: eight minutes in all.
pub(super) const PATIENTLY: &[Duration] = &[
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
    Duration::from_secs(120),
    Duration::from_secs(270),
];

/// See the module.
pub(super) struct ResumingBody {
    url: String,
    agent: Agent,
    pauses: &'static [Duration],
    /// None between a break and the next answer.
    body: Option<BodyReader<'static>>,
    file: ServerFile,
    /// Bytes that were given, and their hash.
    n_bytes: u64,
    hasher: Sha256,
    /// Times that the server was asked since the last new byte.
    n_asked: usize,
}

/// What a server says of a file.
struct ServerFile {
    /// Of no other content of its address.
    validator: Option<HeaderValue>,
    n_bytes: Option<u64>,
}

/// Why a file does not go on.
#[derive(Debug, thiserror::Error)]
enum ResumeError {
    /// The connection is broken once more.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// Going on would mix two files.
    #[error(
        "the server has another file than before: its first {n_bytes} bytes differ from those that had come"
    )]
    Changed { n_bytes: u64 },
}

impl ResumingBody {
    /// Asks for the file.
    ///
    /// # Errors
    /// A server that cannot be reached, or refuses.
    pub(super) fn open(url: &str, pauses: &'static [Duration]) -> Result<Self, Box<ureq::Error>> {
        let agent = agent(Patience::Silence(SILENCE_MAX));
        let (file, body) = whole(agent.get(url).call().map_err(Box::new)?);
        let (url, hasher) = (url.to_owned(), Sha256::new());
        Ok(Self { url, agent, pauses, body: Some(body), file, n_bytes: 0, hasher, n_asked: 0 })
    }

    /// Length of the file, where the server says it.
    pub(super) fn length(&self) -> Option<u64> {
        self.file.n_bytes
    }

    /// SHA-256 of all bytes that were given.
    pub(super) fn sha256(&self) -> Sha256Hash {
        Sha256Hash(self.hasher.clone().finalize().into())
    }

    /// After a break: the body goes on behind the last byte that was given.
    fn resume(&mut self, broken: io::Error) -> io::Result<()> {
        let mut last = broken;
        while let Some(pause) = self.pauses.get(self.n_asked) {
            self.n_asked += 1;
            let (url, n_bytes) = (&self.url, self.n_bytes);
            tracing::warn!(%url, n_bytes, error = %last, "a connection broke, asking for the rest");
            std::thread::sleep(*pause);
            match self.rest() {
                Ok(body) => {
                    self.body = Some(body);
                    return Ok(());
                }
                Err(ResumeError::Broken(error)) => last = error,
                Err(changed @ ResumeError::Changed { .. }) => return Err(io::Error::other(changed)),
            }
        }
        Err(last)
    }

    /// Asks for what has not come yet.
    fn rest(&mut self) -> Result<BodyReader<'static>, ResumeError> {
        let request = || self.agent.get(self.url.as_str());
        if let Some(validator) = &self.file.validator {
            let range = format!("bytes={}-", self.n_bytes);
            let request = request().header(header::RANGE, range).header(header::IF_RANGE, validator.clone());
            match request.call() {
                Ok(answer) if answer.status() != StatusCode::PARTIAL_CONTENT => return self.again(answer),
                Ok(answer) if self.is_rest(answer.headers()) => return Ok(whole(answer).1),
                // A range that was not asked for, or that the server does not know.
                Ok(_) | Err(ureq::Error::StatusCode(RANGE_NOT_SATISFIABLE)) => {}
                Err(error) => return Err(broken(error)),
            }
        }
        let answer = request().call().map_err(broken)?;
        self.again(answer)
    }

    /// Whether a partial answer goes on with the same file behind the last byte.
    fn is_rest(&self, headers: &HeaderMap) -> bool {
        let range = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let begin =
            range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse::<u64>().ok());
        begin == Some(self.n_bytes) && validator(headers).is_none_or(|now| Some(now) == self.file.validator)
    }

    /// Reads once more what had come, of a file that is sent from its beginning.
    fn again(&mut self, answer: Response<Body>) -> Result<BodyReader<'static>, ResumeError> {
        let (file, mut body) = whole(answer);
        let (mut hasher, mut piece, mut n_left) = (Sha256::new(), vec![0; PIECE_BYTES], self.n_bytes);
        while n_left > 0 {
            let n_wanted = n_left.min(PIECE_BYTES as u64) as usize;
            let n_read = match body.read(piece.get_mut(..n_wanted).unwrap_or_default())? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                n_read => n_read,
            };
            hasher.update(piece.get(..n_read).unwrap_or_default());
            n_left -= n_read as u64;
        }
        if Sha256Hash(hasher.finalize().into()) != self.sha256() {
            return Err(ResumeError::Changed { n_bytes: self.n_bytes });
        }
        self.file = file;
        Ok(body)
    }
}

impl Read for ResumingBody {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let read = match &mut self.body {
                Some(body) => body.read(buffer),
                None => Err(io::Error::from(io::ErrorKind::NotConnected)),
            };
            let broken = match read {
                Ok(0) if self.file.n_bytes.is_none_or(|length| self.n_bytes >= length) => return Ok(0),
                Ok(0) => io::Error::from(io::ErrorKind::UnexpectedEof),
                Ok(n_read) => {
                    self.hasher.update(buffer.get(..n_read).unwrap_or_default());
                    self.n_bytes += n_read as u64;
                    self.n_asked = 0;
                    return Ok(n_read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.body = None;
            self.resume(broken)?;
        }
    }
}

/// What an answer says of its file, and its body.
fn whole(answer: Response<Body>) -> (ServerFile, BodyReader<'static>) {
    let validator = validator(answer.headers());
    let body = answer.into_body();
    (ServerFile { validator, n_bytes: body.content_length() }, body.into_reader())
}

/// What `If-Range` takes: a strong entity tag, or else a date.
fn validator(headers: &HeaderMap) -> Option<HeaderValue> {
    let tag = headers.get(header::ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"));
    tag.or_else(|| headers.get(header::LAST_MODIFIED)).cloned()
}

fn broken(error: ureq::Error) -> ResumeError {
    ResumeError::Broken(error.into_io())
}

#[cfg(test)]
pub(super) mod tests;
