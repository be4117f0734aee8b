//! Requests that do not come over the authenticated channel of their own sender: relayed, or stored.
//!
//! They carry what Noise attests otherwise (DeDLOC appendix I.5, "Making requests" and "Responding to
//! requests"), and are refused in exactly the cases that are listed there. Whether a nonce was used is
//! asked of whoever remembers them: `swarm::access`.
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

/// Told apart from every other request of the same sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Nonce(pub [u8; 16]);

/// A request that anybody may carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedRequest {
    /// Who asks, and that they may.
    pub token: AccessToken,
    /// Who is asked.
    pub receiver: PublicKey,
    /// When it was asked, by the clock of whoever asks.
    pub time: UnixTime,
    /// Unique among the sender's requests.
    pub nonce: Nonce,
    /// What is asked.
    pub payload: Vec<u8>,
    /// Of all of this, by the token's peer.
    pub signature: Signature,
}

/// The answer to a [`SignedRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedResponse {
    /// Who answers, and that they may. Its peer is the sender.
    pub token: AccessToken,
    /// Of the request.
    pub nonce: Nonce,
    /// What is answered.
    pub payload: Vec<u8>,
    /// Of all of this, by the token's peer.
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
    /// Sent too long ago, or in the future.
    #[error(
        "the request was made at {} (Unix time), it is {} now: more than {tolerance_s} s apart",
        sent_at.0,
        now.0
    )]
    Clock {
        /// In the request.
        sent_at: UnixTime,
        /// By the clock of whoever refuses.
        now: UnixTime,
        /// Seconds that the clocks may differ.
        tolerance_s: u64,
    },
    /// The same request, or another one with its nonce, came before.
    #[error("the nonce of the request was used before")]
    NonceUsed,
    /// For somebody else.
    #[error("the request is for {named}, not for {here}")]
    Receiver {
        /// In the request.
        named: PublicKey,
        /// Whoever refuses.
        here: PublicKey,
    },
    /// As many requests were remembered as may be, so that a repeated one could not be told.
    #[error("too many requests came lately, try again in {retry_in_s} s")]
    TooMany {
        /// When the oldest will be forgotten.
        retry_in_s: u64,
    },
}

/// Why a response is not believed.
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
    /// By somebody who was not asked.
    #[error("the response is from {sender}, {asked} was asked")]
    Sender {
        /// Who was asked.
        asked: PublicKey,
        /// In the response's token.
        sender: PublicKey,
    },
}

impl SignedRequest {
    /// A request of the holder of `token`, whose key is `key`.
    ///
    /// # Errors
    /// What cannot be encoded; does not happen.
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

    /// Every check but the one of the nonce, which needs a memory.
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
    /// The answer of the holder of `token`, whose key is `key`, to the request with this nonce.
    ///
    /// # Errors
    /// What cannot be encoded; does not happen.
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
