//! Exchange of data shards between peers, rarest first (DeDLOC appendix H).
//!
//! The rarest shard is fetched first, at random among equals, so that the backbone sends each about once and peers
//! pass it on. It is fetched from a peer that announces it, and from the backbone where no peer does or all that were
//! asked failed. When the buffer is full, the most replicated shard is evicted first. A peer's announcements are trusted
//! until it fails; its bytes are always verified, and a peer that sent wrong bytes is banned.
//!
//! Peers know each other's shards with a delay. All of them would fetch the same rare shard at once, evict the same
//! frequent one, and fetch that again. So each shard is nearest to one peer, by a hash that all peers compute alike. Of
//! the shards without a holder a peer fetches first those that are nearest to it, and last those nearest to others.
//! Among the holders of a shard the nearest one keeps it as if it were the only one.
//!
//! Pure: the driver asks, fetches, and reports the results.

mod blame;
mod uplink;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dht::SUBKEYS_MAX;
use barnraise_protocol::dht::shards::ShardSet;
use serde::{Deserialize, Serialize};

pub use self::blame::Convicted;
use self::blame::{Evidence, Suspicions};
pub use self::uplink::Uplink;
use crate::random::SplitMix64;
use crate::{Moment, PeerKey};

/// Peers that are asked for one shard before the backbone is.
pub const ATTEMPTS_MAX: usize = 3;
/// Pause before a peer that failed is asked again; it doubles with each failure.
const PAUSE_MIN: Duration = Duration::from_secs(15);
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// One in so many requests to peers goes to a peer that has not delivered yet, even if another holder has.
const TRY_NEW_EVERY: usize = 4;
/// Most holders that are considered.
const HOLDERS_MAX: usize = SUBKEYS_MAX;
/// Most peers with a holder record.
const HOLDER_RECORDS_MAX: usize = 2 * SUBKEYS_MAX;

/// Source of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardSource {
    /// The peer that serves the run.
    Backbone,
    /// Another contributor.
    Peer(PeerKey),
}

/// Current holders of shards, as far as this peer knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// This peer.
    pub here: PeerKey,
    /// Shards that it keeps.
    pub kept: ShardSet,
    /// Shards that other peers keep and serve.
    pub holders: Vec<(PeerKey, ShardSet)>,
}

/// Bytes of shards by source, including bytes that were discarded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardTraffic {
    /// From other contributors.
    pub bytes_from_peers: u64,
    /// From the backbone.
    pub bytes_from_backbone: u64,
    /// Requests to peers that failed: no answer, declined or stalled.
    pub n_failed: u64,
    /// Shards whose hash was not the manifest's.
    pub n_wrong: u64,
}

/// A peer's point from which its distances to shards are measured, the same for all peers.
#[derive(Debug, Clone, Copy)]
struct Mark(u64);

impl Mark {
    fn of(peer: &PeerKey) -> Self {
        Self(Sha256Hash::of(&peer.0).number())
    }

    fn distance(self, shard: u32) -> u64 {
        SplitMix64::new(self.0.wrapping_add(shard.into())).next_u64()
    }
}

/// Record of a peer's past deliveries and failures.
#[derive(Debug, Clone, Copy, Default)]
struct HolderRecord {
    has_delivered: bool,
    n_failures: u32,
    paused_until: Moment,
    is_banned: bool,
}

/// A shard that is being fetched.
#[derive(Debug)]
struct Fetch {
    shard: u32,
    /// Peers that were asked for it.
    tried: Vec<PeerKey>,
    /// Sender of each piece so far.
    evidence: Evidence,
}

/// One peer's state in the exchange of a run's shards.
#[derive(Debug)]
pub struct Exchange {
    /// Compressed bytes of each shard.
    sizes: Vec<u32>,
    /// Most bytes of shards that this peer keeps.
    capacity: u64,
    random: SplitMix64,
    kept: ShardSet,
    holders: BTreeMap<PeerKey, ShardSet>,
    /// This peer's mark; known with the first survey.
    mark: Option<Mark>,
    /// Number of other peers that keep each shard.
    n_replicas: Vec<u32>,
    /// Whether each shard is nearest to this peer among its holders, or among all peers where it has none.
    is_nearest: Vec<bool>,
    holder_records: BTreeMap<PeerKey, HolderRecord>,
    fetch: Option<Fetch>,
    suspicions: Suspicions,
    traffic: ShardTraffic,
}

impl Exchange {
    /// An exchange without known holders.
    ///
    /// - `sizes`: compressed bytes of each shard of the manifest
    /// - `capacity`: most bytes of shards that this peer keeps
    pub fn new(sizes: Vec<u32>, capacity: u64, seed: u64) -> Self {
        Self {
            mark: None,
            n_replicas: vec![0; sizes.len()],
            is_nearest: vec![true; sizes.len()],
            sizes,
            capacity,
            random: SplitMix64::new(seed),
            kept: ShardSet::default(),
            holders: BTreeMap::new(),
            holder_records: BTreeMap::new(),
            fetch: None,
            suspicions: Suspicions::default(),
            traffic: ShardTraffic::default(),
        }
    }

