//! Transfer of the model between aggregators: fetched when this one fell behind, served when another did.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use barnraise_protocol::bulk::{Partial, Transfer};
use barnraise_protocol::codec::first_not_finite;
use barnraise_protocol::matchmaking::ModelVersion;
use barnraise_protocol::model::{
    self, Fetched, ModelRefusal, ModelRequest, ModelResponse, PROTOCOL, StepHeader,
};
use barnraise_protocol::sealed::SealError;
use barnraise_protocol::{ConversationError, RefusalReason};
use barnraise_relay::tasks::TaskSet;
use barnraise_relay::{NodeError, Paced};
use barnraise_swarm::PeerKey;
use barnraise_swarm::guard::PaceLimits;
use futures::StreamExt;
use futures::future::Abortable;
use libp2p::identity::ParseError;
use libp2p::{PeerId, Stream};
use tokio::sync::oneshot;

use super::super::learner::LearnerError;
use super::{AggregationContext, AggregatorEvent, ServedStorage};
use crate::net::transfer_slots::TransferSlots;
use crate::storage::checkpoint::{self, Checkpoint, CheckpointError};
use crate::storage::disk_space::DiskProblem;
use crate::storage::journal::JournalError;

/// Bytes of a checkpoint beside its values.
const HEADER_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Values of a checkpoint for each parameter: itself and the state of any optimizer.
const VALUES_PER_PARAMETER: u64 = 4;
/// Slowest pace of a transfer.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    bytes_per_second_min: 1024,
};

/// Why this aggregator could not catch up.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// No aggregator sent its model; the reasons of each.
    #[error("no aggregator sent its model: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Nobody(Vec<DonorError>),
    /// The core has ended.
    #[error("this peer shuts down")]
    ShuttingDown,
}

/// Why a step or a model of another aggregator is not adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// A step on another model.
    #[error("a step of epoch {epoch} is of another model")]
    OtherModel {
        /// Of the step.
        epoch: u64,
    },
    /// A mean of another length, or with a NaN or an infinity.
    #[error("the step does not fit the model, or is not finite")]
    Mean,
    /// The model before it is not stored yet.
    #[error("a model is being stored here")]
    Busy,
    /// Nothing can be stored for now.
    #[error("{}", .0.reason())]
    Disk(DiskProblem),
    /// A model of another run, or of another kind.
    #[error("it is of the run `{got}`, this is `{here}`")]
    OtherRun {
        /// Id of the run here.
        here: String,
        /// Id in the checkpoint.
        got: String,
    },
    /// A checkpoint that does not fit the model.
    #[error(transparent)]
    Checkpoint(LearnerError),
    /// This backbone failed in the middle of it.
    #[error("this backbone failed while it took the model of another one")]
    Failed,
}

