//! Where a contributor comes from, as one number: what an open run shares, it shares by that
//! ([`AddressGroup`]).
//!
//! The number is a hash with a key of this process, so what is written down of it says nothing about the address.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use barnraise_relay::{Node, Path};
use barnraise_swarm::round::AddressGroup;
use libp2p::PeerId;

static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// What costs about as much as one address of IPv4: what a provider gives to one customer.
const IPV6_PREFIX_BITS: u32 = 56;

#[derive(Hash)]
enum Place {
    Address(IpAddr),
    /// Nothing is known of whom a relay carries, so all of them share its place.
    Relay(Option<PeerId>),
    Unknown,
}

/// Where `peer` comes from, as its best connection says.
pub(super) async fn group_of(node: &Node, peer: PeerId) -> AddressGroup {
    let path = node.path(peer).await.ok().flatten();
    number(path.as_ref())
}

fn number(path: Option<&Path>) -> AddressGroup {
    // On this machine itself an address tells nobody apart: clipping goes by keys there.
    let is_here = |ip: IpAddr| [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(&ip);
    if path.filter(|path| matches!(path, Path::Direct { .. })).and_then(Path::source).is_some_and(is_here) {
        return AddressGroup::UNKNOWN;
    }
    let place = match path {
        Some(Path::Relayed { relay }) => Place::Relay(*relay),
        Some(path @ Path::Direct { .. }) => {
            path.source().map_or(Place::Unknown, |ip| Place::Address(one(ip)))
        }
        None => Place::Unknown,
    };
    match KEY.hash_one(place) {
        // That one means something else.
        0 => AddressGroup(1),
        number => AddressGroup(number),
    }
}

fn one(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(ip) => {
            let shift = Ipv6Addr::BITS - IPV6_PREFIX_BITS;
            Ipv6Addr::from_bits(ip.to_bits() >> shift << shift).into()
        }
        ip @ IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn of(address: &str) -> AddressGroup {
        number(Some(&Path::Direct { address: address.parse().unwrap(), is_hole_punched: false }))
    }

    #[test]
    fn keys_and_ports_of_an_address_are_one_place() {
        assert_eq!(of("/ip4/10.0.0.1/tcp/1"), of("/ip4/10.0.0.1/udp/2/quic-v1"));
        assert_ne!(of("/ip4/10.0.0.1/tcp/1"), of("/ip4/10.0.0.2/tcp/1"));
        assert_eq!(of("/ip6/2001:db8:0:100::1/tcp/1"), of("/ip6/2001:db8:0:1ff:9::1/tcp/1"));
        assert_ne!(of("/ip6/2001:db8:0:100::1/tcp/1"), of("/ip6/2001:db8:0:200::1/tcp/1"));
        assert_eq!(of("/ip4/127.0.0.1/tcp/1"), AddressGroup::UNKNOWN);
        assert_ne!(of("/ip4/127.0.0.9/tcp/1"), AddressGroup::UNKNOWN);
        assert_eq!(of("/ip6/::ffff:10.0.0.1/tcp/1"), of("/ip4/10.0.0.1/tcp/1"));
    }

    #[test]
    fn those_whom_a_relay_carries_share_its_place() {
        let (one, other) = (PeerId::random(), PeerId::random());
        let relayed = |relay| number(Some(&Path::Relayed { relay: Some(relay) }));
        assert_eq!(relayed(one), relayed(one));
        assert_ne!(relayed(one), relayed(other));
        assert_ne!(number(None), AddressGroup::UNKNOWN);
    }
}
