//! A participant of synchronous runs (DeDLOC §3.1): it reports how far it is, computes, delivers and follows the epochs.
//!
//! What is next is decided by [`Contributor`]; this carries it out on the kit.

mod commitment;
mod compute;
mod network;
mod outcomes;

use std::cell::Cell;
use std::rc::Rc;

use barnraise_learning::{ComputeDevice, FrozenWeights, ModelError, ParameterLayout, Trainer};
use barnraise_protocol::contribute::{BackboneToContributor, Report, RunProgress};
use barnraise_protocol::gradient::{self, PreparedContribution};
use barnraise_protocol::run::{RunDescription, Synchronous};
use barnraise_protocol::state::EncodedState;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Interruption, SampleCounts};
use barnraise_swarm::compression::Compressor;
use barnraise_swarm::contributor::{Contributor, ContributorAction};
use barnraise_swarm::session::SessionAction;

pub use self::compute::trainer;

use self::commitment::{CommitmentSigner, SignerError};
use self::compute::{GradientLabel, TakenGradient};
use self::network::Delivery;
use crate::error::OperationError;
use crate::kit::scheme::SchemeParticipant;
use crate::kit::{Kit, Outcome};
use crate::platform::Platform;

/// The operation in progress on the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivering {
    Report,
    Offer { epoch: u64 },
}

/// What belongs to one run.
struct SynchronousContext {
    scheme: Synchronous,
    compressor: Compressor,
    /// `None` unless the run recomputes contributions.
    commitment_signer: Option<CommitmentSigner>,
    /// A contribution that was too late for its epoch, to be offered unchanged in a later one.
    late: Option<Rc<PreparedContribution>>,
    /// Parameters for the next epoch's gradients.
    next_parameters: Option<EncodedState>,
}

impl SynchronousContext {
    fn new<P: Platform>(
        kit: &Kit<'_, P>,
        run: &RunDescription,
        scheme: &Synchronous,
    ) -> Result<Self, Interruption> {
        let commitment_signer = match scheme.recomputed {
            true => {
                let key = kit.ticket.signing_key().ok_or(SignerError::NoKey).map_err(Interruption::other)?;
                Some(CommitmentSigner::new(key, run).map_err(Interruption::other)?)
            }
            false => None,
        };
        let layout = ParameterLayout::of_run(run).map_err(Interruption::other)?;
        let compressor = compute::compressor(scheme, layout.n_parameters());
        Ok(Self { scheme: scheme.clone(), compressor, commitment_signer, late: None, next_parameters: None })
    }
}

/// A participant of synchronous runs.
pub(crate) struct SynchronousParticipant<P: Platform> {
    contributor: Contributor,
    run: SynchronousContext,
    prepared: Option<Rc<PreparedContribution>>,
    /// An offer of `prepared` was cut before its answer: the backbone may have counted it.
    is_offer_cut: bool,
    delivering: Option<Delivering>,
    /// Set while the backbone recomputes the offered contribution: how many more of this peer's it will recompute in any
    /// case.
    checking: Rc<Cell<Option<u32>>>,
    delivered: Outcome<Delivery<P>>,
    taken: Outcome<TakenGradient>,
}

impl<P: Platform> SynchronousParticipant<P> {
    /// Begins to take part in a run.
    ///
    /// # Errors
    /// Its contributions are recomputed, and this peer has no key to sign commitments.
    pub(crate) fn start(
        kit: &Kit<'_, P>,
        run: &RunDescription,
        scheme: &Synchronous,
    ) -> Result<Self, Interruption> {
        let mut participant = Self {
            contributor: Contributor::new(kit.next_contribution_id).with_counts(kit.counts_before.clone()),
            run: SynchronousContext::new(kit, run, scheme)?,
            prepared: None,
            is_offer_cut: false,
            delivering: None,
            checking: Rc::default(),
            delivered: Rc::default(),
            taken: Rc::default(),
        };
        let late_work = compute::late_work(scheme, &participant.run.compressor);
        participant.contributor.set_late_work(late_work);
        participant.contributor.set_delayed(scheme.delayed_updates);
        Ok(participant)
    }
}

impl<'a, P: Platform> SchemeParticipant<'a, P> for SynchronousParticipant<P> {
    /// Contributions are signed for the new description.
    fn on_access(&mut self, run: &RunDescription) -> Result<(), Interruption> {
        let prepared = self.prepared.take().map(Rc::unwrap_or_clone);
        let signed = match &mut self.run.commitment_signer {
            Some(signer) => signer
                .on_described(run)
                .and_then(|()| prepared.map(|prepared| signer.sign_again(prepared)).transpose()),
            None => Ok(prepared),
        };
        self.prepared = signed.map_err(Interruption::other)?.map(Rc::new);
        Ok(())
    }

