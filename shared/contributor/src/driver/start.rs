//! Starts the state machine's next action, where no other operation is in progress.

use std::rc::Rc;

use barnraise_learning::{ComputeDevice, DataShape};
use barnraise_protocol::contribute::{DEVICE_NAME_CHARS_MAX, Join, Report};
use barnraise_swarm::activity::Interruption;
use barnraise_swarm::contributor::ContributorAction;
use futures::FutureExt;

use super::{ComputeKind, Driver, NetKind};
use crate::compute::{self, GradientLabel};
use crate::event::ContributorEvent;
use crate::network::{self, NetOutcome};
use crate::platform::Platform;
use crate::trial;

impl<'a, P: Platform, F: FnMut(ContributorEvent)> Driver<'a, P, F> {
    /// Starts every operation that can be started now.
    pub(super) fn step(&mut self) {
        self.notice_silence();
        self.start_shard();
        self.start_prediction();
        self.start_trial();
        self.rejoin_as_changed();
        self.start_renewal();
        let is_parked = self.run.as_ref().is_some_and(|run| run.waiting_parameters.is_some());
        while self.net_kind.is_none() && self.compute_kind.is_none() && !is_parked {
            let action = self.contributor.next_action(self.platform.now());
            if !self.start(action) {
                break;
            }
        }
        if self.compute_kind.is_none() && !is_parked && self.contributor.computes_meanwhile() {
            self.start_batch();
        }
    }

    /// Starts an action; returns whether the next one can be taken at once.
    fn start(&mut self, action: ContributorAction) -> bool {
        self.wait_until = None;
        self.is_starved = false;
        match action {
            ContributorAction::Connect => self.start_connect(true),
            ContributorAction::FetchState => self.start_state(false),
            ContributorAction::LoadState => return self.load_state(),
            ContributorAction::ComputeBatch => self.start_batch(),
            ContributorAction::SendReport(report) => return self.start_report(report),
            ContributorAction::TakeGradient { contribution_id, epoch, n_samples } => {
                return self.start_gradient(GradientLabel {
                    contribution_id: Some(contribution_id),
                    epoch,
                    n_samples,
                });
            }
            ContributorAction::KeepLate { epoch, n_samples } => {
                return self.start_gradient(GradientLabel { contribution_id: None, epoch, n_samples });
            }
            ContributorAction::NameLate { contribution_id, epoch } => {
                self.name_late(contribution_id, epoch);
                return true;
            }
            ContributorAction::Offer => return self.start_offer(),
            ContributorAction::Wait(None) => {
                self.is_idle = true;
                self.stop_deadline = None;
                self.start_request_fetch();
            }
            ContributorAction::Wait(at) => {
                // Silence that the state machine saw ends the connection here too.
                if self.contributor.down().is_some() && self.link.is_some() {
                    self.drop_link();
                }
                self.wait_until = at;
            }
            ContributorAction::Leave => return self.start_leave(),
        }
        false
    }

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
    fn rejoin_as_changed(&mut self) {
        let is_other = self
            .joined_as
            .as_ref()
            .is_some_and(|(device, name)| *device != self.device.choice() || *name != self.name);
        if is_other && self.net_kind.is_none() && self.contributor.down().is_none() {
            self.session = futures::future::Fuse::terminated();
            if let Some(link) = &mut self.link {
                link.session = None;
            }
            self.contributor.rejoin(self.platform.now());
        }
    }

