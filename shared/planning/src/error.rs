//! What keeps a plan from being made. Every variant says which peer, and what came.

use thiserror::Error;

use crate::PeerId;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlanError {
    /// The list is empty.
    #[error("no peers to plan for")]
    NoPeers,
    /// The list is longer than [`crate::PEERS_MAX`].
    #[error("{got} peers to plan for, at most {max}: split them into groups first")]
    TooManyPeers {
        /// How many came.
        got: usize,
        /// How many may come.
        max: usize,
    },
    /// Two entries have one id.
    #[error("peer {peer} is listed twice")]
    ListedTwice {
        /// Which.
        peer: PeerId,
    },
    /// A measurement that is negative, not a number or not finite.
    #[error("{what} of peer {peer} is {value}, wanted a finite number of at least 0")]
    BadMeasurement {
        /// Whose.
        peer: PeerId,
        /// Which measurement.
        what: &'static str,
        /// What came.
        value: f64,
    },
    /// A pair limit or a list of contributors names a peer that is not in the list.
    #[error("peer {peer} is not in the list of peers")]
    Unknown {
        /// Which.
        peer: PeerId,
    },
    /// No peer can be dialled, so there is nobody to send parts to.
    #[error("none of {n_peers} peers can be reached, so nobody can average")]
    NobodyReachable {
        /// How many there are.
        n_peers: usize,
    },
    /// No peer wants the average.
    #[error("none of {n_peers} peers receives the average")]
    NobodyReceives {
        /// How many there are.
        n_peers: usize,
    },
    /// No peer computes, or none that computes has an uplink that carries its gradient.
    #[error("none of {n_peers} peers can compute a gradient and get it to those who average and receive")]
    NobodyContributes {
        /// How many there are.
        n_peers: usize,
    },
    /// A size of the work that must be above zero is not.
    #[error("{what} is 0")]
    EmptyWork {
        /// Which size.
        what: &'static str,
    },
    /// The minimum gain of a change of plan is not a number of at least 0.
    #[error("the gain from which a plan is changed is {value}, wanted a finite number of at least 0")]
    BadGain {
        /// What came.
        value: f64,
    },
    /// The interior point method did not converge.
    #[error("the {program} was not solved: {status} after {iterations} iterations")]
    NotSolved {
        /// Which program.
        program: &'static str,
        /// What the solver says.
        status: String,
        /// How far it came.
        iterations: u32,
    },
}
