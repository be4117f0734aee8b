//! What one backbone has granted.

mod copies;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use barnraise_protocol::access::{KeyPair, PublicKey, UnixTime};
use barnraise_protocol::dht::UnixMillis;
use barnraise_protocol::experts::checkpoints::TRANSFER_TIMEOUT;
use barnraise_protocol::experts::leases::{
    COPIES_MAX, CopyHolder, ExpertLease, ExpertLoad, Grantors, KnownHost, LEASE_TIME, LeaseAsk, LeaseGrant,
    LeaseRefusal, LeaseVerdict, LeasingHost,
};
use barnraise_protocol::experts::{ExpertCopy, ExpertPlace, ExpertPrefix, GridShape, LayerId};

pub use self::copies::{COPIED_ROWS, COPY_INTERVAL, IDLE_LONG, VACANT_SHORT};
use super::RENEWAL_INTERVAL;
use super::standing::HostStandings;
use crate::random::SplitMix64;
use crate::{AddressGroup, Moment};

/// Most places that are remembered.
pub const LEASES_MAX: usize = 65_536;
/// A place that was vacant for so long is anybody's, also where half of the run is at the same address.
pub const VACANT_LONG: Duration = Duration::from_secs(120);
/// A host has renewed what it holds within this time: a backbone that was restarted knows all leases after it.
const LEARNING_TIME: Duration = Duration::from_secs(12);
/// Checkpoints from before the last average of a copy that has ended are no longer compared after this time.
const COPIED_LATELY: Duration = Duration::from_secs(600);
/// Most places that wait for a host at a time.
const KEPT_MAX: usize = 8;
/// Places of a grid that are looked at for vacant ones, at most.
const LOOKED_AT_MAX: u64 = 4096;

const _: () = assert!(LEARNING_TIME.as_secs() > RENEWAL_INTERVAL.as_secs());

/// The run whose places are leased.
#[derive(Debug, Clone)]
pub struct LeasedRun {
    /// Its id.
    pub run_id: String,
    /// Its layers of experts.
    pub grids: Vec<(LayerId, GridShape)>,
    /// Whose grants make a lease.
    pub grantors: Grantors,
}

/// A copy of an expert that was granted once.
#[derive(Debug, Clone, Copy)]
struct CopyEntry {
    /// What may be renewed.
    granted: GrantedTerm,
    /// What was granted before, while nobody has renewed `granted`: where the others did not grant it, that still holds.
    before: Option<GrantedTerm>,
    /// The last term that was granted: claims are above.
    term_max: u64,
    /// The last term that was given back: no renewal of it counts. 0 before.
    released: u64,
    /// Whether its holder has renewed it.
    is_renewed: bool,
    /// Whether the grant has not expired. Otherwise its holder may still renew.
    is_held: bool,
    /// Of the grant; where it is not held, when it was over.
    expires_at: Moment,
    /// As the last renewal said.
    load: ExpertLoad,
    /// As the one before said.
    n_waiting_before: u32,
    /// Its holder was told that it ends.
    gives_way: bool,
    /// When this holder got it.
    granted_at: Moment,
    /// Whether its holder has said that it computes rows.
    has_served: bool,
    /// When it was wanted last for its load, or its state was on the way to its holder.
    busy_at: Moment,
}

/// A place that waits for the host for which another one gave it back.
#[derive(Debug, Clone, Copy)]
struct KeptPlace {
    giver: PublicKey,
    heir: PublicKey,
    until: Moment,
}

/// A term of a copy at this backbone.
#[derive(Debug, Clone, Copy)]
struct GrantedTerm {
    term: u64,
    holder: PublicKey,
}

impl GrantedTerm {
    /// Before the first one.
    const NONE: Self = Self { term: 0, holder: PublicKey([0; 32]) };
}

/// How the experts of a run stand, as far as one backbone knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseStanding {
    /// Places of all grids.
    pub n_places: u64,
    /// Places that have a host.
    pub n_held: u64,
    /// Further copies of experts that have one.
    pub n_copies: u64,
    /// Hosts that hold one or more.
    pub n_hosts: u64,
    /// Rows that wait for all experts, as their hosts said last.
    pub n_rows_waiting: u64,
}

