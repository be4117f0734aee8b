//! The write-ahead journal: every contribution is stored here before its sender is told that it
//! counts.
//!
//! An object per contribution, `journal/{epoch}/{seq}.grad`, and one per optimizer step,
//! `journal/{epoch}/commit`, written before the step's result is shown to anyone. A restart loads a
//! checkpoint of epoch E, repeats the committed steps E, E + 1, … with exactly the contributions that
//! each used, and takes the entries of the first epoch without a commit as its open ones.
//!
//! Where several peers aggregate a run, a step is of all their contributions, and a peer's journal has its own only:
//! `journal/{epoch}/mean` is what all of them stepped by, and `journal/{epoch}/given-{nonce}` says which entries this
//! peer put into the averaging of that name, of which there may be several until one succeeds. Entries that are not in the model that it has are appended once more to the epoch that is open.
//!
//! It never decides what counts, and never touches an entry that was written. It never has more than one entry in memory,
//! however many steps there are and however many entries one has: what is read is read one after the other.

#[cfg(test)]
mod fuzz;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::gradient::Offer;
use barnraise_swarm::robust::Aggregation;
use barnraise_swarm::round::AddressGroup;
use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

use super::sealed::{self, Kind, SealError};
use super::{SetAside, Storage, StorageError};

const ENTRY: Kind = Kind { name: *b"grad", what: "journal entry", version: 3 };
const COMMIT: Kind = Kind { name: *b"cmit", what: "journal commit", version: 4 };
const MEAN: Kind = Kind { name: *b"mean", what: "journal mean", version: 2 };
const GIVEN: Kind = Kind { name: *b"givn", what: "journal list", version: 1 };
const FOLDER: &str = "journal";
/// Not a number, so that no epoch is named like it.
const CORRUPT: &str = "corrupt";
const COMMIT_NAME: &str = "commit";
const MEAN_NAME: &str = "mean";
/// Largest object of the journal.
pub const ENTRY_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Of an entry, in which all is that is said of its gradient.
const ENTRY_START_BYTES: u64 = 4096;

/// How a contribution is named: the bytes of its contributor's peer id, and the number that it gave it.
pub type Name = (Vec<u8>, u64);

/// One accepted contribution.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    /// Bytes of the contributor's peer id.
    pub peer: Vec<u8>,
    /// Where it came from, as a number of the process that accepted it: it decides its weight in a step.
    pub group: AddressGroup,
    /// What it offered: contribution id, weight, loss, codec.
    pub offer: Offer,
    /// Since its contribution before, or since it joined.
    pub milliseconds: u32,
    /// When it was accepted.
    pub accepted_at: UnixTime,
    /// The gradient, as it came.
    pub payload: Bytes,
}

impl JournalEntry {
    /// What tells it from all others.
    pub fn name(&self) -> Name {
        (self.peer.clone(), self.offer.contribution_id)
    }
}

/// Which contributions an optimizer step used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// The epoch that the step ended.
    pub epoch: u64,
    /// Samples behind the mean.
    pub n_samples: u64,
    /// The entries, in the order in which they were summed.
    pub seqs: Vec<u32>,
    /// How they became one gradient: the configuration may be another one by the time the step is repeated.
    pub aggregation: Aggregation,
    /// Where others aggregate the run too: the step is by the journal's mean, whatever the entries are.
    pub together: Option<Together>,
    /// The optimizer's: an operator may change it while the run goes on, and the schedule between two starts.
    #[serde(with = "known_rate")]
    pub learning_rate: f32,
}

/// A step of peers that aggregate a run together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Together {
    /// The model that it was made on ([`ModelVersion::hash`](barnraise_protocol::matchmaking::ModelVersion)).
    pub before: Sha256Hash,
    /// Names the averaging among those of that model.
    pub nonce: u64,
    /// Mean loss of the samples.
    pub loss: f32,
    /// Bytes of the ids of those whose contributions are in it.
    pub members: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct EntryHeader {
    peer: Vec<u8>,
    group: AddressGroup,
    offer: Offer,
    milliseconds: u32,
    accepted_at: UnixTime,
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
    /// More than would be read back.
    #[error("journal object {path} has {got} bytes, at most {ENTRY_BYTES_MAX} can be stored")]
    TooLarge {
        /// The object.
        path: String,
        /// Encoded size.
        got: u64,
    },
}

/// In the layout of commits that might not know theirs.
mod known_rate {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(rate: &f32, serializer: S) -> Result<S::Ok, S::Error> {
        Some(rate).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
        let rate = Option::<f32>::deserialize(deserializer)?;
        rate.ok_or_else(|| D::Error::custom("it does not say at which learning rate its step was made"))
    }
}

