//! Tells what is to be told of a row of the run's table, or recommends items, by the newest model of the web server. What is
//! asked about never leaves the tab.

use std::rc::Rc;

use barnraise_protocol::api::Models;
use futures::lock::Mutex;

use crate::earlier::{LoadError, LoadedModel, download, load};
use crate::platform::fetch_status;

/// Items that are recommended.
const ITEMS: usize = 10;
/// Longest list of models.
const MODELS_BYTES_MAX: usize = 64 * 1024;
/// Error of ratings where the run has not said how large it is: a point.
const NOISE_DEFAULT: f32 = 1.0;

/// Why nothing is told. For people, without a full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TellError {
    /// The model cannot be had.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The list of models is of another version.
    #[error("the list of models is not understood: {0}")]
    Models(#[source] serde_json::Error),
    /// The run has just begun.
    #[error("no model was evaluated yet")]
    NoneEvaluated,
}

/// The newest model that was asked for. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RowModel {
    origin: String,
    loaded: Rc<Mutex<Option<LoadedModel>>>,
}

impl RowModel {
    /// `origin` is where the page came from: `https://host:port`.
    pub(crate) fn new(origin: String) -> Self {
        Self { origin, loaded: Rc::default() }
    }

    /// What is to be told of a row, and the epoch of the model.
    pub(crate) async fn tell(&self, values: &[f32]) -> Result<(u64, Vec<f32>), TellError> {
        let mut loaded = self.loaded.lock().await;
        let LoadedModel { epoch, trainer, .. } = self.newest(&mut loaded).await?;
        let told = trainer.predict_rows(values).await.map_err(LoadError::from)?;
        Ok((*epoch, told))
    }

    /// The best items of those that were not rated, and the epoch of the model.
    pub(crate) async fn recommend(&self, rated: &[(u32, f32)]) -> Result<(u64, Vec<(u32, f32)>), TellError> {
        let mut loaded = self.loaded.lock().await;
        let LoadedModel { epoch, trainer, parameters, loss } = self.newest(&mut loaded).await?;
        let noise = loss.unwrap_or(NOISE_DEFAULT);
        let ratings = trainer.recommend(parameters, rated, noise).await.map_err(LoadError::from)?;
        let is_new = |item: u32| rated.iter().all(|&(known, _)| known != item);
        let mut best: Vec<(u32, f32)> = (0..).zip(ratings).filter(|(item, _)| is_new(*item)).collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        best.truncate(ITEMS);
        Ok((*epoch, best))
    }

    /// The newest model of the web server, or the one that is loaded while the server does not answer.
    async fn newest<'a>(
        &self,
        loaded: &'a mut Option<LoadedModel>,
    ) -> Result<&'a mut LoadedModel, TellError> {
        let renewed = self.renewed(loaded.as_ref()).await;
        match renewed {
            Ok(Some(model)) => *loaded = Some(model),
            Err(error) if loaded.is_none() => return Err(error),
            Ok(None) | Err(_) => {}
        }
        loaded.as_mut().ok_or(TellError::NoneEvaluated)
    }

    /// A newer model than this one.
    async fn renewed(&self, known: Option<&LoadedModel>) -> Result<Option<LoadedModel>, TellError> {
        let url = format!("{}/api/models", self.origin);
        let bytes = download(&url, MODELS_BYTES_MAX).await.map_err(LoadError::from)?;
        let models: Models = serde_json::from_slice(&bytes).map_err(TellError::Models)?;
        let newest = models.latest.ok_or(TellError::NoneEvaluated)?.epoch;
        if known.is_some_and(|model| model.epoch == newest) {
            return Ok(None);
        }
        let run = fetch_status(&self.origin).await.map_err(LoadError::from)?.run;
        Ok(Some(load(&run, &format!("{}/api/model.safetensors", self.origin)).await?))
    }
}
