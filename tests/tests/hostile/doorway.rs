//! A way to the backbone that begins at another address of this machine: whoever comes through it is somebody
//! else to limits by address.

use std::net::{IpAddr, SocketAddr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Passes TCP connections on; closed when dropped.
pub(super) struct Doorway {
    address: Multiaddr,
    task: AbortHandle,
}

impl Doorway {
    /// To the TCP address `to`, which ends with a peer id; beyond it everybody seems to come from `from`.
    pub(super) async fn open(from: IpAddr, to: &Multiaddr) -> Self {
        let (target, peer) = (socket_address(to), to.iter().last().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let address = Multiaddr::from(here.ip()).with(Protocol::Tcp(here.port())).with(peer.acquire());
        let task = tokio::spawn(async move {
            let mut passing = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                passing.spawn(async move {
                    if let Ok(mut far) = connect_from(from, target).await {
                        // Whoever of them ends it, it ended.
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
                while passing.try_join_next().is_some() {}
            }
        });
        Self { address, task: task.abort_handle() }
    }

    /// To be dialled in place of the backbone's.
    pub(super) fn address(&self) -> Multiaddr {
        self.address.clone()
    }
}

impl Drop for Doorway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A TCP connection that comes from `from`.
pub(super) async fn connect_from(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// Of `/ip4/…/tcp/…`.
pub(super) fn socket_address(address: &Multiaddr) -> SocketAddr {
    match address.iter().take(2).collect::<Vec<_>>()[..] {
        [Protocol::Ip4(ip), Protocol::Tcp(port)] => (ip, port).into(),
        _ => panic!("{address}"),
    }
}
