//! Where a contributor comes from, as one number: what an open run shares, it shares by that
//! ([`AddressGroup`]).
//!
//! The number is a hash with a key that follows from the backbone's own: the same after a restart, and to who has not that
//! key, what is written down of it says nothing about the address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::KeyPair;
use barnraise_relay::{Node, Path};
use barnraise_swarm::round::AddressGroup;
use libp2p::PeerId;

/// What costs about as much as one address of IPv4: what a provider gives to one customer.
const IPV6_PREFIX_BITS: u32 = 56;

enum Place {
    Address(IpAddr),
    /// Nothing is known of whom a relay carries, so all of them share its place.
    Relay(Option<PeerId>),
    Unknown,
}

impl Place {
    /// No two places have the same.
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Address(IpAddr::V4(ip)) => [&[4][..], &ip.octets()].concat(),
            Self::Address(IpAddr::V6(ip)) => [&[6][..], &ip.octets()].concat(),
            Self::Relay(relay) => [&[1][..], &relay.map(PeerId::to_bytes).unwrap_or_default()].concat(),
            Self::Unknown => vec![0],
        }
    }
}

/// Numbers places. Cheap to clone.
#[derive(Clone)]
pub(super) struct Addresses {
    key: [u8; 16],
}

impl Addresses {
    /// Of the backbone with this key.
    pub(super) fn new(key: &KeyPair) -> Self {
        Self { key: key.derive(b"address groups 1\0") }
    }

    /// Where `peer` comes from, as its best connection says.
    pub(super) async fn group_of(&self, node: &Node, peer: PeerId) -> AddressGroup {
        let path = node.path(peer).await.ok().flatten();
        self.number(path.as_ref())
    }

    fn number(&self, path: Option<&Path>) -> AddressGroup {
        // On this machine itself an address tells nobody apart: clipping goes by keys there.
        let is_here =
            |ip: IpAddr| [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(&ip);
        if path.filter(|path| matches!(path, Path::Direct { .. })).and_then(Path::source).is_some_and(is_here)
        {
            return AddressGroup::UNKNOWN;
        }
        let place = match path {
            Some(Path::Relayed { relay }) => Place::Relay(*relay),
            Some(path @ Path::Direct { .. }) => {
                path.source().map_or(Place::Unknown, |ip| Place::Address(one(ip)))
            }
            None => Place::Unknown,
        };
        let hash = Sha256Hash::of(&[&self.key[..], &place.bytes()].concat()).0;
        let (first, _) = hash.split_first_chunk().unwrap_or((&[0; 8], &[]));
        match u64::from_le_bytes(*first) {
            // That one means something else.
            0 => AddressGroup(1),
            number => AddressGroup(number),
        }
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

    fn addresses(seed: u8) -> Addresses {
        Addresses::new(&KeyPair::from_seed(&[seed; 32]))
    }

    fn number(path: Option<&Path>) -> AddressGroup {
        addresses(1).number(path)
    }

    fn of(address: &str) -> AddressGroup {
        number(Some(&Path::Direct { address: address.parse().unwrap(), is_hole_punched: false }))
    }

    /// What is written down of an address is found again, and by nobody else.
    #[test]
    fn a_place_has_the_same_number_after_a_restart_and_another_one_elsewhere() {
        let path = Path::Direct { address: "/ip4/10.0.0.1/tcp/1".parse().unwrap(), is_hole_punched: false };
        assert_eq!(addresses(1).number(Some(&path)), AddressGroup(0x8ebc_b8d0_ba1f_2159));
        assert_ne!(addresses(1).number(Some(&path)), addresses(2).number(Some(&path)));
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
