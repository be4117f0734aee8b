//! The addresses of backbones and of hosts of experts, by the transports that a browser has.

use std::net::IpAddr;

use barnraise_messages::TransportKind;
use barnraise_protocol::api::RunStatus;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;

use super::NetworkError;
use crate::web::{self, WebError};

/// Most addresses that are dialled.
const ADDRESSES_MAX: usize = 16;
/// Longest answer of `GET /api/run`, in UTF-16 units: a manifest of ten thousand shards fits.
const STATUS_LENGTH_MAX: u32 = 4 * 1024 * 1024;

/// The addresses of a peer, by transport.
pub(super) type TransportAddresses = Vec<(TransportKind, Vec<Multiaddr>)>;

/// Fetches the run's status from the web server.
pub(crate) async fn fetch_status(origin: &str) -> Result<RunStatus, WebError> {
    let response = web::get(&format!("{origin}/api/run")).await?;
    let text: js_sys::JsString = JsFuture::from(response.text()?).await?.dyn_into()?;
    if text.length() > STATUS_LENGTH_MAX {
        return Err(WebError::TooLong { max: STATUS_LENGTH_MAX as usize });
    }
    Ok(serde_json::from_str(&String::from(text))?)
}

/// The addresses that a browser can dial, by transport, of the peer that the first of them names. A page loaded
/// over HTTPS may open no plain WebSocket.
pub(super) fn dialable(
    addresses: &[String],
    is_secure: bool,
) -> Result<(PeerId, TransportAddresses), NetworkError> {
    let mut backbone = None;
    let mut transports = TransportAddresses::new();
    let listed = addresses.iter().filter_map(|address| {
        let address = address.parse::<Multiaddr>().ok()?;
        transport_of(&address, is_secure).map(|(transport, peer)| (transport, peer, address))
    });
    for (transport, peer, address) in listed.take(ADDRESSES_MAX) {
        if *backbone.get_or_insert(peer) == peer {
            add(&mut transports, transport, address);
        }
    }
    let none = NetworkError::NoAddress { n_addresses: addresses.len() };
    backbone.map(|peer| (peer, transports)).ok_or(none)
}

fn transport_of(address: &Multiaddr, is_secure: bool) -> Option<(TransportKind, PeerId)> {
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    match &parts[..] {
        [_, Protocol::Udp(_), Protocol::QuicV1, Protocol::WebTransport, .., Protocol::P2p(peer)] => {
            Some((TransportKind::WebTransport, *peer))
        }
        [
            Protocol::Ip4(_) | Protocol::Ip6(_),
            Protocol::Udp(_),
            Protocol::WebRTCDirect,
            Protocol::Certhash(_),
            Protocol::P2p(peer),
        ] => Some((TransportKind::WebRtc, *peer)),
        [_, Protocol::Tcp(_), Protocol::Wss(_), Protocol::P2p(peer)]
        | [_, Protocol::Tcp(_), Protocol::Tls, Protocol::Ws(_), Protocol::P2p(peer)] => {
            Some((TransportKind::WebSocket, *peer))
        }
        [_, Protocol::Tcp(_), Protocol::Ws(_), Protocol::P2p(peer)] if !is_secure => {
            Some((TransportKind::WebSocket, *peer))
        }
        _ => None,
    }
}

/// Where a page came from, which decides what it may dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageOrigin {
    /// Over HTTPS: no plain WebSocket is opened.
    pub(super) is_secure: bool,
    /// From where else its server is reached.
    reach: Reach,
}

/// From where an address is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Everywhere,
    Network,
    Machine,
}

impl PageOrigin {
    /// Of `https://host:port`, with or without a path.
    pub(super) fn of(origin: &str) -> Self {
        let (scheme, rest) = origin.split_once("://").unwrap_or(("", origin));
        let authority = rest.split('/').next().unwrap_or_default();
        let host = match authority.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => authority.split(':').next().unwrap_or_default(),
        };
        let reach = match host.parse::<IpAddr>() {
            Ok(ip) => Reach::of_ip(ip),
            Err(_) if host == "localhost" || host.ends_with(".localhost") => Reach::Machine,
            Err(_) if host.ends_with(".local") => Reach::Network,
            Err(_) => Reach::Everywhere,
        };
        Self { is_secure: scheme == "https", reach }
    }

    /// Whether the page dials it. A page from the internet dials into no private network, which a peer may name that wants
    /// to look into it.
    pub(super) fn dials(self, address: &Multiaddr) -> bool {
        Reach::of(address) <= self.reach
    }
}

