//! What the backbone answers over HTTP, as JSON: for the page, and for whoever wants to look.
//!
//! `GET /api/run` answers [`RunStatus`]; `GET /api/events` is a stream of server-sent events named
//! `progress`, each a [`LiveProgress`].

use serde::{Deserialize, Serialize};

use crate::contribute::{DeviceKind, Progress};
use crate::run::RunDescription;

/// Answer of `GET /api/run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// What is trained. The same as in the [`crate::run`] conversation.
    pub run: RunDescription,
    /// Multiaddresses of the backbone, peer id included, in the order to try.
    pub addresses: Vec<String>,
    /// How the run stands now.
    pub progress: Progress,
    /// Loss and accuracy so far, oldest first, thinned to at most [`HISTORY_POINTS_MAX`] points.
    pub history: Vec<HistoryPoint>,
    /// Contributors by device.
    pub devices: Vec<DeviceCount>,
}

/// Most points in [`RunStatus::history`].
pub const HISTORY_POINTS_MAX: usize = 500;

/// One optimizer step, or one evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HistoryPoint {
    /// Optimizer steps made.
    pub epoch: u64,
    /// Samples behind all steps up to here.
    pub n_samples_total: u64,
    /// Mean training loss (cross-entropy, nats) of this step.
    pub train_loss: Option<f32>,
    /// Accuracy on the held-out test set, 0 to 1, where it was evaluated.
    pub test_accuracy: Option<f32>,
}

/// How many contributors compute on one kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCount {
    /// Kind.
    pub device: DeviceKind,
    /// Contributors.
    pub n_contributors: u32,
}

/// Accuracy of the parameters after a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EvaluationPoint {
    /// Optimizer steps made.
    pub epoch: u64,
    /// Accuracy on the held-out test set, 0 to 1.
    pub test_accuracy: f32,
}

/// Most steps in one [`LiveProgress`]; of more, the newest.
pub const LIVE_STEPS_MAX: usize = 64;

/// Payload of a `progress` event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveProgress {
    /// How the run stands now.
    pub progress: Progress,
    /// The steps since the last event, oldest first, at most [`LIVE_STEPS_MAX`].
    pub steps: Vec<HistoryPoint>,
    /// The newest evaluation since the last event; it is of a step that was made a while ago.
    pub evaluation: Option<EvaluationPoint>,
    /// Contributors by device.
    pub devices: Vec<DeviceCount>,
}
