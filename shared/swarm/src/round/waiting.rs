//! Whose samples are counted on, and for how long a round waits for them.
//!
//! What a peer reports makes gradients due before it has delivered any, so reports that come to nothing cost
//! the others time. Two numbers are kept of each source, an address or, where there is only one, a key:
//!
//! - **reliability**, the part of what it reported that it delivered when that was due, halved each time that nothing
//!   came. Its reports count by that part toward the next step, among strangers for no more than what all others have.
//!   Where nobody else delivers they count in full: one that was slow counts again with its next report. What is
//!   delivered always counts in full.
//! - **patience**, for those that the others are held up by: the last one, or all that are left where none of them is
//!   reliable. They wait for as long as it pays, by the samples that it brings, and for a sixteenth of the time beyond
//!   that. So nobody takes more of the others' time by delivering late. A newcomer begins with a 64th of the time that a
//!   round waits: each new address costs the others that once. A wait in vain is followed by one that is twice as long,
//!   as soon as so much is saved: one that takes long to deliver is waited for seldom, and not always in vain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{AddressGroup, AveragingRound, Contributor, Ticket};
use crate::robust::Aggregation;
use crate::{Moment, PeerKey};

/// Sources that are remembered.
const SOURCES_MAX: usize = 10_000;
/// Of the time that passes, what all may wait for one source for nothing.
const PATIENCE_PART: u32 = 16;
/// Of the time that a round waits, what a newcomer has of it.
const NEWCOMER_PART: u32 = 64;
/// How much longer an epoch may take for one that brings as many samples as all others.
const PAYS_PART: f64 = 0.125;
/// The shortest wait, as a part of the time that a round waits.
const WAIT_PART_MIN: f64 = 1.0 / 16.0;
/// Who delivers so much of what it reports is counted on rather than others.
const RELIABLE: f64 = 0.9;

/// Who answers for what does not come.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Group(AddressGroup),
    Peer(PeerKey),
}

#[derive(Debug, Clone, Copy)]
struct Record {
    reliability: f64,
    patience: Duration,
    at: Moment,
    /// The shortest wait that is worth its while.
    needed: Duration,
}

/// What is known of the sources, and of the wait that is under way.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    records: BTreeMap<Source, Record>,
    epoch_since: Moment,
    /// Since when gradients are due.
    due_since: Moment,
    has_claims: bool,
    /// Those that the others are held up by, and since when.
    last: BTreeMap<Source, Moment>,
    /// Claimed and delivered, of those who left since.
    left: BTreeMap<Source, (u64, u64)>,
}

impl Waiting {
    /// An epoch begins.
    pub(super) fn begin(&mut self, now: Moment) {
        self.epoch_since = now;
    }

    fn reliability(&self, source: &Source) -> f64 {
        self.records.get(source).map_or(1.0, |record| record.reliability)
    }

    fn patience(&self, source: &Source, now: Moment, max: Duration) -> Duration {
        let Some(record) = self.records.get(source) else { return max / NEWCOMER_PART };
        (record.patience + now.saturating_sub(record.at) / PATIENCE_PART).min(max)
    }

    /// How long one is waited for beyond what pays: nothing until it has saved enough for it.
    fn spends(&self, source: &Source, now: Moment, max: Duration) -> Duration {
        let patience = self.patience(source, now, max);
        let needed = self.records.get(source).map_or(Duration::ZERO, |record| record.needed);
        if patience < needed { Duration::ZERO } else { patience }
    }

    fn record(&mut self, source: Source, now: Moment, max: Duration) -> &mut Record {
        let patience = self.patience(&source, now, max);
        if self.records.len() >= SOURCES_MAX && !self.records.contains_key(&source) {
            // The one that was heard of the longest ago.
            let oldest = self.records.iter().min_by_key(|(_, record)| record.at);
            if let Some(oldest) = oldest.map(|(source, _)| source.clone()) {
                self.records.remove(&oldest);
            }
        }
        let fresh = Record { reliability: 1.0, patience: max, at: now, needed: Duration::ZERO };
        let record = self.records.entry(source).or_insert(fresh);
        (record.patience, record.at) = (patience, now);
        record
    }
}

