//! Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, MIT licence): 70,000 grey pictures of garments.
//!
//! Taken from the folder of Debian's `dataset-fashion-mnist` where it is installed, else from the
//! cache, else from the data set's public hosts. A file from any source is used only if, after
//! decompression, its length and SHA-256 are the known ones: gzip headers differ between sources, the
//! content does not.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{ImageShape, LabelledImages, SampleKind, Samples};
use flate2::read::GzDecoder;

use super::TrainingData;
use super::download::{DownloadError, download};
use super::idx::{self, IdxError};

/// Display name.
pub const NAME: &str = "Fashion-MNIST";
/// Where Debian's package puts the files.
pub const DEBIAN_FOLDER: &str = "/usr/share/datasets/fashion-mnist";
/// Public hosts of the files, tried in this order: the authors' repository, then the copy that Keras
/// downloads.
pub const BASE_URLS: [&str; 2] = [
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
];
/// Of each picture.
pub const IMAGE_SHAPE: ImageShape = ImageShape { height: 28, width: 28, channels: 1 };
/// In the order of the labels.
pub const CLASS_NAMES: [&str; 10] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];
/// Bytes that a gzip stream may have beyond its content: far more than gzip ever adds.
const GZIP_OVERHEAD_MAX: u64 = 1024 * 1024;

/// A file of the data set, before compression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSpec {
    /// Without `.gz`.
    pub name: String,
    /// Its length.
    pub n_bytes: u64,
    /// Its hash.
    pub sha256: Sha256Hash,
}

/// The four files of a data set in the layout of MNIST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSpecs {
    /// Training images.
    pub train_images: FileSpec,
    /// Training labels.
    pub train_labels: FileSpec,
    /// Held-out images.
    pub test_images: FileSpec,
    /// Held-out labels.
    pub test_labels: FileSpec,
}

/// Places to look for the files: only in the operator's folder where one is named; else in folders, then in the cache,
/// then at hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// The operator's folder, which excludes all other places.
    pub named: Option<PathBuf>,
    /// Folders that hold the files, compressed or not; never written to.
    pub folders: Vec<PathBuf>,
    /// Where downloads are kept.
    pub cache: PathBuf,
    /// Hosts, without the slash before the file's name.
    pub base_urls: Vec<String>,
}

/// The data set in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Shape of each image.
    pub shape: ImageShape,
    /// 60,000 samples to train on.
    pub train: LabelledImages,
    /// 10,000 held-out samples.
    pub test: LabelledImages,
}

/// Why a file at one place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Could not be read or decompressed.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// Cut short, or another file.
    #[error("{got} bytes after decompression, {want} were wanted")]
    Length {
        /// Known length.
        want: u64,
        /// Found; one more than `want` stands for all that is longer.
        got: u64,
    },
    /// Damaged, or another file.
    #[error("SHA-256 is {got}, {want} was wanted")]
    Hash {
        /// Known.
        want: Sha256Hash,
        /// Found.
        got: Sha256Hash,
    },
    /// Could not be fetched.
    #[error(transparent)]
    Download(#[from] DownloadError),
}

/// Why the data set could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// No place had the file undamaged.
    #[error("{file} could not be had:{}", attempts.iter().map(|a| format!("\n  {a}")).collect::<String>())]
    Unavailable {
        /// Its name.
        file: String,
        /// Each place that was tried, with its error.
        attempts: Vec<String>,
    },
    /// The folder that the operator named does not have it.
    #[error(
        "data.folder = {}: {file} {reason}. The four files of Fashion-MNIST are wanted there, compressed by gzip or not; \
         without data.folder they are fetched",
        folder.display()
    )]
    Named {
        /// The folder.
        folder: PathBuf,
        /// The file's name, without `.gz`.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The cache folder cannot be written.
    #[error("cache folder {}: {source}", folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The content is no IDX file, or two files do not belong together.
    #[error("{file}: {source}")]
    Idx {
        /// Its name.
        file: String,
        /// What was wrong.
        source: IdxError,
    },
    /// A size that shards cannot have.
    #[error("{file}: images of {rows} by {columns} pixels, at most 65535 each are supported")]
    Shape {
        /// Its name.
        file: String,
        /// Of an image.
        rows: usize,
        /// Of an image.
        columns: usize,
    },
    /// A label without a class.
    #[error("{file}: label {got}, the data set has {} classes", CLASS_NAMES.len())]
    Label {
        /// Its name.
        file: String,
        /// What was found.
        got: u8,
    },
}

