//! The newest model of a run, from the server of its page, or from its peers.

use std::time::Duration;

use barnraise_learning::frozen::FrozenOfRunError;
use barnraise_learning::tensor_file::{self, TensorFileError};
use barnraise_learning::tokenizer::{FILE_BYTES_MAX, TokenizerError};
use barnraise_learning::{DataShape, FrozenWeights, ModelError, ParameterLayout, merged};
use barnraise_protocol::api::RunStatus;
use barnraise_protocol::columns::{COLUMNS_BYTES_MAX, DataColumns};
use barnraise_protocol::dataset::SampleKind;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;

use super::peft::AdapterFiles;
use super::tokenizer::RunTokenizer;
use super::{ExportedModel, card};
use crate::data::columns;
use crate::http_agent::{Patience, agent};
use crate::peer::args::{JoinAddress, RunName};
use crate::peer::newest::{ModelOfPeers, NewestError};

/// Largest answer but the model.
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Without a byte for so long the server is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the model of a run cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
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
    /// No peer has it.
    #[error(transparent)]
    Peers(#[from] NewestError),
    /// Frozen weights that cannot be had.
    #[error(transparent)]
    Frozen(#[from] Box<FrozenOfRunError<FetchError>>),
}

/// Where a run's model comes from: the server of its page, or its peers.
enum ModelSource {
    /// Its address.
    Page(String),
    Peers(Box<ModelOfPeers>),
}

impl ModelSource {
    /// The file that says how data become samples.
    async fn preprocessing(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, FetchError> {
        match self {
            Self::Page(page) => fetch(&url_of(page, name), bytes_max),
            Self::Peers(peers) => {
                Ok(peers.shard(ShardId::Preprocessing, "the tokenizer or the columns").await?)
            }
        }
    }

    /// Frozen weights.
    async fn frozen(&self, number: u32, bytes_max: u64) -> Result<Vec<u8>, FetchError> {
        match self {
            Self::Page(page) => fetch(&url_of(page, &format!("frozen/{number}")), bytes_max),
            Self::Peers(peers) => Ok(peers.shard(ShardId::Numbered(number), "the frozen weights").await?),
        }
    }
}

/// A model as it comes, of which the rest is to be fetched.
struct BareModel {
    run: RunDescription,
    epoch: u64,
    loss: Option<f32>,
    parameters: Vec<f32>,
}

fn url_of(page: &str, path: &str) -> String {
    format!("{page}/api/{path}")
}

fn not_understood(page: &str, path: &str, reason: &impl ToString) -> FetchError {
    FetchError::NotUnderstood { url: url_of(page, path), reason: reason.to_string() }
}

/// The newest model of a run, and its card. The page of a run without a server leads to its participants where it has none.
///
/// - `name`: the run's, where the address is of another peer of the DHT
pub(super) async fn newest(
    from: &JoinAddress,
    name: Option<RunName>,
) -> Result<(ExportedModel, String), FetchError> {
    if let JoinAddress::Page(page) = from
        && let Some((bare, card)) = of_page(page, name.as_ref())?
    {
        return Ok((completed(bare, ModelSource::Page(page.clone())).await?, card));
    }
    let mut peers = Box::pin(ModelOfPeers::fetch(from.clone(), name)).await?;
    let (run, epoch) = (peers.run.clone(), peers.epoch);
    let card = card::of_peers(&run, epoch);
    let bare = BareModel { run, epoch, loss: None, parameters: std::mem::take(&mut peers.parameters) };
    Ok((completed(bare, ModelSource::Peers(Box::new(peers))).await?, card))
}

/// The newest evaluated model that the server of a page has, and its card; `None` where it has none of a run without a server.
fn of_page(page: &str, name: Option<&RunName>) -> Result<Option<(BareModel, String)>, FetchError> {
    let status = fetch(&url_of(page, "run"), ANSWER_BYTES_MAX)?;
    let RunStatus { run, .. } =
        serde_json::from_slice(&status).map_err(|error| not_understood(page, "run", &error))?;
    if name.is_some_and(|name| !name.is_of(&run)) {
        return Err(NewestError::OtherRun(run.identity.run_id).into());
    }
    let layout = ParameterLayout::of_run(&run)?;
    let tensors = fetch(&url_of(page, "model.safetensors"), tensor_file::file_bytes_max(&layout) as u64);
    let tensors = match tensors {
        Err(FetchError::Refused { status: 404, .. }) if run.sampled().is_some() => return Ok(None),
        tensors => tensors?,
    };
    let broken = |error: &dyn std::fmt::Display| not_understood(page, "model.safetensors", &error);
    let file = tensor_file::read(&tensors, &layout).map_err(|error: TensorFileError| broken(&error))?;
    let epoch = file.notes.get("epoch").and_then(|epoch| epoch.parse().ok());
    let epoch = epoch.ok_or_else(|| broken(&"it does not say of which step it is"))?;
    let card = fetch(&url_of(page, "model-card.md"), ANSWER_BYTES_MAX)?;
    let loss = file.notes.get("test_loss").and_then(|loss| loss.parse().ok());
    let loss = loss.filter(|loss: &f32| loss.is_finite());
    let card = String::from_utf8_lossy(&card).into_owned();
    Ok(Some((BareModel { run, epoch, loss, parameters: file.parameters }, card)))
}

/// With all that it takes to use it.
async fn completed(bare: BareModel, source: ModelSource) -> Result<ExportedModel, FetchError> {
    let BareModel { run, epoch, loss, parameters } = bare;
    let place = match &source {
        ModelSource::Page(page) => page.as_str(),
        ModelSource::Peers(_) => "the run",
    };
    let (mut tokenizer, mut columns): (Option<RunTokenizer>, Option<DataColumns>) = (None, None);
    match run.data.manifest.samples {
        SampleKind::Images { .. } => {}
        SampleKind::Tokens(_) => {
            let bytes = source.preprocessing("tokenizer.json", FILE_BYTES_MAX as u64).await?;
            let refused = |error: TokenizerError| not_understood(place, "tokenizer.json", &error);
            tokenizer = Some(RunTokenizer::read(bytes).map_err(refused)?);
        }
        SampleKind::Rows(_) | SampleKind::Ratings(_) => {
            let bytes = source.preprocessing("columns.json", COLUMNS_BYTES_MAX).await?;
            let read = columns::read(&bytes, &run.data.manifest.samples);
            columns = Some(read.map_err(|error| not_understood(place, "columns.json", &error))?);
        }
    }
    let layout = ParameterLayout::of_run(&run)?;
    let broken = |error: &dyn std::fmt::Display| not_understood(place, "model.safetensors", &error);
    let adapters = AdapterFiles::of(&run, &layout, &parameters).map_err(|error| broken(&error))?;
    let (run, parameters) = whole(run, parameters, &source).await?;
    if let ModelSource::Peers(peers) = &source {
        peers.leave().await;
    }
    Ok(ExportedModel { run, epoch, loss, parameters, tokenizer, columns, adapters })
}

/// The run and its parameters; of adapters beside frozen weights the whole model that they make.
async fn whole(
    mut run: RunDescription,
    parameters: Vec<f32>,
    source: &ModelSource,
) -> Result<(RunDescription, Vec<f32>), FetchError> {
    let size = |number| run.data.manifest.numbered(number).map_or(0, |entry| entry.n_bytes);
    let fetch = async |number: u32| source.frozen(number, size(number).into()).await;
    let Some(frozen) = FrozenWeights::of_run(&run, fetch).await.map_err(Box::new)? else {
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
