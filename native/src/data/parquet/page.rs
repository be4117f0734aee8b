//! Pages of a Parquet file: decompressed within a limit, then decoded value by value.
//!
//! Nothing is taken from a number of the file before it is compared with the bytes that are there
//! (<https://parquet.apache.org/docs/file-format/data-pages/encodings/>).

use std::io::Read;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use flate2::read::MultiGzDecoder;
use parquet::basic::{Compression, ConvertedType, Encoding, Type};
use parquet::column::page::Page as PackedPage;
use parquet::schema::types::ColumnDescriptor;

use super::{ParquetFileError, Value};
use crate::data::unpack;

/// Most bytes of a page, after decompression.
const PAGE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Most bytes of a dictionary, after decompression: all its values are in memory.
const DICTIONARY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Longest decimal number.
const DECIMAL_BYTES_MAX: usize = 16;
/// Widest index of a dictionary.
const INDEX_BITS_MAX: u8 = 32;

const ENDS: ParquetFileError = ParquetFileError::Damaged("a page ends too early");

/// How values are stored, and what they stand for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Physical {
    Bool,
    Int32(Integer),
    Int64(Integer),
    Float,
    Double,
    Bytes,
    /// A whole number of so many bytes, the highest first.
    Fixed(usize, Integer),
}

/// What a whole number stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Integer {
    Signed,
    Unsigned,
    /// A number, times ten to this power.
    Decimal(i32),
}

impl Physical {
    /// None of a type that is not supported.
    pub(super) fn of(column: &ColumnDescriptor) -> Option<Self> {
        let integer = match column.converted_type() {
            ConvertedType::DECIMAL => Integer::Decimal(column.type_scale()),
            ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64 => Integer::Unsigned,
            _ => Integer::Signed,
        };
        let length = usize::try_from(column.type_length()).unwrap_or_default();
        match (column.physical_type(), integer) {
            (Type::BOOLEAN, _) => Some(Self::Bool),
            (Type::INT32, integer) => Some(Self::Int32(integer)),
            (Type::INT64, integer) => Some(Self::Int64(integer)),
            (Type::FLOAT, _) => Some(Self::Float),
            (Type::DOUBLE, _) => Some(Self::Double),
            (Type::BYTE_ARRAY, Integer::Signed) => Some(Self::Bytes),
            (Type::FIXED_LEN_BYTE_ARRAY, integer @ Integer::Decimal(_)) => {
                (1..=DECIMAL_BYTES_MAX).contains(&length).then_some(Self::Fixed(length, integer))
            }
            _ => None,
        }
    }
}

impl Integer {
    fn value(self, signed: i64, unsigned: u64) -> Value {
        match self {
            Self::Signed => Value::Integer(signed),
            Self::Unsigned => Value::Unsigned(unsigned),
            Self::Decimal(scale) => decimal(signed as f64, scale),
        }
    }
}

fn decimal(unscaled: f64, scale: i32) -> Value {
    Value::Double(unscaled / 10f64.powi(scale))
}

/// A page, decompressed.
pub(super) enum Page {
    Dictionary { data: Bytes, n_values: usize },
    Data(DataPage),
}

/// Values, and which rows have one.
pub(super) struct DataPage {
    n_rows: usize,
    encoding: Encoding,
    /// Of version 2; of version 1 they stand before the values.
    levels: Option<Bytes>,
    values: Bytes,
}

/// Decompresses a page.
pub(super) fn unpack(page: PackedPage, compression: Compression) -> Result<Page, ParquetFileError> {
    match page {
        PackedPage::DictionaryPage { buf, num_values, encoding, .. } => {
            supported(matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY), encoding)?;
            let data = decompressed(buf, compression, DICTIONARY_BYTES_MAX)?;
            Ok(Page::Dictionary { data, n_values: num_values as usize })
        }
        PackedPage::DataPage { buf, num_values, encoding, def_level_encoding, .. } => {
            supported(def_level_encoding == Encoding::RLE, def_level_encoding)?;
            let values = decompressed(buf, compression, PAGE_BYTES_MAX)?;
            Ok(Page::Data(DataPage { n_rows: num_values as usize, encoding, levels: None, values }))
        }
        PackedPage::DataPageV2 {
            mut buf,
            num_values,
            encoding,
            def_levels_byte_len,
            rep_levels_byte_len,
            is_compressed,
            ..
        } => {
            take(&mut buf, rep_levels_byte_len as usize)?;
            let levels = take(&mut buf, def_levels_byte_len as usize)?;
            let compression = if is_compressed { compression } else { Compression::UNCOMPRESSED };
            let values = decompressed(buf, compression, PAGE_BYTES_MAX)?;
            Ok(Page::Data(DataPage { n_rows: num_values as usize, encoding, levels: Some(levels), values }))
        }
    }
}

