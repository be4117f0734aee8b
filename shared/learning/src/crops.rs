//! Multi-crop augmentation for SwAV (Caron et al. 2020, §3.3 and appendix A.2): two large crops of each picture, and
//! small ones that cost less.
//!
//! Position, mirroring, contrast and brightness of a crop follow from the picture, the run's seed and the number of the
//! draw alone. Only operations that IEEE 754 rounds the same everywhere are used: every peer that computes a picture in
//! an epoch sees the same crops. Pure host code.

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::model::graph::LARGE_CROPS;
use serde::{Deserialize, Serialize};

use crate::batch::{PIXEL_MEAN, PIXEL_STD};
use crate::random::{SplitMix64, state_of};

/// Share of the picture that a large crop shows.
const LARGE_SHARE: [f32; 2] = [0.4, 1.0];
/// Share of the picture that a small crop shows.
const SMALL_SHARE: [f32; 2] = [0.1, 0.4];
/// Width of a crop by its height, relative to the picture's.
const ASPECT: [f32; 2] = [0.75, 4.0 / 3.0];
/// Factor of all pixels of a crop.
const CONTRAST: [f32; 2] = [0.6, 1.4];
/// Added to all pixels of a crop, as a share of the brightest.
const BRIGHTNESS: [f32; 2] = [-0.1, 0.1];
/// The brightest.
const PIXEL_MAX: f32 = 255.0;

/// How pictures are cropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CropSizes {
    /// Of the pictures, and of a large crop.
    pub(crate) shape: ImageShape,
    /// Small crops of a picture.
    pub(crate) n_small: usize,
    /// Height and width of one.
    pub(crate) small_side: usize,
}

/// Crops of a micro-batch, as the model sees them: normalized, channels first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Crops {
    /// Pictures.
    pub(crate) n_samples: usize,
    /// `[LARGE_CROPS * n_samples, channels, height, width]`: the first of each picture, then the second of each.
    pub(crate) large: Vec<f32>,
    /// `[n_small * n_samples, channels, small_side, small_side]`, in the same order.
    pub(crate) small: Vec<f32>,
}

impl Crops {
    /// Crops `images`, `[n_samples, height, width, channels]`.
    pub(crate) fn of(images: &[u8], sizes: CropSizes, seed: u64, draw: u64) -> Self {
        let CropSizes { shape, n_small, small_side } = sizes;
        let pictures: Vec<&[u8]> = images.chunks_exact(shape.n_values().max(1)).collect();
        let views: Vec<Vec<CropView>> = pictures
            .iter()
            .map(|picture| {
                let state = state_of(picture.iter().copied(), seed, draw);
                let mut random = SplitMix64 { state };
                let share = |crop| if crop < LARGE_CROPS { LARGE_SHARE } else { SMALL_SHARE };
                (0..LARGE_CROPS + n_small)
                    .map(|crop| CropView::draw(&mut random, share(crop), shape))
                    .collect()
            })
            .collect();
        let render = |crops: std::ops::Range<usize>, height: usize, width: usize| {
            let n_values = pictures.len() * usize::from(shape.channels) * height * width;
            let mut values = Vec::with_capacity(crops.len() * n_values);
            for crop in crops {
                for (picture, views) in pictures.iter().zip(&views) {
                    if let Some(view) = views.get(crop) {
                        view.render(picture, shape, [height, width], &mut values);
                    }
                }
            }
            values
        };
        Self {
            n_samples: pictures.len(),
            large: render(0..LARGE_CROPS, shape.height.into(), shape.width.into()),
            small: render(LARGE_CROPS..LARGE_CROPS + n_small, small_side, small_side),
        }
    }
}

/// Position, size and colour changes of a crop.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CropView {
    /// In pixels of the picture.
    top: f32,
    left: f32,
    height: f32,
    width: f32,
    is_mirrored: bool,
    contrast: f32,
    brightness: f32,
}

