//! The backbone's public HTTP API, as JSON: for the page and other clients.
//!
//! `GET /api/run` answers [`RunStatus`]; `GET /api/events` is a stream of server-sent events named
//! `progress`, each a [`LiveProgress`]; `GET /api/contributions` answers [`Contributions`]. In an open run `GET /api/models`
//! answers [`Models`], and `/api/model.safetensors` and `/api/model-card.md` are the model itself. Where several runs are
//! served together, all of these are below `/run/<id>`; `GET /api/runs` answers [`Runs`], `GET /api/rooms/<code>` a
//! [`Room`], and `GET /api/invitations/<SHA-256 of a code>` an [`InvitationTarget`].

use serde::{Deserialize, Serialize};

use crate::access::AccessMode;
use crate::contribute::{DeviceKind, RunProgress};
use crate::dataset::SampleKind;
use crate::display_name::DisplayName;
use crate::run::RunDescription;

/// Answer of `GET /api/run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The run's description, as in the [`crate::run`] conversation.
    pub run: RunDescription,
    /// Length of the flat parameter vector. It follows from the run, but the page has no models to derive it from.
    pub n_parameters: u64,
    /// Multiaddresses of the backbone, peer id included, in the order to try.
    pub addresses: Vec<String>,
    /// Progress of the run now.
    pub progress: RunProgress,
    /// Loss and accuracy so far, oldest first, thinned to at most [`HISTORY_POINTS_MAX`] points.
    pub history: Vec<HistoryPoint>,
    /// Contributors by device.
    pub devices: Vec<DeviceCount>,
    /// The operator's reason while the run is paused: no step is made, and contributors wait.
    #[serde(default)]
    pub paused: Option<String>,
    /// Accuracy of a model that always gives the commonest answer of the test set, 0 to 1: what a test accuracy is
    /// compared with.
    #[serde(default)]
    pub majority_accuracy: Option<f32>,
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
    /// Progress of the run now.
    pub progress: RunProgress,
    /// The steps since the last event, oldest first, at most [`LIVE_STEPS_MAX`].
    pub steps: Vec<HistoryPoint>,
    /// The newest evaluation, of an earlier step. Every event has it, so that a client that missed one has the accuracy
    /// of `progress` in its curve too.
    pub evaluation: Option<EvaluationPoint>,
    /// Contributors by device.
    pub devices: Vec<DeviceCount>,
    /// As in [`RunStatus::paused`].
    #[serde(default)]
    pub paused: Option<String>,
}

/// Most contributors in one [`Contributions`].
pub const CONTRIBUTORS_MAX: u32 = 100;
/// Contributors in a [`Contributions`] where the query has no limit.
pub const CONTRIBUTORS_DEFAULT: u32 = 10;
/// Largest offset of a query.
pub const OFFSET_MAX: u32 = 10_000;

/// Lowest rank that is computed.
pub const RANK_MAX: u64 = 100_000;

/// Query of `GET /api/contributions`: `?offset=20&limit=10&peer=12D3KooW…`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContributionsQuery {
    /// Contributors that are skipped, at most [`OFFSET_MAX`].
    pub offset: Option<u32>,
    /// Contributors that are listed, at most [`CONTRIBUTORS_MAX`].
    pub limit: Option<u32>,
    /// A contributor to answer for in addition, at any rank.
    pub peer: Option<String>,
}

/// Answer of `GET /api/contributions`. It may be a second or two old.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contributions {
    /// Sums over all contributors.
    pub totals: AcceptedTotals,
    /// Peers that ever contributed.
    pub n_contributors: u64,
    /// Those with the most samples first.
    pub contributors: Vec<ContributorTotals>,
    /// The contributor of the query, if it ever contributed.
    pub peer: Option<ContributorTotals>,
    /// Its rank among all, from 1; `None` below [`RANK_MAX`], or if it is no longer on the leaderboard.
    #[serde(default)]
    pub rank: Option<u64>,
    /// Peers that averaged gradients, those with the most bytes first.
    pub aggregators: Vec<AggregatorTotals>,
    /// Relays through which contributions came, those with the most bytes first.
    #[serde(default)]
    pub relays: Vec<RelayTotals>,
    /// Contributions that were not counted, by reason.
    pub refused: Vec<RefusalCount>,
}

/// Sums over accepted contributions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedTotals {
    /// Contributions.
    pub n_contributions: u64,
    /// Samples behind them.
    pub n_samples: u64,
    /// Encoded bytes of the gradients.
    pub n_bytes: u64,
    /// Time in which they were made, as measured by the reducers that accepted them.
    pub seconds: u64,
}

/// Accepted contributions of one peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContributorTotals {
    /// Peer id in base58.
    pub peer: String,
    /// The name that it chose. Any peer can choose any name: show it beside the peer id, not in its place.
    #[serde(default)]
    pub name: Option<DisplayName>,
    /// Sums over its accepted contributions.
    #[serde(flatten)]
    pub totals: AcceptedTotals,
    /// Newest epoch that it contributed to.
    pub last_epoch: u64,
}

/// Work of one aggregator (DeDLOC appendix I.2: peers without a GPU are acknowledged too).
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

/// Contributions through one relay, as measured by the backbones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayTotals {
    /// Peer id in base58.
    pub peer: String,
    /// Contributions that counted.
    pub n_contributions: u64,
    /// Encoded bytes of their gradients.
    pub n_bytes: u64,
    /// Time from their offers until they counted.
    pub seconds: u64,
}

/// Contributions that were refused for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalCount {
    /// Label of the metric `barnraise_contributions_refused_total`.
    pub reason: String,
    /// Number of them.
    pub n: u64,
}

/// Answer of `GET /api/models`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Models {
    /// The newest evaluated model, once there is one: `GET /api/model.safetensors`.
    pub latest: Option<ModelFile>,
    /// Earlier models, the newest first: `GET /api/model.safetensors?epoch=800`.
    pub earlier: Vec<ModelFile>,
}

/// A model that can be downloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Optimizer steps made.
    pub epoch: u64,
    /// Seconds since it was evaluated, by the backbone's clock.
    pub age_seconds: u64,
    /// Length of the file.
    pub n_bytes: u64,
}

/// Query of `GET /api/model.safetensors`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelQuery {
    /// Epoch of a stored model; the newest one by default.
    pub epoch: Option<u64>,
}

/// Answer of `GET /api/runs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Runs {
    /// The listed runs.
    pub runs: Vec<RunSummary>,
    /// Whether the backbone accepts room codes; see [`Room`].
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
    /// Kind of its data.
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

/// Kind of a run's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataKind {
    /// Pictures.
    Images,
    /// Text.
    Text,
    /// Rows of a table.
    Table,
    /// Ratings.
    Ratings,
}

impl DataKind {
    /// Of a data set.
    pub fn of(samples: &SampleKind) -> Self {
        match samples {
            SampleKind::Images { .. } => Self::Images,
            SampleKind::Tokens(_) => Self::Text,
            SampleKind::Rows(_) => Self::Table,
            SampleKind::Ratings(_) => Self::Ratings,
        }
    }
}

/// Answer of `GET /api/invitations/<SHA-256 of a code>`: the run that an invitation code is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitationTarget {
    /// The run.
    pub run: String,
}

/// Answer of `GET /api/rooms/<code>`: the run and invitation that a room code is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The run.
    pub run: String,
    /// The code of an invitation to it, as in `#invitation=…`.
    pub invitation: String,
}
