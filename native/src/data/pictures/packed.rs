//! The pictures of an archive as samples: they come in the order of the archive, and each is decoded into its place, which is
//! the one that it has in a folder.

use std::collections::BTreeMap;
use std::io::{self, Cursor};
use std::path::Path;

use barnraise_protocol::dataset::ImageShape;

use super::archive::ArchiveListing;
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
    /// Places of each content of the archive: of several where there are hard links to it.
    of_content: BTreeMap<usize, Vec<usize>>,
}

/// Pictures that are decoded while an archive is read.
struct PlacedPictures {
    shape: ImageShape,
    /// `[n_pictures, height, width, channels]`
    images: Vec<u8>,
    /// Of each picture that cannot be read the reason.
    reasons: Vec<Option<String>>,
    /// Files that were read, with their places.
    waiting: Vec<(Vec<usize>, Vec<u8>)>,
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
        let ArchiveListing { files, links } = archive::list(path).map_err(failed)?;
        let places = self.places(file, files)?;
        let links = links.into_iter().filter(|(name, _)| is_picture_of_class(name));
        let links: Vec<(String, String)> = links.map(|(name, error)| (name, error.to_string())).collect();
        let n_pictures = places.of.len() + links.len();
        tracing::info!(n_pictures, n_classes = places.class_names.len(), "decoding pictures");
        let mut pictures = PlacedPictures::none_of(places.of.len(), self.shape());
        let is_wanted = |content: usize| places.of_content.contains_key(&content);
        let read = |content: usize, bytes| {
            let of_content = places.of_content.get(&content);
            pictures.push(of_content.cloned().unwrap_or_default(), bytes);
        };
        archive::contents(path, is_wanted, read).map_err(failed)?;
        let (decoded, broken) = pictures.finish(places);
        let broken = broken.into_iter().chain(links);
        let broken = broken.map(|(name, reason)| (format!("{name} in {file}"), reason));
        self.check_broken(broken.collect(), n_pictures)?;
        Ok(decoded)
    }

    /// The names of classes and pictures, sorted as a folder is. `files`: names, each with the number of its content.
    fn places(&self, file: &DataFile, files: Vec<(String, usize)>) -> Result<PicturePlaces, PicturesError> {
        let mut by_folder: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        for (name, content) in files.into_iter().filter(|(name, _)| is_picture_of_class(name)) {
            if let Some((folder, _)) = name.rsplit_once('/') {
                // A later entry of the same name takes the place of an earlier one.
                by_folder.entry(folder.to_owned()).or_default().insert(name, content);
            }
        }
        let (mut class_names, mut of) = (Vec::new(), BTreeMap::new());
        let mut of_content: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let root = |folder: &str| folder.rsplit_once('/').map(|(root, _)| root.to_owned());
        let first = by_folder.keys().next().cloned().unwrap_or_default();
        for (folder, names) in by_folder {
            if root(&folder) != root(&first) {
                return Err(PicturesError::Roots { file: file.clone(), one: first, other: folder });
            }
            let name = folder.rsplit('/').next().unwrap_or_default();
            let class = next_class(&mut class_names, name, &format!("{folder} in {file}"))?;
            for (name, content) in names {
                of_content.entry(content).or_default().push(of.len());
                of.insert(name, (of.len(), class));
            }
        }
        self.check_sizes(class_names.len(), of.len())?;
        Ok(PicturePlaces { class_names, of, of_content })
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

    /// Takes the file of a picture, or why it cannot be read, for each of its places.
    fn push(&mut self, places: Vec<usize>, content: io::Result<Vec<u8>>) {
        match content {
            Ok(bytes) => {
                self.n_waiting_bytes += bytes.len();
                self.waiting.push((places, bytes));
            }
            Err(error) => self.set_reason(&places, &error),
        }
        if self.n_waiting_bytes > WAITING_BYTES_MAX || self.waiting.len() >= WAITING_MAX {
            self.decode_waiting();
        }
    }

    fn set_reason(&mut self, places: &[usize], error: &impl ToString) {
        for place in places {
            self.reasons[*place] = Some(error.to_string());
        }
    }

    fn decode_waiting(&mut self) {
        let (shape, n_values) = (self.shape, self.shape.n_values());
        let waiting = std::mem::take(&mut self.waiting);
        let decoded = decode_all(&waiting, |(_, bytes)| decode_from(Cursor::new(bytes), shape));
        for ((places, _), picture) in waiting.into_iter().zip(decoded) {
            match picture {
                Ok(pixels) => {
                    for place in places {
                        self.images[place * n_values..(place + 1) * n_values].copy_from_slice(&pixels);
                    }
                }
                Err(error) => self.set_reason(&places, &error),
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

/// Whether an entry may be a picture of a class, as it lies in a folder.
fn is_picture_of_class(name: &str) -> bool {
    name.contains('/') && is_picture(Path::new(name)) && !is_hidden(name)
}

/// Whether a part of the name is hidden, leads upwards, or is what a Mac adds to an archive.
fn is_hidden(name: &str) -> bool {
    name.split('/').any(|part| (part.starts_with('.') && part != ".") || part == "__MACOSX")
}
