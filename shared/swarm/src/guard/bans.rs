//! Temporary bans of peers that send invalid messages.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::RateLimiter;
use crate::{Moment, PeerKey};

/// Limits on invalid messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BanLimits {
    /// Invalid messages of one peer that are tolerated per minute; one more bans it.
    pub bad_messages_per_minute: u32,
    /// Duration of a ban.
    pub block: Duration,
    /// Most peers that are remembered: with invalid messages, and banned, each.
    pub peers_max: usize,
}

/// Peers that sent invalid messages, and banned peers.
#[derive(Debug)]
pub struct BanList {
    limits: BanLimits,
    bad_messages: RateLimiter<PeerKey>,
    blocked: HashMap<PeerKey, Moment>,
    by_end: BTreeSet<(Moment, PeerKey)>,
}

impl BanList {
    /// An empty list.
    pub fn new(limits: BanLimits) -> Self {
        Self {
            limits,
            bad_messages: RateLimiter::new(limits.bad_messages_per_minute, limits.peers_max),
            blocked: HashMap::new(),
            by_end: BTreeSet::new(),
        }
    }

    /// `peer` sent a message that no honest peer sends. Returns whether this message bans it; `false` where it is
    /// banned already.
    pub fn on_bad_message(&mut self, now: Moment, peer: &PeerKey) -> bool {
        self.on_timeout(now);
        if self.blocked.contains_key(peer) || self.bad_messages.take(now, peer) {
            return false;
        }
        // The ban that ends first makes room.
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

    /// Whether `peer` is banned at `now`.
    pub fn is_blocked(&self, now: Moment, peer: &PeerKey) -> bool {
        self.blocked.get(peer).is_some_and(|until| *until > now)
    }

    /// Peers that are banned at `now`.
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

    const LIMITS: BanLimits =
        BanLimits { bad_messages_per_minute: 3, block: Duration::from_secs(10), peers_max: 4 };

    fn peer(number: u8) -> PeerKey {
        PeerKey(vec![number])
    }

    const fn s(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_too_many_blocks_for_a_while_and_nobody_else() {
        let mut bans = BanList::new(LIMITS);
        let verdicts: Vec<bool> = (0..5).map(|_| bans.on_bad_message(s(0), &peer(1))).collect();
        assert_eq!(verdicts, [false, false, false, true, false], "it is told once");
        assert!(bans.is_blocked(s(9), &peer(1)) && !bans.is_blocked(s(0), &peer(2)));
        assert!(!bans.is_blocked(s(10), &peer(1)));
        assert_eq!((bans.n_blocked(s(9)), bans.n_blocked(s(10))), (1, 0));
        assert!(bans.on_bad_message(s(10), &peer(1)), "a block is not a pardon");
    }

    #[test]
    fn the_ban_that_ends_first_makes_room_and_no_other() {
        let mut bans = BanList::new(BanLimits { bad_messages_per_minute: 1, ..LIMITS });
        for name in 0..5 {
            assert!(!bans.on_bad_message(s(name.into()), &peer(name)));
            assert!(bans.on_bad_message(s(name.into()), &peer(name)));
        }
        assert_eq!(
            [0, 1, 2, 3, 4].map(|name| bans.is_blocked(s(4), &peer(name))),
            [false, true, true, true, true]
        );
        // Each ends in its own time.
        assert_eq!([10, 11, 13, 14].map(|at| bans.n_blocked(s(at))), [4, 3, 1, 0]);
    }

    #[test]
    fn a_peer_that_errs_now_and_then_is_never_blocked() {
        let mut bans = BanList::new(LIMITS);
        assert!((0..1000).all(|at| !bans.on_bad_message(s(at * 20), &peer(1))));
    }

    #[test]
    fn any_number_of_peers_takes_bounded_memory() {
        let mut bans = BanList::new(LIMITS);
        for name in 0..3 {
            for _ in 0..4 {
                bans.on_bad_message(s(0), &peer(name));
            }
        }
        assert_eq!(bans.n_blocked(s(0)), 3, "there is room for all of them");
        for name in 0..200 {
            for _ in 0..4 {
                bans.on_bad_message(s(1), &peer(name));
            }
            assert!(bans.blocked.len() <= 4 && bans.by_end.len() == bans.blocked.len());
        }
        assert!(bans.is_blocked(s(1), &peer(199)));
    }
}