/// The grants of one backbone, and how it chooses vacant places.
#[derive(Debug)]
pub struct LeaseBook {
    key: KeyPair,
    run: LeasedRun,
    began_at: Moment,
    quiet_until: Moment,
    copies: BTreeMap<ExpertCopy, CopyEntry>,
    /// Copies that others have granted, until then.
    elsewhere: BTreeMap<ExpertCopy, Moment>,
    /// Places that were given back for a host.
    kept: BTreeMap<ExpertPlace, KeptPlace>,
    /// Of copies that are held.
    expirations: BTreeSet<(Moment, ExpertCopy)>,
    /// When copies have given way lately.
    gave_way: VecDeque<Moment>,
    /// When a copy has ended last as it was idle.
    idle_ended_at: Option<Moment>,
    /// Places that have a host.
    n_held: u64,
    hosts: HostStandings,
    random: SplitMix64,
}

impl LeaseBook {
    /// A backbone that begins at `now`; where it may have granted leases before, it is quiet at first. `seed` spreads the choices
    /// of several backbones.
    pub fn new(key: KeyPair, run: LeasedRun, now: Moment, has_granted: bool, seed: u64) -> Self {
        Self {
            key,
            run,
            began_at: now,
            quiet_until: if has_granted { now + LEASE_TIME } else { now },
            copies: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            kept: BTreeMap::new(),
            expirations: BTreeSet::new(),
            gave_way: VecDeque::new(),
            idle_ended_at: None,
            n_held: 0,
            hosts: HostStandings::default(),
            random: SplitMix64::new(seed),
        }
    }

    /// The run.
    pub fn run(&self) -> &LeasedRun {
        &self.run
    }

    /// Whether this backbone is one of those whose grants count.
    pub fn is_grantor(&self) -> bool {
        self.run.grantors.keys().contains(&self.key.public())
    }

    /// A host has asked, from an address; [`AddressGroup::UNKNOWN`] where another backbone says so.
    ///
    /// # Errors
    /// Too many hosts are known.
    pub fn on_host(
        &mut self,
        now: Moment,
        key: PublicKey,
        group: AddressGroup,
        host: &LeasingHost,
    ) -> Result<(), LeaseRefusal> {
        self.forget_expired(now);
        self.hosts.on_heard(now, key, group, host)
    }

    /// The term of a new lease of any copy of a place, at `wall` by the clock of expirations.
    pub fn next_term(&self, wall: UnixMillis, place: ExpertPlace) -> u64 {
        self.term_max(place).saturating_add(1).max(wall.0)
    }

    /// The term that an ask is about: of a claim that of the lease which may come of it.
    pub fn term_of(&self, wall: UnixMillis, ask: &LeaseAsk) -> u64 {
        match ask {
            LeaseAsk::Claim(place) | LeaseAsk::Copy((place, _)) => self.next_term(wall, *place),
            LeaseAsk::Renew { lease, .. } => lease.term,
            LeaseAsk::Release { term, .. } => *term,
        }
    }

    /// Whether the run wants this host, which asked this backbone, to have a copy: no address has more than half of the places, but for
    /// those that were vacant for [`VACANT_LONG`], and no more replicas than that.
    ///
    /// # Errors
    /// [`LeaseRefusal::Share`].
    pub fn check_share(&self, now: Moment, holder: &PublicKey, copy: ExpertCopy) -> Result<(), LeaseRefusal> {
        let Some(n_held) = self.hosts.n_of_address(holder, copy.1 > 0) else { return Ok(()) };
        let max = self.n_places().div_ceil(2);
        if copy.1 > 0 {
            let for_ms = millis(LEASE_TIME);
            return if n_held < max { Ok(()) } else { Err(LeaseRefusal::Share { max, for_ms }) };
        }
        let vacant_since = match self.copies.get(&copy) {
            Some(entry) if entry.is_held && entry.granted.holder == *holder => return Ok(()),
            Some(entry) => entry.expires_at,
            None => self.began_at,
        };
        let free_at = vacant_since + VACANT_LONG;
        if n_held < max || free_at <= now {
            return Ok(());
        }
        Err(LeaseRefusal::Share { max, for_ms: millis(free_at - now) })
    }

