//! A listener that others see: the addresses of its front, and the clients behind the listener's own names.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};

use if_watch::IfEvent;
use if_watch::tokio::IfWatcher;
use libp2p::Multiaddr;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;

use super::front::Front;
use crate::webtransport::{bind_udp, to_udp_address};

/// What the listener behind the front is told to listen on.
pub(super) fn inward() -> Multiaddr {
    to_multiaddr(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// Reads `/ip4|ip6/…/udp/…/webrtc-direct`, with whatever follows an address that was printed.
pub(super) fn to_socket_address(address: &Multiaddr) -> Option<SocketAddr> {
    to_udp_address(address, &[Protocol::WebRTCDirect])
}

fn to_multiaddr(address: SocketAddr) -> Multiaddr {
    Multiaddr::from(address.ip()).with(Protocol::Udp(address.port())).with(Protocol::WebRTCDirect)
}

/// An address that came, or one that went.
pub(super) enum Change {
    Up(Multiaddr),
    Down(Multiaddr),
}

/// One front and its addresses.
pub(super) struct Listener {
    pub(super) id: ListenerId,
    front: Front,
    certhash: Option<Protocol<'static>>,
    /// Where the socket is bound to every interface.
    interfaces: Option<IfWatcher>,
    ips: BTreeSet<IpAddr>,
    changes: VecDeque<Change>,
}

impl Listener {
    /// Binds `address`. Needs a tokio runtime.
    pub(super) fn bind(id: ListenerId, address: SocketAddr) -> io::Result<Self> {
        let front = Front::new(bind_udp(address)?)?;
        let interfaces = if address.ip().is_unspecified() { Some(IfWatcher::new()?) } else { None };
        let (ips, changes) = (BTreeSet::new(), VecDeque::new());
        Ok(Self { id, front, certhash: None, interfaces, ips, changes })
    }

    /// The listener behind the front has its address.
    pub(super) fn begin(&mut self, inward: &Multiaddr) {
        let Some(inward_address) = to_socket_address(inward) else { return };
        self.certhash = inward.iter().find_map(|part| match part {
            Protocol::Certhash(hash) => Some(Protocol::Certhash(hash)),
            _ => None,
        });
        self.front.pass_to(inward_address.port());
        if self.interfaces.is_none() {
            self.ip_up(self.front.address().ip());
        }
    }

    /// Where it is bound.
    pub(super) fn local(&self) -> Multiaddr {
        to_multiaddr(self.front.address())
    }

    /// Where a client really is.
    pub(super) fn client(&self, alias: &Multiaddr) -> Option<Multiaddr> {
        self.front.client(to_socket_address(alias)?).map(to_multiaddr)
    }

    /// The next change of the addresses.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Change>> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Poll::Ready(Ok(change));
            }
            // Nobody can be told of an address before it is whole.
            let watcher = self.interfaces.as_mut().filter(|_| self.certhash.is_some());
            match watcher.map(|watcher| watcher.poll_if_event(cx)) {
                None | Some(Poll::Pending) => return Poll::Pending,
                Some(Poll::Ready(Ok(IfEvent::Up(network)))) => self.ip_up(network.addr()),
                Some(Poll::Ready(Ok(IfEvent::Down(network)))) => self.ip_down(network.addr()),
                Some(Poll::Ready(Err(error))) => {
                    self.interfaces = None;
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    fn ip_up(&mut self, ip: IpAddr) {
        if ip.is_ipv4() == self.front.address().is_ipv4() && self.ips.insert(ip) {
            let address = self.advertised(ip);
            self.changes.push_back(Change::Up(address));
        }
    }

    fn ip_down(&mut self, ip: IpAddr) {
        if self.ips.remove(&ip) {
            let address = self.advertised(ip);
            self.changes.push_back(Change::Down(address));
        }
    }

    fn advertised(&self, ip: IpAddr) -> Multiaddr {
        let address = to_multiaddr(SocketAddr::new(ip, self.front.address().port()));
        self.certhash.iter().fold(address, |address, hash| address.with(hash.clone()))
    }
}
