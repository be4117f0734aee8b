//! What a DHT is told at its start.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use barnraise_swarm::dht::{CacheLimits, PlacementLimits, StorageLimits, TraversalLimits};

use crate::certificates::Clock;

/// How a DHT searches, and what it does for others.
#[derive(Clone)]
pub struct DhtConfig {
    /// Whether others may ask this node, and have it keep records. Default yes.
    pub serves: bool,
    /// How it searches.
    pub traversal: TraversalLimits,
    /// How it has records kept.
    pub placement: PlacementLimits,
    /// What it keeps for others.
    pub storage: StorageLimits,
    /// What it remembers of what it found.
    pub cache: CacheLimits,
    /// Peers that are given what was found and they lacked. Default 1 (hivemind's).
    pub cache_nearest: usize,
    /// Requests under way to one peer. Default 8.
    pub requests_per_peer: usize,
    /// Requests under way in all. Default 256.
    pub requests: usize,
    /// A peer that could not be asked is left alone for so long, twice as long each time. Default 5 s, and
    /// 5 min at most.
    pub avoid: Duration,
    /// A stream that nobody asks on is closed after this, on both sides. Default 30 s.
    pub idle_timeout: Duration,
    /// Streams that others ask on. Default 512.
    pub streams: usize,
    /// Of which by one peer. Default 16.
    pub streams_per_peer: usize,
    /// Searches on behalf of others under way; further ones are refused. Default 32.
    pub on_behalf_max: usize,
    /// What tells the time that records expire by. Default the system's clock.
    pub clock: Clock,
}

impl Default for DhtConfig {
    fn default() -> Self {
        Self {
            serves: true,
            traversal: TraversalLimits::default(),
            placement: PlacementLimits::default(),
            storage: StorageLimits::default(),
            cache: CacheLimits::default(),
            cache_nearest: 1,
            requests_per_peer: 8,
            requests: 256,
            avoid: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            streams: 512,
            streams_per_peer: 16,
            on_behalf_max: 32,
            clock: Arc::new(SystemTime::now),
        }
    }
}

impl fmt::Debug for DhtConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DhtConfig").field("serves", &self.serves).finish_non_exhaustive()
    }
}
