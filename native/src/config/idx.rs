//! `[data.idx]`: pictures and labels in IDX files, the format of MNIST.

use barnraise_protocol::dataset::{ImageShape, LABEL_BYTES_MAX};
use serde::{Deserialize, Serialize};

use super::{Invalid, held_out};
use crate::data::file::DataFile;
use crate::data::pairs::{PairFiles, PairSettings};

/// Classes that a label of one byte can name.
const CLASSES_MAX: usize = 256;

/// `[data.idx]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdxSection {
    /// Name for people; that of the file of pictures where there is none.
    pub name: Option<String>,
    /// Pictures, grey or of three colours, compressed or not.
    pub pictures: DataFile,
    /// A label for each.
    pub labels: DataFile,
    /// Pictures that are never trained on.
    pub held_out_pictures: Option<DataFile>,
    /// A label for each.
    pub held_out_labels: Option<DataFile>,
    /// Names of the classes, in the order of the labels.
    #[serde(default)]
    pub classes: Vec<String>,
    /// Share of each class that is never trained on, where no pictures are named for that.
    #[serde(default = "held_out::default")]
    pub held_out: f64,
    /// Height of a picture, in pixels: models are checked before the files are read.
    #[serde(default = "side")]
    pub height: u16,
    /// Width of a picture, in pixels.
    #[serde(default = "side")]
    pub width: u16,
    /// 1 for grey, 3 for colours.
    #[serde(default = "channels")]
    pub channels: u16,
}

fn side() -> u16 {
    28
}

fn channels() -> u16 {
    1
}

impl IdxSection {
    /// Shape of a sample.
    pub(super) fn shape(&self) -> ImageShape {
        ImageShape { height: self.height, width: self.width, channels: self.channels }
    }

    /// All files.
    pub(super) fn files(&self) -> impl Iterator<Item = &DataFile> {
        [&self.pictures, &self.labels].into_iter().chain(&self.held_out_pictures).chain(&self.held_out_labels)
    }

    /// All files, to change.
    pub(super) fn files_mut(&mut self) -> impl Iterator<Item = &mut DataFile> {
        let held_out = [&mut self.held_out_pictures, &mut self.held_out_labels].into_iter().flatten();
        [&mut self.pictures, &mut self.labels].into_iter().chain(held_out)
    }

    /// Settings of the data set.
    pub(super) fn settings(&self, seed: u64) -> PairSettings {
        let held_out = self.held_out_pictures.clone().zip(self.held_out_labels.clone());
        PairSettings {
            name: self.name.clone().or_else(|| self.pictures.stem()).unwrap_or_else(|| "Pictures".into()),
            shape: self.shape(),
            files: PairFiles { pictures: self.pictures.clone(), labels: self.labels.clone() },
            held_out_files: held_out.map(|(pictures, labels)| PairFiles { pictures, labels }),
            classes: self.classes.clone(),
            held_out: self.held_out,
            seed,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if let Some(name) = &self.name {
            super::check::text("data.idx.name", name, 100)?;
        }
        let is_pair = self.held_out_pictures.is_some() == self.held_out_labels.is_some();
        let want = "held_out_labels beside held_out_pictures, or neither";
        Invalid::check("data.idx.held_out_pictures", is_pair, want, "one of them")?;
        let n_classes = self.classes.len();
        let is_good = n_classes == 0 || (2..=CLASSES_MAX).contains(&n_classes);
        Invalid::check("data.idx.classes", is_good, "the names of 2 to 256 classes, or none", n_classes)?;
        for class in &self.classes {
            let is_good = (1..=LABEL_BYTES_MAX).contains(&class.len());
            let want = format!("names of 1 to {LABEL_BYTES_MAX} bytes");
            Invalid::check("data.idx.classes", is_good, want, format!("{} bytes", class.len()))?;
        }
        Invalid::check_range("data.idx.height", self.height, 1..=u16::MAX)?;
        Invalid::check_range("data.idx.width", self.width, 1..=u16::MAX)?;
        let is_known = [1, 3].contains(&self.channels);
        Invalid::check("data.idx.channels", is_known, "1 for grey or 3 for colours", self.channels)?;
        held_out::check("data.idx.held_out", self.held_out)
    }
}
