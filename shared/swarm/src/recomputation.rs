//! Recomputation of contributions: their selection, their queue, and their distance from the recomputed gradient.
//! Also the ledger of contributed samples, so that the same work counts once.
//!
//! A peer signs its commitment before the selection, and by then the backbone has all that it needs to recompute the
//! contribution: leaving does not help. A suspicious contribution counts only after it was verified; of one that was drawn
//! at random, the peer is convicted afterwards.

mod ledger;
mod persistent;
mod queue;
mod selection;
mod typical;

use barnraise_protocol::TensorCodec;

use crate::compression::round_stochastically;

pub use ledger::{ContributionName, EPOCHS_MAX, Ledger, RepeatError, SampleClaim, values_hash};
pub use persistent::{PersistentRecomputation, VerifiedKey};
pub use queue::{FairQueue, PER_GROUP_MAX};
pub use selection::{
    ALL_TIME, EVIDENCE_MAX, OWN_TIME, PROBATION, Reason, SUSPICION, Selection, SuspectedAddress, rest_after,
};
pub use typical::TypicalContributions;

/// Tolerated loss of the codec, as a multiple of its loss on the recomputed gradient: slightly different values are
/// rounded differently.
const CODEC_LOSSES: f32 = 2.0;

/// Distance of a contribution from the recomputed gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Euclidean distance, relative to the norm of the recomputed gradient.
    pub distance: f32,
    /// Largest distance that rounding on another device explains.
    pub allowed: f32,
}

impl Difference {
    /// Distance between `claimed`, as decoded from `codec`, and `recomputed`, both `[n_parameters]` and finite. Values were
    /// rounded by the seed of the contribution's commitment.
    ///
    /// `tolerance` is the difference allowed between devices, relative to the gradient's norm. `None` where nothing can
    /// be decided: the gradient's norm is zero, or the codec cannot encode it.
    pub fn between(
        claimed: &[f32],
        recomputed: &[f32],
        (codec, rounding_seed): (TensorCodec, u64),
        tolerance: f32,
    ) -> Option<Self> {
        let length = norm(recomputed.iter().copied());
        let mut rounded = recomputed.to_vec();
        round_stochastically(&mut rounded, codec, rounding_seed);
        let sent = codec.encode(&rounded).ok()?;
        let sent = codec.decode(&sent, recomputed.len()).ok()?;
        let lost = norm(sent.iter().zip(recomputed).map(|(sent, whole)| sent - whole));
        let distance = norm(claimed.iter().zip(recomputed).map(|(claimed, own)| claimed - own));
        let is_said = length.is_normal() && distance.is_finite() && claimed.len() == recomputed.len();
        is_said.then(|| Self {
            distance: (distance / length) as f32,
            allowed: tolerance + CODEC_LOSSES * (lost / length) as f32,
        })
    }

    /// Whether the contribution is another gradient than the recomputed one.
    pub fn is_wrong(&self) -> bool {
        self.distance > self.allowed
    }
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    const SEED: u64 = 3;

    fn gradient(seed: u64) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        let mut next = || (random.below(2000) as f32 - 1000.0) / 1000.0;
        (0..500).map(|_| next() * next() * next()).collect()
    }

    fn distance(claimed: &[f32], codec: TensorCodec) -> Difference {
        Difference::between(claimed, &gradient(1), (codec, SEED), 0.02).unwrap()
    }

    #[test]
    fn a_gradient_in_any_codec_is_itself() {
        for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
            let other_device: Vec<f32> = gradient(1).iter().map(|value| value * 1.0001 + 1e-5).collect();
            let mut rounded = other_device.clone();
            round_stochastically(&mut rounded, codec, SEED);
            // A peer may round to the nearest level, too.
            for values in [rounded, other_device] {
                let sent = codec.decode(&codec.encode(&values).unwrap(), 500).unwrap();
                let difference = distance(&sent, codec);
                assert!(!difference.is_wrong(), "{codec:?}: {difference:?}");
            }
        }
    }

    #[test]
    fn one_that_is_turned_scaled_of_others_or_noise_is_not() {
        let own = gradient(1);
        let wrong = [
            own.iter().map(|value| -value).collect(),
            own.iter().map(|value| value * 1.1).collect(),
            vec![0.0; 500],
            gradient(2),
            own.iter().zip(gradient(2)).map(|(own, other)| own + 0.1 * other).collect::<Vec<f32>>(),
        ];
        for gradient in wrong {
            for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
                let sent = codec.decode(&codec.encode(&gradient).unwrap(), 500).unwrap();
                assert!(distance(&sent, codec).is_wrong(), "{codec:?}: {:?}", distance(&sent, codec));
            }
        }
    }

    #[test]
    fn what_is_allowed_is_a_part_of_the_gradients_length() {
        let own = gradient(1);
        let larger: Vec<f32> = own.iter().map(|value| value * 1024.0).collect();
        for codec in [TensorCodec::F32, TensorCodec::Int8] {
            let difference = Difference::between(&own, &own, (codec, SEED), 0.02).unwrap();
            let of_larger = Difference::between(&larger, &larger, (codec, SEED), 0.02).unwrap();
            assert!((difference.allowed - of_larger.allowed).abs() < 1e-6, "{difference:?} {of_larger:?}");
        }
        assert_eq!(Difference::between(&own, &own, (TensorCodec::F32, SEED), 0.02).unwrap().allowed, 0.02);
        assert!(!Difference { distance: 0.02, allowed: 0.02 }.is_wrong());
    }

    #[test]
    fn a_claim_that_is_no_number_is_not_compared() {
        for value in [f32::INFINITY, f32::NAN] {
            let codec = (TensorCodec::F32, SEED);
            assert_eq!(Difference::between(&[value, 0.0], &[1.0, 1.0], codec, 0.02), None);
        }
    }

    #[test]
    fn distances_are_measured_in_the_length_of_the_recomputed_gradient() {
        let of =
            |claimed: &[f32], codec| Difference::between(claimed, &[3.0, 4.0], (codec, SEED), 0.25).unwrap();
        assert_eq!(of(&[3.0, 4.0], TensorCodec::F32), Difference { distance: 0.0, allowed: 0.25 });
        assert_eq!(of(&[0.0, 0.0], TensorCodec::F32).distance, 1.0);
        assert_eq!(of(&[6.0, 8.0], TensorCodec::F32).distance, 1.0);
        assert_eq!(of(&[-3.0, -4.0], TensorCodec::F32).distance, 2.0);
        // 4 / 127 is a level, and 3.0 lies a quarter above one.
        let int8 = of(&[3.0, 4.0], TensorCodec::Int8);
        let level = 4.0 / 127.0;
        let lost = [0.25, 0.75].map(|part| CODEC_LOSSES * part * level / 5.0);
        assert!(lost.iter().any(|lost| (int8.allowed - 0.25 - lost).abs() < 1e-5), "{int8:?}");
    }

    #[test]
    fn of_no_gradient_nothing_is_said() {
        assert_eq!(Difference::between(&[1.0, 0.0], &[0.0, 0.0], (TensorCodec::F32, SEED), 0.02), None);
        assert_eq!(Difference::between(&[1.0], &[1.0, 2.0], (TensorCodec::F32, SEED), 0.02), None);
    }
}
