//! Verifies the source address of a client before any state is kept for it. Pure, but for the secret.
//!
//! The sender of a UDP datagram can forge its source. So a greeting (a binding request of STUN, RFC 8489) opens
//! no slot: it is answered with a binding request, as ICE lets either side ask (RFC 8445, section 7.3.1.4), whose
//! transaction is a keyed hash of the source and the time. Only a client that receives at that source can name it.
//! WebRTC-direct's user is its password as well, so that the request can be signed without anything being known of
//! the client. No answer is longer than the greeting.

use std::net::SocketAddr;
use std::time::Duration;

use ring::error::Unspecified;
use ring::hmac;
use ring::rand::SystemRandom;

/// First bytes of a binding request, and of the answer to one.
const BINDING_REQUEST: [u8; 2] = [0, 1];
const BINDING_SUCCESS: [u8; 2] = [1, 1];
const MAGIC_COOKIE: [u8; 4] = 0x2112_a442_u32.to_be_bytes();
const HEADER_BYTES: usize = 20;
const TRANSACTION_BYTES: usize = 12;
/// Attributes, by number.
const USERNAME: u16 = 0x0006;
const MESSAGE_INTEGRITY: u16 = 0x0008;
const PRIORITY: u16 = 0x0024;
const FINGERPRINT: u16 = 0x8028;
const ICE_CONTROLLED: u16 = 0x8029;
const INTEGRITY_BYTES: usize = 20;
const FINGERPRINT_BYTES: usize = 4;
/// What the fingerprint is combined with (RFC 8489, section 14.7).
const FINGERPRINT_MASK: u32 = 0x5354_554e;
/// How a user begins, with the version of the specification (libp2p WebRTC-direct).
const USER: &[u8] = b"libp2p+webrtc+v1/";
/// Longest name of a user (RFC 8489, section 14.3).
const USERNAME_BYTES_MAX: usize = 508;
/// An answer is good for so long at least, and for twice as long at most.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// Asks clients, and knows what it asked. No state but a secret.
#[derive(Debug)]
pub(super) struct Challenge(hmac::Key);

impl Challenge {
    pub(super) fn new() -> Result<Self, Unspecified> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map(Self)
    }

    /// What to send back to a client that is not known, if its datagram is a greeting.
    pub(super) fn ask(&self, now: Duration, from: SocketAddr, datagram: &[u8]) -> Option<Vec<u8>> {
        let user = greeting_user(datagram)?;
        let question = request(user, &self.transaction(period(now), from));
        (question.len() <= datagram.len()).then_some(question)
    }

    /// Whether a datagram answers what was asked of that client lately.
    pub(super) fn is_answered(&self, now: Duration, from: SocketAddr, datagram: &[u8]) -> bool {
        let Some((_, [a, b, c, d, transaction @ ..])) = header(datagram, BINDING_SUCCESS) else {
            return false;
        };
        let periods = [Some(period(now)), period(now).checked_sub(1)];
        let is_ours = |period| self.transaction(period, from) == *transaction;
        [*a, *b, *c, *d] == MAGIC_COOKIE && periods.into_iter().flatten().any(is_ours)
    }

    fn transaction(&self, period: u64, from: SocketAddr) -> [u8; TRANSACTION_BYTES] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&period.to_be_bytes());
        context.update(from.to_string().as_bytes());
        let tag = context.sign();
        tag.as_ref().first_chunk().copied().unwrap_or_default()
    }
}

fn period(now: Duration) -> u64 {
    now.as_secs() / GOOD_FOR.as_secs()
}

/// Type and length checked: what follows the header, and the rest of the header.
fn header(datagram: &[u8], kind: [u8; 2]) -> Option<(&[u8], &[u8; HEADER_BYTES - 4])> {
    let (header, rest) = datagram.split_first_chunk::<HEADER_BYTES>()?;
    let [k0, k1, l0, l1, rest_of_header @ ..] = header;
    let is_whole = usize::from(u16::from_be_bytes([*l0, *l1])) == rest.len();
    ([*k0, *k1] == kind && is_whole).then_some((rest, rest_of_header))
}

/// The name of the user in a binding request of WebRTC-direct; both sides have the same one.
fn greeting_user(datagram: &[u8]) -> Option<&[u8]> {
    let (mut rest, _) = header(datagram, BINDING_REQUEST)?;
    loop {
        let ([n0, n1, l0, l1], after) = rest.split_first_chunk::<4>()?;
        let n_bytes = usize::from(u16::from_be_bytes([*l0, *l1]));
        let value = after.get(..n_bytes)?;
        if u16::from_be_bytes([*n0, *n1]) == USERNAME {
            let colon = value.iter().position(|byte| *byte == b':')?;
            let (own, other) = value.split_at_checked(colon)?;
            let is_user = own.starts_with(USER) && other.get(1..) == Some(own);
            return (is_user && value.len() <= USERNAME_BYTES_MAX).then_some(own);
        }
        rest = after.get(n_bytes.next_multiple_of(4)..)?;
    }
}

