//! One round of averaging a vector in a group whose members are all equal: butterfly all-reduce
//! (DeDLOC §3.2). Who averages which part says [`Group`]; how one part is averaged decides [`Reduction`].
//!
//! Each part has a reducer. Every member that has samples sends its values of the part there, the reducer
//! takes their mean, weighted by samples, chunk by chunk, and every member that wants the average gets it.
//! A member that stalls loses its own share of what it did not send in time. A part whose reducer vanishes is
//! averaged once more, by the member that stands by. Streams, clocks and retries are the driver's.
//!
//! Many peers, or peers that often fail, average in a grid of groups, round after round ([`lines()`]): each brings to a round
//! what it averaged before, with the weight of all who are in it. Groups of a round must give the same bits where they
//! average the same, so the values of a part are added up in the order of the members, whoever came first.
//!
//! Members may be helped by peers that they do not trust, who average parts and have no values: what those send is
//! checked ([`check`]), and who may help at all is decided by how that went ([`Trust`]).

pub mod check;
#[cfg(test)]
mod fuzz;
mod group;
mod lines;
mod reduction;
#[cfg(test)]
mod tests;
mod trust;

pub use group::{Brought, Group, GroupError, GroupId, MEMBERS_MAX, Member, chunk, n_chunks};
pub use lines::{Line, lines, n_samples};
pub use reduction::{
    ChunkOfMean, HELD_VALUES_MAX, Reduction, ReductionConfig, ReductionError, ReductionState,
};
pub use trust::{Distrust, Trust};
