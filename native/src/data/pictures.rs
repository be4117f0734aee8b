//! Pictures of the operator's own: a folder, or an archive, with a folder for each class.
//!
//! Each PNG or JPEG is turned upright, scaled so that its middle fills the wanted size, and kept in RGB. Deterministic: the
//! same files, settings and seed give the same samples. Decoded pictures are kept in the cache, as decoding a folder of photos
//! takes minutes. Blocking: call it from a thread that may block.

mod archive;
#[cfg(test)]
mod fuzz;
mod packed;

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{
    ImageShape, LabelledImages, SampleKind, Samples, class_folder, class_of_folder,
};
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder as _, ImageReader, Limits};
use serde::{Deserialize, Serialize};

pub use self::archive::PictureArchiveError;
use super::file::{DataFile, DataFileError};
use super::{TrainingData, split};
use crate::part;

/// Endings of the files that are pictures, in lower case.
const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];
/// Most classes: a label is one byte.
pub const CLASSES_MAX: usize = 256;
/// Longest name of a class, in characters.
const CLASS_CHARS_MAX: usize = 100;
/// Red, green and blue.
const CHANNELS: u16 = 3;
/// Largest side of a picture that is decoded, in pixels.
const SIDE_MAX: u32 = 30_000;
/// Most bytes of all decoded pictures: they are in memory.
const BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Share of the pictures that may be broken, by default.
pub const BROKEN_SHARE: f64 = 0.05;
/// Raised when the same files give other samples.
const CACHE_VERSION: u32 = 2;

/// Where pictures are. There is a folder for each class, whose name is the class's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PictureSource {
    /// In a folder.
    Folder(PathBuf),
    /// In a ZIP file, or in a tar file, compressed or not.
    Archive(DataFile),
}

/// Pictures, and how they become samples.
#[derive(Debug, Clone, PartialEq)]
pub struct PictureSettings {
    /// Display name.
    pub name: String,
    /// Where they are.
    pub source: PictureSource,
    /// Height of a sample, in pixels.
    pub height: u16,
    /// Width of a sample, in pixels.
    pub width: u16,
    /// Share of each class that is held out, 0 to 1.
    pub held_out: f64,
    /// Share of the pictures that may be broken, 0 to 1.
    pub broken: f64,
    /// Seed of what is held out.
    pub seed: u64,
}

/// Why the pictures cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PicturesError {
    /// A folder cannot be read.
    #[error("{}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Not as many classes as a model can tell apart.
    #[error(
        "{pictures} has {got} folders with PNG or JPEG files; a folder for each class is wanted, 2 to {CLASSES_MAX} of them"
    )]
    Classes {
        /// Where they are.
        pictures: PictureSource,
        /// Folders with pictures.
        got: usize,
    },
    /// The name of a folder is no name for a class.
    #[error("{folder}: the folder's name is the class's, 1 to {CLASS_CHARS_MAX} characters")]
    ClassName {
        /// The folder.
        folder: String,
    },
    /// An archive is not here and cannot be fetched.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// An archive cannot be read.
    #[error("{file}: {source}")]
    Archive {
        /// The archive.
        file: DataFile,
        /// What is wrong with it.
        source: PictureArchiveError,
    },
    /// An archive has classes in several places.
    #[error(
        "{file} has pictures in {one:?} and in {other:?}, which are in different folders; one folder is wanted that has the \
         folder of each class"
    )]
    Roots {
        /// The archive.
        file: DataFile,
        /// A folder of pictures.
        one: String,
        /// One that does not lie beside it.
        other: String,
    },
    /// A folder whose class the run does not have.
    #[error("{}: the run has no class {name:?}; folders of its classes are {}", folder.display(), known.join(", "))]
    UnknownClass {
        /// The folder of folders.
        folder: PathBuf,
        /// Name of one of them.
        name: String,
        /// What the folders of the run's classes may be called.
        known: Vec<String>,
    },
    /// Too few pictures of a class to train on one and hold out another.
    #[error("the class {class:?} has {got} pictures that can be read, at least 2 are wanted")]
    TooFew {
        /// Its name.
        class: String,
        /// Pictures.
        got: usize,
    },
    /// Too many broken files to be a few bad ones.
    #[error(
        "{n_broken} of {n_pictures} pictures cannot be read, more than the share of {allowed} that `broken` allows; the \
         first is {first}: {reason}"
    )]
    Broken {
        /// Files that cannot be decoded.
        n_broken: usize,
        /// All files.
        n_pictures: usize,
        /// Share that may be broken.
        allowed: f64,
        /// The first of the broken ones.
        first: String,
        /// What is wrong with it.
        reason: String,
    },
    /// More than may be in memory.
    #[error(
        "{n_pictures} pictures of {height} by {width} pixels are {n_bytes} bytes, at most {BYTES_MAX} are supported"
    )]
    TooLarge {
        /// All files.
        n_pictures: usize,
        /// Of a sample.
        height: u16,
        /// Of a sample.
        width: u16,
        /// Of all samples.
        n_bytes: u64,
    },
}

