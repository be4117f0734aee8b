//! `[data.pictures]`: a folder of pictures to train on.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Invalid, held_out};
use crate::data::pictures::PictureSettings;

/// Sides of a sample, in pixels.
const SIDES: std::ops::RangeInclusive<u16> = 8..=512;

/// `[data.pictures]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PicturesSection {
    /// Name for people; the folder's where there is none.
    pub name: Option<String>,
    /// It has a folder of PNG and JPEG files for each class.
    pub folder: PathBuf,
    /// Height of a sample, in pixels: each picture is scaled and cut to it.
    #[serde(default = "side")]
    pub height: u16,
    /// Width of a sample, in pixels.
    #[serde(default = "side")]
    pub width: u16,
    /// Share of each class that is never trained on.
    #[serde(default = "held_out::default")]
    pub held_out: f64,
}

fn side() -> u16 {
    32
}

impl PicturesSection {
    /// Settings of the data set.
    pub(super) fn settings(&self, seed: u64) -> PictureSettings {
        let folder_name = || self.folder.file_name().map(|name| name.to_string_lossy().into_owned());
        PictureSettings {
            name: self.name.clone().or_else(folder_name).unwrap_or_else(|| "Pictures".into()),
            folder: self.folder.clone(),
            height: self.height,
            width: self.width,
            held_out: self.held_out,
            seed,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if let Some(name) = &self.name {
            super::check::text("data.pictures.name", name, 100)?;
        }
        Invalid::check_range("data.pictures.height", self.height, SIDES)?;
        Invalid::check_range("data.pictures.width", self.width, SIDES)?;
        held_out::check("data.pictures.held_out", self.held_out)
    }
}
