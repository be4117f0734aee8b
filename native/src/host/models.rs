//! Models for download: the newest one that was evaluated, and some earlier ones, as files.
//!
//! Only an open run publishes its model; other runs give it to participants only. One copy of the newest parameters
//! serves all downloads; a few earlier models are on the disk.

mod card;
mod keeper;
mod serve;
mod sharing;

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
pub(crate) use self::sharing::SharedModel;
pub use crate::storage::model_store::{ModelStore, StoredModel};

/// Values that are turned into bytes at once.
const PIECE_VALUES: usize = 16 * 1024;
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
    /// `[n_parameters]`.
    pub parameters: Arc<Vec<f32>>,
    /// Hash of the parameters as encoded in the file.
    pub sha256: Sha256Hash,
    header: Bytes,
}

impl Snapshot {
    /// Builds the header of the file.
    ///
    /// # Errors
    /// The run's names are too long for a header.
    pub fn new(
        facts: &Facts,
        epoch: u64,
        made_at: UnixTime,
        evaluation: Evaluation,
        parameters: Arc<Vec<f32>>,
    ) -> Result<Self, TensorFileError> {
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
            ("model", serde_json::to_string(&facts.run.model.graph)?),
            ("dataset", facts.run.data.manifest.name.clone()),
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

    /// The file in pieces, each encoded when it is polled.
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

/// Publishes the models of the evaluator.
#[derive(Debug)]
pub struct Publisher {
    facts: Facts,
    latest: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Publisher {
    /// A publisher, and a receiver of the newest model.
    pub fn new(facts: Facts) -> (Self, watch::Receiver<Option<Arc<Snapshot>>>) {
        let (latest, reader) = watch::channel(None);
        (Self { facts, latest }, reader)
    }

    /// Publishes the evaluated model of `epoch`.
    pub fn publish(&self, epoch: u64, made_at: UnixTime, evaluation: Evaluation, parameters: Arc<Vec<f32>>) {
        match Snapshot::new(&self.facts, epoch, made_at, evaluation, parameters) {
            Ok(snapshot) => drop(self.latest.send_replace(Some(Arc::new(snapshot)))),
            Err(error) => tracing::warn!(epoch, %error, "the model cannot be published"),
        }
    }
}
