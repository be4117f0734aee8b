//! JSON types of the admin API, described by `openapi.json`. Plain data.

use barnraise_protocol::contribute::DeviceKind;
use serde::{Deserialize, Serialize};

use super::settings::{EffectiveSettings, Settings};

/// Answer of `GET /admin/v1/runs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunList {
    /// All runs of this backbone.
    pub runs: Vec<RunView>,
}

/// Answer of `GET /admin/v1/runs/{run}` and of every verb that changes a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    /// Its id.
    pub run: String,
    /// One line for people.
    pub title: String,
    /// Whether optimizer steps are made.
    pub state: RunState,
    /// Reason and time of the pause, if the run is paused.
    pub paused: Option<PauseView>,
    /// The current epoch.
    pub epoch: u64,
    /// Samples of the coming step: counted, in transit, and reported.
    pub n_samples: u64,
    /// Samples of one step.
    pub target_batch_size: u32,
    /// Samples of all steps so far.
    pub n_samples_total: u64,
    /// Contributors with a session.
    pub n_contributors: u64,
    /// Sum of the speeds that they report.
    pub samples_per_second: f32,
    /// Training loss of the last step, if there was one.
    pub train_loss: Option<f32>,
    /// Newest accuracy on the held-out test set, 0 to 1.
    pub test_accuracy: Option<f32>,
    /// Learning rate of the coming step.
    pub learning_rate: f32,
    /// Other backbones that the configuration names.
    pub n_other_backbones: u64,
    /// Blocked peers.
    pub n_blocked: u64,
    /// Settings in force.
    pub settings: EffectiveSettings,
    /// Settings that the operator changed; null is the value of the file.
    pub changed: Settings,
}

/// Whether optimizer steps are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// A step is made as soon as the target batch size is reached.
    Training,
    /// No steps until the run is resumed.
    Paused,
}

/// A pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseView {
    /// The reason that contributors are shown.
    pub reason: String,
    /// Unix time.
    pub since: u64,
}

/// Answer of `GET /admin/v1/runs/{run}/peers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerList {
    /// Contributors with a session, ordered by id, from `offset` on.
    pub contributors: Vec<ContributorView>,
    /// Number of contributors with a session.
    pub n_contributors: u64,
    /// Peers that the operator blocked.
    pub blocked: Vec<BlockedView>,
    /// Peers that were excluded for a contribution that recomputation showed to be wrong.
    pub convicted: Vec<ConvictedView>,
    /// Peers whose names are hidden; null while the database does not answer.
    pub hidden: Option<Vec<HiddenView>>,
}

/// A contributor with a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContributorView {
    /// Peer id.
    pub peer: String,
    /// Device that it computes on.
    pub device: DeviceKind,
    /// Samples reported for the coming step, and not yet offered.
    pub n_outstanding: u32,
    /// Samples counted for the coming step.
    pub n_counted: u64,
    /// Speed that it reports.
    pub samples_per_second: f32,
    /// All accepted samples of it; null while the database does not answer.
    pub n_samples_total: Option<u64>,
    /// Encoded bytes of all its accepted gradients; null likewise.
    pub n_bytes_total: Option<u64>,
}

/// A peer that the operator blocked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedView {
    /// Peer id.
    pub peer: String,
    /// The reason that the peer is sent.
    pub reason: String,
    /// Unix time.
    pub since: u64,
}

/// A peer that was convicted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvictedView {
    /// Peer id.
    pub peer: String,
    /// What it gave.
    pub reason: String,
}

/// A peer whose name the operator hides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenView {
    /// Peer id.
    pub peer: String,
    /// Its current name; empty where it has none.
    pub name: String,
}

/// Answer of `GET /admin/v1/runs/{run}/checkpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointList {
    /// Oldest first.
    pub checkpoints: Vec<CheckpointView>,
}

/// A stored checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointView {
    /// Optimizer steps made.
    pub epoch: u64,
    /// Size of the stored file.
    pub n_bytes: u64,
}

/// Answer of `GET /admin/v1/runs/{run}/checkpoints/{epoch}/card`: what the file is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointCard {
    /// Id of the run.
    pub run: String,
    /// One line for people.
    pub title: String,
    /// Purpose of the model, and its users.
    pub purpose: String,
    /// The network and its seed.
    pub model: serde_json::Value,
    /// Name of the training data.
    pub data: String,
    /// Optimizer steps made.
    pub epoch: u64,
    /// Number of parameters.
    pub n_parameters: u64,
    /// Length of the file.
    pub n_bytes: u64,
    /// SHA-256 of the file, in hexadecimal digits.
    pub sha256: String,
    /// Format of the file, and how to use it.
    pub format: String,
}

/// Answer of `GET /admin/v1/audit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditList {
    /// Newest last.
    pub entries: Vec<AuditEntry>,
}

/// A line of the audit log. A command has two: before it takes effect, and when its outcome is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Number of the command, the same in both lines.
    pub number: u64,
    /// Unix time.
    pub at: u64,
    /// Name of the caller: `operator`.
    pub who: String,
    /// Address of the caller; `command line` for a command on the backbone's machine.
    pub from: String,
    /// Name of the command.
    pub verb: String,
    /// Id of the run.
    pub run: String,
    /// Arguments of the command.
    pub arguments: serde_json::Value,
    /// `begun`, `done`, or the error.
    pub outcome: String,
}
