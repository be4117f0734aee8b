//! The wall clock of the host. It dates what is signed, stored or shown; intervals are measured by other clocks.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use barnraise_protocol::access::UnixTime;

/// A wall clock in Unix seconds; tests pass their own.
pub type WallClock = Arc<dyn Fn() -> UnixTime + Send + Sync>;

/// The system's clock.
pub fn system_clock() -> WallClock {
    let since_1970 = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Arc::new(move || UnixTime(since_1970().as_secs()))
}
