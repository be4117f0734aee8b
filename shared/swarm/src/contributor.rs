//! State machine of a contributor in the synchronous scheme: fetch parameters, compute, report, offer, wait.
//!
//! The tab and the native peer share it. The driver polls [`Contributor::next_action`], executes the action, and
//! reports the result. The state machine never holds a tensor; the driver's trainer does. When to dial and when to leave
//! is decided by the [`Session`], which is the same in every scheme.
//!
//! With delayed parameter updates (DeDLOC §3.2) gradients are computed with the parameters of one epoch before, so
//! that the device never waits. While the gradients of an epoch travel and are averaged, those of the next are computed with
//! the loaded parameters. The new parameters are loaded when these gradients are taken.

mod action;
mod late;
mod moved;
#[cfg(test)]
mod tests;

use std::time::Duration;

use barnraise_protocol::contribute::Report;
use barnraise_protocol::gradient::{Accepted, ContributionRefusal};

pub use self::action::ContributorAction;
pub use self::late::LateWork;
use crate::Moment;
use crate::activity::SampleCounts;
use crate::session::{Session, SessionAction};

/// A contributor that missed as many calls for its samples in one epoch, or as many steps in a row, delivers each batch
/// as soon as it has it.
const MISSED_MAX: u32 = 3;
/// Pause before a contribution is offered again that the aggregator had no slot for.
const OFFER_AGAIN: Duration = Duration::from_millis(300);
/// Pause before one is offered again that the aggregator could not store: a full disk stays full for a while, and each
/// attempt transfers the whole gradient.
const OFFER_AGAIN_TO_A_DISK: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pending {
    contribution_id: u64,
    epoch: u64,
    n_samples: u32,
    not_before: Moment,
}

/// State of a contributor.
#[derive(Debug)]
pub struct Contributor {
    contribution_samples_max: u32,
    micro_batch_size: u32,
    late_work: LateWork,
    /// Epoch of the stale gradient that is kept, to be offered by itself in a later one.
    kept_after: Option<u64>,
    /// Whether gradients may be of the parameters of the epoch before.
    is_delayed: bool,
    run_epoch: Option<u64>,
    loaded_epoch: Option<u64>,
    /// Epoch of the parameters that are fetched and not loaded yet.
    fetched_epoch: Option<u64>,
    /// When the contributor moved to another backbone than that of the parameters in the trainer.
    moved_at: Option<Moment>,
    /// Samples in the trainer's gradient, of `loaded_epoch`; of the next epoch once this one is delivered.
    accumulated: u32,
    /// Samples of the last report.
    reported: u32,
    due: bool,
    /// How many times samples were due in this epoch, and not delivered in time.
    n_calls_missed: u32,
    /// In how many steps since the last contribution that counted samples were due, and not delivered in time.
    n_steps_late: u32,
    /// All samples of this epoch were offered because they were due; the contributor waits for the next one.
    delivered: bool,
    pending: Option<Pending>,
    next_contribution_id: u64,
    samples_per_second: f32,
    /// Samples were computed since the epoch began, and none accepted.
    is_unacknowledged: bool,
    sample_counts: SampleCounts,
}

impl Contributor {
    /// A contributor that knows no epoch yet. It numbers its contributions from `first_contribution_id` on; this peer's
    /// key must not have used these numbers before.
    pub fn new(first_contribution_id: u64) -> Self {
        Self {
            contribution_samples_max: 1,
            micro_batch_size: 1,
            late_work: LateWork::Dropped,
            kept_after: None,
            is_delayed: false,
            run_epoch: None,
            loaded_epoch: None,
            fetched_epoch: None,
            moved_at: None,
            accumulated: 0,
            reported: 0,
            due: false,
            n_calls_missed: 0,
            n_steps_late: 0,
            delivered: false,
            pending: None,
            next_contribution_id: first_contribution_id,
            samples_per_second: 0.0,
            is_unacknowledged: false,
            sample_counts: SampleCounts::default(),
        }
    }

