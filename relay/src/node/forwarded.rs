//! Connections that a trusted proxy passes on, under the address of the visitor.
//!
//! Limits depend on the source address of a connection, and are checked before a byte of it is read. So one that comes from a
//! trusted proxy is announced only once the head of its HTTP request is there, with the address that
//! `X-Forwarded-For` has. The WebSocket layer reads the head again. Connections from other sources are passed on
//! unchanged, and their headers are never trusted.

#[cfg(test)]
mod fuzz;

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use futures::{AsyncRead, AsyncReadExt as _, FutureExt as _};
use libp2p::core::transport::{DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, Transport};

use super::passing::writes_as_its_socket;
use crate::guard_metrics::{GuardMetrics, Violation};
use crate::proxies::TrustedProxies;

/// Connections of proxies whose head is being read: a proxy sends it whole.
const READING_MAX: usize = 256;
/// No proxy passes on a longer head.
const HEAD_BYTES_MAX: usize = 32 * 1024;
const END_OF_HEAD: &[u8] = b"\r\n\r\n";
const FORWARDED_FOR: &[u8] = b"x-forwarded-for";

/// A transport of sockets, some of which come through proxies.
pub(super) struct Forwarded<T: Transport> {
    inner: T,
    proxies: TrustedProxies,
    timeout: Duration,
    metrics: GuardMetrics,
    reading: FuturesUnordered<BoxFuture<'static, Option<Arrival<T>>>>,
}

/// A connection of a proxy whose head was read.
struct Arrival<T: Transport> {
    listener_id: ListenerId,
    local_addr: Multiaddr,
    send_back_addr: Multiaddr,
    socket: Replayed<T::Output>,
}

type ForwardedUpgrade<T> =
    BoxFuture<'static, Result<Replayed<<T as Transport>::Output>, <T as Transport>::Error>>;

impl<T: Transport> Forwarded<T> {
    /// `timeout` is for the head of a connection of a proxy.
    pub(super) fn new(inner: T, proxies: TrustedProxies, timeout: Duration, metrics: GuardMetrics) -> Self {
        Self { inner, proxies, timeout, metrics, reading: FuturesUnordered::new() }
    }
}

impl<T> Forwarded<T>
where
    T: Transport,
    T::Output: AsyncRead + Unpin + Send + 'static,
    T::ListenerUpgrade: Send + 'static,
{
    /// Reads the request head of a connection from a proxy.
    fn read(
        &mut self,
        upgrade: T::ListenerUpgrade,
        proxy: IpAddr,
        listener_id: ListenerId,
        local_addr: Multiaddr,
        send_back_addr: Multiaddr,
    ) {
        if self.reading.len() >= READING_MAX {
            self.metrics.count(Violation::HandshakeGaveWay, 1);
            return;
        }
        let (proxies, metrics, timeout) = (self.proxies.clone(), self.metrics.clone(), self.timeout);
        let reading = async move {
            let mut socket = upgrade.await.ok()?;
            let violation = match tokio::time::timeout(timeout, read_head(&mut socket)).await {
                Ok(Ok(head)) => {
                    let visitor = proxies.visitor(proxy, forwarded_for(&head).into_iter());
                    let send_back_addr = with_address(&send_back_addr, visitor);
                    let socket = Replayed { head, n_read: 0, socket };
                    return Some(Arrival { listener_id, local_addr, send_back_addr, socket });
                }
                Ok(Err(error)) => {
                    tracing::debug!(%proxy, %error, "no request of a visitor");
                    Violation::HandshakeFailed
                }
                Err(_) => Violation::HandshakeTimeout,
            };
            metrics.count(violation, 1);
            None
        };
        self.reading.push(reading.boxed());
    }
}

/// The head of a request, and what came with it.
async fn read_head<S: AsyncRead + Unpin>(socket: &mut S) -> io::Result<Vec<u8>> {
    let (mut head, mut piece) = (Vec::new(), [0; 2048]);
    while !head.windows(END_OF_HEAD.len()).any(|part| part == END_OF_HEAD) {
        if head.len() >= HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let n_bytes = socket.read(&mut piece).await?;
        if n_bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(piece.get(..n_bytes).unwrap_or_default());
    }
    Ok(head)
}

