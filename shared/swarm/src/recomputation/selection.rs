//! Whose contributions are computed once more.
//!
//! - The first [`PROBATION`] of a key, always. Only what was found right counts towards them.
//! - All from an address for [`SUSPICION`] after a key was convicted there.
//! - Of the others a share, chosen by a secret, so that nobody can tell beforehand. It falls while recomputing takes more
//!   than [`OWN_TIME`] of the time for one address, or [`ALL_TIME`] for all, and never to nothing.
//!
//! Who passed and who is suspected lasts over a restart ([`super::Lasting`]), all else begins anew.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::gradient::Offer;

use super::Suspected;
use crate::round::AddressGroup;
use crate::{Moment, PeerKey};

/// Contributions of a key that are recomputed in any case, until so many were found right.
pub const PROBATION: u32 = 3;
/// For how long everything from an address is recomputed, once a key was convicted there.
pub const SUSPICION: Duration = Duration::from_secs(3600);
/// One contribution of a suspected address is recomputed in this time, so that the others do not wait for its lies.
const SUSPECTED_EVERY: Duration = Duration::from_secs(10);
/// Of the time, what recomputing chosen contributions of one address may take before fewer are chosen.
pub const OWN_TIME: f64 = 0.02;
/// The same of all addresses.
pub const ALL_TIME: f64 = 0.25;
/// Pieces of evidence that are kept for others of one address within [`SUSPICION`].
pub const EVIDENCE_MAX: u32 = 4;
/// The longest rest: a device that was held up is not to hold up everybody else after it.
const REST_MAX: Duration = Duration::from_secs(60);
/// Each time that recomputing took so much more than it may, half as many are chosen.
const HALVING: Duration = Duration::from_secs(30);
/// Keys, and addresses, that are remembered.
const KEYS_MAX: usize = 50_000;
const GROUPS_MAX: usize = 10_000;
/// Contributions that were chosen, and those found right, that may be offered again.
const NAMES_MAX: usize = 1024;

/// Why a contribution is recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its key is new: so many of its contributions are recomputed in any case, this one included.
    Probation {
        /// This one included.
        n_left: u32,
    },
    /// A key of its address was convicted.
    Suspicion,
    /// By chance.
    Chance,
    /// It is longer or larger than what was found right ([`Usual`](super::Usual)).
    Unusual,
}

/// How long the device rests that recomputed for so long: half of its time is for training, whoever asks for what.
pub fn rest_after(took: Duration) -> Duration {
    took.min(REST_MAX)
}

/// Time that was spent, which is forgotten at the rate at which it may be spent.
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
    /// For a while after the newest conviction, and how many there were since a time without any.
    suspected_until: Option<Moment>,
    /// When something from it was recomputed on suspicion.
    tried_at: Option<Moment>,
    n_convicted: u32,
}

/// Chooses contributions.
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
    /// Of contributions that nothing is against, `share` is chosen, 0 to 1; nobody else may know `secret`.
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

    /// Of contributions that nothing is against, what is chosen while there is time for it.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Contributions of a key that are still recomputed in any case.
    pub fn n_left(&self, peer: &PeerKey) -> u32 {
        PROBATION.saturating_sub(self.n_right.get(peer).copied().unwrap_or_default())
    }

    /// Whether everything from an address is recomputed.
    pub fn is_suspected(&self, now: Moment, group: AddressGroup) -> bool {
        let until = self.of_groups.get(&group).and_then(|of| of.suspected_until);
        until.is_some_and(|until| now < until)
    }

    /// Whether a contribution was found right, and only waits to be counted.
    pub fn was_right(&self, peer: &PeerKey, offer: &Offer) -> bool {
        let name = (offer.contribution_id, offer.transfer.sha256);
        self.right.iter().any(|(of, number, sha256)| of == peer && (*number, *sha256) == name)
    }

    /// Whether one more contribution of an address may be recomputed now: of a suspected one only now and then.
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

    /// Whether a contribution is to be computed once more before it counts, now that all of it is here. One that was
    /// chosen stays it until it was found right.
    pub fn choose(
        &mut self,
        now: Moment,
        peer: &PeerKey,
        group: AddressGroup,
        offer: &Offer,
    ) -> Option<Reason> {
        let id = offer.contribution_id;
        if self.was_right(peer, offer) {
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
        if !was_chosen && self.drawn(peer, offer) >= self.share_now(now, group) {
            return None;
        }
        if !was_chosen {
            remember(&mut self.chosen, (peer.clone(), id));
        }
        Some(Reason::Chance)
    }

    /// A contribution was recomputed, which took so long, and is what its peer said.
    pub fn on_right(
        &mut self,
        now: Moment,
        peer: &PeerKey,
        group: AddressGroup,
        offer: &Offer,
        took: Duration,
    ) {
        if self.n_left(peer) == 0 && !self.is_suspected(now, group) {
            self.spent.add(now, ALL_TIME, took);
            self.of_group(group).spent.add(now, OWN_TIME, took);
        }
        let n_right = self.n_right.get(peer).copied().unwrap_or_default();
        self.restore_passed(peer.clone(), n_right.saturating_add(1));
        remember(&mut self.right, (peer.clone(), offer.contribution_id, offer.transfer.sha256));
    }

    /// One is something else: its peer is convicted. Whether the evidence is kept for others: a few of each address
    /// are, so that nobody has others fetch and recompute as many as it has keys.
    pub fn on_wrong(&mut self, now: Moment, group: AddressGroup) -> bool {
        let was_suspected = self.is_suspected(now, group);
        let of_group = self.of_group(group);
        of_group.n_convicted = if was_suspected { of_group.n_convicted.saturating_add(1) } else { 1 };
        of_group.suspected_until = Some(now + SUSPICION);
        of_group.n_convicted <= EVIDENCE_MAX
    }

    /// Keys of which so many were found right, those that were remembered first before others.
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

    /// Addresses from which everything is recomputed at `now`, those that were remembered first before others.
    pub(super) fn suspected(&self, now: Moment) -> impl Iterator<Item = Suspected> {
        self.groups.iter().filter_map(move |&group| {
            let OfGroup { suspected_until, n_convicted, .. } = *self.of_groups.get(&group)?;
            let left = suspected_until?.checked_sub(now).filter(|left| !left.is_zero())?;
            Some(Suspected { group, left, n_convicted })
        })
    }

    pub(super) fn restore_suspected(&mut self, now: Moment, suspected: Suspected) {
        let Suspected { group, left, n_convicted } = suspected;
        let of_group = self.of_group(group);
        (of_group.suspected_until, of_group.n_convicted) = (Some(now + left.min(SUSPICION)), n_convicted);
    }

    /// The share of contributions from `group` that is chosen by chance at present.
    pub fn share_now(&self, now: Moment, group: AddressGroup) -> f64 {
        let own = self.of_groups.get(&group).map_or(0.0, |of| of.spent.now(now, OWN_TIME));
        let spent = own + self.spent.now(now, ALL_TIME);
        self.share * (-spent / HALVING.as_secs_f64()).exp2()
    }

    /// The same, of all addresses.
    pub fn share_of_all(&self, now: Moment) -> f64 {
        self.share * (-self.spent.now(now, ALL_TIME) / HALVING.as_secs_f64()).exp2()
    }

    /// At least 0 and below 1; the same for the same contribution.
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

/// Remembers one, and forgets the oldest where there are too many.
fn remember_key<T>(names: &mut VecDeque<T>, name: T, max: usize) -> Option<T> {
    names.push_back(name);
    if names.len() > max { names.pop_front() } else { None }
}

#[cfg(test)]
mod tests;
