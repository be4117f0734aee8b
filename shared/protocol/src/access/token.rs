//! The access token: the run's authority signs that a peer may take part until an expiration (DeDLOC appendix
//! I.5).
//!
//! ```text
//! token     = claims | signature of the authority
//! claims    = postcard of run id, user name, peer key, expiration, token id, whether it may host
//! signed    = "barnraise access token 2\0" | claims
//! ```
//!
//! The claims are encoded again to verify them, so that a token has only one encoding. A token does not show
//! that it was revoked: backbones have the list of revoked tokens.

use serde::{Deserialize, Serialize};

use super::key::{KeyPair, PublicKey, Signature};
use crate::framing::{self, FrameError};

/// Domain separator: the signed bytes of every token begin with it, and nothing else that the same key signs.
const DOMAIN: &[u8] = b"barnraise access token 2\0";

/// Longest encoded token.
pub const TOKEN_BYTES_MAX: usize = 512;
/// Longest user name in a token, in bytes.
pub const USER_BYTES_MAX: usize = 128;

/// Seconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// `seconds` later, saturating.
    #[must_use]
    pub fn after(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }
}

/// Id of a token, for its revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TokenId(pub [u8; 16]);

/// Statement of the authority about a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The run that it gives access to.
    pub run_id: String,
    /// Name of the user, from the identity provider or the invitation; at most [`USER_BYTES_MAX`].
    pub user: String,
    /// Public key of the user's peer.
    pub peer: PublicKey,
    /// Invalid from this second on.
    pub expires_at: UnixTime,
    /// The token's id.
    pub token_id: TokenId,
    /// Whether the peer may also host experts, which are a part of the model.
    pub may_host: bool,
}

/// Claims with the authority's signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessToken {
    /// The claims.
    pub claims: Claims,
    /// Signature of the authority.
    pub signature: Signature,
}

/// The authority of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// Key that signs the tokens.
    pub key: PublicKey,
    /// The run.
    pub run_id: String,
}

/// Why a token is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum TokenRefusal {
    /// A signature of another key, or other claims than were signed.
    #[error("the access token is not signed by the authority of this run")]
    Signature,
    /// For another run.
    #[error("the access token is for the run `{got}`, this is `{want}`")]
    Run {
        /// The run here.
        want: String,
        /// In the token.
        got: String,
    },
    /// Expired.
    #[error("the access token expired at {} (Unix time), it is {} now", expired_at.0, now.0)]
    Expired {
        /// In the token.
        expired_at: UnixTime,
        /// By the clock of the peer that verifies.
        now: UnixTime,
    },
    /// Presented by another peer than the token's.
    #[error("the access token is for the key {named}, it came from {sender}")]
    Peer {
        /// In the token.
        named: PublicKey,
        /// Peer of the connection that it came over.
        sender: PublicKey,
    },
    /// Revoked by the authority.
    #[error("access was revoked")]
    Revoked,
    /// A user name over the limit.
    #[error("a user name of {got} bytes, at most {USER_BYTES_MAX} are allowed")]
    UserTooLong {
        /// Bytes of the name.
        got: u64,
    },
    /// What the peer gave failed recomputation: it is banned for good, with every token.
    #[error("{0}: it takes no more part")]
    Convicted(ConvictedWork),
}

/// What was computed once more, with another result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ConvictedWork {
    /// A gradient.
    #[error("what this peer contributed to epoch {epoch} is not the gradient of the samples that it named")]
    Contribution {
        /// Of the run.
        epoch: u64,
    },
    /// What an expert gave.
    #[error("what an expert of this peer answered at its step {n_steps} is not what its checkpoint gives")]
    ExpertAnswer {
        /// Steps of the expert.
        n_steps: u64,
    },
}

impl AccessToken {
    /// A token with the authority's signature.
    ///
    /// # Errors
    /// Claims over the limit of a token.
    pub fn sign(authority: &KeyPair, claims: Claims) -> Result<Self, FrameError> {
        let signature = authority.sign(&signed_bytes(&claims)?);
        let token = Self { claims, signature };
        token.encode()?;
        Ok(token)
    }

    /// Checks signature, run and expiration.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify(&self, authority: &Authority, now: UnixTime) -> Result<(), TokenRefusal> {
        let Claims { run_id, user, expires_at, .. } = &self.claims;
        let is_signed =
            signed_bytes(&self.claims).is_ok_and(|bytes| authority.key.has_signed(&bytes, &self.signature));
        if !is_signed {
            return Err(TokenRefusal::Signature);
        }
        if user.len() > USER_BYTES_MAX {
            return Err(TokenRefusal::UserTooLong { got: user.len() as u64 });
        }
        if *run_id != authority.run_id {
            let got = run_id.chars().take(64).collect();
            return Err(TokenRefusal::Run { want: authority.run_id.clone(), got });
        }
        match *expires_at > now {
            true => Ok(()),
            false => Err(TokenRefusal::Expired { expired_at: *expires_at, now }),
        }
    }

    /// Checks what [`Self::verify`] does, and that `sender` is the peer of the token.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify_from(
        &self,
        authority: &Authority,
        sender: PublicKey,
        now: UnixTime,
    ) -> Result<(), TokenRefusal> {
        self.verify(authority, now)?;
        match self.claims.peer == sender {
            true => Ok(()),
            false => Err(TokenRefusal::Peer { named: self.claims.peer, sender }),
        }
    }

    /// Encodes it for storage, as a frame of [`crate::framing`].
    ///
    /// # Errors
    /// A token of more than [`TOKEN_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        framing::encode(self, TOKEN_BYTES_MAX)
    }

    /// Decodes a stored token. It is not verified.
    ///
    /// # Errors
    /// Bytes that are no token.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        framing::decode(bytes, TOKEN_BYTES_MAX)
    }
}

fn signed_bytes(claims: &Claims) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(claims, DOMAIN.to_vec())
}
