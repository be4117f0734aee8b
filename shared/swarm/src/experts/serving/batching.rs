//! Whose turn it is, and what is computed together.

use std::collections::BTreeSet;

use super::{BatchId, ExpertRuntime, HeldRequest, RequestKey, RequestStage, ServingAction, ServingBatch};
use crate::Moment;
use crate::experts::ExpertPass;

/// Batches that the device has: the one that it computes, and the one behind.
const BATCHES_GIVEN_MAX: usize = 2;

/// Requests of one expert and one pass, the first in turn first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: BTreeSet<(u64, RequestKey)>,
    n_rows: u64,
}

impl Queue {
    pub(super) fn n_rows(&self) -> u64 {
        self.n_rows
    }

    pub(super) fn insert(&mut self, turn: u64, key: RequestKey, n_rows: u32) {
        if self.order.insert((turn, key)) {
            self.n_rows += u64::from(n_rows);
        }
    }
}

/// A batch that the device has.
#[derive(Debug)]
pub(super) struct GivenBatch {
    pub(super) id: BatchId,
    pub(super) queue: (u32, bool),
    pub(super) at: Moment,
    pub(super) n_rows: u32,
    pub(super) keys: Vec<RequestKey>,
}

impl ExpertRuntime {
    /// Drops what is overdue, and gives the device what it has room for.
    pub(super) fn fill_device(&mut self, now: Moment) {
        while let Some(&(deadline, key)) = self.deadlines.first()
            && deadline <= now
        {
            self.end_waiting(key, ServingAction::Drop(key));
        }
        while self.given.len() < BATCHES_GIVEN_MAX
            && let Some(queue) = self.next_queue(now)
        {
            self.give(now, queue);
        }
    }

    /// The queue whose first request is the first in turn, among those that may go.
    fn next_queue(&self, now: Moment) -> Option<(u32, bool)> {
        let heads = self.queues.iter().filter_map(|(name, queue)| {
            let (turn, key) = *queue.order.first()?;
            let may_go = self.given.is_empty() || self.staged_at(queue, key) <= now;
            may_go.then_some((turn, key, *name))
        });
        heads.min_by_key(|(turn, key, _)| (*turn, *key)).map(|(.., name)| name)
    }

    /// When a queue, whose first request is `key`, may go behind another batch.
    fn staged_at(&self, queue: &Queue, key: RequestKey) -> Moment {
        let is_full = queue.n_rows >= u64::from(self.limits.rows_max);
        match self.requests.get(&key).map(|held| held.stage) {
            Some(RequestStage::Waiting { since, is_alone: false, .. }) if !is_full => {
                since + self.limits.batch_delay
            }
            _ => Moment::ZERO,
        }
    }

    /// When a batch may be staged that is not full.
    pub(super) fn staging_deadline(&self) -> Option<Moment> {
        if self.given.len() != 1 {
            return None;
        }
        let heads = self.queues.values().filter_map(|queue| Some((queue, queue.order.first()?.1)));
        heads.map(|(queue, key)| self.staged_at(queue, key)).min()
    }

    /// Gives the device a batch of the queue: the first in turn, and those that follow it as far as they fit.
    fn give(&mut self, now: Moment, name: (u32, bool)) {
        let parts = self.next_parts(name);
        let first = self.queues.values().filter_map(|queue| queue.order.first()).map(|(turn, _)| *turn).min();
        self.last_turn = self.last_turn.max(first.unwrap_or_default());
        let mut batch = ServingBatch {
            id: BatchId(self.n_batches),
            expert: name.0,
            pass: if name.1 { ExpertPass::Backward } else { ExpertPass::Forward },
            parts: Vec::with_capacity(parts.len()),
        };
        self.n_batches += 1;
        for (turn, key, n_rows) in parts {
            self.take_from_queue(name, turn, key, n_rows);
            let start = batch.n_rows();
            batch.parts.push((key, start..start.saturating_add(n_rows)));
            if let Some(held) = self.requests.get_mut(&key) {
                held.stage = RequestStage::Computing { turn };
                self.deadlines.remove(&(held.request.deadline, key));
            }
        }
        let keys = batch.parts.iter().map(|(key, _)| *key).collect();
        let n_rows = batch.n_rows();
        self.given.push_back(GivenBatch { id: batch.id, queue: name, at: now, n_rows, keys });
        self.actions.push_back(ServingAction::Compute(batch));
    }

    /// Turn, key and rows of what is computed next of a queue; at least one request.
    fn next_parts(&self, name: (u32, bool)) -> Vec<(u64, RequestKey, u32)> {
        let mut parts: Vec<(u64, RequestKey, u32)> = Vec::new();
        let mut n_rows = 0_u32;
        let Some(queue) = self.queues.get(&name) else { return parts };
        for &(turn, key) in &queue.order {
            let Some(held) = self.requests.get(&key) else { continue };
            let is_alone = held.is_alone();
            n_rows = n_rows.saturating_add(held.request.n_rows);
            if !parts.is_empty() && (is_alone || n_rows > self.limits.rows_max) {
                break;
            }
            parts.push((turn, key, held.request.n_rows));
            if is_alone {
                break;
            }
        }
        parts
    }

    /// A request of a failed batch waits once more, in its old turn.
    pub(super) fn wait_alone(&mut self, now: Moment, name: (u32, bool), key: RequestKey) {
        let Some(held) = self.requests.get_mut(&key) else { return };
        let RequestStage::Computing { turn } = held.stage else { return };
        held.stage = RequestStage::Waiting { since: now, turn, is_alone: true };
        self.deadlines.insert((held.request.deadline, key));
        self.queues.entry(name).or_default().insert(turn, key, held.request.n_rows);
    }

    pub(super) fn take_from_queue(&mut self, name: (u32, bool), turn: u64, key: RequestKey, n_rows: u32) {
        let Some(queue) = self.queues.get_mut(&name) else { return };
        if queue.order.remove(&(turn, key)) {
            queue.n_rows -= u64::from(n_rows);
        }
        if queue.order.is_empty() {
            self.queues.remove(&name);
        }
    }

    pub(super) fn take_given(&mut self, id: BatchId) -> Option<GivenBatch> {
        let at = self.given.iter().position(|given| given.id == id)?;
        self.given.remove(at)
    }
}

impl HeldRequest {
    fn is_alone(&self) -> bool {
        matches!(self.stage, RequestStage::Waiting { is_alone: true, .. })
    }
}
