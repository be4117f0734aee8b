//! Experts on other peers' machines (Learning@home §3): which ones are there, which of them an input goes to, how a trainer asks
//! them, and what their host computes next.
//!
//! A trainer finds the best experts of each row by [`ExpertSearch`]: algorithm 1 of appendix B, for all rows of a batch, and for
//! several layers, by one sequence of lookups in the DHT. It asks their hosts by [`calls`]. A host tells of its experts by
//! [`ExpertAnnouncer`], and decides what its device computes next by [`serving`]. Which places of the grid it serves follows from
//! [`leases`], and what lasts of an expert when its host is gone from [`checkpoints`]. Copies of an expert that many ask for are averaged
//! ([`mean_of_copies`]). What it answers is computed once more by [`audits`].
//!
//! What differs from the paper:
//!
//! - Algorithm 1 keeps the k best alive prefixes of each length. That misses the best expert where it is below a prefix that
//!   looks worse: with `g_0 = (1, 0)`, `g_1 = (0, 10)` and the experts 0.0 and 1.1 alive, it follows the prefix 0 and finds the
//!   expert of score 1, not that of score 11. Here a row looks up prefixes in the order of an upper bound, that of the best
//!   expert that may be below them, until no bound reaches the k-th best expert that was found: the result is that of brute
//!   force. Where that takes too many lookups, or too long, the row has the best that were found, and says so.
//! - An entry of the DHT is alive until it expires, rather than by a timestamp.
//! - Prefixes are cached, those with nothing below them too.
//!
//! Pure: it asks nobody. The driver looks prefixes up, in the DHT or through a connected peer, and checks the signatures of what
//! it finds; time and seeds are arguments.

mod announcer;
pub mod audits;
mod averaging;
pub mod calls;
pub mod checkpoints;
#[cfg(test)]
mod fuzz;
mod holders;
mod hosts;
pub mod leases;
mod prefixes;
mod row;
mod search;
mod seen;
pub mod serving;
#[cfg(test)]
mod tests;

pub use barnraise_protocol::experts::ExpertPass;

pub use self::announcer::{
    ANNOUNCED_MAX, ANNOUNCEMENT_INTERVAL, AnnouncerAction, ExpertAnnounceError, ExpertAnnouncer,
};
pub use self::averaging::{COPY_DISTANCE_MAX, mean_of_copies};
pub use self::holders::{announced_places, retain_holders};
pub use self::hosts::HostFault;
pub use self::prefixes::GridPrefix;
pub use self::row::{RowSelection, SelectedExpert};
pub use self::search::{
    ACTIVE_MAX, ExpertQuery, ExpertSearch, ExpertSearchAction, LOOKUP_KEYS_MAX, PREFIXES_IN_FLIGHT_MAX,
    QUERIES_MAX, QUERY_PREFIXES_MAX, QUERY_ROWS_MAX, QueryError, QueryId,
};
pub use self::seen::{
    ExpertSeen, ExpertTallies, ExpertsSeen, HostedWork, LayerSeen, SEEN_EXPERTS_MAX, SEEN_LAYERS_MAX,
    SEEN_TIME,
};
