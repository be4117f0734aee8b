//! A participant of a run, which the tab and the native peer share.
//!
//! [`contribute`] works over the streams and the clock of a [`Platform`], and reports [`ContributorEvent`]s. All of it
//! runs in one task. It never opens a socket, reads a clock or spawns: the platform does. The kit is the same in every
//! run; a folder beside it for each scheme carries out the actions of that scheme's state machine
//! ([`barnraise_swarm::contributor::Contributor`] for the synchronous one).

pub mod description;
mod error;
mod event;
mod experts;
#[cfg(test)]
#[path = "../../protocol/tests/fixture/mod.rs"]
mod fixture;
#[cfg(test)]
mod fuzz;
pub mod hosting;
mod kit;
mod platform;
mod race;
mod run_access;
mod sampled;
mod scheme;
mod synchronous;

pub use error::STALL_MAX;
pub use event::{COMMANDS_MAX, ContributorCommand, ContributorEvent};
pub use experts::{ExpertNetwork, ExpertService};
pub use kit::Config;
pub use kit::access::Credentials;
pub use kit::model_cache::decode as decode_cached_model;
pub use platform::{IncomingStreams, PeerShardOutcome, Platform, PlatformError};
pub use race::race;
pub use run_access::{RunAccess, RunAccessError};
pub use sampled::{
    EncodedModel, EncodedModels, OfferTurns, encode, local_trainer, shards_of, sketch_of, trained_model,
};
pub use scheme::contribute;
pub use synchronous::trainer;
