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
        self.conduct.remove(host);
    }

    pub(super) fn on_fault(&mut self, now: Moment, host: PublicKey, fault: HostFault) {
        self.make_room(&host);
        let conduct = self.conduct.entry(host).or_default();
        let pause = match fault {
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
