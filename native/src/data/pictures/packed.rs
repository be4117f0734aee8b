//! The pictures of an archive as samples: they come in the order of the archive, and each is decoded into its place, which is
//! the one that it has in a folder.

use std::collections::BTreeMap;
use std::io::{self, Cursor};
use std::path::Path;

use barnraise_protocol::dataset::ImageShape;

use super::{
    DecodedPictures, PictureArchiveError, PictureSettings, PicturesError, archive, decode_all, decode_from,
    is_picture, next_class,
};
use crate::data::file::DataFile;

/// Most bytes of pictures that were read and wait for being decoded.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most of these pictures.
const WAITING_MAX: usize = 1024;

/// Where the pictures of an archive belong.
struct PicturePlaces {
    class_names: Vec<String>,
    /// Place and label of each picture by its name.
    of: BTreeMap<String, (usize, u8)>,
}

/// Pictures that are decoded while an archive is read.
struct PlacedPictures {
    shape: ImageShape,
    /// `[n_pictures, height, width, channels]`
    images: Vec<u8>,
    /// Of each picture that cannot be read the reason.
    reasons: Vec<Option<String>>,
    /// Files that were read, with their places.
    waiting: Vec<(usize, Vec<u8>)>,
    n_waiting_bytes: usize,
}

impl PictureSettings {
    /// Reads an archive twice: for the names, which tell classes and places, and for the pictures.
    pub(super) fn decode_archive(
        &self,
        file: &DataFile,
        path: &Path,
    ) -> Result<DecodedPictures, PicturesError> {
        let failed = |source: PictureArchiveError| PicturesError::Archive { file: file.clone(), source };
        let places = self.places(file, archive::names(path).map_err(failed)?)?;
        let n_pictures = places.of.len();
        tracing::info!(n_pictures, n_classes = places.class_names.len(), "decoding pictures");
        let mut pictures = PlacedPictures::none_of(n_pictures, self.shape());
        let read = |name: &str, content| {
            if let Some((place, _)) = places.of.get(name) {
                pictures.push(*place, content);
            }
        };
        archive::contents(path, |name| places.of.contains_key(name), read).map_err(failed)?;
        let (decoded, broken) = pictures.finish(places);
        let broken = broken.into_iter().map(|(name, reason)| (format!("{name} in {file}"), reason));
        self.check_broken(broken.collect(), n_pictures)?;
        Ok(decoded)
    }

    /// The names of classes and pictures, sorted as a folder is.
    fn places(&self, file: &DataFile, names: Vec<String>) -> Result<PicturePlaces, PicturesError> {
        let mut by_folder: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in names.into_iter().filter(|name| is_picture(Path::new(name)) && !is_hidden(name)) {
            if let Some((folder, _)) = name.rsplit_once('/') {
                by_folder.entry(folder.to_owned()).or_default().push(name);
            }
        }
        let (mut class_names, mut of) = (Vec::new(), BTreeMap::new());
        let root = |folder: &str| folder.rsplit_once('/').map(|(root, _)| root.to_owned());
        let first = by_folder.keys().next().cloned().unwrap_or_default();
        for (folder, mut names) in by_folder {
            if root(&folder) != root(&first) {
                return Err(PicturesError::Roots { file: file.clone(), one: first, other: folder });
            }
            let name = folder.rsplit('/').next().unwrap_or_default();
            let class = next_class(&mut class_names, name, &format!("{folder} in {file}"))?;
            // A later entry of the same name takes the place of an earlier one.
            names.sort_unstable();
            names.dedup();
            for name in names {
                of.insert(name, (of.len(), class));
            }
        }
        self.check_sizes(class_names.len(), of.len())?;
        Ok(PicturePlaces { class_names, of })
    }
}

impl PlacedPictures {
    fn none_of(n_pictures: usize, shape: ImageShape) -> Self {
        Self {
            shape,
            images: vec![0; n_pictures * shape.n_values()],
            reasons: vec![None; n_pictures],
            waiting: Vec::new(),
            n_waiting_bytes: 0,
        }
    }

    /// Takes the file of a picture, or why it cannot be read.
    fn push(&mut self, place: usize, content: io::Result<Vec<u8>>) {
        match content {
            Ok(bytes) => {
                self.n_waiting_bytes += bytes.len();
                self.waiting.push((place, bytes));
            }
            Err(error) => self.reasons[place] = Some(error.to_string()),
        }
        if self.n_waiting_bytes > WAITING_BYTES_MAX || self.waiting.len() >= WAITING_MAX {
            self.decode_waiting();
        }
    }

    fn decode_waiting(&mut self) {
        let (shape, n_values) = (self.shape, self.shape.n_values());
        let waiting = std::mem::take(&mut self.waiting);
        let decoded = decode_all(&waiting, |(_, bytes)| decode_from(Cursor::new(bytes), shape));
        for ((place, _), picture) in waiting.into_iter().zip(decoded) {
            match picture {
                Ok(pixels) => {
                    self.images[place * n_values..(place + 1) * n_values].copy_from_slice(&pixels);
                    self.reasons[place] = None;
                }
                Err(error) => self.reasons[place] = Some(error.to_string()),
            }
        }
        self.n_waiting_bytes = 0;
    }

    /// The pictures that could be read, in their order, and name and reason of each that could not.
    fn finish(mut self, places: PicturePlaces) -> (DecodedPictures, Vec<(String, String)>) {
        self.decode_waiting();
        let n_values = self.shape.n_values();
        let mut in_order: Vec<(String, (usize, u8))> = places.of.into_iter().collect();
        in_order.sort_unstable_by_key(|(_, (place, _))| *place);
        let (mut labels, mut broken) = (Vec::new(), Vec::new());
        for ((name, (place, class)), reason) in in_order.into_iter().zip(self.reasons) {
            match reason {
                Some(reason) => broken.push((name, reason)),
                None => {
                    // What is behind broken ones moves up.
                    let pixels = place * n_values..(place + 1) * n_values;
                    self.images.copy_within(pixels, labels.len() * n_values);
                    labels.push(class);
                }
            }
        }
        self.images.truncate(labels.len() * n_values);
        (DecodedPictures { class_names: places.class_names, labels, images: self.images }, broken)
    }
}

/// Whether a part of the name is hidden, leads upwards, or is what a Mac adds to an archive.
fn is_hidden(name: &str) -> bool {
    name.split('/').any(|part| (part.starts_with('.') && part != ".") || part == "__MACOSX")
}
