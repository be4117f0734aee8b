//! The reputation of untrusted reducers. A reducer that sent a wrong mean is excluded for good. One whose round failed is
//! suspended, twice as long each time.
//!
//! A wrong mean is proven to the members that checked it. The cause of a failed round often is unknown, so all its
//! untrusted reducers are suspended, the honest ones too.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Moment, PeerKey};

/// Most peers with a record.
const PEERS_MAX: usize = 1024;
/// The first suspension.
const SUSPENSION: Duration = Duration::from_secs(30);
/// The longest suspension is this many times [`SUSPENSION`].
const SUSPENSION_FACTOR_MAX: u32 = 128;

#[derive(Debug, Clone, Copy, Default)]
struct ReducerRecord {
    n_failures: u32,
    suspended_until: Moment,
    sent_wrong_mean: bool,
}

/// Failures and proven wrong means of reducers.
#[derive(Debug, Default)]
pub struct Reputation {
    records: BTreeMap<PeerKey, ReducerRecord>,
}

/// Why a peer may not be a reducer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReputationError {
    /// It sent a wrong mean; excluded for good.
    #[error("a part that this peer averaged was not the mean")]
    WrongMean,
    /// Its round failed; suspended for this long.
    #[error("an averaging with this peer failed; it may average again in {} s", .0.as_secs() + 1)]
    Suspended(Duration),
}

impl Reputation {
    /// Whether `peer` may be a reducer at `now`.
    ///
    /// # Errors
    /// See [`ReputationError`].
    pub fn check(&self, now: Moment, peer: &PeerKey) -> Result<(), ReputationError> {
        match self.records.get(peer) {
            Some(record) if record.sent_wrong_mean => Err(ReputationError::WrongMean),
            Some(record) if now < record.suspended_until => {
                Err(ReputationError::Suspended(record.suspended_until - now))
            }
            _ => Ok(()),
        }
    }

    /// An averaging with this reducer failed, or a member had to use the standby reducer.
    pub fn on_failed_round(&mut self, now: Moment, peer: &PeerKey) {
        let record = self.record(peer);
        let factor =
            1u32.checked_shl(record.n_failures).unwrap_or(SUSPENSION_FACTOR_MAX).min(SUSPENSION_FACTOR_MAX);
        record.n_failures = record.n_failures.saturating_add(1);
        record.suspended_until = now + SUSPENSION * factor;
    }

    /// It sent a wrong mean.
    pub fn on_wrong_mean(&mut self, peer: &PeerKey) {
        self.record(peer).sent_wrong_mean = true;
    }

    /// Its mean was correct for all members; halves its failure count.
    pub fn on_correct_mean(&mut self, peer: &PeerKey) {
        if let Some(record) = self.records.get_mut(peer) {
            record.n_failures /= 2;
        }
    }

    fn record(&mut self, peer: &PeerKey) -> &mut ReducerRecord {
        if self.records.len() >= PEERS_MAX && !self.records.contains_key(peer) {
            // Evicts the record whose suspension ends first; proven wrong means last.
            let soonest = self.records.iter().min_by_key(|(_, of)| (of.sent_wrong_mean, of.suspended_until));
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
    fn a_reducer_whose_rounds_fail_is_suspended_longer_each_time_and_forgiven() {
        let (mut reputation, one) = (Reputation::default(), peer(1));
        let mut now = Moment::ZERO;
        assert_eq!(reputation.check(now, &one), Ok(()));
        for n in [1, 2, 4] {
            reputation.on_failed_round(now, &one);
            assert_eq!(reputation.check(now, &one), Err(ReputationError::Suspended(SUSPENSION * n)));
            now += SUSPENSION * n;
            assert_eq!(reputation.check(now, &one), Ok(()));
        }
        reputation.on_correct_mean(&one);
        reputation.on_failed_round(now, &one);
        assert_eq!(reputation.check(now, &one), Err(ReputationError::Suspended(SUSPENSION * 2)));
        (0..40).for_each(|_| reputation.on_failed_round(now, &one));
        assert_eq!(
            reputation.check(now, &one),
            Err(ReputationError::Suspended(SUSPENSION * SUSPENSION_FACTOR_MAX))
        );
        assert_eq!(reputation.check(now, &peer(2)), Ok(()));
    }

    /// A correct mean takes back one doubling of the suspension, and half of all failures.
    #[test]
    fn a_correct_mean_halves_what_a_reducer_has_failed() {
        let (mut reputation, one) = (Reputation::default(), peer(1));
        (0..4).for_each(|_| reputation.on_failed_round(Moment::ZERO, &one));
        reputation.on_correct_mean(&one);
        reputation.on_failed_round(Moment::ZERO, &one);
        assert_eq!(reputation.check(Moment::ZERO, &one), Err(ReputationError::Suspended(SUSPENSION * 4)));
    }

    #[test]
    fn one_more_record_than_fit_evicts_the_one_whose_suspension_ends_first() {
        let mut reputation = Reputation::default();
        let n_peers = PEERS_MAX as u32;
        let at = |number: u32| Duration::from_secs(u64::from(number));
        (0..n_peers).for_each(|number| reputation.on_failed_round(at(number), &peer(number)));
        let has_record = |reputation: &Reputation, number| reputation.records.contains_key(&peer(number));
        reputation.on_failed_round(at(n_peers), &peer(0));
        assert_eq!(reputation.records.len(), PEERS_MAX, "one with a record evicts none");
        assert!(has_record(&reputation, 1));
        reputation.on_failed_round(at(n_peers), &peer(n_peers));
        assert_eq!(reputation.records.len(), PEERS_MAX);
        assert_eq!(
            [0, 1, 2, n_peers].map(|number| has_record(&reputation, number)),
            [true, false, true, true]
        );
    }

    #[test]
    fn the_record_of_a_wrong_mean_is_not_evicted_for_others() {
        let mut reputation = Reputation::default();
        reputation.on_wrong_mean(&peer(0));
        (1..3000).for_each(|number| reputation.on_failed_round(Moment::ZERO, &peer(number)));
        assert_eq!(reputation.check(Moment::MAX, &peer(0)), Err(ReputationError::WrongMean));
        reputation.on_correct_mean(&peer(0));
        assert_eq!(reputation.check(Moment::MAX, &peer(0)), Err(ReputationError::WrongMean));
        assert!(reputation.records.len() <= PEERS_MAX);
    }
}
