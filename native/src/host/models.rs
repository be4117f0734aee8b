//! Models for download: the newest one that was evaluated, and some earlier ones, as files.
//!
//! Only an open run publishes its model; other runs give it to participants only. All of them are on the disk: the newest
//! would be as much memory again as the parameters of the run.

mod card;
mod keeper;
mod serve;
mod sharing;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use barnraise_learning::tensor_file::{self, TensorFileError};
use barnraise_learning::{Evaluation, ParameterLayout};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::run::RunDescription;
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

pub(crate) use self::card::quoted;
pub use self::keeper::{KEPT_BYTES_MAX, Keeper};
pub use self::serve::{DOWNLOADS_MAX, ModelFiles};
pub(crate) use self::sharing::SharedModel;
pub use crate::storage::model_store::{ModelStore, StoredModel};

/// Values that are turned into bytes at once.
const PIECE_VALUES: usize = 16 * 1024;
/// Bytes that are read at once.
const PIECE_BYTES: usize = PIECE_VALUES * tensor_file::VALUE_BYTES;
/// License text where the operator states none.
const NO_LICENSE: &str = "not stated: ask the operator of the run";

/// Facts that all models of a run share.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The run.
    pub run: Arc<RunDescription>,
    /// Names and shapes of the tensors.
    pub layout: Arc<ParameterLayout>,
    /// SPDX id of the license under which the operator publishes the model.
    pub license: Option<String>,
}

/// A model that was evaluated.
#[derive(Debug)]
pub struct Snapshot {
    /// Optimizer steps made.
    pub epoch: u64,
    /// When it was evaluated.
    pub made_at: UnixTime,
    /// Loss and accuracy on held-out samples.
    pub evaluation: Evaluation,
    /// Hash of the parameters as encoded in the file.
    pub sha256: Sha256Hash,
    /// Length of its file.
    pub n_bytes: u64,
    /// It has no name: with its last reader it is gone.
    file: Mutex<File>,
}

/// Why a model cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The run's names are too long for a header.
    #[error(transparent)]
    Header(#[from] TensorFileError),
    /// The disk.
    #[error("it cannot be written: {0}")]
    Disk(#[from] io::Error),
}

impl Snapshot {
    /// Writes the file, in `folder`. Blocks.
    fn write(
        facts: &Facts,
        folder: &Path,
        epoch: u64,
        made_at: UnixTime,
        evaluation: Evaluation,
        parameters: &[f32],
    ) -> Result<Self, SnapshotError> {
        let mut hash = Sha256::new();
        for values in parameters.chunks(PIECE_VALUES) {
            hash.update(tensor_file::value_bytes(values));
        }
        let sha256 = Sha256Hash(hash.finalize().into());
        let license = facts.license.as_deref().unwrap_or(NO_LICENSE);
        let notes: BTreeMap<String, String> = [
            ("run", facts.run.identity.run_id.clone()),
            ("title", facts.run.identity.title.clone()),
            ("epoch", epoch.to_string()),
            ("model", serde_json::to_string(&facts.run.model.graph).map_err(TensorFileError::from)?),
            ("dataset", facts.run.data.manifest.name.clone()),
            ("test_accuracy", evaluation.accuracy.to_string()),
            ("test_loss", evaluation.loss.to_string()),
            ("evaluated_at", made_at.0.to_string()),
            ("license", license.to_owned()),
            ("sha256_of_values", sha256.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        fs::create_dir_all(folder)?;
        let mut file = tempfile::tempfile_in(folder)?;
        file.write_all(&tensor_file::header(&facts.layout, &notes)?)?;
        for values in parameters.chunks(PIECE_VALUES) {
            file.write_all(&tensor_file::value_bytes(values))?;
        }
        let n_bytes = file.stream_position()?;
        Ok(Self { epoch, made_at, evaluation, sha256, n_bytes, file: Mutex::new(file) })
    }

    /// The file in pieces, each read when it is polled.
    pub fn pieces(self: Arc<Self>) -> impl Stream<Item = io::Result<Bytes>> + Send {
        stream::iter((0..self.n_bytes).step_by(PIECE_BYTES)).then(move |start| {
            let snapshot = Arc::clone(&self);
            async move { spawn_blocking(move || snapshot.piece(start)).await.map_err(io::Error::other)? }
        })
    }

    fn piece(&self, start: u64) -> io::Result<Bytes> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start))?;
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        Read::by_ref(&mut *file).take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
        Ok(piece.into())
    }
}

/// Publishes the models of the evaluator.
#[derive(Debug)]
pub struct Publisher {
    facts: Facts,
    /// Where the newest model is.
    folder: PathBuf,
    latest: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Publisher {
    /// A publisher that has the newest model in `folder`, and a receiver of it.
    pub fn new(facts: Facts, folder: PathBuf) -> (Self, watch::Receiver<Option<Arc<Snapshot>>>) {
        let (latest, reader) = watch::channel(None);
        (Self { facts, folder, latest }, reader)
    }

    /// Publishes the evaluated model of `epoch`. Where it cannot, the one before stays. Blocks.
    ///
    /// - `parameters`: `[n_parameters]`
    pub fn publish(&self, epoch: u64, made_at: UnixTime, evaluation: Evaluation, parameters: &[f32]) {
        match Snapshot::write(&self.facts, &self.folder, epoch, made_at, evaluation, parameters) {
            Ok(snapshot) => drop(self.latest.send_replace(Some(Arc::new(snapshot)))),
            Err(error) => tracing::warn!(epoch, %error, "the model cannot be published"),
        }
    }
}
