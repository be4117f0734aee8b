//! A data set as it travels: a manifest of shards, each named by the hash of its bytes.
//!
//! A shard is zlib-compressed: `n_samples` images of `height * width * channels` bytes each, then
//! `n_samples` labels of one byte.

use std::io::Read;

use flate2::Compression;
use flate2::read::{ZlibDecoder, ZlibEncoder};
use serde::{Deserialize, Serialize};

use crate::hash::Sha256Hash;

/// Most bytes of one compressed shard.
pub const SHARD_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// Most bytes of one shard after decompression.
pub const SHARD_RAW_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most shards of a manifest.
pub const SHARDS_MAX: usize = 10_000;

/// What the training data is and where its pieces are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name for people, such as `Fashion-MNIST`.
    pub name: String,
    /// Shape of a sample.
    pub shape: ImageShape,
    /// Name of each class, in the order of the labels.
    pub class_names: Vec<String>,
    /// The training shards; a shard's index is its id.
    pub shards: Vec<ShardEntry>,
    /// Held-out samples to look at and to try the model on; never trained on.
    pub gallery: ShardEntry,
}

/// Height, width and channels of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageShape {
    /// Rows.
    pub height: u16,
    /// Columns.
    pub width: u16,
    /// 1 for grey.
    pub channels: u16,
}

impl ImageShape {
    /// Values in one image.
    pub fn n_values(self) -> usize {
        usize::from(self.height) * usize::from(self.width) * usize::from(self.channels)
    }
}

/// One shard of the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// Samples inside.
    pub n_samples: u32,
    /// Length of the compressed bytes.
    pub n_bytes: u32,
    /// SHA-256 of the compressed bytes.
    pub sha256: Sha256Hash,
}

/// Decoded samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// `[n_samples, height, width, channels]`, row-major, 0 is background.
    pub images: Vec<u8>,
    /// `[n_samples]`, each below the number of classes.
    pub labels: Vec<u8>,
}

/// Why the bytes of a shard, or a manifest, were not what they should be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DatasetError {
    /// The content is not what the manifest names.
    #[error("shard has SHA-256 {got}, the manifest says {want}")]
    Hash {
        /// From the manifest.
        want: Sha256Hash,
        /// Of the bytes that came.
        got: Sha256Hash,
    },
    /// Not a zlib stream.
    #[error("shard cannot be decompressed: {0}")]
    Compression(String),
    /// Too much or too little inside.
    #[error("shard holds {got} bytes after decompression, its manifest entry needs {want}")]
    Length {
        /// From the manifest.
        want: usize,
        /// At least this many came.
        got: usize,
    },
    /// A label without a class.
    #[error("shard has label {label}, the data set has {n_classes} classes")]
    Label {
        /// What came.
        label: u8,
        /// From the manifest.
        n_classes: usize,
    },
    /// The manifest itself is out of its bounds.
    #[error("manifest is not usable: {0}")]
    Manifest(&'static str),
}

impl Manifest {
    /// Checks every bound that the rest of the code relies on.
    pub fn validate(&self) -> Result<(), DatasetError> {
        let fail = |why| Err(DatasetError::Manifest(why));
        if self.shape.n_values() == 0 {
            return fail("an image has no pixels");
        }
        if self.class_names.is_empty() || self.class_names.len() > 256 {
            return fail("it must name 1 to 256 classes");
        }
        if self.shards.is_empty() || self.shards.len() > SHARDS_MAX {
            return fail("it must list 1 to 10,000 shards");
        }
        for entry in self.shards.iter().chain([&self.gallery]) {
            if entry.n_samples == 0 || entry.n_bytes == 0 || entry.n_bytes > SHARD_BYTES_MAX {
                return fail("a shard is empty or larger than 16 MiB");
            }
            if self.raw_bytes(entry) > SHARD_RAW_BYTES_MAX {
                return fail("a shard is larger than 64 MiB after decompression");
            }
        }
        Ok(())
    }

    /// Training samples in all shards.
    pub fn n_samples(&self) -> u64 {
        self.shards.iter().map(|entry| u64::from(entry.n_samples)).sum()
    }

    fn raw_bytes(&self, entry: &ShardEntry) -> usize {
        (self.shape.n_values() + 1).saturating_mul(entry.n_samples as usize)
    }
}

impl Shard {
    /// Number of samples.
    pub fn n_samples(&self) -> usize {
        self.labels.len()
    }

    /// Compresses the shard and gives its manifest entry.
    pub fn encode(&self) -> Result<(Vec<u8>, ShardEntry), DatasetError> {
        let raw = [self.images.as_slice(), self.labels.as_slice()].concat();
        let mut bytes = Vec::new();
        ZlibEncoder::new(raw.as_slice(), Compression::best())
            .read_to_end(&mut bytes)
            .map_err(|error| DatasetError::Compression(error.to_string()))?;
        let too_large = |_| DatasetError::Manifest("a shard is larger than 4 GiB");
        let entry = ShardEntry {
            n_samples: u32::try_from(self.labels.len()).map_err(too_large)?,
            n_bytes: u32::try_from(bytes.len()).map_err(too_large)?,
            sha256: Sha256Hash::of(&bytes),
        };
        Ok((bytes, entry))
    }

    /// Checks the hash, decompresses at most what the manifest announces, checks every label.
    pub fn decode(bytes: &[u8], entry: &ShardEntry, manifest: &Manifest) -> Result<Self, DatasetError> {
        let got = Sha256Hash::of(bytes);
        if got != entry.sha256 {
            return Err(DatasetError::Hash { want: entry.sha256, got });
        }
        let want = manifest.raw_bytes(entry);
        if want > SHARD_RAW_BYTES_MAX {
            return Err(DatasetError::Manifest("a shard is larger than 64 MiB after decompression"));
        }
        let mut images = Vec::new();
        ZlibDecoder::new(bytes)
            .take(want as u64 + 1)
            .read_to_end(&mut images)
            .map_err(|error| DatasetError::Compression(error.to_string()))?;
        if images.len() != want {
            return Err(DatasetError::Length { want, got: images.len() });
        }
        let labels = images.split_off(want - entry.n_samples as usize);
        let n_classes = manifest.class_names.len();
        match labels.iter().find(|&&label| usize::from(label) >= n_classes) {
            Some(&label) => Err(DatasetError::Label { label, n_classes }),
            None => Ok(Self { images, labels }),
        }
    }
}
