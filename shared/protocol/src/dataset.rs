//! Wire format of a data set: a manifest of shards, each identified by the hash of its bytes
//! (DeDLOC §3.3).
//!
//! A shard is zlib-compressed, its numbers are little-endian. Of images: `n_samples` times `height * width * channels`
//! bytes, then `n_samples` labels of one byte. Of text: the lower two bytes of `n_samples` times `length` tokens, then
//! the third byte of each. Of a table: `n_samples` times `columns` f32, then `n_samples` labels of one byte or `n_samples`
//! times `values` f32. Of ratings: `n_samples` users and `n_samples` items of four bytes, then `n_samples` f32.

use std::io::Read;

use flate2::Compression;
use flate2::read::{ZlibDecoder, ZlibEncoder};
use serde::{Deserialize, Serialize};

use crate::bulk::Transfer;
use crate::hash::Sha256Hash;

/// Bytes of an f32, or of an id of a user or item.
const VALUE_BYTES: usize = 4;
/// Bytes of a token.
const TOKEN_BYTES: usize = 3;
/// Most bytes of one compressed shard.
pub const SHARD_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// Most bytes of one shard after decompression.
pub const SHARD_RAW_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most bytes of the file that says how data become samples.
pub const PREPROCESSING_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most shards of a manifest.
pub const SHARDS_MAX: usize = 10_000;
/// Most shards of a stream that are drawn from at a time.
pub const WINDOW_SHARDS_MAX: u32 = 4096;
/// Most columns of a table.
pub const COLUMNS_MAX: usize = 4096;
/// Most values that are to be told of a row.
pub const TARGETS_MAX: usize = 64;
/// Most users, and most items, that ratings are of.
pub const RATED_MAX: u32 = 1 << 24;
/// Longest name of a column or class, in bytes.
pub const LABEL_BYTES_MAX: usize = 256;
/// Most tokens of a vocabulary: the number of one has three bytes.
pub const VOCABULARY_MAX: u32 = 1 << 24;
/// Fewest and most tokens of a sequence.
pub const SEQUENCE_TOKENS: std::ops::RangeInclusive<u16> = 4..=1024;

/// Describes the training data and its shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name for people, such as `Fashion-MNIST`.
    pub name: String,
    /// Kind of its samples.
    pub samples: SampleKind,
    /// The training shards; a shard's index is its id.
    pub shards: Vec<ShardEntry>,
    /// Held-out samples, to show and to try the model on; never trained on.
    pub gallery: ShardEntry,
    /// Of a model with frozen weights their shards: `n_samples` is the number of values, and the bytes are those of the
    /// codec.
    pub frozen: Vec<ShardEntry>,
    /// How a file of anybody's becomes such samples: the `tokenizer.json` of a text, or the
    /// [`crate::columns::DataColumns`] of a table in JSON; where participants may bring files.
    pub preprocessing: Option<Transfer>,
    /// Where data are read while the run trains: `shards` is empty then.
    pub stream: Option<DataStream>,
}

/// Kind of the samples of a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampleKind {
    /// A picture with a label.
    Images {
        /// Of each picture.
        shape: ImageShape,
        /// Name of each class, in the order of the labels.
        class_names: Vec<String>,
    },
    /// A piece of text.
    Tokens(TokenShape),
    /// A row of a table.
    Rows(TableShape),
    /// What somebody gave something.
    Ratings(RatingShape),
}

/// A row of a table: numbers, and what is to be told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableShape {
    /// Name of each column of numbers.
    pub columns: Vec<String>,
    /// What is to be told of a row.
    pub target: TableTarget,
}

/// What is to be told of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableTarget {
    /// One of these classes.
    Class(Vec<String>),
    /// A value by each of these names.
    Values(Vec<String>),
}

/// Ratings of items by users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatingShape {
    /// Users; each is below it.
    pub n_users: u32,
    /// Items; each is below it.
    pub n_items: u32,
}

/// A sequence of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenShape {
    /// Tokens in each sequence.
    pub length: u16,
    /// Number of ids: each token is below it.
    pub vocabulary: u32,
    /// Id of the token that marks a token to predict, where the vocabulary has one; it is never in the data.
    pub mask: Option<u32>,
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

/// What a stream is; the same for as long as the run lives, but for the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataStream {
    /// Hash of all that decides which bytes a shard has: the sources, their weights, the tokenizer and the seed.
    pub sources: Sha256Hash,
    /// Samples in each shard.
    pub shard_samples: u32,
    /// Shards that are drawn from at a time.
    pub window_shards: u32,
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

