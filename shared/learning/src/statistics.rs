//! Sums of losses, and losses and probabilities from logits, on the host in double precision.
//!
//! A gradient needs no loss value, only `softmax - one_hot`: the fused kernels leave the loss to the host, which saves
//! a kernel in every step.

/// Sums over predictions: one for each picture, or for each token to be predicted in a text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Statistics {
    pub(crate) n_rows: usize,
    /// Sum of the predictions' losses; a cross-entropy has the natural logarithm.
    pub(crate) loss_sum: f64,
    /// Predictions that are correct.
    pub(crate) n_correct: usize,
}

impl Statistics {
    /// Of `[2, n_predictions]`: losses, and 1 where the top-1 prediction was correct, 0 elsewhere.
    pub(crate) fn of(values: &[f32]) -> Self {
        let (losses, right) = values.split_at(values.len() / 2);
        Self {
            n_rows: losses.len(),
            loss_sum: losses.iter().map(|&loss| f64::from(loss)).sum(),
            n_correct: right.iter().filter(|&&right| right > 0.5).count(),
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.n_rows += other.n_rows;
        self.loss_sum += other.loss_sum;
        self.n_correct += other.n_correct;
    }

    /// Mean loss; NaN without samples.
    pub(crate) fn mean_loss(&self) -> f32 {
        (self.loss_sum / self.n_rows as f64) as f32
    }
}

/// Losses `[2, labels.len()]` of logits `[labels.len(), n_classes]`: cross-entropies, and 1 where the largest logit is
/// that of the label, 0 elsewhere.
#[cfg(any(feature = "wgpu", test))]
pub(crate) fn losses(logits: &[f32], labels: &[u8]) -> Vec<f32> {
    let n_classes = logits.len() / labels.len().max(1);
    let mut losses = Vec::with_capacity(2 * labels.len());
    let mut right = Vec::with_capacity(labels.len());
    for (row, &label) in logits.chunks_exact(n_classes.max(1)).zip(labels) {
        let own = row.get(usize::from(label)).copied().unwrap_or(f32::NEG_INFINITY);
        losses.push((log_sum_exp(row) - f64::from(own)) as f32);
        right.push(if argmax(row) == usize::from(label) { 1.0 } else { 0.0 });
    }
    losses.extend(right);
    losses
}

/// Softmax of each row of `logits`, in place; each row then sums to 1.
pub(crate) fn softmax_rows(logits: &mut [f32], n_classes: usize) {
    for row in logits.chunks_exact_mut(n_classes.max(1)) {
        let normalizer = log_sum_exp(row);
        for value in row {
            *value = (f64::from(*value) - normalizer).exp() as f32;
        }
    }
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + row.iter().map(|&value| (f64::from(value) - largest).exp()).sum::<f64>().ln()
}

/// Index of the first largest value.
#[cfg(any(feature = "wgpu", test))]
fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_accuracy_have_known_values() {
        let logits = [0.0, 0.0, 1.0_f32.ln(), 3.0_f32.ln(), 1000.0, 0.0];
        let statistics = Statistics::of(&losses(&logits, &[0, 1, 1]));
        assert_eq!((statistics.n_rows, statistics.n_correct), (3, 2));
        let want = 2.0_f64.ln() + (4.0_f64 / 3.0).ln() + 1000.0;
        assert!((statistics.loss_sum - want).abs() < 1e-4);
        assert!((f64::from(statistics.mean_loss()) - want / 3.0).abs() < 1e-4);
    }

    #[test]
    fn losses_that_are_known_are_added_up() {
        let statistics = Statistics::of(&[0.5, 1.0, 3.0, 1.0, 0.0, 1.0]);
        assert_eq!(statistics, Statistics { n_rows: 3, loss_sum: 4.5, n_correct: 2 });
    }

    #[test]
    fn probabilities_sum_to_one_even_for_large_logits() {
        let mut logits = [1.0_f32.ln(), 3.0_f32.ln(), 5000.0, 5000.0];
        softmax_rows(&mut logits, 2);
        for (got, want) in logits.iter().zip([0.25, 0.75, 0.5, 0.5]) {
            assert!((got - want).abs() < 1e-6);
        }
    }
}