impl AveragingRound {
    /// Who answers for a peer: its address, if there is another one to tell it from.
    pub(super) fn source(&self, peer: &PeerKey, group: AddressGroup) -> Source {
        if self.config.is_open && self.seats.has_others(group) {
            Source::Group(group)
        } else {
            Source::Peer(peer.clone())
        }
    }

    /// Samples that are counted on: what is counted, and of what is reported and on its way the part that is likely
    /// to come, among strangers of each source at most as much as all others have, here and elsewhere. One that is alone, or whom nobody
    /// joined lately that delivers, is believed all of it.
    pub(super) fn n_expected(&self) -> u64 {
        let mut claims: BTreeMap<Source, u64> = BTreeMap::new();
        let mut certain = self.contributions.n_samples();
        for flight in self.in_flight.values() {
            let n_samples = u64::from(flight.offer.n_samples);
            if flight.is_receiving() {
                *claims.entry(self.source(&flight.peer, flight.group)).or_default() += n_samples;
            } else {
                certain += n_samples;
            }
        }
        for (peer, contributor) in self.contributors.iter().filter(|(_, of)| of.outstanding > 0) {
            let source = self.source(peer, contributor.group);
            *claims.entry(source).or_default() += u64::from(contributor.outstanding);
        }
        let known = self.known_to_deliver();
        let likely = |source: &Source, n: u64| (n as f64 * self.waiting.reliability(source)) as u64;
        let all_likely: u64 = claims.iter().map(|(source, &n)| likely(source, n)).sum();
        let believed = |(source, &n): (&Source, &u64)| {
            if known.iter().all(|known| known == source) {
                return n;
            }
            let own = likely(source, n);
            if !self.is_among_strangers() {
                return own;
            }
            let others = certain.saturating_sub(self.n_counted_of(source)) + all_likely - own;
            own.min(others.saturating_add(self.elsewhere.n_samples))
        };
        certain + claims.iter().map(believed).sum::<u64>()
    }

    /// Those who delivered lately what they reported.
    fn known_to_deliver(&self) -> BTreeSet<Source> {
        let lately = |of: &Contributor| of.counted_in.is_some_and(|epoch| epoch + 1 >= self.epoch);
        let lately = self.contributors.iter().filter(|(_, of)| lately(of));
        let sources = lately.map(|(peer, of)| self.source(peer, of.group));
        sources.filter(|source| self.waiting.reliability(source) >= RELIABLE).collect()
    }

    /// How long there may be enough claims that are not believed: the less reliable those are who claim, the longer.
    pub(super) fn patience_with_claims(&self) -> Duration {
        if !self.is_among_strangers() {
            return self.config.collect_timeout;
        }
        let claiming = self.holders();
        let best = claiming.iter().map(|source| self.waiting.reliability(source)).fold(0.0, f64::max);
        let ms = self.config.collect_timeout.as_millis() as f64 / best.max(WAIT_PART_MIN);
        Duration::from_millis(ms as u64)
    }

    /// Gradients are due from now on: what is claimed is to come.
    pub(super) fn note_claims(&mut self, now: Moment) {
        self.waiting.due_since = now;
        self.waiting.has_claims = true;
        self.waiting.left.clear();
        for contributor in self.contributors.values_mut() {
            contributor.claimed = contributor.outstanding;
            contributor.delivered = 0;
            contributor.was_put_off = false;
            contributor.n_asked_in_vain = contributor.n_asked_in_vain.saturating_add(1);
        }
        for flight in self.in_flight.values().filter(|flight| flight.is_receiving()) {
            if let Some(contributor) = self.contributors.get_mut(&flight.peer) {
                contributor.claimed = contributor.claimed.saturating_add(flight.offer.n_samples);
            }
        }
    }

    /// One that leaves with what it claimed did not deliver it.
    pub(super) fn note_leaving(&mut self, peer: &PeerKey) {
        let Some(contributor) = self.contributors.get(peer) else { return };
        if self.is_collecting() && contributor.claimed > 0 {
            let (claimed, delivered) = (contributor.claimed, contributor.delivered);
            let left = self.waiting.left.entry(self.source(peer, contributor.group)).or_default();
            left.0 += u64::from(claimed);
            left.1 += u64::from(delivered.min(claimed));
        }
    }

