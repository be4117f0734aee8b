//! The model for whoever wants to have it: the newest one that was evaluated, and some from before, as files.
//!
//! Only a run that is open gives its model away; others hand it to those who take part, and to nobody else. One copy of
//! the newest parameters is kept, for all who download it; those from before are on the disk, and a few of them only.

mod card;
mod keeper;
mod serve;

use std::collections::BTreeMap;
use std::sync::Arc;

use barnraise_learning::tensor_file::{self, TensorFileError};
use barnraise_learning::{Evaluation, ParameterLayout};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::run::RunDescription;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

pub use self::keeper::{KEPT_BYTES_MAX, Keeper};
pub use self::serve::{DOWNLOADS_MAX, ModelFiles};
pub use crate::storage::shelf::{Kept, Shelf};

/// Values that are turned into bytes at once.
const PIECE_VALUES: usize = 16 * 1024;
/// Said where the operator says nothing.
const NO_LICENSE: &str = "not stated: ask the operator of the run";

/// What all models of a run have in common.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The run.
    pub run: Arc<RunDescription>,
    /// Names and shapes of the tensors.
    pub layout: Arc<ParameterLayout>,
    /// Under which the operator gives the model away, by its SPDX id.
    pub license: Option<String>,
}

/// A model that was evaluated.
#[derive(Debug)]
pub struct Snapshot {
    /// Optimizer steps made.
    pub epoch: u64,
    /// When it was evaluated.
    pub made_at: UnixTime,
    /// How well it does on held-out samples.
    pub evaluation: Evaluation,
    /// `[n_parameters]`.
    pub parameters: Arc<[f32]>,
    /// Of the parameters as they stand in a file.
    pub sha256: Sha256Hash,
    header: Bytes,
}

impl Snapshot {
    /// Names the parameters, in the words that their file will say.
    ///
    /// # Errors
    /// A run with names that are too long for a header.
    pub fn new(
        facts: &Facts,
        epoch: u64,
        made_at: UnixTime,
        evaluation: Evaluation,
        parameters: Arc<[f32]>,
    ) -> Result<Self, TensorFileError> {
        let mut hash = Sha256::new();
        for values in parameters.chunks(PIECE_VALUES) {
            hash.update(tensor_file::value_bytes(values));
        }
        let sha256 = Sha256Hash(hash.finalize().into());
        let license = facts.license.as_deref().unwrap_or(NO_LICENSE);
        let notes: BTreeMap<String, String> = [
            ("run", facts.run.run_id.clone()),
            ("title", facts.run.title.clone()),
            ("epoch", epoch.to_string()),
            ("model", serde_json::to_string(&facts.run.model.kind)?),
            ("dataset", facts.run.manifest.name.clone()),
            ("test_accuracy", evaluation.accuracy.to_string()),
            ("test_loss", evaluation.loss.to_string()),
            ("evaluated_at", made_at.0.to_string()),
            ("license", license.to_owned()),
            ("sha256_of_values", sha256.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let header = tensor_file::header(&facts.layout, &notes)?.into();
        Ok(Self { epoch, made_at, evaluation, parameters, sha256, header })
    }

    /// Length of its file.
    pub fn n_bytes(&self) -> u64 {
        (self.header.len() + self.parameters.len() * tensor_file::VALUE_BYTES) as u64
    }

    /// Its file in pieces, each made when it is asked for.
    pub fn pieces(self: Arc<Self>) -> impl Iterator<Item = Bytes> + Send {
        let header = self.header.clone();
        let n_values = self.parameters.len();
        let values = (0..n_values).step_by(PIECE_VALUES).map(move |start| {
            let end = n_values.min(start + PIECE_VALUES);
            tensor_file::value_bytes(&self.parameters[start..end]).into()
        });
        std::iter::once(header).chain(values)
    }
}

/// Where the evaluator leaves its models.
#[derive(Debug)]
pub struct Publisher {
    facts: Facts,
    latest: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Publisher {
    /// A publisher, and where others find the newest model once there is one.
    pub fn new(facts: Facts) -> (Self, watch::Receiver<Option<Arc<Snapshot>>>) {
        let (latest, reader) = watch::channel(None);
        (Self { facts, latest }, reader)
    }

    /// The model of `epoch` was evaluated.
    pub fn publish(&self, epoch: u64, made_at: UnixTime, evaluation: Evaluation, parameters: Arc<[f32]>) {
        match Snapshot::new(&self.facts, epoch, made_at, evaluation, parameters) {
            Ok(snapshot) => drop(self.latest.send_replace(Some(Arc::new(snapshot)))),
            Err(error) => tracing::warn!(epoch, %error, "the model cannot be given away"),
        }
    }
}
