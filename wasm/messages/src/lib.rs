//! Messages between the page and the training worker: plain data, posted with `postMessage`.
//!
//! The page never sees a tensor or a stream, the worker never sees the document.
//!
//! As a JavaScript value (`serde_wasm_bindgen` with its default settings) an enum is an object with
//! a `type` in kebab case, an integer is a number (an error above 2^53), and bytes are a
//! `Uint8Array`.

pub mod event_queue;
pub mod rtc;

use std::fmt;

pub use barnraise_protocol::DisplayName;
pub use barnraise_protocol::check::CheckOutcome;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::receipt::SignedReceipt;
pub use barnraise_swarm::activity::{Activity, Contribution, ContributorEvent, DeviceChange, Interruption};
pub use barnraise_swarm::experts::{ExpertSeen, ExpertsSeen, HostedWork, LayerSeen};
pub use barnraise_swarm::pacing::{Duty, PacingSettings, PassTime};
use serde::{Deserialize, Serialize};
pub use serde_bytes::ByteBuf;

/// Page to worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum PageToPeer {
    /// First message: the visitor's identity, and where to look for the backbone.
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
        /// The transport that reached the backbone the last time on this network.
        transport: Option<TransportKind>,
    },
    /// First message to another worker than the one that contributes: host experts of the run's model, until [`Self::Stop`].
    /// Answered by [`PeerToPage::Hosting`] again and again, and by [`PeerToPage::NotHosting`] at the end.
    Host {
        /// As of [`Self::Hello`].
        origin: String,
        /// Which device to compute on.
        device: DeviceChoice,
        /// The transport that reached the backbone the last time on this network.
        transport: Option<TransportKind>,
    },
    /// Contribute until told otherwise.
    Start,
    /// Offer what is finished, then stop. A host hands its experts over first.
    Stop,
    /// Changes the contributor's pacing. Before the first one it works without rests.
    Pacing(PacingSettings),
    /// Train on these pictures from the next [`Self::Start`] on, in a run whose participants have data of their own. They never
    /// leave this tab. Without any, it trains on the run's again.
    OwnPictures {
        /// `[n_samples, height, width, channels]`, as the run's are.
        #[serde(with = "serde_bytes")]
        pixels: Vec<u8>,
        /// `[n_samples]`: the class of each.
        #[serde(with = "serde_bytes")]
        labels: Vec<u8>,
    },
    /// Train on these files from the next [`Self::Start`] on, in such a run. They never leave this tab. Answered by
    /// [`PeerToPage::OwnFilesRead`] or [`PeerToPage::NoOwnFiles`] with the same `request`; in the latter case, and after
    /// [`Self::OwnPictures`] without any, it trains on the run's data again.
    OwnFiles {
        /// Echoed.
        request: u32,
        /// Their contents: one CSV file of a table or of ratings, or texts in UTF-8.
        files: Vec<ByteBuf>,
    },
    /// Classify an image. `pixels` is `[height, width, channels]`, 0 is background; answered by
    /// [`ContributorEvent::Prediction`] with the same `request`.
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
    /// Fill the blanks of a text with the newest model of the web server; answered by
    /// [`PeerToPage::Filled`] or [`PeerToPage::NotFilled`] with the same `request`.
    Fill {
        /// Echoed.
        request: u32,
        /// With blanks; never leaves this machine.
        text: String,
    },
    /// Go on with a text by a model of the web server, until another text is to be gone on with; answered by
    /// [`PeerToPage::Continued`] for each token, or by [`PeerToPage::NotFilled`].
    Continue {
        /// Echoed.
        request: u32,
        /// Of a model that `GET /api/models` lists; `None` for the newest.
        epoch: Option<u64>,
        /// The beginning; never leaves this machine.
        text: String,
    },
    /// Tell what is to be told of a row of the run's table, by the newest model of the web server; answered by
    /// [`PeerToPage::Told`] or [`PeerToPage::NotTold`] with the same `request`.
    Tell {
        /// Echoed.
        request: u32,
        /// The numbers of the row; they never leave this machine.
        values: Vec<f32>,
    },
    /// Recommend items to somebody who rated some, by the newest model of the web server; answered by
    /// [`PeerToPage::Recommended`] or [`PeerToPage::NotTold`] with the same `request`.
    Recommend {
        /// Echoed.
        request: u32,
        /// Numbers of items, and what they got; they never leave this machine.
        rated: Vec<(u32, f32)>,
    },
    /// The visitor's name on the leaderboard; `None` stays anonymous.
    Name {
        /// One that can be shown.
        name: Option<DisplayName>,
    },
    /// Send the gallery; answered by [`ContributorEvent::Gallery`].
    LoadGallery,
    /// Run the conformance checks of the learning crate on the device and compare with the CPU;
    /// answered by [`PeerToPage::SelfCheck`].
    SelfCheck,
    /// The device was asleep, or its network changed: retry now what waits for a retry, and probe the
    /// connection.
    Woke,
    /// Answer to [`PeerToPage::Events`]: the page is ready for the next.
    Acknowledged,
}

/// The device that the visitor asked for.
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

/// Transport of a tab's connection to the backbone; the better ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportKind {
    /// QUIC, whose streams do not wait for each other.
    WebTransport,
    /// UDP as calls use it. Some networks and browsers let it through where WebTransport is blocked or missing.
    #[serde(rename = "webrtc")]
    WebRtc,
    /// TCP, which gets through where UDP does not.
    WebSocket,
}

