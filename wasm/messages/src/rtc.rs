//! What worker and page say about one WebRTC connection, on a `MessagePort` of its own.
//!
//! Workers have no `RTCPeerConnection`: the page owns it and moves bytes, the worker owns the streams. The
//! bytes of a channel are no message of serde's but a JavaScript array `[channel, ArrayBuffer]`, whose buffer
//! is moved, not copied. Both directions have credit: the worker has at most [`SEND_BYTES_MAX`] on their way
//! to the network, the page at most [`RECEIVE_BYTES_MAX`] that the worker did not read yet.

use barnraise_protocol::bulk::{CHUNK_BYTES, WINDOW_CHUNKS};
use serde::{Deserialize, Serialize};

/// Number of a channel, which is not its SCTP stream: even where the worker opened it, odd where the remote
/// did.
pub type ChannelNumber = u32;

/// The channel of the handshake, there from the beginning.
pub const HANDSHAKE_CHANNEL: ChannelNumber = 0;
/// Largest message on a channel. The libp2p WebRTC specification allows 16 KiB, of which rust-libp2p's
/// listener reads half and then resets the stream.
pub const MESSAGE_BYTES_MAX: u32 = 8 * 1024;
/// Bytes of one channel that the worker has handed over and the page has not passed on.
pub const SEND_BYTES_MAX: u32 = 256 * 1024;
/// Bytes of one channel that came and that the worker did not read. A data channel cannot hold its sender
/// back, so one more ends the channel; whoever grants credit before it is sent to never sees that.
pub const RECEIVE_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// The worker says what it read at least this often, in bytes.
pub const TAKEN_BYTES: u32 = 64 * 1024;
/// Channels at once that the remote opened; one more is closed.
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
    /// The worker has read so much more.
    Taken {
        /// Of which channel.
        channel: ChannelNumber,
        /// How much.
        bytes: u32,
    },
    /// The worker has left a channel: what it wrote is still sent, what comes is dropped.
    Leave {
        /// Which.
        channel: ChannelNumber,
    },
    /// Close the connection. The last message.
    End,
}

/// Page to worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum RtcEvent {
    /// The page's side is made.
    Described {
        /// SHA-256 of its certificate.
        #[serde(with = "serde_bytes")]
        fingerprint: Vec<u8>,
    },
    /// A channel that the worker asked for can be used.
    Opened {
        /// Which.
        channel: ChannelNumber,
    },
    /// The remote opened a channel.
    Accepted {
        /// How it is called from now on.
        channel: ChannelNumber,
    },
    /// Bytes were passed on, which is credit for as many more.
    Sent {
        /// Of which channel.
        channel: ChannelNumber,
        /// How many.
        bytes: u32,
    },
    /// A channel has ended; nothing more comes from it.
    Closed {
        /// Which.
        channel: ChannelNumber,
        /// Why, where it is a failure.
        reason: Option<String>,
    },
    /// The connection could not be made or is lost. The last message.
    Failed {
        /// Why.
        reason: String,
    },
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
        let end: RtcRequest = serde_json::from_str(r#"{"type":"end"}"#).unwrap();
        assert_eq!(end, RtcRequest::End);
    }
}
