//! Parses the multiaddresses that browsers can dial.

use std::net::IpAddr;

use barnraise_messages::TransportKind;

/// Path of WebTransport sessions (libp2p WebTransport specification).
const WEB_TRANSPORT_PATH: &str = "/.well-known/libp2p-webtransport?type=noise";
/// Most certificate hashes of one address.
const CERTIFICATES_MAX: usize = 8;
/// Multibase prefix of base64url without padding.
const BASE64_URL: char = 'u';
/// Multihash prefix of SHA-256: the code and the length.
const SHA_256_PREFIX: [u8; 2] = [0x12, 0x20];

/// An address that a browser can open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A WebTransport session, with SHA-256 hashes of its certificates.
    Session { url: String, certificates: Vec<[u8; 32]> },
    /// A WebRTC-direct connection.
    Connection(RtcAddress),
    /// A WebSocket.
    Socket { url: String },
}

/// Address of a WebRTC-direct listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RtcAddress {
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    /// SHA-256 of its certificate.
    pub(crate) certificate: [u8; 32],
}

impl Address {
    /// Reads a multiaddress; `None` where it is none that a browser can dial.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix('/')?.split('/');
        let family = parts.next()?;
        let host = match family {
            "ip6" => format!("[{}]", parts.next()?),
            "ip4" | "dns" | "dns4" | "dns6" => parts.next()?.to_owned(),
            _ => return None,
        };
        let transport = parts.next()?;
        let port: u16 = parts.next()?.parse().ok()?;
        // Parts after the peer id belong to a relayed address, which browsers do not dial.
        let rest: Vec<&str> = parts.collect();
        let (rest, [_, _peer]) = rest.split_last_chunk::<2>().filter(|(_, [p2p, _])| *p2p == "p2p")?;
        match (transport, rest) {
            ("udp", ["quic-v1", "webtransport", hashes @ ..]) => {
                let certificates = certificates(hashes)?;
                Some(Self::Session {
                    url: format!("https://{host}:{port}{WEB_TRANSPORT_PATH}"),
                    certificates,
                })
            }
            ("udp", ["webrtc-direct", "certhash", hash]) => {
                let ip = host.trim_matches(['[', ']']).parse().ok()?;
                Some(Self::Connection(RtcAddress { ip, port, certificate: sha_256(hash)? }))
            }
            ("tcp", ["ws"]) => Some(Self::Socket { url: format!("ws://{host}:{port}/") }),
            ("tcp", ["wss"] | ["tls", "ws"]) => Some(Self::Socket { url: format!("wss://{host}:{port}/") }),
            _ => None,
        }
    }

    /// Its transport.
    pub(crate) fn transport(&self) -> TransportKind {
        match self {
            Self::Session { .. } => TransportKind::WebTransport,
            Self::Connection(_) => TransportKind::WebRtc,
            Self::Socket { .. } => TransportKind::WebSocket,
        }
    }

    /// Whether a page loaded over HTTPS may open it.
    pub(crate) fn is_encrypted(&self) -> bool {
        match self {
            Self::Session { .. } | Self::Connection(_) => true,
            Self::Socket { url } => url.starts_with("wss:"),
        }
    }
}

/// The hashes of `certhash/…/certhash/…`; without any the certificate is an ordinary one.
fn certificates(parts: &[&str]) -> Option<Vec<[u8; 32]>> {
    let (pairs, []) = parts.as_chunks::<2>() else { return None };
    let pairs = pairs.iter().take(CERTIFICATES_MAX);
    pairs.map(|[name, hash]| (*name == "certhash").then(|| sha_256(hash)).flatten()).collect()
}

fn sha_256(multibase: &str) -> Option<[u8; 32]> {
    let bytes = base64_url(multibase.strip_prefix(BASE64_URL)?)?;
    bytes.strip_prefix(&SHA_256_PREFIX)?.try_into().ok()
}

/// Decodes base64url (RFC 4648, section 5) without padding.
fn base64_url(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut n_bits) = (0_u32, 0);
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    for digit in text.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits & 0xFF) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const PEER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    /// 34 bytes: a multihash of SHA-256 whose digest is 32 times 7.
    const SEVENS: &str = "uEiAHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBw";

    fn read(address: &str) -> Option<Address> {
        Address::read(&format!("{address}/p2p/{PEER}"))
    }

    #[test]
    fn each_way_has_its_form() {
        let session =
            read(&format!("/ip4/192.0.2.1/udp/4001/quic-v1/webtransport/certhash/{SEVENS}")).unwrap();
        let url = "https://192.0.2.1:4001/.well-known/libp2p-webtransport?type=noise".into();
        assert_eq!(session, Address::Session { url, certificates: vec![[7; 32]] });
        let call = read(&format!("/ip6/2001:db8::1/udp/4003/webrtc-direct/certhash/{SEVENS}")).unwrap();
        let ip = "2001:db8::1".parse().unwrap();
        assert_eq!(call, Address::Connection(RtcAddress { ip, port: 4003, certificate: [7; 32] }));
        let socket = read("/ip6/2001:db8::1/tcp/4002/ws").unwrap();
        assert_eq!(socket, Address::Socket { url: "ws://[2001:db8::1]:4002/".into() });
        assert!(!socket.is_encrypted());
        for secured in ["/dns/run.example/tcp/443/wss", "/dns4/run.example/tcp/443/tls/ws"] {
            let socket = read(secured).unwrap();
            assert_eq!(socket, Address::Socket { url: "wss://run.example:443/".into() });
            assert!(socket.is_encrypted() && socket.transport() == TransportKind::WebSocket);
        }
    }

    #[test]
    fn what_browsers_cannot_dial_is_none() {
        for address in [
            "/ip4/192.0.2.1/udp/4001/quic-v1",
            "/ip4/192.0.2.1/tcp/4001",
            "/ip4/192.0.2.1/tcp/99999/ws",
            "/ip4/192.0.2.1/udp/1/quic-v1/webtransport/certhash/zQm",
            "/ip4/192.0.2.1/udp/1/quic-v1/webtransport/certhash/uAAAA",
            "/ip4/192.0.2.1/udp/1/quic-v1/webtransport/certhash",
            "/ip4/192.0.2.1/udp/4003/webrtc-direct",
            "/unix/tmp/socket/1/ws",
            "",
        ] {
            assert_eq!(read(address), None, "{address}");
        }
        assert_eq!(Address::read("/ip4/192.0.2.1/tcp/1/ws"), None, "nobody to expect there");
        let relayed = format!("/ip4/192.0.2.1/tcp/1/ws/p2p/{PEER}/p2p-circuit");
        assert_eq!(read(&relayed), None);
    }
}
