//! What the page and the training worker say to each other: plain data, posted with `postMessage`.
//!
//! The page never sees a tensor or a stream, the worker never sees the document.
//!
//! As a JavaScript value (`serde_wasm_bindgen` with its default settings) an enum is an object with
//! a `type` in kebab case, an integer is a number (an error above 2^53), and bytes are a
//! `Uint8Array`.

pub mod news;
pub mod rtc;

use std::fmt;

pub use barnraise_protocol::DisplayName;
pub use barnraise_protocol::check::CheckOutcome;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::receipt::SignedReceipt;
pub use barnraise_swarm::activity::{Activity, Contribution, DeviceChange, Event};
pub use barnraise_swarm::conduct::{Conduct, Duty, PassTime};
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
        /// The code of an invitation to the run, where the visitor came with one.
        invitation: Option<String>,
        /// How the backbone was reached the last time on this network.
        way: Option<Way>,
    },
    /// Contribute until told otherwise.
    Start,
    /// Offer what is finished, then stop.
    Stop,
    /// Work like that from now on; until it is said, without a rest.
    Conduct(Conduct),
    /// What is this? `pixels` is `[height, width, channels]`, 0 is background; answered by
    /// [`Event::Prediction`] with the same `request`.
    Predict {
        /// Echoed.
        request: u32,
        /// Grey values.
        #[serde(with = "serde_bytes")]
        pixels: Vec<u8>,
    },
    /// The same by the model of an earlier epoch, which the web server keeps; answered by
    /// [`PeerToPage::PredictedEarlier`] or [`PeerToPage::NoEarlier`] with the same `request`.
    PredictEarlier {
        /// Echoed.
        request: u32,
        /// One of those that `GET /api/models` lists.
        epoch: u64,
        /// Grey values.
        #[serde(with = "serde_bytes")]
        pixels: Vec<u8>,
    },
    /// Which words stand in the blanks of a text? Asked of the newest model that the web server has; answered by
    /// [`PeerToPage::Filled`] or [`PeerToPage::NotFilled`] with the same `request`.
    Fill {
        /// Echoed.
        request: u32,
        /// With blanks; never leaves this machine.
        text: String,
    },
    /// How this visitor wants to be called where it is shown who gave what; `None`: not at all.
    Name {
        /// One that can be shown.
        name: Option<DisplayName>,
    },
    /// Send the gallery; answered by [`Event::Gallery`].
    LoadGallery,
    /// Run the conformance checks of the learning crate on the device and compare with the CPU;
    /// answered by [`PeerToPage::SelfCheck`].
    SelfCheck,
    /// The device was asleep or its network is another one: what waits to be tried again is tried now, and what
    /// is connected must show that it still is.
    Woke,
    /// Answer to [`PeerToPage::News`]: the page is ready for the next.
    Taken,
}

/// Which device the visitor asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// WebGPU where there is an adapter that is faster than the CPU, the CPU otherwise.
    Auto,
    /// The CPU.
    Cpu,
    /// WebGPU or nothing.
    WebGpu,
}

/// How a tab reaches the backbone; the better ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// QUIC, whose streams do not wait for each other.
    WebTransport,
    /// UDP as calls use it, which some networks and browsers let through where they know nothing of the first.
    #[serde(rename = "webrtc")]
    WebRtc,
    /// TCP, which gets through where UDP does not.
    WebSocket,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WebTransport => "WebTransport",
            Self::WebRtc => "WebRTC",
            Self::WebSocket => "WebSocket",
        })
    }
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
    /// The backbone is reached.
    Connected {
        /// By which way.
        way: Way,
        /// The ways that were tried and failed before, each with the reason.
        failures: Vec<(Way, String)>,
    },
    /// Open a WebRTC connection, which only a page can have. A `MessagePort` comes with it, on which the two
    /// then speak of that connection as [`rtc`] says.
    DialRtc {
        /// User fragment and password of ICE, both sides' alike.
        ufrag: String,
        /// What the remote would have answered to the page's offer, in SDP.
        answer: String,
    },
    /// Answer to `PredictEarlier`.
    PredictedEarlier {
        /// Echo.
        request: u32,
        /// Epoch of the model.
        epoch: u64,
        /// `[n_classes]`, sums to 1.
        probabilities: Vec<f32>,
    },
    /// The earlier model could not be asked.
    NoEarlier {
        /// Echo.
        request: u32,
        /// Why not.
        reason: String,
    },
    /// Answer to `Fill`.
    Filled {
        /// Echo.
        request: u32,
        /// Epoch of the model.
        epoch: u64,
        /// For each blank the likeliest pieces and their probabilities, the likeliest first.
        blanks: Vec<Vec<(String, f32)>>,
    },
    /// The blanks could not be filled.
    NotFilled {
        /// Echo.
        request: u32,
        /// Why not.
        reason: String,
    },
    /// What was asked of the web server for a visitor came over the network: the contributor does not count it.
    Downloaded {
        /// Of this answer.
        bytes: u64,
    },
    /// What the contributor in the worker told since the page answered with [`PageToPeer::Taken`], in this order; the
    /// next batch waits for that answer.
    News {
        /// [`Self::Receipts`] and [`Self::Told`].
        messages: Vec<PeerToPage>,
    },
    /// What the contributor in the worker tells, but for receipts.
    Told(Event),
    /// Contributions were accepted: their receipts, verified, the oldest first.
    Receipts {
        /// One at least.
        receipts: Vec<SignedReceipt>,
    },
    /// Answer to `SelfCheck`.
    SelfCheck {
        /// What computed.
        device: DeviceKind,
        /// One line per check: its name, the largest deviation from the CPU and the tolerance.
        checks: Vec<CheckOutcome>,
    },
    /// The peer could not be loaded or started, or a request not be served.
    Failed {
        /// What was wanted, and what went wrong.
        message: String,
    },
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
        let told = PeerToPage::Told(Event::Activity(Activity::Training { epoch: 7 }));
        let want = serde_json::json!({"type": "told", "event": "activity", "doing": "training", "epoch": 7});
        assert_eq!(json(&told), want);
    }

    #[test]
    fn a_duty_that_is_none_is_no_message() {
        let conduct = Conduct { duty: Duty::MIN, is_gentle: true, pass_samples_max: None };
        let text = r#"{"type":"conduct","duty":5,"is_gentle":true}"#;
        assert_eq!(serde_json::to_string(&PageToPeer::Conduct(conduct)).unwrap(), text);
        assert_eq!(serde_json::from_str::<PageToPeer>(text).unwrap(), PageToPeer::Conduct(conduct));
        assert!(serde_json::from_str::<PageToPeer>(&text.replace('5', "4")).is_err());
    }

    #[test]
    fn a_missing_total_and_a_missing_identity_read_as_none() {
        let loading: PeerToPage = serde_json::from_str(r#"{"type":"loading","bytes":3}"#).unwrap();
        assert_eq!(loading, PeerToPage::Loading { bytes: 3, bytes_total: None });
        let hello = r#"{"type":"hello","origin":"o","identity":null,"device":"web-gpu"}"#;
        let hello: PageToPeer = serde_json::from_str(hello).unwrap();
        let want = PageToPeer::Hello {
            origin: "o".into(),
            identity: None,
            device: DeviceChoice::WebGpu,
            invitation: None,
            way: None,
        };
        assert_eq!(hello, want);
    }
}