impl Reach {
    fn of(address: &Multiaddr) -> Self {
        match address.iter().next() {
            Some(Protocol::Ip4(ip)) => Self::of_ip(ip.into()),
            Some(Protocol::Ip6(ip)) => Self::of_ip(ip.into()),
            _ => Self::Everywhere,
        }
    }

    fn of_ip(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            ip if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() => Self::Machine,
            IpAddr::V4(ip) if ip.is_private() || ip.is_link_local() => Self::Network,
            // Between a provider and its customers (RFC 6598).
            IpAddr::V4(ip) if ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64 => Self::Network,
            IpAddr::V6(ip) if ip.is_unique_local() || ip.is_unicast_link_local() => Self::Network,
            _ => Self::Everywhere,
        }
    }
}

/// A way to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    /// To addresses of one transport.
    Direct(Vec<Multiaddr>),
    /// Through a relay.
    Through(Circuit),
}

impl Way {
    /// Those to addresses that the page dials, the best transport first.
    pub(super) fn direct(mut transports: TransportAddresses) -> Vec<Self> {
        transports.sort_by_key(|(transport, _)| *transport);
        transports.into_iter().map(|(_, addresses)| Self::Direct(addresses)).collect()
    }
}

/// A way through a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Circuit {
    pub(super) relay: PeerId,
    /// Of the peer, through the relay.
    pub(super) address: Multiaddr,
    /// Where the page dials the relay, if it has to.
    pub(super) to_relay: TransportAddresses,
}

/// The ways to a peer that announced these addresses: first those without a relay, the best transport first; then each relay
/// once.
pub(super) fn ways(peer: PeerId, announced: &[Vec<u8>], page: PageOrigin) -> Vec<Way> {
    let (mut direct, mut circuits) = (TransportAddresses::new(), Vec::<Circuit>::new());
    let addresses = announced.iter().take(ADDRESSES_MAX).filter_map(|bytes| {
        let address = Multiaddr::try_from(bytes.clone()).ok()?;
        address.with_p2p(peer).ok()
    });
    for address in addresses {
        match through(&address) {
            Some((relay, of_relay)) => {
                let at = circuits.iter().position(|circuit| circuit.relay == relay).unwrap_or_else(|| {
                    circuits.push(Circuit { relay, address, to_relay: TransportAddresses::new() });
                    circuits.len() - 1
                });
                if let Some(transport) = dialled_by(&of_relay, page) {
                    add(&mut circuits[at].to_relay, transport, of_relay);
                }
            }
            None => {
                if let Some(transport) = dialled_by(&address, page) {
                    add(&mut direct, transport, address);
                }
            }
        }
    }
    let circuits = circuits.into_iter().map(Way::Through);
    Way::direct(direct).into_iter().chain(circuits).collect()
}

/// Most addresses at which a tab is reached, of each kind.
const CIRCUITS_PER_KIND: usize = 2;

/// The ways through a relay with these addresses, as others are told of them: for native peers and for browsers in turn, those that
/// reach farthest first, and of them the shortest, as few bytes are told of a peer. Ways to this machine alone are told only where there
/// are no others.
pub(super) fn circuits(of_relay: &[Multiaddr]) -> Vec<Vec<u8>> {
    let mut ranked: Vec<&Multiaddr> =
        of_relay.iter().filter(|address| !address.iter().any(|part| part == Protocol::P2pCircuit)).collect();
    ranked.sort_by_key(|address| (Reach::of(address), address.len()));
    let farthest = ranked.first().map(|address| Reach::of(address));
    ranked.retain(|address| Reach::of(address) < Reach::Machine || farthest == Some(Reach::Machine));
    let (browsers, native): (Vec<&Multiaddr>, Vec<&Multiaddr>) = ranked.into_iter().partition(|address| {
        address.iter().any(|part| {
            matches!(
                part,
                Protocol::WebTransport | Protocol::WebRTCDirect | Protocol::Ws(_) | Protocol::Wss(_)
            )
        })
    });
    let in_turn = (0..CIRCUITS_PER_KIND).flat_map(|at| [native.get(at), browsers.get(at)]);
    in_turn.flatten().map(|address| (*address).clone().with(Protocol::P2pCircuit).to_vec()).collect()
}

