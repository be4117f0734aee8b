//! Commands of an operator to the driver of a run, and its replies. Every scheme's driver carries them out.

use barnraise_swarm::PeerKey;
use tokio::sync::oneshot;

use super::settings::{SettingError, SettingsChange};
use super::state::{BLOCKED_MAX, OperatorStateError};
use super::view::{PeerList, RunView};
use crate::host::events::EventSender;
use crate::storage::checkpoint::CheckpointError;

/// Sends commands to the driver of a run.
pub type OperatorHandle = EventSender<OperatorRequest>;

/// A command of the operator. With `alone` it is carried out although other backbones aggregate the run.
#[derive(Debug, Clone, PartialEq)]
pub enum OperatorCommand {
    /// The state of the run.
    Show,
    /// Makes no steps until [`Self::Resume`]; contributors and visitors read the reason.
    Pause {
        /// Shown to everybody.
        reason: String,
        /// Although the other backbones continue.
        alone: bool,
    },
    /// Ends a pause.
    Resume,
    /// Changes a setting.
    Set(SettingsChange),
    /// Restores the parameters of an earlier checkpoint.
    RollBack {
        /// Epoch of the checkpoint.
        epoch: u64,
        /// Although the other backbones have a model with more samples.
        alone: bool,
    },
    /// Refuses a peer from now on, with the reason.
    Block {
        /// The peer.
        peer: PeerKey,
        /// Shown to the peer.
        reason: String,
    },
    /// Ends a block.
    Unblock {
        /// The peer.
        peer: PeerKey,
    },
    /// Lists the contributors.
    Peers {
        /// Index of the first one.
        offset: usize,
        /// Most that are listed.
        limit: usize,
    },
}

/// The reply to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum OperatorReply {
    /// To [`OperatorCommand::Peers`].
    Peers(Box<PeerList>),
    /// To all other commands.
    Run(Box<RunView>),
}

/// A command and where its reply goes.
#[derive(Debug)]
pub struct OperatorRequest {
    /// The command.
    pub command: OperatorCommand,
    /// Receives the reply.
    pub answer: oneshot::Sender<Result<OperatorReply, OperatorError>>,
}

/// Why a command has no effect. The run continues unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The run has other backbones, and the command was not given with `alone`.
    #[error("{others} other backbones aggregate this run and {why}; `alone` does it all the same")]
    Others {
        /// Number of other backbones.
        others: usize,
        /// What they would do.
        why: &'static str,
    },
    /// The checkpoint does not exist, or is damaged.
    #[error("no checkpoint of epoch {epoch} is kept, or it is damaged; there are those of {kept:?}")]
    NoCheckpoint {
        /// Epoch that was asked for.
        epoch: u64,
        /// Epochs of the checkpoints that are kept.
        kept: Vec<u64>,
    },
    /// The checkpoint is not earlier than the run.
    #[error("the run is at epoch {now}: it goes back to an earlier checkpoint, not to that of {epoch}")]
    NotEarlier {
        /// Epoch that was asked for.
        epoch: u64,
        /// Epoch of the run.
        now: u64,
    },
    /// The run cannot continue from the checkpoint.
    #[error("the checkpoint of epoch {epoch} does not fit the run: {why}")]
    Unfit {
        /// Epoch that was asked for.
        epoch: u64,
        /// What does not fit.
        why: String,
    },
    /// The setting is refused.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The scheme has nobody who could carry it out.
    #[error(
        "a run without a server takes no commands: its participants decide together; stopping this process ends its part alone"
    )]
    NoServer,
    /// The peer is not blocked.
    #[error("the peer is not blocked")]
    NotBlocked,
    /// The list of blocked peers is full.
    #[error("{BLOCKED_MAX} peers are blocked already: let some in, or close the run with [access]")]
    TooManyBlocked,
    /// The command could not be stored, so it was not carried out.
    #[error("it could not be stored: {0}")]
    Kept(#[from] OperatorStateError),
    /// The checkpoints could not be read or written.
    #[error("the checkpoints cannot be read or written: {0}")]
    Checkpoints(#[from] CheckpointError),
}