impl ShardEntry {
    /// Its compressed bytes.
    pub fn transfer(&self) -> Transfer {
        Transfer { n_bytes: self.n_bytes.into(), sha256: self.sha256 }
    }

    /// Checks that `bytes` are those of the shard.
    ///
    /// # Errors
    /// [`DatasetError::Hash`]
    pub fn check(&self, bytes: &[u8]) -> Result<(), DatasetError> {
        match Sha256Hash::of(bytes) {
            got if got == self.sha256 => Ok(()),
            got => Err(DatasetError::Hash { want: self.sha256, got }),
        }
    }
}

/// Decoded samples, such as those of a shard.
#[derive(Debug, Clone, PartialEq)]
pub enum Samples {
    /// Pictures and their labels.
    Images(LabelledImages),
    /// Pieces of text.
    Tokens(TokenSequences),
    /// Rows of a table.
    Rows(TableRows),
    /// Ratings.
    Ratings(Ratings),
}

/// Rows of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableRows {
    /// Columns of numbers.
    pub n_columns: usize,
    /// `[n_samples, n_columns]`, finite.
    pub values: Vec<f32>,
    /// What is to be told of each.
    pub targets: RowTargets,
}

/// What is to be told of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RowTargets {
    /// `[n_samples]`, each below the number of classes.
    Classes(Vec<u8>),
    /// Values of each row.
    Values {
        /// How many a row has.
        n_values: usize,
        /// `[n_samples, n_values]`, finite.
        values: Vec<f32>,
    },
}

/// Ratings of items by users.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratings {
    /// `[n_samples]`
    pub users: Vec<u32>,
    /// `[n_samples]`
    pub items: Vec<u32>,
    /// `[n_samples]`, finite.
    pub ratings: Vec<f32>,
}

/// Pictures and their labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelledImages {
    /// `[n_samples, height, width, channels]`, row-major, 0 is background.
    pub images: Vec<u8>,
    /// `[n_samples]`, each below the number of classes.
    pub labels: Vec<u8>,
}

/// Pieces of text, all of one length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenSequences {
    /// Tokens in each sequence.
    pub length: u16,
    /// `[n_samples, length]`, each below the size of the vocabulary.
    pub ids: Vec<u32>,
}

/// Why a shard or a manifest is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DatasetError {
    /// Content with another hash than the manifest's.
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
    /// More or fewer bytes than the manifest's entry needs.
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
    /// A token that the vocabulary does not have.
    #[error("shard has token {token}, the vocabulary has {vocabulary}")]
    Token {
        /// What came.
        token: u32,
        /// From the manifest.
        vocabulary: u32,
    },
    /// A user or an item that the data set does not have.
    #[error("shard has {what} {got}, the data set has {n}")]
    Id {
        /// `user` or `item`.
        what: &'static str,
        /// What came.
        got: u32,
        /// From the manifest.
        n: u32,
    },
    /// A NaN or an infinity.
    #[error("shard has a number that is not finite")]
    NotFinite,
    /// The manifest itself is out of its bounds.
    #[error("manifest is not usable: {0}")]
    Manifest(&'static str),
}

/// The class that a folder's name is of, of `class_names`: letters count without regard to case, and a dash stands for
/// what no folder may have in its name, such as the slash of `T-shirt/top`. A name that is a class's to the letter is
/// that class's.
pub fn class_of_folder(folder: &str, class_names: &[String]) -> Option<u8> {
    let exact = class_names.iter().position(|name| name == folder);
    let folder = class_folder(folder).to_lowercase();
    let class =
        exact.or_else(|| class_names.iter().position(|name| class_folder(name).to_lowercase() == folder));
    class.and_then(|class| u8::try_from(class).ok())
}

/// The name of a class as a folder may have it on every system: a dash stands for what it may not have.
pub fn class_folder(class_name: &str) -> String {
    class_name.replace(['/', '\\', ':', '*', '?', '"', '<', '>', '|'], "-")
}

