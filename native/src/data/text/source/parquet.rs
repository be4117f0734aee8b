//! One column of text out of a Parquet file: flat, required or optional, plain or with a dictionary.

use std::io::{Read, Seek};

use parquet2::deserialize::{BinaryPageState, DefLevelsDecoder, HybridEncoded};
use parquet2::encoding::plain_byte_array::BinaryIter;
use parquet2::error::Error;
use parquet2::metadata::ColumnChunkMetaData;
use parquet2::page::{CompressedPage, DataPage, Page};
use parquet2::read::{decompress, get_page_iterator, read_metadata};
use parquet2::schema::types::PhysicalType;

use super::{SourceError, decode};

/// Most bytes of a page, before and after decompression.
const PAGE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The values of column `name`, of at most `bytes_max` bytes in total, without null values.
pub(in super::super) fn read<R: Read + Seek>(
    file: &mut R,
    name: &str,
    bytes_max: u64,
) -> Result<Vec<String>, SourceError> {
    let metadata = read_metadata(file)?;
    let mut texts = Texts { documents: Vec::new(), bytes_left: bytes_max, bytes_max };
    for group in &metadata.row_groups {
        let column = group.columns().iter().find(|column| is_text_column(column, name));
        let column = column.ok_or_else(|| SourceError::Column {
            want: name.into(),
            got: group.columns().iter().map(|column| column.descriptor().path_in_schema.join(".")).collect(),
        })?;
        read_column(column, file, &mut texts)?;
    }
    Ok(texts.documents)
}

fn is_text_column(column: &ColumnChunkMetaData, name: &str) -> bool {
    let descriptor = column.descriptor();
    descriptor.path_in_schema.as_slice() == [name]
        && descriptor.descriptor.max_rep_level == 0
        && column.physical_type() == PhysicalType::ByteArray
}

/// Documents so far.
struct Texts {
    documents: Vec<String>,
    bytes_left: u64,
    bytes_max: u64,
}

impl Texts {
    fn push(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let left = self.bytes_left.checked_sub(bytes.len() as u64);
        self.bytes_left = left.ok_or(SourceError::TooLong { max: self.bytes_max })?;
        self.documents.push(decode(bytes)?);
        Ok(())
    }
}

fn read_column<R: Read + Seek>(
    column: &ColumnChunkMetaData,
    file: &mut R,
    texts: &mut Texts,
) -> Result<(), SourceError> {
    let mut dictionary: Option<Vec<Vec<u8>>> = None;
    for page in get_page_iterator(column, file, None, Vec::new(), PAGE_BYTES_MAX)? {
        let page = page?;
        if let CompressedPage::Data(data) = &page
            && data.uncompressed_size() > PAGE_BYTES_MAX
        {
            return Err(Error::WouldOverAllocate.into());
        }
        match decompress(page, &mut Vec::new())? {
            Page::Dict(page) => {
                let values = BinaryIter::new(&page.buffer, Some(page.num_values));
                let values = values.map(|value| value.map(<[u8]>::to_vec));
                dictionary = Some(values.collect::<Result<_, _>>()?);
            }
            Page::Data(page) => read_page(&page, dictionary.as_deref(), texts)?,
        }
    }
    Ok(())
}

fn read_page(page: &DataPage, dictionary: Option<&[Vec<u8>]>, texts: &mut Texts) -> Result<(), SourceError> {
    match BinaryPageState::try_new(page, dictionary)? {
        BinaryPageState::Required(values) => push_plain(values, page.num_values(), texts),
        BinaryPageState::Optional(levels, values) => push_plain(values, n_present(levels)?, texts),
        BinaryPageState::RequiredDictionary(values) => {
            push_entries(values.indexes.take(page.num_values()), values.dict, texts)
        }
        BinaryPageState::OptionalDictionary(levels, values) => {
            push_entries(values.indexes.take(n_present(levels)?), values.dict, texts)
        }
    }
}

/// Values that are not null.
fn n_present(levels: DefLevelsDecoder<'_>) -> Result<usize, SourceError> {
    let mut n_present = 0;
    match levels {
        DefLevelsDecoder::Bitmap(runs) => {
            for run in runs {
                n_present += match run? {
                    HybridEncoded::Repeated(is_set, length) => usize::from(is_set) * length,
                    HybridEncoded::Bitmap(bits, length) => {
                        let is_set =
                            |at: &usize| bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
                        (0..length).filter(is_set).count()
                    }
                };
            }
        }
        DefLevelsDecoder::Levels(levels, max) => {
            for level in levels {
                n_present += usize::from(level? == max);
            }
        }
    }
    Ok(n_present)
}

fn push_plain(values: BinaryIter<'_>, n_values: usize, texts: &mut Texts) -> Result<(), SourceError> {
    for value in values.take(n_values) {
        texts.push(value?)?;
    }
    Ok(())
}

fn push_entries(
    indexes: impl Iterator<Item = Result<u32, Error>>,
    dictionary: &[Vec<u8>],
    texts: &mut Texts,
) -> Result<(), SourceError> {
    for index in indexes {
        let index = index? as usize;
        let entry = dictionary.get(index);
        let outside = || Error::OutOfSpec(format!("entry {index} of a dictionary of {}", dictionary.len()));
        texts.push(entry.ok_or_else(outside)?)?;
    }
    Ok(())
}
