//! When a host stores an expert, and offers what it has stored to its keepers.

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::experts::ExpertPlace;

use super::CheckpointVersion;
use crate::Moment;
use crate::random::SplitMix64;

/// Peers that keep a checkpoint, beside the disk of its host.
pub const KEEPERS_WANTED: usize = 2;
/// From one checkpoint of an expert to the next.
pub const OFFER_INTERVAL: Duration = Duration::from_secs(60);
/// The first one of an expert that is new here comes within this time, spread over it.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
/// After a checkpoint that nobody keeps.
const RETRY_AFTER: Duration = Duration::from_secs(15);
/// A checkpoint that has not changed is offered again after this time: a keeper may be gone, or may have forgotten it.
const REMIND_INTERVAL: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct ScheduledExpert {
    due: Moment,
    /// What was offered last, and when.
    offered: Option<(CheckpointVersion, Moment)>,
}

/// The checkpoints of one host's experts.
#[derive(Debug)]
pub struct CheckpointSchedule {
    experts: BTreeMap<ExpertPlace, ScheduledExpert>,
    random: SplitMix64,
}

impl CheckpointSchedule {
    /// Of a host without experts. `seed` spreads the checkpoints of several hosts.
    pub fn new(seed: u64) -> Self {
        Self { experts: BTreeMap::new(), random: SplitMix64::new(seed) }
    }

    /// An expert is hosted here now.
    pub fn on_hosted(&mut self, now: Moment, place: ExpertPlace) {
        let due = now + self.below(FIRST_WITHIN);
        self.experts.insert(place, ScheduledExpert { due, offered: None });
    }

    /// An expert is no longer hosted here.
    pub fn on_removed(&mut self, place: &ExpertPlace) {
        self.experts.remove(place);
    }

    /// The next expert that is to be stored at `now`; it is due again after [`OFFER_INTERVAL`].
    pub fn next_due(&mut self, now: Moment) -> Option<ExpertPlace> {
        let due = self.experts.iter().filter(|(_, expert)| expert.due <= now);
        let place = due.min_by_key(|(_, expert)| expert.due).map(|(place, _)| *place)?;
        let next = now + OFFER_INTERVAL - self.below(OFFER_INTERVAL / 10);
        if let Some(expert) = self.experts.get_mut(&place) {
            expert.due = next;
        }
        Some(place)
    }

    /// When to call [`Self::next_due`].
    pub fn next_deadline(&self) -> Option<Moment> {
        self.experts.values().map(|expert| expert.due).min()
    }

    /// Whether a state that was stored is to be offered to the keepers.
    pub fn is_offered(&self, now: Moment, place: &ExpertPlace, version: CheckpointVersion) -> bool {
        let Some(expert) = self.experts.get(place) else { return true };
        expert.offered.is_none_or(|(before, at)| before != version || at + REMIND_INTERVAL <= now)
    }

    /// So many peers keep a state that was offered.
    pub fn on_offered(
        &mut self,
        now: Moment,
        place: &ExpertPlace,
        version: CheckpointVersion,
        n_keepers: usize,
    ) {
        let Some(expert) = self.experts.get_mut(place) else { return };
        match n_keepers {
            0 => expert.due = expert.due.min(now + RETRY_AFTER),
            // There are too few peers: it is offered again with the next one.
            1..KEEPERS_WANTED => {}
            _ => expert.offered = Some((version, now)),
        }
    }

    fn below(&mut self, time: Duration) -> Duration {
        Duration::from_millis(self.random.below(time.as_millis() as usize + 1) as u64)
    }
}
