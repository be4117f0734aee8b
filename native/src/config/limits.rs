//! `[limits]`: connections and handshakes. The file says how many contributors there may be; how many connections they
//! take follows from that, unless it says so too.

use std::time::Duration;

use barnraise_relay::{NodeLimits, RelayLimits};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::{Invalid, NetworkSection};

/// Connections of a contributor: with the backbone, and with its page while a tab dials; and as many of peers without a
/// seat, of the DHT and of other backbones.
const PER_CONTRIBUTOR: u32 = 4;
/// HTTP connections of a contributor: a browser opens up to six, and visitors who only look are many more.
const HTTP_PER_CONTRIBUTOR: u32 = 32;
/// A run of few contributors has visitors, DHT peers and other backbones, too: limits are those of so many at least.
const CONTRIBUTORS_MIN: u32 = 64;
/// Inbound handshakes under way are at most those of so many contributors: each takes a millisecond of a processor.
const HANDSHAKING_MAX: u32 = 4096;
/// Circuits of a contributor to hosts of experts.
const CIRCUITS_PER_CONTRIBUTOR: u32 = 16;
/// Largest derived limit, which is the largest that can be set.
const LIMIT_MAX: u32 = 1_000_000;

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsSection {
    /// Connections in all, inbound and outbound. Default four for each contributor.
    pub connections: Option<u32>,
    /// Inbound connections from one address (a /64 of IPv6). Default one for each contributor: they may all be behind one
    /// router.
    pub connections_per_address: Option<u32>,
    /// Inbound connections that one address may begin in a minute, as many as that at once.
    pub connections_per_address_and_minute: u32,
    /// Inbound handshakes under way, those of WebRTC and WebTransport counted apart; one more ends the oldest. Default
    /// one for each contributor, 4096 at most.
    pub pending_handshakes: Option<usize>,
    /// A dial or an inbound handshake ends after this.
    #[serde(with = "humantime_serde")]
    pub handshake_timeout: Duration,
    /// Messages of one peer in a minute that no honest peer sends. One more, and it is disconnected and blocked.
    pub bad_messages_per_peer_and_minute: u32,
    /// How long a peer is blocked for that.
    #[serde(with = "humantime_serde")]
    pub block_duration: Duration,
    /// No further connection is taken while the process holds more memory than this. Default four fifths of what the
    /// machine has, or its container.
    pub memory: Option<ByteSize>,
}

impl Default for LimitsSection {
    fn default() -> Self {
        let node = NodeLimits::default();
        Self {
            connections: None,
            connections_per_address: None,
            connections_per_address_and_minute: node.connections_per_address_and_minute,
            pending_handshakes: None,
            handshake_timeout: node.handshake_timeout,
            bad_messages_per_peer_and_minute: node.bad_messages_per_peer_and_minute,
            block_duration: node.block_duration,
            memory: node.memory,
        }
    }
}

impl LimitsSection {
    /// The limits of a node with at most `contributors_max` contributors.
    pub fn of_node(&self, contributors_max: u32) -> NodeLimits {
        let n = contributors_max.max(CONTRIBUTORS_MIN);
        NodeLimits {
            connections: self.connections.unwrap_or_else(|| at_most(n, PER_CONTRIBUTOR)),
            connections_per_address: self.connections_per_address.unwrap_or_else(|| at_most(n, 1)),
            connections_per_address_and_minute: self.connections_per_address_and_minute,
            pending_handshakes: self.pending_handshakes.unwrap_or(n.min(HANDSHAKING_MAX) as usize),
            handshake_timeout: self.handshake_timeout,
            bad_messages_per_peer_and_minute: self.bad_messages_per_peer_and_minute,
            block_duration: self.block_duration,
            memory: self.memory,
            ..NodeLimits::default()
        }
    }

    /// Checks those of the file, and what follows from it.
    pub(super) fn validate(&self, contributors_max: u32) -> Result<(), Invalid> {
        self.of_node(contributors_max).validate()
    }
}

impl NetworkSection {
    /// Most HTTP connections at a time, readers of live events included.
    pub fn http_connections(&self) -> usize {
        let n = self.contributors_max.max(CONTRIBUTORS_MIN);
        self.http_connections.unwrap_or_else(|| at_most(n, HTTP_PER_CONTRIBUTOR) as usize)
    }

    /// How much a node carries between others: bytes and time of a circuit are bounded as at any relay.
    pub(crate) fn carried(&self) -> RelayLimits {
        let n = self.contributors_max.max(CONTRIBUTORS_MIN);
        let circuits = at_most(n, CIRCUITS_PER_CONTRIBUTOR);
        RelayLimits {
            reservations: n as usize,
            circuits: circuits as usize,
            circuits_per_peer: 2 * CIRCUITS_PER_CONTRIBUTOR as usize,
            circuits_per_address_and_minute: circuits,
            ..RelayLimits::default()
        }
    }
}

fn at_most(n_contributors: u32, each: u32) -> u32 {
    n_contributors.saturating_mul(each).min(LIMIT_MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::super::{ExpertsSection, RunConfig};
    use super::*;

    fn of_file(text: &str) -> (NodeLimits, usize) {
        let config = RunConfig::parse(text, Path::new("run.toml")).unwrap();
        (config.node_limits(), config.network.http_connections())
    }

    #[test]
    fn one_number_decides_how_many_connections_there_are() {
        for (n, want) in [
            (256, (1024, 256, 256, 8192)),
            (3000, (12_000, 3000, 3000, 96_000)),
            (100_000, (400_000, 100_000, 4096, 1_000_000)),
            (1_000_000, (1_000_000, 1_000_000, 4096, 1_000_000)),
            // Somebody visits a small run, too.
            (1, (256, 64, 64, 2048)),
        ] {
            let (limits, http) = of_file(&format!("[network]\ncontributors_max = {n}"));
            let got = (limits.connections, limits.connections_per_address, limits.pending_handshakes, http);
            assert_eq!(got, want, "{n}");
        }
        assert_eq!(of_file("").0, NodeLimits::default(), "as for a relay");
    }

    #[test]
    fn a_backbone_carries_streams_where_browsers_reach_other_peers_alone() {
        let text = "[network]\ncontributors_max = 100";
        let mut config = RunConfig::parse(text, Path::new("run.toml")).unwrap();
        assert_eq!(config.relay_limits(), None);
        config.model.experts = Some(ExpertsSection::default());
        let limits = config.relay_limits().unwrap();
        assert_eq!((limits.reservations, limits.circuits, limits.circuits_per_peer), (100, 1600, 32));
        assert_eq!(limits.circuit_bytes, RelayLimits::default().circuit_bytes);
        let sampled = format!("{text}\n[scheme.sampled]\n");
        let config = RunConfig::parse(&sampled, Path::new("run.toml")).unwrap();
        assert_eq!(config.relay_limits(), Some(limits), "to aggregators of a run without a server");
    }

    #[test]
    fn a_limit_of_the_file_wins() {
        let (limits, http) = of_file(
            "[network]\ncontributors_max = 3000\nhttp_connections = 10\n[limits]\nconnections = 20\n\
             connections_per_address = 30\npending_handshakes = 40",
        );
        let got = (limits.connections, limits.connections_per_address, limits.pending_handshakes, http);
        assert_eq!(got, (20, 30, 40, 10));
    }
}
