//! What the page and the training worker say to each other: plain data, posted with `postMessage`.
//!
//! The page never sees a tensor or a stream, the worker never sees the document.

use barnraise_protocol::contribute::{DeviceKind, Progress};
use serde::{Deserialize, Serialize};

/// Page to worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum PageToPeer {
    /// First message: who this visitor is and where to look for the backbone.
    Hello {
        /// Origin of the page, `https://host:port`; `GET {origin}/api/run` names the addresses.
        origin: String,
        /// Ed25519 seed of this browser's identity, 32 bytes; `None` makes a new one.
        identity: Option<Vec<u8>>,
        /// Which device to compute on.
        device: DeviceChoice,
    },
    /// Contribute until told otherwise.
    Start,
    /// Offer what is finished, then stop.
    Stop,
    /// What is this? `pixels` is `[height, width, channels]`, 0 is background; answered by
    /// [`PeerToPage::Prediction`] with the same `request`.
    Predict {
        /// Echoed.
        request: u32,
        /// Grey values.
        pixels: Vec<u8>,
    },
    /// Send the gallery; answered by [`PeerToPage::Gallery`].
    LoadGallery,
    /// Run the conformance checks of the learning crate on the device and compare with the CPU;
    /// answered by [`PeerToPage::SelfCheck`].
    SelfCheck,
}

/// Which device the visitor asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// WebGPU where there is an adapter, the CPU otherwise.
    Auto,
    /// The CPU.
    Cpu,
    /// WebGPU or nothing.
    WebGpu,
}

/// Worker to page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum PeerToPage {
    /// Answer to `Hello`.
    Ready {
        /// The seed in use, for the page to keep.
        identity: Vec<u8>,
        /// Peer id in base58.
        peer_id: String,
        /// What will compute.
        device: DeviceKind,
        /// Its name for people.
        device_name: String,
    },
    /// What the tab is doing, whenever that changes.
    Activity(Activity),
    /// How the run stands, as heard over libp2p.
    Progress(Progress),
    /// What this tab has given since it was opened; a few times a second at most.
    Contribution(Contribution),
    /// Answer to `Predict`.
    Prediction {
        /// Echo.
        request: u32,
        /// Epoch of the parameters used.
        epoch: u64,
        /// `[n_classes]`, sums to 1.
        probabilities: Vec<f32>,
    },
    /// Answer to `LoadGallery`.
    Gallery {
        /// `[n, height, width, channels]`.
        images: Vec<u8>,
        /// `[n]`.
        labels: Vec<u8>,
    },
    /// Answer to `SelfCheck`.
    SelfCheck {
        /// What computed.
        device: DeviceKind,
        /// One line per check: its name, the largest deviation from the CPU and the tolerance.
        checks: Vec<CheckOutcome>,
    },
    /// The device changed in the middle: the adapter was lost and the CPU goes on.
    DeviceChanged {
        /// What computes now.
        device: DeviceKind,
        /// Its name for people.
        device_name: String,
        /// Why.
        reason: String,
    },
    /// The request could not be served; training, if any, goes on.
    Failed {
        /// What was wanted, and what went wrong.
        message: String,
    },
}

/// One conformance check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckOutcome {
    /// Name.
    pub name: String,
    /// Largest deviation from the reference.
    pub deviation: f32,
    /// Largest deviation that passes.
    pub tolerance: f32,
}

impl CheckOutcome {
    /// Whether the deviation is within the tolerance. A NaN never is.
    pub fn passed(&self) -> bool {
        self.deviation <= self.tolerance
    }
}

/// What the tab is doing, or why it waits. The page turns each into a sentence.
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
    /// This tab's part of the epoch is done; others still compute or the step is being made.
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

/// What this tab has given since it was opened.
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
