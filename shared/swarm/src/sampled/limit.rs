//! How far the run can be, by this peer's own clock.
//!
//! Keys cost nothing, so that no number of peers proves a round. Time does: a round that passes faster than rounds passed of late is
//! left aside, however many tell of it. Honest rounds may be some times as fast as before at once.

use std::time::Duration;

use barnraise_protocol::sampled::ROUND_MAX;

use crate::Moment;

/// Rounds that are believed in the time of one, or of the estimate where that is shorter.
const HASTE: u32 = 4;
/// Rounds that are believed in the time of the estimate, however fast rounds have been.
const ROUNDS_PER_ESTIMATE_MAX: u32 = 16;

/// Rounds that a peer takes part in in the time of the estimate: half of those that are believed, or who once was too late would
/// never believe those who are quick again.
const ROUNDS_PER_ESTIMATE: u32 = ROUNDS_PER_ESTIMATE_MAX / 2;

/// Rounds over which their mean time is taken, and twice as many at most: a run that was slow for days may be quick from now on.
const MEAN_ROUNDS: u64 = 64;

/// A round that takes longer than so many of those before, or of the estimate, counts as that: the run stood still.
const STANDSTILL: u32 = 4;

/// How long a round takes at least.
pub(super) fn shortest_round(estimate: Duration) -> Duration {
    estimate / ROUNDS_PER_ESTIMATE
}

/// How long rounds take, by those in which this peer was active.
#[derive(Debug, Default)]
pub(super) struct RoundPace {
    /// The last round, and when it was.
    last: Option<(u64, Moment)>,
    /// The time of all rounds.
    elapsed: Duration,
    /// Round and `elapsed` since which the mean is taken.
    since: Option<(u64, Duration)>,
    /// Since which it is taken next.
    next: Option<(u64, Duration)>,
    mean: Option<Duration>,
}

impl RoundPace {
    /// The mean time of the last rounds; `None` as long as this peer was in one alone.
    pub(super) fn mean(&self) -> Option<Duration> {
        self.mean
    }

    /// This peer is active in a round, its latest. `estimate` is how long one was estimated to take.
    pub(super) fn on_active(&mut self, now: Moment, round: u64, estimate: Duration) {
        let (last, at) = self.last.unwrap_or((round, now));
        let n_rounds = u32::try_from(round.saturating_sub(last)).unwrap_or(u32::MAX);
        let longest = self.mean.unwrap_or_default().max(estimate).saturating_mul(STANDSTILL);
        let took = now.saturating_sub(at).min(longest.saturating_mul(n_rounds));
        if round >= last {
            self.last = Some((round, now));
        }
        self.elapsed = self.elapsed.saturating_add(took);
        let now = self.elapsed;
        let (first, at) = *self.since.get_or_insert((round, now));
        let (next, _) = *self.next.get_or_insert((round, now));
        if round.saturating_sub(next) >= MEAN_ROUNDS {
            self.since = self.next.replace((round, now));
        }
        let n_rounds = round.checked_sub(first).and_then(|n_rounds| u32::try_from(n_rounds).ok());
        if let Some(n_rounds) = n_rounds.filter(|n_rounds| *n_rounds > 0) {
            self.mean = Some(now.saturating_sub(at) / n_rounds);
        }
    }
}

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

    /// Time has passed.
    ///
    /// - `mean`: how long rounds took of late. `None` where this peer does not know: they may be as fast as any, or a peer that the
    ///   run is ahead of would never find it again
    /// - `estimate`: how long one was estimated to take
    pub(super) fn on_time(&mut self, now: Moment, mean: Option<Duration>, estimate: Duration) {
        let Some((round, at)) = &mut self.reached else { return };
        let fastest = (estimate / ROUNDS_PER_ESTIMATE_MAX).max(Duration::from_nanos(1));
        let each = mean.map_or(fastest, |mean| (mean.min(estimate) / HASTE).max(fastest)).as_nanos();
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