    /// Those that the others are held up by, as it is now.
    pub(super) fn note_last(&mut self, now: Moment) {
        let mut holders = self.holders();
        if holders.len() > 1 && holders.iter().any(|source| self.waiting.reliability(source) >= RELIABLE) {
            holders.clear();
        }
        holders.retain(|source| self.n_counted_of_others(source) > 0);
        self.charge_all_but(now, &holders);
        for source in holders {
            self.waiting.last.entry(source).or_insert(now);
        }
    }

    /// Those whose samples have not come.
    fn holders(&self) -> BTreeSet<Source> {
        let outstanding = self.contributors.iter().filter(|(_, of)| of.outstanding > 0);
        let outstanding = outstanding.map(|(peer, of)| self.source(peer, of.group));
        let receiving = self.in_flight.values().filter(|flight| flight.is_receiving());
        let receiving = receiving.map(|flight| self.source(&flight.peer, flight.group));
        outstanding.chain(receiving).collect()
    }

    fn n_counted_of(&self, source: &Source) -> u64 {
        match source {
            Source::Group(group) => self.tallies.of_group(*group).n_samples,
            Source::Peer(peer) => self.counted_samples.get(peer).copied().unwrap_or_default(),
        }
    }

    fn n_counted_of_others(&self, source: &Source) -> u64 {
        self.contributions.n_samples().saturating_sub(self.n_counted_of(source))
    }

    /// How long it pays to wait for one that brings so many samples.
    fn pays(&self, source: &Source, n_samples: f64) -> Duration {
        let others = self.n_counted_of_others(source).max(1) as f64;
        let part = (n_samples / others).min(1.0) * PAYS_PART;
        self.waiting.due_since.saturating_sub(self.waiting.epoch_since).mul_f64(part)
    }

    /// The wait for the last ones is over, but for these.
    fn charge_all_but(&mut self, now: Moment, waited_for: &BTreeSet<Source>) {
        let last = std::mem::take(&mut self.waiting.last);
        let (going_on, over) = last.into_iter().partition(|(source, _)| waited_for.contains(source));
        self.waiting.last = going_on;
        for (source, since) in over {
            self.charge(now, source, since);
        }
    }

    fn charge(&mut self, now: Moment, source: Source, since: Moment) {
        let paid = self.pays(&source, self.n_counted_of(&source) as f64);
        let waited = now.saturating_sub(since).saturating_sub(paid);
        let (claimed, delivered) = self.claimed_and_delivered_by(&source);
        let max = self.config.collect_timeout;
        let record = self.waiting.record(source, now, max);
        record.patience = record.patience.saturating_sub(waited);
        if delivered >= claimed {
            record.needed = waited;
        } else if waited >= record.needed {
            record.needed = (2 * waited).min(max);
        }
    }

    /// Until when a source is waited for, in whole milliseconds: drivers count them.
    fn waits_for(&self, source: &Source) -> Moment {
        let exactly = self.waits_exactly_for(source);
        Duration::from_millis(exactly.as_nanos().div_ceil(1_000_000) as u64)
    }

    fn waits_exactly_for(&self, source: &Source) -> Moment {
        let timeout = self.config.collect_timeout;
        let at_most = self.waiting.due_since + timeout;
        let Some(&since) = self.waiting.last.get(source) else { return at_most };
        let (claimed, _) = self.claimed_and_delivered_by(source);
        let pays = self.pays(source, self.waiting.reliability(source) * claimed as f64);
        at_most.min(since + self.waiting.spends(source, since, timeout) + pays)
    }

    /// Samples of those who are there.
    fn claimed_and_delivered_by(&self, source: &Source) -> (u64, u64) {
        let of = self.contributors.iter().filter(|(peer, of)| self.source(peer, of.group) == *source);
        of.fold((0, 0), |(claimed, delivered), (_, of)| {
            (claimed + u64::from(of.claimed), delivered + u64::from(of.delivered.min(of.claimed)))
        })
    }