    /// What this backbone says to one ask of `holder`, whose [`Self::on_host`] came before. `term` is that of a claim.
    pub fn vote(
        &mut self,
        now: Moment,
        wall: UnixMillis,
        holder: PublicKey,
        ask: &LeaseAsk,
        term: u64,
    ) -> LeaseVerdict<LeaseGrant> {
        self.forget_expired(now);
        let copy @ (place, number) = ask.of();
        if !self.is_grantor() || !self.has(place) || number >= COPIES_MAX {
            return LeaseVerdict::Refused(LeaseRefusal::Unknown);
        }
        let checked = match ask {
            LeaseAsk::Release { term, to, .. } => {
                self.release(now, holder, (copy, *term), *to);
                return LeaseVerdict::Released;
            }
            LeaseAsk::Claim(_) | LeaseAsk::Copy(_) => {
                self.check_claim(now, &holder, copy, term).map(|()| (term, None))
            }
            LeaseAsk::Renew { lease, load } => {
                let checked = self.check_renewal(now, wall, &holder, lease);
                checked.map(|()| (lease.term, Some(*load)))
            }
        };
        let granted = checked.and_then(|(term, load)| {
            self.check_only(now, &holder, copy)?;
            self.hold(now, holder, copy, (term, load))?;
            let leased = (copy, holder, term);
            LeaseGrant::sign(&self.key, &self.run.run_id, leased, expiration(wall))
                .map_err(|_| LeaseRefusal::Unknown)
        });
        granted.map_or_else(LeaseVerdict::Refused, LeaseVerdict::Granted)
    }

    /// What this backbone says to all asks of one message, each with its term: see [`Self::vote`]. After a renewal of a lease that no
    /// backbone has granted, which takes signatures to tell, no further renewal of the message is looked at: a host sends none.
    pub fn votes(
        &mut self,
        now: Moment,
        wall: UnixMillis,
        holder: PublicKey,
        asks: &[(LeaseAsk, u64)],
    ) -> Vec<LeaseVerdict<LeaseGrant>> {
        let mut is_forged = false;
        let vote = |(ask, term): &(LeaseAsk, u64)| {
            let is_renewal = matches!(ask, LeaseAsk::Renew { .. });
            if is_renewal && is_forged {
                return LeaseVerdict::Refused(LeaseRefusal::Unknown);
            }
            let verdict = self.vote(now, wall, holder, ask, *term);
            is_forged |= is_renewal && verdict == LeaseVerdict::Refused(LeaseRefusal::Unknown);
            verdict
        };
        asks.iter().map(vote).collect()
    }

    fn check_claim(
        &self,
        now: Moment,
        holder: &PublicKey,
        copy: ExpertCopy,
        term: u64,
    ) -> Result<(), LeaseRefusal> {
        self.check_free(now, holder, copy)?;
        // No two copies have the same term: a host that has one after the other signs no two states as one.
        let last = self.term_max(copy.0);
        if term <= last { Err(LeaseRefusal::Later { term: last }) } else { Ok(()) }
    }

    /// The last term of all copies of a place; 0 before the first one.
    fn term_max(&self, place: ExpertPlace) -> u64 {
        self.copies_of(place).map(|(_, entry)| entry.term_max).max().unwrap_or_default()
    }

    fn copies_of(&self, place: ExpertPlace) -> impl Iterator<Item = (u8, &CopyEntry)> {
        self.copies.range((place, 0)..=(place, u8::MAX)).map(|((_, copy), entry)| (*copy, entry))
    }

    /// Whether the host has no other copy of the place.
    fn check_only(
        &self,
        now: Moment,
        holder: &PublicKey,
        (place, copy): ExpertCopy,
    ) -> Result<(), LeaseRefusal> {
        let is_other = |(other, entry): &(u8, &CopyEntry)| {
            *other != copy && entry.is_held && entry.granted.holder == *holder
        };
        match self.copies_of(place).find(is_other) {
            Some((copy, entry)) => {
                Err(LeaseRefusal::Twice { copy, for_ms: millis(entry.expires_at.saturating_sub(now)) })
            }
            None => Ok(()),
        }
    }

    /// Whether no other host has a grant that has not expired.
    fn check_free(&self, now: Moment, holder: &PublicKey, copy: ExpertCopy) -> Result<(), LeaseRefusal> {
        if now < self.quiet_until {
            return Err(LeaseRefusal::Quiet { for_ms: millis(self.quiet_until - now) });
        }
        match self.copies.get(&copy) {
            Some(entry) if entry.is_held && entry.granted.holder != *holder => {
                Err(LeaseRefusal::Held { for_ms: millis(entry.expires_at.saturating_sub(now)) })
            }
            _ => match self.kept_from(now, holder, &copy) {
                Some(until) => Err(LeaseRefusal::Held { for_ms: millis(until - now) }),
                None => Ok(()),
            },
        }
    }

