//! `[data]`: what a run learns from.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use barnraise_protocol::dataset::{RatingShape, SampleKind, TableShape, TableTarget};
use barnraise_protocol::run::Augmentation;
use barnraise_protocol::run::model::graph::Loss;
use serde::{Deserialize, Serialize};

use super::idx::IdxSection;
use super::pictures::PicturesSection;
use super::table::{RatingsSection, TableSection};
use super::text::TextSection;
use super::{Invalid, as_written, held_out};
use crate::data::DataSource;
use crate::data::file::DataFile;
use crate::data::sets::{NamedSet, NamedSettings, Sources};

/// Keeps a shard of images of 28 by 28 pixels within the protocol's limit.
const SHARD_SAMPLES_MAX: usize = 50_000;

/// `[data]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSection {
    /// A data set that fetches itself, where no other is described below.
    pub set: NamedSet,
    /// A folder with the files of the set; no other source is used then.
    pub folder: Option<PathBuf>,
    /// Folder for downloads and encoded shards; the user's cache folder by default.
    pub cache: Option<PathBuf>,
    /// Hosts to fetch the files of the set from, in order, in place of the known ones.
    pub base_urls: Vec<String>,
    /// Samples in a shard.
    pub shard_samples: NonZeroUsize,
    /// Samples in each peer's shuffle buffer (DeDLOC §3.3).
    pub shuffle_buffer_samples: u32,
    /// How pictures are changed before they are trained on.
    pub augment: Option<Augmentation>,
    /// Pictures of the operator's own.
    pub pictures: Option<PicturesSection>,
    /// Pictures of the operator's own in IDX files.
    pub idx: Option<IdxSection>,
    /// Rows of a table.
    pub table: Option<TableSection>,
    /// Ratings.
    pub ratings: Option<RatingsSection>,
    /// Text; with the set `books` how it is read.
    pub text: Option<TextSection>,
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            set: NamedSet::default(),
            folder: None,
            cache: None,
            base_urls: Vec::new(),
            shard_samples: NonZeroUsize::MIN.saturating_add(499),
            shuffle_buffer_samples: 2000,
            augment: None,
            pictures: None,
            idx: None,
            table: None,
            ratings: None,
            text: None,
        }
    }
}

impl DataSection {
    /// The sections of the operator's own data that are there, and their values in TOML syntax.
    fn own(&self) -> impl Iterator<Item = (&'static str, String)> {
        let own = [
            ("data.text", self.own_text().map(as_written)),
            ("data.pictures", self.pictures.as_ref().map(as_written)),
            ("data.idx", self.idx.as_ref().map(as_written)),
            ("data.table", self.table.as_ref().map(as_written)),
            ("data.ratings", self.ratings.as_ref().map(as_written)),
        ];
        own.into_iter().filter_map(|(key, written)| Some((key, written?)))
    }

    /// The operator's own text; beside the set `books`, `[data.text]` is about its text.
    fn own_text(&self) -> Option<&TextSection> {
        self.text.as_ref().filter(|_| self.set != NamedSet::Books)
    }

    /// The named set that a run learns from; none if it learns from the operator's own data.
    pub(super) fn named(&self) -> Option<NamedSet> {
        self.own().next().is_none().then_some(self.set)
    }

    /// Whether it is text.
    pub(super) fn is_text(&self) -> bool {
        self.own_text().is_some() || self.named() == Some(NamedSet::Books)
    }

