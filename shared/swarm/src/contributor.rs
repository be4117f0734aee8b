//! What a contributor does next: dial, fetch parameters, compute, report, offer, wait, leave.
//!
//! The same for the tab and the native peer. The driver asks [`Contributor::next_action`], does it, and
//! says how it went. It never holds a tensor; the driver's trainer does.
//!
//! With delayed updates (DeDLOC §3.2, delayed parameter updates) gradients are those of the parameters of one epoch
//! before, so that the device never waits: while the gradients of an epoch travel and are averaged, those of the
//! next are computed with the parameters that are at hand, and the new ones are put to use when these are taken.

mod action;
mod late;
mod moved;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::contribute::Report;
use barnraise_protocol::gradient::{Accepted, Refusal};

pub use self::action::Action;
pub use self::late::LateWork;
use crate::Moment;
use crate::backoff::Backoff;
use crate::rhythm::Rhythm;

/// A backbone that says nothing for so long is taken for dead: it reports progress every second. Where the run has
/// others, one that usually keeps to that is given up sooner ([`Rhythm`]).
pub const SILENCE_MAX: Duration = Duration::from_secs(8);
/// How long a connection has to show that it lasted, where the device woke up or its network is another one.
pub const PROOF_MAX: Duration = Duration::from_secs(3);
/// How long a contributor that was told to stop tries to deliver what it has finished.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Why a connection on which nothing comes is left.
pub const GONE_SILENT: &str = "the backbone has gone silent";
/// Pause before a contribution is offered again that the aggregator had no room for.
const OFFER_AGAIN: Duration = Duration::from_millis(300);
/// Pause before one is offered again that it could not store: a disk that is full is so for a while, and what was pulled
/// of it in vain may be much.
const OFFER_AGAIN_TO_A_DISK: Duration = Duration::from_secs(5);

/// Whether the person wants to contribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Nothing,
    Contribute,
    Stop { deadline: Moment },
}

#[derive(Debug, Clone, PartialEq)]
enum Link {
    Down {
        retry_at: Moment,
        reason: Option<String>,
    },
    Up {
        rhythm: Rhythm,
        /// Until then it has to show that it lasted.
        proof_by: Option<Moment>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pending {
    contribution_id: u64,
    epoch: u64,
    n_samples: u32,
    not_before: Moment,
}

/// What became of the samples so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Forward and backward passes times their samples.
    pub n_samples_computed: u64,
    /// Samples of accepted contributions.
    pub n_samples_accepted: u64,
    /// Samples whose epoch ended before they could be offered or while they were, those included that came with
    /// a later contribution.
    pub n_samples_late: u64,
    /// Accepted contributions.
    pub n_accepted: u64,
    /// Refused contributions.
    pub n_refused: u64,
    /// The same by reason ([`Refusal::kind`]).
    pub refusals: BTreeMap<&'static str, u64>,
    /// Newest reason of a refusal.
    pub last_refusal: Option<String>,
    /// Steps in a row that were made without what was computed for them here.
    pub n_steps_missed: u32,
}

/// A contributor's decisions.
#[derive(Debug)]
pub struct Contributor {
    wanted: Wanted,
    link: Link,
    backoff: Backoff,
    contribution_samples_max: u32,
    micro_batch_size: u32,
    late_work: LateWork,
    /// The epoch that is over for what is kept as it is: it is offered in a later one.
    kept_after: Option<u64>,
    /// Whether gradients may be of the parameters of the epoch before.
    is_delayed: bool,
    run_epoch: Option<u64>,
    loaded_epoch: Option<u64>,
    /// Of the parameters that were left aside.
    fetched_epoch: Option<u64>,
    /// Since when the backbone is another one than that of the parameters in the trainer.
    moved_at: Option<Moment>,
    /// Samples in the trainer's gradient, of `loaded_epoch`. Those of the next epoch where this one is delivered.
    accumulated: u32,
    /// What was reported last.
    reported: u32,
    due: bool,
    /// Everything of this epoch was offered because it was due; the next one is awaited.
    delivered: bool,
    pending: Option<Pending>,
    next_contribution_id: u64,
    samples_per_second: f32,
    has_others: bool,
    /// Something was computed since the epoch began, and nothing accepted.
    is_unheard: bool,
    tally: Tally,
}

impl Contributor {
    /// A contributor that wants nothing yet. It counts its contributions from `first_contribution_id` on, and this peer's
    /// key must have used none of these before; `seed` decides the jitter of reconnections.
    pub fn new(first_contribution_id: u64, seed: u64) -> Self {
        Self {
            wanted: Wanted::Nothing,
            link: Link::Down { retry_at: Moment::ZERO, reason: None },
            backoff: Backoff::new(seed),
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
            delivered: false,
            pending: None,
            next_contribution_id: first_contribution_id,
            samples_per_second: 0.0,
            has_others: false,
            is_unheard: false,
            tally: Tally::default(),
        }
    }