/// A file, and the class that it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PictureFile {
    path: PathBuf,
    class: u8,
    n_bytes: u64,
    modified: Option<SystemTime>,
}

/// All pictures that can be read, in the order of their paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DecodedPictures {
    class_names: Vec<String>,
    /// `[n_pictures]`
    labels: Vec<u8>,
    /// `[n_pictures, height, width, 3]`
    #[serde(with = "serde_bytes")]
    images: Vec<u8>,
}

impl fmt::Display for PictureSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Archive(file) => file.fmt(f),
        }
    }
}

impl PictureSettings {
    /// Shape of a sample.
    pub fn shape(&self) -> ImageShape {
        ImageShape { height: self.height, width: self.width, channels: CHANNELS }
    }

    /// Reads the pictures, or takes what `cache` has of them, and holds some out.
    ///
    /// # Errors
    /// No folders with pictures, too few of a class, or too many that are broken.
    pub fn load(&self, cache: &Path) -> Result<TrainingData, PicturesError> {
        let decoded = self.decoded(cache)?;
        let class_names = decoded.class_names.clone();
        let (train, test) = self.split(decoded)?;
        Ok(TrainingData {
            name: self.name.clone(),
            kind: SampleKind::Images { shape: self.shape(), class_names },
            train: Samples::Images(train),
            test: Samples::Images(test),
            tokenizer: None,
            columns: None,
            stream: None,
        })
    }

    /// SHA-256 of all samples: it changes with each picture, name and size.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn content_hash(&self, cache: &Path) -> Result<Sha256Hash, PicturesError> {
        let decoded = self.decoded(cache)?;
        let mut bytes = decoded.class_names.join("\n").into_bytes();
        bytes.extend_from_slice(&Sha256Hash::of(&decoded.labels).0);
        bytes.extend_from_slice(&Sha256Hash::of(&decoded.images).0);
        Ok(Sha256Hash::of(&bytes))
    }

    fn decoded(&self, cache: &Path) -> Result<DecodedPictures, PicturesError> {
        match &self.source {
            PictureSource::Folder(folder) => {
                let (class_names, files) = self.files(folder)?;
                self.kept_or(cache, &files_key(&class_names, &files), || {
                    self.decode_files(class_names, &files, self.shape())
                })
            }
            PictureSource::Archive(file) => {
                let key = file.hash()?;
                self.kept_or(cache, &key.0, || self.decode_archive(file, &file.local(cache)?))
            }
        }
    }

    /// What an earlier start decoded of the same pictures, or else what `decode` does, which is kept.
    fn kept_or(
        &self,
        cache: &Path,
        key: &[u8],
        decode: impl FnOnce() -> Result<DecodedPictures, PicturesError>,
    ) -> Result<DecodedPictures, PicturesError> {
        let sizes = [CACHE_VERSION, self.height.into(), self.width.into()];
        let mut settings: Vec<u8> = sizes.into_iter().flat_map(u32::to_le_bytes).collect();
        settings.extend_from_slice(&self.broken.to_le_bytes());
        let key = Sha256Hash::of(&[&settings, key].concat());
        let kept = cache.join("pictures").join(format!("{key}.bin"));
        if let Some(decoded) = read_kept(&kept) {
            return Ok(decoded);
        }
        let decoded = decode()?;
        if let Err(error) = keep(&kept, &decoded) {
            tracing::warn!(file = %kept.display(), %error, "decoded pictures cannot be kept: the next start decodes them again");
        }
        Ok(decoded)
    }

    /// Names of the classes, and the files of all, both sorted.
    fn files(&self, folder: &Path) -> Result<(Vec<String>, Vec<PictureFile>), PicturesError> {
        let mut class_names = Vec::new();
        let mut files = Vec::new();
        for folder in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
            let pictures: Vec<PathBuf> =
                entries(&folder)?.into_iter().filter(|path| path.is_file() && is_picture(path)).collect();
            if pictures.is_empty() {
                continue;
            }
            let name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let class = next_class(&mut class_names, name, &folder.display().to_string())?;
            for path in pictures {
                let metadata = std::fs::metadata(&path);
                let metadata =
                    metadata.map_err(|source| PicturesError::Folder { path: path.clone(), source })?;
                let (n_bytes, modified) = (metadata.len(), metadata.modified().ok());
                files.push(PictureFile { path, class, n_bytes, modified });
            }
        }
        self.check_sizes(class_names.len(), files.len())?;
        Ok((class_names, files))
    }

    /// As many classes as a model can tell apart, and pictures that fit into memory.
    fn check_sizes(&self, n_classes: usize, n_pictures: usize) -> Result<(), PicturesError> {
        if !(2..=CLASSES_MAX).contains(&n_classes) {
            return Err(PicturesError::Classes { pictures: self.source.clone(), got: n_classes });
        }
        let n_bytes = n_pictures as u64 * self.shape().n_values() as u64;
        if n_bytes > BYTES_MAX {
            let (height, width) = (self.height, self.width);
            return Err(PicturesError::TooLarge { n_pictures, height, width, n_bytes });
        }
        Ok(())
    }

    fn decode_files(
        &self,
        class_names: Vec<String>,
        files: &[PictureFile],
        shape: ImageShape,
    ) -> Result<DecodedPictures, PicturesError> {
        tracing::info!(n_pictures = files.len(), n_classes = class_names.len(), "decoding pictures");
        let (mut labels, mut images) = (Vec::new(), Vec::new());
        let mut broken = Vec::new();
        let decoded = decode_all(files, |file| decode(&file.path, shape));
        for (file, picture) in files.iter().zip(decoded) {
            match picture {
                Ok(pixels) => {
                    labels.push(file.class);
                    images.extend_from_slice(&pixels);
                }
                Err(error) => broken.push((file.path.display().to_string(), error.to_string())),
            }
        }
        self.check_broken(broken, files.len())?;
        Ok(DecodedPictures { class_names, labels, images })
    }

    /// Logs each broken picture by its name and the reason; too many of them are an error.
    fn check_broken(&self, broken: Vec<(String, String)>, n_pictures: usize) -> Result<(), PicturesError> {
        for (file, reason) in &broken {
            tracing::warn!(%file, %reason, "a picture is left out: it cannot be read");
        }
        let (n_broken, allowed) = (broken.len(), self.broken);
        match broken.into_iter().next() {
            Some((first, reason)) if n_broken as f64 > allowed * n_pictures as f64 => {
                Err(PicturesError::Broken { n_broken, n_pictures, allowed, first, reason })
            }
            _ => Ok(()),
        }
    }

    /// Divides the pictures into those to train on and held-out ones, of each class its share.
    fn split(&self, decoded: DecodedPictures) -> Result<(LabelledImages, LabelledImages), PicturesError> {
        let all = LabelledImages { images: decoded.images, labels: decoded.labels };
        let (n_classes, n_values) = (decoded.class_names.len(), self.shape().n_values());
        split::by_class(&all, n_classes, n_values, self.held_out, self.seed).map_err(|few| {
            PicturesError::TooFew {
                class: decoded.class_names.get(few.class).cloned().unwrap_or_default(),
                got: few.got,
            }
        })
    }
}

