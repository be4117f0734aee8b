//! The decisions of Barnraise peers, as pure state machines.
//!
//! - An epoch on its aggregator: [`collection`], [`robust`] aggregation, [`recomputation`] of contributions.
//! - Averaging between aggregators: [`matchmaking`], [`averaging`].
//! - A participant: [`session`], [`pacing`], [`samples`], [`shards`], [`uplink`].
//! - Hosts of experts, and trainers that ask them: [`experts`].
//! - A contributor in the synchronous scheme: [`contributor`], [`compression`].
//! - Every peer: [`dht`], [`access`], [`guard`], [`bandwidth`], [`backoff`], [`rhythm`].
//!
//! The state machines have no I/O. They never read a clock, draw entropy, spawn or do I/O: time and seeds are
//! arguments, and after each `on_*` the driver drains `poll_action`. Three drivers feed them: tokio in
//! `native`, the browser's event loop in `wasm`, and the simulator in `tests`.

pub mod access;
pub mod activity;
pub mod averaging;
pub mod backoff;
pub mod bandwidth;
pub mod collection;
pub mod compression;
pub mod contributor;
pub mod dht;
pub mod experts;
pub mod guard;
pub mod history;
pub mod matchmaking;
pub mod pacing;
pub mod random;
pub mod recomputation;
pub mod rhythm;
pub mod robust;
pub mod sampled;
pub mod samples;
pub mod session;
pub mod shards;
pub mod uplink;

use serde::{Deserialize, Serialize};

/// A monotonic point in time: the duration since an origin that the driver chose.
pub type Moment = std::time::Duration;

/// Identity of a peer: the bytes of its libp2p peer id, which is the hash of its public key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub Vec<u8>);

/// Network origin of a contributor: an IPv4 address, a /64 of IPv6, or the relay that carries it, as a number that
/// its driver chose. Keys cost nothing, addresses do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AddressGroup(pub u64);

impl AddressGroup {
    /// For runs in which the origin does not matter.
    pub const UNKNOWN: Self = Self(0);
}
