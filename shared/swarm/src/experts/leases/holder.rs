//! What a host asks its backbone for, and which places it may serve.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::leases::{
    ExpertLease, ExpertLoad, LeaseAsk, LeaseRefusal, LeaseVerdict, PLACES_MAX,
};
use barnraise_protocol::experts::{ExpertCopy, ExpertPlace};

use super::HELD_TIME;
use crate::Moment;
use crate::random::SplitMix64;

/// From one renewal of a lease to the next: a lease outlives one that fails.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// From one look for vacant places to the next, while the host has room.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// After a question that failed.
const RETRY_AFTER: Duration = Duration::from_secs(2);

const _: () = assert!(2 * RENEWAL_INTERVAL.as_secs() + 2 * RETRY_AFTER.as_secs() < HELD_TIME.as_secs());

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HolderAction {
    /// Ask the backbone: then [`LeaseHolder::on_answer`] or [`LeaseHolder::on_failed`].
    Ask {
        /// At most [`PLACES_MAX`] with the vacant ones.
        asks: Vec<LeaseAsk>,
        /// Vacant places that the backbone may choose.
        n_vacant: u8,
    },
    /// Serve a place: from the newest of disk and swarm, or as it begins.
    Host(ExpertLease),
    /// Serve a place no longer.
    Stop {
        /// The place.
        place: ExpertPlace,
        /// Another host has it, or it was a copy that is wanted no longer.
        is_taken: bool,
    },
    /// A place that is on the disk here has another host.
    Yield(ExpertPlace),
}

#[derive(Debug)]
struct HeldLease {
    lease: ExpertLease,
    /// By then this host must have asked once more.
    ends_at: Moment,
    renew_at: Moment,
    load: ExpertLoad,
    /// As its backbone said last.
    has_copies: bool,
}

#[derive(Debug)]
struct OpenQuestion {
    asked_at: Moment,
    asks: Vec<LeaseAsk>,
}

/// The leases of one host. It has one copy of a place at most.
#[derive(Debug)]
pub struct LeaseHolder {
    n_room: usize,
    /// Places whose state is on the disk here: these are claimed before others.
    own: VecDeque<ExpertPlace>,
    held: BTreeMap<ExpertPlace, HeldLease>,
    /// Given back, with the term; until the backbone knows it.
    released: BTreeMap<ExpertCopy, (u64, Option<PublicKey>)>,
    /// For whom places are meant, once they are given back.
    heirs: BTreeMap<ExpertPlace, PublicKey>,
    open: Option<OpenQuestion>,
    look_at: Moment,
    retry_at: Moment,
    is_leaving: bool,
    is_paused: bool,
    random: SplitMix64,
    actions: VecDeque<HolderAction>,
}

impl LeaseHolder {
    /// A host with room for so many experts, of which it has `own` on its disk. `seed` spreads the questions of many hosts.
    pub fn new(n_room: usize, own: impl IntoIterator<Item = ExpertPlace>, seed: u64) -> Self {
        Self {
            n_room,
            own: own.into_iter().collect(),
            held: BTreeMap::new(),
            released: BTreeMap::new(),
            heirs: BTreeMap::new(),
            open: None,
            look_at: Moment::ZERO,
            retry_at: Moment::ZERO,
            is_leaving: false,
            is_paused: false,
            random: SplitMix64::new(seed),
            actions: VecDeque::new(),
        }
    }

    /// Whether the host may serve a place at `now`.
    pub fn holds(&self, now: Moment, place: &ExpertPlace) -> bool {
        self.held.get(place).is_some_and(|held| held.ends_at > now)
    }

    /// The lease of a place that may be served at `now`.
    pub fn lease(&self, now: Moment, place: &ExpertPlace) -> Option<&ExpertLease> {
        self.held.get(place).filter(|held| held.ends_at > now).map(|held| &held.lease)
    }

    /// Places with a lease, in their order.
    pub fn places(&self) -> impl Iterator<Item = ExpertPlace> {
        self.held.keys().copied()
    }

    /// What there is to do for an expert has changed.
    pub fn on_load(&mut self, place: &ExpertPlace, load: ExpertLoad) {
        if let Some(held) = self.held.get_mut(place) {
            held.load = load;
        }
    }

    /// Whether an expert has further copies, as its backbone said last.
    pub fn has_copies(&self, place: &ExpertPlace) -> bool {
        self.held.get(place).is_some_and(|held| held.has_copies)
    }

    /// Those places of the open question whose experts have further copies. Before [`Self::on_answer`].
    pub fn on_copied(&mut self, copied: &[ExpertPlace]) {
        for ask in self.open.iter().flat_map(|open| &open.asks) {
            let (place, _) = ask.of();
            if let Some(held) = self.held.get_mut(&place) {
                held.has_copies = copied.contains(&place);
            }
        }
    }

