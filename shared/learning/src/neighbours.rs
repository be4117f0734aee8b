//! Classifies pictures by their nearest labelled neighbours in feature space (weighted k-NN, Wu et al. 2018, §3.4), to
//! evaluate a model that trains without labels. Pure host code.

/// Neighbours that vote.
pub(crate) const NEIGHBOURS: usize = 20;
/// A vote counts `exp(cosine / temperature)` (Wu et al. 2018).
const TEMPERATURE: f32 = 0.07;
/// Shorter features have no direction.
const NORM_MIN: f32 = 1e-12;

/// Labelled features to compare with.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbours {
    n_features: usize,
    n_classes: usize,
    /// `[n_labels, n_features]`, each of length 1.
    features: Vec<f32>,
    labels: Vec<u8>,
}

impl Neighbours {
    /// Of `features` `[labels.len(), n_features]`.
    pub fn new(mut features: Vec<f32>, labels: &[u8], n_classes: usize) -> Self {
        let n_features = (features.len() / labels.len().max(1)).max(1);
        features.chunks_exact_mut(n_features).for_each(to_unit);
        Self { n_features, n_classes, features, labels: labels.to_vec() }
    }

    /// Rows of `features`, `[labels.len(), n_features]`, whose predicted class is their label.
    pub fn n_correct(&self, mut features: Vec<f32>, labels: &[u8]) -> usize {
        let rows = features.chunks_exact_mut(self.n_features).zip(labels);
        rows.filter_map(|(row, &label)| {
            to_unit(row);
            (self.class(row) == Some(usize::from(label))).then_some(())
        })
        .count()
    }

    /// The class with most votes; of equal ones the first. `None` without neighbours.
    fn class(&self, row: &[f32]) -> Option<usize> {
        let mut nearest: Vec<(f32, u8)> = Vec::with_capacity(NEIGHBOURS + 1);
        for (other, &label) in self.features.chunks_exact(self.n_features).zip(&self.labels) {
            let cosine: f32 = row.iter().zip(other).map(|(a, b)| a * b).sum();
            if nearest.len() == NEIGHBOURS && nearest.last().is_some_and(|last| cosine <= last.0) {
                continue;
            }
            let place = nearest.partition_point(|(before, _)| *before >= cosine);
            nearest.insert(place, (cosine, label));
            nearest.truncate(NEIGHBOURS);
        }
        let mut votes = vec![0.0; self.n_classes];
        for (cosine, label) in nearest {
            if let Some(sum) = votes.get_mut(usize::from(label)) {
                *sum += (cosine / TEMPERATURE).exp();
            }
        }
        let most = votes.iter().copied().fold(0.0_f32, f32::max);
        votes.iter().position(|&sum| sum > 0.0 && sum == most)
    }
}

fn to_unit(row: &mut [f32]) {
    let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt().max(NORM_MIN);
    row.iter_mut().for_each(|value| *value /= norm);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_vote_by_direction_and_not_by_length() {
        let neighbours = Neighbours::new(vec![10.0, 0.0, 0.1, 0.0, 0.0, 5.0, 1.0, 1.0], &[0, 0, 1, 2], 3);
        assert_eq!(neighbours.class(&[1.0, 0.0]), Some(0));
        assert_eq!(neighbours.n_correct(vec![3.0, 0.1, 0.0, 0.2, 2.0, 2.0], &[0, 1, 2]), 3);
        assert_eq!(neighbours.n_correct(vec![3.0, 0.1, 0.0, 0.2, 2.0, 2.0], &[1, 1, 1]), 1);
        assert_eq!(Neighbours::new(Vec::new(), &[], 3).class(&[1.0, 0.0]), None);
    }

    #[test]
    fn only_so_many_vote() {
        // One on the spot against a crowd that is farther off: the crowd is cut at NEIGHBOURS - 1 of its votes.
        let (near, far) = ([1.0_f32, 0.0], [0.8_f32, 0.6]);
        let n_far = 5 * NEIGHBOURS;
        let features = near.into_iter().chain((0..n_far).flat_map(|_| far)).collect();
        let labels: Vec<u8> = std::iter::once(0).chain(std::iter::repeat_n(1, n_far)).collect();
        // exp(1 / 0.07) is 17.4 times exp(0.8 / 0.07), less than 19 votes.
        assert_eq!(Neighbours::new(features, &labels, 2).class(&near), Some(1));
        let nearer: Vec<f32> = near.into_iter().chain(near).chain((0..n_far).flat_map(|_| far)).collect();
        let labels: Vec<u8> = [0, 0].into_iter().chain(std::iter::repeat_n(1, n_far)).collect();
        assert_eq!(Neighbours::new(nearer, &labels, 2).class(&near), Some(0));
    }
}
