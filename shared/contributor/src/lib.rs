//! A contributor's way through a run: the driver that the tab and the native peer share.
//!
//! [`contribute`] asks [`barnraise_swarm::contributor::Contributor`] what to do, does it over the
//! streams and the clock of a [`Platform`], and tells what happened as [`Event`]s. All of it runs in
//! one task. It never opens a socket, reads a clock or spawns: the platform does.

mod access;
mod accounting;
mod compute;
mod description;
mod driver;
mod error;
mod event;
#[cfg(test)]
mod fuzz;
mod kept;
mod meter;
mod network;
mod operation;
mod platform;
mod race;
mod speed;
mod trial;

pub use access::Credentials;
pub use compute::trainer;
pub use description::{
    BUFFER_BYTES_MAX, DescriptionError, MICRO_BATCH_SAMPLES_MAX, SHUFFLE_BUFFER_SAMPLES_MAX,
    check_description,
};
pub use driver::{Config, contribute};
pub use event::{COMMANDS_MAX, Command, Event};
pub use kept::decode as decode_kept_model;
pub use operation::STALL_MAX;
pub use platform::{PeerShard, Platform};
pub use race::race;
