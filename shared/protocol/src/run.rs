//! The `run` conversation: a contributor asks what is being trained.
//!
//! One request, one answer, on a stream of its own. Whoever asks in an older version is told so.

mod local_steps;
mod slow_links;

use futures::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use serde::{Deserialize, Serialize};

use crate::access::AccessDescription;
use crate::codec::TensorCodec;
use crate::dataset::Manifest;
use crate::error::ConversationError;
use crate::framing::{self, FrameError};

pub use self::local_steps::{InnerDecay, InnerOptimizer, InnerSchedule, LocalSteps};
pub use self::slow_links::{SlowLinks, SlowLinksError};

/// libp2p protocol name.
///
/// Its version stands for all conversations of a contributor: it is raised with each of them, so that who speaks another
/// one of any of them learns so here, before it computes anything (`tests/versions.rs`).
pub const PROTOCOL: &str = "/barnraise/run/6";

/// Names under which contributors of before ask, the newest last.
pub const PROTOCOLS_BEFORE: [&str; 5] = TOLD_IN_WORDS;

/// Contributors of these versions understand a refusal in words and no more.
const TOLD_IN_WORDS: [&str; 5] =
    ["/barnraise/run/1", "/barnraise/run/2", "/barnraise/run/3", "/barnraise/run/4", "/barnraise/run/5"];

/// How the reason begins why a contributor of before does not get in.
pub const OLDER_HERE: &str = "this page or program is older than the run";

/// Longest name of a version.
const SPOKEN_BYTES_MAX: usize = 64;

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
    /// The run speaks another version by now, of this name.
    Newer {
        /// [`PROTOCOL`] there.
        speaks: String,
    },
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
    /// How they travel over slow links; `None`: as over all others.
    pub slow_links: Option<SlowLinks>,
    /// What is done to gradients before the values that are sent are chosen.
    pub compression: Compression,
    /// Whether gradients are of the parameters of one epoch before, so that nobody waits for an averaging (DeDLOC
    /// §3.2, delayed parameter updates).
    pub delayed_updates: bool,
    /// Steps that contributors make by themselves; what they contribute are pseudo-gradients then. `None`: none, and
    /// they contribute gradients.
    pub local_steps: Option<LocalSteps>,
    /// How parameters travel.
    pub state_codec: TensorCodec,
    /// Largest number of samples that one contribution may claim.
    pub contribution_samples_max: u32,
    /// Whether contributions are computed once more at random, by others: each comes with an account
    /// ([`crate::account`]) of what it is.
    pub recomputed: bool,
    /// The training data, and a handful of held-out samples to look at.
    pub manifest: Manifest,
}

impl RunDescription {
    /// Whether passes over parts of a micro-batch are the same as one over all of it.
    pub fn is_cuttable(&self) -> bool {
        // Each micro-batch of the first is a step; of the second, assignments are balanced over it.
        self.local_steps.is_none() && !self.model.kind.is_self_supervised()
    }
}

/// What contributors do to their gradients where only the largest values are sent (Lin et al. 2018, "Deep Gradient
/// Compression"). What is not sent they keep and add to the next gradient in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compression {
    /// Momentum that contributors apply in place of the optimizer, 0 for none.
    pub momentum: f32,
    /// Whether a value that was sent has no momentum from then on (momentum factor masking). What is sent often then
    /// learns as if there were none: that holds for most of a small model, and for most of the values in a warm-up.
    pub masking: bool,
    /// Largest Euclidean norm of the gradient of a whole step; that of a contribution may be larger by the root of
    /// the number of them that make a step.
    pub clip_norm: Option<f32>,
}

/// Why a run cannot compress like that.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum CompressionError {
    /// A velocity that would not end.
    #[error("a momentum of {0}: at least 0 and below 1 is wanted")]
    Momentum(f32),
    /// No norm.
    #[error("a largest norm of {0}: a number above 0 is wanted")]
    ClipNorm(f32),
    /// What is for sparse gradients only.
    #[error("momentum and clipping are for top-k, and gradients travel as {0:?}")]
    Codec(TensorCodec),
}