    /// The backbone has answered the open question: for each ask, in order, and the vacant places that it chose.
    pub fn on_answer(
        &mut self,
        now: Moment,
        asked: Vec<LeaseVerdict<ExpertLease>>,
        vacant: Vec<ExpertLease>,
    ) {
        let Some(OpenQuestion { asked_at, asks }) = self.open.take() else { return };
        let has_more_own = !self.own.is_empty();
        for (ask, verdict) in asks.into_iter().zip(asked) {
            match (ask, verdict) {
                (LeaseAsk::Release { place, copy, .. }, _) => {
                    self.released.remove(&(place, copy));
                }
                // It lapsed or was given up meanwhile. What begins again begins under another term: the state may be another one.
                (LeaseAsk::Renew { lease: asked, .. }, LeaseVerdict::Granted(lease)) if !self.has(&asked) => {
                    self.released.insert(lease.of(), (lease.term, None));
                }
                (_, LeaseVerdict::Granted(lease)) => self.on_granted(now, asked_at, lease),
                (LeaseAsk::Claim(place), LeaseVerdict::Refused(refusal)) => {
                    self.on_claim_refused(now, place, refusal);
                }
                (LeaseAsk::Renew { lease, .. }, LeaseVerdict::Refused(refusal)) => {
                    self.on_renewal_refused(now, &lease, refusal);
                }
                (_, LeaseVerdict::Released) | (LeaseAsk::Copy(_), _) => {}
            }
        }
        for lease in vacant {
            self.on_granted(now, asked_at, lease);
        }
        if has_more_own && self.own.is_empty() {
            // The rest of the room is for places that were vacant.
            self.look_at = now;
        }
    }

    /// The open question has no answer.
    pub fn on_failed(&mut self, now: Moment) {
        if self.open.take().is_some() {
            self.retry_at = now + self.random.jittered(RETRY_AFTER);
        }
    }

    /// The backbone has let this host in no longer: it serves nothing until it is let in again.
    pub fn on_no_access(&mut self, now: Moment) {
        self.on_failed(now);
        let held: Vec<ExpertPlace> = self.held.keys().copied().collect();
        held.into_iter().for_each(|place| self.lapse(now, place));
    }

    /// A place cannot be served here, or is handed over: its lease is given back.
    pub fn on_given_up(&mut self, now: Moment, place: &ExpertPlace) {
        if let Some(held) = self.held.remove(place) {
            let heir = self.heirs.remove(place);
            self.released.insert(held.lease.of(), (held.lease.term, heir));
            self.look_at = self.look_at.max(now + self.random.jittered(LOOK_INTERVAL));
        }
    }

    /// The machine was suspended: nobody knows for how long, so that it holds nothing until it has asked again.
    pub fn on_suspended(&mut self, now: Moment) {
        let held: Vec<ExpertPlace> = self.held.keys().copied().collect();
        held.into_iter().for_each(|place| self.lapse(now, place));
        // Its answer would count from before.
        self.open = None;
    }

    /// The host leaves: it renews and takes nothing more. Its places are given back one by one, once they are handed over:
    /// [`Self::on_given_up`].
    pub fn on_leaving(&mut self) {
        self.is_leaving = true;
    }

    /// Once it is given back, a place is kept for this other host for a while.
    pub fn on_heir(&mut self, place: ExpertPlace, heir: PublicKey) {
        self.heirs.insert(place, heir);
    }

    /// The host renews what it holds, and takes nothing more while it is paused.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// The host stays after all. It claims the places that it has given `back`, and takes others where it has room.
    pub fn on_staying(&mut self, now: Moment, back: impl IntoIterator<Item = ExpertPlace>) {
        self.is_leaving = false;
        self.heirs.clear();
        self.released.values_mut().for_each(|(_, heir)| *heir = None);
        let (held, own) = (&self.held, &mut self.own);
        for place in back {
            if !held.contains_key(&place) && !own.contains(&place) {
                own.push_back(place);
            }
        }
        self.look_at = now;
    }

    /// Whether all that was given back is known to the backbone, and no question is open by which it may grant something.
    pub fn is_settled(&self) -> bool {
        self.released.is_empty() && self.open.is_none()
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Moment) {
        let over = self.held.iter().filter(|(_, held)| held.ends_at <= now).map(|(place, _)| *place);
        let over: Vec<ExpertPlace> = over.collect();
        over.into_iter().for_each(|place| self.lapse(now, place));
    }