/// Pictures of a run's classes that the run was not made of: a folder with a folder for each class.
///
/// # Errors
/// As [`PictureSettings::load`]; a class that the run does not have.
pub fn labelled(
    folder: &Path,
    shape: ImageShape,
    class_names: &[String],
) -> Result<LabelledImages, PicturesError> {
    let settings = PictureSettings {
        name: String::new(),
        source: PictureSource::Folder(folder.to_owned()),
        height: shape.height,
        width: shape.width,
        held_out: 0.0,
        broken: BROKEN_SHARE,
        seed: 0,
    };
    let (names, mut files) = settings.files(folder)?;
    let mut classes = Vec::with_capacity(names.len());
    for name in names {
        let Some(class) = class_of_folder(&name, class_names) else {
            let known = class_names.iter().map(|name| class_folder(name)).collect();
            return Err(PicturesError::UnknownClass { folder: folder.to_owned(), name, known });
        };
        classes.push(class);
    }
    files.iter_mut().for_each(|file| file.class = classes[usize::from(file.class)]);
    let decoded = settings.decode_files(Vec::new(), &files, shape)?;
    Ok(LabelledImages { images: decoded.images, labels: decoded.labels })
}

/// The pictures of a folder, or one picture: the paths of those that [`decode`] reads.
///
/// # Errors
/// A folder that cannot be read.
pub fn listed(path: &Path) -> Result<Vec<PathBuf>, PicturesError> {
    match path.is_dir() {
        true => Ok(entries(path)?.into_iter().filter(|path| path.is_file() && is_picture(path)).collect()),
        false => Ok(vec![path.to_owned()]),
    }
}

