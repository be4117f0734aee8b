//! Where the backbone is, and by which ways a browser gets there.

use barnraise_messages::Way;
use barnraise_protocol::api::RunStatus;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;
use web_sys::Response;

use crate::page;

/// Most addresses that are dialled.
const ADDRESSES_MAX: usize = 16;
/// Longest answer of `GET /api/run`, in UTF-16 units: a manifest of ten thousand shards fits.
const STATUS_LENGTH_MAX: u32 = 4 * 1024 * 1024;

/// The addresses of a backbone, by the way that they are dialled.
pub(super) type Ways = Vec<(Way, Vec<Multiaddr>)>;

/// What the web server says of the run.
pub(crate) async fn fetch_status(origin: &str) -> Result<RunStatus, String> {
    let scope = page::scope().ok_or_else(|| "this is no worker".to_owned())?;
    let unreachable =
        |error: wasm_bindgen::JsValue| format!("the web server does not answer: {}", page::describe(&error));
    let response = JsFuture::from(scope.fetch_with_str(&format!("{origin}/api/run"))).await;
    let response: Response = response.map_err(unreachable)?.dyn_into().map_err(unreachable)?;
    if !response.ok() {
        return Err(format!("the web server answered with status {}", response.status()));
    }
    let text = JsFuture::from(response.text().map_err(unreachable)?).await.map_err(unreachable)?;
    let text: js_sys::JsString = text.dyn_into().map_err(unreachable)?;
    if text.length() > STATUS_LENGTH_MAX {
        return Err(format!("the web server's answer is longer than {STATUS_LENGTH_MAX} characters"));
    }
    serde_json::from_str(&String::from(text))
        .map_err(|error| format!("the web server's answer is not understood: {error}"))
}

/// The addresses that a browser can dial, by way, of the peer that the first of them names. A page that came
/// encrypted may open no plain WebSocket.
pub(super) fn dialable(addresses: &[String], is_secure: bool) -> Result<(PeerId, Ways), String> {
    let mut backbone = None;
    let mut ways = Ways::new();
    let addresses_of_ways = addresses.iter().filter_map(|address| {
        let address = address.parse::<Multiaddr>().ok()?;
        way_of(&address, is_secure).map(|(way, peer)| (way, peer, address))
    });
    for (way, peer, address) in addresses_of_ways.take(ADDRESSES_MAX) {
        if *backbone.get_or_insert(peer) != peer {
            continue;
        }
        match ways.iter_mut().find(|(known, _)| *known == way) {
            Some((_, addresses)) => addresses.push(address),
            None => ways.push((way, vec![address])),
        }
    }
    let none = || format!("none of the backbone's {} addresses is for browsers", addresses.len());
    backbone.map(|peer| (peer, ways)).ok_or_else(none)
}

fn way_of(address: &Multiaddr, is_secure: bool) -> Option<(Way, PeerId)> {
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    match &parts[..] {
        [_, Protocol::Udp(_), Protocol::QuicV1, Protocol::WebTransport, .., Protocol::P2p(peer)] => {
            Some((Way::WebTransport, *peer))
        }
        [
            Protocol::Ip4(_) | Protocol::Ip6(_),
            Protocol::Udp(_),
            Protocol::WebRTCDirect,
            Protocol::Certhash(_),
            Protocol::P2p(peer),
        ] => Some((Way::WebRtc, *peer)),
        [_, Protocol::Tcp(_), Protocol::Wss(_), Protocol::P2p(peer)]
        | [_, Protocol::Tcp(_), Protocol::Tls, Protocol::Ws(_), Protocol::P2p(peer)] => {
            Some((Way::WebSocket, *peer))
        }
        [_, Protocol::Tcp(_), Protocol::Ws(_), Protocol::P2p(peer)] if !is_secure => {
            Some((Way::WebSocket, *peer))
        }
        _ => None,
    }
}
