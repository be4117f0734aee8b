//! Predictions of an earlier model: its file is fetched from the web server of the page, and evaluated on the CPU
//! beside training. It never touches the contributor's model.

use std::rc::Rc;

use barnraise_learning::tensor_file::{self, TensorFileError};
use barnraise_learning::{ComputeDevice, DataShape, ModelError, Trainer};
use barnraise_messages::PeerToPage;
use barnraise_protocol::run::RunDescription;
use futures::lock::Mutex;
use js_sys::{ArrayBuffer, Uint8Array};
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;

use crate::page;
use crate::platform::fetch_status;
use crate::web::{self, WebError};

/// Why a model of the web server cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// It cannot be downloaded.
    #[error(transparent)]
    Web(#[from] WebError),
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] TensorFileError),
    /// It cannot be evaluated.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file without its epoch.
    #[error("the file does not say of which step it is")]
    NoEpoch,
}

/// The earlier model that was used last. Cheap to clone.
#[derive(Clone)]
pub(crate) struct EarlierModel {
    origin: String,
    /// Its epoch, and the model. A request for another epoch waits until this one is loaded.
    loaded: Rc<Mutex<Option<(u64, Trainer)>>>,
}

impl EarlierModel {
    /// `origin` is where the page came from: `https://host:port`.
    pub(crate) fn new(origin: String) -> Self {
        Self { origin, loaded: Rc::default() }
    }

    /// Class probabilities of one picture, `[height, width, channels]`, by the model of `epoch`.
    pub(crate) async fn predict(&self, epoch: u64, pixels: &[u8]) -> Result<Vec<f32>, LoadError> {
        let mut loaded = self.loaded.lock().await;
        let trainer = match loaded.take() {
            Some((known, trainer)) if known == epoch => trainer,
            _ => self.fetch(epoch).await?,
        };
        let predicted = trainer.predict(pixels, 1).await;
        *loaded = Some((epoch, trainer));
        Ok(predicted?)
    }

    async fn fetch(&self, epoch: u64) -> Result<Trainer, LoadError> {
        let run = fetch_status(&self.origin).await?.run;
        let url = format!("{}/api/model.safetensors?epoch={epoch}", self.origin);
        load(&run, &url).await.map(|model| model.trainer)
    }
}

/// A model of the web server, on the CPU.
pub(crate) struct LoadedModel {
    /// Its epoch.
    pub(crate) epoch: u64,
    /// With its parameters.
    pub(crate) trainer: Trainer,
    /// The same.
    pub(crate) parameters: Vec<f32>,
    /// On the held-out samples of the run, where it is a number.
    pub(crate) loss: Option<f32>,
}

/// Loads the model at an address onto the CPU.
pub(crate) async fn load(run: &RunDescription, url: &str) -> Result<LoadedModel, LoadError> {
    let data = DataShape::of(&run.data.manifest.samples);
    let mut trainer = Trainer::new(&run.model, data, ComputeDevice::cpu())?;
    let bytes = download(url, tensor_file::file_bytes_max(trainer.layout())).await?;
    let file = tensor_file::read(&bytes, trainer.layout())?;
    trainer.load_parameters(&file.parameters)?;
    let epoch = file.notes.get("epoch").and_then(|epoch| epoch.parse().ok()).ok_or(LoadError::NoEpoch)?;
    let loss = file.notes.get("test_loss").and_then(|loss| loss.parse().ok());
    let loss = loss.filter(|loss: &f32| loss.is_finite());
    Ok(LoadedModel { epoch, trainer, parameters: file.parameters, loss })
}

/// Downloads a file of the page's own server, unless it is longer than `bytes_max`.
pub(crate) async fn download(url: &str, bytes_max: usize) -> Result<Vec<u8>, WebError> {
    let response = web::get(url).await?;
    let announced = response.headers().get("content-length").ok().flatten();
    let announced = announced.and_then(|length| length.parse::<usize>().ok());
    if announced.is_some_and(|length| length > bytes_max) {
        return Err(WebError::TooLong { max: bytes_max });
    }
    let buffer: ArrayBuffer = JsFuture::from(response.array_buffer()?).await?.dyn_into()?;
    let bytes = Uint8Array::new(&buffer);
    page::post(&PeerToPage::Downloaded { bytes: bytes.length().into() });
    match bytes.length() as usize <= bytes_max {
        true => Ok(bytes.to_vec()),
        false => Err(WebError::TooLong { max: bytes_max }),
    }
}
