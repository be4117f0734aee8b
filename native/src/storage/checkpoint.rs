//! Checkpoints: the state from which a backbone continues after a restart, one object each.
//!
//! A new checkpoint never touches an older one, so a crash during a write leaves the previous one undamaged. The newest
//! usable one is found at start-up by reading.

mod branch;
mod keeping;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::api::HistoryPoint;
use barnraise_protocol::run::ModelSpec;
use barnraise_protocol::sealed::{self, ObjectKind, SealError};
use bytes::Bytes;
use object_store::PutPayload;
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

pub use self::keeping::AGES;
use super::{Chunks, Damage, SetAside, Storage, StorageError};
use crate::computing::{ParameterBytes, compute};

pub(super) const KIND: ObjectKind = ObjectKind { name: *b"ckpt", what: "checkpoint", version: 5 };
const FOLDER: &str = "checkpoints";
const CORRUPT: &str = "corrupt";
/// Largest checkpoint that is written or read: the largest model with Adam's moments.
pub const CHECKPOINT_BYTES_MAX: u64 = 13 * 1024 * 1024 * 1024;

/// The state of a run after some optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Of the run.
    pub run_id: String,
    /// Of the run: parameters of another model are never mixed in.
    pub model: ModelSpec,
    /// Optimizer steps made.
    pub epoch: u64,
    /// Samples behind all those steps.
    pub n_samples_total: u64,
    /// `[n_parameters]`, in the order of `barnraise-learning`. Those of a run that goes on are shared with it.
    pub parameters: Arc<Vec<f32>>,
    /// State of the optimizer, in its own encoding.
    pub optimizer_state: Vec<u8>,
    /// The last step that each aggregator took part in, by the bytes of its peer id.
    pub included: BTreeMap<Vec<u8>, Included>,
    /// Loss and accuracy so far, oldest first.
    pub history: Vec<HistoryPoint>,
}

impl Checkpoint {
    fn n_value_bytes(&self) -> usize {
        size_of_val(self.parameters.as_slice()) + self.optimizer_state.len()
    }
}

/// A step that an aggregator took part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Included {
    /// The epoch that the step ended.
    pub epoch: u64,
    /// Identifies its averaging.
    pub nonce: u64,
}

/// Header of a checkpoint. Raw bytes follow: parameters as little-endian f32, optimizer state.
#[derive(Serialize, Deserialize)]
struct Header {
    run_id: String,
    model: ModelSpec,
    epoch: u64,
    n_samples_total: u64,
    n_parameters: u64,
    n_optimizer_bytes: u64,
    history: Vec<HistoryPoint>,
    included: BTreeMap<Vec<u8>, Included>,
}

/// Why a checkpoint could not be saved, or none could be loaded.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
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
    #[error("checkpoint of epoch {epoch} cannot be written: {source}")]
    Encode {
        /// Its epoch.
        epoch: u64,
        /// Why.
        source: SealError,
    },
    /// Larger than the largest checkpoint that is read back.
    #[error("checkpoint of epoch {epoch} has {got} bytes, at most {CHECKPOINT_BYTES_MAX} can be stored")]
    TooLarge {
        /// Its epoch.
        epoch: u64,
        /// Encoded size.
        got: u64,
    },
    /// The run was rolled back, and no checkpoint since then can be read.
    #[error(
        "no checkpoint since the run went back is whole, nor is the one that it went back to, {path}: {reason}; restore \
         the folder from a backup, or take that file away to go on from what was rolled back"
    )]
    Branch {
        /// The object.
        path: String,
        /// What is wrong with it.
        #[source]
        reason: Damage,
    },
    /// The folder belongs to another run.
    #[error("{path} is of run `{got}`, this is run `{want}`: choose another [storage] folder")]
    Run {
        /// The object.
        path: String,
        /// From the configuration.
        want: String,
        /// From the checkpoint.
        got: String,
    },
    /// The run was started with another model.
    #[error(
        "{path} is of the model {got}, the configuration asks for {want}: \
         give the run another id and another [storage] folder"
    )]
    Model {
        /// The object.
        path: String,
        /// From the configuration.
        want: Box<ModelSpec>,
        /// From the checkpoint.
        got: Box<ModelSpec>,
    },
}

