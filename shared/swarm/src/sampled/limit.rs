//! How far the run can be, by this peer's own clock.
//!
//! Keys cost nothing, so that no number of peers proves a round. Time does: a round that passes faster than rounds passed so far is
//! left aside, however many tell of it. Honest rounds may be some times as fast as before at once.

use std::time::Duration;

use barnraise_protocol::sampled::ROUND_MAX;

use crate::Moment;

/// Rounds that are believed in the time of one, or of the estimate where that is shorter.
const HASTE: u32 = 4;
/// Rounds that are believed in the time of the estimate, however fast rounds have been.
const ROUNDS_PER_ESTIMATE_MAX: u32 = 16;

/// The latest round that rounds of the fastest speed reach. The run is believed to be a leap beyond it at most.
#[derive(Debug, Default)]
pub(super) struct RoundLimit {
    /// With the moment that it is of. None as long as this peer knows no round of its own.
    reached: Option<(u64, Moment)>,
}

impl RoundLimit {
    pub(super) fn round(&self) -> Option<u64> {
        self.reached.map(|(round, _)| round)
    }

    /// Where the peer knows no round yet: it begins here.
    pub(super) fn begin(&mut self, now: Moment, round: u64) {
        self.reached.get_or_insert((round.min(ROUND_MAX), now));
    }

    /// Those whom this peer trusts are there.
    pub(super) fn raise(&mut self, now: Moment, round: u64) {
        if self.reached.is_none_or(|(reached, _)| reached < round) {
            self.reached = Some((round.min(ROUND_MAX), now));
        }
    }

    /// Time has passed. Rounds took this long in the mean, and were estimated to take that long.
    pub(super) fn on_time(&mut self, now: Moment, mean: Duration, estimate: Duration) {
        let Some((round, at)) = &mut self.reached else { return };
        let fastest = (estimate / ROUNDS_PER_ESTIMATE_MAX).max(Duration::from_nanos(1));
        let each = (mean.min(estimate) / HASTE).max(fastest).as_nanos();
        let elapsed = now.saturating_sub(*at).as_nanos();
        let n_rounds = u64::try_from(elapsed / each).unwrap_or(u64::MAX);
        *round = round.saturating_add(n_rounds).min(ROUND_MAX);
        let rest = Duration::from_nanos(u64::try_from(elapsed % each).unwrap_or_default());
        *at = now.saturating_sub(rest).max(*at);
    }

    /// This peer is active in a round, its latest. What the run did not use of its time is no credit for later.
    pub(super) fn on_active(&mut self, now: Moment, round: u64) {
        if self.reached.is_none_or(|(reached, _)| round < reached) {
            self.reached = Some((round.min(ROUND_MAX), now));
        }
    }
}

#[cfg(test)]
mod tests;
