//! What happens to a page, and what it wants done. Plain data.

use barnraise_messages::{PageToPeer, PeerToPage, Way};
use barnraise_protocol::api::{Contributions, LiveProgress, RunStatus};
use barnraise_protocol::receipt::SignedReceipt;

use crate::kept::Kept;
use crate::preflight::{Adapter, Address, Tried};

/// Something happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// `GET /api/run` was answered.
    RunArrived(Box<RunStatus>),
    /// The backbone did not answer, or the stream of events ended.
    BackboneLost { reason: String, retry_in_ms: u32 },
    /// An event of the stream.
    Live(LiveProgress),
    /// Who gave the most, by the backbone's count.
    LeadersKnown(Box<Contributions>),
    /// What this browser has given by now, over all visits and in all of its tabs.
    Remembered(Kept),
    /// The button.
    Toggle,
    /// The visitor wants the model in the tab, without contributing.
    LoadModel,
    /// What is this drawing? `[height, width, channels]`.
    Drawn(Vec<u8>),
    /// What is this picture of the gallery?
    Picked(usize),
    /// The canvas was cleared.
    ForgetQuestion,
    /// Run the conformance checks once the peer is there.
    CheckDevice,
    /// The browser was asked for a graphics processor, and has this one to offer or none.
    GraphicsKnown(Option<Adapter>),
    /// An attempt to reach the backbone ended.
    WayTried(Way, Tried),
    /// The server said how large the training program is.
    ProgramMeasured(u64),
    /// The tab was at work before the ways were tried.
    PreflightLeft,
    /// The worker said something.
    FromPeer(PeerToPage),
    /// The worker is gone: it could not be started, or it crashed.
    PeerLost { reason: String },
}

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// Start the worker.
    SpawnPeer,
    /// End the worker.
    EndPeer,
    /// Tell the worker.
    Post(PageToPeer),
    /// Keep the seed of this browser's identity.
    KeepIdentity(Vec<u8>),
    /// Add a receipt to what was given before.
    Remember(Box<SignedReceipt>),
    /// Keep how the backbone was reached.
    KeepWay(Way),
    /// Try these, each for itself, once the page is painted.
    TryWays(Vec<(Way, Address)>),
}
