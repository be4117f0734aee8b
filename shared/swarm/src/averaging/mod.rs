//! One round of averaging a vector in a group whose members are all equal: butterfly all-reduce
//! (DeDLOC §3.2). [`Group`] assigns the parts to reducers; [`Reduction`] averages one part.
//!
//! Each part has a reducer. Every member that has samples sends its values of the part to the reducer. The reducer
//! takes their mean, weighted by samples, chunk by chunk, and sends it to every member that wants the average.
//! Of a member that stalls, the chunks that it did not send in time are left out. A part whose reducer vanishes is
//! averaged once more, by the standby reducer. Streams, clocks and retries are the driver's.
//!
//! Many peers, or peers that often fail, average in a grid of groups, one round for each axis ([`grid_positions`]). Each
//! brings to a round the mean of the round before, weighted by the samples of all members in it. Groups that average the
//! same values must get the same bits, so a reducer adds up values in the order of the members, not of arrival.
//!
//! Untrusted peers without values may act as reducers for the members. Their means are verified ([`check`]), and their
//! [`Reputation`] decides whether they are asked again.

pub mod check;
#[cfg(test)]
mod fuzz;
mod grid;
mod group;
mod reduction;
mod reputation;
#[cfg(test)]
mod tests;

pub use grid::{GridPosition, grid_positions, n_samples};
pub use group::{Group, GroupError, GroupId, GroupMember, MEMBERS_MAX, MemberInput, chunk, n_chunks};
pub use reduction::{
    ChunkOfMean, HELD_VALUES_MAX, Reduction, ReductionConfig, ReductionError, ReductionState,
};
pub use reputation::{Reputation, ReputationError};