/// Every value of `X-Forwarded-For`, in order.
fn forwarded_for(head: &[u8]) -> Vec<&[u8]> {
    let end = head.windows(END_OF_HEAD.len()).position(|part| part == END_OF_HEAD).unwrap_or(head.len());
    let lines = head.get(..end).unwrap_or_default().split(|byte| *byte == b'\n').skip(1);
    let fields = lines.filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(colon)?;
        name.eq_ignore_ascii_case(FORWARDED_FOR).then(|| value.get(1..).unwrap_or_default())
    });
    fields.collect()
}

/// The same with another host.
fn with_address(address: &Multiaddr, host: IpAddr) -> Multiaddr {
    address.iter().skip(1).fold(Multiaddr::from(host), Multiaddr::with)
}

fn host(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

impl<T> Transport for Forwarded<T>
where
    T: Transport + Unpin,
    T::Output: AsyncRead + Unpin + Send + 'static,
    T::Error: Send + 'static,
    T::ListenerUpgrade: Send + 'static,
    T::Dial: Send + 'static,
{
    type Output = Replayed<T::Output>;
    type Error = T::Error;
    type ListenerUpgrade = ForwardedUpgrade<T>;
    type Dial = ForwardedUpgrade<T>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<T::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        opts: DialOpts,
    ) -> Result<ForwardedUpgrade<T>, TransportError<T::Error>> {
        let dial = self.inner.dial(address, opts)?;
        Ok(dial.map(|socket| socket.map(Replayed::nothing)).boxed())
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<ForwardedUpgrade<T>, T::Error>> {
        let this = &mut *self;
        loop {
            match this.reading.poll_next_unpin(cx) {
                Poll::Ready(Some(Some(Arrival { listener_id, local_addr, send_back_addr, socket }))) => {
                    let upgrade = std::future::ready(Ok(socket)).boxed();
                    return Poll::Ready(TransportEvent::Incoming {
                        listener_id,
                        upgrade,
                        local_addr,
                        send_back_addr,
                    });
                }
                Poll::Ready(Some(None)) => continue,
                Poll::Ready(None) | Poll::Pending => {}
            }
            let Poll::Ready(event) = Pin::new(&mut this.inner).poll(cx) else { return Poll::Pending };
            let proxy = match &event {
                TransportEvent::Incoming { send_back_addr, .. } => host(send_back_addr),
                _ => None,
            };
            match (event, proxy.filter(|address| this.proxies.contains(*address))) {
                (
                    TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr },
                    Some(proxy),
                ) => {
                    this.read(upgrade, proxy, listener_id, local_addr, send_back_addr);
                }
                (event, _) => {
                    let replayed = |upgrade: T::ListenerUpgrade| {
                        upgrade.map(|socket| socket.map(Replayed::nothing)).boxed()
                    };
                    return Poll::Ready(event.map_upgrade(replayed));
                }
            }
        }
    }
}

/// A socket of which something was read that is to be read again.
#[derive(Debug)]
pub(super) struct Replayed<S> {
    head: Vec<u8>,
    n_read: usize,
    socket: S,
}

impl<S> Replayed<S> {
    fn nothing(socket: S) -> Self {
        Self { head: Vec::new(), n_read: 0, socket }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Replayed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let left = this.head.get(this.n_read..).unwrap_or_default();
        if left.is_empty() {
            return Pin::new(&mut this.socket).poll_read(cx, into);
        }
        let n_bytes = left.len().min(into.len());
        into[..n_bytes].copy_from_slice(&left[..n_bytes]);
        this.n_read += n_bytes;
        if this.n_read == this.head.len() {
            (this.head, this.n_read) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(n_bytes))
    }
}

