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
        assert_eq!(
            json(&activity),
            serde_json::json!({"type": "activity", "doing": "training", "epoch": 7})
        );
    }

    #[test]
    fn a_missing_total_and_a_missing_identity_read_as_none() {
        let loading: PeerToPage = serde_json::from_str(r#"{"type":"loading","bytes":3}"#).unwrap();
        assert_eq!(loading, PeerToPage::Loading { bytes: 3, bytes_total: None });
        let hello = r#"{"type":"hello","origin":"o","identity":null,"device":"web-gpu"}"#;
        let hello: PageToPeer = serde_json::from_str(hello).unwrap();
        let want =
            PageToPeer::Hello { origin: "o".into(), identity: None, device: DeviceChoice::WebGpu };
        assert_eq!(hello, want);
    }

    #[test]
    fn a_nan_deviation_never_passes() {
        let check = |deviation| CheckOutcome { name: "x".into(), deviation, tolerance: 1.0 };
        assert!(check(1.0).passed());
        assert!(!check(f32::NAN).passed());
    }
}
