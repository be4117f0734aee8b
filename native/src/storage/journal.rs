//! The write-ahead journal: every contribution is stored here before its sender is told that it
//! counts.
//!
//! An object per contribution, `journal/{epoch}/{seq}.grad`, and one per optimizer step,
//! `journal/{epoch}/commit`, written before the step's result is shown to anyone. A restart loads a
//! checkpoint of epoch E, repeats the committed steps E, E + 1, … with exactly the contributions that
//! each used, and takes the entries of the first epoch without a commit as its open ones.
//!
//! It never decides what counts, and never touches an entry that was written.

use barnraise_protocol::access::UnixTime;
use barnraise_protocol::gradient::Offer;
use barnraise_swarm::robust::Aggregation;
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

use super::sealed::{self, Kind, SealError};
use super::{SetAside, Storage, StorageError};

const ENTRY: Kind = Kind { name: *b"grad", version: 2 };
/// Without time and duration. Still read, so that what was accepted survives an update of this program.
const ENTRY_WITHOUT_TIME: Kind = Kind { name: *b"grad", version: 1 };
const COMMIT: Kind = Kind { name: *b"cmit", version: 2 };
/// From before a step said how it was aggregated: by the mean.
const COMMIT_OF_MEAN: Kind = Kind { name: *b"cmit", version: 1 };
const FOLDER: &str = "journal";
/// Not a number, so that no epoch is named like it.
const CORRUPT: &str = "corrupt";
const COMMIT_NAME: &str = "commit";
/// Largest object of the journal.
pub const ENTRY_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Most contributions of one optimizer step.
pub const ENTRIES_MAX: usize = 100_000;

/// One accepted contribution.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    /// Bytes of the contributor's peer id.
    pub peer: Vec<u8>,
    /// What it offered: contribution id, weight, loss, codec.
    pub offer: Offer,
    /// Since its contribution before, or since it joined.
    pub milliseconds: u32,
    /// When it was accepted.
    pub accepted_at: UnixTime,
    /// The gradient, as it came.
    pub payload: Vec<u8>,
}

/// Which contributions an optimizer step used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// The epoch that the step ended.
    pub epoch: u64,
    /// Samples behind the mean.
    pub n_samples: u64,
    /// The entries, in the order in which they were summed.
    pub seqs: Vec<u32>,
    /// How they became one gradient: the configuration may be another one by the time the step is repeated.
    pub aggregation: Aggregation,
}

/// The payload of [`COMMIT_OF_MEAN`].
#[derive(Serialize, Deserialize)]
struct CommitOfMean {
    epoch: u64,
    n_samples: u64,
    seqs: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct EntryHeader {
    peer: Vec<u8>,
    offer: Offer,
    milliseconds: u32,
    accepted_at: UnixTime,
}

#[derive(Serialize, Deserialize)]
struct HeaderWithoutTime {
    peer: Vec<u8>,
    offer: Offer,
}

/// Why the journal could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// From the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Could not be encoded.
    #[error("journal object {path} cannot be written: {source}")]
    Encode {
        /// The object.
        path: String,
        /// Why.
        source: SealError,
    },
    /// More than would be read back.
    #[error("journal object {path} has {got} bytes, at most {ENTRY_BYTES_MAX} can be stored")]
    TooLarge {
        /// The object.
        path: String,
        /// Encoded size.
        got: u64,
    },
    /// More contributions than one step may have.
    #[error("epoch {epoch} has {got} journal entries, at most {ENTRIES_MAX} are read")]
    TooMany {
        /// The epoch.
        epoch: u64,
        /// Entries found.
        got: usize,
    },
}

/// The readable entries of an epoch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entries {
    /// Sequence number and contribution, in the order of their numbers.
    pub entries: Vec<(u32, JournalEntry)>,
    /// Those that were damaged. One that was torn by a crash was never acknowledged.
    pub set_aside: Vec<SetAside>,
}

/// The journal of one run.
#[derive(Debug, Clone)]
pub struct Journal {
    storage: Storage,
}

impl Journal {
    /// The journal within a storage.
    pub fn new(storage: Storage) -> Self {
        Self { storage }
    }

    /// Stores a contribution. Once this returns, a crash does not lose it.
    pub async fn append(&self, epoch: u64, seq: u32, entry: &JournalEntry) -> Result<(), JournalError> {
        let path = entry_path(epoch, seq);
        let header = header_of(entry);
        let bytes = sealed::seal_parts(ENTRY, &header, &[&entry.payload]);
        self.write(&path, bytes).await
    }

    /// Stores that the step of `record.epoch` used exactly these entries.
    pub async fn commit(&self, record: &CommitRecord) -> Result<(), JournalError> {
        let bytes = sealed::seal_parts(COMMIT, record, &[]);
        self.write(&commit_path(record.epoch), bytes).await
    }

