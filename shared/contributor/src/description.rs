//! Whether the values of a run fit each other (DeDLOC §3.1 names most of them): the one check of operators and of
//! participants.
//!
//! An operator's configuration is refused by it with the key that is wrong. A participant checks the description of an
//! untrusted backbone, before anything is allocated; the manifest was checked on receipt. What is accepted here can be
//! trained. Each scheme has a file that checks its own values.

mod experts;
mod sampled;
mod synchronous;

use barnraise_learning::graph::GraphError;
use barnraise_learning::{
    AugmentationError, DataShape, FrozenError, ModelError, ParameterLayout, check_augmentation, frozen,
};
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::dataset::DataStream;
use barnraise_protocol::run::model::graph::Loss;
use barnraise_protocol::run::{IdentityError, RunDescription, Scheme};

pub use self::experts::HostedExpertsError;
pub use self::sampled::{SampledError, local_steps};
pub use self::synchronous::{SynchronousError, TARGET_BATCH_SIZE_MAX};

/// Most samples in one forward and backward pass.
pub const MICRO_BATCH_SAMPLES_MAX: u32 = 4096;
/// Most samples of the shuffle buffer.
pub const SHUFFLE_BUFFER_SAMPLES_MAX: u32 = 1_000_000;
/// Most bytes of the samples in the shuffle buffer.
pub const BUFFER_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Why a run cannot be trained so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DescriptionError {
    /// No name for it.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The model is out of bounds or does not fit the data.
    #[error("{0}")]
    Model(#[from] ModelError),
    /// Frozen weights that are not those of the model.
    #[error(transparent)]
    Frozen(#[from] FrozenError),
    /// Changes of pictures that do not fit them.
    #[error(transparent)]
    Augmentation(#[from] AugmentationError),
    /// A value of the synchronous scheme.
    #[error(transparent)]
    Synchronous(#[from] SynchronousError),
    /// A value of the sampled scheme, or one that does not go with it.
    #[error(transparent)]
    Sampled(#[from] SampledError),
    /// Hosted experts that cannot be trained so.
    #[error(transparent)]
    Experts(#[from] HostedExpertsError),
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
    /// A window of a stream that the steps outrun.
    #[error(
        "{min} shards or more, or a larger data.shard_samples: a step takes {step} shards, and a smaller window does not move \
         on as fast without losing contributions; not {got}"
    )]
    StreamWindow {
        /// Fewest shards.
        min: u32,
        /// Shards of a step.
        step: u32,
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
            Self::Model(ModelError::Graph(error)) if error.is_of_adapters() => "model.adapters",
            Self::Model(ModelError::Graph(GraphError::NothingHosted)) => "model.experts",
            Self::Model(_) => "model.kind",
            Self::Frozen(_) => "model.start_from",
            Self::Augmentation(_) => "data.augment",
            Self::Synchronous(error) => error.key(),
            Self::Sampled(error) => error.key(),
            Self::Experts(_) => "model.experts",
            Self::ShuffleBuffer { .. } => "data.shuffle_buffer_samples",
            Self::StreamWindow { .. } => "data.text.stream.window_shards",
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
    let frozen = ParameterLayout::frozen_of_run(run)?;
    let codec = run.model.weights.adapters().map_or(TensorCodec::F32, |adapters| adapters.codec);
    frozen::check_entries(codec, &frozen, &run.data.manifest.frozen)?;
    let max = u32::try_from(layout.batch_samples_max()).unwrap_or(u32::MAX).min(MICRO_BATCH_SAMPLES_MAX);
    match &run.scheme {
        Scheme::Synchronous(scheme) => synchronous::validate(scheme, &run.model.graph, max)?,
        Scheme::Sampled(scheme) => sampled::validate(scheme, run, max)?,
    }
    experts::validate(run)?;
    run.data.manifest.stream.map_or(Ok(()), |stream| validate_stream(&stream, &run.scheme))?;
    if let Some(augmentation) = &run.data.augmentation {
        let data = DataShape::of(&run.data.manifest.samples);
        let is_of_crops = matches!(run.model.graph.loss, Loss::Swav(_));
        check_augmentation(augmentation, data, is_of_crops)?;
    }
    let micro_batch = run.scheme.micro_batch_size();
    let fitting = BUFFER_BYTES_MAX / run.data.manifest.sample_bytes().max(1);
    let max = u32::try_from(fitting).unwrap_or(u32::MAX).min(SHUFFLE_BUFFER_SAMPLES_MAX);
    let got = run.data.shuffle_buffer_samples;
    if got < micro_batch || got > max {
        return Err(DescriptionError::ShuffleBuffer { min: micro_batch, max, got });
    }
    Ok(layout)
}

/// The window of a stream moves on by the samples of each step.
fn validate_stream(stream: &DataStream, scheme: &Scheme) -> Result<(), DescriptionError> {
    let step = scheme.step_samples().div_ceil(stream.shard_samples.max(1));
    let min = DataStream::window_shards_min(step);
    match stream.window_shards {
        got if got < min => Err(DescriptionError::StreamWindow { min, step, got }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use barnraise_protocol::TensorCodec;
    use barnraise_protocol::codec::{Density, Sparsity};
    use barnraise_protocol::dataset::{ImageShape, SampleKind, TokenShape};
    use barnraise_protocol::run::model::graph::Block;
    use barnraise_protocol::run::model::operation::{BatchNorm, Operation};
    use barnraise_protocol::run::model::presets::Albert;
    use barnraise_protocol::run::{
        Augmentation, DecayDescription, GradientCodec, LocalSteps, OptimizerDescription, Preset,
        ScheduleDescription, SlowLinks, Synchronous, TopK,
    };

    use super::*;
    use crate::fixture;

    fn run() -> RunDescription {
        let mut run = fixture::run();
        let shape = ImageShape { height: 2, width: 2, channels: 1 };
        run.data.manifest.samples = SampleKind::Images { shape, class_names: vec!["a".into(), "b".into()] };
        run.data.shuffle_buffer_samples = 16;
        run.model.graph = Preset::Mlp { hidden: vec![3] }.graph();
        let scheme = run.synchronous_mut().unwrap();
        (scheme.target_batch_size, scheme.micro_batch_size) = (64, 4);
        scheme.contribution_samples_max = 64;
        run
    }

    fn refused(change: impl Fn(&mut Synchronous)) -> SynchronousError {
        match rejected(|run| change(run.synchronous_mut().unwrap())) {
            DescriptionError::Synchronous(error) => error,
            other => panic!("{other}"),
        }
    }

    fn rejected(change: impl Fn(&mut RunDescription)) -> DescriptionError {
        let mut run = run();
        change(&mut run);
        validate(&run).unwrap_err()
    }

    #[test]
    fn running_statistics_need_all_values_of_a_contribution() {
        let sparse = GradientCodec::TopK(TopK::plain(Density::from_share(0.1).unwrap(), 0));
        let with = |running, of_all, of_slow_links| {
            let mut run = run();
            let norm = BatchNorm { epsilon: 1e-5, momentum: 0.1, running };
            run.model.graph.blocks.insert(2, Block::new("bn", Operation::BatchNorm(norm)));
            let scheme = run.synchronous_mut().unwrap();
            scheme.gradient_codec = of_all;
            let slow = SlowLinks { below_bytes_per_second: 1, codec: of_slow_links };
            scheme.slow_links = Some(slow);
            validate(&run)
        };
        let key = |refused: Result<_, DescriptionError>| refused.unwrap_err().key();
        assert!(with(true, GradientCodec::F16, GradientCodec::Int8).is_ok());
        assert!(with(false, GradientCodec::F16, sparse).is_ok());
        assert_eq!(key(with(true, GradientCodec::F16, sparse)), "scheme.synchronous.slow_links");
        let sparser = GradientCodec::TopK(TopK::plain(Density::from_share(0.01).unwrap(), 0));
        assert_eq!(key(with(true, sparse, sparser)), "scheme.synchronous.slow_links");
        let mut run = run();
        let norm = BatchNorm { epsilon: 1e-5, momentum: 0.1, running: true };
        run.model.graph.blocks.insert(2, Block::new("bn", Operation::BatchNorm(norm)));
        run.synchronous_mut().unwrap().gradient_codec = sparse;
        let refused = validate(&run).unwrap_err();
        assert_eq!(refused.key(), "scheme.synchronous.gradient_codec");
        assert!(refused.to_string().contains("normalizes by group"), "{refused}");
    }

    #[test]
    fn the_window_of_a_stream_keeps_up_with_the_steps() {
        let with = |window_shards, shard_samples| {
            let mut run = run();
            let sources = run.data.manifest.gallery.sha256;
            run.data.manifest.stream = Some(DataStream { sources, shard_samples, window_shards });
            validate(&run).map(drop)
        };
        // Of 64 samples in a step.
        assert_eq!(with(1, 4), Ok(()));
        assert_eq!(with(100, 3), Ok(()));
        let refused = with(84, 3).unwrap_err();
        assert_eq!(refused, DescriptionError::StreamWindow { min: 88, step: 22, got: 84 });
        assert_eq!(refused.key(), "data.text.stream.window_shards");
        assert!(refused.to_string().starts_with("88 shards or more, or a larger data.shard_samples"));
        assert_eq!(with(88, 3), Ok(()));
    }

    #[test]
    fn sizes_that_are_too_large_for_a_tab_are_named() {
        assert_eq!(validate(&run()).unwrap().n_parameters(), (4 * 3 + 3) + (3 * 2 + 2));
        for size in [0, MICRO_BATCH_SAMPLES_MAX + 1] {
            let error = refused(|scheme| scheme.micro_batch_size = size);
            assert!(matches!(error, SynchronousError::MicroBatch { got, .. } if got == size));
        }
        let error = refused(|scheme| scheme.contribution_samples_max = 3);
        assert_eq!(error, SynchronousError::Contribution { min: 4, got: 3 });
        for size in [3, SHUFFLE_BUFFER_SAMPLES_MAX + 1] {
            let error = rejected(|run| run.data.shuffle_buffer_samples = size);
            assert!(matches!(error, DescriptionError::ShuffleBuffer { got, .. } if got == size));
        }
        let error = rejected(|run| {
            run.data.augmentation = Some(Augmentation { crop_padding: 2, ..Augmentation::default() });
        });
        assert_eq!(error.key(), "data.augment");
        assert!(error.to_string().contains("at most 1 pixels"), "{error}");
        for size in [3, TARGET_BATCH_SIZE_MAX + 1] {
            let error = refused(|scheme| scheme.target_batch_size = size);
            assert_eq!(error, SynchronousError::TargetBatch { min: 4, got: size });
        }
        let error = refused(|scheme| scheme.contribution_samples_max = 3);
        assert_eq!(error.key(), "scheme.synchronous.contribution_samples_max");
        let density = Density::from_share(0.1).unwrap();
        let diverging = GradientCodec::TopK(TopK { momentum: 1.0, ..TopK::plain(density, 0) });
        let error = refused(|scheme| scheme.gradient_codec = diverging);
        assert!(matches!(error, SynchronousError::GradientCodec(_)));
        assert_eq!(rejected(|run| run.identity.run_id = "A b".into()).key(), "run.id");
        let int4 = refused(|scheme| (scheme.gradient_codec, scheme.recomputed) = (GradientCodec::Int4, true));
        assert!(matches!(int4, SynchronousError::Recomputed(_)));
        let schedule = ScheduleDescription { peak: 0.1, warmup_epochs: 0, decay: DecayDescription::Constant };
        let optimizer =
            OptimizerDescription::SgdMomentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let steps = LocalSteps { steps: 16, optimizer, schedule };
        let mut described = run();
        described.synchronous_mut().unwrap().local_steps = Some(steps);
        assert!(validate(&described).is_ok());
        described.synchronous_mut().unwrap().contribution_samples_max = 63;
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
            let error = refused(|scheme| scheme.local_steps = Some(bad));
            assert!(matches!(error, SynchronousError::LocalSteps(_)), "{error}");
        }
        let sparsity = Sparsity { density: Density::from_share(0.1).unwrap(), warmup_epochs: 0 };
        for codec in [TensorCodec::Int4, TensorCodec::TopK(sparsity)] {
            assert_eq!(refused(|scheme| scheme.state_codec = codec), SynchronousError::StateCodec(codec));
        }
        let huge = Preset::Mlp { hidden: vec![u32::MAX, u32::MAX] }.graph();
        assert!(matches!(rejected(|run| run.model.graph = huge.clone()), DescriptionError::Model(_)));
        let text = |run: &mut RunDescription| {
            run.data.manifest.samples =
                SampleKind::Tokens(TokenShape { length: 1024, vocabulary: u16::MAX.into(), mask: Some(1) });
        };
        assert!(matches!(rejected(text), DescriptionError::Model(ModelError::Graph(_))));
        let error = rejected(|run| {
            text(run);
            let size = u32::MAX;
            let layers = 1;
            run.model.graph =
                Preset::Albert(Albert { embedding: size, hidden: size, heads: 1, inner: size, layers })
                    .graph();
        });
        assert!(matches!(error, DescriptionError::Model(ModelError::Graph(_))));
    }
}