    /// Until when a place is kept for another host than this one; who gave it back may have it again.
    fn kept_from(&self, now: Moment, holder: &PublicKey, (place, copy): &ExpertCopy) -> Option<Moment> {
        let kept = self.kept.get(place).filter(|kept| *copy == 0 && kept.until > now)?;
        (kept.heir != *holder && kept.giver != *holder).then_some(kept.until)
    }

    /// Keeps a place that a host gave back for another one. A few places at a time, and one of each host, as nobody holds them.
    fn keep(&mut self, now: Moment, place: ExpertPlace, (giver, heir): (PublicKey, PublicKey)) {
        self.kept.retain(|_, kept| kept.until > now);
        if self.kept.len() < KEPT_MAX && self.kept.values().all(|kept| kept.giver != giver) {
            self.kept.insert(place, KeptPlace { giver, heir, until: now + LEASE_TIME });
        }
    }

    fn check_renewal(
        &self,
        now: Moment,
        wall: UnixMillis,
        holder: &PublicKey,
        lease: &ExpertLease,
    ) -> Result<(), LeaseRefusal> {
        if lease.holder != *holder {
            return Err(LeaseRefusal::Unknown);
        }
        if let Some(entry) = self.copies.get(&lease.of()) {
            let GrantedTerm { term, holder: last } = entry.granted;
            if entry.released == lease.term {
                return Err(LeaseRefusal::Later { term: entry.term_max });
            }
            if entry.gives_way && term == lease.term {
                return Err(LeaseRefusal::GivesWay);
            }
            match term.cmp(&lease.term) {
                // Whether the others have granted it too is known soon.
                Ordering::Greater if entry.is_held && !entry.is_renewed && last != *holder => {
                    return Err(LeaseRefusal::Held { for_ms: millis(entry.expires_at.saturating_sub(now)) });
                }
                Ordering::Greater => return Err(LeaseRefusal::Later { term }),
                Ordering::Equal if last != *holder => {
                    return Err(LeaseRefusal::Later { term });
                }
                // It has granted the place to nobody since, also where its grant has expired.
                Ordering::Equal => return Ok(()),
                Ordering::Less => {}
            }
        }
        // What it does not remember was granted before a restart, or by the others.
        let leased = (lease.of(), *holder, lease.term);
        let is_own = lease.grant_of(&self.key.public()).is_some_and(|grant| {
            let is_unexpired = grant.expires_at.0 > wall.0 / 1000 && grant.expires_at <= expiration(wall);
            is_unexpired && grant.is_of(&self.run.run_id, leased)
        });
        if is_own {
            return Ok(());
        }
        lease.verify(&self.run.run_id, &self.run.grantors).map_err(|_| LeaseRefusal::Unknown)?;
        self.check_free(now, holder, lease.of())
    }

    fn hold(
        &mut self,
        now: Moment,
        holder: PublicKey,
        copy: ExpertCopy,
        (term, load): (u64, Option<ExpertLoad>),
    ) -> Result<(), LeaseRefusal> {
        let known = self.copies.get(&copy).copied();
        let before =
            known.filter(|entry| entry.is_held).map(|entry| (entry.granted.holder, entry.expires_at));
        let load_before = known.map_or(ExpertLoad::default(), |entry| entry.load);
        let is_same = before.is_some_and(|(other, _)| other == holder);
        if !is_same {
            self.hosts.check_room(&holder)?;
            if known.is_none() && self.copies.len() >= LEASES_MAX {
                self.forget_longest_vacant();
                if self.copies.len() >= LEASES_MAX {
                    return Err(LeaseRefusal::Busy { for_ms: millis(LEASE_TIME) });
                }
            }
        }
        if let Some((other, expires_at)) = before {
            self.expirations.remove(&(expires_at, copy));
            self.on_held(&other, copy, false);
        }
        self.on_held(&holder, copy, true);
        let expires_at = now + LEASE_TIME;
        self.expirations.insert((expires_at, copy));
        // A renewal says that a majority has granted the term.
        let is_renewal = load.is_some();
        let last = known.map_or(GrantedTerm::NONE, |entry| entry.before.unwrap_or(entry.granted));
        let last = (!is_renewal).then_some(last);
        let term_max = known.map_or(term, |entry| entry.term_max.max(term));
        let released = known.map_or(0, |entry| entry.released);
        let n_waiting_before = if is_renewal { load_before.n_waiting } else { 0 };
        let load = load.unwrap_or(load_before);
        let known = known.filter(|_| is_same);
        let granted_at = known.map_or(now, |entry| entry.granted_at);
        let has_served = load.n_served > 0 || known.is_some_and(|entry| entry.has_served);
        let is_awaited = !has_served && now < granted_at + TRANSFER_TIMEOUT;
        let is_busy = is_awaited || self.is_busy(copy, load);
        let busy_at = known.map_or(now, |entry| if is_busy { now } else { entry.busy_at });
        self.elsewhere.remove(&copy);
        let granted = GrantedTerm { term, holder };
        let entry = CopyEntry {
            granted,
            before: last,
            term_max,
            released,
            is_renewed: is_renewal,
            is_held: true,
            expires_at,
            load,
            n_waiting_before,
            gives_way: false,
            granted_at,
            has_served,
            busy_at,
        };
        self.copies.insert(copy, entry);
        Ok(())
    }

