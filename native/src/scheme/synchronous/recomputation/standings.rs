//! Standings of keys and addresses (probation passed, suspicion), stored over a restart.

use barnraise_protocol::sealed::{self, ObjectKind};
use barnraise_swarm::recomputation::PersistentRecomputation;
use object_store::path::Path as ObjectPath;

use crate::host::evidence::{EvidenceStoreError, FOLDER};
use crate::storage::Storage;

const STANDINGS: ObjectKind =
    ObjectKind { name: *b"stnd", what: "list of keys that were recomputed", version: 1 };
/// Five times the size of the largest list of keys and addresses.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// One object in the run's folder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Standings(Storage);

impl Standings {
    /// The standings in `storage`.
    pub fn new(storage: Storage) -> Self {
        Self(storage)
    }

    /// The stored standings; empty at first.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn read(&self) -> Result<PersistentRecomputation, EvidenceStoreError> {
        let kept = self.0.get(&path(), BYTES_MAX).await?;
        let lasting = kept.map(|bytes| sealed::open_parts(STANDINGS, &bytes).map(|(lasting, _)| lasting));
        Ok(lasting.transpose()?.unwrap_or_default())
    }

    /// Replaces the stored standings.
    ///
    /// # Errors
    /// They cannot be written.
    pub async fn keep(&self, lasting: &PersistentRecomputation) -> Result<(), EvidenceStoreError> {
        Ok(self.0.put(&path(), sealed::seal_parts(STANDINGS, lasting, &[])?).await?)
    }
}

fn path() -> ObjectPath {
    ObjectPath::from_iter([FOLDER, "standings"])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use barnraise_swarm::AddressGroup;
    use barnraise_swarm::recomputation::{SuspectedAddress, VerifiedKey};

    use super::*;

    fn lasting() -> PersistentRecomputation {
        PersistentRecomputation {
            passed: vec![
                VerifiedKey { peer: vec![1; 38], n_right: 3, largest: 300 },
                VerifiedKey { peer: vec![2; 38], n_right: 1, largest: 8 },
            ],
            suspected: vec![SuspectedAddress {
                group: AddressGroup(9),
                left: Duration::from_millis(1500),
                n_convicted: 2,
            }],
            lengths: vec![0.5, 2.0],
        }
    }

    #[tokio::test]
    async fn what_is_kept_is_read_again() {
        let standings = Standings::new(Storage::in_memory());
        assert_eq!(standings.read().await.unwrap(), PersistentRecomputation::default());
        standings.keep(&lasting()).await.unwrap();
        assert_eq!(standings.read().await.unwrap(), lasting());
    }

    #[test]
    fn golden_bytes() {
        let bytes = sealed::seal_parts(STANDINGS, &lasting(), &[]).unwrap();
        assert_eq!(crate::storage::hex(&bytes), GOLDEN);
        assert_eq!(path().to_string(), "evidence/standings");
    }

    const GOLDEN: &str = "\
    6261726e7261697373746e64010072000000000000009afbf286b8bdd5fd6f52e8629976cbf787520bc1002526a033b975cd\
    48098ff26e0000000226010101010101010101010101010101010101010101010101010101010101010101010101010103ac\
    02260202020202020202020202020202020202020202020202020202020202020202020202020202010801090180cab5ee01\
    0202000000000000e03f0000000000000040\
    ";
}