    /// The commits of `from_epoch`, `from_epoch + 1`, … up to the first epoch that has none.
    ///
    /// A damaged commit ends the list, and its step is taken back. One that a crash tore was never shown to
    /// anyone.
    pub async fn commits(&self, from_epoch: u64) -> Result<Vec<CommitRecord>, JournalError> {
        let mut records = Vec::new();
        for epoch in from_epoch.. {
            let path = commit_path(epoch);
            let Some(bytes) = self.read(&path).await? else { break };
            let record = bytes.and_then(|bytes| decode_commit(&bytes, epoch));
            match record {
                Ok(record) => records.push(record),
                Err(reason) => {
                    self.take_back(epoch, &reason).await?;
                    break;
                }
            }
        }
        Ok(records)
    }

    /// The epochs of which there was ever anything, in their order.
    pub async fn epochs(&self) -> Result<Vec<u64>, JournalError> {
        let mut epochs: Vec<u64> = self.folders().await?.into_iter().map(|(epoch, _)| epoch).collect();
        epochs.sort_unstable();
        Ok(epochs)
    }

    async fn folders(&self) -> Result<Vec<(u64, ObjectPath)>, JournalError> {
        let (_, folders) = self.storage.list_level(&ObjectPath::from(FOLDER)).await?;
        let epoch = |folder: &ObjectPath| folder.filename()?.parse().ok();
        Ok(folders.into_iter().filter_map(|folder| Some((epoch(&folder)?, folder))).collect())
    }

    /// The contributions stored for an epoch; damaged ones are moved to `journal/corrupt/`.
    pub async fn entries(&self, epoch: u64) -> Result<Entries, JournalError> {
        let (objects, _) = self.storage.list_level(&epoch_path(epoch)).await?;
        let seq = |path: &ObjectPath| path.filename()?.strip_suffix(".grad")?.parse().ok();
        let mut found: Vec<(u32, ObjectPath)> =
            objects.into_iter().filter_map(|path| Some((seq(&path)?, path))).collect();
        found.sort_by_key(|(seq, _)| *seq);
        if found.len() > ENTRIES_MAX {
            return Err(JournalError::TooMany { epoch, got: found.len() });
        }
        let mut result = Entries::default();
        for (seq, path) in found {
            let Some(bytes) = self.read(&path).await? else { continue };
            match bytes.and_then(|bytes| decode_entry(&bytes, epoch)) {
                Ok(entry) => result.entries.push((seq, entry)),
                Err(reason) => {
                    let name = path.filename().unwrap_or_default().to_owned();
                    result.set_aside.push(self.set_aside(epoch, &name, &path, reason).await?);
                }
            }
        }
        Ok(result)
    }

    /// Takes the step of `epoch` back: its commit, and all of the later epochs, which were computed on its
    /// result, are moved to `journal/corrupt/`. The entries of `epoch` are open again.
    pub async fn take_back(&self, epoch: u64, reason: &str) -> Result<(), JournalError> {
        for (later, folder) in self.folders().await?.into_iter().filter(|(later, _)| *later > epoch) {
            for object in self.storage.list(&folder).await? {
                let name = object.location.filename().unwrap_or_default().to_owned();
                let because = format!("the step of epoch {epoch} was taken back: {reason}");
                self.set_aside(later, &name, &object.location, because).await?;
            }
        }
        self.set_aside(epoch, COMMIT_NAME, &commit_path(epoch), reason.to_owned()).await?;
        Ok(())
    }

    /// Forgets every epoch before this one. Call it with what `Checkpoints::save` returned.
    pub async fn truncate(&self, before_epoch: u64) -> Result<(), JournalError> {
        for (_, folder) in self.folders().await?.into_iter().filter(|(epoch, _)| *epoch < before_epoch) {
            for object in self.storage.list(&folder).await? {
                self.storage.delete(&object.location).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, path: &ObjectPath, bytes: Result<Vec<u8>, SealError>) -> Result<(), JournalError> {
        let bytes = bytes.map_err(|source| JournalError::Encode { path: path.to_string(), source })?;
        if bytes.len() as u64 > ENTRY_BYTES_MAX {
            return Err(JournalError::TooLarge { path: path.to_string(), got: bytes.len() as u64 });
        }
        Ok(self.storage.put(path, bytes).await?)
    }

    /// `None`: there is no such object. The inner error is damage.
    async fn read(&self, path: &ObjectPath) -> Result<Option<Result<bytes::Bytes, String>>, JournalError> {
        match self.storage.get(path, ENTRY_BYTES_MAX).await {
            Ok(bytes) => Ok(bytes.map(Ok)),
            Err(error @ StorageError::TooLarge { .. }) => Ok(Some(Err(error.to_string()))),
            Err(error) => Err(error.into()),
        }
    }

    async fn set_aside(
        &self,
        epoch: u64,
        name: &str,
        path: &ObjectPath,
        reason: String,
    ) -> Result<SetAside, JournalError> {
        let moved_to = ObjectPath::from_iter([FOLDER, CORRUPT, &format!("{epoch:012}-{name}")]);
        Ok(self.storage.set_aside(path, &moved_to, reason).await?)
    }
}

fn epoch_path(epoch: u64) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}")])
}

