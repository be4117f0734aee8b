//! From whom a peer takes the shards of its data, in which order, and which it keeps for others
//! (DeDLOC appendix H).
//!
//! The rarest shard comes first, at random among equals, so that the backbone gives each away about once and
//! peers pass it on. It comes from a peer that says it keeps it; from the backbone where nobody does, or where
//! those who were asked fail. Where the buffer is full, what most others keep goes first. What a peer says of
//! itself is believed until it fails; what it sends, never: whoever sent wrong bytes is not asked again.
//!
//! Peers know of each other what was true a while ago. All of them would fetch the same rare shard at once, and let
//! go of the same frequent one, and fetch that again. So each shard is nearest to one peer, by a hash that all
//! compute alike: of what nobody keeps, a peer fetches first what is nearest to it, and what is nearest to others
//! last; and of those who keep a shard, the nearest one keeps it as if it were the only one.
//!
//! Pure: the driver asks, fetches, and tells what came of it.

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
/// A peer that failed is left alone for so long, twice as long each time.
const PAUSE_MIN: Duration = Duration::from_secs(15);
/// At most.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Of the shards that come from peers, one in so many is asked of a peer that has not delivered yet, where
/// another one has.
const TRY_NEW_EVERY: usize = 4;
/// Most holders that count.
const HOLDERS_MAX: usize = SUBKEYS_MAX;
/// Most peers whose conduct is remembered.
const CONDUCTS_MAX: usize = 2 * SUBKEYS_MAX;

/// Whom a shard comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The peer that serves the run.
    Backbone,
    /// Another contributor.
    Peer(PeerKey),
}

/// What is kept where, as far as somebody has just found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// This peer.
    pub here: PeerKey,
    /// What it keeps.
    pub kept: ShardSet,
    /// What others keep, who can be asked for it.
    pub holders: Vec<(PeerKey, ShardSet)>,
}

/// Where the bytes of shards came from, whether they were of use or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardTraffic {
    /// From other contributors.
    pub bytes_from_peers: u64,
    /// From the backbone.
    pub bytes_from_backbone: u64,
    /// Peers that did not answer, declined or stood still.
    pub n_failed: u64,
    /// Shards whose bytes were not those of the manifest.
    pub n_wrong: u64,
}

/// What distances to shards are measured from, the same for everybody.
#[derive(Debug, Clone, Copy)]
struct Mark(u64);

