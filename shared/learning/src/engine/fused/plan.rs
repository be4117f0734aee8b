//! Where every value of a model lies in the buffers of the fused kernels. Pure arithmetic.
//!
//! The kernels read and write four values at a time and check no bounds in their inner loops, so
//! rows are padded with zeros to [`ALIGN`] values and a batch to [`ROWS`] samples. Images and
//! feature maps have their channels last. The host translates between this order and the flat
//! vector's with one table for the weights and one for the gradient.

use barnraise_protocol::dataset::ImageShape;

use crate::parameters::{ParameterLayout, ParameterSegment};

/// Kernel height and width of LeNet's convolutions.
pub(super) const LENET_KERNEL: usize = 5;
/// Zero padding of LeNet's first convolution, so that it keeps the image's size.
const LENET_PADDING: usize = 2;
/// Values that every row is padded to a multiple of.
pub(super) const ALIGN: usize = 8;
/// Samples that a batch is padded to a multiple of.
pub(super) const ROWS: usize = 4;

/// A linear layer: `[n_in_padded, n_out_padded]` weights, then `[n_out_padded]` biases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinearPlan {
    pub(super) n_in_padded: usize,
    pub(super) n_out_padded: usize,
    /// First value, in the weights and in the gradient.
    pub(super) weight_offset: usize,
    pub(super) gradient_offset: usize,
}

/// A convolution with 2x2 maximum pooling and ReLU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConvolutionPlan {
    pub(super) height: usize,
    pub(super) width: usize,
    /// Real input channels.
    pub(super) channels: usize,
    /// Input channels in memory.
    pub(super) channels_padded: usize,
    /// Values of one sample of the input in memory.
    pub(super) input_stride: usize,
    /// Real output channels.
    pub(super) maps: usize,
    pub(super) maps_padded: usize,
    pub(super) padding: usize,
    /// Height and width after pooling.
    pub(super) pooled: [usize; 2],
    /// `[channels, kernel, kernel, maps_padded]` weights, then `[maps_padded]` biases.
    pub(super) weight_offset: usize,
    /// `[maps, kernel, kernel, channels_padded]`, the weights again for the way back.
    pub(super) backward_offset: usize,
    /// `[maps, channels, kernel, kernel]`, then `[maps]`.
    pub(super) gradient_offset: usize,
}

impl ConvolutionPlan {
    /// Values of the layer's gradient: weights and biases.
    pub(super) fn n_gradients(&self) -> usize {
        self.maps * (self.channels * LENET_KERNEL * LENET_KERNEL + 1)
    }

    /// Values of one sample after pooling.
    pub(super) fn output_stride(&self) -> usize {
        self.pooled[0] * self.pooled[1] * self.maps_padded
    }
}

/// Order of the inputs of the first linear layer.
#[derive(Debug, Clone, Copy)]
enum Features {
    /// As in the flat vector.
    Flat,
    /// Channels last here, first in the flat vector.
    Maps { pixels: usize, maps_padded: usize },
}

impl Features {
    fn row(self, flat_row: usize) -> usize {
        match self {
            Self::Flat => flat_row,
            Self::Maps { pixels, maps_padded } => flat_row % pixels * maps_padded + flat_row / pixels,
        }
    }
}

/// All layers, and the tables between the flat vector and the buffers.
#[derive(Debug, Clone)]
pub(super) struct FusedPlan {
    /// Values of one image.
    pub(super) n_pixels: usize,
    /// Values of one image in memory.
    pub(super) input_stride: usize,
    pub(super) convolutions: Vec<ConvolutionPlan>,
    pub(super) linears: Vec<LinearPlan>,
    pub(super) n_classes: usize,
    /// Length of the weights buffer.
    pub(super) n_weights: usize,
    /// Length of the gradient buffer.
    pub(super) n_gradients: usize,
    /// Position of each flat value in the weights buffer.
    weight_slots: Vec<u32>,
    /// Flat index and position of the weights that are there twice.
    backward_slots: Vec<(u32, u32)>,
    /// Position of each flat value in the gradient buffer.
    gradient_slots: Vec<u32>,
}