    /// The same, with what this peer did in other runs.
    #[must_use]
    pub fn with_counts(self, sample_counts: SampleCounts) -> Self {
        Self { sample_counts, ..self }
    }

    /// Id of the next contribution.
    pub fn next_contribution_id(&self) -> u64 {
        self.next_contribution_id
    }

    /// Samples and contributions so far, by outcome.
    pub fn sample_counts(&self) -> &SampleCounts {
        &self.sample_counts
    }

    /// Current epoch of the run, if known.
    pub fn run_epoch(&self) -> Option<u64> {
        self.run_epoch
    }

    /// The session is open; the sizes come from the run's description.
    pub fn on_connected(&mut self, contribution_samples_max: u32, micro_batch_size: u32) {
        self.contribution_samples_max = contribution_samples_max;
        self.micro_batch_size = micro_batch_size;
        // Reports and announcements of the last session are void.
        self.run_epoch = None;
        self.reported = 0;
        self.due = false;
        self.n_calls_missed = 0;
        self.delivered = false;
    }

    /// Whether updates are delayed.
    pub fn set_delayed(&mut self, is_delayed: bool) {
        self.is_delayed = is_delayed;
    }

    /// Whether a batch can be computed while the driver waits for something else. Its samples count for the next epoch
    /// once this one is delivered.
    pub fn computes_meanwhile(&self, session: &Session) -> bool {
        let has_room = self.accumulated + self.micro_batch_size <= self.contribution_samples_max;
        let has_room = has_room && self.moved_at.is_none();
        let is_taken = self.delivered || !self.due;
        let (Some(run_epoch), Some(loaded)) = (self.run_epoch, self.loaded_epoch) else { return false };
        let counts_for = run_epoch + u64::from(self.delivered);
        let is_fresh = loaded == counts_for || loaded + 1 == counts_for;
        self.is_delayed && session.is_at_work() && has_room && is_taken && is_fresh
    }

    /// Whether parameters of `epoch` are not to be loaded until the gradient in the trainer is taken. If so call
    /// `on_fetched`; otherwise load them and call `on_state`.
    pub fn leaves_aside(&self, epoch: u64) -> bool {
        let is_used = self.accumulated > 0 || !self.delivered;
        let is_next = self.loaded_epoch.is_some_and(|loaded| loaded + 1 == epoch);
        self.is_delayed && is_used && is_next && self.moved_at.is_none()
    }

    /// The parameters of `epoch` are fetched and not loaded yet.
    pub fn on_fetched(&mut self, epoch: u64) {
        self.fetched_epoch = Some(epoch);
        if self.run_epoch.is_some_and(|known| known < epoch) {
            self.on_epoch(epoch);
        }
    }

    /// The backbone announces the epoch to compute on, for the first time or again.
    pub fn on_epoch(&mut self, epoch: u64) {
        let is_next = self.run_epoch.is_some_and(|known| known < epoch);
        if is_next && std::mem::take(&mut self.is_unacknowledged) {
            self.sample_counts.n_steps_missed = self.sample_counts.n_steps_missed.saturating_add(1);
        }
        let n_missed = u32::from(self.due && !self.delivered);
        if is_next {
            self.n_calls_missed = 0;
            self.n_steps_late = self.n_steps_late.saturating_add(n_missed);
        } else {
            self.n_calls_missed = self.n_calls_missed.saturating_add(n_missed);
        }
        self.run_epoch = Some(epoch);
        self.due = false;
        self.delivered = false;
        self.reported = 0;
    }

    /// The backbone requests the gradients of `epoch`.
    pub fn on_due(&mut self, epoch: u64) {
        self.due |= self.run_epoch == Some(epoch);
    }

