//! Why a step on the way through a run did not succeed, and what follows from it.

use barnraise_protocol::ConversationError;
use barnraise_protocol::access::ResponseRefusal;
use barnraise_protocol::bulk::BulkError;
use barnraise_protocol::framing::FrameError;

use crate::description::DescriptionError;
use crate::operation::STALL_MAX;

/// Ends an operation on the network.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperationError {
    /// It is no longer wanted. Not a failure.
    #[error("no longer wanted")]
    Cancelled,
    /// No byte came or went.
    #[error("nothing moved for {} seconds", STALL_MAX.as_secs())]
    Stalled,
    /// Nothing, or hardly anything, and there are others to ask.
    #[error("it is too slow")]
    Slow,
    /// No connection.
    #[error("{0}")]
    Connect(String),
    /// No stream on the connection.
    #[error("no {protocol} stream: {reason}")]
    Open {
        /// Which was wanted.
        protocol: &'static str,
        /// From the transport.
        reason: String,
    },
    /// The backbone is of the build before this one, and may be another one soon.
    #[error(
        "this page or program is newer than the run: it speaks {}, the run {theirs}; the run's operator has to update it",
        barnraise_protocol::run::PROTOCOL
    )]
    OlderRun {
        /// What the backbone speaks.
        theirs: &'static str,
    },
    /// The other side declined, or did not keep to the protocol.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    /// The run takes those who were invited.
    #[error("this run is by invitation: come with the link of one")]
    NoInvitation,
    /// The run takes those who have signed in, and that was not waited for.
    #[error("this run is for those on its list: press start to sign in")]
    NotSignedIn,
    /// The authority's answer is not its own.
    #[error(transparent)]
    Response(#[from] ResponseRefusal),
    /// The run is not one to take part in; trying again does not mend it.
    #[error(transparent)]
    Description(#[from] DescriptionError),
}

impl From<FrameError> for OperationError {
    fn from(error: FrameError) -> Self {
        Self::Conversation(error.into())
    }
}

impl OperationError {
    /// Whether the stream ended under the conversation, so that another stream may do.
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

    /// Whether the conversation came to its end all the same, so that its stream can go on.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Conversation(ConversationError::Refused(_) | ConversationError::Access(_)))
    }

    /// Whether all bytes came, and their hash is another than was announced.
    pub(crate) fn is_wrong(&self) -> bool {
        matches!(self, Self::Conversation(ConversationError::Bulk(BulkError::Hash { .. })))
    }

    /// Whether what came is what was announced, and of no use.
    pub(crate) fn is_about_data(&self) -> bool {
        matches!(self, Self::Conversation(ConversationError::Dataset(_)))
    }

    /// Whether trying again cannot help.
    pub(crate) fn is_final(&self) -> bool {
        let version = |error: &ConversationError| {
            use ConversationError::{Frame, Older};
            matches!(error, Frame(FrameError::Version { .. }) | Older { .. })
        };
        match self {
            Self::Description(_) | Self::NoInvitation => true,
            Self::Conversation(ConversationError::Access(refusal)) => !refusal.is_passing(),
            Self::Conversation(error) => version(error),
            _ => false,
        }
    }
}
