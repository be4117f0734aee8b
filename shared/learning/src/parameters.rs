//! The flat parameter vector: its tensors, and their initial values. [`crate::layout`] has those of each model.

use crate::random::SplitMix64;

/// Most values that a forward pass keeps for all its samples: 64 Mi. It bounds the batch.
pub(crate) const ACTIVATIONS_MAX: usize = 64 * 1024 * 1024;
/// Most samples of one micro-batch, however small the model.
pub(crate) const BATCH_SAMPLES_MAX: usize = 16_384;
/// One tensor inside the flat vector.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterSegment {
    /// Such as `conv1.weight`.
    pub name: String,
    /// Shape of the tensor, row-major.
    pub shape: Vec<usize>,
    /// Position of its first value.
    pub offset: usize,
    /// Number of values.
    pub len: usize,
    /// Its initial values.
    pub initial: Initialization,
}

/// The initial values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initialization {
    /// Of a layer: uniform. Weights in `±gain * sqrt(3 / fan_in)` with gain `sqrt(2)` before a ReLU and 1 elsewhere
    /// (Kaiming uniform, He et al. 2015), biases in `±1 / sqrt(fan_in)`. Biases are not zero because the
    /// layer-wise optimizers scale a step by the norm of what it changes.
    Layer {
        /// Inputs that each unit of the layer sums over.
        fan_in: usize,
        /// Whether a ReLU follows the layer.
        before_relu: bool,
    },
    /// Uniform in `±bound`.
    Uniform {
        /// Largest.
        bound: f32,
    },
    /// All the same.
    Constant(f32),
}

impl ParameterSegment {
    /// Whether this is a layer's bias: one dimension.
    pub fn is_bias(&self) -> bool {
        self.shape.len() == 1
    }

    /// Where its values are in the flat vector.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// All tensors of a model in the order of the flat vector.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterLayout {
    pub(crate) segments: Vec<ParameterSegment>,
    pub(crate) n_parameters: usize,
    /// Values that a forward pass keeps for each sample.
    pub(crate) n_activations: usize,
}

impl ParameterLayout {
    /// The tensors, in order.
    pub fn segments(&self) -> &[ParameterSegment] {
        &self.segments
    }

    /// Length of the flat vector.
    pub fn n_parameters(&self) -> usize {
        self.n_parameters
    }

    /// Most samples that one forward pass agrees to take.
    pub fn batch_samples_max(&self) -> usize {
        (ACTIVATIONS_MAX / self.n_activations).clamp(1, BATCH_SAMPLES_MAX)
    }

    /// The initial parameters, bit for bit the same on every platform for the same seed.
    ///
    /// The generator works on integers, and the only floating-point operations are conversions,
    /// products, quotients and roots, which IEEE 754 rounds the same everywhere.
    pub fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        let mut random = SplitMix64 { state: seed };
        let mut flat = Vec::with_capacity(self.n_parameters);
        for segment in &self.segments {
            let bound = match segment.initial {
                Initialization::Constant(value) => {
                    flat.extend(std::iter::repeat_n(value, segment.len));
                    continue;
                }
                Initialization::Uniform { bound } => bound,
                Initialization::Layer { fan_in, before_relu } => {
                    let numerator = match (segment.is_bias(), before_relu) {
                        (true, _) => 1.0,
                        (false, true) => 6.0,
                        (false, false) => 3.0,
                    };
                    (numerator / fan_in as f32).sqrt()
                }
            };
            flat.extend((0..segment.len).map(|_| random.next_signed_unit() * bound));
        }
        flat
    }
}