    /// The parameters of `epoch` are loaded into the trainer.
    pub fn on_state(&mut self, epoch: u64) {
        self.drop_accumulated();
        self.loaded_epoch = Some(epoch);
        self.fetched_epoch = None;
        self.moved_at = None;
        // The state may be newer than the announcement that is still on its way.
        if self.run_epoch.is_some_and(|known| known < epoch) {
            self.on_epoch(epoch);
        }
    }

    /// The trainer was replaced and is empty: its parameters and its gradient are gone.
    pub fn on_trainer_lost(&mut self) {
        self.drop_accumulated();
        self.loaded_epoch = None;
        self.fetched_epoch = None;
        self.moved_at = None;
    }

    /// A forward and backward pass over `n_samples` is done.
    pub fn on_batch(&mut self, n_samples: u32, samples_per_second: f32) {
        self.accumulated += n_samples;
        self.is_unacknowledged = true;
        self.samples_per_second = samples_per_second;
        self.sample_counts.n_samples_computed += u64::from(n_samples);
    }

    /// The gradient to offer is gone or cannot be encoded: there is nothing to offer.
    pub fn on_gradient_lost(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.sample_counts.n_samples_late += u64::from(pending.n_samples);
        }
    }

    /// The offer was cut before its answer, and there is another aggregator now: offered to it, the contribution could
    /// count twice.
    pub fn on_unanswered(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.sample_counts.n_samples_unanswered += u64::from(pending.n_samples);
        }
    }

    /// The aggregator's answer to the offer.
    pub fn on_answer(
        &mut self,
        session: &Session,
        now: Moment,
        answer: &Result<Accepted, ContributionRefusal>,
    ) {
        let Some(pending) = self.pending.take() else { return };
        match answer {
            // Counted before: the first acknowledgement was lost.
            Ok(_) | Err(ContributionRefusal::Duplicate { .. }) => {
                self.sample_counts.n_accepted += 1;
                self.sample_counts.n_steps_missed = 0;
                self.is_unacknowledged = false;
                self.n_steps_late = 0;
                self.sample_counts.n_samples_accepted += u64::from(pending.n_samples);
            }
            Err(
                refusal @ (ContributionRefusal::Busy
                | ContributionRefusal::Storage
                | ContributionRefusal::NotJoined),
            ) => {
                let pause = match refusal {
                    ContributionRefusal::Storage if !session.is_stopping() => OFFER_AGAIN_TO_A_DISK,
                    _ => OFFER_AGAIN,
                };
                self.pending = Some(Pending { not_before: now + pause, ..pending });
            }
            Err(refusal) => {
                let is_late = matches!(refusal, ContributionRefusal::Epoch { .. });
                self.n_steps_late = if is_late { self.n_steps_late.saturating_add(1) } else { 0 };
                if is_late {
                    self.sample_counts.n_samples_late += u64::from(pending.n_samples);
                }
                self.sample_counts.n_refused += 1;
                *self.sample_counts.refusals.entry(refusal.kind()).or_default() += 1;
                self.sample_counts.last_refusal = Some(refusal.to_string());
            }
        }
    }

    /// Next action of the driver. Poll it again after each action and each event.
    pub fn next_action(&mut self, session: &mut Session, now: Moment) -> ContributorAction {
        let is_done = self.pending.is_none() && self.accumulated == 0 && self.kept_after.is_none();
        match session.next_action(now, is_done) {
            Some(SessionAction::Connect) => return ContributorAction::Connect,
            Some(SessionAction::Wait(until)) => return ContributorAction::Wait(until),
            Some(SessionAction::Leave) => return self.leave(session),
            None => {}
        }
        let silence = ContributorAction::Wait(session.silent_at());
        if self.fetched_epoch.is_some() && self.fetched_epoch == self.run_epoch && self.is_free() {
            return ContributorAction::LoadState;
        }
        if let Some(until) = self.waits_for_step(now) {
            return ContributorAction::Wait(Some(until));
        }
        match self.pending {
            Some(pending) if now < pending.not_before => {
                return ContributorAction::Wait(Some(pending.not_before));
            }
            Some(_) => return ContributorAction::Offer,
            None => {}
        }
        let Some(run_epoch) = self.run_epoch else { return silence };
        if let Some(action) = self.name_late(run_epoch) {
            return action;
        }
        let is_one_behind = self.is_one_behind();
        if self.loaded_epoch != Some(run_epoch) && !is_one_behind {
            let is_stopping = session.is_stopping();
            // There will be no next contribution.
            let is_of_use = !is_stopping || self.late_work == LateWork::ByItself;
            return match self.keep_late().filter(|_| is_of_use) {
                Some(action) => action,
                None if is_stopping => self.leave(session),
                None => ContributorAction::FetchState,
            };
        }
        if self.moved_at.is_some() {
            return self.next_after_move(run_epoch);
        }
        // Reports and gradients that the backbone waits for go first.
        let is_waited_for =
            !self.delivered && (self.due || self.is_overdue() || self.reported != self.accumulated);
        if is_one_behind && self.fetched_epoch != Some(run_epoch) && !is_waited_for && !session.is_stopping()
        {
            return ContributorAction::FetchState;
        }
        self.next_in_epoch(run_epoch, session.is_stopping(), silence)
    }

    /// Whether gradients of the loaded parameters count for the epoch after theirs.
    fn is_one_behind(&self) -> bool {
        let (run, loaded) = (self.run_epoch, self.loaded_epoch);
        self.is_delayed && run.zip(loaded).is_some_and(|(run, loaded)| loaded + 1 == run)
    }

    /// Whether all gradients of the epoch are taken from the trainer.
    fn is_free(&self) -> bool {
        self.accumulated == 0 && self.delivered
    }

    fn next_in_epoch(
        &mut self,
        epoch: u64,
        is_stopping: bool,
        silence: ContributorAction,
    ) -> ContributorAction {
        let full = self.accumulated + self.micro_batch_size > self.contribution_samples_max;
        let is_called_for = (self.due || self.is_overdue() || full) && !self.delivered;
        if self.accumulated > 0 && (is_called_for || is_stopping) {
            return self.take_gradient(epoch);
        }
        if self.due || self.delivered {
            self.delivered = true;
            return silence;
        }
        if self.reported != self.accumulated {
            self.reported = self.accumulated;
            return ContributorAction::SendReport(Report {
                epoch,
                contribution_id: self.next_contribution_id,
                n_samples: self.accumulated,
                samples_per_second: self.samples_per_second,
            });
        }
        ContributorAction::ComputeBatch
    }

    /// Whether the gradients are delivered after the batch though they are not due: rounds do not wait long enough.
    fn is_overdue(&self) -> bool {
        self.n_calls_missed.max(self.n_steps_late) >= MISSED_MAX
    }

    fn take_gradient(&mut self, epoch: u64) -> ContributorAction {
        let contribution_id = self.next_contribution_id;
        let n_samples = std::mem::take(&mut self.accumulated);
        self.next_contribution_id += 1;
        self.reported = 0;
        self.n_calls_missed = 0;
        self.delivered = self.due;
        self.pending = Some(Pending { contribution_id, epoch, n_samples, not_before: Moment::ZERO });
        ContributorAction::TakeGradient { contribution_id, epoch, n_samples }
    }

    fn drop_accumulated(&mut self) {
        self.sample_counts.n_samples_late += u64::from(std::mem::take(&mut self.accumulated));
    }

    fn leave(&mut self, session: &mut Session) -> ContributorAction {
        session.on_left();
        self.drop_accumulated();
        self.pending = None;
        self.kept_after = None;
        self.loaded_epoch = None;
        self.fetched_epoch = None;
        self.moved_at = None;
        self.run_epoch = None;
        ContributorAction::Leave
    }
}
