//! Predictions of an earlier model: its file is fetched from the web server of the page, and evaluated on the CPU
//! beside training. It never touches the contributor's model.

use std::rc::Rc;

use barnraise_learning::{ComputeDevice, DataShape, Trainer, tensor_file};
use barnraise_messages::PeerToPage;
use barnraise_protocol::run::RunDescription;
use futures::lock::Mutex;
use js_sys::{ArrayBuffer, Uint8Array};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::Response;

use crate::page;
use crate::platform::fetch_status;

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
    pub(crate) async fn predict(&self, epoch: u64, pixels: &[u8]) -> Result<Vec<f32>, String> {
        let mut loaded = self.loaded.lock().await;
        let trainer = match loaded.take() {
            Some((known, trainer)) if known == epoch => trainer,
            _ => self.fetch(epoch).await?,
        };
        let predicted = trainer.predict(pixels, 1).await;
        *loaded = Some((epoch, trainer));
        predicted.map_err(|error| error.to_string())
    }

    async fn fetch(&self, epoch: u64) -> Result<Trainer, String> {
        let run = fetch_status(&self.origin).await?.run;
        let url = format!("{}/api/model.safetensors?epoch={epoch}", self.origin);
        load(&run, &url).await.map(|(_, trainer)| trainer)
    }
}

/// Loads the model at an address onto the CPU; returns its epoch with it.
pub(crate) async fn load(run: &RunDescription, url: &str) -> Result<(u64, Trainer), String> {
    let data = DataShape::of(&run.data.manifest.samples);
    let mut trainer =
        Trainer::new(&run.model, data, ComputeDevice::cpu()).map_err(|error| error.to_string())?;
    let bytes = download(url, tensor_file::file_bytes_max(trainer.layout())).await?;
    let file = tensor_file::read(&bytes, trainer.layout()).map_err(|error| error.to_string())?;
    trainer.load_parameters(&file.parameters).map_err(|error| error.to_string())?;
    let epoch = file.notes.get("epoch").and_then(|epoch| epoch.parse().ok());
    Ok((epoch.ok_or_else(|| "the file does not say of which step it is".to_owned())?, trainer))
}

/// Downloads a file of the page's own server, unless it is longer than `bytes_max`.
pub(crate) async fn download(url: &str, bytes_max: usize) -> Result<Vec<u8>, String> {
    let scope = page::scope().ok_or_else(|| "this is no worker".to_owned())?;
    let failed = |error: JsValue| format!("the web server does not answer: {}", page::describe(&error));
    let response = JsFuture::from(scope.fetch_with_str(url)).await.map_err(failed)?;
    let response: Response = response.dyn_into().map_err(failed)?;
    if !response.ok() {
        return Err(format!("the web server answered with status {}", response.status()));
    }
    let announced = response.headers().get("content-length").ok().flatten();
    let announced = announced.and_then(|length| length.parse::<usize>().ok());
    if announced.is_some_and(|length| length > bytes_max) {
        return Err(format!("the file is longer than {bytes_max} bytes"));
    }
    let buffer = JsFuture::from(response.array_buffer().map_err(failed)?).await.map_err(failed)?;
    let buffer: ArrayBuffer = buffer.dyn_into().map_err(failed)?;
    let bytes = Uint8Array::new(&buffer);
    page::post(&PeerToPage::Downloaded { bytes: bytes.length().into() });
    match bytes.length() as usize <= bytes_max {
        true => Ok(bytes.to_vec()),
        false => Err(format!("the file is longer than {bytes_max} bytes")),
    }
}
