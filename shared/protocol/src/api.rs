//! What the backbone answers over HTTP, as JSON: for the page, and for whoever wants to look.
//!
//! `GET /api/run` answers [`RunStatus`]; `GET /api/events` is a stream of server-sent events named
//! `progress`, each a [`LiveProgress`]; `GET /api/contributions` answers [`Contributions`]. In an open run `GET /api/models`
//! answers [`Models`], and `/api/model.safetensors` and `/api/model-card.md` are the model itself. Where several runs are
//! served together, all of these are below `/run/<id>`; `GET /api/runs` answers [`Runs`], `GET /api/rooms/<code>` a
//! [`Room`], and `GET /api/invitations/<SHA-256 of a code>` an [`Invited`].

use serde::{Deserialize, Serialize};

use crate::access::AccessMode;
use crate::contribute::{DeviceKind, Progress};
use crate::display_name::DisplayName;
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
    /// Why the operator has paused it, while that is so: no step is made, and contributors wait.
    #[serde(default)]
    pub paused: Option<String>,
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
    /// The newest evaluation, in every event, so that whoever missed one has it too: the accuracy of `progress` is always
    /// one of the curve. It is of a step that was made a while ago.
    pub evaluation: Option<EvaluationPoint>,
    /// Contributors by device.
    pub devices: Vec<DeviceCount>,
    /// As in [`RunStatus::paused`].
    #[serde(default)]
    pub paused: Option<String>,
}

/// Most contributors in one [`Contributions`].
pub const CONTRIBUTORS_MAX: u32 = 100;
/// Contributors in a [`Contributions`] where the question does not say.
pub const CONTRIBUTORS_DEFAULT: u32 = 10;
/// Deepest place that can be asked for.
pub const OFFSET_MAX: u32 = 10_000;

/// Lowest place that is counted out.
pub const RANK_MAX: u64 = 100_000;

/// Question of `GET /api/contributions`: `?offset=20&limit=10&peer=12D3KooW…`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContributionsQuery {
    /// Contributors that are skipped, at most [`OFFSET_MAX`].
    pub offset: Option<u32>,
    /// Contributors that are listed, at most [`CONTRIBUTORS_MAX`].
    pub limit: Option<u32>,
    /// One that is answered for by itself, wherever it stands.
    pub peer: Option<String>,
}

/// Answer of `GET /api/contributions`. It may be a second or two old.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contributions {
    /// Of everybody together.
    pub totals: Given,
    /// Peers that ever contributed.
    pub n_contributors: u64,
    /// Those with the most samples first.
    pub contributors: Vec<ContributorTotals>,
    /// The one that was asked for, if it ever contributed.
    pub peer: Option<ContributorTotals>,
    /// Its place among all, from 1; not said below [`RANK_MAX`], nor of one that is on the leaderboard no longer.
    #[serde(default)]
    pub rank: Option<u64>,
    /// Peers that averaged the others' gradients, those with the most bytes first.
    pub aggregators: Vec<AggregatorTotals>,
    /// Relays through which contributions came, those with the most bytes first.
    #[serde(default)]
    pub relays: Vec<RelayTotals>,
    /// Contributions that were not counted, by reason.
    pub refused: Vec<RefusalCount>,
}

/// What was accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Contributions.
    pub n_contributions: u64,
    /// Samples behind them.
    pub n_samples: u64,
    /// Encoded bytes of the gradients.
    pub n_bytes: u64,
    /// Time in which they were made, as measured by whoever accepted them.
    pub seconds: u64,
}

/// What one peer gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContributorTotals {
    /// Peer id in base58.
    pub peer: String,
    /// How it wants to be called. Anybody may call themselves anything: it is shown beside the peer id, not in its place.
    #[serde(default)]
    pub name: Option<DisplayName>,
    /// What was accepted of it.
    #[serde(flatten)]
    pub given: Given,
    /// Newest epoch that it contributed to.
    pub last_epoch: u64,
}

/// What one peer did for the others (DeDLOC appendix I.2: those without a GPU are acknowledged too).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AggregatorTotals {
    /// Peer id in base58.
    pub peer: String,
    /// Optimizer steps that it made.
    pub n_steps: u64,
    /// Encoded bytes that it averaged.
    pub n_bytes: u64,
    /// Time that it spent on decoding, averaging and stepping.
    pub seconds: u64,
}

/// What one relay carried, as the backbones at the other end saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayTotals {
    /// Peer id in base58.
    pub peer: String,
    /// Contributions that counted.
    pub n_contributions: u64,
    /// Encoded bytes of their gradients.
    pub n_bytes: u64,
    /// From their offers until they counted.
    pub seconds: u64,
}

/// Contributions that were refused for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalCount {
    /// As in the operator's `barnraise_contributions_refused_total`.
    pub reason: String,
    /// How many.
    pub n: u64,
}

/// Answer of `GET /api/models`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Models {
    /// The newest one that was evaluated, once there is one: `GET /api/model.safetensors`.
    pub latest: Option<ModelFile>,
    /// Some from before, the newest first: `GET /api/model.safetensors?epoch=800`.
    pub earlier: Vec<ModelFile>,
}

/// A model that can be downloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Optimizer steps made.
    pub epoch: u64,
    /// Since it was evaluated, by the backbone's clock.
    pub age_seconds: u64,
    /// Length of the file.
    pub n_bytes: u64,
}

/// Question of `GET /api/model.safetensors`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelQuery {
    /// One of those that are kept; the newest one where it is not said.
    pub epoch: Option<u64>,
}

/// Answer of `GET /api/runs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Runs {
    /// Those that may be listed.
    pub runs: Vec<RunSummary>,
    /// Whether a code may lead to one, listed or not: [`Room`].
    #[serde(default)]
    pub takes_codes: bool,
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Its page is at `/run/<id>/`.
    pub id: String,
    /// One line for people.
    pub title: String,
    /// What the model is for and for whom.
    pub purpose: String,
    /// Who may take part.
    pub access: AccessMode,
    /// What it learns from.
    pub data: DataKind,
    /// Optimizer steps made.
    pub epoch: u64,
    /// Contributors now.
    pub n_contributors: u32,
    /// Accuracy on the held-out test set, 0 to 1, where it was evaluated.
    pub test_accuracy: Option<f32>,
    /// Whether the operator has paused it: contributors wait.
    #[serde(default)]
    pub is_paused: bool,
}

/// What a run learns from, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataKind {
    /// Pictures.
    Images,
    /// Text.
    Text,
}

/// Answer of `GET /api/invitations/<SHA-256 of a code>`: where the code of an invitation lets somebody in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invited {
    /// The run.
    pub run: String,
}

/// Answer of `GET /api/rooms/<code>`: where the code of a room lets somebody in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Of the run.
    pub run: String,
    /// The code of an invitation to it, as in `#invitation=…`.
    pub invitation: String,
}
