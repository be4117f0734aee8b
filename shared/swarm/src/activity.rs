//! Status and events of a contributor, which a page or a terminal shows. Plain data.

use std::collections::BTreeMap;
use std::fmt;

use barnraise_protocol::Refusal;
use barnraise_protocol::api::RefusalCount;
use barnraise_protocol::contribute::{DeviceKind, RunProgress};
use barnraise_protocol::error::{NewerThanRun, OlderThanRun};
use barnraise_protocol::receipt::SignedReceipt;
use barnraise_protocol::run::RunDescription;
use serde::{Deserialize, Serialize};

use crate::experts::ExpertsSeen;
use crate::pacing::PassTime;
use crate::shards::ShardTraffic;

/// What a contributor is doing, or why it waits. The page turns each into a sentence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "doing", rename_all = "kebab-case")]
pub enum Activity {
    /// Stopped, or not started yet.
    Idle,
    /// Dialling the backbone.
    Connecting,
    /// Somebody has to sign in for this peer.
    SigningIn {
        /// Address of the login page; `http://` or `https://`.
        url: String,
    },
    /// The connection was lost or could not be made.
    Reconnecting {
        /// Until the next try.
        retry_in_ms: u32,
        /// What went wrong.
        reason: Interruption,
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
    /// The backbone recomputes the contribution before it counts.
    BeingChecked {
        /// Epoch of the gradient.
        epoch: u64,
        /// Contributions of this peer that are still recomputed because its key is new, this one included; 0 where
        /// this one is unusual, or of a suspected address.
        n_left: u32,
    },
    /// This peer's part of the epoch is done; others still compute or the step is being made.
    WaitingForOthers {
        /// The epoch that is being finished.
        epoch: u64,
    },
    /// In a run without a server: this peer is in no sample now.
    WaitingForTurn {
        /// The latest round that it knows of.
        round: u64,
        /// Peers that train, as far as it knows.
        n_trainers: u32,
        /// How many of them train a round.
        sample_size: u32,
    },
    /// In a run without a server: this peer averages what others trained, as no peer that can be dialled does.
    Averaging {
        /// The round.
        epoch: u64,
    },
    /// Offering the last gradient before stopping.
    Stopping,
    /// The run does not let this peer in, and a retry does not change that.
    NotAdmitted {
        /// Why not.
        reason: Interruption,
    },
    /// An error that a retry does not resolve.
    Broken {
        /// What went wrong.
        reason: Interruption,
    },
}

/// Why a contributor waits for a connection, or cannot go on. Its `Display` is what the page and the native peer show,
/// without a full stop. What a reader has to act on is a variant, never its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum Interruption {
    /// Only a newer build helps.
    #[error(transparent)]
    OlderThanRun(#[from] OlderThanRun),
    /// Only the run's operator can help.
    #[error(transparent)]
    NewerThanRun(#[from] NewerThanRun),
    /// The backbone refused: a pause, a ban, no access.
    #[error(transparent)]
    Refused {
        /// The backbone's.
        #[from]
        refusal: Refusal,
    },
    /// The run requires an invitation, and there is none.
    #[error("this run is by invitation: come with the link of one")]
    NoInvitation,
    /// The run has no server, and nobody can open streams to this participant.
    #[error("this run has no server, and others cannot open streams to this participant")]
    Sampled,
    /// Nothing was heard of the backbone for too long.
    #[error("the backbone has gone silent")]
    Silent,
    /// The backbone has given the connection up while the device slept.
    #[error("the device was asleep")]
    Asleep,
    /// The session ended.
    #[error("the session is gone")]
    SessionEnded,
    /// The processor itself fails, which nothing can replace.
    #[error("the CPU failed: {detail}")]
    Device {
        /// Of the device.
        detail: String,
    },
    /// The training program has a defect, or ran out of memory.
    #[error("the training program stopped: {detail}")]
    Panicked {
        /// Of the panic.
        detail: String,
    },
    /// Another error of the network, of the model or of the data.
    #[error("{detail}")]
    Other {
        /// For people.
        detail: String,
    },
}

impl Interruption {
    /// An error that no reader acts on.
    pub fn other(error: impl fmt::Display) -> Self {
        Self::Other { detail: error.to_string() }
    }
}

/// Samples and contributions so far, by outcome.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampleCounts {
    /// Forward and backward passes times their samples.
    pub n_samples_computed: u64,
    /// Samples of accepted contributions.
    pub n_samples_accepted: u64,
    /// Samples whose epoch ended before or while they were offered, including those that went into a later
    /// contribution.
    pub n_samples_late: u64,
    /// Samples of contributions that may count: their aggregator was gone before it answered.
    pub n_samples_unanswered: u64,
    /// Accepted contributions.
    pub n_accepted: u64,
    /// Refused contributions.
    pub n_refused: u64,
    /// The same by reason ([`ContributionRefusal::kind`](barnraise_protocol::gradient::ContributionRefusal::kind)).
    pub refusals: BTreeMap<&'static str, u64>,
    /// Newest reason of a refusal.
    pub last_refusal: Option<String>,
    /// Steps in a row that were made without this contributor's samples.
    pub n_steps_missed: u32,
}

/// Contributions of this peer since it was started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// Samples in accepted contributions.
    pub n_samples_accepted: u64,
    /// Samples computed, accepted or not.
    pub n_samples_computed: u64,
    /// Samples that may count: their aggregator was gone before it answered.
    pub n_samples_unanswered: u64,
    /// Accepted contributions.
    pub n_accepted: u64,
    /// Contributions that were refused, with the newest reason.
    pub n_refused: u64,
    /// How many of them by reason.
    pub refusals: Vec<RefusalCount>,
    /// Newest reason of a refusal.
    pub last_refusal: Option<String>,
    /// Steps in a row that were made without this peer's samples.
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
    /// Traffic of its training data, by source.
    pub shards: ShardTraffic,
}

