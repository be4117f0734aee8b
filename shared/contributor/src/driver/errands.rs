//! What a visitor asks for beside contributing: a prediction, the gallery.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dataset::{LabelledImages, Samples};
use futures::FutureExt;

use super::{ComputeKind, Driver, Run};
use crate::compute;
use crate::event::Event;
use crate::platform::Platform;

/// Most errands that wait.
const ERRANDS_MAX: usize = 8;
/// Without training, parameters are fetched again for a prediction when they are older.
const FRESH_MAX: Duration = Duration::from_secs(10);

/// Something to be answered once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Errand {
    Predict { request: u32, pixels: Vec<u8> },
    Gallery,
}

impl<'a, P: Platform, F: FnMut(Event)> Driver<'a, P, F> {
    pub(super) fn push_errand(&mut self, errand: Errand) {
        if self.errands.len() >= ERRANDS_MAX {
            self.fail("too many requests wait already; try again in a moment".into());
            return;
        }
        self.errands.push_back(errand);
    }

    pub(super) fn fail_errands(&mut self, reason: &str) {
        let errands = std::mem::take(&mut self.errands);
        for errand in errands {
            let wanted = match errand {
                Errand::Predict { .. } => "The prediction",
                Errand::Gallery => "The gallery",
            };
            self.fail(format!("{wanted} could not be had: {reason}"));
        }
    }

    /// Without contributing, errands alone decide what happens on the network.
    pub(super) fn errands_on_network(&mut self) {
        let now = self.platform.now();
        if self.errands.is_empty() {
            let is_old = self.link.as_ref().is_some_and(|link| now >= link.used_at + super::IDLE_LINK_MAX);
            if is_old {
                self.link = None;
                self.start_disconnect();
            }
            return;
        }
        if self.link.is_none() {
            self.start_connect(false);
            return;
        }
        let wants_parameters = self.errands.iter().any(|errand| matches!(errand, Errand::Predict { .. }));
        if wants_parameters && !self.is_fresh() {
            self.start_state(true);
        }
    }

    /// Starts the first prediction that can be made with what is here.
    pub(super) fn start_prediction(&mut self) {
        let is_prediction = |errand: &Errand| matches!(errand, Errand::Predict { .. });
        let Some(at) = self.errands.iter().position(is_prediction) else { return };
        if !self.is_fresh() || self.compute_kind.is_some() {
            return;
        }
        let Some((run, trainer, epoch)) = self.run.as_mut().and_then(trainer_and_epoch) else { return };
        let Some(Errand::Predict { request, pixels }) = self.errands.remove(at) else {
            run.trainer = Some(trainer);
            return;
        };
        self.compute_kind = Some(ComputeKind::Prediction);
        self.compute = compute::predict(trainer, request, epoch, pixels).boxed_local().fuse();
    }

    /// Whether the gallery is waited for, and nobody fetches it.
    pub(super) fn wants_gallery(&self) -> bool {
        self.errands.contains(&Errand::Gallery) && self.run.is_some()
    }

    pub(super) fn on_gallery(&mut self, shard: Arc<Samples>) {
        let waiting = self.errands.len();
        self.errands.retain(|errand| *errand != Errand::Gallery);
        if self.errands.len() < waiting {
            match Arc::unwrap_or_clone(shard) {
                Samples::Images(LabelledImages { images, labels }) => {
                    (self.events)(Event::Gallery { images, labels });
                }
                Samples::Tokens(_) => self.fail("This run has no pictures to look at".into()),
            }
        }
    }

    pub(super) fn on_gallery_failed(&mut self, reason: &str) {
        self.errands.retain(|errand| *errand != Errand::Gallery);
        self.fail(format!("The gallery could not be had: {reason}"));
    }

    /// While contributing the state machine keeps the parameters up to date.
    fn is_fresh(&self) -> bool {
        let loaded = self.run.as_ref().and_then(|run| run.loaded);
        let now = self.platform.now();
        loaded.is_some_and(|(_, at)| !self.is_idle || now.saturating_sub(at) <= FRESH_MAX)
    }
}

fn trainer_and_epoch(run: &mut Run) -> Option<(&mut Run, barnraise_learning::Trainer, u64)> {
    let (epoch, _) = run.loaded?;
    let trainer = run.trainer.take()?;
    Some((run, trainer, epoch))
}
