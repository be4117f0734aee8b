//! Fair shares of a round's resources, by address and by peer: seats, transfer slots, contributions.
//!
//! Nothing is reserved. Only when all seats or slots are taken does the address with the most of them lose one to an
//! address that has fewer. So a single address may have all of them as long as no other one comes.

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};

use super::{CollectionAction, CollectionPhase, CollectionRound, ContributorSession, Ticket};
use crate::{AddressGroup, Moment, PeerKey};

/// Most contributions of one epoch: that many are read back after a restart.
pub const CONTRIBUTIONS_MAX: u32 = 100_000;
/// Slowest transfer of a contribution that is tolerated; as fast as an uplink of 128 kbit/s.
pub const TRANSFER_BYTES_PER_SECOND_MIN: u64 = 16 * 1024;
/// Time of a transfer in addition to that of its bytes: round trips, a busy device.
const TRANSFER_TIME_MIN: Duration = Duration::from_secs(10);
/// Contributions of one peer to an epoch, beyond those that its samples make necessary: gradients may be due several
/// times where other peers do not deliver.
const CONTRIBUTIONS_PER_PEER: u64 = 8;
/// Contributions of an address to an epoch, as a multiple of those of one peer: that many may share one router.
const PEERS_PER_ADDRESS: u64 = 64;
/// Contributions of a peer to an epoch that are smaller than a micro-batch: the remainder when gradients are due, and
/// when the peer leaves.
const REMAINDERS_PER_PEER: u32 = 2;
/// The same of an address.
const REMAINDERS_PER_ADDRESS: u32 = 32;
/// A peer that was asked for gradients so often and delivered none may lose its seat to another.
const UNANSWERED_REQUESTS_MAX: u32 = 3;

/// Seats by address.
#[derive(Debug, Default)]
pub(super) struct Seats(BTreeMap<AddressGroup, usize>);

impl Seats {
    pub(super) fn take(&mut self, group: AddressGroup) {
        *self.0.entry(group).or_default() += 1;
    }

    pub(super) fn give_back(&mut self, group: AddressGroup) {
        if let Some(n) = self.0.get_mut(&group) {
            *n -= 1;
            if *n == 0 {
                self.0.remove(&group);
            }
        }
    }

    pub(super) fn n_groups(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has_others(&self, group: AddressGroup) -> bool {
        self.0.len() > usize::from(self.0.contains_key(&group))
    }

    fn of(&self, group: AddressGroup) -> usize {
        self.0.get(&group).copied().unwrap_or_default()
    }
}

/// Contributions of an epoch, by peer and by address.
#[derive(Debug, Default)]
pub(super) struct EpochCounts {
    of_peers: BTreeMap<PeerKey, ContributionCounts>,
    of_groups: BTreeMap<AddressGroup, ContributionCounts>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContributionCounts {
    n_contributions: u64,
    n_remainders: u32,
    pub(super) n_samples: u64,
}

impl ContributionCounts {
    fn add(&mut self, other: Self) {
        self.n_contributions += other.n_contributions;
        self.n_remainders += other.n_remainders;
        self.n_samples += other.n_samples;
    }
}

impl EpochCounts {
    pub(super) fn count(&mut self, peer: &PeerKey, group: AddressGroup, n_samples: u32, micro: u32) {
        let n_remainders = u32::from(n_samples < micro);
        let one = ContributionCounts { n_contributions: 1, n_remainders, n_samples: n_samples.into() };
        self.add(peer, group, one);
    }

    /// Counts one that was carried over from an earlier epoch: it was bounded by that epoch's limits. Otherwise a peer
    /// whose backbone was away for long could contribute nothing more to the step that waits for it.
    pub(super) fn count_carried(&mut self, peer: &PeerKey, group: AddressGroup, n_samples: u32) {
        self.add(
            peer,
            group,
            ContributionCounts { n_samples: n_samples.into(), ..ContributionCounts::default() },
        );
    }

    fn add(&mut self, peer: &PeerKey, group: AddressGroup, counts: ContributionCounts) {
        self.of_peers.entry(peer.clone()).or_default().add(counts);
        self.of_groups.entry(group).or_default().add(counts);
    }

    pub(super) fn clear(&mut self) {
        self.of_peers.clear();
        self.of_groups.clear();
    }

    pub(super) fn of_group(&self, group: AddressGroup) -> ContributionCounts {
        self.of_groups.get(&group).copied().unwrap_or_default()
    }
}

impl ContributorSession {
    pub(super) fn new(device: DeviceKind, group: AddressGroup) -> Self {
        Self {
            device,
            group,
            outstanding: 0,
            offered: None,
            samples_per_second: 0.0,
            is_silent: false,
            claimed: 0,
            delivered: 0,
            was_put_off: false,
            n_unanswered_requests: 0,
            counted_in: None,
        }
    }
}

impl CollectionRound {
    pub(super) fn group_of(&self, peer: &PeerKey) -> AddressGroup {
        self.contributors.get(peer).map(|contributor| contributor.group).unwrap_or_default()
    }

