//! The status of a run as its page shows it: a driver publishes it a few times a second.

use std::collections::{HashMap, VecDeque};

use barnraise_protocol::api::{DeviceCount, HistoryPoint, LIVE_STEPS_MAX, LiveProgress, RunStatus};
use barnraise_protocol::contribute::{DeviceKind, RunProgress};
use barnraise_swarm::history::{History, last_evaluation};
use tokio::sync::{broadcast, watch};

/// Live progress that a slow reader may lag behind.
const LIVE_EVENTS: usize = 16;

/// Publishes `GET /api/run` and `GET /api/events`.
#[derive(Debug)]
pub struct StatusPublisher {
    status: watch::Sender<RunStatus>,
    events: broadcast::Sender<LiveProgress>,
    unpublished_steps: VecDeque<HistoryPoint>,
    /// Whether the published history is no longer that of the run.
    has_new_history: bool,
}

impl StatusPublisher {
    /// Begins with `status`.
    pub fn new(status: RunStatus) -> Self {
        let (status, _) = watch::channel(status);
        let (events, _) = broadcast::channel(LIVE_EVENTS);
        Self { status, events, unpublished_steps: VecDeque::new(), has_new_history: false }
    }

    /// The status.
    pub fn status(&self) -> &watch::Sender<RunStatus> {
        &self.status
    }

    /// Live progress from now on.
    pub fn events(&self) -> broadcast::Receiver<LiveProgress> {
        self.events.subscribe()
    }

    /// A step was made. Of those that are not published, the newest are kept.
    pub fn on_stepped(&mut self, step: Option<HistoryPoint>) {
        if self.unpublished_steps.len() >= LIVE_STEPS_MAX {
            self.unpublished_steps.pop_front();
        }
        self.unpublished_steps.extend(step);
    }

    /// The history has an evaluation more, or is that of another branch.
    pub fn on_new_history(&mut self) {
        self.has_new_history = true;
    }

    /// Publishes the progress, the devices of the contributors, and what is new in the history.
    pub fn publish(
        &mut self,
        progress: RunProgress,
        devices: impl Iterator<Item = DeviceKind>,
        paused: Option<String>,
        history: &History,
    ) {
        let devices = count(devices);
        let steps: Vec<HistoryPoint> = self.unpublished_steps.drain(..).collect();
        let has_news = std::mem::take(&mut self.has_new_history) || !steps.is_empty();
        let history = history.points();
        let evaluation = last_evaluation(history);
        let live =
            LiveProgress { progress, steps, evaluation, devices: devices.clone(), paused: paused.clone() };
        self.status.send_modify(|status| {
            status.progress = progress;
            status.devices = devices;
            status.paused = paused;
            if has_news {
                status.history = history.to_vec();
            }
        });
        // Last, so that a reader of the event finds it in the status. Without readers it is dropped.
        let _ = self.events.send(live);
    }
}

/// The most frequent device first.
fn count(devices: impl Iterator<Item = DeviceKind>) -> Vec<DeviceCount> {
    let mut counts: HashMap<DeviceKind, u32> = HashMap::new();
    devices.for_each(|device| *counts.entry(device).or_default() += 1);
    let mut counts: Vec<_> =
        counts.into_iter().map(|(device, n_contributors)| DeviceCount { device, n_contributors }).collect();
    counts.sort_by_key(|count| (std::cmp::Reverse(count.n_contributors), count.device as u8));
    counts
}
