//! Stragglers: how much a peer's reports count before it has delivered, and how long a round waits for it.
//!
//! A report makes gradients due before its samples are delivered, so a report without a delivery costs the other
//! peers time. A source is an address or, where there is only one address, a key. Each has two numbers:
//!
//! - **reliability**: the part of its reported samples that it delivered when they were due, halved each time that
//!   none came. It weights the source's reports toward the next step; among strangers they count at most as much as
//!   the samples of all others. Where no other source delivers they count in full, so a slow source counts again with
//!   its next report. Delivered samples always count in full.
//! - **patience**: a budget of waiting time for a straggler: the last source that the round waits for, or all
//!   remaining ones if none is reliable. The round waits as long as its samples are worth, and beyond that for at most
//!   a sixteenth of the time that has passed. So no source costs the others more than that by delivering late. The
//!   time of a wait is shared between all that it is for: charged in full to each, several slow devices would be
//!   waited for ever more seldom, though together they cost no more than one. A newcomer begins with a 64th of the
//!   collect timeout, which each new address costs once. After a wait in vain the next one is twice as long, as soon
//!   as the budget suffices. So a slow source is waited for seldom, but not always in vain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{CollectionRound, ContributorSession, Ticket};
use crate::AddressGroup;
use crate::robust::Aggregation;
use crate::{Moment, PeerKey};

/// Most sources that are remembered.
const SOURCES_MAX: usize = 10_000;
/// Patience grows by `1 / PATIENCE_PART` of the time that passes.
const PATIENCE_PART: u32 = 16;
/// A newcomer's patience is `1 / NEWCOMER_PART` of the collect timeout.
const NEWCOMER_PART: u32 = 64;
/// How much longer an epoch may take for a source with as many samples as all others, as a part of its length.
const PAYS_PART: f64 = 0.125;
/// Lower bound of the best reliability, which bounds the wait for claims that are not believed.
const WAIT_PART_MIN: f64 = 1.0 / 16.0;
/// A source is reliable from this reliability on.
const RELIABLE: f64 = 0.9;

#[cfg(test)]
mod tests;

/// Source of contributions that is accountable for its reports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ContributionSource {
    Group(AddressGroup),
    Peer(PeerKey),
}

#[derive(Debug, Clone, Copy)]
struct ReliabilityRecord {
    reliability: f64,
    patience: Duration,
    at: Moment,
    /// The shortest wait in which the source is expected to deliver.
    needed: Duration,
}

/// A wait for a straggler.
#[derive(Debug, Clone, Copy)]
struct Wait {
    since: Moment,
    /// Its share of the time.
    cost: Duration,
}

/// Records of the sources, and the current wait.
#[derive(Debug, Default)]
pub(super) struct StragglerTracker {
    records: BTreeMap<ContributionSource, ReliabilityRecord>,
    epoch_since: Moment,
    /// When gradients became due.
    due_since: Moment,
    has_claims: bool,
    /// Stragglers that the others wait for.
    last: BTreeMap<ContributionSource, Wait>,
    /// Until when the time of the wait is shared between them.
    shared_until: Moment,
    /// Samples claimed and delivered by peers that left since gradients were due.
    left: BTreeMap<ContributionSource, (u64, u64)>,
}

impl StragglerTracker {
    /// An epoch begins.
    pub(super) fn begin(&mut self, now: Moment) {
        self.epoch_since = now;
    }

    fn reliability(&self, source: &ContributionSource) -> f64 {
        self.records.get(source).map_or(1.0, |record| record.reliability)
    }

    fn patience(&self, source: &ContributionSource, now: Moment, max: Duration) -> Duration {
        let Some(record) = self.records.get(source) else { return max / NEWCOMER_PART };
        (record.patience + now.saturating_sub(record.at) / PATIENCE_PART).min(max)
    }

    fn needed(&self, source: &ContributionSource) -> Duration {
        self.records.get(source).map_or(Duration::ZERO, |record| record.needed)
    }

    fn n_last(&self) -> u32 {
        u32::try_from(self.last.len()).unwrap_or(u32::MAX)
    }

