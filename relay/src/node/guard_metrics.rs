//! What was refused, ended or given up because of what a peer did, counted by reason.
//!
//! The reasons are a closed list: no peer adds a label.

use libp2p::metrics::Registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

macro_rules! misdeeds {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// What a peer may do that others should not suffer from. `ARCHITECTURE.md` says what each leads to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Misdeed {
            $($(#[$doc])* $name,)*
        }

        impl Misdeed {
            /// Each of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// As metrics name it.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }
        }
    };
}

misdeeds! {
    /// More connections than there may be, in all or of one peer.
    Connections = "connections",
    /// More connections from one address than there may be.
    ConnectionsOfAddress = "connections_of_address",
    /// More connections from one address in a minute than there may be.
    ConnectionRate = "connection_rate",
    /// A connection while the process holds more memory than it may.
    Memory = "memory",
    /// A connection of a peer that is blocked.
    Blocked = "blocked",
    /// A handshake that did not end in time.
    HandshakeTimeout = "handshake_timeout",
    /// A handshake that made way for a newer one.
    HandshakeGaveWay = "handshake_gave_way",
    /// A handshake that was none.
    HandshakeFailed = "handshake_failed",
    /// A connection whose end did not take the last bytes.
    CloseTimeout = "close_timeout",
    /// A connection that took nothing for too long.
    ClosedWindow = "closed_window",
    /// Frames that no Yamux sends, or more streams in them than there may be.
    BrokenFrames = "broken_frames",
    /// More circuits from one address than there may be while others want some.
    CircuitsOfAddress = "circuits_of_address",
    /// A wish to have an address tested that is not of whoever wishes, or one too many.
    ForeignAddress = "foreign_address",
    /// More streams at once than there may be, in all or of one peer.
    Streams = "streams",
    /// A stream that made way for one of a peer that has fewer.
    StreamGaveWay = "stream_gave_way",
    /// A new stream on which nothing was said.
    SilentStream = "silent_stream",
    /// A used stream on which nothing more was said.
    IdleStream = "idle_stream",
    /// A message that began and did not end.
    SlowMessage = "slow_message",
    /// An answer or a transfer of which nothing moved.
    StalledTransfer = "stalled_transfer",
    /// One that moved, and hardly.
    SlowTransfer = "slow_transfer",
    /// A message that says that it is longer than it may be.
    OversizedFrame = "oversized_frame",
    /// Bytes that are no message.
    MalformedMessage = "malformed_message",
    /// A message of another version.
    OtherVersion = "other_version",
    /// A message that does not belong there.
    UnexpectedMessage = "unexpected_message",
    /// An offer or a pull that no honest peer makes.
    DishonestOffer = "dishonest_offer",
    /// Not signed by whom it says.
    Forged = "forged",
    /// Seen before.
    Replayed = "replayed",
    /// Made at another time than now, or good for longer than anything is.
    WrongTime = "wrong_time",
    /// Addressed to somebody else, or by somebody whose token is not good.
    NotForUs = "not_for_us",
    /// More signed requests, or records, of one peer than are remembered or kept.
    Quota = "quota",
    /// More records of one peer in a minute than there may be.
    RecordRate = "record_rate",
    /// A record whose parts do not go together.
    MalformedRecord = "malformed_record",
    /// Somebody on the page's port to whom nothing could be answered for too long.
    SlowVisitor = "slow_visitor",
    /// More requests of one address at the page's port in a minute than there may be.
    RequestRate = "request_rate",
    /// More work under way than there may be.
    Busy = "busy",
}

impl Misdeed {
    /// Whether no honest peer does this, however bad its clock and its connection: enough of them, and the
    /// peer is blocked.
    #[must_use]
    pub const fn is_bad_message(self) -> bool {
        matches!(
            self,
            Self::SilentStream
                | Self::SlowMessage
                | Self::OversizedFrame
                | Self::MalformedMessage
                | Self::OtherVersion
                | Self::UnexpectedMessage
                | Self::DishonestOffer
                | Self::Forged
                | Self::Replayed
                | Self::MalformedRecord
        )
    }
}

/// The values are ours, so there are few.
type ByReason = Family<[(&'static str, &'static str); 1], Counter>;

/// The counters; clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuardMetrics {
    misdeeds: ByReason,
    blocks: Counter,
    blocked: Gauge,
}

impl GuardMetrics {
    /// Every reason is there from the start, at zero.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for &reason in Misdeed::ALL {
            drop(metrics.misdeeds.get_or_create(&[("reason", reason.label())]));
        }
        let help = "What was refused, ended or given up because of what a peer did, by reason";
        registry.register("barnraise_misdeeds", help, metrics.misdeeds.clone());
        let help = "Times that a peer was disconnected and blocked for a while";
        registry.register("barnraise_blocks", help, metrics.blocks.clone());
        let help = "Peers that are blocked now";
        registry.register("barnraise_blocked_peers", help, metrics.blocked.clone());
        metrics
    }

    pub(crate) fn count(&self, misdeed: Misdeed, n: usize) {
        self.misdeeds.get_or_create(&[("reason", misdeed.label())]).inc_by(n as u64);
    }

    #[cfg(test)]
    pub(crate) fn n_counted(&self, misdeed: Misdeed) -> u64 {
        self.misdeeds.get_or_create(&[("reason", misdeed.label())]).get()
    }

    pub(super) fn on_block(&self, n_blocked: usize) {
        self.blocks.inc();
        self.set_blocked(n_blocked);
    }

    pub(super) fn set_blocked(&self, n_blocked: usize) {
        self.blocked.set(i64::try_from(n_blocked).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_reason_has_a_label_of_its_own_from_the_start() {
        let labels: HashSet<&str> = Misdeed::ALL.iter().map(|misdeed| misdeed.label()).collect();
        assert_eq!(labels.len(), Misdeed::ALL.len());
        let mut registry = Registry::default();
        let metrics = GuardMetrics::register(&mut registry);
        metrics.count(Misdeed::Forged, 3);
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &registry).unwrap();
        assert!(text.contains("barnraise_misdeeds_total{reason=\"forged\"} 3"), "{text}");
        assert!(labels.iter().all(|label| text.contains(&format!("{{reason=\"{label}\"}}"))), "{text}");
    }
}
