//! When a host announces its experts again, and in which batches.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::experts::{AnnouncedExpert, LIFETIME, announce};
use barnraise_protocol::dht::{DhtRefusal, RECORDS_BYTES_MAX, RECORDS_MAX, Record, UnixMillis};
use barnraise_protocol::experts::{ExpertUid, LayerId};

use crate::Moment;
use crate::random::SplitMix64;

/// From one announcement to the next: a record outlives two that fail.
pub const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_secs(20);
/// Most experts that one host announces.
pub const ANNOUNCED_MAX: usize = 4096;
/// After a batch that could not be stored, and after an expert that is new.
const RETRY_AFTER: Duration = Duration::from_secs(2);

const _: () = assert!(ANNOUNCEMENT_INTERVAL.as_secs() * 3 <= LIFETIME.as_secs());

/// Why an expert is not announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExpertAnnounceError {
    /// Too many.
    #[error("{ANNOUNCED_MAX} experts are announced already, as many as a host may have")]
    TooMany,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnnouncerAction {
    /// Store these records, which fit into one message. Where the DHT does not take most of them:
    /// [`ExpertAnnouncer::on_put_failed`].
    Put(Vec<Record>),
}

/// The announcements of one host in one run.
#[derive(Debug)]
pub struct ExpertAnnouncer {
    key: KeyPair,
    run_id: String,
    addresses: Vec<Vec<u8>>,
    random: SplitMix64,
    experts: BTreeMap<(LayerId, ExpertUid), AnnouncedExpert>,
    due: Option<Moment>,
    /// Records of this announcement that are still to be put.
    batches: VecDeque<Vec<Record>>,
}

impl ExpertAnnouncer {
    /// A host that has no expert yet. `addresses` are where it listens: binary multiaddresses; `seed` spreads the
    /// announcements of many hosts.
    pub fn new(key: KeyPair, run_id: String, addresses: Vec<Vec<u8>>, seed: u64) -> Self {
        Self {
            key,
            run_id,
            addresses,
            random: SplitMix64::new(seed),
            experts: BTreeMap::new(),
            due: None,
            batches: VecDeque::new(),
        }
    }

    /// The host listens elsewhere now; the next announcement says so, and comes soon.
    pub fn on_addresses(&mut self, now: Moment, addresses: Vec<Vec<u8>>) {
        if self.addresses != addresses {
            self.addresses = addresses;
            self.hasten(now);
        }
    }

    /// An expert is hosted here, or its load and its steps have changed. A new one is announced soon, and what changed with
    /// the next announcement.
    ///
    /// # Errors
    /// [`ExpertAnnounceError::TooMany`].
    pub fn on_expert(
        &mut self,
        now: Moment,
        layer: LayerId,
        expert: AnnouncedExpert,
    ) -> Result<(), ExpertAnnounceError> {
        let place = (layer, expert.uid);
        if self.experts.len() >= ANNOUNCED_MAX && !self.experts.contains_key(&place) {
            return Err(ExpertAnnounceError::TooMany);
        }
        if self.experts.insert(place, expert).is_none() {
            self.hasten(now);
        }
        Ok(())
    }

    /// An expert is no longer hosted here. What was announced of it expires.
    pub fn on_removed(&mut self, layer: LayerId, uid: ExpertUid) {
        self.experts.remove(&(layer, uid));
    }

    /// Records of the last announcement were not stored: they are announced again soon.
    pub fn on_put_failed(&mut self, now: Moment) {
        self.hasten(now);
    }

    /// When to call [`Self::poll_action`] again.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.due.filter(|_| !self.experts.is_empty())
    }

    /// The next thing to do at `now`, which is `wall` by the clock of expirations.
    ///
    /// # Errors
    /// Does not happen.
    pub fn poll_action(
        &mut self,
        now: Moment,
        wall: UnixMillis,
    ) -> Result<Option<AnnouncerAction>, DhtRefusal> {
        if self.batches.is_empty() && self.next_deadline().is_some_and(|due| due <= now) {
            self.due = Some(now + self.random.jittered(ANNOUNCEMENT_INTERVAL));
            self.announce(wall)?;
        }
        Ok(self.batches.pop_front().map(AnnouncerAction::Put))
    }

    fn announce(&mut self, wall: UnixMillis) -> Result<(), DhtRefusal> {
        let mut by_layer: BTreeMap<LayerId, Vec<AnnouncedExpert>> = BTreeMap::new();
        for ((layer, _), expert) in &self.experts {
            by_layer.entry(*layer).or_default().push(*expert);
        }
        let (mut batch, mut n_bytes) = (Vec::new(), 0);
        for (layer, experts) in by_layer {
            let place = (self.run_id.as_str(), layer);
            let records = announce(&self.key, place, &experts, &self.addresses, wall.after(LIFETIME))?;
            for record in records {
                let n_more = record.n_bytes();
                if batch.len() == RECORDS_MAX || n_bytes + n_more > RECORDS_BYTES_MAX {
                    self.batches.push_back(std::mem::take(&mut batch));
                    n_bytes = 0;
                }
                n_bytes += n_more;
                batch.push(record);
            }
        }
        if !batch.is_empty() {
            self.batches.push_back(batch);
        }
        Ok(())
    }

    fn hasten(&mut self, now: Moment) {
        // The first one at once; after that a host with many new experts waits until it has some more of them.
        let soon = if self.due.is_none() { now } else { now + self.random.jittered(RETRY_AFTER) };
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }
}