impl FileSpecs {
    /// The files of Fashion-MNIST. Lengths and hashes are those of Debian's package
    /// `dataset-fashion-mnist` 0.0~git20200523.55506a9-1, after decompression.
    pub fn fashion_mnist() -> Self {
        let spec = |name: &str, n_bytes, sha256| FileSpec { name: name.to_owned(), n_bytes, sha256 };
        Self {
            train_images: spec("train-images-idx3-ubyte", 47_040_016, Sha256Hash(TRAIN_IMAGES_SHA256)),
            train_labels: spec("train-labels-idx1-ubyte", 60_008, Sha256Hash(TRAIN_LABELS_SHA256)),
            test_images: spec("t10k-images-idx3-ubyte", 7_840_016, Sha256Hash(TEST_IMAGES_SHA256)),
            test_labels: spec("t10k-labels-idx1-ubyte", 10_008, Sha256Hash(TEST_LABELS_SHA256)),
        }
    }
}

impl Sources {
    /// Debian's folder, then `cache`, then the public hosts.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            named: None,
            folders: vec![PathBuf::from(DEBIAN_FOLDER)],
            cache,
            base_urls: BASE_URLS.map(str::to_owned).into(),
        }
    }
}

impl Dataset {
    /// Reads the four files from wherever they are. Blocking.
    pub fn load(sources: &Sources, specs: &FileSpecs) -> Result<Self, DataError> {
        let (shape, train) = load_part(sources, &specs.train_images, &specs.train_labels)?;
        let (test_shape, test) = load_part(sources, &specs.test_images, &specs.test_labels)?;
        if test_shape != shape {
            let (rows, columns) = (test_shape.height.into(), test_shape.width.into());
            return Err(DataError::Shape { file: specs.test_images.name.clone(), rows, columns });
        }
        Ok(Self { shape, train, test })
    }
}

impl From<Dataset> for TrainingData {
    fn from(dataset: Dataset) -> Self {
        let class_names = CLASS_NAMES.map(str::to_owned).into();
        Self {
            name: NAME.to_owned(),
            kind: SampleKind::Images { shape: dataset.shape, class_names },
            train: Samples::Images(dataset.train),
            test: Samples::Images(dataset.test),
            vocabulary: None,
            columns: None,
        }
    }
}

fn load_part(
    sources: &Sources,
    images_spec: &FileSpec,
    labels_spec: &FileSpec,
) -> Result<(ImageShape, LabelledImages), DataError> {
    let images_file = load_file(sources, images_spec)?;
    let labels_file = load_file(sources, labels_spec)?;
    let idx = |spec: &FileSpec| {
        let file = spec.name.clone();
        |source| DataError::Idx { file, source }
    };
    let ([n_images, rows, columns], images) = idx::parse::<3>(&images_file).map_err(idx(images_spec))?;
    let ([n_labels], labels) = idx::parse::<1>(&labels_file).map_err(idx(labels_spec))?;
    if n_images != n_labels {
        return Err(idx(labels_spec)(IdxError::Counts { n_images, n_labels }));
    }
    if let Some(&got) = labels.iter().find(|&&label| usize::from(label) >= CLASS_NAMES.len()) {
        return Err(DataError::Label { file: labels_spec.name.clone(), got });
    }
    let (Ok(height), Ok(width)) = (u16::try_from(rows), u16::try_from(columns)) else {
        return Err(DataError::Shape { file: images_spec.name.clone(), rows, columns });
    };
    let shape = ImageShape { height, width, channels: 1 };
    Ok((shape, LabelledImages { images: images.to_vec(), labels: labels.to_vec() }))
}