writes_as_its_socket!(Replayed);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::AsyncWriteExt as _;
    use libp2p::tcp;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpStream;

    use super::*;

    type ForwardedListener = Forwarded<tcp::tokio::Transport>;

    async fn listening(proxies: &[&str]) -> (ForwardedListener, u16) {
        let proxies: Vec<_> = proxies.iter().map(|proxy| proxy.parse().unwrap()).collect();
        let (timeout, metrics) = (Duration::from_secs(10), GuardMetrics::default());
        let mut transport =
            Forwarded::new(tcp::tokio::Transport::default(), TrustedProxies::new(&proxies), timeout, metrics);
        transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        let event = next(&mut transport).await;
        let TransportEvent::NewAddress { listen_addr, .. } = event else { panic!("{event:?}") };
        let port = listen_addr.iter().find_map(|part| match part {
            Protocol::Tcp(port) => Some(port),
            _ => None,
        });
        (transport, port.unwrap())
    }

    async fn next(
        transport: &mut ForwardedListener,
    ) -> TransportEvent<ForwardedUpgrade<tcp::tokio::Transport>, io::Error> {
        std::future::poll_fn(|cx| Pin::new(&mut *transport).poll(cx)).await
    }

    /// Who somebody is that writes this, and whether all of it is there to be read afterwards.
    async fn seen(proxies: &[&str], request: &str) -> String {
        let (mut transport, port) = listening(proxies).await;
        let mut socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (first, second) = request.split_at(request.len() / 2);
        tokio::io::AsyncWriteExt::write_all(&mut socket, first.as_bytes()).await.unwrap();
        socket.flush().await.unwrap();
        let (event, ()) = futures::join!(next(&mut transport), async {
            tokio::io::AsyncWriteExt::write_all(&mut socket, second.as_bytes()).await.unwrap();
            tokio::io::AsyncWriteExt::shutdown(&mut socket).await.unwrap();
        });
        let TransportEvent::Incoming { upgrade, send_back_addr, .. } = event else { panic!("{event:?}") };
        let mut upgraded = upgrade.await.unwrap();
        let mut read = String::new();
        upgraded.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, request);
        upgraded.close().await.unwrap();
        host(&send_back_addr).unwrap().to_string()
    }

    #[tokio::test]
    async fn a_visitor_has_its_own_address_behind_a_trusted_proxy_and_nowhere_else() {
        let request =
            "GET / HTTP/1.1\r\nHost: run.example\r\nx-forwarded-FOR: 203.0.113.1, 198.51.100.7\r\n\r\nrest";
        assert_eq!(seen(&["127.0.0.1"], request).await, "198.51.100.7");
        assert_eq!(seen(&["127.0.0.1", "198.51.100.0/24"], request).await, "203.0.113.1");
        assert_eq!(seen(&[], request).await, "127.0.0.1", "nobody is trusted");
        assert_eq!(seen(&["10.0.0.0/8"], request).await, "127.0.0.1", "another one is trusted");
    }

    #[tokio::test]
    async fn a_proxy_that_says_nothing_stands_for_its_visitors() {
        assert_eq!(seen(&["127.0.0.1"], "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await, "127.0.0.1");
        let nonsense = "GET / HTTP/1.1\r\nX-Forwarded-For: unknown\r\n\r\n";
        assert_eq!(seen(&["127.0.0.1"], nonsense).await, "127.0.0.1");
        let in_the_body = "GET / HTTP/1.1\r\n\r\nX-Forwarded-For: 198.51.100.7\r\n\r\n";
        assert_eq!(seen(&["127.0.0.1"], in_the_body).await, "127.0.0.1");
    }

    #[tokio::test]
    async fn what_is_no_request_is_counted_and_holds_up_nobody() {
        let (mut transport, port) = listening(&["127.0.0.1"]).await;
        let metrics = transport.metrics.clone();
        let mut endless = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let mut good = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let flood = vec![b'a'; HEAD_BYTES_MAX + 1];
        tokio::io::AsyncWriteExt::write_all(&mut endless, &flood).await.unwrap();
        while metrics.n_counted(Violation::HandshakeFailed) == 0 {
            let poll = |cx: &mut Context<'_>| Poll::Ready(Pin::new(&mut transport).poll(cx).is_ready());
            assert!(!std::future::poll_fn(poll).await);
            tokio::task::yield_now().await;
        }
        tokio::io::AsyncWriteExt::write_all(&mut good, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert!(matches!(next(&mut transport).await, TransportEvent::Incoming { .. }));
    }
}
