//! Logistic regression on points of two classes, with Adam like the default runs.

use barnraise_protocol::commitment::SampleId;
use barnraise_swarm::random::SplitMix64;

const N_FEATURES: usize = 10;
/// Values of the model: a weight for each feature, and a bias.
pub(super) const N: usize = N_FEATURES + 1;
const RATE: f32 = 0.002;
const N_HELD_OUT: u32 = 4000;
/// Percentage of mislabelled points, which bounds the accuracy.
const WRONG: usize = 12;

pub(super) struct Model {
    parameters: Vec<f32>,
    mean: Vec<f32>,
    square: Vec<f32>,
    n_steps: i32,
    /// The parameters of some steps ago, for stale gradients.
    old: Vec<f32>,
}

/// The features of a sample, and whether it is of the second class.
fn point(sample: SampleId) -> ([f32; N_FEATURES], bool) {
    let mut random = SplitMix64::new(u64::from(sample.shard) << 32 | u64::from(sample.index));
    let features = std::array::from_fn(|_| (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0);
    let side: f32 = features.iter().zip(1..).map(|(feature, at)| feature * (at as f32 - 5.5)).sum();
    let is_wrong = random.below(100) < WRONG;
    (features, (side + 1.0 > 0.0) != is_wrong)
}

fn output(parameters: &[f32], features: &[f32]) -> f32 {
    parameters.iter().zip(features).map(|(weight, feature)| weight * feature).sum::<f32>() + parameters[N - 1]
}

/// The mean gradient over samples.
pub(super) fn gradient(parameters: &[f32], samples: &[SampleId]) -> Vec<f32> {
    let mut sum = [0.0; N];
    for &sample in samples {
        let (features, class) = point(sample);
        let error = 1.0 / (1.0 + (-output(parameters, &features)).exp()) - f32::from(u8::from(class));
        sum.iter_mut().zip(features.iter().chain([&1.0])).for_each(|(sum, feature)| *sum += error * feature);
    }
    sum.iter().map(|sum| sum / samples.len() as f32).collect()
}

impl Model {
    pub(super) fn new() -> Self {
        let none = || vec![0.0; N];
        Self { parameters: none(), mean: none(), square: none(), n_steps: 0, old: none() }
    }

    pub(super) fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    pub(super) fn old(&self) -> &[f32] {
        &self.old
    }

    pub(super) fn step(&mut self, gradient: &[f32]) {
        if self.n_steps % 10 == 0 {
            self.old.clone_from(&self.parameters);
        }
        self.n_steps += 1;
        for (at, &value) in gradient.iter().enumerate() {
            self.mean[at] = 0.9 * self.mean[at] + 0.1 * value;
            self.square[at] = 0.999 * self.square[at] + 0.001 * value * value;
            let mean = self.mean[at] / (1.0 - 0.9f32.powi(self.n_steps));
            let square = self.square[at] / (1.0 - 0.999f32.powi(self.n_steps));
            self.parameters[at] -= RATE * mean / (square.sqrt() + 1e-8);
        }
    }

    /// Percent of samples that nobody trains on.
    pub(super) fn accuracy(&self) -> f64 {
        let is_right = |index: &u32| {
            let (features, class) = point(SampleId { shard: 9999, index: *index });
            (output(&self.parameters, &features) > 0.0) == class
        };
        100.0 * (0..N_HELD_OUT).filter(is_right).count() as f64 / f64::from(N_HELD_OUT)
    }
}
