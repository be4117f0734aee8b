//! Stages of one contribution in a round: offered, received, persisted, counted.

use std::sync::Arc;

use barnraise_protocol::gradient::{Accepted, ContributionRefusal, Offer};

use super::{CollectionAction, CollectionPhase, CollectionRound, Ticket};
use crate::AddressGroup;
use crate::{Moment, PeerKey, robust};

/// Rate limit on the samples that a peer claims; it outlasts the peer's sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimAllowance {
    /// Samples that it may still claim: a token bucket, filled at `samples_per_second_max`.
    allowance: f64,
    at: Moment,
}

impl ClaimAllowance {
    pub(super) fn new(now: Moment, samples_max: u32) -> Self {
        Self { allowance: f64::from(samples_max), at: now }
    }

    fn refill(&mut self, now: Moment, per_second: u32, samples_max: u32) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.allowance = (self.allowance + passed * f64::from(per_second)).min(f64::from(samples_max));
        self.at = now;
    }
}

/// The values of a contribution, and what a look at each of them says.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredGradient {
    values: Vec<f32>,
    first_not_finite: Option<usize>,
    norm: f64,
}

impl MeasuredGradient {
    /// Euclidean norm.
    pub fn norm(&self) -> f64 {
        self.norm
    }
}

impl From<Vec<f32>> for MeasuredGradient {
    fn from(values: Vec<f32>) -> Self {
        let first_not_finite = values.iter().position(|value| !value.is_finite());
        let norm = robust::norm(&values);
        Self { values, first_not_finite, norm }
    }
}

#[derive(Debug)]
pub(super) struct InFlightContribution {
    pub(super) peer: PeerKey,
    pub(super) group: AddressGroup,
    pub(super) offer: Offer,
    pub(super) since: Moment,
    /// Until when all of its bytes must have arrived.
    pub(super) deadline: Moment,
    pub(super) stage: ContributionStage,
}

/// Stage of a contribution.
#[derive(Debug)]
pub(super) enum ContributionStage {
    /// Its bytes are on their way.
    Receiving,
    /// The values and their sequence number are being stored.
    Storing(Vec<f32>, u32),
}

impl InFlightContribution {
    pub(super) fn is_receiving(&self) -> bool {
        matches!(self.stage, ContributionStage::Receiving)
    }
}

