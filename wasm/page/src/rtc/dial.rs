//! Opens a connection to a listener that never sees the offer (libp2p WebRTC-direct specification).

use std::rc::Rc;

use barnraise_messages::rtc::{HANDSHAKE_CHANNEL, RtcEvent, RtcFailure};
use js_sys::Reflect;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{
    RtcConfiguration, RtcDataChannelInit, RtcPeerConnection, RtcSdpType, RtcSessionDescriptionInit,
};

use super::channel::ChannelOwner as _;
use super::connection::RtcConnection;
use super::error::failure;
use super::sdp;
use crate::dom;

/// Starts a dial; the connection reports its outcome.
pub(super) fn begin(connection: Rc<RtcConnection>, ufrag: String, answer: String) {
    spawn_local(async move {
        if let Err(reason) = negotiate(&connection, &ufrag, &answer).await {
            connection.fail(reason);
        }
    });
}

async fn negotiate(connection: &Rc<RtcConnection>, ufrag: &str, answer: &str) -> Result<(), RtcFailure> {
    let has_webrtc = Reflect::has(&dom::window(), &"RTCPeerConnection".into()).unwrap_or_default();
    if !has_webrtc {
        return Err(RtcFailure::NotInBrowser);
    }
    let configuration = RtcConfiguration::new();
    // No ICE servers: the listener is reachable, and no third party is asked.
    configuration.set_ice_servers(&js_sys::Array::new());
    let peer = RtcPeerConnection::new_with_configuration(&configuration).map_err(|error| failure(&error))?;
    connection.watch(peer.clone());
    let options = RtcDataChannelInit::new();
    options.set_negotiated(true);
    options.set_id(0);
    let handshake = peer.create_data_channel_with_data_channel_dict("", &options);
    connection.add(HANDSHAKE_CHANNEL, handshake);

    let offer = JsFuture::from(peer.create_offer()).await.map_err(|error| failure(&error))?;
    let offer = Reflect::get(&offer, &"sdp".into()).map_err(|error| failure(&error))?;
    let offer = offer.as_string().ok_or(RtcFailure::NoOffer)?;
    let offer = sdp::with_credentials(&offer, ufrag)?;
    let fingerprint = sdp::fingerprint(&offer)?.to_vec();
    connection.tell(&RtcEvent::Described { fingerprint });
    describe_as(RtcSdpType::Offer, &offer, |offer| peer.set_local_description(offer)).await?;
    describe_as(RtcSdpType::Answer, answer, |answer| peer.set_remote_description(answer)).await
}

async fn describe_as(
    kind: RtcSdpType,
    text: &str,
    set: impl FnOnce(&RtcSessionDescriptionInit) -> js_sys::Promise,
) -> Result<(), RtcFailure> {
    let description = RtcSessionDescriptionInit::new(kind);
    description.set_sdp(text);
    JsFuture::from(set(&description)).await.map(drop).map_err(|error| failure(&error))
}
