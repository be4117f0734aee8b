//! From the contributions of an epoch to one gradient, with or without trust.
//!
//! [`Aggregation::Mean`] is the mean over samples: the model that one big machine would have, for as long as
//! everybody is honest. [`Aggregation::CenteredClip`] bounds what a minority of lying peers can do to it. Both
//! are pure: the same contributions in the same order give the same bits, now and when a journal is replayed.
//!
//! [`Aggregation::MeanOfAddresses`] is the mean for a run that anybody may join: no address moves it more than all
//! others together. And where addresses are known they are who has a voice in CenteredClip, not keys, which cost nothing.
//!
//! Nothing here tells a liar from a peer with bad luck. It bounds what either can do, and says who was far off.
//! A lie that hides within the honest noise and is the same in every round adds up (Baruch et al. 2019, "A Little
//! Is Enough"): against that, batches would have to be recomputed.

mod addresses;
mod clip;
mod far_off;
mod median;
mod pool;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::clip::{
    Clipped, FAR_MEDIANS, ITERATIONS, Member, Outcome, RADIUS_MEDIANS, Verdict, centered_clip, norm,
};
pub use self::far_off::{FAR_ROUNDS, FarOff};
pub use self::median::coordinate_median;
pub(crate) use self::median::lower_median;
pub(crate) use self::pool::Contributions;
use crate::PeerKey;

/// How contributions become one gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Aggregation {
    /// The mean, weighted by samples (DeDLOC §3.1). One peer that lies moves it as far as it likes.
    #[default]
    Mean,
    /// [`centered_clip`] over peers.
    CenteredClip {
        /// Gradients kept apart, each of the model's size in memory. Peers beyond share one with others.
        places: u32,
    },
    /// The mean, weighted by samples, in which no address has more weight than all others together.
    MeanOfAddresses {
        /// Sums kept apart, each of the model's size in memory. Addresses beyond share one with others.
        places: u32,
    },
}

/// What became of one peer's share of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerOutcome {
    /// Who.
    pub peer: PeerKey,
    /// Where its contributions were.
    pub outcome: Outcome,
    /// Whether others shared its place, so that it is not known whose fault the distance is.
    pub is_shared: bool,
}

/// One gradient of many, and who was how far from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    /// `[n_parameters]`; not finite where nothing was contributed.
    pub gradient: Vec<f32>,
    /// Mean loss of all samples, or the median peer's.
    pub loss: f32,
    /// Of each peer, in the order of their first contributions; empty for the mean, which looks at nobody.
    pub outcomes: Vec<PeerOutcome>,
}
