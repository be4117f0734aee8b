//! The store of convicted peers: their keys, permanently, and the newest pieces of evidence.
//!
//! A piece is as large as a model, and anybody may read it: so it stays on the disk, and a reader holds one chunk and one
//! of few slots. When all are taken, the address with the most readers loses one.

mod fetching;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};

use barnraise_protocol::access::{ConvictedWork, PublicKey};
use barnraise_protocol::bulk::{ChunkSource, Transfer, Withdrawn};
use barnraise_protocol::evidence::{ENTRIES_MAX, Evidence, EvidenceEntry, EvidenceError};
use barnraise_protocol::sealed::{self, ObjectKind, SealError};
use barnraise_swarm::AddressGroup;
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

pub(crate) use self::fetching::{EvidenceFetchError, PACE, SeenEvidence, fetch_next, is_same};
use crate::storage::{Storage, StorageError};

pub(crate) const FOLDER: &str = "evidence";
const CONVICTED: ObjectKind = ObjectKind { name: *b"cnvt", what: "list of convicted peers", version: 3 };
/// Most convicted peers that are refused; beyond that the oldest convictions are dropped.
const CONVICTED_MAX: usize = 100_000;
const CONVICTED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Readers of evidence at a time, and those of one address.
const READERS_MAX: usize = 8;
const READERS_PER_GROUP: usize = 2;

/// Why evidence could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceStoreError {
    /// From the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The list of convicted peers, or that of recomputed ones.
    #[error("the lists of convicted and recomputed peers: {0}")]
    Seal(#[from] SealError),
    /// A piece of evidence.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    /// No evidence against the peer is stored.
    #[error("there is no evidence against {0}")]
    Unknown(PublicKey),
    /// All reader slots are taken.
    #[error(
        "all slots for readers of evidence are taken, or {READERS_PER_GROUP} by this address; ask again later"
    )]
    NoPlace,
}

/// A conviction of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conviction {
    /// The peer.
    pub peer: PublicKey,
    /// For what.
    pub work: ConvictedWork,
    /// The evidence, where it is still stored.
    pub evidence: Option<Transfer>,
}

/// The convicted peers of a run. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EvidenceStore {
    storage: Storage,
    /// In the order in which they were convicted.
    convicted: Arc<Mutex<Vec<Conviction>>>,
    readers: Readers,
}

/// Readers of evidence, in the order in which they began.
type Readers = Arc<StdMutex<VecDeque<(u64, AddressGroup)>>>;

/// A piece of evidence on the disk, for one reader.
#[derive(Debug)]
pub struct Piece {
    storage: Storage,
    path: ObjectPath,
    n_bytes: u64,
    number: u64,
    readers: Readers,
}

impl EvidenceStore {
    /// The store in `storage`.
    ///
    /// # Errors
    /// The list of convicted peers cannot be read.
    pub async fn open(storage: Storage) -> Result<Self, EvidenceStoreError> {
        let kept = storage.get(&convicted_path(), CONVICTED_BYTES_MAX).await?;
        let convicted = match kept {
            Some(bytes) => sealed::open_parts::<Vec<Conviction>>(CONVICTED, &bytes)?.0,
            None => Vec::new(),
        };
        Ok(Self { storage, convicted: Arc::new(Mutex::new(convicted)), readers: Arc::default() })
    }

    /// All convictions.
    pub async fn convicted(&self) -> Vec<Conviction> {
        self.convicted.lock().await.clone()
    }

