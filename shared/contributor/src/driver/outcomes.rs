//! What follows from each operation that completed.

use std::rc::Rc;

use barnraise_learning::{ComputeDevice, MeanGradient, ModelError};
use barnraise_protocol::gradient::{Prepared, Refusal};
use barnraise_protocol::receipt::SignedReceipt;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::state::State;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::DeviceChange;
use barnraise_swarm::compression::Fate;
use barnraise_swarm::conduct::PassTime;
use barnraise_swarm::contributor::LateWork;
use barnraise_swarm::samples::SampleStream;
use barnraise_swarm::shards::Exchange;
use futures::FutureExt;
use futures::future::Fuse;

use super::{ComputeKind, Driver, Link, NetKind, Run};
use crate::accounting::Accountant;
use crate::compute::{self, ComputeError, ComputeOutcome, Done, Naming};
use crate::error::OperationError;
use crate::event::Event;
use crate::network::{self, Connected, NetOutcome};
use crate::platform::Platform;
use crate::speed::Speed;
use crate::trial::Verdict;

/// Of what has its name when it is offered.
const UNNAMED: u64 = 0;

impl<'a, P: Platform, F: FnMut(Event)> Driver<'a, P, F> {
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
                    Ok(state) => self.on_state(state, kind == Some(NetKind::State { is_errand: true })),
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
            NetOutcome::Kept(found) => self.on_kept(*found),
            NetOutcome::Renewed(Ok(()) | Err(OperationError::Cancelled)) => {}
            // While the token lasts nothing else changes; afterwards the next connection tells why.
            NetOutcome::Renewed(Err(error)) => self.fail(format!("Access could not be renewed: {error}")),
        }
    }

    fn on_net_error(&mut self, kind: Option<NetKind>, error: &OperationError) {
        if matches!(error, OperationError::Cancelled) {
            return;
        }
        let reason = error.to_string();
        // Another backbone of the run may be of another mind.
        if error.is_final() && !self.has_others {
            self.give_up(&reason);
            return;
        }
        match kind {
            Some(NetKind::Connect { is_joining: false } | NetKind::State { is_errand: true }) => {
                self.on_errand_error(&reason);
            }
            _ => self.disconnect(reason),
        }
    }

    /// An errand failed on the network. A connection that had worked before may have died unnoticed:
    /// then the errands are tried once more on a new one.
    pub(super) fn on_errand_error(&mut self, reason: &str) {
        let was_proven = self.link.as_ref().is_some_and(|link| link.is_proven);
        self.drop_link();
        if !was_proven && self.is_idle && !self.start_kept(reason) {
            self.fail_errands(reason);
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
            Link {
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
        let (samples_max, micro_batch) = (description.contribution_samples_max, description.micro_batch_size);
        self.contributor.on_connected(now, samples_max, micro_batch);
        self.contributor.on_heard(now);
        self.contributor.on_epoch(progress.epoch);
        (self.events)(Event::Progress(progress));
    }

    /// What another backbone may have accepted is not offered to this one: it would count twice. All else that was
    /// computed is.
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
            run.aside = None;
        }
    }

    /// Goes on with the run as the backbone describes it now; `false` where that is impossible.
    pub(super) fn use_run(&mut self, description: RunDescription) -> bool {
        let is_same = |run: &Run| *run.description == description;
        if self.run.as_ref().is_some_and(is_same) {
            return true;
        }
        let is_same_elsewhere = |run: &Run| {
            let access = run.description.access;
            *run.description == RunDescription { access, ..description.clone() }
        };
        if self.run.as_ref().is_some_and(is_same_elsewhere) {
            return self.use_access(description);
        }
        let description = Rc::new(description);
        // Whatever belonged to another run is of no use in this one.
        self.contributor.on_trainer_lost();
        self.prepared = None;
        self.loss = None;
        self.pass = None;
        self.pacer.on_change();
        self.compute = Fuse::terminated();
        self.compute_kind = None;
        self.shard = Fuse::terminated();
        self.shard_id = None;
        let compressor = compute::compressor(&description);
        let accountant = match self.accountant(&description) {
            Ok(accountant) => accountant,
            Err(error) => {
                self.give_up(&error);
                return false;
            }
        };
        self.contributor.set_late_work(compute::late_work(&description, &compressor));
        self.contributor.set_delayed(description.delayed_updates);
        let shards = &description.manifest.shards;
        let n_shards = shards.len() as u32;
        let sizes = shards.iter().map(|entry| entry.n_bytes).collect();
        let capacity = description.shuffle_buffer_samples as usize;
        self.platform.on_run(&description);
        self.run = Some(Run {
            description: Rc::clone(&description),
            trainer: None,
            compressor,
            accountant,
            kept: None,
            loaded: None,
            parked: None,
            aside: None,
            is_warm: false,
            samples: SampleStream::new(n_shards, capacity, self.seed),
            exchange: Exchange::new(sizes, self.platform.shard_room(), self.seed.rotate_left(32)),
            survey_by: self.survey_by(),
            wanted_shard: None,
            partial_state: None,
            partial_shard: None,
        });
        (self.events)(Event::Described(Box::new(RunDescription::clone(&description))));
        match self.new_trainer() {
            Ok(()) => {}
            Err(ModelError::Device(error)) => self.on_device_lost(None, &error.to_string()),
            Err(error) => self.give_up(&error.to_string()),
        }
        self.broken.is_none()
    }

    /// The same run, at a backbone that lets others in: data, residuals and what is to be offered stay, and are signed for
    /// its description.
    fn use_access(&mut self, description: RunDescription) -> bool {
        let Some(run) = &mut self.run else { return true };
        let prepared = self.prepared.take().map(Rc::unwrap_or_clone);
        let signed = match &mut run.accountant {
            Some(accountant) => accountant
                .on_described(&description)
                .and_then(|()| prepared.map(|prepared| accountant.sign_again(prepared)).transpose()),
            None => Ok(prepared),
        };
        match signed {
            Ok(prepared) => self.prepared = prepared.map(Rc::new),
            Err(error) => {
                self.give_up(&error.to_string());
                return false;
            }
        }
        self.platform.on_run(&description);
        run.description = Rc::new(description);
        true
    }

    /// Where the run wants to know what contributions are.
    fn accountant(&self, run: &RunDescription) -> Result<Option<Accountant>, String> {
        if !run.recomputed {
            return Ok(None);
        }
        let key = self
            .ticket
            .signing_key()
            .ok_or("this run takes signed contributions: a peer with an Ed25519 key is wanted")?;
        Accountant::new(key, run).map(Some).map_err(|error| error.to_string())
    }

    fn new_trainer(&mut self) -> Result<(), ModelError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        if let Some(accountant) = &mut run.accountant {
            accountant.on_trainer_lost();
        }
        run.trainer = Some(compute::trainer(&run.description, self.device.clone())?);
        run.is_warm = false;
        run.loaded = None;
        Ok(())
    }

    pub(super) fn on_state(&mut self, state: State, is_errand: bool) {
        let now = self.platform.now();
        if let Some(link) = &mut self.link {
            link.is_proven = true;
            link.used_at = now;
        }
        let Some(run) = &mut self.run else { return };
        if !is_errand && self.contributor.leaves_aside(state.epoch) {
            self.contributor.on_fetched(state.epoch);
            run.aside = Some(state);
            return;
        }
        let Some(trainer) = &mut run.trainer else {
            run.parked = Some((state, is_errand));
            return;
        };
        if is_errand && !self.is_idle {
            // Contributing began meanwhile, and the state machine has an epoch of its own in mind.
            return;
        }
        match trainer.load_parameters(&state.parameters) {
            Ok(()) => {
                trainer.on_epoch(state.epoch);
                if let Some(accountant) = &mut run.accountant {
                    accountant.on_parameters(state.sha256, state.epoch);
                }
                run.loaded = Some((state.epoch, now));
                if !is_errand {
                    self.contributor.on_state(state.epoch);
                }
            }
            Err(error) => self.on_model_error(None, &error),
        }
    }

    fn on_answer(&mut self, answer: Result<SignedReceipt, Refusal>) {
        let now = self.platform.now();
        self.contributor.on_heard(now);
        let answer = answer.map(|receipt| {
            let accepted = receipt.accepted();
            self.on_receipt(receipt);
            accepted
        });
        self.contributor.on_answer(now, &answer);
        // It may be in the journal all the same.
        self.is_offer_cut |= matches!(answer, Err(Refusal::Storage));
        if matches!(answer, Err(Refusal::Account(_))) {
            // The parameters are perhaps not those that the backbone has by now.
            self.contributor.on_trainer_lost();
            if let Some(run) = &mut self.run {
                run.aside = None;
            }
        }
        let fate = Fate::of(&answer, self.is_offer_cut);
        if let Some((run, fate)) = self.run.as_mut().zip(fate) {
            run.compressor.settle(fate);
        }
        if !matches!(answer, Err(Refusal::Busy | Refusal::Storage | Refusal::NotJoined)) {
            let prepared = self.prepared.take();
            let is_late = matches!(answer, Err(Refusal::Epoch { .. })) && fate == Some(Fate::NotCounted);
            if let Some(late) = prepared.filter(|_| is_late) {
                self.keep_as_it_is(late);
            }
        }
    }

    /// What others compute once more goes into no other contribution: it is offered by itself in a later epoch.
    fn keep_as_it_is(&mut self, late: Rc<Prepared>) {
        let Some(run) = &mut self.run else { return };
        if compute::late_work(&run.description, &run.compressor) == LateWork::ByItself {
            self.contributor.on_kept(late.offer.epoch);
            run.kept = Some(late);
        }
    }

    /// A receipt that proves nothing is not passed on. What it is for counts all the same.
    fn on_receipt(&mut self, receipt: SignedReceipt) {
        let (Some(run), Some(prepared)) = (&self.run, &self.prepared) else { return };
        match receipt.verify_for(&run.description.run_id, self.ticket.peer(), &prepared.offer) {
            Ok(()) => (self.events)(Event::Receipt(Box::new(receipt))),
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
            Done::Batch { n_samples, took, is_ended, result: Ok(()) } => {
                self.loss = loss.or(self.loss);
                self.on_batch(n_samples, took, is_ended);
            }
            Done::Batch { result: Err(error), .. } => self.on_model_error(kind, &error),
            Done::Trial { result: Ok(verdict) } => self.on_trial(verdict),
            Done::Trial { result: Err(error) } => self.on_model_error(kind, &error),
            Done::Gradient { naming, took, result } => {
                let began = self.platform.now();
                self.on_gradient(naming, result);
                let now = self.platform.now();
                let took = took + now.saturating_sub(began);
                let rest = self.pacer.on_busy(now, took);
                self.speed.add(0, took + rest);
            }
            Done::Prediction { request, epoch, result: Ok(probabilities) } => {
                (self.events)(Event::Prediction { request, epoch, probabilities });
            }
            Done::Prediction { result: Err(error), .. } => match error {
                ModelError::Device(_) => self.on_model_error(kind, &error),
                error => self.fail(format!("The prediction could not be had: {error}")),
            },
        }
        if let Some((state, is_errand)) = self.run.as_mut().and_then(|run| run.parked.take()) {
            self.on_state(state, is_errand);
        }
    }

    /// Both devices are warm now, and the trainer is one of the faster.
    fn on_trial(&mut self, verdict: Verdict) {
        if let Some(run) = &mut self.run {
            run.is_warm = true;
            if verdict == Verdict::Slower {
                run.loaded = None;
                self.change_device(ComputeDevice::cpu(), DeviceChange::Slower);
            }
        }
    }

    fn on_batch(&mut self, n_samples: u32, took: Moment, is_ended: bool) {
        if let Some(run) = &mut self.run {
            if let Some(accountant) = &mut run.accountant {
                accountant.on_batch();
            }
            // The first pass compiles and tunes: it says nothing about the speed, and nobody rests after it.
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

    fn on_gradient(&mut self, naming: Naming, result: Result<MeanGradient, ComputeError>) {
        let Some(run) = &mut self.run else { return };
        let Naming { contribution_id, epoch, n_samples } = naming;
        let Some(contribution_id) = contribution_id else {
            // Of one that cannot be had there is nothing to keep; what it failed of shows with the next.
            let Ok(mean) = result else { return };
            let Some(accountant) = &mut run.accountant else {
                return run.compressor.add_late(mean.values, n_samples, epoch);
            };
            if let Ok(late) = compute::prepare(&mut run.compressor, Some(accountant), UNNAMED, epoch, mean) {
                self.keep_as_it_is(Rc::new(late));
            }
            return;
        };
        run.compressor.set_codec(run.description.codec_of_link(self.uplink.bytes_per_second()));
        let prepare = |mean| {
            compute::prepare(&mut run.compressor, run.accountant.as_mut(), contribution_id, epoch, mean)
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
            // Counted as the aggregator would have counted it.
            Some(index) => {
                let refusal = Err(Refusal::NotFinite { index });
                self.contributor.on_answer(self.platform.now(), &refusal);
            }
            None => self.contributor.on_gradient_lost(),
        }
        self.fail(format!("A gradient was not sent: {error}"));
    }

    fn on_model_error(&mut self, kind: Option<ComputeKind>, error: &ModelError) {
        match error {
            ModelError::Device(error) => self.on_device_lost(kind, &error.to_string()),
            error => self.give_up(&error.to_string()),
        }
    }

    /// The CPU takes over; what the lost device had accumulated is gone with it.
    pub(super) fn on_device_lost(&mut self, kind: Option<ComputeKind>, reason: &str) {
        let cpu = ComputeDevice::cpu();
        if self.device.choice() == cpu.choice() {
            self.give_up(&format!("the CPU failed: {reason}"));
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
            self.give_up(&error.to_string());
        }
    }

    /// What was accumulated elsewhere is gone; the session follows in [`Self::step`].
    fn change_device(&mut self, device: ComputeDevice, reason: DeviceChange) {
        self.device = device;
        self.speed = Speed::default();
        self.pacer.on_change();
        self.pass = None;
        self.contributor.on_trainer_lost();
        if let Some(run) = &mut self.run {
            run.aside = None;
            if let Some(accountant) = &mut run.accountant {
                accountant.on_trainer_lost();
            }
        }
        (self.events)(Event::DeviceChanged {
            device: self.platform.device_kind(self.device.choice()),
            device_name: self.device.name().to_owned(),
            reason,
        });
    }
}
