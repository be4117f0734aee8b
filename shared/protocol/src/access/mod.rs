//! The `access` conversation: a peer proves that it may take part, or learns how to get access.
//!
//! A run is open, by invitation, or for users on a list (DeDLOC appendix I.5). Its authority, a
//! backbone's identity key, signs [`AccessToken`]s. Over its own connection, which Noise authenticates, a
//! peer presents its token, redeems an invitation, or asks for the token of a login that named its key.
//! A token is renewed by a [`SignedRequest`] to the authority, which any backbone forwards. Any number
//! of questions on a stream, one after the other.

pub mod key;
pub mod signed;
pub mod token;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

pub use self::key::{KeyPair, ParseKeyError, PublicKey, Signature};
pub use self::signed::{Nonce, RequestRefusal, ResponseRefusal, SignedRequest, SignedResponse};
pub use self::token::{
    AccessToken, Authority, Claims, ConvictedWork, TOKEN_BYTES_MAX, TokenId, TokenRefusal, UnixTime,
};
use crate::framing::{self, FrameError};

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/access/2";

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
    /// All peers.
    #[default]
    Open,
    /// Peers with an invitation.
    Invitation,
    /// Users on the list of identities.
    Allowlist,
}

/// Access rules of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessDescription {
    /// Who may take part.
    pub mode: AccessMode,
    /// Key that signs the tokens. An open run needs no tokens.
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
    /// Has a user signed in for my key?
    Claim,
    /// Forward this to the authority, or answer it if you are the authority. The payload is a [`RelayedRequest`].
    Relay(Box<SignedRequest>),
    /// Which tokens were revoked? From other backbones of the run.
    Revoked {
        /// The `next` of the last answer, 0 at first.
        since: u64,
    },
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// The token is valid: all conversations are allowed until then.
    Admitted(UnixTime),
    /// A new token for the peer: all conversations are allowed.
    Granted(Box<AccessToken>),
    /// No user has signed in yet: open this page, sign in, then claim again.
    SignIn {
        /// `http://` or `https://`, and the peer's id in it.
        url: String,
    },
    /// The authority's answer. The payload is a [`RelayedResponse`].
    Relayed(Box<SignedResponse>),
    /// At most [`REVOKED_MAX`] revoked tokens, the oldest revocations first.
    Revoked {
        /// The revoked tokens.
        tokens: Vec<RevokedToken>,
        /// `since` of the next question. Where `tokens` is not empty, there may be more.
        next: u64,
    },
    /// Refused, with the reason.
    Refused(AccessRefusal),
}

/// A token that was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RevokedToken {
    /// The token's id.
    pub token_id: TokenId,
    /// When the token would have expired, and its revocation can be deleted.
    pub expires_at: UnixTime,
}

/// A request to the authority that other backbones forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayedRequest {
    /// Renew the token of the request.
    Renew,
}

/// An answer of the authority that other backbones forward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayedResponse {
    /// The new token.
    Renewed(Box<AccessToken>),
    /// Refused, with the reason.
    Refused(AccessRefusal),
}

/// Why access is not granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum AccessRefusal {
    /// No token was presented on this connection.
    #[error("this run is {}: present an access token first", mode.words())]
    Needed {
        /// Of the run.
        mode: AccessMode,
    },
    /// The token is invalid.
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    /// The signed request is invalid.
    #[error(transparent)]
    Request(#[from] RequestRefusal),
    /// An invitation that does not exist, or no longer.
    #[error("there is no such invitation")]
    NoInvitation,
    /// An invitation that was used as often as allowed.
    #[error("the invitation was used as often as it may be")]
    InvitationUsedUp,
    /// An expired invitation.
    #[error("the invitation expired at {} (Unix time)", expired_at.0)]
    InvitationExpired {
        /// When it expired.
        expired_at: UnixTime,
    },
    /// A user who signed in but is not on the list.
    #[error("{user} is not on the list of this run")]
    NotOnList {
        /// Name from the identity provider.
        user: String,
    },
    /// The run's access mode does not allow this request.
    #[error("this run is {}: it takes no {wanted}", mode.words())]
    OtherWay {
        /// Of the run.
        mode: AccessMode,
        /// The request, in words.
        wanted: String,
    },
    /// This backbone is not the run's authority.
    #[error("access to this run is granted at {at}")]
    Elsewhere {
        /// Address of the authority.
        at: String,
    },
    /// A peer whose key is not Ed25519.
    #[error("a peer with an Ed25519 key is wanted")]
    KeyKind,
    /// No space, or a store or authority that does not answer. Trying again may help.
    #[error("access cannot be decided now: {reason}")]
    Unavailable {
        /// What is wrong.
        reason: String,
    },
}

impl AccessDescription {
    /// Access rules of an open run.
    pub fn open(authority: PublicKey) -> Self {
        Self { mode: AccessMode::Open, authority }
    }
}

impl AccessMode {
    /// The mode in a sentence: `this run is …`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Open => "open to everybody",
            Self::Invitation => "by invitation",
            Self::Allowlist => "for those on its list",
        }
    }
}

impl AccessRefusal {
    /// Whether the same request may succeed later.
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

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The other side refuses access.
    #[error(transparent)]
    Refused(#[from] AccessRefusal),
}

/// Asks one question on `stream`.
///
/// # Errors
/// [`AccessError::Refused`] where the answer is a refusal.
pub async fn ask<S>(
    stream: &mut S,
    question: &ContributorToBackbone,
) -> Result<BackboneToContributor, AccessError>
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
            AccessRefusal::Unavailable { reason: "full".into() },
            AccessRefusal::Request(RequestRefusal::TooMany { retry_in_s: 1 }),
            AccessRefusal::Request(RequestRefusal::NonceUsed),
        ];
        assert!(passing.iter().all(AccessRefusal::is_passing));
        let lasting = [
            AccessRefusal::NoInvitation,
            AccessRefusal::KeyKind,
            AccessRefusal::Token(TokenRefusal::Revoked),
            AccessRefusal::Request(RequestRefusal::Signature),
        ];
        assert!(!lasting.iter().any(AccessRefusal::is_passing));
    }

    #[test]
    fn a_refusal_says_how_the_run_is_entered() {
        let needed = |mode| AccessRefusal::Needed { mode }.to_string();
        assert!(needed(AccessMode::Open).contains("is open to everybody:"));
        assert!(needed(AccessMode::Invitation).contains("is by invitation:"));
        assert!(needed(AccessMode::Allowlist).contains("is for those on its list:"));
    }
}