    /// Stores a conviction, with its evidence where it `is_kept`; `false` where the peer was convicted already.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn convict(&self, evidence: &Evidence, is_kept: bool) -> Result<bool, EvidenceStoreError> {
        let peer = evidence.peer();
        let mut convicted = self.convicted.lock().await;
        if convicted.iter().any(|known| known.peer == peer) {
            return Ok(false);
        }
        let mut conviction = Conviction { peer, work: evidence.work(), evidence: None };
        if is_kept {
            let bytes = evidence.encode()?;
            let transfer = Transfer::of(&bytes);
            match self.storage.put(&path(peer), bytes).await {
                Ok(()) => conviction.evidence = Some(transfer),
                // It is as large as a model. The list is small, and a full disk lets nobody off.
                Err(error) => tracing::warn!(%peer, %error, "the evidence against a peer is not stored"),
            }
        }
        let mut list = convicted.clone();
        list.push(conviction);
        let n_over = list.len().saturating_sub(CONVICTED_MAX);
        list.drain(..n_over);
        // Of old convictions the evidence is deleted.
        let mut with_evidence = list.iter_mut().rev().filter(|known| known.evidence.is_some());
        let gone = with_evidence.nth(ENTRIES_MAX).map(|known| {
            known.evidence = None;
            known.peer
        });
        self.storage.put(&convicted_path(), sealed::seal_parts(CONVICTED, &list, &[])?).await?;
        // One that was not written is tried again.
        *convicted = list;
        if let Some(gone) = gone {
            self.storage.delete(&path(gone)).await?;
        }
        Ok(true)
    }

    /// The evidence that can be fetched, newest first.
    pub async fn listed(&self) -> Vec<EvidenceEntry> {
        let convicted = self.convicted.lock().await;
        let newest = convicted.iter().rev();
        let listed =
            newest.filter_map(|known| Some(EvidenceEntry { peer: known.peer, transfer: known.evidence? }));
        listed.take(ENTRIES_MAX).collect()
    }

    /// The evidence against a peer, for a reader of that address group.
    ///
    /// # Errors
    /// There is none, or no slot for another reader.
    pub async fn read(
        &self,
        peer: PublicKey,
        group: AddressGroup,
    ) -> Result<(Transfer, Piece), EvidenceStoreError> {
        let known = self.convicted.lock().await.iter().find(|known| known.peer == peer).copied();
        let transfer = known.and_then(|known| known.evidence).ok_or(EvidenceStoreError::Unknown(peer))?;
        let number = self.take_place(group).ok_or(EvidenceStoreError::NoPlace)?;
        let (storage, readers) = (self.storage.clone(), self.readers.clone());
        Ok((transfer, Piece { storage, path: path(peer), n_bytes: transfer.n_bytes, number, readers }))
    }

    fn take_place(&self, group: AddressGroup) -> Option<u64> {
        let mut readers = lock(&self.readers);
        let n_of = |group| readers.iter().filter(|(_, of)| *of == group).count();
        let own = n_of(group);
        if own >= READERS_PER_GROUP {
            return None;
        }
        if readers.len() >= READERS_MAX {
            // The oldest reader of an address that has more than this one would have.
            let gives_way = readers.iter().position(|(_, of)| n_of(*of) > own + 1)?;
            readers.remove(gives_way);
        }
        let number = readers.back().map_or(0, |(newest, _)| newest + 1);
        readers.push_back((number, group));
        Some(number)
    }
}

impl ChunkSource for Piece {
    fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    async fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Withdrawn> {
        if !lock(&self.readers).iter().any(|(number, _)| *number == self.number) {
            return Err(Withdrawn::because("others wait to read evidence; ask again later"));
        }
        let bytes = self.storage.get_range(&self.path, range).await;
        bytes.map(|bytes| bytes.to_vec()).map_err(|_| Withdrawn::because("the evidence is kept no more"))
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        lock(&self.readers).retain(|(number, _)| *number != self.number);
    }
}