    /// Shares the time since the last call between the stragglers.
    fn share_time(&mut self, now: Moment) {
        let part = now.saturating_sub(self.shared_until).checked_div(self.n_last()).unwrap_or_default();
        self.last.values_mut().for_each(|wait| wait.cost += part);
        self.shared_until = now;
    }

    fn record(&mut self, source: ContributionSource, now: Moment, max: Duration) -> &mut ReliabilityRecord {
        let patience = self.patience(&source, now, max);
        if self.records.len() >= SOURCES_MAX && !self.records.contains_key(&source) {
            // The one with the oldest update.
            let oldest = self.records.iter().min_by_key(|(_, record)| record.at);
            if let Some(oldest) = oldest.map(|(source, _)| source.clone()) {
                self.records.remove(&oldest);
            }
        }
        let fresh = ReliabilityRecord { reliability: 1.0, patience: max, at: now, needed: Duration::ZERO };
        let record = self.records.entry(source).or_insert(fresh);
        (record.patience, record.at) = (patience, now);
        record
    }
}

impl CollectionRound {
    /// The source of a peer: its address where there are several, otherwise its key.
    pub(super) fn source(&self, peer: &PeerKey, group: AddressGroup) -> ContributionSource {
        if self.config.is_open && self.seats.has_others(group) {
            ContributionSource::Group(group)
        } else {
            ContributionSource::Peer(peer.clone())
        }
    }

    /// Expected samples of the step: counted ones, and claimed ones weighted by reliability. Among strangers the claims
    /// of a source count at most as much as the samples of all others, with those of the other aggregators. They count
    /// in full where no other source has delivered lately.
    pub(super) fn n_expected(&self) -> u64 {
        let mut claims: BTreeMap<ContributionSource, u64> = BTreeMap::new();
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
        let likely =
            |source: &ContributionSource, n: u64| (n as f64 * self.stragglers.reliability(source)) as u64;
        let all_likely: u64 = claims.iter().map(|(source, &n)| likely(source, n)).sum();
        let believed = |(source, &n): (&ContributionSource, &u64)| {
            if known.iter().all(|known| known == source) {
                return n;
            }
            let own = likely(source, n);
            if !self.is_among_strangers() {
                return own;
            }
            let others = certain.saturating_sub(self.n_counted_of(source)) + all_likely - own;
            own.min(others.saturating_add(self.other_aggregators.n_samples))
        };
        certain + claims.iter().map(believed).sum::<u64>()
    }

    /// Reliable sources that delivered in this epoch or the one before.
    fn known_to_deliver(&self) -> BTreeSet<ContributionSource> {
        let lately = |of: &ContributorSession| of.counted_in.is_some_and(|epoch| epoch + 1 >= self.epoch);
        let lately = self.contributors.iter().filter(|(_, of)| lately(of));
        let sources = lately.map(|(peer, of)| self.source(peer, of.group));
        sources.filter(|source| self.stragglers.reliability(source) >= RELIABLE).collect()
    }

    /// How long a round waits while there are enough claims but too few are believed; longer for less reliable sources.
    pub(super) fn patience_with_claims(&self) -> Duration {
        if !self.is_among_strangers() {
            return self.config.collect_timeout;
        }
        let claiming = self.undelivered_sources();
        let best = claiming.iter().map(|source| self.stragglers.reliability(source)).fold(0.0, f64::max);
        let ms = self.config.collect_timeout.as_millis() as f64 / best.max(WAIT_PART_MIN);
        Duration::from_millis(ms as u64)
    }

    /// Gradients become due: records the claimed samples of each peer.
    pub(super) fn record_claims(&mut self, now: Moment) {
        self.stragglers.due_since = now;
        self.stragglers.has_claims = true;
        self.stragglers.left.clear();
        for contributor in self.contributors.values_mut() {
            contributor.claimed = contributor.outstanding;
            contributor.delivered = 0;
            contributor.was_put_off = false;
            contributor.n_unanswered_requests = contributor.n_unanswered_requests.saturating_add(1);
        }
        for flight in self.in_flight.values().filter(|flight| flight.is_receiving()) {
            if let Some(contributor) = self.contributors.get_mut(&flight.peer) {
                contributor.claimed = contributor.claimed.saturating_add(flight.offer.n_samples);
            }
        }
    }

