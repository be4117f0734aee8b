//! Stale gradients: too late for their epoch.

use super::{Contributor, ContributorAction, Pending};
use crate::Moment;

/// Handling of stale gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateWork {
    /// They are lost.
    Dropped,
    /// They are added to the next contribution.
    WithNext,
    /// They are offered by themselves in a later epoch.
    ByItself,
}

impl Contributor {
    /// Sets the handling of stale gradients; by default they are lost.
    pub fn set_late_work(&mut self, late_work: LateWork) {
        self.late_work = late_work;
    }

    /// A gradient that came too late for `epoch` is kept, to be offered by itself in a later one.
    pub fn on_kept(&mut self, epoch: u64) {
        self.kept_after = Some(epoch);
    }

    /// The kept gradient is prepared under this id; `n_samples` of its samples count.
    pub fn on_late(&mut self, contribution_id: u64, epoch: u64, n_samples: u32) {
        self.pending = Some(Pending { contribution_id, epoch, n_samples, not_before: Moment::ZERO });
    }

    /// Whether the trainer has a gradient that nobody will ask for: its epoch is over, and stale gradients are lost.
    pub fn has_lost_gradient(&self) -> bool {
        let is_over = self.run_epoch != self.loaded_epoch && !self.is_one_behind();
        is_over && self.run_epoch.is_some() && self.late_work == LateWork::Dropped && self.accumulated > 0
    }

    /// Takes the gradient of an epoch that is over out of the trainer, where stale gradients are used.
    pub(super) fn keep_late(&mut self) -> Option<ContributorAction> {
        let epoch =
            self.loaded_epoch.filter(|_| self.late_work != LateWork::Dropped && self.accumulated > 0)?;
        let n_samples = self.accumulated;
        self.drop_accumulated();
        Some(ContributorAction::KeepLate { epoch, n_samples })
    }

    /// The kept gradient goes into the first epoch after its own. If the run went back to an earlier epoch it is
    /// dropped: it was of another model.
    pub(super) fn name_late(&mut self, run_epoch: u64) -> Option<ContributorAction> {
        let over = self.kept_after.filter(|&over| over != run_epoch)?;
        self.kept_after = None;
        (run_epoch > over).then(|| {
            let contribution_id = self.next_contribution_id;
            self.next_contribution_id += 1;
            ContributorAction::NameLate { contribution_id, epoch: run_epoch }
        })
    }
}
