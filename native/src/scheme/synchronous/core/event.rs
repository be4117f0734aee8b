//! Events of the core, all through one bounded channel.

use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_protocol::receipt::Receipt;
use barnraise_swarm::PeerKey;
use barnraise_swarm::collection::{MeasuredGradient, Ticket};
use tokio::sync::oneshot;

use super::super::aggregators::AggregatorEvent;
use crate::host::evaluator::Evaluated;
use crate::host::operator::request::OperatorRequest;
use crate::host::sessions::SessionEvent;
use crate::storage::journal::JournalEntry;

/// An event of the core.
#[derive(Debug)]
pub enum CoreEvent {
    /// A contributor does something in its session.
    Session(SessionEvent),
    /// A contributor offers a gradient.
    Offer {
        /// The contributor.
        peer: PeerKey,
        /// Its message.
        offer: Offer,
        /// Whether it is to be received.
        answer: oneshot::Sender<Result<AcceptedOffer, DeclinedOffer>>,
    },
    /// The transfer of an accepted offer failed.
    TransferFailed(Ticket),
    /// A gradient was received.
    Gradient {
        /// The offer that was accepted.
        ticket: Ticket,
        /// As it came, for the journal.
        entry: Box<JournalEntry>,
        /// Decoded, and measured on another thread than the core's.
        values: MeasuredGradient,
        /// Whether it counts.
        answer: oneshot::Sender<Result<Receipt, ContributionRefusal>>,
    },
    /// An event of the other aggregators of the run.
    Aggregator {
        /// The aggregator.
        peer: PeerKey,
        /// Its event.
        event: AggregatorEvent,
    },
    /// A command of the operator.
    Operator(OperatorRequest),
    /// The evaluator is done with some parameters.
    Evaluated(Evaluated),
}

impl From<SessionEvent> for CoreEvent {
    fn from(event: SessionEvent) -> Self {
        Self::Session(event)
    }
}

impl From<OperatorRequest> for CoreEvent {
    fn from(request: OperatorRequest) -> Self {
        Self::Operator(request)
    }
}

impl From<Evaluated> for CoreEvent {
    fn from(evaluated: Evaluated) -> Self {
        Self::Evaluated(evaluated)
    }
}

impl From<(PeerKey, AggregatorEvent)> for CoreEvent {
    fn from((peer, event): (PeerKey, AggregatorEvent)) -> Self {
        Self::Aggregator { peer, event }
    }
}

/// An offer whose gradient is to be received.
#[derive(Debug)]
pub struct AcceptedOffer {
    /// The contribution in the round.
    pub ticket: Ticket,
    /// Resolves when the transfer is to be aborted.
    pub abandoned: oneshot::Receiver<()>,
}

/// Why an offered gradient is not received.
#[derive(Debug, Clone, PartialEq)]
pub enum DeclinedOffer {
    /// It does not count.
    Refused(ContributionRefusal),
    /// It was counted before, and its acknowledgement was lost.
    AlreadyCounted(Box<Receipt>),
}
