//! The wire protocol of Barnraise peers: messages, framing, pulled transfers, tensor codecs.
//!
//! Pure: it opens no socket, reads no clock and draws no entropy. Conversations are written against
//! `futures::io` streams, so the browser and the native peers run the same code over every
//! transport. A conversation has a file of its own, its libp2p protocol name, and messages with the
//! direction in their name. A length that a peer announced is compared with a limit before anything
//! is allocated for it.

pub mod access;
pub mod api;
pub mod average;
pub mod bulk;
pub mod check;
pub mod codec;
pub mod columns;
pub mod commitment;
pub mod contribute;
pub mod dataset;
pub mod dht;
pub mod display_name;
pub mod error;
pub mod evidence;
pub mod experts;
pub mod framing;
#[cfg(test)]
mod fuzz;
pub mod gradient;
pub mod hash;
pub mod matchmaking;
pub mod model;
pub mod pieces;
pub mod receipt;
pub mod reduce;
pub mod refusal;
pub mod run;
pub mod sampled;
pub mod sealed;
pub mod shard;
pub mod state;
pub mod streamed;

mod contribution;
mod serving;

pub use codec::TensorCodec;
pub use display_name::DisplayName;
pub use error::ConversationError;
pub use hash::Sha256Hash;
pub use refusal::{Refusal, RefusalReason};

/// Version of every message of this crate, sent in each frame.
pub const PROTOCOL_VERSION: u8 = 1;
