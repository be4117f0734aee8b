//! Which share of the values is sent, and how it falls during the first epochs.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Share of the values in the first epochs of a warm-up; each of its stages sends a quarter of the one before
/// (Lin et al. 2018, "Deep Gradient Compression", section 3.3: 25 %, 6.25 %, 1.5625 %, …).
pub const WARMUP_DENSITY: Density = Density(250_000);

/// Everything.
const WHOLE_PPM: u32 = 1_000_000;

/// A share above none and up to all, in millionths: on every platform the same number of values. For people a
/// number such as 0.01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Density(u32);

impl Density {
    /// From a share, rounded to millionths; `None` unless that is above 0 and at most 1.
    pub fn from_share(share: f64) -> Option<Self> {
        let ppm = (share * f64::from(WHOLE_PPM)).round();
        // NaN is in no range.
        (1.0..=f64::from(WHOLE_PPM)).contains(&ppm).then_some(Self(ppm as u32))
    }

    /// Above 0, at most 1.
    pub fn share(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE_PPM)
    }

    /// Values of so many, rounded up: at least one of any.
    fn of(self, n_values: usize) -> usize {
        let n_sent = (n_values as u128 * u128::from(self.0)).div_ceil(u128::from(WHOLE_PPM));
        usize::try_from(n_sent).unwrap_or(n_values)
    }
}

impl Serialize for Density {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.serialize_f64(self.share()),
            false => serializer.serialize_u32(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Density {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let share = match deserializer.is_human_readable() {
            true => f64::deserialize(deserializer)?,
            false => f64::from(u32::deserialize(deserializer)?) / f64::from(WHOLE_PPM),
        };
        let error = || D::Error::custom(format!("a density of {share}: above 0 and at most 1 is wanted"));
        Self::from_share(share).ok_or_else(error)
    }
}

/// How many of a gradient's values are sent in each epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sparsity {
    /// Share of the values once the warm-up is over.
    pub density: Density,
    /// Optimizer steps until then, while more is sent, because gradients change fast in the beginning.
    #[serde(default)]
    pub warmup_epochs: u32,
}

impl Sparsity {
    /// Share of the values that is sent at most in `epoch`. Integers only: all peers agree.
    pub fn density_at(self, epoch: u64) -> Density {
        let stage_density = |stage: u32| Density(WARMUP_DENSITY.0.checked_shr(2 * stage).unwrap_or(0));
        if epoch >= u64::from(self.warmup_epochs) {
            return self.density;
        }
        let n_stages = (0..16).take_while(|&stage| stage_density(stage) > self.density).count() as u64;
        let stage = epoch * n_stages / u64::from(self.warmup_epochs);
        stage_density(stage as u32).max(self.density)
    }

    /// Values out of `n_values` that a gradient of `epoch` may send.
    pub fn n_sent_max(self, n_values: usize, epoch: u64) -> usize {
        self.density_at(epoch).of(n_values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn density(share: f64) -> Density {
        Density::from_share(share).unwrap()
    }

    #[test]
    fn a_share_is_above_none_and_at_most_all() {
        for bad in [0.0, -0.1, 1.000_001, 1e-7, f64::NAN, f64::INFINITY] {
            assert_eq!(Density::from_share(bad), None, "{bad}");
        }
        assert_eq!(density(1.0).of(17), 17);
        assert_eq!(density(0.01).of(150), 2);
        assert_eq!((density(0.000_001).of(5), density(0.5).of(0)), (1, 0));
    }

    #[test]
    fn the_warm_up_quarters_from_a_quarter() {
        let sparsity = Sparsity { density: density(0.001), warmup_epochs: 40 };
        let shares: Vec<f64> =
            [0, 9, 10, 20, 39, 40, u64::MAX].map(|epoch| sparsity.density_at(epoch).share()).into();
        assert_eq!(shares, [0.25, 0.25, 0.0625, 0.015_625, 0.003_906, 0.001, 0.001]);
        let none = Sparsity { density: density(0.01), warmup_epochs: 0 };
        assert_eq!(none.density_at(0).share(), 0.01);
        let of_a_stage = Sparsity { density: density(0.0625), warmup_epochs: 10 };
        let shares = [0, 9, 10].map(|epoch| of_a_stage.density_at(epoch).share());
        assert_eq!(shares, [0.25, 0.25, 0.0625], "its own density is no stage of the warm-up");
        let dense = Sparsity { density: density(0.5), warmup_epochs: 10 };
        assert_eq!(dense.density_at(3).share(), 0.5, "a warm-up never sends less");
    }

    #[test]
    fn people_write_shares_and_the_wire_counts_millionths() {
        let sparsity = Sparsity { density: density(0.01), warmup_epochs: 3 };
        let bytes = postcard::to_allocvec(&sparsity).unwrap();
        assert_eq!(bytes, [0x90, 0x4e, 3]);
        assert_eq!(postcard::from_bytes(&bytes), Ok(sparsity));
        assert!(postcard::from_bytes::<Sparsity>(&[0, 3]).is_err(), "no density at all");
        assert!(postcard::from_bytes::<Sparsity>(&[0xff, 0xff, 0xff, 0x7f, 3]).is_err());
    }
}
