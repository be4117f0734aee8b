//! Finds the peers close to a key: the routing table of libp2p's Kademlia, and the searches that fill it.
//!
//! Nothing is kept in Kademlia: its records and providers are refused. Peers come in by identify, with
//! addresses that this node could dial, and only where they serve Kademlia themselves.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::kad::{self, Mode, StoreInserts};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, StreamProtocol, identify};

/// libp2p protocol name.
const PROTOCOL: StreamProtocol = StreamProtocol::new("/barnraise/kad/1");
/// A search for peers ends after this.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);
/// Most addresses of a peer.
const ADDRESSES_MAX: usize = 8;

/// Part in the routing of the DHT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Queries other peers and appears in no routing table.
    Client,
    /// Answers queries and appears in routing tables: for a node that can be dialled.
    Server,
}

pub(super) type Kademlia = kad::Behaviour<MemoryStore>;

/// A peer and where it can be reached.
pub(crate) type Contact = (PeerId, Vec<Multiaddr>);

pub(super) fn behaviour(here: PeerId, routing: Routing) -> Kademlia {
    let mut config = kad::Config::new(PROTOCOL);
    config
        .set_query_timeout(QUERY_TIMEOUT)
        .set_record_filtering(StoreInserts::FilterBoth)
        .set_replication_interval(None)
        .set_publication_interval(None)
        .set_provider_publication_interval(None);
    let nothing = MemoryStoreConfig { max_records: 0, max_provided_keys: 0, ..MemoryStoreConfig::default() };
    let mut kademlia = Kademlia::with_config(here, MemoryStore::with_config(here, nothing), config);
    kademlia.set_mode(Some(match routing {
        Routing::Client => Mode::Client,
        Routing::Server => Mode::Server,
    }));
    kademlia
}

/// Whether a peer that said who it is serves Kademlia.
pub(super) fn serves(info: &identify::Info) -> bool {
    info.protocols.contains(&PROTOCOL)
}

/// Adds a peer that serves Kademlia, with its resolved addresses.
pub(super) fn on_addresses(kademlia: &mut Kademlia, peer: PeerId, named: Vec<Multiaddr>, reach: Scope) {
    let reachable = named.into_iter().filter(|address| scope(address) <= reach);
    let addresses: HashSet<Multiaddr> =
        reachable.take(ADDRESSES_MAX).filter_map(|address| address.with_p2p(peer).ok()).collect();
    for old in known_addresses(kademlia, peer) {
        if !addresses.contains(&old) && !addresses.is_empty() {
            kademlia.remove_address(&peer, &old);
        }
    }
    for address in addresses {
        kademlia.add_address(&peer, address);
    }
}

/// All peers in the routing table.
pub(super) fn contacts(kademlia: &mut Kademlia) -> Vec<Contact> {
    let contacts = kademlia.kbuckets().flat_map(|bucket| {
        let of_bucket = bucket
            .iter()
            .map(|entry| (*entry.node.key.preimage(), entry.node.value.iter().cloned().collect::<Vec<_>>()));
        of_bucket.collect::<Vec<_>>()
    });
    contacts.collect()
}

fn known_addresses(kademlia: &mut Kademlia, peer: PeerId) -> Vec<Multiaddr> {
    let Some(bucket) = kademlia.kbucket(peer) else { return Vec::new() };
    let mut entries = bucket.iter();
    let entry = entries.find(|entry| *entry.node.key.preimage() == peer);
    entry.map_or_else(Vec::new, |entry| entry.node.value.iter().cloned().collect())
}

/// From where an address can be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Everywhere,
    Network,
    Machine,
}

/// The widest scope that a node may dial for other peers. A node with a public address dials no private network:
/// a peer that names an address there wants it to connect where that peer itself cannot. The same holds for a
/// node that was told to dial a public address.
pub(super) fn reach<'a>(ours: impl Iterator<Item = &'a Multiaddr>, dialled: Option<Scope>) -> Scope {
    ours.map(scope).chain(dialled).min().unwrap_or(Scope::Everywhere)
}

pub(crate) fn scope(address: &Multiaddr) -> Scope {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => scope_of(ip.into()),
        Some(Protocol::Ip6(ip)) => scope_of(ip.into()),
        _ => Scope::Everywhere,
    }
}

/// The scope of an IP address: multicast, broadcast and unspecified addresses count as local to the machine.
pub(super) fn scope_of(ip: IpAddr) -> Scope {
    match ip.to_canonical() {
        IpAddr::V4(ip) if ip.is_loopback() || ip.octets()[0] == 0 => Scope::Machine,
        IpAddr::V4(ip) if ip.is_broadcast() || ip.is_multicast() => Scope::Machine,
        IpAddr::V4(ip) if ip.is_private() || ip.is_link_local() => Scope::Network,
        // Between a provider and its customers (RFC 6598).
        IpAddr::V4(ip) if ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64 => Scope::Network,
        IpAddr::V6(ip) if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() => Scope::Machine,
        IpAddr::V6(ip) if ip.is_unique_local() || ip.is_unicast_link_local() => Scope::Network,
        _ => Scope::Everywhere,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_a_node_of_the_same_network_dials_into_it() {
        let address = |text: &str| text.parse::<Multiaddr>().unwrap();
        let [loopback, private, public] =
            ["/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.2/tcp/1", "/ip4/1.2.3.4/tcp/1"].map(address);
        let may = |ours: &[&Multiaddr], theirs| scope(theirs) <= reach(ours.iter().copied(), None);
        assert!(may(&[&loopback], &loopback) && may(&[&loopback], &public));
        assert!(may(&[&private, &loopback], &private) && !may(&[&private, &loopback], &loopback));
        assert!(may(&[&public, &private], &public) && !may(&[&public, &private], &private));
        assert_eq!(reach([].into_iter(), Some(Scope::Machine)), Scope::Machine);
        assert_eq!(reach([&public].into_iter(), Some(Scope::Machine)), Scope::Everywhere);
        assert_eq!(scope(&address("/dns/example.org/tcp/1")), Scope::Everywhere);
        assert_eq!(scope(&address("/ip6/fd00::1/udp/1/quic-v1")), Scope::Network);
        assert_eq!(scope(&address("/ip6/::ffff:192.168.1.2/tcp/1")), Scope::Network, "by another name");
        assert_eq!(scope(&address("/ip4/100.64.0.1/tcp/1")), Scope::Network);
        assert_eq!(scope(&address("/ip4/224.0.0.1/udp/1/quic-v1")), Scope::Machine);
    }
}
