//! The layout of each model: which value of the flat parameter vector belongs to which layer.
//!
//! The order is fixed: layer by layer from input to output, weight before bias, each row-major.
//! A convolution's weight is `[out, in, kernel height, kernel width]`, a linear layer's
//! `[in, out]`. Gradients have the same order. This file never touches a tensor library, so the
//! order cannot depend on a backend.

mod albert;
mod swav;

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::{ModelKind, ModelSpec, RunDescription};

pub(crate) use self::albert::AlbertSizes;
pub(crate) use self::swav::SwavSizes;
use crate::data_shape::DataShape;
use crate::error::ModelError;
use crate::parameters::{Initialization, ParameterLayout, ParameterSegment};

/// Most values a model may have: 64 Mi, a quarter of a GiB in single precision. A specification
/// comes from a peer, so it is bounded before anything is allocated.
pub const PARAMETERS_MAX: usize = 64 * 1024 * 1024;
/// Most hidden layers of an MLP.
pub const HIDDEN_LAYERS_MAX: usize = 32;
/// Most classes: a label is one byte.
pub const CLASSES_MAX: usize = 256;
/// Smallest height and width that leave LeNet one pixel after its two convolutions and poolings.
pub const LENET_PIXELS_MIN: usize = 12;

/// Kernel height and width of LeNet's convolutions.
pub(crate) const LENET_KERNEL: usize = 5;
/// Zero padding of LeNet's first convolution, so that it keeps the image's size.
pub(crate) const LENET_PADDING: usize = 2;
/// Feature maps of LeNet's two convolutions (LeCun et al. 1998).
const LENET_MAPS: [usize; 2] = [6, 16];
/// Units of LeNet's two hidden linear layers (LeCun et al. 1998).
const LENET_HIDDEN: [usize; 2] = [120, 84];

impl ParameterLayout {
    /// The layout of a run's model on its data. Its length is that of the flat parameter vector and of each gradient,
    /// which a description does not state.
    ///
    /// # Errors
    /// A model that is too large, too deep, or does not fit the data. Nothing of its size is allocated.
    pub fn of_run(run: &RunDescription) -> Result<Self, ModelError> {
        Self::of(&run.model, DataShape::of(&run.data.manifest.samples))
    }

    /// The layout of `spec` on samples of such sizes.
    ///
    /// # Errors
    /// A model that is too large, too deep, or does not fit the samples.
    pub fn of(spec: &ModelSpec, data: DataShape) -> Result<Self, ModelError> {
        let (shape, n_classes) = match (&spec.kind, data) {
            (ModelKind::Albert { .. }, DataShape::Tokens(tokens)) => {
                return AlbertSizes::of(&spec.kind, tokens)?.layout();
            }
            (ModelKind::Swav { .. }, DataShape::Images { shape, .. }) => {
                return SwavSizes::of(&spec.kind, shape)?.layout();
            }
            (ModelKind::LeNet | ModelKind::Mlp { .. }, DataShape::Images { shape, n_classes }) => {
                (shape, n_classes)
            }
            _ => return Err(ModelError::WrongData { got: data.name() }),
        };
        if n_classes == 0 || n_classes > CLASSES_MAX {
            return Err(ModelError::Classes { max: CLASSES_MAX, got: n_classes });
        }
        if shape.n_values() == 0 {
            return Err(ModelError::EmptyImage);
        }
        let mut builder = Builder::new(shape.n_values());
        match &spec.kind {
            ModelKind::LeNet => builder.lenet(shape, n_classes)?,
            ModelKind::Mlp { hidden } => builder.mlp(shape.n_values(), hidden, n_classes)?,
            ModelKind::Albert { .. } | ModelKind::Swav { .. } => {
                return Err(ModelError::WrongData { got: data.name() });
            }
        }
        Ok(builder.layout)
    }

    /// Checks that a flat vector has this layout's length.
    pub(crate) fn check_length(&self, got: usize) -> Result<(), ModelError> {
        match got == self.n_parameters {
            true => Ok(()),
            false => Err(ModelError::ParameterCount { want: self.n_parameters, got }),
        }
    }
}

struct Builder {
    layout: ParameterLayout,
}

impl Builder {
    fn new(n_activations: usize) -> Self {
        Self { layout: ParameterLayout { segments: Vec::new(), n_parameters: 0, n_activations } }
    }

    fn lenet(&mut self, shape: ImageShape, n_classes: usize) -> Result<(), ModelError> {
        let (height, width) = (usize::from(shape.height), usize::from(shape.width));
        if height < LENET_PIXELS_MIN || width < LENET_PIXELS_MIN {
            return Err(ModelError::ImageTooSmall { want: LENET_PIXELS_MIN, height, width });
        }
        let [maps1, maps2] = LENET_MAPS;
        let area = LENET_KERNEL * LENET_KERNEL;
        let channels = usize::from(shape.channels);
        self.layer("conv1", vec![maps1, channels, LENET_KERNEL, LENET_KERNEL], channels * area, maps1, true)?;
        self.layer("conv2", vec![maps2, maps1, LENET_KERNEL, LENET_KERNEL], maps1 * area, maps2, true)?;
        let n_features = maps2 * pooled(height) * pooled(width);
        let n_mapped = maps1 * height * width + maps2 * (height / 2) * (width / 2);
        self.layout.n_activations = self.layout.n_activations.saturating_add(n_mapped);
        let sizes = [n_features, LENET_HIDDEN[0], LENET_HIDDEN[1], n_classes];
        self.linear_layers(&sizes)
    }

