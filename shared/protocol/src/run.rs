//! The `run` conversation: a contributor asks for the run's description.
//!
//! One request, one answer, on a stream of its own. A contributor that asks in an older version learns that it is too
//! old.

mod data;
mod gradient_codec;
mod identity;
mod local_steps;
pub mod model;
mod optimizer;
mod sampled;
mod signed;
mod slow_links;
mod synchronous;

use futures::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use serde::{Deserialize, Serialize};

use crate::access::{AccessDescription, Authority};
use crate::codec::TensorCodec;
use crate::error::{ConversationError, OlderThanRun};
use crate::framing::{self, FrameError};
use crate::refusal::Refusal;

pub use self::data::{Augmentation, DataSpec};
pub use self::gradient_codec::{GradientCodec, GradientCodecError, TopK};
pub use self::identity::{IdentityError, RunIdentity};
pub use self::local_steps::LocalSteps;
pub use self::model::{HostedExperts, ModelSpec, Preset};
pub use self::optimizer::{DecayDescription, OptimizerDescription, ScheduleDescription};
pub use self::sampled::{ModelAverage, ModelExchange, Sampled};
pub use self::signed::{SignedRun, run_hash};
pub use self::slow_links::{SlowLinks, SlowLinksError};
pub use self::synchronous::{NotRecomputable, RECOMPUTED_STEPS_MAX, Synchronous};

/// libp2p protocol name.
///
/// Its version stands for all conversations of a contributor: it is raised with each of them. So a contributor with
/// another version of any of them learns of it here, before it computes anything (`tests/versions.rs`).
pub const PROTOCOL: &str = "/barnraise/run/20";

/// Protocol names of older contributors, the newest last.
pub const OLDER_PROTOCOLS: [&str; 13] = [
    "/barnraise/run/6",
    "/barnraise/run/7",
    "/barnraise/run/8",
    "/barnraise/run/9",
    "/barnraise/run/10",
    "/barnraise/run/12",
    "/barnraise/run/13",
    "/barnraise/run/14",
    "/barnraise/run/15",
    "/barnraise/run/16",
    "/barnraise/run/17",
    "/barnraise/run/18",
    "/barnraise/run/19",
];

/// Longest protocol name in [`BackboneToContributor::Newer`], in bytes.
const SPOKEN_BYTES_MAX: usize = 64;

/// Largest message of this conversation: a manifest of ten thousand shards fits.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// Largest request: the backbone allocates no more for it.
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
    /// The run's description: all that a contributor needs to take part.
    Description(Box<SignedRun>),
    /// The request was understood and declined.
    Refused(Refusal),
    /// The run speaks a newer version, of this name.
    Newer {
        /// [`PROTOCOL`] there.
        speaks: String,
    },
}

/// A run as a participant sees it: four values by which runs differ, and which run it is.
///
/// What follows from them is not in it: the length of the flat parameter vector is that of `model` on `data`
/// (`barnraise_learning::ParameterLayout::of_run`).
///
/// `barnraise_contributor::description::validate` says whether they fit each other, for operator and participant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDescription {
    /// Its name, and what it is for.
    pub identity: RunIdentity,
    /// What is computed.
    pub model: ModelSpec,
    /// What is learned from.
    pub data: DataSpec,
    /// How the parameters that several peers hold are kept in step.
    pub scheme: Scheme,
    /// Who may take part. Any peer may ask for this description.
    pub access: AccessDescription,
}

/// How the parameters that several peers hold are kept in step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// All gradients of a target batch become one optimizer step (DeDLOC §3.1).
    Synchronous(Synchronous),
    /// Each round a few peers train on their own data, and fewer average their models (MoDEST §3).
    Sampled(Sampled),
}

impl Scheme {
    /// Samples in one forward and backward pass.
    pub fn micro_batch_size(&self) -> u32 {
        match self {
            Self::Synchronous(scheme) => scheme.micro_batch_size,
            Self::Sampled(scheme) => scheme.micro_batch_size,
        }
    }

    /// Samples of an optimizer step; of one step of each trainer of a round.
    pub fn step_samples(&self) -> u32 {
        match self {
            Self::Synchronous(scheme) => scheme.target_batch_size,
            Self::Sampled(scheme) => scheme.micro_batch_size.saturating_mul(scheme.sample_size.into()),
        }
    }