    /// What became of the samples so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The epoch that the run is at, as far as is known.
    pub fn run_epoch(&self) -> Option<u64> {
        self.run_epoch
    }

    /// Why there is no connection, and when the next try is, where that is so.
    pub fn down(&self) -> Option<(Moment, Option<&str>)> {
        match &self.link {
            Link::Down { retry_at, reason } => Some((*retry_at, reason.as_deref())),
            Link::Up { .. } => None,
        }
    }

    /// Whether the contributor has been told to stop and is delivering what it has.
    pub fn is_stopping(&self) -> bool {
        matches!(self.wanted, Wanted::Stop { .. })
    }

    /// Contribute from now on.
    pub fn start(&mut self, now: Moment) {
        self.wanted = Wanted::Contribute;
        if let Link::Down { retry_at, .. } = &mut self.link {
            *retry_at = now;
        }
    }

    /// Deliver what is finished, then leave.
    pub fn stop(&mut self, now: Moment) {
        if self.wanted == Wanted::Contribute {
            self.wanted = Wanted::Stop { deadline: now + STOP_TIMEOUT };
        }
    }

    /// The session is open; the sizes come from the run's description.
    pub fn on_connected(&mut self, now: Moment, contribution_samples_max: u32, micro_batch_size: u32) {
        self.link = Link::Up { rhythm: Rhythm::new(now), proof_by: None };
        self.contribution_samples_max = contribution_samples_max;
        self.micro_batch_size = micro_batch_size;
        // What was reported and announced died with the last session.
        self.run_epoch = None;
        self.reported = 0;
        self.due = false;
        self.delivered = false;
    }

    /// Whether updates are delayed.
    pub fn set_delayed(&mut self, is_delayed: bool) {
        self.is_delayed = is_delayed;
    }

    /// Whether a batch can be computed while something else is waited for. Its samples count for the next epoch
    /// where this one is delivered.
    pub fn computes_meanwhile(&self) -> bool {
        let has_room = self.accumulated + self.micro_batch_size <= self.contribution_samples_max;
        let has_room = has_room && self.moved_at.is_none();
        let is_taken = self.delivered || !self.due;
        let is_at_work = self.wanted == Wanted::Contribute && matches!(self.link, Link::Up { .. });
        let (Some(run_epoch), Some(loaded)) = (self.run_epoch, self.loaded_epoch) else { return false };
        let counts_for = run_epoch + u64::from(self.delivered);
        let is_fresh = loaded == counts_for || loaded + 1 == counts_for;
        self.is_delayed && is_at_work && has_room && is_taken && is_fresh
    }

    /// Whether parameters of `epoch` are to be left aside until the gradient in the trainer is taken: then
    /// `on_fetched`, otherwise they go into the trainer, and `on_state` follows.
    pub fn leaves_aside(&self, epoch: u64) -> bool {
        let is_used = self.accumulated > 0 || !self.delivered;
        let is_next = self.loaded_epoch.is_some_and(|loaded| loaded + 1 == epoch);
        self.is_delayed && is_used && is_next && self.moved_at.is_none()
    }

    /// The parameters of `epoch` are at hand.
    pub fn on_fetched(&mut self, epoch: u64) {
        self.fetched_epoch = Some(epoch);
        if self.run_epoch.is_some_and(|known| known < epoch) {
            self.on_epoch(epoch);
        }
    }

    /// The connection broke or could not be made.
    pub fn on_disconnected(&mut self, now: Moment, reason: String) {
        let retry_at = now + self.backoff.next_delay();
        self.link = Link::Down { retry_at, reason: Some(reason) };
    }

