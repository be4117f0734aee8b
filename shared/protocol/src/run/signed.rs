//! The authority's word for a description, which participants that hand it on can show.

use serde::{Deserialize, Serialize};

use super::RunDescription;
use crate::access::{KeyPair, Signature};
use crate::hash::Sha256Hash;

/// SHA-256 of a run's description, hashes of its data included.
///
/// # Errors
/// Does not happen.
pub fn run_hash(run: &RunDescription) -> Result<Sha256Hash, postcard::Error> {
    Ok(Sha256Hash::of(&postcard::to_allocvec(run)?))
}

/// What a signature begins with.
const DOMAIN: &[u8] = b"barnraise run 1\0";

/// A run's description, with its authority's signature where who tells it has that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignedRun {
    /// The description.
    pub run: RunDescription,
    /// Of the key `run.access.authority`.
    pub signature: Option<Signature>,
}

impl SignedRun {
    /// Signs a description, if the key is that of its authority.
    ///
    /// # Errors
    /// Does not happen.
    pub fn by(key: &KeyPair, run: RunDescription) -> Result<Self, postcard::Error> {
        let is_authority = key.public() == run.access.authority;
        let signature = is_authority.then(|| signed_bytes(&run)).transpose()?.map(|bytes| key.sign(&bytes));
        Ok(Self { run, signature })
    }

    /// Whether the run is that of its authority: not only that somebody says so.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        let Ok(bytes) = signed_bytes(&self.run) else { return false };
        self.signature.is_some_and(|signature| self.run.access.authority.has_signed(&bytes, &signature))
    }
}

fn signed_bytes(run: &RunDescription) -> Result<Vec<u8>, postcard::Error> {
    Ok([DOMAIN, &run_hash(run)?.0].concat())
}
