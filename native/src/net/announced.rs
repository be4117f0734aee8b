//! Which of its addresses a native peer tells others, and how it dials those that others told.

use std::net::Ipv6Addr;
use std::time::Duration;

use barnraise_contributor::race;
use barnraise_protocol::dht::shards::HOLDER_ADDRESSES_MAX;
use barnraise_relay::{Node, NodeError, Reachability};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Stream};

/// Delay before a relay is dialled as well.
const HEAD_START: Duration = Duration::from_secs(1);

/// The addresses to announce to native peers, the farthest-reaching first. If AutoNAT found this machine unreachable, its
/// public addresses are left out.
pub(crate) fn to_announce(addresses: Vec<Multiaddr>, reachability: Reachability) -> Vec<Vec<u8>> {
    let ranked = ranked(addresses.into_iter().filter(is_native), reachability);
    ranked.map(|address| address.to_vec()).take(HOLDER_ADDRESSES_MAX).collect()
}

/// The addresses to announce to native peers and browsers, without the peer id of this machine, which who reads them knows.
/// Few fit into a record, so that each kind comes once before another one comes twice: through a relay, direct, direct for
/// browsers, and through a relay that browsers dial.
pub(crate) fn to_announce_to_all(addresses: Vec<Multiaddr>, reachability: Reachability) -> Vec<Vec<u8>> {
    let mut kinds: [Vec<Multiaddr>; 4] = Default::default();
    for address in ranked(addresses.into_iter(), reachability) {
        let relay = relay_of(&address);
        let [circuits, direct, browsers, browser_circuits] = &mut kinds;
        let kind = match (relay.is_some(), is_native(&address)) {
            (true, true) => circuits,
            (false, true) => direct,
            (false, false) => browsers,
            (true, false) => browser_circuits,
        };
        // One way to a relay is enough.
        if relay.is_none() || kind.iter().all(|known| relay_of(known) != relay) {
            kind.push(address);
        }
    }
    let longest = kinds.iter().map(Vec::len).max().unwrap_or_default();
    let in_turn = (0..longest).flat_map(|at| kinds.iter().filter_map(move |kind| kind.get(at)));
    in_turn.map(|address| without_own_id(address).to_vec()).collect()
}

/// Addresses that others may dial, the farthest-reaching first.
fn ranked(
    addresses: impl Iterator<Item = Multiaddr>,
    reachability: Reachability,
) -> impl Iterator<Item = Multiaddr> {
    let mut ranked: Vec<(u8, Multiaddr)> = addresses.map(|address| (distance(&address), address)).collect();
    ranked.sort_by_key(|(distance, _)| *distance);
    if reachability == Reachability::Private {
        ranked.retain(|(distance, address)| *distance > 0 || is_circuit(address));
    }
    // Loopback addresses are announced only if there are no others.
    let nearest = ranked.first().map_or(0, |(distance, _)| *distance);
    ranked.retain(|(distance, _)| *distance < LOOPBACK || nearest == LOOPBACK);
    ranked.into_iter().map(|(_, address)| address)
}

/// The relay that an address leads through.
fn relay_of(address: &Multiaddr) -> Option<PeerId> {
    let before = address.iter().take_while(|part| *part != Protocol::P2pCircuit);
    let relay =
        before.filter_map(|part| if let Protocol::P2p(peer) = part { Some(peer) } else { None }).last();
    relay.filter(|_| is_circuit(address))
}

fn without_own_id(address: &Multiaddr) -> Multiaddr {
    let mut rest = address.clone();
    match rest.pop() {
        Some(Protocol::P2p(_)) => rest,
        _ => address.clone(),
    }
}

const LOOPBACK: u8 = 2;

/// Whether a peer with these addresses can be dialled from as far away as another address is, which it dialled itself: one of a
/// private network says nothing to a peer at a public address.
pub(crate) fn reaches_as_far(announced: &[Vec<u8>], dialled: &Multiaddr) -> bool {
    let own = announced.iter().filter_map(|address| Multiaddr::try_from(address.clone()).ok());
    own.filter(|own| !is_circuit(own)).any(|own| distance(&own) <= distance(dialled))
}

/// Those addresses of a peer, as it announced them, that a native peer here can dial.
pub(crate) async fn to_dial(node: &Node, peer: PeerId, announced: &[Vec<u8>]) -> Vec<Multiaddr> {
    let addresses = node.within_reach(announced).await.into_iter();
    addresses.filter_map(|address| address.with_p2p(peer).ok()).filter(is_native).collect()
}

/// A stream to a peer that listens at the addresses that it announced. Relays are dialled a head start later than the peer
/// itself: they carry for others what cannot go otherwise.
pub(crate) async fn open_announced(
    node: &Node,
    peer: PeerId,
    announced: &[Vec<u8>],
    protocol: &'static str,
) -> Result<Stream, NodeError> {
    let (circuits, direct): (Vec<Multiaddr>, Vec<Multiaddr>) =
        to_dial(node, peer, announced).await.into_iter().partition(is_circuit);
    // The routing table may know more of a peer.
    let by_relay = Some(circuits).filter(|circuits| !circuits.is_empty());
    let attempts = std::iter::once(direct).chain(by_relay).map(|addresses| node.dial_peer(peer, addresses));
    match race(attempts, || tokio::time::sleep(HEAD_START)).await {
        Ok(_) => node.open(peer, protocol).await,
        Err(mut failures) => Err(failures.pop().unwrap_or(NodeError::Stopped)),
    }
}

