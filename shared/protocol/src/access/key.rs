//! Ed25519 keys and signatures of access tokens and signed records.
//!
//! Never draws entropy: a key pair is made of a seed that its owner drew. A peer id of an Ed25519 key
//! holds the key itself, so a peer that Noise attests is a [`PublicKey`] without another question.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Sha256Hash;

/// Prefix of the 32 bytes of an Ed25519 key in its peer id: the header of an identity multihash of 36 bytes,
/// then the protobuf fields of the key's type and of its data (libp2p peer id specification).
const PEER_ID_PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

/// An Ed25519 public key. As JSON and TOML it is 64 hexadecimal digits, on the wire 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

/// An Ed25519 signature, 64 bytes. As JSON it is two texts of 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature([[u8; 32]; 2]);

/// A key pair, for signing. Shown as its public half only.
#[derive(Clone)]
pub struct KeyPair(SigningKey);

/// A text that is no public key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a public key is 64 hexadecimal digits, got {got:?}")]
pub struct ParseKeyError {
    got: String,
}

impl PublicKey {
    /// A number that follows from the key: different keys choose differently by it, which anybody can foresee.
    pub fn seed(&self) -> u64 {
        Sha256Hash(self.0).number()
    }

    /// The key that a peer id holds; `None` where the id is the hash of a key of another kind.
    pub fn of_peer_id(bytes: &[u8]) -> Option<Self> {
        let key = bytes.strip_prefix(&PEER_ID_PREFIX)?;
        key.try_into().ok().map(Self)
    }

    /// The bytes of this key's peer id.
    pub fn to_peer_id(&self) -> Vec<u8> {
        [&PEER_ID_PREFIX[..], &self.0].concat()
    }

    /// Whether `signature` of `bytes` was made with this key. Verification is strict: keys and signatures with
    /// more than one encoding are refused, so that a signature cannot be altered by others.
    #[must_use]
    pub fn has_signed(&self, bytes: &[u8], signature: &Signature) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(&self.0) else { return false };
        key.verify_strict(bytes, &ed25519_dalek::Signature::from_bytes(&signature.to_bytes())).is_ok()
    }
}

impl KeyPair {
    /// The key pair of a seed of 32 random bytes: what libp2p calls the secret key.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs `bytes`, which begin with what they are for.
    pub fn sign(&self, bytes: &[u8]) -> Signature {
        Signature::from(self.0.sign(bytes).to_bytes())
    }

    /// Derives 16 bytes for `about` that are secret to all but the owner of the key.
    pub fn derive(&self, about: &[u8]) -> [u8; 16] {
        let input = [&b"barnraise derive 1\0"[..], self.0.as_bytes(), about].concat();
        let mut derived = [0; 16];
        derived.copy_from_slice(&crate::Sha256Hash::of(&input).0[..16]);
        derived
    }
}

impl Signature {
    /// As it is on the wire.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes.copy_from_slice(self.0.as_flattened());
        bytes
    }
}

impl From<[u8; 64]> for Signature {
    fn from(bytes: [u8; 64]) -> Self {
        let mut halves = [[0; 32]; 2];
        halves.as_flattened_mut().copy_from_slice(&bytes);
        Self(halves)
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.to_bytes())
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyPair").field(&self.public()).finish()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let error = || ParseKeyError { got: text.chars().take(80).collect() };
        Ok(Self(text.parse::<crate::Sha256Hash>().map_err(|_| error())?.0))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.is_human_readable() {
            true => String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom),
            false => <[u8; 32]>::deserialize(deserializer).map(Self),
        }
    }
}

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A half is 32 bytes, as a key is, and is written as one.
        self.0.map(PublicKey).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <[PublicKey; 2]>::deserialize(deserializer).map(|halves| Self(halves.map(|half| half.0)))
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_peer_id_are_one() {
        let key = KeyPair::from_seed(&[7; 32]).public();
        assert_eq!(PublicKey::of_peer_id(&key.to_peer_id()), Some(key));
        let hashed = [&[0x12, 0x20][..], &[1; 32]].concat();
        for other in [&hashed[..], &key.to_peer_id()[..37], &[&key.to_peer_id()[..], &[0]].concat(), &[]] {
            assert_eq!(PublicKey::of_peer_id(other), None);
        }
        assert_eq!(key.to_string().parse(), Ok(key));
        assert!("12".parse::<PublicKey>().unwrap_err().to_string().contains("\"12\""));
    }

    #[test]
    fn only_the_key_signs_and_only_these_bytes() {
        let pair = KeyPair::from_seed(&[1; 32]);
        let signature = pair.sign(b"bytes");
        assert!(pair.public().has_signed(b"bytes", &signature));
        assert!(!pair.public().has_signed(b"byteS", &signature));
        assert!(!KeyPair::from_seed(&[2; 32]).public().has_signed(b"bytes", &signature));
        assert!(!PublicKey([0xff; 32]).has_signed(b"bytes", &signature));
        // Unless it is refused, the neutral element as a key verifies a signature of any bytes.
        let neutral = PublicKey({
            let mut point = [0; 32];
            point[0] = 1;
            point
        });
        let zero = Signature::from({
            let mut bytes = [0; 64];
            bytes[0] = 1;
            bytes
        });
        assert!(!neutral.has_signed(b"bytes", &zero));
    }

    #[test]
    fn what_is_derived_depends_on_key_and_subject() {
        let (a, b) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
        assert_eq!(a.derive(b"x"), a.derive(b"x"));
        assert_ne!(a.derive(b"x"), a.derive(b"y"));
        assert_ne!(a.derive(b"x"), b.derive(b"x"));
    }
}
