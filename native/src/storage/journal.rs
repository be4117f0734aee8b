//! The write-ahead journal: every contribution is stored here before its sender is told that it
//! counts.
//!
//! An object per contribution, `journal/{epoch}/{seq}.grad`, and one per optimizer step,
//! `journal/{epoch}/commit`, written before the step's result is shown to anyone. A restart loads a
//! checkpoint of epoch E, repeats the committed steps E, E + 1, … with exactly the contributions that
//! each used, and takes the entries of the first epoch without a commit as its open ones.
//!
//! A step may be of contributions to other aggregators, too, and each journal has its own only. Then
//! `journal/{epoch}/mean` is the averaged gradient of the step, and `journal/{epoch}/given-{nonce}` lists
//! the entries that this aggregator put into the averaging of that nonce. There may be several until one succeeds.
//! Entries that are not in the model are appended again to the open epoch.
//!
//! It never decides which contributions count, and never changes an entry that was written. It never has more than one
//! entry in memory: entries are read one after the other.

#[cfg(test)]
mod fuzz;

use std::sync::Arc;

use barnraise_learning::graph::PARAMETERS_MAX;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::commitment::Commitment;
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::sealed::{self, ObjectKind, SealError};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::robust::Aggregation;
use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

use super::{Damage, SetAside, Storage, StorageError};
use crate::computing::compute;

const ENTRY: ObjectKind = ObjectKind { name: *b"grad", what: "journal entry", version: 4 };
const COMMIT: ObjectKind = ObjectKind { name: *b"cmit", what: "journal commit", version: 5 };
const MEAN: ObjectKind = ObjectKind { name: *b"mean", what: "journal mean", version: 2 };
const GIVEN: ObjectKind = ObjectKind { name: *b"givn", what: "journal list", version: 1 };
const FOLDER: &str = "journal";
/// Not a number, so that no epoch is named like it.
const CORRUPT: &str = "corrupt";
const COMMIT_NAME: &str = "commit";
const MEAN_NAME: &str = "mean";
/// Largest object of the journal: a gradient of the largest model, in single precision.
pub const ENTRY_BYTES_MAX: u64 = 5 * 1024 * 1024 * 1024;
/// Bytes at the start of an entry that contain all of its header.
const ENTRY_START_BYTES: u64 = 4096;
const _: () = assert!(ENTRY_BYTES_MAX >= PARAMETERS_MAX as u64 * 4 + ENTRY_START_BYTES);

/// Name of a contribution: the bytes of its contributor's peer id, and the contributor's number for it.
pub type ContributionName = (Vec<u8>, u64);

/// One accepted contribution.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    /// Bytes of the contributor's peer id.
    pub peer: Vec<u8>,
    /// The addresses that it came from, which decide its weight in a step; the number is that of this backbone.
    pub group: AddressGroup,
    /// The offer: contribution id, number of samples, loss, codec.
    pub offer: Offer,
    /// Time since its previous contribution, or since it joined.
    pub milliseconds: u32,
    /// When it was accepted.
    pub accepted_at: UnixTime,
    /// The encoded gradient, as received.
    pub payload: Bytes,
    /// Its samples, where contributions are recomputed: they do not count a second time after a restart.
    pub samples: Option<CommittedSamples>,
}

/// The samples of a contribution, with the commitment to them.
#[derive(Debug, Clone, PartialEq)]
pub struct CommittedSamples {
    /// Signed by the contributor.
    pub commitment: Commitment,
    /// The encoded list, as received.
    pub list: Bytes,
}

impl JournalEntry {
    /// Identifies the contribution.
    pub fn name(&self) -> ContributionName {
        (self.peer.clone(), self.offer.contribution_id)
    }
}

