//! Computes an answer of an expert once more, from a checkpoint.

use barnraise_contributor::hosting::{StoredExpert, StoredExpertError};
use barnraise_learning::ComputeDevice;
use barnraise_learning::hosted::{ExpertError, HostedExpert, HostedLayer, HostedLayerError, layer_of};
use barnraise_protocol::evidence::{AnswerEvidence, AnswerHeader, EvidenceError};
use barnraise_protocol::experts::ExpertRefusal;
use barnraise_protocol::experts::checkpoints::ExpertCheckpoint;
use barnraise_protocol::run::ModelSpec;
use barnraise_swarm::experts::audits::{difference, noisy};
use barnraise_swarm::recomputation::Difference;

/// Why nothing can be said of an answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JudgeError {
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    #[error(transparent)]
    Tensors(#[from] ExpertRefusal),
    #[error(transparent)]
    Layer(#[from] HostedLayerError),
    #[error("its expert is not one of the run")]
    Place,
    #[error(transparent)]
    State(#[from] StoredExpertError),
    #[error(transparent)]
    Expert(#[from] ExpertError),
    #[error("its expert gives zero, answers that hang on rounding, or has moved far meanwhile")]
    Nothing,
    #[error("no keeper has a checkpoint after it")]
    NoneAfter,
    #[error("a checkpoint could not be fetched")]
    Gone,
    #[error("its expert is averaged with its copies between its checkpoints")]
    Averaged,
}

/// How the answer of some evidence differs from what its checkpoint gives. Blocks for as long as that takes.
pub(crate) async fn recomputed(
    evidence: &AnswerEvidence,
    device: &ComputeDevice,
) -> Result<Difference, JudgeError> {
    let contents = evidence.verify()?;
    let AnswerHeader { run, answer, checkpoint } = &evidence.header;
    let layers = HostedLayer::of_run(run)?;
    let layer = layer_of(&layers, answer.place).ok_or(JudgeError::Place)?;
    let expert = opened(&run.model, layer, (checkpoint, &evidence.checkpoint), device)?;
    let given = expert.forward(&contents.inputs).await?;
    let with_noise = expert.forward(&noisy(&contents.inputs)).await?;
    difference(&contents.answer, (&given, &with_noise), answer.codec).ok_or(JudgeError::Nothing)
}

/// The expert of a checkpoint, with its bytes.
pub(crate) fn opened(
    model: &ModelSpec,
    layer: &HostedLayer,
    (checkpoint, bytes): (&ExpertCheckpoint, &[u8]),
    device: &ComputeDevice,
) -> Result<HostedExpert, JudgeError> {
    let stored = StoredExpert::open_kept(bytes, layer, checkpoint.version())?;
    let number = layer.grid.number(&checkpoint.lease.place.1).and_then(|number| usize::try_from(number).ok());
    let mut expert = HostedExpert::new(model, &layer.body, number.ok_or(JudgeError::Place)?, device)?;
    expert.restore(stored.state)?;
    Ok(expert)
}
