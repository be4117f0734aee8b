//! What a file of a named data set is known by.

use std::io;

use barnraise_protocol::Sha256Hash;

use crate::data::download::DownloadError;

/// A file of a data set, before compression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSpec {
    /// Without `.gz`.
    pub name: String,
    /// Its length.
    pub n_bytes: u64,
    /// Its hash.
    pub sha256: Sha256Hash,
}

/// Why a file at one place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Could not be read or decompressed.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// Cut short, or another file.
    #[error("{got} bytes after decompression, {want} were wanted")]
    Length {
        /// Known length.
        want: u64,
        /// Found; one more than `want` stands for all that is longer.
        got: u64,
    },
    /// Damaged, or another file.
    #[error("SHA-256 is {got}, {want} was wanted")]
    Hash {
        /// Known.
        want: Sha256Hash,
        /// Found.
        got: Sha256Hash,
    },
    /// Could not be fetched.
    #[error(transparent)]
    Download(#[from] DownloadError),
}

/// Compares a content with the known one.
pub(super) fn checked(bytes: Vec<u8>, spec: &FileSpec) -> Result<Vec<u8>, FileError> {
    let got = bytes.len() as u64;
    if got != spec.n_bytes {
        return Err(FileError::Length { want: spec.n_bytes, got });
    }
    let got = Sha256Hash::of(&bytes);
    match got == spec.sha256 {
        true => Ok(bytes),
        false => Err(FileError::Hash { want: spec.sha256, got }),
    }
}

/// A file by its name, length and SHA-256.
pub(super) fn spec(name: &str, n_bytes: u64, sha256: [u8; 32]) -> FileSpec {
    FileSpec { name: name.to_owned(), n_bytes, sha256: Sha256Hash(sha256) }
}

/// Reads a hash that is written in this program, when it is compiled.
pub(super) const fn hex(text: &str) -> [u8; 32] {
    let digits = text.as_bytes();
    assert!(digits.len() == 64, "a SHA-256 hash is 64 hexadecimal digits");
    let mut bytes = [0; 32];
    let mut i = 0;
    while i < 32 {
        bytes[i] = digit(digits[2 * i]) * 16 + digit(digits[2 * i + 1]);
        i += 1;
    }
    bytes
}

const fn digit(digit: u8) -> u8 {
    assert!(matches!(digit, b'0'..=b'9' | b'a'..=b'f'), "a hash is written in lower-case hexadecimal digits");
    if digit <= b'9' { digit - b'0' } else { digit - b'a' + 10 }
}