/// The transport by which the page dials an address.
fn dialled_by(address: &Multiaddr, page: PageOrigin) -> Option<TransportKind> {
    transport_of(address, page.is_secure).filter(|_| page.dials(address)).map(|(transport, _)| transport)
}

fn add(transports: &mut TransportAddresses, transport: TransportKind, address: Multiaddr) {
    match transports.iter_mut().find(|(known, _)| *known == transport) {
        Some((_, addresses)) => addresses.push(address),
        None => transports.push((transport, vec![address])),
    }
}

/// The relay that an address leads through, and where that is.
fn through(address: &Multiaddr) -> Option<(PeerId, Multiaddr)> {
    let is_circuit = address.iter().any(|part| part == Protocol::P2pCircuit);
    let of_relay: Multiaddr = address.iter().take_while(|part| *part != Protocol::P2pCircuit).collect();
    match of_relay.iter().last() {
        Some(Protocol::P2p(relay)) if is_circuit => Some((relay, of_relay)),
        _ => None,
    }
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    const HASH: &str = "uEiAkH5a4DPGKUuOBjYw0CgwjvcJCJMD2K_1aluKR_tpevQ";

    fn listed(peers: &[PeerId], places: &[&str]) -> Vec<String> {
        let places = places.iter().map(|place| place.replace("HASH", HASH));
        places.flat_map(|place| peers.iter().map(move |peer| format!("{place}/p2p/{peer}"))).collect()
    }

    #[wasm_bindgen_test]
    fn dialable_addresses_are_grouped_by_transport() {
        let peer = PeerId::random();
        let addresses = listed(
            &[peer],
            &[
                "/ip4/192.0.2.1/tcp/4001",
                "/ip4/192.0.2.1/udp/4001/quic-v1",
                "/ip4/192.0.2.1/udp/4001/quic-v1/webtransport/certhash/HASH",
                "/ip6/2001:db8::1/udp/4001/quic-v1/webtransport/certhash/HASH/certhash/HASH",
                "/ip4/192.0.2.1/udp/4002/webrtc-direct/certhash/HASH",
                "/dns4/run.example.org/tcp/443/wss",
                "/dns4/run.example.org/tcp/443/tls/ws",
            ],
        );
        let (found, transports) = dialable(&addresses, true).unwrap();
        assert_eq!(found, peer);
        let counted: Vec<(TransportKind, usize)> =
            transports.iter().map(|(transport, addresses)| (*transport, addresses.len())).collect();
        assert_eq!(
            counted,
            [(TransportKind::WebTransport, 2), (TransportKind::WebRtc, 1), (TransportKind::WebSocket, 2)]
        );
    }

    #[wasm_bindgen_test]
    fn a_page_that_came_encrypted_opens_no_plain_websocket() {
        let addresses = listed(&[PeerId::random()], &["/ip4/192.0.2.1/tcp/4001/ws"]);
        assert_eq!(dialable(&addresses, false).unwrap().1[0].0, TransportKind::WebSocket);
        let refused = dialable(&addresses, true).err().unwrap();
        assert!(matches!(refused, NetworkError::NoAddress { n_addresses: 1 }), "{refused}");
    }

    #[wasm_bindgen_test]
    fn addresses_are_those_of_one_peer_and_not_too_many() {
        let (first, other) = (PeerId::random(), PeerId::random());
        let (_, transports) =
            dialable(&listed(&[first, other], &["/ip4/192.0.2.1/tcp/1/ws"]), false).unwrap();
        assert!(transports[0].1.iter().all(|address| address.to_string().ends_with(&first.to_string())));
        let many: Vec<String> =
            (1..100).map(|port| format!("/ip4/192.0.2.1/tcp/{port}/ws/p2p/{first}")).collect();
        assert_eq!(dialable(&many, false).unwrap().1[0].1.len(), ADDRESSES_MAX);
        let nonsense = ["", "/", "http://x", "/ip4/1.2.3.4/tcp/1/ws", "/p2p/x"].map(String::from);
        assert!(dialable(&nonsense, false).is_err(), "none of them says who is there");
    }

    #[wasm_bindgen_test]
    fn a_host_is_dialled_first_and_each_relay_is_one_way_more() {
        let (host, relay) = (PeerId::random(), PeerId::random());
        let announced = [
            format!("/ip4/192.0.2.1/tcp/4001/p2p/{relay}/p2p-circuit"),
            "/ip4/192.0.2.9/udp/1/quic-v1".to_owned(),
            format!("/dns4/relay.example/tcp/443/wss/p2p/{relay}/p2p-circuit"),
            format!("/ip4/192.0.2.9/udp/2/quic-v1/webtransport/certhash/{HASH}"),
        ];
        let announced: Vec<Vec<u8>> =
            announced.iter().map(|address| address.parse::<Multiaddr>().unwrap().to_vec()).collect();
        let found = ways(host, &announced, PageOrigin::of("https://run.example.org"));
        let [Way::Direct(direct), Way::Through(circuit)] = &found[..] else { panic!("{found:?}") };
        assert!(direct[0].to_string().ends_with(&host.to_string()));
        assert_eq!(circuit.relay, relay);
        assert_eq!(
            circuit.address.to_string(),
            format!("/ip4/192.0.2.1/tcp/4001/p2p/{relay}/p2p-circuit/p2p/{host}")
        );
        let [(TransportKind::WebSocket, to_relay)] = &circuit.to_relay[..] else { panic!("{circuit:?}") };
        assert_eq!(to_relay[0].to_string(), format!("/dns4/relay.example/tcp/443/wss/p2p/{relay}"));
        assert!(ways(host, &[vec![255], Vec::new()], PageOrigin::of("https://run.example.org")).is_empty());
    }

    #[wasm_bindgen_test]
    fn a_tab_is_reached_through_its_backbone_by_native_peers_and_by_browsers() {
        let relay = PeerId::random();
        let listed = listed(
            &[relay],
            &[
                "/ip4/127.0.0.1/tcp/1",
                "/ip4/192.168.1.7/udp/1/quic-v1/webtransport/certhash/HASH",
                "/ip4/192.168.1.7/tcp/1",
                "/ip4/192.0.2.1/udp/1/quic-v1",
                "/ip6/2001:db8::1/tcp/1",
                "/ip4/192.168.1.7/tcp/2/ws",
                "/dns4/run.example/tcp/443/wss",
            ],
        );
        let parsed: Vec<Multiaddr> = listed.iter().map(|address| address.parse().unwrap()).collect();
        let told: Vec<String> = circuits(&parsed)
            .into_iter()
            .map(|bytes| Multiaddr::try_from(bytes).unwrap().to_string())
            .collect();
        assert_eq!(told, [3, 6, 4, 5].map(|at: usize| format!("{}/p2p-circuit", listed[at])));
        // On the machine itself.
        assert_eq!(circuits(&parsed[..1]), [parsed[0].clone().with(Protocol::P2pCircuit).to_vec()]);
        assert!(circuits(&[]).is_empty());
    }

    #[wasm_bindgen_test]
    fn a_page_from_the_internet_dials_into_no_private_network() {
        let host = PeerId::random();
        let at = |ip: &str| format!("{ip}/tcp/1/ws").parse::<Multiaddr>().unwrap().to_vec();
        let announced =
            [at("/ip4/192.0.2.1"), at("/ip4/192.168.1.1"), at("/ip4/127.0.0.1"), at("/ip6/fd00::1")];
        for (origin, n_dialled) in [
            ("http://run.example.org", 1),
            ("http://192.0.2.7:8080/run/barn", 1),
            ("http://192.168.1.7:8080", 3),
            ("http://[fd00::7]:8080/", 3),
            ("http://barn.local", 3),
            ("http://127.0.0.1:8080", 4),
            ("http://localhost:8080/run/barn", 4),
            ("http://[::1]:8080", 4),
        ] {
            let found = ways(host, &announced, PageOrigin::of(origin));
            let Some(Way::Direct(dialled)) = found.first() else { panic!("{origin}") };
            assert_eq!(dialled.len(), n_dialled, "{origin}");
        }
        assert!(
            ways(host, &announced, PageOrigin::of("https://192.168.1.7")).is_empty(),
            "no plain WebSocket"
        );
    }
}
