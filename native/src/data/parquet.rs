//! Flat columns of a Parquet file, value by value.
//!
//! Apache's crate reads the metadata and the headers of pages. Pages are decompressed and decoded here: the crate's own
//! decoders panic at some damaged pages, and take as much memory as a file says. Read are columns that are required or
//! optional, plain or with a dictionary, of booleans, integers, decimals, floats and bytes, in pages that are compressed by
//! Snappy, gzip, Zstandard or not at all. Of a column no more than a page and a dictionary is in memory.

mod footer;
mod page;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use parquet::basic::Compression;
use parquet::column::page::PageReader as _;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescriptor;

use self::page::{Page, PageValues, Physical};

/// First and last bytes of such a file.
pub(super) const MAGIC: [u8; 4] = *b"PAR1";
/// Most bytes of the metadata.
const FOOTER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most bytes of the header of a page.
const PAGE_HEADER_BYTES_MAX: u64 = 64 * 1024;
/// Length of the metadata, and the magic bytes behind it.
const TAIL_BYTES: usize = 8;

/// Why a Parquet file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ParquetFileError {
    /// It cannot be read or decompressed.
    #[error("{0}")]
    Read(#[from] std::io::Error),
    /// Apache's crate does not understand it.
    #[error("{0}")]
    Apache(#[from] ParquetError),
    /// Snappy.
    #[error("a page cannot be decompressed: {0}")]
    Snappy(#[from] snap::Error),
    /// Something contradicts itself, or ends too early.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// More than is read.
    #[error("{what} of {got} bytes, at most {max} are supported")]
    TooLarge {
        /// What of it.
        what: &'static str,
        /// Its size.
        got: u64,
        /// The limit.
        max: u64,
    },
    /// Something that other programs may write, and is not read.
    #[error("{got} is not supported, but {want}")]
    Unsupported {
        /// What it has.
        got: String,
        /// What is read.
        want: &'static str,
    },
}

/// What stands in a row of a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// Null.
    Missing,
    Bool(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f32),
    Double(f64),
    /// Text, as a rule.
    Bytes(Bytes),
}

/// An open file.
pub(super) struct ParquetFile<R> {
    reader: Arc<R>,
    metadata: ParquetMetaData,
}

impl<R: ChunkReader + 'static> ParquetFile<R> {
    /// Reads and checks the metadata.
    ///
    /// # Errors
    /// No Parquet file, or a damaged one.
    pub(super) fn open(reader: R) -> Result<Self, ParquetFileError> {
        let n_bytes = reader.len();
        let Some(before) = n_bytes.checked_sub((TAIL_BYTES + MAGIC.len()) as u64) else {
            return Err(ParquetFileError::Damaged("it is too short for a Parquet file"));
        };
        let mut tail = reader.get_bytes(n_bytes - TAIL_BYTES as u64, TAIL_BYTES)?;
        let length = tail.try_get_u32_le().unwrap_or_default() as usize;
        if tail[..] != MAGIC {
            return Err(ParquetFileError::Damaged("it does not end with PAR1"));
        }
        if length > FOOTER_BYTES_MAX {
            let (got, max) = (length as u64, FOOTER_BYTES_MAX as u64);
            return Err(ParquetFileError::TooLarge { what: "metadata", got, max });
        }
        if length as u64 > before {
            return Err(ParquetFileError::Damaged("its metadata are longer than the file"));
        }
        let footer = reader.get_bytes(n_bytes - (TAIL_BYTES + length) as u64, length)?;
        footer::check(&footer)?;
        let metadata = guarded(|| Ok(ParquetMetaDataReader::decode_metadata(&footer)?))?;
        Ok(Self { reader: Arc::new(reader), metadata })
    }

    /// Name of each column, of one that lies in a group its path.
    pub(super) fn names(&self) -> Vec<String> {
        let columns = self.metadata.file_metadata().schema_descr().columns();
        columns.iter().map(|column| column.path().string()).collect()
    }

    /// Whether each row has one value in a column, of a type that is read.
    pub(super) fn is_flat(&self, column: usize) -> bool {
        let columns = self.metadata.file_metadata().schema_descr().columns();
        columns.get(column).is_some_and(|column| flat(column).is_ok())
    }

    /// Whether a column holds strings or bytes.
    pub(super) fn is_text(&self, column: usize) -> bool {
        let columns = self.metadata.file_metadata().schema_descr().columns();
        columns.get(column).is_some_and(|column| matches!(flat(column), Ok((Physical::Bytes, _))))
    }

    /// Rows of each group of rows.
    pub(super) fn groups(&self) -> Result<Vec<u64>, ParquetFileError> {
        let n_rows = self.metadata.row_groups().iter().map(|group| u64::try_from(group.num_rows()));
        n_rows
            .collect::<Result<_, _>>()
            .map_err(|_| ParquetFileError::Damaged("a group has less than no rows"))
    }

    /// Values of a column in a group of rows.
    ///
    /// # Errors
    /// A column that is not flat, or of a type that is not supported.
    pub(super) fn column(&self, group: usize, column: usize) -> Result<ColumnValues<R>, ParquetFileError> {
        let nowhere = || ParquetFileError::Damaged("a group of rows lacks a column");
        let group = self.metadata.row_groups().get(group).ok_or_else(nowhere)?;
        let chunk = group.columns().get(column).ok_or_else(nowhere)?;
        let (physical, is_optional) = flat(chunk.column_descr())?;
        let begin = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
        let range = u64::try_from(begin).ok().zip(u64::try_from(chunk.compressed_size()).ok());
        let end = range.and_then(|(begin, length)| begin.checked_add(length));
        let Some(end) = end.filter(|&end| end <= self.reader.len()) else {
            return Err(ParquetFileError::Damaged("a column lies outside of the file"));
        };
        self.check_pages(begin.unsigned_abs()..end)?;
        let compression = chunk.compression();
        // The crate gives the pages as they are in the file: they are decompressed here, within a limit.
        let as_it_is = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        let n_rows = usize::try_from(group.num_rows()).unwrap_or_default();
        let pages =
            guarded(|| Ok(SerializedPageReader::new(Arc::clone(&self.reader), &as_it_is, n_rows, None)?))?;
        Ok(ColumnValues { pages, compression, physical, is_optional, dictionary: None, page: None })
    }
}

