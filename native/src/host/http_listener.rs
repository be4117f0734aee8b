//! A listener that bounds the HTTP connections of the page, in number and in idle time.
//!
//! A client that connects and sends no request, sends it byte by byte, or does not read its response, would otherwise
//! hold a file descriptor for ever; without free ones contributors could not connect either. One address cannot use up
//! all connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use barnraise_relay::{Node, Violation};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use crate::host::visitors::{IpNetwork, Seat, Seats, Visitor, source_of};

/// One address may have one of this many parts of all connections.
const SHARES: usize = 4;

/// A listener with a bounded number of connections; further ones wait until one ends.
#[derive(Debug)]
pub struct BoundedListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
    timeout: Duration,
    node: Option<Node>,
    share: Option<Share>,
}

/// Bound of the connections of one address.
#[derive(Debug)]
struct Share {
    seats: Seats,
    /// Proxies, behind which there may be many clients: they have no bound.
    proxies: Arc<[IpNetwork]>,
}

impl Share {
    /// Counts a connection from `remote`; `None` if that address has as many as it may have.
    fn take(&self, remote: IpAddr) -> Option<Seat> {
        let is_of_many = remote.to_canonical().is_loopback()
            || self.proxies.iter().any(|network| network.contains(remote));
        self.seats.take((!is_of_many).then(|| Visitor(source_of(remote))))
    }
}

/// A connection of the listener. It ends when nothing was written to it for too long: either no request came, or the
/// client does not read the response.
#[derive(Debug)]
pub struct BoundedConnection {
    stream: TcpStream,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    node: Option<Node>,
    _seat: Option<Seat>,
    _place: OwnedSemaphorePermit,
}

impl BoundedListener {
    /// A listener of at most `connections` at a time, each closed after `timeout` without a response. `node`, if given,
    /// counts these as violations.
    pub fn new(listener: TcpListener, connections: usize, timeout: Duration, node: Option<Node>) -> Self {
        let places = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
        Self { listener, places, timeout, node, share: None }
    }

    /// With a bound for each address: a quarter of all connections; further ones are closed at once. This machine and
    /// `proxies`, behind which there may be many clients, have no such bound.
    #[must_use]
    pub fn shared(self, proxies: &[IpNetwork]) -> Self {
        let n_of_one_max = self.places.available_permits().div_ceil(SHARES);
        let seats = Seats::new(usize::MAX, n_of_one_max);
        Self { share: Some(Share { seats, proxies: proxies.into() }), ..self }
    }
}

impl Listener for BoundedListener {
    type Io = BoundedConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedConnection, SocketAddr) {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                // Never: the semaphore is not closed.
                return std::future::pending().await;
            };
            let (stream, address) = Listener::accept(&mut self.listener).await;
            let seat = self.share.as_ref().map(|share| share.take(address.ip()));
            if matches!(seat, Some(None)) {
                if let Some(node) = &self.node {
                    node.count(Violation::ConnectionsOfAddress);
                }
                continue;
            }
            let (timeout, node) = (self.timeout, self.node.clone());
            let timer = Box::pin(tokio::time::sleep(timeout));
            let seat = seat.flatten();
            let connection = BoundedConnection { stream, timeout, timer, node, _seat: seat, _place: place };
            return (connection, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl BoundedConnection {
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        ready!(self.timer.as_mut().poll(cx));
        if let Some(node) = &self.node {
            node.count(Violation::SlowVisitor);
        }
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "nothing was answered for too long"))
    }
}

impl AsyncRead for BoundedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Pending => self.poll_late(cx).map(Err),
            ready => ready,
        }
    }
}

impl AsyncWrite for BoundedConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Pending => self.poll_late(cx).map(Err),
            Poll::Ready(Ok(n_bytes)) => {
                let deadline = Instant::now() + self.timeout;
                self.timer.as_mut().reset(deadline);
                Poll::Ready(Ok(n_bytes))
            }
            failed => failed,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::Router;
    use axum::routing::get;
    use barnraise_relay::NodeConfig;
    use libp2p::identity::Keypair;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn answer(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn one_address_does_not_get_all_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = BoundedListener::new(listener, 8, Duration::from_secs(30), None);
        let share = listener.shared(&["10.0.0.0/8".parse().unwrap()]).share.unwrap();
        let take = |remote: &str| share.take(remote.parse().unwrap());
        let held = [take("2001:db8::1"), take("2001:db8::2")];
        assert!(held.iter().all(Option::is_some));
        assert!(take("2001:db8::3").is_none(), "one /64 is one address, and has its quarter");
        assert!(take("198.51.100.7").is_some(), "there is room for another one");
        for many in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3"] {
            let held: Vec<_> = (0..20).map(|_| take(many)).collect();
            assert!(held.iter().all(Option::is_some), "{many}");
        }
        drop(held);
        assert!(take("2001:db8::3").is_some(), "they are free again");
    }

    #[tokio::test]
    async fn a_connection_without_a_request_is_closed() {
        let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = BoundedListener::new(listener, 2, Duration::from_secs(3), Some(node.clone()));
        let address = listener.local_addr().unwrap();
        tokio::spawn(axum::serve(listener, Router::new().route("/", get(|| async { "here" }))).into_future());
        assert!(answer(address).await.ends_with("here"));
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HT").await.unwrap();
        // No connection is free until one of them is closed.
        assert!(answer(address).await.ends_with("here"));
        for stream in [&mut silent, &mut slow] {
            // Closed, or reset.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        // An honest one is never late: three seconds are long for one request, also on a busy machine.
        assert!(node.metrics().contains("barnraise_violations_total{reason=\"slow_visitor\"} 2"));
    }
}
