//! Handles the outcome of each completed operation.

use std::rc::Rc;
use std::sync::Arc;

use barnraise_learning::experts::ExpertPort;
use barnraise_learning::{ComputeDevice, ModelError, ParameterLayout};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::state::EncodedState;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, DeviceChange, Interruption};
use barnraise_swarm::pacing::PassTime;
use barnraise_swarm::samples::SampleStream;
use barnraise_swarm::shards::Exchange;
use futures::FutureExt;
use futures::future::Fuse;

use super::compute::{ComputeOutcome, ComputeResult, TrialVerdict, divided};
use super::driver::Driver;
use super::experts::{OfPlatform, ShownTokens};
use super::frozen::Frozen;
use super::model_cache::OfflineCache;
use super::network::{self, Connected, NetOutcome, ShardOutcome, StateOutcome};
use super::scheme::SampleSource;
use super::speed::Speed;
use super::{BackboneConnection, ComputeKind, Kit, NetKind, RunContext};
use crate::error::OperationError;
use crate::event::ContributorEvent;
use crate::experts::ExpertService;
use crate::platform::Platform;

impl<P: Platform> Driver<'_, P> {
    pub(super) fn on_net(&mut self, outcome: NetOutcome<P>) {
        let kind = self.kit.net_kind.take();
        self.kit.net_cancel = None;
        match outcome {
            NetOutcome::Connected(result) => match result {
                Ok(connected) => {
                    let is_joining = kind == Some(NetKind::Connect { is_joining: true });
                    self.on_connected(connected, is_joining);
                }
                Err(error) => self.on_net_error(kind, &error),
            },
            NetOutcome::State(fetched) => {
                let StateOutcome { stream, partial, result } = *fetched;
                if let Some(run) = &mut self.kit.run {
                    run.partial_state = partial;
                }
                if let Some(link) = &mut self.kit.link {
                    link.state = stream;
                }
                match result {
                    Ok(state) => self.on_state(state, kind == Some(NetKind::State { is_background: true })),
                    Err(error) => self.on_net_error(kind, &error),
                }
            }
            NetOutcome::Scheme => {
                let Some(scheme) = &mut self.scheme else { return };
                if let Err(error) = scheme.on_net(&mut self.kit) {
                    self.on_net_error(kind, &error);
                }
            }
            NetOutcome::Left => {}
            NetOutcome::Offline(found) => self.on_offline(*found),
            NetOutcome::Renewed(Ok(()) | Err(OperationError::Cancelled)) => {}
            // The token is valid until it expires; afterwards the next connection fails with the reason.
            NetOutcome::Renewed(Err(error)) => {
                self.kit.fail(format!("Access could not be renewed: {error}"));
            }
        }
    }

    fn on_net_error(&mut self, kind: Option<NetKind>, error: &OperationError) {
        if matches!(error, OperationError::Cancelled) {
            return;
        }
        let reason = Interruption::from(error);
        // Another backbone of the run may decide otherwise.
        if error.is_final() && !self.kit.has_other_backbones {
            match error.is_about_access() {
                true => self.end_as(&reason.clone(), Activity::NotAdmitted { reason }),
                false => self.give_up(reason),
            }
            return;
        }
        match kind {
            Some(NetKind::Connect { is_joining: false } | NetKind::State { is_background: true }) => {
                self.kit.on_request_error(&reason);
            }
            _ => self.kit.disconnect(reason),
        }
    }

    fn on_connected(&mut self, connected: Connected<P>, is_joining: bool) {
        let now = self.kit.platform.now();
        let Connected { run, backbone, session } = connected;
        self.on_backbone(backbone);
        if !self.use_run(*run) {
            return;
        }
        let kit = &mut self.kit;
        let link = kit.link.get_or_insert_with(|| {
            kit.n_links += 1;
            BackboneConnection {
                id: kit.n_links,
                session: None,
                is_proven: false,
                state: None,
                shard: None,
                of_scheme: Default::default(),
                used_at: now,
            }
        });
        link.used_at = now;
        let Some((writer, reader, progress)) = session else {
            let has_sessions = kit.run.as_ref().is_none_or(|run| run.description.sampled().is_none());
            if let Some(scheme) = self.scheme.as_mut().filter(|_| is_joining && !has_sessions) {
                kit.session.on_connected(now);
                scheme.on_reached(kit);
            }
            return;
        };
        link.session = Some(writer);
        kit.messages = network::listen::<P>(reader).boxed_local().fuse();
        let (Some(run), Some(scheme)) = (&kit.run, &mut self.scheme) else { return };
        kit.session.on_connected(now);
        kit.session.on_message(now);
        scheme.on_session(&run.description, progress);
        kit.tell(ContributorEvent::Progress(progress));
    }

    /// After a change of backbones: the scheme drops what the other one may have accepted, as it would count twice.
    fn on_backbone(&mut self, backbone: Option<Vec<u8>>) {
        let Some(backbone) = backbone else { return };
        let is_other = self.kit.backbone.as_ref().is_some_and(|before| *before != backbone);
        self.kit.backbone = Some(backbone);
        if let Some(scheme) = self.scheme.as_mut().filter(|_| is_other) {
            scheme.on_moved(self.kit.platform.now());
        }
    }

    /// Adopts the backbone's description of the run; `false` where that is impossible.
    fn use_run(&mut self, description: RunDescription) -> bool {
        let has_new_data = std::mem::take(&mut self.kit.is_data_new);
        let before = self.kit.run.as_ref().filter(|_| !has_new_data);
        if before.is_some_and(|run| *run.description == description) {
            return true;
        }
        let is_same_elsewhere = |run: &RunContext| {
            let access = run.description.access;
            *run.description == RunDescription { access, ..description.clone() }
        };
        if before.is_some_and(is_same_elsewhere) {
            return self.use_access(description);
        }
        let n_parameters = match ParameterLayout::of_run(&description) {
            Ok(layout) => layout.n_parameters(),
            Err(error) => {
                self.give_up(Interruption::other(error));
                return false;
            }
        };
        self.kit.drop_run();
        if let Some(before) = &mut self.scheme {
            // Work for another run is of no use in this one.
            before.on_end();
            self.kit.next_contribution_id = before.next_contribution_id();
            self.kit.counts_before = before.counts().clone();
        }
        match (self.start_scheme)(&self.kit, &description) {
            Ok(begun) => self.scheme = Some(begun),
            Err(reason) => {
                self.give_up(reason);
                return false;
            }
        }
        let source =
            self.scheme.as_ref().map_or(SampleSource::Run, |scheme| scheme.sample_source(&description));
        self.kit.on_run(description, n_parameters, source);
        self.begin_trainer();
        self.kit.fatal_error.is_none()
    }

    /// The same run, at a backbone with another access authority. Data and work stay.
    fn use_access(&mut self, description: RunDescription) -> bool {
        let (Some(run), Some(scheme)) = (&mut self.kit.run, &mut self.scheme) else { return true };
        if let Err(reason) = scheme.on_access(&description) {
            self.give_up(reason);
            return false;
        }
        self.kit.platform.on_run(&description, run.n_parameters);
        run.description = Rc::new(description);
        true
    }

    /// A shard arrived, or did not. With the last one of frozen weights there is a trainer.
    pub(super) fn on_shard(&mut self, outcome: ShardOutcome<P>) {
        let awaited = self.kit.awaits_frozen();
        self.kit.on_shard(outcome);
        if awaited {
            self.use_frozen();
        }
    }

    /// Makes the trainer, if all of its frozen weights are here.
    fn use_frozen(&mut self) {
        let frozen = self.kit.run.as_ref().and_then(|run| run.frozen.as_ref());
        if let Some(error) = frozen.and_then(Frozen::failed) {
            self.give_up(Interruption::other(error.clone()));
        } else if !self.kit.awaits_frozen() {
            self.begin_trainer();
        }
    }

    /// Makes the first trainer of a run.
    fn begin_trainer(&mut self) {
        match self.new_trainer() {
            Ok(()) => {}
            Err(ModelError::Device(error)) => self.on_device_lost(None, &error.to_string()),
            Err(error) => self.give_up(Interruption::other(error)),
        }
    }

    fn new_trainer(&mut self) -> Result<(), ModelError> {
        let (Some(run), Some(scheme)) = (&mut self.kit.run, &self.scheme) else { return Ok(()) };
        let frozen = match &run.frozen {
            Some(frozen) => match frozen.whole() {
                Some(whole) => Some(whole),
                None => return Ok(()),
            },
            None => None,
        };
        let session = self.kit.expert_session;
        self.kit.expert_session = session.wrapping_add(1);
        let trainer = scheme.trainer(&run.description, frozen, self.kit.device.clone())?;
        let mut trainer = divided(self.kit.platform, &run.description, trainer);
        let network = OfPlatform {
            platform: self.kit.platform,
            meter: Rc::clone(&self.kit.meter),
            ticket: Rc::clone(&self.kit.ticket),
            shown: ShownTokens::default(),
            refused: Rc::clone(&self.kit.refused_record),
        };
        if let Some(service) = ExpertService::new(network, &run.description, (self.kit.seed, session))? {
            let (port, calls) = ExpertPort::new();
            run.n_expert_layers = service.n_layers();
            trainer = trainer.with_experts(port);
            let service = service
                .telling(Rc::clone(&self.kit.seen))
                .counting(Rc::clone(&self.kit.n_answered))
                .counting_in_vain(Rc::clone(&self.kit.n_in_vain));
            self.kit.experts = service.serve(calls).boxed_local().fuse();
        }
        run.trainer = Some(trainer);
        run.is_warm = false;
        run.loaded = None;
        Ok(())
    }

    fn on_state(&mut self, state: EncodedState, is_background: bool) {
        let now = self.kit.platform.now();
        if let Some(link) = &mut self.kit.link {
            link.is_proven = true;
            link.used_at = now;
        }
        let Some(scheme) = &mut self.scheme else { return };
        if let Err(error) = scheme.on_parameters(&mut self.kit, state, is_background) {
            self.on_model_error(None, &error);
        }
    }

    /// Takes cached frozen weights. Returns whether there is a trainer.
    fn use_cached_frozen(&mut self, shards: Vec<Arc<[u8]>>) -> bool {
        if self.kit.awaits_frozen() {
            if let Some(frozen) = self.kit.run.as_mut().and_then(|run| run.frozen.as_mut()) {
                shards.into_iter().for_each(|shard| frozen.on_shard(shard));
            }
            self.use_frozen();
        }
        !self.kit.awaits_frozen() && self.kit.fatal_error.is_none()
    }

    /// The cached model and gallery, which a visitor's requests are answered from.
    fn on_offline(&mut self, found: OfflineCache) {
        let OfflineCache { model, frozen, gallery, wanted_gallery, reason } = found;
        if let Some((run, state)) = model {
            // A backbone may have described another run in the meantime: then that one counts.
            let is_wanted = self.kit.run.as_ref().is_none_or(|here| *here.description == run);
            if is_wanted && self.use_run(run) && self.use_cached_frozen(frozen) {
                self.on_state(state, true);
            }
        }
        self.kit.answer_offline(gallery, wanted_gallery, &reason);
    }

    pub(super) fn on_compute(&mut self, outcome: ComputeOutcome) {
        let kit = &mut self.kit;
        let kind = kit.compute_kind.take();
        let ComputeOutcome { trainer, done } = outcome;
        kit.lost_at = None;
        let loss = trainer.last_loss();
        if let Some(run) = &mut kit.run {
            run.trainer = Some(trainer);
        }
        match done {
            ComputeResult::Batch { n_samples, took, is_ended, result: Ok(()) } => {
                kit.loss = loss.or(kit.loss);
                self.on_batch(n_samples, took, is_ended);
            }
            ComputeResult::Batch { result: Err(error), .. } => self.on_model_error(kind, &error),
            ComputeResult::Trial { result: Ok(verdict) } => self.on_trial(verdict),
            ComputeResult::Trial { result: Err(error) } => self.on_model_error(kind, &error),
            ComputeResult::Scheme => {
                let computed = self.scheme.as_mut().map(|scheme| scheme.on_computed(&mut self.kit));
                if let Some(Err(error)) = computed {
                    self.on_model_error(kind, &error);
                }
            }
            ComputeResult::Prediction { request, epoch, result: Ok(probabilities) } => {
                kit.on_prediction(request, epoch, probabilities);
            }
            ComputeResult::Prediction { result: Err(error), .. } => match error {
                ModelError::Device(_) => self.on_model_error(kind, &error),
                error => kit.fail(format!("The prediction could not be had: {error}")),
            },
        }
        if let Some((state, is_background)) =
            self.kit.run.as_mut().and_then(|run| run.waiting_parameters.take())
        {
            self.on_state(state, is_background);
        }
    }

    /// Both devices are warm now, and the trainer is on the faster one.
    fn on_trial(&mut self, verdict: TrialVerdict) {
        if let Some(run) = &mut self.kit.run {
            run.is_warm = true;
            if verdict == TrialVerdict::Slower {
                run.loaded = None;
                let processor = run.trainer.take();
                run.trainer = processor.map(|it| divided(self.kit.platform, &run.description, it));
                self.change_device(ComputeDevice::cpu(), DeviceChange::Slower);
            }
        }
    }

    fn on_batch(&mut self, n_samples: u32, took: Moment, is_ended: bool) {
        self.kit.measure_batch(n_samples, took, is_ended);
        if let Some(scheme) = &mut self.scheme {
            scheme.on_batch(n_samples, self.kit.speed.samples_per_second());
        }
    }

    pub(super) fn on_model_error(&mut self, kind: Option<ComputeKind>, error: &ModelError) {
        match error {
            ModelError::Device(error) => self.on_device_lost(kind, &error.to_string()),
            error => self.give_up(Interruption::other(error)),
        }
    }

    /// The CPU takes over; what was computed on the lost device is lost.
    pub(super) fn on_device_lost(&mut self, kind: Option<ComputeKind>, reason: &str) {
        let cpu = ComputeDevice::cpu();
        if self.kit.device.choice() == cpu.choice() {
            self.give_up(Interruption::Device { detail: reason.to_owned() });
            return;
        }
        self.kit.lost_at = None;
        match (kind, &mut self.scheme) {
            (Some(ComputeKind::Scheme), Some(scheme)) => scheme.on_computation_lost(),
            (Some(ComputeKind::Prediction), _) => {
                self.kit.fail("The prediction was lost with the device; ask again".to_owned());
            }
            _ => {}
        }
        self.change_device(cpu, DeviceChange::Lost { detail: reason.to_owned() });
        if let Err(error) = self.new_trainer() {
            self.give_up(Interruption::other(error));
        }
    }

    /// Drops the work on the old device; the session follows in the next step.
    fn change_device(&mut self, device: ComputeDevice, reason: DeviceChange) {
        let kit = &mut self.kit;
        kit.device = device;
        kit.speed = Speed::default();
        kit.pacer.on_change();
        kit.pass = None;
        if let Some(scheme) = &mut self.scheme {
            scheme.on_trainer_lost();
        }
        kit.tell(ContributorEvent::DeviceChanged {
            device: kit.platform.device_kind(kit.device.choice()),
            device_name: kit.device.name().to_owned(),
            reason,
        });
    }
}