    /// Contributor that loses its seat to one of `group`, where all are taken. It is of the address with the most
    /// seats, if that has more even then, or one that never delivers; first the one asked in vain the most often.
    pub(super) fn seat_for(&self, group: AddressGroup) -> Option<PeerKey> {
        let own = self.seats.of(group);
        let n_seats = |of: AddressGroup| self.seats.of(of);
        let may_go = |contributor: &ContributorSession| {
            let has_more = self.config.is_open && n_seats(contributor.group) > own + 1;
            // Not to an address that has more: it could keep the peers of others from delivering, and take their seats.
            let is_fair = !self.config.is_open || n_seats(contributor.group) >= own;
            has_more || (is_fair && contributor.n_unanswered_requests >= UNANSWERED_REQUESTS_MAX)
        };
        let candidates = self.contributors.iter().filter(|(_, contributor)| may_go(contributor));
        let first = candidates.max_by_key(|(_, of)| (n_seats(of.group), of.n_unanswered_requests));
        first.map(|(peer, _)| peer.clone())
    }

    /// Frees a slot for one more transfer. Where all are taken, the oldest transfer of the address with the most is
    /// cancelled, if that address has more even then, or if the transfer has had its time.
    pub(super) fn free_transfer_slot(
        &mut self,
        now: Moment,
        peer: &PeerKey,
        group: AddressGroup,
    ) -> Result<(), ContributionRefusal> {
        if self.in_flight.len() < self.config.in_flight_max {
            return Ok(());
        }
        let mut places: BTreeMap<_, (usize, Ticket, Moment)> = BTreeMap::new();
        let mut own = 0;
        let own_source = self.source(peer, group);
        for (&ticket, flight) in &self.in_flight {
            let source = self.source(&flight.peer, flight.group);
            own += usize::from(source == own_source);
            if flight.is_receiving() {
                places.entry(source).or_insert((0, ticket, flight.since)).0 += 1;
            }
        }
        let most = places.into_iter().filter(|(source, _)| *source != own_source);
        let most = most.max_by_key(|(_, (n, _, since))| (*n, std::cmp::Reverse(*since)));
        let Some((_, (n, ticket, since))) = most else { return Err(ContributionRefusal::Busy) };
        let has_had_its_time = n > own && now >= since + self.config.collect_timeout;
        if n <= own + 1 && !has_had_its_time {
            return Err(ContributionRefusal::Busy);
        }
        self.abandon(ticket);
        Ok(())
    }

    /// How long the transfer of a contribution may take.
    pub(super) fn transfer_time(&self, offer: &Offer) -> Duration {
        let of_bytes = offer.transfer.n_bytes.saturating_mul(1000) / TRANSFER_BYTES_PER_SECOND_MIN;
        TRANSFER_TIME_MIN.max(self.config.collect_timeout) + Duration::from_millis(of_bytes)
    }

    /// Deadline of the first transfer that is under way.
    pub(super) fn transfers_until(&self) -> Option<Moment> {
        let receiving = self.in_flight.values().filter(|flight| flight.is_receiving());
        receiving.map(|flight| flight.deadline).min()
    }

    /// In every phase: no peer keeps a slot by a transfer that trickles.
    pub(super) fn abandon_overdue(&mut self, now: Moment) {
        let overdue =
            self.in_flight.iter().filter(|(_, flight)| flight.is_receiving() && flight.deadline <= now);
        let overdue: Vec<Ticket> = overdue.map(|(&ticket, _)| ticket).collect();
        if !overdue.is_empty() {
            overdue.into_iter().for_each(|ticket| self.abandon(ticket));
            self.advance(now);
        }
    }

    pub(super) fn abandon(&mut self, ticket: Ticket) {
        self.give_back(ticket);
        self.actions.push_back(CollectionAction::Abandon(ticket));
    }

    /// Bounds the number of contributions: many small ones cost more disk and memory than their samples are worth.
    pub(super) fn check_counts(&self, peer: &PeerKey, offer: &Offer) -> Result<(), ContributionRefusal> {
        let group = self.group_of(peer);
        let of_peer = self.counts.of_peers.get(peer).copied().unwrap_or_default();
        let of_group = self.counts.of_group(group);
        let micro = self.config.micro_batch_size;
        let has_remainders = of_peer.n_remainders >= REMAINDERS_PER_PEER
            || (self.config.is_open && of_group.n_remainders >= REMAINDERS_PER_ADDRESS);
        if offer.n_samples < micro && has_remainders {
            return Err(ContributionRefusal::TooFew { min: micro, got: offer.n_samples });
        }
        let needed = u64::from(self.config.target_batch_size)
            .div_ceil(u64::from(self.config.contribution_samples_max.max(1)));
        let per_peer = CONTRIBUTIONS_PER_PEER + 4 * needed;
        let is_too_much = of_peer.n_contributions >= per_peer
            || (self.config.is_open && of_group.n_contributions >= per_peer * PEERS_PER_ADDRESS);
        if is_too_much || self.next_sequence >= CONTRIBUTIONS_MAX {
            return Err(ContributionRefusal::TooMany { epoch: self.epoch });
        }
        Ok(())
    }

    pub(super) fn is_collecting(&self) -> bool {
        matches!(self.phase, CollectionPhase::Collecting { .. })
    }
}
