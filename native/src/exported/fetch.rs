//! The newest model of a run, from the server of its page.

use std::time::Duration;

use barnraise_learning::frozen::FrozenOfRunError;
use barnraise_learning::tensor_file::{self, TensorFileError};
use barnraise_learning::tokenizer::{FILE_BYTES_MAX, TokenizerError};
use barnraise_learning::{DataShape, FrozenWeights, ModelError, ParameterLayout, merged};
use barnraise_protocol::api::RunStatus;
use barnraise_protocol::columns::{COLUMNS_BYTES_MAX, DataColumns};
use barnraise_protocol::dataset::SampleKind;
use barnraise_protocol::run::RunDescription;

use super::ExportedModel;
use super::peft::AdapterFiles;
use super::tokenizer::RunTokenizer;
use crate::data::columns;
use crate::http_agent::{Patience, agent};

/// Largest answer but the model.
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Without a byte for so long the server is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the model of a run cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No address of a page.
    #[error("`{0}` is no address of a page: one such as https://barn.example/run/garments is wanted")]
    Address(String),
    /// No answer.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// Why not.
        reason: String,
    },
    /// The answer is an error.
    #[error("{url} answered {status}: {said}")]
    Refused {
        /// What was asked for.
        url: String,
        /// Of HTTP.
        status: u16,
        /// The first line of the answer.
        said: String,
    },
    /// An answer of another version.
    #[error("{url} is of another version of Barnraise: {reason}")]
    NotUnderstood {
        /// What was asked for.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// A model that this version cannot compute.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Frozen weights that cannot be had.
    #[error(transparent)]
    Frozen(#[from] Box<FrozenOfRunError<FetchError>>),
}

/// The newest model of the run at `page`, and its card.
pub(super) fn newest(page: &str) -> Result<(ExportedModel, String), FetchError> {
    let page = page.trim_end_matches('/');
    if !page.starts_with("http://") && !page.starts_with("https://") {
        return Err(FetchError::Address(page.to_owned()));
    }
    let url = |path: &str| format!("{page}/api/{path}");
    let not_understood = |path: &str, reason: String| FetchError::NotUnderstood { url: url(path), reason };
    let status = fetch(&url("run"), ANSWER_BYTES_MAX)?;
    let RunStatus { run, .. } =
        serde_json::from_slice(&status).map_err(|error| not_understood("run", error.to_string()))?;
    let layout = ParameterLayout::of_run(&run)?;
    let tensors = fetch(&url("model.safetensors"), tensor_file::file_bytes_max(&layout) as u64)?;
    let broken = |error: &dyn std::fmt::Display| not_understood("model.safetensors", error.to_string());
    let file = tensor_file::read(&tensors, &layout).map_err(|error: TensorFileError| broken(&error))?;
    let epoch = file.notes.get("epoch").and_then(|epoch| epoch.parse().ok());
    let epoch = epoch.ok_or_else(|| broken(&"it does not say of which step it is"))?;
    let card = fetch(&url("model-card.md"), ANSWER_BYTES_MAX)?;
    let loss = file.notes.get("test_loss").and_then(|loss| loss.parse().ok());
    let loss = loss.filter(|loss: &f32| loss.is_finite());
    let (mut tokenizer, mut columns): (Option<RunTokenizer>, Option<DataColumns>) = (None, None);
    match run.data.manifest.samples {
        SampleKind::Images { .. } => {}
        SampleKind::Tokens(_) => {
            let bytes = fetch(&url("tokenizer.json"), FILE_BYTES_MAX as u64)?;
            let refused = |error: TokenizerError| not_understood("tokenizer.json", error.to_string());
            tokenizer = Some(RunTokenizer::read(bytes).map_err(refused)?);
        }
        SampleKind::Rows(_) | SampleKind::Ratings(_) => {
            let bytes = fetch(&url("columns.json"), COLUMNS_BYTES_MAX)?;
            let read = columns::read(&bytes, &run.data.manifest.samples);
            columns = Some(read.map_err(|error| not_understood("columns.json", error.to_string()))?);
        }
    }
    let card = String::from_utf8_lossy(&card).into_owned();
    let adapters = AdapterFiles::of(&run, &layout, &file.parameters).map_err(|error| broken(&error))?;
    let (run, parameters) =
        whole(run, file.parameters, |number, bytes_max| fetch(&url(&format!("frozen/{number}")), bytes_max))?;
    Ok((ExportedModel { run, epoch, loss, parameters, tokenizer, columns, adapters }, card))
}

/// The run and its parameters; of adapters beside frozen weights the whole model that they make.
fn whole(
    mut run: RunDescription,
    parameters: Vec<f32>,
    fetch: impl Fn(u32, u64) -> Result<Vec<u8>, FetchError>,
) -> Result<(RunDescription, Vec<f32>), FetchError> {
    let sizes = |number| run.data.manifest.numbered(number).map_or(0, |entry| entry.n_bytes);
    let fetch = async |number: u32| fetch(number, sizes(number).into());
    let Some(frozen) = futures::executor::block_on(FrozenWeights::of_run(&run, fetch)).map_err(Box::new)?
    else {
        return Ok((run, parameters));
    };
    let data = DataShape::of(&run.data.manifest.samples);
    let (model, parameters) = merged(&run.model, data, &frozen, &parameters)?;
    run.model = model;
    run.data.manifest.frozen.clear();
    Ok((run, parameters))
}

fn fetch(url: &str, bytes_max: u64) -> Result<Vec<u8>, FetchError> {
    let unreachable = |reason: String| FetchError::Unreachable { url: url.to_owned(), reason };
    let request = agent(Patience::Silence(READ_TIMEOUT)).get(url);
    // The first line of a refusal says more than its status.
    let request = request.config().http_status_as_error(false).build();
    let response = request.call().map_err(|error| unreachable(error.to_string()))?;
    let status = response.status().as_u16();
    // A reader that has come to its limit says so at the end of the body, too.
    let limit = bytes_max.saturating_add(1);
    let body = response.into_body().into_with_config().limit(limit).read_to_vec();
    let body = body.map_err(|error| unreachable(error.to_string()))?;
    if status != 200 {
        let said = String::from_utf8_lossy(&body);
        let said = said.lines().next().unwrap_or_default().chars().take(200).collect();
        return Err(FetchError::Refused { url: url.to_owned(), status, said });
    }
    Ok(body)
}
