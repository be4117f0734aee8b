//! The `contribute` conversation: a session for as long as a contributor takes part (DeDLOC §3.1).
//!
//! The contributor joins, then reports how many samples it has accumulated. The backbone announces
//! the start of each epoch and when its gradients are due. Gradients travel on streams of their own
//! ([`crate::gradient`]), so that a report never waits behind a tensor.

use serde::{Deserialize, Serialize};

use crate::display_name::{DisplayName, NAME_BYTES_MAX};
use crate::refusal::Refusal;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/contribute/5";

/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// Most addresses in [`BackboneToContributor::OtherBackbones`].
pub const OTHER_BACKBONES_MAX: usize = 16;
/// Longest of these addresses, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 400;

// Each address and the list have a length, the message a number.
const _: () = assert!(OTHER_BACKBONES_MAX * (ADDRESS_BYTES_MAX + 2) + 4 <= MESSAGE_BYTES_MAX);

/// Longest text that a peer may give for the name of its device.
pub const DEVICE_NAME_CHARS_MAX: usize = 80;

// With the longest run id and device name, and a margin.
const _: () = assert!(NAME_BYTES_MAX + 4 * DEVICE_NAME_CHARS_MAX + 512 <= MESSAGE_BYTES_MAX);

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// First message.
    Join(Join),
    /// Samples accumulated since the epoch began and not yet offered.
    Report(Report),
}

/// A contributor that joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The run that it wants to join.
    pub run_id: String,
    /// What computes.
    pub device: DeviceKind,
    /// Free text, such as the adapter's name; at most [`DEVICE_NAME_CHARS_MAX`] characters.
    pub device_name: String,
    /// The name to show on the leaderboard. The connection's handshake authenticates the peer; the name itself proves
    /// nothing.
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
    /// The contribution that they are going to be. The report may arrive after its offer, which has a stream of its own, and says nothing
    /// then.
    pub contribution_id: u64,
    /// Samples accumulated and not yet offered.
    pub n_samples: u32,
    /// Measured speed.
    pub samples_per_second: f32,
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// The session is open.
    Welcome(RunProgress),
    /// An epoch began: fetch its parameters.
    EpochStarted(u64),
    /// Enough samples exist: offer what you have of this epoch.
    GradientDue(u64),
    /// Progress of the run; a few times a second at most.
    Progress(RunProgress),
    /// A message of the contributor was refused, or no work is wanted, as while the run is paused. The session goes on
    /// unless the stream ends.
    Refused(Refusal),
    /// Addresses of the run's other backbones, for when this one is unreachable: at most [`OTHER_BACKBONES_MAX`]
    /// multiaddresses, each of at most [`ADDRESS_BYTES_MAX`] bytes and with a peer id. Replaces the previous list.
    OtherBackbones(Vec<String>),
}

/// Progress of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunProgress {
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
