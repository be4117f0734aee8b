//! Which host is asked next, what is late, and when a pass is over. It knows no answer.

use std::time::Duration;

use super::{
    ATTEMPTS_MAX, CUT_MAX, CUTS_MAX, Call, CallAction, CallPhase, CallStage, ExpertCalls, HostBook, SentCall,
    answers,
};
use crate::Moment;
use crate::experts::ExpertPass;

/// A request whose connection broke is not repeated before that.
pub(super) const BROKEN_DELAY: Duration = Duration::from_millis(100);

impl ExpertCalls {
    /// Time has passed: what is late is cancelled and asked elsewhere, and the pass ends at its deadline.
    pub fn on_timeout(&mut self, now: Moment, book: &mut HostBook) {
        if !self.is_asking() {
            return;
        }
        for at in 0..self.calls.len() {
            match self.calls[at].stage {
                CallStage::Sent { request_id, until, .. } if until <= now => {
                    self.on_late(now, book, request_id);
                }
                CallStage::Waiting { .. } if self.deadline <= now => self.end_call(book, now, at),
                _ => {}
            }
        }
    }

    /// When to call [`Self::on_timeout`], and drain the actions.
    pub fn next_deadline(&self, now: Moment, book: &HostBook) -> Option<Moment> {
        if !self.is_asking() {
            return None;
        }
        let is_counted = self.phase == CallPhase::Backward;
        let of_calls = self.calls.iter().filter_map(|call| match call.stage {
            CallStage::Sent { until, .. } => Some(until),
            CallStage::Waiting { not_before } => {
                let hosts =
                    self.candidates(call).map(|host| book.available_at(&call.hosts[host], is_counted));
                // One that could be sent waits for room, and not for a time.
                Some(hosts.min()?.max(not_before)).filter(|at| *at > now)
            }
            CallStage::Over => None,
        });
        of_calls.chain([self.deadline]).min()
    }

    fn is_asking(&self) -> bool {
        matches!(self.phase, CallPhase::Forward | CallPhase::Backward)
    }

