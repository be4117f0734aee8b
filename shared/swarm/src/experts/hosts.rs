//! How hosts of experts have behaved, and in which order the hosts of an expert are asked.
//!
//! The load that a host announces is as old as its record, so that all trainers would go to the same host. Of two hosts drawn at
//! random the one with fewer waiting requests comes first (Mitzenmacher 2001: the power of two choices).

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::experts::ExpertHost;

use crate::Moment;
use crate::random::SplitMix64;

/// A host that did not answer is left alone for so long; it doubles with each failure.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// Longest such pause, and the pause of a host that gave an absurd answer.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(600);
/// A busy host is left alone for no longer than this, also where it asks for more.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// Most hosts that are remembered.
pub(super) const HOSTS_MAX: usize = 4096;

/// What a host did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostFault {
    /// No answer in time, or the stream failed; or it did not have the expert that it had announced.
    Failed,
    /// Rows that are not finite, of another length, or of another request.
    Absurd,
    /// It asked to be left alone for so long; no fault of its own.
    Busy(Duration),
}

#[derive(Debug, Clone, Copy, Default)]
struct HostConduct {
    n_failures: u32,
    left_alone_until: Moment,
    /// The last pause is that of an absurd answer: no good one ends it.
    is_absurd: bool,
}

/// What is known of hosts.
#[derive(Debug)]
pub(super) struct HostRecords {
    conduct: BTreeMap<PublicKey, HostConduct>,
    random: SplitMix64,
}

impl HostRecords {
    pub(super) fn new(seed: u64) -> Self {
        Self { conduct: BTreeMap::new(), random: SplitMix64::new(seed) }
    }

    pub(super) fn on_answered(&mut self, host: &PublicKey) {
        if let Some(conduct) = self.conduct.get_mut(host).filter(|conduct| conduct.is_absurd) {
            conduct.n_failures = 0;
            return;
        }
        self.conduct.remove(host);
    }

    pub(super) fn on_fault(&mut self, now: Moment, host: PublicKey, fault: HostFault) {
        self.make_room(&host);
        let conduct = self.conduct.entry(host).or_default();
        conduct.is_absurd &= conduct.left_alone_until > now;
        conduct.is_absurd |= fault == HostFault::Absurd;
        let pause = match fault {
            // It was asked before that, and fails with the others.
            HostFault::Failed if conduct.left_alone_until > now => return,
            HostFault::Failed => {
                conduct.n_failures = conduct.n_failures.saturating_add(1);
                PAUSE_MIN.saturating_mul(1 << (conduct.n_failures - 1).min(16)).min(PAUSE_MAX)
            }
            HostFault::Absurd => PAUSE_MAX,
            HostFault::Busy(asked) => asked.min(BUSY_MAX),
        };
        conduct.left_alone_until = conduct.left_alone_until.max(now + pause);
    }

    /// Whether a host may be asked.
    pub(super) fn is_listened_to(&self, now: Moment, host: &PublicKey) -> bool {
        self.conduct.get(host).is_none_or(|conduct| conduct.left_alone_until <= now)
    }

    /// The hosts of an expert that may be asked, the first one first.
    pub(super) fn order(&mut self, now: Moment, hosts: &[ExpertHost]) -> Vec<ExpertHost> {
        let good = hosts.iter().filter(|host| self.is_listened_to(now, &host.peer));
        let mut good: Vec<ExpertHost> = good.cloned().collect();
        self.random.shuffle(&mut good);
        let cost = |host: &ExpertHost| {
            let n_failures = self.conduct.get(&host.peer).map_or(0, |conduct| conduct.n_failures);
            (n_failures, host.n_waiting)
        };
        if let [first, second, ..] = &good[..]
            && cost(second) < cost(first)
        {
            good.swap(0, 1);
        }
        good
    }

