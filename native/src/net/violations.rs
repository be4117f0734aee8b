//! Maps stream errors and refusals to violations of the remote peer. Pure.

use barnraise_protocol::access::{self, RequestRefusal, TokenRefusal};
use barnraise_protocol::bulk::BulkError;
use barnraise_protocol::experts::checkpoints::CheckpointError;
use barnraise_protocol::{ConversationError, gradient};
use barnraise_relay::Violation;

/// Why a conversation broke off; nothing where it is nobody's fault.
pub(crate) fn of_conversation(error: &ConversationError) -> Option<Violation> {
    match error {
        ConversationError::Frame(error) => Violation::of_frame(error),
        ConversationError::Bulk(error) => of_bulk(error),
        _ => None,
    }
}

/// Why a conversation about checkpoints of experts broke off.
pub(crate) fn of_checkpoint(error: &CheckpointError) -> Option<Violation> {
    match error {
        CheckpointError::Frame(error) => Violation::of_frame(error),
        CheckpointError::Bulk(error) => of_bulk(error),
        CheckpointError::Refused(_) | CheckpointError::Unexpected => None,
    }
}

fn of_bulk(error: &BulkError) -> Option<Violation> {
    match error {
        BulkError::Frame(error) => Violation::of_frame(error),
        BulkError::Io(error) => Violation::of_pace(error),
        BulkError::TooLarge { .. }
        | BulkError::WrongChunk { .. }
        | BulkError::BadPull { .. }
        | BulkError::RepeatedPulls => Some(Violation::DishonestOffer),
        // Bytes may change on the way, if not on ours; the offer is refused.
        BulkError::Hash { .. } | BulkError::Withdrawn(_) => None,
    }
}

/// Why a contribution does not count, where no honest contributor would have offered it. One whose training
/// diverges is honest, and so is one that comes too late.
pub(crate) fn of_offer(refusal: &gradient::ContributionRefusal) -> Option<Violation> {
    use gradient::ContributionRefusal;
    match refusal {
        ContributionRefusal::Length { .. }
        | ContributionRefusal::Bytes { .. }
        | ContributionRefusal::Codec { .. }
        | ContributionRefusal::Samples { .. }
        | ContributionRefusal::Transfer(_) => Some(Violation::DishonestOffer),
        ContributionRefusal::Epoch { .. }
        | ContributionRefusal::Rate { .. }
        | ContributionRefusal::NotFinite { .. }
        | ContributionRefusal::Norm { .. }
        | ContributionRefusal::Duplicate { .. }
        | ContributionRefusal::NotJoined
        | ContributionRefusal::Storage
        | ContributionRefusal::Busy
        | ContributionRefusal::Commitment(_)
        | ContributionRefusal::Repeated(_)
        | ContributionRefusal::TooFew { .. }
        | ContributionRefusal::TooMany { .. }
        | ContributionRefusal::NoAccess(_) => None,
    }
}

/// Why access, or a signed request, is refused.
pub(crate) fn of_access(refusal: &access::AccessRefusal) -> Option<Violation> {
    match refusal {
        access::AccessRefusal::Token(refusal) => Some(of_token(refusal)),
        access::AccessRefusal::Request(refusal) => Some(match refusal {
            RequestRefusal::Token(refusal) => of_token(refusal),
            RequestRefusal::Signature => Violation::Forged,
            RequestRefusal::Clock { .. } => Violation::WrongTime,
            RequestRefusal::NonceUsed => Violation::Replayed,
            RequestRefusal::Receiver { .. } => Violation::NotForUs,
            RequestRefusal::TooMany { .. } => Violation::Quota,
        }),
        _ => None,
    }
}

fn of_token(refusal: &TokenRefusal) -> Violation {
    match refusal {
        TokenRefusal::Signature | TokenRefusal::UserTooLong { .. } => Violation::Forged,
        TokenRefusal::Expired { .. } => Violation::WrongTime,
        TokenRefusal::Run { .. }
        | TokenRefusal::Peer { .. }
        | TokenRefusal::Revoked
        | TokenRefusal::Convicted(_) => Violation::NotForUs,
    }
}