    /// A peer leaves: records its claimed samples that it has not delivered.
    pub(super) fn record_departure(&mut self, peer: &PeerKey) {
        let Some(contributor) = self.contributors.get(peer) else { return };
        if self.is_collecting() && contributor.claimed > 0 {
            let (claimed, delivered) = (contributor.claimed, contributor.delivered);
            let left = self.stragglers.left.entry(self.source(peer, contributor.group)).or_default();
            left.0 += u64::from(claimed);
            left.1 += u64::from(delivered.min(claimed));
        }
    }

    /// Updates the stragglers that the others wait for.
    pub(super) fn update_stragglers(&mut self, now: Moment) {
        let mut holders = self.undelivered_sources();
        if holders.len() > 1 && holders.iter().any(|source| self.stragglers.reliability(source) >= RELIABLE) {
            holders.clear();
        }
        holders.retain(|source| self.n_counted_of_others(source) > 0);
        self.charge_all_but(now, &holders);
        for source in holders {
            self.stragglers.last.entry(source).or_insert(Wait { since: now, cost: Duration::ZERO });
        }
    }

    /// Sources with undelivered samples.
    fn undelivered_sources(&self) -> BTreeSet<ContributionSource> {
        let outstanding = self.contributors.iter().filter(|(_, of)| of.outstanding > 0);
        let outstanding = outstanding.map(|(peer, of)| self.source(peer, of.group));
        let receiving = self.in_flight.values().filter(|flight| flight.is_receiving());
        let receiving = receiving.map(|flight| self.source(&flight.peer, flight.group));
        outstanding.chain(receiving).collect()
    }

    fn n_counted_of(&self, source: &ContributionSource) -> u64 {
        match source {
            ContributionSource::Group(group) => self.counts.of_group(*group).n_samples,
            ContributionSource::Peer(peer) => self.counted_samples.get(peer).copied().unwrap_or_default(),
        }
    }

    fn n_counted_of_others(&self, source: &ContributionSource) -> u64 {
        self.contributions.n_samples().saturating_sub(self.n_counted_of(source))
    }

    /// How long a wait for `n_samples` is worth it.
    fn pays(&self, source: &ContributionSource, n_samples: f64) -> Duration {
        let others = self.n_counted_of_others(source).max(1) as f64;
        let part = (n_samples / others).min(1.0) * PAYS_PART;
        self.stragglers.due_since.saturating_sub(self.stragglers.epoch_since).mul_f64(part)
    }

    /// Ends the wait for all stragglers but these, and charges its time to their patience.
    fn charge_all_but(&mut self, now: Moment, waited_for: &BTreeSet<ContributionSource>) {
        self.stragglers.share_time(now);
        let last = std::mem::take(&mut self.stragglers.last);
        let (going_on, over) = last.into_iter().partition(|(source, _)| waited_for.contains(source));
        self.stragglers.last = going_on;
        for (source, wait) in over {
            self.charge(now, source, wait);
        }
    }

    fn charge(&mut self, now: Moment, source: ContributionSource, wait: Wait) {
        let paid = self.pays(&source, self.n_counted_of(&source) as f64);
        let waited = now.saturating_sub(wait.since);
        let (claimed, delivered) = self.claimed_and_delivered_by(&source);
        let max = self.config.collect_timeout;
        let record = self.stragglers.record(source, now, max);
        record.patience = record.patience.saturating_sub(wait.cost.saturating_sub(paid));
        if delivered >= claimed {
            record.needed = waited.min(max);
        } else if waited >= record.needed {
            record.needed = (2 * waited).min(max);
        }
    }

    /// Until when a source is waited for, in whole milliseconds: drivers count them.
    fn waits_for(&self, source: &ContributionSource) -> Moment {
        let exactly = self.waits_exactly_for(source);
        Duration::from_millis(exactly.as_nanos().div_ceil(1_000_000) as u64)
    }