/// The picture of each file, `[height, width, channels]`, decoded by all processors.
fn decode_all<T: Sync>(
    files: &[T],
    decode: impl Fn(&T) -> Result<Vec<u8>, image::ImageError> + Sync,
) -> Vec<Result<Vec<u8>, image::ImageError>> {
    let n_threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let n_files = files.len().div_ceil(n_threads).max(1);
    let decode = &decode;
    std::thread::scope(|scope| {
        let decode = move |part: &[T]| part.iter().map(decode).collect::<Vec<_>>();
        let parts = files.chunks(n_files).map(|part| (part, scope.spawn(move || decode(part))));
        let parts: Vec<_> = parts.collect();
        // A decoder that panics fails its part: each file of it is named as broken.
        let joined = parts.into_iter().map(|(part, thread)| {
            thread.join().unwrap_or_else(|_| part.iter().map(|_| Err(panicked())).collect())
        });
        joined.flatten().collect()
    })
}

/// A picture as a sample: upright, its middle scaled to fill `[height, width, channels]`, of colours or grey.
///
/// # Errors
/// No picture, or one that is too large.
pub fn decode(path: &Path, shape: ImageShape) -> Result<Vec<u8>, image::ImageError> {
    decode_from(BufReader::new(File::open(path)?), shape)
}

fn decode_from(content: impl BufRead + Seek, shape: ImageShape) -> Result<Vec<u8>, image::ImageError> {
    let mut reader = ImageReader::new(content).with_guessed_format()?;
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(SIDE_MAX), Some(SIDE_MAX));
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let orientation = decoder.orientation()?;
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    let filled = picture.resize_to_fill(shape.width.into(), shape.height.into(), FilterType::Triangle);
    let colours = on_white(&filled);
    Ok(match shape.channels {
        CHANNELS => colours,
        _ => colours.as_chunks::<3>().0.iter().map(luma).collect(),
    })
}

/// Brightness of a colour (ITU-R BT.709).
fn luma([red, green, blue]: &[u8; 3]) -> u8 {
    let sum = 2126 * u32::from(*red) + 7152 * u32::from(*green) + 722 * u32::from(*blue);
    ((sum + 5000) / 10_000) as u8
}

/// Paths in a folder, sorted; hidden ones are none.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, PicturesError> {
    let failed = |source| PicturesError::Folder { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_picture(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
}

/// The label of the class of a folder.
fn next_class(class_names: &mut Vec<String>, name: &str, folder: &str) -> Result<u8, PicturesError> {
    let name = name.trim();
    if !(1..=CLASS_CHARS_MAX).contains(&name.chars().count()) {
        return Err(PicturesError::ClassName { folder: folder.to_owned() });
    }
    // More than a byte can count are refused afterwards.
    let class = u8::try_from(class_names.len()).unwrap_or(u8::MAX);
    class_names.push(name.to_owned());
    Ok(class)
}

/// Of all that the decoded pictures depend on, as far as it can be known without reading the files.
fn files_key(class_names: &[String], files: &[PictureFile]) -> Vec<u8> {
    let mut key = Vec::new();
    for name in class_names {
        key.extend_from_slice(&Sha256Hash::of(name.as_bytes()).0);
    }
    for file in files {
        key.extend_from_slice(&Sha256Hash::of(file.path.as_os_str().as_encoded_bytes()).0);
        key.extend_from_slice(&file.n_bytes.to_le_bytes());
        let age = file.modified.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        key.extend_from_slice(&age.unwrap_or_default().as_nanos().to_le_bytes());
    }
    key
}

/// Red, green and blue of each pixel; what is transparent shows white.
fn on_white(picture: &DynamicImage) -> Vec<u8> {
    let over = |value: u8, alpha: u8| {
        let (value, alpha) = (u32::from(value), u32::from(alpha));
        ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
    };
    let rgba = picture.to_rgba8();
    rgba.pixels()
        .flat_map(|pixel| {
            let [r, g, b, a] = pixel.0;
            [r, g, b].map(|value| over(value, a))
        })
        .collect()
}

fn panicked() -> image::ImageError {
    image::ImageError::IoError(io::Error::other("the decoder failed"))
}

/// What an earlier start decoded; `None` where there is nothing, or it is damaged.
fn read_kept(path: &Path) -> Option<DecodedPictures> {
    let bytes = std::fs::read(path).ok()?;
    let (content, hash) = bytes.split_last_chunk::<32>()?;
    if Sha256Hash::of(content).0 != *hash {
        return None;
    }
    postcard::from_bytes(content).ok()
}

fn keep(path: &Path, decoded: &DecodedPictures) -> io::Result<()> {
    let mut bytes = postcard::to_allocvec(decoded).map_err(io::Error::other)?;
    let hash = Sha256Hash::of(&bytes);
    bytes.extend_from_slice(&hash.0);
    part::write(path, &bytes)
}

#[cfg(test)]
mod tests;
