//! Synchronous training: all gradients of a target batch become one optimizer step (DeDLOC §3.1).

use serde::{Deserialize, Serialize};

use super::model::graph::{Graph, Loss, SwavLoss};
use super::{GradientCodec, LocalSteps, OptimizerDescription, ScheduleDescription, SlowLinks};
use crate::codec::TensorCodec;

/// How contributors accumulate a target batch, what aggregators make of it, and in which form gradients and parameters
/// travel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Synchronous {
    /// Samples that all peers together accumulate for one optimizer step.
    pub target_batch_size: u32,
    /// Samples in one forward and backward pass.
    pub micro_batch_size: u32,
    /// Largest number of samples that one contribution may claim.
    pub contribution_samples_max: u32,
    /// Codec of gradients.
    pub gradient_codec: GradientCodec,
    /// Codec of gradients over slow links; `None`: the same as over all others.
    pub slow_links: Option<SlowLinks>,
    /// Codec of parameters.
    pub state_codec: TensorCodec,
    /// Whether gradients are of the parameters of the epoch before, so that no contributor waits for averaging (DeDLOC
    /// §3.2, delayed parameter updates).
    pub delayed_updates: bool,
    /// The optimizer that aggregators make the step with; the outer one where there are local steps.
    pub optimizer: OptimizerDescription,
    /// Its learning rate.
    pub schedule: ScheduleDescription,
    /// Local steps of contributors, which then contribute pseudo-gradients. `None`: they contribute gradients.
    pub local_steps: Option<LocalSteps>,
    /// Whether backbones recompute contributions at random: each contribution has a commitment
    /// ([`crate::commitment`]).
    pub recomputed: bool,
}

impl Synchronous {
    /// Checks that a contribution to `model` depends only on its parameters and samples, so that it can be recomputed.
    ///
    /// # Errors
    /// What else it depends on.
    pub fn check_recomputable(&self, graph: &Graph) -> Result<(), NotRecomputable> {
        if let Some(LocalSteps { steps, optimizer, .. }) = &self.local_steps
            && (*steps > RECOMPUTED_STEPS_MAX
                || !matches!(optimizer, OptimizerDescription::SgdMomentum { .. }))
        {
            return Err(NotRecomputable::LocalSteps(*steps));
        }
        let is_exact = |codec: &GradientCodec| {
            matches!(codec, GradientCodec::F32 | GradientCodec::F16 | GradientCodec::Int8)
        };
        if let Some(codec) = self.codecs().find(|codec| !is_exact(codec)) {
            return Err(NotRecomputable::Codec(codec));
        }
        match &graph.loss {
            Loss::Swav(SwavLoss { queue_samples: 1.., .. }) => Err(NotRecomputable::Queue),
            _ => Ok(()),
        }
    }

    /// Whether gradients in this encoding are accepted.
    pub fn takes(&self, codec: TensorCodec) -> bool {
        self.codecs().any(|of_run| of_run.encoding() == codec)
    }

    /// Codec for a contributor whose uplink carries `bytes_per_second`; `None` where it was not measured.
    pub fn codec_of_link(&self, bytes_per_second: Option<f64>) -> GradientCodec {
        let is_slow = |slow: &SlowLinks| {
            bytes_per_second.is_none_or(|measured| measured < slow.below_bytes_per_second as f64)
        };
        self.slow_links.filter(is_slow).map_or(self.gradient_codec, |slow| slow.codec)
    }

    fn codecs(&self) -> impl Iterator<Item = GradientCodec> {
        [self.gradient_codec].into_iter().chain(self.slow_links.map(|slow| slow.codec))
    }
}

/// Most local steps of a trajectory that is recomputed: the deviation between devices grows with each step.
pub const RECOMPUTED_STEPS_MAX: u32 = 32;

/// Why contributions to a run cannot be recomputed.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NotRecomputable {
    /// Local steps that differ too much between devices: too many of them, or Adam's. Adam's first steps have the same
    /// length for every gradient, even one that is only a rounding error.
    #[error(
        "contributors make {0} local steps, or make them by adam; \
        at most {RECOMPUTED_STEPS_MAX} by sgd-momentum are wanted"
    )]
    LocalSteps(u32),
    /// A codec that needs error feedback: a contribution would contain the residual of earlier gradients. int8 does
    /// without where it is rounded at random.
    #[error("gradients travel as {0:?}; f32, f16 or int8 is wanted")]
    Codec(GradientCodec),
    /// A model with a queue, which holds samples of other contributions.
    #[error("the model has a queue; queue_samples = 0 is wanted")]
    Queue,
    /// A model whose experts have stepped since.
    #[error("other peers host the model's experts, which learn meanwhile")]
    HostedExperts,
}