impl Compression {
    /// Whether gradients that travel as `codec` can be compressed like that.
    pub fn check(&self, codec: TensorCodec) -> Result<(), CompressionError> {
        if !(0.0..1.0).contains(&self.momentum) {
            return Err(CompressionError::Momentum(self.momentum));
        }
        if let Some(norm) = self.clip_norm
            && !(norm.is_finite() && norm > 0.0)
        {
            return Err(CompressionError::ClipNorm(norm));
        }
        let is_sparse = matches!(codec, TensorCodec::TopK(_));
        if *self != Self::default() && !is_sparse {
            return Err(CompressionError::Codec(codec));
        }
        Ok(())
    }
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
    /// A transformer that guesses masked tokens of text: ALBERT (Lan et al. 2020), whose layers share their
    /// parameters and whose embedding is narrower than its layers.
    Albert {
        /// Width of a token's embedding.
        embedding: u32,
        /// Width of the layers, a multiple of the heads.
        hidden: u32,
        /// Attention heads of a layer.
        heads: u32,
        /// Units between the two maps of a layer's feed-forward part.
        inner: u32,
        /// Times that the one layer is applied.
        layers: u32,
    },
    /// Convolutions that learn from pictures without their labels: crops of one picture are to have the same
    /// prototype (SwAV, Caron et al. 2020). The labels serve to look how well it did.
    Swav {
        /// Feature maps of each convolution of the trunk, which halves height and width.
        maps: Vec<u32>,
        /// Units between trunk and projection.
        hidden: u32,
        /// Values of a projection, which prototypes are compared with.
        projection: u32,
        /// Prototypes.
        prototypes: u32,
        /// Crops of a picture beside the two large ones.
        small_crops: u32,
        /// Height and width of a small crop, in pixels; a large one has those of the picture.
        small_side: u32,
        /// Earlier samples of each contributor that help to balance its assignments to prototypes; 0 for none, so
        /// that a gradient depends on the samples of its own pass alone.
        queue_samples: u32,
        /// Passes of a contributor before it uses its queue.
        queue_after: u32,
        /// Epochs in which the prototypes stay as they are.
        frozen_epochs: u32,
    },
}

/// Most local steps of a way that is computed once more: each adds to what devices differ by.
pub const RECOMPUTED_STEPS_MAX: u32 = 32;

/// Why contributions to a run cannot be computed once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRecomputable {
    /// On another device they lead elsewhere: after too many of them, or by Adam, whose first steps are as long whatever
    /// the gradient, so that one that is a rounding error decides where they go.
    #[error(
        "contributors make {0} local steps, or make them by adam; \
        at most {RECOMPUTED_STEPS_MAX} by sgd-momentum are wanted"
    )]
    LocalSteps(u32),
    /// What a contributor kept of earlier gradients comes along.
    #[error("gradients travel as {0:?}; f32, f16 or int8 is wanted")]
    Codec(TensorCodec),
    /// In a queue are samples of other contributions.
    #[error("the model has a queue; queue_samples = 0 is wanted")]
    Queue,
}

impl RunDescription {
    /// Whether a contribution is the gradient of its samples, or the ways that they led, and nothing else.
    ///
    /// # Errors
    /// Of what else it is.
    pub fn check_recomputable(&self) -> Result<(), NotRecomputable> {
        let slow = self.slow_links.map(|slow| slow.codec);
        is_recomputable(&self.model.kind, (self.gradient_codec, slow), self.local_steps.as_ref())
    }
}

/// See [`RunDescription::check_recomputable`].
///
/// # Errors
/// Of what else a contribution is.
pub fn is_recomputable(
    model: &ModelKind,
    (codec, slow): (TensorCodec, Option<TensorCodec>),
    local_steps: Option<&LocalSteps>,
) -> Result<(), NotRecomputable> {
    if let Some(LocalSteps { steps, optimizer, .. }) = local_steps
        && (*steps > RECOMPUTED_STEPS_MAX || matches!(optimizer, InnerOptimizer::Adam { .. }))
    {
        return Err(NotRecomputable::LocalSteps(*steps));
    }
    let is_whole =
        |codec: &TensorCodec| matches!(codec, TensorCodec::F32 | TensorCodec::F16 | TensorCodec::Int8);
    if let Some(codec) = [codec].into_iter().chain(slow).find(|codec| !is_whole(codec)) {
        return Err(NotRecomputable::Codec(codec));
    }
    match model {
        ModelKind::Swav { queue_samples: 1.., .. } => Err(NotRecomputable::Queue),
        _ => Ok(()),
    }
}

impl ModelKind {
    /// Whether it learns without labels, and so does not tell classes apart.
    pub fn is_self_supervised(&self) -> bool {
        matches!(self, Self::Albert { .. } | Self::Swav { .. })
    }
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
        BackboneToContributor::Newer { speaks } => {
            let is_name =
                speaks.len() <= SPOKEN_BYTES_MAX && speaks.bytes().all(|byte| byte.is_ascii_graphic());
            let theirs = if is_name { speaks } else { "another one".to_owned() };
            Err(ConversationError::Older { ours: PROTOCOL, theirs })
        }
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

/// Tells who asks on `stream` by a name of before, `asked`, which version the run speaks, and closes it.
pub async fn answer_before<S>(stream: &mut S, asked: &str) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let ContributorToBackbone::Describe = framing::read(stream, REQUEST_BYTES_MAX).await?;
    let answer = match TOLD_IN_WORDS.contains(&asked) {
        true => BackboneToContributor::Refused(older(asked, PROTOCOL)),
        false => BackboneToContributor::Newer { speaks: PROTOCOL.to_owned() },
    };
    framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    Ok(stream.close().await.map_err(FrameError::from)?)
}

/// Why who speaks `ours` does not get into a run that speaks `theirs`.
pub(crate) fn older(ours: &str, theirs: &str) -> String {
    format!(
        "{OLDER_HERE}: it speaks {ours}, the run {theirs}; reload the page, or install the newest barnraise"
    )
}
