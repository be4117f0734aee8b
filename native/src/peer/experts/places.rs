//! What the driver of a host knows of the places that it has leases for.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use anyhow::bail;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::leases::ExpertLease;
use barnraise_swarm::experts::checkpoints::CheckpointSchedule;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

use super::device::ExpertJob;

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
    /// The terms under which experts step here.
    pub(super) terms: BTreeMap<ExpertPlace, u64>,
    /// The device gives their states back.
    pub(super) stopping: BTreeSet<ExpertPlace>,
    /// Leased once more while they are stopping.
    pub(super) deferred: BTreeMap<ExpertPlace, ExpertLease>,
    pub(super) n_numbers: u32,
    /// For the device, once it has room.
    pub(super) jobs: VecDeque<ExpertJob>,
    pub(super) schedule: CheckpointSchedule,
    pub(super) is_storing: bool,
    /// Said next.
    pub(super) news: Vec<ExpertPlace>,
}

impl HeldPlaces {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            gathering: BTreeMap::new(),
            gathering_turns: Arc::new(Semaphore::new(GATHERING_MAX)),
            numbers: HashMap::new(),
            terms: BTreeMap::new(),
            stopping: BTreeSet::new(),
            deferred: BTreeMap::new(),
            n_numbers: 0,
            jobs: VecDeque::new(),
            schedule: CheckpointSchedule::new(seed),
            is_storing: false,
            news: Vec::new(),
        }
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
