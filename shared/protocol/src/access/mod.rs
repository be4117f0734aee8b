//! The `access` conversation: a peer shows that it may take part, or learns how it may.
//!
//! A run is open, by invitation, or for those on a list (DeDLOC appendix I.5). Its authority, a
//! backbone's identity key, signs [`AccessToken`]s. Over its own connection, whose peer Noise attests, a
//! peer presents its token, redeems an invitation, or asks for the token of a login that named its key;
//! a token is renewed by a [`SignedRequest`] to the authority, which any backbone passes on. Any number
//! of questions on a stream, one after the other.

pub mod key;
pub mod signed;
pub mod token;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

pub use self::key::{KeyPair, ParseKeyError, PublicKey, Signature};
pub use self::signed::{Nonce, RequestRefusal, ResponseRefusal, SignedRequest, SignedResponse};
pub use self::token::{AccessToken, Authority, Claims, TokenId, TokenRefusal, UnixTime};
use crate::error::ConversationError;
use crate::framing;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/access/1";

/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Most revoked tokens in one answer.
pub const REVOKED_MAX: usize = 512;
/// Longest invitation code, in bytes.
pub const CODE_BYTES_MAX: usize = 64;

// A token id and its expiration take 26 bytes at most.
const _: () = assert!(REVOKED_MAX * 26 + 64 <= MESSAGE_BYTES_MAX);

/// Who may take part in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// Everybody.
    #[default]
    Open,
    /// Whoever has an invitation.
    Invitation,
    /// Whoever is on the list of identities.
    Allowlist,
}

/// What a run says of who may take part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessDescription {
    /// Who.
    pub mode: AccessMode,
    /// Signs the tokens. In an open run nobody asks for one.
    pub authority: PublicKey,
}

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// Here is my token.
    Present(Box<AccessToken>),
    /// Here is the code of an invitation.
    Redeem {
        /// At most [`CODE_BYTES_MAX`] bytes.
        code: String,
    },
    /// Has somebody signed in for my key?
    Claim,
    /// Pass this on to the authority, unless it is you. The payload is a [`RelayedRequest`].
    Relay(Box<SignedRequest>),
    /// Which tokens were revoked? Asked by other backbones of the run.
    Revoked {
        /// The `next` of the last answer, 0 at first.
        since: u64,
    },
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// The token is good; every conversation is open until then.
    Admitted(UnixTime),
    /// Yours: keep it. Every conversation is open.
    Granted(Box<AccessToken>),
    /// Nobody has yet: somebody opens this page and signs in, then claim again.
    SignIn {
        /// `http://` or `https://`, and the peer's id in it.
        url: String,
    },
    /// The authority's answer. The payload is a [`RelayedResponse`].
    Relayed(Box<SignedResponse>),
    /// At most [`REVOKED_MAX`] revoked tokens, the oldest revocations first.
    Revoked {
        /// These.
        tokens: Vec<RevokedToken>,
        /// For the next question. Where `tokens` is not empty, there may be more.
        next: u64,
    },
    /// No, with the reason.
    Refused(Refusal),
}

/// A token that is good no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RevokedToken {
    /// Which.
    pub token_id: TokenId,
    /// When it may be forgotten: it would have expired.
    pub expires_at: UnixTime,
}

/// What may be asked of the authority through others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayedRequest {
    /// Another token like the one of the request, good for longer.
    Renew,
}

/// What the authority answers through others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayedResponse {
    /// Present this from now on.
    Renewed(Box<AccessToken>),
    /// No, with the reason.
    Refused(Refusal),
}

/// Why access is not granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// Nothing was presented on this connection's behalf.
    #[error("this run is {}: present an access token first", mode.words())]
    Needed {
        /// Of the run.
        mode: AccessMode,
    },
    /// The token is no good.
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    /// The signed request is no good.
    #[error(transparent)]
    Request(#[from] RequestRefusal),
    /// There is no such invitation, or no more.
    #[error("there is no such invitation")]
    NoInvitation,
    /// Others were quicker.
    #[error("the invitation was used as often as it may be")]
    InvitationUsedUp,
    /// Too late.
    #[error("the invitation expired at {} (Unix time)", expired_at.0)]
    InvitationExpired {
        /// When.
        expired_at: UnixTime,
    },
    /// Signed in, and not on the list.
    #[error("{user} is not on the list of this run")]
    NotOnList {
        /// As the identity provider says.
        user: String,
    },
    /// This run has no such way in.
    #[error("this run is {}: it takes no {wanted}", mode.words())]
    OtherWay {
        /// Of the run.
        mode: AccessMode,
        /// What was tried.
        wanted: String,
    },
    /// Tokens of this run are made elsewhere.
    #[error("access to this run is granted at {at}")]
    Elsewhere {
        /// Address of the authority.
        at: String,
    },
    /// Tokens name Ed25519 keys.
    #[error("a peer with an Ed25519 key is wanted")]
    KeyKind,
    /// No room, or a store or an authority that does not answer. Trying again may help.
    #[error("access cannot be decided now: {reason}")]
    Unavailable {
        /// What is wrong.
        reason: String,
    },
}

impl AccessDescription {
    /// Of a run that takes everybody.
    pub fn open(authority: PublicKey) -> Self {
        Self { mode: AccessMode::Open, authority }
    }
}

impl AccessMode {
    /// As a sentence calls it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Open => "open to everybody",
            Self::Invitation => "by invitation",
            Self::Allowlist => "for those on its list",
        }
    }
}

impl Refusal {
    /// Whether the same may be granted a little later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::Request(refusal) => {
                matches!(refusal, RequestRefusal::TooMany { .. } | RequestRefusal::NonceUsed)
            }
            _ => false,
        }
    }
}

/// Asks one question on `stream`.
///
/// # Errors
/// [`ConversationError::Access`] where the answer is a refusal.
pub async fn ask<S>(
    stream: &mut S,
    question: &ContributorToBackbone,
) -> Result<BackboneToContributor, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, question, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        BackboneToContributor::Refused(refusal) => Err(refusal.into()),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passes_is_asked_for_again() {
        let passing = [
            Refusal::Unavailable { reason: "full".into() },
            Refusal::Request(RequestRefusal::TooMany { retry_in_s: 1 }),
            Refusal::Request(RequestRefusal::NonceUsed),
        ];
        assert!(passing.iter().all(Refusal::is_passing));
        let lasting = [
            Refusal::NoInvitation,
            Refusal::KeyKind,
            Refusal::Token(TokenRefusal::Revoked),
            Refusal::Request(RequestRefusal::Signature),
        ];
        assert!(!lasting.iter().any(Refusal::is_passing));
    }

    #[test]
    fn a_refusal_says_how_the_run_is_entered() {
        let needed = |mode| Refusal::Needed { mode }.to_string();
        assert!(needed(AccessMode::Open).contains("is open to everybody:"));
        assert!(needed(AccessMode::Invitation).contains("is by invitation:"));
        assert!(needed(AccessMode::Allowlist).contains("is for those on its list:"));
    }
}
