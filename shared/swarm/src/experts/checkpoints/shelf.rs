//! The checkpoints that a peer keeps for the hosts of experts: the newest of each copy, within a limit of bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::checkpoints::{CheckpointRefusal, ExpertCheckpoint};
use barnraise_protocol::experts::leases::COPIES_MAX;
use barnraise_protocol::experts::{ExpertCopy, ExpertPlace};

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
        evicted: Vec<ExpertCopy>,
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
    evicted: Vec<(ExpertCopy, Moment)>,
}

/// The checkpoints that a peer keeps, without their bytes.
#[derive(Debug)]
pub struct CheckpointShelf {
    bytes_max: u64,
    n_bytes: u64,
    kept: BTreeMap<ExpertCopy, KeptCheckpoint>,
    incoming: BTreeMap<ExpertCopy, ArrivingCheckpoint>,
}

impl CheckpointShelf {
    /// A shelf for so many bytes, with what was kept before. What is beyond the limit stays.
    pub fn new(now: Moment, bytes_max: u64, kept: impl IntoIterator<Item = ExpertCheckpoint>) -> Self {
        let kept: BTreeMap<ExpertCopy, KeptCheckpoint> = kept
            .into_iter()
            .map(|checkpoint| (checkpoint.lease.of(), KeptCheckpoint { checkpoint, offered_at: now }))
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
        let (copy, got) = (checkpoint.lease.of(), checkpoint.transfer.n_bytes);
        if let Some(kept) = self.kept.get_mut(&copy)
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
            || self.incoming.contains_key(&copy)
            || self.incoming.values().any(has_slot)
        {
            return Err(CheckpointRefusal::Busy);
        }
        let evicted = self.make_room(now, copy, got).ok_or(CheckpointRefusal::Full)?;
        let copies = evicted.iter().map(|(copy, _)| *copy).collect();
        self.incoming.insert(copy, ArrivingCheckpoint { holder, n_bytes: got, evicted });
        self.n_bytes += got;
        Ok(OfferVerdict::Wanted { evicted: copies })
    }

    /// Whether a kept checkpoint goes when one of those arrives that are on their way.
    fn is_going(&self, copy: &ExpertCopy) -> bool {
        let takes = |(of, incoming): (&ExpertCopy, &ArrivingCheckpoint)| {
            of == copy || incoming.evicted.iter().any(|(evicted, _)| evicted == copy)
        };
        self.incoming.iter().any(takes)
    }

    /// What goes, so that there is room for so many bytes, once they are here; `None` where that is not enough. The one before
    /// of the same copy goes, too, and takes no room from the new one.
    fn make_room(&self, now: Moment, of: ExpertCopy, n_bytes: u64) -> Option<Vec<(ExpertCopy, Moment)>> {
        let going = self.kept.iter().filter(|(place, _)| **place == of || self.is_going(place));
        let going: u64 = going.map(|(_, kept)| kept.checkpoint.transfer.n_bytes).sum();
        let mut old: Vec<(Moment, ExpertCopy, u64)> = self
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

    /// An offered checkpoint is stored. Returns those that are to be deleted for it, with the one before of the same copy. One
    /// that was offered again meanwhile stays.
    pub fn on_kept(&mut self, now: Moment, checkpoint: ExpertCheckpoint) -> Vec<ExpertCheckpoint> {
        let copy = checkpoint.lease.of();
        let Some(incoming) = self.incoming.remove(&copy) else { return Vec::new() };
        let is_old = |(copy, at): &(ExpertCopy, Moment)| {
            self.kept.get(copy).is_some_and(|kept| kept.offered_at == *at)
        };
        let evicted = incoming.evicted.into_iter().filter(is_old).map(|(copy, _)| copy);
        let gone: Vec<ExpertCopy> = evicted.chain([copy]).collect();
        let gone = gone.iter().filter_map(|copy| self.forget(copy)).collect();
        self.kept.insert(copy, KeptCheckpoint { checkpoint, offered_at: now });
        gone
    }

    /// An offered checkpoint did not come, or could not be stored.
    pub fn on_lost(&mut self, copy: &ExpertCopy) {
        if let Some(incoming) = self.incoming.remove(copy) {
            self.n_bytes -= incoming.n_bytes;
        }
    }

    /// What is kept of a copy of an expert.
    pub fn newest(&self, copy: &ExpertCopy) -> Option<&ExpertCheckpoint> {
        self.kept.get(copy).map(|kept| &kept.checkpoint)
    }

    /// What is kept of all copies of an expert, that of the expert itself first.
    pub fn of_place(&self, place: ExpertPlace) -> impl Iterator<Item = &ExpertCheckpoint> {
        self.kept.range((place, 0)..(place, COPIES_MAX)).map(|(_, kept)| &kept.checkpoint)
    }

    /// The bytes of a checkpoint, if they are kept.
    pub fn with_hash(&self, place: ExpertPlace, sha256: &Sha256Hash) -> Option<&ExpertCheckpoint> {
        self.of_place(place).find(|kept| kept.transfer.sha256 == *sha256)
    }

    /// What was kept cannot be read.
    pub fn on_damaged(&mut self, copy: &ExpertCopy) {
        self.forget(copy);
    }

    /// Bytes that are kept or on their way.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn forget(&mut self, copy: &ExpertCopy) -> Option<ExpertCheckpoint> {
        let KeptCheckpoint { checkpoint, .. } = self.kept.remove(copy)?;
        self.n_bytes -= checkpoint.transfer.n_bytes;
        Some(checkpoint)
    }
}