    /// Replaces the known holders.
    pub fn on_survey(&mut self, survey: Survey) {
        self.mark = Some(Mark::of(&survey.here));
        self.kept = survey.kept;
        self.holders = survey.holders.into_iter().take(HOLDERS_MAX).collect();
        self.count_replicas();
    }

    /// Number of peers that keep a shard, this one included, without banned ones; the least is fetched first. A shard
    /// without a holder that is nearest to another peer comes last: by then that peer has most likely fetched it.
    pub fn rarity(&self, shard: u32) -> u32 {
        match self.replicas(shard) + u32::from(self.kept.contains(shard)) {
            0 if !self.is_nearest(shard) => u32::MAX,
            n_keep => n_keep,
        }
    }

    /// Whether this peer keeps a shard.
    pub fn keeps(&self, shard: u32) -> bool {
        self.kept.contains(shard)
    }

    /// Source to ask for `shard` at `now`, of which `n_here` bytes have arrived: a random holder that was not asked for
    /// it yet, preferably one that has delivered before, or else the backbone.
    pub fn source(&mut self, now: Moment, shard: u32, n_here: u64) -> ShardSource {
        let mut fetch = match self.fetch.take() {
            Some(fetch) if fetch.shard == shard => fetch,
            _ => Fetch { shard, tried: Vec::new(), evidence: Evidence::default() },
        };
        if n_here == 0 {
            fetch.evidence = Evidence::default();
        }
        let chosen = match fetch.tried.len() < ATTEMPTS_MAX {
            true => self.choose(now, shard, &fetch.tried),
            false => None,
        };
        fetch.tried.extend(chosen.clone());
        self.fetch = Some(fetch);
        chosen.map_or(ShardSource::Backbone, ShardSource::Peer)
    }

    fn choose(&mut self, now: Moment, shard: u32, tried: &[PeerKey]) -> Option<PeerKey> {
        let (mut proven, mut new) = (Vec::new(), Vec::new());
        for (peer, shards) in &self.holders {
            let conduct = self.holder_records.get(peer).copied().unwrap_or_default();
            let is_left_alone = conduct.is_banned || conduct.paused_until > now || tried.contains(peer);
            if !shards.contains(shard) || is_left_alone {
                continue;
            }
            match conduct.has_delivered {
                true => proven.push(peer),
                false => new.push(peer),
            }
        }
        let tries_new = proven.is_empty() || self.random.below(TRY_NEW_EVERY) == 0;
        let among = if tries_new && !new.is_empty() { new } else { proven };
        let at = self.random.below(among.len());
        among.get(at).map(|&peer| peer.clone())
    }