    /// All files that the operator names, with their keys.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &DataFile)> {
        let text = self.text.iter().flat_map(|text| &text.sources);
        let idx = self.idx.iter().flat_map(|idx| idx.files());
        let table = self.table.iter().map(|table| ("data.table.file", &table.file));
        let ratings = self.ratings.iter().map(|ratings| ("data.ratings.file", &ratings.file));
        let text = text.map(|source| ("data.text.sources", &source.path));
        let pictures = self.pictures.iter().filter_map(|pictures| pictures.archive.as_ref());
        let pictures = pictures.map(|archive| ("data.pictures.archive", archive));
        text.chain(pictures).chain(idx.map(|file| ("data.idx", file))).chain(table).chain(ratings)
    }

    /// Makes relative paths begin at `base`.
    pub(super) fn take_from(&mut self, base: &Path) {
        let text = self.text.iter_mut().flat_map(|text| &mut text.sources).map(|source| &mut source.path);
        let idx = self.idx.iter_mut().flat_map(IdxSection::files_mut);
        let table = self.table.iter_mut().map(|table| &mut table.file);
        let ratings = self.ratings.iter_mut().map(|ratings| &mut ratings.file);
        let archive = self.pictures.iter_mut().filter_map(|pictures| pictures.archive.as_mut());
        let files = text.chain(idx).chain(table).chain(ratings).chain(archive);
        files.for_each(|file| file.take_from(base));
        let pictures = self.pictures.iter_mut().filter_map(|pictures| pictures.folder.as_mut());
        let tokenizer = self.text.iter_mut().filter_map(|text| text.tokenizer.as_mut());
        let folders = [&mut self.folder, &mut self.cache].into_iter().flatten();
        folders.chain(pictures).chain(tokenizer).for_each(|folder| *folder = base.join(&*folder));
    }

    /// Where the samples are from.
    ///
    /// - `is_class`: the model tells classes
    pub(super) fn source(&self, cache: &Path, seed: u64, is_class: bool) -> DataSource {
        if let Some(text) = self.own_text() {
            let settings = text.settings(seed);
            return match &text.stream {
                Some(stream) => DataSource::Stream(stream.settings(settings, self.shard_samples)),
                None => DataSource::Text(settings),
            };
        }
        if let Some(table) = &self.table {
            return DataSource::Table(table.settings(seed, is_class));
        }
        if let Some(ratings) = &self.ratings {
            return DataSource::Ratings(ratings.settings(seed));
        }
        if let Some(idx) = &self.idx {
            return DataSource::Pairs(idx.settings(seed));
        }
        if let Some(pictures) = &self.pictures {
            return DataSource::Pictures(pictures.settings(seed));
        }
        let text = TextSection { name: Some(self.set.name().to_owned()), ..self.text_section() };
        DataSource::Named(NamedSettings {
            set: self.set,
            sources: self.sources(cache),
            text: text.settings(seed),
            held_out: held_out::default(),
            seed,
        })
    }

    /// How the text of a named set is read.
    pub(super) fn text_section(&self) -> TextSection {
        self.text.clone().unwrap_or_default()
    }

    /// Where the files of the named set are.
    pub(super) fn sources(&self, cache: &Path) -> Sources {
        let mut sources = self.set.sources(cache);
        sources.named.clone_from(&self.folder);
        if !self.base_urls.is_empty() {
            sources.base_urls.clone_from(&self.base_urls);
            sources.archives.clear();
        }
        sources
    }

    /// The samples that it leads to. How many tokens a text gives, which classes a folder has, and what a table, is known
    /// once they are read.
    pub(super) fn samples(&self, seed: u64, is_class: bool) -> SampleKind {
        let names = |names: [&str; 2]| names.map(str::to_owned).into();
        let classes = || names(["one class", "another class"]);
        if let Some(text) = self.own_text() {
            return SampleKind::Tokens(text.settings(seed).shape());
        }
        if self.table.is_some() {
            let target = match is_class {
                true => TableTarget::Class(classes()),
                false => TableTarget::Values(vec!["a number".to_owned()]),
            };
            return SampleKind::Rows(TableShape { columns: names(["one column", "another column"]), target });
        }
        if self.ratings.is_some() {
            return SampleKind::Ratings(RatingShape { n_users: 2, n_items: 2 });
        }
        if let Some(idx) = &self.idx {
            let class_names = if idx.classes.is_empty() { classes() } else { idx.classes.clone() };
            return SampleKind::Images { shape: idx.shape(), class_names };
        }
        match &self.pictures {
            Some(pictures) => {
                SampleKind::Images { shape: pictures.settings(seed).shape(), class_names: classes() }
            }
            None => self.set.samples(self.text_section().settings(seed).shape()),
        }
    }

    /// Text is for a language model, and a language model for text; other models are for pictures, tables and ratings.
    pub(super) fn validate(&self, loss: &Loss, model: &str) -> Result<(), Invalid> {
        Invalid::check_range("data.shard_samples", self.shard_samples.get(), 1..=SHARD_SAMPLES_MAX)?;
        for url in &self.base_urls {
            let good = url.starts_with("https://") || url.starts_with("http://");
            Invalid::check("data.base_urls", good, "each begins with https:// or http://", url)?;
        }
        if let Some(text) = &self.text {
            text.validate(self.set == NamedSet::Books)?;
        }
        if let Some(pictures) = &self.pictures {
            pictures.validate()?;
        }
        if let Some(idx) = &self.idx {
            idx.validate()?;
        }
        if let Some(table) = &self.table {
            table.validate()?;
        }
        if let Some(ratings) = &self.ratings {
            ratings.validate()?;
        }
        self.validate_alone()?;
        let is_of_text = matches!(loss, Loss::CausalLanguageModel | Loss::MaskedLanguageModel);
        let want = match self.is_text() {
            true => "{ gpt = … } or { albert = … }, as [data] says to learn from text",
            false => "another one without text in [data]",
        };
        Invalid::check("model.kind", is_of_text == self.is_text(), want, model)
    }

    /// One source of data, and no key of another.
    fn validate_alone(&self) -> Result<(), Invalid> {
        let mut own = self.own();
        let Some((first, _)) = own.next() else { return Ok(()) };
        if let Some((key, written)) = own.next() {
            let want = format!("nothing beside [{first}]: a run learns from one of them");
            return Err(Invalid::new(key, want, written));
        }
        if self.set != NamedSet::default() {
            let want = format!("nothing beside [{first}]: a run learns from one of them");
            return Err(Invalid::new("data.set", want, as_written(&self.set)));
        }
        if let Some(folder) = &self.folder {
            let want = format!("nothing beside [{first}], which says itself where its files are");
            return Err(Invalid::new("data.folder", want, format!("{:?}", folder.display().to_string())));
        }
        Ok(())
    }
}