impl Manifest {
    /// Checks all bounds.
    ///
    /// # Errors
    /// [`DatasetError::Manifest`] with the first violated bound.
    pub fn validate(&self) -> Result<(), DatasetError> {
        let fail = |why| Err(DatasetError::Manifest(why));
        match &self.samples {
            SampleKind::Images { shape, class_names } => {
                if shape.n_values() == 0 {
                    return fail("an image has no pixels");
                }
                if class_names.is_empty() || class_names.len() > 256 {
                    return fail("it must name 1 to 256 classes");
                }
            }
            SampleKind::Tokens(tokens) => {
                if !SEQUENCE_TOKENS.contains(&tokens.length) {
                    return fail("a sequence must have 4 to 1024 tokens");
                }
                if !(2..=VOCABULARY_MAX).contains(&tokens.vocabulary) {
                    return fail("a vocabulary must have 2 to 16,777,216 tokens");
                }
                if tokens.mask.is_some_and(|mask| mask >= tokens.vocabulary) {
                    return fail("the mask token must be of the vocabulary");
                }
            }
            SampleKind::Rows(table) => table.validate()?,
            SampleKind::Ratings(RatingShape { n_users, n_items }) => {
                if ![n_users, n_items].iter().all(|n| (1..=RATED_MAX).contains(*n)) {
                    return fail("ratings must be of 1 to 16,777,216 users and items");
                }
            }
        }
        if let Some(stream) = &self.stream {
            if !self.shards.is_empty() {
                return fail("a stream lists no shards in its manifest");
            }
            if !(1..=WINDOW_SHARDS_MAX).contains(&stream.window_shards) {
                return fail("the window of a stream must have 1 to 4096 shards");
            }
            let raw_bytes = self.sample_bytes().saturating_mul(stream.shard_samples as usize);
            if raw_bytes == 0 || raw_bytes > SHARD_RAW_BYTES_MAX {
                return fail("a shard is empty or larger than 64 MiB after decompression");
            }
        }
        let has_none = self.shards.is_empty() && self.stream.is_none();
        if has_none || self.n_numbered() > SHARDS_MAX {
            return fail("it must list 1 to 10,000 shards, those of frozen weights included");
        }
        if self.preprocessing.is_some_and(|file| !(1..=PREPROCESSING_BYTES_MAX).contains(&file.n_bytes)) {
            return fail("the file that says how data become samples is empty or larger than 64 MiB");
        }
        let is_empty_or_large = |entry: &ShardEntry| {
            entry.n_samples == 0 || entry.n_bytes == 0 || entry.n_bytes > SHARD_BYTES_MAX
        };
        if self.frozen.iter().any(is_empty_or_large) {
            return fail("a shard of frozen weights is empty or larger than 16 MiB");
        }
        for entry in self.shards.iter().chain([&self.gallery]) {
            if is_empty_or_large(entry) {
                return fail("a shard is empty or larger than 16 MiB");
            }
            if self.raw_bytes(entry) > SHARD_RAW_BYTES_MAX {
                return fail("a shard is larger than 64 MiB after decompression");
            }
        }
        Ok(())
    }

    /// The entry with a number: first the training shards, then those of frozen weights.
    pub fn numbered(&self, number: u32) -> Option<&ShardEntry> {
        self.shards.iter().chain(&self.frozen).nth(number as usize)
    }

    /// How many entries have a number.
    pub fn n_numbered(&self) -> usize {
        self.shards.len() + self.frozen.len()
    }

    /// Number of the first shard of frozen weights.
    pub fn first_frozen(&self) -> u32 {
        u32::try_from(self.shards.len()).unwrap_or(u32::MAX)
    }

    /// Training samples in all shards; of a stream, those that are drawn from at a time.
    pub fn n_samples(&self) -> u64 {
        if let Some(stream) = &self.stream {
            return u64::from(stream.shard_samples) * u64::from(stream.window_shards);
        }
        self.shards.iter().map(|entry| u64::from(entry.n_samples)).sum()
    }

    /// Bytes of one sample before compression.
    pub fn sample_bytes(&self) -> usize {
        match &self.samples {
            SampleKind::Images { shape, .. } => shape.n_values() + 1,
            SampleKind::Tokens(tokens) => TOKEN_BYTES * usize::from(tokens.length),
            SampleKind::Rows(TableShape { columns, target }) => {
                let n_target_bytes = match target {
                    TableTarget::Class(_) => 1,
                    TableTarget::Values(names) => VALUE_BYTES * names.len(),
                };
                VALUE_BYTES * columns.len() + n_target_bytes
            }
            SampleKind::Ratings(_) => 3 * VALUE_BYTES,
        }
    }

    /// Shape of the pictures, where samples are pictures.
    pub fn image_shape(&self) -> Option<ImageShape> {
        match self.samples {
            SampleKind::Images { shape, .. } => Some(shape),
            SampleKind::Tokens(_) | SampleKind::Rows(_) | SampleKind::Ratings(_) => None,
        }
    }

