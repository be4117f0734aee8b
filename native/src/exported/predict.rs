//! `barnraise predict`: what an exported model says of new data, as CSV.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use barnraise_learning::Trainer;
use barnraise_learning::tokenizer::BLANK;
use barnraise_protocol::columns::ratings::OtherRating;
use barnraise_protocol::columns::{DataColumns, RatingColumns, TableColumns};
use barnraise_protocol::dataset::{ImageShape, RatingShape, SampleKind, TableShape, TableTarget, TokenShape};
use barnraise_protocol::run::model::graph::Loss;
use clap::Args;
use futures::executor::block_on;

use super::{ExportedError, ExportedModel, FILE_BYTES_MAX, no_columns, read_file};
use crate::data::table::other::{self, OtherRows};
use crate::data::{LoadError, pictures};

/// Guesses for a blank.
const GUESSES: usize = 3;
/// Pictures in memory at once.
const PICTURES_AT_ONCE: usize = 64;

/// `barnraise predict`
#[derive(Debug, Args)]
pub struct PredictArgs {
    /// What `barnraise export` wrote
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// A picture or a folder of some, a table, ratings of those who want more, or lines with ___ for missing words
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Of ratings: only for this user of the file
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Of ratings: items that are recommended to each user
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
}

/// Writes what a model says of a file to `output`, as CSV with a head line.
///
/// # Errors
/// No exported folder, a file that is not like the run's data, a model that predicts nothing, an output that is closed.
pub fn predict(args: &PredictArgs, output: &mut impl Write) -> Result<(), ExportedError> {
    let model = ExportedModel::read(&args.folder)?;
    let other_kind = |does, want| Err(ExportedError::OtherKind { folder: args.folder.clone(), does, want });
    match &model.run.model.graph.loss {
        Loss::CausalLanguageModel => {
            return other_kind("goes on with texts", "barnraise generate is for it");
        }
        Loss::Swav(_) => {
            return other_kind("describes pictures without naming classes", "it has nothing to predict");
        }
        Loss::Classification | Loss::Regression | Loss::MaskedLanguageModel => {}
    }
    let mut trainer = model.trainer()?;
    let mut table = csv::Writer::from_writer(output);
    match (&model.run.data.manifest.samples, &model.columns) {
        (SampleKind::Images { shape, class_names }, _) => {
            of_pictures(&trainer, &args.file, *shape, class_names, &mut table)?;
        }
        (SampleKind::Tokens(shape), _) => model.of_lines(&trainer, args, *shape, &mut table)?,
        (SampleKind::Rows(shape), Some(DataColumns::Table(columns))) => {
            of_rows(&trainer, &args.file, (columns, shape), &mut table)?;
        }
        (SampleKind::Ratings(shape), Some(DataColumns::Ratings(columns))) => {
            model.recommend(&mut trainer, args, (columns, *shape), &mut table)?;
        }
        (SampleKind::Rows(_) | SampleKind::Ratings(_), _) => return Err(no_columns(&args.folder)),
    }
    table.flush().map_err(closed)
}

fn closed(source: std::io::Error) -> ExportedError {
    ExportedError::Io { path: "standard output".into(), source }
}

/// Writes a line.
fn write<W: Write>(
    table: &mut csv::Writer<W>,
    cells: impl IntoIterator<Item = impl AsRef<[u8]>>,
) -> Result<(), ExportedError> {
    table.write_record(cells).map_err(|error| closed(error.into()))
}

fn nothing(path: &Path, want: &str) -> ExportedError {
    ExportedError::Nothing { path: path.to_owned(), want: want.to_owned() }
}

/// The likeliest class and its probability.
fn likeliest(probabilities: &[f32]) -> (usize, f32) {
    let best = probabilities.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    best.unwrap_or_default()
}

fn of_pictures<W: Write>(
    trainer: &Trainer,
    path: &Path,
    shape: ImageShape,
    class_names: &[String],
    table: &mut csv::Writer<W>,
) -> Result<(), ExportedError> {
    let files = pictures::listed(path).map_err(LoadError::from)?;
    write(table, ["file", "class", "probability"])?;
    let mut n_read = 0;
    for files in files.chunks(PICTURES_AT_ONCE) {
        let (mut names, mut pixels) = (Vec::new(), Vec::new());
        for file in files {
            match pictures::decode(file, shape) {
                Ok(picture) => {
                    names.push(file.display().to_string());
                    pixels.extend(picture);
                }
                Err(source) if file == path => {
                    return Err(ExportedError::Picture { path: path.to_owned(), source });
                }
                Err(error) => {
                    tracing::warn!(file = %file.display(), %error, "a picture is left out: it cannot be read");
                }
            }
        }
        n_read += names.len();
        let probabilities = block_on(trainer.predict(&pixels, names.len()))?;
        for (name, row) in names.iter().zip(probabilities.chunks(class_names.len())) {
            let (class, probability) = likeliest(row);
            let class = class_names.get(class).map_or("", String::as_str);
            write(table, [name.as_str(), class, &probability.to_string()])?;
        }
    }
    match n_read {
        0 => Err(nothing(path, "PNG or JPEG pictures are wanted")),
        _ => Ok(()),
    }
}

