//! Documents from one file: plain text, JSON lines, each compressed by gzip or Zstandard or not, or a column of Parquet.
//!
//! The format follows from the first bytes where they are distinctive, else from the name. Never more is read than
//! allowed, also after decompression.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use parquet::file::reader::ChunkReader;

use super::encoding::{DecodedFile, EncodingError, decode};
use crate::data::file::DataFileError;
use crate::data::parquet::{self as parquet_file, ParquetFile, ParquetFileError, Value};
use crate::data::unpack;

/// Most bytes of text of all sources together.
pub(super) const TEXT_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// What a document counts as, at least.
const DOCUMENT_BYTES_MIN: usize = 24;

/// Why a file cannot be read as text.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be had.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// It cannot be read or decompressed.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// The file is empty.
    #[error("there is no text in it")]
    Empty,
    /// The file has more text than allowed.
    #[error("more than {max} bytes of text, in this file and those before it")]
    TooLong {
        /// Limit for this file, in bytes.
        max: u64,
    },
    /// The file is not UTF-8 text.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
    /// A line that is no JSON object with the field.
    #[error("line {line}: an object with a text named {field:?} is wanted, {got}")]
    Line {
        /// From 1.
        line: usize,
        /// Name of the field.
        field: String,
        /// What the line has instead.
        got: String,
    },
    /// A line that is not read into memory.
    #[error("line {line} has more than {max} bytes")]
    LongLine {
        /// From 1.
        line: u64,
        /// Limit in bytes.
        max: u64,
    },
    /// A stream of something that is not there again after a restart.
    #[error("a stream reads a file or an address; this is another thing, which cannot be read a second time")]
    NoFile,
    /// A stream of Parquet.
    #[error("a stream reads plain text and JSON lines; Parquet is read without [data.text.stream]")]
    StreamedParquet,
    /// A file that has become shorter than it was.
    #[error("the stream was at byte {want} of it, and it has {got}: it is another file than before")]
    Shorter {
        /// Where the stream was.
        want: u64,
        /// Its length.
        got: u64,
    },
    /// A Parquet file without the column.
    #[error("it has no column {want:?} of text, but {}", got.join(", "))]
    Column {
        /// Name of the column.
        want: String,
        /// Its columns.
        got: Vec<String>,
    },
    /// A Parquet file that is damaged or not supported.
    #[error("{0}")]
    Parquet(#[from] ParquetFileError),
}

/// The documents of a file, of at most `bytes_max` bytes in total.
pub(super) fn read(path: &Path, field: &str, bytes_max: u64) -> Result<Vec<String>, SourceError> {
    let mut file = BufReader::new(File::open(path)?);
    let documents = if file.fill_buf()?.starts_with(&parquet_file::MAGIC) {
        parquet_column(file.into_inner(), field, bytes_max)?
    } else {
        let bytes = unpack::read_bounded(unpack::content(file)?, bytes_max)?;
        let text = decode(&bytes.ok_or(SourceError::TooLong { max: bytes_max })?)?;
        match is_json_lines(path) {
            true => json_lines(&text, field)?,
            false => vec![text],
        }
    };
    match documents.iter().all(|document| document.trim().is_empty()) {
        true => Err(SourceError::Empty),
        false => Ok(documents),
    }
}

/// The values of column `name`, of at most `bytes_max` bytes in total, without null values.
pub(super) fn parquet_column<R: ChunkReader + 'static>(
    file: R,
    name: &str,
    bytes_max: u64,
) -> Result<Vec<String>, SourceError> {
    let file = ParquetFile::open(file)?;
    let names = file.names();
    let column = names.iter().position(|known| known == name).filter(|&column| file.is_text(column));
    let column = column.ok_or_else(|| SourceError::Column { want: name.into(), got: names })?;
    let (mut documents, mut decoded, mut bytes_left) = (Vec::new(), DecodedFile::default(), bytes_max);
    for (group, n_rows) in file.groups()?.into_iter().enumerate() {
        let mut values = file.column(group, column)?;
        for _ in 0..n_rows {
            let document = match values.next()? {
                Value::Bytes(bytes) => Some(bytes),
                _ => None,
            };
            // An empty document takes memory, and a missing one time.
            let n_bytes = document.as_ref().map_or(1, |bytes| bytes.len().max(DOCUMENT_BYTES_MIN));
            let left = bytes_left.checked_sub(n_bytes as u64);
            bytes_left = left.ok_or(SourceError::TooLong { max: bytes_max })?;
            documents.extend(document.map(|bytes| decoded.decode(&bytes)));
            decoded.check_within(bytes_max)?;
        }
    }
    decoded.check()?;
    Ok(documents)
}

/// `x.jsonl`, `x.ndjson`, and both compressed.
pub(super) fn is_json_lines(path: &Path) -> bool {
    let name = unpack::unpacked_name(path);
    name.ends_with(".jsonl") || name.ends_with(".ndjson")
}