impl CropView {
    fn draw(random: &mut SplitMix64, share: [f32; 2], shape: ImageShape) -> Self {
        let mut within = |[low, high]: [f32; 2]| low + random.next_unit() * (high - low);
        let (share, aspect) = (within(share), within(ASPECT));
        let [rows, columns] = [shape.height, shape.width].map(f32::from);
        let height = rows * (share / aspect).sqrt().min(1.0);
        let width = columns * (share * aspect).sqrt().min(1.0);
        Self {
            top: within([0.0, rows - height]),
            left: within([0.0, columns - width]),
            height,
            width,
            is_mirrored: within([0.0, 1.0]) < 0.5,
            contrast: within(CONTRAST),
            brightness: within(BRIGHTNESS) * PIXEL_MAX,
        }
    }

    /// Appends the crop, `[channels, height, width]`.
    fn render(self, picture: &[u8], shape: ImageShape, [height, width]: [usize; 2], values: &mut Vec<f32>) {
        for channel in 0..usize::from(shape.channels) {
            for row in 0..height {
                let y = self.top + (row as f32 + 0.5) * self.height / height as f32 - 0.5;
                for column in 0..width {
                    let column = if self.is_mirrored { width - 1 - column } else { column };
                    let x = self.left + (column as f32 + 0.5) * self.width / width as f32 - 0.5;
                    let pixel = bilinear(picture, shape, channel, y, x);
                    let pixel = (pixel * self.contrast + self.brightness).clamp(0.0, PIXEL_MAX);
                    values.push((pixel / PIXEL_MAX - PIXEL_MEAN) / PIXEL_STD);
                }
            }
        }
    }
}

/// Bilinear interpolation of the four pixels around a point; at the edge, of those that exist.
fn bilinear(picture: &[u8], shape: ImageShape, channel: usize, y: f32, x: f32) -> f32 {
    let [height, width, channels] = [shape.height, shape.width, shape.channels].map(usize::from);
    let (y0, y1, down) = around(y, height);
    let (x0, x1, right) = around(x, width);
    let pixel = |row: usize, column: usize| {
        f32::from(picture.get((row * width + column) * channels + channel).copied().unwrap_or_default())
    };
    let between = |from: f32, to: f32, share: f32| from + (to - from) * share;
    let above = between(pixel(y0, x0), pixel(y0, x1), right);
    let below = between(pixel(y1, x0), pixel(y1, x1), right);
    between(above, below, down)
}