/// A binding request to a client.
fn request(user: &[u8], transaction: &[u8; TRANSACTION_BYTES]) -> Vec<u8> {
    let mut message = [&BINDING_REQUEST[..], &[0, 0], &MAGIC_COOKIE, transaction].concat();
    let attribute = |message: &mut Vec<u8>, number: u16, value: &[u8]| {
        message.extend(number.to_be_bytes());
        message.extend(u16::try_from(value.len()).unwrap_or_default().to_be_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
    };
    attribute(&mut message, USERNAME, &[user, b":", user].concat());
    // The client is the one that chooses; nobody else compares either of these.
    attribute(&mut message, ICE_CONTROLLED, &[0; 8]);
    attribute(&mut message, PRIORITY, &1_u32.to_be_bytes());
    announce(&mut message, INTEGRITY_BYTES);
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, user);
    let tag = hmac::sign(&key, &message);
    attribute(&mut message, MESSAGE_INTEGRITY, tag.as_ref());
    announce(&mut message, FINGERPRINT_BYTES);
    let fingerprint = crc32(&message) ^ FINGERPRINT_MASK;
    attribute(&mut message, FINGERPRINT, &fingerprint.to_be_bytes());
    message
}

/// Writes the length that the message will have once an attribute of so many bytes is behind it.
fn announce(message: &mut [u8], n_bytes: usize) {
    let length = message.len() - HEADER_BYTES + 4 + n_bytes;
    let length = u16::try_from(length).unwrap_or_default().to_be_bytes();
    if let Some(place) = message.get_mut(2..4) {
        place.copy_from_slice(&length);
    }
}

/// CRC-32 of ITU-T V.42.
fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn address(port: u16) -> SocketAddr {
        ([203, 0, 113, 7], port).into()
    }

    /// As a client sends it: as long as one of a browser.
    fn greeting(user: &str) -> Vec<u8> {
        request(user.as_bytes(), &[7; TRANSACTION_BYTES])
    }

    fn answer(question: &[u8]) -> Vec<u8> {
        let transaction = &question[8..HEADER_BYTES];
        [&BINDING_SUCCESS[..], &[0, 0], &MAGIC_COOKIE, transaction].concat()
    }

    #[test]
    fn only_who_hears_at_an_address_answers_for_it() {
        let challenge = Challenge::new().unwrap();
        let question = challenge.ask(NOW, address(1), &greeting("libp2p+webrtc+v1/abcdef")).unwrap();
        let answer = answer(&question);
        assert!(challenge.is_answered(NOW, address(1), &answer));
        assert!(challenge.is_answered(NOW + GOOD_FOR, address(1), &answer));
        assert!(!challenge.is_answered(NOW + 2 * GOOD_FOR, address(1), &answer), "too late");
        assert!(!challenge.is_answered(NOW, address(2), &answer), "from elsewhere");
        assert!(!Challenge::new().unwrap().is_answered(NOW, address(1), &answer), "of another node");
        let mut guessed = answer.clone();
        guessed[HEADER_BYTES - 1] ^= 1;
        assert!(!challenge.is_answered(NOW, address(1), &guessed));
        assert!(!challenge.is_answered(NOW, address(1), &question), "an echo is no answer");
    }

    #[test]
    fn what_is_no_greeting_gets_no_answer_and_no_answer_is_longer() {
        let challenge = Challenge::new().unwrap();
        let good = greeting("libp2p+webrtc+v1/abcdef");
        let ask = |datagram: &[u8]| challenge.ask(NOW, address(1), datagram);
        assert!(ask(&good).unwrap().len() <= good.len());
        assert!(ask(&greeting("somebody")).is_none());
        let short = request(b"libp2p+webrtc+v1/abcdef", &[7; 12]);
        let mut short = short[..HEADER_BYTES + 4 + 48].to_vec();
        short[2..4].copy_from_slice(&(52_u16).to_be_bytes());
        assert!(greeting_user(&short).is_some() && ask(&short).is_none(), "it would be made more of");
        for end in 0..good.len() {
            assert!(ask(&good[..end]).is_none());
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = good.clone();
                changed[end] = value;
                assert!(ask(&changed).is_none_or(|question| question.len() <= changed.len()));
                challenge.is_answered(NOW, address(1), &changed);
            }
        }
    }

    #[test]
    fn the_checksum_has_its_check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
