//! Contributions that are computed once more: which are chosen, in which order they wait, and how far one may be from what
//! was recomputed. And what was contributed, so that it counts once.
//!
//! What a peer signed for cannot change once it is chosen, and all that it takes to recompute it is here by then: to
//! leave is of no use. What is chosen counts once it was found right.

mod lasting;
mod ledger;
mod queue;
mod selection;
mod usual;

use barnraise_protocol::TensorCodec;

pub use lasting::{Lasting, Passed, Suspected};
pub use ledger::{Claim, Ledger, Name, Repeat, values_hash};
pub use queue::{FairQueue, PER_GROUP_MAX};
pub use selection::{ALL_TIME, EVIDENCE_MAX, OWN_TIME, PROBATION, Reason, SUSPICION, Selection, rest_after};
pub use usual::Usual;

/// A codec may lose so many times what it loses of the gradient as it was recomputed: other roundings round other
/// values up.
const CODEC_LOSSES: f32 = 2.0;

/// How far a contribution is from what was recomputed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Euclidean, over the length of the recomputed gradient.
    pub distance: f32,
    /// Up to which it is the same gradient on another device.
    pub allowed: f32,
}

impl Difference {
    /// Between `claimed`, as it came in `codec`, and `recomputed`, both `[n_parameters]` and finite.
    ///
    /// `tolerance` is what devices may differ by, as a part of the gradient's length. `None` where nothing can be
    /// said: a gradient of no length, or one that the codec cannot carry.
    pub fn between(claimed: &[f32], recomputed: &[f32], codec: TensorCodec, tolerance: f32) -> Option<Self> {
        let length = norm(recomputed.iter().copied());
        let sent = codec.encode(recomputed).ok()?;
        let sent = codec.decode(&sent, recomputed.len()).ok()?;
        let lost = norm(sent.iter().zip(recomputed).map(|(sent, whole)| sent - whole));
        let distance = norm(claimed.iter().zip(recomputed).map(|(claimed, own)| claimed - own));
        let is_said = length.is_normal() && distance.is_finite() && claimed.len() == recomputed.len();
        is_said.then(|| Self {
            distance: (distance / length) as f32,
            allowed: tolerance + CODEC_LOSSES * (lost / length) as f32,
        })
    }

    /// Whether it is another gradient.
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

    fn gradient(seed: u64) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        let mut next = || (random.below(2000) as f32 - 1000.0) / 1000.0;
        (0..500).map(|_| next() * next() * next()).collect()
    }

    fn distance(claimed: &[f32], codec: TensorCodec) -> Difference {
        Difference::between(claimed, &gradient(1), codec, 0.02).unwrap()
    }

    #[test]
    fn a_gradient_in_any_codec_is_itself() {
        for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
            let other_device: Vec<f32> = gradient(1).iter().map(|value| value * 1.0001 + 1e-5).collect();
            let sent = codec.decode(&codec.encode(&other_device).unwrap(), 500).unwrap();
            let difference = distance(&sent, codec);
            assert!(!difference.is_wrong(), "{codec:?}: {difference:?}");
        }
    }

    #[test]
    fn one_that_is_turned_scaled_of_others_or_noise_is_not() {
        let own = gradient(1);
        let lies = [
            own.iter().map(|value| -value).collect(),
            own.iter().map(|value| value * 1.1).collect(),
            vec![0.0; 500],
            gradient(2),
            own.iter().zip(gradient(2)).map(|(own, other)| own + 0.1 * other).collect::<Vec<f32>>(),
        ];
        for lie in lies {
            for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
                let sent = codec.decode(&codec.encode(&lie).unwrap(), 500).unwrap();
                assert!(distance(&sent, codec).is_wrong(), "{codec:?}: {:?}", distance(&sent, codec));
            }
        }
    }

    #[test]
    fn what_is_allowed_is_a_part_of_the_gradients_length() {
        let own = gradient(1);
        let larger: Vec<f32> = own.iter().map(|value| value * 1024.0).collect();
        for codec in [TensorCodec::F32, TensorCodec::Int8] {
            let difference = Difference::between(&own, &own, codec, 0.02).unwrap();
            let of_larger = Difference::between(&larger, &larger, codec, 0.02).unwrap();
            assert!((difference.allowed - of_larger.allowed).abs() < 1e-6, "{difference:?} {of_larger:?}");
        }
        assert_eq!(Difference::between(&own, &own, TensorCodec::F32, 0.02).unwrap().allowed, 0.02);
        assert!(!Difference { distance: 0.02, allowed: 0.02 }.is_wrong());
    }

    #[test]
    fn of_no_gradient_nothing_is_said() {
        assert_eq!(Difference::between(&[1.0, 0.0], &[0.0, 0.0], TensorCodec::F32, 0.02), None);
        assert_eq!(Difference::between(&[1.0], &[1.0, 2.0], TensorCodec::F32, 0.02), None);
    }
}