    fn trainer(
        &self,
        run: &RunDescription,
        frozen: Option<&FrozenWeights>,
        device: ComputeDevice,
    ) -> Result<Trainer, ModelError> {
        trainer(run, &self.run.scheme, frozen, device)
    }

    fn start_next(&mut self, kit: &mut Kit<'a, P>) -> Result<bool, ModelError> {
        match self.contributor.next_action(&mut kit.session, kit.platform.now()) {
            ContributorAction::Connect => return Ok(kit.start_for_session(SessionAction::Connect)),
            ContributorAction::Wait(until) => return Ok(kit.start_for_session(SessionAction::Wait(until))),
            ContributorAction::Leave => {
                self.prepared = None;
                return Ok(kit.start_for_session(SessionAction::Leave));
            }
            ContributorAction::FetchState => {
                // Before the parameters come, so that they can have its memory: lost also where they do not come after all.
                if self.contributor.has_lost_gradient() && kit.drop_gradient() {
                    self.on_trainer_lost();
                }
                kit.start_state(false);
            }
            ContributorAction::LoadState => return self.load_state(kit),
            ContributorAction::ComputeBatch => self.start_batch(kit),
            ContributorAction::SendReport(report) => {
                self.start_report(kit, report);
                return Ok(true);
            }
            ContributorAction::TakeGradient { contribution_id, epoch, n_samples } => {
                let contribution_id = Some(contribution_id);
                self.start_gradient(kit, GradientLabel { contribution_id, epoch, n_samples });
                return Ok(true);
            }
            ContributorAction::KeepLate { epoch, n_samples } => {
                self.start_gradient(kit, GradientLabel { contribution_id: None, epoch, n_samples });
                return Ok(true);
            }
            ContributorAction::NameLate { contribution_id, epoch } => {
                self.name_late(kit, contribution_id, epoch);
                return Ok(true);
            }
            ContributorAction::Offer => return Ok(self.start_offer(kit)),
        }
        Ok(false)
    }

    fn compute_meanwhile(&mut self, kit: &mut Kit<'a, P>) -> Result<(), ModelError> {
        if self.contributor.computes_meanwhile(&kit.session) {
            self.start_batch(kit);
        }
        Ok(())
    }

    fn on_session(&mut self, _run: &RunDescription, progress: RunProgress) {
        let scheme = &self.run.scheme;
        self.contributor.on_connected(scheme.contribution_samples_max, scheme.micro_batch_size);
        self.contributor.on_epoch(progress.epoch);
    }

    fn on_message(&mut self, message: BackboneToContributor) {
        match message {
            BackboneToContributor::EpochStarted(epoch) => self.contributor.on_epoch(epoch),
            BackboneToContributor::GradientDue(epoch) => self.contributor.on_due(epoch),
            // The kit's.
            BackboneToContributor::Welcome(_)
            | BackboneToContributor::Progress(_)
            | BackboneToContributor::Refused(_)
            | BackboneToContributor::OtherBackbones(_) => {}
        }
    }

    /// A contribution that the other backbone may have accepted is dropped, as it would count twice. All other computed
    /// work is offered to this one.
    fn on_moved(&mut self, now: Moment) {
        if self.is_offer_cut && self.prepared.take().is_some() {
            self.contributor.on_unanswered();
        }
        self.contributor.on_moved(now);
        self.run.next_parameters = None;
    }

    fn on_parameters(
        &mut self,
        kit: &mut Kit<'a, P>,
        state: EncodedState,
        is_background: bool,
    ) -> Result<(), ModelError> {
        if !is_background && self.contributor.leaves_aside(state.epoch) {
            self.contributor.on_fetched(state.epoch);
            self.run.next_parameters = Some(state);
            return Ok(());
        }
        let (epoch, sha256) = (state.epoch, state.sha256);
        if kit.load(state, is_background)? {
            if let Some(signer) = &mut self.run.commitment_signer {
                signer.on_parameters(sha256, epoch);
            }
            if !is_background {
                self.contributor.on_state(epoch);
            }
        }
        Ok(())
    }

    fn on_batch(&mut self, n_samples: u32, samples_per_second: f32) {
        if let Some(signer) = &mut self.run.commitment_signer {
            signer.on_batch();
        }
        self.contributor.on_batch(n_samples, samples_per_second);
    }

    fn on_computed(&mut self, kit: &mut Kit<'a, P>) -> Result<(), ModelError> {
        let Some(TakenGradient { naming, took, result }) = self.taken.take() else { return Ok(()) };
        if !kit.on_gradient_taken() && result.is_ok() {
            if naming.contribution_id.is_some() {
                self.contributor.on_gradient_lost();
            }
            kit.on_busy(took);
            return Ok(());
        }
        let began = kit.platform.now();
        let made = self.on_gradient(kit, naming, result);
        kit.on_busy(took + kit.platform.now().saturating_sub(began));
        made
    }