    /// Hosts that may be asked for a call: all that are not excluded; for the backward pass the one that answered.
    fn candidates<'c>(&self, call: &'c Call) -> impl Iterator<Item = usize> + use<'c> {
        let only = match self.phase {
            CallPhase::Backward => Some(call.answered.map_or(usize::MAX, |answered| answered.host)),
            _ => None,
        };
        let hosts = 0..call.hosts.len();
        hosts.filter(move |host| !call.is_excluded[*host] && only.is_none_or(|only| only == *host))
    }

    /// Sends what can be sent now.
    pub(super) fn send_waiting(&mut self, now: Moment, book: &mut HostBook) {
        if !self.is_waiting() || self.deadline <= now {
            return;
        }
        let is_counted = self.phase == CallPhase::Backward;
        for at in 0..self.calls.len() {
            let call = &self.calls[at];
            if !matches!(call.stage, CallStage::Waiting { not_before } if not_before <= now) {
                continue;
            }
            let candidates: Vec<usize> = self.candidates(call).collect();
            let available = |host: &usize| book.available_at(&call.hosts[*host], is_counted);
            let is_hopeless = candidates.iter().map(available).min().is_none_or(|at| at >= self.deadline);
            if is_hopeless {
                self.end_call(book, now, at);
                continue;
            }
            let can_go = |host: &usize| available(host) <= now && book.has_slot(&call.hosts[*host]);
            // Another one than the last, where there is one: it broke.
            let n_hosts = call.hosts.len().max(1);
            let first = call.n_attempts as usize % n_hosts;
            let free = candidates.into_iter().filter(can_go);
            if let Some(host) = free.min_by_key(|host| (host + n_hosts - first) % n_hosts) {
                self.send(now, book, at, host);
            }
        }
    }

    /// A host takes `max` of what `got` is that a call has: the call is cut into as many equal parts as that takes. Returns whether
    /// that is worth it.
    pub(super) fn cut(
        &mut self,
        now: Moment,
        book: &mut HostBook,
        at: usize,
        (max, got): (u64, u64),
    ) -> bool {
        let call = &mut self.calls[at];
        let n_parts = got.div_ceil(max.max(1)).min(CUT_MAX + 1) as usize;
        let n_rows = call.rows.len().div_ceil(n_parts.max(1));
        if !(2..=CUT_MAX as usize).contains(&n_parts) || call.n_cuts >= CUTS_MAX || n_rows == call.rows.len()
        {
            return false;
        }
        call.n_cuts += 1;
        call.n_attempts = call.n_attempts.saturating_sub(1);
        call.stage = CallStage::Waiting { not_before: now };
        let rest = call.rows.split_off(n_rows);
        let call = Call { rows: Vec::new(), n_attempts: 0, ..call.clone() };
        let is_backward = self.phase == CallPhase::Backward;
        for rows in rest.chunks(n_rows) {
            let backward_id = if is_backward { book.new_request_id() } else { 0 };
            self.calls.push(Call { rows: rows.to_vec(), backward_id, ..call.clone() });
            self.n_open += 1;
        }
        true
    }

    fn send(&mut self, now: Moment, book: &mut HostBook, at: usize, host: usize) {
        let is_forward = self.phase == CallPhase::Forward;
        let has_other = self.candidates(&self.calls[at]).count() > 1;
        let left = self.deadline.saturating_sub(now);
        let call = &mut self.calls[at];
        let name = call.hosts[host].clone();
        let request_id = if is_forward { book.new_request_id() } else { call.backward_id };
        // Another replica needs time too; gradients are repeated at the same host, which knows whether it has counted them.
        let patience = if is_forward && !has_other {
            left
        } else {
            let patience = book.patience(&name).unwrap_or(left / 2);
            patience.saturating_mul(1 << call.n_attempts.min(ATTEMPTS_MAX)).min(left)
        };
        let until = now + patience;
        book.on_sent(now, &name);
        call.n_attempts += 1;
        call.stage = CallStage::Sent { host, request_id, at: now, until };
        self.in_flight.insert(request_id, at);
        let (pass, answered) = match is_forward {
            true => (ExpertPass::Forward, None),
            false => (ExpertPass::Backward, call.answered),
        };
        let n_steps = answered.map_or(0, |answered| answered.n_steps);
        let sent = SentCall { call: at, request_id, host: name, expert: call.expert, pass, n_steps, until };
        self.actions.push_back(CallAction::Send(sent));
    }

    /// The host of a request is late: its answer is not waited for.
    fn on_late(&mut self, now: Moment, book: &mut HostBook, request_id: u64) {
        let Some((at, host, _)) = self.take_in_flight(book, request_id) else { return };
        book.on_failed(now, &self.calls[at].hosts[host]);
        if self.phase == CallPhase::Forward {
            self.calls[at].is_excluded[host] = true;
        }
        self.actions.push_back(CallAction::Cancel { request_id });
        self.wait_or_end(book, now, at, now);
    }

    /// A request that is no longer in flight: its call, its host, and when it was sent.
    pub(super) fn take_in_flight(
        &mut self,
        book: &mut HostBook,
        request_id: u64,
    ) -> Option<(usize, usize, Moment)> {
        let at = self.in_flight.remove(&request_id)?;
        let CallStage::Sent { host, at: sent_at, .. } = self.calls[at].stage else { return None };
        book.on_over(&self.calls[at].hosts[host]);
        Some((at, host, sent_at))
    }

    /// A call is to be sent again, if somebody is left and there is time.
    pub(super) fn wait_or_end(&mut self, book: &mut HostBook, now: Moment, at: usize, not_before: Moment) {
        let has_time = not_before < self.deadline && self.calls[at].n_attempts < ATTEMPTS_MAX;
        if has_time && self.candidates(&self.calls[at]).next().is_some() {
            self.calls[at].stage = CallStage::Waiting { not_before };
        } else {
            self.end_call(book, now, at);
        }
    }

    pub(super) fn end_call(&mut self, book: &mut HostBook, now: Moment, at: usize) {
        if self.calls[at].stage == CallStage::Over {
            return;
        }
        self.calls[at].stage = CallStage::Over;
        self.n_open = self.n_open.saturating_sub(1);
        if self.n_open > 0 {
            return;
        }
        if self.phase == CallPhase::Forward {
            self.leave_outliers_out(now, book);
        }
        self.end_phase();
    }

    pub(super) fn end_phase(&mut self) {
        let (phase, action) = match self.phase {
            CallPhase::Forward => (CallPhase::Between, CallAction::ForwardOver),
            _ => (CallPhase::Over, CallAction::BackwardOver),
        };
        self.phase = phase;
        self.actions.push_back(action);
    }

    /// Answers far beyond the median of the layer are not used.
    fn leave_outliers_out(&mut self, now: Moment, book: &mut HostBook) {
        let answered = self.calls.iter_mut().filter(|call| call.answered.is_some());
        let answered: Vec<&mut Call> = answered.collect();
        let rms: Vec<f32> = answered.iter().filter_map(|call| Some(call.answered?.rms)).collect();
        for (call, is_outlier) in answered.into_iter().zip(answers::outliers(&rms)) {
            if let Some(answered) = call.answered.filter(|_| is_outlier) {
                book.on_absurd(now, &call.hosts[answered.host]);
                call.answered = None;
            }
        }
    }
}
