//! The tensors of a SwAV model (Caron et al. 2020) in the order of the flat vector.
//!
//! A trunk of 3x3 convolutions, each followed by 2x2 maximum pooling and ReLU, and the mean over what is left of the
//! picture, so that crops of any size give as many features; a projection of two linear layers with batch normalization
//! between them; the prototypes. Both sides of a comparison are brought to length 1 where they are used, so the flat
//! vector is all that there is to keep.

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::ModelKind;

use super::Builder;
use crate::crops::{CropSizes, LARGE_CROPS};
use crate::error::ModelError;
use crate::parameters::{ACTIVATIONS_MAX, Initialization, ParameterLayout};

/// Most convolutions of the trunk.
const CONVOLUTIONS_MAX: u32 = 8;
/// Most feature maps of one, and most units of a layer behind them.
const WIDTH_MAX: u32 = 4096;
/// Most prototypes.
const PROTOTYPES_MAX: u32 = 16_384;
/// Most small crops of a picture.
const SMALL_CROPS_MAX: u32 = 16;
/// Most values in the queue of a contributor: a quarter of a GiB.
const QUEUE_VALUES_MAX: usize = ACTIVATIONS_MAX;
/// Height and width of each convolution.
const KERNEL: usize = 3;

/// Sizes of a SwAV model, in bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SwavSizes {
    /// How pictures are cropped.
    pub(crate) crops: CropSizes,
    /// Feature maps of each convolution.
    pub(crate) maps: Vec<usize>,
    /// Units between trunk and projection.
    pub(crate) hidden: usize,
    /// Values of a projection.
    pub(crate) projection: usize,
    /// Prototypes.
    pub(crate) prototypes: usize,
    /// Samples in the queue.
    pub(crate) queue_samples: usize,
    /// Passes before it is used.
    pub(crate) queue_after: u32,
    /// Epochs in which the prototypes stay.
    pub(crate) frozen_epochs: u32,
}

impl SwavSizes {
    /// Checks every size before anything is made of it.
    pub(crate) fn of(kind: &ModelKind, shape: ImageShape) -> Result<Self, ModelError> {
        let ModelKind::Swav {
            maps,
            hidden,
            projection,
            prototypes,
            small_crops,
            small_side,
            queue_samples,
            queue_after,
            frozen_epochs,
        } = kind
        else {
            return Err(ModelError::WrongData { got: "pictures without labels" });
        };
        if shape.n_values() == 0 {
            return Err(ModelError::EmptyImage);
        }
        let n_convolutions = u32::try_from(maps.len()).unwrap_or(u32::MAX);
        within("convolutions", n_convolutions, (1..=CONVOLUTIONS_MAX).contains(&n_convolutions), "1 to 8")?;
        let widths = maps.iter().map(|&maps| ("maps", maps));
        let widths = widths.chain([("hidden", *hidden), ("projection", *projection)]);
        for (name, got) in widths {
            within(name, got, (1..=WIDTH_MAX).contains(&got), "1 to 4,096")?;
        }
        let prototypes_fit = (2..=PROTOTYPES_MAX).contains(prototypes);
        within("prototypes", *prototypes, prototypes_fit, "2 to 16,384")?;
        within("small_crops", *small_crops, *small_crops <= SMALL_CROPS_MAX, "at most 16")?;
        let side_min = 1_u32 << maps.len();
        let side_max = u32::from(shape.height.min(shape.width));
        let side_fits = (side_min..=side_max).contains(small_side);
        let want = "at most the picture's height and width, and halved by each convolution still a pixel";
        within("small_side", *small_side, side_fits, want)?;
        // Of each sample its projections are kept, and each of them is compared with the prototypes.
        let of_sample = (LARGE_CROPS * *projection as usize).max(*prototypes as usize);
        let queue_values = (*queue_samples as usize).saturating_mul(of_sample);
        let want =
            "so small that the queue has at most 67,108,864 values, and as many comparisons with prototypes";
        within("queue_samples", *queue_samples, queue_values <= QUEUE_VALUES_MAX, want)?;
        Ok(Self {
            crops: CropSizes { shape, n_small: *small_crops as usize, small_side: *small_side as usize },
            maps: maps.iter().map(|&maps| maps as usize).collect(),
            hidden: *hidden as usize,
            projection: *projection as usize,
            prototypes: *prototypes as usize,
            queue_samples: *queue_samples as usize,
            queue_after: *queue_after,
            frozen_epochs: *frozen_epochs,
        })
    }

    /// The tensors.
    pub(crate) fn layout(&self) -> Result<ParameterLayout, ModelError> {
        let n_activations = self.n_activations();
        if n_activations > ACTIVATIONS_MAX {
            return Err(ModelError::Activations { max: ACTIVATIONS_MAX });
        }
        let mut builder = Builder::new(n_activations);
        let mut n_in = usize::from(self.crops.shape.channels);
        for (index, &maps) in self.maps.iter().enumerate() {
            let fan_in = n_in * KERNEL * KERNEL;
            let initial = Initialization::Layer { fan_in, before_relu: true };
            let name = format!("conv{}", index + 1);
            builder.segment(format!("{name}.weight"), vec![maps, n_in, KERNEL, KERNEL], initial)?;
            builder.segment(format!("{name}.bias"), vec![maps], initial)?;
            n_in = maps;
        }
        builder.linear("head.hidden", n_in, self.hidden)?;
        builder.norm("head.norm", self.hidden)?;
        builder.linear("head.output", self.hidden, self.projection)?;
        let initial = Initialization::Layer { fan_in: self.projection, before_relu: false };
        builder.segment("prototypes".into(), vec![self.prototypes, self.projection], initial)?;
        Ok(builder.layout)
    }

