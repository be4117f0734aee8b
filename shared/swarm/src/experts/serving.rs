//! The runtime of a host of experts: which requests the device computes next, and which it does not (Learning@home §3.3).
//!
//! Requests of one expert and one pass are computed together, as many rows as a batch has. Among all queues that one is next
//! whose first request is the first in turn. Turns are those of start-time fair queueing (Goyal, Vin and Cheng 1996, §2): of
//! clients that have one request each the oldest is first, at whichever expert; a client that has more waits with them behind
//! the others, and never for ever.
//!
//! An idle device takes what there is: waiting would not make a larger batch sooner than computing does. While it computes, one
//! more batch is staged behind, once it is full or its first request has waited for the batch delay; so it never rests between
//! two, and batches grow with the load.
//!
//! A request is admitted by its head, before its tensors are read, so that the memory that the owner granted bounds what is
//! read, waits, is computed, and is on its way back. Backward requests are counted once ([`CountedState`]).
//!
//! The driver keeps the tensors and computes. A request that was admitted ends in exactly one way: computed, with
//! [`ExpertRuntime::on_answered`]; refused or dropped by an action; or lost, as the driver says.

mod batching;
mod counted;
#[cfg(test)]
mod fuzz;
mod gradients;
mod holdings;
mod request;
mod staleness;
#[cfg(test)]
mod tests;
mod throughput;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use barnraise_protocol::experts::leases::ExpertLoad;

use self::batching::{GivenBatch, Queue};
use self::counted::CountedRequests;
pub use self::counted::{
    COUNTED_CLIENTS_MAX, COUNTED_IDS_MAX, CountedState, CountedStateError, REPEAT_HORIZON,
};
pub use self::gradients::GradientScales;
use self::holdings::Holdings;
pub use self::request::{
    BatchId, GROUP_CLIENTS, REQUEST_BYTES_MIN, REQUEST_PART, RequestKey, SESSION_SHIFT, ServedRequest,
    ServingAction, ServingBatch, ServingLimits, ServingLoad, ServingRefusal, WAIT_MAX,
};
pub use self::staleness::{OutputRows, step_factor};
use self::throughput::{ServedRows, Throughput};
use super::ExpertPass;
use crate::guard::RateLimiter;
use crate::{AddressGroup, Moment, PeerKey};

/// Most clients, and addresses, whose rate is remembered.
const RATE_KEYS_MAX: usize = 8192;
/// Shortest time after which a client is told to ask again.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(50);

/// Where a request is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestStage {
    /// Its tensors are being read.
    Receiving,
    Waiting {
        since: Moment,
        turn: u64,
        /// Its batch has failed: it is computed once more, by itself.
        is_alone: bool,
    },
    /// The device has it.
    Computing { turn: u64 },
    /// Its answer is being sent.
    Answering,
}

#[derive(Debug)]
struct HeldRequest {
    request: ServedRequest,
    stage: RequestStage,
}

/// The runtime of one host. After each `on_*` the driver drains [`Self::poll_action`].
#[derive(Debug)]
pub struct ExpertRuntime {
    limits: ServingLimits,
    experts: BTreeMap<u32, CountedRequests>,
    /// Of these experts, those that take nothing more.
    closed: BTreeSet<u32>,
    requests: BTreeMap<RequestKey, HeldRequest>,
    /// By expert, and whether it is the backward pass. None is empty.
    queues: BTreeMap<(u32, bool), Queue>,
    holdings: Holdings,
    client_rate: RateLimiter<PeerKey>,
    group_rate: RateLimiter<AddressGroup>,
    /// Backward requests that are held and not counted yet: expert, client, the client's id.
    uncounted: BTreeSet<(u32, PeerKey, u64)>,
    by_client: BTreeSet<(PeerKey, RequestKey)>,
    /// Of requests that the device does not have.
    deadlines: BTreeSet<(Moment, RequestKey)>,
    /// What the device has, in its order.
    given: VecDeque<GivenBatch>,
    throughput: Throughput,
    /// Of each expert.
    served: BTreeMap<u32, ServedRows>,
    served_in_all: ServedRows,
    /// The turn that was last, the virtual time of fair queueing.
    last_turn: u64,
    is_draining: bool,
    n_requests: u64,
    n_batches: u64,
    actions: VecDeque<ServingAction>,
}

