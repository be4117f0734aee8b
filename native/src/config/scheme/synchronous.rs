//! `[scheme.synchronous]`: what a step of a synchronous run is.

mod aggregation;
mod local_steps;
mod recomputation;

use std::ops::RangeInclusive;
use std::time::Duration;

use barnraise_learning::{Decay, OptimizerSpec, ScheduleSpec};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::run::{GradientCodec, SlowLinks, Synchronous};
use serde::{Deserialize, Serialize};

pub use self::aggregation::AggregationKind;
pub use self::local_steps::LocalStepsSection;
pub use self::recomputation::RecomputationSection;
use crate::config::{Invalid, NONE, RunConfig, as_written};

const COLLECT_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// Largest limit of the norm: with it, weighted by the most samples, the sum of all contributions of a step stays
/// finite.
const GRADIENT_NORM_MAX: f32 = 1e20;

/// `[scheme.synchronous]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SynchronousSection {
    /// Samples that all peers together accumulate for one optimizer step (DeDLOC §3.1).
    pub target_batch_size: u32,
    /// Samples in one forward and backward pass.
    pub micro_batch_size: u32,
    /// Most samples of one contribution; never more than the target batch size.
    pub contribution_samples_max: u32,
    /// Codec of gradients.
    pub gradient_codec: GradientCodec,
    /// Codec of parameters.
    pub state_codec: TensorCodec,
    /// Codec of averages between aggregators.
    pub average_codec: TensorCodec,
    /// Whether gradients are of the parameters of one epoch before (DeDLOC §3.2, delayed parameter updates).
    pub delayed_updates: bool,
    /// The optimizer.
    pub optimizer: OptimizerSpec,
    /// Its learning rate.
    pub schedule: ScheduleSpec,
    /// How contributions become one gradient.
    pub aggregation: AggregationKind,
    /// Longest wait of a step for gradients that were reported and are due.
    #[serde(with = "humantime_serde")]
    pub collect_timeout: Duration,
    /// Most samples of a peer per second since its last contribution, while other peers contribute too.
    pub samples_per_second_max: u32,
    /// Largest Euclidean norm of a gradient.
    pub gradient_norm_max: f32,
    /// Codec of gradients over slow links.
    pub slow_links: Option<SlowLinks>,
    /// Local steps of contributors. `optimizer` is the outer one then.
    pub local_steps: Option<LocalStepsSection>,
    /// Recomputation of contributions.
    pub recomputation: Option<RecomputationSection>,
}

impl Default for SynchronousSection {
    fn default() -> Self {
        Self {
            target_batch_size: 1024,
            micro_batch_size: 64,
            contribution_samples_max: 8192,
            gradient_codec: GradientCodec::F16,
            state_codec: TensorCodec::F32,
            average_codec: TensorCodec::F32,
            delayed_updates: false,
            optimizer: OptimizerSpec::adam(),
            schedule: ScheduleSpec { peak: 0.002, warmup_steps: 10, decay: Decay::Constant },
            aggregation: AggregationKind::Mean,
            collect_timeout: Duration::from_secs(5),
            samples_per_second_max: 20_000,
            gradient_norm_max: 1000.0,
            slow_links: None,
            local_steps: None,
            recomputation: None,
        }
    }
}

impl SynchronousSection {
    /// Most samples of one contribution: at most the target batch size.
    pub fn largest_contribution(&self) -> u32 {
        self.contribution_samples_max.min(self.target_batch_size)
    }

    /// As participants see it, in the run of `config`; nothing is checked.
    pub fn describe(&self, config: &RunConfig) -> Synchronous {
        self.described(self.recomputation_in(config).is_some())
    }

    /// The same, with contributions that are recomputed or not.
    fn described(&self, recomputed: bool) -> Synchronous {
        Synchronous {
            target_batch_size: self.target_batch_size,
            micro_batch_size: self.micro_batch_size,
            contribution_samples_max: self.largest_contribution(),
            gradient_codec: self.gradient_codec,
            slow_links: self.slow_links,
            state_codec: self.state_codec,
            delayed_updates: self.delayed_updates,
            optimizer: self.optimizer.into(),
            schedule: self.schedule.into(),
            local_steps: self.local_steps.map(|section| section.describe()),
            recomputed,
        }
    }

    pub(super) fn bound_values(&self) -> [(&'static str, String); 2] {
        let local_steps = self.local_steps.as_ref().map_or(NONE, |_| "(there are some)");
        [
            ("scheme.synchronous.optimizer", as_written(&self.optimizer)),
            ("scheme.synchronous.local_steps", local_steps.to_owned()),
        ]
    }

    pub(super) fn warning(&self, config: &RunConfig) -> Option<(&'static str, &'static str)> {
        let is_robust = self.aggregation == AggregationKind::CenteredClip;
        (is_robust && config.access.mode == AccessMode::Open).then_some((
            "scheme.synchronous.aggregation",
            "in an open run one dishonest peer with many addresses outvotes the others",
        ))
    }

    /// What participants are not told, and so do not check.
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        let codec = self.average_codec;
        let want = "\"f32\", \"f16\" or \"int8\"";
        Invalid::check("scheme.synchronous.average_codec", codec.carries_state(), want, as_written(&codec))?;
        Invalid::check_duration("scheme.synchronous.collect_timeout", self.collect_timeout, COLLECT_TIMEOUT)?;
        let per_second = self.samples_per_second_max;
        Invalid::check_range("scheme.synchronous.samples_per_second_max", per_second, 1..=u32::MAX)?;
        let norm = self.gradient_norm_max;
        let good = norm > 0.0 && norm <= GRADIENT_NORM_MAX;
        let want = format!("above 0 and at most {GRADIENT_NORM_MAX:e}");
        Invalid::check("scheme.synchronous.gradient_norm_max", good, want, norm)
    }
}
