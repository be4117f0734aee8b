//! What the admin API shows, as JSON; its description is `openapi.json`. Plain data.

use barnraise_protocol::contribute::DeviceKind;
use serde::{Deserialize, Serialize};

use super::settings::{Effective, Settings};

/// Answer of `GET /admin/v1/runs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunList {
    /// All that this backbone hosts.
    pub runs: Vec<RunView>,
}

/// Answer of `GET /admin/v1/runs/{run}` and of every verb that changes a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    /// Its id.
    pub run: String,
    /// One line for people.
    pub title: String,
    /// Whether steps are made.
    pub state: RunState,
    /// Of a run that is paused.
    pub paused: Option<PauseView>,
    /// The epoch that is computed on.
    pub epoch: u64,
    /// Samples of the coming step: counted, on their way, and reported.
    pub n_samples: u64,
    /// Samples that a step takes.
    pub target_batch_size: u32,
    /// Samples behind all steps.
    pub n_samples_total: u64,
    /// Contributors with a session.
    pub n_contributors: u64,
    /// Sum of what they say.
    pub samples_per_second: f32,
    /// Of the last step, where there was one.
    pub train_loss: Option<f32>,
    /// Newest accuracy on the held-out test set, 0 to 1.
    pub test_accuracy: Option<f32>,
    /// Of the coming step.
    pub learning_rate: f32,
    /// Other backbones that the configuration names.
    pub n_other_backbones: u64,
    /// Peers that are kept out by name.
    pub n_blocked: u64,
    /// What holds.
    pub settings: Effective,
    /// What of it was changed; null is as in the file.
    pub changed: Settings,
}

/// Whether steps are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// They are, as soon as there is enough for one.
    Training,
    /// Not before it is resumed.
    Paused,
}

/// A pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseView {
    /// As contributors read it.
    pub reason: String,
    /// Unix time.
    pub since: u64,
}

/// Answer of `GET /admin/v1/runs/{run}/peers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerList {
    /// Those with a session now, by their ids; the first of them, from `offset` on.
    pub contributors: Vec<ContributorView>,
    /// How many have one.
    pub n_contributors: u64,
    /// Whom the operator keeps out.
    pub blocked: Vec<BlockedView>,
    /// Who contributed something else than it said, and takes no more part.
    pub convicted: Vec<ConvictedView>,
    /// Whose names are not shown; null while the database is not at hand.
    pub hidden: Option<Vec<HiddenView>>,
}

/// A contributor with a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContributorView {
    /// Peer id.
    pub peer: String,
    /// What computes.
    pub device: DeviceKind,
    /// Reported for the coming step, and not yet offered.
    pub n_outstanding: u32,
    /// Counted for the coming step.
    pub n_counted: u64,
    /// As it says.
    pub samples_per_second: f32,
    /// Samples that were ever accepted of it; null while the database is not at hand.
    pub n_samples_total: Option<u64>,
    /// Encoded bytes of its gradients, likewise.
    pub n_bytes_total: Option<u64>,
}

/// A peer that the operator keeps out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedView {
    /// Peer id.
    pub peer: String,
    /// As it reads it.
    pub reason: String,
    /// Unix time.
    pub since: u64,
}

/// A peer that was convicted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvictedView {
    /// Peer id.
    pub peer: String,
    /// Of the contribution.
    pub epoch: u64,
}

/// A peer whose name the operator hides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenView {
    /// Peer id.
    pub peer: String,
    /// As it calls itself now; empty: not by a name.
    pub name: String,
}

/// Answer of `GET /admin/v1/runs/{run}/checkpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointList {
    /// Oldest first.
    pub checkpoints: Vec<CheckpointView>,
}

/// A checkpoint that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointView {
    /// Optimizer steps made.
    pub epoch: u64,
    /// As it is stored.
    pub n_bytes: u64,
}

/// Answer of `GET /admin/v1/runs/{run}/checkpoints/{epoch}/card`: what the file is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Id of the run.
    pub run: String,
    /// One line for people.
    pub title: String,
    /// What the model is for, and for whom.
    pub purpose: String,
    /// The network and its seed.
    pub model: serde_json::Value,
    /// What it learned from.
    pub data: String,
    /// Optimizer steps made.
    pub epoch: u64,
    /// Values of the model.
    pub n_parameters: u64,
    /// Length of the file.
    pub n_bytes: u64,
    /// SHA-256 of the file, in hexadecimal digits.
    pub sha256: String,
    /// What the file is, and how it is used.
    pub format: String,
}

/// Answer of `GET /admin/v1/audit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditList {
    /// Newest last.
    pub entries: Vec<AuditEntry>,
}

/// A line of the audit log. A verb has two: before it takes effect, and when its outcome is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The same in both.
    pub number: u64,
    /// Unix time.
    pub at: u64,
    /// Name of the token; `operator`, too, of a command on the backbone's machine.
    pub who: String,
    /// Address that it came from; `command line` of a command on the backbone's machine.
    pub from: String,
    /// What.
    pub verb: String,
    /// To which run.
    pub run: String,
    /// How.
    pub arguments: serde_json::Value,
    /// `begun`, `done`, or why not.
    pub outcome: String,
}