fn supported(is_supported: bool, encoding: Encoding) -> Result<(), ParquetFileError> {
    match is_supported {
        true => Ok(()),
        false => Err(ParquetFileError::Unsupported {
            got: format!("the encoding {encoding}"),
            want: "plain values, those with a dictionary, and booleans in runs",
        }),
    }
}

/// The first bytes of a buffer, which is behind them then.
fn take(bytes: &mut Bytes, n_bytes: usize) -> Result<Bytes, ParquetFileError> {
    match n_bytes <= bytes.len() {
        true => Ok(bytes.split_to(n_bytes)),
        false => Err(ENDS),
    }
}

fn decompressed(data: Bytes, compression: Compression, max: u64) -> Result<Bytes, ParquetFileError> {
    let too_large = |got| ParquetFileError::TooLarge { what: "a page", got, max };
    let read = |reader: &mut dyn Read| {
        let mut bytes = Vec::new();
        reader.take(max + 1).read_to_end(&mut bytes)?;
        Ok::<_, ParquetFileError>(bytes)
    };
    let bytes = match compression {
        _ if data.is_empty() => return Ok(data),
        Compression::UNCOMPRESSED => data,
        Compression::SNAPPY => {
            let n_bytes = snap::raw::decompress_len(&data)? as u64;
            if n_bytes > max {
                return Err(too_large(n_bytes));
            }
            snap::raw::Decoder::new().decompress_vec(&data)?.into()
        }
        Compression::GZIP(_) => read(&mut MultiGzDecoder::new(&data[..]))?.into(),
        Compression::ZSTD(_) => read(&mut unpack::zstd(&data[..]))?.into(),
        other => {
            let got = format!("compression by {other}");
            return Err(ParquetFileError::Unsupported { got, want: "Snappy, gzip and Zstandard" });
        }
    };
    match bytes.len() as u64 {
        n_bytes if n_bytes > max => Err(too_large(n_bytes)),
        _ => Ok(bytes),
    }
}

/// All values of a dictionary.
pub(super) fn dictionary(
    data: Bytes,
    n_values: usize,
    physical: Physical,
) -> Result<Arc<[Value]>, ParquetFileError> {
    let mut plain = Plain::new(data, physical);
    let mut values = Vec::new();
    for _ in 0..n_values {
        values.push(plain.next()?);
    }
    Ok(values.into())
}

/// What is left of a page.
pub(super) struct PageValues {
    n_left: usize,
    /// Of columns whose values may be missing: 1 where there is one.
    levels: Option<Runs>,
    values: Values,
}

enum Values {
    Plain(Plain),
    Dictionary { entries: Arc<[Value]>, indices: Runs },
    Booleans(Runs),
}

impl PageValues {
    pub(super) fn new(
        page: DataPage,
        physical: Physical,
        is_optional: bool,
        dictionary: Option<Arc<[Value]>>,
    ) -> Result<Self, ParquetFileError> {
        let DataPage { n_rows, encoding, levels, mut values } = page;
        let levels = match (is_optional, levels) {
            (false, _) => None,
            (true, Some(levels)) => Some(Runs::new(levels, 1)),
            (true, None) => Some(Runs::new(prefixed(&mut values)?, 1)),
        };
        let values = match (encoding, physical) {
            (Encoding::PLAIN, _) => Values::Plain(Plain::new(values, physical)),
            (Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY, _) => {
                let entries = dictionary.ok_or(ParquetFileError::Damaged("a page has no dictionary"))?;
                // Where all values are missing there may not even be a width.
                let width = if values.is_empty() { 0 } else { values.get_u8() };
                if width > INDEX_BITS_MAX {
                    return Err(ParquetFileError::Damaged("an index of a dictionary is too wide"));
                }
                Values::Dictionary { entries, indices: Runs::new(values, width) }
            }
            (Encoding::RLE, Physical::Bool) => Values::Booleans(Runs::new(prefixed(&mut values)?, 1)),
            (encoding, _) => {
                supported(false, encoding)?;
                return Err(ENDS);
            }
        };
        Ok(Self { n_left: n_rows, levels, values })
    }

