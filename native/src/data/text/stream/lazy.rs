//! A file of text that is read piece by piece: plain text or JSON lines, each compressed by gzip or Zstandard or not, on
//! this machine or on a server.
//!
//! It is never in memory as a whole, and never on the disk. What a server sends is hashed as it comes, through connections
//! that break, and compared at the end: a pass over another file than the stated one ends with an error. After an error, and
//! after a restart, it is opened again where it was.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use barnraise_learning::tokenizer::pieces;
use barnraise_protocol::Sha256Hash;
use serde::{Deserialize, Serialize};

use super::super::encoding::DecodedStream;
use super::super::source::{SourceError, field_of_line, is_json_lines};
use crate::data::file::{DataFile, FetchedFile};
use crate::data::parquet;
use crate::data::resuming::{PATIENTLY, ResumingBody};
use crate::data::unpack;

/// Most bytes of a piece of plain text.
const PIECE_BYTES_MAX: usize = 32 * 1024;
/// Most bytes of a line of JSON.
const LINE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A part of a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextPiece {
    pub(super) text: String,
    /// Whether its document ends with it.
    pub(super) ends_document: bool,
}

/// Place in a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceCursor {
    /// Bytes before the line, after decompression; of plain text those before the next piece.
    n_bytes: u64,
    /// Lines before it.
    n_lines: u64,
    /// Pieces of the line that were read.
    n_pieces: u32,
}

type SourceContent = BufReader<Box<dyn Read + Send>>;

/// See the module.
pub(super) struct LazySource {
    file: DataFile,
    field: String,
    is_json_lines: bool,
    /// None before the first piece, and after an error.
    content: Option<SourceContent>,
    cursor: SourceCursor,
    /// Of JSON the pieces of the line that are left, and the length of the line.
    line: VecDeque<TextPiece>,
    line_bytes: u64,
    /// Of plain text what was read beyond the last piece.
    rest: Vec<u8>,
    /// What was read of this pass since the program started.
    decoded: DecodedStream,
}

impl LazySource {
    pub(super) fn new(file: DataFile, field: &str, cursor: SourceCursor) -> Self {
        let is_json_lines = match &file {
            DataFile::Local(path) => is_json_lines(path),
            DataFile::Fetched(fetched) => is_json_lines(Path::new(fetched.url.path())),
        };
        Self {
            file,
            field: field.to_owned(),
            is_json_lines,
            content: None,
            cursor,
            line: VecDeque::new(),
            line_bytes: 0,
            rest: Vec::new(),
            decoded: DecodedStream::default(),
        }
    }

    pub(super) fn cursor(&self) -> SourceCursor {
        self.cursor
    }

    /// Begins the next pass.
    pub(super) fn begin_again(&mut self) {
        let n_replaced = std::mem::take(&mut self.decoded).n_replaced();
        if n_replaced > 0 {
            let n_bytes = self.cursor.n_bytes;
            tracing::warn!(file = %self.file, n_replaced, n_bytes, "bytes that are no UTF-8 were replaced in this pass");
        }
        self.close();
        self.cursor = SourceCursor::default();
    }

    fn close(&mut self) {
        self.content = None;
        self.line.clear();
        self.rest.clear();
    }

    /// The next piece; none at the end.
    ///
    /// # Errors
    /// The file cannot be read, or is none of text. The next call opens it again where it was.
    pub(super) fn next(&mut self) -> Result<Option<TextPiece>, SourceError> {
        let decoded = self.decoded;
        let piece = match self.is_json_lines {
            true => self.next_of_lines(),
            false => self.next_of_text(),
        };
        if piece.is_err() {
            // What is read again is counted once.
            self.decoded = decoded;
            self.close();
        }
        piece
    }

    fn content(&mut self) -> Result<&mut SourceContent, SourceError> {
        let content = match self.content.take() {
            Some(content) => content,
            None => open(&self.file, self.cursor.n_bytes)?,
        };
        Ok(self.content.insert(content))
    }

    fn next_of_text(&mut self) -> Result<Option<TextPiece>, SourceError> {
        let n_here = self.rest.len();
        let mut bytes = std::mem::take(&mut self.rest);
        let content = self.content()?;
        content.take((PIECE_BYTES_MAX - n_here) as u64).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let end = if bytes.len() < PIECE_BYTES_MAX { bytes.len() } else { end_of_piece(&bytes) };
        self.rest = bytes.split_off(end);
        let text = self.decoded.decode(&bytes, self.cursor.n_bytes)?;
        self.cursor.n_bytes += end as u64;
        // The end of the file drops what is in no sequence: there is nothing to separate.
        Ok(Some(TextPiece { text, ends_document: false }))
    }

