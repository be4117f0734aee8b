//! A trainer has the experts of one layer compute for one batch, and steps them (Learning@home §3.1).
//!
//! Forward: each expert that was chosen for some rows is asked for all of them at once. Where a host is busy, late or gone,
//! another replica is asked while there is time; after that the expert is left out for its rows, and the caller renormalizes
//! the weights of those that answered. Answers that no expert gives are refused, and their host is left alone.
//!
//! Backward: an expert that answered gets its gradients at the same host, once. A request that may have been lost is repeated
//! with its id, until the host says that it has counted it. Where no gradient of the input came, it is zero.
//!
//! A [`HostBook`] is shared by all batches of a trainer, of which many are in flight. After each event of any of them, the driver
//! drains [`ExpertCalls::poll_action`] of all, the oldest first: one that ends makes room for others.
//!
//! No tensor is kept here: the driver gathers the rows of a call, and adds up what came.

mod answers;
#[cfg(test)]
mod fuzz;
mod hosts;
mod phase;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub use self::answers::{GRADIENT_RATIO_MAX, MEDIAN_RATIO_MAX, OUTPUT_RATIO_MAX};
pub use self::hosts::{HOSTS_MAX, HostBook, HostBookLimits};
use super::ExpertPass;
use super::serving::ServingRefusal;
use crate::{Moment, PeerKey};

/// Most hosts of an expert that are asked.
pub const REPLICAS_MAX: usize = 8;
/// Most times that a pass of a call is sent. A host that was busy does not count.
const ATTEMPTS_MAX: u32 = 6;
/// Most times that a call is cut since its host takes fewer rows at once, and most parts each time: a host that took a row at a time
/// would cost more than it gives.
const CUTS_MAX: u32 = 2;
const CUT_MAX: u64 = 8;

/// How calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSettings {
    /// Values of a row that an expert takes.
    pub input_values: usize,
    /// Values of a row that an expert gives.
    pub output_values: usize,
    /// Rows of one request; more are several.
    pub request_rows_max: usize,
    /// Time for all experts to answer.
    pub forward_time: Duration,
    /// Time for all of them to step. Below [`super::serving::WAIT_MAX`].
    pub backward_time: Duration,
}

/// An expert that the gating function has chosen for some rows of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertChoice {
    /// Its place on the grid.
    pub expert: u32,
    /// Where it is hosted, the best first. Those beyond [`REPLICAS_MAX`] are not asked.
    pub hosts: Vec<PeerKey>,
    /// Indices of the rows.
    pub rows: Vec<u32>,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallAction {
    /// Send the rows of [`ExpertCalls::rows`] to the host; for a backward pass, their gradients too. Ends with
    /// [`ExpertCalls::on_answer`], [`ExpertCalls::on_refused`] or [`ExpertCalls::on_broken`], unless it is cancelled.
    Send(SentCall),
    /// Nobody waits for the answer any more.
    Cancel {
        /// The request.
        request_id: u64,
    },
    /// All experts have answered the forward pass, or are left out: [`ExpertCalls::answered`].
    ForwardOver,
    /// All of them have stepped, as far as is known.
    BackwardOver,
}

/// A request to a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentCall {
    /// Index of the call.
    pub call: usize,
    /// Number of the request. A repeated one has the same.
    pub request_id: u64,
    /// Whom to ask.
    pub host: PeerKey,
    /// The expert.
    pub expert: u32,
    /// The pass.
    pub pass: ExpertPass,
    /// Of a backward pass: steps of the expert when it gave the output.
    pub n_steps: u64,
    /// When its answer is too late, which the host may be told.
    pub until: Moment,
}

/// Why an answer was not taken.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ExpertAnswerError {
    /// No request of this id is in flight: it was cancelled, or answered.
    #[error("nobody waits for the answer")]
    NotWaitedFor,
    /// Another number of values.
    #[error("{got} values came, the rows have {want}")]
    Length {
        /// Of the rows.
        want: usize,
        /// That came.
        got: usize,
    },
    /// A NaN or an infinity.
    #[error("value {index} is not finite")]
    NotFinite {
        /// Position of the first one.
        index: usize,
    },
    /// A row that no expert gives.
    #[error("a row has a root mean square of {got}, at most {max} is taken")]
    Absurd {
        /// By its input.
        max: f32,
        /// Of the row.
        got: f64,
    },
}

/// One call: some rows of one expert.
#[derive(Debug, Clone)]
struct Call {
    expert: u32,
    hosts: Vec<PeerKey>,
    /// Those that are not asked again for this call.
    is_excluded: [bool; REPLICAS_MAX],
    rows: Vec<u32>,
    n_attempts: u32,
    n_cuts: u32,
    stage: CallStage,
    /// Largest root mean square of a row that the host is sent: of the input, then of the gradient.
    sent_rms: f32,
    /// Of the forward pass.
    answered: Option<TakenAnswer>,
    /// Of the backward pass, the same for each attempt.
    backward_id: u64,
    has_gradient: bool,
}

