//! A TCP proxy to a process that passes a limited number of bytes from it and then stands still, until a test opens it.
//! So a transfer stays half done for as long as the test wants.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::process::HANG;

/// Bytes that are passed on at once.
const PIECE_BYTES: usize = 16 * 1024;

/// Dropped, it ends all connections through it.
#[derive(Debug)]
pub struct ByteLimitProxy {
    /// The process's address, with the gate's port in place of its own.
    address: Multiaddr,
    limit: watch::Sender<u64>,
    passed: watch::Receiver<u64>,
    /// Ends with it.
    _listening: JoinSet<()>,
}

impl ByteLimitProxy {
    /// Opens a proxy to the process at `to`, `/ip4/…/tcp/…/p2p/…`, that passes `n_bytes` from it, over all connections.
    ///
    /// # Errors
    /// Another address, or no port to listen on.
    pub async fn new(to: &Multiaddr, n_bytes: u64) -> Result<Self> {
        let parts: Vec<Protocol<'_>> = to.iter().collect();
        let [Protocol::Ip4(host), Protocol::Tcp(port), peer @ Protocol::P2p(_)] = parts.as_slice() else {
            bail!("{to} is not /ip4/…/tcp/…/p2p/…");
        };
        let there = SocketAddr::from((*host, *port));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a port for the proxy")?;
        let here = listener.local_addr()?.port();
        let address = Multiaddr::from(Ipv4Addr::LOCALHOST).with(Protocol::Tcp(here)).with(peer.clone());
        let (limit, allowed) = watch::channel(n_bytes);
        let (count, passed) = watch::channel(0);
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, there, allowed, Arc::new(count)));
        Ok(Self { address, limit, passed, _listening: listening })
    }

    /// Where to dial instead of the process.
    pub fn address(&self) -> &Multiaddr {
        &self.address
    }

    /// Bytes that came from the process so far.
    pub fn passed(&self) -> u64 {
        *self.passed.borrow()
    }

    /// Waits until the limit is reached: the transfer through the gate stands still now.
    ///
    /// # Errors
    /// They never come.
    pub async fn filled(&self) -> Result<()> {
        let mut passed = self.passed.clone();
        let limit = *self.limit.borrow();
        let filled = tokio::time::timeout(HANG, passed.wait_for(|passed| *passed >= limit)).await;
        // What is borrowed ends here: the count is looked at again.
        let filled = filled.map(|filled| filled.map(drop));
        filled.with_context(|| format!("{} bytes came, {limit} were waited for", self.passed()))??;
        Ok(())
    }

    /// Lets everything through.
    pub fn open(&self) {
        self.limit.send_replace(u64::MAX);
    }
}

async fn listen(
    listener: TcpListener,
    to: SocketAddr,
    limit: watch::Receiver<u64>,
    passed: Arc<watch::Sender<u64>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        let (limit, passed) = (limit.clone(), Arc::clone(&passed));
        connections.spawn(async move {
            let Ok(far) = TcpStream::connect(to).await else { return };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let (mut from_near, to_near) = near.into_split();
            let (from_far, mut to_far) = far.into_split();
            // Where one side ends, both connections do.
            tokio::select! {
                _ = tokio::io::copy(&mut from_near, &mut to_far) => {}
                _ = let_through(from_far, to_near, limit, &passed) => {}
            }
        });
    }
}

async fn let_through(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut limit: watch::Receiver<u64>,
    passed: &watch::Sender<u64>,
) -> Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let limit = *limit.wait_for(|limit| *limit > *passed.borrow()).await?;
        let room = limit.saturating_sub(*passed.borrow()).min(PIECE_BYTES as u64) as usize;
        let n_bytes = from.read(&mut piece[..room.max(1)]).await?;
        if n_bytes == 0 {
            return Ok(());
        }
        to.write_all(&piece[..n_bytes]).await?;
        passed.send_modify(|passed| *passed += n_bytes as u64);
    }
}
