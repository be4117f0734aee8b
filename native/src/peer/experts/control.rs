//! Commands of a host's operator, on their way to its driver.

use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::{ExpertPlace, LayerId};
use tokio::sync::{mpsc, oneshot};

use super::store::ExpertStoreError;

/// Commands that may wait for the driver.
const WAITING_MAX: usize = 8;

/// What the operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostCommand {
    /// Hand all experts over, and end.
    Drain { limit: Duration },
    /// Hand one over, to a host or to any, and go on.
    Move { place: ExpertPlace, limit: Duration, to: Option<PublicKey> },
    /// Let the experts of a layer make steps no more, or again.
    Freeze { layer: LayerId, is_frozen: bool },
}

/// Why a command has no effect.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostCommandError {
    #[error("the expert {} of layer {} is not hosted here", .0.1, .0.0.0)]
    NotHere(ExpertPlace),
    #[error("the expert is at the host {0} already, which is this one")]
    Itself(PublicKey),
    #[error("the model has no layer {} of experts", .0.0)]
    NoLayer(LayerId),
    #[error("the run freezes layer {} at all hosts: its operator takes it out of model.experts.frozen", .0.0)]
    FrozenByRun(LayerId),
    #[error("other experts are being handed over: wait until those have their hosts")]
    HandingOver,
    #[error(transparent)]
    Store(#[from] ExpertStoreError),
    #[error("the host is ending")]
    Ending,
}

/// A command, and where its outcome goes.
#[derive(Debug)]
pub(super) struct HostRequest {
    pub(super) command: HostCommand,
    pub(super) answer: oneshot::Sender<Result<(), HostCommandError>>,
}

/// The side of the operator. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct HostControl(mpsc::Sender<HostRequest>);

impl HostControl {
    /// With the side of the driver.
    pub(super) fn new() -> (Self, mpsc::Receiver<HostRequest>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Has the driver carry a command out; of a handover it only begins.
    pub(super) async fn send(&self, command: HostCommand) -> Result<(), HostCommandError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.0.send(HostRequest { command, answer }).await;
        sent.map_err(|_| HostCommandError::Ending)?;
        answered.await.unwrap_or(Err(HostCommandError::Ending))
    }
}
