//! The network of Barnraise: libp2p transports, the WebTransport listener, streams between peers.
//!
//! A [`Node`] is a peer that listens, dials and opens streams. It carries bytes and knows nothing of what
//! they say: no message of the protocol, no model, no run is known here, and nothing of burn.

pub mod certificates;
mod files;
mod identity;
pub mod webtransport;

pub use self::identity::{IdentityError, load_or_create_keypair};