impl FusedPlan {
    /// The plan of a model; `None` for a layout that is neither an MLP nor LeNet.
    pub(super) fn of(layout: &ParameterLayout, shape: ImageShape, n_classes: usize) -> Option<Self> {
        let mut plan = Self {
            n_pixels: shape.n_values(),
            input_stride: shape.n_values().next_multiple_of(ALIGN),
            convolutions: Vec::new(),
            linears: Vec::new(),
            n_classes,
            n_weights: 0,
            n_gradients: 0,
            weight_slots: Vec::with_capacity(layout.n_parameters()),
            backward_slots: Vec::new(),
            gradient_slots: Vec::with_capacity(layout.n_parameters()),
        };
        let mut features = Features::Flat;
        for pair in layout.segments().chunks_exact(2) {
            let [weight, _] = pair else { return None };
            match *weight.shape.as_slice() {
                [maps, channels, LENET_KERNEL, LENET_KERNEL] => {
                    features = plan.convolution(weight, maps, channels, shape);
                }
                [n_in, n_out] => {
                    plan.linear(n_in, n_out, features);
                    features = Features::Flat;
                }
                _ => return None,
            }
        }
        (plan.weight_slots.len() == layout.n_parameters()).then_some(plan)
    }

    /// The flat parameters in the order of the weights buffer.
    pub(super) fn pack(&self, flat: &[f32]) -> Vec<f32> {
        let mut weights = vec![0.0; self.n_weights];
        for (value, &slot) in flat.iter().zip(&self.weight_slots) {
            weights[slot as usize] = *value;
        }
        for &(index, slot) in &self.backward_slots {
            weights[slot as usize] = flat[index as usize];
        }
        weights
    }

    /// The flat gradient out of the gradient buffer.
    pub(super) fn unpack(&self, gradients: &[f32]) -> Vec<f32> {
        self.gradient_slots.iter().map(|&slot| gradients[slot as usize]).collect()
    }

    /// Values of one sample before the first linear layer, and after each layer.
    pub(super) fn strides(&self) -> Vec<usize> {
        let convolved = self.convolutions.iter().map(ConvolutionPlan::output_stride);
        let linear = self.linears.iter().map(|layer| layer.n_out_padded);
        std::iter::once(self.input_stride).chain(convolved).chain(linear).collect()
    }

    fn convolution(
        &mut self,
        weight: &ParameterSegment,
        maps: usize,
        channels: usize,
        shape: ImageShape,
    ) -> Features {
        let previous = self.convolutions.last();
        let [height, width] =
            previous.map_or([usize::from(shape.height), usize::from(shape.width)], |layer| layer.pooled);
        let padding = if previous.is_none() { LENET_PADDING } else { 0 };
        let pooled = [height, width].map(|size| (size + 2 * padding - (LENET_KERNEL - 1)) / 2);
        let channels_padded = previous.map_or(channels, |layer| layer.maps_padded);
        let input_stride = previous.map_or(self.input_stride, ConvolutionPlan::output_stride);
        let maps_padded = maps.next_multiple_of(ALIGN);
        let area = LENET_KERNEL * LENET_KERNEL;
        let weight_offset = self.n_weights;
        let bias_offset = weight_offset + channels * area * maps_padded;
        let backward_offset = bias_offset + maps_padded;
        let gradient_offset = self.n_gradients;
        for index in 0..weight.len {
            let (tap, rest) = (index % area, index / area);
            let (channel, map) = (rest % channels, rest / channels);
            self.weight_slots.push((weight_offset + (channel * area + tap) * maps_padded + map) as u32);
            let slot = backward_offset + (map * area + tap) * channels_padded + channel;
            self.backward_slots.push(((weight.offset + index) as u32, slot as u32));
        }
        self.weight_slots.extend((0..maps).map(|map| (bias_offset + map) as u32));
        self.n_weights = backward_offset + maps * area * channels_padded.next_multiple_of(ALIGN);
        let layer = ConvolutionPlan {
            height,
            width,
            channels,
            channels_padded,
            input_stride,
            maps,
            maps_padded,
            padding,
            pooled,
            weight_offset,
            backward_offset,
            gradient_offset,
        };
        self.gradient_slots.extend((0..layer.n_gradients()).map(|index| (gradient_offset + index) as u32));
        self.n_gradients = (gradient_offset + layer.n_gradients()).next_multiple_of(ALIGN);
        self.convolutions.push(layer);
        Features::Maps { pixels: pooled[0] * pooled[1], maps_padded }
    }

