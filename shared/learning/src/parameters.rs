//! The flat parameter vector: its tensors, and their initial values. `graph` makes those of a model.
//!
//! The running statistics of batch normalizations are values of the vector as well, after the trained ones. In a mean
//! gradient they have what they move by, in units of `STATISTICS_UNIT`. So they travel, are averaged, stored and
//! recomputed as all else, and only the optimizer knows the difference.

use std::borrow::Cow;
use std::ops::Range;

use barnraise_protocol::state::EncodedState;

use crate::random::SplitMix64;

/// Most values that a forward pass keeps for all its samples: 64 Mi. It bounds the batch.
pub(crate) const BATCH_ACTIVATIONS_MAX: usize = 64 * 1024 * 1024;
/// Most samples of one micro-batch, however small the model.
pub(crate) const BATCH_SAMPLES_MAX: usize = 16_384;
/// What a value of 1 in a mean gradient moves a running statistic by.
///
/// Statistics change in training more than the rate of learning lets parameters change. In these units they are small
/// beside the gradient, so that its norm, by which contributions are compared, is not theirs.
pub(crate) const STATISTICS_UNIT: f32 = 1024.0;

/// Where parameters come from that a device is to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ParameterSource<'a> {
    /// The flat vector.
    Flat(&'a [f32]),
    /// As a backbone sent them: decoded a tensor after the other, so that they are in memory once.
    Encoded(&'a EncodedState),
}

impl<'a> ParameterSource<'a> {
    /// Length of the flat vector.
    pub(crate) fn n_values(self) -> usize {
        match self {
            Self::Flat(flat) => flat.len(),
            Self::Encoded(encoded) => encoded.n_values(),
        }
    }

    /// The values of a tensor.
    pub(crate) fn range(self, range: Range<usize>) -> Vec<f32> {
        match self {
            Self::Flat(flat) => flat[range].to_vec(),
            Self::Encoded(encoded) => encoded.range(range),
        }
    }

    /// All values.
    pub(crate) fn flat(self) -> Cow<'a, [f32]> {
        match self {
            Self::Flat(flat) => flat.into(),
            Self::Encoded(encoded) => encoded.values().into(),
        }
    }
}

impl<'a> From<&'a [f32]> for ParameterSource<'a> {
    fn from(flat: &'a [f32]) -> Self {
        Self::Flat(flat)
    }
}

impl<'a> From<&'a Vec<f32>> for ParameterSource<'a> {
    fn from(flat: &'a Vec<f32>) -> Self {
        Self::Flat(flat)
    }
}

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
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParameterLayout {
    pub(crate) segments: Vec<ParameterSegment>,
    pub(crate) n_trained_segments: usize,
    pub(crate) n_trained: usize,
    pub(crate) n_parameters: usize,
    /// Values that a forward pass keeps for each sample.
    pub(crate) n_activations: usize,
}

impl ParameterLayout {
    /// Tensors by name and shape, such as those of a file of another program. No optimizer trains them.
    pub fn of_tensors(tensors: impl IntoIterator<Item = (String, Vec<usize>)>) -> Self {
        let mut layout = Self { n_activations: 1, ..Self::default() };
        for (name, shape) in tensors {
            let (offset, len) = (layout.n_parameters, shape.iter().product());
            let initial = Initialization::Constant(0.0);
            layout.segments.push(ParameterSegment { name, shape, offset, len, initial });
            layout.n_parameters += len;
        }
        layout
    }

    /// The tensors, in order: the trained ones, then running statistics.
    pub fn segments(&self) -> &[ParameterSegment] {
        &self.segments
    }

    /// The tensors that an optimizer trains, in order.
    pub fn trained(&self) -> &[ParameterSegment] {
        &self.segments[..self.n_trained_segments]
    }

    /// Length of the flat vector.
    pub fn n_parameters(&self) -> usize {
        self.n_parameters
    }

    /// Values that an optimizer trains, the first of the flat vector.
    pub fn n_trained(&self) -> usize {
        self.n_trained
    }

    /// Values that a forward pass keeps for each sample.
    #[cfg(test)]
    pub(crate) fn n_activations(&self) -> usize {
        self.n_activations
    }

    /// Most samples that one forward pass agrees to take.
    pub fn batch_samples_max(&self) -> usize {
        (BATCH_ACTIVATIONS_MAX / self.n_activations).clamp(1, BATCH_SAMPLES_MAX)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use barnraise_protocol::dataset::ImageShape;
    use barnraise_protocol::hash::Sha256Hash;
    use barnraise_protocol::run::Preset;

    use super::*;
    use crate::data_shape::DataShape;

    const FASHION: DataShape =
        DataShape::Images { shape: ImageShape { height: 28, width: 28, channels: 1 }, n_classes: 10 };

    fn layout(preset: &Preset) -> ParameterLayout {
        ParameterLayout::of(&preset.model(0), FASHION).unwrap()
    }

    #[test]
    fn segments_cover_the_vector_without_gaps() {
        let layout = layout(&Preset::Mlp { hidden: vec![32, 16] });
        let mut next = 0;
        for segment in layout.segments() {
            assert_eq!(segment.offset, next);
            assert_eq!(segment.len, segment.shape.iter().product::<usize>());
            next = segment.range().end;
        }
        assert_eq!(next, layout.n_parameters());
        assert_eq!(next, 784 * 32 + 32 + 32 * 16 + 16 + 16 * 10 + 10);
    }

    #[test]
    fn splitmix64_gives_its_published_values() {
        // First outputs for the state 1234567, as the reference implementation prints them.
        let mut random = SplitMix64 { state: 1_234_567 };
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn initial_parameters_are_the_same_everywhere() {
        let flat = layout(&Preset::LeNet).initial_parameters(7);
        let bytes: Vec<u8> = flat.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(
            Sha256Hash::of(&bytes).to_string(),
            "5ddbf314a3f8f07c5ad28df00286b4b3bec73dd6023f5821d7eac5ddb594c7fc"
        );
        // The first three, computed independently from the generator's and the bound's definitions.
        let first = [flat[0], flat[1], flat[2]].map(f32::to_bits);
        assert_eq!(first, [0xbddd_11f5, 0xbef2_67e4, 0x3ec9_0b35]);
    }

    #[test]
    fn initial_parameters_stay_in_their_bounds_and_fill_them() {
        let layout = layout(&Preset::LeNet);
        let flat = layout.initial_parameters(3);
        let fc1 = &flat[layout.segments()[4].range()];
        let bound = (6.0_f32 / 400.0).sqrt();
        let largest = fc1.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        assert!(largest <= bound && largest > 0.999 * bound);
        let mean = fc1.iter().sum::<f32>() / fc1.len() as f32;
        assert!(mean.abs() < 0.02 * bound);
        assert_ne!(flat, layout.initial_parameters(4));
    }
}
