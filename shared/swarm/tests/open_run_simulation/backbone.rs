//! The backbone's side: round, ledger, selection and queue, called in the order of the `gradient` conversation.

use std::time::Duration;

use barnraise_protocol::gradient::{Accepted, ContributionRefusal};
use barnraise_protocol::{Refusal, Sha256Hash};
use barnraise_swarm::collection::{CollectionAction, Ticket};
use barnraise_swarm::recomputation::{Reason, RepeatError, values_hash};
use barnraise_swarm::robust::norm;
use barnraise_swarm::{AddressGroup, PeerKey};

use super::{
    BackboneMessage, Contribution, Flight, OpenRunEvent, OpenRunSimulation, PROGRESS_MS, RECOMPUTED_US,
    RecomputationJob, STORE_MS, honest_at, name,
};

fn refusal(repeat: RepeatError) -> ContributionRefusal {
    match repeat {
        RepeatError::UnderWay => ContributionRefusal::Busy,
        repeat => ContributionRefusal::Repeated(repeat.to_string()),
    }
}

impl OpenRunSimulation {
    pub(super) fn on_backbone(&mut self, event: OpenRunEvent) {
        let now = self.clock();
        match event {
            // The report of a peer that has left is ignored.
            OpenRunEvent::Report(peer, report) => drop(self.round.on_report(now, &peer, &report)),
            OpenRunEvent::Offer(contribution) => self.offered(*contribution),
            OpenRunEvent::Received(ticket) => self.received(ticket),
            OpenRunEvent::Recomputed => self.recomputed(),
            OpenRunEvent::Stored(ticket) => {
                self.seen.n_entries += 1;
                self.round.on_persisted(now, ticket);
            }
            OpenRunEvent::Deadline => {
                self.deadline = None;
                self.round.on_timeout(now);
            }
            OpenRunEvent::Progress => {
                (0..self.honest.len()).for_each(|peer| {
                    self.send(OpenRunEvent::Deliver(peer, BackboneMessage::Progress));
                });
                self.after(PROGRESS_MS, OpenRunEvent::Progress);
            }
            other => unreachable!("{other:?}"),
        }
        self.act();
    }

    pub(super) fn act(&mut self) {
        while let Some(action) = self.round.poll_action() {
            match action {
                CollectionAction::Persist { ticket, .. } => {
                    self.after(STORE_MS, OpenRunEvent::Stored(ticket));
                }
                CollectionAction::Acknowledge(ticket, accepted) => {
                    let flight = self.flights.remove(&ticket).unwrap();
                    self.send_answer(&flight.contribution, Ok(accepted));
                }
                CollectionAction::Refuse(ticket, refusal) => {
                    if let Some(flight) = self.flights.remove(&ticket) {
                        self.refuse(&flight, refusal);
                    }
                }
                CollectionAction::Abandon(ticket) => {
                    if let Some(flight) = self.flights.remove(&ticket) {
                        self.refuse(&flight, ContributionRefusal::Busy);
                    }
                }
                CollectionAction::RequestGradients(epoch) => self.broadcast(BackboneMessage::Due(epoch)),
                CollectionAction::Announce(epoch) => self.broadcast(BackboneMessage::Epoch(epoch)),
                CollectionAction::Evict(peer) => {
                    self.seen.n_honest_evicted += u64::from(honest_at(&peer).is_some());
                    self.on_evicted(&peer);
                }
                CollectionAction::Step(mean) => {
                    self.seen.n_steps += 1;
                    self.model.step(&mean.gradient);
                    self.round.on_stepped(self.clock());
                }
            }
        }
        self.seen.in_flight_max = self.seen.in_flight_max.max(self.flights.len());
        if let Some(at) = self.round.next_deadline() {
            let at = at.as_nanos().div_ceil(1_000_000) as u64;
            if self.deadline.is_none_or(|set| at < set || set < self.now()) {
                self.deadline = Some(at);
                self.after(at.saturating_sub(self.now()), OpenRunEvent::Deadline);
            }
        }
    }

    fn broadcast(&mut self, message: BackboneMessage) {
        (0..self.honest.len()).for_each(|peer| self.send(OpenRunEvent::Deliver(peer, message)));
    }

    fn send_answer(&mut self, contribution: &Contribution, answer: Result<Accepted, ContributionRefusal>) {
        let id = contribution.offer.contribution_id;
        self.send(OpenRunEvent::Answer(contribution.peer.clone(), id, answer));
    }

    /// Refuses a contribution; its samples may be contributed again.
    fn refuse(&mut self, flight: &Flight, refusal: ContributionRefusal) {
        self.ledger.give_back(&flight.claim);
        if flight.has_gradient {
            let hash = values_hash(&flight.contribution.values);
            self.ledger.give_back_gradient(flight.contribution.offer.epoch, &hash);
        }
        self.send_answer(&flight.contribution, Err(refusal));
    }

