//! How a visitor's own files become samples of the run: its tokenizer, or its columns, over HTTP.

use axum::Router;
use axum::extract::State;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::columns::DataColumns;
use barnraise_protocol::dataset::SampleKind;
use bytes::Bytes;

/// The files of a run. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct DataFiles {
    tokenizer: Option<JsonFile>,
    columns: Option<JsonFile>,
}

/// A file that stays the same, and its entity tag.
#[derive(Debug, Clone)]
struct JsonFile {
    json: Bytes,
    tag: String,
}

impl JsonFile {
    fn of(json: Bytes) -> Self {
        let tag = format!("\"{}\"", Sha256Hash::of(&json));
        Self { json, tag }
    }

    fn answer(self, asked: &HeaderMap) -> Response {
        if asked.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == self.tag.as_bytes()) {
            return (StatusCode::NOT_MODIFIED, revalidated(&self.tag)).into_response();
        }
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (revalidated(&self.tag), kind, self.json).into_response()
    }
}

/// Clients revalidate each time, which is answered with 304 while the file is the same.
pub(crate) fn revalidated(tag: &str) -> [(HeaderName, HeaderValue); 2] {
    let tag = HeaderValue::from_str(tag).unwrap_or(HeaderValue::from_static("W/\"\""));
    [(header::CACHE_CONTROL, HeaderValue::from_static("no-cache")), (header::ETAG, tag)]
}

/// Why a file is not sent.
#[derive(Debug, thiserror::Error)]
enum NoFile {
    #[error("this run does not learn from text")]
    Text,
    #[error("this run does not learn from a table or from ratings")]
    Columns,
}

impl IntoResponse for NoFile {
    fn into_response(self) -> Response {
        (StatusCode::NOT_FOUND, [(header::CACHE_CONTROL, "no-store")], format!("{self}\n")).into_response()
    }
}

impl DataFiles {
    /// - `tokenizer`: the `tokenizer.json` of a run that learns from text
    /// - `columns`: those of a run that learns from a table or from ratings
    ///
    /// # Errors
    /// Does not happen.
    pub fn new(tokenizer: Option<Bytes>, columns: Option<&DataColumns>) -> Result<Self, serde_json::Error> {
        let columns = columns.map(serde_json::to_vec).transpose()?.map(Bytes::from);
        Ok(Self { tokenizer: tokenizer.map(JsonFile::of), columns: columns.map(JsonFile::of) })
    }

    /// Of a run of samples of this kind, whose manifest names this file.
    pub(crate) fn of_preprocessing(kind: &SampleKind, file: Option<Bytes>) -> Self {
        let file = file.map(JsonFile::of);
        match kind {
            SampleKind::Images { .. } => Self::default(),
            SampleKind::Tokens(_) => Self { tokenizer: file, columns: None },
            SampleKind::Rows(_) | SampleKind::Ratings(_) => Self { tokenizer: None, columns: file },
        }
    }

    /// The routes.
    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route("/api/tokenizer.json", get(tokenizer))
            .route("/api/columns.json", get(columns))
            .with_state(self)
    }
}

async fn tokenizer(State(files): State<DataFiles>, asked: HeaderMap) -> Result<Response, NoFile> {
    Ok(files.tokenizer.ok_or(NoFile::Text)?.answer(&asked))
}

async fn columns(State(files): State<DataFiles>, asked: HeaderMap) -> Result<Response, NoFile> {
    Ok(files.columns.ok_or(NoFile::Columns)?.answer(&asked))
}
