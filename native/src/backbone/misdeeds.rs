//! What an ended conversation, or a refusal, says of the peer on the other side. Pure.

use barnraise_protocol::access::{self, RequestRefusal, TokenRefusal};
use barnraise_protocol::bulk::BulkError;
use barnraise_protocol::{ConversationError, gradient};
use barnraise_relay::Misdeed;

/// Why a conversation broke off; nothing where it is nobody's fault.
pub(crate) fn of_conversation(error: &ConversationError) -> Option<Misdeed> {
    match error {
        ConversationError::Frame(error) => Misdeed::of_frame(error),
        ConversationError::Bulk(error) => of_bulk(error),
        _ => None,
    }
}

fn of_bulk(error: &BulkError) -> Option<Misdeed> {
    match error {
        BulkError::Frame(error) => Misdeed::of_frame(error),
        BulkError::Io(error) => Misdeed::of_pace(error),
        BulkError::TooLarge { .. }
        | BulkError::WrongChunk { .. }
        | BulkError::BadPull { .. }
        | BulkError::RepeatedPulls => Some(Misdeed::DishonestOffer),
        // Bytes may change on the way, if not on ours; the offer is refused.
        BulkError::Checksum { .. } | BulkError::Hash { .. } | BulkError::Withdrawn(_) => None,
    }
}

/// Why a contribution does not count, where no honest contributor would have offered it. One whose training
/// diverges is honest, and so is one that comes too late.
pub(crate) fn of_offer(refusal: &gradient::Refusal) -> Option<Misdeed> {
    use gradient::Refusal;
    match refusal {
        Refusal::Length { .. }
        | Refusal::Bytes { .. }
        | Refusal::Codec { .. }
        | Refusal::Samples { .. }
        | Refusal::Transfer(_) => Some(Misdeed::DishonestOffer),
        Refusal::Epoch { .. }
        | Refusal::Rate { .. }
        | Refusal::NotFinite { .. }
        | Refusal::Norm { .. }
        | Refusal::Duplicate { .. }
        | Refusal::NotJoined
        | Refusal::Storage
        | Refusal::Busy
        | Refusal::Account(_)
        | Refusal::Repeated(_)
        | Refusal::TooFew { .. }
        | Refusal::TooMany { .. }
        | Refusal::NoAccess(_) => None,
    }
}

/// Why access, or a signed request, is refused.
pub(crate) fn of_access(refusal: &access::Refusal) -> Option<Misdeed> {
    match refusal {
        access::Refusal::Token(refusal) => Some(of_token(refusal)),
        access::Refusal::Request(refusal) => Some(match refusal {
            RequestRefusal::Token(refusal) => of_token(refusal),
            RequestRefusal::Signature => Misdeed::Forged,
            RequestRefusal::Clock { .. } => Misdeed::WrongTime,
            RequestRefusal::NonceUsed => Misdeed::Replayed,
            RequestRefusal::Receiver { .. } => Misdeed::NotForUs,
            RequestRefusal::TooMany { .. } => Misdeed::Quota,
        }),
        _ => None,
    }
}

fn of_token(refusal: &TokenRefusal) -> Misdeed {
    match refusal {
        TokenRefusal::Signature | TokenRefusal::UserTooLong { .. } => Misdeed::Forged,
        TokenRefusal::Expired { .. } => Misdeed::WrongTime,
        TokenRefusal::Run { .. }
        | TokenRefusal::Peer { .. }
        | TokenRefusal::Revoked
        | TokenRefusal::Convicted { .. } => Misdeed::NotForUs,
    }
}
