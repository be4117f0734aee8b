//! Which experts have copies for load: when a host gets one, and when it ends.

use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::leases::{COPIES_MAX, ExpertLease, ExpertLoad, LeaseAsk, LeaseRefusal};
use barnraise_protocol::experts::{ExpertCopy, ExpertPlace};

use super::{CopyEntry, LeaseBook, experts};
use crate::Moment;

/// Rows that wait for each copy of an expert, twice in a row, for which it gets one more: a full batch of a device, so that what comes now
/// waits for more than one.
pub const COPIED_ROWS: u32 = 4096;
/// From one copy of an expert to the next: its host has the state, trainers find it, and all have said what waits since.
pub const COPY_INTERVAL: Duration = Duration::from_secs(120);
/// Where fewer rows wait for a copy, it may be idle. It is far below [`COPIED_ROWS`]: what waits is less once there is a copy.
const IDLE_ROWS: u32 = COPIED_ROWS / 16;
/// A copy that was idle for so long ends.
pub const IDLE_LONG: Duration = Duration::from_secs(300);
/// While a place was vacant for so long, hosts with room have looked, and there is none: copies give way.
pub const VACANT_SHORT: Duration = Duration::from_secs(20);
/// The host of a copy that gave way has taken the place by then.
const TAKING_TIME: Duration = Duration::from_secs(15);

impl LeaseBook {
    /// What this host may claim of what the backbone chooses: up to `n_max` [vacant](Self::vacant) places, or where all have a host one
    /// copy of an expert for which many rows wait.
    pub fn chosen(&mut self, now: Moment, holder: &PublicKey, n_max: usize) -> Vec<LeaseAsk> {
        let vacant = self.vacant(now, holder, n_max);
        if n_max == 0 || !vacant.is_empty() {
            return vacant.into_iter().map(LeaseAsk::Claim).collect();
        }
        self.loaded(now, holder).map(LeaseAsk::Copy).into_iter().collect()
    }

    /// The copy that this host may have, of one of the experts for which many rows wait. By chance: what a host says of its load is its
    /// word alone, and the largest number would always be first.
    fn loaded(&mut self, now: Moment, holder: &PublicKey) -> Option<ExpertCopy> {
        if !self.knows_all(now) || self.n_held < self.n_places() {
            return None;
        }
        let copies = experts(&self.copies).filter_map(|(place, _)| self.next_copy(now, holder, *place));
        let copies: Vec<ExpertCopy> = copies.collect();
        let at = self.random.below(copies.len().max(1));
        copies.get(at).copied()
    }

    /// The next copy of a place that this host may have, if there is to be one.
    fn next_copy(&self, now: Moment, holder: &PublicKey, place: ExpertPlace) -> Option<ExpertCopy> {
        let held = self.copies_of(place).filter(|(_, entry)| entry.is_held);
        // Trainers ask the one of two that has less to do, so that all say about the same.
        let n_waiting = held.map(|(_, entry)| entry.load.n_waiting.min(entry.n_waiting_before)).min();
        let is_new = |(copy, entry): (u8, &CopyEntry)| {
            // One that a majority did not grant was none.
            copy > 0 && (entry.is_held || entry.is_renewed) && entry.granted_at + COPY_INTERVAL > now
        };
        if n_waiting? < COPIED_ROWS || self.copies_of(place).any(is_new) {
            return None;
        }
        self.check_only(now, holder, (place, COPIES_MAX)).ok()?;
        let is_free = |copy: &ExpertCopy| {
            self.check_free(now, holder, *copy).is_ok()
                && self.elsewhere.get(copy).is_none_or(|until| *until <= now)
        };
        let copy = (1..COPIES_MAX).map(|copy| (place, copy)).find(is_free)?;
        self.check_share(now, holder, copy).ok().map(|()| copy)
    }

