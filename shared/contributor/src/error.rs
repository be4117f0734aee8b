//! Errors of network operations, and their consequences.

use std::time::Duration;

use barnraise_protocol::access::{AccessError, ResponseRefusal};
use barnraise_protocol::bulk::BulkError;
use barnraise_protocol::error::NewerThanRun;
use barnraise_protocol::framing::FrameError;
use barnraise_protocol::{ConversationError, Refusal};
use barnraise_swarm::activity::Interruption;

use crate::description::DescriptionError;
use crate::platform::PlatformError;

/// A transfer that moves no byte for so long fails.
pub const STALL_MAX: Duration = Duration::from_secs(15);

/// Why a network operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperationError {
    /// Its result is no longer wanted. Not a failure.
    #[error("no longer wanted")]
    Cancelled,
    /// No byte was transferred for too long.
    #[error("nothing moved for {} seconds", STALL_MAX.as_secs())]
    Stalled,
    /// A peer that is too slow, where other peers can be asked.
    #[error("it is too slow")]
    Slow,
    /// No connection.
    #[error(transparent)]
    Connect(PlatformError),
    /// No stream on the connection.
    #[error("no {protocol} stream: {source}")]
    Open {
        /// The protocol of the stream.
        protocol: &'static str,
        /// Of the platform.
        source: PlatformError,
    },
    /// The backbone runs the previous version, and may be updated soon.
    #[error(transparent)]
    OlderRun(#[from] NewerThanRun),
    /// The remote declined, or violated the protocol.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    /// The run requires an invitation.
    #[error("this run is by invitation, and this peer came without one: ask its operator for one")]
    NoInvitation,
    /// The run requires a sign-in, which this operation does not wait for.
    #[error("this run is for those on its list: press start to sign in")]
    NotSignedIn,
    /// The authority's answer does not verify.
    #[error(transparent)]
    Response(#[from] ResponseRefusal),
    /// This peer cannot take part in the run; a retry does not help.
    #[error(transparent)]
    Description(#[from] DescriptionError),
}

impl From<FrameError> for OperationError {
    fn from(error: FrameError) -> Self {
        Self::Conversation(error.into())
    }
}

impl From<AccessError> for OperationError {
    fn from(error: AccessError) -> Self {
        Self::Conversation(error.into())
    }
}

impl From<&OperationError> for Interruption {
    fn from(error: &OperationError) -> Self {
        match error {
            OperationError::Conversation(ConversationError::Older(versions)) => versions.clone().into(),
            OperationError::Conversation(ConversationError::Refused(refusal)) => refusal.clone().into(),
            OperationError::Conversation(ConversationError::Access(refusal)) => {
                Refusal::from(refusal.clone()).into()
            }
            OperationError::OlderRun(versions) => versions.clone().into(),
            OperationError::NoInvitation => Self::NoInvitation,
            error => Self::other(error),
        }
    }
}

impl OperationError {
    /// Whether the stream ended during the conversation, so that another stream may succeed.
    pub(crate) fn is_cut(&self) -> bool {
        let frame_is_cut = |error: &FrameError| {
            matches!(error, FrameError::Closed | FrameError::Truncated { .. } | FrameError::Io(_))
        };
        match self {
            Self::Conversation(ConversationError::Frame(error)) => frame_is_cut(error),
            Self::Conversation(ConversationError::Bulk(BulkError::Frame(error))) => frame_is_cut(error),
            Self::Conversation(ConversationError::Bulk(BulkError::Io(_))) => true,
            _ => false,
        }
    }

    /// Whether the conversation ended in order nevertheless, so that its stream can be reused.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Conversation(ConversationError::Refused(_) | ConversationError::Access(_)))
    }

    /// Whether the remote withdrew the data during the transfer.
    pub(crate) fn is_withdrawn(&self) -> bool {
        matches!(self, Self::Conversation(ConversationError::Bulk(BulkError::Withdrawn(_))))
    }

    /// Whether all bytes arrived and their hash is not the announced one.
    pub(crate) fn is_wrong(&self) -> bool {
        matches!(self, Self::Conversation(ConversationError::Bulk(BulkError::Hash { .. })))
    }

    /// Whether the announced bytes arrived, but do not decode.
    pub(crate) fn is_about_data(&self) -> bool {
        matches!(self, Self::Conversation(ConversationError::Dataset(_)))
    }

    /// Whether a retry cannot succeed.
    pub(crate) fn is_final(&self) -> bool {
        let version = |error: &ConversationError| {
            use ConversationError::{Frame, Older};
            matches!(error, Frame(FrameError::Version { .. }) | Older(_))
        };
        match self {
            Self::Description(_) => true,
            Self::Conversation(error) if version(error) => true,
            error => error.is_about_access(),
        }
    }

    /// Whether the run does not let this peer in, and a retry does not change that.
    pub(crate) fn is_about_access(&self) -> bool {
        match self {
            Self::NoInvitation => true,
            Self::Conversation(ConversationError::Access(refusal)) => !refusal.is_passing(),
            _ => false,
        }
    }
}
