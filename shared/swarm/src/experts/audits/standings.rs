//! Which hosts have given answers that are far from their checkpoints.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;

use crate::Moment;

/// So many far answers within [`FAR_WITHIN`], and the host is not trusted: an expert may be lost for a moment, and come back.
pub const FAR_MAX: usize = 3;
/// See [`FAR_MAX`].
const FAR_WITHIN: Duration = Duration::from_secs(3600);
/// So long it gets no places.
pub const DISTRUSTED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Most hosts that are remembered; the one that was far the longest ago is forgotten.
const HOSTS_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct HostStandings {
    hosts: BTreeMap<PublicKey, HostStanding>,
}

#[derive(Debug, Default)]
struct HostStanding {
    /// The last far answers, each between other checkpoints.
    far: VecDeque<(Moment, (ExpertPlace, CheckpointVersion))>,
    distrusted_until: Option<Moment>,
}

impl HostStandings {
    /// An answer of a host was far, after this checkpoint of the expert. One excursion of an expert counts once, however many
    /// answers it gave meanwhile. Returns whether the host is not trusted from now on.
    pub fn on_far(&mut self, now: Moment, host: PublicKey, after: (ExpertPlace, CheckpointVersion)) -> bool {
        if !self.hosts.contains_key(&host) && self.hosts.len() >= HOSTS_MAX {
            let last_far = |standing: &HostStanding| standing.far.back().map(|(at, _)| *at);
            let oldest = self.hosts.iter().min_by_key(|(_, standing)| last_far(standing));
            if let Some(host) = oldest.map(|(host, _)| *host) {
                self.hosts.remove(&host);
            }
        }
        let standing = self.hosts.entry(host).or_default();
        while standing.far.front().is_some_and(|(at, _)| now.saturating_sub(*at) > FAR_WITHIN) {
            standing.far.pop_front();
        }
        if standing.far.iter().all(|(_, known)| *known != after) {
            standing.far.push_back((now, after));
        }
        let is_over = standing.far.len() >= FAR_MAX;
        if is_over {
            standing.far.pop_front();
            standing.distrusted_until = Some(now + DISTRUSTED_FOR);
        }
        is_over
    }

    /// How long a host is not trusted yet; `None` where it is.
    pub fn distrusted_for(&self, now: Moment, host: &PublicKey) -> Option<Duration> {
        let until = self.hosts.get(host)?.distrusted_until?;
        Some(until.saturating_sub(now)).filter(|left| !left.is_zero())
    }

    #[cfg(test)]
    pub(super) fn n_hosts(&self) -> usize {
        self.hosts.len()
    }
}
