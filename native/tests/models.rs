//! The model over HTTP: the downloaded model is the evaluated one, bit for bit, and stored models survive a restart.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use barnraise_learning::tensor_file;
use barnraise_learning::{DataShape, Evaluation, ParameterLayout};
use barnraise_native::host::data_files::DataFiles;
use barnraise_native::host::models::{DOWNLOADS_MAX, Facts, Keeper, ModelFiles, Publisher};
use barnraise_native::storage::Storage;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::api::{HistoryPoint, ModelFile, Models, RunStatus};
use barnraise_protocol::columns::{Column, ColumnContent, DataColumns, Scale, TableColumns};
use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::dataset::{ImageShape, Manifest, SampleKind, ShardEntry};
use barnraise_protocol::run::{Preset, RunDescription, RunIdentity};
use tokio::sync::watch;
use tower::ServiceExt;

use crate::fixture;

const MINUTE: u64 = 60;
const NOW: u64 = 1_800_000_000;
const ACCURACY: f32 = 0.8125;

fn run() -> RunDescription {
    let mut run = fixture::run();
    let entry = ShardEntry { n_samples: 60, ..run.data.manifest.gallery };
    let samples = SampleKind::Images {
        shape: ImageShape { height: 12, width: 12, channels: 1 },
        class_names: ["coat", "boot"].map(str::to_owned).into(),
    };
    run.data.manifest = Manifest { name: "Clothes".into(), ..fixture::manifest(samples, entry) };
    let identity = RunIdentity {
        run_id: "garments".into(),
        title: "Telling \"garments\" apart".into(),
        purpose: "Two lines\n# of them".into(),
    };
    let model = Preset::Mlp { hidden: vec![200] }.model(1);
    RunDescription { identity, model, ..run }
}

/// Is sent as it is.
const TOKENIZER: &[u8] = br#"{"model":{}}"#;

struct ModelsHarness {
    facts: Facts,
    publisher: Publisher,
    kept: watch::Receiver<Arc<[barnraise_native::host::models::StoredModel]>>,
    storage: Storage,
    app: Router,
    folder: tempfile::TempDir,
    _status: watch::Sender<RunStatus>,
}

impl ModelsHarness {
    async fn new(storage: Storage) -> Self {
        let run = Arc::new(run());
        let layout = ParameterLayout::of(&run.model, DataShape::of(&run.data.manifest.samples)).unwrap();
        let facts = Facts { run, layout: Arc::new(layout), license: None };
        let folder = tempfile::tempdir().unwrap();
        let (publisher, latest) = Publisher::new(facts.clone(), folder.path().join("run"));
        let ages = [Duration::from_secs(MINUTE)];
        let (keeper, kept) = Keeper::open(storage.clone(), &ages).await.unwrap();
        tokio::spawn(keeper.run(latest.clone()));
        let clock = Arc::new(|| UnixTime(NOW + 10 * MINUTE));
        let files = ModelFiles::new(facts.clone(), latest, kept.clone(), storage.clone(), clock);
        let files = files.with_data(DataFiles::new(Some(TOKENIZER.into()), Some(&columns())).unwrap());
        let (status, shown) = watch::channel(status(&facts.run));
        let app = files.routes(shown, None);
        Self { facts, publisher, kept, storage, app, folder, _status: status }
    }

    /// Parameters that differ at each epoch.
    fn parameters(&self, epoch: u64) -> Arc<Vec<f32>> {
        self.facts.layout.initial_parameters(epoch).into()
    }

    fn evaluated(&self, epoch: u64, made_at: u64) {
        let evaluation = Evaluation { loss: 0.5, accuracy: ACCURACY };
        self.publisher.publish(epoch, UnixTime(made_at), evaluation, &self.parameters(epoch));
    }

    /// The same, and waits until the model is stored.
    async fn kept(&mut self, epoch: u64, made_at: u64) {
        self.evaluated(epoch, made_at);
        let kept = self.kept.wait_for(|kept| kept.iter().any(|kept| kept.epoch == epoch));
        tokio::time::timeout(Duration::from_secs(60), kept).await.expect("it is kept").unwrap();
    }

    async fn get(&self, path: &str, tag: &str) -> Response {
        let request = Request::get(path).header("if-none-match", tag).body(Body::empty()).unwrap();
        self.app.clone().oneshot(request).await.unwrap()
    }

    async fn models(&self) -> Models {
        serde_json::from_slice(&bytes(self.get("/api/models", "").await).await).unwrap()
    }