    /// Name of each class, in the order of the labels; none where samples have no labels.
    pub fn class_names(&self) -> &[String] {
        match &self.samples {
            SampleKind::Images { class_names, .. } => class_names,
            SampleKind::Rows(TableShape { target: TableTarget::Class(names), .. }) => names,
            SampleKind::Tokens(_) | SampleKind::Rows(_) | SampleKind::Ratings(_) => &[],
        }
    }

    /// Whether `samples` are such as the data set has, and one at least.
    pub fn describes(&self, samples: &Samples) -> bool {
        let n_samples = samples.n_samples();
        let is_such = match (&self.samples, samples) {
            (SampleKind::Images { shape, class_names }, Samples::Images(pictures)) => {
                pictures.images.len() == n_samples.saturating_mul(shape.n_values())
                    && pictures.labels.iter().all(|label| usize::from(*label) < class_names.len())
            }
            (SampleKind::Tokens(shape), Samples::Tokens(tokens)) => {
                tokens.length == shape.length
                    && tokens.ids.len() == n_samples.saturating_mul(usize::from(tokens.length))
                    && tokens.ids.iter().all(|id| *id < shape.vocabulary)
            }
            (SampleKind::Rows(shape), Samples::Rows(rows)) => {
                let is_of_target = match (&shape.target, &rows.targets) {
                    (TableTarget::Class(names), RowTargets::Classes(classes)) => {
                        classes.len() == n_samples
                            && classes.iter().all(|class| usize::from(*class) < names.len())
                    }
                    (TableTarget::Values(names), RowTargets::Values { n_values, values }) => {
                        *n_values == names.len() && values.len() == n_samples * n_values
                    }
                    _ => false,
                };
                rows.n_columns == shape.columns.len()
                    && rows.values.len() == n_samples.saturating_mul(rows.n_columns)
                    && is_of_target
            }
            (SampleKind::Ratings(shape), Samples::Ratings(ratings)) => {
                ratings.users.len() == n_samples
                    && ratings.items.len() == n_samples
                    && ratings.users.iter().all(|user| *user < shape.n_users)
                    && ratings.items.iter().all(|item| *item < shape.n_items)
            }
            _ => false,
        };
        is_such && n_samples > 0
    }

    /// Bytes of a shard's samples, decoded.
    pub fn raw_bytes(&self, entry: &ShardEntry) -> usize {
        self.sample_bytes().saturating_mul(entry.n_samples as usize)
    }
}

impl TableShape {
    fn validate(&self) -> Result<(), DatasetError> {
        let (names, max, wrong) = match &self.target {
            TableTarget::Class(names) => (names, 256, "it must name 1 to 256 classes"),
            TableTarget::Values(names) => (names, TARGETS_MAX, "1 to 64 values must be told of a row"),
        };
        if self.columns.is_empty() || self.columns.len() > COLUMNS_MAX {
            return Err(DatasetError::Manifest("a table must have 1 to 4096 columns"));
        }
        if names.is_empty() || names.len() > max {
            return Err(DatasetError::Manifest(wrong));
        }
        match self.columns.iter().chain(names).any(|name| name.len() > LABEL_BYTES_MAX) {
            true => Err(DatasetError::Manifest("a name of a column is longer than 256 bytes")),
            false => Ok(()),
        }
    }
}

impl TableRows {
    /// Number of rows.
    pub fn n_samples(&self) -> usize {
        self.values.len() / self.n_columns.max(1)
    }

    fn push(&mut self, from: &Self, index: usize) {
        let n_columns = from.n_columns;
        let Some(row) = from.values.get(index * n_columns..(index + 1) * n_columns) else { return };
        match (&mut self.targets, &from.targets) {
            (RowTargets::Classes(here), RowTargets::Classes(from)) => {
                let Some(&class) = from.get(index) else { return };
                here.push(class);
            }
            (
                RowTargets::Values { n_values: wanted, values: here },
                RowTargets::Values { n_values, values },
            ) if wanted == n_values => {
                let Some(values) = values.get(index * *n_values..(index + 1) * *n_values) else { return };
                here.extend_from_slice(values);
            }
            _ => return,
        }
        self.values.extend_from_slice(row);
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = float_bytes(&self.values);
        match &self.targets {
            RowTargets::Classes(labels) => bytes.extend_from_slice(labels),
            RowTargets::Values { values, .. } => bytes.extend(float_bytes(values)),
        }
        bytes
    }
}