    /// The device was asleep, or its network is another one. What waits to be tried again is tried at once, without
    /// what was learned from failures. A connection has [`PROOF_MAX`] to show that it lasted; after a sleep
    /// (`was_asleep`) the other side has given it up, and it is lost: returns whether there is none.
    pub fn on_woke(&mut self, now: Moment, was_asleep: bool) -> bool {
        self.backoff.reset();
        match &mut self.link {
            Link::Down { retry_at, .. } => *retry_at = now,
            Link::Up { proof_by, .. } if !was_asleep => *proof_by = Some(now + PROOF_MAX),
            Link::Up { .. } => {
                self.link = Link::Down { retry_at: now, reason: Some("the device was asleep".to_owned()) };
            }
        }
        matches!(self.link, Link::Down { .. })
    }

    /// The session is to be begun anew on the same connection, as what this peer is by now.
    pub fn rejoin(&mut self, now: Moment) {
        if matches!(self.link, Link::Up { .. }) {
            self.link = Link::Down { retry_at: now, reason: None };
        }
    }

    /// The backbone said something.
    pub fn on_heard(&mut self, now: Moment) {
        if let Link::Up { rhythm, proof_by } = &mut self.link {
            rhythm.on_heard(now);
            *proof_by = None;
        }
    }

    /// Bytes came from the backbone, of a message that is not all here.
    pub fn on_sign(&mut self, now: Moment) {
        if let Link::Up { rhythm, proof_by } = &mut self.link {
            rhythm.on_sign(now);
            *proof_by = None;
        }
    }

    /// This contributor itself stood still for so long until now: it heard nothing of what was said.
    pub fn on_deaf(&mut self, now: Moment, deaf: Duration) {
        if let Link::Up { rhythm, proof_by } = &mut self.link {
            rhythm.on_deaf(now, deaf);
            *proof_by = proof_by.map(|by| by + deaf);
        }
    }

    /// Whether the run has other backbones, to which it pays to move soon.
    pub fn set_others(&mut self, has_others: bool) {
        self.has_others = has_others;
    }

    /// Whether the backbone has said nothing for too long.
    pub fn is_silent(&self, now: Moment) -> bool {
        self.silent_at().is_some_and(|at| at <= now)
    }

    fn silent_at(&self) -> Option<Moment> {
        let Link::Up { rhythm, proof_by } = &self.link else { return None };
        let at = match self.has_others {
            true => rhythm.silent_at(SILENCE_MAX),
            false => rhythm.heard_at() + SILENCE_MAX,
        };
        Some(proof_by.map_or(at, |by| at.min(by)))
    }

    /// The backbone says which epoch is to be computed, for the first time or again.
    pub fn on_epoch(&mut self, epoch: u64) {
        let is_next = self.run_epoch.is_some_and(|known| known < epoch);
        if is_next && std::mem::take(&mut self.is_unheard) {
            self.tally.n_steps_missed = self.tally.n_steps_missed.saturating_add(1);
        }
        self.run_epoch = Some(epoch);
        self.due = false;
        self.delivered = false;
        self.reported = 0;
        self.backoff.reset();
    }

    /// The backbone says that the gradients of `epoch` are due.
    pub fn on_due(&mut self, epoch: u64) {
        self.due |= self.run_epoch == Some(epoch);
    }

    /// The parameters of `epoch` are in the trainer.
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
        self.is_unheard = true;
        self.samples_per_second = samples_per_second;
        self.tally.n_samples_computed += u64::from(n_samples);
    }

