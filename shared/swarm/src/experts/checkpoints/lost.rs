//! Which files of experts a host deletes: those of places that another host has, once a newer state was had from other peers.
//! Nothing of a place is deleted that this host may have again, and nothing newer than what was found elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::experts::ExpertPlace;

use super::CheckpointVersion;
use crate::Moment;

/// From the loss of a place to the first check of its file, and from one check to the next: its new host has given checkpoints to
/// keepers by then.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// A file that is to be compared with what other peers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostCheck {
    /// Of whose expert.
    pub place: ExpertPlace,
    number: u64,
}

/// Files of places that this host does not serve.
#[derive(Debug, Default)]
pub struct LostExperts {
    due: BTreeMap<ExpertPlace, Moment>,
    /// One at a time.
    under_way: Option<LostCheck>,
    n_checks: u64,
}

impl LostExperts {
    /// There is a file of a place that is not served here, or no longer.
    pub fn on_lost(&mut self, now: Moment, place: ExpertPlace) {
        self.due.insert(place, now + CHECK_INTERVAL);
    }

    /// A place is served here. What is found about its file counts no more.
    pub fn on_held(&mut self, place: &ExpertPlace) {
        self.due.remove(place);
        if self.under_way.is_some_and(|check| check.place == *place) {
            self.under_way = None;
        }
    }

    /// The next file to check at `now`: then [`Self::on_checked`].
    pub fn next_check(&mut self, now: Moment) -> Option<LostCheck> {
        if self.under_way.is_some() {
            return None;
        }
        let due = self.due.iter().filter(|(_, due)| **due <= now);
        let place = due.min_by_key(|(_, due)| **due).map(|(place, _)| *place)?;
        self.due.insert(place, now + CHECK_INTERVAL);
        self.n_checks += 1;
        let check = LostCheck { place, number: self.n_checks };
        self.under_way = Some(check);
        Some(check)
    }

    /// When to call [`Self::next_check`].
    pub fn next_deadline(&self) -> Option<Moment> {
        if self.under_way.is_some() { None } else { self.due.values().min().copied() }
    }

    /// A file was compared with the newest state that other peers gave, where another host has the place: `(own, elsewhere)`.
    /// Returns whether the file is to be deleted.
    pub fn on_checked(
        &mut self,
        check: LostCheck,
        versions: Option<(CheckpointVersion, CheckpointVersion)>,
    ) -> bool {
        if self.under_way != Some(check) {
            return false;
        }
        self.under_way = None;
        let is_deleted = versions.is_some_and(|(own, elsewhere)| elsewhere > own);
        if is_deleted {
            self.due.remove(&check.place);
        }
        is_deleted
    }
}
