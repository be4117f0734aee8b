//! Limits that keep one peer from using up the resources of others: rates, timeouts, shares and bans.
//!
//! Pure: the driver asks them and then disconnects, refuses or waits. All state that a remote peer can make grow is
//! bounded.

mod bans;
mod pace;
mod rate;
mod shares;

pub use self::bans::{BanLimits, BanList};
pub use self::pace::{PaceLimits, StreamPace, TooSlow};
pub use self::rate::RateLimiter;
pub use self::shares::FairShares;
