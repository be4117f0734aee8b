//! Why aggregators decline each other, and reducers. As in [`super::Refusal`], what a reader has to act on is a variant.

use serde::{Deserialize, Serialize};

use super::RefusalReason;
use crate::access::AccessRefusal;
use crate::hash::Sha256Hash;

/// Most addresses of a reducer.
pub const REDUCER_ADDRESSES_MAX: usize = 4;
/// Longest address of a reducer, in bytes.
pub const REDUCER_ADDRESS_BYTES_MAX: usize = 128;

/// Why an aggregator refuses a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum HelloRefusal {
    /// The acceptor's configuration does not name the dialler.
    #[error("this peer is not among the [aggregators] of the backbone that it asks")]
    NotNamed,
    /// Another run.
    #[error("the run here is `{here}`, not `{asked}`")]
    OtherRun {
        /// Id of the acceptor's run.
        here: RefusalReason,
        /// Id that the dialler named.
        asked: RefusalReason,
    },
    /// Another configuration of training, by the hash of all that determines a step.
    #[error(
        "model, seed, data, batch size, optimizer, schedule, local steps, codecs, reducers and \
         checkpoint_every_epochs must be the same in the configurations of all aggregators, and are not"
    )]
    OtherRecipe,
}

/// Why a reducer's description is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum ReducerError {
    /// More addresses than are taken.
    #[error("at most {REDUCER_ADDRESSES_MAX} addresses are taken, not {0}")]
    Addresses(u32),
    /// An address that is too long.
    #[error("an address has at most {REDUCER_ADDRESS_BYTES_MAX} bytes, not {0}")]
    AddressBytes(u32),
    /// A speed that is not a number above 0.
    #[error("a speed of {0} bytes per second came, one above 0 is wanted")]
    Speed(f32),
}

/// Why a backbone takes no part from a reducer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum OfferRefusal {
    /// The peer has no access to the run, or lost it.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// The operator of this backbone has banned the peer.
    #[error("the operator of this backbone has blocked this peer: {reason}")]
    Blocked {
        /// The operator's.
        reason: RefusalReason,
    },
    /// The offer is invalid.
    #[error(transparent)]
    Invalid(#[from] ReducerError),
    /// Another run.
    #[error("the run here is `{here}`, not `{asked}`")]
    OtherRun {
        /// Id of the backbone's run.
        here: RefusalReason,
        /// Id that the reducer named.
        asked: RefusalReason,
    },
    /// The offer names another peer than the one that sent it.
    #[error("it offers another peer than itself")]
    OtherPeer,
    /// The run has one backbone.
    #[error("this run has one backbone, which averages with nobody")]
    OneBackbone,
    /// A backbone averages anyway.
    #[error("it is one of the backbones")]
    Backbone,
    /// The run takes no reducers.
    #[error("native peers do not average in this run")]
    NoReducers,
    /// The run takes named reducers only.
    #[error("{peer} is not among the reducer_peers of this backbone")]
    NotNamed {
        /// Peer id of the reducer.
        peer: RefusalReason,
    },
    /// It sent a wrong mean before.
    #[error("a part that this peer averaged was not the mean")]
    WrongMean,
    /// A round with it failed.
    #[error("an averaging with this peer failed; it may average again in {wait_s} s")]
    Suspended {
        /// Seconds until it may offer itself again.
        wait_s: u64,
    },
    /// All places are taken.
    #[error("{n_reducers} native peers average already")]
    Full {
        /// Reducers of this backbone.
        n_reducers: u32,
    },
}

/// Why an aggregator does not send a step or its model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ModelRefusal {
    /// The journal has no step on that model.
    #[error("no step on the model of epoch {epoch} with the hash {hash} is known")]
    UnknownModel {
        /// Epoch that was asked for.
        epoch: u64,
        /// Hash that was asked for.
        hash: Sha256Hash,
    },
    /// Nothing was stored yet.
    #[error("there is no checkpoint")]
    NoCheckpoint,
    /// Journal or checkpoints cannot be read.
    #[error("the model cannot be read from the storage: {reason}")]
    Storage {
        /// Of the storage, for people.
        reason: RefusalReason,
    },
}
