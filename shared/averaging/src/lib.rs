//! Averaging in a group without a server: butterfly all-reduce (DeDLOC §3.2) over any stream and clock.
//!
//! [`Hub::average`] takes a peer through one round: it sends each part of its vector to the part's reducer, averages
//! its own part, and ends, by its deadline at the latest, with the average of every part or the reason why there
//! is none; [`GridRounds`] takes it through several, in groups that alternate, and [`CheckedRound`] through one more, where
//! peers average that are not trusted.
//! [`Hub::take`] hands the streams that others open to the round they belong to, and gives the result of the last round to
//! whoever missed it. What is decided is decided in [`barnraise_swarm::averaging`].
//!
//! It never opens a socket, reads a clock or spawns: the [`Platform`] does, which also hears what moves, so that it can
//! measure its link; how much of that may lie in buffers says [`in_flight()`].

// The world of the simulations is that of the fuzz target as well.
#[cfg(test)]
extern crate self as barnraise_averaging;

mod checked;
mod deliver;
#[cfg(test)]
mod fuzz;
mod grid;
mod hub;
mod in_flight;
mod platform;
mod reduce;
mod round;

pub use checked::{CheckError, CheckedRound};
pub use grid::{GridError, GridRounds, NotWhole};
pub use hub::{Hub, PARKED_MAX};
pub use in_flight::in_flight;
pub use platform::Platform;
pub use round::{AverageError, Averaged, Config, ConfigError, Fault, PartOutcome};
