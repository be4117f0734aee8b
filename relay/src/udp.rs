//! UDP sockets, and the addresses that transports on them listen at.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// Requested socket buffer for each direction; all connections of the socket share it.
const UDP_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// A bound socket with room for the bursts of many clients.
///
/// # Errors
/// An address that the system does not give.
pub fn bind_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::DGRAM,
        Some(socket2::Protocol::UDP),
    )?;
    if address.is_ipv6() {
        // So that `/ip4/0.0.0.0` and `/ip6/::` can have the same port.
        socket.set_only_v6(true)?;
    }
    // The system's default is less than a burst of a few tabs; what it does not allow it cuts.
    let _ = socket.set_recv_buffer_size(UDP_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(UDP_BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Reads `/ip4|ip6/…/udp/…`, then exactly `protocols`, then hashes of certificates and peer ids.
pub(crate) fn to_udp_address(address: &Multiaddr, protocols: &[Protocol<'_>]) -> Option<SocketAddr> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    let Protocol::Udp(port) = parts.next()? else { return None };
    let is_theirs = protocols.iter().all(|protocol| parts.next().as_ref() == Some(protocol))
        && parts.all(|part| matches!(part, Protocol::Certhash(_) | Protocol::P2p(_)));
    is_theirs.then_some(SocketAddr::new(ip, port))
}
