//! Opens a connection to a listener that never sees the offer (libp2p WebRTC-direct specification).

use std::rc::Rc;

use barnraise_messages::rtc::{HANDSHAKE_CHANNEL, RtcEvent};
use js_sys::Reflect;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{
    RtcConfiguration, RtcDataChannelInit, RtcPeerConnection, RtcSdpType, RtcSessionDescriptionInit,
};

use super::connection::Connection;
use super::sdp;
use crate::dom;

/// Begins; how it went, the connection tells.
pub(super) fn begin(connection: Rc<Connection>, ufrag: String, answer: String) {
    spawn_local(async move {
        if let Err(reason) = negotiate(&connection, &ufrag, &answer).await {
            connection.fail(&reason);
        }
    });
}

async fn negotiate(connection: &Rc<Connection>, ufrag: &str, answer: &str) -> Result<(), String> {
    let has_webrtc = Reflect::has(&dom::window(), &"RTCPeerConnection".into()).unwrap_or_default();
    if !has_webrtc {
        return Err("this browser has no WebRTC".to_owned());
    }
    let configuration = RtcConfiguration::new();
    // No servers: the listener can be reached, and nobody else is to know.
    configuration.set_ice_servers(&js_sys::Array::new());
    let peer = RtcPeerConnection::new_with_configuration(&configuration).map_err(describe)?;
    connection.watch(peer.clone());
    let options = RtcDataChannelInit::new();
    options.set_negotiated(true);
    options.set_id(0);
    let handshake = peer.create_data_channel_with_data_channel_dict("", &options);
    connection.add(HANDSHAKE_CHANNEL, handshake);

    let offer = JsFuture::from(peer.create_offer()).await.map_err(describe)?;
    let offer = Reflect::get(&offer, &"sdp".into()).map_err(describe)?;
    let offer = offer.as_string().ok_or("the browser's offer has no text")?;
    let lacks = |error| format!("the browser's offer lacks what the specification wants: {error:?}");
    let offer = sdp::with_credentials(&offer, ufrag).map_err(lacks)?;
    let fingerprint = sdp::fingerprint(&offer).map_err(lacks)?.to_vec();
    connection.tell(&RtcEvent::Described { fingerprint });
    describe_as(RtcSdpType::Offer, &offer, |offer| peer.set_local_description(offer)).await?;
    describe_as(RtcSdpType::Answer, answer, |answer| peer.set_remote_description(answer)).await
}

async fn describe_as(
    kind: RtcSdpType,
    text: &str,
    set: impl FnOnce(&RtcSessionDescriptionInit) -> js_sys::Promise,
) -> Result<(), String> {
    let description = RtcSessionDescriptionInit::new(kind);
    description.set_sdp(text);
    JsFuture::from(set(&description)).await.map(drop).map_err(describe)
}

#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
fn describe(error: JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => {
            let message = Reflect::get(&error, &"message".into()).ok().and_then(|text| text.as_string());
            message.unwrap_or_else(|| format!("{error:?}"))
        }
    }
}
