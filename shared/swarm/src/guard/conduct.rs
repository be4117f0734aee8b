//! Who sends what no honest peer sends, and for how long it is left alone then.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::RateLimiter;
use crate::{Moment, PeerKey};

/// How much is borne.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConductLimits {
    /// Bad messages of one peer that are answered, or ended with their stream; one more blocks it.
    pub bad_messages_per_minute: u32,
    /// For so long.
    pub block: Duration,
    /// Peers that are remembered: those that misbehaved, and those that are blocked.
    pub peers_max: usize,
}

/// Peers that misbehaved.
#[derive(Debug)]
pub struct Conduct {
    limits: ConductLimits,
    bad_messages: RateLimiter<PeerKey>,
    blocked: HashMap<PeerKey, Moment>,
    by_end: BTreeSet<(Moment, PeerKey)>,
}

impl Conduct {
    /// Nobody misbehaved yet.
    pub fn new(limits: ConductLimits) -> Self {
        Self {
            limits,
            bad_messages: RateLimiter::new(limits.bad_messages_per_minute, limits.peers_max),
            blocked: HashMap::new(),
            by_end: BTreeSet::new(),
        }
    }

    /// `peer` sent something that no honest peer sends. Returns whether it is blocked from now on, for which
    /// it was not before.
    pub fn on_bad_message(&mut self, now: Moment, peer: &PeerKey) -> bool {
        self.on_timeout(now);
        if self.blocked.contains_key(peer) || self.bad_messages.take(now, peer) {
            return false;
        }
        // Whoever is free soonest gives way.
        while self.by_end.len() >= self.limits.peers_max.max(1)
            && let Some((_, first)) = self.by_end.pop_first()
        {
            self.blocked.remove(&first);
        }
        let until = now + self.limits.block;
        self.blocked.insert(peer.clone(), until);
        self.by_end.insert((until, peer.clone()));
        true
    }

    /// Whether `peer` is to be left alone at `now`.
    pub fn is_blocked(&self, now: Moment, peer: &PeerKey) -> bool {
        self.blocked.get(peer).is_some_and(|until| *until > now)
    }

    /// Peers that are blocked at `now`.
    pub fn n_blocked(&mut self, now: Moment) -> usize {
        self.on_timeout(now);
        self.blocked.len()
    }

    fn on_timeout(&mut self, now: Moment) {
        while self.by_end.first().is_some_and(|(until, _)| *until <= now)
            && let Some((_, peer)) = self.by_end.pop_first()
        {
            self.blocked.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ConductLimits =
        ConductLimits { bad_messages_per_minute: 3, block: Duration::from_secs(10), peers_max: 4 };

    fn peer(number: u8) -> PeerKey {
        PeerKey(vec![number])
    }

    const fn s(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_too_many_blocks_for_a_while_and_nobody_else() {
        let mut conduct = Conduct::new(LIMITS);
        let verdicts: Vec<bool> = (0..5).map(|_| conduct.on_bad_message(s(0), &peer(1))).collect();
        assert_eq!(verdicts, [false, false, false, true, false], "it is told once");
        assert!(conduct.is_blocked(s(9), &peer(1)) && !conduct.is_blocked(s(0), &peer(2)));
        assert!(!conduct.is_blocked(s(10), &peer(1)));
        assert_eq!((conduct.n_blocked(s(9)), conduct.n_blocked(s(10))), (1, 0));
        assert!(conduct.on_bad_message(s(10), &peer(1)), "a block is not a pardon");
    }

    #[test]
    fn whoever_errs_now_and_then_is_never_blocked() {
        let mut conduct = Conduct::new(LIMITS);
        assert!((0..1000).all(|at| !conduct.on_bad_message(s(at * 20), &peer(1))));
    }

    #[test]
    fn as_many_names_as_somebody_likes_take_no_more_memory() {
        let mut conduct = Conduct::new(LIMITS);
        for name in 0..3 {
            for _ in 0..4 {
                conduct.on_bad_message(s(0), &peer(name));
            }
        }
        assert_eq!(conduct.n_blocked(s(0)), 3, "there is room for all of them");
        for name in 0..200 {
            for _ in 0..4 {
                conduct.on_bad_message(s(1), &peer(name));
            }
            assert!(conduct.blocked.len() <= 4 && conduct.by_end.len() == conduct.blocked.len());
        }
        assert!(conduct.is_blocked(s(1), &peer(199)));
    }
}