    /// The gradient that was to be taken is gone or cannot be sent: there is nothing to offer.
    pub fn on_gradient_lost(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.tally.n_samples_late += u64::from(pending.n_samples);
        }
    }

    /// The aggregator's answer to the offer.
    pub fn on_answer(&mut self, now: Moment, answer: &Result<Accepted, Refusal>) {
        let Some(pending) = self.pending.take() else { return };
        match answer {
            // Counted before: the first acknowledgement was lost.
            Ok(_) | Err(Refusal::Duplicate { .. }) => {
                self.tally.n_accepted += 1;
                self.tally.n_steps_missed = 0;
                self.is_unheard = false;
                self.tally.n_samples_accepted += u64::from(pending.n_samples);
            }
            Err(refusal @ (Refusal::Busy | Refusal::Storage | Refusal::NotJoined)) => {
                let is_stopping = matches!(self.wanted, Wanted::Stop { .. });
                let pause = match refusal {
                    Refusal::Storage if !is_stopping => OFFER_AGAIN_TO_A_DISK,
                    _ => OFFER_AGAIN,
                };
                self.pending = Some(Pending { not_before: now + pause, ..pending });
            }
            Err(refusal) => {
                if matches!(refusal, Refusal::Epoch { .. }) {
                    self.tally.n_samples_late += u64::from(pending.n_samples);
                }
                self.tally.n_refused += 1;
                *self.tally.refusals.entry(refusal.kind()).or_default() += 1;
                self.tally.last_refusal = Some(refusal.to_string());
            }
        }
    }

    /// What to do next. Ask again after each thing done and whenever something was heard.
    pub fn next_action(&mut self, now: Moment) -> Action {
        if self.wanted == Wanted::Nothing {
            return Action::Wait(None);
        }
        if let Wanted::Stop { deadline } = self.wanted {
            let nothing_left = self.pending.is_none() && self.accumulated == 0 && self.kept_after.is_none();
            if nothing_left || now >= deadline {
                return self.leave();
            }
        }
        match self.link {
            Link::Down { retry_at, .. } if now >= retry_at => return Action::Connect,
            Link::Down { retry_at, .. } => return Action::Wait(Some(retry_at)),
            Link::Up { .. } => {}
        }
        if self.is_silent(now) {
            self.on_disconnected(now, GONE_SILENT.into());
            return self.next_action(now);
        }
        let silence = Action::Wait(self.silent_at());
        if self.fetched_epoch.is_some() && self.fetched_epoch == self.run_epoch && self.is_free() {
            return Action::LoadState;
        }
        if let Some(until) = self.waits_for_step(now) {
            return Action::Wait(Some(until));
        }
        match self.pending {
            Some(pending) if now < pending.not_before => return Action::Wait(Some(pending.not_before)),
            Some(_) => return Action::Offer,
            None => {}
        }
        let Some(run_epoch) = self.run_epoch else { return silence };
        if let Some(action) = self.name_late(run_epoch) {
            return action;
        }
        let is_one_behind =
            self.is_delayed && self.loaded_epoch.is_some_and(|loaded| loaded + 1 == run_epoch);
        if self.loaded_epoch != Some(run_epoch) && !is_one_behind {
            let is_stopping = self.is_stopping();
            // There is no next contribution any more.
            let is_of_use = !is_stopping || self.late_work == LateWork::ByItself;
            return match self.keep_late().filter(|_| is_of_use) {
                Some(action) => action,
                None if is_stopping => self.leave(),
                None => Action::FetchState,
            };
        }
        if self.moved_at.is_some() {
            return self.next_after_move(run_epoch);
        }
        // What others wait for goes first.
        let is_waited_for = !self.delivered && (self.due || self.reported != self.accumulated);
        if is_one_behind && self.fetched_epoch != Some(run_epoch) && !is_waited_for && !self.is_stopping() {
            return Action::FetchState;
        }
        self.next_in_epoch(run_epoch, silence)
    }

    /// Whether everything that was computed for the epoch is taken from the trainer.
    fn is_free(&self) -> bool {
        self.accumulated == 0 && self.delivered
    }

    fn next_in_epoch(&mut self, epoch: u64, silence: Action) -> Action {
        let full = self.accumulated + self.micro_batch_size > self.contribution_samples_max;
        let is_called_for = (self.due || full) && !self.delivered;
        if self.accumulated > 0 && (is_called_for || self.is_stopping()) {
            return self.take_gradient(epoch);
        }
        if self.due || self.delivered {
            self.delivered = true;
            return silence;
        }
        if self.reported != self.accumulated {
            self.reported = self.accumulated;
            return Action::SendReport(Report {
                epoch,
                n_samples: self.accumulated,
                samples_per_second: self.samples_per_second,
            });
        }
        Action::ComputeBatch
    }

    fn take_gradient(&mut self, epoch: u64) -> Action {
        let contribution_id = self.next_contribution_id;
        let n_samples = std::mem::take(&mut self.accumulated);
        self.next_contribution_id += 1;
        self.reported = 0;
        self.delivered = self.due;
        self.pending = Some(Pending { contribution_id, epoch, n_samples, not_before: Moment::ZERO });
        Action::TakeGradient { contribution_id, epoch, n_samples }
    }

    fn drop_accumulated(&mut self) {
        self.tally.n_samples_late += u64::from(std::mem::take(&mut self.accumulated));
    }

    fn leave(&mut self) -> Action {
        self.drop_accumulated();
        self.pending = None;
        self.kept_after = None;
        self.wanted = Wanted::Nothing;
        self.link = Link::Down { retry_at: Moment::ZERO, reason: None };
        self.loaded_epoch = None;
        self.fetched_epoch = None;
        self.moved_at = None;
        self.run_epoch = None;
        Action::Leave
    }
}
