//! What a contributor is doing, in words that a page or a terminal can show. Plain data.

use serde::{Deserialize, Serialize};

/// What a contributor is doing, or why it waits. The page turns each into a sentence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "doing", rename_all = "kebab-case")]
pub enum Activity {
    /// Nothing, and nothing was asked.
    Idle,
    /// Dialling the backbone.
    Connecting,
    /// The connection was lost or could not be made.
    Reconnecting {
        /// Until the next try.
        retry_in_ms: u32,
        /// What went wrong.
        reason: String,
    },
    /// Pulling parameters.
    FetchingModel {
        /// So far.
        bytes: u64,
        /// Of these.
        bytes_total: u64,
    },
    /// Pulling training data before the first batch can be made.
    FetchingData {
        /// So far.
        bytes: u64,
        /// Of these.
        bytes_total: u64,
    },
    /// Compiling kernels, or the first pass of a device.
    WarmingUp,
    /// Computing gradients.
    Training {
        /// Epoch of the parameters.
        epoch: u64,
    },
    /// Sending a gradient.
    Sending {
        /// Epoch of the gradient.
        epoch: u64,
        /// So far.
        bytes: u64,
        /// Of these.
        bytes_total: u64,
    },
    /// This peer's part of the epoch is done; others still compute or the step is being made.
    WaitingForOthers {
        /// The epoch that is being finished.
        epoch: u64,
    },
    /// Offering what is finished before stopping.
    Stopping,
    /// Something that trying again does not mend.
    Broken {
        /// What was wanted, and what went wrong.
        reason: String,
    },
}

/// What this peer has given since it was started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// Samples in accepted contributions.
    pub n_samples_accepted: u64,
    /// Samples computed, accepted or not.
    pub n_samples_computed: u64,
    /// Accepted contributions.
    pub n_accepted: u64,
    /// Contributions that were refused, with the newest reason.
    pub n_refused: u64,
    /// Newest reason of a refusal.
    pub last_refusal: Option<String>,
    /// Current speed.
    pub samples_per_second: f32,
    /// Mean loss of the newest batch.
    pub loss: Option<f32>,
    /// Bytes sent, payloads of the conversations.
    pub bytes_up: u64,
    /// Bytes received, likewise.
    pub bytes_down: u64,
}
