//! `[conversations]`: how many a peer may hold with the backbone, and how slowly.

use std::time::Duration;

use barnraise_relay::Invalid;
use barnraise_swarm::guard::PaceLimits;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// `[conversations]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConversationsSection {
    /// Streams of one peer at once: nobody takes the places of the others. A contributor needs five; those of
    /// its connections that died unnoticed count for a while.
    pub per_peer: usize,
    /// Streams of all contributors at once, for each contributor that the run takes.
    pub per_contributor: usize,
    /// Streams at once of one that has no access.
    pub per_stranger: usize,
    /// Of all that have none: they take no places of those who have.
    pub of_strangers: usize,
    /// The first message of a stream begins within this time.
    #[serde(with = "humantime_serde")]
    pub first_message_timeout: Duration,
    /// A stream on which nothing more is said for so long is closed. A contributor keeps streams open
    /// between epochs, so this is longer than an epoch may take.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// From the first byte of a message to its last.
    #[serde(with = "humantime_serde")]
    pub message_timeout: Duration,
    /// An answer or a gradient of which nothing moves for so long is given up.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// So is one that is slower than this on average.
    pub bytes_per_second_min: ByteSize,
}

impl Default for ConversationsSection {
    fn default() -> Self {
        Self {
            per_peer: 64,
            per_contributor: 8,
            per_stranger: 8,
            of_strangers: 512,
            first_message_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            message_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(15),
            bytes_per_second_min: ByteSize::kib(1),
        }
    }
}

impl ConversationsSection {
    /// How slowly the other side of a stream may be.
    pub fn pace(&self) -> PaceLimits {
        PaceLimits {
            first_message: self.first_message_timeout,
            idle: self.idle_timeout,
            message: self.message_timeout,
            stall: self.stall_timeout,
            bytes_per_second_min: self.bytes_per_second_min.as_u64(),
        }
    }

    /// How long whoever cannot be timed by its bytes may keep this side waiting.
    pub fn patience(&self) -> Duration {
        self.stall_timeout
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        for (key, got, least) in [
            // A contributor needs as many.
            ("conversations.per_peer", self.per_peer, 5),
            ("conversations.per_contributor", self.per_contributor, 5),
            // Whoever asks what is trained, and presents its token meanwhile.
            ("conversations.per_stranger", self.per_stranger, 2),
            ("conversations.of_strangers", self.of_strangers, 2),
        ] {
            Invalid::check_range(key, got, least..=1_000_000)?;
        }
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        for (key, got) in [
            ("conversations.first_message_timeout", self.first_message_timeout),
            ("conversations.message_timeout", self.message_timeout),
            ("conversations.stall_timeout", self.stall_timeout),
        ] {
            Invalid::check_duration(key, got, second..=hour)?;
        }
        Invalid::check_duration("conversations.idle_timeout", self.idle_timeout, second..=hour * 24)?;
        let rate = ByteSize::b(1)..=ByteSize::mib(1);
        Invalid::check_range("conversations.bytes_per_second_min", self.bytes_per_second_min, rate)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_cannot_work_is_named() {
        type Break = fn(&mut ConversationsSection);
        let broken: [(&str, Break); 5] = [
            ("conversations.per_peer", |section| section.per_peer = 4),
            ("conversations.of_strangers", |section| section.of_strangers = 0),
            ("conversations.message_timeout", |section| section.message_timeout = Duration::ZERO),
            ("conversations.idle_timeout", |section| section.idle_timeout = Duration::from_secs(1 << 20)),
            ("conversations.bytes_per_second_min", |section| section.bytes_per_second_min = ByteSize::b(0)),
        ];
        assert_eq!(ConversationsSection::default().validate(), Ok(()));
        for (key, break_it) in broken {
            let mut section = ConversationsSection::default();
            break_it(&mut section);
            assert_eq!(section.validate().unwrap_err().key, key);
        }
    }
}
