//! Data that a model is evaluated on: the held-out part of its run's, or files like it.

use std::path::Path;

use barnraise_protocol::columns::DataColumns;
use barnraise_protocol::dataset::{SampleKind, Samples, TableRows, TokenSequences, TokenShape};

use super::super::tokenizer::RunTokenizer;
use super::super::{ExportedError, ExportedModel, no_columns};
use crate::config::RunConfig;
use crate::data::table::other;
use crate::data::{LoadError, pictures, text};
use crate::host::evaluator::evaluated_on;

use super::baseline::Answers;

/// Samples, and what a baseline may know.
pub(super) struct Suite {
    /// For people.
    pub(super) name: String,
    /// What the model is judged on.
    pub(super) test: Samples,
    /// What the baseline has counted: the training data or, where that is not known, the data itself.
    pub(super) known: Answers,
    /// Pictures that features are compared with, for a model that learns without labels.
    pub(super) reference: Option<Samples>,
}

impl Suite {
    /// The part of a run's data that is never trained on.
    pub(super) fn held_out(config: &Path, model: &ExportedModel) -> Result<Self, ExportedError> {
        let run = RunConfig::load(config)?;
        let data = run.data_source().load(&run.data_cache())?;
        let other = |reason: String| ExportedError::OtherData { path: config.to_owned(), reason };
        let samples = &model.run.data.manifest.samples;
        if data.kind != *samples {
            return Err(other(format!("the model is for {}, it has {}", brief(samples), brief(&data.kind))));
        }
        if data.tokenizer.as_deref() != model.tokenizer.as_ref().map(RunTokenizer::bytes) {
            return Err(other("its text has another tokenizer".to_owned()));
        }
        let name = format!("Held-out part of {}", data.name);
        let known = Answers::of(&data.train);
        let (test, reference) = evaluated_on(&model.run.model.graph.loss, data);
        Ok(Self { name, test, known, reference })
    }

    /// A file or folder. `folder`: the model's.
    pub(super) fn of_path(path: &Path, model: &ExportedModel, folder: &Path) -> Result<Self, ExportedError> {
        let test = match (&model.run.data.manifest.samples, &model.columns) {
            (SampleKind::Images { shape, class_names }, _) => {
                let read = pictures::labelled(path, *shape, class_names);
                Samples::Images(read.map_err(LoadError::from)?)
            }
            (SampleKind::Tokens(shape), _) => model.sequences(path, *shape, folder)?,
            (SampleKind::Rows(shape), Some(DataColumns::Table(columns))) => {
                let read = other::rows(path, columns, shape, true).map_err(LoadError::from)?;
                let nothing = || nothing(path, "rows");
                let targets = read.targets.filter(|_| !read.cells.is_empty()).ok_or_else(nothing)?;
                Samples::Rows(TableRows { n_columns: shape.columns.len(), values: read.values, targets })
            }
            (SampleKind::Ratings(_), _) => {
                return Err(ExportedError::OtherKind {
                    folder: folder.to_owned(),
                    does: "knows the users of its run by number only",
                    want: "name the file of the run with --config",
                });
            }
            (SampleKind::Rows(_), _) => return Err(no_columns(folder)),
        };
        Ok(Self { name: path.display().to_string(), known: Answers::of(&test), test, reference: None })
    }
}

impl ExportedModel {
    /// A text as sequences of the model's length; what is left at the end is not looked at.
    fn sequences(&self, path: &Path, shape: TokenShape, folder: &Path) -> Result<Samples, ExportedError> {
        let documents = text::documents(&[path]).map_err(LoadError::from)?;
        let mut ids = text::encode_all(self.tokenizer(folder)?, &documents)?;
        let length = usize::from(shape.length);
        let n_whole = ids.len() / length.max(1) * length;
        if n_whole == 0 {
            return Err(nothing(path, &format!("{length} tokens, it has {}", ids.len())));
        }
        ids.truncate(n_whole);
        Ok(Samples::Tokens(TokenSequences { length: shape.length, ids }))
    }
}

fn nothing(path: &Path, want: &str) -> ExportedError {
    ExportedError::Nothing { path: path.to_owned(), want: format!("it takes {want}") }
}

/// Samples in a few words.
fn brief(samples: &SampleKind) -> String {
    match samples {
        SampleKind::Images { shape, class_names } => format!(
            "pictures of {} by {} pixels and {} classes",
            shape.width,
            shape.height,
            class_names.len()
        ),
        SampleKind::Tokens(tokens) => {
            format!("{} tokens of a vocabulary of {}", tokens.length, tokens.vocabulary)
        }
        SampleKind::Rows(table) => format!("rows of the columns {}", table.columns.join(", ")),
        SampleKind::Ratings(of) => format!("ratings of {} items by {} users", of.n_items, of.n_users),
    }
}
