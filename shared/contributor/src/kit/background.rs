//! Requests of a visitor that are served beside contributing: predictions and the gallery.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dataset::{LabelledImages, Samples};
use barnraise_swarm::Moment;
use barnraise_swarm::activity::Interruption;
use futures::FutureExt;

use super::{ComputeKind, Kit, RunContext, compute};
use crate::event::ContributorEvent;
use crate::platform::Platform;

/// Most requests that wait.
const REQUESTS_MAX: usize = 8;
/// Without training, older parameters are fetched again before a prediction.
const FRESH_MAX: Duration = Duration::from_secs(10);
/// Experts on other machines of which none answered are asked again for so long, with pauses: a host may just have gone, and another
/// one be on its way.
const ASK_FOR: Duration = Duration::from_secs(45);
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// A request that gets one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BackgroundRequest {
    Predict { request: u32, pixels: Vec<u8>, first_at: Option<Moment> },
    Gallery,
}

/// What experts on other machines are asked about, since then.
#[derive(Debug)]
pub(super) struct AskedExperts {
    pixels: Vec<u8>,
    first_at: Moment,
}

impl<P: Platform> Kit<'_, P> {
    pub(super) fn push_request(&mut self, request: BackgroundRequest) {
        if self.requests.len() >= REQUESTS_MAX {
            self.fail("too many requests wait already; try again in a moment".into());
            return;
        }
        self.requests.push_back(request);
    }

    pub(super) fn fail_requests(&mut self, reason: &Interruption) {
        let requests = std::mem::take(&mut self.requests);
        for request in requests {
            match request {
                BackgroundRequest::Predict { .. } => {
                    self.fail(format!("The prediction could not be had: {reason}"));
                }
                BackgroundRequest::Gallery => self.deny_gallery(reason),
            }
        }
    }

    /// While not contributing, only these requests use the network.
    pub(super) fn start_request_fetch(&mut self) {
        let now = self.platform.now();
        if self.requests.is_empty() {
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
        let wants_parameters =
            self.requests.iter().any(|request| matches!(request, BackgroundRequest::Predict { .. }));
        if wants_parameters && !self.is_fresh() {
            self.start_state(true);
        }
    }

    /// Starts the first waiting prediction, if the parameters are fresh.
    pub(super) fn start_prediction(&mut self) {
        let is_prediction =
            |request: &BackgroundRequest| matches!(request, BackgroundRequest::Predict { .. });
        let Some(at) = self.requests.iter().position(is_prediction) else { return };
        if !self.is_fresh() || self.compute_kind.is_some() {
            return;
        }
        let (platform, now) = (self.platform, self.platform.now());
        let Some((run, trainer, epoch)) = self.run.as_mut().and_then(trainer_and_epoch) else { return };
        let Some(BackgroundRequest::Predict { request, pixels, first_at }) = self.requests.remove(at) else {
            run.trainer = Some(trainer);
            return;
        };
        let is_hosted = run.description.model.hosted.is_some();
        self.compute_kind = Some(ComputeKind::Prediction);
        self.n_answered_before = self.n_answered.get();
        self.asked_experts =
            is_hosted.then(|| AskedExperts { pixels: pixels.clone(), first_at: first_at.unwrap_or(now) });
        let pause = first_at.map(|_| now + ASK_AGAIN_AFTER);
        let predict = async move {
            if let Some(until) = pause {
                platform.sleep_until(until).await;
            }
            compute::predict(trainer, request, epoch, pixels).await
        };
        self.compute = predict.boxed_local().fuse();
    }

    /// A prediction is there. Without any of its experts it is that of another model, and they are asked again.
    pub(super) fn on_prediction(&mut self, request: u32, epoch: u64, probabilities: Vec<f32>) {
        let unanswered =
            self.asked_experts.take().filter(|_| self.n_answered.get() == self.n_answered_before);
        let Some(AskedExperts { pixels, first_at }) = unanswered else {
            return self.tell(ContributorEvent::Prediction { request, epoch, probabilities });
        };
        match self.platform.now() < first_at + ASK_FOR {
            true => {
                let first_at = Some(first_at);
                self.requests.push_back(BackgroundRequest::Predict { request, pixels, first_at });
            }
            false => self.fail(
                "The prediction could not be had: its experts are on other machines, and none of them answered"
                    .into(),
            ),
        }
    }

    /// Whether a request waits for the gallery.
    pub(super) fn wants_gallery(&self) -> bool {
        self.requests.contains(&BackgroundRequest::Gallery) && self.run.is_some()
    }

    pub(super) fn on_gallery(&mut self, shard: Arc<Samples>) {
        let waiting = self.requests.len();
        self.requests.retain(|request| *request != BackgroundRequest::Gallery);
        if self.requests.len() < waiting {
            match Arc::unwrap_or_clone(shard) {
                Samples::Images(LabelledImages { images, labels }) => {
                    self.tell(ContributorEvent::Gallery { images, labels });
                }
                _ => self.deny_gallery(&"this run has no pictures to look at"),
            }
        }
    }

    pub(super) fn on_gallery_failed(&mut self, reason: &Interruption) {
        self.requests.retain(|request| *request != BackgroundRequest::Gallery);
        self.deny_gallery(reason);
    }

    fn deny_gallery(&mut self, reason: &impl ToString) {
        self.tell(ContributorEvent::NoGallery { reason: reason.to_string() });
    }

    /// Whether the parameters are fresh. While contributing, the state machine keeps them up to date.
    fn is_fresh(&self) -> bool {
        let loaded = self.run.as_ref().and_then(|run| run.loaded);
        let now = self.platform.now();
        loaded.is_some_and(|(_, at)| !self.is_idle || now.saturating_sub(at) <= FRESH_MAX)
    }
}

fn trainer_and_epoch(run: &mut RunContext) -> Option<(&mut RunContext, barnraise_learning::Trainer, u64)> {
    let (epoch, _) = run.loaded?;
    let trainer = run.trainer.take()?;
    Some((run, trainer, epoch))
}
