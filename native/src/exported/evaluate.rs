//! `barnraise evaluate`: how good an exported model is on data, beside a baseline that knows what is frequent and
//! nothing else.

mod baseline;
mod report;
mod suite;

use std::path::{Path, PathBuf};

use barnraise_learning::Trainer;
use barnraise_learning::unigram::Unigram;
use barnraise_protocol::dataset::{RowTargets, SPECIAL_TOKENS, SampleKind, Samples, TableRows};
use barnraise_protocol::run::model::graph::Loss;
use clap::Args;
use futures::executor::block_on;

use self::baseline::{Frequencies, Means};
use self::report::{Metric, SuiteReport};
use self::suite::Suite;
use super::{ExportedError, ExportedModel};

/// `barnraise evaluate`
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// What `barnraise export` wrote
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Data like the run's: text, a table, or a folder with a folder of pictures for each class; may be repeated
    #[arg(value_name = "DATA")]
    pub data: Vec<PathBuf>,
    /// The file of the run, to evaluate on the part of its data that is never trained on
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Evaluates a model on suites of data, one after another; returns a table of each.
///
/// # Errors
/// No exported folder, data that is not like the run's.
pub fn evaluate(args: &EvaluateArgs) -> Result<String, ExportedError> {
    let model = ExportedModel::read(&args.folder)?;
    if args.data.is_empty() && args.config.is_none() {
        return Err(ExportedError::NothingToEvaluate);
    }
    let mut trainer = model.trainer()?;
    let mut reports = Vec::new();
    if let Some(config) = &args.config {
        reports.push(model.judge(&mut trainer, Suite::held_out(config, &model)?, &args.folder)?);
    }
    for path in &args.data {
        reports.push(model.judge(&mut trainer, Suite::of_path(path, &model, &args.folder)?, &args.folder)?);
    }
    Ok(match args.json {
        true => report::json(&model.run.identity.run_id, model.epoch, &reports),
        false => reports.iter().map(SuiteReport::to_string).collect::<Vec<_>>().join("\n"),
    })
}

impl ExportedModel {
    fn judge(
        &self,
        trainer: &mut Trainer,
        suite: Suite,
        folder: &Path,
    ) -> Result<SuiteReport, ExportedError> {
        let Suite { name, test, known, reference } = suite;
        let n_samples = test.n_samples();
        let neighbours = match (&reference, &test) {
            (Some(Samples::Images(reference)), Samples::Images(test)) => {
                Some(block_on(trainer.evaluate_neighbours(reference, test))?.accuracy)
            }
            _ => None,
        };
        let judged = block_on(trainer.evaluate_samples(&test))?;
        let (loss, accuracy) = (f64::from(judged.loss), f64::from(judged.accuracy));
        let known = known.as_ref().unwrap_or(&test);
        let (baseline, metrics) = match &self.run.model.graph.loss {
            Loss::Classification => {
                let often = Frequencies::of(&labels(known), self.run.data.manifest.class_names().len());
                let labels = labels(&test);
                let metrics = vec![
                    Metric::new("loss", loss, often.loss(&labels)),
                    Metric::share("accuracy", accuracy, often.accuracy(&labels)),
                ];
                ("commonest class", metrics)
            }
            Loss::CausalLanguageModel => {
                let predicted = after_the_first(&test);
                let often = Frequencies::of(&labels(known), self.n_tokens());
                let of_tokens = often.loss(&predicted);
                let per_byte = self.nats_to_bits_per_byte(&predicted, &self.unigram(folder)?);
                let metrics = vec![
                    Metric::new("loss", loss, of_tokens),
                    Metric::new("perplexity", loss.exp(), of_tokens.exp()),
                    Metric::new("bits per byte", loss * per_byte, of_tokens * per_byte),
                    Metric::share("accuracy", accuracy, often.accuracy(&predicted)),
                ];
                ("unigram model", metrics)
            }
            Loss::MaskedLanguageModel => {
                let often = Frequencies::of(&labels(known), self.n_tokens());
                let tokens = labels(&test);
                let of_tokens = often.loss(&tokens);
                let metrics = vec![
                    Metric::new("loss", loss, of_tokens),
                    Metric::new("perplexity", loss.exp(), of_tokens.exp()),
                    Metric::share("accuracy", accuracy, often.accuracy(&tokens)),
                ];
                ("unigram model", metrics)
            }
            Loss::Regression => {
                let (values, n_values) = values(&test);
                let means = Means::of(&values_of(known), n_values);
                let error = means.squared_error(&values);
                let variance = Means::of(&values, n_values).squared_error(&values);
                let explained = |error: f64| if variance > 0.0 { 1.0 - error / variance } else { 0.0 };
                let metrics = vec![
                    Metric::new("mean squared error", loss, error),
                    Metric::new("root mean squared error", loss.sqrt(), error.sqrt()),
                    Metric::new("R²", explained(loss), explained(error)),
                ];
                ("mean", metrics)
            }
            Loss::Swav(_) => {
                let mut metrics = vec![Metric::alone("loss", loss)];
                if let Some(neighbours) = neighbours {
                    let often = Frequencies::of(&labels(known), self.run.data.manifest.class_names().len());
                    let by_class = often.accuracy(&labels(&test));
                    metrics.push(Metric::share("accuracy of neighbours", neighbours.into(), by_class));
                }
                ("commonest class", metrics)
            }
        };
        Ok(SuiteReport { suite: name, n_samples, baseline, metrics })
    }

    fn n_tokens(&self) -> usize {
        match &self.run.data.manifest.samples {
            SampleKind::Tokens(tokens) => tokens.vocabulary.into(),
            _ => 0,
        }
    }

    /// What a loss in nats per token is to be multiplied with. An unknown token is counted as one byte.
    fn nats_to_bits_per_byte(&self, tokens: &[u16], unigram: &Unigram) -> f64 {
        let of_token = |&id: &u16| if id < SPECIAL_TOKENS { 1 } else { unigram.text(id).len() };
        let n_bytes: usize = tokens.iter().map(of_token).sum();
        tokens.len() as f64 / n_bytes.max(1) as f64 / std::f64::consts::LN_2
    }
}

/// Classes or tokens.
fn labels(samples: &Samples) -> Vec<u16> {
    match samples {
        Samples::Images(images) => images.labels.iter().copied().map(u16::from).collect(),
        Samples::Tokens(tokens) => tokens.ids.clone(),
        Samples::Rows(TableRows { targets: RowTargets::Classes(labels), .. }) => {
            labels.iter().copied().map(u16::from).collect()
        }
        Samples::Rows(_) | Samples::Ratings(_) => Vec::new(),
    }
}

/// The tokens that are predicted from those before them.
fn after_the_first(samples: &Samples) -> Vec<u16> {
    match samples {
        Samples::Tokens(tokens) => tokens.sequences().flat_map(|ids| &ids[1..]).copied().collect(),
        _ => Vec::new(),
    }
}

/// Values that are to be told, and how many there are of a sample.
fn values(samples: &Samples) -> (Vec<f32>, usize) {
    match samples {
        Samples::Ratings(ratings) => (ratings.ratings.clone(), 1),
        Samples::Rows(TableRows { targets: RowTargets::Values { n_values, values }, .. }) => {
            (values.clone(), *n_values)
        }
        _ => (Vec::new(), 1),
    }
}

fn values_of(samples: &Samples) -> Vec<f32> {
    values(samples).0
}