fn entry_path(epoch: u64, seq: u32) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}"), &format!("{seq:08}.grad")])
}

fn commit_path(epoch: u64) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}"), COMMIT_NAME])
}

fn decode_entry(bytes: &[u8], epoch: u64) -> Result<JournalEntry, String> {
    let opened = match sealed::open_parts(ENTRY, bytes) {
        Err(SealError::Version { got: 1, .. }) => {
            sealed::open_parts(ENTRY_WITHOUT_TIME, bytes).map(|(header, payload)| {
                let HeaderWithoutTime { peer, offer } = header;
                (EntryHeader { peer, offer, milliseconds: 0, accepted_at: UnixTime(0) }, payload)
            })
        }
        opened => opened,
    };
    let (header, payload) = opened.map_err(|error| error.to_string())?;
    if header.offer.epoch != epoch {
        return Err(format!("it is of epoch {}, its folder is of epoch {epoch}", header.offer.epoch));
    }
    let EntryHeader { peer, offer, milliseconds, accepted_at } = header;
    Ok(JournalEntry { peer, offer, milliseconds, accepted_at, payload: payload.to_vec() })
}

fn header_of(entry: &JournalEntry) -> EntryHeader {
    let JournalEntry { peer, offer, milliseconds, accepted_at, payload: _ } = entry;
    EntryHeader {
        peer: peer.clone(),
        offer: offer.clone(),
        milliseconds: *milliseconds,
        accepted_at: *accepted_at,
    }
}