    fn mlp(&mut self, n_inputs: usize, hidden: &[u32], n_classes: usize) -> Result<(), ModelError> {
        if hidden.len() > HIDDEN_LAYERS_MAX {
            return Err(ModelError::TooManyLayers { max: HIDDEN_LAYERS_MAX, got: hidden.len() });
        }
        if let Some(layer) = hidden.iter().position(|&units| units == 0) {
            return Err(ModelError::EmptyLayer { layer });
        }
        let mut sizes = vec![n_inputs];
        sizes.extend(hidden.iter().map(|&units| units as usize));
        sizes.push(n_classes);
        self.linear_layers(&sizes)
    }

    fn linear_layers(&mut self, sizes: &[usize]) -> Result<(), ModelError> {
        for (index, pair) in sizes.windows(2).enumerate() {
            let &[n_in, n_out] = pair else { continue };
            let before_relu = index + 2 < sizes.len();
            self.layer(&format!("fc{}", index + 1), vec![n_in, n_out], n_in, n_out, before_relu)?;
        }
        Ok(())
    }

    fn layer(
        &mut self,
        name: &str,
        weight: Vec<usize>,
        fan_in: usize,
        n_out: usize,
        before_relu: bool,
    ) -> Result<(), ModelError> {
        self.layout.n_activations = self.layout.n_activations.saturating_add(n_out);
        let initial = Initialization::Layer { fan_in, before_relu };
        self.segment(format!("{name}.weight"), weight, initial)?;
        self.segment(format!("{name}.bias"), vec![n_out], initial)
    }

    fn segment(
        &mut self,
        name: String,
        shape: Vec<usize>,
        initial: Initialization,
    ) -> Result<(), ModelError> {
        let offset = self.layout.n_parameters;
        let len = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
        let total = len.and_then(|len| offset.checked_add(len)).filter(|&total| total <= PARAMETERS_MAX);
        let (Some(len), Some(total)) = (len, total) else {
            return Err(ModelError::TooLarge { max: PARAMETERS_MAX });
        };
        self.layout.segments.push(ParameterSegment { name, shape, offset, len, initial });
        self.layout.n_parameters = total;
        Ok(())
    }
}

/// Pixels left of `size` after LeNet's padded convolution, pooling, convolution and pooling.
fn pooled(size: usize) -> usize {
    (size / 2 - (LENET_KERNEL - 1)) / 2
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use barnraise_protocol::hash::Sha256Hash;

    use super::*;
    use crate::random::SplitMix64;

    const FASHION: ImageShape = ImageShape { height: 28, width: 28, channels: 1 };

    fn layout(kind: ModelKind) -> Result<ParameterLayout, ModelError> {
        ParameterLayout::of(&ModelSpec { kind, seed: 0 }, DataShape::Images { shape: FASHION, n_classes: 10 })
    }

    #[test]
    fn lenet_has_the_sizes_of_the_paper() {
        let layout = layout(ModelKind::LeNet).unwrap();
        assert_eq!(layout.n_parameters(), 156 + 2416 + 48_120 + 10_164 + 850);
        let names: Vec<_> = layout.segments().iter().map(|segment| segment.name.as_str()).collect();
        assert_eq!(names[..4], ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]);
        assert_eq!(names[4..6], ["fc1.weight", "fc1.bias"]);
        assert_eq!(layout.segments()[4].shape, [400, 120]);
    }

    #[test]
    fn segments_cover_the_vector_without_gaps() {
        let layout = layout(ModelKind::Mlp { hidden: vec![32, 16] }).unwrap();
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
    fn hostile_specifications_are_refused() {
        let huge = layout(ModelKind::Mlp { hidden: vec![u32::MAX, u32::MAX] });
        assert_eq!(huge, Err(ModelError::TooLarge { max: PARAMETERS_MAX }));
        let deep = layout(ModelKind::Mlp { hidden: vec![1; HIDDEN_LAYERS_MAX + 1] });
        assert!(matches!(deep, Err(ModelError::TooManyLayers { got: 33, .. })));
        let empty = layout(ModelKind::Mlp { hidden: vec![4, 0] });
        assert_eq!(empty, Err(ModelError::EmptyLayer { layer: 1 }));
        let spec = ModelSpec { kind: ModelKind::LeNet, seed: 0 };
        let of = |shape, n_classes| ParameterLayout::of(&spec, DataShape::Images { shape, n_classes });
        let small = ImageShape { height: 11, width: 28, channels: 1 };
        assert!(matches!(of(small, 10), Err(ModelError::ImageTooSmall { .. })));
        let large = ImageShape { height: u16::MAX, width: u16::MAX, channels: u16::MAX };
        assert!(of(large, 10).is_err());
        assert!(matches!(of(FASHION, 257), Err(ModelError::Classes { .. })));
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
        let flat = layout(ModelKind::LeNet).unwrap().initial_parameters(7);
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
        let layout = layout(ModelKind::LeNet).unwrap();
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
