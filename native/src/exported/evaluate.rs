//! `barnraise evaluate`: how good an exported model is on data, beside a baseline that knows what is frequent and
//! nothing else.

mod baseline;
mod report;
mod suite;

use std::path::{Path, PathBuf};

use barnraise_learning::tokenizer::{Tokenizer, TokenizerError};
use barnraise_learning::{Evaluation, Trainer};
use barnraise_protocol::dataset::{SampleKind, Samples};
use barnraise_protocol::run::model::graph::Loss;
use clap::Args;
use futures::executor::block_on;

use self::baseline::{Answers, Frequencies, Means};
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
    let trainer = model.trainer()?;
    let mut reports = Vec::new();
    if let Some(config) = &args.config {
        reports.push(model.judge(&trainer, Suite::held_out(config, &model)?, &args.folder)?);
    }
    for path in &args.data {
        reports.push(model.judge(&trainer, Suite::of_path(path, &model, &args.folder)?, &args.folder)?);
    }
    Ok(match args.json {
        true => report::json(&model.run.identity.run_id, model.epoch, &reports),
        false => reports.iter().map(SuiteReport::to_string).collect::<Vec<_>>().join("\n"),
    })
}

impl ExportedModel {
    fn judge(&self, trainer: &Trainer, suite: Suite, folder: &Path) -> Result<SuiteReport, ExportedError> {
        let neighbours = match (&suite.reference, &suite.test) {
            (Some(Samples::Images(reference)), Samples::Images(test)) => {
                Some(block_on(trainer.evaluate_neighbours(reference, test))?.accuracy)
            }
            _ => None,
        };
        let judged = block_on(trainer.evaluate_samples(&suite.test))?;
        let (baseline, metrics) = self.compare(judged, neighbours, &suite, folder)?;
        Ok(SuiteReport { n_samples: suite.test.n_samples(), suite: suite.name, baseline, metrics })
    }

    /// The metrics that suit the model, and the name of the baseline.
    fn compare(
        &self,
        judged: Evaluation,
        neighbours: Option<f32>,
        Suite { test, known, .. }: &Suite,
        folder: &Path,
    ) -> Result<(&'static str, Vec<Metric>), ExportedError> {
        let (loss, accuracy) = (f64::from(judged.loss), f64::from(judged.accuracy));
        let answers = Answers::of(test);
        let n_classes = self.run.data.manifest.class_names().len();
        Ok(match &self.run.model.graph.loss {
            Loss::Classification => {
                let often = Frequencies::of(&known.labels, n_classes);
                let metrics = vec![
                    Metric::new("loss", loss, often.loss(&answers.labels)),
                    Metric::share("accuracy", accuracy, often.accuracy(&answers.labels)),
                ];
                ("commonest class", metrics)
            }
            Loss::CausalLanguageModel => {
                let tokens = after_the_first(test);
                let often = Frequencies::of(&known.labels, self.n_tokens());
                let of_tokens = often.loss(&tokens);
                let per_byte = nats_to_bits_per_byte(&tokens, self.tokenizer(folder)?)?;
                let metrics = vec![
                    Metric::new("loss", loss, of_tokens),
                    Metric::new("perplexity", loss.exp(), of_tokens.exp()),
                    Metric::new("bits per byte", loss * per_byte, of_tokens * per_byte),
                    Metric::share("accuracy", accuracy, often.accuracy(&tokens)),
                ];
                ("unigram model", metrics)
            }
            Loss::MaskedLanguageModel => {
                let often = Frequencies::of(&known.labels, self.n_tokens());
                let of_tokens = often.loss(&answers.labels);
                let metrics = vec![
                    Metric::new("loss", loss, of_tokens),
                    Metric::new("perplexity", loss.exp(), of_tokens.exp()),
                    Metric::share("accuracy", accuracy, often.accuracy(&answers.labels)),
                ];
                ("unigram model", metrics)
            }
            Loss::Regression => {
                let Answers { values, n_values, .. } = &answers;
                let error = Means::of(&known.values, *n_values).squared_error(values);
                let variance = Means::of(values, *n_values).squared_error(values);
                let explained = |error: f64| if variance > 0.0 { 1.0 - error / variance } else { 0.0 };
                let metrics = vec![
                    Metric::new("mean squared error", loss, error),
                    Metric::new("root mean squared error", loss.sqrt(), error.sqrt()),
                    Metric::new("R²", explained(loss), explained(error)),
                ];
                ("mean", metrics)
            }
            Loss::Swav(_) => {
                let by_class = Frequencies::of(&known.labels, n_classes).accuracy(&answers.labels);
                let neighbours =
                    neighbours.map(|share| Metric::share("accuracy of neighbours", share.into(), by_class));
                let metrics = [Metric::alone("loss", loss)].into_iter().chain(neighbours).collect();
                ("commonest class", metrics)
            }
        })
    }

    fn n_tokens(&self) -> usize {
        match &self.run.data.manifest.samples {
            SampleKind::Tokens(tokens) => tokens.vocabulary as usize,
            _ => 0,
        }
    }
}

/// What a loss in nats per token is to be multiplied with. A special token is counted as one byte.
fn nats_to_bits_per_byte(tokens: &[u32], tokenizer: &Tokenizer) -> Result<f64, TokenizerError> {
    let special = tokenizer.special();
    let is_special = |id: &u32| [Some(special.separator), special.unknown, special.mask].contains(&Some(*id));
    let mut n_bytes = 0;
    for text in tokens.split(is_special) {
        n_bytes += tokenizer.decode(text)?.len() + 1;
    }
    Ok(tokens.len() as f64 / f64::from(u32::try_from(n_bytes).unwrap_or(u32::MAX)) / std::f64::consts::LN_2)
}

/// The tokens that are predicted from those before them.
fn after_the_first(samples: &Samples) -> Vec<u32> {
    match samples {
        Samples::Tokens(tokens) => tokens.sequences().flat_map(|ids| &ids[1..]).copied().collect(),
        _ => Vec::new(),
    }
}
