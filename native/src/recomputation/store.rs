//! What is kept of peers that were convicted: who they are, for good, and the newest pieces of evidence.

use std::sync::Arc;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::evidence::{Evidence, EvidenceError, LISTED_MAX, Listed};
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::storage::sealed::{self, Kind, SealError};
use crate::storage::{Storage, StorageError};

const FOLDER: &str = "evidence";
const CONVICTED: Kind = Kind { name: *b"cnvt", what: "list of convicted peers", version: 1 };
/// Most peers that are kept from taking part; those convicted first are let back in first.
const CONVICTED_MAX: usize = 100_000;
const CONVICTED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Largest piece of evidence.
const EVIDENCE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Why evidence could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceStoreError {
    /// From the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The list of the convicted.
    #[error("the list of convicted peers: {0}")]
    Seal(#[from] SealError),
    /// A piece of evidence.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
}

/// Who was convicted, and of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conviction {
    /// Who.
    pub peer: PublicKey,
    /// Of the contribution.
    pub epoch: u64,
    /// The evidence, where it is kept still.
    pub evidence: Transfer,
}

/// The convicted of a run. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EvidenceStore {
    storage: Storage,
    /// In the order in which they were convicted.
    convicted: Arc<Mutex<Vec<Conviction>>>,
    /// A piece of evidence at a time is read for others: it is as large as a model.
    reading: Arc<Mutex<()>>,
}

impl EvidenceStore {
    /// What is in `storage`.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn open(storage: Storage) -> Result<Self, EvidenceStoreError> {
        let kept = storage.get(&convicted_path(), CONVICTED_BYTES_MAX).await?;
        let convicted = match kept {
            Some(bytes) => sealed::open_parts::<Vec<Conviction>>(CONVICTED, &bytes)?.0,
            None => Vec::new(),
        };
        Ok(Self { storage, convicted: Arc::new(Mutex::new(convicted)), reading: Arc::default() })
    }

    /// All of them.
    pub async fn convicted(&self) -> Vec<Conviction> {
        self.convicted.lock().await.clone()
    }

    /// Keeps a piece of evidence; `false` where there is one against that peer already.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn convict(&self, evidence: &Evidence) -> Result<bool, EvidenceStoreError> {
        let peer = evidence.header.peer;
        let mut convicted = self.convicted.lock().await;
        if convicted.iter().any(|known| known.peer == peer) {
            return Ok(false);
        }
        let bytes = evidence.encode()?;
        let conviction =
            Conviction { peer, epoch: evidence.header.offer.epoch, evidence: Transfer::of(&bytes) };
        self.storage.put(&path(peer), bytes).await?;
        convicted.push(conviction);
        let n_over = convicted.len().saturating_sub(CONVICTED_MAX);
        convicted.drain(..n_over);
        let list = sealed::seal_parts(CONVICTED, &*convicted, &[])?;
        self.storage.put(&convicted_path(), list).await?;
        // Of those who were convicted long ago it is known that they were.
        let gone = convicted.len().checked_sub(LISTED_MAX + 1).and_then(|index| convicted.get(index));
        if let Some(gone) = gone {
            self.storage.delete(&path(gone.peer)).await?;
        }
        Ok(true)
    }

    /// The evidence that others can have, the newest first.
    pub async fn listed(&self) -> Vec<Listed> {
        let convicted = self.convicted.lock().await;
        let newest = convicted.iter().rev().take(LISTED_MAX);
        newest.map(|known| Listed { peer: known.peer, transfer: known.evidence }).collect()
    }

    /// The evidence against a peer, encoded.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn get(&self, peer: PublicKey) -> Result<Option<(Transfer, Vec<u8>)>, EvidenceStoreError> {
        let known = self.convicted.lock().await.iter().find(|known| known.peer == peer).copied();
        let Some(known) = known else { return Ok(None) };
        let _reading = self.reading.lock().await;
        let bytes = self.storage.get(&path(peer), EVIDENCE_BYTES_MAX).await?;
        Ok(bytes.map(|bytes| (known.evidence, bytes.to_vec())))
    }
}

fn convicted_path() -> ObjectPath {
    ObjectPath::from_iter([FOLDER, "convicted"])
}

fn path(peer: PublicKey) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &peer.to_string()])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::KeyPair;
    use barnraise_protocol::account::{Account, SampleId, encode_samples, hash_of};
    use barnraise_protocol::dataset::{Manifest, ShardEntry};
    use barnraise_protocol::evidence::EvidenceHeader;
    use barnraise_protocol::gradient::Offer;
    use barnraise_protocol::run::RunDescription;
    use barnraise_protocol::{Sha256Hash, TensorCodec};

    use super::*;
    use crate::fixture;

    fn run() -> RunDescription {
        let run = fixture::run();
        let shard = ShardEntry { n_samples: 4, ..run.manifest.gallery };
        let manifest = Manifest { shards: vec![shard], ..run.manifest };
        RunDescription {
            n_parameters: 2,
            gradient_codec: TensorCodec::F32,
            recomputed: true,
            manifest,
            ..run
        }
    }

    /// Whatever is in it, its peer signed for it.
    fn evidence(name: u8) -> Evidence {
        let (key, run) = (KeyPair::from_seed(&[name; 32]), run());
        let (gradient, parameters) = (vec![0; 8], vec![0; 8]);
        let codec = TensorCodec::F32;
        let transfer = Transfer::of(&gradient);
        let offer =
            Offer { contribution_id: 1, epoch: 3, n_samples: 2, loss: 1.0, n_values: 2, codec, transfer };
        let samples = encode_samples(&[0, 3].map(|index| SampleId { shard: 0, index }));
        let state = (Sha256Hash::of(&parameters), 3);
        let account = Account::sign(&key, hash_of(&run).unwrap(), &offer, state, &samples).unwrap();
        let header = EvidenceHeader { peer: key.public(), run, offer, account };
        Evidence { header, samples, gradient, parameters }
    }

    #[tokio::test]
    async fn who_was_convicted_stays_it_and_the_newest_evidence_is_kept() {
        let storage = Storage::in_memory();
        let store = EvidenceStore::open(storage.clone()).await.unwrap();
        let n = u8::try_from(LISTED_MAX + 2).unwrap();
        for name in 0..n {
            assert!(store.convict(&evidence(name)).await.unwrap());
            assert!(!store.convict(&evidence(name)).await.unwrap(), "twice");
        }
        let store = EvidenceStore::open(storage).await.unwrap();
        let convicted = store.convicted().await;
        assert_eq!((convicted.len(), convicted[0].epoch), (usize::from(n), 3));
        let listed = store.listed().await;
        assert_eq!((listed.len(), listed[0].peer), (LISTED_MAX, evidence(n - 1).header.peer));
        for known in listed {
            let (transfer, bytes) = store.get(known.peer).await.unwrap().unwrap();
            assert_eq!((transfer, Transfer::of(&bytes)), (known.transfer, known.transfer));
            Evidence::decode(&bytes).unwrap().claim().unwrap();
        }
        assert_eq!(store.get(evidence(0).header.peer).await.unwrap(), None);
    }
}
