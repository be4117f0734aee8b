//! A listener: the addresses of its front, and the clients behind the front's names for them.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};

use if_watch::IfEvent;
use if_watch::tokio::IfWatcher;
use libp2p::Multiaddr;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::multihash::Multihash;

use super::front::Front;
use super::mux::{Greeted, Mux};
use crate::udp::{bind_udp, to_udp_address};

/// Reads `/ip4|ip6/…/udp/…/webrtc-direct`; a certificate hash and a peer id may follow.
pub(super) fn to_socket_address(address: &Multiaddr) -> Option<SocketAddr> {
    to_udp_address(address, &[Protocol::WebRTCDirect])
}

fn to_multiaddr(address: SocketAddr) -> Multiaddr {
    Multiaddr::from(address.ip()).with(Protocol::Udp(address.port())).with(Protocol::WebRTCDirect)
}

/// An event of a listener.
pub(super) enum ListenerEvent {
    /// A new address.
    Up(Multiaddr),
    /// An address that expired.
    Down(Multiaddr),
    /// A client that begins a handshake, with its address.
    Greeted(Greeted, Multiaddr),
}

/// One front, its addresses, and the socket behind it.
pub(super) struct WebRtcListener {
    pub(super) id: ListenerId,
    front: Front,
    mux: Mux,
    certhash: Multihash<64>,
    /// Where the socket is bound to every interface.
    interfaces: Option<IfWatcher>,
    ips: BTreeSet<IpAddr>,
    changes: VecDeque<ListenerEvent>,
}

impl WebRtcListener {
    /// Binds `address`. Needs a tokio runtime.
    pub(super) fn bind(id: ListenerId, address: SocketAddr, certhash: Multihash<64>) -> io::Result<Self> {
        let mut front = Front::new(bind_udp(address)?)?;
        let mux = Mux::bind()?;
        front.pass_to(mux.port());
        let bound = front.address().ip();
        let interfaces = if bound.is_unspecified() { Some(IfWatcher::new()?) } else { None };
        let (ips, changes) = (BTreeSet::new(), VecDeque::new());
        let mut listener = Self { id, front, mux, certhash, interfaces, ips, changes };
        if listener.interfaces.is_none() {
            listener.ip_up(bound);
        }
        Ok(listener)
    }

    /// Where it is bound.
    pub(super) fn local(&self) -> Multiaddr {
        to_multiaddr(self.front.address())
    }

    /// What happens next.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ListenerEvent>> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Poll::Ready(Ok(change));
            }
            if let Poll::Ready(greeted) = self.mux.poll_greeted(cx) {
                // One that the front has forgotten meanwhile has nobody to answer to.
                match self.front.client(greeted.alias) {
                    Some(client) => {
                        return Poll::Ready(Ok(ListenerEvent::Greeted(greeted, to_multiaddr(client))));
                    }
                    None => continue,
                }
            }
            match self.interfaces.as_mut().map(|watcher| watcher.poll_if_event(cx)) {
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
            self.changes.push_back(ListenerEvent::Up(address));
        }
    }

    fn ip_down(&mut self, ip: IpAddr) {
        if self.ips.remove(&ip) {
            let address = self.advertised(ip);
            self.changes.push_back(ListenerEvent::Down(address));
        }
    }

    fn advertised(&self, ip: IpAddr) -> Multiaddr {
        to_multiaddr(SocketAddr::new(ip, self.front.address().port())).with(Protocol::Certhash(self.certhash))
    }
}
