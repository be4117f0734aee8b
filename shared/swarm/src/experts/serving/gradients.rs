//! How large the gradients are that trainers send: a host cannot compute one once more, as it has neither trunk nor data, but one
//! that is far larger than those of others would set an expert back, or its optimizer, by as much as a thousand honest ones.

use std::collections::BTreeMap;

use crate::AddressGroup;

/// A gradient is at most so many times as large as is usual. Those of large batches are smaller than those of small ones.
const SCALE_MAX: f32 = 32.0;
/// Weight of the newest one in the mean of an address.
const NEWEST: f32 = 0.125;
/// So many addresses have a median that one of them does not choose.
const GROUPS_MIN: usize = 3;
/// Most addresses that are remembered; the one that was heard the longest ago is forgotten.
const GROUPS_MAX: usize = 256;
/// One that was not heard for so many requests of others counts no longer.
const SILENCE_MAX: u64 = 4096;

/// Of the experts of one layer.
#[derive(Debug, Default)]
pub struct GradientScales {
    groups: BTreeMap<AddressGroup, GroupScale>,
    n_heard: u64,
}

#[derive(Debug)]
struct GroupScale {
    /// Mean of the logarithms.
    mean: f32,
    heard_at: u64,
}

impl GradientScales {
    /// Gradients came from an address, with this root mean square. Returns what they are to be multiplied with, at most 1: what an
    /// address sends counts no more than [`SCALE_MAX`] times as much as what the median address sends, however many requests it
    /// makes. Of two addresses nobody knows which one is right: there is no limit.
    pub fn factor(&mut self, group: AddressGroup, rms: f32) -> f32 {
        if rms <= 0.0 || !rms.is_finite() {
            return 1.0;
        }
        let logarithm = rms.ln();
        let taken = self.median().map_or(logarithm, |usual| logarithm.min(usual + SCALE_MAX.ln()));
        self.count(group, taken);
        (taken - logarithm).exp()
    }

    fn median(&self) -> Option<f32> {
        let is_heard = |scale: &&GroupScale| scale.heard_at + SILENCE_MAX > self.n_heard;
        let mut means: Vec<f32> = self.groups.values().filter(is_heard).map(|scale| scale.mean).collect();
        means.sort_by(f32::total_cmp);
        means.get(means.len().saturating_sub(1) / 2).copied().filter(|_| means.len() >= GROUPS_MIN)
    }

    fn count(&mut self, group: AddressGroup, logarithm: f32) {
        self.n_heard += 1;
        if !self.groups.contains_key(&group) && self.groups.len() >= GROUPS_MAX {
            let oldest = self.groups.iter().min_by_key(|(_, scale)| scale.heard_at);
            if let Some(oldest) = oldest.map(|(group, _)| *group) {
                self.groups.remove(&oldest);
            }
        }
        let heard_at = self.n_heard;
        let scale = self.groups.entry(group).or_insert(GroupScale { mean: logarithm, heard_at });
        scale.mean += NEWEST * (logarithm - scale.mean);
        scale.heard_at = heard_at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIAR: AddressGroup = AddressGroup(9);

    fn honest(scales: &mut GradientScales, n: u64, rms: f32) {
        for at in 0..n {
            // Honest ones differ by what a batch is.
            let jitter = [0.5, 1.0, 2.0][at as usize % 3];
            assert_eq!(
                scales.factor(AddressGroup(at % 4), rms * jitter).to_bits(),
                1.0_f32.to_bits(),
                "{at}"
            );
        }
    }

    #[test]
    fn honest_gradients_are_taken_as_they_are_while_they_shrink() {
        let mut scales = GradientScales::default();
        for step in 0..200 {
            honest(&mut scales, 4, 0.97_f32.powi(step));
        }
    }

    #[test]
    fn a_huge_gradient_counts_no_more_than_some_usual_ones_however_often_it_comes() {
        for (usual, huge) in [(0.01, 1e20), (1e-30, f32::MAX)] {
            let mut scales = GradientScales::default();
            honest(&mut scales, 100, usual);
            for _ in 0..1000 {
                let factor = f64::from(scales.factor(LIAR, huge));
                let taken = f64::from(huge) * factor;
                assert!(taken <= f64::from(usual) * 2.1 * f64::from(SCALE_MAX), "{taken}");
            }
            honest(&mut scales, 100, usual);
        }
    }

    #[test]
    fn tiny_gradients_of_some_do_not_stop_the_learning_of_the_others() {
        let mut scales = GradientScales::default();
        honest(&mut scales, 4, 0.01);
        for _ in 0..100 {
            scales.factor(LIAR, 1e-30);
            scales.factor(AddressGroup(8), 1e-30);
            honest(&mut scales, 4, 0.01);
        }
    }

    #[test]
    fn one_or_two_addresses_are_not_limited_and_those_that_left_count_no_longer() {
        let mut scales = GradientScales::default();
        for _ in 0..50 {
            assert!(scales.factor(LIAR, 1e20) >= 1.0 && scales.factor(AddressGroup(1), 0.01) >= 1.0);
        }
        honest(&mut scales, 4, 0.01);
        assert!(scales.factor(LIAR, 1e20) < 1e-10);
        for _ in 0..2 * SILENCE_MAX {
            scales.factor(LIAR, 1.0);
        }
        assert!(scales.factor(LIAR, 1e20) >= 1.0, "it is alone");
    }

    #[test]
    fn any_number_of_addresses_takes_bounded_memory_and_zeros_say_nothing() {
        let mut scales = GradientScales::default();
        for group in 0..1000 {
            scales.factor(AddressGroup(group), 1.0);
        }
        assert_eq!(scales.groups.len(), GROUPS_MAX);
        assert!(scales.factor(LIAR, 0.0) >= 1.0 && scales.factor(LIAR, f32::NAN) >= 1.0);
        assert!(!scales.groups.contains_key(&LIAR));
    }
}
