//! Rewrites the first ClientHello of browsers for the DTLS library. Pure.
//!
//! Browsers name a post-quantum group first in the list of those that they know, and `webrtc-dtls` 0.11 takes
//! the first one or none. The list is only read in the first ClientHello, before the cookie, which is no part
//! of what the handshake attests (RFC 6347, section 4.2.1): there, one that both know may be first.
//! What is agreed on then is signed as ever.

/// Content type of a record.
const HANDSHAKE: u8 = 22;
const RECORD_HEADER_BYTES: usize = 13;
const CLIENT_HELLO: u8 = 1;
const MESSAGE_HEADER_BYTES: usize = 12;
/// Number of the extension that lists groups.
const SUPPORTED_GROUPS: [u8; 2] = [0, 10];
/// X25519, P-256 and P-384.
const KNOWN_GROUPS: [[u8; 2]; 3] = [[0, 0x1d], [0, 0x17], [0, 0x18]];
/// No browser lists as many.
const GROUPS_BYTES_MAX: usize = 64;

/// Whether the datagram is a DTLS record, and not STUN.
pub(super) fn is_dtls(datagram: &[u8]) -> bool {
    // RFC 7983, section 7.
    datagram.first().is_some_and(|first| (20..=63).contains(first))
}

/// Puts a known group first where the datagram is the first ClientHello or the part of it with the groups.
pub(super) fn put_known_group_first(datagram: &mut [u8]) {
    let mut rest = datagram;
    while let Some((record, after)) = split_record(rest) {
        if let Some(body) = first_client_hello(record)
            && let Some(groups) = groups(body)
        {
            reorder(groups);
        }
        rest = after;
    }
}

/// A record with its header, and what follows it.
fn split_record(datagram: &mut [u8]) -> Option<(&mut [u8], &mut [u8])> {
    let length = datagram.get(RECORD_HEADER_BYTES - 2..RECORD_HEADER_BYTES)?;
    let length = usize::from(u16::from_be_bytes(length.try_into().ok()?));
    datagram.split_at_mut_checked(RECORD_HEADER_BYTES + length)
}

/// What a record has of the body of a ClientHello that was not asked for a cookie yet.
fn first_client_hello(record: &mut [u8]) -> Option<&mut [u8]> {
    // Content type, two bytes of version, two of epoch, …
    let is_handshake = record.first() == Some(&HANDSHAKE) && record.get(3..5) == Some(&[0, 0]);
    let message = record.get_mut(RECORD_HEADER_BYTES..).filter(|_| is_handshake)?;
    // Type, three bytes of length, two of the message's number, six of the fragment.
    let is_first = message.first() == Some(&CLIENT_HELLO) && message.get(4..6) == Some(&[0, 0]);
    message.get_mut(MESSAGE_HEADER_BYTES..).filter(|_| is_first)
}

/// The list of groups in the extension, which stands anywhere: browsers shuffle extensions.
fn groups(body: &mut [u8]) -> Option<&mut [u8]> {
    let start = (0..body.len()).find(|&start| groups_bytes(&body[start..]).is_some())?;
    let n_bytes = groups_bytes(&body[start..])?;
    body.get_mut(start + 6..start + 6 + n_bytes)
}

/// Length of the list, where the extension begins here: its number, its length, the list's length.
fn groups_bytes(from: &[u8]) -> Option<usize> {
    let [kind @ .., a, b, c, d] = *from.first_chunk::<6>()?;
    let of_extension = usize::from(u16::from_be_bytes([a, b]));
    let of_list = usize::from(u16::from_be_bytes([c, d]));
    let fits = kind == SUPPORTED_GROUPS && of_extension == of_list + 2;
    let is_list = (2..=GROUPS_BYTES_MAX).contains(&of_list) && of_list.is_multiple_of(2);
    (fits && is_list && from.len() >= 6 + of_list).then_some(of_list)
}

fn reorder(groups: &mut [u8]) {
    let known = groups.chunks(2).position(|group| KNOWN_GROUPS.iter().any(|known| group == known));
    if let Some(index) = known {
        groups[..2 * index + 2].rotate_right(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello with the extension of groups among others.
    fn hello(message_number: u8, groups: &[u8]) -> Vec<u8> {
        let n_groups = groups.len() as u8;
        let mut body = vec![0xfe, 0xfd];
        body.extend([7; 60]);
        body.extend([0, 10, 0, n_groups + 2, 0, n_groups]);
        body.extend(groups);
        body.extend([0, 23, 0, 0]);
        let n_body = body.len() as u8;
        let mut message = vec![CLIENT_HELLO, 0, 0, n_body, 0, message_number, 0, 0, 0, 0, 0, n_body];
        message.extend(body);
        let mut record = vec![HANDSHAKE, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, message.len() as u8];
        record.extend(message);
        record
    }

    #[test]
    fn a_known_group_comes_first_and_nothing_else_changes() {
        let mut said = hello(0, &[0x11, 0xec, 0x1a, 0x1a, 0, 0x1d, 0, 0x17]);
        put_known_group_first(&mut said);
        assert_eq!(said, hello(0, &[0, 0x1d, 0x11, 0xec, 0x1a, 0x1a, 0, 0x17]));
        let mut two = [hello(0, &[0x11, 0xec, 0, 0x18]), hello(0, &[0x11, 0xec, 0, 0x17])].concat();
        put_known_group_first(&mut two);
        assert_eq!(two, [hello(0, &[0, 0x18, 0x11, 0xec]), hello(0, &[0, 0x17, 0x11, 0xec])].concat());
    }

    #[test]
    fn what_the_handshake_attests_is_left_alone() {
        let after_cookie = hello(1, &[0x11, 0xec, 0, 0x1d]);
        let mut encrypted = hello(0, &[0x11, 0xec, 0, 0x1d]);
        encrypted[4] = 1;
        for original in [after_cookie, encrypted, hello(0, &[0, 0x1d, 0x11, 0xec]), hello(0, &[0x11, 0xec])] {
            let mut said = original.clone();
            put_known_group_first(&mut said);
            assert_eq!(said, original);
        }
    }

    #[test]
    fn no_datagram_panics() {
        let whole = hello(0, &[0x11, 0xec, 0, 0x1d]);
        for end in 0..whole.len() {
            put_known_group_first(&mut whole[..end].to_vec());
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[end] = value;
                put_known_group_first(&mut changed);
            }
        }
    }
}
