//! The model as anybody downloads it from a running backbone: the parameters that contributors have, as good as the
//! backbone says, and still there after a crash.

use std::time::Duration;

use anyhow::{Context, Result};
use barnraise_learning::tensor_file::{self, TensorFile};
use barnraise_learning::{ComputeDevice, DataShape, ParameterLayout, Trainer};
use barnraise_native::config::RunConfig;
use barnraise_native::data::sets::{Dataset, FileSpecs};
use barnraise_protocol::api::Models;
use barnraise_protocol::run::RunDescription;
use barnraise_tests::client::TestClient;
use barnraise_tests::process::{BackboneProcess, HANG, TestRun};

use super::SMALL;

/// Sums of floats depend on their order, and with them which of two like classes is first.
const TOLERANCE: f32 = 2e-3;

pub(super) async fn get(backbone: &BackboneProcess, path: &str) -> Result<Vec<u8>> {
    let url = format!("{}{path}", backbone.page());
    let got = tokio::task::spawn_blocking(move || ureq::get(&url).call()?.body_mut().read_to_vec());
    got.await?.with_context(|| path.to_owned())
}

/// What there is, once it is as wanted.
async fn models(backbone: &BackboneProcess, is_wanted: impl Fn(&Models) -> bool) -> Models {
    let wanted = async {
        loop {
            let models: Models =
                serde_json::from_slice(&get(backbone, "/api/models").await.unwrap()).unwrap();
            if is_wanted(&models) {
                return models;
            }
            // Nothing tells over HTTP that a model was evaluated.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, wanted).await.expect("such models")
}

pub(super) async fn download(backbone: &BackboneProcess, path: &str, run: &RunDescription) -> TensorFile {
    let layout = ParameterLayout::of(&run.model, DataShape::of(&run.data.manifest.samples)).unwrap();
    tensor_file::read(&get(backbone, path).await.unwrap(), &layout).unwrap()
}

/// An earlier model; `None` once it is not listed. A newer one that is being stored may push it out behind the list.
async fn earlier(backbone: &BackboneProcess, epoch: u64, run: &RunDescription) -> Option<TensorFile> {
    let path = format!("/api/model.safetensors?epoch={epoch}");
    let layout = ParameterLayout::of(&run.model, DataShape::of(&run.data.manifest.samples)).unwrap();
    let downloaded = async {
        loop {
            let listed = models(backbone, |models| models.latest.is_some()).await;
            if listed.earlier.iter().all(|file| file.epoch != epoch) {
                return None;
            }
            match get(backbone, &path).await {
                Ok(bytes) => return Some(tensor_file::read(&bytes, &layout).unwrap()),
                Err(error) => println!("{error:#}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, downloaded).await.expect("what is listed can be downloaded")
}

/// Accuracy on what nobody trains on, computed here.
async fn accuracy(run: &RunDescription, parameters: &[f32]) -> f32 {
    let data = Dataset::load(&RunConfig::default().data_sources(), &FileSpecs::fashion_mnist()).unwrap();
    let data_shape = DataShape::of(&run.data.manifest.samples);
    let mut trainer = Trainer::new(&run.model, data_shape, ComputeDevice::cpu()).unwrap();
    trainer.load_parameters(parameters).unwrap();
    trainer.evaluate(&data.test.images, &data.test.labels).await.unwrap().accuracy
}

#[tokio::test]
async fn what_is_downloaded_is_the_model_and_as_good_as_is_said() {
    let sections = SMALL
        .replace("every_epochs = 10", "every_epochs = 1")
        .replace("[storage]", "[storage]\nkeep_models = [\"1s\"]");
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(5).await.unwrap();
    models(&backbone, |models| !models.earlier.is_empty()).await;
    joined.interrupt().unwrap();
    joined.end().await.unwrap();
    // What it handed in when it left may have made another step.
    let status = backbone.status_at_rest().await.unwrap();
    let (run, epoch) = (status.run, status.progress.epoch);
    let is_newest = |models: &Models| models.latest.is_some_and(|latest| latest.epoch == epoch);
    models(&backbone, is_newest).await;
    let newest = download(&backbone, "/api/model.safetensors", &run).await;
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let state = client.state(&run).await.unwrap();
    assert_eq!((state.epoch, newest.notes["epoch"].clone()), (epoch, epoch.to_string()));
    assert!(state.parameters == newest.parameters, "other parameters than contributors have");
    let said: f32 = newest.notes["test_accuracy"].parse().unwrap();
    let here = accuracy(&run, &newest.parameters).await;
    assert!((here - said).abs() <= TOLERANCE, "{here} here, {said} in the file");
    let card = String::from_utf8(get(&backbone, "/api/model-card.md").await.unwrap()).unwrap();
    assert!(card.contains(&format!("after {epoch} optimizer steps")), "{card}");

    let (before, kept) = loop {
        let found = models(&backbone, |models| !models.earlier.is_empty()).await;
        let before = found.earlier.last().unwrap().epoch;
        if let Some(kept) = earlier(&backbone, before, &run).await {
            break (before, kept);
        }
    };
    assert!(before < epoch && kept.parameters != newest.parameters, "{before}, {epoch}");
    backbone.kill().await.unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let again = models(&backbone, is_newest).await;
    assert!(!again.earlier.is_empty(), "{again:?}");
    if let Some(same) = earlier(&backbone, before, &run).await {
        assert!(same == kept, "another model after the crash");
    }
}

#[tokio::test]
async fn a_run_that_is_not_open_keeps_its_model_to_those_who_take_part() {
    let sections = format!("{SMALL}\n[access]\nmode = \"invitation\"\n");
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    for path in ["/api/models", "/api/model.safetensors", "/api/model-card.md"] {
        let error = get(&backbone, path).await.unwrap_err();
        assert!(format!("{error:#}").contains("404"), "{path}: {error:#}");
    }
}
