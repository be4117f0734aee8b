//! Maps a contributor's address to an [`AddressGroup`], by which an open run shares its limits.
//!
//! The group is a hash with a key derived from the backbone's own: it is the same after a restart, and without the key
//! a stored group tells nothing about the address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::KeyPair;
use barnraise_relay::{Node, Path};
use barnraise_swarm::AddressGroup;
use libp2p::PeerId;

/// Prefix that a provider gives to one customer, which costs about as much as one IPv4 address.
const IPV6_PREFIX_BITS: u32 = 56;

enum NetworkOrigin {
    Address(IpAddr),
    /// The addresses of relayed peers are unknown, so all peers of a relay are one group.
    Relay(Option<PeerId>),
    Unknown,
}

impl NetworkOrigin {
    /// An injective encoding.
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Address(IpAddr::V4(ip)) => [&[4][..], &ip.octets()].concat(),
            Self::Address(IpAddr::V6(ip)) => [&[6][..], &ip.octets()].concat(),
            Self::Relay(relay) => [&[1][..], &relay.map(PeerId::to_bytes).unwrap_or_default()].concat(),
            Self::Unknown => vec![0],
        }
    }
}

/// Assigns address groups. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AddressGroups {
    key: [u8; 16],
}

impl AddressGroups {
    /// Groups of the backbone with this key.
    pub(crate) fn new(key: &KeyPair) -> Self {
        Self { key: key.derive(b"address groups 1\0") }
    }

    /// The group of `peer`, by its best connection.
    pub(crate) async fn group_of(&self, node: &Node, peer: PeerId) -> AddressGroup {
        let path = node.path(peer).await.ok().flatten();
        self.number(path.as_ref())
    }

    fn number(&self, path: Option<&Path>) -> AddressGroup {
        // Local addresses tell no peers apart: clipping is by keys there.
        let is_here =
            |ip: IpAddr| [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(&ip);
        if path.filter(|path| matches!(path, Path::Direct { .. })).and_then(Path::source).is_some_and(is_here)
        {
            return AddressGroup::UNKNOWN;
        }
        let origin = match path {
            Some(Path::Relayed { relay }) => NetworkOrigin::Relay(*relay),
            Some(path @ Path::Direct { .. }) => {
                path.source().map_or(NetworkOrigin::Unknown, |ip| NetworkOrigin::Address(one(ip)))
            }
            None => NetworkOrigin::Unknown,
        };
        let hash = Sha256Hash::of(&[&self.key[..], &origin.bytes()].concat()).0;
        let (first, _) = hash.split_first_chunk().unwrap_or((&[0; 8], &[]));
        match u64::from_le_bytes(*first) {
            // 0 is `UNKNOWN`.
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

    fn addresses(seed: u8) -> AddressGroups {
        AddressGroups::new(&KeyPair::from_seed(&[seed; 32]))
    }

    fn number(path: Option<&Path>) -> AddressGroup {
        addresses(1).number(path)
    }

    fn of(address: &str) -> AddressGroup {
        number(Some(&Path::Direct { address: address.parse().unwrap(), is_hole_punched: false }))
    }

    /// A stored group is found again, and only with the same key.
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
