//! The first datagram of a WebRTC-direct client: a STUN binding request (RFC 8489) that names both sides.

/// How names begin, with the version of the specification.
const PREFIX: &str = "libp2p+webrtc+v1/";
/// Of a name; browsers cut at 256.
const UFRAG_BYTES_MAX: usize = 256;
const HEADER_BYTES: usize = 20;
const BINDING_REQUEST: [u8; 2] = [0, 1];
const USERNAME: u16 = 6;

/// The client's own name in its greeting; `None` for any other datagram.
///
/// It goes into a description of the session, so nothing but letters, digits, `+` and `/` is let through.
pub(super) fn ufrag_of(datagram: &[u8]) -> Option<&str> {
    let (header, mut attributes) = datagram.split_at_checked(HEADER_BYTES)?;
    if !header.starts_with(&BINDING_REQUEST) {
        return None;
    }
    loop {
        let (head, rest) = attributes.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let value = rest.get(..length)?;
        if u16::from_be_bytes([head[0], head[1]]) == USERNAME {
            let (_, client) = std::str::from_utf8(value).ok()?.split_once(':')?;
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
            let is_theirs = client.starts_with(PREFIX) && client.len() <= UFRAG_BYTES_MAX;
            return (is_theirs && client.bytes().all(is_name)).then_some(client);
        }
        attributes = rest.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With an attribute of another kind before the name.
    fn request(name: &str) -> Vec<u8> {
        let mut datagram = vec![0, 1, 0, 0];
        datagram.resize(HEADER_BYTES, 7);
        datagram.extend([0x80, 0x22, 0, 3, 1, 2, 3, 0]);
        datagram.extend(USERNAME.to_be_bytes());
        datagram.extend((name.len() as u16).to_be_bytes());
        datagram.extend(name.as_bytes());
        datagram.resize(datagram.len().next_multiple_of(4), 0);
        datagram
    }

    #[test]
    fn the_clients_name_comes_after_the_listeners() {
        let greeting = request("libp2p+webrtc+v1/server:libp2p+webrtc+v1/Client9");
        assert_eq!(ufrag_of(&greeting), Some("libp2p+webrtc+v1/Client9"));
        for end in 0..greeting.len() - 4 {
            assert_eq!(ufrag_of(&greeting[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn names_that_would_be_more_than_a_name_are_none() {
        let long = "x".repeat(300);
        for name in ["a b", "x\r\na=setup:active", "{pwd}", "", &long] {
            let name = format!("libp2p+webrtc+v1/s:libp2p+webrtc+v1/{name}");
            let is_empty = name.ends_with("v1/");
            assert_eq!(ufrag_of(&request(&name)).is_some(), is_empty, "{name}");
        }
        assert_eq!(ufrag_of(&request("s:c")), None);
        assert_eq!(ufrag_of(&request("libp2p+webrtc+v1/both")), None);
    }
}