/// 0 for a public address, 1 for one of a private network, [`LOOPBACK`] for one of this machine.
fn distance(address: &Multiaddr) -> u8 {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) if ip.is_loopback() => LOOPBACK,
        Some(Protocol::Ip6(Ipv6Addr::LOCALHOST)) => LOOPBACK,
        Some(Protocol::Ip4(ip)) if ip.is_private() || ip.is_link_local() => 1,
        Some(Protocol::Ip6(ip)) if ip.is_unique_local() || ip.is_unicast_link_local() => 1,
        _ => 0,
    }
}

/// Whether it leads through a relay.
pub(crate) fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// Whether native peers dial it: QUIC or TCP, directly or through a relay.
pub(crate) fn is_native(address: &Multiaddr) -> bool {
    let is_for_browsers = |part: Protocol<'_>| {
        matches!(part, Protocol::WebTransport | Protocol::WebRTCDirect | Protocol::Ws(_) | Protocol::Wss(_))
    };
    let mut parts = address.iter();
    !parts.any(is_for_browsers)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_address_is_announced_to_those_who_can_dial_it() {
        let relay = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        let [loopback, private, open, web, circuit] = [
            "/ip4/127.0.0.1/tcp/1",
            "/ip4/192.168.1.2/udp/1/quic-v1",
            "/ip4/198.51.100.7/tcp/1",
            "/ip4/198.51.100.7/udp/1/quic-v1/webtransport",
            &format!("{relay}/p2p-circuit"),
        ]
        .map(|address| address.parse::<Multiaddr>().unwrap());
        let all = vec![loopback.clone(), private.clone(), web, circuit.clone(), open.clone()];
        let told =
            |addresses: &[Multiaddr]| -> Vec<Vec<u8>> { addresses.iter().map(Multiaddr::to_vec).collect() };
        let open_first = told(&[circuit.clone(), open, private.clone()]);
        assert_eq!(to_announce(all.clone(), Reachability::Public), open_first);
        assert_eq!(to_announce(all.clone(), Reachability::Unknown), open_first);
        assert_eq!(to_announce(all, Reachability::Private), told(&[circuit, private]));
        assert_eq!(to_announce(vec![loopback.clone()], Reachability::Private), told(&[loopback]));
    }

    #[test]
    fn a_private_address_reaches_no_further_than_its_network() {
        let reaches = |own: &[&str], dialled: &str| {
            let own = own.iter().map(|address| address.parse::<Multiaddr>().unwrap().to_vec());
            reaches_as_far(&own.collect::<Vec<_>>(), &dialled.parse().unwrap())
        };
        let (open, private, here) =
            ("/ip4/198.51.100.7/tcp/1", "/ip4/192.168.1.2/tcp/1", "/ip4/127.0.0.1/tcp/1");
        assert_eq!([open, private, here].map(|dialled| reaches(&[private], dialled)), [false, true, true]);
        assert_eq!([open, private, here].map(|dialled| reaches(&[private, open], dialled)), [true; 3]);
        assert_eq!([open, private, here].map(|dialled| reaches(&[here], dialled)), [false, false, true]);
        assert!(!reaches(&[], here));
    }

    #[test]
    fn every_way_to_a_host_is_announced_once_before_another_one_twice() {
        let (relay, me) = (PeerId::random(), PeerId::random());
        let hash = "uEiAkH5a4DPGKUuOBjYw0CgwjvcJCJMD2K_1aluKR_tpevQ";
        let listed = [
            "/ip4/192.168.1.2/tcp/1".to_owned(),
            "/ip4/192.168.1.2/udp/1/quic-v1".to_owned(),
            format!("/ip4/192.168.1.2/udp/2/quic-v1/webtransport/certhash/{hash}"),
            format!("/ip4/192.0.2.1/tcp/4001/p2p/{relay}/p2p-circuit"),
            format!("/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{relay}/p2p-circuit"),
            format!("/dns4/run.example/tcp/443/wss/p2p/{relay}/p2p-circuit"),
            "/ip4/127.0.0.1/tcp/1".to_owned(),
        ];
        let parsed = listed.iter().map(|address| address.parse::<Multiaddr>().unwrap());
        let all = parsed.clone().map(|address| address.with_p2p(me).unwrap()).collect();
        let told: Vec<String> = to_announce_to_all(all, Reachability::Private)
            .into_iter()
            .map(|bytes| Multiaddr::try_from(bytes).unwrap().to_string())
            .collect();
        assert_eq!(told, [3, 0, 2, 5, 1].map(|at: usize| listed[at].clone()));
        assert!(told.iter().all(|address| !address.contains(&me.to_string())));
    }
}
