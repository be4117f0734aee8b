//! Gradients that came too late for their epoch.

use super::{Action, Contributor, Pending};
use crate::Moment;

/// What becomes of gradients whose epoch is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateWork {
    /// They are lost.
    Dropped,
    /// They come with the next contribution.
    WithNext,
    /// They are offered as they are in a later epoch.
    ByItself,
}

impl Contributor {
    /// What becomes of gradients whose epoch is over; they are lost unless something else is said.
    pub fn set_late_work(&mut self, late_work: LateWork) {
        self.late_work = late_work;
    }

    /// A gradient that came too late for `epoch` is kept as it is: a later one has it offered.
    pub fn on_kept(&mut self, epoch: u64) {
        self.kept_after = Some(epoch);
    }

    /// What was kept is named, and so many of its samples count.
    pub fn on_late(&mut self, contribution_id: u64, epoch: u64, n_samples: u32) {
        self.pending = Some(Pending { contribution_id, epoch, n_samples, not_before: Moment::ZERO });
    }

    /// What was accumulated for an epoch that is over, where that is of use.
    pub(super) fn keep_late(&mut self) -> Option<Action> {
        let epoch =
            self.loaded_epoch.filter(|_| self.late_work != LateWork::Dropped && self.accumulated > 0)?;
        let n_samples = self.accumulated;
        self.drop_accumulated();
        Some(Action::KeepLate { epoch, n_samples })
    }

    /// What is kept as it is goes into the first epoch after its own. Where the run went back behind that, it was for
    /// another model.
    pub(super) fn name_late(&mut self, run_epoch: u64) -> Option<Action> {
        let over = self.kept_after.filter(|&over| over != run_epoch)?;
        self.kept_after = None;
        (run_epoch > over).then(|| {
            let contribution_id = self.next_contribution_id;
            self.next_contribution_id += 1;
            Action::NameLate { contribution_id, epoch: run_epoch }
        })
    }
}
