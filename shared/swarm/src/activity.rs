//! What a contributor is doing, in words that a page or a terminal can show. Plain data.

use std::fmt;

use barnraise_protocol::api::RefusalCount;
use barnraise_protocol::contribute::{DeviceKind, Progress};
use barnraise_protocol::receipt::SignedReceipt;
use barnraise_protocol::run::RunDescription;
use serde::{Deserialize, Serialize};

use crate::conduct::PassTime;
use crate::shards::ShardTraffic;

/// What a contributor is doing, or why it waits. The page turns each into a sentence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "doing", rename_all = "kebab-case")]
pub enum Activity {
    /// Nothing, and nothing was asked.
    Idle,
    /// Dialling the backbone.
    Connecting,
    /// Somebody has to sign in for this peer.
    SigningIn {
        /// Where; `http://` or `https://`.
        url: String,
    },
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
    /// What was sent is computed once more by the backbone before it counts.
    BeingChecked {
        /// Epoch of the gradient.
        epoch: u64,
        /// So many of this peer's contributions are in any case, this one included, because it is new; 0 where this one
        /// was chosen by chance.
        n_left: u32,
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
    /// How many of them by reason.
    pub refusals: Vec<RefusalCount>,
    /// Newest reason of a refusal.
    pub last_refusal: Option<String>,
    /// Steps in a row that were made without what this peer had computed for them.
    pub n_steps_missed: u32,
    /// Current speed.
    pub samples_per_second: f32,
    /// Mean loss of the newest batch.
    pub loss: Option<f32>,
    /// Of the newest pass, where it is known how long it took.
    pub pass: Option<PassTime>,
    /// Bytes sent, payloads of the conversations.
    pub bytes_up: u64,
    /// Bytes received, likewise.
    pub bytes_down: u64,
    /// From whom its data came.
    pub shards: ShardTraffic,
}

/// So many steps in a row made without a peer are no accident: others are faster.
const STEPS_MISSED_MIN: u32 = 3;

impl Contribution {
    /// How many steps were made without this peer by now, where that is worth telling.
    #[must_use]
    pub fn steps_missed(&self) -> Option<u32> {
        Some(self.n_steps_missed).filter(|&n| n >= STEPS_MISSED_MIN)
    }
}

/// What a contributor tells the person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// What is trained, once it is known and whenever it changes. A page knows it from the web server.
    #[serde(skip)]
    Described(Box<RunDescription>),
    /// What the peer is doing, when that changes.
    Activity(Activity),
    /// What the peer has given; a few times a second at most, and before it says that it is idle.
    Contribution(Contribution),
    /// A contribution was accepted: its receipt, verified.
    Receipt(Box<SignedReceipt>),
    /// How the run stands.
    Progress(Progress),
    /// Answer to a question about one image.
    Prediction {
        /// Echo.
        request: u32,
        /// Epoch of the parameters used.
        epoch: u64,
        /// `[n_classes]`, sums to 1.
        probabilities: Vec<f32>,
    },
    /// The held-out samples to look at.
    Gallery {
        /// `[n, height, width, channels]`.
        #[serde(with = "serde_bytes")]
        images: Vec<u8>,
        /// `[n]`.
        #[serde(with = "serde_bytes")]
        labels: Vec<u8>,
    },
    /// Another device goes on.
    DeviceChanged {
        /// What computes now.
        device: DeviceKind,
        /// Its name for people.
        device_name: String,
        /// Why.
        reason: DeviceChange,
    },
    /// Something was refused or could not be done; training, if any, goes on.
    Failed {
        /// What was wanted, and what went wrong.
        message: String,
    },
}

/// Why another device computes than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum DeviceChange {
    /// It is gone or failed.
    Lost {
        /// From its driver, for whoever looks for the cause.
        detail: String,
    },
    /// The processor makes the same steps in less time.
    Slower,
}

impl fmt::Display for DeviceChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { detail } => formatter.write_str(detail),
            Self::Slower => formatter.write_str("it is faster here"),
        }
    }
}
