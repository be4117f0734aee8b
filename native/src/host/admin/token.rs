//! The operator's token: read access to its file is the right to operate the run.
//!
//! The token is generated once, from the system's entropy, and is never logged: nothing here prints it, and only its
//! hash is kept in memory.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use barnraise_relay::write_private;
use sha2::{Digest, Sha256};

use crate::host::hex;

/// Name of the file in a run's folder.
pub const TOKEN_FILE: &str = "admin.token";
const TOKEN_BYTES: usize = 32;
const FILE_BYTES_MAX: u64 = 4096;
/// Shortest token that is accepted, in characters: an operator may have chosen it.
const CHARS_MIN: usize = 32;

/// Why there is no usable token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read or created.
    #[error("token file {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Other users may read the file.
    #[error("token file {}: others may read it (mode {mode:03o}): chmod 600 it, and delete it if they did; a new one is made then", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file holds no long token.
    #[error("token file {}: {CHARS_MIN} characters at least are wanted, without spaces", path.display())]
    Weak {
        /// The file.
        path: PathBuf,
    },
    /// The system's random number generator failed.
    #[error("the system has no random bytes: {0}")]
    Entropy(getrandom::Error),
}

/// Hash of the operator's token, compared with that of a request's token.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; 32]);

impl fmt::Debug for TokenHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenHash")
    }
}

impl TokenHash {
    /// Hash of the token in a run's folder. Creates the file if it is missing, readable by its owner only.
    ///
    /// # Errors
    /// The file cannot be created or read, or other users may read it.
    pub fn load_or_create(folder: &Path) -> Result<Self, TokenError> {
        let path = folder.join(TOKEN_FILE);
        match read_token(&path) {
            Ok(token) => Ok(Self::of(&token)),
            Err(TokenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let mut bytes = [0; TOKEN_BYTES];
                getrandom::fill(&mut bytes).map_err(TokenError::Entropy)?;
                let token = hex(&bytes);
                write_private(&path, format!("{token}\n").as_bytes())
                    .map_err(|source| TokenError::Io { path, source })?;
                Ok(Self::of(&token))
            }
            Err(error) => Err(error),
        }
    }

    /// Hash of `token`.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Whether it is the hash of `token`. The comparison takes constant time, and reveals nothing about the token.
    pub fn is_of(&self, token: &str) -> bool {
        let other = Self::of(token);
        self.0.iter().zip(other.0).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

/// Reads the token in a file.
///
/// # Errors
/// The file cannot be read, other users may read it, or it holds no token.
pub fn read_token(path: &Path) -> Result<String, TokenError> {
    let fail = |source| TokenError::Io { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(fail)?;
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Open { path: path.to_owned(), mode });
        }
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(TokenError::Weak { path: path.to_owned() });
    }
    let token = std::fs::read_to_string(path).map_err(fail)?.trim().to_owned();
    match token.len() >= CHARS_MIN && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token),
        false => Err(TokenError::Weak { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_owner_and_is_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let made = TokenHash::load_or_create(folder.path()).unwrap();
        let path = folder.path().join(TOKEN_FILE);
        let token = read_token(&path).unwrap();
        assert_eq!(token.len(), 2 * TOKEN_BYTES);
        assert!(made.is_of(&token));
        assert!(TokenHash::load_or_create(folder.path()).unwrap().is_of(&token));
        for wrong in ["", &token[1..], &format!("{token} "), &token.to_uppercase().replace('A', "B")] {
            assert!(!made.is_of(wrong), "{wrong}");
        }
        assert!(!format!("{made:?}").contains(&token[..8]));
    }

    #[cfg(unix)]
    #[test]
    fn a_token_that_others_may_read_is_none() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        TokenHash::load_or_create(folder.path()).unwrap();
        let path = folder.path().join(TOKEN_FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = TokenHash::load_or_create(folder.path()).unwrap_err().to_string();
        assert!(error.contains("644") && error.contains("chmod 600"), "{error}");
        std::fs::remove_file(&path).unwrap();
        write_private(&path, b"guess me\n").unwrap();
        assert!(matches!(TokenHash::load_or_create(folder.path()), Err(TokenError::Weak { .. })));
    }
}
