//! A tab with a worker for each contender, and the server of its page.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::Query;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use barnraise_bench_peer::{Case, Samples};
use barnraise_learning::Batch;
use barnraise_tests::browser::{Graphics, Tab};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower_http::services::ServeDir;

use crate::step_task::{ContenderAnswer, StepTask};
use crate::{paths, tfjs};

/// Longer than the slowest compilation of kernels that was seen.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// As the learning crate normalizes a pixel; TF.js gets values, not bytes.
const PIXEL: (f32, f32) = (barnraise_learning::PIXEL_MEAN, barnraise_learning::PIXEL_STD);

/// The tab.
pub(crate) struct Lab {
    tab: Tab,
    n_requests: u64,
    server: JoinHandle<()>,
}

impl Lab {
    /// Serves the page and opens it.
    pub(crate) async fn open() -> Result<Self> {
        let npm = tokio::task::spawn_blocking(tfjs::fetch).await??;
        let files = router().nest_service("/npm", ServeDir::new(npm));
        let files = files.nest_service("/peer", ServeDir::new(paths::bench_peer()?));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?);
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, files).await {
                eprintln!("the page is no longer served: {error}");
            }
        });
        let tab = Tab::open("lab", Graphics::SoftwareAdapter, &url).await?;
        tab.until("document.body.dataset.ready", ANSWER_MAX).await?;
        Ok(Self { tab, n_requests: 0, server })
    }

    /// Has a worker of the tab compute `n_steps`.
    pub(crate) async fn measure(
        &mut self,
        engine: &str,
        device: &str,
        task: StepTask<'_>,
        n_steps: u32,
    ) -> Result<ContenderAnswer> {
        self.n_requests += 1;
        let id = self.n_requests;
        let request = json!({
            "id": id, "engine": engine, "device": device,
            "model": task.model, "n_steps": n_steps,
        });
        self.tab.read(&format!("void measure({request})")).await?;
        let shown = format!("element('result').dataset.request == {id} && text('result')");
        let answer = self.tab.until(&shown, ANSWER_MAX).await?;
        let answer: Value = serde_json::from_str(answer.as_str().unwrap_or_default())?;
        if let Some(error) = answer.get("error") {
            bail!("{error}");
        }
        serde_json::from_value(answer.clone()).with_context(|| format!("no measurement: {answer}"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[derive(Debug, Deserialize)]
struct ModelQuery {
    model: String,
}

fn router() -> Router {
    Router::new()
        .route("/", get(|| async { page("text/html", include_str!("../web/bench.html")) }))
        .route("/bench.js", get(|| async { script(include_str!("../web/bench.js")) }))
        .route("/peer-worker.js", get(|| async { script(include_str!("../web/peer-worker.js")) }))
        .route("/tfjs-worker.js", get(|| async { script(include_str!("../web/tfjs-worker.js")) }))
        .route("/data/parameters", get(parameters))
        .route("/data/images", get(images))
        .route("/data/labels", get(labels))
}

fn script(text: &'static str) -> impl IntoResponse {
    page("text/javascript", text)
}

fn page(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}

async fn parameters(Query(query): Query<ModelQuery>) -> Result<Vec<u8>, Refusal> {
    let (_, values) = case(&query)?.initial_parameters().map_err(refusal)?;
    Ok(f32_bytes(values))
}

/// Normalized, as float32.
async fn images(Query(query): Query<ModelQuery>) -> Result<Vec<u8>, Refusal> {
    Ok(f32_bytes(normalized(&batch(&query)?.images)))
}

/// One row for each label, 1 at its class.
async fn labels(Query(query): Query<ModelQuery>) -> Result<Vec<u8>, Refusal> {
    let row = |label: u8| (0..barnraise_bench_peer::N_CLASSES).map(move |class| class == usize::from(label));
    let labels = batch(&query)?.labels;
    Ok(f32_bytes(labels.into_iter().flat_map(row).map(|is_class| f32::from(u8::from(is_class)))))
}

type Refusal = (StatusCode, String);

fn refusal(error: impl std::fmt::Display) -> Refusal {
    (StatusCode::BAD_REQUEST, error.to_string())
}

fn case(query: &ModelQuery) -> Result<Case, Refusal> {
    Case::new(&query.model).map_err(refusal)
}

fn batch(query: &ModelQuery) -> Result<Batch, Refusal> {
    match case(query)?.samples {
        Samples::Images(batch) => Ok(batch),
        Samples::Tokens(_) => Err(refusal(format!("{} has no pictures", query.model))),
    }
}

/// As the learning crate normalizes pixels.
pub(crate) fn normalized(pixels: &[u8]) -> impl Iterator<Item = f32> {
    let (mean, std) = PIXEL;
    pixels.iter().map(move |&pixel| (f32::from(pixel) / 255.0 - mean) / std)
}

pub(crate) fn f32_bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}
