//! What one address, and one peer, may take of what a round has: seats, places for transfers, contributions.
//!
//! Nothing is set aside for anybody. Only where all is taken does the address that has the most give way to one that
//! has fewer, so a single address may have all of it for as long as nobody else comes.

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::gradient::{Offer, Refusal};
use serde::{Deserialize, Serialize};

use super::{AveragingRound, Contributor, Phase, RoundAction, Ticket};
use crate::{Moment, PeerKey};

/// Most contributions of one epoch: that many are read back after a restart.
pub const CONTRIBUTIONS_MAX: u32 = 100_000;
/// How slowly a contribution may come, whatever else happens; an uplink of 128 kbit/s is as fast.
pub const TRANSFER_BYTES_PER_SECOND_MIN: u64 = 16 * 1024;
/// Time of a transfer beside that of its bytes: round trips, a busy device.
const TRANSFER_TIME_MIN: Duration = Duration::from_secs(10);
/// Contributions of one peer to an epoch, beyond those that its samples make necessary: it may be asked several
/// times, where others do not deliver.
const CONTRIBUTIONS_PER_PEER: u64 = 8;
/// Contributions of an address to an epoch, in those of one peer: as many stand behind one router.
const PEERS_PER_ADDRESS: u64 = 64;
/// Contributions of a peer to an epoch that are smaller than a micro-batch: what is left when gradients are due, and
/// when the peer leaves.
const REMAINDERS_PER_PEER: u32 = 2;
/// The same of an address.
const REMAINDERS_PER_ADDRESS: u32 = 32;
/// A seat whose peer was asked for gradients so often, and gave none, may be given to another.
const ASKED_IN_VAIN_MAX: u32 = 3;

/// Where a contributor comes from: an IPv4 address, a /64 of IPv6, or the relay that carries it, as a number that
/// its driver chose. Keys cost nothing, addresses do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AddressGroup(pub u64);

impl AddressGroup {
    /// Of contributions in runs where it does not matter.
    pub const UNKNOWN: Self = Self(0);
}

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

/// What was counted of an epoch.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    of_peers: BTreeMap<PeerKey, Tally>,
    of_groups: BTreeMap<AddressGroup, Tally>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    n_contributions: u64,
    n_remainders: u32,
    pub(super) n_samples: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.n_contributions += other.n_contributions;
        self.n_remainders += other.n_remainders;
        self.n_samples += other.n_samples;
    }
}

impl Tallies {
    pub(super) fn count(&mut self, peer: &PeerKey, group: AddressGroup, n_samples: u32, micro: u32) {
        let n_remainders = u32::from(n_samples < micro);
        let one = Tally { n_contributions: 1, n_remainders, n_samples: n_samples.into() };
        self.add(peer, group, one);
    }

    /// Counts one that was carried over from an earlier epoch: the bounds of that one held for it. Else a peer whose
    /// backbone was away for long could give nothing more to the step that waits for it.
    pub(super) fn count_carried(&mut self, peer: &PeerKey, group: AddressGroup, n_samples: u32) {
        self.add(peer, group, Tally { n_samples: n_samples.into(), ..Tally::default() });
    }

    fn add(&mut self, peer: &PeerKey, group: AddressGroup, tally: Tally) {
        self.of_peers.entry(peer.clone()).or_default().add(tally);
        self.of_groups.entry(group).or_default().add(tally);
    }

    pub(super) fn clear(&mut self) {
        self.of_peers.clear();
        self.of_groups.clear();
    }

    pub(super) fn of_group(&self, group: AddressGroup) -> Tally {
        self.of_groups.get(&group).copied().unwrap_or_default()
    }
}

impl Contributor {
    pub(super) fn new(device: DeviceKind, group: AddressGroup) -> Self {
        Self {
            device,
            group,
            outstanding: 0,
            samples_per_second: 0.0,
            is_silent: false,
            claimed: 0,
            delivered: 0,
            was_put_off: false,
            n_asked_in_vain: 0,
            counted_in: None,
        }
    }
}

