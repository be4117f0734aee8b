//! A host of experts (Learning@home §3.3), as far as it is the same on every machine: its requests, what computes them, what is
//! stored of an expert, and the copies of that at other peers.

mod conversation;
mod copies;
mod device;
mod driver;
mod requests;
mod state;
mod stored;

pub use self::copies::{
    AveragedCopies, CopyTrouble, Keeper, KeeperError, KeeperNetwork, LastAveraged, NewestError,
    StoredCheckpoint, give_stored, newest, other_copies,
};
pub use self::device::{
    AddError, ComputeError, ComputedRows, ExpertDevice, ExpertJob, JobDone, OutputGradients,
};
pub use self::driver::{HostConfig, HostError, host};
pub use self::requests::{ExpertAnswer, HeldRequests, served_request, wire_refusal};
pub use self::stored::{CopyState, StoredExpert, StoredExpertError};