impl ExpertRuntime {
    /// A host without experts. Limits of 0 rows count as 1.
    pub fn new(mut limits: ServingLimits) -> Self {
        limits.rows_max = limits.rows_max.max(1);
        limits.request_rows_max = limits.request_rows_max.max(limits.rows_max);
        let per_minute = limits.requests_per_minute;
        Self {
            holdings: Holdings::new(&limits),
            client_rate: RateLimiter::new(per_minute, RATE_KEYS_MAX),
            group_rate: RateLimiter::new(per_minute.saturating_mul(GROUP_CLIENTS), RATE_KEYS_MAX),
            limits,
            experts: BTreeMap::new(),
            closed: BTreeSet::new(),
            requests: BTreeMap::new(),
            queues: BTreeMap::new(),
            uncounted: BTreeSet::new(),
            by_client: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            given: VecDeque::new(),
            throughput: Throughput::default(),
            served: BTreeMap::new(),
            served_in_all: ServedRows::default(),
            last_turn: 0,
            is_draining: false,
            n_requests: 0,
            n_batches: 0,
            actions: VecDeque::new(),
        }
    }

    /// The host has one more expert; `counted` is what was written with its parameters, the default for a new one.
    ///
    /// # Errors
    /// A state that no host has written.
    pub fn on_expert_added(
        &mut self,
        now: Moment,
        expert: u32,
        counted: &CountedState,
    ) -> Result<(), CountedStateError> {
        let counted = CountedRequests::restored(now, counted)?;
        self.experts.entry(expert).or_insert(counted);
        Ok(())
    }

    /// The host no longer has the expert: what waits for it is refused. A batch that the device has goes on, and is not
    /// counted; see [`Self::on_expert_closed`].
    pub fn on_expert_removed(&mut self, now: Moment, expert: u32) {
        self.on_expert_closed(now, expert);
        self.closed.remove(&expert);
        self.experts.remove(&expert);
        self.served.remove(&expert);
    }

    /// The host is to have the expert no longer: what waits for it is refused, and so is what comes. A batch that the device has
    /// goes on and is counted, until [`Self::on_expert_removed`].
    pub fn on_expert_closed(&mut self, now: Moment, expert: u32) {
        if !self.experts.contains_key(&expert) {
            return;
        }
        self.closed.insert(expert);
        let has = |held: &HeldRequest| held.request.expert == expert && held.is_waiting();
        let keys: Vec<RequestKey> =
            self.requests.iter().filter(|(_, held)| has(held)).map(|(key, _)| *key).collect();
        for key in keys {
            self.end_waiting(key, ServingAction::Refuse { key, refusal: ServingRefusal::Unknown });
        }
        self.fill_device(now);
    }

    /// What the expert has counted, to be written with the parameters of the same step: those after the batch of the last
    /// [`Self::on_computed`], and before the next one of this expert.
    pub fn counted(&self, expert: u32) -> Option<CountedState> {
        Some(self.experts.get(&expert)?.state())
    }

    /// A client has sent the head of a request. Where it is admitted, its tensors may be read: then comes
    /// [`Self::on_received`], or [`Self::on_lost`].
    ///
    /// # Errors
    /// Why it is not; nothing of it is kept.
    pub fn on_request(
        &mut self,
        now: Moment,
        mut request: ServedRequest,
    ) -> Result<RequestKey, ServingRefusal> {
        request.n_bytes = request.n_bytes.max(REQUEST_BYTES_MIN);
        request.deadline = request.deadline.min(now + WAIT_MAX);
        self.check(&request)?;
        self.check_counted(&request)?;
        // What would be computed too late is better asked of another host at once.
        let wait = self.throughput.time_of(self.holdings.rows_before(&request));
        let busy = ServingRefusal::Busy { retry_after: self.retry_after() };
        if !self.holdings.has_room(&request) || now + wait >= request.deadline {
            return Err(busy);
        }
        // In this order, so that a client which asks too often does not use up the rate of its address.
        if !self.client_rate.take(now, &request.client) || !self.group_rate.take(now, &request.group) {
            let every = Duration::from_secs(60) / self.limits.requests_per_minute.max(1);
            return Err(ServingRefusal::Busy { retry_after: self.retry_after().max(every) });
        }
        if request.pass == ExpertPass::Backward {
            let counted = self.experts.get_mut(&request.expert).ok_or(ServingRefusal::Unknown)?;
            if !counted.reserve(now, &request.session(), request.group) {
                return Err(busy);
            }
            self.uncounted.insert(request.uncounted_key());
        }
        let key = RequestKey(self.n_requests);
        self.n_requests += 1;
        self.holdings.take(&request);
        self.by_client.insert((request.client.clone(), key));
        self.deadlines.insert((request.deadline, key));
        self.requests.insert(key, HeldRequest { request, stage: RequestStage::Receiving });
        Ok(key)
    }

