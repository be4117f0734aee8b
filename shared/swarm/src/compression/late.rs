//! Stale gradients: computed, but too late to count in their epoch.

/// Mean gradient over samples that are in no step yet.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LateGradient {
    /// `[n_values]`
    pub(super) mean: Vec<f32>,
    /// Samples behind it; stale ones count less.
    pub(super) weight: f32,
    /// Epoch of its parameters; the newest where there are several.
    pub(super) epoch: u64,
}

impl LateGradient {
    /// Weighted mean of both. The older one's samples are weighted by staleness, `1 / (1 + epochs between them)`
    /// (FedAsync, Xie et al. 2019, section 5.2, polynomial with a = 1). It stays a mean, so late samples do not make it
    /// larger than other gradients.
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
