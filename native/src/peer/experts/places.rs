//! What the driver of a host knows of the places that it has leases for.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use barnraise_contributor::hosting::{AveragedCopies, ExpertJob};
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::experts::leases::ExpertLease;
use barnraise_swarm::Moment;
use barnraise_swarm::experts::checkpoints::{CheckpointSchedule, LostExperts};
use barnraise_swarm::experts::leases::Handover;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

use super::handing::HandoverNews;

/// The keepers of an expert that is handed over have at least so long, also where the time for all is over.
const GIVE_TIME_MIN: Duration = Duration::from_secs(30);
/// Experts whose states are on the way here at a time.
const GATHERING_MAX: usize = 4;

/// See the module.
pub(super) struct HeldPlaces {
    /// Their states are on the way here.
    pub(super) gathering: BTreeMap<ExpertPlace, AbortHandle>,
    /// A backbone answers few questions of one host at a time.
    pub(super) gathering_turns: Arc<Semaphore>,
    /// Given to the device, by number.
    pub(super) numbers: HashMap<u32, ExpertPlace>,
    /// The copies as which experts step here, and the terms under which.
    pub(super) terms: BTreeMap<ExpertPlace, (u8, u64)>,
    pub(super) averaged: AveragedCopies,
    /// The device gives their states back.
    pub(super) stopping: BTreeSet<ExpertPlace>,
    /// States that the device could not go on from, and which are not tried again.
    pub(super) refused: BTreeMap<ExpertPlace, Vec<CheckpointVersion>>,
    /// Leases whose places need another state.
    pub(super) retried: Vec<ExpertLease>,
    /// Stored, and not given to their keepers yet, the longest first.
    pub(super) not_given: VecDeque<ExpertPlace>,
    /// Leased once more while they are stopping.
    pub(super) deferred: BTreeMap<ExpertPlace, ExpertLease>,
    pub(super) n_numbers: u32,
    /// For the device, once it has room.
    pub(super) jobs: VecDeque<ExpertJob>,
    pub(super) schedule: CheckpointSchedule,
    pub(super) is_storing: bool,
    /// On the disk, and not served here.
    pub(super) lost: LostExperts,
    /// Said next.
    pub(super) news: Vec<ExpertPlace>,
    /// Under way, as the operator wants.
    pub(super) handover: Option<Handover>,
}

impl HeldPlaces {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            gathering: BTreeMap::new(),
            gathering_turns: Arc::new(Semaphore::new(GATHERING_MAX)),
            numbers: HashMap::new(),
            terms: BTreeMap::new(),
            averaged: AveragedCopies::default(),
            stopping: BTreeSet::new(),
            refused: BTreeMap::new(),
            retried: Vec::new(),
            not_given: VecDeque::new(),
            deferred: BTreeMap::new(),
            n_numbers: 0,
            jobs: VecDeque::new(),
            schedule: CheckpointSchedule::new(seed),
            is_storing: false,
            lost: LostExperts::default(),
            news: Vec::new(),
            handover: None,
        }
    }

    /// Whether a place is being handed over.
    pub(super) fn is_leaving(&self, place: &ExpertPlace) -> bool {
        self.handover.as_ref().is_some_and(|handover| handover.is_leaving(place))
    }

    /// How long the keepers of an expert that is handed over may take: meanwhile nobody serves it.
    pub(super) fn time_to_give(&self, now: Moment) -> Duration {
        let left = self.handover.as_ref().map(|handover| handover.time_left(now));
        left.unwrap_or_default().max(GIVE_TIME_MIN)
    }

    /// Something came of the handover.
    pub(super) fn on_handed(&mut self, now: Moment, news: HandoverNews) {
        let Some(handover) = &mut self.handover else { return };
        match news {
            HandoverNews::GivenBack(place) => handover.on_given_back(now, &place),
            HandoverNews::Holders(Some(holders)) => handover.on_holders(now, &holders),
            HandoverNews::Holders(None) => handover.on_failed(now),
        }
    }

    /// A checkpoint waits for its turn at the giver.
    pub(super) fn on_not_given(&mut self, place: ExpertPlace) {
        if !self.not_given.contains(&place) {
            self.not_given.push_back(place);
        }
    }

    /// The device cannot go on from a state, which is not tried again. The place stays this host's.
    pub(super) fn on_no_state(&mut self, lease: &ExpertLease, version: CheckpointVersion) {
        self.refused.entry(lease.place).or_default().push(version);
        self.retried.push(lease.clone());
    }

    /// Gives the device what it has room for.
    pub(super) fn flush(&mut self, jobs: &mpsc::Sender<ExpertJob>) -> anyhow::Result<()> {
        while let Some(job) = self.jobs.pop_front() {
            match jobs.try_send(job) {
                Ok(()) => {}
                Err(TrySendError::Full(job)) => {
                    self.jobs.push_front(job);
                    return Ok(());
                }
                Err(TrySendError::Closed(_)) => bail!("the thread that computes has ended"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::KeyPair;
    use barnraise_protocol::experts::{ExpertUid, LayerId};

    use super::*;

    #[test]
    fn a_state_that_is_of_no_use_costs_no_place() {
        let mut places = HeldPlaces::new(1);
        let place = (LayerId(0), ExpertUid::new(&[3]).unwrap());
        let holder = KeyPair::from_seed(&[1; 32]).public();
        let lease = ExpertLease { place, copy: 0, holder, term: 5, grants: Vec::new() };
        let version = |n_steps| CheckpointVersion { term: 4, n_steps };
        places.on_no_state(&lease, version(9));
        places.on_no_state(&lease, version(8));
        assert_eq!(places.refused[&place], [version(9), version(8)]);
        assert_eq!(places.retried, [lease.clone(), lease]);
        places.on_not_given(place);
        places.on_not_given(place);
        assert_eq!(places.not_given, [place], "it waits once");
    }
}
