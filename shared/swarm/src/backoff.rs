//! Delay before a reconnection: exponential and capped, with jitter so that a thousand tabs do not come
//! back in the same instant.

use std::time::Duration;

use crate::random::SplitMix64;

/// First delay, before jitter.
pub const FIRST_DELAY: Duration = Duration::from_millis(400);
/// Longest delay, before jitter.
pub const DELAY_MAX: Duration = Duration::from_secs(20);

/// Delays of consecutive failures.
#[derive(Debug, Clone)]
pub struct Backoff {
    delay: Duration,
    random: SplitMix64,
}

impl Backoff {
    /// `seed` decides the jitter.
    pub fn new(seed: u64) -> Self {
        Self { delay: FIRST_DELAY, random: SplitMix64::new(seed) }
    }

    /// The delay after one more failure: uniform between half the nominal delay and all of it.
    pub fn next_delay(&mut self) -> Duration {
        let nominal = self.delay;
        self.delay = (self.delay * 2).min(DELAY_MAX);
        let half_ms = (nominal.as_millis() / 2) as usize;
        nominal / 2 + Duration::from_millis(self.random.below(half_ms + 1) as u64)
    }

    /// The connection succeeded: the next failure starts at [`FIRST_DELAY`] again.
    pub fn reset(&mut self) {
        self.delay = FIRST_DELAY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_cap_with_jitter_and_start_over() {
        let mut backoff = Backoff::new(3);
        let mut nominal = FIRST_DELAY;
        for _ in 0..12 {
            let delay = backoff.next_delay();
            assert!(delay >= nominal / 2 && delay <= nominal, "{delay:?} for a nominal {nominal:?}");
            nominal = (nominal * 2).min(DELAY_MAX);
        }
        assert_eq!(nominal, DELAY_MAX);
        backoff.reset();
        assert!(backoff.next_delay() <= FIRST_DELAY);
        let other: Vec<_> = (0..4).map(|seed| Backoff::new(seed).next_delay()).collect();
        assert!(other.windows(2).any(|pair| pair[0] != pair[1]), "no jitter: {other:?}");
    }
}
