//! Tells what is to be told of a row of the run's table, or recommends items, by the newest model of the web server. What is
//! asked about never leaves the tab.

use std::rc::Rc;

use futures::lock::Mutex;

use crate::earlier::{LoadError, LoadedModel, ModelSource};
use crate::experts::TrialExperts;
use crate::platform::{ShardCache, fetch_status};

/// Items that are recommended.
const ITEMS: usize = 10;

/// The newest model that was asked for. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RowModel {
    origin: String,
    cache: Rc<ShardCache>,
    experts: TrialExperts,
    loaded: Rc<Mutex<Option<LoadedModel>>>,
}

impl RowModel {
    /// `origin` is where the page came from: `https://host:port`.
    pub(crate) fn new(origin: String, experts: TrialExperts) -> Self {
        Self { cache: Rc::new(ShardCache::new(&origin)), origin, experts, loaded: Rc::default() }
    }

    /// What is to be told of a row, and the epoch of the model.
    pub(crate) async fn tell(&self, values: &[f32]) -> Result<(u64, Vec<f32>), LoadError> {
        let mut loaded = self.loaded.lock().await;
        let LoadedModel { epoch, trainer, .. } = self.newest(&mut loaded).await?;
        let asked = self.experts.watch(trainer);
        let told = trainer.predict_rows(values).await?;
        asked.check()?;
        Ok((*epoch, told))
    }

    /// The best items of those that were not rated, and the epoch of the model.
    pub(crate) async fn recommend(&self, rated: &[(u32, f32)]) -> Result<(u64, Vec<(u32, f32)>), LoadError> {
        let mut loaded = self.loaded.lock().await;
        let LoadedModel { epoch, trainer, parameters, loss } = self.newest(&mut loaded).await?;
        let best = trainer.best_items(parameters, rated, *loss, ITEMS).await?;
        Ok((*epoch, best))
    }

    /// The newest model of the web server, or the one that is loaded while the server does not answer.
    async fn newest<'a>(
        &self,
        loaded: &'a mut Option<LoadedModel>,
    ) -> Result<&'a mut LoadedModel, LoadError> {
        let renewed = self.renewed(loaded.as_ref()).await;
        match renewed {
            Ok(Some(model)) => *loaded = Some(model),
            Err(error) if loaded.is_none() => return Err(error),
            Ok(None) | Err(_) => {}
        }
        loaded.as_mut().ok_or(LoadError::NoneEvaluated)
    }

    /// A newer model than this one.
    async fn renewed(&self, known: Option<&LoadedModel>) -> Result<Option<LoadedModel>, LoadError> {
        let source = ModelSource { origin: &self.origin, cache: &self.cache, experts: Some(&self.experts) };
        let newest = source.newest().await?;
        if known.is_some_and(|model| model.epoch == newest) {
            return Ok(None);
        }
        let run = fetch_status(&self.origin).await?.run;
        Ok(Some(source.load(&run, None).await?))
    }
}