    /// When to call [`Self::on_timeout`], and then [`Self::poll_action`].
    pub fn next_deadline(&self, now: Moment) -> Option<Moment> {
        let ends = self.held.values().map(|held| held.ends_at).min();
        if self.open.is_some() {
            return ends;
        }
        let renewal = self.held.values().map(|held| held.renew_at).min();
        let look = self.has_room().then_some(self.look_at);
        let release = (!self.released.is_empty()).then_some(now);
        let asks = [renewal, look, release].into_iter().flatten().min().map(|at| at.max(self.retry_at));
        [ends, asks].into_iter().flatten().min()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Moment) -> Option<HolderAction> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.open.is_some() || self.retry_at > now {
            return None;
        }
        let released = self.released.iter().take(PLACES_MAX);
        let mut asks: Vec<LeaseAsk> = released
            .map(|(&(place, copy), &(term, to))| LeaseAsk::Release { place, copy, term, to })
            .collect();
        let due = self.held.values().filter(|held| held.renew_at <= now && held.ends_at > now);
        let renew = |held: &HeldLease| LeaseAsk::Renew { lease: held.lease.clone(), load: held.load };
        asks.extend(due.map(renew).take(PLACES_MAX - asks.len()));
        let mut n_vacant = 0;
        if self.has_room() && self.look_at <= now {
            let n_room = (self.n_room - self.held.len()).min(PLACES_MAX - asks.len());
            let n_before = asks.len();
            asks.extend(self.own.iter().take(n_room).map(|place| LeaseAsk::Claim(*place)));
            if asks.len() == n_before {
                n_vacant = u8::try_from(n_room).unwrap_or(u8::MAX);
            }
            self.look_at = now + self.random.jittered(LOOK_INTERVAL);
        }
        if asks.is_empty() && n_vacant == 0 {
            return None;
        }
        self.open = Some(OpenQuestion { asked_at: now, asks: asks.clone() });
        Some(HolderAction::Ask { asks, n_vacant })
    }

    /// Whether the place is held under the term of `lease`.
    fn has(&self, lease: &ExpertLease) -> bool {
        self.held.get(&lease.place).is_some_and(|held| held.lease.term == lease.term)
    }

    fn has_room(&self) -> bool {
        !self.is_leaving && !self.is_paused && self.held.len() < self.n_room
    }

    fn on_granted(&mut self, now: Moment, asked_at: Moment, lease: ExpertLease) {
        let (place, ends_at) = (lease.place, asked_at + HELD_TIME);
        let renew_at = asked_at + self.random.jittered(RENEWAL_INTERVAL);
        if let Some(held) = self.held.get_mut(&place).filter(|held| held.lease.copy == lease.copy) {
            let is_new = held.lease.term != lease.term;
            (held.ends_at, held.renew_at) = (ends_at, renew_at);
            held.lease = lease.clone();
            if is_new {
                self.actions.push_back(HolderAction::Host(lease));
            }
            return;
        }
        if !self.has_room() || ends_at <= now || self.held.contains_key(&place) {
            // Too late, or too much: somebody else may have it.
            self.released.insert(lease.of(), (lease.term, None));
            return;
        }
        self.released.remove(&lease.of());
        self.own.retain(|own| *own != place);
        let load = ExpertLoad::default();
        let held = HeldLease { lease: lease.clone(), ends_at, renew_at, load, has_copies: lease.copy > 0 };
        self.held.insert(place, held);
        self.actions.push_back(HolderAction::Host(lease));
    }

    fn on_claim_refused(&mut self, now: Moment, place: ExpertPlace, refusal: LeaseRefusal) {
        match refusal {
            LeaseRefusal::Held { .. } => {
                self.own.retain(|own| *own != place);
                self.actions.push_back(HolderAction::Yield(place));
            }
            LeaseRefusal::Unknown => self.own.retain(|own| *own != place),
            LeaseRefusal::Quiet { for_ms } | LeaseRefusal::Busy { for_ms } => {
                let wait = Duration::from_millis(for_ms.into()).min(super::LEASE_TIME);
                self.look_at = self.look_at.max(now + wait);
            }
            _ => {}
        }
    }

    fn on_renewal_refused(&mut self, now: Moment, lease: &ExpertLease, refusal: LeaseRefusal) {
        let place = lease.place;
        let Some(held) = self.held.get_mut(&place).filter(|held| held.lease.term == lease.term) else {
            return;
        };
        match refusal {
            LeaseRefusal::Held { .. } | LeaseRefusal::Later { .. } | LeaseRefusal::Unknown => {
                self.held.remove(&place);
                self.actions.push_back(HolderAction::Stop { place, is_taken: true });
            }
            LeaseRefusal::GivesWay => {
                self.held.remove(&place);
                self.released.insert(lease.of(), (lease.term, None));
                self.actions.push_back(HolderAction::Stop { place, is_taken: true });
                // For the place that it gave way to.
                self.look_at = self.look_at.min(now + RETRY_AFTER);
            }
            _ => held.renew_at = now + RETRY_AFTER,
        }
    }

    /// A lease is over, and nobody has said that another host has the place: it is claimed again, where it is not that of a copy.
    fn lapse(&mut self, now: Moment, place: ExpertPlace) {
        if let Some(HeldLease { lease, .. }) = self.held.remove(&place) {
            self.actions.push_back(HolderAction::Stop { place, is_taken: false });
            if lease.copy == 0 {
                self.own.push_back(place);
            }
            self.look_at = self.look_at.min(now);
        }
    }
}
