//! The model that others have: asked for when this peer fell behind, given when another did.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use barnraise_protocol::ConversationError;
use barnraise_protocol::bulk::{Partial, Transfer};
use barnraise_protocol::codec::first_not_finite;
use barnraise_protocol::matchmaking::ModelVersion;
use barnraise_protocol::model::{self, Answer, Fetched, PROTOCOL, Request, StepHeader};
use barnraise_relay::{NodeError, Paced};
use barnraise_swarm::PeerKey;
use barnraise_swarm::guard::PaceLimits;
use futures::StreamExt;
use futures::future::Abortable;
use libp2p::{PeerId, Stream};
use tokio::sync::oneshot;

use super::super::places::Places;
use super::{Heard, Shared, Stored};
use crate::storage::checkpoint::{self, Checkpoint};

/// Room in a checkpoint beside its values.
const HEADER_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Values of a checkpoint for each parameter: itself and what any optimizer remembers of it.
const VALUES_PER_PARAMETER: u64 = 4;
/// How slowly a model may come.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    bytes_per_second_min: 1024,
};

/// Why this peer does not have the others' model.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// Of each that was asked.
    #[error("nobody gives the model: {0}")]
    Nobody(String),
    /// The core has ended.
    #[error("this peer shuts down")]
    ShuttingDown,
}

/// Why one of them did not give it.
#[derive(Debug, thiserror::Error)]
enum DonorError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error("not a checkpoint of this run: {0}")]
    Checkpoint(String),
    #[error("{0}")]
    Refused(String),
    #[error("this peer shuts down")]
    ShuttingDown,
}