    /// Renews the token in time before it expires, so that nothing is interrupted.
    fn start_renewal(&mut self) {
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

    pub(super) fn start_state(&mut self, is_background: bool) {
        let keep = self.caches_next(self.platform.now());
        let (operation, cancel) = self.operation();
        let (Some(link), Some(run)) = (&mut self.link, &mut self.run) else { return };
        let (n_parameters, codec) = (run.n_parameters, run.description.synchronous().state_codec);
        let progress = Rc::clone(&self.net_progress);
        progress.set((0, codec.encoded_len(n_parameters) as u64));
        let partial = run.partial_state.take();
        let (stream, wanted) = (link.state.take(), (n_parameters as u64, codec));
        let fetch = network::fetch_state(operation, stream, partial, wanted, keep, progress);
        self.run_net(NetKind::State { is_background }, cancel, fetch);
    }

    fn load_state(&mut self) -> bool {
        match self.run.as_mut().and_then(|run| run.next_parameters.take()) {
            Some(state) => self.on_state(state, false),
            // They were lost with the device, and are fetched again.
            None => self.contributor.on_trainer_lost(),
        }
        true
    }

    fn start_report(&mut self, report: Report) -> bool {
        let (operation, cancel) = self.operation();
        let Some(writer) = self.link.as_mut().and_then(|link| link.session.take()) else {
            self.disconnect(Interruption::SessionEnded);
            return true;
        };
        self.run_net(NetKind::Report, cancel, network::report(operation, writer, report));
        true
    }

    /// Signs the late contribution for a new epoch; one that no longer counts is dropped.
    fn name_late(&mut self, contribution_id: u64, epoch: u64) {
        let Some(run) = &mut self.run else { return };
        let Some((late, signer)) = run.late.take().zip(run.commitment_signer.as_ref()) else { return };
        let late = Rc::unwrap_or_clone(late);
        match signer.sign_late(late, &run.description, (contribution_id, epoch)) {
            Ok(Some(prepared)) => {
                self.contributor.on_late(contribution_id, epoch, prepared.offer.n_samples);
                self.prepared = Some(Rc::new(prepared));
                self.is_offer_cut = false;
            }
            Ok(None) => {}
            Err(error) => self.fail(format!("A late contribution was not sent: {error}")),
        }
    }

    fn start_offer(&mut self) -> bool {
        let Some(prepared) = self.prepared.clone() else {
            self.contributor.on_gradient_lost();
            return true;
        };
        let (operation, cancel) = self.operation();
        let Some(link) = &mut self.link else { return false };
        let epoch = prepared.offer.epoch;
        let progress = Rc::clone(&self.net_progress);
        progress.set((0, prepared.bytes.len() as u64));
        self.checking.set(None);
        let checking = Rc::clone(&self.checking);
        let offer = network::offer(operation, link.gradient.take(), prepared, progress, checking);
        self.run_net(NetKind::Offer { epoch }, cancel, offer);
        true
    }

    fn start_leave(&mut self) -> bool {
        self.stop_deadline = None;
        self.prepared = None;
        let (operation, cancel) = self.operation();
        let Some(link) = &mut self.link else { return true };
        link.used_at = self.platform.now();
        self.session = futures::future::Fuse::terminated();
        let Some(writer) = link.session.take() else { return true };
        self.run_net(NetKind::Leave, cancel, network::leave(operation, writer));
        true
    }

    pub(super) fn run_net(
        &mut self,
        kind: NetKind,
        cancel: futures::channel::oneshot::Sender<()>,
        task: impl Future<Output = NetOutcome<P>> + 'a,
    ) {
        self.net_kind = Some(kind);
        self.net_cancel = Some(cancel);
        self.net = task.boxed_local().fuse();
    }

    /// Compares the devices before the first batch, where the choice is free.
    fn start_trial(&mut self) {
        let is_at_work =
            !self.is_idle && !self.contributor.is_stopping() && self.contributor.down().is_none();
        if !self.is_device_free || !is_at_work || self.compute_kind.is_some() {
            return;
        }
        let cpu = ComputeDevice::cpu();
        let Some(run) = &mut self.run else { return };
        let Some(adapter) = run.trainer.take() else { return };
        self.is_device_free = false;
        let description = &run.description;
        let n_samples = match description.is_cuttable() {
            true => self.pacer.within_memory(description.synchronous().micro_batch_size),
            false => description.synchronous().micro_batch_size,
        };
        let data = DataShape::of(&description.data.manifest.samples);
        // A model that fits the adapter fits the CPU as well.
        let processor =
            (self.device.choice() != cpu.choice()).then(|| compute::trainer(description, cpu).ok()).flatten();
        let Some(processor) = processor else {
            run.trainer = Some(adapter);
            return;
        };
        let batch = data.blank_samples(n_samples as usize);
        self.compute_kind = Some(ComputeKind::Trial);
        self.compute = trial::trial(self.platform, adapter, processor, batch).boxed_local().fuse();
    }

    /// Starts a batch, unless the device rests; then the timer wakes the driver.
    fn start_batch(&mut self) {
        if self.pacer.rests_until(self.platform.now()).is_some() {
            return;
        }
        let Some(run) = &mut self.run else { return };
        let Some(trainer) = run.trainer.take() else { return };
        let micro_batch = run.description.synchronous().micro_batch_size;
        let n_samples = match run.description.is_cuttable() {
            true => self.pacer.pass_samples(micro_batch),
            false => micro_batch,
        };
        let Some(drawn) = run.samples.take(n_samples as usize) else {
            run.trainer = Some(trainer);
            self.is_starved = true;
            return;
        };
        if let Some(signer) = &mut run.commitment_signer {
            signer.on_drawn(drawn.ids);
        }
        let epoch = run.loaded.map_or(0, |(epoch, _)| epoch);
        let is_ended = self.pacer.wants_ends();
        self.compute_kind = Some(ComputeKind::Batch);
        let batch = compute::batch(self.platform, trainer, drawn.samples, epoch, is_ended);
        self.compute = batch.boxed_local().fuse();
    }

    fn start_gradient(&mut self, naming: GradientLabel) -> bool {
        let Some(run) = &mut self.run else {
            self.contributor.on_gradient_lost();
            return true;
        };
        let Some(trainer) = run.trainer.take() else {
            self.contributor.on_gradient_lost();
            return true;
        };
        if let Some(signer) = &mut run.commitment_signer {
            signer.on_take();
        }
        self.compute_kind = Some(ComputeKind::Gradient);
        self.compute = compute::gradient(self.platform, trainer, naming).boxed_local().fuse();
        true
    }
}
