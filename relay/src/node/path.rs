//! The network path of a connection.

use std::fmt;
use std::net::IpAddr;

use libp2p::core::ConnectedPoint;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use crate::source::{is_relayed, source};

/// The path of the best connection to a peer: direct before relayed, then the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// A direct connection.
    Direct {
        /// Where the peer is, as this node sees it.
        address: Multiaddr,
        /// Whether both sides dialled at once through their routers, coordinated by a relay (DCUtR).
        is_hole_punched: bool,
    },
    /// Relayed by another peer.
    Relayed {
        /// The relay.
        relay: Option<PeerId>,
    },
}

impl Path {
    /// Of a connection. The side that is reached through a relay sees which one at its own end: there it listens.
    pub(super) fn of_endpoint(endpoint: &ConnectedPoint) -> Self {
        match endpoint {
            ConnectedPoint::Listener { local_addr, .. } if is_relayed(local_addr) => Self::of(local_addr),
            endpoint => Self::of(endpoint.get_remote_address()),
        }
    }

    pub(super) fn of(address: &Multiaddr) -> Self {
        if !is_relayed(address) {
            return Self::Direct { address: address.clone(), is_hole_punched: false };
        }
        let before = address.iter().take_while(|part| *part != Protocol::P2pCircuit);
        let relay = before.filter_map(|part| if let Protocol::P2p(peer) = part { Some(peer) } else { None });
        Self::Relayed { relay: relay.last() }
    }

    /// The source address, or the /64 of an IPv6 one; `None` for relayed connections.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        match self {
            Self::Direct { address, .. } => source(address),
            Self::Relayed { .. } => None,
        }
    }

    /// Whether another peer carries it.
    #[must_use]
    pub fn is_relayed(&self) -> bool {
        matches!(self, Self::Relayed { .. })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct { address, is_hole_punched: false } => write!(f, "directly to {address}"),
            Self::Direct { address, is_hole_punched: true } => {
                write!(f, "directly to {address}, through both routers")
            }
            Self::Relayed { relay: Some(relay) } => write!(f, "through the relay {relay}"),
            Self::Relayed { relay: None } => write!(f, "through a relay"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_circuit_names_its_relay() {
        let (relay, peer) = (PeerId::random(), PeerId::random());
        let direct: Multiaddr = format!("/ip4/10.0.0.1/tcp/4001/p2p/{peer}").parse().unwrap();
        assert!(!Path::of(&direct).is_relayed());
        let text = format!("/ip4/10.0.0.1/tcp/4001/p2p/{relay}/p2p-circuit/p2p/{peer}");
        assert_eq!(Path::of(&text.parse().unwrap()), Path::Relayed { relay: Some(relay) });
        // And as the relayed side has it: where it listens, and who comes.
        let local_addr: Multiaddr =
            format!("/ip4/10.0.0.1/tcp/4001/p2p/{relay}/p2p-circuit").parse().unwrap();
        let send_back_addr: Multiaddr = format!("/p2p/{peer}").parse().unwrap();
        let listener = ConnectedPoint::Listener { local_addr, send_back_addr };
        assert_eq!(Path::of_endpoint(&listener), Path::Relayed { relay: Some(relay) });
        // Without a name it is a relay all the same.
        let remote: Multiaddr = format!("/p2p-circuit/p2p/{peer}").parse().unwrap();
        assert_eq!(Path::of(&remote), Path::Relayed { relay: None });
    }
}