    fn check(&self, request: &ServedRequest) -> Result<(), ServingRefusal> {
        let (max, got) = (self.limits.request_rows_max, request.n_rows);
        if !self.is_open(request.expert) {
            return Err(ServingRefusal::Unknown);
        }
        if self.is_draining {
            return Err(ServingRefusal::Draining);
        }
        if got == 0 || got > max {
            return Err(ServingRefusal::Rows { max, got });
        }
        let max = self.limits.bytes_max / REQUEST_PART;
        if request.n_bytes > max {
            return Err(ServingRefusal::TooLarge { max, got: request.n_bytes });
        }
        Ok(())
    }

    fn check_counted(&self, request: &ServedRequest) -> Result<(), ServingRefusal> {
        if request.pass == ExpertPass::Forward {
            return Ok(());
        }
        let has = |counted: &CountedRequests| counted.has(&request.session(), request.request_id);
        if self.experts.get(&request.expert).is_some_and(has) {
            return Err(ServingRefusal::Duplicate);
        }
        if self.uncounted.contains(&request.uncounted_key()) {
            return Err(ServingRefusal::InProgress { retry_after: self.retry_after() });
        }
        Ok(())
    }

    /// The tensors of an admitted request are here, and were found valid. It waits for its turn.
    pub fn on_received(&mut self, now: Moment, key: RequestKey) {
        let Some(held) = self.requests.get_mut(&key) else { return };
        if held.stage != RequestStage::Receiving {
            return;
        }
        let turn = self.holdings.wait(&held.request, self.last_turn);
        held.stage = RequestStage::Waiting { since: now, turn, is_alone: false };
        let queue = self.queues.entry(held.request.queue()).or_default();
        queue.insert(turn, key, held.request.n_rows);
        self.fill_device(now);
    }

    /// The stream of a request broke, or its tensors were not valid. No action follows. A batch that the device has goes on.
    pub fn on_lost(&mut self, now: Moment, key: RequestKey) {
        if self.requests.get(&key).is_some_and(HeldRequest::is_waiting) {
            self.forget(key);
            self.fill_device(now);
        }
    }

    /// A client has left: what it waits for is dropped.
    pub fn on_client_gone(&mut self, now: Moment, client: &PeerKey) {
        let keys: Vec<RequestKey> = self
            .by_client
            .range((client.clone(), RequestKey(0))..=(client.clone(), RequestKey(u64::MAX)))
            .map(|(_, key)| *key)
            .collect();
        for key in keys {
            if self.requests.get(&key).is_some_and(HeldRequest::is_waiting) {
                self.end_waiting(key, ServingAction::Drop(key));
            }
        }
        self.fill_device(now);
    }

    /// The device has computed a batch. Its requests are answered now, each until [`Self::on_answered`].
    pub fn on_computed(&mut self, now: Moment, batch: BatchId) {
        let Some(given) = self.take_given(batch) else { return };
        self.throughput.on_batch(now, given.at, given.n_rows);
        self.served_in_all.on_batch(now, given.n_rows);
        if self.experts.contains_key(&given.queue.0) {
            self.served.entry(given.queue.0).or_default().on_batch(now, given.n_rows);
        }
        for key in given.keys {
            let Some(held) = self.requests.get_mut(&key) else { continue };
            held.stage = RequestStage::Answering;
            self.holdings.wait_no_more(&held.request);
            if held.request.pass == ExpertPass::Backward {
                self.uncounted.remove(&held.request.uncounted_key());
                if let Some(counted) = self.experts.get_mut(&held.request.expert) {
                    counted.count(now, &held.request.session(), held.request.request_id);
                }
            }
        }
        self.fill_device(now);
    }

