//! Models over HTTP: the list, the files, the card. Few files are sent at a time, each in pieces, and a download that is
//! too slow is aborted.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::{self, HeaderMap};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::api::{Contributions, ContributionsQuery, ModelFile, ModelQuery, Models, RunStatus};
use barnraise_protocol::shard::ShardId;
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use tokio::sync::watch;

use super::card::card;
use super::{Facts, Snapshot, StoredModel, keeper};
use crate::data::shards::{ShardError, ShardStore};
use crate::host::clock::WallClock;
use crate::host::contributions::{Question, Store};
use crate::host::data_files::{DataFiles, revalidated};
use crate::host::visitors::{Seat, Seats, Visitor};
use crate::storage::{Storage, StorageError};

/// Downloads at a time; further ones are refused with a time to retry.
pub const DOWNLOADS_MAX: usize = 8;
/// Downloads of one address.
const DOWNLOADS_OF_ONE_MAX: usize = 4;
/// Slowest pace of a download, and the time granted in addition.
const BYTES_PER_SECOND_MIN: u64 = 32 * 1024;
const GRACE: Duration = Duration::from_secs(60);

/// Serves the models of a run. Cheap to clone.
#[derive(Clone)]
pub struct ModelFiles {
    facts: Facts,
    latest: watch::Receiver<Option<Arc<Snapshot>>>,
    kept: watch::Receiver<Arc<[StoredModel]>>,
    storage: Storage,
    clock: WallClock,
    downloads: Seats,
    data: DataFiles,
    shards: Option<Arc<ShardStore>>,
}

/// State of the routes.
#[derive(Clone)]
struct ModelRoutes {
    files: ModelFiles,
    status: watch::Receiver<RunStatus>,
    contributions: Option<Store>,
}

