//! What was found out about keys and addresses, kept over a restart.

use barnraise_swarm::recomputation::Lasting;
use object_store::path::Path as ObjectPath;

use super::EvidenceStoreError;
use super::store::FOLDER;
use crate::storage::Storage;
use crate::storage::sealed::{self, Kind};

const STANDINGS: Kind = Kind { name: *b"stnd", what: "list of keys that were recomputed", version: 1 };
/// As many keys and addresses as are remembered take a fifth of that.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// One object in the run's folder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Standings(Storage);

impl Standings {
    /// In `storage`.
    pub fn new(storage: Storage) -> Self {
        Self(storage)
    }

    /// What is kept; nothing at first.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn read(&self) -> Result<Lasting, EvidenceStoreError> {
        let kept = self.0.get(&path(), BYTES_MAX).await?;
        let lasting = kept.map(|bytes| sealed::open_parts(STANDINGS, &bytes).map(|(lasting, _)| lasting));
        Ok(lasting.transpose()?.unwrap_or_default())
    }

    /// Keeps this in the place of what was kept.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn keep(&self, lasting: &Lasting) -> Result<(), EvidenceStoreError> {
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

    use barnraise_swarm::recomputation::{Passed, Suspected};
    use barnraise_swarm::round::AddressGroup;

    use super::*;

    fn lasting() -> Lasting {
        Lasting {
            passed: vec![
                Passed { peer: vec![1; 38], n_right: 3, largest: 300 },
                Passed { peer: vec![2; 38], n_right: 1, largest: 8 },
            ],
            suspected: vec![Suspected {
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
        assert_eq!(standings.read().await.unwrap(), Lasting::default());
        standings.keep(&lasting()).await.unwrap();
        assert_eq!(standings.read().await.unwrap(), lasting());
    }

    #[test]
    fn golden_bytes() {
        let bytes = sealed::seal_parts(STANDINGS, &lasting(), &[]).unwrap();
        assert_eq!(sealed::hex(&bytes), GOLDEN);
        assert_eq!(path().to_string(), "evidence/standings");
    }

    const GOLDEN: &str = "\
    6261726e7261697373746e64010072000000000000009afbf286b8bdd5fd6f52e8629976cbf787520bc1002526a033b975cd\
    48098ff26e0000000226010101010101010101010101010101010101010101010101010101010101010101010101010103ac\
    02260202020202020202020202020202020202020202020202020202020202020202020202020202010801090180cab5ee01\
    0202000000000000e03f0000000000000040\
    ";
}
