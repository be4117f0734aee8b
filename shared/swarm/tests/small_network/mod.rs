//! A small network on synthetic data, in plain loops: enough to measure the effect of a codec on training.

use barnraise_swarm::random::SplitMix64;

pub(crate) const N_INPUTS: usize = 40;
pub(crate) const N_HIDDEN: usize = 80;
pub(crate) const N_CLASSES: usize = 10;
/// Weights and biases of both layers.
pub(crate) const N_PARAMETERS: usize = N_INPUTS * N_HIDDEN + N_HIDDEN + N_HIDDEN * N_CLASSES + N_CLASSES;

/// Samples of classes that overlap.
pub(crate) struct Data {
    pub inputs: Vec<[f32; N_INPUTS]>,
    pub labels: Vec<usize>,
}

/// Approximately normal with variance 1: the sum of twelve uniform numbers.
fn normal(random: &mut SplitMix64) -> f32 {
    (0..12).map(|_| random.next_u64() as f32 / u64::MAX as f32).sum::<f32>() - 6.0
}

impl Data {
    /// Each class has two centres, so that no plane separates them.
    pub(crate) fn new(n_samples: usize, random: &mut SplitMix64) -> Self {
        let mut positions = SplitMix64::new(99);
        let centres: Vec<[f32; N_INPUTS]> =
            (0..2 * N_CLASSES).map(|_| std::array::from_fn(|_| normal(&mut positions))).collect();
        let mut data = Self { inputs: Vec::new(), labels: Vec::new() };
        for _ in 0..n_samples {
            let centre = random.below(centres.len());
            data.inputs.push(std::array::from_fn(|at| 0.55 * centres[centre][at] + normal(random)));
            data.labels.push(centre % N_CLASSES);
        }
        data
    }
}

/// `[N_PARAMETERS]`, small and random.
pub(crate) fn initial_parameters(seed: u64) -> Vec<f32> {
    let mut random = SplitMix64::new(seed);
    let first = (2.0 / N_INPUTS as f32).sqrt();
    let second = (1.0 / N_HIDDEN as f32).sqrt();
    let mut parameters: Vec<f32> = (0..N_INPUTS * N_HIDDEN).map(|_| first * normal(&mut random)).collect();
    parameters.resize(N_INPUTS * N_HIDDEN + N_HIDDEN, 0.0);
    parameters.extend((0..N_HIDDEN * N_CLASSES).map(|_| second * normal(&mut random)));
    parameters.resize(N_PARAMETERS, 0.0);
    parameters
}

/// Hidden values after ReLU, and the logarithms of the probabilities.
fn forward(parameters: &[f32], input: &[f32; N_INPUTS]) -> ([f32; N_HIDDEN], [f32; N_CLASSES]) {
    let (weights, rest) = parameters.split_at(N_INPUTS * N_HIDDEN);
    let (biases, rest) = rest.split_at(N_HIDDEN);
    let (weights_2, biases_2) = rest.split_at(N_HIDDEN * N_CLASSES);
    let mut hidden: [f32; N_HIDDEN] = biases.try_into().unwrap();
    for (value, row) in input.iter().zip(weights.chunks(N_HIDDEN)) {
        hidden.iter_mut().zip(row).for_each(|(hidden, weight)| *hidden += value * weight);
    }
    hidden.iter_mut().for_each(|hidden| *hidden = hidden.max(0.0));
    let mut logits: [f32; N_CLASSES] = biases_2.try_into().unwrap();
    for (value, row) in hidden.iter().zip(weights_2.chunks(N_CLASSES)) {
        logits.iter_mut().zip(row).for_each(|(logit, weight)| *logit += value * weight);
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total = logits.iter().map(|logit| (logit - max).exp()).sum::<f32>().ln() + max;
    (hidden, logits.map(|logit| logit - total))
}

/// Mean gradient of the cross-entropy, `[N_PARAMETERS]`.
pub(crate) fn gradient(parameters: &[f32], data: &Data, samples: &[usize]) -> Vec<f32> {
    let mut sum = vec![0.0; N_PARAMETERS];
    let weights_2 = &parameters[N_INPUTS * N_HIDDEN + N_HIDDEN..];
    for &sample in samples {
        let input = &data.inputs[sample];
        let (hidden, log_probabilities) = forward(parameters, input);
        let mut slope_2 = log_probabilities.map(f32::exp);
        slope_2[data.labels[sample]] -= 1.0;
        let (of_weights, rest) = sum.split_at_mut(N_INPUTS * N_HIDDEN);
        let (of_biases, rest) = rest.split_at_mut(N_HIDDEN);
        let (of_weights_2, of_biases_2) = rest.split_at_mut(N_HIDDEN * N_CLASSES);
        let mut slope = [0.0; N_HIDDEN];
        for (at, (row, weights)) in
            of_weights_2.chunks_mut(N_CLASSES).zip(weights_2.chunks(N_CLASSES)).take(N_HIDDEN).enumerate()
        {
            row.iter_mut().zip(slope_2).for_each(|(sum, slope)| *sum += hidden[at] * slope);
            let back: f32 = weights.iter().zip(slope_2).map(|(weight, slope)| weight * slope).sum();
            slope[at] = if hidden[at] > 0.0 { back } else { 0.0 };
        }
        of_biases_2.iter_mut().zip(slope_2).for_each(|(sum, slope)| *sum += slope);
        for (value, row) in input.iter().zip(of_weights.chunks_mut(N_HIDDEN)) {
            row.iter_mut().zip(slope).for_each(|(sum, slope)| *sum += value * slope);
        }
        of_biases.iter_mut().zip(slope).for_each(|(sum, slope)| *sum += slope);
    }
    sum.iter_mut().for_each(|value| *value /= samples.len() as f32);
    sum
}

/// Mean cross-entropy, and the accuracy.
pub(crate) fn evaluate(parameters: &[f32], data: &Data) -> (f64, f64) {
    let (mut loss, mut n_right) = (0.0, 0);
    for (input, &label) in data.inputs.iter().zip(&data.labels) {
        let (_, log_probabilities) = forward(parameters, input);
        loss -= f64::from(log_probabilities[label]);
        n_right += usize::from(log_probabilities.iter().all(|other| *other <= log_probabilities[label]));
    }
    let n = data.labels.len() as f64;
    (loss / n, n_right as f64 / n)
}