impl<P: Platform> Kit<'_, P> {
    /// A background request failed on the network. A connection that had worked before may have died unnoticed:
    /// then the requests are retried once on a new one.
    pub(super) fn on_request_error(&mut self, reason: &Interruption) {
        let was_proven = self.link.as_ref().is_some_and(|link| link.is_proven);
        self.drop_link();
        if !was_proven && self.is_idle && !self.start_offline(reason) {
            self.fail_requests(reason);
        }
    }

    /// Drops what was computed for another run.
    fn drop_run(&mut self) {
        self.loss = None;
        self.pass = None;
        self.pacer.on_change();
        self.compute = Fuse::terminated();
        self.compute_kind = None;
        self.shard = Fuse::terminated();
        self.shard_id = None;
    }

    /// Takes part in a run from now on, whose model has `n_parameters`; it has no trainer yet.
    fn on_run(&mut self, description: RunDescription, n_parameters: usize, source: SampleSource) {
        let description = Rc::new(description);
        let manifest = &description.data.manifest;
        let n_shards = manifest.first_frozen();
        let sizes = manifest.shards.iter().chain(&manifest.frozen).map(|entry| entry.n_bytes).collect();
        let capacity = description.data.shuffle_buffer_samples as usize;
        self.platform.on_run(&description, n_parameters);
        self.run = Some(RunContext {
            description: Rc::clone(&description),
            n_parameters,
            frozen: Frozen::of(&description),
            trainer: None,
            loaded: None,
            waiting_parameters: None,
            n_expert_layers: 0,
            is_warm: false,
            samples: match source {
                SampleSource::Own(samples) => SampleStream::own(samples, self.seed),
                _ if manifest.stream.is_some() => SampleStream::streamed(capacity, self.seed),
                SampleSource::Shards(shards, capacity) => {
                    SampleStream::of_shards(shards, capacity, self.seed)
                }
                SampleSource::Run => SampleStream::new(n_shards, capacity, self.seed),
            },
            exchange: Exchange::new(sizes, self.platform.shard_cache_bytes_max(), self.seed.rotate_left(32)),
            survey_by: self.survey_by().filter(|_| manifest.stream.is_none()),
            wanted_shard: None,
            partial_state: None,
            partial_shard: None,
        });
        self.tell(ContributorEvent::Described(Box::new(RunDescription::clone(&description))));
    }

    fn measure_batch(&mut self, n_samples: u32, took: Moment, is_ended: bool) {
        let Some(run) = &mut self.run else { return };
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
}