    /// Whether there are enough samples for the step without those that are waited for. As long as there are not, nobody
    /// is held up by them: without them there is no step.
    fn is_enough_without(&self) -> bool {
        let storing = self.in_flight.values().filter(|flight| !flight.is_receiving());
        let storing: u64 = storing.map(|flight| u64::from(flight.offer.n_samples)).sum();
        let target = u64::from(self.config.target_batch_size).saturating_sub(self.elsewhere.n_samples);
        let n_samples = self.contributions.n_samples() + storing;
        // Where gradients are clipped it is not their number that makes a step.
        let is_clipped = matches!(self.config.aggregation, Aggregation::CenteredClip { .. });
        !is_clipped && n_samples > 0 && (n_samples >= target || self.elsewhere.is_closing)
    }

    /// Whether sources are told apart by address: where strangers may come, and do.
    pub(super) fn is_among_strangers(&self) -> bool {
        self.config.is_open && self.seats.n_groups() > 1
    }

    /// Whether those that are waited for may be given up before all of the time that a round waits. Among strangers
    /// nobody holds others up by claims; elsewhere there has to be enough for the step without them.
    fn may_go_on_early(&self) -> bool {
        if self.is_among_strangers() { self.contributors.len() > 1 } else { self.is_enough_without() }
    }

    /// When the first of those that are waited for has had its time.
    pub(super) fn waits_until(&self) -> Option<Moment> {
        let holders = self.holders();
        let first = holders.iter().map(|source| self.waits_for(source)).min();
        first.filter(|_| self.may_go_on_early())
    }

    /// Goes on without those who have had their time, or without all that has not come. What is on its way has the time
    /// that its bytes take where nobody else is there to make up for it.
    pub(super) fn give_up_waiting(&mut self, now: Moment, are_all: bool) {
        let holders = self.holders().into_iter();
        let late: BTreeSet<Source> = if are_all {
            holders.collect()
        } else if self.may_go_on_early() {
            holders.filter(|source| self.waits_for(source) <= now).collect()
        } else {
            return;
        };
        let of = |round: &Self, peer: &PeerKey, group| late.contains(&round.source(peer, group));
        let peers: Vec<PeerKey> = self
            .contributors
            .iter()
            .filter(|(peer, contributor)| contributor.outstanding > 0 && of(self, peer, contributor.group))
            .map(|(peer, _)| peer.clone())
            .collect();
        let mut sources = self.contributors.iter().map(|(peer, of)| self.source(peer, of.group));
        let can_go_on = self.may_go_on_early() || sources.any(|source| !late.contains(&source));
        let tickets: Vec<Ticket> = self
            .in_flight
            .iter()
            .filter(|(_, flight)| can_go_on && flight.is_receiving() && of(self, &flight.peer, flight.group))
            .map(|(&ticket, _)| ticket)
            .collect();
        for peer in peers {
            if let Some(contributor) = self.contributors.get_mut(&peer) {
                contributor.outstanding = 0;
                contributor.is_silent = true;
            }
        }
        tickets.into_iter().for_each(|ticket| self.abandon(ticket));
    }

    /// The wait is over: what came of what was claimed decides how much the next claims count.
    pub(super) fn settle_claims(&mut self, now: Moment) {
        self.charge_all_but(now, &BTreeSet::new());
        if !std::mem::take(&mut self.waiting.has_claims) {
            return;
        }
        let mut of_sources = std::mem::take(&mut self.waiting.left);
        for (peer, contributor) in
            self.contributors.iter().filter(|(_, of)| of.claimed > 0 && !of.was_put_off)
        {
            let sums = of_sources.entry(self.source(peer, contributor.group)).or_default();
            sums.0 += u64::from(contributor.claimed);
            sums.1 += u64::from(contributor.delivered.min(contributor.claimed));
        }
        let max = self.config.collect_timeout;
        for (source, (claimed, delivered)) in of_sources {
            let part = delivered as f64 / claimed.max(1) as f64;
            let record = self.waiting.record(source, now, max);
            record.reliability = f64::midpoint(record.reliability, part);
        }
        for contributor in self.contributors.values_mut() {
            contributor.claimed = 0;
        }
    }
}

#[cfg(test)]
impl AveragingRound {
    /// Of what a peer reports, the part that counts.
    pub(super) fn waiting_reliability(&self, peer: &PeerKey) -> f64 {
        self.waiting.reliability(&self.source(peer, self.group_of(peer)))
    }
}