    fn release(
        &mut self,
        now: Moment,
        holder: PublicKey,
        (copy, term): (ExpertCopy, u64),
        heir: Option<PublicKey>,
    ) {
        let Some(entry) = self.copies.get_mut(&copy) else { return };
        if entry.granted.holder != holder || entry.granted.term != term {
            return;
        }
        entry.released = term;
        entry.revert();
        if entry.is_held {
            entry.is_held = false;
            self.expirations.remove(&(entry.expires_at, copy));
            entry.expires_at = now;
            self.on_held(&holder, copy, false);
            match (copy, heir) {
                // One that has a copy of it gets no other.
                ((place, 0), Some(heir)) if self.check_only(now, &heir, copy).is_ok() => {
                    self.keep(now, place, (holder, heir));
                }
                // Its heir has had it, or nobody is to wait for one any more.
                ((place, 0), _) => drop(self.kept.remove(&place)),
                // Whether there is to be another copy is for the load to say.
                _ => {}
            }
        }
    }

    /// Up to `n_max` places that this host may claim: first those that were given back for it, then those that had a host before, then
    /// the others; among both first those whose neighbours on the grid have the most rows waiting.
    pub fn vacant(&mut self, now: Moment, holder: &PublicKey, n_max: usize) -> Vec<ExpertPlace> {
        self.forget_expired(now);
        if n_max == 0 || !self.knows_all(now) {
            return Vec::new();
        }
        self.elsewhere.retain(|_, until| *until > now);
        let waiting = self.rows_waiting();
        let mut candidates = Vec::new();
        let of_others: BTreeSet<ExpertPlace> = self
            .kept
            .keys()
            .filter(|place| self.kept_from(now, holder, &(**place, 0)).is_some())
            .copied()
            .collect();
        let is_vacant = |(place, entry): &(&ExpertPlace, &CopyEntry)| {
            entry.is_vacant(now, holder) && !of_others.contains(place)
        };
        for (place, entry) in experts(&self.copies).filter(is_vacant) {
            // Its neighbours do part of its work now.
            let load = waiting.get(&neighbourhood(place)).copied().unwrap_or_default();
            let load = match self.kept.get(place) {
                Some(kept) if kept.until > now => u64::MAX,
                _ => load.max(u64::from(entry.load.n_waiting)),
            };
            candidates.push((true, load, self.random.next_u64(), *place));
        }
        for (layer, grid) in self.run.grids.clone() {
            let n_places = grid.n_places();
            // Of a large grid a stretch that begins by chance.
            let first = if n_places > LOOKED_AT_MAX { self.random.next_u64() % n_places } else { 0 };
            for at in 0..n_places.min(LOOKED_AT_MAX) {
                let Some(uid) = grid.uid((first + at) % n_places) else { continue };
                let place = (layer, uid);
                if !self.copies.contains_key(&(place, 0)) {
                    let load = waiting.get(&neighbourhood(&place)).copied().unwrap_or_default();
                    candidates.push((false, load, self.random.next_u64(), place));
                }
            }
        }
        candidates.sort_unstable_by_key(|(was_hosted, load, by_chance, place)| {
            std::cmp::Reverse((*was_hosted, *load, *by_chance, *place))
        });
        let places = candidates.into_iter().map(|(.., place)| place);
        let is_free = |place: &ExpertPlace| {
            let copy = (*place, 0);
            !self.elsewhere.contains_key(&copy)
                && self.check_only(now, holder, copy).is_ok()
                && self.check_share(now, holder, copy).is_ok()
        };
        places.filter(is_free).take(n_max).collect()
    }