impl fmt::Display for TransportKind {
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
    /// Progress of loading the peer module; posted by `worker.js` before the module runs.
    Loading {
        /// Bytes of the module so far, after decompression.
        bytes: u64,
        /// Bytes of the module in all; `None` if the build did not write the size.
        bytes_total: Option<u64>,
    },
    /// Answer to `Hello`.
    Ready {
        /// The seed in use, for the page to keep.
        #[serde(with = "serde_bytes")]
        identity: Vec<u8>,
        /// Peer id in base58.
        peer_id: String,
        /// The device that will compute.
        device: DeviceKind,
        /// Name of the device.
        device_name: String,
    },
    /// The worker is connected to a backbone.
    Connected {
        /// Transport of the connection.
        transport: TransportKind,
        /// The transports that failed before it, each with the reason.
        failures: Vec<(TransportKind, String)>,
    },
    /// So many threads of the processor compute a pass; 1 where the worker does it alone.
    Threads {
        /// At least 1.
        n_threads: u32,
    },
    /// What a host of experts has done since [`PageToPeer::Host`]; told when it has changed, at most once a second.
    Hosting {
        /// What it did.
        work: HostedWork,
        /// Why it serves no expert at the moment; `None` where it serves some, or is on its way to.
        problem: Option<String>,
    },
    /// The worker hosts no longer: nothing follows.
    NotHosting {
        /// Why not; `None` after [`PageToPeer::Stop`].
        reason: Option<String>,
    },
    /// Open a WebRTC connection, which only a page can do. A `MessagePort` comes with it, for the messages of
    /// [`rtc`] about that connection.
    DialRtc {
        /// ICE user fragment, which is also the password, of both sides.
        ufrag: String,
        /// The remote's answer in SDP, generated by the worker.
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
    /// The earlier model could not be loaded or evaluated.
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
    /// Answer to `Continue`: a token, or the end of the text.
    Continued {
        /// Echo.
        request: u32,
        /// Epoch of the model.
        epoch: u64,
        /// What follows what was said so far; empty at the end.
        text: String,
        /// Tokens of this answer so far.
        n_tokens: u32,
        /// Seconds that they took.
        seconds: f64,
        /// Whether nothing follows.
        is_end: bool,
    },
    /// The blanks could not be filled, or the text not be gone on with.
    NotFilled {
        /// Echo.
        request: u32,
        /// Why not.
        reason: String,
    },
    /// Answer to `Tell`.
    Told {
        /// Echo.
        request: u32,
        /// Epoch of the model.
        epoch: u64,
        /// Probabilities of the classes, or values.
        told: Vec<f32>,
    },
    /// Answer to `Recommend`.
    Recommended {
        /// Echo.
        request: u32,
        /// Epoch of the model.
        epoch: u64,
        /// Items that were not rated, and what they would get, the best first.
        items: Vec<(u32, f32)>,
    },
    /// Nothing could be told or recommended.
    NotTold {
        /// Echo.
        request: u32,
        /// Why not.
        reason: String,
    },
    /// Answer to `OwnFiles`: the rows, ratings or sequences of tokens that can be trained on.
    OwnFilesRead {
        /// Echo.
        request: u32,
        /// One at least.
        n_samples: u32,
        /// Rows that are not as the run's are, and are left out.
        n_broken: u32,
        /// Where the first of them stands, and what is wrong with it.
        first_broken: Option<String>,
    },
    /// Nothing can be trained on in the files.
    NoOwnFiles {
        /// Echo.
        request: u32,
        /// Why not.
        reason: String,
    },
    /// A download from the web server outside of contributing, which the contributor's counters do not include.
    Downloaded {
        /// Bytes of this download.
        bytes: u64,
    },
    /// The contributor's events since the page answered with [`PageToPeer::Acknowledged`], in order; the next batch waits for
    /// that answer.
    Events {
        /// [`Self::Receipts`] and [`Self::Event`].
        messages: Vec<PeerToPage>,
    },
    /// An event of the contributor; receipts come in [`Self::Receipts`].
    Event(ContributorEvent),
    /// Contributions were accepted: their receipts, verified, the oldest first.
    Receipts {
        /// One at least.
        receipts: Vec<SignedReceipt>,
    },
    /// Answer to `SelfCheck`.
    SelfCheck {
        /// The device that was checked.
        device: DeviceKind,
        /// One line per check: its name, the largest deviation from the CPU and the tolerance.
        checks: Vec<CheckOutcome>,
    },
    /// The server has another build of the page, and no longer this one's training program; posted by `worker.js`.
    Outdated,
    /// The peer could not be loaded or started, or a request failed.
    Failed {
        /// The request, and the reason.
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
        assert_eq!(json(&PeerToPage::Outdated), serde_json::json!({"type": "outdated"}));
        let told = PeerToPage::Event(ContributorEvent::Activity(Activity::Training { epoch: 7 }));
        let want = serde_json::json!({"type": "event", "event": "activity", "doing": "training", "epoch": 7});
        assert_eq!(json(&told), want);
    }

    #[test]
    fn a_duty_that_is_none_is_no_message() {
        let pacing =
            PacingSettings { duty: Duty::MIN, is_gentle: true, pass_samples_max: None, day_mb: None };
        let text = r#"{"type":"pacing","duty":5,"is_gentle":true}"#;
        assert_eq!(serde_json::to_string(&PageToPeer::Pacing(pacing)).unwrap(), text);
        assert_eq!(serde_json::from_str::<PageToPeer>(text).unwrap(), PageToPeer::Pacing(pacing));
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
            transport: None,
        };
        assert_eq!(hello, want);
    }
}