/// Result of [`Checkpoints::load_latest`].
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The newest usable checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that were damaged.
    pub set_aside: Vec<SetAside>,
}

/// The checkpoints of one run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    storage: Storage,
    n_kept: usize,
    ages: &'static [Duration],
}

impl Checkpoints {
    /// Keeps the newest `n_kept` checkpoints, at least one.
    pub fn new(storage: Storage, n_kept: usize) -> Self {
        Self { storage, n_kept: n_kept.max(1), ages: &[] }
    }

    /// Writes a checkpoint, then deletes those that are not kept.
    ///
    /// Returns the oldest epoch of the newest ones: the journal must keep everything from there on,
    /// so that a damaged newest checkpoint costs no accepted contribution.
    pub async fn save(&self, checkpoint: Checkpoint) -> Result<u64, CheckpointError> {
        let epoch = checkpoint.epoch;
        self.write(&object_path(epoch), checkpoint).await?;
        self.thin(epoch).await
    }

    async fn write(&self, path: &ObjectPath, checkpoint: Checkpoint) -> Result<(), CheckpointError> {
        let (epoch, n_bytes) = (checkpoint.epoch, checkpoint.n_value_bytes());
        let pieces = compute(n_bytes, move || pieces(checkpoint)).await;
        let pieces = pieces.map_err(|source| CheckpointError::Encode { epoch, source })?;
        check_size(epoch, pieces.iter().map(|piece| piece.len() as u64).sum())?;
        Ok(self.storage.put(path, PutPayload::from_iter(pieces)).await?)
    }

    /// Finds the newest checkpoint that is whole and was not rolled back; damaged ones are moved to
    /// `checkpoints/corrupt/`.
    ///
    /// # Errors
    /// [`CheckpointError::Branch`] where every checkpoint since a rollback is damaged.
    /// [`CheckpointError::Run`] and [`CheckpointError::Model`] where the newest undamaged one belongs to
    /// another run or model, [`CheckpointError::Version`] where another version of this program wrote it: it is left alone.
    pub async fn load_latest(&self, run_id: &str, model: &ModelSpec) -> Result<Loaded, CheckpointError> {
        let mut set_aside = Vec::new();
        for (_, path) in self.of_line().await?.into_iter().rev() {
            match self.read(&path).await? {
                Ok(checkpoint) => {
                    let checkpoint = Some(fitting(checkpoint, &path, run_id, model)?);
                    return Ok(Loaded { checkpoint, set_aside });
                }
                Err(damage) => {
                    let name = path.filename().unwrap_or_default();
                    let moved_to = ObjectPath::from_iter([FOLDER, CORRUPT, name]);
                    set_aside.push(self.storage.set_aside(&path, &moved_to, damage.to_string()).await?);
                }
            }
        }
        let begin = self.load_begin().await?;
        let checkpoint = begin.map(|(path, checkpoint)| fitting(checkpoint, &path, run_id, model));
        Ok(Loaded { checkpoint: checkpoint.transpose()?, set_aside })
    }

    /// The newest checkpoint whose epoch is a multiple of `every`, which all aggregators of a run have alike, or else the
    /// newest one. `None` where none is undamaged.
    pub async fn load_shared(&self, every: u64) -> Result<Option<Checkpoint>, CheckpointError> {
        let mut found = self.of_line().await?;
        found.sort_by_key(|(epoch, _)| (epoch.is_multiple_of(every), *epoch));
        for (_, path) in found.into_iter().rev() {
            if let Ok(checkpoint) = self.read(&path).await? {
                return Ok(Some(checkpoint));
            }
        }
        Ok(None)
    }

