//! Dials `/ip4|ip6/…/udp/…/webrtc-direct/certhash/…`.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use barnraise_messages::rtc::HANDSHAKE_CHANNEL;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, Pending, select};
use libp2p::core::Endpoint;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use libp2p_webrtc_utils::{Fingerprint, Stream, noise, parse_webrtc_dial_addr, sdp};
use send_wrapper::SendWrapper;

use super::RtcError;
use super::channel::RtcChannel;
use super::link::{RtcLink, ask_page};
use super::muxer::RtcMuxer;
use crate::platform::message_channel::MessageChannel;

/// From the first packet to the end of the handshake.
const TIMEOUT: Duration = Duration::from_secs(10);

/// WebRTC-direct; the page opens the connections.
pub(crate) struct RtcTransport {
    keypair: Keypair,
}

impl RtcTransport {
    pub(crate) fn new(keypair: &Keypair) -> Self {
        Self { keypair: keypair.clone() }
    }
}

impl libp2p::Transport for RtcTransport {
    type Output = (PeerId, RtcMuxer);
    type Error = RtcError;
    type ListenerUpgrade = Pending<Result<Self::Output, RtcError>>;
    type Dial = BoxFuture<'static, Result<Self::Output, RtcError>>;

    fn listen_on(&mut self, _: ListenerId, address: Multiaddr) -> Result<(), TransportError<RtcError>> {
        Err(TransportError::MultiaddrNotSupported(address))
    }

    fn remove_listener(&mut self, _: ListenerId) -> bool {
        false
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<RtcError>> {
        match parse_webrtc_dial_addr(&address) {
            Some((socket, server)) if opts.role == Endpoint::Dialer && socket.port() != 0 => {
                Ok(SendWrapper::new(within_time(socket, server, self.keypair.clone())).boxed())
            }
            _ => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, RtcError>> {
        Poll::Pending
    }
}

async fn within_time(
    socket: SocketAddr,
    server: Fingerprint,
    keypair: Keypair,
) -> Result<(PeerId, RtcMuxer), RtcError> {
    let connecting = pin!(connect(socket, server, keypair));
    match select(connecting, pin!(gloo::timers::future::sleep(TIMEOUT))).await {
        Either::Left((connected, _)) => connected,
        Either::Right(_) => Err(RtcError::Timeout),
    }
}

/// Dropping it ends what it began.
async fn connect(
    socket: SocketAddr,
    server: Fingerprint,
    keypair: Keypair,
) -> Result<(PeerId, RtcMuxer), RtcError> {
    let ufrag = sdp::random_ufrag();
    let answer = sdp::answer(socket, server, &ufrag);
    let channel = MessageChannel::new();
    let link = Rc::new(RtcLink::new(channel.port1()));
    ask_page(ufrag, answer, &channel.port2())?;
    let client = poll_fn(|cx| link.poll_fingerprint(cx)).await?;
    let client = <[u8; 32]>::try_from(client).map_err(|other| RtcError::Fingerprint(other.len()))?;
    poll_fn(|cx| link.poll_opened(HANDSHAKE_CHANNEL, cx)).await?;
    let handshake = RtcChannel::new(Rc::clone(&link), HANDSHAKE_CHANNEL);
    // The handshake stream needs no drop listener: the connection would end with it.
    let (stream, _) = Stream::new(handshake.clone());
    let peer = noise::outbound(keypair, stream, server, Fingerprint::raw(client)).await;
    let peer = peer.map_err(|error| RtcError::Noise(error.to_string()))?;
    Ok((peer, RtcMuxer::new(link, handshake)))
}
