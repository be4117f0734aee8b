//! The checkpoints that a peer keeps for the hosts of experts: the newest of each, within a limit of bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::{CheckpointRefusal, ExpertCheckpoint};

use crate::Moment;

/// Checkpoints that are on their way to one keeper at a time.
pub const TRANSFERS_MAX: usize = 2;
/// A checkpoint that was not offered again for so long makes room for another one, where there is none left.
pub const KEPT_LONG: Duration = Duration::from_secs(600);

/// What a keeper says to an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfferVerdict {
    /// The same, or a newer one, is kept.
    AlreadyKept,
    /// Take it: then [`CheckpointShelf::on_kept`] or [`CheckpointShelf::on_lost`].
    Wanted {
        /// The longest that nobody has offered again. They are kept until it is here, and make room for it then.
        evicted: Vec<ExpertPlace>,
    },
}

#[derive(Debug)]
struct KeptCheckpoint {
    checkpoint: ExpertCheckpoint,
    offered_at: Moment,
}

/// A checkpoint on its way.
#[derive(Debug)]
struct ArrivingCheckpoint {
    holder: PublicKey,
    n_bytes: u64,
    /// What it takes the room of, with when each was offered.
    evicted: Vec<(ExpertPlace, Moment)>,
}

/// The checkpoints that a peer keeps, without their bytes.
#[derive(Debug)]
pub struct CheckpointShelf {
    bytes_max: u64,
    n_bytes: u64,
    kept: BTreeMap<ExpertPlace, KeptCheckpoint>,
    incoming: BTreeMap<ExpertPlace, ArrivingCheckpoint>,
}

impl CheckpointShelf {
    /// A shelf for so many bytes, with what was kept before. What is beyond the limit stays.
    pub fn new(now: Moment, bytes_max: u64, kept: impl IntoIterator<Item = ExpertCheckpoint>) -> Self {
        let kept: BTreeMap<ExpertPlace, KeptCheckpoint> = kept
            .into_iter()
            .map(|checkpoint| (checkpoint.lease.place, KeptCheckpoint { checkpoint, offered_at: now }))
            .collect();
        let n_bytes = kept.values().map(|kept| kept.checkpoint.transfer.n_bytes).sum();
        Self { bytes_max, n_bytes, kept, incoming: BTreeMap::new() }
    }

