//! The backbone's side: round, ledger, selection and queue, called in the order of the `gradient` conversation.

use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::gradient::{Accepted, Refusal};
use barnraise_swarm::recomputation::{Repeat, values_hash};
use barnraise_swarm::robust::norm;
use barnraise_swarm::round::{RoundAction, Ticket};

use super::{
    Contribution, Event, Flight, LATENCY_MS, Message, PROGRESS_MS, RECOMPUTED_US, STORE_MS, Village,
    honest_at, name,
};

fn refusal(repeat: Repeat) -> Refusal {
    match repeat {
        Repeat::UnderWay => Refusal::Busy,
        repeat => Refusal::Repeated(repeat.to_string()),
    }
}

impl Village {
    pub(super) fn on_backbone(&mut self, event: Event) {
        let now = self.clock();
        match event {
            // One that is not there any more crossed its own end.
            Event::Report(peer, report) => drop(self.round.on_report(now, &peer, &report)),
            Event::Offer(contribution) => self.offered(*contribution),
            Event::Received(ticket) => self.received(ticket),
            Event::Recomputed => self.recomputed(),
            Event::Stored(ticket) => {
                self.seen.n_entries += 1;
                self.round.on_persisted(now, ticket);
            }
            Event::Deadline => {
                self.deadline = None;
                self.round.on_timeout(now);
            }
            Event::Progress => {
                (0..self.honest.len())
                    .for_each(|peer| self.after(LATENCY_MS, Event::Hear(peer, Message::Progress)));
                self.after(PROGRESS_MS, Event::Progress);
            }
            other => unreachable!("{other:?}"),
        }
        self.act();
    }

    pub(super) fn act(&mut self) {
        while let Some(action) = self.round.poll_action() {
            match action {
                RoundAction::Persist { ticket, .. } => self.after(STORE_MS, Event::Stored(ticket)),
                RoundAction::Acknowledge(ticket, accepted) => {
                    let flight = self.flights.remove(&ticket).unwrap();
                    self.tell(&flight.contribution, Ok(accepted));
                }
                RoundAction::Refuse(ticket, refusal) => {
                    if let Some(flight) = self.flights.remove(&ticket) {
                        self.refuse(&flight, refusal);
                    }
                }
                RoundAction::Abandon(ticket) => {
                    if let Some(flight) = self.flights.remove(&ticket) {
                        self.refuse(&flight, Refusal::Busy);
                    }
                }
                RoundAction::RequestGradients(epoch) => self.tell_all(Message::Due(epoch)),
                RoundAction::Announce(epoch) => self.tell_all(Message::Epoch(epoch)),
                RoundAction::Evict(peer) => {
                    self.seen.n_honest_evicted += u64::from(honest_at(&peer).is_some());
                    self.on_evicted(&peer);
                }
                RoundAction::Step(mean) => {
                    self.seen.n_steps += 1;
                    self.model.step(&mean.gradient);
                    self.round.on_stepped(self.clock());
                }
            }
        }
        self.seen.in_flight_max = self.seen.in_flight_max.max(self.flights.len());
        if let Some(at) = self.round.next_deadline() {
            let at = at.as_nanos().div_ceil(1_000_000) as u64;
            if self.deadline.is_none_or(|set| at < set || set < self.now) {
                self.deadline = Some(at);
                self.after(at.saturating_sub(self.now), Event::Deadline);
            }
        }
    }

    fn tell_all(&mut self, message: Message) {
        (0..self.honest.len()).for_each(|peer| self.after(LATENCY_MS, Event::Hear(peer, message)));
    }

    fn tell(&mut self, contribution: &Contribution, answer: Result<Accepted, Refusal>) {
        let id = contribution.offer.contribution_id;
        self.after(LATENCY_MS, Event::Answer(contribution.peer.clone(), id, answer));
    }

    /// What it is of may be contributed again.
    fn refuse(&mut self, flight: &Flight, refusal: Refusal) {
        self.ledger.give_back(&flight.claim);
        if flight.has_gradient {
            let hash = values_hash(&flight.contribution.values);
            self.ledger.give_back_gradient(flight.contribution.offer.epoch, &hash);
        }
        self.tell(&flight.contribution, Err(refusal));
    }

    fn offered(&mut self, contribution: Contribution) {
        let now = self.clock();
        let Contribution { peer, group, offer, samples, .. } = &contribution;
        if self.banned.contains(peer) {
            return self.tell(&contribution, Err(Refusal::NoAccess("convicted".into())));
        }
        let ticket = match self.round.on_offer(now, peer, offer) {
            Ok(ticket) => ticket,
            Err(refusal) => return self.tell(&contribution, Err(refusal)),
        };
        let parameters = Sha256Hash::of(&offer.epoch.to_le_bytes());
        let claim = match self.ledger.claim(&name(&contribution), *group, parameters, samples) {
            Ok(claim) => claim,
            Err(repeat) => {
                self.round.on_transfer_failed(now, ticket);
                return self.tell(&contribution, Err(refusal(repeat)));
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
            return self.refuse(&flight, Refusal::Busy);
        }
        self.flights.insert(ticket, flight);
        if let Some(ms) = transfer_ms {
            self.after(ms, Event::Received(ticket));
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
        let is_usual = self.selection.was_right(&peer, &offer)
            || self.usual.is_usual(&peer, offer.n_samples, norm(&flight.contribution.values));
        if self.selection.choose(now, &peer, group, &offer).is_none() && is_usual {
            let values = flight.contribution.values.clone();
            self.flights.insert(ticket, flight);
            return self.round.on_gradient(now, ticket, values);
        }
        self.round.on_transfer_failed(now, ticket);
        if let Some(gives_way) = self.queue.push(group, flight) {
            self.refuse(&gives_way, Refusal::Busy);
        }
        self.recompute_next();
    }

    fn recompute_next(&mut self) {
        if self.recomputing.is_none()
            && let Some((group, flight)) = self.queue.pop()
        {
            // It rests for as long as it computed.
            let us = 2 * RECOMPUTED_US * u64::from(flight.contribution.offer.n_samples);
            self.recomputing = Some((group, flight));
            self.after(1 + us / 1000, Event::Recomputed);
        }
    }

    fn recomputed(&mut self) {
        let now = self.clock();
        let Some((group, flight)) = self.recomputing.take() else { return };
        let Contribution { peer, offer, is_true, .. } = &flight.contribution;
        let (peer, offer, is_true) = (peer.clone(), offer.clone(), *is_true);
        if !is_true {
            self.selection.on_wrong(now, group);
            self.seen.n_convicted += 1;
            self.banned.insert(peer.clone());
            // One that was convicted has no credit.
            self.seen.n_credited -= self.credit.remove(&peer).unwrap_or_default();
            self.round.on_leave(now, &peer);
            self.on_evicted(&peer);
            self.refuse(&flight, Refusal::NoAccess("convicted".into()));
        } else {
            let took = Duration::from_micros(RECOMPUTED_US * u64::from(offer.n_samples));
            self.selection.on_right(now, &peer, group, &offer, took);
            self.usual.on_right(&peer, offer.n_samples, norm(&flight.contribution.values));
            match self.round.on_offer(now, &peer, &offer) {
                Ok(ticket) => {
                    self.flights.insert(ticket, flight);
                    self.received(ticket);
                }
                Err(refusal) => self.refuse(&flight, refusal),
            }
        }
        self.recompute_next();
    }
}