    /// The device did not compute a batch, and no expert has stepped by it. Its requests are computed once more, each by
    /// itself, so that none suffers from another; what fails alone is refused.
    pub fn on_failed(&mut self, now: Moment, batch: BatchId) {
        let Some(given) = self.take_given(batch) else { return };
        self.throughput.on_failed(now);
        let is_hosted = self.is_open(given.queue.0);
        for &key in &given.keys {
            if is_hosted && given.keys.len() > 1 {
                self.wait_alone(now, given.queue, key);
            } else {
                let refusal = if is_hosted { ServingRefusal::Failed } else { ServingRefusal::Unknown };
                self.end_waiting(key, ServingAction::Refuse { key, refusal });
            }
        }
        self.fill_device(now);
    }

    /// The answer of a computed request has left, or its stream has failed: its memory is free.
    pub fn on_answered(&mut self, now: Moment, key: RequestKey) {
        if self.requests.get(&key).is_some_and(|held| held.stage == RequestStage::Answering) {
            self.forget(key);
            self.fill_device(now);
        }
    }

    /// Whether a request is held: it waits, is computed, or its answer is being sent.
    pub fn holds(&self, key: RequestKey) -> bool {
        self.requests.contains_key(&key)
    }

    /// The host is to leave: it takes nothing new, and computes what it has.
    pub fn on_drain(&mut self) {
        self.is_draining = true;
    }

    /// Whether nothing is held.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// What is announced.
    pub fn load(&self) -> ServingLoad {
        ServingLoad {
            rows_waiting: self.holdings.n_rows(),
            rows_per_second: self.throughput.rows_per_second(),
        }
    }

    /// Rows that wait for an expert.
    pub fn rows_waiting(&self, expert: u32) -> u64 {
        [false, true].iter().filter_map(|pass| self.queues.get(&(expert, *pass))).map(Queue::n_rows).sum()
    }

    /// What there is to do for an expert.
    pub fn expert_load(&self, now: Moment, expert: u32) -> ExpertLoad {
        let n_served = self.served.get(&expert).map_or(0.0, |served| served.per_minute(now));
        let n_spare = 60.0 * self.throughput.rows_per_second() - self.served_in_all.per_minute(now);
        ExpertLoad {
            n_waiting: u32::try_from(self.rows_waiting(expert)).unwrap_or(u32::MAX),
            // A number that is too large or below 0 becomes the nearest one.
            n_served: n_served as u32,
            n_spare: n_spare as u32,
        }
    }

    fn is_open(&self, expert: u32) -> bool {
        self.experts.contains_key(&expert) && !self.closed.contains(&expert)
    }

    /// Memory that requests and answers take, never above [`ServingLimits::bytes_max`].
    pub fn n_bytes(&self) -> u64 {
        self.holdings.n_bytes()
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Moment) {
        self.fill_device(now);
    }

    /// When to call [`Self::on_timeout`].
    pub fn next_deadline(&self) -> Option<Moment> {
        let overdue = self.deadlines.first().map(|(deadline, _)| *deadline);
        [overdue, self.staging_deadline()].into_iter().flatten().min()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<ServingAction> {
        self.actions.pop_front()
    }

    /// When there may be room.
    fn retry_after(&self) -> Duration {
        self.throughput.time_of(self.holdings.n_rows()).max(RETRY_AFTER_MIN)
    }

    /// Ends a request that is not computed.
    fn end_waiting(&mut self, key: RequestKey, action: ServingAction) {
        self.forget(key);
        self.actions.push_back(action);
    }

    fn forget(&mut self, key: RequestKey) {
        let Some(HeldRequest { request, stage }) = self.requests.remove(&key) else { return };
        self.deadlines.remove(&(request.deadline, key));
        self.by_client.remove(&(request.client.clone(), key));
        if let RequestStage::Waiting { turn, .. } = stage {
            self.take_from_queue(request.queue(), turn, key, request.n_rows);
        }
        if matches!(stage, RequestStage::Waiting { .. } | RequestStage::Computing { .. }) {
            self.holdings.wait_no_more(&request);
        }
        if stage != RequestStage::Answering && request.pass == ExpertPass::Backward {
            self.uncounted.remove(&request.uncounted_key());
        }
        self.holdings.give_back(&request);
    }
}

impl HeldRequest {
    /// Whether the device does not have it, and has not had it.
    fn is_waiting(&self) -> bool {
        matches!(self.stage, RequestStage::Receiving | RequestStage::Waiting { .. })
    }
}

impl ServedRequest {
    fn queue(&self) -> (u32, bool) {
        (self.expert, self.pass == ExpertPass::Backward)
    }

    fn uncounted_key(&self) -> (u32, PeerKey, u64) {
        (self.expert, self.client.clone(), self.request_id)
    }
}