    /// None at the end of the page.
    pub(super) fn next(&mut self) -> Result<Option<Value>, ParquetFileError> {
        if self.n_left == 0 {
            return Ok(None);
        }
        self.n_left -= 1;
        if let Some(levels) = &mut self.levels
            && levels.next()? == 0
        {
            return Ok(Some(Value::Missing));
        }
        match &mut self.values {
            Values::Plain(plain) => plain.next().map(Some),
            Values::Booleans(runs) => Ok(Some(Value::Bool(runs.next()? == 1))),
            Values::Dictionary { entries, indices } => {
                let entry = entries.get(indices.next()? as usize);
                let entry =
                    entry.ok_or(ParquetFileError::Damaged("an index is outside of its dictionary"))?;
                Ok(Some(entry.clone()))
            }
        }
    }
}

/// Bytes that stand behind their length.
fn prefixed(bytes: &mut Bytes) -> Result<Bytes, ParquetFileError> {
    let n_bytes = bytes.try_get_u32_le().map_err(|_| ENDS)?;
    take(bytes, n_bytes as usize)
}

/// Values one behind the other.
struct Plain {
    data: Bytes,
    physical: Physical,
    /// Bits that were read of the first byte.
    n_bits: u8,
}

impl Plain {
    fn new(data: Bytes, physical: Physical) -> Self {
        Self { data, physical, n_bits: 0 }
    }

    fn next(&mut self) -> Result<Value, ParquetFileError> {
        let data = &mut self.data;
        Ok(match self.physical {
            Physical::Bool => {
                let byte = *data.first().ok_or(ENDS)?;
                let value = byte >> self.n_bits & 1 == 1;
                self.n_bits = (self.n_bits + 1) % 8;
                if self.n_bits == 0 {
                    data.advance(1);
                }
                Value::Bool(value)
            }
            Physical::Int32(integer) => {
                let value = data.try_get_i32_le().map_err(|_| ENDS)?;
                integer.value(value.into(), value.cast_unsigned().into())
            }
            Physical::Int64(integer) => {
                let value = data.try_get_i64_le().map_err(|_| ENDS)?;
                integer.value(value, value.cast_unsigned())
            }
            Physical::Float => Value::Float(data.try_get_f32_le().map_err(|_| ENDS)?),
            Physical::Double => Value::Double(data.try_get_f64_le().map_err(|_| ENDS)?),
            Physical::Bytes => Value::Bytes(prefixed(data)?),
            Physical::Fixed(n_bytes, integer) => {
                let bytes = take(data, n_bytes)?;
                let is_negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
                let value = bytes.iter().fold(if is_negative { -1 } else { 0 }, |value: i128, &byte| {
                    value << 8 | i128::from(byte)
                });
                match integer {
                    Integer::Decimal(scale) => decimal(value as f64, scale),
                    Integer::Signed | Integer::Unsigned => return Err(ENDS),
                }
            }
        })
    }
}

/// Small numbers in runs: one that is repeated, or eight at a time packed bit by bit (RLE / bit-packing hybrid).
struct Runs {
    data: Bytes,
    /// Bits of a number.
    width: u8,
    n_left: u64,
    run: Run,
}

enum Run {
    Repeated(u32),
    /// The bit at which the next number begins.
    Packed {
        data: Bytes,
        bit: usize,
    },
}

impl Runs {
    fn new(data: Bytes, width: u8) -> Self {
        Self { data, width, n_left: 0, run: Run::Repeated(0) }
    }

    fn next(&mut self) -> Result<u32, ParquetFileError> {
        while self.n_left == 0 {
            self.begin()?;
        }
        self.n_left -= 1;
        match &mut self.run {
            Run::Repeated(value) => Ok(*value),
            Run::Packed { data, bit } => {
                let width = usize::from(self.width);
                let (first, end) = (*bit / 8, (*bit + width).div_ceil(8));
                let bytes = data.get(first..end).ok_or(ENDS)?;
                let bits = bytes.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
                let value = bits >> (*bit % 8) & ((1u64 << width) - 1);
                *bit += width;
                Ok(value as u32)
            }
        }
    }

