//! Configuration of a DHT.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use barnraise_protocol::dht::MESSAGE_BYTES_MAX;
use barnraise_swarm::dht::{CacheLimits, PlacementLimits, StorageLimits, TraversalLimits};
use barnraise_swarm::guard::PaceLimits;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::certificates::SystemClock;
use crate::config_file::Invalid;

/// Slower than this on average, and an answer is given up.
const BYTES_PER_SECOND_MIN: u64 = 1024;

/// So many peers together may fill the store, and not fewer.
const PEERS_TO_FILL_RECORDS: usize = 4;
/// So many peers together may take all streams, and not fewer.
const PEERS_TO_FILL_STREAMS: usize = 32;

/// `[dht]`: limits of what a node stores and answers for other peers, as an operator writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DhtLimits {
    /// Records kept in all. Default 16,384.
    pub records: usize,
    /// Their bytes. Default 32 MiB.
    pub bytes: ByteSize,
    /// Records kept that one key signed. Default 1,024.
    pub records_per_owner: usize,
    /// Records that one peer may send in a minute, as many as that at once. Default 60,000: checking them takes
    /// a tenth of a processor at most.
    pub records_per_peer_and_minute: u32,
    /// Streams that others ask on. Default 512.
    pub streams: usize,
    /// A question is whole after this, and an answer that nobody takes is given up. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub message_timeout: Duration,
    /// Searches on behalf of others under way; those of one address (a /64 of IPv6) are at most as many as are
    /// still free, those of one peer half of it. Further ones are refused. Default 32.
    pub searches: usize,
}

impl Default for DhtLimits {
    fn default() -> Self {
        Self {
            records: 16 * 1024,
            bytes: ByteSize::mib(32),
            records_per_owner: 1024,
            records_per_peer_and_minute: 60_000,
            streams: 512,
            message_timeout: Duration::from_secs(10),
            searches: 32,
        }
    }
}

impl DhtLimits {
    /// Checks every value that its type does not; keys are those of the section `[dht]`.
    ///
    /// # Errors
    /// The first that cannot work.
    pub fn validate(&self) -> Result<(), Invalid> {
        const MANY: usize = 10_000_000;
        for (key, got) in [
            ("dht.records", self.records),
            ("dht.records_per_owner", self.records_per_owner),
            ("dht.streams", self.streams),
            ("dht.searches", self.searches),
        ] {
            Invalid::check_range(key, got, 1..=MANY)?;
        }
        let (seconds, per_minute) = (Duration::from_secs, self.records_per_peer_and_minute);
        Invalid::check_range("dht.records_per_peer_and_minute", per_minute, 1..=MANY as u32)?;
        Invalid::check_range("dht.bytes", self.bytes, ByteSize::mib(1)..=ByteSize::tib(1))?;
        Invalid::check_duration("dht.message_timeout", self.message_timeout, seconds(1)..=seconds(600))
    }
}

impl From<&DhtLimits> for DhtConfig {
    fn from(limits: &DhtLimits) -> Self {
        let bytes = |size: ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
        let storage = StorageLimits {
            records_max: limits.records,
            bytes_max: bytes(limits.bytes),
            records_per_sender_max: (limits.records / PEERS_TO_FILL_RECORDS).max(1),
            records_per_owner_max: limits.records_per_owner,
            ..StorageLimits::default()
        };
        Self {
            storage,
            records_per_peer_and_minute: limits.records_per_peer_and_minute,
            message_timeout: limits.message_timeout,
            streams: limits.streams,
            streams_per_peer: (limits.streams / PEERS_TO_FILL_STREAMS).max(1),
            on_behalf_max: limits.searches,
            ..Self::default()
        }
    }
}

/// How a DHT searches, and its limits for requests of other peers.
#[derive(Clone)]
pub struct DhtConfig {
    /// Whether others may ask this node, and have it keep records. Default yes.
    pub serves: bool,
    /// How it searches.
    pub traversal: TraversalLimits,
    /// How it stores records at other peers.
    pub placement: PlacementLimits,
    /// Limits of the records stored for other peers.
    pub storage: StorageLimits,
    /// Limits of the cache of found records.
    pub cache: CacheLimits,
    /// Closest peers that receive a found record that they lacked. Default 1, as hivemind's `cache_nearest`.
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
    /// Searches on behalf of others under way; those of one address (a /64 of IPv6) are at most as many as are
    /// still free, those of one peer half of it. Further ones are refused. Default 32.
    pub on_behalf_max: usize,
    /// Records that one peer may send in a minute. Default 60,000.
    pub records_per_peer_and_minute: u32,
    /// Largest message that is read. Default [`MESSAGE_BYTES_MAX`].
    pub message_bytes_max: usize,
    /// A question is whole after this, and an answer that nobody takes is given up. Default 10 s.
    pub message_timeout: Duration,
    /// Clock by which records expire. Default the system's clock.
    pub clock: SystemClock,
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
            records_per_peer_and_minute: 60_000,
            message_bytes_max: MESSAGE_BYTES_MAX,
            message_timeout: Duration::from_secs(10),
            clock: Arc::new(SystemTime::now),
        }
    }
}

impl DhtConfig {
    /// How slowly others may ask and listen.
    pub(super) fn pace(&self) -> PaceLimits {
        PaceLimits {
            first_message: self.idle_timeout,
            idle: self.idle_timeout,
            message: self.message_timeout,
            stall: self.message_timeout,
            bytes_per_second_min: BYTES_PER_SECOND_MIN,
        }
    }
}

impl fmt::Debug for DhtConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DhtConfig").field("serves", &self.serves).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_section_and_the_defaults_agree() {
        DhtLimits::default().validate().unwrap();
        let (of_section, default) = (DhtConfig::from(&DhtLimits::default()), DhtConfig::default());
        let numbers = |config: &DhtConfig| {
            let times = (config.idle_timeout, config.message_timeout);
            let streams = (config.streams, config.streams_per_peer, config.on_behalf_max);
            (times, streams, config.records_per_peer_and_minute, config.message_bytes_max)
        };
        assert_eq!(numbers(&of_section), numbers(&default));
        assert_eq!((of_section.storage, of_section.cache), (default.storage, default.cache));
    }

    #[test]
    fn what_cannot_work_is_named() {
        type Break = fn(&mut DhtLimits);
        let broken: [(&str, Break); 5] = [
            ("dht.records", |dht| dht.records = 0),
            ("dht.bytes", |dht| dht.bytes = ByteSize::kib(1)),
            ("dht.records_per_peer_and_minute", |dht| dht.records_per_peer_and_minute = 0),
            ("dht.streams", |dht| dht.streams = 0),
            ("dht.message_timeout", |dht| dht.message_timeout = Duration::from_secs(3600)),
        ];
        for (key, break_it) in broken {
            let mut limits = DhtLimits::default();
            break_it(&mut limits);
            assert_eq!(limits.validate().unwrap_err().key, key);
        }
    }
}
