//! The `contribute` conversation: a session for as long as a contributor takes part.
//!
//! The contributor joins, then reports how many samples it has accumulated; the backbone says when
//! an epoch begins and when its gradients are due. Gradients travel on streams of their own
//! ([`crate::gradient`]), so that a report never waits behind a tensor.

use serde::{Deserialize, Serialize};

use crate::display_name::{DisplayName, NAME_BYTES_MAX};

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/contribute/3";

/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// What [`BackboneToContributor::Refused`] begins with where the operator has paused the run; the reason follows.
pub const PAUSED: &str = "the run is paused: ";

/// Most addresses of other backbones that are told, and the longest of them, in bytes.
pub const ELSEWHERE_MAX: usize = 16;
/// See [`ELSEWHERE_MAX`].
pub const ADDRESS_BYTES_MAX: usize = 400;

// A length before each of them and before all, and the message's number.
const _: () = assert!(ELSEWHERE_MAX * (ADDRESS_BYTES_MAX + 2) + 4 <= MESSAGE_BYTES_MAX);

/// Longest text that a peer may give for the name of its device.
pub const DEVICE_NAME_CHARS_MAX: usize = 80;

// With the longest run id and device, and room to spare.
const _: () = assert!(NAME_BYTES_MAX + 4 * DEVICE_NAME_CHARS_MAX + 512 <= MESSAGE_BYTES_MAX);

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// First message.
    Join(Join),
    /// Samples accumulated since the epoch began and not yet offered.
    Report(Report),
}

/// Who joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The run it was told of.
    pub run_id: String,
    /// What computes.
    pub device: DeviceKind,
    /// Free text, such as the adapter's name; at most [`DEVICE_NAME_CHARS_MAX`] characters.
    pub device_name: String,
    /// How it wants to be called where it is shown who gave what. The connection's handshake says whose name it is;
    /// nothing else about it is true.
    pub name: Option<DisplayName>,
}

/// What a contributor computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// WebGPU in a browser.
    BrowserWebGpu,
    /// WebAssembly in a browser.
    BrowserCpu,
    /// A native process on its processor.
    NativeCpu,
    /// A native process on Vulkan, Metal or DirectX.
    NativeWgpu,
    /// A native process on CUDA.
    NativeCuda,
}

/// Progress of one contributor within one epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The epoch whose parameters were used.
    pub epoch: u64,
    /// Samples accumulated and not yet offered.
    pub n_samples: u32,
    /// Measured speed.
    pub samples_per_second: f32,
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// The session is open.
    Welcome(Progress),
    /// An epoch began: fetch its parameters.
    EpochStarted(u64),
    /// Enough samples exist: offer what you have of this epoch.
    GradientDue(u64),
    /// How the run stands; a few times a second at most.
    Progress(Progress),
    /// Something the contributor sent was refused, or nothing is wanted for now, as in a run that its operator has
    /// paused ([`PAUSED`]); for people to read. The session goes on unless the stream ends.
    Refused(String),
    /// Where the other backbones of the run are, for when this one is away: at most [`ELSEWHERE_MAX`] multiaddresses,
    /// each of at most [`ADDRESS_BYTES_MAX`] bytes and with a peer id. Replaces what was told before.
    Elsewhere(Vec<String>),
}

/// How the run stands.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps made so far.
    pub epoch: u64,
    /// Samples reported or received for the coming step.
    pub n_samples: u64,
    /// Samples that the step needs.
    pub target_batch_size: u32,
    /// Contributors in the run.
    pub n_contributors: u32,
    /// Sum of their speeds.
    pub samples_per_second: f32,
    /// Mean training loss of the last step, where there was one.
    pub train_loss: Option<f32>,
    /// Newest accuracy on the held-out test set, 0 to 1.
    pub test_accuracy: Option<f32>,
}
