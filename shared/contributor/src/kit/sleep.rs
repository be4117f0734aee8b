//! Detects that the device was asleep, when its connections are dead and its timers late, and reconnects at once.

use std::time::Duration;

use barnraise_protocol::access::UnixTime;
use barnraise_swarm::Moment;
use barnraise_swarm::uplink::Uplink;

use super::{Kit, NetKind};
use crate::platform::Platform;

/// Least lead of the wall clock over the monotonic clock that counts as a sleep. Corrections of a clock are rarely
/// that large.
const ASLEEP_MIN: Duration = Duration::from_secs(15);

/// Tells a sleep from a wait: during a sleep many monotonic clocks stand still, the wall clock does not. Where both
/// run on, the silent connection is noticed instead.
#[derive(Debug, Default)]
pub(crate) struct SleepWatch(Option<(Moment, UnixTime)>);

impl SleepWatch {
    /// By how much the wall clock has run ahead since the previous call, to a second.
    pub(crate) fn lead(&mut self, now: Moment, wall: UnixTime) -> Duration {
        let Some((now_before, wall_before)) = self.0.replace((now, wall)) else { return Duration::ZERO };
        let by_wall = Duration::from_secs(wall.0.saturating_sub(wall_before.0));
        by_wall.saturating_sub(now.saturating_sub(now_before))
    }

    /// Whether the device was asleep since the previous call.
    fn was_asleep(&mut self, now: Moment, wall: UnixTime) -> bool {
        self.lead(now, wall) >= ASLEEP_MIN
    }
}

impl<P: Platform> Kit<'_, P> {
    pub(super) fn notice_sleep(&mut self) {
        if self.sleep_watch.was_asleep(self.platform.now(), self.platform.unix_time()) {
            self.on_woke(true);
        }
    }

    pub(super) fn on_woke(&mut self, was_asleep: bool) {
        let is_down = self.session.on_woke(self.platform.now(), was_asleep);
        self.wait_until = None;
        // The network may be another one.
        self.uplink = Uplink::default();
        // A visitor who comes back from signing in is admitted by the dial that waits for it.
        let is_dialling =
            matches!(self.net_kind, Some(NetKind::Connect { .. })) && self.ticket.sign_in().is_none();
        if is_down && (is_dialling || (was_asleep && self.link.is_some())) {
            // Background requests are retried on the next connection.
            self.drop_link();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_what_only_the_wall_clock_saw() {
        let mut watch = SleepWatch::default();
        let at = Duration::from_secs;
        assert!(!watch.was_asleep(at(0), UnixTime(1000)));
        assert!(!watch.was_asleep(at(3600), UnixTime(4600)), "an hour of waiting");
        assert!(!watch.was_asleep(at(3601), UnixTime(4611)), "a clock that was set a little");
        assert!(watch.was_asleep(at(3602), UnixTime(8211)));
        assert!(!watch.was_asleep(at(3603), UnixTime(8212)), "once");
        assert!(!watch.was_asleep(at(3604), UnixTime(1000)), "a clock that was set back");
    }
}
