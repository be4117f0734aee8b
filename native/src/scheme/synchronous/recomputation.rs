//! Recomputation of contributions: the gradient that a peer signed is compared with that of its samples.
//!
//! - [`recomputer`]: computes one contribution again. It needs only the evidence and the data of the run, so that a
//!   backbone, the other backbones and anybody with `barnraise evidence` can do it.
//! - [`queue`]: selects contributions to this backbone, and the device works through them beside training.
//! - [`exchange`]: evidence, served and fetched.
//! - [`standings`], and the evidence in `host/evidence.rs`: what lasts over a restart.
//!
//! Selection and tolerances are in `barnraise_swarm::recomputation`.

pub(super) mod exchange;
pub(super) mod queue;
mod recomputer;
mod shards;
mod standings;

pub use self::recomputer::{RecomputationError, Recomputer, ShardSourceError};
pub use self::standings::Standings;
