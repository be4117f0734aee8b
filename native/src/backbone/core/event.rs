//! What the core hears, all of it through one bounded channel.

use barnraise_learning::Evaluation;
use barnraise_protocol::contribute::{BackboneToContributor, Join, Report};
use barnraise_protocol::gradient::{Offer, Refusal};
use barnraise_protocol::receipt::Receipt;
use barnraise_swarm::PeerKey;
use barnraise_swarm::round::{AddressGroup, Ticket};
use tokio::sync::{mpsc, oneshot};

use super::super::aggregators::Heard;
use super::operator::Asked;
use crate::storage::journal::JournalEntry;

/// What the core hears.
#[derive(Debug)]
pub enum CoreEvent {
    /// A contributor opens a session.
    Join {
        /// Who.
        peer: PeerKey,
        /// From where.
        group: AddressGroup,
        /// With what.
        join: Join,
        /// What it is to be told from now on; the session ends when this is dropped.
        messages: mpsc::Sender<BackboneToContributor>,
        /// The session's number, or why there is none.
        answer: oneshot::Sender<Result<SessionId, String>>,
    },
    /// A session ended.
    Leave {
        /// Who.
        peer: PeerKey,
        /// Which of its sessions.
        session: SessionId,
    },
    /// A contributor says how much it has.
    Report {
        /// Who.
        peer: PeerKey,
        /// What.
        report: Report,
        /// Dropped once it was heard.
        handled: oneshot::Sender<()>,
    },
    /// A contributor offers a gradient.
    Offer {
        /// Who.
        peer: PeerKey,
        /// What.
        offer: Offer,
        /// Whether it is to be received.
        answer: oneshot::Sender<Result<Place, Declined>>,
    },
    /// A gradient that was to be received did not come.
    TransferFailed(Ticket),
    /// A gradient is here.
    Gradient {
        /// Which.
        ticket: Ticket,
        /// As it came, for the journal.
        entry: JournalEntry,
        /// Decoded.
        values: Vec<f32>,
        /// Whether it counts.
        answer: oneshot::Sender<Result<Receipt, Refusal>>,
    },
    /// Something of the peers that aggregate the run too.
    Aggregator {
        /// Who.
        peer: PeerKey,
        /// What.
        heard: Heard,
    },
    /// The operator says something.
    Operator(Asked),
    /// The evaluator is done with some parameters.
    Evaluated {
        /// Their epoch.
        epoch: u64,
        /// On the held-out set.
        evaluation: Evaluation,
    },
}

/// A place for a contribution that is received.
#[derive(Debug)]
pub struct Place {
    /// Which.
    pub ticket: Ticket,
    /// Resolves where its transfer is to end before it is through.
    pub abandoned: oneshot::Receiver<()>,
}

/// Why what is offered is not received.
#[derive(Debug, Clone, PartialEq)]
pub enum Declined {
    /// It does not count.
    Refused(Refusal),
    /// It counted when it was offered before: its acknowledgement was lost.
    CountedBefore(Box<Receipt>),
}

/// One session of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionId(pub(super) u64);
