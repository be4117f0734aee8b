//! Pictures and labels of the operator's own in two IDX files, and perhaps two more with held-out ones.
//!
//! Pictures are grey, `[n, height, width]`, or in colour, `[n, height, width, 3]`; a label is a byte. The files may be
//! compressed. Deterministic: the same files, settings and seed give the same samples. Blocking: call it from a thread that
//! may block.

use std::io;
use std::path::Path;

use barnraise_protocol::dataset::{ImageShape, LABEL_BYTES_MAX, LabelledImages, SampleKind, Samples};

use super::file::{DataFile, DataFileError};
use super::idx::{self, IdxError};
use super::{TrainingData, split, unpack};

/// Most bytes of a file, after decompression: all is in memory.
const BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Place of the number of dimensions.
const N_DIMENSIONS: usize = 3;

/// Two files, and how they become samples.
#[derive(Debug, Clone, PartialEq)]
pub struct PairSettings {
    /// Display name.
    pub name: String,
    /// Of a picture.
    pub shape: ImageShape,
    /// Pictures and their labels.
    pub files: PairFiles,
    /// Held-out pictures and their labels.
    pub held_out_files: Option<PairFiles>,
    /// Names of the classes, in the order of the labels; the labels themselves where there are none.
    pub classes: Vec<String>,
    /// Where no files are held out, the share of each class that is, 0 to 1.
    pub held_out: f64,
    /// Seed of what is held out.
    pub seed: u64,
}

/// Two files that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairFiles {
    /// Pictures.
    pub pictures: DataFile,
    /// Labels.
    pub labels: DataFile,
}

/// Why the files cannot be learned from.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// A file cannot be had.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// A file cannot be read or decompressed.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: DataFile,
        /// What is wrong.
        source: io::Error,
    },
    /// More than may be in memory.
    #[error("{file} has more than {BYTES_MAX} bytes, which are supported")]
    TooLarge {
        /// The file.
        file: DataFile,
    },
    /// No IDX file, or two that do not belong together.
    #[error("{file}: {source}")]
    Idx {
        /// The file.
        file: DataFile,
        /// What is wrong.
        source: IdxError,
    },
    /// Pictures of another shape.
    #[error(
        "{file}: pictures of {got:?}, the configuration says {want:?}: height, width and channels of [data.idx]"
    )]
    Shape {
        /// The file.
        file: DataFile,
        /// Height, width and channels.
        want: [usize; 3],
        /// Of the file.
        got: [usize; 3],
    },
    /// A label without a class.
    #[error("{file}: label {row} is {got}, there are {n_classes} classes")]
    Label {
        /// The file.
        file: DataFile,
        /// From 1.
        row: usize,
        /// The label.
        got: u8,
        /// Names of classes.
        n_classes: usize,
    },
    /// Too few to train on one and hold out another.
    #[error("the class {class:?} has {got} pictures, at least 2 are wanted")]
    TooFew {
        /// Its name.
        class: String,
        /// Pictures.
        got: usize,
    },
    /// No pictures at all.
    #[error("{file} has no pictures")]
    Empty {
        /// The file.
        file: DataFile,
    },
    /// A name that no manifest has.
    #[error("the name of the class {class:?} is longer than {LABEL_BYTES_MAX} bytes")]
    ClassName {
        /// Its name.
        class: String,
    },
}

impl PairSettings {
    /// Reads the files, and holds some pictures out. `cache` is the folder for downloads.
    ///
    /// # Errors
    /// Files that are no IDX files, or do not belong together.
    pub fn load(&self, cache: &Path) -> Result<TrainingData, PairError> {
        let shape = self.shape;
        let all = self.files.load(shape, cache)?;
        let held_out =
            self.held_out_files.as_ref().map(|files| Ok::<_, PairError>((files, files.load(shape, cache)?)));
        let held_out = held_out.transpose()?;
        let labels = held_out.iter().flat_map(|(_, held_out)| &held_out.labels).chain(&all.labels);
        let n_classes = labels.max().map_or(0, |&label| usize::from(label) + 1);
        let class_names = match self.classes.is_empty() {
            true => (0..n_classes).map(|class| class.to_string()).collect(),
            false => self.classes.clone(),
        };
        if let Some(class) = class_names.iter().find(|name| name.len() > LABEL_BYTES_MAX) {
            return Err(PairError::ClassName { class: class.clone() });
        }
        let parts = [(&self.files, &all)].into_iter();
        let parts = parts.chain(held_out.iter().map(|(files, held_out)| (*files, held_out)));
        for (files, part) in parts {
            let unknown =
                part.labels.iter().enumerate().find(|(_, label)| usize::from(**label) >= class_names.len());
            if let Some((index, &got)) = unknown {
                let (file, n_classes) = (files.labels.clone(), class_names.len());
                return Err(PairError::Label { file, row: index + 1, got, n_classes });
            }
        }
        let (train, test) = match held_out {
            Some((_, held_out)) => (all, held_out),
            None => {
                let split =
                    split::by_class(&all, class_names.len(), shape.n_values(), self.held_out, self.seed);
                split.map_err(|few| PairError::TooFew {
                    class: class_names.get(few.class).cloned().unwrap_or_default(),
                    got: few.got,
                })?
            }
        };
        Ok(TrainingData {
            name: self.name.clone(),
            kind: SampleKind::Images { shape, class_names },
            train: Samples::Images(train),
            test: Samples::Images(test),
            tokenizer: None,
            columns: None,
            stream: None,
        })
    }
}

