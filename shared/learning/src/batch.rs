//! Samples as they come from a shard, and what the model sees of them.
//!
//! Pure host code: bytes in, normalized values out.

use barnraise_protocol::dataset::{ImageShape, TokenShape};

use crate::error::ModelError;

/// Mean of a pixel scaled to `[0, 1]`, as measured on Fashion-MNIST. Other images train with it
/// too: it only has to be the same for every peer.
pub const PIXEL_MEAN: f32 = 0.286;
/// Standard deviation of a pixel scaled to `[0, 1]`, as measured on Fashion-MNIST.
pub const PIXEL_STD: f32 = 0.353;

/// A micro-batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// `[n_samples, height, width, channels]`, row-major.
    pub images: Vec<u8>,
    /// `[n_samples]`, each below the number of classes.
    pub labels: Vec<u8>,
}

/// Checks what a forward pass relies on: 1 to `max` samples and as many images.
pub(crate) fn check_images(
    images: &[u8],
    n_samples: usize,
    shape: ImageShape,
    max: usize,
) -> Result<(), ModelError> {
    if n_samples == 0 || n_samples > max {
        return Err(ModelError::BatchSize { max, got: n_samples });
    }
    let want = n_samples.saturating_mul(shape.n_values());
    match images.len() == want {
        true => Ok(()),
        false => Err(ModelError::ImageBytes { n_samples, want, got: images.len() }),
    }
}

/// Checks what a pass over text relies on: whole sequences, 1 to `max`, of tokens that the vocabulary has.
pub(crate) fn check_tokens(ids: &[u32], shape: TokenShape, max: usize) -> Result<usize, ModelError> {
    let length = usize::from(shape.length);
    if length == 0 || !ids.len().is_multiple_of(length) {
        return Err(ModelError::TokenCount { length, got: ids.len() });
    }
    let n_samples = ids.len() / length;
    if n_samples == 0 || n_samples > max {
        return Err(ModelError::BatchSize { max, got: n_samples });
    }
    check_ids(ids, shape)?;
    Ok(n_samples)
}

/// Checks that every token is of the vocabulary.
pub(crate) fn check_ids(ids: &[u32], shape: TokenShape) -> Result<(), ModelError> {
    let vocabulary = shape.vocabulary;
    match ids.iter().position(|&id| id >= vocabulary) {
        Some(index) => Err(ModelError::Token { index, token: ids[index], vocabulary }),
        None => Ok(()),
    }
}

/// Checks that every label has a class.
pub(crate) fn check_labels(labels: &[u8], n_classes: usize) -> Result<(), ModelError> {
    match labels.iter().position(|&label| usize::from(label) >= n_classes) {
        Some(sample) => Err(ModelError::Label { sample, label: labels[sample], n_classes }),
        None => Ok(()),
    }
}

/// `(pixel / 255 - mean) / std` for each byte, in the bytes' order.
pub(crate) fn normalize(images: &[u8]) -> Vec<f32> {
    let table = pixel_values();
    images.iter().map(|&pixel| table[usize::from(pixel)]).collect()
}

/// [`normalize`], with each image reordered from `[height, width, channels]` to
/// `[channels, height, width]`, as convolutions want it.
pub(crate) fn normalize_channels_first(images: &[u8], shape: ImageShape) -> Vec<f32> {
    let channels = usize::from(shape.channels);
    if channels == 1 {
        return normalize(images);
    }
    let table = pixel_values();
    let mut values = Vec::with_capacity(images.len());
    for image in images.chunks_exact(shape.n_values()) {
        for channel in 0..channels {
            let plane = image.iter().skip(channel).step_by(channels);
            values.extend(plane.map(|&pixel| table[usize::from(pixel)]));
        }
    }
    values
}

fn pixel_values() -> [f32; 256] {
    std::array::from_fn(|pixel| (pixel as f32 / 255.0 - PIXEL_MEAN) / PIXEL_STD)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape { height: 1, width: 2, channels: 3 };

    #[test]
    fn channels_come_first() {
        let values = normalize_channels_first(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], SHAPE);
        assert_eq!(values, normalize(&[1, 4, 2, 5, 3, 6, 7, 10, 8, 11, 9, 12]));
    }

    #[test]
    fn pixels_are_normalized() {
        let values = normalize(&[0, 255]);
        assert!((values[0] + 0.286 / 0.353).abs() < 1e-6);
        assert!((values[1] - (1.0 - 0.286) / 0.353).abs() < 1e-6);
    }

    #[test]
    fn wrong_batches_are_named() {
        assert_eq!(check_images(&[0; 12], 2, SHAPE, 4), Ok(()));
        let short = check_images(&[0; 11], 2, SHAPE, 4);
        assert_eq!(short, Err(ModelError::ImageBytes { n_samples: 2, want: 12, got: 11 }));
        assert!(matches!(check_images(&[], 0, SHAPE, 4), Err(ModelError::BatchSize { .. })));
        assert!(matches!(check_images(&[0; 30], 5, SHAPE, 4), Err(ModelError::BatchSize { .. })));
        let label = check_labels(&[0, 3], 3);
        assert_eq!(label, Err(ModelError::Label { sample: 1, label: 3, n_classes: 3 }));
    }
}
