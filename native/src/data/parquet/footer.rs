//! Checks the metadata of a Parquet file, and the headers of its pages, before they are parsed.
//!
//! Apache's parser makes room for as many elements as a list says to have, descends as deep as a schema is nested, wants
//! that each column says how often it is repeated, and passes over a list of booleans as if they took no bytes: two billion
//! of them take a minute. Neither metadata nor headers have such a list. Thrift's compact protocol:
//! <https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>.

use super::ParquetFileError;

/// Deepest nesting of structs and lists, and of the schema.
const DEPTH_MAX: usize = 32;
/// Of `FileMetaData`.
const SCHEMA: i64 = 2;
/// Of `PageHeader`.
const COMPRESSED_BYTES: i64 = 3;
/// Of `SchemaElement`.
const REPETITION: i64 = 3;
const N_CHILDREN: i64 = 5;

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// Whether all lengths are within the bytes, and the schema is a tree of columns.
pub(super) fn check(footer: &[u8]) -> Result<(), ParquetFileError> {
    let mut walk = Walk { left: footer };
    let mut id = 0;
    while let Some(kind) = walk.field(&mut id)? {
        match (id, kind) {
            (SCHEMA, LIST) => walk.schema()?,
            _ => walk.value(kind, 0)?,
        }
    }
    Ok(())
}

/// Length of the header of a page that `bytes` begin with, and of the page behind it.
pub(super) fn page_header(bytes: &[u8]) -> Result<(u64, u64), ParquetFileError> {
    let mut walk = Walk { left: bytes };
    let (mut id, mut n_bytes) = (0, None);
    while let Some(kind) = walk.field(&mut id)? {
        match (id, kind) {
            (COMPRESSED_BYTES, I32) => n_bytes = u64::try_from(walk.zigzag()?).ok(),
            _ => walk.value(kind, 0)?,
        }
    }
    let n_bytes = n_bytes.ok_or(ParquetFileError::Damaged("a page does not say how long it is"))?;
    Ok(((bytes.len() - walk.left.len()) as u64, n_bytes))
}

struct Walk<'a> {
    left: &'a [u8],
}

impl Walk<'_> {
    fn byte(&mut self) -> Result<u8, ParquetFileError> {
        let (byte, left) = self.left.split_first().ok_or(ENDS)?;
        self.left = left;
        Ok(*byte)
    }

    fn skip(&mut self, n_bytes: u64) -> Result<(), ParquetFileError> {
        let n_bytes = usize::try_from(n_bytes).map_err(|_| ENDS)?;
        self.left = self.left.get(n_bytes..).ok_or(ENDS)?;
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, ParquetFileError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ParquetFileError::Damaged("a number in its metadata is too long"))
    }

    fn zigzag(&mut self) -> Result<i64, ParquetFileError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Type of the next field, and its id; none at the end of the struct.
    fn field(&mut self, id: &mut i64) -> Result<Option<u8>, ParquetFileError> {
        let header = self.byte()?;
        let kind = header & 0x0f;
        if kind == 0 {
            return Ok(None);
        }
        *id = match header >> 4 {
            0 => self.zigzag()?,
            delta => id.saturating_add(delta.into()),
        };
        Ok(Some(kind))
    }

    /// Type and number of a list's elements: each has at least a byte.
    fn list(&mut self) -> Result<(u8, u64), ParquetFileError> {
        let header = self.byte()?;
        let n = match header >> 4 {
            15 => self.varint()?,
            n => n.into(),
        };
        self.holds(n)?;
        Ok((header & 0x0f, n))
    }

    fn holds(&self, n: u64) -> Result<(), ParquetFileError> {
        match n <= self.left.len() as u64 {
            true => Ok(()),
            false => Err(ENDS),
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<(), ParquetFileError> {
        if depth >= DEPTH_MAX {
            return Err(ParquetFileError::Damaged("its metadata are nested too deep"));
        }
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.skip(1),
            I16 | I32 | I64 => self.varint().map(drop),
            DOUBLE => self.skip(8),
            BINARY => {
                let n_bytes = self.varint()?;
                self.skip(n_bytes)
            }
            LIST | SET => {
                let (kind, n) = self.list()?;
                (0..n).try_for_each(|_| self.element(kind, depth + 1))
            }
            MAP => {
                let n = self.varint()?;
                self.holds(n)?;
                let kinds = if n == 0 { 0 } else { self.byte()? };
                (0..n).try_for_each(|_| {
                    self.element(kinds >> 4, depth + 1)?;
                    self.element(kinds & 0x0f, depth + 1)
                })
            }
            STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.value(kind, depth + 1)?;
                }
                Ok(())
            }
            UUID => self.skip(16),
            _ => Err(ParquetFileError::Damaged("its metadata have a value of no known type")),
        }
    }

    /// As [`Self::value`], of a list or map.
    fn element(&mut self, kind: u8, depth: usize) -> Result<(), ParquetFileError> {
        match kind {
            TRUE | FALSE => Err(ParquetFileError::Damaged("its metadata have a list of booleans")),
            kind => self.value(kind, depth),
        }
    }

    /// The elements of the schema, depth first, each with the number of its children.
    fn schema(&mut self) -> Result<(), ParquetFileError> {
        let (kind, n) = self.list()?;
        if kind != STRUCT || n == 0 {
            return Err(ParquetFileError::Damaged("it has no schema"));
        }
        // Children that are still to come, of each element around the next one.
        let mut around: Vec<u64> = vec![1];
        for nth in 0..n {
            while around.last() == Some(&0) {
                around.pop();
            }
            let (n_children, is_repetition_said) = self.schema_element()?;
            if nth > 0 && !is_repetition_said {
                return Err(ParquetFileError::Damaged(
                    "a column of its schema does not say how often it is there",
                ));
            }
            let left =
                around.last_mut().ok_or(ParquetFileError::Damaged("its schema has too many elements"))?;
            *left -= 1;
            around.push(n_children);
            if around.len() > DEPTH_MAX {
                return Err(ParquetFileError::Damaged("its schema is nested too deep"));
            }
        }
        Ok(())
    }

    fn schema_element(&mut self) -> Result<(u64, bool), ParquetFileError> {
        let (mut id, mut n_children, mut is_repetition_said) = (0, 0, false);
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (N_CHILDREN, I32) => {
                    let n = self.zigzag()?;
                    n_children = u64::try_from(n)
                        .map_err(|_| ParquetFileError::Damaged("a group has less than no columns"))?;
                    self.holds(n_children)?;
                }
                _ => {
                    is_repetition_said |= id == REPETITION;
                    self.value(kind, 0)?;
                }
            }
        }
        Ok((n_children, is_repetition_said))
    }
}

const ENDS: ParquetFileError = ParquetFileError::Damaged("its metadata end too early");
