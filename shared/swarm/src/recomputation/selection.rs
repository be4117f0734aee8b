//! Selection of the contributions to recompute.
//!
//! - Always the first [`PROBATION`] of a key. Only verified ones count towards them.
//! - All from an address for [`SUSPICION`] after a key was convicted there.
//! - A random share of the others, drawn with a secret, so that no peer can predict it. It is large after a key's
//!   probation, and falls with each of its contributions that was verified: otherwise many keys could forge one each right
//!   after their probation. The share of keys that are known well falls, too, while recomputing takes more than
//!   [`OWN_TIME`] of the time for one address, or [`ALL_TIME`] for all, and never reaches zero.
//!
//! Verified keys and suspected addresses survive a restart; all other state begins anew.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::gradient::Offer;
use serde::{Deserialize, Serialize};

use crate::{AddressGroup, Moment, PeerKey};

/// Contributions of a key that must be verified before its contributions are selected at random.
pub const PROBATION: u32 = 3;
/// For how long all contributions of an address are recomputed after a key was convicted there.
pub const SUSPICION: Duration = Duration::from_secs(3600);
/// Interval between recomputed contributions of a suspected address, so that other addresses do not wait for them.
const SUSPECTED_EVERY: Duration = Duration::from_secs(10);
/// Share of the time for recomputing randomly selected contributions of one address before fewer are selected.
pub const OWN_TIME: f64 = 0.02;
/// The same of all addresses.
pub const ALL_TIME: f64 = 0.25;
/// Pieces of evidence against one address that are kept for other backbones within [`SUSPICION`].
pub const EVIDENCE_MAX: u32 = 4;
/// The longest rest: a device that was delayed once does not delay all later contributions.
const REST_MAX: Duration = Duration::from_secs(60);
/// Each time that recomputing exceeded its share by this much, the share of selected contributions is halved.
const HALVING: Duration = Duration::from_secs(30);
/// Most keys and addresses that are remembered.
const KEYS_MAX: usize = 50_000;
const GROUPS_MAX: usize = 10_000;
/// Most selected and verified contributions that are remembered until they are offered again.
const NAMES_MAX: usize = 1024;

/// An address from which a wrong contribution came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspectedAddress {
    /// The address.
    pub group: AddressGroup,
    /// For how long all its contributions are still recomputed.
    pub left: Duration,
    /// Convictions since it was last not under suspicion.
    pub n_convicted: u32,
}

/// Why a contribution is recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its key is new: its first contributions are always recomputed.
    Probation {
        /// Contributions left in its probation, this one included.
        n_left: u32,
    },
    /// A key at its address was convicted.
    Suspicion,
    /// It was drawn at random.
    Chance,
    /// Its norm or size is larger than that of verified contributions ([`TypicalContributions`](super::TypicalContributions)).
    Unusual,
}

impl Reason {
    /// Whether the contribution counts only once it was verified. One that was drawn at random counts at once: others like
    /// it are not recomputed at all, and honest peers would miss a step with each draw. Its peer is convicted afterwards.
    pub fn is_before_counting(self) -> bool {
        self != Self::Chance
    }
}

/// How long the device rests after recomputing for `took`: half of its time is always left for training.
pub fn rest_after(took: Duration) -> Duration {
    took.min(REST_MAX)
}

/// A leaky bucket of time spent, drained at the rate at which it may be spent.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    seconds: f64,
    at: Moment,
}

impl Spent {
    fn now(self, now: Moment, rate: f64) -> f64 {
        (self.seconds - now.saturating_sub(self.at).as_secs_f64() * rate).max(0.0)
    }

