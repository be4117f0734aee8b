//! Gradients that were computed and did not count.

/// A mean over samples that no step has in it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Late {
    /// `[n_values]`
    pub(super) mean: Vec<f32>,
    /// Samples behind it, fewer where some were stale.
    pub(super) weight: f32,
    /// Of its parameters; of the newest where there are several.
    pub(super) epoch: u64,
}

impl Late {
    /// The mean of both, the older one with the weight `1 / (1 + epochs between them)` of its samples (FedAsync,
    /// Xie et al. 2019, section 5.2, polynomial with a = 1). It stays a mean: that some of its samples did not
    /// count before makes it no longer than others.
    pub(super) fn add(&mut self, other: &Self) {
        let age = |epoch: u64, newest: u64| 1.0 + newest.saturating_sub(epoch) as f32;
        let newest = self.epoch.max(other.epoch);
        let ours = self.weight / age(self.epoch, newest);
        let theirs = other.weight / age(other.epoch, newest);
        let share = theirs / (ours + theirs);
        for (mean, other) in self.mean.iter_mut().zip(&other.mean) {
            *mean += share * (other - *mean);
        }
        self.weight = ours + theirs;
        self.epoch = newest;
    }
}