pub(super) fn json_lines(text: &str, field: &str) -> Result<Vec<String>, SourceError> {
    let mut documents = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        documents.push(field_of_line(line, index + 1, field)?);
    }
    Ok(documents)
}

/// The text named `field` of a line, whose number counts from 1.
pub(super) fn field_of_line(line: &str, number: usize, field: &str) -> Result<String, SourceError> {
    let wrong = |got| SourceError::Line { line: number, field: field.into(), got };
    let mut value: serde_json::Value =
        serde_json::from_str(line).map_err(|error| wrong(format!("it is no JSON: {error}")))?;
    match value.get_mut(field).map(serde_json::Value::take) {
        Some(serde_json::Value::String(text)) => Ok(text),
        Some(_) => Err(wrong("that is no text".into())),
        None => Err(wrong("it has none".into())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// Written by pyarrow: columns `id` and `text`, a dictionary, nulls, Snappy, two row groups.
    const DICTIONARY: &[u8] = include_bytes!("fixtures/dictionary.parquet");
    /// Written by pyarrow: the same column, required, plain, gzip, data pages of version 2.
    const PLAIN: &[u8] = include_bytes!("fixtures/plain.parquet");

    fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn read_as(name: &str, bytes: &[u8]) -> Result<Vec<String>, SourceError> {
        let (_folder, path) = file(name, bytes);
        read(&path, "text", 10_000)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn each_kind_of_file_gives_its_documents() {
        let text = "Humpty Dumpty sat on a wäll.\n";
        assert_eq!(read_as("a.txt", text.as_bytes()).unwrap(), [text]);
        assert_eq!(read_as("a.dict.dz", &gzip(text.as_bytes())).unwrap(), [text]);
        let twice = [gzip(b"one "), gzip(b"two")].concat();
        assert_eq!(read_as("a.gz", &twice).unwrap(), ["one two"]);
        let lines = b"{\"text\": \"one\"}\n\n{\"n\": 1, \"text\": \"t\\u0077o\"}\n";
        assert_eq!(read_as("a.jsonl", lines).unwrap(), ["one", "two"]);
        assert_eq!(read_as("a.ndjson.gz", &gzip(lines)).unwrap(), ["one", "two"]);
        let zstd = compress_to_vec(&lines[..], CompressionLevel::Fastest);
        assert_eq!(read_as("a.jsonl.zst", &zstd).unwrap(), ["one", "two"]);
    }

    #[test]
    fn parquet_is_read_as_another_program_wrote_it() {
        let want: Vec<String> = (0..30).map(|n| format!("Sentence {} of a set.", n % 7)).collect();
        assert_eq!(read_as("a.parquet", PLAIN).unwrap(), want);
        let some: Vec<&String> =
            want.iter().enumerate().filter(|(n, _)| n % 5 != 0).map(|(_, s)| s).collect();
        assert_eq!(read_as("named-otherwise", DICTIONARY).unwrap().iter().collect::<Vec<_>>(), some);
        let (_folder, path) = file("a.parquet", DICTIONARY);
        let error = read(&path, "body", 10_000).unwrap_err().to_string();
        assert_eq!(error, "it has no column \"body\" of text, but id, text");
        assert!(matches!(read(&path, "id", 10_000), Err(SourceError::Column { .. })));
        assert!(matches!(read(&path, "text", 100), Err(SourceError::TooLong { max: 100 })));
        assert!(matches!(read_as("a.parquet", &PLAIN[..PLAIN.len() - 9]), Err(SourceError::Parquet(_))));
    }

    #[test]
    fn what_is_no_text_is_refused() {
        assert!(matches!(read_as("a.txt", b" \n"), Err(SourceError::Empty)));
        assert!(matches!(
            read_as("a.txt", &[0xff; 900]),
            Err(SourceError::Encoding(EncodingError::File { n_bad: 900, .. }))
        ));
        let mut nearly = vec![b'a'; 3000];
        nearly[7] = 0x92;
        assert_eq!(read_as("a.txt", &nearly).unwrap()[0].matches('\u{fffd}').count(), 1);
        assert!(matches!(read_as("a.txt", &[b'a'; 10_001]), Err(SourceError::TooLong { max: 10_000 })));
        let bomb = gzip(&vec![b'a'; 1_000_000]);
        assert!(matches!(read_as("a.gz", &bomb), Err(SourceError::TooLong { .. })));
        assert!(matches!(read_as("a.gz", &bomb[..20]), Err(SourceError::Read(_))));
        for bad in ["[1]", "{\"text\": 1}", "{\"text\"", "7"] {
            let lines = format!("{{\"text\": \"one\"}}\n{bad}\n");
            let error = read_as("a.jsonl", lines.as_bytes()).unwrap_err();
            assert!(matches!(error, SourceError::Line { line: 2, .. }), "{error}");
        }
    }
}
