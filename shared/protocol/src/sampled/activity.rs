//! That a peer was active in a round, told by itself (MoDEST §3.5), in a few bytes.
//!
//! A signature would be 64 bytes for each peer and round. Instead a peer signs the end of a hash chain once, when it joins, and
//! shows the value before it for each round that passes (Lamport 1981: one-time passwords):
//!
//! ```text
//! token of round first + i  =  H(peer, token of round first + i + 1)
//! ```
//!
//! Who has a token can compute those of all earlier rounds and of no later one. So nobody makes another peer active in a round in
//! which it was not.

use serde::{Deserialize, Serialize};

use crate::access::{KeyPair, PublicKey};
use crate::hash::Sha256Hash;

/// Rounds that a peer can be active in before it joins again with another chain. Bounds what a proof costs who checks it.
pub const ACTIVITY_ROUNDS_MAX: u64 = 1024;
/// Bytes of a [`PeerPrefix`].
pub const PEER_PREFIX_BYTES: usize = 4;

const CHAIN_DOMAIN: &[u8] = b"barnraise activity 1\0";

/// A value of a peer's chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ActivityToken(pub [u8; 16]);

/// The first bytes of a peer's key. Where two peers share them, the token tells whose the proof is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PeerPrefix(pub [u8; PEER_PREFIX_BYTES]);

/// A peer was active in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityProof {
    /// The peer. Its membership is known to the receiver, or in the same view.
    pub peer: PeerPrefix,
    /// The round.
    pub round: u64,
    /// Of that round.
    pub token: ActivityToken,
}

/// A peer's own chain, from which it shows tokens.
#[derive(Debug, Clone)]
pub struct ActivityChain {
    peer: PublicKey,
    seed: ActivityToken,
    first_round: u64,
}

impl PeerPrefix {
    /// Of a key.
    pub fn of(peer: &PublicKey) -> Self {
        let mut prefix = [0; PEER_PREFIX_BYTES];
        prefix.copy_from_slice(&peer.0[..PEER_PREFIX_BYTES]);
        Self(prefix)
    }
}

impl ActivityToken {
    /// The token of `n_rounds` earlier.
    #[must_use]
    pub fn earlier(self, peer: &PublicKey, n_rounds: u64) -> Self {
        (0..n_rounds).fold(self, |token, _| token.before(peer))
    }

    fn before(self, peer: &PublicKey) -> Self {
        let mut bytes = [0; CHAIN_DOMAIN.len() + 32 + 16];
        bytes[..CHAIN_DOMAIN.len()].copy_from_slice(CHAIN_DOMAIN);
        bytes[CHAIN_DOMAIN.len()..][..32].copy_from_slice(&peer.0);
        bytes[CHAIN_DOMAIN.len() + 32..].copy_from_slice(&self.0);
        let mut token = [0; 16];
        token.copy_from_slice(&Sha256Hash::of(&bytes).0[..16]);
        Self(token)
    }
}

impl ActivityChain {
    /// The chain of a peer's join with this counter, which begins with a round. Nobody else can compute it. A peer that has forgotten its
    /// counter may join with one twice: tokens that it showed in one of the chains prove nothing in the other.
    pub fn new(key: &KeyPair, run: Sha256Hash, counter: u64, first_round: u64) -> Self {
        let about = [&run.0[..], &counter.to_le_bytes(), &first_round.to_le_bytes()].concat();
        Self { peer: key.public(), seed: ActivityToken(key.derive(&about)), first_round }
    }

    /// The token of the first round, which the peer signs.
    pub fn anchor(&self) -> ActivityToken {
        self.seed.earlier(&self.peer, ACTIVITY_ROUNDS_MAX)
    }

    /// The token of a round; `None` for a round that is not in the chain.
    pub fn token(&self, round: u64) -> Option<ActivityToken> {
        let n_rounds = round.checked_sub(self.first_round)?;
        Some(self.seed.earlier(&self.peer, ACTIVITY_ROUNDS_MAX.checked_sub(n_rounds)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_proves_its_round_and_no_later_one() {
        let key = KeyPair::from_seed(&[3; 32]);
        let (peer, run) = (key.public(), Sha256Hash([7; 32]));
        let chain = ActivityChain::new(&key, run, 1, 40);
        let token = chain.token(45).unwrap();
        assert_eq!(chain.token(40), Some(chain.anchor()));
        assert_eq!(token.earlier(&peer, 5), chain.anchor());
        assert_ne!(token.earlier(&peer, 4), chain.anchor(), "not of round 44");
        assert_ne!(token.earlier(&peer, 6), chain.anchor(), "not of round 46");
        let other = KeyPair::from_seed(&[4; 32]).public();
        assert_ne!(token.earlier(&other, 5), chain.anchor(), "not another peer's");
        let (before, after) = (chain.token(39), chain.token(41 + ACTIVITY_ROUNDS_MAX));
        assert_eq!((before, after), (None, None));
        assert!(chain.token(40 + ACTIVITY_ROUNDS_MAX).is_some());
        for (counter, first_round) in [(2, 40), (1, 90)] {
            let other = ActivityChain::new(&key, run, counter, first_round);
            assert_ne!(other.anchor(), chain.anchor(), "each join has its own");
        }
        let elsewhere = ActivityChain::new(&key, Sha256Hash([8; 32]), 1, 40);
        assert_ne!(elsewhere.anchor(), chain.anchor(), "each run has its own");
    }
}
