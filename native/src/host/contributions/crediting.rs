//! Credit for an accepted contribution: its time, its receipt, its record. The only clock that it reads is the wall
//! clock, which is passed in.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::receipt::Receipt;
use barnraise_swarm::{Moment, PeerKey};

use super::receipts::{Issuer, KnownReceipts};
use super::recorder::{Recorder, WorkMeter};
use crate::host::clock::WallClock;
use crate::host::peer_id;
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
    /// - `recorder`: receives every contribution
    /// - `work`: counts this aggregator's work
    pub fn new(
        issuer: Issuer,
        known: KnownReceipts,
        recorder: Recorder,
        work: Arc<WorkMeter>,
        clock: WallClock,
    ) -> Self {
        Self { issuer, known, recorder, work, clock, since: HashMap::new() }
    }

    /// The aggregator that signs the receipts: the bytes of its peer id.
    pub fn reducer(&self) -> PeerKey {
        PeerKey(peer_id(self.issuer.reducer()).map_or_else(Vec::new, |peer| peer.to_bytes()))
    }

    /// A session of `peer` begins; its time is counted from here.
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

    /// Returns the receipt of a stored contribution; `None` where the peer has no Ed25519 key.
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

    /// This aggregator averaged `n_bytes` encoded bytes for the other aggregators.
    pub fn averaged(&self, n_bytes: u64) {
        self.work.averaged(n_bytes);
    }

    /// This aggregator worked on the run for the time `took`.
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
