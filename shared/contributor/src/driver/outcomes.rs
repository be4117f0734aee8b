//! Handles the outcome of each completed operation.

use std::rc::Rc;

use barnraise_learning::{ComputeDevice, MeanGradient, ModelError, ParameterLayout};
use barnraise_protocol::gradient::{ContributionRefusal, PreparedContribution};
use barnraise_protocol::receipt::SignedReceipt;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::state::EpochParameters;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, DeviceChange, Interruption};
use barnraise_swarm::compression::ContributionOutcome;
use barnraise_swarm::contributor::LateWork;
use barnraise_swarm::pacing::PassTime;
use barnraise_swarm::samples::SampleStream;
use barnraise_swarm::shards::Exchange;
use futures::FutureExt;
use futures::future::Fuse;

use super::{BackboneConnection, ComputeKind, Driver, NetKind, RunContext};
use crate::commitment::{CommitmentSigner, SignerError};
use crate::compute::{self, ComputeError, ComputeOutcome, ComputeResult, GradientLabel, TrialVerdict};
use crate::error::OperationError;
use crate::event::ContributorEvent;
use crate::network::{self, Connected, NetOutcome};
use crate::platform::Platform;
use crate::speed::Speed;

/// Contribution id of a late contribution, which gets its id when it is offered.
const UNNAMED: u64 = 0;

impl<'a, P: Platform, F: FnMut(ContributorEvent)> Driver<'a, P, F> {
    pub(super) fn on_net(&mut self, outcome: NetOutcome<P>) {
        let kind = self.net_kind.take();
        self.net_cancel = None;
        match outcome {
            NetOutcome::Connected(result) => match result {
                Ok(connected) => self.on_connected(connected),
                Err(error) => self.on_net_error(kind, &error),
            },
            NetOutcome::State { stream, partial, result } => {
                if let Some(run) = &mut self.run {
                    run.partial_state = partial;
                }
                if let Some(link) = &mut self.link {
                    link.state = stream;
                }
                match result {
                    Ok(state) => self.on_state(state, kind == Some(NetKind::State { is_background: true })),
                    Err(error) => self.on_net_error(kind, &error),
                }
            }
            NetOutcome::Reported { writer, result } => {
                if let Some(link) = &mut self.link {
                    link.session = Some(writer);
                }
                if let Err(error) = result {
                    self.on_net_error(kind, &error);
                }
            }
            NetOutcome::Answered { stream, result, sent, may_count } => {
                if let Some(link) = &mut self.link {
                    link.gradient = stream;
                }
                if let Some(sent) = sent {
                    self.uplink.on_sent(sent);
                }
                match result {
                    Ok(answer) => self.on_answer(answer),
                    Err(error) => {
                        self.is_offer_cut |= may_count;
                        self.on_net_error(kind, &error);
                    }
                }
            }
            NetOutcome::Left => {}
            NetOutcome::Offline(found) => self.on_offline(*found),
            NetOutcome::Renewed(Ok(()) | Err(OperationError::Cancelled)) => {}
            // The token is valid until it expires; afterwards the next connection fails with the reason.
            NetOutcome::Renewed(Err(error)) => self.fail(format!("Access could not be renewed: {error}")),
        }
    }

    fn on_net_error(&mut self, kind: Option<NetKind>, error: &OperationError) {
        if matches!(error, OperationError::Cancelled) {
            return;
        }
        let reason = Interruption::from(error);
        // Another backbone of the run may decide otherwise.
        if error.is_final() && !self.has_other_backbones {
            match error.is_about_access() {
                true => self.end_as(&reason.clone(), Activity::NotAdmitted { reason }),
                false => self.give_up(reason),
            }
            return;
        }
        match kind {
            Some(NetKind::Connect { is_joining: false } | NetKind::State { is_background: true }) => {
                self.on_request_error(&reason);
            }
            _ => self.disconnect(reason),
        }
    }