/// The rows of the file, each with what the model says of it.
fn of_rows<W: Write>(
    trainer: &Trainer,
    path: &Path,
    (columns, shape): (&TableColumns, &TableShape),
    table: &mut csv::Writer<W>,
) -> Result<(), ExportedError> {
    let OtherRows { names, cells, values, .. } =
        other::rows(path, columns, shape, false).map_err(LoadError::from)?;
    if cells.is_empty() {
        return Err(nothing(path, "rows below the head are wanted"));
    }
    let told = block_on(trainer.predict_rows(&values))?;
    let predicted = format!("predicted {}", columns.target);
    let (more, n_told) = match &shape.target {
        TableTarget::Class(names) => (vec![predicted, "probability".to_owned()], names.len()),
        TableTarget::Values(names) => (vec![predicted], names.len()),
    };
    write(table, names.iter().chain(&more))?;
    for (row, told) in cells.iter().zip(told.chunks(n_told.max(1))) {
        let said = match &shape.target {
            TableTarget::Class(names) => {
                let (class, probability) = likeliest(told);
                vec![names.get(class).cloned().unwrap_or_default(), probability.to_string()]
            }
            TableTarget::Values(_) => told.iter().map(f32::to_string).collect(),
        };
        write(table, row.iter().chain(&said))?;
    }
    Ok(())
}

impl ExportedModel {
    /// Guesses for each blank of each line.
    fn of_lines<W: Write>(
        &self,
        trainer: &Trainer,
        args: &PredictArgs,
        shape: TokenShape,
        table: &mut csv::Writer<W>,
    ) -> Result<(), ExportedError> {
        let tokenizer = self.tokenizer(&args.folder)?;
        let text = read_file(&args.file, FILE_BYTES_MAX)?;
        let text = String::from_utf8_lossy(&text);
        let lines = || text.lines().zip(1..).filter(|(line, _)| line.contains(BLANK));
        if lines().next().is_none() {
            return Err(nothing(&args.file, "lines with ___ where words are missing are wanted"));
        }
        write(table, ["line", "blank", "guess", "probability"])?;
        for (line, number) in lines() {
            let refused = |error: &dyn std::fmt::Display| ExportedError::Nothing {
                path: args.file.clone(),
                want: format!("line {number}: {error}"),
            };
            let blanked =
                tokenizer.encode_with_blanks(line, shape.length.into()).map_err(|error| refused(&error))?;
            let guesses = block_on(trainer.fill(&blanked.ids, &blanked.blanks))?;
            for (blank, row) in guesses.chunks(shape.vocabulary as usize).enumerate() {
                for (guess, probability) in tokenizer.likeliest(row, GUESSES) {
                    let cells = [number.to_string(), (blank + 1).to_string(), guess, probability.to_string()];
                    write(table, cells)?;
                }
            }
        }
        Ok(())
    }

    /// The items that each user would rate best, of those that they have not rated.
    fn recommend<W: Write>(
        &self,
        trainer: &mut Trainer,
        args: &PredictArgs,
        (columns, shape): (&RatingColumns, RatingShape),
        table: &mut csv::Writer<W>,
    ) -> Result<(), ExportedError> {
        let read = other::ratings(&args.file, columns, shape.n_items).map_err(LoadError::from)?;
        let mut of_users: BTreeMap<String, Vec<(u32, f32)>> = BTreeMap::new();
        for OtherRating { user, item, rating } in read {
            of_users.entry(user).or_default().push((item, rating));
        }
        if let Some(wanted) = &args.user {
            of_users.retain(|user, _| user == wanted);
        }
        if of_users.is_empty() {
            let want = match &args.user {
                Some(user) => format!("no rating in it is of {user:?}"),
                None => "ratings are wanted".to_owned(),
            };
            return Err(nothing(&args.file, &want));
        }
        write(table, [&columns.user, &columns.item, &columns.rating])?;
        for (user, rated) in &of_users {
            for (item, rating) in block_on(trainer.best_items(&self.parameters, rated, self.loss, args.top))?
            {
                write(table, [user.clone(), columns.item(item), columns.clamped(rating).to_string()])?;
            }
        }
        Ok(())
    }
}