impl<R: ChunkReader> ParquetFile<R> {
    /// Checks the headers of all pages of a column.
    fn check_pages(&self, range: Range<u64>) -> Result<(), ParquetFileError> {
        let (mut at, mut known_at, mut known) = (range.start, range.start, Bytes::new());
        while at < range.end {
            let ahead = usize::try_from(at - known_at).ok().and_then(|n_bytes| known.get(n_bytes..));
            let header = match footer::page_header(ahead.unwrap_or_default()) {
                Err(_) if known_at < at || known.is_empty() => {
                    let n_bytes = (range.end - at).min(PAGE_HEADER_BYTES_MAX);
                    (known, known_at) = (self.reader.get_bytes(at, n_bytes as usize)?, at);
                    footer::page_header(&known)
                }
                header => header,
            };
            let (n_header, n_page) = header?;
            at = at.saturating_add(n_header).saturating_add(n_page);
        }
        Ok(())
    }
}

/// Type of a column's values, and whether they may be missing.
fn flat(column: &ColumnDescriptor) -> Result<(Physical, bool), ParquetFileError> {
    let is_flat = column.path().parts().len() == 1 && column.max_rep_level() == 0;
    let physical = Physical::of(column).filter(|_| is_flat && column.max_def_level() <= 1);
    let physical = physical.ok_or_else(|| ParquetFileError::Unsupported {
        got: format!("the column {:?}, of {}", column.path().string(), column.physical_type()),
        want: "columns of booleans, numbers and strings that are in no list, map or group",
    })?;
    Ok((physical, column.max_def_level() == 1))
}

/// The values of a column in a group of rows, in order.
pub(super) struct ColumnValues<R: ChunkReader> {
    pages: SerializedPageReader<R>,
    compression: Compression,
    physical: Physical,
    is_optional: bool,
    dictionary: Option<Arc<[Value]>>,
    page: Option<PageValues>,
}

