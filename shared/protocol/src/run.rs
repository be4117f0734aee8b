//! The `run` conversation: a contributor asks what is being trained.
//!
//! One request, one answer, on a stream of its own.

use futures::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use serde::{Deserialize, Serialize};

use crate::access::AccessDescription;
use crate::codec::TensorCodec;
use crate::dataset::Manifest;
use crate::error::ConversationError;
use crate::framing::{self, FrameError};

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/run/1";

/// Largest message of this conversation: a manifest of ten thousand shards fits.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// Largest question: whoever is asked reserves no more for it.
pub const REQUEST_BYTES_MAX: usize = 64;

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// What is being trained here?
    Describe,
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// All that a contributor needs to take part.
    Description(Box<RunDescription>),
    /// The request was understood and declined.
    Refused(String),
}

/// A run as a contributor sees it: what it computes, on which data, and in which form it answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDescription {
    /// Short name, the same for as long as the run lives.
    pub run_id: String,
    /// One line for people.
    pub title: String,
    /// What the model is for and for whom, a sentence or two.
    pub purpose: String,
    /// Who may take part. Everybody may ask for this description.
    pub access: AccessDescription,
    /// The network to train.
    pub model: ModelSpec,
    /// Number of values in the flat parameter vector and in each gradient.
    pub n_parameters: u64,
    /// Samples that all peers together accumulate for one optimizer step (DeDLOC §3.1).
    pub target_batch_size: u32,
    /// Samples in one forward and backward pass.
    pub micro_batch_size: u32,
    /// Samples held by a peer's shuffle buffer (DeDLOC §3.3).
    pub shuffle_buffer_samples: u32,
    /// How gradients travel.
    pub gradient_codec: TensorCodec,
    /// How parameters travel.
    pub state_codec: TensorCodec,
    /// Largest number of samples that one contribution may claim.
    pub contribution_samples_max: u32,
    /// The training data, and a handful of held-out samples to look at.
    pub manifest: Manifest,
}

/// The network to train, and the seed of its first weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Architecture.
    pub kind: ModelKind,
    /// The same seed gives the same initial weights on every platform.
    pub seed: u64,
}

/// Architectures that `barnraise-learning` implements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// Convolutions and pooling after LeCun et al. 1998, sized by the data's shape.
    LeNet,
    /// Fully connected layers with ReLU between them.
    Mlp {
        /// Units of each hidden layer.
        hidden: Vec<u32>,
    },
}

/// Asks the backbone at the other end of `stream` what is being trained.
pub async fn describe<S>(stream: &mut S) -> Result<RunDescription, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &ContributorToBackbone::Describe, REQUEST_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        BackboneToContributor::Description(description) => {
            description.manifest.validate()?;
            Ok(*description)
        }
        BackboneToContributor::Refused(reason) => Err(ConversationError::Refused(reason)),
    }
}

/// Answers one question on `stream` and closes it: a stream that is dropped open is reset by some
/// transports, which takes the answer along.
pub async fn answer<S>(stream: &mut S, description: &RunDescription) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let ContributorToBackbone::Describe = framing::read(stream, REQUEST_BYTES_MAX).await?;
    let answer = BackboneToContributor::Description(Box::new(description.clone()));
    framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    Ok(stream.close().await.map_err(FrameError::from)?)
}
