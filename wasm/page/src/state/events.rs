//! Events of a page, and the actions that follow. Plain data.

use barnraise_messages::{DisplayName, PageToPeer, PeerToPage, TransportKind};
use barnraise_protocol::api::{Contributions, LiveProgress, Models, RunStatus};
use barnraise_protocol::columns::DataColumns;
use barnraise_protocol::receipt::SignedReceipt;

use super::card::{CardError, ShareCard};
use super::parts::{BackboneLoss, FoundOwn, OwnChoice, OwnFile, PeerLoss};
use super::tab_messages::{LockHolder, TabEvent, TabMessage};
use crate::browser_totals::BrowserTotals;
use crate::limits::{Input, LimitsRequest};
use crate::preflight::{Adapter, Address, ProbeResult};

/// An event of the page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PageEvent {
    /// `GET /api/run` was answered.
    RunArrived(Box<RunStatus>),
    /// The backbone did not answer, or the stream of events ended.
    BackboneLost { reason: BackboneLoss, retry_in_ms: u32 },
    /// An event of the stream.
    Live(LiveProgress),
    /// The leaderboard arrived.
    LeadersKnown(Box<Contributions>),
    /// Current totals of this browser's contributions, over all visits and tabs.
    Remembered(BrowserTotals),
    /// The list of models to download arrived.
    ModelsKnown(Models),
    /// How the run reads its table or its ratings.
    ColumnsKnown(Box<DataColumns>),
    /// The visitor wants a row told of: a cell for each field.
    RowAsked(Vec<String>),
    /// The visitor changed a field of the row.
    RowTyped(Vec<String>),
    /// The visitor gives an item a rating.
    ItemRated { name: String, rating: String },
    /// The visitor takes the rating of an item back.
    ItemUnrated(u32),
    /// Whether a run at this address takes codes.
    CodesKnown(bool),
    /// The visitor toggled the comparison with an earlier model.
    ToggleComparison,
    /// The visitor wants the blanks of a text filled in, or the text gone on with.
    TextAsked(String),
    /// The visitor paused in typing the text.
    TextTyped(String),
    /// The visitor wants the text gone on with by the newest model, or by an earlier one.
    ToggleEarlierText,
    /// The visitor typed a name, or an empty one.
    NameTyped(String),
    /// Number of receipts stored in this browser.
    ReceiptsCounted(u64),
    /// The visitor downloads the receipts.
    ReceiptsWanted,
    /// The visitor wants a card to share.
    CardWanted,
    /// The card was shared or saved: its bytes, or the error.
    CardMade(Result<u64, CardError>),
    /// The visitor pressed Start or Stop.
    Toggle,
    /// The page was reloaded while it contributed, and resumes, paused or not.
    GoOn { is_paused: bool },
    /// The visitor loads the model without contributing.
    LoadModel,
    /// The visitor drew a picture to classify, or chose a photo: `[height, width, channels]`.
    Drawn(Vec<u8>),
    /// The photo that the visitor chose cannot be read.
    PhotoUnreadable,
    /// A file that the visitor brings to train on.
    OwnFile(OwnFile),
    /// The visitor takes those back.
    OwnForgotten,
    /// What the visitor chose at an earlier visit, if it was kept.
    OwnFound { request: u32, found: FoundOwn },
    /// The visitor wants what they chose to be kept in this browser, or not.
    KeepOwn(bool),
    /// This browser keeps it now, or refuses.
    OwnStored { request: u32, is_stored: bool },
    /// The visitor picked a picture of the gallery to classify.
    Picked(usize),
    /// The canvas was cleared.
    ForgetQuestion,
    /// Run the conformance checks once the peer is there.
    CheckDevice,
    /// The browser's WebGPU adapter, or none.
    GraphicsKnown(Option<Adapter>),
    /// An attempt of the preflight over a transport ended.
    TransportProbed(TransportKind, ProbeResult),
    /// The compressed size of the training program, in bytes.
    ProgramMeasured(u64),
    /// The tab computed before the transports were tried.
    PreflightLeft,
    /// Bytes that the page itself has received.
    Received(u64),
    /// An input to the resource limits.
    Limits(Input),
    /// A message of the worker.
    FromPeer(PeerToPage),
    /// The worker could not be started, or crashed.
    PeerLost { reason: PeerLoss },
    /// The visitor starts to host experts, or ends it.
    ToggleHosting,
    /// A message of the worker that hosts experts.
    FromHost(PeerToPage),
    /// That worker could not be started, or crashed.
    HostLost { reason: PeerLoss },
    /// An event among the tabs of this browser.
    Tabs(TabEvent),
    /// The visitor wants this tab to compute instead of one of another run.
    TakeLoad,
    /// The delay after a crash is over.
    Revive,
    /// It is time to see whether the training program comes.
    LookAtLoading,
    /// It is time to try the lost graphics processor again.
    TryGraphics,
    /// The device or the tab was asleep, or the network changed.
    Woke,
    /// The network came or went.
    Network { is_online: bool },
    /// The server has a newer build of the page.
    NewVersion { is_hidden: bool },
    /// The page was hidden.
    Hidden,
    /// The visitor reloads for the new version.
    Reload,
}

/// An action of the driver.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PageAction {
    /// Start the worker.
    SpawnPeer,
    /// End the worker.
    EndPeer,
    /// Post a message to the worker.
    Post(PageToPeer),
    /// Start the worker that hosts experts.
    SpawnHost,
    /// End that worker.
    EndHost,
    /// Post a message to that worker.
    PostHost(PageToPeer),
    /// Store the seed of this browser's identity.
    KeepIdentity(Vec<u8>),
    /// Store receipts and add them to the totals.
    Remember(Vec<SignedReceipt>),
    /// Store the visitor's name.
    KeepName(Option<DisplayName>),
    /// Download the stored receipts.
    SaveReceipts,
    /// Look for what the visitor chose to train on at an earlier visit.
    FindOwn { request: u32 },
    /// Keep what the visitor chose to train on in this browser, in place of what is kept; or nothing.
    StoreOwn { request: u32, choice: Option<Box<OwnChoice>> },
    /// Draw and share the card.
    MakeCard(Box<ShareCard>),
    /// Store the transport that reached the backbone.
    SaveTransport(TransportKind),
    /// A request of the resource limits.
    Limits(LimitsRequest),
    /// After the first paint, ask for the size of the training program and start these attempts.
    ProbeTransports(Vec<(TransportKind, Address)>),
    /// Ask how the run reads its data.
    AskForColumns,
    /// Ask whether a run at this address takes codes.
    AskForCodes,
    /// Send a message to the other tabs.
    Broadcast(TabMessage),
    /// Dispatch [`TabEvent::Tick`] after a delay.
    TickIn { delay_ms: u32 },
    /// Take the leader's lock from a tab that does not answer.
    TakeLead,
    /// Request the compute lock, or queue for it.
    RequestLock,
    /// Take the compute lock from its holder.
    TakeLoad,
    /// Release the compute lock.
    ReleaseLock,
    /// Store the holder of the compute lock.
    StoreHolder(LockHolder),
    /// Read the stored totals, which another tab updated.
    Recall,
    /// Restart the worker after a delay.
    ReviveIn { delay_ms: u32 },
    /// Dispatch [`PageEvent::LookAtLoading`] after a delay.
    LookAtLoadingIn { delay_ms: u32 },
    /// Try the graphics processor again after a delay.
    TryGraphicsIn { delay_ms: u32 },
    /// Ask the backbone's web server now.
    AskAgain,
    /// Load the page anew.
    Reload,
}
