//! Addresses of WebTransport listeners: read from a configuration, written for clients.

use std::net::{IpAddr, SocketAddr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use crate::certificates::Certhash;
use crate::udp::to_udp_address;

/// Reads `/ip4|ip6/…/udp/…/quic-v1/webtransport`; `None` for any other form.
///
/// Hashes of certificates and a peer id may follow and are not looked at: one can listen on an address
/// that was printed earlier, and the hashes are the listener's to say.
pub(super) fn to_socket_address(address: &Multiaddr) -> Option<SocketAddr> {
    to_udp_address(address, &[Protocol::QuicV1, Protocol::WebTransport])
}

/// The address that clients dial.
pub(super) fn to_multiaddr(ip: IpAddr, port: u16, certhashes: &[Certhash]) -> Multiaddr {
    let address =
        Multiaddr::from(ip).with(Protocol::Udp(port)).with(Protocol::QuicV1).with(Protocol::WebTransport);
    certhashes.iter().fold(address, |address, hash| address.with(Protocol::Certhash(*hash)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let hash = crate::certificates::certhash(b"a certificate").unwrap();
        let address = to_multiaddr("::1".parse().unwrap(), 4001, &[hash]);
        assert!(address.to_string().starts_with("/ip6/::1/udp/4001/quic-v1/webtransport/certhash/uEi"));
        assert_eq!(to_socket_address(&address), Some("[::1]:4001".parse().unwrap()));
    }

    #[test]
    fn other_transports_are_left_to_others() {
        for other in [
            "/ip4/127.0.0.1/tcp/0",
            "/ip4/127.0.0.1/udp/0/quic-v1",
            "/ip4/127.0.0.1/udp/0/webrtc-direct",
            "/ip4/127.0.0.1/udp/0/quic-v1/webtransport/p2p-circuit",
            "/dns/localhost/udp/0/quic-v1/webtransport",
        ] {
            assert_eq!(to_socket_address(&other.parse().unwrap()), None, "{other}");
        }
    }
}
