//! Without a backbone: a visitor's questions are answered by the newest model that was kept.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::state::State;
use barnraise_swarm::Moment;

use super::errands::Errand;
use super::{Driver, NetKind};
use crate::event::Event;
use crate::kept;
use crate::network::NetOutcome;
use crate::platform::Platform;

/// How often the newest parameters are kept at most,
const KEEP_EVERY: Duration = Duration::from_secs(60);
/// and how much is written for it in the long run: what keeps them may be a phone's flash.
const KEEP_BYTES_PER_SECOND: u64 = 50_000;
/// As they are kept.
const BYTES_PER_PARAMETER: u64 = size_of::<f32>() as u64;

/// What was kept, as far as it is wanted and still there.
pub(crate) struct Kept {
    model: Option<(RunDescription, State)>,
    gallery: Option<Arc<Samples>>,
    /// It was looked for.
    wanted_gallery: bool,
    /// Why no backbone was reached.
    reason: String,
}

impl<'a, P: Platform, F: FnMut(Event)> Driver<'a, P, F> {
    /// The run, where the parameters that are fetched next are to be kept.
    pub(super) fn keeps_next(&mut self, now: Moment) -> Option<Rc<RunDescription>> {
        let run = self.run.as_ref().map(|run| Rc::clone(&run.description))?;
        let pause = keep_every(run.n_parameters);
        let is_due = self.kept_at.is_none_or(|at| now.saturating_sub(at) >= pause);
        if !is_due || !self.platform.keeps_models() {
            return None;
        }
        self.kept_at = Some(now);
        Some(run)
    }

    /// No backbone answers what a visitor asked: whether something that was kept may.
    pub(super) fn start_kept(&mut self, reason: &str) -> bool {
        if !self.platform.keeps_models() || self.errands.is_empty() || self.net_kind.is_some() {
            return false;
        }
        let (platform, reason) = (self.platform, reason.to_owned());
        let wants_gallery = self.errands.contains(&Errand::Gallery);
        let here = self.run.as_ref().map(|run| (Rc::clone(&run.description), run.loaded.is_some()));
        let (operation, cancel) = self.operation();
        let look = async move {
            let model = match &here {
                Some((_, true)) => None,
                _ => platform.kept_model().await.and_then(|bytes| kept::decode(&bytes)),
            };
            let run =
                here.map(|(run, _)| run).or_else(|| model.as_ref().map(|(run, _)| Rc::new(run.clone())));
            let gallery = match run.filter(|_| wants_gallery) {
                Some(run) => kept_gallery(platform, &run).await,
                None => None,
            };
            drop(operation);
            let found = Kept { model, gallery, wanted_gallery: wants_gallery, reason };
            NetOutcome::Kept(Box::new(found))
        };
        self.run_net(NetKind::Kept, cancel, look);
        true
    }

    pub(super) fn on_kept(&mut self, found: Kept) {
        let Kept { model, gallery, wanted_gallery, reason } = found;
        if let Some((run, state)) = model {
            // Another run may have been described meanwhile: then that is the one.
            let is_wanted = self.run.as_ref().is_none_or(|here| *here.description == run);
            if is_wanted && self.use_run(run) {
                self.on_state(state, true);
            }
        }
        let now = self.platform.now();
        let loaded = self.run.as_mut().and_then(|run| run.loaded.as_mut());
        let is_loaded = loaded.map(|(_, at)| *at = now).is_some();
        let is_parked = self.run.as_ref().is_some_and(|run| run.parked.is_some());
        if let Some(gallery) = gallery {
            self.on_gallery(gallery);
        }
        if !is_loaded && !is_parked {
            self.fail_errands(&reason);
        } else if self.errands.contains(&Errand::Gallery) && (wanted_gallery || !self.start_kept(&reason)) {
            self.on_gallery_failed(&reason);
        }
    }
}

/// The larger a model is, the more seldom it is kept.
fn keep_every(n_parameters: u64) -> Duration {
    let n_bytes = n_parameters.saturating_mul(BYTES_PER_PARAMETER);
    KEEP_EVERY.max(Duration::from_secs(n_bytes / KEEP_BYTES_PER_SECOND))
}

async fn kept_gallery<P: Platform>(platform: &P, run: &RunDescription) -> Option<Arc<Samples>> {
    let entry = ShardId::Gallery.entry(&run.manifest)?;
    let bytes = platform.cached(entry.sha256).await?;
    Samples::decode(&bytes, entry, &run.manifest).ok().map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_model_does_not_wear_out_what_keeps_it() {
        assert_eq!(keep_every(61_706), KEEP_EVERY);
        let large = 18_000_000;
        let written_a_day = 86_400 / keep_every(large).as_secs() * 4 * large;
        assert!(written_a_day <= 86_400 * KEEP_BYTES_PER_SECOND, "{written_a_day} bytes a day");
        assert!(keep_every(large) < Duration::from_secs(3600), "and is still one of this hour");
        assert!(keep_every(u64::MAX) > KEEP_EVERY);
    }
}
