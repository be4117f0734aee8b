//! One contribution on its way through a round: offered, received, persisted, counted.

use barnraise_protocol::gradient::{Accepted, Offer, Refusal};

use super::{AveragingRound, Phase, RoundAction, Ticket};
use crate::{Moment, PeerKey, robust};

/// What is remembered of a peer across its sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Samples that it may still claim: a token bucket, filled at the fastest believable speed.
    allowance: f64,
    at: Moment,
    /// It reported and did not deliver: until it delivers, its reports do not make gradients due.
    pub(super) stalled: bool,
}

impl Standing {
    pub(super) fn new(now: Moment, samples_max: u32) -> Self {
        Self { allowance: f64::from(samples_max), at: now, stalled: false }
    }

    fn refill(&mut self, now: Moment, per_second: u32, samples_max: u32) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.allowance = (self.allowance + passed * f64::from(per_second)).min(f64::from(samples_max));
        self.at = now;
    }
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) peer: PeerKey,
    pub(super) offer: Offer,
    /// `None` while the bytes are still being received, then the values and their sequence number.
    received: Option<(Vec<f32>, u32)>,
}

impl AveragingRound {
    /// A peer offers a contribution: the ticket under which it is received, or why it is not wanted.
    pub fn on_offer(&mut self, now: Moment, peer: &PeerKey, offer: &Offer) -> Result<Ticket, Refusal> {
        self.check_offer(peer, offer)?;
        self.check_rate(now, peer, offer.n_samples)?;
        if let Some(contributor) = self.contributors.get_mut(peer) {
            contributor.outstanding = contributor.outstanding.saturating_sub(offer.n_samples);
            contributor.is_silent = false;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let flight = InFlight { peer: peer.clone(), offer: offer.clone(), received: None };
        self.in_flight.insert(ticket, flight);
        self.advance(now);
        Ok(ticket)
    }

    /// The bytes of a contribution did not arrive.
    pub fn on_transfer_failed(&mut self, now: Moment, ticket: Ticket) {
        self.give_back(ticket);
        self.advance(now);
    }

    /// The values of a contribution are here. Leads to `Persist`, or at once to `Refuse`.
    pub fn on_gradient(&mut self, now: Moment, ticket: Ticket, values: Vec<f32>) {
        let epoch = self.epoch;
        let n_parameters = self.config.n_parameters;
        let norm_max = self.config.gradient_norm_max;
        let Some(flight) = self.in_flight.get_mut(&ticket) else {
            // Its transfer outlasted the round, which went on without it.
            self.actions.push_back(RoundAction::Refuse(ticket, Refusal::Busy));
            return;
        };
        if let Some(refusal) = refusal_of(&values, n_parameters, norm_max) {
            self.in_flight.remove(&ticket);
            self.actions.push_back(RoundAction::Refuse(ticket, refusal));
            self.advance(now);
            return;
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        flight.received = Some((values, sequence));
        self.actions.push_back(RoundAction::Persist { ticket, epoch, sequence });
    }

    /// The contribution is stored: from here on it counts.
    pub fn on_persisted(&mut self, now: Moment, ticket: Ticket) {
        let Some(flight) = self.in_flight.remove(&ticket) else { return };
        let Some((values, sequence)) = flight.received else { return };
        let InFlight { peer, offer, .. } = flight;
        let accepted = Accepted {
            contribution_id: offer.contribution_id,
            epoch: self.epoch,
            n_samples: offer.n_samples,
        };
        self.count(peer, &offer, &values, sequence);
        self.actions.push_back(RoundAction::Acknowledge(ticket, accepted));
        self.advance(now);
    }

    /// The contribution could not be stored: its sender may offer it again.
    pub fn on_persist_failed(&mut self, now: Moment, ticket: Ticket) {
        self.give_back(ticket);
        self.actions.push_back(RoundAction::Refuse(ticket, Refusal::Storage));
        self.advance(now);
    }

    /// Counts a contribution that was stored before a restart, or that is not in the parameters that came from
    /// elsewhere: one of an earlier epoch weighs less, by its age in epochs.
    ///
    /// Contributions must come in the order of their sequence numbers, so that the sum is the same. What was accepted
    /// counts as it was written, whatever the limits and the codec are by now: nothing but its length is compared.
    pub fn restore(
        &mut self,
        peer: PeerKey,
        offer: &Offer,
        values: &[f32],
        sequence: u32,
    ) -> Result<(), Refusal> {
        let contribution_id = offer.contribution_id;
        if self.counted.contains(&(peer.clone(), contribution_id)) {
            return Err(Refusal::Duplicate { contribution_id });
        }
        if values.len() != self.config.n_parameters {
            let want = self.config.n_parameters as u64;
            return Err(Refusal::Length { want, got: values.len() as u64 });
        }
        self.next_sequence = sequence.saturating_add(1);
        self.count(peer, offer, values, sequence);
        Ok(())
    }

    /// A contribution of the epoch before the current one that was stored before a restart: it is
    /// remembered, so that offering it again does not count it twice.
    pub fn restore_counted_before(&mut self, peer: PeerKey, contribution_id: u64) {
        self.counted_before.insert((peer, contribution_id));
    }

    fn count(&mut self, peer: PeerKey, offer: &Offer, values: &[f32], sequence: u32) {
        let age = self.epoch.saturating_sub(offer.epoch);
        let n_samples = u64::from(offer.n_samples).div_ceil(age.saturating_add(1)) as u32;
        self.contributions.add(&peer, n_samples, offer.loss, values);
        *self.counted_samples.entry(peer.clone()).or_default() += u64::from(n_samples);
        self.sequences.push(sequence);
        self.taken_in_pause += usize::from(self.is_paused);
        if let Some(standing) = self.standings.get_mut(&peer) {
            standing.stalled = false;
        }
        self.counted.insert((peer, offer.contribution_id));
    }

    /// Transfers that are still under way at the deadline cost their own share only.
    pub(super) fn drop_slow_transfers(&mut self) {
        let slow = self.in_flight.iter().filter(|(_, flight)| flight.received.is_none());
        let slow: Vec<_> = slow.map(|(&ticket, _)| ticket).collect();
        for ticket in slow {
            self.give_back(ticket);
        }
    }

    /// The samples of a contribution that did not arrive may be claimed again.
    pub(super) fn give_back(&mut self, ticket: Ticket) {
        let Some(flight) = self.in_flight.remove(&ticket) else { return };
        if let Some(standing) = self.standings.get_mut(&flight.peer) {
            standing.allowance += f64::from(flight.offer.n_samples);
        }
    }

    fn check_offer(&self, peer: &PeerKey, offer: &Offer) -> Result<(), Refusal> {
        let contribution_id = offer.contribution_id;
        let name = (peer.clone(), contribution_id);
        if self.counted.contains(&name) || self.counted_before.contains(&name) {
            return Err(Refusal::Duplicate { contribution_id });
        }
        if !self.contributors.contains_key(peer) {
            return Err(Refusal::NotJoined);
        }
        if self.phase == Phase::Stepping || offer.epoch != self.epoch {
            let want = self.epoch + u64::from(self.phase == Phase::Stepping);
            return Err(Refusal::Epoch { want, got: offer.epoch });
        }
        self.check_shape(offer)?;
        // One at a time from each peer: nobody takes all the places.
        let receiving = self.in_flight.values().any(|flight| &flight.peer == peer);
        if receiving || self.in_flight.len() >= self.config.in_flight_max || self.has_enough_of_a_pause() {
            return Err(Refusal::Busy);
        }
        Ok(())
    }

    fn check_shape(&self, offer: &Offer) -> Result<(), Refusal> {
        let want = self.config.n_parameters as u64;
        if offer.n_values != want {
            return Err(Refusal::Length { want, got: offer.n_values });
        }
        if offer.codec != self.config.codec && Some(offer.codec) != self.config.slow_codec {
            return Err(Refusal::Codec { want: self.config.codec, got: offer.codec });
        }
        let wanted = offer.codec.encoded_len_at(self.config.n_parameters, offer.epoch);
        let (fewest, want, got) = (*wanted.start() as u64, *wanted.end() as u64, offer.transfer.n_bytes);
        if !(fewest..=want).contains(&got) {
            return Err(Refusal::Bytes { want, got });
        }
        let max = self.config.contribution_samples_max;
        if offer.n_samples == 0 || offer.n_samples > max {
            return Err(Refusal::Samples { max, got: offer.n_samples });
        }
        if !offer.loss.is_finite() {
            return Err(Refusal::NotFinite { index: offer.n_values });
        }
        Ok(())
    }

    fn check_rate(&mut self, now: Moment, peer: &PeerKey, got: u32) -> Result<(), Refusal> {
        let per_second = self.config.samples_per_second_max;
        let samples_max = self.config.contribution_samples_max;
        let standing = self.standing(now, peer);
        standing.refill(now, per_second, samples_max);
        if f64::from(got) > standing.allowance {
            return Err(Refusal::Rate { max: standing.allowance as u32, got });
        }
        standing.allowance -= f64::from(got);
        Ok(())
    }
}

/// What is wrong with the values of a contribution.
fn refusal_of(values: &[f32], n_parameters: usize, norm_max: f32) -> Option<Refusal> {
    if values.len() != n_parameters {
        return Some(Refusal::Length { want: n_parameters as u64, got: values.len() as u64 });
    }
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Some(Refusal::NotFinite { index: index as u64 });
    }
    let got = robust::norm(values);
    (got > f64::from(norm_max))
        .then(|| Refusal::Norm { max: norm_max, got: got.min(f64::from(f32::MAX)) as f32 })
}
