//! In which order a peer of a measurement takes its samples.

use barnraise_learning::Batch;
use barnraise_protocol::dataset::LabelledImages;
use barnraise_swarm::random::SplitMix64;

/// All samples in random order, again and again.
pub(crate) struct SampleOrder {
    samples: Vec<usize>,
    at: usize,
    random: SplitMix64,
}

impl SampleOrder {
    pub(crate) fn new(n_samples: usize, seed: u64) -> Self {
        Self { samples: (0..n_samples).collect(), at: n_samples, random: SplitMix64::new(seed) }
    }

    /// The next `n` pictures and labels.
    pub(crate) fn batch(&mut self, of: &LabelledImages, n: usize) -> Batch {
        let n_values = of.images.len() / of.labels.len();
        let mut batch = Batch::default();
        while batch.labels.len() < n {
            if self.at >= self.samples.len() {
                for last in (1..self.samples.len()).rev() {
                    self.samples.swap(last, self.random.below(last + 1));
                }
                self.at = 0;
            }
            let sample = self.samples[self.at];
            self.at += 1;
            batch.images.extend(&of.images[sample * n_values..(sample + 1) * n_values]);
            batch.labels.push(of.labels[sample]);
        }
        batch
    }
}
