//! What lasts of an expert when its host is gone (Learning@home §3.3): when a host gives its state to other peers, and what a peer
//! keeps for others.

mod lost;
mod schedule;
mod shelf;
#[cfg(test)]
mod tests;

pub use barnraise_protocol::experts::checkpoints::CheckpointVersion;

pub use self::lost::{CHECK_INTERVAL, LostCheck, LostExperts};
pub use self::schedule::{CheckpointSchedule, KEEPERS_WANTED, OFFER_INTERVAL};
pub use self::shelf::{CheckpointShelf, KEPT_LONG, OfferVerdict, TRANSFERS_MAX};