/// An optimizer step: of one aggregator alone, or of a group that averaged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// The epoch that the step ended.
    pub epoch: u64,
    /// Hash of the model before the step ([`ModelVersion::hash`](barnraise_protocol::matchmaking::ModelVersion)).
    pub before: Sha256Hash,
    /// Identifies the averaging among those of that model.
    pub nonce: u64,
    /// Bytes of the peer ids of the aggregators whose contributions are in it.
    pub members: Vec<Vec<u8>>,
    /// Samples behind the mean.
    pub n_samples: u64,
    /// Mean loss of the samples.
    pub loss: f32,
    /// The entries of this journal in it, in the order in which they were summed; none where the step was received.
    pub seqs: Vec<u32>,
    /// How the entries became one gradient: the configuration may have changed when the step is repeated.
    pub aggregation: Aggregation,
    /// Learning rate of the step: an operator may change it later, and the schedule may change between two starts.
    pub learning_rate: f32,
}

impl CommitRecord {
    /// Whether the entries of this journal are all of the step, so that its mean follows from them.
    pub fn is_of_entries(&self) -> bool {
        self.members.len() == 1 && !self.seqs.is_empty()
    }
}

#[derive(Serialize, Deserialize)]
struct EntryHeader {
    peer: Vec<u8>,
    group: AddressGroup,
    offer: Offer,
    milliseconds: u32,
    accepted_at: UnixTime,
    /// With the bytes of the list, which is before the payload.
    commitment: Option<(Commitment, u32)>,
}

/// Why the journal could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// From the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Another version of this program wrote it. It is left where it is.
    #[error("{path}: {source}")]
    Version {
        /// The object.
        path: String,
        /// Which version.
        source: SealError,
    },
    /// Could not be encoded.
    #[error("journal object {path} cannot be written: {source}")]
    Encode {
        /// The object.
        path: String,
        /// Why.
        source: SealError,
    },
    /// Larger than the largest object that is read back.
    #[error("journal object {path} has {got} bytes, at most {ENTRY_BYTES_MAX} can be stored")]
    TooLarge {
        /// The object.
        path: String,
        /// Encoded size.
        got: u64,
    },
}

/// The contributions stored for an epoch, in the order of their numbers.
#[derive(Debug)]
pub struct Entries<'j> {
    journal: &'j Journal,
    epoch: u64,
    sequences: std::vec::IntoIter<u32>,
}