/// The two pixels beside a point on a line of `n`, and the point's distance from the first, 0 to 1.
fn around(place: f32, n: usize) -> (usize, usize, f32) {
    let last = n.saturating_sub(1);
    let place = place.clamp(0.0, last as f32);
    let first = (place as usize).min(last);
    (first, (first + 1).min(last), place - first as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape { height: 9, width: 12, channels: 2 };
    const SIZES: CropSizes = CropSizes { shape: SHAPE, n_small: 3, small_side: 5 };

    fn pictures(n_samples: usize) -> Vec<u8> {
        let mut random = SplitMix64 { state: 3 };
        (0..n_samples * SHAPE.n_values()).map(|_| 40 + random.below(100) as u8).collect()
    }

    #[test]
    fn crops_depend_on_picture_seed_and_draw_alone() {
        let images = pictures(4);
        let all = Crops::of(&images, SIZES, 7, 3);
        assert_eq!(all.large.len(), 2 * 4 * SHAPE.n_values());
        assert_eq!(all.small.len(), 3 * 4 * 2 * 5 * 5);
        assert!(all == Crops::of(&images, SIZES, 7, 3));
        assert!(all.large != Crops::of(&images, SIZES, 8, 3).large);
        assert!(all.large != Crops::of(&images, SIZES, 7, 4).large);
        let n_values = SHAPE.n_values();
        let last = Crops::of(&images[3 * n_values..], SIZES, 7, 3);
        assert!(last.large[..n_values] == all.large[3 * n_values..4 * n_values]);
        assert!(last.large[n_values..] == all.large[7 * n_values..]);
        for crop in 0..3 {
            let at = (crop * 4 + 3) * 50;
            assert!(last.small[crop * 50..][..50] == all.small[at..][..50]);
        }
    }

    /// The backbone that recomputes a contribution may run another build, on another platform, than the contributor.
    #[test]
    fn crops_are_the_same_everywhere() {
        let crops = Crops::of(&pictures(4), SIZES, 7, 3);
        let values = crops.large.iter().chain(&crops.small);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(
            barnraise_protocol::Sha256Hash::of(&bytes).to_string(),
            "6cc83809aebf02adcf2b3cd473ea2a480177f8fa49d4a34fd4161e4ba8baefab"
        );
    }

    #[test]
    fn views_stay_in_the_picture_and_cover_all_of_it() {
        let mut random = SplitMix64 { state: 11 };
        let (mut first, mut last, mut n_mirrored) = (f32::MAX, 0.0_f32, 0);
        for _ in 0..2000 {
            let view = CropView::draw(&mut random, LARGE_SHARE, SHAPE);
            assert!(view.top >= 0.0 && view.left >= 0.0);
            assert!(view.top + view.height <= 9.001 && view.left + view.width <= 12.001, "{view:?}");
            let share = view.height * view.width / (9.0 * 12.0);
            assert!(share < 1.001 && share > 0.33, "{share}");
            first = first.min(view.left);
            last = last.max(view.left + view.width);
            n_mirrored += usize::from(view.is_mirrored);
        }
        assert!(
            first < 0.1 && last > 11.9 && (900..1100).contains(&n_mirrored),
            "{first} {last} {n_mirrored}"
        );
    }

    #[test]
    fn a_whole_view_is_the_picture_and_light_changes_each_pixel_alike() {
        let image = pictures(1);
        let whole = CropView {
            top: 0.0,
            left: 0.0,
            height: 9.0,
            width: 12.0,
            is_mirrored: false,
            contrast: 1.0,
            brightness: 0.0,
        };
        let mut seen = Vec::new();
        whole.render(&image, SHAPE, [9, 12], &mut seen);
        let want = crate::batch::normalize_channels_first(&image, SHAPE);
        assert!(seen.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-4));
        let mut mirrored = Vec::new();
        CropView { is_mirrored: true, ..whole }.render(&image, SHAPE, [9, 12], &mut mirrored);
        for (row, mirrored) in seen.chunks(12).zip(mirrored.chunks(12)) {
            assert!(row.iter().rev().eq(mirrored));
        }
        let mut dark = Vec::new();
        CropView { contrast: 0.5, brightness: 10.0, ..whole }.render(&image, SHAPE, [9, 12], &mut dark);
        let pixel = |value: f32| (value * PIXEL_STD + PIXEL_MEAN) * PIXEL_MAX;
        for (seen, dark) in seen.iter().zip(&dark) {
            assert!((pixel(*dark) - (0.5 * pixel(*seen) + 10.0)).abs() < 0.01);
        }
    }

    #[test]
    fn pixels_of_a_crop_are_between_those_of_the_picture() {
        let images = pictures(8);
        let crops = Crops::of(&images, SIZES, 1, 1);
        let low = ((40.0 * CONTRAST[0] + PIXEL_MAX * BRIGHTNESS[0]) / PIXEL_MAX - PIXEL_MEAN) / PIXEL_STD;
        let high = ((140.0 * CONTRAST[1] + PIXEL_MAX * BRIGHTNESS[1]) / PIXEL_MAX - PIXEL_MEAN) / PIXEL_STD;
        let low = low.max(-PIXEL_MEAN / PIXEL_STD);
        for value in crops.large.iter().chain(&crops.small) {
            assert!((low - 1e-4..=high + 1e-4).contains(value), "{value} of {low} to {high}");
        }
    }
}
