//! `[scheme.synchronous]`: what a step is.
//!
//! A value belongs here if it travels in the run's description or changes what a step is: then it is the same for all
//! backbones. What only concerns one machine is in the other sections.

use std::ops::RangeInclusive;
use std::time::Duration;

use barnraise_learning::{Decay, OptimizerSpec, ScheduleSpec};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::run::{GradientCodec, SlowLinks};
use serde::{Deserialize, Serialize};

use super::{AggregationKind, Invalid, LocalStepsSection, RecomputationSection, as_written};

const COLLECT_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// Largest limit of the norm: with it, weighted by the most samples, the sum of all contributions of a step stays
/// finite.
const GRADIENT_NORM_MAX: f32 = 1e20;

/// `[scheme]`: the one scheme of the run, by the name of its table, as in the run's description.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", try_from = "SchemeTables")]
pub enum SchemeSection {
    /// All gradients of a target batch become one optimizer step.
    Synchronous(SynchronousSection),
}

/// The tables of `[scheme]`, of which one is wanted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SchemeTables {
    synchronous: Option<SynchronousSection>,
}

/// A `[scheme]` without a table.
#[derive(Debug, thiserror::Error)]
#[error("a scheme is wanted by the name of its table: [scheme.synchronous]")]
struct NoScheme;

impl TryFrom<SchemeTables> for SchemeSection {
    type Error = NoScheme;

    fn try_from(tables: SchemeTables) -> Result<Self, NoScheme> {
        tables.synchronous.map(Self::Synchronous).ok_or(NoScheme)
    }
}

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

impl Default for SchemeSection {
    fn default() -> Self {
        Self::Synchronous(SynchronousSection::default())
    }
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
