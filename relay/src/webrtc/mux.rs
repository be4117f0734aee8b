//! The socket behind the front: a queue of datagrams for each client, and a slot for each new client.
//!
//! A client is known by the name that the front gave it, which no other client gets again. Datagrams of a client
//! whose connection is over are dropped, and so is what comes faster than it is read.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::UdpSocket;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use webrtc::ice::udp_mux::UDPMux;
use webrtc::util::{Conn, Error as ConnError};

use super::greeting::ufrag_of;
use crate::tasks;
use crate::udp::bind_udp;

/// Names that are remembered, those of connections that are over among them.
const CLIENTS_MAX: usize = 8192;
/// Greetings that wait for their handshake to begin; clients repeat them.
const GREETINGS_MAX: usize = 64;
/// Datagrams of one client that were not read.
const DATAGRAMS_MAX: usize = 1024;
/// Bytes of all clients together that were not read.
const QUEUED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest datagram: the front's own limit.
const DATAGRAM_BYTES_MAX: usize = 8192;
/// After the socket failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// A client that greets for the first time.
pub(super) struct Greeted {
    /// What the front calls it.
    pub(super) alias: SocketAddr,
    /// The name that it takes in the handshake.
    pub(super) ufrag: String,
    pub(super) link: Arc<ClientConn>,
}

/// A bound socket; dropping it ends its task, and with it every client connection.
pub(super) struct Mux {
    address: SocketAddr,
    greeted: mpsc::Receiver<Greeted>,
    _task: AbortOnDropHandle<()>,
}

impl Mux {
    /// Binds a port of this machine. Needs a tokio runtime.
    pub(super) fn bind() -> io::Result<Self> {
        let socket = Arc::new(bind((Ipv4Addr::LOCALHOST, 0).into())?);
        let address = socket.local_addr()?;
        let (sender, greeted) = mpsc::channel(GREETINGS_MAX);
        let task = tasks::spawn("webrtc packets", pass(socket, sender));
        Ok(Self { address, greeted, _task: task })
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The next client that was not here before; pending for ever once the task has ended.
    pub(super) fn poll_greeted(&mut self, cx: &mut Context<'_>) -> Poll<Greeted> {
        match self.greeted.poll_recv(cx) {
            Poll::Ready(Some(greeted)) => Poll::Ready(greeted),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

/// A socket that bears a whole window of SCTP at once: with the system's default most of a burst is lost, and its last
/// packet is sent again only a second later. Needs a tokio runtime.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = bind_udp(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

type Datagrams = mpsc::Sender<Box<[u8]>>;

async fn pass(socket: Arc<UdpSocket>, greeted: mpsc::Sender<Greeted>) {
    let queued = Arc::<AtomicUsize>::default();
    let mut clients = HashMap::<SocketAddr, Datagrams>::new();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let Ok((n_bytes, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            continue;
        };
        let Some(datagram) = buffer.get(..n_bytes) else { continue };
        if let Some(client) = clients.get(&from) {
            queue(client, datagram, &queued);
            continue;
        }
        let Some(ufrag) = ufrag_of(datagram) else { continue };
        if clients.len() >= CLIENTS_MAX {
            clients.retain(|_, client| !client.is_closed());
        }
        let Ok(permit) = greeted.try_reserve() else { continue };
        if clients.len() >= CLIENTS_MAX {
            continue;
        }
        let (client, link) = ClientConn::new(Arc::clone(&socket), from, Arc::clone(&queued));
        queue(&client, datagram, &queued);
        clients.insert(from, client);
        permit.send(Greeted { alias: from, ufrag: ufrag.to_owned(), link: Arc::new(link) });
    }
}

fn queue(client: &Datagrams, datagram: &[u8], queued: &AtomicUsize) {
    // What is not taken is lost, as on the way here.
    if queued.load(Ordering::Relaxed) + datagram.len() <= QUEUED_BYTES_MAX
        && let Ok(permit) = client.try_reserve()
    {
        queued.fetch_add(datagram.len(), Ordering::Relaxed);
        permit.send(datagram.into());
    }
}

/// The datagram connection to one client, as ICE expects it.
pub(super) struct ClientConn {
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    received: Mutex<mpsc::Receiver<Box<[u8]>>>,
    /// Bytes queued on all connections.
    queued: Arc<AtomicUsize>,
    closed: CancellationToken,
}

impl ClientConn {
    fn new(socket: Arc<UdpSocket>, client: SocketAddr, queued: Arc<AtomicUsize>) -> (Datagrams, Self) {
        let (sender, received) = mpsc::channel(DATAGRAMS_MAX);
        let closed = CancellationToken::new();
        (sender, Self { socket, client, received: Mutex::new(received), queued, closed })
    }
}

impl Drop for ClientConn {
    fn drop(&mut self) {
        let received = self.received.get_mut();
        received.close();
        while let Ok(datagram) = received.try_recv() {
            self.queued.fetch_sub(datagram.len(), Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl Conn for ClientConn {
    async fn connect(&self, _: SocketAddr) -> Result<(), ConnError> {
        Ok(())
    }

    async fn recv(&self, buffer: &mut [u8]) -> Result<usize, ConnError> {
        Ok(self.recv_from(buffer).await?.0)
    }

    async fn recv_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr), ConnError> {
        let mut received = self.received.lock().await;
        let datagram = tokio::select! {
            datagram = received.recv() => datagram.ok_or(ConnError::ErrBufferClosed)?,
            () = self.closed.cancelled() => {
                received.close();
                return Err(ConnError::ErrBufferClosed);
            }
        };
        self.queued.fetch_sub(datagram.len(), Ordering::Relaxed);
        let into = buffer.get_mut(..datagram.len()).ok_or(ConnError::ErrBufferShort)?;
        into.copy_from_slice(&datagram);
        Ok((datagram.len(), self.client))
    }

    async fn send(&self, datagram: &[u8]) -> Result<usize, ConnError> {
        Ok(self.socket.send_to(datagram, self.client).await?)
    }

    async fn send_to(&self, datagram: &[u8], _: SocketAddr) -> Result<usize, ConnError> {
        self.send(datagram).await
    }

    fn local_addr(&self) -> Result<SocketAddr, ConnError> {
        Ok(self.socket.local_addr()?)
    }

    fn remote_addr(&self) -> Option<SocketAddr> {
        Some(self.client)
    }

    async fn close(&self) -> Result<(), ConnError> {
        self.closed.cancel();
        Ok(())
    }

    fn as_any(&self) -> &(dyn Any + Send + Sync) {
        self
    }
}

/// A mux with one connection, which it returns for every name.
pub(super) struct SingleConn(pub(super) Arc<dyn Conn + Send + Sync>);

#[async_trait]
impl UDPMux for SingleConn {
    async fn close(&self) -> Result<(), ConnError> {
        Ok(())
    }

    async fn get_conn(self: Arc<Self>, _: &str) -> Result<Arc<dyn Conn + Send + Sync>, ConnError> {
        Ok(Arc::clone(&self.0))
    }

    async fn remove_conn_by_ufrag(&self, _: &str) {}
}
