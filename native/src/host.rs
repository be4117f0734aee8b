//! The host of runs: what serves a run of any scheme.
//!
//! It never decides how a run progresses: a scheme does ([`crate::scheme`]), which is built on the host and which the host
//! does not know.

pub mod access;
pub(crate) mod addresses;
pub mod admin;
pub(crate) mod announce;
pub mod audit;
pub mod clock;
pub mod contributions;
pub(crate) mod conversations;
pub mod data_files;
pub mod evaluator;
pub mod events;
pub mod evidence;
pub(crate) mod expert_hosts;
mod experts;
pub(crate) mod headers;
pub mod http;
pub mod http_listener;
pub mod identity;
pub mod metrics;
pub mod models;
pub mod operator;
pub mod page;
pub mod problem;
pub mod readiness;
pub mod run;
pub mod sessions;
pub mod site;
pub mod states;
pub mod status;
mod streaming;
pub mod visitors;
pub mod weights;

use barnraise_protocol::access::PublicKey;
use libp2p::PeerId;

/// The peer id of a key.
pub(crate) fn peer_id(key: PublicKey) -> Option<PeerId> {
    PeerId::from_bytes(&key.to_peer_id()).ok()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
