//! Whether a run's description is one that this peer takes part in: a backbone may say anything.
//!
//! The manifest was checked where it was received; here the sizes are, before anything is allocated.

use barnraise_learning::{DataShape, LocalStepsError, ModelError, ParameterLayout, local};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::run::{CompressionError, NotRecomputable, RunDescription, SlowLinksError};

/// Most samples of one forward and backward pass.
pub const MICRO_BATCH_SAMPLES_MAX: u32 = 4096;
/// Most samples of the shuffle buffer.
pub const SHUFFLE_BUFFER_SAMPLES_MAX: u32 = 1_000_000;
/// Most bytes of the samples in the shuffle buffer.
pub const BUFFER_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Why a run is not one to take part in.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DescriptionError {
    /// The model is out of bounds or does not fit the data.
    #[error("the run's model: {0}")]
    Model(#[from] ModelError),
    /// The backbone counts another number of parameters.
    #[error("the run announces {got} parameters, its model has {want}")]
    Parameters {
        /// Of the model.
        want: u64,
        /// Announced.
        got: u64,
    },
    /// A pass without samples, or with too many.
    #[error("the run wants {got} samples in a pass, 1 to {max} are possible")]
    MicroBatch {
        /// Most possible for this model.
        max: u32,
        /// Announced.
        got: u32,
    },
    /// A compression that is none.
    #[error("the run's compression: {0}")]
    Compression(#[from] CompressionError),
    /// Slow links that would not be helped.
    #[error("the run's slow links: {0}")]
    SlowLinks(#[from] SlowLinksError),
    /// Local steps that cannot be made.
    #[error("the run's local steps: {0}")]
    LocalSteps(#[from] LocalStepsError),
    /// Contributions would have to be signed for that are not what their accounts say.
    #[error("the run recomputes contributions, and cannot: {0}")]
    Recomputed(#[from] NotRecomputable),
    /// Parameters of which some would be left out, or far off.
    #[error("the run's parameters travel as {0:?}, which is for gradients")]
    StateCodec(TensorCodec),
    /// A contribution smaller than a pass, so that nothing could ever be contributed.
    #[error("a contribution may carry {got} samples, one pass makes {want}")]
    Contribution {
        /// Samples of a pass.
        want: u32,
        /// Announced.
        got: u32,
    },
    /// A shuffle buffer that holds less than a pass, or more than a tab has memory for.
    #[error("the run wants {got} samples in the shuffle buffer, {min} to {max} are possible")]
    ShuffleBuffer {
        /// Samples of a pass.
        min: u32,
        /// Most possible for samples of this size.
        max: u32,
        /// Announced.
        got: u32,
    },
}

/// Checks the sizes of a run, and returns the layout of its parameters.
pub fn check_description(run: &RunDescription) -> Result<ParameterLayout, DescriptionError> {
    let layout = ParameterLayout::of(&run.model, DataShape::of(&run.manifest.samples))?;
    let want = layout.n_parameters() as u64;
    if run.n_parameters != want {
        return Err(DescriptionError::Parameters { want, got: run.n_parameters });
    }
    run.compression.check(run.gradient_codec)?;
    run.slow_links.map_or(Ok(()), |slow| slow.check(run.gradient_codec))?;
    run.local_steps.as_ref().map_or(Ok(()), local::check)?;
    if run.recomputed {
        run.check_recomputable()?;
    }
    if !run.state_codec.carries_state() {
        return Err(DescriptionError::StateCodec(run.state_codec));
    }
    let got = run.micro_batch_size;
    let max = u32::try_from(layout.batch_samples_max()).unwrap_or(u32::MAX).min(MICRO_BATCH_SAMPLES_MAX);
    if got == 0 || got > max {
        return Err(DescriptionError::MicroBatch { max, got });
    }
    let want = run.micro_batch_size;
    if run.contribution_samples_max < want {
        return Err(DescriptionError::Contribution { want, got: run.contribution_samples_max });
    }
    let fitting = BUFFER_BYTES_MAX / run.manifest.sample_bytes().max(1);
    let max = u32::try_from(fitting).unwrap_or(u32::MAX).min(SHUFFLE_BUFFER_SAMPLES_MAX);
    let got = run.shuffle_buffer_samples;
    if got < want || got > max {
        return Err(DescriptionError::ShuffleBuffer { min: want, max, got });
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::Sha256Hash;
    use barnraise_protocol::access::{AccessDescription, PublicKey};
    use barnraise_protocol::codec::{Density, Sparsity};
    use barnraise_protocol::dataset::{ImageShape, Manifest, SampleKind, ShardEntry, TokenShape};
    use barnraise_protocol::run::{
        Compression, InnerDecay, InnerOptimizer, InnerSchedule, LocalSteps, ModelKind, ModelSpec,
    };

    use super::*;

    fn run() -> RunDescription {
        let entry = ShardEntry { n_samples: 1, n_bytes: 1, sha256: Sha256Hash::of(b"") };
        RunDescription {
            run_id: "run".into(),
            title: String::new(),
            purpose: String::new(),
            access: AccessDescription::open(PublicKey([1; 32])),
            model: ModelSpec { kind: ModelKind::Mlp { hidden: vec![3] }, seed: 1 },
            n_parameters: (4 * 3 + 3) + (3 * 2 + 2),
            target_batch_size: 8,
            micro_batch_size: 4,
            shuffle_buffer_samples: 16,
            gradient_codec: TensorCodec::F16,
            slow_links: None,
            compression: Compression::default(),
            delayed_updates: false,
            local_steps: None,
            state_codec: TensorCodec::F32,
            contribution_samples_max: 8,
            recomputed: false,
            manifest: Manifest {
                name: String::new(),
                samples: SampleKind::Images {
                    shape: ImageShape { height: 2, width: 2, channels: 1 },
                    class_names: vec!["a".into(), "b".into()],
                },
                shards: vec![entry],
                gallery: entry,
            },
        }
    }

    fn rejected(change: impl Fn(&mut RunDescription)) -> DescriptionError {
        let mut run = run();
        change(&mut run);
        check_description(&run).unwrap_err()
    }

    #[test]
    fn sizes_that_a_tab_cannot_bear_are_named() {
        assert_eq!(check_description(&run()).unwrap().n_parameters(), 23);
        let error = rejected(|run| run.n_parameters = 24);
        assert_eq!(error, DescriptionError::Parameters { want: 23, got: 24 });
        for size in [0, MICRO_BATCH_SAMPLES_MAX + 1] {
            let error = rejected(|run| run.micro_batch_size = size);
            assert!(matches!(error, DescriptionError::MicroBatch { got, .. } if got == size));
        }
        let error = rejected(|run| run.contribution_samples_max = 3);
        assert_eq!(error, DescriptionError::Contribution { want: 4, got: 3 });
        for size in [3, SHUFFLE_BUFFER_SAMPLES_MAX + 1] {
            let error = rejected(|run| run.shuffle_buffer_samples = size);
            assert!(matches!(error, DescriptionError::ShuffleBuffer { got, .. } if got == size));
        }
        let error = rejected(|run| run.compression.momentum = 0.9);
        assert!(matches!(error, DescriptionError::Compression(_)));
        let schedule = InnerSchedule { peak: 0.1, warmup_epochs: 0, decay: InnerDecay::Constant };
        let optimizer = InnerOptimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let steps = LocalSteps { steps: 16, optimizer, schedule };
        let described = RunDescription { local_steps: Some(steps), ..run() };
        assert!(check_description(&described).is_ok());
        let diverging = InnerOptimizer::Sgd { momentum: 1.0, nesterov: false, weight_decay: 0.0 };
        let lasting = InnerSchedule { peak: f32::INFINITY, ..schedule };
        for bad in [
            LocalSteps { steps: 0, ..steps },
            LocalSteps { optimizer: diverging, ..steps },
            LocalSteps { schedule: lasting, ..steps },
        ] {
            let error = rejected(|run| run.local_steps = Some(bad));
            assert!(matches!(error, DescriptionError::LocalSteps(_)), "{error}");
        }
        let sparsity = Sparsity { density: Density::from_share(0.1).unwrap(), warmup_epochs: 0 };
        for codec in [TensorCodec::Int4, TensorCodec::TopK(sparsity)] {
            assert_eq!(rejected(|run| run.state_codec = codec), DescriptionError::StateCodec(codec));
        }
        let huge = ModelKind::Mlp { hidden: vec![u32::MAX, u32::MAX] };
        assert!(matches!(rejected(|run| run.model.kind = huge.clone()), DescriptionError::Model(_)));
        let text = |run: &mut RunDescription| {
            run.manifest.samples = SampleKind::Tokens(TokenShape { length: 1024, vocabulary: u16::MAX });
        };
        assert!(matches!(rejected(text), DescriptionError::Model(ModelError::WrongData { .. })));
        let error = rejected(|run| {
            text(run);
            let size = u32::MAX;
            let layers = 1;
            run.model.kind =
                ModelKind::Albert { embedding: size, hidden: size, heads: 1, inner: size, layers };
        });
        assert!(matches!(error, DescriptionError::Model(ModelError::Dimension { .. })));
    }
}
