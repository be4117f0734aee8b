//! Which native peers may average parts: who sent something else than the mean does not again, and who kept a round up
//! rests, twice as long each time.
//!
//! A lie is proven to whoever checked it. Who is to blame for a round that came to nothing often is not, so all that
//! had a part in it rest, the honest ones too.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Moment, PeerKey};

/// Peers that are remembered.
const PEERS_MAX: usize = 1024;
/// The first rest.
const REST: Duration = Duration::from_secs(30);
/// The longest is this many times as long.
const RESTS_MAX: u32 = 128;

#[derive(Debug, Clone, Copy, Default)]
struct Record {
    n_troubles: u32,
    rests_until: Moment,
    has_lied: bool,
}

/// What is known against reducers.
#[derive(Debug, Default)]
pub struct Trust {
    records: BTreeMap<PeerKey, Record>,
}

/// Why a peer averages no part now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// For good.
    #[error("what this peer sent was not the mean of what it was sent")]
    Lied,
    /// For some time.
    #[error("an averaging with this peer came to nothing; it is asked again in {} s", .0.as_secs() + 1)]
    Rests(Duration),
}

impl Trust {
    /// Why `peer` is not to average, if there is a reason.
    ///
    /// # Errors
    /// See [`Distrust`].
    pub fn check(&self, now: Moment, peer: &PeerKey) -> Result<(), Distrust> {
        match self.records.get(peer) {
            Some(record) if record.has_lied => Err(Distrust::Lied),
            Some(record) if now < record.rests_until => Err(Distrust::Rests(record.rests_until - now)),
            _ => Ok(()),
        }
    }

    /// An averaging in which it had a part came to nothing, or somebody had to turn to another reducer.
    pub fn on_trouble(&mut self, now: Moment, peer: &PeerKey) {
        let record = self.record(peer);
        let n_rests = 1u32.checked_shl(record.n_troubles).unwrap_or(RESTS_MAX).min(RESTS_MAX);
        record.n_troubles = record.n_troubles.saturating_add(1);
        record.rests_until = now + REST * n_rests;
    }

    /// It sent something else than the mean.
    pub fn on_lie(&mut self, peer: &PeerKey) {
        self.record(peer).has_lied = true;
    }

    /// Its part was right, for everybody: half of what was against it is forgotten.
    pub fn on_right(&mut self, peer: &PeerKey) {
        if let Some(record) = self.records.get_mut(peer) {
            record.n_troubles /= 2;
        }
    }

    fn record(&mut self, peer: &PeerKey) -> &mut Record {
        if self.records.len() >= PEERS_MAX && !self.records.contains_key(peer) {
            // Whoever may come again soonest, those that lied last.
            let soonest = self.records.iter().min_by_key(|(_, of)| (of.has_lied, of.rests_until));
            if let Some(peer) = soonest.map(|(peer, _)| peer.clone()) {
                self.records.remove(&peer);
            }
        }
        self.records.entry(peer.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> PeerKey {
        PeerKey(number.to_le_bytes().to_vec())
    }

    #[test]
    fn who_keeps_rounds_up_rests_longer_each_time_and_is_forgiven() {
        let (mut trust, one) = (Trust::default(), peer(1));
        let mut now = Moment::ZERO;
        assert_eq!(trust.check(now, &one), Ok(()));
        for n in [1, 2, 4] {
            trust.on_trouble(now, &one);
            assert_eq!(trust.check(now, &one), Err(Distrust::Rests(REST * n)));
            now += REST * n;
            assert_eq!(trust.check(now, &one), Ok(()));
        }
        trust.on_right(&one);
        trust.on_trouble(now, &one);
        assert_eq!(trust.check(now, &one), Err(Distrust::Rests(REST * 2)));
        (0..40).for_each(|_| trust.on_trouble(now, &one));
        assert_eq!(trust.check(now, &one), Err(Distrust::Rests(REST * RESTS_MAX)));
        assert_eq!(trust.check(now, &peer(2)), Ok(()));
    }

    #[test]
    fn who_lied_is_not_forgotten_for_others() {
        let mut trust = Trust::default();
        trust.on_lie(&peer(0));
        (1..3000).for_each(|number| trust.on_trouble(Moment::ZERO, &peer(number)));
        assert_eq!(trust.check(Moment::MAX, &peer(0)), Err(Distrust::Lied));
        trust.on_right(&peer(0));
        assert_eq!(trust.check(Moment::MAX, &peer(0)), Err(Distrust::Lied));
        assert!(trust.records.len() <= PEERS_MAX);
    }
}