    /// The other backbones have granted a copy that looked vacant here: it is not chosen again before that time has passed.
    pub fn on_held_elsewhere(&mut self, now: Moment, copy: ExpertCopy, time: Duration) {
        if self.elsewhere.len() < LEASES_MAX {
            self.elsewhere.insert(copy, now + time.min(LEASE_TIME));
        }
    }

    /// The hosts that keep the checkpoints of an expert, the first one first; never a holder of one of its copies.
    pub fn keepers(&self, now: Moment, place: ExpertPlace, n_max: usize) -> Vec<KnownHost> {
        let held = self.copies_of(place).filter(|(_, entry)| entry.is_held);
        let holders: Vec<PublicKey> = held.map(|(_, entry)| entry.granted.holder).collect();
        self.hosts.keepers(now, place, &holders, n_max)
    }

    /// Whether the run's grids have a place.
    pub fn has(&self, (layer, uid): ExpertPlace) -> bool {
        self.run.grids.iter().any(|(id, grid)| *id == layer && grid.contains(&uid))
    }

    /// Whether all hosts have renewed what they hold since this backbone began; others may grant a place while it is still quiet.
    fn knows_all(&self, now: Moment) -> bool {
        now >= self.quiet_until || now >= self.began_at + LEARNING_TIME
    }

    /// The holders of the copies of some places, as far as this backbone has granted them.
    ///
    /// # Errors
    /// [`LeaseRefusal::Quiet`], while it does not know what it granted before a restart.
    pub fn holders(&self, now: Moment, places: &[ExpertPlace]) -> Result<Vec<Vec<CopyHolder>>, LeaseRefusal> {
        if !self.knows_all(now) {
            let known_at = self.quiet_until.min(self.began_at + LEARNING_TIME);
            return Err(LeaseRefusal::Quiet { for_ms: millis(known_at.saturating_sub(now)) });
        }
        Ok(places.iter().map(|place| self.holders_of(now, *place).collect()).collect())
    }

    /// The holder of an expert itself, as far as this backbone has granted it.
    pub fn holder(&self, now: Moment, place: ExpertPlace) -> Option<PublicKey> {
        CopyHolder::of_expert(&self.holders_of(now, place).collect::<Vec<_>>())
    }

    /// The holders of the copies of a place, that of the expert itself first, as far as this backbone has granted them.
    pub fn holders_of(&self, now: Moment, place: ExpertPlace) -> impl Iterator<Item = CopyHolder> {
        let held = self.copies_of(place).filter(move |(_, entry)| entry.is_held && entry.expires_at > now);
        held.map(|(copy, entry)| CopyHolder { copy, holder: entry.granted.holder })
    }

    /// Whether an expert has more copies than one, as far as this backbone has granted them.
    pub fn is_copied(&self, now: Moment, place: ExpertPlace) -> bool {
        self.holders_of(now, place).count() > 1
    }

    /// Whether an expert has, or had a while ago, more copies than one, so that it may have jumped when it was averaged; also where this
    /// backbone does not know it yet.
    pub fn has_copies(&self, now: Moment, place: ExpertPlace) -> bool {
        let is_recent = |entry: &CopyEntry| entry.expires_at + COPIED_LATELY > now;
        !self.knows_all(now) || self.copies_of(place).any(|(copy, entry)| copy > 0 && is_recent(entry))
    }

    /// How the experts stand.
    pub fn standing(&mut self, now: Moment) -> LeaseStanding {
        self.forget_expired(now);
        let held = || self.copies.values().filter(|entry| entry.is_held);
        let n_held = self.n_held;
        LeaseStanding {
            n_places: self.n_places(),
            n_held,
            n_copies: held().count() as u64 - n_held,
            n_hosts: held().map(|entry| entry.granted.holder).collect::<BTreeSet<_>>().len() as u64,
            n_rows_waiting: held().map(|entry| u64::from(entry.load.n_waiting)).sum(),
        }
    }