impl Entries<'_> {
    /// Sequence number and contribution of the next entry that can be read. A damaged one is moved to
    /// `journal/corrupt/`; one that a crash tore was never acknowledged.
    pub async fn next(&mut self) -> Result<Option<(u32, JournalEntry)>, JournalError> {
        for sequence in self.sequences.by_ref() {
            if let Some(entry) = self.journal.entry(self.epoch, sequence).await? {
                return Ok(Some((sequence, entry)));
            }
        }
        Ok(None)
    }

    /// Sequence number and name of the next entry. Its gradient is read only if its header is damaged.
    pub async fn next_name(&mut self) -> Result<Option<(u32, ContributionName)>, JournalError> {
        for sequence in self.sequences.by_ref() {
            if let Some(name) = self.journal.name(self.epoch, sequence).await? {
                return Ok(Some((sequence, name)));
            }
        }
        Ok(None)
    }
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
        let (path, n_bytes, entry) = (entry_path(epoch, seq), entry.payload.len(), entry.clone());
        self.write(&path, compute(n_bytes, move || encode_entry(&entry)).await).await
    }

    /// Stores that the step of `record.epoch` used exactly these entries.
    pub async fn commit(&self, record: &CommitRecord) -> Result<(), JournalError> {
        let bytes = sealed::seal_parts(COMMIT, record, &[]);
        self.write(&path_of(record.epoch, COMMIT_NAME), bytes).await
    }

    /// The commit of an epoch; `None` where there is none. The inner error says how it is damaged.
    pub async fn commit_of(&self, epoch: u64) -> Result<Option<Result<CommitRecord, Damage>>, JournalError> {
        let Some(bytes) = self.read(&path_of(epoch, COMMIT_NAME), COMMIT).await? else { return Ok(None) };
        Ok(Some(bytes.and_then(|bytes| decode_commit(&bytes, epoch))))
    }

    /// Stores the mean of the averaging `nonce`, `[n_parameters]`, before the step of `epoch` by it is committed.
    pub async fn write_mean(&self, epoch: u64, nonce: u64, mean: &Arc<Vec<f32>>) -> Result<(), JournalError> {
        let (n_bytes, mean) = (size_of_val(mean.as_slice()), Arc::clone(mean));
        let encode = move || {
            let bytes: Vec<u8> = mean.iter().flat_map(|value| value.to_le_bytes()).collect();
            sealed::seal_parts(MEAN, &(epoch, nonce), &[&bytes])
        };
        self.write(&path_of(epoch, MEAN_NAME), compute(n_bytes, encode).await).await
    }

    /// The mean of the step of `epoch`: little-endian f32. `None` where it is missing, damaged, or of another
    /// averaging than `nonce`.
    pub async fn mean(&self, epoch: u64, nonce: u64) -> Result<Option<Vec<u8>>, JournalError> {
        let Some(Ok(bytes)) = self.read(&path_of(epoch, MEAN_NAME), MEAN).await? else { return Ok(None) };
        let n_bytes = bytes.len();
        let open = move || {
            let opened = sealed::open_parts::<(u64, u64)>(MEAN, &bytes).ok();
            opened.filter(|(of, _)| *of == (epoch, nonce)).map(|(_, mean)| mean.to_vec())
        };
        Ok(compute(n_bytes, open).await)
    }

    /// Stores which entries of `epoch` go into the averaging `nonce`, before it begins.
    pub async fn write_averaged_entries(
        &self,
        epoch: u64,
        nonce: u64,
        seqs: &[u32],
    ) -> Result<(), JournalError> {
        self.write(&given_path(epoch, nonce), sealed::seal_parts(GIVEN, &seqs, &[])).await
    }

    /// The entries of `epoch` that went into the averaging `nonce`; empty where none are recorded.
    pub async fn averaged_entries(&self, epoch: u64, nonce: u64) -> Result<Vec<u32>, JournalError> {
        let path = given_path(epoch, nonce);
        let Some(bytes) = self.read(&path, GIVEN).await? else { return Ok(Vec::new()) };
        let opened = bytes.and_then(|bytes| {
            let (seqs, _) = sealed::open_parts(GIVEN, &bytes)?;
            Ok(seqs)
        });
        Ok(opened.unwrap_or_else(|damage| {
            tracing::error!(%path, %damage, "the list of averaged entries is damaged: they count once more");
            Vec::new()
        }))
    }

    /// Whether an epoch has entries.
    pub async fn has_entries(&self, epoch: u64) -> Result<bool, JournalError> {
        let (objects, _) = self.storage.list_level(&epoch_path(epoch)).await?;
        Ok(objects.iter().any(|path| path.filename().is_some_and(|name| name.ends_with(".grad"))))
    }

    /// Deletes an entry whose contribution is in the model by another entry.
    pub async fn forget(&self, epoch: u64, seq: u32) -> Result<(), JournalError> {
        Ok(self.storage.delete(&entry_path(epoch, seq)).await?)
    }

    /// The first epoch after `epoch` that has a commit; `None` where there is none.
    pub async fn first_commit_after(&self, epoch: u64) -> Result<Option<u64>, JournalError> {
        for (later, folder) in self.folders().await?.into_iter().filter(|(later, _)| *later > epoch) {
            let (objects, _) = self.storage.list_level(&folder).await?;
            if objects.iter().any(|path| path.filename() == Some(COMMIT_NAME)) {
                return Ok(Some(later));
            }
        }
        Ok(None)
    }

    /// The epochs that the journal has objects of, in ascending order.
    pub async fn epochs(&self) -> Result<Vec<u64>, JournalError> {
        Ok(self.folders().await?.into_iter().map(|(epoch, _)| epoch).collect())
    }

    /// In the order of their epochs.
    async fn folders(&self) -> Result<Vec<(u64, ObjectPath)>, JournalError> {
        let (_, folders) = self.storage.list_level(&ObjectPath::from(FOLDER)).await?;
        let epoch = |folder: &ObjectPath| folder.filename()?.parse().ok();
        let mut folders: Vec<(u64, ObjectPath)> =
            folders.into_iter().filter_map(|folder| Some((epoch(&folder)?, folder))).collect();
        folders.sort_unstable_by_key(|(epoch, _)| *epoch);
        Ok(folders)
    }

    /// The contributions stored for an epoch, to be read one after the other.
    pub async fn entries(&self, epoch: u64) -> Result<Entries<'_>, JournalError> {
        let (objects, _) = self.storage.list_level(&epoch_path(epoch)).await?;
        let sequence = |path: ObjectPath| path.filename()?.strip_suffix(".grad")?.parse().ok();
        let mut sequences: Vec<u32> = objects.into_iter().filter_map(sequence).collect();
        sequences.sort_unstable();
        Ok(Entries { journal: self, epoch, sequences: sequences.into_iter() })
    }

    /// A contribution by its number; `None` where there is none that can be read. A damaged one is moved to
    /// `journal/corrupt/`.
    pub async fn entry(&self, epoch: u64, sequence: u32) -> Result<Option<JournalEntry>, JournalError> {
        let path = entry_path(epoch, sequence);
        let Some(bytes) = self.read(&path, ENTRY).await? else { return Ok(None) };
        let n_bytes = bytes.as_ref().map_or(0, Bytes::len);
        match compute(n_bytes, move || bytes.and_then(|bytes| decode_entry(&bytes, epoch))).await {
            Ok(entry) => Ok(Some(entry)),
            Err(damage) => {
                let name = path.filename().unwrap_or_default().to_owned();
                self.set_aside(epoch, &name, &path, damage.to_string()).await?;
                Ok(None)
            }
        }
    }

    async fn name(&self, epoch: u64, sequence: u32) -> Result<Option<ContributionName>, JournalError> {
        let path = entry_path(epoch, sequence);
        let Some(start) = self.storage.get_start(&path, ENTRY_START_BYTES).await? else { return Ok(None) };
        match sealed::peek_header::<EntryHeader>(ENTRY, &start) {
            Ok((EntryHeader { peer, offer, .. }, _)) => Ok(Some((peer, offer.contribution_id))),
            // Reading all of it finds the damage.
            Err(_) => Ok(self.entry(epoch, sequence).await?.map(|entry| entry.name())),
        }
    }

    /// Sets the steps of `epoch` and later aside, because another branch of the model is followed from there on. The
    /// entries stay.
    pub async fn abandon_branch(&self, epoch: u64, reason: &str) -> Result<(), JournalError> {
        // The newest first: a crash in between leaves no step without the one before.
        for (of, _) in self.folders().await?.into_iter().rev().filter(|(of, _)| *of >= epoch) {
            self.set_step_aside(of, reason).await?;
        }
        Ok(())
    }

    /// Sets commit and mean of a step aside, of any format version and readable or not.
    async fn set_step_aside(&self, epoch: u64, reason: &str) -> Result<(), JournalError> {
        let (objects, _) = self.storage.list_level(&epoch_path(epoch)).await?;
        for name in [COMMIT_NAME, MEAN_NAME] {
            let path = path_of(epoch, name);
            if objects.contains(&path) {
                self.set_aside(epoch, name, &path, reason.to_owned()).await?;
            }
        }
        Ok(())
    }

    /// Deletes all objects of an epoch.
    pub async fn clear(&self, epoch: u64) -> Result<(), JournalError> {
        Ok(self.storage.delete_all(&epoch_path(epoch)).await?)
    }

    /// Deletes every epoch before this one, with its folder. The argument is the epoch that `Checkpoints::save` returned.
    pub async fn truncate(&self, before_epoch: u64) -> Result<(), JournalError> {
        for (_, folder) in self.folders().await?.into_iter().filter(|(epoch, _)| *epoch < before_epoch) {
            self.storage.delete_all(&folder).await?;
        }
        Ok(())
    }

    /// Deletes the objects that were set aside as damaged or of another branch.
    pub async fn forget_set_aside(&self) -> Result<(), JournalError> {
        Ok(self.storage.delete_all(&ObjectPath::from_iter([FOLDER, CORRUPT])).await?)
    }

    async fn write(&self, path: &ObjectPath, bytes: Result<Vec<u8>, SealError>) -> Result<(), JournalError> {
        let bytes = bytes.map_err(|source| JournalError::Encode { path: path.to_string(), source })?;
        check_size(path, bytes.len() as u64)?;
        Ok(self.storage.put(path, bytes).await?)
    }

    /// `None`: there is no such object. The inner error is damage.
    async fn read(
        &self,
        path: &ObjectPath,
        kind: ObjectKind,
    ) -> Result<Option<Result<Bytes, Damage>>, JournalError> {
        match self.storage.get(path, ENTRY_BYTES_MAX).await {
            Ok(Some(bytes)) => match sealed::check_version(kind, &bytes) {
                Ok(()) => Ok(Some(Ok(bytes))),
                Err(source) => Err(JournalError::Version { path: path.to_string(), source }),
            },
            Ok(None) => Ok(None),
            Err(StorageError::TooLarge { max, got, .. }) => Ok(Some(Err(Damage::TooLarge { max, got }))),
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

/// An object that could not be read back is not written.
fn check_size(path: &ObjectPath, got: u64) -> Result<(), JournalError> {
    if got > ENTRY_BYTES_MAX {
        return Err(JournalError::TooLarge { path: path.to_string(), got });
    }
    Ok(())
}

fn epoch_path(epoch: u64) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}")])
}

