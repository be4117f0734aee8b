//! Probes WebRTC: opens a connection without sending data over it.

use std::net::IpAddr;

use js_sys::{Array, Function, Promise, Reflect};
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use web_sys::{
    RtcConfiguration, RtcDataChannelInit, RtcPeerConnection, RtcPeerConnectionState, RtcSdpType,
    RtcSessionDescriptionInit,
};

use super::PendingProbe;
use crate::dom::DomListener;
use crate::preflight::RtcAddress;
use crate::rtc;

/// Prefix of user fragments (libp2p WebRTC-direct specification).
const UFRAG_PREFIX: &str = "libp2p+webrtc+v1/";
/// Random letters and digits after it; ICE requires 22 at least, as it is also the password.
const UFRAG_LENGTH: usize = 32;

/// Opens a connection; the promise resolves once both sides have agreed on keys, so that packets get through.
pub(super) fn open(address: &RtcAddress) -> Result<PendingProbe, JsValue> {
    let configuration = RtcConfiguration::new();
    // No ICE servers: the listener is reachable, and no third party is asked.
    configuration.set_ice_servers(&Array::new());
    let peer = RtcPeerConnection::new_with_configuration(&configuration)?;
    // Without a channel there is nothing to negotiate.
    let options = RtcDataChannelInit::new();
    options.set_negotiated(true);
    options.set_id(0);
    let channel = peer.create_data_channel_with_data_channel_dict("", &options);
    let ufrag = format!("{UFRAG_PREFIX}{}", random_text());
    let answer = answer(address, &ufrag);
    let negotiated = peer.clone();
    let opened = future_to_promise(async move {
        let _alive = channel;
        negotiate(&negotiated, &ufrag, &answer).await?;
        connected(&negotiated).await.map(|()| JsValue::TRUE)
    });
    Ok((opened, Box::new(move || peer.close())))
}

async fn negotiate(peer: &RtcPeerConnection, ufrag: &str, answer: &str) -> Result<(), JsValue> {
    let offer = JsFuture::from(peer.create_offer()).await?;
    let offer = Reflect::get(&offer, &"sdp".into())?.as_string().unwrap_or_default();
    let offer = rtc::with_credentials(&offer, ufrag).map_err(|_| "the browser's offer is another one")?;
    let description = |kind, text: &str| {
        let description = RtcSessionDescriptionInit::new(kind);
        description.set_sdp(text);
        description
    };
    JsFuture::from(peer.set_local_description(&description(RtcSdpType::Offer, &offer))).await?;
    JsFuture::from(peer.set_remote_description(&description(RtcSdpType::Answer, answer))).await.map(drop)
}

/// Waits until the connection is connected; fails if it is closed.
async fn connected(peer: &RtcPeerConnection) -> Result<(), JsValue> {
    let mut listener = None;
    let decided = Promise::new(&mut |resolve, reject| {
        decide(peer, &resolve, &reject);
        let watched = peer.clone();
        listener = Some(DomListener::new(peer, "connectionstatechange", move |_| {
            decide(&watched, &resolve, &reject);
        }));
    });
    JsFuture::from(decided).await.map(drop)
}

fn decide(peer: &RtcPeerConnection, resolve: &Function, reject: &Function) {
    let _ = match peer.connection_state() {
        RtcPeerConnectionState::Connected => resolve.call0(&JsValue::NULL),
        RtcPeerConnectionState::Failed => reject.call1(&JsValue::NULL, &"no packet got through".into()),
        RtcPeerConnectionState::Closed => reject.call1(&JsValue::NULL, &"".into()),
        _ => return,
    };
}

/// The listener's answer, generated here as it never sees the offer (libp2p WebRTC-direct specification).
fn answer(address: &RtcAddress, ufrag: &str) -> String {
    let RtcAddress { ip, port, certificate } = address;
    let version = if matches!(ip, IpAddr::V4(_)) { "IP4" } else { "IP6" };
    let fingerprint: Vec<String> = certificate.iter().map(|byte| format!("{byte:02X}")).collect();
    let fingerprint = fingerprint.join(":");
    [
        "v=0",
        &format!("o=- 0 0 IN {version} {ip}"),
        "s=-",
        "t=0 0",
        "a=ice-lite",
        &format!("m=application {port} UDP/DTLS/SCTP webrtc-datachannel"),
        &format!("c=IN {version} {ip}"),
        "a=mid:0",
        "a=ice-options:ice2",
        &format!("a=ice-ufrag:{ufrag}"),
        &format!("a=ice-pwd:{ufrag}"),
        &format!("a=fingerprint:sha-256 {fingerprint}"),
        "a=setup:passive",
        "a=sctp-port:5000",
        "a=max-message-size:16384",
        &format!("a=candidate:1 1 UDP 1 {ip} {port} typ host"),
        "a=end-of-candidates",
        "",
    ]
    .join("\r\n")
}

/// A random name of one attempt; it need not be secret.
fn random_text() -> String {
    let digit = || char::from_digit((js_sys::Math::random() * 36.0) as u32, 36).unwrap_or('0');
    std::iter::repeat_with(digit).take(UFRAG_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_names_the_address_and_the_certificate() {
        let address = RtcAddress { ip: [192, 0, 2, 1].into(), port: 4003, certificate: [0xab; 32] };
        let answer = answer(&address, "libp2p+webrtc+v1/x");
        for line in [
            "c=IN IP4 192.0.2.1",
            "m=application 4003 UDP/DTLS/SCTP webrtc-datachannel",
            "a=ice-pwd:libp2p+webrtc+v1/x",
            "a=candidate:1 1 UDP 1 192.0.2.1 4003 typ host",
        ] {
            assert!(answer.lines().any(|found| found == line), "{line} in {answer}");
        }
        assert_eq!(answer.matches("AB:").count(), 31, "{answer}");
    }
}