/// The contributions stored for an epoch, in the order of their numbers.
#[derive(Debug)]
pub struct Entries<'j> {
    journal: &'j Journal,
    epoch: u64,
    sequences: std::vec::IntoIter<u32>,
}

impl Entries<'_> {
    /// Sequence number and contribution of the next one that can be read. One that is damaged is moved to
    /// `journal/corrupt/`; where a crash tore it, it was never acknowledged.
    pub async fn next(&mut self) -> Result<Option<(u32, JournalEntry)>, JournalError> {
        for sequence in self.sequences.by_ref() {
            if let Some(entry) = self.journal.entry(self.epoch, sequence).await? {
                return Ok(Some((sequence, entry)));
            }
        }
        Ok(None)
    }

    /// Sequence number and name of the next one. Its gradient is not read, unless something is wrong with what is before it.
    pub async fn next_name(&mut self) -> Result<Option<(u32, Name)>, JournalError> {
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
        let path = entry_path(epoch, seq);
        let header = header_of(entry);
        let bytes = sealed::seal_parts(ENTRY, &header, &[&entry.payload]);
        self.write(&path, bytes).await
    }

    /// Stores that the step of `record.epoch` used exactly these entries.
    pub async fn commit(&self, record: &CommitRecord) -> Result<(), JournalError> {
        let bytes = sealed::seal_parts(COMMIT, record, &[]);
        self.write(&path_of(record.epoch, COMMIT_NAME), bytes).await
    }

    /// The commit of an epoch; `None` where there is none. The inner error says how it is damaged.
    pub async fn commit_of(&self, epoch: u64) -> Result<Option<Result<CommitRecord, String>>, JournalError> {
        let Some(bytes) = self.read(&path_of(epoch, COMMIT_NAME), COMMIT).await? else { return Ok(None) };
        Ok(Some(bytes.and_then(|bytes| decode_commit(&bytes, epoch))))
    }

    /// Stores what the step of `epoch` is made by, `[n_parameters]`, before it is committed; it is the mean of the averaging
    /// called `nonce`.
    pub async fn write_mean(&self, epoch: u64, nonce: u64, mean: &[f32]) -> Result<(), JournalError> {
        let bytes: Vec<u8> = mean.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.write(&path_of(epoch, MEAN_NAME), sealed::seal_parts(MEAN, &(epoch, nonce), &[&bytes])).await
    }

    /// What the step of `epoch` was made by: little-endian f32. `None` where it is missing, damaged, or of another averaging
    /// than `nonce`.
    pub async fn mean(&self, epoch: u64, nonce: u64) -> Result<Option<Vec<u8>>, JournalError> {
        let Some(Ok(bytes)) = self.read(&path_of(epoch, MEAN_NAME), MEAN).await? else { return Ok(None) };
        let opened = sealed::open_parts::<(u64, u64)>(MEAN, &bytes).ok();
        Ok(opened.filter(|(of, _)| *of == (epoch, nonce)).map(|(_, mean)| mean.to_vec()))
    }

    /// Stores which entries of `epoch` are given to the averaging called `nonce`, before they are.
    pub async fn write_given(&self, epoch: u64, nonce: u64, seqs: &[u32]) -> Result<(), JournalError> {
        self.write(&given_path(epoch, nonce), sealed::seal_parts(GIVEN, &seqs, &[])).await
    }

    /// Which entries of `epoch` were given to the averaging called `nonce`; none where nothing says so.
    pub async fn given(&self, epoch: u64, nonce: u64) -> Result<Vec<u32>, JournalError> {
        let path = given_path(epoch, nonce);
        let Some(bytes) = self.read(&path, GIVEN).await? else { return Ok(Vec::new()) };
        let opened = bytes.and_then(|bytes| {
            let opened = sealed::open_parts(GIVEN, &bytes);
            opened.map(|(seqs, _)| seqs).map_err(|error| error.to_string())
        });
        Ok(opened.unwrap_or_else(|reason| {
            tracing::error!(%path, reason, "what was averaged counts once more, for this is damaged");
            Vec::new()
        }))
    }

    /// Whether anything was accepted in an epoch.
    pub async fn has_entries(&self, epoch: u64) -> Result<bool, JournalError> {
        let (objects, _) = self.storage.list_level(&epoch_path(epoch)).await?;
        Ok(objects.iter().any(|path| path.filename().is_some_and(|name| name.ends_with(".grad"))))
    }

    /// Forgets an entry that is in the model by another one.
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

    /// The epochs of which there was ever anything, in their order.
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
        match bytes.and_then(|bytes| decode_entry(&bytes, epoch)) {
            Ok(entry) => Ok(Some(entry)),
            Err(reason) => {
                let name = path.filename().unwrap_or_default().to_owned();
                self.set_aside(epoch, &name, &path, reason).await?;
                Ok(None)
            }
        }
    }

    async fn name(&self, epoch: u64, sequence: u32) -> Result<Option<Name>, JournalError> {
        let path = entry_path(epoch, sequence);
        let Some(start) = self.storage.get_start(&path, ENTRY_START_BYTES).await? else { return Ok(None) };
        match sealed::peek_header::<EntryHeader>(ENTRY, &start) {
            Ok(EntryHeader { peer, offer, .. }) => Ok(Some((peer, offer.contribution_id))),
            // The whole of it says what is wrong.
            Err(_) => Ok(self.entry(epoch, sequence).await?.map(|entry| entry.name())),
        }
    }

    /// Takes the steps of `epoch` and later out of the way: another line of models is followed from there on. What was
    /// accepted stays.
    pub async fn leave_line(&self, epoch: u64, reason: &str) -> Result<(), JournalError> {
        // The newest first: a crash in between leaves no step without the one before.
        for (of, _) in self.folders().await?.into_iter().rev().filter(|(of, _)| *of >= epoch) {
            self.set_step_aside(of, reason).await?;
        }
        Ok(())
    }

    /// What says that there was a step, of whichever version it is and whether or not it can be read.
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

    /// Forgets all of an epoch.
    pub async fn clear(&self, epoch: u64) -> Result<(), JournalError> {
        Ok(self.storage.delete_all(&epoch_path(epoch)).await?)
    }

    /// Forgets every epoch before this one, and that there was one. Call it with what `Checkpoints::save` returned.
    pub async fn truncate(&self, before_epoch: u64) -> Result<(), JournalError> {
        for (_, folder) in self.folders().await?.into_iter().filter(|(epoch, _)| *epoch < before_epoch) {
            self.storage.delete_all(&folder).await?;
        }
        Ok(())
    }

    /// Forgets what was damaged or of another line of models, and was kept for a person to look at.
    pub async fn forget_set_aside(&self) -> Result<(), JournalError> {
        Ok(self.storage.delete_all(&ObjectPath::from_iter([FOLDER, CORRUPT])).await?)
    }

    async fn write(&self, path: &ObjectPath, bytes: Result<Vec<u8>, SealError>) -> Result<(), JournalError> {
        let bytes = bytes.map_err(|source| JournalError::Encode { path: path.to_string(), source })?;
        if bytes.len() as u64 > ENTRY_BYTES_MAX {
            return Err(JournalError::TooLarge { path: path.to_string(), got: bytes.len() as u64 });
        }
        Ok(self.storage.put(path, bytes).await?)
    }

    /// `None`: there is no such object. The inner error is damage.
    async fn read(
        &self,
        path: &ObjectPath,
        kind: Kind,
    ) -> Result<Option<Result<Bytes, String>>, JournalError> {
        match self.storage.get(path, ENTRY_BYTES_MAX).await {
            Ok(Some(bytes)) => match sealed::check_version(kind, &bytes) {
                Ok(()) => Ok(Some(Ok(bytes))),
                Err(source) => Err(JournalError::Version { path: path.to_string(), source }),
            },
            Ok(None) => Ok(None),
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

fn given_path(epoch: u64, nonce: u64) -> ObjectPath {
    path_of(epoch, &format!("given-{nonce:016x}"))
}

fn path_of(epoch: u64, name: &str) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}"), name])
}