/// Why one aggregator did not send its model.
#[derive(Debug, thiserror::Error)]
pub enum DonorError {
    /// Its peer id is none.
    #[error(transparent)]
    PeerId(#[from] ParseError),
    /// It cannot be reached.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A transfer failed.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    /// It knows no step that leads on, not even from its checkpoints.
    #[error(transparent)]
    Refused(#[from] ModelRefusal),
    /// Its checkpoint cannot be read.
    #[error("not a checkpoint of this run: {0}")]
    Checkpoint(#[from] SealError),
    /// Its checkpoint does not fit the model.
    #[error("not a checkpoint of this run: {got} parameters, or some that are not finite; {want} are wanted")]
    Unfit {
        /// Of the model.
        want: usize,
        /// Of the checkpoint.
        got: usize,
    },
    /// The core does not take it.
    #[error(transparent)]
    Adopt(#[from] AdoptError),
    /// The core has ended.
    #[error("this peer shuts down")]
    ShuttingDown,
}

/// Fetches the model from one of `from`; the next one continues where one leaves in the middle. After the last one the
/// received part is kept for the next attempt.
pub(super) async fn follow(
    shared: AggregationContext,
    model: ModelVersion,
    from: Vec<PeerKey>,
    n_parameters: usize,
) {
    let mut model = model;
    // One attempt is in progress at a time.
    let mut partial = shared.cut.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut failed = Vec::new();
    let mut followed = None;
    for donor in from {
        match follow_one(&shared, &donor, &mut model, n_parameters, &mut partial).await {
            Ok(()) => {
                followed = Some(Ok(()));
                break;
            }
            Err(DonorError::ShuttingDown) => {
                followed = Some(Err(FollowError::ShuttingDown));
                break;
            }
            Err(error) => failed.push(error),
        }
    }
    let followed = followed.unwrap_or_else(|| {
        *shared.cut.lock().unwrap_or_else(PoisonError::into_inner) = partial;
        Err(FollowError::Nobody(failed))
    });
    let me = shared.me();
    shared.tell_core(me, AggregatorEvent::Followed(followed)).await;
}

async fn follow_one(
    shared: &AggregationContext,
    donor: &PeerKey,
    model: &mut ModelVersion,
    n_parameters: usize,
    partial: &mut Option<Partial>,
) -> Result<(), DonorError> {
    let peer = PeerId::from_bytes(&donor.0)?;
    let stream = shared.node.open(peer, PROTOCOL).await?;
    let mut stream = Paced::new(stream, PACE);
    let pace = stream.pace();
    // First the checkpoint that all have, then one of the present model where no step leads on from that.
    let mut checkpoints = [true, false].into_iter();
    loop {
        // The time to apply what came is not the donor's.
        pace.wait();
        match model::fetch_step(&mut stream, *model, n_parameters).await? {
            Fetched::Step(header, mean) => {
                *model = apply(shared, donor, |done| AggregatorEvent::Step(header, mean, done)).await?;
            }
            Fetched::UpToDate => return Ok(()),
            Fetched::Unknown(refusal) => {
                let is_shared = checkpoints.next().ok_or(refusal)?;
                if let Some(n_bytes) = partial.as_ref().map(Partial::n_bytes) {
                    tracing::info!(from = %peer, n_bytes, "asks for the rest of a checkpoint");
                }
                let max = VALUES_PER_PARAMETER * 4 * n_parameters as u64 + HEADER_BYTES_MAX;
                let bytes = model::fetch_checkpoint(&mut stream, is_shared, max, partial).await?;
                let checkpoint = decode(bytes, n_parameters).await?;
                *model = apply(shared, donor, |done| AggregatorEvent::Checkpoint(Box::new(checkpoint), done))
                    .await?;
            }
        }
    }
}

/// Has the core apply a received step or checkpoint; returns the model after it.
async fn apply(
    shared: &AggregationContext,
    donor: &PeerKey,
    heard: impl FnOnce(oneshot::Sender<Result<ModelVersion, AdoptError>>) -> AggregatorEvent,
) -> Result<ModelVersion, DonorError> {
    let (done, applied) = oneshot::channel();
    if !shared.tell_core(donor.clone(), heard(done)).await {
        return Err(DonorError::ShuttingDown);
    }
    Ok(applied.await.map_err(|_| DonorError::ShuttingDown)??)
}

async fn decode(bytes: Vec<u8>, n_parameters: usize) -> Result<Checkpoint, DonorError> {
    let decoding = tokio::task::spawn_blocking(move || checkpoint::decode(&bytes));
    let checkpoint = decoding.await.map_err(|_| DonorError::ShuttingDown)??;
    let got = checkpoint.parameters.len();
    if got != n_parameters || first_not_finite(&checkpoint.parameters).is_some() {
        return Err(DonorError::Unfit { want: n_parameters, got });
    }
    Ok(checkpoint)
}

/// Why a step or a checkpoint is not served.
#[derive(Debug, thiserror::Error)]
enum LookupError {
    #[error("no step on the model of epoch {} with the hash {}", .0.epoch, .0.hash)]
    UnknownModel(ModelVersion),
    #[error("there is no checkpoint")]
    NoCheckpoint,
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Encode(#[from] SealError),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

impl From<LookupError> for ModelRefusal {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::UnknownModel(ModelVersion { epoch, hash, .. }) => Self::UnknownModel { epoch, hash },
            LookupError::NoCheckpoint => Self::NoCheckpoint,
            error => Self::Storage { reason: RefusalReason::of(error) },
        }
    }
}

/// Serves steps and checkpoints to the other aggregators.
pub(super) fn accept(
    shared: &AggregationContext,
    slots: &Arc<TransferSlots>,
    stored: &ServedStorage,
) -> Result<impl Future<Output = ()> + Send + use<>, NodeError> {
    let mut incoming = shared.node.accept(PROTOCOL)?;
    let (shared, slots, stored) = (shared.clone(), slots.clone(), stored.clone());
    Ok(async move {
        let conversations = TaskSet::default();
        while let Some((peer, stream)) = incoming.next().await {
            if !shared.peers.contains(&peer) {
                continue;
            }
            let Some((slot, registration)) = TransferSlots::take(&slots, peer) else { continue };
            let giving = give(shared.clone(), stored.clone(), stream);
            conversations.spawn("serving a model", async move {
                if let Ok(Err(error)) = Abortable::new(giving, registration).await {
                    tracing::debug!(%peer, %error, "an aggregator did not receive all of the model");
                }
                drop(slot);
            });
        }
    })
}

async fn give(
    shared: AggregationContext,
    stored: ServedStorage,
    stream: Stream,
) -> Result<(), ConversationError> {
    let mut stream = Paced::new(stream, PACE);
    let pace = stream.pace();
    let (shared, stored) = (&shared, &stored);
    let lookup = |request: ModelRequest| async move {
        let found = match request {
            ModelRequest::StepAfter(model) => step_after(shared, stored, model).await,
            ModelRequest::Checkpoint { is_shared } => checkpoint_for(shared, stored, is_shared).await,
        };
        found.unwrap_or_else(|error| (ModelResponse::Refused(error.into()), Vec::new()))
    };
    model::serve(&mut stream, lookup, || pace.wait()).await
}

async fn step_after(
    shared: &AggregationContext,
    stored: &ServedStorage,
    model: ModelVersion,
) -> Result<model::ResponseAndBytes, LookupError> {
    let unknown = || LookupError::UnknownModel(model);
    let mut commit = stored.journal.commit_of(model.epoch).await?.and_then(Result::ok);
    if commit.is_none() {
        if newest(shared).await == Some(model) {
            return Ok((ModelResponse::UpToDate, Vec::new()));
        }
        // The step may have been made meanwhile: an aggregator for which it is unknown would go back to a checkpoint.
        commit = stored.journal.commit_of(model.epoch).await?.and_then(Result::ok);
    }
    let commit = commit.filter(|commit| commit.before == model.hash).ok_or_else(unknown)?;
    let mean = stored.journal.mean(model.epoch, commit.nonce).await?.ok_or_else(unknown)?;
    let header = StepHeader {
        epoch: commit.epoch,
        before: commit.before,
        nonce: commit.nonce,
        n_samples: commit.n_samples,
        loss: commit.loss,
        members: commit.members,
        transfer: Transfer::of(&mean),
    };
    Ok((ModelResponse::Step(header), mean))
}

/// The version of this aggregator's model.
async fn newest(shared: &AggregationContext) -> Option<ModelVersion> {
    let (answer, model) = oneshot::channel();
    shared.tell_core(shared.me(), AggregatorEvent::WantModel(answer)).await;
    model.await.ok()
}

async fn checkpoint_for(
    shared: &AggregationContext,
    stored: &ServedStorage,
    is_shared: bool,
) -> Result<model::ResponseAndBytes, LookupError> {
    // Every epoch is a multiple of 1.
    let every = if is_shared { shared.checkpoint_every } else { 1 };
    let mut found = stored.checkpoints.load_shared(every).await?;
    // A checkpoint without a following step is from before this aggregator took another one's checkpoint.
    let epoch = found.as_ref().map(|checkpoint| checkpoint.epoch);
    let leads_on = match epoch {
        Some(epoch) => {
            let commit = stored.journal.commit_of(epoch).await;
            matches!(commit, Ok(Some(Ok(_))))
        }
        None => false,
    };
    let is_newest = epoch.is_some() && epoch == newest(shared).await.map(|model| model.epoch);
    if !(is_newest || leads_on && is_shared) {
        let (done, made) = oneshot::channel();
        shared.tell_core(shared.me(), AggregatorEvent::WantCheckpoint(done)).await;
        // Dropped once there is one, or when the core has ended.
        let _ = made.await;
        found = stored.checkpoints.load_shared(1).await?;
    }
    let checkpoint = found.ok_or(LookupError::NoCheckpoint)?;
    // Each aggregator has its own history; without it the bytes are the same.
    let shared = Checkpoint { history: Vec::new(), ..checkpoint };
    let encoding = tokio::task::spawn_blocking(move || checkpoint::encode(&shared));
    let bytes = encoding.await??;
    Ok((ModelResponse::Checkpoint(Transfer::of(&bytes)), bytes))
}