    fn waits_exactly_for(&self, source: &ContributionSource) -> Moment {
        let timeout = self.config.collect_timeout;
        let at_most = self.stragglers.due_since + timeout;
        let Some(wait) = self.stragglers.last.get(source) else { return at_most };
        let (claimed, _) = self.claimed_and_delivered_by(source);
        let pays = self.pays(source, self.stragglers.reliability(source) * claimed as f64);
        let until = |may_cost: Duration| {
            let left = may_cost.saturating_sub(wait.cost);
            self.stragglers.shared_until + left.saturating_mul(self.stragglers.n_last())
        };
        let at_longest = until(pays + self.stragglers.patience(source, wait.since, timeout));
        let is_long_enough = at_longest >= wait.since + self.stragglers.needed(source);
        at_most.min(if is_long_enough { at_longest } else { until(pays) })
    }

    /// Samples claimed and delivered by a source's peers that are still connected.
    fn claimed_and_delivered_by(&self, source: &ContributionSource) -> (u64, u64) {
        let of = self.contributors.iter().filter(|(peer, of)| self.source(peer, of.group) == *source);
        of.fold((0, 0), |(claimed, delivered), (_, of)| {
            (claimed + u64::from(of.claimed), delivered + u64::from(of.delivered.min(of.claimed)))
        })
    }

    /// Whether there are enough samples for the step without the stragglers. If not, waiting for them delays no peer:
    /// without them there is no step.
    fn is_enough_without(&self) -> bool {
        let storing = self.in_flight.values().filter(|flight| !flight.is_receiving());
        let storing: u64 = storing.map(|flight| u64::from(flight.offer.n_samples)).sum();
        let target =
            u64::from(self.config.target_batch_size).saturating_sub(self.other_aggregators.n_samples);
        let n_samples = self.contributions.n_samples() + storing;
        // With clipped gradients the number of samples does not decide.
        let is_clipped = matches!(self.config.aggregation, Aggregation::CenteredClip { .. });
        !is_clipped && n_samples > 0 && (n_samples >= target || self.other_aggregators.is_closing)
    }

    /// Whether sources are addresses: the run is open, and peers of several addresses are connected.
    pub(super) fn is_among_strangers(&self) -> bool {
        self.config.is_open && self.seats.n_groups() > 1
    }

    /// Whether stragglers may be given up before the collect timeout. Among strangers always, so that claims do not
    /// delay other peers; otherwise only if there are enough samples for the step without them.
    fn may_go_on_early(&self) -> bool {
        self.is_among_strangers() || self.is_enough_without()
    }

    /// When the wait for the first straggler ends.
    pub(super) fn waits_until(&self) -> Option<Moment> {
        let holders = self.undelivered_sources();
        let first = holders.iter().map(|source| self.waits_for(source)).min();
        first.filter(|_| self.may_go_on_early())
    }

    /// Gives up stragglers whose time is over, or all undelivered samples. Transfers under way may go on where no other
    /// source could make up for them.
    pub(super) fn give_up_waiting(&mut self, now: Moment, are_all: bool) {
        let holders = self.undelivered_sources().into_iter();
        let late: BTreeSet<ContributionSource> = if are_all {
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

    /// The wait is over: updates the reliability of each source from its claimed and delivered samples.
    pub(super) fn settle_claims(&mut self, now: Moment) {
        self.charge_all_but(now, &BTreeSet::new());
        if !std::mem::take(&mut self.stragglers.has_claims) {
            return;
        }
        let mut of_sources = std::mem::take(&mut self.stragglers.left);
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
            let record = self.stragglers.record(source, now, max);
            record.reliability = f64::midpoint(record.reliability, part);
        }
        for contributor in self.contributors.values_mut() {
            contributor.claimed = 0;
        }
    }
}

#[cfg(test)]
impl CollectionRound {
    /// Reliability of a peer's source.
    pub(super) fn waiting_reliability(&self, peer: &PeerKey) -> f64 {
        self.stragglers.reliability(&self.source(peer, self.group_of(peer)))
    }
}
