//! CIFAR-10 (Krizhevsky 2009): 60,000 colour pictures of animals and vehicles.
//!
//! Its files are those of the binary version: for each picture a byte with its label, then all red, all green and all blue
//! values, row by row (<https://www.cs.toronto.edu/~kriz/cifar.html>).

use barnraise_protocol::dataset::{ImageShape, LabelledImages};

use super::SetError;
use super::spec::{FileSpec, hex, spec};

/// Display name.
pub(super) const NAME: &str = "CIFAR-10";
/// Of each picture.
pub(super) const IMAGE_SHAPE: ImageShape = ImageShape { height: 32, width: 32, channels: 3 };
/// In the order of the labels.
pub(super) const CLASS_NAMES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];
/// Pictures in a file.
pub(super) const FILE_SAMPLES: usize = 10_000;
/// Files to train on; one more is held out.
const TRAIN_FILES: usize = 5;
/// Pixels of a picture.
const N_PIXELS: usize = 32 * 32;
const CHANNELS: usize = 3;
/// A label and a picture.
const RECORD_BYTES: usize = 1 + N_PIXELS * CHANNELS;

/// The five files to train on, then the held-out one.
pub(super) fn specs() -> Vec<FileSpec> {
    let hashes = [
        hex("cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        hex("a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        hex("bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        hex("014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        hex("755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ];
    let n_bytes = (FILE_SAMPLES * RECORD_BYTES) as u64;
    let train = hashes
        .into_iter()
        .enumerate()
        .map(|(n, hash)| spec(&format!("data_batch_{}.bin", n + 1), n_bytes, hash));
    let test = hex("8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b");
    train.chain([spec("test_batch.bin", n_bytes, test)]).collect()
}

/// Samples to train on, and held-out ones.
pub(super) fn samples(files: &[Vec<u8>]) -> Result<(LabelledImages, LabelledImages), SetError> {
    let (mut train, mut test) = (LabelledImages::default(), LabelledImages::default());
    for (nth, file) in files.iter().enumerate() {
        let part = if nth < TRAIN_FILES { &mut train } else { &mut test };
        for record in file.chunks_exact(RECORD_BYTES) {
            let (label, planes) = record.split_first().unwrap_or((&0, &[]));
            if usize::from(*label) >= CLASS_NAMES.len() {
                let file = specs().get(nth).map(|spec| spec.name.clone()).unwrap_or_default();
                return Err(SetError::Label { file, got: *label, n_classes: CLASS_NAMES.len() });
            }
            part.labels.push(*label);
            part.images.extend((0..N_PIXELS).flat_map(|pixel| {
                (0..CHANNELS)
                    .map(move |channel| planes.get(channel * N_PIXELS + pixel).copied().unwrap_or_default())
            }));
        }
    }
    Ok((train, test))
}

/// A file of so many labels; `pixels` are red, green and blue of each pixel, picture by picture.
pub(super) fn file(labels: &[u8], pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(labels.len() * RECORD_BYTES);
    for (label, picture) in labels.iter().zip(pixels.chunks(N_PIXELS * CHANNELS)) {
        file.push(*label);
        (0..CHANNELS).for_each(|channel| file.extend(picture.iter().skip(channel).step_by(CHANNELS)));
    }
    file
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_written_as_planes_is_read_as_pixels() {
        let pixels: Vec<u8> = (0..2 * N_PIXELS * CHANNELS).map(|n| (n % 251) as u8).collect();
        let file = file(&[7, 3], &pixels);
        assert_eq!((file.len(), file[0], file[RECORD_BYTES]), (2 * RECORD_BYTES, 7, 3));
        assert_eq!(file[1..4], [pixels[0], pixels[3], pixels[6]], "red first");
        let (train, test) = samples(&[file]).unwrap();
        assert_eq!((train.labels, train.images, test.labels.len()), (vec![7, 3], pixels, 0));
        let mut wrong = vec![0; RECORD_BYTES];
        wrong[0] = 10;
        let error = samples(&[wrong]).unwrap_err().to_string();
        assert_eq!(error, "data_batch_1.bin: label 10, the data set has 10 classes");
    }
}
