//! Peers and their network in virtual time: one clock, one network, one seed.
//!
//! - [`Simulation`] carries events of a test's own between nodes: latency, bandwidth, loss, partitions, pauses.
//! - [`NodeSimulation`] drives nodes that are state machines ([`SimulatedNode`]).
//! - [`Runtime`] drives async code, which takes its time and its streams from a [`VirtualNetwork`].
//! - [`seeds`] are those of a test.
//!
//! All that happens follows from the seed. Tests and benches use it; nothing that ships does. It never reads a clock, opens a
//! socket or starts a thread, and knows nothing of any protocol.
//!
//! `docs/internals/simulation.md` tells how to write a simulation; its example is a test of this crate.

mod network;
mod nodes;
mod queue;
mod random;
mod runtime;
mod seeds;
mod simulation;

pub use self::network::{Dial, Latency, NatKind, Network, NodeBandwidth, NodeId};
pub use self::nodes::{NodeAction, NodeSimulation, SimulatedNode};
pub use self::queue::EventId;
pub use self::random::Random;
pub use self::runtime::{Cpu, CpuTask, Runtime, Sleep, StreamEnd, Tasks, VirtualNetwork};
pub use self::seeds::{N_SEEDS_VARIABLE, SEED_VARIABLE, Seeds, seeds};
pub use self::simulation::Simulation;

/// A point in virtual time: the duration since its start.
pub type Moment = std::time::Duration;

/// The page of the book, for the sake of its example.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/internals/simulation.md")]
mod page {}
