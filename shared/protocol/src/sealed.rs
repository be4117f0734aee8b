//! The envelope of every stored object: kind, format version and checksum.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic, `barnrais` |
//! | 4 | kind, such as `ckpt` |
//! | 2 | format version of that kind, little endian |
//! | 8 | length of the payload, little endian |
//! | 32 | SHA-256 of the 22 bytes above and of the payload |
//! | … | payload |
//!
//! Pure. It never allocates by a length that it has not compared with the bytes at hand.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::Sha256Hash;

const MAGIC: &[u8; 8] = b"barnrais";
const PREFIX_BYTES: usize = 8 + 4 + 2 + 8;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = PREFIX_BYTES + 32;

/// Kind of an object, and the version of its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectKind {
    /// Four letters in the header.
    pub name: [u8; 4],
    /// Name for error messages.
    pub what: &'static str,
    /// Raised whenever the payload's layout changes.
    pub version: u16,
}

/// Why an object cannot be opened.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SealError {
    /// Shorter than a header.
    #[error("{got} bytes, a header alone has {HEADER_BYTES}")]
    Short {
        /// Its length.
        got: usize,
    },
    /// Not an object of this program.
    #[error("it does not begin with `barnrais`")]
    Magic,
    /// An object of another kind.
    #[error("it holds `{got}`, `{want}` was wanted")]
    Kind {
        /// The kind that was asked for.
        want: String,
        /// The kind in its header.
        got: String,
    },
    /// Undamaged, and written by another version of this program.
    #[error("{what} format {got}, this program knows {} {want}: {}", known(*want, *got), another_wrote_it(*want, *got))]
    Version {
        /// Its kind.
        what: &'static str,
        /// The version that this program reads.
        want: u16,
        /// The version in its header.
        got: u16,
    },
    /// Truncated, or with bytes behind it.
    #[error("payload of {got} bytes, its header announces {want}")]
    Length {
        /// From the header.
        want: u64,
        /// Length of the payload.
        got: u64,
    },
    /// Damaged.
    #[error("SHA-256 is {got}, its header says {want}")]
    Hash {
        /// From the header.
        want: Sha256Hash,
        /// Of the bytes.
        got: Sha256Hash,
    },
    /// The envelope is undamaged, and its payload does not parse.
    #[error("payload: {0}")]
    Payload(String),
}

fn known(want: u16, got: u16) -> &'static str {
    if got > want { "up to" } else { "only" }
}

fn another_wrote_it(want: u16, got: u16) -> &'static str {
    match got > want {
        true => "a newer version of it wrote this, start that one or a later one",
        false => "an older version of it wrote this, start that one, or begin anew with another folder",
    }
}

impl SealError {
    /// Whether the object is undamaged and of another version of this program.
    pub fn is_version(&self) -> bool {
        matches!(self, Self::Version { .. })
    }
}

/// Checks the format version of an object. Damage is left to [`open`].
///
/// # Errors
/// [`SealError::Version`].
pub fn check_version(kind: ObjectKind, bytes: &[u8]) -> Result<(), SealError> {
    let of_kind = bytes.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(&kind.name));
    let version = of_kind.and_then(|rest| rest.first_chunk::<2>());
    if version.is_none_or(|version| u16::from_le_bytes(*version) == kind.version) {
        return Ok(());
    }
    match open(kind, bytes) {
        Err(error) if error.is_version() => Err(error),
        _ => Ok(()),
    }
}

/// Puts a payload into an envelope.
pub fn seal(kind: ObjectKind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = envelope(kind, &[payload]);
    bytes.extend_from_slice(payload);
    bytes
}

/// The envelope of a payload in parts.
fn envelope(kind: ObjectKind, payload: &[&[u8]]) -> Vec<u8> {
    let n_bytes: usize = payload.iter().map(|part| part.len()).sum();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.first().map_or(0, |part| part.len()));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&kind.name);
    bytes.extend_from_slice(&kind.version.to_le_bytes());
    bytes.extend_from_slice(&(n_bytes as u64).to_le_bytes());
    let hash = hash(&bytes, payload);
    bytes.extend_from_slice(&hash.0);
    bytes
}