impl Ratings {
    fn to_bytes(&self) -> Vec<u8> {
        let ids = self.users.iter().chain(&self.items).flat_map(|id| id.to_le_bytes());
        ids.chain(float_bytes(&self.ratings)).collect()
    }
}

impl LabelledImages {
    /// Number of pictures.
    pub fn n_samples(&self) -> usize {
        self.labels.len()
    }

    /// Values of one image.
    fn n_values(&self) -> usize {
        self.images.len() / self.labels.len().max(1)
    }
}

impl TokenSequences {
    /// The sequences, one after the other.
    pub fn sequences(&self) -> impl Iterator<Item = &[u32]> {
        self.ids.chunks_exact(usize::from(self.length).max(1))
    }

    /// The lower two bytes of all tokens, then the third ones: those of most vocabularies are 0, and nothing when compressed.
    fn to_bytes(&self) -> Vec<u8> {
        let bytes = || self.ids.iter().map(|id| id.to_le_bytes());
        bytes()
            .flat_map(|[low, middle, _, _]| [low, middle])
            .chain(bytes().map(|[_, _, high, _]| high))
            .collect()
    }
}

impl Samples {
    /// Number of samples.
    pub fn n_samples(&self) -> usize {
        match self {
            Self::Images(images) => images.n_samples(),
            Self::Tokens(tokens) => tokens.ids.len() / usize::from(tokens.length).max(1),
            Self::Rows(rows) => rows.n_samples(),
            Self::Ratings(ratings) => ratings.ratings.len(),
        }
    }

    /// No samples, of the same kind as these.
    pub fn none_of(&self) -> Self {
        match self {
            Self::Images(_) => Self::Images(LabelledImages::default()),
            Self::Tokens(tokens) => Self::Tokens(TokenSequences { length: tokens.length, ids: Vec::new() }),
            Self::Rows(rows) => {
                let targets = match rows.targets {
                    RowTargets::Classes(_) => RowTargets::Classes(Vec::new()),
                    RowTargets::Values { n_values, .. } => {
                        RowTargets::Values { n_values, values: Vec::new() }
                    }
                };
                Self::Rows(TableRows { n_columns: rows.n_columns, values: Vec::new(), targets })
            }
            Self::Ratings(_) => Self::Ratings(Ratings::default()),
        }
    }

    /// Appends sample `index` of `from`. Does nothing if `from` lacks it or has samples of another kind.
    pub fn push(&mut self, from: &Self, index: usize) {
        match (self, from) {
            (Self::Images(here), Self::Images(from)) => {
                let n_values = from.n_values();
                let image = from.images.get(index * n_values..(index + 1) * n_values);
                if let (Some(image), Some(&label)) = (image, from.labels.get(index)) {
                    here.images.extend_from_slice(image);
                    here.labels.push(label);
                }
            }
            (Self::Tokens(here), Self::Tokens(from)) if here.length == from.length => {
                let length = usize::from(from.length);
                if let Some(ids) = from.ids.get(index * length..(index + 1) * length) {
                    here.ids.extend_from_slice(ids);
                }
            }
            (Self::Rows(here), Self::Rows(from)) if here.n_columns == from.n_columns => {
                here.push(from, index);
            }
            (Self::Ratings(here), Self::Ratings(from)) => {
                let of = (from.users.get(index), from.items.get(index), from.ratings.get(index));
                if let (Some(&user), Some(&item), Some(&rating)) = of {
                    here.users.push(user);
                    here.items.push(item);
                    here.ratings.push(rating);
                }
            }
            _ => {}
        }
    }

