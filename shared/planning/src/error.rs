//! Errors of planning.

use thiserror::Error;

use crate::peer::PeerId;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlanError {
    /// The list is empty.
    #[error("no peers to plan for")]
    NoPeers,
    /// The list is longer than [`crate::PEERS_MAX`].
    #[error("{got} peers to plan for, at most {max}: split them into groups first")]
    TooManyPeers {
        /// Peers in the list.
        got: usize,
        /// [`crate::PEERS_MAX`].
        max: usize,
    },
    /// Two entries have one id.
    #[error("peer {peer} is listed twice")]
    ListedTwice {
        /// The peer.
        peer: PeerId,
    },
    /// A measurement that is negative, not a number or not finite.
    #[error("{what} of peer {peer} is {value}, wanted a finite number of at least 0")]
    BadMeasurement {
        /// The measured peer.
        peer: PeerId,
        /// Name of the measurement.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// A pair limit or a list of contributors names a peer that is not in the list.
    #[error("peer {peer} is not in the list of peers")]
    Unknown {
        /// The peer.
        peer: PeerId,
    },
    /// No peer can be dialled, so none can be a reducer.
    #[error("none of {n_peers} peers is reachable, so none can average")]
    NobodyReachable {
        /// Peers in the list.
        n_peers: usize,
    },
    /// No peer receives the average.
    #[error("none of {n_peers} peers receives the average")]
    NobodyReceives {
        /// Peers in the list.
        n_peers: usize,
    },
    /// No peer computes, or none that computes has an uplink that carries its gradient.
    #[error("none of {n_peers} peers can compute a gradient and send it to the reducers and receivers")]
    NobodyContributes {
        /// Peers in the list.
        n_peers: usize,
    },
    /// A size that must be above zero is 0.
    #[error("{what} is 0")]
    EmptyWork {
        /// Name of the size.
        what: &'static str,
    },
    /// The minimum gain of a change of plan is not a number of at least 0.
    #[error("the gain from which a plan is changed is {value}, wanted a finite number of at least 0")]
    BadGain {
        /// The gain.
        value: f64,
    },
    /// The interior point method did not converge.
    #[error("the {program} was not solved: {status} after {iterations} iterations")]
    NotSolved {
        /// Name of the program.
        program: &'static str,
        /// Status of the solver.
        status: String,
        /// Iterations made.
        iterations: u32,
    },
}