fn decode_entry(bytes: &Bytes, epoch: u64) -> Result<JournalEntry, String> {
    let opened = sealed::open_parts::<EntryHeader>(ENTRY, bytes);
    let (header, payload) = opened.map_err(|error| error.to_string())?;
    if header.offer.epoch > epoch {
        return Err(format!("it is of epoch {}, its folder is of epoch {epoch}", header.offer.epoch));
    }
    let EntryHeader { peer, group, offer, milliseconds, accepted_at } = header;
    Ok(JournalEntry { peer, group, offer, milliseconds, accepted_at, payload: bytes.slice_ref(payload) })
}

fn header_of(entry: &JournalEntry) -> EntryHeader {
    let JournalEntry { peer, group, offer, milliseconds, accepted_at, payload: _ } = entry;
    EntryHeader {
        peer: peer.clone(),
        group: *group,
        offer: offer.clone(),
        milliseconds: *milliseconds,
        accepted_at: *accepted_at,
    }
}

fn decode_commit(bytes: &[u8], epoch: u64) -> Result<CommitRecord, String> {
    let opened = sealed::open_parts::<CommitRecord>(COMMIT, bytes);
    let (record, _) = opened.map_err(|error| error.to_string())?;
    if record.epoch != epoch {
        return Err(format!("it is of epoch {}, its folder is of epoch {epoch}", record.epoch));
    }
    Ok(record)
}

#[cfg(test)]
mod tests;