impl Mark {
    fn of(peer: &PeerKey) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = Sha256Hash::of(&peer.0).0;
        Self(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    fn distance(self, shard: u32) -> u64 {
        SplitMix64::new(self.0.wrapping_add(shard.into())).next_u64()
    }
}

/// How a peer has behaved.
#[derive(Debug, Clone, Copy, Default)]
struct Conduct {
    has_delivered: bool,
    n_failures: u32,
    paused_until: Moment,
    is_banned: bool,
}

/// A shard that is being fetched.
#[derive(Debug)]
struct Fetch {
    shard: u32,
    /// Who was asked for it.
    tried: Vec<PeerKey>,
    /// Who sent what of it.
    evidence: Evidence,
}

/// The exchange of one run's shards, as one peer takes part in it.
#[derive(Debug)]
pub struct Exchange {
    /// Compressed bytes of each shard.
    sizes: Vec<u32>,
    /// Bytes that shards may take here.
    capacity: u64,
    random: SplitMix64,
    kept: ShardSet,
    holders: BTreeMap<PeerKey, ShardSet>,
    /// Of this peer; known with the first survey.
    mark: Option<Mark>,
    /// Other peers that keep each shard.
    n_replicas: Vec<u32>,
    /// Whether each is nearest to this peer: of those who keep it or, where nobody does, of all.
    is_nearest: Vec<bool>,
    conducts: BTreeMap<PeerKey, Conduct>,
    fetch: Option<Fetch>,
    suspicions: Suspicions,
    traffic: ShardTraffic,
}

impl Exchange {
    /// Nobody keeps anything yet.
    ///
    /// - `sizes`: compressed bytes of each shard of the manifest
    /// - `capacity`: bytes of shards that this peer keeps at most
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
            conducts: BTreeMap::new(),
            fetch: None,
            suspicions: Suspicions::default(),
            traffic: ShardTraffic::default(),
        }
    }

    /// What is kept where now, in place of what was known before.
    pub fn on_survey(&mut self, survey: Survey) {
        self.mark = Some(Mark::of(&survey.here));
        self.kept = survey.kept;
        self.holders = survey.holders.into_iter().take(HOLDERS_MAX).collect();
        self.count_replicas();
    }

    /// How soon a shard is to be fetched, the least first: by the peers that keep it, this one included; those that
    /// sent wrong bytes do not count. What nobody keeps and is nearest to somebody else comes last: by then it has
    /// most likely been fetched.
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

    /// Whom to ask for `shard` at `now`, of which `n_here` bytes are here: a peer that keeps it, and that was
    /// not asked for it in vain, at random with preference for those that have delivered; else the backbone.
    pub fn source(&mut self, now: Moment, shard: u32, n_here: u64) -> Source {
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
        chosen.map_or(Source::Backbone, Source::Peer)
    }

    fn choose(&mut self, now: Moment, shard: u32, tried: &[PeerKey]) -> Option<PeerKey> {
        let (mut proven, mut new) = (Vec::new(), Vec::new());
        for (peer, shards) in &self.holders {
            let conduct = self.conducts.get(peer).copied().unwrap_or_default();
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

    /// `source` sent no more of `shard`, for no fault of its own; `here` is what there is of it now.
    pub fn on_interrupted(&mut self, shard: u32, source: &Source, here: &[u8]) {
        let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.shard == shard) else { return };
        let n_new = fetch.evidence.add(source, here);
        self.count(source, n_new);
    }

    /// `source` did not answer, declined, or stood still at `now`; `here` is what there is of the shard.
    pub fn on_failed(&mut self, now: Moment, shard: u32, source: &Source, here: &[u8]) {
        self.on_interrupted(shard, source, here);
        match source {
            // Nothing is left but to begin anew with those who may have it by now.
            Source::Backbone => self.fetch.iter_mut().for_each(|fetch| fetch.tried.clear()),
            Source::Peer(peer) => {
                self.traffic.n_failed += 1;
                let conduct = self.conduct(peer);
                let pause = PAUSE_MIN.saturating_mul(1 << conduct.n_failures.min(16)).min(PAUSE_MAX);
                conduct.n_failures += 1;
                conduct.paused_until = now + pause;
            }
        }
    }

    /// All of `shard` is here, `source` sent the last of it, and its hash is another than the manifest's. Returns
    /// whether peers sent any of it; if so it may well be right the next time.
    pub fn on_wrong(&mut self, shard: u32, source: &Source) -> bool {
        self.traffic.n_wrong += 1;
        let n_bytes = self.size(shard);
        let fetch = self.fetch.as_mut().filter(|fetch| fetch.shard == shard);
        let evidence = fetch.map(|fetch| std::mem::take(&mut fetch.evidence)).unwrap_or_default();
        self.count(source, n_bytes.saturating_sub(evidence.n_bytes()));
        let is_from_peers = self.suspicions.on_wrong(shard, source, evidence);
        self.ban_convicted();
        is_from_peers
    }

    /// `shard` is here whole and right; `source` sent the last of it.
    pub fn on_delivered(&mut self, shard: u32, source: &Source, bytes: &[u8]) {
        let before = self.fetch.take_if(|fetch| fetch.shard == shard).map(|fetch| fetch.evidence.n_bytes());
        let n_new = (bytes.len() as u64).saturating_sub(before.unwrap_or(0));
        self.count(source, n_new);
        if let Source::Peer(peer) = source {
            let conduct = self.conduct(peer);
            conduct.has_delivered = true;
            conduct.n_failures = 0;
        }
        self.suspicions.on_delivered(shard, bytes);
        self.ban_convicted();
    }

    /// Who turned out to have sent wrong bytes; ask until `None`.
    pub fn poll_convicted(&mut self) -> Option<Convicted> {
        self.suspicions.poll()
    }

    /// What must go so that `shard` fits, what most others keep first, at random among equals; `None` where it
    /// is not to be kept: it is larger than all there is, or it would take the place of what nobody else keeps, or
    /// others only as long as this peer does, while others keep it.
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

    /// A shard is kept now, and those that made way are not.
    pub fn on_kept(&mut self, shard: u32, evicted: &[u32]) {
        for &shard in evicted {
            self.kept.remove(shard);
        }
        if (shard as usize) < self.sizes.len() {
            self.kept.insert(shard);
        }
    }

    /// What came from where.
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

    /// On how many others this peer may rely to keep a shard.
    fn dispensable(&self, shard: u32) -> u32 {
        if self.is_nearest(shard) { 0 } else { self.replicas(shard) }
    }

    fn count(&mut self, source: &Source, n_bytes: u64) {
        match source {
            Source::Backbone => self.traffic.bytes_from_backbone += n_bytes,
            Source::Peer(_) => self.traffic.bytes_from_peers += n_bytes,
        }
    }

    fn count_replicas(&mut self) {
        let is_honest = |peer: &PeerKey| !self.conducts.get(peer).is_some_and(|conduct| conduct.is_banned);
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
            self.conduct(peer).is_banned = true;
        }
        if !convicted.is_empty() {
            self.count_replicas();
        }
    }

    /// The record of a peer; where there are too many, one of a peer that is forgotten at the least cost goes.
    fn conduct(&mut self, peer: &PeerKey) -> &mut Conduct {
        if self.conducts.len() >= CONDUCTS_MAX && !self.conducts.contains_key(peer) {
            let holders = &self.holders;
            let cost = |(known, conduct): &(&PeerKey, &Conduct)| {
                (conduct.is_banned, holders.contains_key(*known), conduct.n_failures)
            };
            let cheapest = self.conducts.iter().min_by_key(cost).map(|(known, _)| known.clone());
            cheapest.and_then(|known| self.conducts.remove(&known));
        }
        self.conducts.entry(peer.clone()).or_default()
    }
}