    /// Epochs and lengths in bytes of the kept checkpoints, oldest first.
    pub async fn kept(&self) -> Result<Vec<(u64, u64)>, CheckpointError> {
        let objects = self.storage.list(&ObjectPath::from(FOLDER)).await?;
        let kept = objects.into_iter().filter_map(|meta| {
            let epoch = epoch_of(&meta.location)?;
            // Not those that were set aside.
            (meta.location == object_path(epoch)).then_some((epoch, meta.size))
        });
        Ok(kept.collect())
    }

    /// The checkpoint of an epoch; `None` where it is missing or damaged.
    pub async fn load(&self, epoch: u64) -> Result<Option<Checkpoint>, CheckpointError> {
        Ok(self.read(&object_path(epoch)).await?.ok())
    }

    /// The length of a stored checkpoint, and its bytes.
    pub async fn open(&self, epoch: u64) -> Result<Option<(u64, Chunks)>, CheckpointError> {
        Ok(self.storage.open_object(&object_path(epoch), CHECKPOINT_BYTES_MAX).await?)
    }

    /// The inner error is damage, the outer one a failure of the store.
    async fn read(&self, path: &ObjectPath) -> Result<Result<Checkpoint, Damage>, CheckpointError> {
        match self.storage.get(path, CHECKPOINT_BYTES_MAX).await {
            Ok(Some(bytes)) => match compute(bytes.len(), move || decode(&bytes)).await {
                Err(source) if source.is_version() => {
                    Err(CheckpointError::Version { path: path.to_string(), source })
                }
                decoded => Ok(decoded.map_err(Damage::from)),
            },
            Ok(None) => Ok(Err(Damage::Vanished)),
            Err(StorageError::TooLarge { max, got, .. }) => Ok(Err(Damage::TooLarge { max, got })),
            Err(error) => Err(error.into()),
        }
    }

    /// Epochs and objects, oldest first.
    async fn list(&self) -> Result<Vec<(u64, ObjectPath)>, CheckpointError> {
        let (objects, _) = self.storage.list_level(&ObjectPath::from(FOLDER)).await?;
        Ok(objects.into_iter().filter_map(|path| Some((epoch_of(&path)?, path))).collect())
    }
}

/// The checkpoint, if it is of this run and model.
fn fitting(
    checkpoint: Checkpoint,
    path: &ObjectPath,
    run_id: &str,
    model: &ModelSpec,
) -> Result<Checkpoint, CheckpointError> {
    let path = path.to_string();
    if checkpoint.run_id != run_id {
        return Err(CheckpointError::Run { path, want: run_id.to_owned(), got: checkpoint.run_id });
    }
    if !checkpoint.model.has_parameters_of(model) {
        let (want, got) = (Box::new(model.clone()), Box::new(checkpoint.model));
        return Err(CheckpointError::Model { path, want, got });
    }
    Ok(checkpoint)
}

/// A checkpoint that could not be read back is not written.
fn check_size(epoch: u64, got: u64) -> Result<(), CheckpointError> {
    if got > CHECKPOINT_BYTES_MAX {
        return Err(CheckpointError::TooLarge { epoch, got });
    }
    Ok(())
}

fn epoch_of(path: &ObjectPath) -> Option<u64> {
    path.filename()?.strip_suffix(".ckpt")?.parse().ok()
}

fn object_path(epoch: u64) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}.ckpt")])
}

/// Encodes a checkpoint for a peer.
pub fn encode(checkpoint: &Checkpoint) -> Result<Vec<u8>, SealError> {
    sealed::seal_parts(KIND, &header(checkpoint), &raw(checkpoint))
}

/// The same for the store, without a copy of the parameters and the optimizer's state.
fn pieces(checkpoint: Checkpoint) -> Result<[Bytes; 3], SealError> {
    let before = sealed::seal_before(KIND, &header(&checkpoint), &raw(&checkpoint))?;
    let parameters = Bytes::from_owner(ParameterBytes(checkpoint.parameters));
    Ok([before.into(), parameters, checkpoint.optimizer_state.into()])
}

/// What follows the header, as it is in memory.
fn raw(checkpoint: &Checkpoint) -> [&[u8]; 2] {
    [bytemuck::cast_slice(&checkpoint.parameters), &checkpoint.optimizer_state]
}

