//! What a model is compared with: one that has counted and averaged what it was trained on. Pure.

use barnraise_protocol::dataset::{RowTargets, Samples, TableRows};

/// What is right for some samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Answers {
    /// Classes, or all tokens.
    pub(super) labels: Vec<u32>,
    /// `[n_samples, n_values]`
    pub(super) values: Vec<f32>,
    pub(super) n_values: usize,
}

impl Answers {
    pub(super) fn of(samples: &Samples) -> Self {
        let of_labels = |labels: &[u8]| labels.iter().copied().map(u32::from).collect();
        let (labels, values, n_values) = match samples {
            Samples::Images(images) => (of_labels(&images.labels), Vec::new(), 0),
            Samples::Tokens(tokens) => (tokens.ids.clone(), Vec::new(), 0),
            Samples::Rows(TableRows { targets: RowTargets::Classes(labels), .. }) => {
                (of_labels(labels), Vec::new(), 0)
            }
            Samples::Rows(TableRows { targets: RowTargets::Values { n_values, values }, .. }) => {
                (Vec::new(), values.clone(), *n_values)
            }
            Samples::Ratings(ratings) => (Vec::new(), ratings.ratings.clone(), 1),
        };
        Self { labels, values, n_values }
    }
}

/// How often each class or token came. Each is counted once more, so that none is impossible.
pub(super) struct Frequencies {
    counts: Vec<u64>,
    n: u64,
}

impl Frequencies {
    /// Of `n_kinds` kinds.
    pub(super) fn of(labels: &[u32], n_kinds: usize) -> Self {
        let mut counts = vec![1; n_kinds];
        for &label in labels {
            if let Some(count) = counts.get_mut(label as usize) {
                *count += 1;
            }
        }
        let n = counts.iter().sum();
        Self { counts, n }
    }

    /// Mean cross-entropy of labels, natural logarithm.
    pub(super) fn loss(&self, labels: &[u32]) -> f64 {
        let of = |label: &u32| {
            let count = self.counts.get(*label as usize).copied().unwrap_or(1);
            (self.n as f64 / count as f64).ln()
        };
        labels.iter().map(of).sum::<f64>() / labels.len().max(1) as f64
    }

    /// Share of labels that are the commonest one; of equal ones the first.
    pub(super) fn accuracy(&self, labels: &[u32]) -> f64 {
        let most = self.counts.iter().copied().max().unwrap_or_default();
        let commonest = self.counts.iter().position(|&count| count == most);
        let n_right = labels.iter().filter(|&&label| Some(label as usize) == commonest).count();
        n_right as f64 / labels.len().max(1) as f64
    }
}

/// The mean of each value of a sample.
pub(super) struct Means(Vec<f64>);

impl Means {
    /// Of `values`, `[n_samples, n_values]`.
    pub(super) fn of(values: &[f32], n_values: usize) -> Self {
        let n_values = n_values.max(1);
        let n = (values.len() / n_values).max(1) as f64;
        let column = |column: usize| values.iter().skip(column).step_by(n_values);
        Self((0..n_values).map(|index| column(index).map(|&v| f64::from(v)).sum::<f64>() / n).collect())
    }

    /// Of always saying the means.
    pub(super) fn squared_error(&self, values: &[f32]) -> f64 {
        let errors = values.iter().zip(self.0.iter().cycle()).map(|(&v, mean)| (f64::from(v) - mean).powi(2));
        errors.sum::<f64>() / values.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_frequent_is_expected() {
        // Counted once more: 3, 2 and 1 of 6.
        let often = Frequencies::of(&[0, 0, 1], 3);
        assert_eq!(often.accuracy(&[0, 1, 2, 0]), 0.5);
        let want = (2.0_f64.ln() + 3.0_f64.ln() + 6.0_f64.ln()) / 3.0;
        assert!((often.loss(&[0, 1, 2]) - want).abs() < 1e-12);
    }

    #[test]
    fn the_mean_is_judged_by_others() {
        let means = Means::of(&[1.0, 10.0, 3.0, 30.0], 2);
        assert_eq!(means.0, [2.0, 20.0]);
        assert_eq!(means.squared_error(&[4.0, 20.0]), 2.0);
        assert_eq!(Means::of(&[], 1).squared_error(&[]), 0.0);
    }
}
