//! What the core does with a contribution that counts: times it, makes its receipt, passes it on to be
//! recorded. Reads no clock but the one of the calendar, which it is given.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::receipt::Receipt;
use barnraise_swarm::{Moment, PeerKey};

use super::receipts::{Issuer, KnownReceipts};
use super::recorder::{Recorder, WorkMeter};
use crate::access::WallClock;
use crate::storage::journal::JournalEntry;

/// Gives credit for contributions.
pub struct Crediting {
    issuer: Issuer,
    known: KnownReceipts,
    recorder: Recorder,
    work: Arc<WorkMeter>,
    clock: WallClock,
    /// When each peer with a session joined or contributed last.
    since: HashMap<PeerKey, Moment>,
}

impl Crediting {
    /// - `known`: receipts of the epochs whose contributions may be offered again
    /// - `recorder`: hears of every contribution
    /// - `work`: counts what this aggregator does
    pub fn new(
        issuer: Issuer,
        known: KnownReceipts,
        recorder: Recorder,
        work: Arc<WorkMeter>,
        clock: WallClock,
    ) -> Self {
        Self { issuer, known, recorder, work, clock, since: HashMap::new() }
    }

    /// A session of `peer` begins; what it did before this is not counted as time.
    pub fn on_join(&mut self, now: Moment, peer: PeerKey) {
        self.since.insert(peer, now);
    }

    /// Its session ended.
    pub fn on_leave(&mut self, peer: &PeerKey) {
        self.since.remove(peer);
    }

    /// Writes the time into a contribution that is about to be stored.
    pub fn stamp(&self, now: Moment, peer: &PeerKey, entry: &mut JournalEntry) {
        let took = self.since.get(peer).map_or(Duration::ZERO, |since| now.saturating_sub(*since));
        entry.milliseconds = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
        entry.accepted_at = (self.clock)();
    }

    /// A contribution is stored: its receipt. `None` where the peer has no key to name it by.
    pub fn on_stored(&mut self, now: Moment, peer: &PeerKey, entry: &JournalEntry) -> Option<Receipt> {
        let receipt = self.issuer.receipt(entry)?;
        if let Some(since) = self.since.get_mut(peer) {
            *since = now;
        }
        self.work.averaged(receipt.n_bytes);
        self.known.insert(peer.clone(), receipt.clone());
        self.recorder.on_accepted(receipt.clone());
        Some(receipt)
    }

    /// The receipt of a contribution that counted in this epoch or in the one before.
    pub fn find(&self, peer: &PeerKey, contribution_id: u64) -> Option<&Receipt> {
        self.known.find(peer, contribution_id)
    }

    /// This aggregator averaged so many encoded bytes for others.
    pub fn averaged(&self, n_bytes: u64) {
        self.work.averaged(n_bytes);
    }

    /// This aggregator worked on the run for so long.
    pub fn worked(&self, took: Duration) {
        self.work.worked(took);
    }

    /// An optimizer step was made.
    pub fn on_stepped(&mut self) {
        self.known.on_epoch();
        self.work.stepped();
    }

    /// Checkpoints need the journal from `epoch` on.
    pub fn forget_before(&self, epoch: u64) {
        self.recorder.forget_before(epoch);
    }
}
