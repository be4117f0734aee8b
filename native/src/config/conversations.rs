//! `[conversations]`: limits on number and slowness of the streams of a peer.

use std::time::Duration;

use barnraise_relay::Invalid;
use barnraise_swarm::guard::PaceLimits;
use serde::{Deserialize, Serialize};

/// A transfer with a lower average rate is aborted.
const BYTES_PER_SECOND_MIN: u64 = 1024;

/// `[conversations]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConversationsSection {
    /// Most streams of one peer at a time, so that it does not use up those of others. A contributor needs five; streams
    /// of connections that died unnoticed count for a while.
    pub per_peer: usize,
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
}

impl Default for ConversationsSection {
    fn default() -> Self {
        Self {
            per_peer: 64,
            first_message_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            message_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(15),
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
            bytes_per_second_min: BYTES_PER_SECOND_MIN,
        }
    }

    /// Longest wait for a peer where no transferred bytes show its progress.
    pub fn patience(&self) -> Duration {
        self.stall_timeout
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        // A contributor needs five.
        Invalid::check_range("conversations.per_peer", self.per_peer, 5..=1_000_000)?;
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        for (key, got) in [
            ("conversations.first_message_timeout", self.first_message_timeout),
            ("conversations.message_timeout", self.message_timeout),
            ("conversations.stall_timeout", self.stall_timeout),
        ] {
            Invalid::check_duration(key, got, second..=hour)?;
        }
        Invalid::check_duration("conversations.idle_timeout", self.idle_timeout, second..=hour * 24)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_cannot_work_is_named() {
        type ConversationsEdit = fn(&mut ConversationsSection);
        let broken: [(&str, ConversationsEdit); 3] = [
            ("conversations.per_peer", |section| section.per_peer = 4),
            ("conversations.message_timeout", |section| section.message_timeout = Duration::ZERO),
            ("conversations.idle_timeout", |section| section.idle_timeout = Duration::from_secs(1 << 20)),
        ];
        assert_eq!(ConversationsSection::default().validate(), Ok(()));
        for (key, break_it) in broken {
            let mut section = ConversationsSection::default();
            break_it(&mut section);
            assert_eq!(section.validate().unwrap_err().key, key);
        }
    }
}
