//! `[data.pictures]`: a folder or an archive of pictures to train on.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Invalid, held_out};
use crate::data::file::DataFile;
use crate::data::pictures::{BROKEN_SHARE, PictureSettings, PictureSource};

/// Sides of a sample, in pixels.
const SIDES: std::ops::RangeInclusive<u16> = 8..=512;

/// `[data.pictures]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PicturesSection {
    /// Name for people; that of the folder or archive where there is none.
    pub name: Option<String>,
    /// It has a folder of PNG and JPEG files for each class.
    pub folder: Option<PathBuf>,
    /// In place of `folder`: a ZIP file with such folders, or a tar file, compressed by gzip or Zstandard or not.
    pub archive: Option<DataFile>,
    /// Height of a sample, in pixels: each picture is scaled and cut to it.
    #[serde(default = "side")]
    pub height: u16,
    /// Width of a sample, in pixels.
    #[serde(default = "side")]
    pub width: u16,
    /// Share of each class that is never trained on.
    #[serde(default = "held_out::default")]
    pub held_out: f64,
    /// Share of the pictures that may be broken: they are left out.
    #[serde(default = "broken")]
    pub broken: f64,
}

fn side() -> u16 {
    32
}

fn broken() -> f64 {
    BROKEN_SHARE
}

impl PicturesSection {
    /// Settings of the data set.
    pub(super) fn settings(&self, seed: u64) -> PictureSettings {
        let source = match &self.archive {
            Some(archive) => PictureSource::Archive(archive.clone()),
            None => PictureSource::Folder(self.folder.clone().unwrap_or_default()),
        };
        let name = || match &source {
            PictureSource::Archive(archive) => archive.stem(),
            PictureSource::Folder(folder) => {
                folder.file_name().map(|name| name.to_string_lossy().into_owned())
            }
        };
        PictureSettings {
            name: self.name.clone().or_else(name).unwrap_or_else(|| "Pictures".into()),
            source,
            height: self.height,
            width: self.width,
            held_out: self.held_out,
            broken: self.broken,
            seed,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if let Some(name) = &self.name {
            super::check::text("data.pictures.name", name, 100)?;
        }
        let (is_one, got) = match (&self.folder, &self.archive) {
            (Some(_), Some(_)) => (false, "both"),
            (None, None) => (false, "neither"),
            _ => (true, ""),
        };
        let want = "either folder or archive, whose folders are the classes";
        Invalid::check("data.pictures", is_one, want, got)?;
        Invalid::check_range("data.pictures.height", self.height, SIDES)?;
        Invalid::check_range("data.pictures.width", self.width, SIDES)?;
        held_out::check("data.pictures.held_out", self.held_out)?;
        Invalid::check_range("data.pictures.broken", self.broken, 0.0..=1.0)
    }
}