fn decode_commit(bytes: &[u8], epoch: u64) -> Result<CommitRecord, String> {
    let record = match sealed::open_parts(COMMIT, bytes) {
        Err(SealError::Version { got, .. }) if got == COMMIT_OF_MEAN.version => {
            let opened = sealed::open_parts(COMMIT_OF_MEAN, bytes);
            opened.map(|(CommitOfMean { epoch, n_samples, seqs }, _)| CommitRecord {
                epoch,
                n_samples,
                seqs,
                aggregation: Aggregation::Mean,
            })
        }
        opened => opened.map(|(record, _)| record),
    };
    let record = record.map_err(|error| error.to_string())?;
    if record.epoch != epoch {
        return Err(format!("it is of epoch {}, its folder is of epoch {epoch}", record.epoch));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::fs;

    use barnraise_protocol::bulk::Transfer;
    use barnraise_protocol::{Sha256Hash, TensorCodec};
    use proptest::prelude::*;

    use super::*;

    fn entry(epoch: u64, id: u64, payload: Vec<u8>) -> JournalEntry {
        let transfer = Transfer { n_bytes: payload.len() as u64, sha256: Sha256Hash::of(&payload) };
        let offer = Offer {
            contribution_id: id,
            epoch,
            n_samples: 64,
            loss: 0.5,
            n_values: payload.len() as u64 / 2,
            codec: TensorCodec::F16,
            transfer,
        };
        let (milliseconds, accepted_at) = (1500, UnixTime(1_800_000_000));
        JournalEntry { peer: vec![1, 2, 3], offer, milliseconds, accepted_at, payload }
    }

    fn commit(epoch: u64, seqs: &[u32]) -> CommitRecord {
        let aggregation = Aggregation::CenteredClip { places: 7 };
        CommitRecord { epoch, n_samples: 64 * seqs.len() as u64, seqs: seqs.to_vec(), aggregation }
    }

    #[tokio::test]
    async fn a_restart_finds_committed_steps_and_the_open_epoch() {
        let folder = tempfile::tempdir().unwrap();
        {
            let journal = Journal::new(Storage::open(folder.path()).unwrap());
            for (epoch, seq) in [(4, 0), (4, 1), (5, 1), (5, 0), (6, 0)] {
                journal.append(epoch, seq, &entry(epoch, seq.into(), vec![seq as u8; 20])).await.unwrap();
            }
            journal.commit(&commit(4, &[1, 0])).await.unwrap();
            journal.commit(&commit(5, &[0])).await.unwrap();
        }
        let journal = Journal::new(Storage::open(folder.path()).unwrap());
        assert_eq!(journal.epochs().await.unwrap(), [4, 5, 6]);
        assert_eq!(journal.commits(4).await.unwrap(), [commit(4, &[1, 0]), commit(5, &[0])]);
        assert_eq!(journal.commits(6).await.unwrap(), []);
        let open = journal.entries(6).await.unwrap();
        assert_eq!(open.entries, [(0, entry(6, 0, vec![0; 20]))]);
        let of_five: Vec<u32> = journal.entries(5).await.unwrap().entries.iter().map(|e| e.0).collect();
        assert_eq!(of_five, [0, 1], "in order of their numbers");
        journal.truncate(5).await.unwrap();
        assert_eq!(journal.entries(4).await.unwrap(), Entries::default());
        assert_eq!(journal.commits(4).await.unwrap(), []);
        assert_eq!(journal.commits(5).await.unwrap(), [commit(5, &[0])]);
    }

    #[tokio::test]
    async fn a_commit_of_the_version_before_is_of_a_mean() {
        let journal = Journal::new(Storage::in_memory());
        let before = CommitOfMean { epoch: 4, n_samples: 128, seqs: vec![1, 0] };
        let bytes = sealed::seal_parts(COMMIT_OF_MEAN, &before, &[]).unwrap();
        journal.storage.put(&commit_path(4), bytes).await.unwrap();
        let record = CommitRecord { aggregation: Aggregation::Mean, ..commit(4, &[1, 0]) };
        assert_eq!(journal.commits(4).await.unwrap(), [record]);
    }

    #[tokio::test]
    async fn a_torn_entry_is_set_aside_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::new(Storage::open(folder.path()).unwrap());
        let file = folder.path().join("journal/000000000003/00000001.grad");
        journal.append(3, 0, &entry(3, 0, vec![7; 40])).await.unwrap();
        journal.append(3, 1, &entry(3, 1, vec![8; 40])).await.unwrap();
        let whole = fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            fs::write(&file, &whole[..cut]).unwrap();
            let found = journal.entries(3).await.unwrap();
            assert_eq!(found.entries, [(0, entry(3, 0, vec![7; 40]))], "cut at {cut}");
            assert_eq!(found.set_aside.len(), 1);
            assert_eq!(found.set_aside[0].moved_to, "journal/corrupt/000000000003-00000001.grad");
        }
        fs::write(&file, &whole).unwrap();
        assert_eq!(journal.entries(3).await.unwrap().entries.len(), 2);
    }

    #[tokio::test]
    async fn an_entry_in_the_folder_of_another_epoch_is_not_used() {
        let journal = Journal::new(Storage::in_memory());
        journal.append(3, 0, &entry(2, 0, vec![7; 40])).await.unwrap();
        let found = journal.entries(3).await.unwrap();
        assert!(found.entries.is_empty());
        assert_eq!(found.set_aside[0].reason, "it is of epoch 2, its folder is of epoch 3");
    }

    #[test]
    fn an_entry_of_the_format_before_is_still_read() {
        let new = entry(3, 7, vec![9; 30]);
        let header = HeaderWithoutTime { peer: new.peer.clone(), offer: new.offer.clone() };
        let bytes = sealed::seal_parts(ENTRY_WITHOUT_TIME, &header, &[&new.payload]).unwrap();
        let old = JournalEntry { milliseconds: 0, accepted_at: UnixTime(0), ..new };
        assert_eq!(decode_entry(&bytes, 3).unwrap(), old);
    }

    #[tokio::test]
    async fn a_torn_commit_leaves_its_entries_open() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::new(Storage::open(folder.path()).unwrap());
        journal.append(1, 0, &entry(1, 0, vec![1; 10])).await.unwrap();
        journal.commit(&commit(1, &[0])).await.unwrap();
        journal.commit(&commit(2, &[0])).await.unwrap();
        // Of a step that came after: what it was computed on will not be there again.
        journal.append(3, 0, &entry(3, 0, vec![1; 10])).await.unwrap();
        journal.commit(&commit(3, &[0])).await.unwrap();
        let file = folder.path().join("journal/000000000002/commit");
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(journal.commits(1).await.unwrap(), [commit(1, &[0])]);
        assert!(!file.exists());
        assert!(folder.path().join("journal/corrupt/000000000002-commit").exists());
        assert_eq!(journal.entries(3).await.unwrap(), Entries::default());
        assert_eq!(journal.commits(3).await.unwrap(), []);
        journal.truncate(100).await.unwrap();
        assert!(folder.path().join("journal/corrupt/000000000002-commit").exists());
    }

    proptest! {
        #[test]
        fn an_entry_survives_the_round_trip(
            peer in prop::collection::vec(any::<u8>(), 0..64),
            epoch in any::<u64>(),
            id in any::<u64>(),
            payload in prop::collection::vec(any::<u8>(), 0..500),
        ) {
            let entry = JournalEntry { peer, ..entry(epoch, id, payload) };
            let bytes = sealed::seal_parts(ENTRY, &header_of(&entry), &[&entry.payload]).unwrap();
            prop_assert_eq!(decode_entry(&bytes, epoch).unwrap(), entry);
        }
    }
}