impl AveragingRound {
    pub(super) fn group_of(&self, peer: &PeerKey) -> AddressGroup {
        self.contributors.get(peer).map(|contributor| contributor.group).unwrap_or_default()
    }

    /// Who gives its seat to one of `group`, where all are taken: of the address with the most seats who was asked in
    /// vain the most often, if that address has more even then; or else one that never delivers.
    pub(super) fn seat_for(&self, group: AddressGroup) -> Option<PeerKey> {
        let own = self.seats.of(group);
        let n_seats = |of: AddressGroup| self.seats.of(of);
        let may_go = |contributor: &Contributor| {
            let has_more = self.config.is_open && n_seats(contributor.group) > own + 1;
            has_more || contributor.n_asked_in_vain >= ASKED_IN_VAIN_MAX
        };
        let candidates = self.contributors.iter().filter(|(_, contributor)| may_go(contributor));
        let first = candidates.max_by_key(|(_, of)| (n_seats(of.group), of.n_asked_in_vain));
        first.map(|(peer, _)| peer.clone())
    }

    /// A place for one more transfer. Where all are taken, the oldest one of the address that has the most ends if
    /// that has more even then, or if it has taken its time.
    pub(super) fn make_way(
        &mut self,
        now: Moment,
        peer: &PeerKey,
        group: AddressGroup,
    ) -> Result<(), Refusal> {
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
        let Some((_, (n, ticket, since))) = most else { return Err(Refusal::Busy) };
        let has_had_its_time = n > own && now >= since + self.config.collect_timeout;
        if n <= own + 1 && !has_had_its_time {
            return Err(Refusal::Busy);
        }
        self.abandon(ticket);
        Ok(())
    }

    /// How long a contribution may be on its way.
    pub(super) fn transfer_time(&self, offer: &Offer) -> Duration {
        let of_bytes = offer.transfer.n_bytes.saturating_mul(1000) / TRANSFER_BYTES_PER_SECOND_MIN;
        TRANSFER_TIME_MIN.max(self.config.collect_timeout) + Duration::from_millis(of_bytes)
    }

    /// Until when the first of the transfers has to be through.
    pub(super) fn transfers_until(&self) -> Option<Moment> {
        let receiving = self.in_flight.values().filter(|flight| flight.is_receiving());
        receiving.map(|flight| flight.deadline).min()
    }

    /// In whatever phase: nobody holds a place by trickling.
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
        self.actions.push_back(RoundAction::Abandon(ticket));
    }

    /// Many small contributions cost disk and memory that their samples are not worth.
    pub(super) fn check_tally(&self, peer: &PeerKey, offer: &Offer) -> Result<(), Refusal> {
        let group = self.group_of(peer);
        let of_peer = self.tallies.of_peers.get(peer).copied().unwrap_or_default();
        let of_group = self.tallies.of_group(group);
        let micro = self.config.micro_batch_size;
        let has_remainders = of_peer.n_remainders >= REMAINDERS_PER_PEER
            || (self.config.is_open && of_group.n_remainders >= REMAINDERS_PER_ADDRESS);
        if offer.n_samples < micro && has_remainders {
            return Err(Refusal::TooFew { min: micro, got: offer.n_samples });
        }
        let needed = u64::from(self.config.target_batch_size)
            .div_ceil(u64::from(self.config.contribution_samples_max.max(1)));
        let per_peer = CONTRIBUTIONS_PER_PEER + 4 * needed;
        let is_too_much = of_peer.n_contributions >= per_peer
            || (self.config.is_open && of_group.n_contributions >= per_peer * PEERS_PER_ADDRESS);
        if is_too_much || self.next_sequence >= CONTRIBUTIONS_MAX {
            return Err(Refusal::TooMany { epoch: self.epoch });
        }
        Ok(())
    }

    pub(super) fn is_collecting(&self) -> bool {
        matches!(self.phase, Phase::Collecting { .. })
    }
}
