//! Aggregation of an epoch's contributions to one gradient, with or without Byzantine robustness.
//!
//! [`Aggregation::Mean`] is the mean over samples: the model that one big machine would have, as long as all peers are
//! honest. [`Aggregation::CenteredClip`] bounds the influence of a minority of Byzantine peers. Both are pure: the same
//! contributions in the same order give the same bits, now and when a journal is replayed.
//!
//! [`Aggregation::MeanOfAddresses`] is the mean for a run that anybody may join: no address moves it more than all
//! others together. Where addresses are known, CenteredClip also weighs addresses and not keys, which cost nothing.
//!
//! Nothing here tells a dishonest peer from one with unusual data. Robust aggregation bounds the influence of both and
//! reports the outliers. An error within the honest noise that is the same in every round adds up (Baruch et al. 2019,
//! "A Little Is Enough"): only recomputed batches reveal it ([`crate::recomputation`]).

mod addresses;
mod clip;
mod median;
mod outliers;
mod pool;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::clip::{
    ClipOutcome, ClipVerdict, Clipped, FAR_MEDIANS, ITERATIONS, RADIUS_MEDIANS, WeightedGradient,
    centered_clip, norm,
};
pub use self::median::coordinate_median;
pub(crate) use self::median::lower_median;
pub use self::outliers::{OUTLIER_ROUNDS, OutlierTracker};
pub(crate) use self::pool::Contributions;
use crate::PeerKey;

/// How contributions become one gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Aggregation {
    /// The mean, weighted by samples (DeDLOC §3.1). A single Byzantine peer moves it without bound.
    #[default]
    Mean,
    /// [`centered_clip`] over peers.
    CenteredClip {
        /// Gradient slots, each of the model's size in memory. Peers beyond that share a slot.
        places: u32,
    },
    /// The mean, weighted by samples, in which no address has more weight than all others together.
    MeanOfAddresses {
        /// Sums, each of the model's size in memory. Addresses beyond that share one.
        places: u32,
    },
}

/// Outcome of one peer's contributions in a round.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerOutcome {
    /// The peer.
    pub peer: PeerKey,
    /// Outcome of the slot that its contributions were in.
    pub outcome: ClipOutcome,
    /// Whether other peers shared its slot, so that the distance cannot be attributed to one of them.
    pub is_shared: bool,
}

/// Aggregated gradient, and the distance of each peer from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    /// `[n_parameters]`; not finite where nothing was contributed.
    pub gradient: Vec<f32>,
    /// Mean loss of all samples, or the median peer's.
    pub loss: f32,
    /// Outcome of each peer, in the order of their first contributions; empty for the mean, which measures none.
    pub outcomes: Vec<PeerOutcome>,
}
