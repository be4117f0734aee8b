//! What the page knows, in its parts. Plain data.

use barnraise_protocol::contribute::DeviceKind;
use serde::{Deserialize, Serialize};

/// What this browser can do, found out before anything is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// The page came over HTTPS or from this machine.
    pub(crate) secure: bool,
    /// What WebGPU has to offer.
    pub(crate) web_gpu: WebGpu,
}

/// WebGPU in this browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebGpu {
    /// The browser has none, or none for a page that did not come over HTTPS.
    Absent,
    /// It was not answered yet.
    Asking,
    /// It has no adapter.
    NoAdapter,
    /// It has one; how fast it is only the peer finds out.
    Adapter,
}

/// Whether the backbone answers over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Backbone {
    /// First request.
    Asking,
    /// Events arrive.
    Live,
    /// It does not answer.
    Lost { reason: String, retry_in_ms: u32 },
}

/// The worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Peer {
    /// Not asked for yet.
    Absent,
    /// The module is on its way, or was loaded and looks for a device.
    Loading { bytes: u64, bytes_total: Option<u64> },
    /// It answers.
    Ready { device: DeviceKind, device_name: String },
}

/// A picture that the visitor asked about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    /// `[height, width, channels]`.
    pub(crate) pixels: Vec<u8>,
    /// Which of the gallery it is, where it was not drawn.
    pub(crate) picked: Option<usize>,
    pub(super) asked_at_ms: f64,
    pub(super) is_open: bool,
}

impl Question {
    /// What is asked about.
    pub(crate) fn pixels(&self) -> &[u8] {
        &self.pixels
    }
}

/// What the model said.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prediction {
    /// Epoch of the model.
    pub(crate) epoch: u64,
    /// Classes and their probabilities, the likeliest first.
    pub(crate) ranking: Vec<(usize, f32)>,
}

impl Prediction {
    /// `probabilities` are `[n_classes]`.
    pub(crate) fn new(epoch: u64, probabilities: &[f32]) -> Self {
        let mut ranking: Vec<(usize, f32)> = probabilities.iter().copied().enumerate().collect();
        ranking.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self { epoch, ranking }
    }
}

/// Held-out pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gallery {
    /// `[n, height, width, channels]`.
    pub(crate) images: Vec<u8>,
    /// `[n]`.
    pub(crate) labels: Vec<u8>,
}