    /// The file of an answer must be the model of `epoch`.
    async fn ensure_model(&self, response: Response, epoch: u64) {
        assert_eq!(response.status(), StatusCode::OK);
        let length: usize = header(response.headers(), "content-length").parse().unwrap();
        let name = format!("attachment; filename=\"garments-{epoch}.safetensors\"");
        assert_eq!(header(response.headers(), "content-disposition"), name);
        let bytes = bytes(response).await;
        assert_eq!(bytes.len(), length);
        let file = tensor_file::read(&bytes, &self.facts.layout).unwrap();
        assert!(file.parameters == *self.parameters(epoch), "other values than at epoch {epoch}");
        assert_eq!(file.notes["epoch"], epoch.to_string());
        assert_eq!(file.notes["test_accuracy"], ACCURACY.to_string());
        let values = &bytes[length - file.parameters.len() * tensor_file::VALUE_BYTES..];
        assert_eq!(file.notes["sha256_of_values"], Sha256Hash::of(values).to_string());
    }
}

fn columns() -> DataColumns {
    let scale = Scale { mean: 0.25, deviation: 0.5 };
    let column = |name: &str, content| Column { name: name.into(), content };
    let words = ColumnContent::Words(vec![("red".into(), scale)]);
    let columns = vec![column("length", ColumnContent::Number(scale)), column("colour", words)];
    DataColumns::Table(TableColumns { target: "kind".into(), columns })
}

fn status(run: &RunDescription) -> RunStatus {
    let point =
        |epoch| HistoryPoint { epoch, n_samples_total: epoch * 1000, train_loss: None, test_accuracy: None };
    RunStatus {
        run: run.clone(),
        n_parameters: 29_402,
        addresses: vec![],
        progress: RunProgress {
            epoch: 9,
            n_samples: 0,
            target_batch_size: 1024,
            n_contributors: 0,
            samples_per_second: 0.0,
            train_loss: None,
            test_accuracy: None,
        },
        history: (1..=9).map(point).collect(),
        devices: vec![],
        paused: None,
        majority_accuracy: None,
    }
}

async fn bytes(response: Response) -> Vec<u8> {
    to_bytes(response.into_body(), 1 << 24).await.unwrap().to_vec()
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn the_newest_model_is_there_once_it_was_evaluated_and_is_asked_for_once() {
    let world = ModelsHarness::new(Storage::in_memory()).await;
    assert_eq!(world.models().await, Models::default());
    for path in ["/api/model.safetensors", "/api/model-card.md"] {
        assert_eq!(world.get(path, "").await.status(), StatusCode::NOT_FOUND);
    }
    world.evaluated(7, NOW);
    let response = world.get("/api/model.safetensors", "").await;
    let tag = header(response.headers(), "etag").to_owned();
    let n_bytes = header(response.headers(), "content-length").parse().unwrap();
    world.ensure_model(response, 7).await;
    let newest = ModelFile { epoch: 7, age_seconds: 10 * MINUTE, n_bytes };
    assert_eq!(world.models().await.latest, Some(newest));
    let again = world.get("/api/model.safetensors?epoch=7", &tag).await;
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    assert!(bytes(again).await.is_empty());
    world.evaluated(8, NOW + 1);
    world.ensure_model(world.get("/api/model.safetensors", &tag).await, 8).await;
}

#[tokio::test]
async fn models_from_before_are_kept_and_found_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::open(folder.path()).unwrap();
    let mut world = ModelsHarness::new(storage).await;
    world.kept(3, NOW).await;
    world.kept(5, NOW + 2 * MINUTE).await;
    world.evaluated(6, NOW + 2 * MINUTE + 1);
    let ages = |models: Models| -> Vec<(u64, u64)> {
        models.earlier.iter().map(|file| (file.epoch, file.age_seconds / MINUTE)).collect()
    };
    assert_eq!(ages(world.models().await), [(5, 8), (3, 10)]);
    world.ensure_model(world.get("/api/model.safetensors?epoch=3", "").await, 3).await;
    assert_eq!(world.get("/api/model.safetensors?epoch=4", "").await.status(), StatusCode::NOT_FOUND);

    let again = ModelsHarness::new(world.storage.clone()).await;
    assert_eq!(again.models().await, Models::default(), "nothing was evaluated yet");
    again.evaluated(6, NOW + 2 * MINUTE + 2);
    assert_eq!(ages(again.models().await), [(5, 8), (3, 10)]);
    again.ensure_model(again.get("/api/model.safetensors?epoch=5", "").await, 5).await;
}

