//! What the driver of a host shares with its conversations and its announcements.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use barnraise_protocol::experts::ExpertTensors;
use barnraise_swarm::Moment;
use barnraise_swarm::experts::serving::{ExpertRuntime, RequestKey, ServedRequest, ServingRefusal};
use tokio::sync::{Notify, oneshot};

use super::{ExpertPlace, HostedLayer};
use crate::host::addresses::AddressGroups;

/// What the device gave for a request: the steps behind it, and the rows.
pub(super) type Answer = Result<(u64, Vec<f32>), ServingRefusal>;

/// A request that waits for the device, or whose answer is on its way.
pub(super) struct HeldTensors {
    pub(super) tensors: ExpertTensors,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// What the conversations share with the driver.
pub(super) struct HostState {
    pub(super) run_id: String,
    pub(super) layers: Vec<HostedLayer>,
    /// By the number of the expert.
    pub(super) places: Vec<ExpertPlace>,
    /// Of trainers, by which their shares are limited.
    pub(super) groups: AddressGroups,
    pub(super) inner: Mutex<Inner>,
    /// Notified when the runtime may want something.
    pub(super) changed: Notify,
    pub(super) started: Instant,
}

/// What changes.
pub(super) struct Inner {
    pub(super) runtime: ExpertRuntime,
    pub(super) held: HashMap<RequestKey, HeldTensors>,
    /// Steps of each expert.
    pub(super) n_steps: Vec<u64>,
    pub(super) n_forward: u64,
    pub(super) n_backward: u64,
}

impl HostState {
    pub(super) fn now(&self) -> Moment {
        self.started.elapsed()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the runtime, and lets the driver do what follows.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut ExpertRuntime, Moment) -> T) -> T {
        let result = f(&mut self.lock().runtime, self.now());
        self.changed.notify_one();
        result
    }

    /// Admits a request by its head.
    pub(super) fn admit(&self, request: ServedRequest) -> Result<RequestKey, ServingRefusal> {
        self.with(|runtime, now| runtime.on_request(now, request))
    }

    /// The tensors of an admitted request are here. Its answer comes later.
    pub(super) fn on_received(&self, key: RequestKey, tensors: ExpertTensors) -> oneshot::Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        let mut inner = self.lock();
        inner.held.insert(key, HeldTensors { tensors, answer });
        inner.runtime.on_received(self.now(), key);
        drop(inner);
        self.changed.notify_one();
        receiver
    }

    /// The conversation about a request is over: its answer has left, or its stream broke at any moment. Rows that the device
    /// has are kept until it has computed them.
    pub(super) fn on_over(&self, key: RequestKey) {
        let mut inner = self.lock();
        let now = self.now();
        inner.runtime.on_lost(now, key);
        inner.runtime.on_answered(now, key);
        if !inner.runtime.holds(key) {
            inner.held.remove(&key);
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Rows that wait, and the steps of each expert.
    pub(super) fn standing(&self) -> (u64, Vec<u64>) {
        let inner = self.lock();
        (inner.runtime.load().rows_waiting, inner.n_steps.clone())
    }
}