    /// Features of the trunk.
    pub(crate) fn n_features(&self) -> usize {
        self.maps.last().copied().unwrap_or_default()
    }

    /// Crops of a picture.
    pub(crate) fn n_crops(&self) -> usize {
        LARGE_CROPS + self.crops.n_small
    }

    /// Values that a forward pass keeps for one picture, roughly: what each operation gives.
    fn n_activations(&self) -> usize {
        let CropSizes { shape, n_small, small_side } = self.crops;
        let large = self.trunk_activations(shape.height.into(), shape.width.into());
        let small = self.trunk_activations(small_side, small_side);
        let head = (6 * self.hidden + 4 * self.projection + 6 * self.prototypes) * self.n_crops();
        large.saturating_mul(LARGE_CROPS).saturating_add(small.saturating_mul(n_small)).saturating_add(head)
    }

    fn trunk_activations(&self, mut height: usize, mut width: usize) -> usize {
        let mut n = height.saturating_mul(width).saturating_mul(self.crops.shape.channels.into());
        for &maps in &self.maps {
            // The convolution, and a quarter of it after pooling and after ReLU.
            let mapped = height.saturating_mul(width).saturating_mul(maps);
            n = n.saturating_add(mapped).saturating_add(mapped / 2);
            (height, width) = (height / 2, width / 2);
        }
        n
    }
}

fn within(name: &'static str, got: u32, good: bool, want: &'static str) -> Result<(), ModelError> {
    match good {
        true => Ok(()),
        false => Err(ModelError::Dimension { name, want, got }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use barnraise_protocol::dataset::TokenShape;
    use barnraise_protocol::run::ModelSpec;

    use super::*;
    use crate::data_shape::DataShape;

    const SHAPE: ImageShape = ImageShape { height: 28, width: 20, channels: 1 };

    fn swav(change: impl FnOnce(&mut SwavSizes)) -> ModelKind {
        let crops = CropSizes { shape: SHAPE, n_small: 2, small_side: 12 };
        let mut sizes = SwavSizes {
            crops,
            maps: vec![4, 8, 16],
            hidden: 24,
            projection: 6,
            prototypes: 10,
            queue_samples: 64,
            queue_after: 3,
            frozen_epochs: 1,
        };
        change(&mut sizes);
        ModelKind::Swav {
            maps: sizes.maps.iter().map(|&maps| maps as u32).collect(),
            hidden: sizes.hidden as u32,
            projection: sizes.projection as u32,
            prototypes: sizes.prototypes as u32,
            small_crops: sizes.crops.n_small as u32,
            small_side: sizes.crops.small_side as u32,
            queue_samples: sizes.queue_samples as u32,
            queue_after: sizes.queue_after,
            frozen_epochs: sizes.frozen_epochs,
        }
    }

    fn layout(kind: ModelKind, data: DataShape) -> Result<ParameterLayout, ModelError> {
        ParameterLayout::of(&ModelSpec { kind, seed: 1 }, data)
    }

    fn images() -> DataShape {
        DataShape::Images { shape: SHAPE, n_classes: 10 }
    }

    #[test]
    fn the_vector_holds_trunk_head_and_prototypes() {
        let layout = layout(swav(|_| {}), images()).unwrap();
        let trunk = (9 * 4 + 4) + (9 * 4 * 8 + 8) + (9 * 8 * 16 + 16);
        let head = (16 * 24 + 24) + 2 * 24 + (24 * 6 + 6);
        assert_eq!(layout.n_parameters(), trunk + head + 10 * 6);
        let last = layout.segments().last().unwrap();
        assert_eq!((last.name.as_str(), last.shape.as_slice()), ("prototypes", &[10, 6][..]));
        let flat = layout.initial_parameters(3);
        let norm = layout.segments().iter().find(|segment| segment.name == "head.norm.weight").unwrap();
        assert!(flat[norm.range()].iter().all(|value| *value == 1.0));
        assert!(layout.batch_samples_max() > 1000);
    }

    #[test]
    fn sizes_that_cannot_be_are_named() {
        let name = |kind| match layout(kind, images()) {
            Err(ModelError::Dimension { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(name(swav(|sizes| sizes.maps[1] = 0)), "maps");
        assert_eq!(name(swav(|sizes| sizes.hidden = 5000)), "hidden");
        assert_eq!(name(swav(|sizes| sizes.projection = 0)), "projection");
        assert_eq!(name(swav(|sizes| sizes.prototypes = 1)), "prototypes");
        assert_eq!(name(swav(|sizes| sizes.crops.n_small = 17)), "small_crops");
        assert_eq!(name(swav(|sizes| sizes.crops.small_side = 7)), "small_side");
        assert_eq!(name(swav(|sizes| sizes.crops.small_side = 21)), "small_side");
        assert_eq!(name(swav(|sizes| sizes.queue_samples = u32::MAX as usize)), "queue_samples");
        assert_eq!(name(swav(|sizes| sizes.maps = vec![1; 9])), "convolutions");
        assert_eq!(name(swav(|sizes| sizes.maps.clear())), "convolutions");
        let huge = ImageShape { height: u16::MAX, width: u16::MAX, channels: u16::MAX };
        let huge = layout(swav(|_| {}), DataShape::Images { shape: huge, n_classes: 10 });
        assert!(matches!(huge, Err(ModelError::Activations { .. })));
        let text = DataShape::Tokens(TokenShape { length: 8, vocabulary: 50 });
        assert_eq!(layout(swav(|_| {}), text), Err(ModelError::WrongData { got: "text" }));
    }
}