    /// Most samples of one contribution.
    pub fn contribution_samples_max(&self) -> u32 {
        match self {
            Self::Synchronous(scheme) => scheme.contribution_samples_max,
            Self::Sampled(scheme) => scheme.micro_batch_size,
        }
    }

    /// Codec of contributions, but over slow links.
    pub fn gradient_codec(&self) -> GradientCodec {
        match self {
            Self::Synchronous(scheme) => scheme.gradient_codec,
            // Models travel, and no gradients.
            Self::Sampled(_) => GradientCodec::F32,
        }
    }

    /// Codec of parameters.
    pub fn state_codec(&self) -> TensorCodec {
        match self {
            Self::Synchronous(scheme) => scheme.state_codec,
            Self::Sampled(scheme) => scheme.state_codec,
        }
    }

    /// Whether each micro-batch is a step of its own.
    fn steps_by_micro_batch(&self) -> bool {
        match self {
            Self::Synchronous(scheme) => scheme.local_steps.is_some(),
            Self::Sampled(_) => true,
        }
    }
}

impl RunDescription {
    /// The synchronous scheme, if it is that.
    pub fn synchronous(&self) -> Option<&Synchronous> {
        match &self.scheme {
            Scheme::Synchronous(scheme) => Some(scheme),
            Scheme::Sampled(_) => None,
        }
    }

    /// Who signs the access tokens that the run takes.
    pub fn authority(&self) -> Authority {
        Authority { key: self.access.authority, run_id: self.identity.run_id.clone() }
    }

    /// The sampled scheme, if it is that.
    pub fn sampled(&self) -> Option<&Sampled> {
        match &self.scheme {
            Scheme::Sampled(scheme) => Some(scheme),
            Scheme::Synchronous(_) => None,
        }
    }

    /// The synchronous scheme, to change.
    pub fn synchronous_mut(&mut self) -> Option<&mut Synchronous> {
        match &mut self.scheme {
            Scheme::Synchronous(scheme) => Some(scheme),
            Scheme::Sampled(_) => None,
        }
    }

    /// Whether passes over parts of a micro-batch give the same gradient as one over all of it.
    pub fn is_cuttable(&self) -> bool {
        // SwAV balances assignments over a micro-batch.
        !self.scheme.steps_by_micro_batch() && self.model.graph.is_of_samples()
    }
}

/// Asks the backbone at the other end of `stream` for the run's description.
pub async fn describe<S>(stream: &mut S) -> Result<RunDescription, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    Ok(describe_signed(stream).await?.run)
}

/// The same, with the word of the run's authority for it, where who is asked has that.
///
/// # Errors
/// As of [`describe`]. Nobody has looked at the signature.
pub async fn describe_signed<S>(stream: &mut S) -> Result<SignedRun, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &ContributorToBackbone::Describe, REQUEST_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        BackboneToContributor::Description(described) => {
            described.run.data.manifest.validate()?;
            Ok(*described)
        }
        BackboneToContributor::Refused(refusal) => Err(refusal.into()),
        BackboneToContributor::Newer { speaks } => {
            let is_name =
                speaks.len() <= SPOKEN_BYTES_MAX && speaks.bytes().all(|byte| byte.is_ascii_graphic());
            let theirs = if is_name { speaks } else { "another one".to_owned() };
            Err(OlderThanRun { ours: PROTOCOL.to_owned(), theirs }.into())
        }
    }
}

/// Answers one request on `stream` and closes it. Some transports reset a stream that is dropped
/// open, and the answer would be lost.
pub async fn answer<S>(stream: &mut S, described: &SignedRun) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let ContributorToBackbone::Describe = framing::read(stream, REQUEST_BYTES_MAX).await?;
    let answer = BackboneToContributor::Description(Box::new(described.clone()));
    framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    Ok(stream.close().await.map_err(FrameError::from)?)
}

/// Answers a request under an older protocol name with the run's version, and closes `stream`.
pub async fn answer_older_version<S>(stream: &mut S) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let ContributorToBackbone::Describe = framing::read(stream, REQUEST_BYTES_MAX).await?;
    let answer = BackboneToContributor::Newer { speaks: PROTOCOL.to_owned() };
    framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    Ok(stream.close().await.map_err(FrameError::from)?)
}
