//! What happens to a page, and what it wants done. Plain data.

use barnraise_messages::{DisplayName, PageToPeer, PeerToPage, Way};
use barnraise_protocol::api::{Contributions, LiveProgress, Models, RunStatus};
use barnraise_protocol::receipt::SignedReceipt;

use crate::card::Card;
use crate::conduct::{Input, Request};
use crate::kept::Kept;
use crate::preflight::{Adapter, Address, Tried};
use crate::state::{Bearer, TabEvent, TabMessage};

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
    /// Which models there are to download.
    ModelsKnown(Models),
    /// The visitor wants to see what an earlier model says, or no longer.
    ToggleComparison,
    /// The visitor wants the blanks of a text filled in.
    TextAsked(String),
    /// The visitor typed a name, or an empty one.
    NameTyped(String),
    /// So many receipts are kept in this browser.
    ReceiptsCounted(u64),
    /// The visitor wants them as a file.
    ReceiptsWanted,
    /// The visitor wants a card to share.
    CardWanted,
    /// It was shared or saved, with so many bytes; or why not.
    CardMade(Result<u64, String>),
    /// The button.
    Toggle,
    /// The tab contributed when it was cut off, and goes on; its visitor had paused it or not.
    GoOn { is_paused: bool },
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
    /// The page itself has received so many bytes more.
    Received(u64),
    /// Something that decides whether the tab may work now, and how hard.
    Conduct(Input),
    /// The worker said something.
    FromPeer(PeerToPage),
    /// The worker is gone: it could not be started, or it crashed.
    PeerLost { reason: String },
    /// Among the tabs of this browser.
    Tabs(TabEvent),
    /// The visitor wants this tab to compute instead of one of another run.
    TakeLoad,
    /// The pause after a crash is over.
    Revive,
    /// The graphics processor that was lost may be there again.
    TryGraphics,
    /// The device or the tab was asleep, or the network is another one.
    Woke,
    /// The network came or went.
    Network { is_online: bool },
    /// The server has another page than this one.
    NewVersion { is_hidden: bool },
    /// Nobody looks any more.
    Hidden,
    /// The visitor wants the new version.
    Reload,
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
    /// Add receipts to what was given before.
    Remember(Vec<SignedReceipt>),
    /// Keep how this visitor wants to be called.
    KeepName(Option<DisplayName>),
    /// Give the visitor the receipts that are kept.
    SaveReceipts,
    /// Draw the card and give it to the visitor.
    MakeCard(Box<Card>),
    /// Keep how the backbone was reached.
    KeepWay(Way),
    /// What follows from how the tab is to work.
    Conduct(Request),
    /// Once the page is painted, ask how large the training program is and try these, each for itself.
    TryWays(Vec<(Way, Address)>),
    /// Tell the other tabs.
    Tell(TabMessage),
    /// Say when that much time has passed.
    TickIn { delay_ms: u32 },
    /// Take the lead from a tab that does not answer.
    TakeLead,
    /// Ask for the browser's load, or else wait for it in turn.
    AskLoad,
    /// Take it from the tab that has it.
    TakeLoad,
    /// Let others have it.
    LeaveLoad,
    /// Write down who has it.
    NoteLoad(Bearer),
    /// Look up what was given: another tab wrote it down.
    Recall,
    /// Start the worker anew after a pause.
    ReviveIn { delay_ms: u32 },
    /// Try the graphics processor again after a pause.
    TryGraphicsIn { delay_ms: u32 },
    /// Ask the backbone's web server now, whatever was asked before.
    AskAgain,
    /// Load the page anew.
    Reload,
}