    fn offered(&mut self, contribution: Contribution) {
        let now = self.clock();
        let Contribution { peer, group, offer, samples, .. } = &contribution;
        if self.banned.contains(peer) {
            return self.send_answer(&contribution, Err(ContributionRefusal::NoAccess(Refusal::Convicted)));
        }
        let ticket = match self.round.on_offer(now, peer, offer) {
            Ok(ticket) => ticket,
            Err(refusal) => return self.send_answer(&contribution, Err(refusal)),
        };
        let parameters = Sha256Hash::of(&offer.epoch.to_le_bytes());
        let claim = match self.ledger.claim(&name(&contribution), *group, parameters, samples) {
            Ok(claim) => claim,
            Err(repeat) => {
                self.round.on_transfer_failed(now, ticket);
                return self.send_answer(&contribution, Err(refusal(repeat)));
            }
        };
        let is_sure = self.selection.n_left(peer) > 0 || self.selection.is_suspected(now, *group);
        let is_full = is_sure
            && self.selection.choose(now, peer, *group, offer).is_some()
            && (!self.queue.has_room(*group) || !self.selection.may_try(now, *group));
        let transfer_ms = contribution.transfer_ms;
        let flight = Flight { contribution, claim, is_here: false, has_gradient: false };
        if is_full {
            self.round.on_transfer_failed(now, ticket);
            return self.refuse(&flight, ContributionRefusal::Busy);
        }
        self.flights.insert(ticket, flight);
        if let Some(ms) = transfer_ms {
            self.after(ms, OpenRunEvent::Received(ticket));
        }
    }

    fn received(&mut self, ticket: Ticket) {
        let now = self.clock();
        let Some(mut flight) = self.flights.remove(&ticket) else { return };
        if flight.is_here {
            let values = flight.contribution.values.clone();
            self.flights.insert(ticket, flight);
            return self.round.on_gradient(now, ticket, values);
        }
        let (peer, group) = (flight.contribution.peer.clone(), flight.contribution.group);
        let offer = flight.contribution.offer.clone();
        let hash = values_hash(&flight.contribution.values);
        if let Err(repeat) = self.ledger.claim_gradient(&name(&flight.contribution), offer.epoch, hash) {
            self.round.on_transfer_failed(now, ticket);
            return self.refuse(&flight, refusal(repeat));
        }
        (flight.has_gradient, flight.is_here) = (true, true);
        let is_usual = self.selection.was_verified(&peer, &offer)
            || self.usual.is_typical(&peer, offer.n_samples, norm(&flight.contribution.values));
        let reason = self.selection.choose(now, &peer, group, &offer);
        let reason = reason.or_else(|| (!is_usual).then_some(Reason::Unusual));
        if reason.is_none_or(|reason| !reason.is_before_counting()) {
            if reason.is_some() {
                if !self.queue.has_room(group) {
                    self.round.on_transfer_failed(now, ticket);
                    return self.refuse(&flight, ContributionRefusal::Busy);
                }
                self.recompute(group, RecomputationJob::Counted(flight.contribution.clone()));
            }
            let values = flight.contribution.values.clone();
            self.flights.insert(ticket, flight);
            return self.round.on_gradient(now, ticket, values);
        }
        self.round.on_transfer_failed(now, ticket);
        self.recompute(group, RecomputationJob::BeforeCounting(flight));
    }

    fn recompute(&mut self, group: AddressGroup, job: RecomputationJob) {
        match self.queue.push(group, job) {
            Some(RecomputationJob::Counted(contribution)) => self.selection.on_unverified(&contribution.peer),
            Some(RecomputationJob::BeforeCounting(flight)) => self.refuse(&flight, ContributionRefusal::Busy),
            None => {}
        }
        self.recompute_next();
    }

    fn recompute_next(&mut self) {
        if self.recomputing.is_none()
            && let Some((group, job)) = self.queue.pop()
        {
            // The device pauses as long as it computed.
            let us = 2 * RECOMPUTED_US * u64::from(job.contribution().offer.n_samples);
            self.recomputing = Some((group, job));
            self.after(1 + us / 1000, OpenRunEvent::Recomputed);
        }
    }

    fn recomputed(&mut self) {
        let now = self.clock();
        let Some((group, job)) = self.recomputing.take() else { return };
        let Contribution { peer, offer, values, is_true, .. } = job.contribution();
        let (peer, offer) = (peer.clone(), offer.clone());
        if *is_true {
            let took = Duration::from_micros(RECOMPUTED_US * u64::from(offer.n_samples));
            self.selection.on_verified(now, &peer, group, &offer, took);
            self.usual.on_verified(&peer, offer.n_samples, norm(values));
            if let RecomputationJob::BeforeCounting(flight) = job {
                match self.round.on_offer(now, &peer, &offer) {
                    Ok(ticket) => {
                        self.flights.insert(ticket, flight);
                        self.received(ticket);
                    }
                    Err(refusal) => self.refuse(&flight, refusal),
                }
            }
        } else {
            self.convict(&peer, group);
            if let RecomputationJob::BeforeCounting(flight) = job {
                self.refuse(&flight, ContributionRefusal::NoAccess(Refusal::Convicted));
            }
        }
        self.recompute_next();
    }

    fn convict(&mut self, peer: &PeerKey, group: AddressGroup) {
        let now = self.clock();
        self.selection.on_convicted(now, group);
        self.seen.n_convicted += 1;
        self.banned.insert(peer.clone());
        // A banned peer loses its credit.
        self.seen.n_credited -= self.credit.remove(peer).unwrap_or_default();
        self.round.on_leave(now, peer);
        self.on_evicted(peer);
    }
}
