//! Averaging in a group without a server: butterfly all-reduce (DeDLOC §3.2) over any stream and clock.
//!
//! [`RoundRegistry::average`] runs one round of a peer. The peer sends each part of its vector to the part's reducer and
//! reduces its own part. The round ends by its deadline, with the average or the error of each part. [`GridRounds`] runs
//! several rounds in alternating groups. [`CheckedRound`] adds a round that verifies the means of untrusted reducers.
//! [`RoundRegistry::take`] passes each incoming stream to its round, and serves the last results to members that missed
//! them. The decisions are made in [`barnraise_swarm::averaging`].
//!
//! It never opens a socket, reads a clock or spawns: the [`Platform`] does. The platform is also told which bytes moved, to
//! measure its link; [`in_flight()`] bounds how many of them may be in buffers.

// The fuzz target shares the network of the simulations.
#[cfg(test)]
extern crate self as barnraise_averaging;

mod checked;
mod config;
mod context;
mod deliver;
mod error;
#[cfg(test)]
mod fuzz;
mod grid;
mod in_flight;
mod incoming;
mod outcome;
mod platform;
mod reduce;
mod registry;
mod round;

pub use checked::{CheckError, CheckedRound};
pub use config::{AveragingConfig, ConfigError};
pub use error::{AttemptError, DeliverError, FaultError, PartError, ReduceError};
pub use grid::{GridError, GridRounds, PartialMean, PartialMeanReason};
pub use in_flight::in_flight;
pub use outcome::{Averaged, Fault, PartOutcome};
pub use platform::{OpenError, Platform};
pub use registry::{PARKED_MAX, RoundRegistry};
pub use round::AverageError;