    fn on_net(&mut self, kit: &mut Kit<'a, P>) -> Result<(), OperationError> {
        self.delivering = None;
        match self.delivered.take() {
            Some(Delivery::Reported { writer, result }) => {
                kit.put_session_writer(writer);
                result
            }
            Some(Delivery::Answered { stream, result, sent, may_count }) => {
                kit.put_stream(gradient::PROTOCOL, stream);
                if let Some(sent) = sent {
                    kit.uplink.on_sent(sent);
                }
                self.is_offer_cut |= may_count && result.is_err();
                self.on_answer(kit, result?);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn on_computation_lost(&mut self) {
        self.contributor.on_gradient_lost();
    }

    fn on_trainer_lost(&mut self) {
        self.contributor.on_trainer_lost();
        self.run.next_parameters = None;
        if let Some(signer) = &mut self.run.commitment_signer {
            signer.on_trainer_lost();
        }
    }

    fn on_end(&mut self) {
        self.prepared = None;
        self.contributor.on_gradient_lost();
        self.contributor.on_trainer_lost();
    }

    fn activity(&self, (bytes, bytes_total): (u64, u64)) -> Option<Activity> {
        match self.delivering? {
            Delivering::Report => None,
            Delivering::Offer { epoch } => Some(match self.checking.get() {
                Some(n_left) => Activity::BeingChecked { epoch, n_left },
                None => Activity::Sending { epoch, bytes, bytes_total },
            }),
        }
    }

    fn epoch(&self) -> u64 {
        self.contributor.run_epoch().unwrap_or_default()
    }

    fn next_contribution_id(&self) -> u64 {
        self.contributor.next_contribution_id()
    }

    fn counts(&self) -> &SampleCounts {
        self.contributor.sample_counts()
    }
}

impl<P: Platform> SynchronousParticipant<P> {
    fn load_state<'a>(&mut self, kit: &mut Kit<'a, P>) -> Result<bool, ModelError> {
        match self.run.next_parameters.take() {
            Some(state) => self.on_parameters(kit, state, false)?,
            // They were lost with the device, and are fetched again.
            None => self.contributor.on_trainer_lost(),
        }
        Ok(true)
    }

    fn start_batch(&mut self, kit: &mut Kit<'_, P>) {
        let drawn = kit.start_batch();
        if let (Some(signer), Some(drawn)) = (&mut self.run.commitment_signer, drawn) {
            signer.on_drawn(drawn);
        }
    }

    fn start_report(&mut self, kit: &mut Kit<'_, P>, report: Report) {
        let (operation, cancel) = kit.operation();
        let Some(writer) = kit.take_session_writer() else {
            kit.disconnect(Interruption::SessionEnded);
            return;
        };
        self.delivering = Some(Delivering::Report);
        kit.run_scheme_net(cancel, &self.delivered, network::report(operation, writer, report));
    }

    /// Signs the late contribution for a new epoch; one that no longer counts is dropped.
    fn name_late(&mut self, kit: &mut Kit<'_, P>, contribution_id: u64, epoch: u64) {
        let Some(run) = kit.description() else { return };
        let Some((late, signer)) = self.run.late.take().zip(self.run.commitment_signer.as_ref()) else {
            return;
        };
        let late = Rc::unwrap_or_clone(late);
        match signer.sign_late(late, run, (contribution_id, epoch)) {
            Ok(Some(prepared)) => {
                self.contributor.on_late(contribution_id, epoch, prepared.offer.n_samples);
                self.prepared = Some(Rc::new(prepared));
                self.is_offer_cut = false;
            }
            Ok(None) => {}
            Err(error) => kit.fail(format!("A late contribution was not sent: {error}")),
        }
    }

    fn start_offer(&mut self, kit: &mut Kit<'_, P>) -> bool {
        let Some(prepared) = self.prepared.clone() else {
            self.contributor.on_gradient_lost();
            return true;
        };
        if !kit.is_linked() {
            return false;
        }
        let (operation, cancel) = kit.operation();
        self.delivering = Some(Delivering::Offer { epoch: prepared.offer.epoch });
        let progress = Rc::clone(&kit.net_progress);
        progress.set((0, prepared.bytes.len() as u64));
        self.checking.set(None);
        let checking = Rc::clone(&self.checking);
        let stream = kit.take_stream(gradient::PROTOCOL);
        let offer = network::offer(operation, stream, prepared, progress, checking);
        kit.run_scheme_net(cancel, &self.delivered, offer);
        true
    }

    fn start_gradient(&mut self, kit: &mut Kit<'_, P>, naming: GradientLabel) {
        let taking = |platform, trainer| async move { compute::gradient(platform, trainer, naming).await };
        if !kit.run_scheme_compute(&self.taken, taking) {
            self.contributor.on_gradient_lost();
        } else if let Some(signer) = &mut self.run.commitment_signer {
            signer.on_take();
        }
    }
}