/// An answer of a forward pass.
#[derive(Debug, Clone, Copy)]
struct TakenAnswer {
    /// Index of its host.
    host: usize,
    /// Root mean square.
    rms: f32,
    /// Behind the parameters that gave it.
    n_steps: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStage {
    Waiting { not_before: Moment },
    Sent { host: usize, request_id: u64, at: Moment, until: Moment },
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallPhase {
    Forward,
    /// The caller computes on, and comes back.
    Between,
    Backward,
    Over,
}

/// The calls of one layer for one batch. After each `on_*` the driver drains [`Self::poll_action`].
#[derive(Debug)]
pub struct ExpertCalls {
    settings: CallSettings,
    calls: Vec<Call>,
    phase: CallPhase,
    /// Of the phase.
    deadline: Moment,
    /// Requests in flight: the call of each.
    in_flight: BTreeMap<u64, usize>,
    /// Calls that are not over.
    n_open: usize,
    actions: VecDeque<CallAction>,
}

impl ExpertCalls {
    /// The calls of a batch. `input_rms` is the root mean square of each row of the input, `[n_rows]`, finite; that of a row
    /// without one counts as 0.
    pub fn new(now: Moment, settings: CallSettings, choices: Vec<ExpertChoice>, input_rms: &[f32]) -> Self {
        let mut calls = Vec::new();
        for ExpertChoice { expert, mut hosts, rows } in choices {
            hosts.truncate(REPLICAS_MAX);
            for rows in rows.chunks(settings.request_rows_max.max(1)) {
                let of_rows = rows.iter().filter_map(|row| input_rms.get(*row as usize).copied());
                calls.push(Call {
                    expert,
                    hosts: hosts.clone(),
                    is_excluded: [false; REPLICAS_MAX],
                    rows: rows.to_vec(),
                    n_attempts: 0,
                    n_cuts: 0,
                    stage: CallStage::Waiting { not_before: now },
                    sent_rms: of_rows.fold(0.0, f32::max),
                    answered: None,
                    backward_id: 0,
                    has_gradient: false,
                });
            }
        }
        let mut batch = Self {
            settings,
            n_open: calls.len(),
            calls,
            phase: CallPhase::Forward,
            deadline: now + settings.forward_time,
            in_flight: BTreeMap::new(),
            actions: VecDeque::new(),
        };
        if batch.n_open == 0 {
            batch.end_phase();
        }
        batch
    }

    /// Calls, each with an index below.
    pub fn n_calls(&self) -> usize {
        self.calls.len()
    }

    /// The expert of a call; 0 of one that is none.
    pub fn expert(&self, call: usize) -> u32 {
        self.calls.get(call).map_or(0, |call| call.expert)
    }

    /// Indices of the rows of a call.
    pub fn rows(&self, call: usize) -> &[u32] {
        self.calls.get(call).map_or(&[], |call| &call.rows)
    }

    /// Which calls were answered once [`CallAction::ForwardOver`] came: call and expert. An expert answered for its
    /// [`Self::rows`], and for all others it is left out.
    pub fn answered(&self) -> impl Iterator<Item = (usize, u32)> {
        let calls = self.calls.iter().enumerate().filter(|(_, call)| call.answered.is_some());
        calls.map(|(at, call)| (at, call.expert))
    }

    /// The host whose answer of a call was taken.
    pub fn answered_by(&self, call: usize) -> Option<&PeerKey> {
        let call = self.calls.get(call)?;
        call.answered.and_then(|answered| call.hosts.get(answered.host))
    }

    /// Of which calls a gradient of the input came, once [`CallAction::BackwardOver`] did; for the rows of others it is zero.
    pub fn with_gradient(&self) -> impl Iterator<Item = usize> {
        self.calls.iter().enumerate().filter(|(_, call)| call.has_gradient).map(|(at, _)| at)
    }

    /// An answer came: the output of a forward pass, `[n_rows, output_values]`; the gradient of the input of a backward pass,
    /// `[n_rows, input_values]`. `n_steps` are behind the parameters that gave it. Returns its call, whose answer the driver keeps.
    ///
    /// # Errors
    /// Why it is not taken. Its host is left alone for a while, unless nobody waits for the answer.
    pub fn on_answer(
        &mut self,
        now: Moment,
        book: &mut HostBook,
        request_id: u64,
        (values, n_steps): (&[f32], u64),
    ) -> Result<usize, ExpertAnswerError> {
        let (at, host, sent_at) =
            self.take_in_flight(book, request_id).ok_or(ExpertAnswerError::NotWaitedFor)?;
        let is_backward = self.phase == CallPhase::Backward;
        let call = &mut self.calls[at];
        let (n_values, rms_max) = if is_backward {
            (self.settings.input_values, GRADIENT_RATIO_MAX * call.sent_rms)
        } else {
            (self.settings.output_values, OUTPUT_RATIO_MAX * (1.0 + call.sent_rms))
        };
        let checked = answers::check(values, (call.rows.len(), n_values), rms_max);
        let name = &call.hosts[host];
        match checked {
            Ok(rms) => {
                book.on_good(name, now.saturating_sub(sent_at));
                if is_backward {
                    call.has_gradient = true;
                } else {
                    call.answered = Some(TakenAnswer { host, rms, n_steps });
                }
                self.end_call(book, now, at);
                Ok(at)
            }
            Err(error) => {
                book.on_absurd(now, name);
                call.is_excluded[host] = true;
                self.wait_or_end(book, now, at, now);
                Err(error)
            }
        }
    }

    /// The host has refused.
    pub fn on_refused(&mut self, now: Moment, book: &mut HostBook, request_id: u64, refusal: ServingRefusal) {
        let Some((at, host, _)) = self.take_in_flight(book, request_id) else { return };
        let is_backward = self.phase == CallPhase::Backward;
        match refusal {
            ServingRefusal::Busy { retry_after } => {
                let call = &mut self.calls[at];
                book.on_busy(now, &call.hosts[host], retry_after);
                call.n_attempts = call.n_attempts.saturating_sub(1);
                self.wait_or_end(book, now, at, now);
            }
            ServingRefusal::InProgress { retry_after } if is_backward => {
                let call = &mut self.calls[at];
                call.n_attempts = call.n_attempts.saturating_sub(1);
                let not_before = now.saturating_add(retry_after.max(hosts::RETRY_AFTER_MIN));
                self.wait_or_end(book, now, at, not_before);
            }
            ServingRefusal::Rows { max, got } if self.cut(now, book, at, (max.into(), got.into())) => {}
            ServingRefusal::TooLarge { max, got } if self.cut(now, book, at, (max, got)) => {}
            // One that was counted before ends here, too: nobody else is asked for gradients.
            _ => {
                self.calls[at].is_excluded[host] = true;
                self.wait_or_end(book, now, at, now);
            }
        }
    }

    /// The connection broke before the answer was there: the request may or may not count.
    pub fn on_broken(&mut self, now: Moment, book: &mut HostBook, request_id: u64) {
        let Some((at, host, _)) = self.take_in_flight(book, request_id) else { return };
        book.on_failed(now, &self.calls[at].hosts[host]);
        self.wait_or_end(book, now, at, now + phase::BROKEN_DELAY);
    }

    /// The caller has the gradients of the outputs, after [`CallAction::ForwardOver`]. `gradient_rms` is the largest root mean
    /// square of a row of each call, `[n_calls]`, finite. Experts that answered get theirs.
    pub fn on_gradients(&mut self, now: Moment, book: &mut HostBook, gradient_rms: &[f32]) {
        if self.phase != CallPhase::Between {
            return;
        }
        self.phase = CallPhase::Backward;
        self.deadline = now + self.settings.backward_time;
        self.n_open = 0;
        for (at, call) in self.calls.iter_mut().enumerate() {
            if call.answered.is_some() {
                call.stage = CallStage::Waiting { not_before: now };
                call.sent_rms = gradient_rms.get(at).copied().unwrap_or_default();
                call.backward_id = book.new_request_id();
                call.n_attempts = 0;
                call.is_excluded = [false; REPLICAS_MAX];
                self.n_open += 1;
            }
        }
        if self.n_open == 0 {
            self.end_phase();
        }
    }

    /// The batch is given up: what is in flight is cancelled.
    pub fn abandon(&mut self, book: &mut HostBook) {
        for (request_id, at) in std::mem::take(&mut self.in_flight) {
            if let CallStage::Sent { host, .. } = self.calls[at].stage {
                book.on_over(&self.calls[at].hosts[host]);
            }
            self.actions.push_back(CallAction::Cancel { request_id });
        }
        self.calls.iter_mut().for_each(|call| call.stage = CallStage::Over);
        self.n_open = 0;
        self.phase = CallPhase::Over;
    }

    /// Whether some calls wait to be sent: room at any host may be what they wait for.
    pub fn is_waiting(&self) -> bool {
        self.n_open > self.in_flight.len()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Moment, book: &mut HostBook) -> Option<CallAction> {
        if self.actions.is_empty() {
            self.send_waiting(now, book);
        }
        self.actions.pop_front()
    }
}