/// Why a file is not sent.
#[derive(Debug, thiserror::Error)]
enum NoModel {
    #[error(transparent)]
    Query(#[from] QueryRejection),
    #[error("no model was evaluated yet, come again in a minute")]
    NotYet,
    #[error("no model of epoch {0} is kept, /api/models says which are")]
    Epoch(u64),
    #[error("there are no frozen weights {0}, /api/run says which there are")]
    NoFrozen(u32),
    #[error("the weights cannot be read")]
    Shard(#[from] ShardError),
    #[error("too many models are being downloaded, come again in a minute")]
    Busy,
    #[error("the model cannot be read")]
    Storage(#[from] StorageError),
}

impl IntoResponse for NoModel {
    fn into_response(self) -> Response {
        let no_store = [(header::CACHE_CONTROL, "no-store")];
        let retry = [(header::RETRY_AFTER, "60")];
        let text = format!("{self}\n");
        match self {
            Self::Query(rejection) => rejection.into_response(),
            Self::NotYet => (StatusCode::NOT_FOUND, no_store, retry, text).into_response(),
            Self::Epoch(_) | Self::NoFrozen(_) => (StatusCode::NOT_FOUND, no_store, text).into_response(),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, no_store, retry, text).into_response(),
            Self::Shard(error) => {
                tracing::warn!(%error, "frozen weights cannot be read");
                (StatusCode::SERVICE_UNAVAILABLE, no_store, retry, text).into_response()
            }
            Self::Storage(error) => {
                // Details of the error are for the log only.
                tracing::warn!(%error, "a model cannot be read");
                (StatusCode::SERVICE_UNAVAILABLE, no_store, retry, text).into_response()
            }
        }
    }
}

impl ModelFiles {
    /// - `latest`: the newest evaluated model
    /// - `kept`: the models in `storage`, from the keeper
    pub fn new(
        facts: Facts,
        latest: watch::Receiver<Option<Arc<Snapshot>>>,
        kept: watch::Receiver<Arc<[StoredModel]>>,
        storage: Storage,
        clock: WallClock,
    ) -> Self {
        let downloads = Seats::new(DOWNLOADS_MAX, DOWNLOADS_OF_ONE_MAX);
        let data = DataFiles::default();
        Self { facts, latest, kept, storage, clock, downloads, data, shards: None }
    }

    /// With the tokenizer or the columns of the run.
    #[must_use]
    pub fn with_data(self, data: DataFiles) -> Self {
        Self { data, ..self }
    }

    /// With the shards of frozen weights, which a tab needs to try the model.
    #[must_use]
    pub fn with_shards(self, shards: Arc<ShardStore>) -> Self {
        Self { shards: Some(shards), ..self }
    }

    /// The routes.
    pub fn routes(self, status: watch::Receiver<RunStatus>, contributions: Option<Store>) -> Router {
        let data = self.data.clone().routes();
        Router::new()
            .route("/api/models", get(models))
            .route("/api/model.safetensors", get(file))
            .route("/api/model-card.md", get(model_card))
            .route("/api/frozen/{number}", get(frozen))
            .with_state(ModelRoutes { files: self, status, contributions })
            .merge(data)
    }

    fn newest(&self) -> Option<Arc<Snapshot>> {
        self.latest.borrow().clone()
    }

    fn list(&self, now: UnixTime) -> Models {
        let latest = self.newest();
        let age = |made_at: UnixTime| now.0.saturating_sub(made_at.0);
        let newest = latest.as_ref().map(|snapshot| ModelFile {
            epoch: snapshot.epoch,
            age_seconds: age(snapshot.made_at),
            n_bytes: snapshot.n_bytes,
        });
        let is_earlier =
            |kept: &&StoredModel| latest.as_ref().is_some_and(|latest| kept.epoch < latest.epoch);
        let earlier = self.kept.borrow();
        let earlier = earlier.iter().rev().filter(is_earlier).map(|kept| ModelFile {
            epoch: kept.epoch,
            age_seconds: age(kept.made_at),
            n_bytes: kept.n_bytes,
        });
        Models { latest: newest, earlier: earlier.collect() }
    }

    /// The file of the newest model, or of that of an epoch.
    async fn open(
        &self,
        epoch: Option<u64>,
        asked: &HeaderMap,
        visitor: Option<Visitor>,
    ) -> Result<Response, NoModel> {
        let newest = self.newest().ok_or(NoModel::NotYet)?;
        let earlier = epoch.filter(|&epoch| epoch != newest.epoch);
        let kept = match earlier {
            Some(epoch) => {
                let kept = self.kept.borrow().iter().copied().find(|kept| kept.epoch == epoch);
                Some(kept.ok_or(NoModel::Epoch(epoch))?)
            }
            None => None,
        };
        let (epoch, made_at, n_bytes) = match kept {
            Some(kept) => (kept.epoch, kept.made_at, kept.n_bytes),
            None => (newest.epoch, newest.made_at, newest.n_bytes),
        };
        // Weak: the order of the notes in the header may change after a restart.
        let tag = format!("W/\"{epoch}-{}\"", made_at.0);
        if asked.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            return Ok((StatusCode::NOT_MODIFIED, revalidated(&tag)).into_response());
        }
        let seat = self.downloads.take(visitor).ok_or(NoModel::Busy)?;
        let body = match kept {
            Some(kept) => {
                let pieces = keeper::read(&self.storage, &kept).await?.ok_or(NoModel::Epoch(kept.epoch))?;
                paced(pieces.map(|piece| piece.map_err(io::Error::other)), n_bytes, seat)
            }
            None => paced(newest.pieces(), n_bytes, seat),
        };
        let name = format!("attachment; filename=\"{}-{epoch}.safetensors\"", self.facts.run.identity.run_id);
        let file = [
            (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
            (header::CONTENT_DISPOSITION, name),
            (header::CONTENT_LENGTH, n_bytes.to_string()),
        ];
        Ok((revalidated(&tag), file, body).into_response())
    }
}

/// A body that ends in an error if the download is too slow; its seat is released on drop.
fn paced(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static, n_bytes: u64, seat: Seat) -> Body {
    let began = Instant::now();
    let limit = GRACE + Duration::from_secs(n_bytes / BYTES_PER_SECOND_MIN);
    Body::from_stream(pieces.map(move |piece| {
        let _held_while_sent = &seat;
        match began.elapsed() > limit {
            true => Err(io::Error::new(io::ErrorKind::TimedOut, "the model was taken too slowly")),
            false => piece,
        }
    }))
}

async fn models(State(shown): State<ModelRoutes>) -> ([(HeaderName, &'static str); 1], Json<Models>) {
    let now = (shown.files.clock)();
    ([(header::CACHE_CONTROL, "no-store")], Json(shown.files.list(now)))
}

async fn file(
    State(shown): State<ModelRoutes>,
    query: Result<Query<ModelQuery>, QueryRejection>,
    visitor: Option<Extension<Visitor>>,
    asked: HeaderMap,
) -> Result<Response, NoModel> {
    let Query(ModelQuery { epoch }) = query?;
    shown.files.open(epoch, &asked, visitor.map(|Extension(visitor)| visitor)).await
}

/// A shard of frozen weights, by its number in the manifest. The browser peer keeps it under its hash.
async fn frozen(
    State(shown): State<ModelRoutes>,
    Path(number): Path<u32>,
    visitor: Option<Extension<Visitor>>,
) -> Result<Response, NoModel> {
    let shards = shown.files.shards.as_ref().ok_or(NoModel::NoFrozen(number))?;
    if number < shards.manifest().first_frozen() || shards.manifest().numbered(number).is_none() {
        return Err(NoModel::NoFrozen(number));
    }
    let visitor = visitor.map(|Extension(visitor)| visitor);
    let seat = shown.files.downloads.take(visitor).ok_or(NoModel::Busy)?;
    let bytes = shards.get(ShardId::Numbered(number)).await?;
    let headers = [
        (header::CACHE_CONTROL, "no-store".to_owned()),
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, bytes.len().to_string()),
    ];
    let n_bytes = bytes.len() as u64;
    Ok((headers, paced(stream::iter([Ok(bytes)]), n_bytes, seat)).into_response())
}

async fn model_card(State(shown): State<ModelRoutes>) -> Result<Response, NoModel> {
    let snapshot = shown.files.newest().ok_or(NoModel::NotYet)?;
    let given = match &shown.contributions {
        Some(store) => totals(store).await,
        None => None,
    };
    let given = given.map(|contributions| (contributions.n_contributors, contributions.totals));
    let text = card(&shown.files.facts, &snapshot, &shown.status.borrow(), given);
    let headers =
        [(header::CACHE_CONTROL, "no-store"), (header::CONTENT_TYPE, "text/markdown; charset=utf-8")];
    Ok((headers, text).into_response())
}

/// Totals of all contributors; `None` while the database does not answer.
async fn totals(store: &Store) -> Option<Contributions> {
    let question = Question::try_from(ContributionsQuery::default()).ok()?;
    store.contributions(&question).await.ok()
}
