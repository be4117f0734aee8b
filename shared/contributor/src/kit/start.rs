//! Starts what the kit does for every scheme: connections, parameters, the comparison of devices, batches.

use std::rc::Rc;

use barnraise_learning::{ComputeDevice, DataShape};
use barnraise_protocol::contribute::{DEVICE_NAME_CHARS_MAX, Join};
use barnraise_swarm::samples::DrawnSample;
use futures::FutureExt;

use super::compute;
use super::frozen::Frozen;
use super::network::{self, NetOutcome};
use super::scheme::SchemeParticipant;
use super::{ComputeKind, Kit, NetKind, trial};
use crate::platform::Platform;

impl<'a, P: Platform> Kit<'a, P> {
    pub(super) fn start_connect(&mut self, is_joining: bool) {
        let (operation, cancel) = self.operation();
        self.joined_as = is_joining.then(|| (self.device.choice(), self.name.clone()));
        let join = is_joining.then(|| Join {
            // Filled in once the backbone has described the run.
            run_id: String::new(),
            device: self.platform.device_kind(self.device.choice()),
            device_name: self.device.name().chars().take(DEVICE_NAME_CHARS_MAX).collect(),
            name: self.name.clone(),
        });
        let connect = network::connect(operation, Rc::clone(&self.ticket), self.link.is_some(), join);
        self.run_net(NetKind::Connect { is_joining }, cancel, connect);
    }

    /// Restarts the session if device or name changed, as every participant sees them.
    pub(super) fn rejoin_as_changed(&mut self) {
        let is_other = self
            .joined_as
            .as_ref()
            .is_some_and(|(device, name)| *device != self.device.choice() || *name != self.name);
        if is_other && self.net_kind.is_none() && self.session.down().is_none() {
            self.messages = futures::future::Fuse::terminated();
            if let Some(link) = &mut self.link {
                link.session = None;
            }
            self.session.rejoin(self.platform.now());
        }
    }

    /// Renews the token in time before it expires, so that nothing is interrupted.
    pub(super) fn start_renewal(&mut self) {
        let is_due = self.ticket.is_old(self.platform.unix_time());
        if !is_due || self.net_kind.is_some() || self.link.is_none() {
            return;
        }
        let Some(run) = &self.run else { return };
        let run = Rc::clone(&run.description);
        let (operation, cancel) = self.operation();
        let renew = network::renew(operation, Rc::clone(&self.ticket), run);
        self.run_net(NetKind::Renew, cancel, renew);
    }

    pub(super) fn start_disconnect(&mut self) {
        let (operation, cancel) = self.operation();
        let disconnect = async move {
            operation.platform.disconnect().await;
            NetOutcome::Left
        };
        self.run_net(NetKind::Leave, cancel, disconnect);
    }

    /// Pulls the newest parameters; then the scheme gets them. Frozen weights are pulled before.
    pub(crate) fn start_state(&mut self, is_background: bool) {
        if self.awaits_frozen() {
            return;
        }
        let keep = self.caches_next(self.platform.now());
        let (operation, cancel) = self.operation();
        let (Some(link), Some(run)) = (&mut self.link, &mut self.run) else { return };
        let (n_parameters, codec) = (run.n_parameters, run.description.scheme.state_codec());
        let progress = Rc::clone(&self.net_progress);
        progress.set((0, codec.encoded_len(n_parameters) as u64));
        let partial = run.partial_state.take();
        let (stream, wanted) = (link.state.take(), (n_parameters as u64, codec));
        let fetch = network::fetch_state(operation, stream, partial, wanted, keep, progress);
        self.run_net(NetKind::State { is_background }, cancel, fetch);
    }

    /// Closes the session, and the connection with it once it is unused.
    pub(crate) fn start_leave(&mut self) {
        self.stop_deadline = None;
        let (operation, cancel) = self.operation();
        let Some(link) = &mut self.link else { return };
        link.used_at = self.platform.now();
        self.messages = futures::future::Fuse::terminated();
        let Some(writer) = link.session.take() else { return };
        self.run_net(NetKind::Leave, cancel, network::leave(operation, writer));
    }

    /// Compares the devices before the first batch, where the choice is free.
    pub(super) fn start_trial(&mut self, scheme: &dyn SchemeParticipant<'a, P>) {
        let is_at_work = !self.is_idle && !self.session.is_stopping() && self.session.down().is_none();
        let has_hosted = self.run.as_ref().is_some_and(|run| run.description.model.hosted.is_some());
        // What waits for experts elsewhere tells little of a device.
        if !self.is_device_free || !is_at_work || self.compute_kind.is_some() || has_hosted {
            return;
        }
        let cpu = ComputeDevice::cpu();
        let Some(run) = &mut self.run else { return };
        let Some(adapter) = run.trainer.take() else { return };
        self.is_device_free = false;
        let description = &run.description;
        let n_samples = match description.is_cuttable() {
            true => self.pacer.within_memory(description.scheme.micro_batch_size()),
            false => description.scheme.micro_batch_size(),
        };
        let data = DataShape::of(&description.data.manifest.samples);
        let frozen = run.frozen.as_ref().and_then(Frozen::whole);
        // A model that fits the adapter fits the CPU as well.
        let processor = (self.device.choice() != cpu.choice())
            .then(|| scheme.trainer(description, frozen, cpu).ok())
            .flatten();
        let Some(processor) = processor else {
            run.trainer = Some(adapter);
            return;
        };
        let batch = data.blank_samples(n_samples as usize);
        self.compute_kind = Some(ComputeKind::Trial);
        self.compute = trial::trial(self.platform, adapter, processor, batch).boxed_local().fuse();
    }

    /// Starts a batch, unless the device rests, or the experts of the model are away; then the timer wakes the driver. Returns the
    /// samples that were drawn.
    pub(crate) fn start_batch(&mut self) -> Option<Vec<DrawnSample>> {
        if self.pacer.rests_until(self.platform.now()).is_some() {
            return None;
        }
        if self.run.as_ref()?.trainer.is_none() || !self.may_ask_experts() {
            return None;
        }
        let run = self.run.as_mut()?;
        let mut trainer = run.trainer.take()?;
        let micro_batch = run.description.scheme.micro_batch_size();
        let n_samples = match run.description.is_cuttable() {
            true => self.pacer.pass_samples(micro_batch),
            false => micro_batch,
        };
        // A device that is to stay cool or responsive, or is short of memory, lends one thread.
        self.is_divided =
            !self.pacer.wants_ends() && self.speed.is_worth_dividing(n_samples, self.is_divided);
        trainer.divide(self.is_divided);
        let Some(drawn) = run.samples.take(n_samples as usize) else {
            run.trainer = Some(trainer);
            self.is_starved = true;
            return None;
        };
        let epoch = run.loaded.map_or(0, |(epoch, _)| epoch);
        let is_ended = self.pacer.wants_ends();
        // A pass that looks whether experts are back is followed by none that would drive it.
        let is_awaited = self.experts_away.are_away();
        self.compute_kind = Some(ComputeKind::Batch);
        let batch = compute::batch(self.platform, trainer, drawn.samples, epoch, (is_ended, is_awaited));
        self.compute = batch.boxed_local().fuse();
        Some(drawn.ids)
    }
}
