//! Messages between worker and page about one WebRTC connection, on a `MessagePort` of its own.
//!
//! Workers have no `RTCPeerConnection`: the page owns it and moves bytes, the worker owns the streams. The
//! bytes of a channel are no message of serde's but a JavaScript array `[channel, ArrayBuffer]`, whose buffer
//! is moved, not copied. Both directions have credit: the worker has at most [`SEND_BYTES_MAX`] on their way
//! to the network, the page at most [`RECEIVE_BYTES_MAX`] that the worker did not read yet.

use barnraise_protocol::bulk::{CHUNK_BYTES, WINDOW_CHUNKS};
use serde::{Deserialize, Serialize};

/// Number of a channel: even if the worker opened it, odd if the remote did. It is not the SCTP stream id.
pub type ChannelNumber = u32;

/// The channel of the handshake, open from the start.
pub const HANDSHAKE_CHANNEL: ChannelNumber = 0;
/// Largest message on a channel. The libp2p WebRTC specification allows 16 KiB, of which rust-libp2p's
/// listener reads half and then resets the stream.
pub const MESSAGE_BYTES_MAX: u32 = 8 * 1024;
/// Bytes of one channel that the worker has handed over and the page has not passed on.
pub const SEND_BYTES_MAX: u32 = 256 * 1024;
/// Most unread bytes of one channel. A data channel has no flow control, so one byte more closes the channel. A worker
/// that grants credit in time never sees that.
pub const RECEIVE_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// The worker reports its reads at least once per so many bytes.
pub const TAKEN_BYTES: u32 = 64 * 1024;
/// Most open channels of the remote; one more is closed.
pub const REMOTE_CHANNELS_MAX: usize = 64;

const _: () = assert!(MESSAGE_BYTES_MAX < SEND_BYTES_MAX && TAKEN_BYTES < RECEIVE_BYTES_MAX);
const _: () = assert!(WINDOW_CHUNKS as usize * CHUNK_BYTES < RECEIVE_BYTES_MAX as usize);

/// Worker to page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum RtcRequest {
    /// Open a channel; answered by [`RtcEvent::Opened`] or [`RtcEvent::Closed`].
    Open {
        /// A number that was not in use before.
        channel: ChannelNumber,
    },
    /// The worker has read more bytes of a channel.
    Taken {
        /// The channel.
        channel: ChannelNumber,
        /// Bytes since the last report.
        bytes: u32,
    },
    /// The worker has left a channel: its written bytes are still sent, incoming bytes are dropped.
    Leave {
        /// The channel.
        channel: ChannelNumber,
    },
    /// Close the connection. The last message.
    End,
}

/// Page to worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum RtcEvent {
    /// The page's side of the connection exists.
    Described {
        /// SHA-256 of the page's certificate.
        #[serde(with = "serde_bytes")]
        fingerprint: Vec<u8>,
    },
    /// A channel that the worker asked for is open.
    Opened {
        /// The channel.
        channel: ChannelNumber,
    },
    /// The remote opened a channel.
    Accepted {
        /// The number of the new channel.
        channel: ChannelNumber,
    },
    /// Bytes were handed to the network, which is credit for as many more.
    Sent {
        /// The channel.
        channel: ChannelNumber,
        /// Bytes since the last report.
        bytes: u32,
    },
    /// A channel has ended.
    Closed {
        /// The channel.
        channel: ChannelNumber,
        /// The reason, if it failed.
        reason: Option<RtcFailure>,
    },
    /// The connection could not be opened, or is lost. The last message.
    Failed {
        /// The reason.
        reason: RtcFailure,
    },
}

/// Why a connection or a channel cannot be had, or ended. A browser's own words are in `detail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum RtcFailure {
    /// Some browsers have none, or a visitor has switched it off.
    #[error("this browser has no WebRTC")]
    NotInBrowser,
    /// An error of the browser.
    #[error("{detail}")]
    Browser {
        /// Of the browser.
        detail: String,
    },
    /// An offer without SDP.
    #[error("the browser's offer has no text")]
    NoOffer,
    /// An offer that the listener could not use.
    #[error("the browser's offer lacks what the specification wants: {detail}")]
    Offer {
        /// What it lacks.
        detail: String,
    },
    /// More connections than a worker needs.
    #[error("too many connections at once")]
    TooMany,
    /// A channel was asked for before the connection.
    #[error("no connection yet")]
    NotConnected,
    /// The browser refused a channel.
    #[error("the browser opens no further channel: {detail}")]
    NoChannel {
        /// Of the browser.
        detail: String,
    },
    /// ICE found no way, or lost it.
    #[error("nothing answers at the backbone's address any more, or ever did")]
    Lost,
    /// A message that is none of this module.
    #[error("the worker sent what the page cannot read: {detail}")]
    Unreadable {
        /// Of the decoder.
        detail: String,
    },
    /// The browser refused bytes.
    #[error("the browser did not take a message")]
    NotSent,
    /// The remote sent a text.
    #[error("the remote sent text, want bytes")]
    Text,
    /// More than [`RECEIVE_BYTES_MAX`] unread bytes.
    #[error("the remote sent more than was granted")]
    TooMuch,
    /// This side closed it.
    #[error("it was closed")]
    Closed,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn both_directions_have_a_shape_of_their_own() {
        let taken = serde_json::to_value(RtcRequest::Taken { channel: 2, bytes: 7 }).unwrap();
        assert_eq!(taken, serde_json::json!({"type": "taken", "channel": 2, "bytes": 7}));
        let closed = serde_json::to_value(RtcEvent::Closed { channel: 1, reason: None }).unwrap();
        assert_eq!(closed, serde_json::json!({"type": "closed", "channel": 1, "reason": null}));
        let lost = serde_json::to_value(RtcEvent::Failed { reason: RtcFailure::Lost }).unwrap();
        assert_eq!(lost, serde_json::json!({"type": "failed", "reason": {"cause": "lost"}}));
        let end: RtcRequest = serde_json::from_str(r#"{"type":"end"}"#).unwrap();
        assert_eq!(end, RtcRequest::End);
    }
}