impl PairFiles {
    fn load(&self, shape: ImageShape, cache: &Path) -> Result<LabelledImages, PairError> {
        let of = |file: &DataFile| {
            let file = file.clone();
            |source| PairError::Idx { file, source }
        };
        let pictures = read(&self.pictures, cache)?;
        let (n_images, got, images) = match pictures.get(N_DIMENSIONS) {
            Some(4) => {
                let ([n, height, width, channels], images) =
                    idx::parse::<4>(&pictures).map_err(of(&self.pictures))?;
                (n, [height, width, channels], images)
            }
            _ => {
                let ([n, height, width], images) = idx::parse::<3>(&pictures).map_err(of(&self.pictures))?;
                (n, [height, width, 1], images)
            }
        };
        let labels = read(&self.labels, cache)?;
        let ([n_labels], labels) = idx::parse::<1>(&labels).map_err(of(&self.labels))?;
        if n_images != n_labels {
            return Err(of(&self.labels)(IdxError::Counts { n_images, n_labels }));
        }
        if n_images == 0 {
            return Err(PairError::Empty { file: self.pictures.clone() });
        }
        let want = [shape.height, shape.width, shape.channels].map(usize::from);
        if got != want {
            return Err(PairError::Shape { file: self.pictures.clone(), want, got });
        }
        Ok(LabelledImages { images: images.to_vec(), labels: labels.to_vec() })
    }
}

fn read(file: &DataFile, cache: &Path) -> Result<Vec<u8>, PairError> {
    let path = file.local(cache)?;
    let failed = |source| PairError::Read { file: file.clone(), source };
    let content = unpack::open(&path).and_then(|content| unpack::read_bounded(content, BYTES_MAX));
    content.map_err(failed)?.ok_or_else(|| PairError::TooLarge { file: file.clone() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    fn settings(
        folder: &Path,
        [height, width, channels]: [u16; 3],
        pictures: &[u8],
        labels: &[u8],
    ) -> PairSettings {
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).unwrap();
            DataFile::from(path)
        };
        PairSettings {
            name: "Marks".into(),
            shape: ImageShape { height, width, channels },
            files: PairFiles { pictures: file("pictures", pictures), labels: file("labels", labels) },
            held_out_files: None,
            classes: vec![],
            held_out: 0.25,
            seed: 1,
        }
    }

    fn images(samples: &Samples) -> &LabelledImages {
        let Samples::Images(images) = samples else { panic!("no pictures") };
        images
    }

    const LABELS: [u8; 8] = [0, 1, 0, 1, 0, 1, 0, 1];

    #[test]
    fn grey_and_colour_pictures_are_read_and_a_share_is_held_out() {
        let folder = tempfile::tempdir().unwrap();
        let labels = idx::write([8], &LABELS);
        for (file, want) in [
            (idx::write([8, 2, 3], &[LABELS.map(|label| [label; 6]).as_flattened()].concat()), [2, 3, 1]),
            (idx::write([8, 1, 2, 3], &[LABELS.map(|label| [label; 6]).as_flattened()].concat()), [1, 2, 3]),
        ] {
            let data = settings(folder.path(), want, &file, &labels).load(folder.path()).unwrap();
            let SampleKind::Images { shape, class_names } = &data.kind else { panic!("{:?}", data.kind) };
            assert_eq!([shape.height, shape.width, shape.channels], want);
            assert_eq!(class_names, &["0", "1"]);
            let (train, test) = (images(&data.train), images(&data.test));
            assert_eq!((train.labels.len(), test.labels.len()), (6, 2));
            for part in [train, test] {
                for (picture, label) in part.images.chunks(6).zip(&part.labels) {
                    assert_eq!(picture, [*label; 6]);
                }
            }
        }
    }

    #[test]
    fn held_out_files_are_taken_as_they_are_and_classes_have_names() {
        let folder = tempfile::tempdir().unwrap();
        let others = tempfile::tempdir().unwrap();
        let all = settings(folder.path(), [1; 3], &idx::write([8, 1, 1], &LABELS), &idx::write([8], &LABELS));
        let other = settings(others.path(), [1; 3], &idx::write([1, 1, 1], &[7]), &idx::write([1], &[2]));
        let mut both = PairSettings { held_out_files: Some(other.files), ..all };
        both.classes = ["a", "b", "c"].map(str::to_owned).into();
        let data = both.load(folder.path()).unwrap();
        assert_eq!(
            (images(&data.train).labels.len(), images(&data.test)),
            (8, &LabelledImages { images: vec![7], labels: vec![2] })
        );
        both.classes.pop();
        let error = both.load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("labels: label 1 is 2, there are 2 classes"), "{error}");
    }

    #[test]
    fn files_that_do_not_belong_together_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let said = |pictures: &[u8], labels: &[u8]| {
            settings(folder.path(), [1; 3], pictures, labels).load(folder.path()).unwrap_err().to_string()
        };
        let labels = idx::write([8], &LABELS);
        assert!(said(&idx::write([7, 1, 1], &[0; 7]), &labels).contains("7 images and 8 labels"));
        assert!(
            said(&idx::write([8, 1, 1, 2], &[0; 16]), &labels)
                .contains("pictures of [1, 1, 2], the configuration says [1, 1, 1]")
        );
        assert!(said(b"no IDX file", &labels).contains("pictures: it begins with"));
        let one = said(&idx::write([3, 1, 1], &[0; 3]), &idx::write([3], &[0, 0, 1]));
        assert!(one.contains("\"1\" has 1 pictures"), "{one}");
    }
}