/// Gets the model of one of `from`, from the next one where one leaves in the middle. Where that was the last one, or
/// the only one that was known to have the model yet, the next attempt goes on with what came.
pub(super) async fn follow(shared: Shared, model: ModelVersion, from: Vec<PeerKey>, n_parameters: usize) {
    let mut model = model;
    // One attempt at a time is under way.
    let mut partial = shared.cut.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut failed = Vec::new();
    let mut followed = Err(FollowError::Nobody(String::new()));
    for donor in from {
        match follow_one(&shared, &donor, &mut model, n_parameters, &mut partial).await {
            Ok(()) => {
                followed = Ok(());
                break;
            }
            Err(DonorError::ShuttingDown) => {
                followed = Err(FollowError::ShuttingDown);
                break;
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    if let Err(FollowError::Nobody(reasons)) = &mut followed {
        *reasons = failed.join("; ");
        *shared.cut.lock().unwrap_or_else(PoisonError::into_inner) = partial;
    }
    let me = shared.me();
    shared.tell_core(me, Heard::Followed(followed)).await;
}

async fn follow_one(
    shared: &Shared,
    donor: &PeerKey,
    model: &mut ModelVersion,
    n_parameters: usize,
    partial: &mut Option<Partial>,
) -> Result<(), DonorError> {
    let peer = PeerId::from_bytes(&donor.0).map_err(|error| DonorError::Refused(error.to_string()))?;
    let stream = shared.node.open(peer, PROTOCOL).await?;
    let mut stream = Paced::duplex(stream, PACE);
    // The one that all have first, and one of now where no step leads on from that.
    let mut checkpoints = [true, false].into_iter();
    loop {
        match model::fetch_step(&mut stream, *model, n_parameters).await? {
            Fetched::Step(header, mean) => {
                *model = apply(shared, donor, |done| Heard::Step(header, mean, done)).await?;
            }
            Fetched::UpToDate => return Ok(()),
            Fetched::Unknown(reason) => {
                let is_shared = checkpoints.next().ok_or(DonorError::Refused(reason))?;
                if let Some(n_bytes) = partial.as_ref().map(Partial::n_bytes) {
                    tracing::info!(from = %peer, n_bytes, "asks for the rest of a checkpoint");
                }
                let max = VALUES_PER_PARAMETER * 4 * n_parameters as u64 + HEADER_BYTES_MAX;
                let bytes = model::fetch_checkpoint(&mut stream, is_shared, max, partial).await?;
                let checkpoint = decode(bytes, n_parameters).await?;
                *model = apply(shared, donor, |done| Heard::Checkpoint(Box::new(checkpoint), done)).await?;
            }
        }
    }
}

/// Has the core take what came; the model that it has then.
async fn apply(
    shared: &Shared,
    donor: &PeerKey,
    heard: impl FnOnce(oneshot::Sender<Result<ModelVersion, String>>) -> Heard,
) -> Result<ModelVersion, DonorError> {
    let (done, applied) = oneshot::channel();
    if !shared.tell_core(donor.clone(), heard(done)).await {
        return Err(DonorError::ShuttingDown);
    }
    applied.await.map_err(|_| DonorError::ShuttingDown)?.map_err(DonorError::Refused)
}

async fn decode(bytes: Vec<u8>, n_parameters: usize) -> Result<Checkpoint, DonorError> {
    let decoding = tokio::task::spawn_blocking(move || checkpoint::decode(&bytes));
    let checkpoint = decoding.await.map_err(|_| DonorError::ShuttingDown)?;
    let checkpoint = checkpoint.map_err(|error| DonorError::Checkpoint(error.to_string()))?;
    let n_values = checkpoint.parameters.len();
    if n_values != n_parameters || first_not_finite(&checkpoint.parameters).is_some() {
        return Err(DonorError::Checkpoint(format!(
            "{n_values} parameters, or some that are not finite; {n_parameters} are wanted"
        )));
    }
    Ok(checkpoint)
}

/// Gives the others what they ask for.
pub(super) fn accept(shared: &Shared, places: &Arc<Places>, stored: &Stored) -> Result<(), NodeError> {
    let mut incoming = shared.node.accept(PROTOCOL)?;
    let (shared, places, stored) = (shared.clone(), places.clone(), stored.clone());
    tokio::spawn(async move {
        while let Some((peer, stream)) = incoming.next().await {
            if !shared.peers.contains(&peer) {
                continue;
            }
            let Some((place, registration)) = Places::take(&places, peer) else { continue };
            let giving = give(shared.clone(), stored.clone(), stream);
            tokio::spawn(async move {
                if let Ok(Err(error)) = Abortable::new(giving, registration).await {
                    tracing::debug!(%peer, %error, "an aggregator did not take all of the model");
                }
                drop(place);
            });
        }
    });
    Ok(())
}

async fn give(shared: Shared, stored: Stored, stream: Stream) -> Result<(), ConversationError> {
    let mut stream = Paced::duplex(stream, PACE);
    let pace = stream.pace();
    let (shared, stored) = (&shared, &stored);
    let lookup = |request: Request| async move {
        let found = match request {
            Request::StepAfter(model) => step_after(shared, stored, model).await,
            Request::Checkpoint { is_shared } => checkpoint_for(shared, stored, is_shared).await,
        };
        found.unwrap_or_else(|reason| (Answer::Refused(reason), Vec::new()))
    };
    model::serve(&mut stream, lookup, || pace.wait()).await
}

async fn step_after(shared: &Shared, stored: &Stored, model: ModelVersion) -> Result<model::Found, String> {
    let words = |error: crate::storage::journal::JournalError| error.to_string();
    let unknown = || format!("no step on the model of epoch {} with the hash {}", model.epoch, model.hash);
    let mut commit = stored.journal.commit_of(model.epoch).await.map_err(words)?.and_then(Result::ok);
    if commit.is_none() {
        if newest(shared).await == Some(model) {
            return Ok((Answer::UpToDate, Vec::new()));
        }
        // That step may have been made since it was looked for: whoever is told that it is unknown goes back to a checkpoint.
        commit = stored.journal.commit_of(model.epoch).await.map_err(words)?.and_then(Result::ok);
    }
    let commit = commit.ok_or_else(unknown)?;
    let together = commit.together.filter(|together| together.before == model.hash).ok_or_else(unknown)?;
    let mean = stored.journal.mean(model.epoch, together.nonce).await.map_err(words)?.ok_or_else(unknown)?;
    let header = StepHeader {
        epoch: commit.epoch,
        before: together.before,
        nonce: together.nonce,
        n_samples: commit.n_samples,
        loss: together.loss,
        members: together.members,
        transfer: Transfer::of(&mean),
    };
    Ok((Answer::Step(header), mean))
}

/// The model that this peer has.
async fn newest(shared: &Shared) -> Option<ModelVersion> {
    let (answer, model) = oneshot::channel();
    shared.tell_core(shared.me(), Heard::WantModel(answer)).await;
    model.await.ok()
}

async fn checkpoint_for(shared: &Shared, stored: &Stored, is_shared: bool) -> Result<model::Found, String> {
    let words = |error: checkpoint::CheckpointError| error.to_string();
    // Every epoch is a multiple of 1.
    let every = if is_shared { shared.checkpoint_every } else { 1 };
    let mut found = stored.checkpoints.load_shared(every).await.map_err(words)?;
    // One that no step leads on from is of before this peer took another one's checkpoint.
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
        shared.tell_core(shared.me(), Heard::WantCheckpoint(done)).await;
        // Dropped once there is one, or nobody is left to make it.
        let _ = made.await;
        found = stored.checkpoints.load_shared(1).await.map_err(words)?;
    }
    let checkpoint = found.ok_or("there is no checkpoint")?;
    // Of the history each has its own; without it all have the same bytes.
    let shared = Checkpoint { history: Vec::new(), ..checkpoint };
    let encoding = tokio::task::spawn_blocking(move || checkpoint::encode(&shared));
    let bytes = encoding.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    Ok((Answer::Checkpoint(Transfer::of(&bytes)), bytes))
}