    /// A background request failed on the network. A connection that had worked before may have died unnoticed:
    /// then the requests are retried once on a new one.
    pub(super) fn on_request_error(&mut self, reason: &Interruption) {
        let was_proven = self.link.as_ref().is_some_and(|link| link.is_proven);
        self.drop_link();
        if !was_proven && self.is_idle && !self.start_offline(reason) {
            self.fail_requests(reason);
        }
    }

    fn on_connected(&mut self, connected: Connected<P>) {
        let now = self.platform.now();
        let Connected { run, backbone, session } = connected;
        self.on_backbone(backbone);
        if !self.use_run(*run) {
            return;
        }
        let link = self.link.get_or_insert_with(|| {
            self.n_links += 1;
            BackboneConnection {
                id: self.n_links,
                session: None,
                is_proven: false,
                state: None,
                gradient: None,
                shard: None,
                used_at: now,
            }
        });
        link.used_at = now;
        let Some((writer, reader, progress)) = session else { return };
        link.session = Some(writer);
        self.session = network::listen::<P>(reader).boxed_local().fuse();
        let Some(run) = &self.run else { return };
        let description = &run.description;
        let (samples_max, micro_batch) =
            (description.synchronous().contribution_samples_max, description.synchronous().micro_batch_size);
        self.contributor.on_connected(now, samples_max, micro_batch);
        self.contributor.on_message(now);
        self.contributor.on_epoch(progress.epoch);
        (self.events)(ContributorEvent::Progress(progress));
    }

    /// After a change of backbones: a contribution that the other one may have accepted is dropped, as it would count
    /// twice. All other computed work is offered to this one.
    fn on_backbone(&mut self, backbone: Option<Vec<u8>>) {
        let Some(backbone) = backbone else { return };
        let is_other = self.backbone.as_ref().is_some_and(|before| *before != backbone);
        self.backbone = Some(backbone);
        if !is_other {
            return;
        }
        if self.is_offer_cut && self.prepared.take().is_some() {
            self.contributor.on_gradient_lost();
        }
        self.contributor.on_moved(self.platform.now());
        if let Some(run) = &mut self.run {
            run.next_parameters = None;
        }
    }

    /// Adopts the backbone's description of the run; `false` where that is impossible.
    pub(super) fn use_run(&mut self, description: RunDescription) -> bool {
        let is_same = |run: &RunContext| *run.description == description;
        if self.run.as_ref().is_some_and(is_same) {
            return true;
        }
        let is_same_elsewhere = |run: &RunContext| {
            let access = run.description.access;
            *run.description == RunDescription { access, ..description.clone() }
        };
        if self.run.as_ref().is_some_and(is_same_elsewhere) {
            return self.use_access(description);
        }
        let description = Rc::new(description);
        let n_parameters = match ParameterLayout::of_run(&description) {
            Ok(layout) => layout.n_parameters(),
            Err(error) => {
                self.give_up(Interruption::other(error));
                return false;
            }
        };
        // Work for another run is of no use in this one.
        self.contributor.on_trainer_lost();
        self.prepared = None;
        self.loss = None;
        self.pass = None;
        self.pacer.on_change();
        self.compute = Fuse::terminated();
        self.compute_kind = None;
        self.shard = Fuse::terminated();
        self.shard_id = None;
        let compressor = compute::compressor(&description, n_parameters);
        let signer = match self.commitment_signer(&description) {
            Ok(signer) => signer,
            Err(error) => {
                self.give_up(Interruption::other(error));
                return false;
            }
        };
        self.contributor.set_late_work(compute::late_work(&description, &compressor));
        self.contributor.set_delayed(description.synchronous().delayed_updates);
        let shards = &description.data.manifest.shards;
        let n_shards = shards.len() as u32;
        let sizes = shards.iter().map(|entry| entry.n_bytes).collect();
        let capacity = description.data.shuffle_buffer_samples as usize;
        self.platform.on_run(&description, n_parameters);
        self.run = Some(RunContext {
            description: Rc::clone(&description),
            n_parameters,
            trainer: None,
            compressor,
            commitment_signer: signer,
            late: None,
            loaded: None,
            waiting_parameters: None,
            next_parameters: None,
            is_warm: false,
            samples: SampleStream::new(n_shards, capacity, self.seed),
            exchange: Exchange::new(sizes, self.platform.shard_cache_bytes_max(), self.seed.rotate_left(32)),
            survey_by: self.survey_by(),
            wanted_shard: None,
            partial_state: None,
            partial_shard: None,
        });
        (self.events)(ContributorEvent::Described(Box::new(RunDescription::clone(&description))));
        match self.new_trainer() {
            Ok(()) => {}
            Err(ModelError::Device(error)) => self.on_device_lost(None, &error.to_string()),
            Err(error) => self.give_up(Interruption::other(error)),
        }
        self.fatal_error.is_none()
    }