    /// The transfer of `shard` was interrupted through no fault of `source`; `here` is the part that has arrived.
    pub fn on_interrupted(&mut self, shard: u32, source: &ShardSource, here: &[u8]) {
        let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.shard == shard) else { return };
        let n_new = fetch.evidence.add(source, here);
        self.count(source, n_new);
    }

    /// `source` did not answer, declined, or stalled; `here` is the part of the shard that has arrived.
    pub fn on_failed(&mut self, now: Moment, shard: u32, source: &ShardSource, here: &[u8]) {
        self.on_interrupted(shard, source, here);
        match source {
            // Start over with all holders, which may have it by now.
            ShardSource::Backbone => self.fetch.iter_mut().for_each(|fetch| fetch.tried.clear()),
            ShardSource::Peer(peer) => {
                self.traffic.n_failed += 1;
                let conduct = self.holder_record(peer);
                let pause = PAUSE_MIN.saturating_mul(1 << conduct.n_failures.min(16)).min(PAUSE_MAX);
                conduct.n_failures += 1;
                conduct.paused_until = now + pause;
            }
        }
    }

    /// All of `shard` has arrived, with a hash other than the manifest's; `source` sent its last piece. Returns whether
    /// peers sent any of it: then a retry may succeed.
    pub fn on_wrong(&mut self, shard: u32, source: &ShardSource) -> bool {
        self.traffic.n_wrong += 1;
        let n_bytes = self.size(shard);
        let fetch = self.fetch.as_mut().filter(|fetch| fetch.shard == shard);
        let evidence = fetch.map(|fetch| std::mem::take(&mut fetch.evidence)).unwrap_or_default();
        self.count(source, n_bytes.saturating_sub(evidence.n_bytes()));
        let is_from_peers = self.suspicions.on_wrong(shard, source, evidence);
        self.ban_convicted();
        is_from_peers
    }

    /// `shard` has arrived and is verified; `source` sent its last piece.
    pub fn on_delivered(&mut self, shard: u32, source: &ShardSource, bytes: &[u8]) {
        let before = self.fetch.take_if(|fetch| fetch.shard == shard).map(|fetch| fetch.evidence.n_bytes());
        let n_new = (bytes.len() as u64).saturating_sub(before.unwrap_or(0));
        self.count(source, n_new);
        if let ShardSource::Peer(peer) = source {
            let conduct = self.holder_record(peer);
            conduct.has_delivered = true;
            conduct.n_failures = 0;
        }
        self.suspicions.on_delivered(shard, bytes);
        self.ban_convicted();
    }

    /// Next peer that is convicted of sending wrong bytes; `None` once there is none.
    pub fn poll_convicted(&mut self) -> Option<Convicted> {
        self.suspicions.poll()
    }

    /// Shards to evict so that `shard` fits, the most replicated first, at random among equals. `None` where it is not to
    /// be kept: it is larger than the capacity, or other peers keep it and it would evict a shard for which this peer is
    /// responsible.
    pub fn room_for(&mut self, shard: u32) -> Option<Vec<u32>> {
        let mut kept: Vec<u32> = self.kept.iter().filter(|&kept| kept != shard).collect();
        // The sort is stable: equals stay in this order.
        self.random.shuffle(&mut kept);
        kept.sort_by_key(|&kept| (self.dispensable(kept), self.replicas(kept)));
        let mut n_bytes: u64 = kept.iter().map(|&kept| self.size(kept)).sum();
        let room = self.capacity.checked_sub(self.size(shard))?;
        let mut evicted = Vec::new();
        while n_bytes > room {
            let victim = kept.pop()?;
            if self.dispensable(victim) == 0 && self.replicas(shard) > 0 {
                return None;
            }
            n_bytes -= self.size(victim);
            evicted.push(victim);
        }
        Some(evicted)
    }

    /// `shard` is kept now; `evicted` are not.
    pub fn on_kept(&mut self, shard: u32, evicted: &[u32]) {
        for &shard in evicted {
            self.kept.remove(shard);
        }
        if (shard as usize) < self.sizes.len() {
            self.kept.insert(shard);
        }
    }

    /// Bytes by source.
    pub fn traffic(&self) -> ShardTraffic {
        self.traffic
    }

    fn size(&self, shard: u32) -> u64 {
        self.sizes.get(shard as usize).copied().unwrap_or_default().into()
    }

    fn replicas(&self, shard: u32) -> u32 {
        self.n_replicas.get(shard as usize).copied().unwrap_or_default()
    }

    fn is_nearest(&self, shard: u32) -> bool {
        self.is_nearest.get(shard as usize).copied().unwrap_or(true)
    }

    /// Number of other peers on which this one relies to keep a shard; 0 where this peer is responsible for it.
    fn dispensable(&self, shard: u32) -> u32 {
        if self.is_nearest(shard) { 0 } else { self.replicas(shard) }
    }

    fn count(&mut self, source: &ShardSource, n_bytes: u64) {
        match source {
            ShardSource::Backbone => self.traffic.bytes_from_backbone += n_bytes,
            ShardSource::Peer(_) => self.traffic.bytes_from_peers += n_bytes,
        }
    }

    fn count_replicas(&mut self) {
        let is_honest =
            |peer: &PeerKey| !self.holder_records.get(peer).is_some_and(|conduct| conduct.is_banned);
        let others = self.holders.iter().filter(|(peer, _)| is_honest(peer));
        let others: Vec<(Mark, &ShardSet)> = others.map(|(peer, shards)| (Mark::of(peer), shards)).collect();
        let places = self.n_replicas.iter_mut().zip(&mut self.is_nearest);
        for (shard, (n_replicas, is_nearest)) in (0..).zip(places) {
            let here = self.mark.map_or(0, |mark| mark.distance(shard));
            let keepers = others.iter().filter(|(_, shards)| shards.contains(shard));
            let (mut n_keep, mut nearest) = (0, u64::MAX);
            for (mark, _) in keepers {
                n_keep += 1;
                nearest = nearest.min(mark.distance(shard));
            }
            if n_keep == 0 {
                nearest = others.iter().map(|(mark, _)| mark.distance(shard)).min().unwrap_or(u64::MAX);
            }
            (*n_replicas, *is_nearest) = (n_keep, here < nearest);
        }
    }

    fn ban_convicted(&mut self) {
        let convicted: Vec<PeerKey> = self.suspicions.convicted().cloned().collect();
        for peer in &convicted {
            self.holder_record(peer).is_banned = true;
        }
        if !convicted.is_empty() {
            self.count_replicas();
        }
    }

    /// The record of a peer. Where there are too many, the one that costs the least to forget is dropped.
    fn holder_record(&mut self, peer: &PeerKey) -> &mut HolderRecord {
        if self.holder_records.len() >= HOLDER_RECORDS_MAX && !self.holder_records.contains_key(peer) {
            let holders = &self.holders;
            let cost = |(known, conduct): &(&PeerKey, &HolderRecord)| {
                (conduct.is_banned, holders.contains_key(*known), conduct.n_failures)
            };
            let cheapest = self.holder_records.iter().min_by_key(cost).map(|(known, _)| known.clone());
            cheapest.and_then(|known| self.holder_records.remove(&known));
        }
        self.holder_records.entry(peer.clone()).or_default()
    }
}
