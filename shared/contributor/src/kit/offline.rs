//! Answers a visitor's requests from the cached model while no backbone can be reached.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::Interruption;

use super::background::BackgroundRequest;
use super::model_cache::{self, OfflineCache};
use super::network::NetOutcome;
use super::{Kit, NetKind};
use crate::platform::Platform;

/// Shortest interval between two writes of the cached model.
const KEEP_EVERY: Duration = Duration::from_secs(60);
/// Average rate of those writes: the cache may be on a phone's flash.
const KEEP_BYTES_PER_SECOND: u64 = 50_000;
/// Bytes of a cached parameter.
const BYTES_PER_PARAMETER: u64 = size_of::<f32>() as u64;

impl<P: Platform> Kit<'_, P> {
    /// The run's description, if the parameters that are fetched next have to be cached.
    pub(super) fn caches_next(&mut self, now: Moment) -> Option<Rc<RunDescription>> {
        let run = self.run.as_ref()?;
        let (run, pause) = (Rc::clone(&run.description), cache_interval(run.n_parameters as u64));
        let is_due = self.cached_at.is_none_or(|at| now.saturating_sub(at) >= pause);
        if !is_due || !self.platform.caches_models() {
            return None;
        }
        self.cached_at = Some(now);
        Some(run)
    }

    /// No backbone answers: starts to read the cache. Returns whether there is a cache and a request for it.
    pub(super) fn start_offline(&mut self, reason: &Interruption) -> bool {
        if !self.platform.caches_models() || self.requests.is_empty() || self.net_kind.is_some() {
            return false;
        }
        let (platform, reason) = (self.platform, reason.clone());
        let wants_gallery = self.requests.contains(&BackgroundRequest::Gallery);
        let here = self.run.as_ref().map(|run| (Rc::clone(&run.description), run.loaded.is_some()));
        let (operation, cancel) = self.operation();
        let look = async move {
            let model = match &here {
                Some((_, true)) => None,
                _ => platform.cached_model().await.and_then(model_cache::decode),
            };
            let run =
                here.map(|(run, _)| run).or_else(|| model.as_ref().map(|(run, _)| Rc::new(run.clone())));
            let gallery = match run.filter(|_| wants_gallery) {
                Some(run) => cached_gallery(platform, &run).await,
                None => None,
            };
            drop(operation);
            let frozen = match &model {
                Some((run, _)) => cached_frozen(platform, run).await,
                None => Vec::new(),
            };
            let found = OfflineCache { model, frozen, gallery, wanted_gallery: wants_gallery, reason };
            NetOutcome::Offline(Box::new(found))
        };
        self.run_net(NetKind::Offline, cancel, look);
        true
    }

    /// Answers the requests from what was in the cache.
    pub(super) fn answer_offline(
        &mut self,
        gallery: Option<Arc<Samples>>,
        wanted_gallery: bool,
        reason: &Interruption,
    ) {
        let now = self.platform.now();
        let loaded = self.run.as_mut().and_then(|run| run.loaded.as_mut());
        let is_loaded = loaded.map(|(_, at)| *at = now).is_some();
        let is_parked = self.run.as_ref().is_some_and(|run| run.waiting_parameters.is_some());
        if let Some(gallery) = gallery {
            self.on_gallery(gallery);
        }
        if !is_loaded && !is_parked {
            self.fail_requests(reason);
        } else if self.requests.contains(&BackgroundRequest::Gallery)
            && (wanted_gallery || !self.start_offline(reason))
        {
            self.on_gallery_failed(reason);
        }
    }
}

/// Interval between two writes: the larger a model, the longer.
fn cache_interval(n_parameters: u64) -> Duration {
    let n_bytes = n_parameters.saturating_mul(BYTES_PER_PARAMETER);
    KEEP_EVERY.max(Duration::from_secs(n_bytes / KEEP_BYTES_PER_SECOND))
}

/// All shards of frozen weights, or none.
async fn cached_frozen<P: Platform>(platform: &P, run: &RunDescription) -> Vec<Arc<[u8]>> {
    let mut shards = Vec::new();
    for entry in &run.data.manifest.frozen {
        match platform.cached(entry.sha256).await.filter(|bytes| entry.check(bytes).is_ok()) {
            Some(bytes) => shards.push(bytes.into()),
            None => return Vec::new(),
        }
    }
    shards
}

async fn cached_gallery<P: Platform>(platform: &P, run: &RunDescription) -> Option<Arc<Samples>> {
    let entry = ShardId::Gallery.entry(&run.data.manifest)?;
    let bytes = platform.cached(entry.sha256).await?;
    Samples::decode(&bytes, entry, &run.data.manifest).ok().map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_model_does_not_wear_out_the_flash() {
        assert_eq!(cache_interval(61_706), KEEP_EVERY);
        let large = 18_000_000;
        let written_a_day = 86_400 / cache_interval(large).as_secs() * 4 * large;
        assert!(written_a_day <= 86_400 * KEEP_BYTES_PER_SECOND, "{written_a_day} bytes a day");
        assert!(cache_interval(large) < Duration::from_secs(3600), "and is still one of this hour");
        assert!(cache_interval(u64::MAX) > KEEP_EVERY);
    }
}
