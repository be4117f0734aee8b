//! Random changes of pictures that are trained on: crops of a padded picture and mirroring (He et al. 2016, §4.2), light,
//! and cutout (DeVries and Taylor 2017, §3.2).
//!
//! The changes of a picture follow from the picture, the run's seed and the number of the draw alone, and all
//! operations are rounded the same everywhere: every peer that computes a picture in an epoch computes the same gradient.
//! Pure host code.

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::Augmentation;

use crate::data_shape::DataShape;
use crate::random::{SplitMix64, state_of};

/// Most that brightness changes, as a share of white; contrast, as a share of 1.
const LIGHT_MAX: f32 = 0.9;
/// White.
const PIXEL_MAX: f32 = 255.0;
/// Keeps these numbers apart from those of other choices that are made for the same picture.
const SEED_OF_AUGMENTATION: u64 = 0x6175_676d_656e_7465;

/// Why pictures cannot be changed so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AugmentationError {
    /// The samples are no pictures.
    #[error("nothing where samples are no pictures: text, tables and ratings are trained on as they are")]
    NoPictures,
    /// The model changes them itself.
    #[error("nothing with a SwAV model, which crops pictures itself")]
    Crops,
    /// More than the picture has.
    #[error("{key} of at most {max} pixels, half of the shorter side of a picture, not {got}")]
    Pixels {
        /// `crop_padding` or `cutout`.
        key: &'static str,
        /// Half of the shorter side.
        max: u16,
        /// In the description.
        got: u16,
    },
    /// Nothing would be left of the picture.
    #[error("{key} of 0 to {LIGHT_MAX}, not {got}")]
    Light {
        /// `brightness` or `contrast`.
        key: &'static str,
        /// In the description.
        got: f32,
    },
}

/// Checks that pictures of a run can be changed so.
///
/// - `is_of_crops`: the model crops pictures itself
///
/// # Errors
/// The first value that is wrong.
pub fn check(
    augmentation: &Augmentation,
    data: DataShape,
    is_of_crops: bool,
) -> Result<(), AugmentationError> {
    let DataShape::Images { shape, .. } = data else { return Err(AugmentationError::NoPictures) };
    if is_of_crops {
        return Err(AugmentationError::Crops);
    }
    let max = shape.height.min(shape.width) / 2;
    let Augmentation { crop_padding, flip: _, brightness, contrast, cutout } = *augmentation;
    for (key, got) in [("crop_padding", crop_padding), ("cutout", cutout)] {
        if got > max {
            return Err(AugmentationError::Pixels { key, max, got });
        }
    }
    for (key, got) in [("brightness", brightness), ("contrast", contrast)] {
        if !(0.0..=LIGHT_MAX).contains(&got) {
            return Err(AugmentationError::Light { key, got });
        }
    }
    Ok(())
}

/// `images`, changed.
///
/// # Shapes
/// - `images`: `[n_samples, height, width, channels]`
/// - returns the same
pub(crate) fn augmented(
    images: &[u8],
    shape: ImageShape,
    augmentation: &Augmentation,
    seed: u64,
    draw: u64,
) -> Vec<u8> {
    let mut changed = Vec::with_capacity(images.len());
    for image in images.chunks_exact(shape.n_values().max(1)) {
        let state = state_of(image.iter().copied(), seed ^ SEED_OF_AUGMENTATION, draw);
        PictureChange::draw(&mut SplitMix64 { state }, augmentation, shape).render(
            image,
            shape,
            &mut changed,
        );
    }
    changed
}

/// What happens to one picture.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PictureChange {
    /// Pixels that it is moved by: down, and to the right.
    moved: [isize; 2],
    is_mirrored: bool,
    contrast: f32,
    /// In steps of a pixel's value.
    brightness: f32,
    /// Rows and columns of the black square.
    cut: [Range; 2],
}

/// The first place, and the first one behind it.
type Range = [isize; 2];

impl PictureChange {
    fn draw(random: &mut SplitMix64, augmentation: &Augmentation, shape: ImageShape) -> Self {
        let Augmentation { crop_padding, flip, brightness, contrast, cutout } = *augmentation;
        let sides = [shape.height, shape.width].map(usize::from);
        let (padding, cutout) = (usize::from(crop_padding), usize::from(cutout) as isize);
        let moved = sides.map(|_| random.below(2 * padding + 1) as isize - padding as isize);
        let is_mirrored = random.below(2) == 1 && flip;
        let contrast = 1.0 + contrast * random.next_signed_unit();
        let brightness = brightness * random.next_signed_unit() * PIXEL_MAX;
        let cut = sides.map(|side| {
            let first = random.below(side) as isize - cutout / 2;
            [first, first + cutout]
        });
        Self { moved, is_mirrored, contrast, brightness, cut }
    }

    /// Appends the picture, `[height, width, channels]`.
    fn render(self, image: &[u8], shape: ImageShape, changed: &mut Vec<u8>) {
        let [height, width, channels] = [shape.height, shape.width, shape.channels].map(usize::from);
        let light: [u8; 256] = std::array::from_fn(|pixel| {
            let value = pixel as f32 * self.contrast + self.brightness;
            (value.clamp(0.0, PIXEL_MAX) + 0.5) as u8
        });
        let is_within = |place: usize, [first, end]: Range| (first..end).contains(&(place as isize));
        let [down, right] = self.moved;
        for row in 0..height {
            let source_row = usize::try_from(row as isize - down).ok().filter(|row| *row < height);
            for column in 0..width {
                let is_cut = is_within(row, self.cut[0]) && is_within(column, self.cut[1]);
                let seen = if self.is_mirrored { width - 1 - column } else { column };
                let source = usize::try_from(seen as isize - right).ok().filter(|column| *column < width);
                let pixel = source_row.zip(source).filter(|_| !is_cut).and_then(|(row, column)| {
                    let at = (row * width + column) * channels;
                    image.get(at..at + channels)
                });
                match pixel {
                    Some(pixel) => changed.extend(pixel.iter().map(|&value| light[usize::from(value)])),
                    None => changed.extend(std::iter::repeat_n(0, channels)),
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "augmentation_tests.rs"]
mod tests;
