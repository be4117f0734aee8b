//! The mean over samples in which no address has more weight than all others together.
//!
//! At most one address has more than half of the samples. Its weight is reduced to that of all others together; the
//! others' weights stay. A single address has all of the weight.

use std::collections::BTreeMap;

use super::Aggregate;
use crate::AddressGroup;

/// The contributions of an epoch by address.
#[derive(Debug, Clone)]
pub(super) struct AddressSums {
    n_max: usize,
    sums: Vec<AddressSum>,
    sum_of: BTreeMap<AddressGroup, usize>,
}

#[derive(Debug, Clone)]
struct AddressSum {
    /// Sum over samples, `[n_parameters]`.
    values: Vec<f32>,
    n_samples: u64,
    loss: f64,
}

impl AddressSums {
    pub(super) fn new(places: u32) -> Self {
        // With one sum no address could be told from the others.
        Self { n_max: places.max(2) as usize, sums: Vec::new(), sum_of: BTreeMap::new() }
    }

    pub(super) fn clear(&mut self) {
        self.sums.clear();
        self.sum_of.clear();
    }

    pub(super) fn add(&mut self, group: AddressGroup, n_samples: u32, loss: f32, values: &[f32]) {
        let at = match self.sum_of.get(&group) {
            Some(&at) => at,
            None => self.place(group, values.len()),
        };
        let Some(sum) = self.sums.get_mut(at) else { return };
        let weight = n_samples as f32;
        sum.values.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
        sum.n_samples += u64::from(n_samples);
        sum.loss += f64::from(loss) * f64::from(n_samples);
    }

    /// Assigns a sum to an address that has none yet: the one with the fewest samples, where no other is left.
    fn place(&mut self, group: AddressGroup, n_parameters: usize) -> usize {
        let at = if self.sums.len() < self.n_max {
            self.sums.push(AddressSum { values: vec![0.0; n_parameters], n_samples: 0, loss: 0.0 });
            self.sums.len() - 1
        } else {
            (0..self.sums.len()).min_by_key(|&at| self.sums[at].n_samples).unwrap_or_default()
        };
        self.sum_of.insert(group, at);
        at
    }

    /// # Shapes
    /// - returns `[n_parameters]`, not finite where nothing was contributed
    pub(super) fn aggregate(&self, n_parameters: usize) -> Aggregate {
        let total: u64 = self.sums.iter().map(|sum| sum.n_samples).sum();
        let factor = |sum: &AddressSum| {
            let others = total - sum.n_samples;
            if others > 0 && sum.n_samples > others { others as f64 / sum.n_samples as f64 } else { 1.0 }
        };
        let factors: Vec<f64> = self.sums.iter().map(factor).collect();
        let weights = self.sums.iter().zip(&factors).map(|(sum, factor)| sum.n_samples as f64 * factor);
        let weight: f64 = weights.sum();
        let mut gradient = vec![0.0_f32; n_parameters];
        for (sum, &factor) in self.sums.iter().zip(&factors) {
            let factor = factor as f32;
            gradient.iter_mut().zip(&sum.values).for_each(|(all, value)| *all += factor * value);
        }
        gradient.iter_mut().for_each(|value| *value /= weight as f32);
        let loss: f64 = self.sums.iter().zip(&factors).map(|(sum, factor)| sum.loss * factor).sum();
        Aggregate { gradient, loss: (loss / weight) as f32, outcomes: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of(contributions: &[(u64, u32, f32)], places: u32) -> f32 {
        let mut addresses = AddressSums::new(places);
        for &(group, n_samples, value) in contributions {
            addresses.add(AddressGroup(group), n_samples, 1.0, &[value]);
        }
        let Aggregate { gradient, loss, .. } = addresses.aggregate(1);
        assert!((loss - 1.0).abs() < 1e-6, "{loss}");
        gradient[0]
    }

    #[test]
    fn an_address_that_is_alone_has_all_of_it() {
        assert_eq!(mean_of(&[(1, 300, 2.0), (1, 100, 6.0)], 8), 3.0);
    }

    #[test]
    fn no_address_moves_a_step_more_than_all_others_together() {
        // 8,192 samples against 128, under however many keys: a half.
        assert_eq!(mean_of(&[(9, 8000, -1.0), (1, 64, 1.0), (9, 192, -1.0), (2, 64, 1.0)], 8), 0.0);
        assert_eq!(mean_of(&[(1, 100, 1.0), (2, 100, 3.0), (3, 200, 4.0)], 8), 3.0, "as many are not more");
    }

    #[test]
    fn those_for_whom_there_is_no_place_share_one() {
        assert_eq!(mean_of(&[(1, 100, 1.0), (2, 50, 3.0), (3, 50, 5.0)], 2), 2.5);
        // Together they have no more weight than the one beside them.
        assert!((mean_of(&[(1, 100, 1.0), (2, 90, 3.0), (3, 90, 5.0)], 2) - 2.5).abs() < 1e-5);
        assert!(mean_of(&[(1, 100, 1.0), (2, 90, 3.0), (3, 90, 5.0)], 3) > 2.9);
    }

    #[test]
    fn an_epoch_begins_with_nothing() {
        let mut addresses = AddressSums::new(8);
        addresses.add(AddressGroup(1), 100, 9.0, &[9.0]);
        addresses.clear();
        addresses.add(AddressGroup(2), 10, 1.0, &[2.0]);
        let Aggregate { gradient, loss, .. } = addresses.aggregate(1);
        assert_eq!((gradient[0], loss), (2.0, 1.0));
    }
}