    /// A host offers a checkpoint, whose lease was verified and is its own. One of that expert has at most
    /// `expert_bytes_max` bytes.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn on_offer(
        &mut self,
        now: Moment,
        checkpoint: &ExpertCheckpoint,
        expert_bytes_max: u64,
    ) -> Result<OfferVerdict, CheckpointRefusal> {
        let (place, got) = (checkpoint.lease.place, checkpoint.transfer.n_bytes);
        if let Some(kept) = self.kept.get_mut(&place)
            && kept.checkpoint.version() >= checkpoint.version()
        {
            if kept.checkpoint.version() == checkpoint.version() {
                kept.offered_at = now;
            }
            return Ok(OfferVerdict::AlreadyKept);
        }
        let max = expert_bytes_max.min(self.bytes_max);
        if got > max {
            return Err(CheckpointRefusal::TooLarge { max, got });
        }
        let holder = checkpoint.lease.holder;
        let has_slot = |incoming: &ArrivingCheckpoint| incoming.holder == holder;
        if self.incoming.len() >= TRANSFERS_MAX
            || self.incoming.contains_key(&place)
            || self.incoming.values().any(has_slot)
        {
            return Err(CheckpointRefusal::Busy);
        }
        let evicted = self.make_room(now, place, got).ok_or(CheckpointRefusal::Full)?;
        let places = evicted.iter().map(|(place, _)| *place).collect();
        self.incoming.insert(place, ArrivingCheckpoint { holder, n_bytes: got, evicted });
        self.n_bytes += got;
        Ok(OfferVerdict::Wanted { evicted: places })
    }

    /// Whether a kept checkpoint goes when one of those arrives that are on their way.
    fn is_going(&self, place: &ExpertPlace) -> bool {
        let takes = |(of, incoming): (&ExpertPlace, &ArrivingCheckpoint)| {
            of == place || incoming.evicted.iter().any(|(evicted, _)| evicted == place)
        };
        self.incoming.iter().any(takes)
    }

    /// What goes, so that there is room for so many bytes, once they are here; `None` where that is not enough. The one before
    /// of the same expert goes, too, and takes no room from the new one.
    fn make_room(&self, now: Moment, of: ExpertPlace, n_bytes: u64) -> Option<Vec<(ExpertPlace, Moment)>> {
        let going = self.kept.iter().filter(|(place, _)| **place == of || self.is_going(place));
        let going: u64 = going.map(|(_, kept)| kept.checkpoint.transfer.n_bytes).sum();
        let mut old: Vec<(Moment, ExpertPlace, u64)> = self
            .kept
            .iter()
            .filter(|(place, kept)| **place != of && kept.offered_at + KEPT_LONG <= now)
            .filter(|(place, _)| !self.is_going(place))
            .map(|(place, kept)| (kept.offered_at, *place, kept.checkpoint.transfer.n_bytes))
            .collect();
        old.sort_unstable();
        let mut wanted = (self.n_bytes + n_bytes).saturating_sub(self.bytes_max.saturating_add(going));
        let mut evicted = Vec::new();
        for (offered_at, place, n_bytes) in old {
            if wanted == 0 {
                break;
            }
            wanted = wanted.saturating_sub(n_bytes);
            evicted.push((place, offered_at));
        }
        (wanted == 0).then_some(evicted)
    }

    /// An offered checkpoint is stored. Returns those that are to be deleted for it, with the one before of the same expert. One
    /// that was offered again meanwhile stays.
    pub fn on_kept(&mut self, now: Moment, checkpoint: ExpertCheckpoint) -> Vec<ExpertCheckpoint> {
        let place = checkpoint.lease.place;
        let Some(incoming) = self.incoming.remove(&place) else { return Vec::new() };
        let is_old = |(place, at): &(ExpertPlace, Moment)| {
            self.kept.get(place).is_some_and(|kept| kept.offered_at == *at)
        };
        let evicted = incoming.evicted.into_iter().filter(is_old).map(|(place, _)| place);
        let gone: Vec<ExpertPlace> = evicted.chain([place]).collect();
        let gone = gone.iter().filter_map(|place| self.forget(place)).collect();
        self.kept.insert(place, KeptCheckpoint { checkpoint, offered_at: now });
        gone
    }

    /// An offered checkpoint did not come, or could not be stored.
    pub fn on_lost(&mut self, place: &ExpertPlace) {
        if let Some(incoming) = self.incoming.remove(place) {
            self.n_bytes -= incoming.n_bytes;
        }
    }

    /// What is kept of an expert.
    pub fn newest(&self, place: &ExpertPlace) -> Option<&ExpertCheckpoint> {
        self.kept.get(place).map(|kept| &kept.checkpoint)
    }

    /// The bytes of a checkpoint, if they are kept.
    pub fn with_hash(&self, place: &ExpertPlace, sha256: &Sha256Hash) -> Option<&ExpertCheckpoint> {
        self.newest(place).filter(|kept| kept.transfer.sha256 == *sha256)
    }

    /// What was kept cannot be read.
    pub fn on_damaged(&mut self, place: &ExpertPlace) {
        self.forget(place);
    }

    /// Bytes that are kept or on their way.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn forget(&mut self, place: &ExpertPlace) -> Option<ExpertCheckpoint> {
        let KeptCheckpoint { checkpoint, .. } = self.kept.remove(place)?;
        self.n_bytes -= checkpoint.transfer.n_bytes;
        Some(checkpoint)
    }
}