/// Checks an envelope and gives its payload.
pub fn open(kind: ObjectKind, bytes: &[u8]) -> Result<&[u8], SealError> {
    let short = || SealError::Short { got: bytes.len() };
    let (prefix, rest) = bytes.split_at_checked(PREFIX_BYTES).ok_or_else(short)?;
    let (want_hash, payload) = rest.split_first_chunk::<32>().ok_or_else(short)?;
    let (magic, fields) = prefix.split_first_chunk::<8>().ok_or_else(short)?;
    let (name, fields) = fields.split_first_chunk::<4>().ok_or_else(short)?;
    let (version, fields) = fields.split_first_chunk::<2>().ok_or_else(short)?;
    let length = fields.first_chunk::<8>().ok_or_else(short)?;
    if magic != MAGIC {
        return Err(SealError::Magic);
    }
    if *name != kind.name {
        let text = |name: [u8; 4]| name.escape_ascii().to_string();
        return Err(SealError::Kind { want: text(kind.name), got: text(*name) });
    }
    let (want, got) = (u64::from_le_bytes(*length), payload.len() as u64);
    if want != got {
        return Err(SealError::Length { want, got });
    }
    let (want, got) = (Sha256Hash(*want_hash), hash(prefix, &[payload]));
    if want != got {
        return Err(SealError::Hash { want, got });
    }
    // Last: the envelope is that of all versions, so what is whole and of another one is told from what is damaged.
    let got = u16::from_le_bytes(*version);
    if got != kind.version {
        return Err(SealError::Version { what: kind.what, want: kind.version, got });
    }
    Ok(payload)
}

/// Seals a header, as postcard behind its length, and raw bytes that need no encoding.
pub fn seal_parts<T: Serialize>(kind: ObjectKind, header: &T, raw: &[&[u8]]) -> Result<Vec<u8>, SealError> {
    let mut bytes = seal_before(kind, header, raw)?;
    raw.iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes)
}

/// The beginning of what [`seal_parts`] gives: all before the raw bytes, which need not be copied then.
pub fn seal_before<T: Serialize>(kind: ObjectKind, header: &T, raw: &[&[u8]]) -> Result<Vec<u8>, SealError> {
    let header = postcard::to_allocvec(header).map_err(|error| SealError::Payload(error.to_string()))?;
    let n_bytes = u32::try_from(header.len())
        .map_err(|_| SealError::Payload("a header larger than 4 GiB cannot be stored".into()))?;
    let before = [&n_bytes.to_le_bytes()[..], &header].concat();
    let payload: Vec<&[u8]> = std::iter::once(&before[..]).chain(raw.iter().copied()).collect();
    let mut bytes = envelope(kind, &payload);
    bytes.extend_from_slice(&before);
    Ok(bytes)
}

/// Opens an object of [`seal_parts`]: the header, and the raw bytes behind it.
pub fn open_parts<T: DeserializeOwned>(kind: ObjectKind, bytes: &[u8]) -> Result<(T, &[u8]), SealError> {
    let payload = open(kind, bytes)?;
    let cut = || SealError::Payload("its header is cut".into());
    let (n_bytes, rest) = payload.split_first_chunk::<4>().ok_or_else(cut)?;
    let (header, raw) = rest.split_at_checked(u32::from_le_bytes(*n_bytes) as usize).ok_or_else(cut)?;
    let header = postcard::from_bytes(header).map_err(|error| SealError::Payload(error.to_string()))?;
    Ok((header, raw))
}

/// The header alone of an object of [`seal_parts`], from its first bytes, and where the raw bytes begin. The checksum is not
/// verified, neither where the version is another one.
pub fn peek_header<T: DeserializeOwned>(kind: ObjectKind, start: &[u8]) -> Result<(T, u64), SealError> {
    let short = || SealError::Short { got: start.len() };
    let (envelope, payload) = start.split_at_checked(HEADER_BYTES).ok_or_else(short)?;
    let of_kind = envelope.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(&kind.name));
    let version = of_kind.and_then(|rest| rest.first_chunk::<2>()).ok_or(SealError::Magic)?;
    let got = u16::from_le_bytes(*version);
    if got != kind.version {
        return Err(SealError::Version { what: kind.what, want: kind.version, got });
    }
    let (n_bytes, rest) = payload.split_first_chunk::<4>().ok_or_else(short)?;
    let n_bytes = u32::from_le_bytes(*n_bytes);
    let header = rest.get(..n_bytes as usize).ok_or_else(short)?;
    let header = postcard::from_bytes(header).map_err(|error| SealError::Payload(error.to_string()))?;
    Ok((header, HEADER_BYTES as u64 + 4 + u64::from(n_bytes)))
}

