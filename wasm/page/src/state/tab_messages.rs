//! What the tabs of one browser tell each other, and what they compete for. Plain data.

use barnraise_messages::{
    Activity, Contribution, DeviceChange, DisplayName, PageToPeer, PeerToPage, TransportKind,
};
use serde::{Deserialize, Serialize};

use super::parts::{PeerLoss, WorkerState};
use crate::limits::{DataUsage, Input, PauseReason, Settings};

/// Role of this tab among those of its browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TabRole {
    /// The browser has no locks: each tab has a worker.
    #[default]
    Alone,
    /// The lock was requested.
    Asking,
    /// Another tab has the worker.
    Following,
    /// This tab has the worker.
    Leading,
}

/// The tab that computes in this browser, as it stored itself for the tabs of other runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockHolder {
    /// Origin of its page, with the prefix of its run.
    pub(super) origin: String,
    /// Title of its run, once it is known.
    pub(super) title: Option<String>,
}

/// State of the compute lock for this tab.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum ComputeLock {
    /// Not wanted.
    #[default]
    Unwanted,
    /// Requested, which takes milliseconds.
    Asked,
    /// Held by a tab of another run, which may have stored itself.
    Elsewhere(Option<LockHolder>),
    /// Held by this tab.
    Held,
    /// Taken by a tab of another run; this one stopped.
    Taken,
}

/// An event of the compute lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoadEvent {
    /// Granted to this tab.
    Granted,
    /// Held by another tab; this one is queued.
    Elsewhere(Option<LockHolder>),
    /// The stored holder changed.
    Noted(LockHolder),
    /// Another tab took it from this one.
    Taken(Option<LockHolder>),
}

/// A message between tabs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum TabMessage {
    /// To the leader: send your state.
    Hello,
    /// To the leader: contribute, or stop.
    Contribute(bool),
    /// To the leader: the visitor opened this invitation.
    Invited(String),
    /// To the leader: load the worker.
    Load,
    /// To the leader, for its worker.
    Post(PageToPeer),
    /// To the leader: the visitor set, paused or waived something.
    Limits(Input),
    /// To the leader: take the compute lock from a tab of another run.
    TakeLoad,
    /// From the leader: its state.
    State(Box<LeaderState>),
    /// From the leader: a message of its worker that is not part of its state.
    Worker(PeerToPage),
}

/// State of the leader, which followers show as their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LeaderState {
    pub(super) peer: WorkerState,
    pub(super) contributing: bool,
    pub(super) pause: Option<PauseReason>,
    /// Title of the run that holds the compute lock instead.
    pub(super) elsewhere: Option<String>,
    pub(super) activity: Activity,
    pub(super) contribution: Contribution,
    pub(super) device_change: Option<DeviceChange>,
    pub(super) n_threads: u32,
    pub(super) trouble: Option<PeerLoss>,
    pub(super) reviving: Option<PeerLoss>,
    /// The next leader has no more memory.
    pub(super) n_memory_crashes: u32,
    pub(super) notice: Option<String>,
    pub(super) transport: Option<(TransportKind, Vec<(TransportKind, String)>)>,
    pub(super) peer_id: Option<String>,
    pub(super) name: Option<DisplayName>,
    /// The visitor's settings, and today's data usage.
    pub(super) settings: Settings,
    pub(super) written: DataUsage,
}

/// An event between tabs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TabEvent {
    /// Another tab has the lock.
    Follow,
    /// This tab has the lock, with the stored identity and transport.
    Lead { identity: Option<Vec<u8>>, transport: Option<TransportKind> },
    /// Another tab took it.
    Deposed,
    /// The browser refuses locks.
    Unshared,
    /// An event of the compute lock.
    Load(LoadEvent),
    /// A message of another tab.
    Received(TabMessage),
    /// Time passed.
    Tick,
}