    /// A copy has this holder from now on, or no longer.
    fn on_held(&mut self, holder: &PublicKey, (_, number): ExpertCopy, is_more: bool) {
        self.hosts.on_places(holder, number > 0, is_more);
        if number == 0 {
            self.n_held = if is_more { self.n_held + 1 } else { self.n_held.saturating_sub(1) };
        }
    }

    fn n_places(&self) -> u64 {
        self.run.grids.iter().map(|(_, grid)| grid.n_places()).sum()
    }

    /// Mean of the rows that wait for each expert of a neighbourhood that has a host.
    fn rows_waiting(&self) -> BTreeMap<(LayerId, ExpertPrefix), u64> {
        let mut sums: BTreeMap<(LayerId, ExpertPrefix), (u64, u64)> = BTreeMap::new();
        for (place, entry) in experts(&self.copies).filter(|(_, entry)| entry.is_held) {
            let (n_rows, n_experts) = sums.entry(neighbourhood(place)).or_default();
            *n_rows += u64::from(entry.load.n_waiting);
            *n_experts += 1;
        }
        sums.into_iter().map(|(at, (n_rows, n_experts))| (at, n_rows / n_experts.max(1))).collect()
    }

    fn forget_expired(&mut self, now: Moment) {
        while let Some(&(expires_at, copy)) = self.expirations.first()
            && expires_at <= now
        {
            self.expirations.pop_first();
            if let Some(entry) = self.copies.get_mut(&copy) {
                entry.is_held = false;
                let holder = entry.granted.holder;
                entry.revert();
                self.on_held(&holder, copy, false);
            }
        }
    }

    fn forget_longest_vacant(&mut self) {
        let vacant = self.copies.iter().filter(|(_, entry)| !entry.is_held);
        let longest = vacant.min_by_key(|(_, entry)| entry.expires_at).map(|(copy, _)| *copy);
        if let Some(copy) = longest {
            self.copies.remove(&copy);
        }
    }

    #[cfg(test)]
    pub(super) fn check_counts(&self) {
        let held: Vec<&CopyEntry> = self.copies.values().filter(|entry| entry.is_held).collect();
        assert_eq!(held.len(), self.expirations.len());
        let n_held = experts(&self.copies).filter(|(_, entry)| entry.is_held).count();
        assert_eq!(self.n_held, n_held as u64);
        let mut hosts = BTreeSet::new();
        for ((place, copy), entry) in self.copies.iter().filter(|(_, entry)| entry.is_held) {
            let is_first = hosts.insert((*place, entry.granted.holder));
            assert!(is_first && *copy < COPIES_MAX, "a host has two copies of {place:?}");
        }
        for entry in held {
            let n_held = self
                .copies
                .values()
                .filter(|other| other.is_held && other.granted.holder == entry.granted.holder);
            assert_eq!(self.hosts.n_held(&entry.granted.holder), n_held.count() as u64);
        }
    }
}

impl CopyEntry {
    /// Whether a host may be given the place: nobody has it, or this host, and does not know it, since the answer was lost.
    fn is_vacant(&self, now: Moment, holder: &PublicKey) -> bool {
        let granted_at = self.expires_at.saturating_sub(LEASE_TIME);
        let is_unknown = self.granted.holder == *holder && !self.is_renewed;
        !self.is_held || (is_unknown && granted_at + LEARNING_TIME <= now)
    }

    /// A term that nobody has renewed is over: what was granted before it may be renewed again.
    fn revert(&mut self) {
        if let Some(before) = self.before.take() {
            self.granted = before;
        }
    }
}

/// The experts themselves among their copies.
fn experts(copies: &BTreeMap<ExpertCopy, CopyEntry>) -> impl Iterator<Item = (&ExpertPlace, &CopyEntry)> {
    copies.iter().filter(|((_, copy), _)| *copy == 0).map(|((place, _), entry)| (place, entry))
}

/// The experts that share all indices but the last: those that a gating function finds together.
fn neighbourhood((layer, uid): &ExpertPlace) -> (LayerId, ExpertPrefix) {
    (*layer, uid.leaf().0)
}

/// Of a grant that is given at `wall`: less than a second too early.
fn expiration(wall: UnixMillis) -> UnixTime {
    UnixTime(wall.after(LEASE_TIME).0 / 1000)
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
