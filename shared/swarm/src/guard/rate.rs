//! Rate limiter by key: a token bucket that fills evenly and holds one minute's worth.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use crate::Moment;

const MINUTE: Duration = Duration::from_secs(60);

/// Bounds events of each key (generic cell rate algorithm, ITU-T I.371, with a burst of a minute's worth).
///
/// Its memory is bounded: it remembers at least the `keys_max / 2` newest keys and at most `keys_max`. A forgotten key
/// begins with a full bucket, which a remote peer can also have by taking a new key.
#[derive(Debug)]
pub struct RateLimiter<K> {
    /// Interval between two events at the full rate.
    every: Duration,
    generation_max: usize,
    /// When the bucket of each key will be full again.
    full_at: HashMap<K, Moment>,
    full_at_before: HashMap<K, Moment>,
}

impl<K: Eq + Hash + Clone> RateLimiter<K> {
    /// At most `per_minute` events of each key, one at least.
    pub fn new(per_minute: u32, keys_max: usize) -> Self {
        Self {
            every: MINUTE / per_minute.max(1),
            generation_max: (keys_max / 2).max(1),
            full_at: HashMap::new(),
            full_at_before: HashMap::new(),
        }
    }

    /// Whether one more may happen at `now`; it is counted if so.
    pub fn take(&mut self, now: Moment, key: &K) -> bool {
        self.take_up_to(now, key, 1) == 1
    }

    /// How many of `n` may happen at `now`; they are counted.
    pub fn take_up_to(&mut self, now: Moment, key: &K, n: u32) -> u32 {
        let known = self.full_at.get(key).or_else(|| self.full_at_before.get(key));
        let full_at = known.copied().unwrap_or(now).max(now);
        let room = (now + MINUTE).saturating_sub(full_at);
        let n_taken =
            u32::try_from(room.as_nanos() / self.every.as_nanos().max(1)).unwrap_or(u32::MAX).min(n);
        if n_taken > 0 {
            self.remember(key, full_at + self.every * n_taken);
        }
        n_taken
    }

    fn remember(&mut self, key: &K, full_at: Moment) {
        if let Some(known) = self.full_at.get_mut(key) {
            *known = full_at;
            return;
        }
        if self.full_at.len() >= self.generation_max {
            self.full_at_before = std::mem::take(&mut self.full_at);
        }
        self.full_at.insert(key.clone(), full_at);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn s(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_minutes_worth_at_once_and_then_evenly() {
        let mut rate = RateLimiter::new(60, 100);
        assert_eq!(rate.take_up_to(s(0), &"a", 1000), 60);
        assert!(!rate.take(s(0), &"a"));
        assert!(rate.take(s(0), &"b"), "everybody has their own");
        assert!(rate.take(s(1), &"a") && !rate.take(s(1), &"a"));
        assert_eq!(rate.take_up_to(s(31), &"a", 1000), 30);
        assert_eq!(rate.take_up_to(s(10_000), &"a", 1000), 60, "no more is saved up");
    }

    #[test]
    fn the_newest_half_of_the_keys_is_remembered_for_certain() {
        let mut rate = RateLimiter::new(1, 8);
        for key in 0..8 {
            assert!(rate.take(s(0), &key));
        }
        assert!((4..8).all(|key| !rate.take(s(0), &key)), "they had their turn");
        // One more begins a generation, and the oldest is forgotten.
        assert!(rate.take(s(0), &8) && rate.take(s(0), &0));
        assert!((4..8).all(|key| !rate.take(s(0), &key)));
        assert_eq!(rate.take_up_to(s(59), &8, 5), 0);
        assert_eq!((rate.take_up_to(s(60), &8, 0), rate.take_up_to(s(60), &8, 5)), (0, 1));
    }

    #[test]
    fn what_does_not_happen_costs_nothing() {
        let mut rate = RateLimiter::new(1, 100);
        assert!(rate.take(s(0), &1));
        for now in 0..60 {
            assert!(!rate.take(s(now), &1), "{now}");
        }
        assert!(rate.take(s(60), &1));
    }

    #[test]
    fn what_is_refused_is_not_remembered() {
        let mut rate = RateLimiter::new(1, 2);
        assert!(rate.take(s(0), &'a') && rate.take(s(0), &'b') && !rate.take(s(0), &'a'));
        assert!(rate.take(s(0), &'c') && rate.take(s(0), &'a'), "two names have come since");
    }

    #[test]
    fn a_flood_of_names_neither_fills_the_memory_nor_frees_who_goes_on() {
        let mut rate = RateLimiter::new(10, 8);
        let mut n_taken = 0;
        for name in 0..10_000u32 {
            rate.take(s(0), &(name + 1));
            if name % 3 == 0 {
                n_taken += rate.take_up_to(s(0), &0, 1);
            }
            assert!(rate.full_at.len() + rate.full_at_before.len() <= 8);
        }
        // It was among the latest all the time until it was refused, and what is refused is not remembered.
        assert!(n_taken < 10_000 / 3, "{n_taken}");
    }

    proptest! {
        #[test]
        fn no_minute_has_more_than_two_minutes_worth(
            gaps in proptest::collection::vec(0u64..5_000, 1..400),
            per_minute in 1u32..120,
        ) {
            let mut rate = RateLimiter::new(per_minute, 4);
            let (mut now, mut taken) = (Duration::ZERO, Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                if rate.take(now, &()) {
                    taken.push(now);
                }
            }
            for (at, first) in taken.iter().enumerate() {
                let n = taken[at..].iter().take_while(|later| **later < *first + MINUTE).count();
                prop_assert!(n <= 2 * per_minute as usize, "{n}");
            }
        }
    }
}
