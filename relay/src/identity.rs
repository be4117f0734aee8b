//! The node's key pair, and so its peer id, kept in a file across restarts.
//!
//! Never replaces a file that it cannot read: a peer id that others have written down would be lost.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libp2p::identity::{DecodingError, Keypair};

use crate::files;

/// Attempts to take a held lock: the process that made the file may be reading it.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Why there is no key pair.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file exists and cannot be read, or cannot be written.
    #[error("key file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file does not hold a libp2p private key.
    #[error(
        "key file {path}: want a libp2p private key (protobuf), got {n_bytes} bytes that are none: {source}"
    )]
    Broken {
        /// The file.
        path: PathBuf,
        /// Its length.
        n_bytes: usize,
        /// What the decoder said.
        source: DecodingError,
    },
    /// Two programs with one key would throw each other out for ever.
    #[error(
        "key file {path} is in use by another program on this machine: end that one, or give this one a key file of its \
        own"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The new key could not be encoded.
    #[error("a new key cannot be encoded: {0}")]
    Encoding(DecodingError),
}

/// Reads the key pair in `path`, or makes an Ed25519 one and writes it there (mode 0600).
///
/// # Errors
/// A file that exists and is no key is an error that names it; it is left as it is.
pub fn load_or_create_keypair(path: &Path) -> Result<Keypair, IdentityError> {
    let io_error = |source| IdentityError::Io { path: path.to_owned(), source };
    match files::read_small(path) {
        Ok(bytes) => Keypair::from_protobuf_encoding(&bytes).map_err(|source| IdentityError::Broken {
            path: path.to_owned(),
            n_bytes: bytes.len(),
            source,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let keypair = Keypair::generate_ed25519();
            let bytes = keypair.to_protobuf_encoding().map_err(IdentityError::Encoding)?;
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                files::create_private_directory(parent).map_err(io_error)?;
            }
            files::write_private(path, &bytes).map_err(io_error)?;
            Ok(keypair)
        }
        Err(error) => Err(io_error(error)),
    }
}

/// A key pair that no other program on this machine takes in the same way, for as long as this lives.
#[derive(Debug)]
pub struct LockedKeypair {
    /// The key pair.
    pub keypair: Keypair,
    _lock: Option<File>,
}

/// As [`load_or_create_keypair`], for a peer: one key is one peer, so one program has it at a time.
///
/// # Errors
/// As there, and [`IdentityError::InUse`]. On a file system that has no locks nothing is locked.
pub fn lock_keypair(path: &Path) -> Result<LockedKeypair, IdentityError> {
    let keypair = load_or_create_keypair(path)?;
    let file = File::open(path).map_err(|source| IdentityError::Io { path: path.to_owned(), source })?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(LockedKeypair { keypair, _lock: Some(file) }),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(path = %path.display(), %error, "the key file cannot be locked: see that it is used once");
                return Ok(LockedKeypair { keypair, _lock: None });
            }
        }
    }
    Err(IdentityError::InUse { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_key_is_one_peer_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("peer.key");
        let first = lock_keypair(&path).unwrap();
        let error = lock_keypair(&path).unwrap_err();
        assert!(matches!(error, IdentityError::InUse { .. }));
        assert!(error.to_string().contains("peer.key is in use"), "{error}");
        // To look at it is nobody's business but the owner's, and allowed.
        let seen = load_or_create_keypair(&path).unwrap();
        assert_eq!(seen.public(), first.keypair.public());
        drop(first);
        lock_keypair(&path).unwrap();
    }

    /// As libp2p writes it: type, length, seed, public key. A version that could not read it would be another peer.
    #[test]
    fn a_golden_file_is_the_same_peer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("peer.key");
        let public = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8";
        let seed: String = (0..32).map(|byte| format!("{byte:02x}")).collect();
        let golden = format!("08011240{seed}{public}");
        let bytes = (0..golden.len() / 2).map(|at| u8::from_str_radix(&golden[2 * at..][..2], 16).unwrap());
        std::fs::write(&path, bytes.collect::<Vec<u8>>()).unwrap();
        let keypair = load_or_create_keypair(&path).unwrap();
        assert_eq!(
            keypair.public().to_peer_id().to_string(),
            "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"
        );
        let written: String =
            keypair.to_protobuf_encoding().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(written, golden);
    }

    #[test]
    fn a_second_start_has_the_same_peer_id() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made").join("peer.key");
        let first = load_or_create_keypair(&path).unwrap();
        let second = load_or_create_keypair(&path).unwrap();
        assert_eq!(first.public().to_peer_id(), second.public().to_peer_id());
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_the_key() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("peer.key");
        load_or_create_keypair(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_broken_file_is_named_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("peer.key");
        std::fs::write(&path, b"not a key").unwrap();
        let error = load_or_create_keypair(&path).unwrap_err();
        assert!(error.to_string().contains("peer.key"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"not a key");
    }

    #[test]
    fn a_file_too_large_to_be_a_key_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("peer.key");
        let n_bytes = usize::try_from(files::FILE_BYTES_MAX).unwrap() + 1;
        std::fs::write(&path, vec![0; n_bytes]).unwrap();
        assert!(matches!(load_or_create_keypair(&path), Err(IdentityError::Io { .. })));
    }
}