impl CollectionRound {
    /// A peer offers a contribution. Returns the ticket under which it is received, or the refusal.
    pub fn on_offer(
        &mut self,
        now: Moment,
        peer: &PeerKey,
        offer: &Offer,
    ) -> Result<Ticket, ContributionRefusal> {
        self.check_offer(peer, offer)?;
        self.check_rate(now, peer, offer.n_samples)?;
        let group = self.group_of(peer);
        if let Err(refusal) = self.free_transfer_slot(now, peer, group) {
            self.give_allowance(peer, offer);
            if let Some(contributor) = self.contributors.get_mut(peer) {
                contributor.was_put_off = true;
            }
            return Err(refusal);
        }
        if let Some(contributor) = self.contributors.get_mut(peer) {
            contributor.outstanding = contributor.outstanding.saturating_sub(offer.n_samples);
            contributor.offered = contributor.offered.max(Some(offer.contribution_id));
            contributor.is_silent = false;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let deadline = now + self.transfer_time(offer);
        let (peer, offer, stage) = (peer.clone(), offer.clone(), ContributionStage::Receiving);
        self.in_flight
            .insert(ticket, InFlightContribution { peer, group, offer, since: now, deadline, stage });
        self.advance(now);
        Ok(ticket)
    }

    /// The bytes of a contribution did not arrive.
    pub fn on_transfer_failed(&mut self, now: Moment, ticket: Ticket) {
        self.give_back(ticket);
        self.advance(now);
    }

    /// All values of a contribution have arrived. Leads to `Persist`, or at once to `Refuse`.
    ///
    /// A driver that must not compute measures them before.
    pub fn on_gradient(&mut self, now: Moment, ticket: Ticket, gradient: impl Into<MeasuredGradient>) {
        let gradient: MeasuredGradient = gradient.into();
        let epoch = self.epoch;
        let n_parameters = self.config.n_parameters;
        let norm_max = self.config.gradient_norm_max;
        let Some(flight) = self.in_flight.get_mut(&ticket) else {
            // Its transfer outlasted the round.
            self.actions.push_back(CollectionAction::Refuse(ticket, ContributionRefusal::Busy));
            return;
        };
        if let Some(refusal) = refusal_of(&gradient, n_parameters, norm_max) {
            self.in_flight.remove(&ticket);
            self.actions.push_back(CollectionAction::Refuse(ticket, refusal));
            self.advance(now);
            return;
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        flight.stage = ContributionStage::Storing(gradient.values, sequence);
        let group = flight.group;
        self.actions.push_back(CollectionAction::Persist { ticket, epoch, sequence, group });
        self.advance(now);
    }

    /// The contribution is stored: from here on it counts.
    pub fn on_persisted(&mut self, now: Moment, ticket: Ticket) {
        let Some(flight) = self.in_flight.remove(&ticket) else { return };
        let InFlightContribution { peer, group, offer, stage, .. } = flight;
        let ContributionStage::Storing(values, sequence) = stage else { return };
        let accepted = Accepted {
            contribution_id: offer.contribution_id,
            epoch: self.epoch,
            n_samples: offer.n_samples,
        };
        self.count(peer, group, &offer, &values, sequence);
        self.actions.push_back(CollectionAction::Acknowledge(ticket, accepted));
        self.advance(now);
    }

    /// The contribution could not be stored: its sender may offer it again.
    pub fn on_persist_failed(&mut self, now: Moment, ticket: Ticket) {
        self.give_back(ticket);
        self.actions.push_back(CollectionAction::Refuse(ticket, ContributionRefusal::Storage));
        self.advance(now);
    }

    /// Counts a contribution that was stored before a restart, or that is not in fetched parameters. One of an earlier
    /// epoch is weighted by its staleness, `1 / (1 + age in epochs)`.
    ///
    /// Call it in the order of the sequence numbers, so that the sum is the same. An accepted contribution counts as it
    /// was written, even if limits and codec have changed since: only its length is checked.
    pub fn restore(
        &mut self,
        peer: PeerKey,
        group: AddressGroup,
        offer: &Offer,
        values: &[f32],
        sequence: u32,
    ) -> Result<(), ContributionRefusal> {
        let contribution_id = offer.contribution_id;
        if self.counted.contains(&(peer.clone(), contribution_id)) {
            return Err(ContributionRefusal::Duplicate { contribution_id });
        }
        if values.len() != self.config.n_parameters {
            let want = self.config.n_parameters as u64;
            return Err(ContributionRefusal::Length { want, got: values.len() as u64 });
        }
        self.next_sequence = sequence.saturating_add(1);
        self.count(peer, group, offer, values, sequence);
        Ok(())
    }

    /// A contribution of the epoch before the current one that was stored before a restart: it is
    /// remembered, so that offering it again does not count it twice.
    pub fn restore_counted_before(&mut self, peer: PeerKey, contribution_id: u64) {
        self.counted_before.insert((peer, contribution_id));
    }

    fn count(&mut self, peer: PeerKey, group: AddressGroup, offer: &Offer, values: &[f32], sequence: u32) {
        let age = self.epoch.saturating_sub(offer.epoch);
        let n_samples = u64::from(offer.n_samples).div_ceil(age.saturating_add(1)) as u32;
        Arc::make_mut(&mut self.contributions).add(&peer, group, n_samples, offer.loss, values);
        match age {
            0 => self.counts.count(&peer, group, n_samples, self.config.micro_batch_size),
            _ => self.counts.count_carried(&peer, group, n_samples),
        }
        *self.counted_samples.entry(peer.clone()).or_default() += u64::from(n_samples);
        self.sequences.push(sequence);
        self.n_accepted_in_pause += usize::from(self.is_paused);
        if let Some(contributor) = self.contributors.get_mut(&peer) {
            contributor.delivered = contributor.delivered.saturating_add(n_samples);
            contributor.n_unanswered_requests = 0;
            contributor.counted_in = Some(self.epoch);
        }
        self.counted.insert((peer, offer.contribution_id));
    }

    /// Returns the samples of a contribution that did not arrive to its sender's allowance.
    pub(super) fn give_back(&mut self, ticket: Ticket) {
        if let Some(flight) = self.in_flight.remove(&ticket) {
            self.give_allowance(&flight.peer, &flight.offer);
        }
    }

    fn give_allowance(&mut self, peer: &PeerKey, offer: &Offer) {
        if let Some(standing) = self.claim_allowances.get_mut(peer) {
            standing.allowance += f64::from(offer.n_samples);
        }
    }

    fn check_offer(&self, peer: &PeerKey, offer: &Offer) -> Result<(), ContributionRefusal> {
        let contribution_id = offer.contribution_id;
        let name = (peer.clone(), contribution_id);
        if self.counted.contains(&name) || self.counted_before.contains(&name) {
            return Err(ContributionRefusal::Duplicate { contribution_id });
        }
        if !self.contributors.contains_key(peer) {
            return Err(ContributionRefusal::NotJoined);
        }
        let is_stepping = self.phase == CollectionPhase::Stepping || self.is_held;
        if is_stepping && offer.epoch == self.epoch + 1 {
            // Its parameters are known already; the epoch begins in a moment.
            return Err(ContributionRefusal::Busy);
        }
        if is_stepping || offer.epoch != self.epoch {
            let want = self.epoch + u64::from(is_stepping);
            return Err(ContributionRefusal::Epoch { want, got: offer.epoch });
        }
        self.check_shape(offer)?;
        self.check_counts(peer, offer)?;
        // One at a time from each peer, so that no peer takes all slots.
        let receiving = self.in_flight.values().any(|flight| &flight.peer == peer);
        if receiving || self.is_pause_full() {
            return Err(ContributionRefusal::Busy);
        }
        Ok(())
    }

    fn check_shape(&self, offer: &Offer) -> Result<(), ContributionRefusal> {
        let want = self.config.n_parameters as u64;
        if offer.n_values != want {
            return Err(ContributionRefusal::Length { want, got: offer.n_values });
        }
        if offer.codec != self.config.codec && Some(offer.codec) != self.config.slow_codec {
            return Err(ContributionRefusal::Codec { want: self.config.codec, got: offer.codec });
        }
        let wanted = offer.codec.encoded_len_at(self.config.n_parameters, offer.epoch);
        let (fewest, want, got) = (*wanted.start() as u64, *wanted.end() as u64, offer.transfer.n_bytes);
        if !(fewest..=want).contains(&got) {
            return Err(ContributionRefusal::Bytes { want, got });
        }
        let max = self.config.contribution_samples_max;
        if offer.n_samples == 0 || offer.n_samples > max {
            return Err(ContributionRefusal::Samples { max, got: offer.n_samples });
        }
        if !offer.loss.is_finite() {
            return Err(ContributionRefusal::NotFinite { index: offer.n_values });
        }
        Ok(())
    }

    fn check_rate(&mut self, now: Moment, peer: &PeerKey, got: u32) -> Result<(), ContributionRefusal> {
        let per_second = self.config.samples_per_second_max;
        let samples_max = self.config.contribution_samples_max;
        let group = self.group_of(peer);
        if self.config.is_open && !self.seats.has_others(group) {
            // A single address takes no weight from others.
            return Ok(());
        }
        let standing = self.claim_allowance(now, peer);
        standing.refill(now, per_second, samples_max);
        if f64::from(got) > standing.allowance {
            return Err(ContributionRefusal::Rate { max: standing.allowance as u32, got });
        }
        standing.allowance -= f64::from(got);
        Ok(())
    }
}

/// Checks the values of a contribution.
fn refusal_of(
    gradient: &MeasuredGradient,
    n_parameters: usize,
    norm_max: f32,
) -> Option<ContributionRefusal> {
    let MeasuredGradient { values, first_not_finite, norm: got } = gradient;
    if values.len() != n_parameters {
        return Some(ContributionRefusal::Length { want: n_parameters as u64, got: values.len() as u64 });
    }
    if let Some(index) = first_not_finite {
        return Some(ContributionRefusal::NotFinite { index: *index as u64 });
    }
    (*got > f64::from(norm_max))
        .then(|| ContributionRefusal::Norm { max: norm_max, got: got.min(f64::from(f32::MAX)) as f32 })
}
