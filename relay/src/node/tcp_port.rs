//! TCP that dials from the port that it listens on where it can, and else from another one.
//!
//! A peer that is dialled from there sees the address at which this one may be reached, as hole punching wants it. The dial itself needs no
//! certain port: where the system does not lend it, another one is as good. libp2p's own transport takes another one only where a
//! connection between the two ports stands.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use libp2p::core::transport::{DialOpts, ListenerId, PortUse, TransportError, TransportEvent};
use libp2p::tcp::tokio::Transport as Tcp;
use libp2p::{Multiaddr, Transport, tcp};

/// A transport of sockets.
pub(super) struct AnyPort(Tcp);

impl AnyPort {
    pub(super) fn new() -> Self {
        Self(Tcp::new(tcp::Config::default().nodelay(true)))
    }
}

impl Transport for AnyPort {
    type Output = <Tcp as Transport>::Output;
    type Error = io::Error;
    type ListenerUpgrade = <Tcp as Transport>::ListenerUpgrade;
    type Dial = BoxFuture<'static, io::Result<Self::Output>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.0.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.0.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        let dial = self.0.dial(address.clone(), opts)?;
        let elsewhere = move |error: io::Error| {
            tracing::debug!(%address, %error, "dialled from another port than the one that is listened on");
            // It listens nowhere.
            Self::new().dial(address, DialOpts { port_use: PortUse::New, ..opts })
        };
        let dial = async move {
            match dial.await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && opts.port_use == PortUse::Reuse => {
                    elsewhere(error).map_err(io::Error::other)?.await
                }
                ended => ended,
            }
        };
        Ok(dial.boxed())
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.0).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::future::poll_fn;
    use libp2p::core::Endpoint;
    use libp2p::multiaddr::Protocol;
    use socket2::{Domain, SockAddr, Socket, Type};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Holds a port that somebody listens on, and shares it with nobody from then on.
    fn hold(port: u16) -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&SockAddr::from(std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, port)))).unwrap();
        socket.set_reuse_port(false).unwrap();
        socket.set_reuse_address(false).unwrap();
        socket
    }

    #[tokio::test]
    async fn a_dial_needs_no_certain_port() {
        let mut transport = AnyPort::new();
        transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        let event = poll_fn(|cx| Pin::new(&mut transport).poll(cx)).await;
        let listening = event.into_new_address().unwrap();
        let Some(Protocol::Tcp(port)) = listening.iter().nth(1) else { panic!("{listening}") };
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to: Multiaddr =
            format!("/ip4/127.0.0.1/tcp/{}", server.local_addr().unwrap().port()).parse().unwrap();
        let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::Reuse };
        let mut sources = Vec::new();
        let mut held = None;
        for _ in 0..2 {
            let dialled = transport.dial(to.clone(), opts).unwrap().await.unwrap();
            sources.push(dialled.0.local_addr().unwrap().port() == port);
            held.get_or_insert_with(|| hold(port));
        }
        assert_eq!(sources, [true, false]);
    }
}
