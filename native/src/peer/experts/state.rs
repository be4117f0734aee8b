//! What the driver of a host shares with its conversations, its leases and its announcements.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use barnraise_contributor::hosting::{ExpertAnswer, HeldRequests};
use barnraise_learning::hosted::HostedLayer;
use barnraise_protocol::dht::experts::AnnouncedExpert;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::experts::leases::{ExpertLease, ExpertLoad};
use barnraise_protocol::experts::{AnswerSigner, ExpertPlace, ExpertTensors, LayerId};
use barnraise_swarm::experts::leases::LeaseHolder;
use barnraise_swarm::experts::serving::{ExpertRuntime, RequestKey, ServedRequest, ServingRefusal};
use barnraise_swarm::{AddressGroup, Moment};
use futures::channel::oneshot;
use tokio::sync::Notify;

use super::super::home::HomeBackbone;
use super::view::{HandedOver, HostStage, HostView, ServedExpertView};
use crate::host::access::Gate;
use crate::host::addresses::AddressGroups;
use crate::host::expert_hosts::keeper::CheckpointKeeper;

/// What the conversations share with the driver.
pub(super) struct HostState {
    pub(super) run_id: String,
    pub(super) signer: AnswerSigner,
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
    /// Notified when the operator has heard how the host was drained.
    pub(super) drained_heard: Notify,
    /// Experts that it hosts at most.
    pub(super) n_room: u32,
    pub(super) started: Instant,
}

/// An expert that is served.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServedExpert {
    /// At the runtime and the device. No number is used twice.
    pub(super) number: u32,
    /// Under which it steps, as its driver knows.
    pub(super) term: u64,
    pub(super) n_steps: u64,
    /// Requests that were computed here.
    pub(super) n_requests: u64,
    /// When it was stored on the disk last.
    pub(super) stored_at: Option<Moment>,
}

/// What changes.
pub(super) struct Inner {
    pub(super) requests: HeldRequests,
    pub(super) experts: BTreeMap<ExpertPlace, ServedExpert>,
    /// Layers whose experts make no step here, as this host's operator wants.
    pub(super) frozen: BTreeSet<LayerId>,
    /// Those whose experts make no step at any host, as the backbone says.
    pub(super) frozen_by_run: BTreeSet<LayerId>,
    pub(super) stage: HostStage,
    pub(super) handed_over: Option<HandedOver>,
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

    /// Whether an expert that is served here has further copies.
    pub(super) fn has_copies(&self, place: &ExpertPlace) -> bool {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).has_copies(place)
    }

    /// Does something with the runtime, and lets the driver do what follows.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut ExpertRuntime, Moment) -> T) -> T {
        let result = f(&mut self.lock().requests.runtime, self.now());
        self.changed.notify_one();
        result
    }

    fn served(&self, place: &ExpertPlace) -> Option<ServedExpert> {
        self.lock().experts.get(place).copied()
    }

    /// The number of an expert that is served here under a lease.
    pub(super) fn number_of(&self, place: &ExpertPlace) -> Option<u32> {
        let number = self.lock().experts.get(place).map(|expert| expert.number)?;
        self.holds(place).then_some(number)
    }

    /// The version of what the expert of this number computed at a step. `None` where it is served here no longer: under the next
    /// lease the place may begin with another state, and no two states are ever signed under one version.
    pub(super) fn version(
        &self,
        place: &ExpertPlace,
        number: u32,
        n_steps: u64,
    ) -> Option<CheckpointVersion> {
        let lease = self.lease(place)?;
        let served = self.served(place)?;
        let is_same = served.number == number && served.term == lease.term;
        is_same.then_some(CheckpointVersion { term: served.term, n_steps })
    }

    /// Admits a request by its head.
    pub(super) fn admit(&self, request: ServedRequest) -> Result<RequestKey, ServingRefusal> {
        self.with(|runtime, now| runtime.on_request(now, request))
    }

    /// The tensors of an admitted request are here. Its answer comes later.
    pub(super) fn on_received(
        &self,
        key: RequestKey,
        of: (LayerId, AddressGroup),
        tensors: ExpertTensors,
    ) -> oneshot::Receiver<ExpertAnswer> {
        let receiver = self.lock().requests.on_received(self.now(), key, of, tensors);
        self.changed.notify_one();
        receiver
    }

    /// The conversation about a request is over.
    pub(super) fn on_over(&self, key: RequestKey) {
        self.lock().requests.on_over(self.now(), key);
        self.changed.notify_one();
    }

    pub(super) fn stage(&self) -> HostStage {
        self.lock().stage
    }

    /// What its operator is shown.
    pub(super) fn view(&self) -> HostView {
        let (inner, now) = (self.lock(), self.now());
        let experts = inner.experts.iter().map(|((layer, uid), expert)| ServedExpertView {
            layer: layer.0,
            uid: uid.to_string(),
            n_steps: expert.n_steps,
            n_requests: expert.n_requests,
            n_rows_waiting: inner.requests.runtime.rows_waiting(expert.number),
            is_frozen: inner.is_frozen(*layer),
            stored_s_ago: expert.stored_at.map(|at| now.saturating_sub(at).as_secs()),
        });
        let load = inner.requests.runtime.load();
        HostView {
            run: self.run_id.clone(),
            peer: self.home.node.peer_id().to_string(),
            n_room: self.n_room,
            stage: inner.stage,
            handed_over: inner.handed_over,
            n_rows_waiting: load.rows_waiting,
            rows_per_second: load.rows_per_second,
            frozen_layers: inner.frozen.union(&inner.frozen_by_run).map(|layer| layer.0).collect(),
            experts: experts.collect(),
        }
    }

    /// The experts that are served, with the rows that wait for each.
    pub(super) fn announced(&self) -> Vec<(LayerId, AnnouncedExpert)> {
        let inner = self.lock();
        let announced = |(&(layer, uid), expert): (&ExpertPlace, &ServedExpert)| {
            let n_waiting = inner.requests.runtime.expert_load(self.now(), expert.number).n_waiting;
            (layer, AnnouncedExpert { uid, n_waiting, n_steps: expert.n_steps })
        };
        inner.experts.iter().map(announced).collect()
    }

    /// What there is to do for each of them. One that this host's operator has frozen is to have no copies: they would learn.
    pub(super) fn loads(&self) -> Vec<(ExpertPlace, ExpertLoad)> {
        let (inner, now) = (self.lock(), self.now());
        let load = |(place, expert): (&ExpertPlace, &ServedExpert)| {
            let load = inner.requests.runtime.expert_load(now, expert.number);
            let n_waiting = if inner.frozen.contains(&place.0) { 0 } else { load.n_waiting };
            (*place, ExpertLoad { n_waiting, ..load })
        };
        inner.experts.iter().map(load).collect()
    }
}

impl Inner {
    /// Whether the experts of a layer make no step here.
    pub(super) fn is_frozen(&self, layer: LayerId) -> bool {
        self.frozen.contains(&layer) || self.frozen_by_run.contains(&layer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::batches;
    use super::*;

    #[test]
    fn a_layer_is_frozen_by_the_operator_of_the_host_or_of_the_run() {
        let mut inner = batches::idle(BTreeSet::from([LayerId(1)]), &[]);
        inner.frozen_by_run = BTreeSet::from([LayerId(2)]);
        let frozen: Vec<bool> = (0..4).map(|layer| inner.is_frozen(LayerId(layer))).collect();
        assert_eq!(frozen, [false, true, true, false]);
    }
}
