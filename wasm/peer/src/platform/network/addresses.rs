//! The backbone's addresses, by the transports that a browser has.

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
        if *backbone.get_or_insert(peer) != peer {
            continue;
        }
        match transports.iter_mut().find(|(known, _)| *known == transport) {
            Some((_, addresses)) => addresses.push(address),
            None => transports.push((transport, vec![address])),
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
}