    fn next_of_lines(&mut self) -> Result<Option<TextPiece>, SourceError> {
        while self.line.is_empty() {
            let content = self.content()?;
            let mut bytes = Vec::new();
            content.take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            if bytes.len() as u64 > LINE_BYTES_MAX {
                return Err(SourceError::LongLine { line: self.cursor.n_lines + 1, max: LINE_BYTES_MAX });
            }
            self.line_bytes = bytes.len() as u64;
            let line = self.decoded.decode(&bytes, self.cursor.n_bytes)?;
            if line.trim().is_empty() {
                self.end_line();
                continue;
            }
            let number = usize::try_from(self.cursor.n_lines).unwrap_or(usize::MAX).saturating_add(1);
            let document = field_of_line(&line, number, &self.field)?;
            let mut all: VecDeque<TextPiece> = pieces(&document)
                .map(|piece| TextPiece { text: piece.to_owned(), ends_document: false })
                .collect();
            if let Some(last) = all.back_mut() {
                last.ends_document = true;
            }
            self.line = all.split_off((self.cursor.n_pieces as usize).min(all.len()));
            if self.line.is_empty() {
                self.end_line();
            }
        }
        let piece = self.line.pop_front();
        self.cursor.n_pieces += 1;
        if self.line.is_empty() {
            self.end_line();
        }
        Ok(piece)
    }

    fn end_line(&mut self) {
        self.cursor.n_bytes += self.line_bytes;
        self.cursor.n_lines += 1;
        self.cursor.n_pieces = 0;
    }
}

/// Before the last white space, or between two characters where there is none.
fn end_of_piece(bytes: &[u8]) -> usize {
    let space = bytes.iter().rposition(u8::is_ascii_whitespace).filter(|place| *place > 0);
    let is_start = |place: &usize| bytes.get(*place).is_some_and(|byte| byte & 0xc0 != 0x80);
    let character = || (1..bytes.len()).rev().find(is_start);
    space.or_else(character).unwrap_or(bytes.len())
}

/// The content after `n_bytes` of it.
fn open(file: &DataFile, n_bytes: u64) -> Result<SourceContent, SourceError> {
    let packed: Box<dyn Read + Send> = match file {
        DataFile::Local(path) => {
            let mut file = File::open(path)?;
            if !file.metadata()?.is_file() {
                return Err(SourceError::NoFile);
            }
            if !unpack::is_packed(&mut BufReader::new(&file))? {
                refuse_parquet(&mut file)?;
                file.seek(SeekFrom::Start(n_bytes))?;
                return Ok(BufReader::new(Box::new(file)));
            }
            file.seek(SeekFrom::Start(0))?;
            Box::new(file)
        }
        DataFile::Fetched(fetched) => Box::new(Hashed::open(fetched)?),
    };
    let mut content = BufReader::new(unpack::content(BufReader::new(packed))?);
    if content.fill_buf()?.starts_with(&parquet::MAGIC) {
        return Err(SourceError::StreamedParquet);
    }
    let n_skipped = io::copy(&mut content.by_ref().take(n_bytes), &mut io::sink())?;
    match n_skipped == n_bytes {
        true => Ok(content),
        false => Err(SourceError::Shorter { want: n_bytes, got: n_skipped }),
    }
}

fn refuse_parquet(file: &mut File) -> Result<(), SourceError> {
    file.seek(SeekFrom::Start(0))?;
    let mut magic = Vec::new();
    file.by_ref().take(parquet::MAGIC.len() as u64).read_to_end(&mut magic)?;
    match magic == parquet::MAGIC {
        true => Err(SourceError::StreamedParquet),
        false => Ok(()),
    }
}

/// What a server sends, which is compared at its end.
struct Hashed {
    body: ResumingBody,
    want: Sha256Hash,
}

impl Hashed {
    fn open(fetched: &FetchedFile) -> io::Result<Self> {
        tracing::info!(url = %fetched.url, "reading a source of the stream");
        let body = ResumingBody::open(fetched.url.as_str(), PATIENTLY).map_err(io::Error::other)?;
        Ok(Self { body, want: fetched.sha256 })
    }
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n_bytes = self.body.read(buffer)?;
        if n_bytes == 0 && !buffer.is_empty() {
            let (want, got) = (self.want, self.body.sha256());
            if got != want {
                return Err(io::Error::other(format!("its SHA-256 is {got}, the configuration says {want}")));
            }
        }
        Ok(n_bytes)
    }
}

#[cfg(test)]
mod tests;
