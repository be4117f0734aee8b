//! What keeps one peer from being a burden to the others: how often, how slowly and how wrongly it may do
//! something.
//!
//! Pure: whoever drives these is told, and disconnects, refuses or waits. Whatever a stranger can make grow
//! is bounded.

mod conduct;
mod pace;
mod rate;
mod shares;

pub use self::conduct::{Conduct, ConductLimits};
pub use self::pace::{Pace, PaceLimits, TooSlow};
pub use self::rate::RateLimiter;
pub use self::shares::Shares;