/// The content of one file, whole and checked, from the first place that has it.
fn load_file(sources: &Sources, spec: &FileSpec) -> Result<Vec<u8>, DataError> {
    let mut attempts = Vec::new();
    let compressed = format!("{}.gz", spec.name);
    if let Some(folder) = &sources.named {
        return read_named(folder, &compressed, spec);
    }
    let cached = sources.cache.join(&compressed);
    let installed = sources.folders.iter().flat_map(|dir| [dir.join(&compressed), dir.join(&spec.name)]);
    for path in installed.chain([cached.clone()]).filter(|path| path.exists()) {
        match read_checked(&path, spec) {
            Ok(bytes) => return Ok(bytes),
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "broken data file, fetching it again");
                attempts.push(format!("{}: {error}", path.display()));
            }
        }
    }
    let cache = |source| DataError::Cache { folder: sources.cache.clone(), source };
    std::fs::create_dir_all(&sources.cache).map_err(cache)?;
    // The process id keeps two programs that share the cache from writing into one file.
    let part = sources.cache.join(format!("{compressed}.part-{}", std::process::id()));
    for base_url in &sources.base_urls {
        let url = format!("{base_url}/{compressed}");
        match fetch(&url, &part, &cached, spec) {
            Ok(bytes) => return Ok(bytes),
            Err(error) => {
                tracing::warn!(%url, %error, "data file could not be fetched");
                attempts.push(format!("{url}: {error}"));
            }
        }
    }
    Err(DataError::Unavailable { file: spec.name.clone(), attempts })
}

/// The content of one file of the operator's folder.
fn read_named(folder: &Path, compressed: &str, spec: &FileSpec) -> Result<Vec<u8>, DataError> {
    let named = |reason| DataError::Named { folder: folder.to_owned(), file: spec.name.clone(), reason };
    let there = [folder.join(compressed), folder.join(&spec.name)].into_iter().find(|path| path.exists());
    let path = there.ok_or_else(|| named("is not there".to_owned()))?;
    read_checked(&path, spec).map_err(|error| named(format!("is another one: {error}")))
}

/// Downloads to `part`, checks it, and only then gives it its name in the cache.
fn fetch(url: &str, part: &Path, cached: &Path, spec: &FileSpec) -> Result<Vec<u8>, FileError> {
    tracing::info!(%url, "fetching data file");
    let result = download(url, part, spec.n_bytes + GZIP_OVERHEAD_MAX)
        .map_err(FileError::from)
        .and_then(|_| read_checked(part, spec))
        .and_then(|bytes| std::fs::rename(part, cached).map(|()| bytes).map_err(FileError::from));
    if result.is_err() && part.exists() {
        std::fs::remove_file(part)?;
    }
    result
}

/// Reads at most one byte more than the file should have, through gzip where it is gzip.
fn read_checked(path: &Path, spec: &FileSpec) -> Result<Vec<u8>, FileError> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    let limit = spec.n_bytes + 1;
    // `x.gz.part-7` is compressed as `x.gz` is.
    if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".gz")) {
        GzDecoder::new(io::BufReader::new(file)).take(limit).read_to_end(&mut bytes)?;
    } else {
        file.by_ref().take(limit).read_to_end(&mut bytes)?;
    }
    let got = bytes.len() as u64;
    if got != spec.n_bytes {
        return Err(FileError::Length { want: spec.n_bytes, got });
    }
    let got = Sha256Hash::of(&bytes);
    if got != spec.sha256 {
        return Err(FileError::Hash { want: spec.sha256, got });
    }
    Ok(bytes)
}

const TRAIN_IMAGES_SHA256: [u8; 32] = hex("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888");
const TRAIN_LABELS_SHA256: [u8; 32] = hex("bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9");
const TEST_IMAGES_SHA256: [u8; 32] = hex("5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b");
const TEST_LABELS_SHA256: [u8; 32] = hex("0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34");

/// Reads a hash that is written in this file, when it is compiled.
const fn hex(text: &str) -> [u8; 32] {
    let digits = text.as_bytes();
    assert!(digits.len() == 64, "a SHA-256 hash is 64 hexadecimal digits");
    let mut bytes = [0; 32];
    let mut i = 0;
    while i < 32 {
        bytes[i] = digit(digits[2 * i]) * 16 + digit(digits[2 * i + 1]);
        i += 1;
    }
    bytes
}

const fn digit(digit: u8) -> u8 {
    assert!(matches!(digit, b'0'..=b'9' | b'a'..=b'f'), "a hash is written in lower-case hexadecimal digits");
    if digit <= b'9' { digit - b'0' } else { digit - b'a' + 10 }
}
