//! Contributions that came through relays, as counted by this backbone, not by the relays.
//!
//! A backbone is reached through the relays on which it has reserved a slot, so there are few.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libp2p::PeerId;

/// Relays that are counted.
const RELAYS_MAX: usize = 64;

/// Contributions that came through one relay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Contributions that counted.
    pub n_contributions: u64,
    /// Encoded bytes of their gradients.
    pub n_bytes: u64,
    /// Time from offer to acceptance, summed.
    pub microseconds: u64,
}

impl Relayed {
    /// The difference to `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            n_contributions: self.n_contributions.saturating_sub(before.n_contributions),
            n_bytes: self.n_bytes.saturating_sub(before.n_bytes),
            microseconds: self.microseconds.saturating_sub(before.microseconds),
        }
    }
}

/// Contributions through each relay since the start.
#[derive(Debug, Default)]
pub struct RelayMeter {
    of_relays: Mutex<BTreeMap<PeerId, Relayed>>,
}

impl RelayMeter {
    /// A contribution of `n_bytes` bytes came through `relay`, and was accepted.
    pub fn carried(&self, relay: PeerId, n_bytes: u64, took: Duration) {
        let mut of_relays = self.of_relays.lock().unwrap_or_else(PoisonError::into_inner);
        if of_relays.len() >= RELAYS_MAX && !of_relays.contains_key(&relay) {
            return;
        }
        let sums = of_relays.entry(relay).or_default();
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        sums.n_contributions += 1;
        sums.n_bytes = sums.n_bytes.saturating_add(n_bytes);
        sums.microseconds = sums.microseconds.saturating_add(microseconds);
    }

    /// The totals.
    #[must_use]
    pub fn read(&self) -> BTreeMap<PeerId, Relayed> {
        self.of_relays.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_relay_is_counted_by_itself_and_no_more_than_there_are_places() {
        let meter = RelayMeter::default();
        let (one, other) = (PeerId::random(), PeerId::random());
        meter.carried(one, 10, Duration::from_millis(1));
        meter.carried(one, 5, Duration::from_millis(2));
        meter.carried(other, 1, Duration::ZERO);
        let first = meter.read();
        assert_eq!(first[&one], Relayed { n_contributions: 2, n_bytes: 15, microseconds: 3000 });
        (0..2 * RELAYS_MAX).for_each(|_| meter.carried(PeerId::random(), 1, Duration::ZERO));
        meter.carried(one, 1, Duration::ZERO);
        let all = meter.read();
        assert_eq!(all.len(), RELAYS_MAX);
        let more = Relayed { n_contributions: 1, n_bytes: 1, microseconds: 0 };
        assert_eq!(all[&one].since(first[&one]), more);
    }
}