fn header(checkpoint: &Checkpoint) -> Header {
    Header {
        run_id: checkpoint.run_id.clone(),
        model: checkpoint.model.clone(),
        epoch: checkpoint.epoch,
        n_samples_total: checkpoint.n_samples_total,
        n_parameters: checkpoint.parameters.len() as u64,
        n_optimizer_bytes: checkpoint.optimizer_state.len() as u64,
        included: checkpoint.included.clone(),
        history: checkpoint.history.clone(),
    }
}

/// Decodes a checkpoint from the store or a peer.
///
/// # Errors
/// A bit differs from the one that was written, or another version of this program wrote it.
pub fn decode(bytes: &[u8]) -> Result<Checkpoint, SealError> {
    let (header, raw) = sealed::open_parts::<Header>(KIND, bytes)?;
    let n_parameter_bytes = header.n_parameters.checked_mul(4);
    let want = n_parameter_bytes.and_then(|bytes| bytes.checked_add(header.n_optimizer_bytes));
    if want != Some(raw.len() as u64) {
        return Err(SealError::Payload(format!(
            "{} bytes, which are not {} parameters and {} bytes of optimizer state",
            raw.len(),
            header.n_parameters,
            header.n_optimizer_bytes
        )));
    }
    let (parameters, optimizer_state) = raw.split_at(raw.len() - header.n_optimizer_bytes as usize);
    let (values, _) = parameters.as_chunks::<4>();
    Ok(Checkpoint {
        run_id: header.run_id,
        model: header.model,
        epoch: header.epoch,
        n_samples_total: header.n_samples_total,
        parameters: Arc::new(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
        optimizer_state: optimizer_state.to_vec(),
        history: header.history,
        included: header.included,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::fs;

    use barnraise_protocol::run::Preset;
    use futures::TryStreamExt as _;
    use proptest::prelude::*;

    use super::*;

    pub(super) const RUN: &str = "test-run";

    pub(super) fn model() -> ModelSpec {
        Preset::LeNet.model(7)
    }

    pub(super) fn checkpoint(epoch: u64) -> Checkpoint {
        Checkpoint {
            run_id: RUN.into(),
            model: model(),
            epoch,
            n_samples_total: epoch * 1024,
            parameters: Arc::new((0..100).map(|i| i as f32 * 0.5 - epoch as f32).collect()),
            optimizer_state: vec![epoch as u8; 33],
            included: BTreeMap::from([(vec![1, 2], Included { epoch, nonce: 5 })]),
            history: vec![HistoryPoint {
                epoch,
                n_samples_total: epoch * 1024,
                train_loss: Some(1.5),
                test_accuracy: None,
            }],
        }
    }

    pub(super) async fn latest(checkpoints: &Checkpoints) -> Loaded {
        checkpoints.load_latest(RUN, &model()).await.unwrap()
    }

    #[tokio::test]
    async fn the_newest_is_loaded_and_the_oldest_pruned() {
        let checkpoints = Checkpoints::new(Storage::in_memory(), 2);
        assert_eq!(latest(&checkpoints).await, Loaded { checkpoint: None, set_aside: vec![] });
        assert_eq!(checkpoints.save(checkpoint(5)).await.unwrap(), 5);
        assert_eq!(checkpoints.save(checkpoint(10)).await.unwrap(), 5);
        assert_eq!(checkpoints.save(checkpoint(15)).await.unwrap(), 10);
        let epochs: Vec<u64> = checkpoints.list().await.unwrap().into_iter().map(|(e, _)| e).collect();
        assert_eq!(epochs, [10, 15]);
        assert_eq!(latest(&checkpoints).await.checkpoint, Some(checkpoint(15)));
    }

    /// As the last version wrote it, byte by byte.
    #[test]
    fn golden_bytes() {
        let want = Checkpoint {
            parameters: Arc::new(vec![1.0, -2.0]),
            optimizer_state: vec![7; 3],
            ..checkpoint(2)
        };
        let bytes = encode(&want).unwrap();
        assert_eq!(crate::storage::hex(&bytes), GOLDEN);
        assert_eq!(decode(&bytes).unwrap(), want);
    }

    const GOLDEN: &str = "\
    6261726e72616973636b70740500d00000000000000074292afbcc9a9350e0942d6237c1aea4d035590b7e24efc9fafae263\
    8a1574b2c100000008746573742d72756e054c654e6574000c05636f6e763103060505010102020101010101000005706f6f\
    6c310402020202000000000572656c75310b000005636f6e763203100505010100000101010101000005706f6f6c32040202\
    0202000000000572656c75320b000007666c617474656e1d000003666331020078010100000572656c75330b000003666332\
    020054010100000572656c75340b00000366633302010100000000070000028010020301028010010000c03f000102010202\
    050000803f000000c0070707\
    ";

    #[tokio::test]
    async fn a_newer_format_is_refused_by_name_and_stays_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(Storage::open(folder.path()).unwrap(), 3);
        checkpoints.save(checkpoint(1)).await.unwrap();
        let newer = ObjectKind { version: KIND.version + 4, ..KIND };
        let file = folder.path().join("checkpoints/000000000002.ckpt");
        fs::write(&file, sealed::seal(newer, b"of another layout")).unwrap();
        for _ in 0..2 {
            let error = checkpoints.load_latest(RUN, &model()).await.unwrap_err();
            assert!(matches!(error, CheckpointError::Version { .. }), "{error}");
            let (error, known) = (error.to_string(), KIND.version);
            let want = format!(
                "000000000002.ckpt: checkpoint format {}, this program knows up to {known}",
                known + 4
            );
            assert!(error.contains(&want), "{error}");
            assert!(file.exists(), "it is not damaged");
        }
        assert!(checkpoints.load(2).await.is_err() && checkpoints.load_shared(1).await.is_err());
    }

    #[tokio::test]
    async fn what_is_shared_is_of_an_epoch_that_others_have_too() {
        let checkpoints = Checkpoints::new(Storage::in_memory(), 9);
        assert_eq!(checkpoints.load_shared(10).await.unwrap(), None);
        for epoch in [7, 10, 20, 23] {
            checkpoints.save(checkpoint(epoch)).await.unwrap();
        }
        assert_eq!(checkpoints.load_shared(10).await.unwrap(), Some(checkpoint(20)));
        assert_eq!(checkpoints.load_shared(50).await.unwrap(), Some(checkpoint(23)));
        checkpoints.abandon_branch(10, "another line is followed").await.unwrap();
        assert_eq!(latest(&checkpoints).await.checkpoint, Some(checkpoint(7)));
    }

    #[tokio::test]
    async fn any_cut_or_flip_of_the_newest_gives_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(Storage::open(folder.path()).unwrap(), 3);
        let newest = folder.path().join("checkpoints/000000000002.ckpt");
        checkpoints.save(checkpoint(1)).await.unwrap();
        let whole = encode(&checkpoint(2)).unwrap();
        let n = whole.len();
        // Each border of the layout and both its sides, then a spread over the rest.
        let borders = [0, 8, 12, 14, 22, 54, 58, n - 33, n].into_iter();
        let mut cuts: Vec<usize> =
            borders.flat_map(|b| [b.saturating_sub(1), b, b + 1]).chain((0..n).step_by(61)).collect();
        cuts.retain(|cut| *cut < n);
        let mut damaged: Vec<Vec<u8>> = cuts.iter().map(|cut| whole[..*cut].to_vec()).collect();
        for byte in (0..n).step_by(37) {
            let mut flipped = whole.clone();
            flipped[byte] ^= 0x10;
            damaged.push(flipped);
        }
        damaged.push([whole.as_slice(), b"tail"].concat());
        for bytes in damaged {
            fs::write(&newest, &bytes).unwrap();
            let loaded = latest(&checkpoints).await;
            assert_eq!(loaded.checkpoint, Some(checkpoint(1)), "{} of {n} bytes", bytes.len());
            assert_eq!(loaded.set_aside.len(), 1);
            assert_eq!(loaded.set_aside[0].moved_to, "checkpoints/corrupt/000000000002.ckpt");
            assert!(!newest.exists());
            assert_eq!(fs::read(folder.path().join(&loaded.set_aside[0].moved_to)).unwrap(), bytes);
        }
        fs::write(&newest, &whole).unwrap();
        assert_eq!(latest(&checkpoints).await.checkpoint, Some(checkpoint(2)));
    }

    #[tokio::test]
    async fn another_run_or_model_is_an_error_that_names_both() {
        let checkpoints = Checkpoints::new(Storage::in_memory(), 3);
        checkpoints.save(checkpoint(1)).await.unwrap();
        let error = checkpoints.load_latest("other", &model()).await.unwrap_err().to_string();
        assert!(error.contains("`test-run`") && error.contains("`other`"), "{error}");
        let other = Preset::Mlp { hidden: vec![8] }.model(7);
        let error = checkpoints.load_latest(RUN, &other).await.unwrap_err().to_string();
        assert!(error.contains("LeNet, seed 7") && error.contains("fully connected, 8 units"), "{error}");
        assert_eq!(latest(&checkpoints).await.checkpoint, Some(checkpoint(1)));
    }

    #[test]
    fn the_largest_checkpoint_can_be_stored_and_no_larger_one() {
        assert!(check_size(7, CHECKPOINT_BYTES_MAX).is_ok());
        let error = check_size(7, CHECKPOINT_BYTES_MAX + 1).unwrap_err();
        assert!(matches!(error, CheckpointError::TooLarge { epoch: 7, .. }), "{error}");
        assert_eq!(checkpoint(1).n_value_bytes(), 4 * 100 + 33);
    }

    #[tokio::test]
    async fn a_stored_checkpoint_is_handed_out_as_it_is() {
        let checkpoints = Checkpoints::new(Storage::in_memory(), 3);
        checkpoints.save(checkpoint(1)).await.unwrap();
        let bytes = encode(&checkpoint(1)).unwrap();
        let (n_bytes, chunks) = checkpoints.open(1).await.unwrap().unwrap();
        let got: Vec<Bytes> = chunks.try_collect().await.unwrap();
        assert_eq!((n_bytes, got.concat()), (bytes.len() as u64, bytes));
        assert!(checkpoints.open(2).await.unwrap().is_none());
        assert_eq!(checkpoints.load(2).await.unwrap(), None);
    }

    #[test]
    fn lengths_that_overflow_are_an_error() {
        let header = Header {
            run_id: RUN.into(),
            model: model(),
            epoch: 1,
            n_samples_total: 1,
            n_parameters: u64::MAX / 2,
            n_optimizer_bytes: 2,
            included: BTreeMap::new(),
            history: vec![],
        };
        let bytes = sealed::seal_parts(KIND, &header, &[b"xx"]).unwrap();
        assert!(matches!(decode(&bytes), Err(SealError::Payload(_))));
    }

    proptest! {
        #[test]
        fn a_checkpoint_survives_the_round_trip(
            epoch in any::<u64>(),
            parameters in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO, 0..300),
            optimizer_state in prop::collection::vec(any::<u8>(), 0..300),
            hidden in prop::collection::vec(any::<u32>(), 0..4),
            train_loss in prop::option::of(0f32..10.0),
        ) {
            let point = HistoryPoint { epoch, n_samples_total: 9, train_loss, test_accuracy: Some(0.5) };
            let checkpoint = Checkpoint {
                run_id: RUN.into(),
                model: Preset::Mlp { hidden }.model(epoch),
                epoch,
                n_samples_total: 9,
                parameters: Arc::new(parameters),
                optimizer_state,
                included: BTreeMap::from([(vec![7; 38], Included { epoch, nonce: 5 })]),
                history: vec![point; 3],
            };
            prop_assert_eq!(decode(&encode(&checkpoint).unwrap()).unwrap(), checkpoint);
        }
    }
}
