//! What the driver of a host shares with its conversations, its leases and its announcements.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::experts::AnnouncedExpert;
use barnraise_protocol::experts::leases::ExpertLease;
use barnraise_protocol::experts::{ExpertPlace, ExpertTensors, LayerId};
use barnraise_swarm::Moment;
use barnraise_swarm::experts::leases::LeaseHolder;
use barnraise_swarm::experts::serving::{ExpertRuntime, RequestKey, ServedRequest, ServingRefusal};
use tokio::sync::{Notify, oneshot};

use super::home::HomeBackbone;
use crate::host::access::Gate;
use crate::host::addresses::AddressGroups;
use crate::host::expert_hosts::keeper::CheckpointKeeper;
use crate::host::expert_hosts::layers::HostedLayer;

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
    pub(super) key: KeyPair,
    pub(super) home: HomeBackbone,
    pub(super) layers: Vec<HostedLayer>,
    /// Of trainers, by which their shares are limited.
    pub(super) groups: AddressGroups,
    /// Lets those in that have access to the run.
    pub(super) gate: Gate,
    /// Checkpoints of other hosts' experts.
    pub(super) keeper: Arc<CheckpointKeeper>,
    pub(super) leases: Mutex<LeaseHolder>,
    /// Notified when there may be something to ask the backbone.
    pub(super) leases_changed: Notify,
    pub(super) inner: Mutex<Inner>,
    /// Notified when the runtime may want something.
    pub(super) changed: Notify,
    pub(super) started: Instant,
}

/// An expert that is served.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServedExpert {
    /// At the runtime and the device. No number is used twice.
    pub(super) number: u32,
    pub(super) n_steps: u64,
}

/// What changes.
pub(super) struct Inner {
    pub(super) runtime: ExpertRuntime,
    pub(super) held: HashMap<RequestKey, HeldTensors>,
    pub(super) experts: BTreeMap<ExpertPlace, ServedExpert>,
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

    /// Does something with the leases, and lets their driver do what follows.
    pub(super) fn with_leases<T>(&self, f: impl FnOnce(&mut LeaseHolder, Moment) -> T) -> T {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut leases, self.now());
        drop(leases);
        self.leases_changed.notify_one();
        result
    }

    fn holds(&self, place: &ExpertPlace) -> bool {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.holds(self.now(), place)
    }

    /// The lease of a place, while it holds.
    pub(super) fn lease(&self, place: &ExpertPlace) -> Option<ExpertLease> {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.lease(self.now(), place).cloned()
    }

    /// Does something with the runtime, and lets the driver do what follows.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut ExpertRuntime, Moment) -> T) -> T {
        let result = f(&mut self.lock().runtime, self.now());
        self.changed.notify_one();
        result
    }

    /// The number of an expert that is served here under a lease.
    pub(super) fn number_of(&self, place: &ExpertPlace) -> Option<u32> {
        let number = self.lock().experts.get(place).map(|expert| expert.number)?;
        self.holds(place).then_some(number)
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

    /// The experts that are served, with the rows that wait for each.
    pub(super) fn announced(&self) -> Vec<(LayerId, AnnouncedExpert)> {
        let inner = self.lock();
        let announced = |(&(layer, uid), expert): (&ExpertPlace, &ServedExpert)| {
            let n_waiting = u32::try_from(inner.runtime.rows_waiting(expert.number)).unwrap_or(u32::MAX);
            (layer, AnnouncedExpert { uid, n_waiting, n_steps: expert.n_steps })
        };
        inner.experts.iter().map(announced).collect()
    }
}