fn hash(prefix: &[u8], payload: &[&[u8]]) -> Sha256Hash {
    let hashed = Sha256::new().chain_update(prefix);
    Sha256Hash(payload.iter().fold(hashed, |hashed, part| hashed.chain_update(part)).finalize().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;

    const KIND: ObjectKind = ObjectKind { name: *b"test", what: "trial", version: 3 };

    #[test]
    fn each_error_says_what_was_wanted() {
        let sealed = seal(KIND, b"payload");
        assert_eq!(open(KIND, &sealed[..53]), Err(SealError::Short { got: 53 }));
        assert_eq!(open(KIND, &sealed[..sealed.len() - 1]), Err(SealError::Length { want: 7, got: 6 }));
        let other = ObjectKind { name: *b"else", ..KIND };
        let error = open(other, &sealed).unwrap_err();
        assert_eq!(error.to_string(), "it holds `test`, `else` was wanted");
    }

    #[test]
    fn another_version_is_named_with_ours_and_damage_is_not_taken_for_one() {
        let newer = seal(ObjectKind { version: 7, ..KIND }, b"payload");
        let error = open(KIND, &newer).unwrap_err();
        assert!(
            error.to_string().starts_with("trial format 7, this program knows up to 3: a newer"),
            "{error}"
        );
        assert_eq!(check_version(KIND, &newer), Err(error));
        let older = seal(ObjectKind { version: 2, ..KIND }, b"payload");
        let error = open(KIND, &older).unwrap_err();
        assert!(
            error.to_string().starts_with("trial format 2, this program knows only 3: an older"),
            "{error}"
        );
        let mut damaged = seal(KIND, b"payload");
        damaged[12] ^= 4;
        assert!(matches!(open(KIND, &damaged), Err(SealError::Hash { .. })));
        assert_eq!(check_version(KIND, &damaged), Ok(()));
        assert_eq!(check_version(KIND, &newer[..newer.len() - 1]), Ok(()));
        assert_eq!(check_version(KIND, b""), Ok(()));
    }

    #[test]
    fn a_header_can_be_read_from_the_start_alone() {
        let sealed = seal_parts(KIND, &(7u64, "seven"), &[&[1; 5000]]).unwrap();
        let raw_at = sealed.len() as u64 - 5000;
        assert_eq!(peek_header::<(u64, String)>(KIND, &sealed[..200]), Ok(((7, "seven".to_owned()), raw_at)));
        for cut in 0..HEADER_BYTES + 4 + 7 {
            assert!(peek_header::<(u64, String)>(KIND, &sealed[..cut]).is_err(), "{cut}");
        }
        let newer = ObjectKind { version: 4, ..KIND };
        assert!(peek_header::<(u64, String)>(newer, &sealed).unwrap_err().is_version());
        let other = ObjectKind { name: *b"else", ..KIND };
        assert_eq!(peek_header::<(u64, String)>(other, &sealed), Err(SealError::Magic));
    }

    #[test]
    fn an_envelope_has_room_for_what_is_put_behind_it_and_no_more() {
        for n_bytes in [0, 7, 1000] {
            let sealed = seal(KIND, &vec![1; n_bytes]);
            assert_eq!((sealed.len(), sealed.capacity()), (HEADER_BYTES + n_bytes, HEADER_BYTES + n_bytes));
        }
    }

    #[test]
    fn what_is_of_another_program_or_kind_is_told_by_its_first_bytes() {
        let sealed = seal(KIND, b"payload");
        for byte in 0..MAGIC.len() {
            let mut other = sealed.clone();
            other[byte] ^= 1;
            assert_eq!(open(KIND, &other), Err(SealError::Magic));
        }
        let errors = [
            (SealError::Magic, false),
            (SealError::Short { got: 1 }, false),
            (SealError::Version { what: "trial", want: 3, got: 2 }, true),
        ];
        for (error, is_version) in errors {
            assert_eq!(error.is_version(), is_version, "{error}");
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let sealed = seal(KIND, b"some payload");
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(KIND, &flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_header_length_beyond_the_payload_is_an_error() {
        let sealed = seal(KIND, &u32::MAX.to_le_bytes());
        let error = open_parts::<u8>(KIND, &sealed).unwrap_err();
        assert_eq!(error, SealError::Payload("its header is cut".into()));
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens(payload in prop::collection::vec(any::<u8>(), 0..2000)) {
            let sealed = seal(KIND, &payload);
            prop_assert_eq!(open(KIND, &sealed).unwrap(), payload.as_slice());
        }

        #[test]
        fn parts_come_back(header in any::<(u64, String)>(), raw in prop::collection::vec(any::<u8>(), 0..200)) {
            let sealed = seal_parts(KIND, &header, &[&raw, b"tail"]).unwrap();
            let (got, rest) = open_parts::<(u64, String)>(KIND, &sealed).unwrap();
            prop_assert_eq!(got, header);
            prop_assert_eq!(rest, [raw.as_slice(), b"tail"].concat());
        }

        #[test]
        fn any_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(open(KIND, &bytes).is_err());
        }
    }
}
