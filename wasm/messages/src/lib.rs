//! What the page and the training worker say to each other: plain data, posted with `postMessage`.
//!
//! The page never sees a tensor or a stream, the worker never sees the document.
//!
//! As a JavaScript value (`serde_wasm_bindgen` with its default settings) an enum is an object with
//! a `type` in kebab case, an integer is a number (an error above 2^53), and bytes are a
//! `Uint8Array`.

use barnraise_protocol::contribute::{DeviceKind, Progress};
pub use barnraise_swarm::activity::{Activity, Contribution};
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
        #[serde(with = "serde_bytes")]
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
        #[serde(with = "serde_bytes")]
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
    /// The peer module itself is on its way; posted by `worker.js` before the module runs.
    Loading {
        /// Bytes of the module so far, after decompression.
        bytes: u64,
        /// Of these, where the build wrote the size down.
        bytes_total: Option<u64>,
    },
    /// Answer to `Hello`.
    Ready {
        /// The seed in use, for the page to keep.
        #[serde(with = "serde_bytes")]
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
        #[serde(with = "serde_bytes")]
        images: Vec<u8>,
        /// `[n]`.
        #[serde(with = "serde_bytes")]
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_shape_that_worker_js_relies_on() {
        let json = |message: &PeerToPage| serde_json::to_value(message).unwrap();
        let loading = PeerToPage::Loading { bytes: 3, bytes_total: None };
        assert_eq!(json(&loading), serde_json::json!({"type": "loading", "bytes": 3, "bytes_total": null}));
        let failed = PeerToPage::Failed { message: "x".into() };
        assert_eq!(json(&failed), serde_json::json!({"type": "failed", "message": "x"}));
        let activity = PeerToPage::Activity(Activity::Training { epoch: 7 });
        assert_eq!(json(&activity), serde_json::json!({"type": "activity", "doing": "training", "epoch": 7}));
    }

    #[test]
    fn a_missing_total_and_a_missing_identity_read_as_none() {
        let loading: PeerToPage = serde_json::from_str(r#"{"type":"loading","bytes":3}"#).unwrap();
        assert_eq!(loading, PeerToPage::Loading { bytes: 3, bytes_total: None });
        let hello = r#"{"type":"hello","origin":"o","identity":null,"device":"web-gpu"}"#;
        let hello: PageToPeer = serde_json::from_str(hello).unwrap();
        let want = PageToPeer::Hello { origin: "o".into(), identity: None, device: DeviceChoice::WebGpu };
        assert_eq!(hello, want);
    }

    #[test]
    fn a_nan_deviation_never_passes() {
        let check = |deviation| CheckOutcome { name: "x".into(), deviation, tolerance: 1.0 };
        assert!(check(1.0).passed());
        assert!(!check(f32::NAN).passed());
    }
}