#[tokio::test]
async fn a_download_goes_on_while_newer_models_come_and_nothing_is_left_of_them() {
    let world = ModelsHarness::new(Storage::in_memory()).await;
    world.evaluated(7, NOW);
    let begun = world.get("/api/model.safetensors", "").await;
    let other = world.get("/api/model.safetensors", "").await;
    world.evaluated(8, NOW + 1);
    tokio::join!(world.ensure_model(begun, 7), world.ensure_model(other, 7));
    let run = world.folder.path().join("run");
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), 0, "the files have no names");
    std::fs::remove_dir(&run).unwrap();
    std::fs::write(&run, "no folder").unwrap();
    world.evaluated(9, NOW + 2);
    world.ensure_model(world.get("/api/model.safetensors", "").await, 8).await;
}

#[tokio::test]
async fn only_so_many_take_the_model_at_a_time() {
    let world = ModelsHarness::new(Storage::in_memory()).await;
    world.evaluated(7, NOW);
    let mut taking = Vec::new();
    for _ in 0..DOWNLOADS_MAX {
        taking.push(world.get("/api/model.safetensors", "").await);
    }
    let refused = world.get("/api/model.safetensors", "").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(refused.headers(), "retry-after"), "60");
    // A client that disconnects frees its slot.
    drop(taking.pop());
    world.ensure_model(world.get("/api/model.safetensors", "").await, 7).await;
}

#[tokio::test]
async fn the_tokenizer_is_sent_once() {
    let world = ModelsHarness::new(Storage::in_memory()).await;
    let response = world.get("/api/tokenizer.json", "").await;
    assert_eq!(header(response.headers(), "content-type"), "application/json");
    let tag = header(response.headers(), "etag").to_owned();
    assert_eq!(bytes(response).await, TOKENIZER);
    assert_eq!(world.get("/api/tokenizer.json", &tag).await.status(), StatusCode::NOT_MODIFIED);
}

#[tokio::test]
async fn golden_text_of_the_columns() {
    let world = ModelsHarness::new(Storage::in_memory()).await;
    let response = world.get("/api/columns.json", "").await;
    let tag = header(response.headers(), "etag").to_owned();
    let want = r#"{"table":{"target":"kind","columns":[{"name":"length","content":{"number":{"mean":0.25,"deviation":0.5}}},{"name":"colour","content":{"words":[["red",{"mean":0.25,"deviation":0.5}]]}}]}}"#;
    let got = bytes(response).await;
    assert_eq!(String::from_utf8_lossy(&got), want);
    assert_eq!(serde_json::from_slice::<DataColumns>(&got).unwrap(), columns());
    assert_eq!(world.get("/api/columns.json", &tag).await.status(), StatusCode::NOT_MODIFIED);
}

#[tokio::test]
async fn a_malformed_request_is_refused() {
    let world = ModelsHarness::new(Storage::in_memory()).await;
    world.evaluated(7, NOW);
    for path in ["?epoch=-1", "?epoch=x", "?step=7", "?epoch=99999999999999999999"] {
        let response = world.get(&format!("/api/model.safetensors{path}"), "").await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{path}");
    }
}

#[tokio::test]
async fn the_card_says_what_the_model_is_and_no_text_of_the_run_breaks_out() {
    let world = ModelsHarness::new(Storage::in_memory()).await;
    world.evaluated(7, NOW);
    let response = world.get("/api/model-card.md", "").await;
    assert_eq!(header(response.headers(), "content-type"), "text/markdown; charset=utf-8");
    let card = String::from_utf8(bytes(response).await).unwrap();
    let mut parts = card.splitn(3, "---\n");
    assert_eq!(parts.next(), Some(""));
    let (yaml, text) = (parts.next().unwrap(), parts.next().unwrap());
    for part in ["license: other\n", "pipeline_tag: image-classification\n", "value: 0.8125\n", "\"Clothes\""]
    {
        assert!(yaml.contains(part), "{part} in {yaml}");
    }
    for part in [
        "# Telling \"garments\" apart\n",
        "Two lines # of them",
        "after 7 optimizer steps",
        "60 pictures of 12 by 12 pixels, each one of coat, boot",
        "By then 7000 samples",
        "Accuracy 81.",
        "`fc1.weight` [144, 200]",
        "did not state a licence",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("# ")).collect();
    assert_eq!(headings.len(), 1, "{headings:?}");
}
