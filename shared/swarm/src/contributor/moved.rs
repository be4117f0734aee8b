//! A contributor that moved to another backbone of the same run.
//!
//! The new backbone's parameters of the same epoch may differ. So gradients of the loaded parameters are offered first,
//! and its epochs are computed with its own parameters only.

use std::time::Duration;

use super::{Contributor, ContributorAction};
use crate::Moment;

/// How long a gradient waits for the step before its own, where the new backbone is one epoch behind the old one.
pub(super) const CATCH_UP: Duration = Duration::from_secs(2);

impl Contributor {
    /// The contributor moved to another backbone than that of the loaded parameters. Fetched parameters are dropped.
    pub fn on_moved(&mut self, now: Moment) {
        self.moved_at = self.loaded_epoch.map(|_| now);
        self.fetched_epoch = None;
    }

    /// Until when the contributor waits for the backbone's step before the epoch of its gradient.
    pub(super) fn waits_for_step(&self, now: Moment) -> Option<Moment> {
        let computed = self.loaded_epoch.filter(|_| self.accumulated > 0);
        let epoch = self.pending.map_or(computed, |pending| Some(pending.epoch))?;
        let is_one_ahead = self.run_epoch?.checked_add(1) == Some(epoch);
        let until = self.moved_at? + CATCH_UP;
        (is_one_ahead && now < until).then_some(until)
    }

    /// Offers the accumulated gradient, then fetches parameters.
    pub(super) fn next_after_move(&mut self, run_epoch: u64) -> ContributorAction {
        if self.accumulated == 0 {
            self.on_trainer_lost();
            return ContributorAction::FetchState;
        }
        let taken = self.take_gradient(run_epoch);
        self.on_trainer_lost();
        taken
    }
}
