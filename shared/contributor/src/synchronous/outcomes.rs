//! Handles gradients that were taken, and answers to offers.

use std::rc::Rc;

use barnraise_learning::ModelError;
use barnraise_protocol::codec::joined;
use barnraise_protocol::gradient::{ContributionRefusal, PreparedContribution};
use barnraise_protocol::receipt::SignedReceipt;
use barnraise_swarm::compression::ContributionOutcome;
use barnraise_swarm::contributor::LateWork;

use super::SynchronousParticipant;
use super::compute::{self, ComputeError, GradientLabel, MeanInParts};
use crate::event::ContributorEvent;
use crate::kit::Kit;
use crate::platform::Platform;

/// Contribution id of a late contribution, which gets its id when it is offered.
const UNNAMED: u64 = 0;

impl<P: Platform> SynchronousParticipant<P> {
    pub(super) fn on_answer(
        &mut self,
        kit: &mut Kit<'_, P>,
        answer: Result<SignedReceipt, ContributionRefusal>,
    ) {
        let now = kit.platform.now();
        kit.session.on_message(now);
        let answer = answer.map(|receipt| {
            let accepted = receipt.accepted();
            self.on_receipt(kit, receipt);
            accepted
        });
        self.contributor.on_answer(&kit.session, now, &answer);
        // The journal may have it nevertheless.
        self.is_offer_cut |= matches!(answer, Err(ContributionRefusal::Storage));
        if matches!(answer, Err(ContributionRefusal::Commitment(_))) {
            // The parameters may no longer be the backbone's.
            self.contributor.on_trainer_lost();
            self.run.next_parameters = None;
        }
        let outcome = ContributionOutcome::of(&answer, self.is_offer_cut);
        if let Some(outcome) = outcome {
            self.run.compressor.settle(outcome);
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
        if compute::late_work(&self.run.scheme, &self.run.compressor) == LateWork::ByItself {
            self.contributor.on_kept(late.offer.epoch);
            self.run.late = Some(late);
        }
    }

    /// A receipt that does not verify is not passed on. Its contribution counts nevertheless.
    fn on_receipt(&mut self, kit: &mut Kit<'_, P>, receipt: SignedReceipt) {
        let (Some(run), Some(prepared)) = (kit.description(), &self.prepared) else { return };
        match receipt.verify_for(&run.identity.run_id, kit.ticket.peer(), &prepared.offer) {
            Ok(()) => kit.tell(ContributorEvent::Receipt(Box::new(receipt))),
            Err(error) => kit.fail(format!("A contribution was accepted, but {error}")),
        }
    }

    pub(super) fn on_gradient(
        &mut self,
        kit: &mut Kit<'_, P>,
        naming: GradientLabel,
        result: Result<MeanInParts, ComputeError>,
    ) -> Result<(), ModelError> {
        let GradientLabel { contribution_id, epoch, n_samples } = naming;
        let run = &mut self.run;
        let Some(contribution_id) = contribution_id else {
            // A failed gradient leaves nothing to keep; the next one shows the error.
            let Ok(mean) = result else { return Ok(()) };
            let Some(signer) = &mut run.commitment_signer else {
                run.compressor.add_late(joined(mean.values), n_samples, epoch);
                return Ok(());
            };
            if let Ok(late) = compute::prepare(&mut run.compressor, Some(signer), UNNAMED, epoch, mean) {
                self.keep_late(Rc::new(late));
            }
            return Ok(());
        };
        run.compressor.set_codec(run.scheme.codec_of_link(kit.uplink.bytes_per_second()));
        let signer = run.commitment_signer.as_mut();
        let prepare = |mean| compute::prepare(&mut run.compressor, signer, contribution_id, epoch, mean);
        let error = match result.and_then(prepare) {
            Ok(prepared) => {
                self.prepared = Some(Rc::new(prepared));
                self.is_offer_cut = false;
                return Ok(());
            }
            Err(ComputeError::Model(error @ ModelError::Device(_))) => return Err(error),
            Err(error) => error,
        };
        match error.not_finite_at() {
            // Counted as the aggregator's refusal.
            Some(index) => {
                let refusal = Err(ContributionRefusal::NotFinite { index });
                self.contributor.on_answer(&kit.session, kit.platform.now(), &refusal);
            }
            None => self.contributor.on_gradient_lost(),
        }
        kit.fail(format!("A gradient was not sent: {error}"));
        Ok(())
    }
}
