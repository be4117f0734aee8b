//! A contributor whose backbone is another one by now, of the same run.
//!
//! That one's parameters of the same epoch may be others: none of its epochs is computed with those that are at hand, and
//! what was computed with them is offered first.

use std::time::Duration;

use super::{Action, Contributor};
use crate::Moment;

/// How long what was computed waits for the step before its own, where the backbone is one behind the one before.
pub(super) const CATCH_UP: Duration = Duration::from_secs(2);

impl Contributor {
    /// The backbone is another one than that of the parameters at hand. Those that were left aside are forgotten.
    pub fn on_moved(&mut self, now: Moment) {
        self.moved_at = self.loaded_epoch.map(|_| now);
        self.fetched_epoch = None;
    }

    /// Until when the backbone may make the step before the epoch of what is here for it.
    pub(super) fn waits_for_step(&self, now: Moment) -> Option<Moment> {
        let computed = self.loaded_epoch.filter(|_| self.accumulated > 0);
        let epoch = self.pending.map_or(computed, |pending| Some(pending.epoch))?;
        let is_one_ahead = self.run_epoch?.checked_add(1) == Some(epoch);
        let until = self.moved_at? + CATCH_UP;
        (is_one_ahead && now < until).then_some(until)
    }

    /// What was computed is offered, then parameters are fetched.
    pub(super) fn next_after_move(&mut self, run_epoch: u64) -> Action {
        if self.accumulated == 0 {
            self.on_trainer_lost();
            return Action::FetchState;
        }
        let taken = self.take_gradient(run_epoch);
        self.on_trainer_lost();
        taken
    }
}