fn entry_path(epoch: u64, seq: u32) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}"), &format!("{seq:08}.grad")])
}

fn given_path(epoch: u64, nonce: u64) -> ObjectPath {
    path_of(epoch, &format!("given-{nonce:016x}"))
}

fn path_of(epoch: u64, name: &str) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}"), name])
}

fn decode_entry(bytes: &Bytes, epoch: u64) -> Result<JournalEntry, Damage> {
    let (header, raw) = sealed::open_parts::<EntryHeader>(ENTRY, bytes)?;
    if header.offer.epoch > epoch {
        return Err(Damage::Epoch { want: epoch, got: header.offer.epoch });
    }
    let EntryHeader { peer, group, offer, milliseconds, accepted_at, commitment } = header;
    let n_list_bytes = commitment.as_ref().map_or(0, |(_, n_bytes)| *n_bytes as usize);
    let (list, payload) = raw.split_at_checked(n_list_bytes).ok_or(Damage::SamplesCut)?;
    let (list, payload) = (bytes.slice_ref(list), bytes.slice_ref(payload));
    let samples = commitment.map(|(commitment, _)| CommittedSamples { commitment, list });
    Ok(JournalEntry { peer, group, offer, milliseconds, accepted_at, payload, samples })
}

fn encode_entry(entry: &JournalEntry) -> Result<Vec<u8>, SealError> {
    let JournalEntry { peer, group, offer, milliseconds, accepted_at, payload, samples } = entry;
    let list = samples.as_ref().map_or(&[][..], |samples| &samples.list);
    let n_list_bytes = u32::try_from(list.len())
        .map_err(|_| SealError::Payload("a list larger than 4 GiB cannot be stored".into()))?;
    let header = EntryHeader {
        peer: peer.clone(),
        group: *group,
        offer: offer.clone(),
        milliseconds: *milliseconds,
        accepted_at: *accepted_at,
        commitment: samples.as_ref().map(|samples| (samples.commitment.clone(), n_list_bytes)),
    };
    sealed::seal_parts(ENTRY, &header, &[list, payload])
}

fn decode_commit(bytes: &[u8], epoch: u64) -> Result<CommitRecord, Damage> {
    let (record, _) = sealed::open_parts::<CommitRecord>(COMMIT, bytes)?;
    if record.epoch != epoch {
        return Err(Damage::Epoch { want: epoch, got: record.epoch });
    }
    Ok(record)
}

#[cfg(test)]
mod tests;
