//! Hands places of a host over to other hosts: few at a time, so that trainers miss few experts at once, and the next ones only
//! when others have those.

use std::collections::BTreeSet;
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::ExpertPlace;

use crate::Moment;

/// Places that are on their way to other hosts at a time.
pub const HANDED_MAX: usize = 4;
/// From one question about them to the next.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoverAction {
    /// Serve a place no longer, give its checkpoint to its keepers and its lease back: then [`Handover::on_given_back`].
    GiveBack(ExpertPlace),
    /// Ask the backbone who has these places: then [`Handover::on_holders`] or [`Handover::on_failed`].
    Ask(Vec<ExpertPlace>),
}

/// A handover under way. Meanwhile the host takes no place: [`super::LeaseHolder::on_leaving`].
#[derive(Debug)]
pub struct Handover {
    here: PublicKey,
    /// Served here until it is their turn.
    waiting: BTreeSet<ExpertPlace>,
    /// Their checkpoints are being given away.
    leaving: BTreeSet<ExpertPlace>,
    /// Given back or lost, and not taken yet, as far as is known.
    vacant: BTreeSet<ExpertPlace>,
    n_taken: usize,
    last_taker: Option<PublicKey>,
    ends_at: Moment,
    ask_at: Moment,
    is_asking: bool,
}

impl Handover {
    /// Of places that the host `here` has. What nobody has taken after `limit` is handed over no more.
    pub fn new(
        now: Moment,
        here: PublicKey,
        places: impl IntoIterator<Item = ExpertPlace>,
        limit: Duration,
    ) -> Self {
        Self {
            here,
            waiting: places.into_iter().collect(),
            leaving: BTreeSet::new(),
            vacant: BTreeSet::new(),
            n_taken: 0,
            last_taker: None,
            ends_at: now + limit,
            ask_at: now,
            is_asking: false,
        }
    }

    /// Whether a place is given back now.
    pub fn is_leaving(&self, place: &ExpertPlace) -> bool {
        self.leaving.contains(place)
    }

    /// The lease of a place was given back, and what was learned there is with its keepers.
    pub fn on_given_back(&mut self, now: Moment, place: &ExpertPlace) {
        if self.leaving.remove(place) {
            self.vacant.insert(*place);
            self.ask_at = self.ask_at.max(now + ASK_INTERVAL);
        }
    }

    /// The lease of a place is over before its turn came: whether another host has it is still to be asked.
    pub fn on_lost(&mut self, now: Moment, place: &ExpertPlace) {
        if self.waiting.remove(place) {
            self.vacant.insert(*place);
            self.ask_at = self.ask_at.max(now + ASK_INTERVAL);
        }
    }

    /// The hosts of some places, as the backbone says. It may not know yet that this one has given them back.
    pub fn on_holders(&mut self, now: Moment, holders: &[(ExpertPlace, Option<PublicKey>)]) {
        self.on_failed(now);
        for (place, holder) in holders {
            if holder.is_some_and(|holder| holder != self.here) && self.vacant.remove(place) {
                self.n_taken += 1;
                self.last_taker = *holder;
            }
        }
    }

    /// The backbone does not say who has the places.
    pub fn on_failed(&mut self, now: Moment) {
        self.is_asking = false;
        self.ask_at = now + ASK_INTERVAL;
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Moment) -> Option<HandoverAction> {
        if now >= self.ends_at {
            return None;
        }
        if self.leaving.len() + self.vacant.len() < HANDED_MAX
            && let Some(place) = self.waiting.pop_first()
        {
            self.leaving.insert(place);
            return Some(HandoverAction::GiveBack(place));
        }
        if self.is_asking || self.vacant.is_empty() || self.ask_at > now {
            return None;
        }
        self.is_asking = true;
        Some(HandoverAction::Ask(self.vacant.iter().copied().collect()))
    }

    /// When to call [`Self::poll_action`].
    pub fn next_deadline(&self, now: Moment) -> Option<Moment> {
        if now >= self.ends_at {
            return None;
        }
        let asks = !self.is_asking && !self.vacant.is_empty();
        Some(if asks { self.ask_at.min(self.ends_at) } else { self.ends_at })
    }

    /// Whether nothing more is handed over: all places have other hosts, or the time is over. No place is on its way then.
    pub fn is_over(&self, now: Moment) -> bool {
        let is_done = self.waiting.is_empty() && self.vacant.is_empty();
        self.leaving.is_empty() && (is_done || now >= self.ends_at)
    }

    /// Time until nothing more is handed over.
    pub fn time_left(&self, now: Moment) -> Duration {
        self.ends_at.saturating_sub(now)
    }

    /// Places that other hosts have taken.
    pub fn n_taken(&self) -> usize {
        self.n_taken
    }

    /// Who has the last one of them.
    pub fn last_taker(&self) -> Option<PublicKey> {
        self.last_taker
    }

    /// Places that no other host has: those that are served here, and those that were given back.
    pub fn n_left(&self) -> usize {
        self.waiting.len() + self.leaving.len() + self.vacant.len()
    }

    /// Places that were given back or lost, and that nobody has.
    pub fn vacant(&self) -> impl Iterator<Item = ExpertPlace> {
        self.vacant.iter().copied()
    }
}