    /// The same run, at a backbone with another access authority. Data, residuals and pending contributions stay;
    /// contributions are signed for the new description.
    fn use_access(&mut self, description: RunDescription) -> bool {
        let Some(run) = &mut self.run else { return true };
        let prepared = self.prepared.take().map(Rc::unwrap_or_clone);
        let signed = match &mut run.commitment_signer {
            Some(signer) => signer
                .on_described(&description)
                .and_then(|()| prepared.map(|prepared| signer.sign_again(prepared)).transpose()),
            None => Ok(prepared),
        };
        match signed {
            Ok(prepared) => self.prepared = prepared.map(Rc::new),
            Err(error) => {
                self.give_up(Interruption::other(error));
                return false;
            }
        }
        self.platform.on_run(&description, run.n_parameters);
        run.description = Rc::new(description);
        true
    }

    /// The signer of commitments, if the run recomputes contributions.
    fn commitment_signer(&self, run: &RunDescription) -> Result<Option<CommitmentSigner>, SignerError> {
        if !run.synchronous().recomputed {
            return Ok(None);
        }
        let key = self.ticket.signing_key().ok_or(SignerError::NoKey)?;
        Ok(Some(CommitmentSigner::new(key, run)?))
    }

    fn new_trainer(&mut self) -> Result<(), ModelError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        if let Some(signer) = &mut run.commitment_signer {
            signer.on_trainer_lost();
        }
        run.trainer = Some(compute::trainer(&run.description, self.device.clone())?);
        run.is_warm = false;
        run.loaded = None;
        Ok(())
    }

    pub(super) fn on_state(&mut self, state: EpochParameters, is_background: bool) {
        let now = self.platform.now();
        if let Some(link) = &mut self.link {
            link.is_proven = true;
            link.used_at = now;
        }
        let Some(run) = &mut self.run else { return };
        if !is_background && self.contributor.leaves_aside(state.epoch) {
            self.contributor.on_fetched(state.epoch);
            run.next_parameters = Some(state);
            return;
        }
        let Some(trainer) = &mut run.trainer else {
            run.waiting_parameters = Some((state, is_background));
            return;
        };
        if is_background && !self.is_idle {
            // Contributing began in the meantime, and the state machine wants another epoch.
            return;
        }
        match trainer.load_parameters(&state.parameters) {
            Ok(()) => {
                trainer.on_epoch(state.epoch);
                if let Some(signer) = &mut run.commitment_signer {
                    signer.on_parameters(state.sha256, state.epoch);
                }
                run.loaded = Some((state.epoch, now));
                if !is_background {
                    self.contributor.on_state(state.epoch);
                }
            }
            Err(error) => self.on_model_error(None, &error),
        }
    }

    fn on_answer(&mut self, answer: Result<SignedReceipt, ContributionRefusal>) {
        let now = self.platform.now();
        self.contributor.on_message(now);
        let answer = answer.map(|receipt| {
            let accepted = receipt.accepted();
            self.on_receipt(receipt);
            accepted
        });
        self.contributor.on_answer(now, &answer);
        // The journal may have it nevertheless.
        self.is_offer_cut |= matches!(answer, Err(ContributionRefusal::Storage));
        if matches!(answer, Err(ContributionRefusal::Commitment(_))) {
            // The parameters may no longer be the backbone's.
            self.contributor.on_trainer_lost();
            if let Some(run) = &mut self.run {
                run.next_parameters = None;
            }
        }
        let outcome = ContributionOutcome::of(&answer, self.is_offer_cut);
        if let Some((run, outcome)) = self.run.as_mut().zip(outcome) {
            run.compressor.settle(outcome);
        }
        if !matches!(
            answer,
            Err(ContributionRefusal::Busy | ContributionRefusal::Storage | ContributionRefusal::NotJoined)
        ) {
            let prepared = self.prepared.take();
            let is_late = matches!(answer, Err(ContributionRefusal::Epoch { .. }))
                && outcome == Some(ContributionOutcome::NotCounted);
            if let Some(late) = prepared.filter(|_| is_late) {
                self.keep_late(late);
            }
        }
    }

    /// A recomputed contribution cannot be merged into another one: it is offered by itself in a later epoch.
    fn keep_late(&mut self, late: Rc<PreparedContribution>) {
        let Some(run) = &mut self.run else { return };
        if compute::late_work(&run.description, &run.compressor) == LateWork::ByItself {
            self.contributor.on_kept(late.offer.epoch);
            run.late = Some(late);
        }
    }

    /// A receipt that does not verify is not passed on. Its contribution counts nevertheless.
    fn on_receipt(&mut self, receipt: SignedReceipt) {
        let (Some(run), Some(prepared)) = (&self.run, &self.prepared) else { return };
        match receipt.verify_for(&run.description.identity.run_id, self.ticket.peer(), &prepared.offer) {
            Ok(()) => (self.events)(ContributorEvent::Receipt(Box::new(receipt))),
            Err(error) => self.fail(format!("A contribution was accepted, but {error}")),
        }
    }

    pub(super) fn on_compute(&mut self, outcome: ComputeOutcome) {
        let kind = self.compute_kind.take();
        let ComputeOutcome { trainer, done } = outcome;
        self.lost_at = None;
        let loss = trainer.last_loss();
        if let Some(run) = &mut self.run {
            run.trainer = Some(trainer);
        }
        match done {
            ComputeResult::Batch { n_samples, took, is_ended, result: Ok(()) } => {
                self.loss = loss.or(self.loss);
                self.on_batch(n_samples, took, is_ended);
            }
            ComputeResult::Batch { result: Err(error), .. } => self.on_model_error(kind, &error),
            ComputeResult::Trial { result: Ok(verdict) } => self.on_trial(verdict),
            ComputeResult::Trial { result: Err(error) } => self.on_model_error(kind, &error),
            ComputeResult::Gradient { naming, took, result } => {
                let began = self.platform.now();
                self.on_gradient(naming, result);
                let now = self.platform.now();
                let took = took + now.saturating_sub(began);
                let rest = self.pacer.on_busy(now, took);
                self.speed.add(0, took + rest);
            }
            ComputeResult::Prediction { request, epoch, result: Ok(probabilities) } => {
                (self.events)(ContributorEvent::Prediction { request, epoch, probabilities });
            }
            ComputeResult::Prediction { result: Err(error), .. } => match error {
                ModelError::Device(_) => self.on_model_error(kind, &error),
                error => self.fail(format!("The prediction could not be had: {error}")),
            },
        }
        if let Some((state, is_background)) = self.run.as_mut().and_then(|run| run.waiting_parameters.take())
        {
            self.on_state(state, is_background);
        }
    }

    /// Both devices are warm now, and the trainer is on the faster one.
    fn on_trial(&mut self, verdict: TrialVerdict) {
        if let Some(run) = &mut self.run {
            run.is_warm = true;
            if verdict == TrialVerdict::Slower {
                run.loaded = None;
                self.change_device(ComputeDevice::cpu(), DeviceChange::Slower);
            }
        }
    }

    fn on_batch(&mut self, n_samples: u32, took: Moment, is_ended: bool) {
        if let Some(run) = &mut self.run {
            if let Some(signer) = &mut run.commitment_signer {
                signer.on_batch();
            }
            // The first pass compiles and tunes: it is no measure of speed, and needs no rest.
            if std::mem::replace(&mut run.is_warm, true) {
                let rest = self.pacer.on_busy(self.platform.now(), took);
                self.speed.add(n_samples, took + rest);
                if is_ended {
                    self.pacer.on_pass(n_samples, took);
                    self.pass = Some(PassTime { n_samples, milliseconds: took.as_secs_f32() * 1e3 });
                }
            }
        }
        self.contributor.on_batch(n_samples, self.speed.samples_per_second());
    }

    fn on_gradient(&mut self, naming: GradientLabel, result: Result<MeanGradient, ComputeError>) {
        let Some(run) = &mut self.run else { return };
        let GradientLabel { contribution_id, epoch, n_samples } = naming;
        let Some(contribution_id) = contribution_id else {
            // A failed gradient leaves nothing to keep; the next one shows the error.
            let Ok(mean) = result else { return };
            let Some(signer) = &mut run.commitment_signer else {
                return run.compressor.add_late(mean.values, n_samples, epoch);
            };
            if let Ok(late) = compute::prepare(&mut run.compressor, Some(signer), UNNAMED, epoch, mean) {
                self.keep_late(Rc::new(late));
            }
            return;
        };
        run.compressor.set_codec(run.description.synchronous().codec_of_link(self.uplink.bytes_per_second()));
        let prepare = |mean| {
            compute::prepare(
                &mut run.compressor,
                run.commitment_signer.as_mut(),
                contribution_id,
                epoch,
                mean,
            )
        };
        let error = match result.and_then(prepare) {
            Ok(prepared) => {
                self.prepared = Some(Rc::new(prepared));
                self.is_offer_cut = false;
                return;
            }
            Err(ComputeError::Model(error @ ModelError::Device(_))) => {
                self.on_model_error(Some(ComputeKind::Gradient), &error);
                return;
            }
            Err(error) => error,
        };
        match error.not_finite_at() {
            // Counted as the aggregator's refusal.
            Some(index) => {
                let refusal = Err(ContributionRefusal::NotFinite { index });
                self.contributor.on_answer(self.platform.now(), &refusal);
            }
            None => self.contributor.on_gradient_lost(),
        }
        self.fail(format!("A gradient was not sent: {error}"));
    }

    fn on_model_error(&mut self, kind: Option<ComputeKind>, error: &ModelError) {
        match error {
            ModelError::Device(error) => self.on_device_lost(kind, &error.to_string()),
            error => self.give_up(Interruption::other(error)),
        }
    }

    /// The CPU takes over; the gradient on the lost device is lost.
    pub(super) fn on_device_lost(&mut self, kind: Option<ComputeKind>, reason: &str) {
        let cpu = ComputeDevice::cpu();
        if self.device.choice() == cpu.choice() {
            self.give_up(Interruption::Device { detail: reason.to_owned() });
            return;
        }
        self.lost_at = None;
        match kind {
            Some(ComputeKind::Gradient) => self.contributor.on_gradient_lost(),
            Some(ComputeKind::Prediction) => {
                self.fail("The prediction was lost with the device; ask again".to_owned());
            }
            Some(ComputeKind::Trial | ComputeKind::Batch) | None => {}
        }
        self.change_device(cpu, DeviceChange::Lost { detail: reason.to_owned() });
        if let Err(error) = self.new_trainer() {
            self.give_up(Interruption::other(error));
        }
    }

    /// Drops the gradient accumulated on the old device; the session follows in [`Self::step`].
    fn change_device(&mut self, device: ComputeDevice, reason: DeviceChange) {
        self.device = device;
        self.speed = Speed::default();
        self.pacer.on_change();
        self.pass = None;
        self.contributor.on_trainer_lost();
        if let Some(run) = &mut self.run {
            run.next_parameters = None;
            if let Some(signer) = &mut run.commitment_signer {
                signer.on_trainer_lost();
            }
        }
        (self.events)(ContributorEvent::DeviceChanged {
            device: self.platform.device_kind(self.device.choice()),
            device_name: self.device.name().to_owned(),
            reason,
        });
    }
}