/// After this many missed steps in a row it is no accident: other peers are faster.
const STEPS_MISSED_MIN: u32 = 3;

impl Contribution {
    /// Steps in a row without a contribution of this peer, where there are enough of them to be shown.
    #[must_use]
    pub fn steps_missed(&self) -> Option<u32> {
        Some(self.n_steps_missed).filter(|&n| n >= STEPS_MISSED_MIN)
    }
}

/// Event of a contributor, for its user interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ContributorEvent {
    /// Description of the run, when it is first known and when it changes. A page has it from the web server.
    #[serde(skip)]
    Described(Box<RunDescription>),
    /// New status of the peer.
    Activity(Activity),
    /// Totals of the peer; at most a few times a second, and before it becomes idle.
    Contribution(Contribution),
    /// A contribution was accepted: its receipt, verified.
    Receipt(Box<SignedReceipt>),
    /// Progress of the run.
    Progress(RunProgress),
    /// What is seen of the experts on other machines, at most once a second.
    Experts(Box<ExpertsSeen>),
    /// Answer to a question about one image.
    Prediction {
        /// Number of the request that is answered.
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
    /// The held-out samples cannot be had.
    NoGallery {
        /// Why not.
        reason: String,
    },
    /// Training continues on another device.
    DeviceChanged {
        /// What computes now.
        device: DeviceKind,
        /// Its name for people.
        device_name: String,
        /// Why.
        reason: DeviceChange,
    },
    /// The backbone refused a message of the session, or wants no work, as while the run is paused. Training, if any, goes
    /// on.
    Refused {
        /// The backbone's.
        refusal: Refusal,
    },
    /// Something could not be done; training, if any, goes on.
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
        /// Message of the device's driver.
        detail: String,
    },
    /// The processor takes less time for the same steps.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_missed_steps_in_a_row_are_shown_and_one_or_two_are_not() {
        let missed =
            |n_steps_missed| Contribution { n_steps_missed, ..Contribution::default() }.steps_missed();
        assert_eq!([0, 1, 2].map(missed), [None; 3]);
        assert_eq!([3, 4, 90].map(missed), [Some(3), Some(4), Some(90)]);
    }

    #[test]
    fn the_reason_for_another_device_is_a_sentence() {
        let lost = DeviceChange::Lost { detail: "the GPU was reset".into() };
        assert_eq!(lost.to_string(), "the GPU was reset");
        assert_eq!(DeviceChange::Slower.to_string(), "it is faster here");
    }
}
