//! Whether the values of a sampled run fit each other (MoDEST table 2 names most of them).

use std::ops::RangeInclusive;

use barnraise_learning::{LocalStepsError, local};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::run::{LocalSteps, ModelExchange, RunDescription, Sampled};
use barnraise_protocol::sampled::ACTIVITY_ROUNDS_MAX;

const SAMPLE_SIZE: RangeInclusive<u32> = 1..=64;
/// Neighbours that models go to.
const NEIGHBORS_MAX: u16 = 16;
const PING_TIMEOUT_MS: RangeInclusive<u32> = 10..=60_000;
const ROUND_ESTIMATE_MS: RangeInclusive<u32> = 100..=86_400_000;
const LOCAL_PASSES: RangeInclusive<u32> = 1..=1000;

/// Why no sampled run can be trained so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampledError {
    /// A number out of its range.
    #[error("{min} to {max}, not {got}")]
    Range {
        /// The value's name in a configuration.
        key: &'static str,
        /// Least possible.
        min: u32,
        /// Most possible.
        max: u32,
        /// Announced.
        got: u32,
    },
    /// So many neighbours, or an odd number of them.
    #[error(
        "regular by an even number from 2 to {NEIGHBORS_MAX}, or epidemic by 1 to {NEIGHBORS_MAX}; not {0:?}"
    )]
    Exchange(ModelExchange),
    /// So few models that two samples of a round might both be enough, or more than all.
    #[error("above 0.5 and at most 1, not {0}")]
    SuccessFraction(f32),
    /// A lossy codec for models.
    #[error("\"f32\", \"f16\" or \"int8\" for models; {0:?} is for gradients")]
    StateCodec(TensorCodec),
    /// Optimizer, schedule, or too many steps in a round.
    #[error(transparent)]
    LocalSteps(#[from] LocalStepsError),
    /// Weights that are not trained would have to come from a server.
    #[error("no weights that stay as they are: participants of a run without a server do not yet fetch them")]
    Frozen,
    /// What is not kept cannot be each participant's own share.
    #[error("no stream: participants of a run without a server keep their shards")]
    Stream,
}

impl SampledError {
    /// The value that is wrong, as it is called in a configuration.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Range { key, .. } => key,
            Self::Exchange(_) => "scheme.sampled.exchange",
            Self::SuccessFraction(_) => "scheme.sampled.success_fraction",
            Self::StateCodec(_) => "scheme.sampled.state_codec",
            Self::LocalSteps(_) => "scheme.sampled.optimizer",
            Self::Frozen => "model.adapters",
            Self::Stream => "data.text.stream",
        }
    }
}

/// Checks the values of the scheme among each other, and with the run. A pass of its model has at most so many samples.
///
/// # Errors
/// The first value that is wrong.
pub(super) fn validate(
    scheme: &Sampled,
    run: &RunDescription,
    micro_batch_max: u32,
) -> Result<(), SampledError> {
    let window_max = u32::try_from(ACTIVITY_ROUNDS_MAX).unwrap_or(u32::MAX);
    // An operator's configuration is checked before there are any.
    let n_shards = match run.data.manifest.shards.len() {
        0 => u32::MAX,
        n_shards => u32::try_from(n_shards).unwrap_or(u32::MAX),
    };
    let sample_size = u32::from(scheme.sample_size);
    check("scheme.sampled.sample_size", sample_size, SAMPLE_SIZE)?;
    check("scheme.sampled.n_aggregators", scheme.n_aggregators.into(), 1..=sample_size)?;
    check("scheme.sampled.ping_timeout", scheme.ping_timeout_ms, PING_TIMEOUT_MS)?;
    check("scheme.sampled.activity_window", scheme.activity_window, 2..=window_max)?;
    check("scheme.sampled.round_estimate", scheme.round_estimate_ms, ROUND_ESTIMATE_MS)?;
    check("scheme.sampled.micro_batch_size", scheme.micro_batch_size, 1..=micro_batch_max)?;
    check("scheme.sampled.local_passes", scheme.local_passes, LOCAL_PASSES)?;
    check("scheme.sampled.local_shards", scheme.local_shards, 1..=n_shards)?;
    let is_possible = match scheme.exchange {
        ModelExchange::Sample | ModelExchange::Exponential | ModelExchange::Gossip => true,
        ModelExchange::Regular(n) => n > 0 && n.is_multiple_of(2) && n <= NEIGHBORS_MAX,
        ModelExchange::Epidemic(n) => (1..=NEIGHBORS_MAX).contains(&n),
    };
    if !is_possible {
        return Err(SampledError::Exchange(scheme.exchange));
    }
    if !(scheme.success_fraction > 0.5 && scheme.success_fraction <= 1.0) {
        return Err(SampledError::SuccessFraction(scheme.success_fraction));
    }
    if !scheme.state_codec.carries_state() {
        return Err(SampledError::StateCodec(scheme.state_codec));
    }
    local::check(&local_steps(scheme, run))?;
    if run.data.manifest.stream.is_some() {
        return Err(SampledError::Stream);
    }
    match run.data.manifest.frozen.is_empty() {
        true => Ok(()),
        false => Err(SampledError::Frozen),
    }
}