    /// Reads the header of the next run.
    fn begin(&mut self) -> Result<(), ParquetFileError> {
        let mut header = 0u64;
        for shift in (0..).step_by(7) {
            if shift > 28 {
                return Err(ParquetFileError::Damaged("a run is too long"));
            }
            let byte = self.data.try_get_u8().map_err(|_| ENDS)?;
            header |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let n = header >> 1;
        if header & 1 == 1 {
            self.n_left = 8 * n;
            // The last run of a page may be cut.
            let n_bytes = (n as usize).saturating_mul(self.width.into()).min(self.data.len());
            self.run = Run::Packed { data: take(&mut self.data, n_bytes)?, bit: 0 };
        } else {
            self.n_left = n;
            let bytes = take(&mut self.data, usize::from(self.width).div_ceil(8))?;
            self.run = Run::Repeated(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write as _;

    use flate2::write::GzEncoder;
    use parquet::basic::{BrotliLevel, GzipLevel, ZstdLevel};

    use super::*;

    fn runs(data: &[u8], width: u8, n: usize) -> Result<Vec<u32>, ParquetFileError> {
        let mut runs = Runs::new(Bytes::copy_from_slice(data), width);
        (0..n).map(|_| runs.next()).collect()
    }

    #[test]
    fn runs_are_those_of_the_specification() {
        // Its example: 0 to 7 in three bits each.
        let packed = [0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        assert_eq!(runs(&packed, 3, 8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(runs(&[0x06, 0x05, 0x02, 0x09], 4, 4).unwrap(), [5, 5, 5, 9]);
        assert_eq!(runs(&[0x08], 0, 4).unwrap(), [0; 4]);
        assert_eq!(runs(&[0x04, 1, 2, 3, 4], 32, 2).unwrap(), [0x0403_0201; 2]);
        for (cut, n) in
            [(&packed[..3], 8), (&packed[..], 9), (&[0x06][..], 1), (&[][..], 1), (&[0x00, 0x00][..], 1)]
        {
            assert!(runs(cut, 3, n).is_err(), "{cut:?}");
        }
        assert!(runs(&[0xff, 0xff, 0xff, 0xff, 0xff, 0x01], 1, 1).is_err());
    }

    #[test]
    fn a_page_is_unpacked_within_its_limit() {
        let zeros = vec![0; 100_000];
        let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&zeros).unwrap();
        let packed: [(Compression, Vec<u8>); 4] = [
            (Compression::UNCOMPRESSED, zeros.clone()),
            (Compression::SNAPPY, snap::raw::Encoder::new().compress_vec(&zeros).unwrap()),
            (Compression::GZIP(GzipLevel::default()), gzip.finish().unwrap()),
            (
                Compression::ZSTD(ZstdLevel::default()),
                ruzstd::encoding::compress_to_vec(&zeros[..], ruzstd::encoding::CompressionLevel::Fastest),
            ),
        ];
        for (compression, packed) in packed {
            let unpacked = |max| decompressed(packed.clone().into(), compression, max);
            assert_eq!(unpacked(100_000).unwrap(), zeros);
            assert!(matches!(unpacked(99_999), Err(ParquetFileError::TooLarge { max: 99_999, .. })));
        }
        // It says that it has 4 GiB.
        let bomb = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0x00]);
        assert!(decompressed(bomb.clone(), Compression::SNAPPY, PAGE_BYTES_MAX).is_err());
        let error =
            decompressed(bomb, Compression::BROTLI(BrotliLevel::default()), 9).unwrap_err().to_string();
        assert!(error.contains("Snappy, gzip and Zstandard"), "{error}");
    }

    #[test]
    fn numbers_stand_for_what_the_schema_says() {
        let next = |physical, bytes: &'static [u8]| Plain::new(Bytes::from_static(bytes), physical).next();
        let minus_one = &[0xff; 8];
        assert_eq!(next(Physical::Int32(Integer::Signed), minus_one).unwrap(), Value::Integer(-1));
        assert_eq!(
            next(Physical::Int32(Integer::Unsigned), minus_one).unwrap(),
            Value::Unsigned(u32::MAX.into())
        );
        assert_eq!(next(Physical::Int64(Integer::Unsigned), minus_one).unwrap(), Value::Unsigned(u64::MAX));
        assert_eq!(next(Physical::Int64(Integer::Decimal(2)), minus_one).unwrap(), Value::Double(-0.01));
        let fixed = Physical::Fixed(3, Integer::Decimal(1));
        assert_eq!(next(fixed, &[0xff, 0xff, 0xf6]).unwrap(), Value::Double(-1.0));
        assert_eq!(next(fixed, &[0x00, 0x01, 0x00]).unwrap(), Value::Double(25.6));
        assert_eq!(
            next(Physical::Bytes, &[2, 0, 0, 0, b'a', b'b', b'c']).unwrap(),
            Value::Bytes("ab".into())
        );
        assert!(next(Physical::Bytes, &[0xff, 0xff, 0xff, 0xff, b'a']).is_err());
        assert!(next(Physical::Bytes, &[1, 0, 0]).is_err() && next(Physical::Bool, &[]).is_err());
        let mut bits = Plain::new(Bytes::from_static(&[0b0000_0101, 1]), Physical::Bool);
        let read: Vec<Value> = (0..9).map(|_| bits.next().unwrap()).collect();
        assert_eq!(read.iter().filter(|value| **value == Value::Bool(true)).count(), 3);
        assert!(matches!(read[..3], [Value::Bool(true), Value::Bool(false), Value::Bool(true)]));
    }
}
