//! Momentum correction: momentum is applied before values are selected (Lin et al. 2018, section 3.2 and algorithm 1).

/// The velocity of one contributor, as a sum over samples, so that those of all contributors add up to the
/// velocity that an optimizer would have (`v = momentum v + g`).
#[derive(Debug, Default)]
pub(super) struct Momentum {
    /// `[n_values]`, or empty for zeros.
    values: Vec<f32>,
}

impl Momentum {
    /// Adds the velocity's updates of `n_epochs` steps without a new gradient to `residual`.
    ///
    /// For one step that is `momentum v`; a contributor that was away for several steps adds all of them.
    pub(super) fn pass(&mut self, momentum: f32, n_epochs: u64, residual: &mut [f32]) {
        let n_epochs = i32::try_from(n_epochs).unwrap_or(i32::MAX);
        let left = momentum.powi(n_epochs);
        // momentum + momentum² + …, `n_epochs` terms.
        let moved = momentum * (1.0 - left) / (1.0 - momentum);
        for (residual, value) in residual.iter_mut().zip(&mut self.values) {
            *residual += moved * *value;
            *value *= left;
        }
    }

    #[cfg(test)]
    pub(super) fn n_values(&self) -> usize {
        self.values.len()
    }

    /// Adds a gradient that counted.
    pub(super) fn add(&mut self, mean: &[f32], weight: f32) {
        self.values.resize(mean.len(), 0.0);
        for (value, mean) in self.values.iter_mut().zip(mean) {
            *value += weight * mean;
        }
    }

    /// Resets the velocity of values that were sent, so that older gradients do not drive them further (momentum factor
    /// masking, section 3.3).
    pub(super) fn mask(&mut self, sent: &[f32]) {
        for (value, sent) in self.values.iter_mut().zip(sent) {
            *value = if *sent == 0.0 { *value } else { 0.0 };
        }
    }
}
