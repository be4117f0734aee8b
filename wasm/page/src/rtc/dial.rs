//! Opens a connection to a listener that never sees the offer (libp2p WebRTC-direct specification).

use std::rc::Rc;

use barnraise_messages::rtc::{HANDSHAKE_CHANNEL, RtcEvent};
use js_sys::Reflect;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{
    RtcConfiguration, RtcDataChannelInit, RtcPeerConnection, RtcSdpType, RtcSessionDescriptionInit,
};

use super::channel::ChannelOwner as _;
use super::connection::RtcConnection;
use super::error::RtcError;
use super::sdp;
use crate::dom;

/// Starts a dial; the connection reports its outcome.
pub(super) fn begin(connection: Rc<RtcConnection>, ufrag: String, answer: String) {
    spawn_local(async move {
        if let Err(error) = negotiate(&connection, &ufrag, &answer).await {
            connection.fail(&error);
        }
    });
}

async fn negotiate(connection: &Rc<RtcConnection>, ufrag: &str, answer: &str) -> Result<(), RtcError> {
    let has_webrtc = Reflect::has(&dom::window(), &"RTCPeerConnection".into()).unwrap_or_default();
    if !has_webrtc {
        return Err(RtcError::NotInBrowser);
    }
    let configuration = RtcConfiguration::new();
    // No ICE servers: the listener is reachable, and no third party is asked.
    configuration.set_ice_servers(&js_sys::Array::new());
    let peer = RtcPeerConnection::new_with_configuration(&configuration)?;
    connection.watch(peer.clone());
    let options = RtcDataChannelInit::new();
    options.set_negotiated(true);
    options.set_id(0);
    let handshake = peer.create_data_channel_with_data_channel_dict("", &options);
    connection.add(HANDSHAKE_CHANNEL, handshake);

    let offer = JsFuture::from(peer.create_offer()).await?;
    let offer = Reflect::get(&offer, &"sdp".into())?;
    let offer = offer.as_string().ok_or(RtcError::NoOffer)?;
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
) -> Result<(), RtcError> {
    let description = RtcSessionDescriptionInit::new(kind);
    description.set_sdp(text);
    JsFuture::from(set(&description)).await.map(drop).map_err(RtcError::from)
}