    /// The samples without compression, as a shard has them.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Images(samples) => [samples.images.as_slice(), samples.labels.as_slice()].concat(),
            Self::Tokens(tokens) => tokens.to_bytes(),
            Self::Rows(rows) => rows.to_bytes(),
            Self::Ratings(ratings) => ratings.to_bytes(),
        }
    }

    /// Compresses the samples into a shard and gives its manifest entry.
    pub fn encode(&self) -> Result<(Vec<u8>, ShardEntry), DatasetError> {
        let raw = self.to_bytes();
        let mut bytes = Vec::new();
        ZlibEncoder::new(raw.as_slice(), Compression::best())
            .read_to_end(&mut bytes)
            .map_err(|error| DatasetError::Compression(error.to_string()))?;
        let too_large = |_| DatasetError::Manifest("a shard is larger than 4 GiB");
        let entry = ShardEntry {
            n_samples: u32::try_from(self.n_samples()).map_err(too_large)?,
            n_bytes: u32::try_from(bytes.len()).map_err(too_large)?,
            sha256: Sha256Hash::of(&bytes),
        };
        Ok((bytes, entry))
    }

    /// Checks the hash of a shard, decompresses at most the bytes that the manifest announces, and checks every
    /// label, token, id and number.
    pub fn decode(bytes: &[u8], entry: &ShardEntry, manifest: &Manifest) -> Result<Self, DatasetError> {
        entry.check(bytes)?;
        let want = manifest.raw_bytes(entry);
        if want > SHARD_RAW_BYTES_MAX {
            return Err(DatasetError::Manifest("a shard is larger than 64 MiB after decompression"));
        }
        let mut raw = Vec::new();
        ZlibDecoder::new(bytes)
            .take(want as u64 + 1)
            .read_to_end(&mut raw)
            .map_err(|error| DatasetError::Compression(error.to_string()))?;
        if raw.len() != want {
            return Err(DatasetError::Length { want, got: raw.len() });
        }
        match &manifest.samples {
            SampleKind::Images { class_names, .. } => images(raw, entry, class_names.len()).map(Self::Images),
            SampleKind::Tokens(shape) => tokens(&raw, *shape).map(Self::Tokens),
            SampleKind::Rows(shape) => rows(&raw, entry.n_samples as usize, shape).map(Self::Rows),
            SampleKind::Ratings(shape) => ratings(&raw, entry.n_samples as usize, *shape).map(Self::Ratings),
        }
    }
}

fn images(mut images: Vec<u8>, entry: &ShardEntry, n_classes: usize) -> Result<LabelledImages, DatasetError> {
    let labels = images.split_off(images.len().saturating_sub(entry.n_samples as usize));
    match labels.iter().find(|&&label| usize::from(label) >= n_classes) {
        Some(&label) => Err(DatasetError::Label { label, n_classes }),
        None => Ok(LabelledImages { images, labels }),
    }
}

fn tokens(raw: &[u8], shape: TokenShape) -> Result<TokenSequences, DatasetError> {
    let (pairs, upper) = raw.split_at(raw.len() / TOKEN_BYTES * 2);
    let of_bytes = |([low, middle], high): (&[u8; 2], &u8)| u32::from_le_bytes([*low, *middle, *high, 0]);
    let ids: Vec<u32> = pairs.as_chunks::<2>().0.iter().zip(upper).map(of_bytes).collect();
    match ids.iter().find(|&&id| id >= shape.vocabulary || Some(id) == shape.mask) {
        Some(&token) => Err(DatasetError::Token { token, vocabulary: shape.vocabulary }),
        None => Ok(TokenSequences { length: shape.length, ids }),
    }
}

fn rows(raw: &[u8], n_samples: usize, shape: &TableShape) -> Result<TableRows, DatasetError> {
    let n_columns = shape.columns.len();
    let (values, targets) = raw.split_at((VALUE_BYTES * n_columns * n_samples).min(raw.len()));
    let targets = match &shape.target {
        TableTarget::Class(names) => match targets.iter().find(|&&label| usize::from(label) >= names.len()) {
            Some(&label) => return Err(DatasetError::Label { label, n_classes: names.len() }),
            None => RowTargets::Classes(targets.to_vec()),
        },
        TableTarget::Values(names) => RowTargets::Values { n_values: names.len(), values: floats(targets)? },
    };
    Ok(TableRows { n_columns, values: floats(values)?, targets })
}

fn ratings(raw: &[u8], n_samples: usize, shape: RatingShape) -> Result<Ratings, DatasetError> {
    let (words, _) = raw.as_chunks::<VALUE_BYTES>();
    let ids = |from: usize, what, n| {
        let ids = words.iter().skip(from).take(n_samples).map(|bytes| u32::from_le_bytes(*bytes));
        let ids: Vec<u32> = ids.collect();
        match ids.iter().find(|&&id| id >= n) {
            Some(&got) => Err(DatasetError::Id { what, got, n }),
            None => Ok(ids),
        }
    };
    let (users, items) = (ids(0, "user", shape.n_users)?, ids(n_samples, "item", shape.n_items)?);
    let ratings = floats(raw.get(2 * VALUE_BYTES * n_samples..).unwrap_or_default())?;
    Ok(Ratings { users, items, ratings })
}

fn float_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Result<Vec<f32>, DatasetError> {
    let (words, _) = bytes.as_chunks::<VALUE_BYTES>();
    let values: Vec<f32> = words.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(DatasetError::NotFinite),
    }
}