    fn linear(&mut self, n_in: usize, n_out: usize, features: Features) {
        let stride = self.strides().last().copied().unwrap_or(0);
        let n_in_padded = stride;
        let n_out_padded = n_out.next_multiple_of(ALIGN);
        let (weight_offset, gradient_offset) = (self.n_weights, self.n_gradients);
        for row in (0..n_in).map(|row| features.row(row)).chain([n_in_padded]) {
            let slots = row * n_out_padded..row * n_out_padded + n_out;
            self.weight_slots.extend(slots.clone().map(|slot| (weight_offset + slot) as u32));
            self.gradient_slots.extend(slots.map(|slot| (gradient_offset + slot) as u32));
        }
        let len = (n_in_padded + 1) * n_out_padded;
        self.n_weights += len;
        self.n_gradients += len;
        self.linears.push(LinearPlan { n_in_padded, n_out_padded, weight_offset, gradient_offset });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::collections::HashSet;

    use barnraise_protocol::run::Preset;

    use super::*;
    use crate::data_shape::DataShape;

    fn plan(preset: &Preset, shape: ImageShape) -> (ParameterLayout, FusedPlan) {
        let layout =
            ParameterLayout::of(&preset.model(1), DataShape::Images { shape, n_classes: 10 }).unwrap();
        let plan = FusedPlan::of(&layout, shape, 10).unwrap();
        (layout, plan)
    }

    #[test]
    fn every_value_has_a_place_of_its_own() {
        let shape = ImageShape { height: 17, width: 14, channels: 3 };
        for preset in [Preset::LeNet, Preset::Mlp { hidden: vec![13, 5] }] {
            let (layout, plan) = plan(&preset, shape);
            for (slots, len) in
                [(&plan.weight_slots, plan.n_weights), (&plan.gradient_slots, plan.n_gradients)]
            {
                assert_eq!(slots.len(), layout.n_parameters());
                assert_eq!(slots.iter().collect::<HashSet<_>>().len(), slots.len());
                assert!(slots.iter().all(|&slot| (slot as usize) < len));
            }
            let offsets = plan.linears.iter().flat_map(|layer| [layer.weight_offset, layer.gradient_offset]);
            assert!(offsets.chain(plan.strides()).all(|offset| offset % ALIGN == 0));
            let mut doubled: HashSet<_> = plan.weight_slots.iter().copied().collect();
            assert!(plan.backward_slots.iter().all(|&(_, slot)| doubled.insert(slot)));
        }
    }

    #[test]
    fn lenet_is_laid_out_channels_last() {
        let shape = ImageShape { height: 28, width: 28, channels: 1 };
        let (layout, plan) = plan(&Preset::LeNet, shape);
        assert_eq!(plan.strides(), [784, 14 * 14 * 8, 5 * 5 * 16, 120, 88, 16]);
        let flat: Vec<f32> = (0..layout.n_parameters()).map(|index| index as f32).collect();
        let packed = plan.pack(&flat);
        let fc1 = &plan.linears[0];
        // Flat row 26 of fc1 is map 1, pixel 1: row 1 * 16 + 1 here.
        let row = 17 * fc1.n_out_padded;
        assert_eq!(packed[fc1.weight_offset + row], (layout.segments()[4].offset + 26 * 120) as f32);
        // Weight [map 2, channel 3, tap 4] of conv2, and once more for the way back.
        let conv2 = &plan.convolutions[1];
        let value = (layout.segments()[2].offset + (2 * 6 + 3) * 25 + 4) as f32;
        assert_eq!(packed[conv2.weight_offset + (3 * 25 + 4) * 16 + 2], value);
        assert_eq!(packed[conv2.backward_offset + (2 * 25 + 4) * 8 + 3], value);
    }
}
