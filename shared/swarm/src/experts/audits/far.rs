//! Which hosts have given answers that are far from their checkpoints.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;

use crate::Moment;

/// So many far answers within [`WITHIN`], and the host is not trusted, if they are as many as the near ones: an expert may be lost for a
/// moment and come back, and a trainer may drive it out and back.
pub const FAR_MAX: usize = 3;
/// See [`FAR_MAX`].
const WITHIN: Duration = Duration::from_secs(3600);
/// So long it gets no places.
pub const DISTRUSTED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Most hosts that are remembered; the one that was heard of the longest ago is forgotten.
const HOSTS_MAX: usize = 4096;
/// Most answers of a host that are remembered.
const ANSWERS_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct FarAnswers {
    hosts: BTreeMap<PublicKey, HostAnswers>,
}

#[derive(Debug, Default)]
struct HostAnswers {
    /// The last ones between two checkpoints, each with the later one.
    between: VecDeque<SeenAnswer>,
    distrusted_until: Option<Moment>,
}

#[derive(Debug)]
struct SeenAnswer {
    at: Moment,
    before: (ExpertPlace, CheckpointVersion),
    is_far: bool,
}

impl FarAnswers {
    /// An answer of a host lay between two checkpoints, the later one of which was this, or was far from both. One excursion of an
    /// expert counts once, however many answers it gave meanwhile. Returns whether the host is not trusted from now on.
    pub fn on_between(
        &mut self,
        now: Moment,
        host: PublicKey,
        before: (ExpertPlace, CheckpointVersion),
        is_far: bool,
    ) -> bool {
        if !self.hosts.contains_key(&host) && self.hosts.len() >= HOSTS_MAX {
            let heard_of = |answers: &HostAnswers| answers.between.back().map(|seen| seen.at);
            let oldest = self.hosts.iter().min_by_key(|(_, answers)| heard_of(answers));
            if let Some(host) = oldest.map(|(host, _)| *host) {
                self.hosts.remove(&host);
            }
        }
        let HostAnswers { between, distrusted_until } = self.hosts.entry(host).or_default();
        between.retain(|seen| now.saturating_sub(seen.at) <= WITHIN);
        if between.iter().all(|seen| seen.before != before || seen.is_far != is_far) {
            between.push_back(SeenAnswer { at: now, before, is_far });
        }
        if between.len() > ANSWERS_MAX {
            between.pop_front();
        }
        let n_far = between.iter().filter(|seen| seen.is_far).count();
        let is_over = is_far && n_far >= FAR_MAX && 2 * n_far >= between.len();
        if is_over {
            between.clear();
            *distrusted_until = Some(now + DISTRUSTED_FOR);
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