impl<R: ChunkReader> ColumnValues<R> {
    /// The value of the next row.
    ///
    /// # Errors
    /// No further row, or a damaged page.
    pub(super) fn next(&mut self) -> Result<Value, ParquetFileError> {
        loop {
            if let Some(page) = &mut self.page
                && let Some(value) = page.next()?
            {
                return Ok(value);
            }
            let page = guarded(|| Ok(self.pages.get_next_page()?))?;
            let page =
                page.ok_or(ParquetFileError::Damaged("a column has fewer values than its group has rows"))?;
            match page::unpack(page, self.compression)? {
                Page::Dictionary { data, n_values } => {
                    self.dictionary = Some(page::dictionary(data, n_values, self.physical)?);
                }
                Page::Data(data) => {
                    let dictionary = self.dictionary.clone();
                    self.page = Some(PageValues::new(data, self.physical, self.is_optional, dictionary)?);
                }
            }
        }
    }
}

/// What the crate reads: its checks are assertions in part.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetFileError>) -> Result<T, ParquetFileError> {
    let read = catch_unwind(AssertUnwindSafe(read));
    read.unwrap_or(Err(ParquetFileError::Damaged("its metadata contradict each other")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// What is wrong with a file of these metadata.
    fn refused(footer: &[u8]) -> String {
        let length = (footer.len() as u32).to_le_bytes();
        let file = Bytes::from([&MAGIC, footer, &length, &MAGIC].concat());
        ParquetFile::open(file).err().unwrap().to_string()
    }

    /// A list of structs, which says that it has so many.
    fn schema_of(n_elements: u8, elements: &[u8]) -> Vec<u8> {
        // The version, 1; then field 2.
        [&[0x15, 0x02, 0x19, 0xfc, n_elements], elements].concat()
    }

    /// A group with one child.
    const GROUP: &[u8] = &[0x35, 0x00, 0x18, 0x01, b'a', 0x15, 0x02, 0x00];

    #[test]
    fn metadata_that_would_take_all_memory_or_the_stack_are_refused() {
        let endless = [0x15, 0x02, 0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07, 0x00];
        assert_eq!(refused(&endless), "it is damaged: its metadata end too early");
        let deep = schema_of(100, &GROUP.repeat(100));
        assert_eq!(refused(&deep), "it is damaged: its schema is nested too deep");
        let unrepeated = schema_of(2, &[GROUP, &[0x48, 0x01, b'a', 0x15, 0x02, 0x00]].concat());
        assert_eq!(
            refused(&unrepeated),
            "it is damaged: a column of its schema does not say how often it is there"
        );
        let many = schema_of(2, &[0x00; 9]);
        assert!(refused(&many).contains("its schema"), "{}", refused(&many));
    }

    #[test]
    fn headers_of_pages_are_as_long_as_they_say_and_have_no_endless_lists() {
        // Kind of page 0, 7 bytes, of which 6 are here; then what no reader knows.
        let header = |more: &[u8]| [&[0x15, 0x00, 0x15, 0x0e, 0x15, 0x0c], more, &[0x00]].concat();
        assert_eq!(footer::page_header(&header(&[])).unwrap(), (7, 6));
        assert_eq!(footer::page_header(&header(&[0x99, 0x23, 0x01, 0x02])).unwrap(), (11, 6), "two bytes");
        let booleans = header(&[0x99, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07]);
        assert!(footer::page_header(&booleans).unwrap_err().to_string().contains("too early"));
        let few = header(&[0x99, 0x11, 0x00]);
        assert!(footer::page_header(&few).unwrap_err().to_string().contains("a list of booleans"));
        let negative = [0x15, 0x00, 0x15, 0x0e, 0x15, 0x0d, 0x00];
        assert!(footer::page_header(&negative).unwrap_err().to_string().contains("how long it is"));
    }

    #[test]
    fn what_is_no_parquet_file_says_so() {
        let said =
            |bytes: &'static [u8]| ParquetFile::open(Bytes::from_static(bytes)).err().unwrap().to_string();
        assert!(said(b"PAR1").contains("too short"));
        assert!(said(b"PAR1\0\0\0\0PAR2").contains("does not end with PAR1"));
        assert!(said(b"PAR1\x09\0\0\0PAR1").contains("longer than the file"));
        assert!(said(b"PAR1\xff\xff\xff\xffPAR1").contains("metadata of 4294967295 bytes"));
    }
}
