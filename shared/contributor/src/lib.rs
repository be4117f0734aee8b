//! The contributor's driver, which the tab and the native peer share.
//!
//! [`contribute`] carries out the actions of [`barnraise_swarm::contributor::Contributor`] over the
//! streams and the clock of a [`Platform`], and reports [`ContributorEvent`]s. All of it runs in
//! one task. It never opens a socket, reads a clock or spawns: the platform does.

mod access;
mod commitment;
mod compute;
pub mod description;
mod driver;
mod error;
mod event;
#[cfg(test)]
#[path = "../../protocol/tests/fixture/mod.rs"]
mod fixture;
#[cfg(test)]
mod fuzz;
mod meter;
mod model_cache;
mod network;
mod operation;
mod platform;
mod race;
mod speed;
mod trial;

pub use access::Credentials;
pub use compute::trainer;
pub use driver::{Config, contribute};
pub use error::STALL_MAX;
pub use event::{COMMANDS_MAX, ContributorCommand, ContributorEvent};
pub use model_cache::decode as decode_cached_model;
pub use platform::{PeerShardOutcome, Platform, PlatformError};
pub use race::race;
