//! A TCP proxy to a backbone from another address of this machine: to limits by address, its clients are other
//! machines.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// What passes slowly passes in so many pieces.
const TICKS_PER_SECOND: u64 = 20;
/// That the system keeps of what came and was not read.
const SLOW_BUFFER_BYTES: u32 = 16 * 1024;

/// Passes TCP connections on; closed when dropped.
#[derive(Debug)]
pub struct SourceProxy {
    address: Multiaddr,
    task: AbortHandle,
}

impl SourceProxy {
    /// Opens a proxy to the TCP address `to`, which ends with a peer id; its clients appear to come from `from`.
    ///
    /// # Errors
    /// Another address, or no port to listen on.
    pub async fn open(from: IpAddr, to: &Multiaddr) -> Result<Self> {
        Self::paced(from, to, None).await
    }

    /// Likewise; where it is given, so many bytes a second come from the backbone on each connection and no more.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn paced(from: IpAddr, to: &Multiaddr, bytes_per_second: Option<u64>) -> Result<Self> {
        let target = socket_address(to)?;
        let peer = to.iter().last().context("an address without a peer id")?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let here = listener.local_addr()?;
        let address = Multiaddr::from(here.ip()).with(Protocol::Tcp(here.port())).with(peer.acquire());
        let task = tokio::spawn(async move {
            let mut passing = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                passing.spawn(async move {
                    let Ok(mut far) = connect_through(from, target, bytes_per_second.is_some()).await else {
                        return;
                    };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    // One side ends it, and both are ended.
                    let _ = match bytes_per_second {
                        None => tokio::io::copy_bidirectional(&mut near, &mut far).await.map(drop),
                        Some(bytes_per_second) => pass_slowly(near, far, bytes_per_second).await,
                    };
                });
                while passing.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, task: task.abort_handle() })
    }

    /// Address to dial in place of the backbone's.
    pub fn address(&self) -> Multiaddr {
        self.address.clone()
    }
}

impl Drop for SourceProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes bytes both ways, those from `far` slowly.
async fn pass_slowly(near: TcpStream, far: TcpStream, bytes_per_second: u64) -> std::io::Result<()> {
    let (mut from_near, mut to_near) = near.into_split();
    let (mut from_far, mut to_far) = far.into_split();
    let slowly = async {
        let mut piece = vec![0; (bytes_per_second / TICKS_PER_SECOND).max(1) as usize];
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / TICKS_PER_SECOND as u32);
        loop {
            ticks.tick().await;
            match from_far.read(&mut piece).await? {
                0 => return Ok(()),
                n_bytes => to_near.write_all(&piece[..n_bytes]).await?,
            }
        }
    };
    tokio::select! {
        ended = tokio::io::copy(&mut from_near, &mut to_far) => ended.map(drop),
        ended = slowly => ended,
    }
}

/// One whose line is slow has no room for what it does not take.
async fn connect_through(from: IpAddr, to: SocketAddr, is_slow: bool) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if is_slow {
        socket.set_recv_buffer_size(SLOW_BUFFER_BYTES)?;
    }
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// A TCP connection that comes from `from`.
///
/// # Errors
/// Nobody answers.
pub async fn connect_from(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    connect_through(from, to, false).await
}

/// Of `/ip4/…/tcp/…`.
///
/// # Errors
/// Another address.
pub fn socket_address(address: &Multiaddr) -> Result<SocketAddr> {
    match address.iter().take(2).collect::<Vec<_>>()[..] {
        [Protocol::Ip4(ip), Protocol::Tcp(port)] => Ok((ip, port).into()),
        _ => bail!("{address} is not /ip4/…/tcp/…"),
    }
}
