//! Local training of a round: passes over a participant's own data, from the model of a round to another one.

use barnraise_learning::{ComputeDevice, DataShape, MeanGradient, ModelError, Trainer};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::{LocalSteps, RunDescription, Sampled};
use barnraise_swarm::Moment;
use barnraise_swarm::sampled::SampledModel;

use crate::description::local_steps;
use crate::platform::Platform;

/// A trainer that makes all steps of a round, over `n_samples` that are here, in one trajectory. It keeps nothing from round to
/// round.
///
/// - `own`: the samples, where they are not the run's: who rates is no user of the run
///
/// # Errors
/// The model does not fit the device, or the samples not the model.
pub fn local_trainer(
    run: &RunDescription,
    scheme: &Sampled,
    (n_samples, own): (usize, Option<&Samples>),
    device: ComputeDevice,
) -> Result<Trainer, ModelError> {
    let steps = LocalSteps { steps: n_batches(scheme, n_samples), ..local_steps(scheme, run) };
    let shape = DataShape::of(&run.data.manifest.samples);
    let trainer = Trainer::new(&run.model, shape, device)?.with_local_steps(&run.model, &steps)?.stateless();
    let trainer = match own {
        Some(Samples::Ratings(ratings)) => trainer.with_newcomers(ratings)?,
        _ => trainer,
    };
    match run.data.augmentation {
        Some(augmentation) => trainer.with_augmentation(augmentation),
        None => Ok(trainer),
    }
}

/// Batches of a round, each of which is a step: `E` passes over `n_samples`.
pub(super) fn n_batches(scheme: &Sampled, n_samples: usize) -> u32 {
    let of_pass = n_samples.div_ceil(scheme.micro_batch_size.max(1) as usize);
    u32::try_from(of_pass).unwrap_or(u32::MAX).saturating_mul(scheme.local_passes).max(1)
}

/// Numbers of all shards of a run, those first that are a participant's: by chance, and the same each time.
pub fn shards_of(peer: PublicKey, n_shards: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0u32..).take(n_shards).collect();
    order.sort_by_key(|number| Sha256Hash::of(&[&peer.0[..], &number.to_le_bytes()].concat()).0);
    order
}

/// The model after a round: what was moved is the one before minus the one after.
///
/// # Errors
/// A value that is not finite.
pub fn trained_model(before: &SampledModel, moved: &MeanGradient) -> Result<SampledModel, ModelError> {
    let trained: SampledModel =
        before.iter().zip(&moved.values).map(|(before, moved)| before - moved).collect();
    match trained.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(ModelError::NotFinite { index }),
        None => Ok(trained),
    }
}

/// What the batches of a round moved.
pub(super) struct TakenRound {
    pub(super) round: u64,
    pub(super) took: Moment,
    /// `None` where no batch was computed.
    pub(super) result: Result<Option<MeanGradient>, ModelError>,
}

/// Takes it out of the trainer. On a GPU this waits for queued passes.
pub(super) async fn take<P: Platform>(
    platform: &P,
    mut trainer: Trainer,
    round: u64,
) -> (Trainer, TakenRound) {
    let began = platform.now();
    let result = trainer.take_mean_gradient().await;
    let took = platform.now().saturating_sub(began);
    (trainer, TakenRound { round, took, result })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_shards_of_a_participant_are_its_own_and_stay() {
        let of = |peer: u8| shards_of(PublicKey([peer; 32]), 100);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1)[..3], of(2)[..3]);
        let mut all = of(1);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..100));
    }

    #[test]
    fn a_model_moves_by_what_was_moved_and_is_finite() {
        let before: SampledModel = Arc::new([1.0, 2.0]);
        let moved = |values| MeanGradient { values, n_samples: 3, loss: 1.0, n_correct: 0 };
        assert_eq!(*trained_model(&before, &moved(vec![0.5, -1.0])).unwrap(), [0.5, 3.0]);
        let refused = trained_model(&before, &moved(vec![0.0, f32::NAN])).unwrap_err();
        assert!(matches!(refused, ModelError::NotFinite { index: 1 }), "{refused}");
    }
}
