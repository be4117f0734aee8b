//! Counts violations of peers (refused requests, ended connections, abandoned transfers) by reason.
//!
//! The reasons are a closed list: no peer can add a label.

use libp2p::metrics::Registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

macro_rules! violations {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// A violation of the limits or the protocol by a peer. `docs/internals/abuse.md` says what each leads to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Violation {
            $($(#[$doc])* $name,)*
        }

        impl Violation {
            /// All violations.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The label in the metrics.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }
        }
    };
}

violations! {
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
    /// Bytes that are no valid handshake.
    HandshakeFailed = "handshake_failed",
    /// A connection whose remote did not read the last bytes in time.
    CloseTimeout = "close_timeout",
    /// A connection whose remote read nothing for too long.
    ClosedWindow = "closed_window",
    /// Frames that no Yamux sends, or more streams in them than there may be.
    BrokenFrames = "broken_frames",
    /// More circuits for one address than its share while other addresses request some.
    CircuitsOfAddress = "circuits_of_address",
    /// More peers of one address to be reached through this relay than its share.
    ReservationsOfAddress = "reservations_of_address",
    /// A request to test an address that is not the requester's own, or one request too many.
    ForeignAddress = "foreign_address",
    /// More streams at once than there may be, in all or of one peer.
    Streams = "streams",
    /// A stream that was ended for one of a peer with fewer streams.
    StreamGaveWay = "stream_gave_way",
    /// A new stream without a first message.
    SilentStream = "silent_stream",
    /// A used stream without a further message.
    IdleStream = "idle_stream",
    /// A message that began and did not end.
    SlowMessage = "slow_message",
    /// An answer or a transfer without progress.
    StalledTransfer = "stalled_transfer",
    /// An answer or a transfer below the lowest speed.
    SlowTransfer = "slow_transfer",
    /// A message whose declared length exceeds the limit.
    OversizedFrame = "oversized_frame",
    /// Bytes that do not decode to a message.
    MalformedMessage = "malformed_message",
    /// A message of another version.
    OtherVersion = "other_version",
    /// A message that the conversation does not allow at this point.
    UnexpectedMessage = "unexpected_message",
    /// An offer or a pull that no honest peer makes.
    DishonestOffer = "dishonest_offer",
    /// A signature that does not fit the named signer.
    Forged = "forged",
    /// A request that was seen before.
    Replayed = "replayed",
    /// A timestamp too far from now, or an expiry too far in the future.
    WrongTime = "wrong_time",
    /// Addressed to another receiver, or sent with an invalid token.
    NotForUs = "not_for_us",
    /// More signed requests, or records, of one peer than are remembered or kept.
    Quota = "quota",
    /// More records of one peer in a minute than there may be.
    RecordRate = "record_rate",
    /// A record whose parts contradict each other.
    MalformedRecord = "malformed_record",
    /// An HTTP client that read no answer for too long.
    SlowVisitor = "slow_visitor",
    /// More requests of one address at the page's port in a minute than there may be.
    RequestRate = "request_rate",
    /// More work under way than there may be.
    Busy = "busy",
}

impl Violation {
    /// Whether no honest peer does this, even with a bad clock or connection: after enough of them the
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
    violations: ByReason,
    blocks: Counter,
    blocked: Gauge,
}

impl GuardMetrics {
    /// Registers the counters; every reason starts at zero.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for &reason in Violation::ALL {
            drop(metrics.violations.get_or_create(&[("reason", reason.label())]));
        }
        let help = "What was refused, ended or given up because of what a peer did, by reason";
        registry.register("barnraise_violations", help, metrics.violations.clone());
        let help = "Times that a peer was disconnected and blocked for a while";
        registry.register("barnraise_blocks", help, metrics.blocks.clone());
        let help = "Peers that are blocked now";
        registry.register("barnraise_blocked_peers", help, metrics.blocked.clone());
        metrics
    }

    pub(crate) fn count(&self, violation: Violation, n: usize) {
        self.violations.get_or_create(&[("reason", violation.label())]).inc_by(n as u64);
    }

    #[cfg(test)]
    pub(crate) fn n_counted(&self, violation: Violation) -> u64 {
        self.violations.get_or_create(&[("reason", violation.label())]).get()
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
        let labels: HashSet<&str> = Violation::ALL.iter().map(|violation| violation.label()).collect();
        assert_eq!(labels.len(), Violation::ALL.len());
        let mut registry = Registry::default();
        let metrics = GuardMetrics::register(&mut registry);
        metrics.count(Violation::Forged, 3);
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &registry).unwrap();
        assert!(text.contains("barnraise_violations_total{reason=\"forged\"} 3"), "{text}");
        assert!(labels.iter().all(|label| text.contains(&format!("{{reason=\"{label}\"}}"))), "{text}");
    }
}