/// How a trainer makes the steps of a round: as many as the largest shards lead to.
pub fn local_steps(scheme: &Sampled, run: &RunDescription) -> LocalSteps {
    let largest = run.data.manifest.shards.iter().map(|shard| shard.n_samples).max().unwrap_or_default();
    let of_shard = largest.div_ceil(scheme.micro_batch_size.max(1));
    let steps = of_shard.saturating_mul(scheme.local_shards).saturating_mul(scheme.local_passes);
    LocalSteps { steps: steps.max(1), optimizer: scheme.optimizer, schedule: scheme.schedule }
}

fn check(key: &'static str, got: u32, allowed: RangeInclusive<u32>) -> Result<(), SampledError> {
    match allowed.contains(&got) {
        true => Ok(()),
        false => Err(SampledError::Range { key, min: *allowed.start(), max: *allowed.end(), got }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::dataset::ShardEntry;
    use barnraise_protocol::run::{
        DecayDescription, ModelAverage, OptimizerDescription, ScheduleDescription, Scheme,
    };

    use super::*;
    use crate::fixture;

    fn sampled() -> Sampled {
        Sampled {
            sample_size: 4,
            n_aggregators: 2,
            success_fraction: 0.75,
            average: ModelAverage::Mean,
            exchange: ModelExchange::Sample,
            ping_timeout_ms: 2000,
            activity_window: 20,
            round_estimate_ms: 10_000,
            micro_batch_size: 4,
            local_passes: 1,
            local_shards: 1,
            state_codec: TensorCodec::F32,
            optimizer: OptimizerDescription::SgdMomentum {
                momentum: 0.0,
                nesterov: false,
                weight_decay: 0.0,
            },
            schedule: ScheduleDescription { peak: 0.1, warmup_epochs: 0, decay: DecayDescription::Constant },
        }
    }

    fn refused(change: impl Fn(&mut Sampled)) -> &'static str {
        let mut scheme = sampled();
        change(&mut scheme);
        validate(&scheme, &run(), 64).unwrap_err().key()
    }

    fn run() -> RunDescription {
        let mut run = fixture::run();
        run.scheme = Scheme::Sampled(sampled());
        run.data.manifest.frozen = Vec::new();
        run
    }

    #[test]
    fn each_value_has_its_range() {
        assert_eq!(validate(&sampled(), &run(), 64), Ok(()));
        assert_eq!(refused(|scheme| scheme.sample_size = 65), "scheme.sampled.sample_size");
        assert_eq!(refused(|scheme| scheme.n_aggregators = 5), "scheme.sampled.n_aggregators");
        assert_eq!(refused(|scheme| scheme.success_fraction = 0.5), "scheme.sampled.success_fraction");
        assert_eq!(refused(|scheme| scheme.success_fraction = f32::NAN), "scheme.sampled.success_fraction");
        assert_eq!(refused(|scheme| scheme.ping_timeout_ms = 0), "scheme.sampled.ping_timeout");
        assert_eq!(refused(|scheme| scheme.activity_window = 5000), "scheme.sampled.activity_window");
        assert_eq!(refused(|scheme| scheme.micro_batch_size = 65), "scheme.sampled.micro_batch_size");
        assert_eq!(refused(|scheme| scheme.local_shards = 1000), "scheme.sampled.local_shards");
        assert_eq!(refused(|scheme| scheme.state_codec = TensorCodec::Int4), "scheme.sampled.state_codec");
        assert_eq!(refused(|scheme| scheme.schedule.peak = f32::INFINITY), "scheme.sampled.optimizer");
    }

    #[test]
    fn what_does_not_go_with_it_is_named() {
        let mut frozen = run();
        let entry: ShardEntry = frozen.data.manifest.shards[0];
        frozen.data.manifest.frozen = vec![entry];
        assert_eq!(validate(&sampled(), &frozen, 64), Err(SampledError::Frozen));
    }
}
