//! Requests that do not come over the authenticated channel of their own sender: relayed, or stored.
//!
//! They authenticate their sender themselves (DeDLOC appendix I.5, "Making requests" and "Responding to
//! requests"), and are refused in exactly the cases that are listed there. `swarm::access` remembers the
//! nonces that were used.
//!
//! ```text
//! signed request  = "barnraise signed request 1\0" | postcard of token, receiver, time, nonce, payload
//! signed response = "barnraise signed response 1\0" | postcard of token, nonce, payload
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key::{KeyPair, PublicKey, Signature};
use super::token::{AccessToken, Authority, TokenRefusal, UnixTime};

const REQUEST_DOMAIN: &[u8] = b"barnraise signed request 1\0";
const RESPONSE_DOMAIN: &[u8] = b"barnraise signed response 1\0";

/// Longest payload of a request or a response.
pub const PAYLOAD_BYTES_MAX: usize = 1024;

/// Unique among the requests of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Nonce(pub [u8; 16]);

/// A request that any peer may forward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedRequest {
    /// Access token of the sender.
    pub token: AccessToken,
    /// Key of the receiver.
    pub receiver: PublicKey,
    /// Time of the request, by the sender's clock.
    pub time: UnixTime,
    /// Unique among the sender's requests.
    pub nonce: Nonce,
    /// The encoded request.
    pub payload: Vec<u8>,
    /// Signature of all of this, by the token's peer.
    pub signature: Signature,
}

/// The answer to a [`SignedRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedResponse {
    /// Access token of the responder, the sender of this message.
    pub token: AccessToken,
    /// Nonce of the request.
    pub nonce: Nonce,
    /// The encoded answer.
    pub payload: Vec<u8>,
    /// Signature of all of this, by the token's peer.
    pub signature: Signature,
}

/// Why a request is not processed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum RequestRefusal {
    /// The token is invalid or expired.
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    /// Not signed by the token's peer.
    #[error("the request is not signed by the peer of its access token")]
    Signature,
    /// A time too far from the receiver's clock.
    #[error(
        "the request was made at {} (Unix time), it is {} now: more than {tolerance_s} s apart",
        sent_at.0,
        now.0
    )]
    Clock {
        /// In the request.
        sent_at: UnixTime,
        /// By the receiver's clock.
        now: UnixTime,
        /// Seconds that the clocks may differ.
        tolerance_s: u64,
    },
    /// The same request, or another one with its nonce, came before.
    #[error("the nonce of the request was used before")]
    NonceUsed,
    /// For another receiver.
    #[error("the request is for {named}, not for {here}")]
    Receiver {
        /// In the request.
        named: PublicKey,
        /// Key of this peer.
        here: PublicKey,
    },
    /// The memory of nonces is full: a repeated request could not be detected.
    #[error("too many requests came lately, try again in {retry_in_s} s")]
    TooMany {
        /// Seconds until the oldest nonce is deleted.
        retry_in_s: u64,
    },
}

/// Why a response is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseRefusal {
    /// The token is invalid or expired.
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    /// Not signed by the token's peer.
    #[error("the response is not signed by the peer of its access token")]
    Signature,
    /// To another request.
    #[error("the response is to another request")]
    Nonce,
    /// From another peer than the receiver of the request.
    #[error("the response is from {sender}, {asked} was asked")]
    Sender {
        /// Receiver of the request.
        asked: PublicKey,
        /// In the response's token.
        sender: PublicKey,
    },
}

impl SignedRequest {
    /// Signs a request of the holder of `token`, whose key is `key`.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        token: AccessToken,
        receiver: PublicKey,
        time: UnixTime,
        nonce: Nonce,
        payload: Vec<u8>,
    ) -> Result<Self, postcard::Error> {
        let signature = key.sign(&request_bytes(&token, receiver, time, nonce, &payload)?);
        Ok(Self { token, receiver, time, nonce, payload, signature })
    }

    /// Checks everything but the nonce, which needs a memory.
    ///
    /// # Errors
    /// The first thing that is wrong, in the paper's order.
    pub fn verify(
        &self,
        authority: &Authority,
        here: PublicKey,
        now: UnixTime,
        tolerance: Duration,
    ) -> Result<(), RequestRefusal> {
        let Self { token, receiver, time, nonce, payload, signature } = self;
        token.verify(authority, now)?;
        let is_signed = request_bytes(token, *receiver, *time, *nonce, payload)
            .is_ok_and(|bytes| token.claims.peer.has_signed(&bytes, signature));
        if !is_signed {
            return Err(RequestRefusal::Signature);
        }
        if time.0.abs_diff(now.0) > tolerance.as_secs() {
            return Err(RequestRefusal::Clock { sent_at: *time, now, tolerance_s: tolerance.as_secs() });
        }
        match *receiver == here {
            true => Ok(()),
            false => Err(RequestRefusal::Receiver { named: *receiver, here }),
        }
    }
}

impl SignedResponse {
    /// Signs an answer of the holder of `token`, whose key is `key`, to the request with this nonce.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        token: AccessToken,
        nonce: Nonce,
        payload: Vec<u8>,
    ) -> Result<Self, postcard::Error> {
        let signature = key.sign(&response_bytes(&token, nonce, &payload)?);
        Ok(Self { token, nonce, payload, signature })
    }

    /// Checks that this is the answer of `asked` to the request with `nonce`.
    ///
    /// # Errors
    /// The first thing that is wrong, in the paper's order.
    pub fn verify(
        &self,
        authority: &Authority,
        asked: PublicKey,
        nonce: Nonce,
        now: UnixTime,
    ) -> Result<(), ResponseRefusal> {
        let sender = self.token.claims.peer;
        self.token.verify(authority, now)?;
        let is_signed = response_bytes(&self.token, self.nonce, &self.payload)
            .is_ok_and(|bytes| sender.has_signed(&bytes, &self.signature));
        if !is_signed {
            return Err(ResponseRefusal::Signature);
        }
        if self.nonce != nonce {
            return Err(ResponseRefusal::Nonce);
        }
        match sender == asked {
            true => Ok(()),
            false => Err(ResponseRefusal::Sender { asked, sender }),
        }
    }
}

fn request_bytes(
    token: &AccessToken,
    receiver: PublicKey,
    time: UnixTime,
    nonce: Nonce,
    payload: &[u8],
) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(&(token, receiver, time, nonce, payload), REQUEST_DOMAIN.to_vec())
}

fn response_bytes(token: &AccessToken, nonce: Nonce, payload: &[u8]) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(&(token, nonce, payload), RESPONSE_DOMAIN.to_vec())
}
