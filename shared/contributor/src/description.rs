//! Whether the values of a run fit each other (DeDLOC §3.1 names most of them): the one check of operators and of
//! participants.
//!
//! An operator's configuration is refused by it with the key that is wrong. A participant checks the description of an
//! untrusted backbone, before anything is allocated; the manifest was checked on receipt. What is accepted here can be
//! trained.

use barnraise_learning::{
    LocalStepsError, ModelError, OptimizerError, OptimizerSpec, ParameterLayout, ScheduleError, ScheduleSpec,
    local,
};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::run::model::presets::Albert;
use barnraise_protocol::run::{
    GradientCodecError, IdentityError, NotRecomputable, OptimizerDescription, RunDescription, SlowLinksError,
    Synchronous,
};

/// Most samples in one forward and backward pass.
pub const MICRO_BATCH_SAMPLES_MAX: u32 = 4096;
/// Most samples of the shuffle buffer.
pub const SHUFFLE_BUFFER_SAMPLES_MAX: u32 = 1_000_000;
/// Most bytes of the samples in the shuffle buffer.
pub const BUFFER_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Most samples of an optimizer step.
pub const TARGET_BATCH_SIZE_MAX: u32 = 10_000_000;

/// Why a run cannot be trained so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DescriptionError {
    /// No name for it.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The model is out of bounds or does not fit the data.
    #[error("{0}")]
    Model(#[from] ModelError),
    /// A pass without samples, or with too many.
    #[error("1 to {max} samples in a forward and backward pass of this model, not {got}")]
    MicroBatch {
        /// Most possible for this model.
        max: u32,
        /// Announced.
        got: u32,
    },
    /// A step of less than a pass, or of too much.
    #[error("at least the micro batch size, {min}, and at most {TARGET_BATCH_SIZE_MAX}, not {got}")]
    TargetBatch {
        /// Samples of a pass.
        min: u32,
        /// Announced.
        got: u32,
    },
    /// Impossible momentum or clipping.
    #[error(transparent)]
    GradientCodec(#[from] GradientCodecError),
    /// Invalid settings for slow links.
    #[error(transparent)]
    SlowLinks(#[from] SlowLinksError),
    /// Impossible hyperparameters of the optimizer.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// A momentum in the optimizer beside that of contributors.
    #[error(
        "{{ kind = \"sgd-momentum\", momentum = 0.0 }}, as contributors apply the momentum of gradient_codec: one of \
        them has it"
    )]
    Momentum,
    /// An impossible learning rate.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Invalid local steps.
    #[error(transparent)]
    LocalSteps(#[from] LocalStepsError),
    /// A trajectory that no single contributor could complete.
    #[error(
        "steps = 1 to {max}, which are {what} of {n_samples} in micro-batches of {micro_batch}, not {got}"
    )]
    Trajectory {
        /// Most steps.
        max: u32,
        /// What limits them.
        what: &'static str,
        /// Its samples.
        n_samples: u32,
        /// Samples of a step.
        micro_batch: u32,
        /// Announced.
        got: u32,
    },
    /// Contributions are recomputed, and cannot be reproduced from their commitments.
    #[error("recomputation cannot be combined with this run: {0}")]
    Recomputed(#[from] NotRecomputable),
    /// A lossy codec for the parameters.
    #[error("\"f32\", \"f16\" or \"int8\" for parameters; {0:?} is for gradients")]
    StateCodec(TensorCodec),
    /// Contributions smaller than a pass, so that nothing could be contributed.
    #[error("at least the micro batch size, {min}, and not {got}")]
    Contribution {
        /// Samples of a pass.
        min: u32,
        /// Announced.
        got: u32,
    },
    /// A shuffle buffer that holds less than a pass, or more than a tab has memory for.
    #[error("{min} to {max} samples in the shuffle buffer, not {got}")]
    ShuffleBuffer {
        /// Samples of a pass.
        min: u32,
        /// Most possible for samples of this size.
        max: u32,
        /// Announced.
        got: u32,
    },
}