    fn add(&mut self, now: Moment, rate: f64, took: Duration) {
        *self = Self { seconds: self.now(now, rate) + took.as_secs_f64(), at: now };
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct OfGroup {
    spent: Spent,
    /// End of the suspicion after the newest conviction.
    suspected_until: Option<Moment>,
    /// When a contribution from it was last recomputed on suspicion.
    tried_at: Option<Moment>,
    /// Convictions since it was last not under suspicion.
    n_convicted: u32,
}

/// Selects the contributions to recompute.
#[derive(Debug)]
pub struct Selection {
    share: f64,
    secret: [u8; 32],
    spent: Spent,
    n_right: HashMap<PeerKey, u32>,
    keys: VecDeque<PeerKey>,
    of_groups: HashMap<AddressGroup, OfGroup>,
    groups: VecDeque<AddressGroup>,
    chosen: VecDeque<(PeerKey, u64)>,
    right: VecDeque<(PeerKey, u64, Sha256Hash)>,
}

impl Selection {
    /// `share`, 0 to 1, is the part of unsuspicious contributions that is drawn. `secret` must not be known to peers.
    pub fn new(share: f64, secret: [u8; 32]) -> Self {
        Self {
            share,
            secret,
            spent: Spent::default(),
            n_right: HashMap::new(),
            keys: VecDeque::new(),
            of_groups: HashMap::new(),
            groups: VecDeque::new(),
            chosen: VecDeque::new(),
            right: VecDeque::new(),
        }
    }

    /// The part of unsuspicious contributions that is drawn while there is time for it.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Contributions left in the probation of a key.
    pub fn n_left(&self, peer: &PeerKey) -> u32 {
        PROBATION.saturating_sub(self.n_right.get(peer).copied().unwrap_or_default())
    }

    /// The share of a key's contributions that is drawn however long it takes: 1 in its probation, a twentieth after seven
    /// verified contributions.
    fn newcomer_share(&self, peer: &PeerKey) -> f64 {
        let n_right = self.n_right.get(peer).copied().unwrap_or_default();
        (f64::from(PROBATION) / (f64::from(n_right) + 1.0)).min(1.0).powi(3)
    }

    /// Whether all contributions of an address are recomputed.
    pub fn is_suspected(&self, now: Moment, group: AddressGroup) -> bool {
        let until = self.of_groups.get(&group).and_then(|of| of.suspected_until);
        until.is_some_and(|until| now < until)
    }

    /// Whether a contribution was verified already, and only waits to be counted.
    pub fn was_verified(&self, peer: &PeerKey, offer: &Offer) -> bool {
        let name = (offer.contribution_id, offer.transfer.sha256);
        self.right.iter().any(|(of, number, sha256)| of == peer && (*number, *sha256) == name)
    }

    /// Whether one more contribution of an address may be recomputed now; suspected addresses are limited.
    pub fn may_try(&mut self, now: Moment, group: AddressGroup) -> bool {
        if !self.is_suspected(now, group) {
            return true;
        }
        let of_group = self.of_group(group);
        let may = of_group.tried_at.is_none_or(|at| now >= at + SUSPECTED_EVERY);
        if may {
            of_group.tried_at = Some(now);
        }
        may
    }

    /// Whether a contribution that has arrived is to be recomputed before it counts. A selected one stays selected until
    /// it was verified.
    pub fn choose(
        &mut self,
        now: Moment,
        peer: &PeerKey,
        group: AddressGroup,
        offer: &Offer,
    ) -> Option<Reason> {
        let id = offer.contribution_id;
        if self.was_verified(peer, offer) {
            return None;
        }
        let n_left = self.n_left(peer);
        if n_left > 0 {
            return Some(Reason::Probation { n_left });
        }
        if self.is_suspected(now, group) {
            return Some(Reason::Suspicion);
        }
        let was_chosen = self.chosen.iter().any(|(of, number)| (of, *number) == (peer, id));
        let share = self.share_now(now, group).max(self.newcomer_share(peer));
        if !was_chosen && self.drawn(peer, offer) >= share {
            return None;
        }
        if !was_chosen {
            remember(&mut self.chosen, (peer.clone(), id));
        }
        Some(Reason::Chance)
    }

    /// A contribution was recomputed in `took` and verified.
    pub fn on_verified(
        &mut self,
        now: Moment,
        peer: &PeerKey,
        group: AddressGroup,
        offer: &Offer,
        took: Duration,
    ) {
        if self.newcomer_share(peer) < self.share && !self.is_suspected(now, group) {
            self.spent.add(now, ALL_TIME, took);
            self.of_group(group).spent.add(now, OWN_TIME, took);
        }
        let n_right = self.n_right.get(peer).copied().unwrap_or_default();
        self.restore_passed(peer.clone(), n_right.saturating_add(1));
        remember(&mut self.right, (peer.clone(), offer.contribution_id, offer.transfer.sha256));
    }

    /// A contribution that counts already could not be recomputed: its key is on probation once more, so that nobody gains
    /// by a queue that is full.
    pub fn on_unverified(&mut self, peer: &PeerKey) {
        if let Some(n_right) = self.n_right.get_mut(peer) {
            *n_right = 0;
        }
    }

    /// A contribution was wrong: its peer is convicted. Returns whether the evidence is kept for other backbones. Only a
    /// few of each address are, so that many keys do not make others fetch and recompute many.
    pub fn on_convicted(&mut self, now: Moment, group: AddressGroup) -> bool {
        let was_suspected = self.is_suspected(now, group);
        let of_group = self.of_group(group);
        of_group.n_convicted = if was_suspected { of_group.n_convicted.saturating_add(1) } else { 1 };
        of_group.suspected_until = Some(now + SUSPICION);
        of_group.n_convicted <= EVIDENCE_MAX
    }

    /// Keys and the number of their verified contributions, oldest first.
    pub(super) fn passed(&self) -> impl Iterator<Item = (&PeerKey, u32)> {
        self.keys.iter().filter_map(|key| Some((key, *self.n_right.get(key)?)))
    }

    pub(super) fn restore_passed(&mut self, peer: PeerKey, n_right: u32) {
        if !self.n_right.contains_key(&peer)
            && let Some(gone) = remember_key(&mut self.keys, peer.clone(), KEYS_MAX)
        {
            self.n_right.remove(&gone);
        }
        self.n_right.insert(peer, n_right);
    }

    /// Addresses under suspicion at `now`, oldest first.
    pub(super) fn suspected(&self, now: Moment) -> impl Iterator<Item = SuspectedAddress> {
        self.groups.iter().filter_map(move |&group| {
            let OfGroup { suspected_until, n_convicted, .. } = *self.of_groups.get(&group)?;
            let left = suspected_until?.checked_sub(now).filter(|left| !left.is_zero())?;
            Some(SuspectedAddress { group, left, n_convicted })
        })
    }

    pub(super) fn restore_suspected(&mut self, now: Moment, suspected: SuspectedAddress) {
        let SuspectedAddress { group, left, n_convicted } = suspected;
        let of_group = self.of_group(group);
        (of_group.suspected_until, of_group.n_convicted) = (Some(now + left.min(SUSPICION)), n_convicted);
    }

    /// The share of contributions from `group` that is currently drawn.
    pub fn share_now(&self, now: Moment, group: AddressGroup) -> f64 {
        let own = self.of_groups.get(&group).map_or(0.0, |of| of.spent.now(now, OWN_TIME));
        let spent = own + self.spent.now(now, ALL_TIME);
        self.share * (-spent / HALVING.as_secs_f64()).exp2()
    }

    /// The same without an address's own limit.
    pub fn share_of_all(&self, now: Moment) -> f64 {
        self.share * (-self.spent.now(now, ALL_TIME) / HALVING.as_secs_f64()).exp2()
    }

    /// A pseudorandom number in [0, 1); the same for the same contribution.
    fn drawn(&self, peer: &PeerKey, offer: &Offer) -> f64 {
        let id = offer.contribution_id.to_le_bytes();
        let what: [&[u8]; 4] = [&self.secret, &peer.0, &id, &offer.transfer.sha256.0];
        let hash = Sha256Hash::of(&what.concat()).0;
        let (first, _) = hash.split_first_chunk().unwrap_or((&[0; 8], &[]));
        // 53 bits are what an f64 holds.
        (u64::from_le_bytes(*first) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn of_group(&mut self, group: AddressGroup) -> &mut OfGroup {
        if !self.of_groups.contains_key(&group)
            && let Some(gone) = remember_key(&mut self.groups, group, GROUPS_MAX)
        {
            self.of_groups.remove(&gone);
        }
        self.of_groups.entry(group).or_default()
    }
}

fn remember<T>(names: &mut VecDeque<T>, name: T) {
    remember_key(names, name, NAMES_MAX);
}

/// Appends `name`; returns the oldest where there are more than `max`.
fn remember_key<T>(names: &mut VecDeque<T>, name: T, max: usize) -> Option<T> {
    names.push_back(name);
    if names.len() > max { names.pop_front() } else { None }
}

#[cfg(test)]
mod tests;