    /// Whether a host that asked this backbone may renew its lease of a copy. It ends where it is idle, and gives way to a place that
    /// nobody has, if this host may take that then: one for each place in [`TAKING_TIME`], so that not all go for one.
    ///
    /// # Errors
    /// [`LeaseRefusal::GivesWay`], from then on: nobody else is to be asked.
    pub fn check_wanted(
        &mut self,
        now: Moment,
        holder: &PublicKey,
        lease: &ExpertLease,
    ) -> Result<(), LeaseRefusal> {
        self.forget_expired(now);
        // Anybody may send a lease that it has made up.
        let known = self.copies.get(&lease.of()).filter(|entry| {
            entry.is_held && entry.granted.holder == *holder && entry.granted.term == lease.term
        });
        let Some(entry) = known.filter(|_| lease.copy > 0) else { return Ok(()) };
        if entry.gives_way {
            return Err(LeaseRefusal::GivesWay);
        }
        let is_idle = entry.busy_at + IDLE_LONG <= now && self.may_end(now, lease.of());
        while self.gave_way.front().is_some_and(|at| *at + TAKING_TIME <= now) {
            self.gave_way.pop_front();
        }
        let n_more = self.gave_way.len() + 1;
        if self.n_vacant_for(now, holder, lease.place, n_more) == n_more {
            self.gave_way.push_back(now);
        } else if is_idle {
            self.idle_ended_at = Some(now);
        } else {
            return Ok(());
        }
        if let Some(entry) = self.copies.get_mut(&lease.of()) {
            entry.gives_way = true;
        }
        Err(LeaseRefusal::GivesWay)
    }

    /// Whether a copy is wanted for its load: not few rows wait for it, or the others could not do its rows beside their own with a
    /// third of their spare time left. Without it they would wait, and there would be a copy again.
    pub(super) fn is_busy(&self, (place, number): ExpertCopy, load: ExpertLoad) -> bool {
        let others = self.copies_of(place).filter(|(other, entry)| *other != number && entry.is_held);
        let (mut n_spare, mut served_max) = (0, 0);
        for (_, CopyEntry { load, .. }) in others {
            n_spare += u64::from(load.n_spare);
            served_max = served_max.max(load.n_served);
        }
        // A host that lies has its copy for no more than that.
        let n_served = load.n_served.min(served_max.saturating_mul(2));
        load.n_waiting >= IDLE_ROWS || 3 * u64::from(n_served) > 2 * n_spare
    }

    /// Whether an idle copy may end now: the last one of its expert, one after the other. What the others do without it shows in what
    /// they say by the next one, also where a host has copies of many experts.
    fn may_end(&self, now: Moment, (place, number): ExpertCopy) -> bool {
        let is_lately = |at: Moment| at + COPY_INTERVAL > now;
        let is_before = |(other, entry): (u8, &CopyEntry)| match entry.is_held {
            true => other > number,
            false => other > 0 && is_lately(entry.expires_at),
        };
        !self.idle_ended_at.is_some_and(is_lately) && !self.copies_of(place).any(is_before)
    }

    /// Places that nobody has taken for [`VACANT_SHORT`] and that this host may take once it has no copy of `copied`; no more than
    /// `n_max` are looked for.
    fn n_vacant_for(&self, now: Moment, holder: &PublicKey, copied: ExpertPlace, n_max: usize) -> usize {
        // Leases that were renewed while it was quiet are known by then.
        if self.n_held >= self.n_places() || now < self.quiet_until + VACANT_SHORT || !self.is_grantor() {
            return 0;
        }
        let has_room = self.hosts.check_room(holder).is_ok();
        let may_take = |place: ExpertPlace| {
            // With room beside, its copy is in the way of that very place alone.
            let is_in_the_way =
                place == copied || (!has_room && self.check_only(now, holder, (place, 0)).is_ok());
            is_in_the_way && self.check_share(now, holder, (place, 0)).is_ok()
        };
        let is_free = |place: &ExpertPlace| {
            let is_kept = self.kept.get(place).is_some_and(|kept| kept.until > now);
            !is_kept && self.elsewhere.get(&(*place, 0)).is_none_or(|until| *until <= now)
        };
        let is_vacant = |(place, entry): (&ExpertPlace, &CopyEntry)| {
            !entry.is_held && entry.expires_at + VACANT_SHORT <= now && is_free(place) && may_take(*place)
        };
        let of_others = self
            .elsewhere
            .iter()
            .filter(|(copy, until)| copy.1 == 0 && **until > now && !self.copies.contains_key(copy));
        let n_known = experts(&self.copies).count() + of_others.count();
        let n_never_held = if has_room { 0 } else { self.n_places().saturating_sub(n_known as u64) };
        let n_never_held = usize::try_from(n_never_held).unwrap_or(usize::MAX);
        let vacant = experts(&self.copies).filter(|entry| is_vacant(*entry));
        vacant.take(n_max).count().saturating_add(n_never_held).min(n_max)
    }
}