impl DescriptionError {
    /// The value of the description that is wrong, as it is called in a configuration.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Identity(IdentityError::Id) => "run.id",
            Self::Identity(IdentityError::Title) => "run.title",
            Self::Identity(IdentityError::Purpose) => "run.purpose",
            Self::Model(_) => "model.kind",
            Self::MicroBatch { .. } => "scheme.synchronous.micro_batch_size",
            Self::TargetBatch { .. } => "scheme.synchronous.target_batch_size",
            Self::GradientCodec(_) => "scheme.synchronous.gradient_codec",
            Self::SlowLinks(_) => "scheme.synchronous.slow_links",
            Self::Optimizer(_) | Self::Momentum => "scheme.synchronous.optimizer",
            Self::Schedule(_) => "scheme.synchronous.schedule",
            Self::LocalSteps(_) | Self::Trajectory { .. } => "scheme.synchronous.local_steps",
            Self::Recomputed(_) => "scheme.synchronous.recomputation",
            Self::StateCodec(_) => "scheme.synchronous.state_codec",
            Self::Contribution { .. } => "scheme.synchronous.contribution_samples_max",
            Self::ShuffleBuffer { .. } => "data.shuffle_buffer_samples",
        }
    }
}

/// Checks all values of a run, and how they fit each other. Returns the layout of its parameters.
///
/// # Errors
/// The first value that is wrong.
pub fn validate(run: &RunDescription) -> Result<ParameterLayout, DescriptionError> {
    run.identity.validate()?;
    let layout = ParameterLayout::of_run(run)?;
    let scheme = run.synchronous();
    let micro_batch = scheme.micro_batch_size;
    let max = u32::try_from(layout.batch_samples_max()).unwrap_or(u32::MAX).min(MICRO_BATCH_SAMPLES_MAX);
    if micro_batch == 0 || micro_batch > max {
        return Err(DescriptionError::MicroBatch { max, got: micro_batch });
    }
    validate_synchronous(scheme)?;
    if scheme.recomputed {
        run.check_recomputable()?;
    }
    let fitting = BUFFER_BYTES_MAX / run.data.manifest.sample_bytes().max(1);
    let max = u32::try_from(fitting).unwrap_or(u32::MAX).min(SHUFFLE_BUFFER_SAMPLES_MAX);
    let got = run.data.shuffle_buffer_samples;
    if got < micro_batch || got > max {
        return Err(DescriptionError::ShuffleBuffer { min: micro_batch, max, got });
    }
    Ok(layout)
}

/// The values of the scheme among each other.
fn validate_synchronous(scheme: &Synchronous) -> Result<(), DescriptionError> {
    let (min, target) = (scheme.micro_batch_size, scheme.target_batch_size);
    if !(min..=TARGET_BATCH_SIZE_MAX).contains(&target) {
        return Err(DescriptionError::TargetBatch { min, got: target });
    }
    let got = scheme.contribution_samples_max;
    if got < min {
        return Err(DescriptionError::Contribution { min, got });
    }
    scheme.gradient_codec.validate()?;
    scheme.slow_links.map_or(Ok(()), |slow| slow.check(scheme.gradient_codec))?;
    if !scheme.state_codec.carries_state() {
        return Err(DescriptionError::StateCodec(scheme.state_codec));
    }
    validate_optimizer(scheme)?;
    let Some(local_steps) = &scheme.local_steps else { return Ok(()) };
    local::check(local_steps)?;
    let contribution = (scheme.contribution_samples_max, "a contribution");
    for (n_samples, what) in [(target, "the target batch size"), contribution] {
        let (max, got) = (n_samples / min, local_steps.steps);
        if got > max {
            return Err(DescriptionError::Trajectory { max, what, n_samples, micro_batch: min, got });
        }
    }
    Ok(())
}

