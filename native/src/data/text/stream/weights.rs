//! Which source the next sequence of a stream is from.

use barnraise_swarm::random::SplitMix64;

/// Weights of sources. The choice for a sequence follows from them, the seed and its number alone, so that it is the same on
/// each backbone and after each restart.
#[derive(Debug, Clone)]
pub(super) struct SourceWeights {
    weights: Vec<f64>,
    total: f64,
    seed: u64,
}

impl SourceWeights {
    /// No weight is below zero, and one is above.
    pub(super) fn new(weights: impl Iterator<Item = f64>, seed: u64) -> Self {
        let weights: Vec<f64> = weights.collect();
        Self { total: weights.iter().sum(), weights, seed }
    }

    /// Index of the source of sequence `number`.
    pub(super) fn pick(&self, number: u64) -> usize {
        let drawn = SplitMix64::new(SplitMix64::new(self.seed).next_u64() ^ number).next_u64();
        // A double has 53 bits of precision.
        let mut place = (drawn >> 11) as f64 / (1_u64 << 53) as f64 * self.total;
        for (index, weight) in self.weights.iter().enumerate() {
            place -= weight;
            if place < 0.0 {
                return index;
            }
        }
        // Rounding went beyond the last.
        self.weights.iter().rposition(|weight| *weight > 0.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(weights: [f64; 3], seed: u64) -> Vec<usize> {
        let weights = SourceWeights::new(weights.into_iter(), seed);
        (0..30_000).map(|number| weights.pick(number)).collect()
    }

    #[test]
    fn sources_come_by_their_weights_in_a_fixed_order() {
        let picked = picks([3.0, 2.0, 1.0], 7);
        for (source, want) in [(0, 15_000), (1, 10_000), (2, 5_000)] {
            let n_picked = picked.iter().filter(|picked| **picked == source).count();
            // A standard deviation is below 90.
            assert!(n_picked.abs_diff(want) < 450, "source {source}: {n_picked}");
        }
        assert_eq!(picked, picks([3.0, 2.0, 1.0], 7));
        assert_ne!(picked, picks([3.0, 2.0, 1.0], 8));
        assert!(!picks([1.0, 0.0, 1.0], 7).contains(&1) && !picks([1.0, 1.0, 0.0], 7).contains(&2));
        // Golden: another order would be other shards under the same description.
        assert_eq!(picked[..16], GOLDEN);
    }

    const GOLDEN: [usize; 16] = [1, 0, 0, 0, 1, 1, 2, 0, 0, 1, 0, 2, 0, 2, 2, 0];
}
