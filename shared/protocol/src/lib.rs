//! What crosses the wire between Barnraise peers: messages, framing, pulled transfers, tensor codecs.
//!
//! Pure: it opens no socket, reads no clock and draws no entropy. Conversations are written against
//! `futures::io` streams, so the browser and the native peers run the same code over whatever
//! transport carried the stream. A conversation has a file of its own, its libp2p protocol name, and
//! messages with the direction in their name. Nothing here ever allocates what a peer announced
//! before it was compared with a limit.

pub mod access;
pub mod account;
pub mod api;
pub mod average;
pub mod bulk;
pub mod check;
pub mod codec;
pub mod contribute;
pub mod dataset;
pub mod dht;
pub mod display_name;
pub mod error;
pub mod evidence;
pub mod framing;
#[cfg(test)]
mod fuzz;
pub mod gradient;
pub mod hash;
pub mod matchmaking;
pub mod model;
pub mod receipt;
pub mod reduce;
pub mod run;
pub mod shard;
pub mod state;

mod serving;

pub use codec::TensorCodec;
pub use display_name::DisplayName;
pub use error::ConversationError;
pub use hash::Sha256Hash;

/// Version of every message of this crate, sent in each frame.
pub const PROTOCOL_VERSION: u8 = 1;
