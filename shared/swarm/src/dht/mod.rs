//! The DHT without its network: storage, lookup and placement of records.
//!
//! After hivemind (Learning@home §2.4 and §3.2) and Kademlia. [`Storage`] holds records until they expire; [`Cache`] holds
//! records that are looked up often. [`Traversal`] finds the closest peers of many keys, and their records. [`Placement`]
//! stores records at the closest peers. It never opens a connection, reads a clock or draws entropy. The driver passes the
//! first peers from libp2p's routing table.

mod cache;
mod handover;
mod merged;
mod placement;
mod storage;
mod traversal;

pub use self::cache::{Cache, CacheLimits};
pub use self::handover::handover;
pub use self::merged::MergedRecords;
pub use self::placement::{Placement, PlacementAction, PlacementLimits};
pub use self::storage::{Eviction, Storage, StorageLimits};
pub use self::traversal::{Goal, KeyOutcome, Traversal, TraversalAction, TraversalLimits};
