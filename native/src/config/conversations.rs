//! `[conversations]`: limits on number and slowness of the streams of a peer.

use std::time::Duration;

use barnraise_relay::Invalid;
use barnraise_swarm::guard::PaceLimits;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// `[conversations]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConversationsSection {
    /// Most streams of one peer at a time, so that it does not use up those of others. A contributor needs five; streams
    /// of connections that died unnoticed count for a while.
    pub per_peer: usize,
    /// Most streams of all contributors at a time, for each contributor that the run admits.
    pub per_contributor: usize,
    /// Most streams at a time of one peer without access.
    pub per_stranger: usize,
    /// Most streams of all peers without access; these are separate from those of contributors.
    pub of_strangers: usize,
    /// Longest time until the first message of a stream begins.
    #[serde(with = "humantime_serde")]
    pub first_message_timeout: Duration,
    /// A stream without a message for this long is closed. A contributor keeps streams open
    /// between epochs, so this is longer than an epoch may take.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// Longest time from the first byte of a message to its last.
    #[serde(with = "humantime_serde")]
    pub message_timeout: Duration,
    /// A transfer of an answer or a gradient that makes no progress for this long is aborted.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// A transfer with a lower average rate is aborted.
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
    /// Limits on the slowness of the other side of a stream.
    pub fn pace(&self) -> PaceLimits {
        PaceLimits {
            first_message: self.first_message_timeout,
            idle: self.idle_timeout,
            message: self.message_timeout,
            stall: self.stall_timeout,
            bytes_per_second_min: self.bytes_per_second_min.as_u64(),
        }
    }

    /// Longest wait for a peer where no transferred bytes show its progress.
    pub fn patience(&self) -> Duration {
        self.stall_timeout
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        for (key, got, least) in [
            // A contributor needs as many.
            ("conversations.per_peer", self.per_peer, 5),
            ("conversations.per_contributor", self.per_contributor, 5),
            // One for the run's description, and one for the token.
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
        type ConversationsEdit = fn(&mut ConversationsSection);
        let broken: [(&str, ConversationsEdit); 5] = [
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