/// What aggregators make the step with.
fn validate_optimizer(scheme: &Synchronous) -> Result<(), DescriptionError> {
    OptimizerSpec::from(scheme.optimizer).validate()?;
    ScheduleSpec::from(scheme.schedule).validate()?;
    let (of_contributors, _) = scheme.gradient_codec.momentum();
    let is_plain = matches!(scheme.optimizer, OptimizerDescription::SgdMomentum { momentum: 0.0, .. });
    match of_contributors == 0.0 || is_plain {
        true => Ok(()),
        false => Err(DescriptionError::Momentum),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::codec::{Density, Sparsity};
    use barnraise_protocol::dataset::{ImageShape, SampleKind, TokenShape};
    use barnraise_protocol::run::{
        DecayDescription, GradientCodec, LocalSteps, OptimizerDescription, Preset, ScheduleDescription, TopK,
    };

    use super::*;
    use crate::fixture;

    fn run() -> RunDescription {
        let mut run = fixture::run();
        let shape = ImageShape { height: 2, width: 2, channels: 1 };
        run.data.manifest.samples = SampleKind::Images { shape, class_names: vec!["a".into(), "b".into()] };
        run.data.shuffle_buffer_samples = 16;
        run.model.graph = Preset::Mlp { hidden: vec![3] }.graph();
        let scheme = run.synchronous_mut();
        (scheme.target_batch_size, scheme.micro_batch_size) = (64, 4);
        scheme.contribution_samples_max = 64;
        run
    }

    fn rejected(change: impl Fn(&mut RunDescription)) -> DescriptionError {
        let mut run = run();
        change(&mut run);
        validate(&run).unwrap_err()
    }

    #[test]
    fn sizes_that_are_too_large_for_a_tab_are_named() {
        assert_eq!(validate(&run()).unwrap().n_parameters(), (4 * 3 + 3) + (3 * 2 + 2));
        for size in [0, MICRO_BATCH_SAMPLES_MAX + 1] {
            let error = rejected(|run| run.synchronous_mut().micro_batch_size = size);
            assert!(matches!(error, DescriptionError::MicroBatch { got, .. } if got == size));
        }
        let error = rejected(|run| run.synchronous_mut().contribution_samples_max = 3);
        assert_eq!(error, DescriptionError::Contribution { min: 4, got: 3 });
        for size in [3, SHUFFLE_BUFFER_SAMPLES_MAX + 1] {
            let error = rejected(|run| run.data.shuffle_buffer_samples = size);
            assert!(matches!(error, DescriptionError::ShuffleBuffer { got, .. } if got == size));
        }
        for size in [3, TARGET_BATCH_SIZE_MAX + 1] {
            let error = rejected(|run| run.synchronous_mut().target_batch_size = size);
            assert_eq!(error, DescriptionError::TargetBatch { min: 4, got: size });
        }
        let error = rejected(|run| run.synchronous_mut().contribution_samples_max = 3);
        assert_eq!(error.key(), "scheme.synchronous.contribution_samples_max");
        let density = Density::from_share(0.1).unwrap();
        let diverging = GradientCodec::TopK(TopK { momentum: 1.0, ..TopK::plain(density, 0) });
        let error = rejected(|run| run.synchronous_mut().gradient_codec = diverging);
        assert!(matches!(error, DescriptionError::GradientCodec(_)));
        assert_eq!(rejected(|run| run.identity.run_id = "A b".into()).key(), "run.id");
        let int4 = rejected(|run| {
            run.synchronous_mut().gradient_codec = GradientCodec::Int4;
            run.synchronous_mut().recomputed = true;
        });
        assert!(matches!(int4, DescriptionError::Recomputed(_)));
        let schedule = ScheduleDescription { peak: 0.1, warmup_epochs: 0, decay: DecayDescription::Constant };
        let optimizer =
            OptimizerDescription::SgdMomentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let steps = LocalSteps { steps: 16, optimizer, schedule };
        let mut described = run();
        described.synchronous_mut().local_steps = Some(steps);
        assert!(validate(&described).is_ok());
        described.synchronous_mut().contribution_samples_max = 63;
        let error = validate(&described).unwrap_err();
        assert!(error.to_string().contains("1 to 15, which are a contribution of 63"), "{error}");
        let diverging =
            OptimizerDescription::SgdMomentum { momentum: 1.0, nesterov: false, weight_decay: 0.0 };
        let lasting = ScheduleDescription { peak: f32::INFINITY, ..schedule };
        for bad in [
            LocalSteps { steps: 0, ..steps },
            LocalSteps { optimizer: diverging, ..steps },
            LocalSteps { schedule: lasting, ..steps },
        ] {
            let error = rejected(|run| run.synchronous_mut().local_steps = Some(bad));
            assert!(matches!(error, DescriptionError::LocalSteps(_)), "{error}");
        }
        let sparsity = Sparsity { density: Density::from_share(0.1).unwrap(), warmup_epochs: 0 };
        for codec in [TensorCodec::Int4, TensorCodec::TopK(sparsity)] {
            assert_eq!(
                rejected(|run| run.synchronous_mut().state_codec = codec),
                DescriptionError::StateCodec(codec)
            );
        }
        let huge = Preset::Mlp { hidden: vec![u32::MAX, u32::MAX] };
        assert!(matches!(rejected(|run| run.model.graph = huge.clone()), DescriptionError::Model(_))).graph();
        let text = |run: &mut RunDescription| {
            run.data.manifest.samples = SampleKind::Tokens(TokenShape { length: 1024, vocabulary: u16::MAX });
        };
        assert!(matches!(rejected(text), DescriptionError::Model(ModelError::WrongData { .. })));
        let error = rejected(|run| {
            text(run);
            let size = u32::MAX;
            let layers = 1;
            run.model.graph =
                Preset::Albert(Albert { embedding: size, hidden: size, heads: 1, inner: size, layers })
                    .graph();
        });
        assert!(matches!(error, DescriptionError::Model(ModelError::Dimension { .. })));
    }
}