    /// Forgets the host that may be asked the soonest.
    fn make_room(&mut self, host: &PublicKey) {
        if self.conduct.len() < HOSTS_MAX || self.conduct.contains_key(host) {
            return;
        }
        let soonest = self.conduct.iter().min_by_key(|(_, conduct)| conduct.left_alone_until);
        if let Some(soonest) = soonest.map(|(host, _)| *host) {
            self.conduct.remove(&soonest);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.conduct.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn peer(number: u32) -> PublicKey {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        PublicKey(key)
    }

    fn host(number: u32, n_waiting: u32) -> ExpertHost {
        ExpertHost { peer: peer(number), addresses: Vec::new(), n_waiting, n_steps: 0 }
    }

    #[test]
    fn requests_that_fail_together_are_one_failure() {
        let mut records = HostRecords::new(1);
        (0..8).for_each(|_| records.on_fault(SECOND, peer(1), HostFault::Failed));
        assert!(!records.is_listened_to(5 * SECOND, &peer(1)));
        assert!(records.is_listened_to(6 * SECOND, &peer(1)), "as after one");
        records.on_fault(6 * SECOND, peer(1), HostFault::Failed);
        assert!(!records.is_listened_to(15 * SECOND, &peer(1)), "the next one doubles it");
    }

    #[test]
    fn pauses_double_up_to_ten_minutes() {
        let mut records = HostRecords::new(1);
        let mut now = SECOND;
        let pauses = (0..40).map(|_| {
            records.on_fault(now, peer(1), HostFault::Failed);
            let until = records.conduct[&peer(1)].left_alone_until;
            assert!(!records.is_listened_to(until - Duration::from_millis(1), &peer(1)));
            assert!(records.is_listened_to(until, &peer(1)));
            (until - std::mem::replace(&mut now, until)).as_secs()
        });
        let pauses: Vec<u64> = pauses.collect();
        assert_eq!(pauses[..8], [5, 10, 20, 40, 80, 160, 320, 600]);
        assert!(pauses[8..].iter().all(|pause| *pause == 600));
        // A pause that was begun is not shortened.
        records.on_fault(now, peer(2), HostFault::Absurd);
        records.on_fault(now, peer(2), HostFault::Busy(SECOND));
        assert!(!records.is_listened_to(now + PAUSE_MAX - SECOND, &peer(2)));
    }

    #[test]
    fn a_good_answer_ends_the_pause_of_a_host_that_failed_and_not_that_of_an_absurd_one() {
        let mut records = HostRecords::new(1);
        records.on_fault(SECOND, peer(1), HostFault::Failed);
        records.on_answered(&peer(1));
        assert!(records.is_listened_to(SECOND, &peer(1)));
        records.on_fault(SECOND, peer(1), HostFault::Absurd);
        records.on_answered(&peer(1));
        let until = SECOND + PAUSE_MAX;
        assert!(!records.is_listened_to(until - Duration::from_millis(1), &peer(1)));
        // Once it is over, what comes after it is as that of any other.
        records.on_fault(until, peer(1), HostFault::Failed);
        records.on_answered(&peer(1));
        assert!(records.is_listened_to(until, &peer(1)));
    }

    #[test]
    fn the_less_loaded_of_two_comes_first_and_after_those_that_failed_less() {
        for seed in 0..20 {
            let mut records = HostRecords::new(seed);
            let order = |records: &mut HostRecords, hosts: &[ExpertHost]| -> Vec<u32> {
                records.order(9 * SECOND, hosts).iter().map(|host| host.n_waiting).collect()
            };
            assert_eq!(order(&mut records, &[host(1, 5), host(2, 3)]), [3, 5]);
            records.on_fault(Moment::ZERO, peer(2), HostFault::Failed);
            assert_eq!(order(&mut records, &[host(1, 5), host(2, 3)]), [5, 3]);
            records.on_fault(9 * SECOND, peer(1), HostFault::Busy(SECOND));
            assert_eq!(order(&mut records, &[host(1, 5), host(2, 3)]), [3]);
        }
    }

    #[test]
    fn of_too_many_hosts_the_one_that_may_be_asked_the_soonest_is_forgotten() {
        let mut records = HostRecords::new(1);
        records.on_fault(Moment::ZERO, peer(0), HostFault::Absurd);
        for number in 1..HOSTS_MAX as u32 {
            records.on_fault(SECOND * u32::from(number != 7), peer(number), HostFault::Failed);
        }
        assert_eq!(records.len(), HOSTS_MAX);
        records.on_fault(9 * SECOND, peer(8), HostFault::Failed);
        assert_eq!(records.len(), HOSTS_MAX, "it is known");
        records.on_fault(9 * SECOND, peer(9000), HostFault::Failed);
        assert_eq!(records.len(), HOSTS_MAX);
        let is_known = [0, 7, 8, 14, 9000].map(|number| records.conduct.contains_key(&peer(number)));
        assert_eq!(is_known, [true, false, true, true, true]);
    }
}
