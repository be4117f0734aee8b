//! What Barnraise peers decide: when an epoch's gradients are due, whose count, how they are averaged and how
//! liars are borne, what a contributor does next, in which order it reads the data and from whom it takes it, when it
//! dials again, how fast a link is, who has access to a run, and how much is borne of whom.
//!
//! Pure state machines. They never read a clock, draw entropy, spawn or do I/O: time and seeds are
//! arguments, and after each `on_*` the driver drains `poll_action`. Three drivers feed them: tokio in
//! `native`, the browser's event loop in `wasm`, and the simulator in `tests`.

pub mod access;
pub mod activity;
pub mod averaging;
pub mod backoff;
pub mod bandwidth;
pub mod compression;
pub mod conduct;
pub mod contributor;
pub mod dht;
pub mod guard;
pub mod history;
pub mod matchmaking;
pub mod random;
pub mod recomputation;
pub mod rhythm;
pub mod robust;
pub mod round;
pub mod samples;
pub mod shards;
pub mod uplink;

/// A point in time: what has passed since an origin that the driver chose, monotonic.
pub type Moment = std::time::Duration;

/// Name of a peer: the bytes of its libp2p peer id, which is the hash of its public key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub Vec<u8>);
