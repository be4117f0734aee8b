//! Where a connection comes from: the unit by which peers share what is limited.

use std::net::{IpAddr, Ipv6Addr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// The source address of a connection, as a unit that one sender controls: the owner of one IPv6 address has its
/// whole /64. `None` for a relayed connection, whose source is unknown.
pub(crate) fn source(remote: &Multiaddr) -> Option<IpAddr> {
    if is_relayed(remote) {
        return None;
    }
    match remote.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(source_of(ip.into())),
        _ => None,
    }
}

/// The same of an address.
pub(crate) fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

/// Whether the address leads through another peer.
pub(crate) fn is_relayed(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}
