//! Pictures of the operator's own: a folder with a folder for each class.
//!
//! Each PNG or JPEG is turned upright, scaled so that its middle fills the wanted size, and kept in RGB. Deterministic: the
//! same files, settings and seed give the same samples. Decoded pictures are kept in the cache, as decoding a folder of photos
//! takes minutes. Blocking: call it from a thread that may block.

use std::ffi::OsStr;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{ImageShape, LabelledImages, SampleKind, Samples};
use barnraise_swarm::random::SplitMix64;
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder as _, ImageReader, Limits};
use serde::{Deserialize, Serialize};

use super::TrainingData;

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
/// One of so many pictures may be broken.
const BROKEN_PART: usize = 20;
/// Raised when the same files give other samples.
const CACHE_VERSION: u32 = 1;

/// A folder of pictures, and how they become samples.
#[derive(Debug, Clone, PartialEq)]
pub struct PictureSettings {
    /// Display name.
    pub name: String,
    /// It has a folder for each class, whose name is the class's.
    pub folder: PathBuf,
    /// Height of a sample, in pixels.
    pub height: u16,
    /// Width of a sample, in pixels.
    pub width: u16,
    /// Share of each class that is held out, 0 to 1.
    pub held_out: f64,
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
        "{} has {got} folders with PNG or JPEG files; a folder for each class is wanted, 2 to {CLASSES_MAX} of them",
        folder.display()
    )]
    Classes {
        /// The folder.
        folder: PathBuf,
        /// Folders with pictures.
        got: usize,
    },
    /// The name of a folder is no name for a class.
    #[error("{}: the folder's name is the class's, 1 to {CLASS_CHARS_MAX} characters", path.display())]
    ClassName {
        /// The folder.
        path: PathBuf,
    },
    /// A folder whose class the run does not have.
    #[error("{}: the run has no class {name:?}; it has {}", folder.display(), known.join(", "))]
    UnknownClass {
        /// The folder of folders.
        folder: PathBuf,
        /// Name of one of them.
        name: String,
        /// The run's classes.
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
        "{n_broken} of {n_pictures} pictures cannot be read, more than one in {BROKEN_PART}; the first is {}: {reason}",
        first.display()
    )]
    Broken {
        /// Files that cannot be decoded.
        n_broken: usize,
        /// All files.
        n_pictures: usize,
        /// The first of the broken ones.
        first: PathBuf,
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
        let (train, test) = self.split(&decoded)?;
        Ok(TrainingData {
            name: self.name.clone(),
            kind: SampleKind::Images { shape: self.shape(), class_names: decoded.class_names },
            train: Samples::Images(train),
            test: Samples::Images(test),
            vocabulary: None,
            columns: None,
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
        let (class_names, files) = self.files()?;
        let kept = cache.join("pictures").join(format!("{}.bin", self.cache_key(&class_names, &files)));
        if let Some(decoded) = read_kept(&kept) {
            return Ok(decoded);
        }
        let decoded = self.decode_as(class_names, &files, self.shape())?;
        if let Err(error) = keep(&kept, &decoded) {
            tracing::warn!(file = %kept.display(), %error, "decoded pictures cannot be kept: the next start decodes them again");
        }
        Ok(decoded)
    }

    /// Names of the classes, and the files of all, both sorted.
    fn files(&self) -> Result<(Vec<String>, Vec<PictureFile>), PicturesError> {
        let mut class_names = Vec::new();
        let mut files = Vec::new();
        for folder in entries(&self.folder)?.into_iter().filter(|path| path.is_dir()) {
            let pictures: Vec<PathBuf> =
                entries(&folder)?.into_iter().filter(|path| is_picture(path)).collect();
            if pictures.is_empty() {
                continue;
            }
            let name = folder.file_name().and_then(OsStr::to_str).map(str::trim).unwrap_or_default();
            if !(1..=CLASS_CHARS_MAX).contains(&name.chars().count()) {
                return Err(PicturesError::ClassName { path: folder });
            }
            // More than a byte can count are refused below.
            let class = u8::try_from(class_names.len()).unwrap_or(u8::MAX);
            class_names.push(name.to_owned());
            for path in pictures {
                let metadata = std::fs::metadata(&path);
                let metadata =
                    metadata.map_err(|source| PicturesError::Folder { path: path.clone(), source })?;
                let (n_bytes, modified) = (metadata.len(), metadata.modified().ok());
                files.push(PictureFile { path, class, n_bytes, modified });
            }
        }
        let got = class_names.len();
        if !(2..=CLASSES_MAX).contains(&got) {
            return Err(PicturesError::Classes { folder: self.folder.clone(), got });
        }
        let n_bytes = files.len() as u64 * self.shape().n_values() as u64;
        if n_bytes > BYTES_MAX {
            let (n_pictures, height, width) = (files.len(), self.height, self.width);
            return Err(PicturesError::TooLarge { n_pictures, height, width, n_bytes });
        }
        Ok((class_names, files))
    }

    /// Of all that the decoded pictures depend on, as far as it can be known without reading the files.
    fn cache_key(&self, class_names: &[String], files: &[PictureFile]) -> Sha256Hash {
        let sizes = [CACHE_VERSION, self.height.into(), self.width.into()];
        let mut key: Vec<u8> = sizes.into_iter().flat_map(u32::to_le_bytes).collect();
        for name in class_names {
            key.extend_from_slice(&Sha256Hash::of(name.as_bytes()).0);
        }
        for file in files {
            key.extend_from_slice(&Sha256Hash::of(file.path.as_os_str().as_encoded_bytes()).0);
            key.extend_from_slice(&file.n_bytes.to_le_bytes());
            let age = file.modified.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            key.extend_from_slice(&age.unwrap_or_default().as_nanos().to_le_bytes());
        }
        Sha256Hash::of(&key)
    }

    fn decode_as(
        &self,
        class_names: Vec<String>,
        files: &[PictureFile],
        shape: ImageShape,
    ) -> Result<DecodedPictures, PicturesError> {
        tracing::info!(n_pictures = files.len(), n_classes = class_names.len(), "decoding pictures");
        let (mut labels, mut images) = (Vec::new(), Vec::new());
        let mut broken: Vec<(&PictureFile, String)> = Vec::new();
        for (file, picture) in files.iter().zip(decode_all(files, shape)) {
            match picture {
                Ok(pixels) => {
                    labels.push(file.class);
                    images.extend_from_slice(&pixels);
                }
                Err(error) => broken.push((file, error.to_string())),
            }
        }
        for (file, reason) in &broken {
            tracing::warn!(file = %file.path.display(), %reason, "a picture is left out: it cannot be read");
        }
        let (n_broken, n_pictures) = (broken.len(), files.len());
        match broken.into_iter().next() {
            Some((file, reason)) if n_broken * BROKEN_PART > n_pictures => {
                Err(PicturesError::Broken { n_broken, n_pictures, first: file.path.clone(), reason })
            }
            _ => Ok(DecodedPictures { class_names, labels, images }),
        }
    }

    /// Divides the pictures into those to train on and held-out ones, of each class its share.
    fn split(&self, decoded: &DecodedPictures) -> Result<(LabelledImages, LabelledImages), PicturesError> {
        let (mut train, mut test) = (LabelledImages::default(), LabelledImages::default());
        let n_values = self.shape().n_values();
        for (class, name) in decoded.class_names.iter().enumerate() {
            let of_class = |&(_, &label): &(usize, &u8)| usize::from(label) == class;
            let mut members: Vec<usize> =
                decoded.labels.iter().enumerate().filter(of_class).map(|(index, _)| index).collect();
            if members.len() < 2 {
                return Err(PicturesError::TooFew { class: name.clone(), got: members.len() });
            }
            SplitMix64::new(self.seed.wrapping_add(class as u64)).shuffle(&mut members);
            let n_test = (members.len() as f64 * self.held_out).round() as usize;
            let n_test = n_test.clamp(1, members.len() - 1);
            for (place, &index) in members.iter().enumerate() {
                let part = if place < n_test { &mut test } else { &mut train };
                let pixels = decoded.images.get(index * n_values..(index + 1) * n_values);
                part.images.extend_from_slice(pixels.unwrap_or_default());
                part.labels.push(class as u8);
            }
        }
        Ok((train, test))
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
    let (height, width) = (shape.height, shape.width);
    let (name, held_out) = (String::new(), 0.0);
    let settings = PictureSettings { name, folder: folder.to_owned(), height, width, held_out, seed: 0 };
    let (names, mut files) = settings.files()?;
    let mut classes = Vec::with_capacity(names.len());
    for name in names {
        let Some(class) = class_names.iter().position(|known| *known == name) else {
            let (folder, known) = (folder.to_owned(), class_names.to_vec());
            return Err(PicturesError::UnknownClass { folder, name, known });
        };
        classes.push(class as u8);
    }
    files.iter_mut().for_each(|file| file.class = classes[usize::from(file.class)]);
    let decoded = settings.decode_as(Vec::new(), &files, shape)?;
    Ok(LabelledImages { images: decoded.images, labels: decoded.labels })
}

/// The pictures of a folder, or one picture: the paths of those that [`decode`] reads.
///
/// # Errors
/// A folder that cannot be read.
pub fn listed(path: &Path) -> Result<Vec<PathBuf>, PicturesError> {
    match path.is_dir() {
        true => Ok(entries(path)?.into_iter().filter(|path| is_picture(path)).collect()),
        false => Ok(vec![path.to_owned()]),
    }
}

/// Each file's picture, `[height, width, channels]`, decoded by all processors.
fn decode_all(files: &[PictureFile], shape: ImageShape) -> Vec<Result<Vec<u8>, image::ImageError>> {
    let n_threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let n_files = files.len().div_ceil(n_threads).max(1);
    std::thread::scope(|scope| {
        let decode =
            |part: &[PictureFile]| part.iter().map(|file| decode(&file.path, shape)).collect::<Vec<_>>();
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
    let mut reader = ImageReader::open(path)?.with_guessed_format()?;
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
    path.is_file() && ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
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
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // The process id keeps two programs that share the cache from writing into one file.
    let part = path.with_extension(format!("part-{}", std::process::id()));
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use image::{ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};

    use super::*;

    const RED: Rgb<u8> = Rgb([250, 10, 10]);
    const BLUE: Rgb<u8> = Rgb([10, 10, 250]);

    fn picture(path: &Path, (width, height): (u32, u32), colour: Rgb<u8>, format: ImageFormat) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        RgbImage::from_pixel(width, height, colour).save_with_format(path, format).unwrap();
    }

    fn settings(folder: &Path) -> PictureSettings {
        PictureSettings {
            name: "Mugs".into(),
            folder: folder.to_owned(),
            height: 12,
            width: 16,
            held_out: 0.2,
            seed: 3,
        }
    }

    /// Ten red and ten blue pictures of many sizes and both formats.
    fn red_and_blue(folder: &Path) {
        for n in 0..10 {
            let size = (20 + 7 * n, 90 - 5 * n);
            picture(&folder.join(format!("red/{n}.png")), size, RED, ImageFormat::Png);
            picture(&folder.join(format!("blue/{n}.JPG")), size, BLUE, ImageFormat::Jpeg);
        }
        std::fs::write(folder.join("notes.txt"), "no picture").unwrap();
        std::fs::create_dir(folder.join("empty")).unwrap();
    }

    fn images(samples: &Samples) -> &LabelledImages {
        let Samples::Images(images) = samples else { panic!("no pictures") };
        images
    }

    #[test]
    fn a_folder_for_each_class_becomes_samples_of_one_size() {
        let folder = tempfile::tempdir().unwrap();
        red_and_blue(folder.path());
        let cache = tempfile::tempdir().unwrap();
        let data = settings(folder.path()).load(cache.path()).unwrap();
        let SampleKind::Images { shape, class_names } = &data.kind else { panic!("no pictures") };
        assert_eq!((shape.height, shape.width, shape.channels), (12, 16, 3));
        assert_eq!(class_names, &["blue", "red"], "sorted");
        let (train, test) = (images(&data.train), images(&data.test));
        assert_eq!((train.labels.len(), test.labels.len()), (16, 4));
        assert_eq!(train.labels.iter().filter(|&&label| label == 0).count(), 8);
        for (pixels, label) in train.images.chunks(shape.n_values()).zip(&train.labels) {
            let want = if *label == 0 { BLUE } else { RED };
            let is_near = |(got, want): (&u8, &u8)| got.abs_diff(*want) < 12;
            assert!(pixels.iter().zip(want.0.iter().cycle()).all(is_near), "{label}");
        }
        // From the cache, and without it.
        let again = settings(folder.path()).load(cache.path()).unwrap();
        assert_eq!(again, data);
        let elsewhere = tempfile::tempdir().unwrap();
        assert_eq!(settings(folder.path()).load(elsewhere.path()).unwrap(), data);
        let other = PictureSettings { held_out: 0.5, ..settings(folder.path()) };
        assert_eq!(images(&other.load(cache.path()).unwrap().test).labels.len(), 10);
    }

    #[test]
    fn a_cache_that_is_damaged_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        red_and_blue(folder.path());
        let cache = tempfile::tempdir().unwrap();
        let data = settings(folder.path()).load(cache.path()).unwrap();
        let kept = entries(&cache.path().join("pictures")).unwrap().remove(0);
        let mut bytes = std::fs::read(&kept).unwrap();
        bytes[200] ^= 1;
        std::fs::write(&kept, bytes).unwrap();
        assert_eq!(settings(folder.path()).load(cache.path()).unwrap(), data);
    }

    #[test]
    fn the_hash_follows_the_pictures_and_not_the_time_of_their_files() {
        let folder = tempfile::tempdir().unwrap();
        red_and_blue(folder.path());
        let cache = tempfile::tempdir().unwrap();
        let hash = || settings(folder.path()).content_hash(cache.path()).unwrap();
        let before = hash();
        let file = std::fs::File::options().append(true).open(folder.path().join("red/3.png")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(hash(), before);
        picture(&folder.path().join("red/3.png"), (30, 30), BLUE, ImageFormat::Png);
        assert_ne!(hash(), before);
    }

    #[test]
    fn a_few_broken_files_are_left_out_and_many_are_an_error_that_names_the_first() {
        let folder = tempfile::tempdir().unwrap();
        red_and_blue(folder.path());
        let cache = tempfile::tempdir().unwrap();
        for name in ["a.png", "b.png"] {
            std::fs::write(folder.path().join("blue").join(name), b"this is no picture").unwrap();
        }
        let error = settings(folder.path()).load(cache.path()).unwrap_err().to_string();
        assert!(error.contains("2 of 22 pictures") && error.contains("a.png"), "{error}");
        for n in 10..30 {
            picture(&folder.path().join(format!("red/{n}.png")), (20, 20), RED, ImageFormat::Png);
        }
        let data = settings(folder.path()).load(cache.path()).unwrap();
        assert_eq!(data.train.n_samples() + data.test.n_samples(), 40);
    }

    #[test]
    fn what_is_no_folder_of_classes_says_what_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let load = || settings(folder.path()).load(folder.path()).unwrap_err().to_string();
        assert!(
            load().contains("has 0 folders with PNG or JPEG files; a folder for each class"),
            "{}",
            load()
        );
        picture(&folder.path().join("red/1.png"), (9, 9), RED, ImageFormat::Png);
        assert!(load().contains("has 1 folders"), "{}", load());
        picture(&folder.path().join("blue/1.png"), (9, 9), BLUE, ImageFormat::Png);
        assert!(load().contains("\"blue\" has 1 pictures"), "{}", load());
        let none = settings(&folder.path().join("nowhere")).load(folder.path()).unwrap_err().to_string();
        assert!(none.contains("nowhere"), "{none}");
    }

    #[test]
    fn what_is_transparent_is_white() {
        let clear = RgbaImage::from_pixel(4, 4, Rgba([9, 9, 9, 0]));
        assert!(on_white(&DynamicImage::ImageRgba8(clear)).iter().all(|&value| value == 255));
        let solid = RgbaImage::from_pixel(4, 4, Rgba([9, 8, 7, 255]));
        assert_eq!(on_white(&DynamicImage::ImageRgba8(solid))[..3], [9, 8, 7]);
    }
}
