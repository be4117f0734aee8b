//! Predictions of an earlier model: its file is fetched from the web server of the page, and evaluated on the CPU
//! beside training. It never touches the contributor's model.

use std::rc::Rc;

use barnraise_learning::frozen::FrozenOfRunError;
use barnraise_learning::tensor_file::{self, TensorFileError};
use barnraise_learning::{ComputeDevice, DataShape, FrozenWeights, ModelError, Trainer};
use barnraise_messages::PeerToPage;
use barnraise_protocol::api::Models;
use barnraise_protocol::run::RunDescription;
use futures::lock::Mutex;
use js_sys::{ArrayBuffer, Uint8Array};
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;

use crate::experts::{NoExpertAnswered, TrialExperts};
use crate::page;
use crate::platform::{ShardCache, fetch_status};
use crate::web::{self, WebError};

/// Longest list of models.
const MODELS_BYTES_MAX: usize = 64 * 1024;

/// Why a model of the web server cannot be used. For people, without a full stop.
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
    /// Its frozen weights cannot be had.
    #[error(transparent)]
    Frozen(#[from] FrozenOfRunError<WebError>),
    /// A file without its epoch.
    #[error("the file does not say of which step it is")]
    NoEpoch,
    /// The list of models is of another version.
    #[error("the list of models is not understood: {0}")]
    Models(#[from] serde_json::Error),
    /// The run has just begun.
    #[error("no model was evaluated yet")]
    NoneEvaluated,
    /// What experts on other machines knew at that time is nowhere any more.
    #[error(
        "its experts are on other machines and have learned on since: only the newest model can be tried"
    )]
    ExpertsLearnedOn,
    /// It cannot be computed without its experts.
    #[error(transparent)]
    NoExpertAnswered(#[from] NoExpertAnswered),
}

/// The earlier model that was used last. Cheap to clone.
#[derive(Clone)]
pub(crate) struct EarlierModel {
    origin: String,
    cache: Rc<ShardCache>,
    /// Its epoch, and the model. A request for another epoch waits until this one is loaded.
    loaded: Rc<Mutex<Option<(u64, Trainer)>>>,
}

impl EarlierModel {
    /// `origin` is where the page came from: `https://host:port`.
    pub(crate) fn new(origin: String) -> Self {
        Self { cache: Rc::new(ShardCache::new(&origin)), origin, loaded: Rc::default() }
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
        let source = ModelSource { origin: &self.origin, cache: &self.cache, experts: None };
        source.load(&run, Some(epoch)).await.map(|model| model.trainer)
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

/// Where models come from: the page's own server, and for what does not change the cache.
#[derive(Clone, Copy)]
pub(crate) struct ModelSource<'a> {
    pub(crate) origin: &'a str,
    pub(crate) cache: &'a ShardCache,
    /// How its experts are asked, where other peers host them; only of the newest model they can be.
    pub(crate) experts: Option<&'a TrialExperts>,
}

impl ModelSource<'_> {
    /// The epoch of the newest model.
    pub(crate) async fn newest(self) -> Result<u64, LoadError> {
        let bytes = download(&format!("{}/api/models", self.origin), MODELS_BYTES_MAX).await?;
        let models: Models = serde_json::from_slice(&bytes)?;
        models.latest.map(|model| model.epoch).ok_or(LoadError::NoneEvaluated)
    }

    /// Loads the model of an epoch, or the newest one.
    pub(crate) async fn load(
        self,
        run: &RunDescription,
        epoch: Option<u64>,
    ) -> Result<LoadedModel, LoadError> {
        if epoch.is_some() && run.model.hosted.is_some() {
            return Err(LoadError::ExpertsLearnedOn);
        }
        let mut trainer = self.untrained(run).await?;
        let which = epoch.map(|epoch| format!("?epoch={epoch}")).unwrap_or_default();
        let url = format!("{}/api/model.safetensors{which}", self.origin);
        let bytes = download(&url, tensor_file::file_bytes_max(trainer.layout())).await?;
        let file = tensor_file::read(&bytes, trainer.layout())?;
        trainer.load_parameters(&file.parameters)?;
        let epoch = file.notes.get("epoch").and_then(|epoch| epoch.parse().ok()).ok_or(LoadError::NoEpoch)?;
        let loss = file.notes.get("test_loss").and_then(|loss| loss.parse().ok());
        let loss = loss.filter(|loss: &f32| loss.is_finite());
        Ok(LoadedModel { epoch, trainer, parameters: file.parameters, loss })
    }

    /// A run's model as it begins, with its frozen weights.
    pub(crate) async fn untrained(self, run: &RunDescription) -> Result<Trainer, LoadError> {
        let fetch = async |number| {
            let entry = run.data.manifest.numbered(number).copied();
            let Some(entry) = entry else { return Err(WebError::TooLong { max: 0 }) };
            if let Some(bytes) = self.cache.get(entry.sha256).await.filter(|bytes| entry.check(bytes).is_ok())
            {
                return Ok(bytes);
            }
            let url = format!("{}/api/frozen/{number}", self.origin);
            let bytes = download(&url, entry.n_bytes as usize).await?;
            if entry.check(&bytes).is_ok() {
                self.cache.put(entry.sha256, &bytes).await;
            }
            Ok(bytes)
        };
        let frozen = FrozenWeights::of_run(run, fetch).await?;
        let data = DataShape::of(&run.data.manifest.samples);
        let trainer = Trainer::with_frozen(&run.model, data, frozen.as_ref(), ComputeDevice::cpu())?;
        match self.experts {
            Some(experts) => Ok(experts.equip(trainer, run)?),
            None => Ok(trainer),
        }
    }
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
