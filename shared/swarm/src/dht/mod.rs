//! The DHT without its network: what a peer keeps for others, how it searches, and where it puts.
//!
//! After hivemind (Learning@home §2.4 and §3.2) and Kademlia: [`Storage`] holds records until they expire,
//! [`Cache`] what is asked for often, [`Traversal`] finds the closest peers of many keys and what they hold,
//! [`Placement`] has records kept by the closest. Never opens a connection, reads a clock or draws entropy;
//! which peers are known at first is told by the driver, out of libp2p's routing table.

mod cache;
mod found;
mod handover;
mod placement;
mod storage;
mod traversal;

pub use self::cache::{Cache, CacheLimits};
pub use self::found::Merged;
pub use self::handover::handover;
pub use self::placement::{Placement, PlacementAction, PlacementLimits};
pub use self::storage::{Eviction, Storage, StorageLimits};
pub use self::traversal::{Goal, KeyOutcome, Traversal, TraversalAction, TraversalLimits};