fn lock(readers: &StdMutex<VecDeque<(u64, AddressGroup)>>) -> MutexGuard<'_, VecDeque<(u64, AddressGroup)>> {
    readers.lock().unwrap_or_else(PoisonError::into_inner)
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
    use barnraise_protocol::commitment::{Commitment, SampleId, encode_samples};
    use barnraise_protocol::dataset::ShardEntry;
    use barnraise_protocol::evidence::{ContributionEvidence, EvidenceHeader};
    use barnraise_protocol::gradient::Offer;
    use barnraise_protocol::run::{GradientCodec, RunDescription, run_hash};
    use barnraise_protocol::{Sha256Hash, TensorCodec};

    use super::*;
    use crate::fixture;

    fn run() -> RunDescription {
        let mut run = fixture::run();
        run.synchronous_mut().unwrap().gradient_codec = GradientCodec::F32;
        run.synchronous_mut().unwrap().recomputed = true;
        let manifest = &mut run.data.manifest;
        manifest.shards = vec![ShardEntry { n_samples: 4, ..manifest.gallery }];
        run
    }

    /// Evidence with a valid commitment.
    fn evidence(name: u8) -> Evidence {
        let (key, run) = (KeyPair::from_seed(&[name; 32]), run());
        let (gradient, parameters) = (vec![0; 8], vec![0; 8]);
        let codec = TensorCodec::F32;
        let transfer = Transfer::of(&gradient);
        let offer =
            Offer { contribution_id: 1, epoch: 3, n_samples: 2, loss: 1.0, n_values: 2, codec, transfer };
        let samples = encode_samples(&[0, 3].map(|index| SampleId { shard: 0, index }), &run.data.manifest);
        let state = (Sha256Hash::of(&parameters), 3);
        let commitment =
            Commitment::sign(&key, run_hash(&run).unwrap(), &offer, state, (2, &samples)).unwrap();
        let header = EvidenceHeader { peer: key.public(), run, offer, commitment };
        let evidence = ContributionEvidence { header, samples, gradient, parameters };
        Evidence::Contribution(Box::new(evidence))
    }

    /// The list as this version wrote it, byte by byte; a piece of evidence is as it travels.
    #[tokio::test]
    async fn golden_bytes() {
        let storage = Storage::in_memory();
        let transfer = Transfer { n_bytes: 300, sha256: Sha256Hash([5; 32]) };
        let convicted = [
            Conviction {
                peer: PublicKey([1; 32]),
                work: ConvictedWork::Contribution { epoch: 300 },
                evidence: Some(transfer),
            },
            Conviction {
                peer: PublicKey([2; 32]),
                work: ConvictedWork::ExpertAnswer { n_steps: 4 },
                evidence: None,
            },
        ];
        let bytes = sealed::seal_parts(CONVICTED, &convicted.to_vec(), &[]).unwrap();
        assert_eq!(crate::storage::hex(&bytes), GOLDEN);
        assert_eq!(convicted_path().to_string(), "evidence/convicted");
        storage.put(&convicted_path(), bytes).await.unwrap();
        assert_eq!(EvidenceStore::open(storage).await.unwrap().convicted().await, convicted);
    }

    const GOLDEN: &str = "\
    6261726e72616973636e767403006e000000000000006fbf4117c356c23c15d39dc016f98fc90f5457da2b2af025279c270b\
    ce293d746a00000002010101010101010101010101010101010101010101010101010101010101010100ac0201ac02050505\
    0505050505050505050505050505050505050505050505050505050505020202020202020202020202020202020202020202\
    0202020202020202020202010400\
    ";

    #[tokio::test]
    async fn who_was_convicted_stays_it_and_the_newest_evidence_is_kept() {
        let storage = Storage::in_memory();
        let store = EvidenceStore::open(storage.clone()).await.unwrap();
        let n = u8::try_from(ENTRIES_MAX + 2).unwrap();
        for name in 0..n {
            assert!(store.convict(&evidence(name), true).await.unwrap());
            assert!(!store.convict(&evidence(name), true).await.unwrap(), "twice");
        }
        let store = EvidenceStore::open(storage).await.unwrap();
        let convicted = store.convicted().await;
        assert_eq!(
            (convicted.len(), convicted[0].work),
            (usize::from(n), ConvictedWork::Contribution { epoch: 3 })
        );
        let listed = store.listed().await;
        assert_eq!((listed.len(), listed[0].peer), (ENTRIES_MAX, evidence(n - 1).peer()));
        for known in listed {
            let (transfer, piece) = store.read(known.peer, HERE).await.unwrap();
            let bytes = piece.read(0..transfer.n_bytes).await.unwrap();
            assert_eq!((transfer, Transfer::of(&bytes)), (known.transfer, known.transfer));
            assert!(
                matches!(Evidence::decode(&bytes).unwrap(), Evidence::Contribution(piece) if piece.verify(2).is_ok())
            );
        }
        let gone = store.read(evidence(0).peer(), HERE).await;
        assert!(matches!(gone, Err(EvidenceStoreError::Unknown(_))));
    }

    const HERE: AddressGroup = AddressGroup(1);

    #[tokio::test]
    async fn whose_evidence_is_not_kept_stays_out_all_the_same_and_takes_no_place_of_others() {
        let storage = Storage::in_memory();
        let store = EvidenceStore::open(storage.clone()).await.unwrap();
        store.convict(&evidence(0), true).await.unwrap();
        for name in 1..=u8::try_from(2 * ENTRIES_MAX).unwrap() {
            assert!(store.convict(&evidence(name), false).await.unwrap());
        }
        let store = EvidenceStore::open(storage).await.unwrap();
        assert_eq!(store.convicted().await.len(), 2 * ENTRIES_MAX + 1);
        let listed: Vec<_> = store.listed().await.iter().map(|listed| listed.peer).collect();
        assert_eq!(listed, [evidence(0).peer()]);
    }

    #[tokio::test]
    async fn readers_hold_a_place_and_no_bytes_and_the_greediest_address_gives_way() {
        let store = EvidenceStore::open(Storage::in_memory()).await.unwrap();
        store.convict(&evidence(0), true).await.unwrap();
        let peer = evidence(0).peer();
        let read = |group| store.read(peer, AddressGroup(group));
        let mut pieces = Vec::new();
        for group in 0..4 {
            for _ in 0..READERS_PER_GROUP {
                pieces.push(read(group).await.unwrap().1);
            }
            assert!(
                matches!(read(group).await, Err(EvidenceStoreError::NoPlace)),
                "another of the same address"
            );
        }
        assert_eq!(lock(&store.readers).len(), READERS_MAX);
        let newcomer = read(9).await.unwrap().1;
        assert_eq!(lock(&store.readers).len(), READERS_MAX);
        newcomer.read(0..10).await.unwrap();
        let told = pieces[0].read(0..10).await.unwrap_err();
        assert!(told.to_string().contains("ask again later"), "{told}");
        for piece in &pieces[1..] {
            piece.read(0..10).await.unwrap();
        }
        drop((pieces, newcomer));
        assert!(lock(&store.readers).is_empty());
    }
}
