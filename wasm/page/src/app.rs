//! Joins the state to the browser: events in, actions out, one drawing per animation frame.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use barnraise_messages::{DisplayName, Way};
use barnraise_protocol::run::RunDescription;
use gloo::storage::{LocalStorage, Storage};
use gloo::timers::callback::Timeout;
use js_sys::{Function, Reflect};
use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};

use crate::base::{id_of, of_run};
use crate::conduct::Reason;
use crate::dom;
use crate::kept::Kept;
use crate::preflight::probe;
use crate::receipts::Receipts;
use crate::renewal;
use crate::resume;
use crate::senses::{self, Senses};
use crate::share;
use crate::state::{Action, Event, Page, TabEvent};
use crate::tabs::Siblings;
use crate::view::View;
use crate::worker::PeerWorker;

/// Where the seed of this browser's identity is kept.
const IDENTITY_KEY: &str = "barnraise.identity";
/// Where it is kept what was given.
const GIVEN_KEY: &str = "barnraise.given";
/// Where it is kept how this visitor wants to be called.
const NAME_KEY: &str = "barnraise.name";
/// Where it is kept how the backbone was reached, and on what kind of network.
const WAY_KEY: &str = "barnraise.way";
/// Where it is kept what the run is, for visits without a backbone.
const RUN_KEY: &str = "barnraise.run";
/// What the page itself receives is said once it is so much.
const RECEIVED_BYTES: u64 = 16 * 1024;
/// Hidden pages get no animation frames; they are drawn this often at most.
const HIDDEN_FRAME_MS: u32 = 250;

/// The page.
pub(crate) struct App {
    page: RefCell<Page>,
    /// What happened while something else was being taken in.
    events: RefCell<VecDeque<Event>>,
    is_dispatching: Cell<bool>,
    view: RefCell<View>,
    peer: RefCell<Option<PeerWorker>>,
    receipts: Receipts,
    worker_url: String,
    siblings: Option<Rc<Siblings>>,
    /// Called to ask the backbone's web server now.
    ask_again: RefCell<Option<Function>>,
    /// What was noted of it for the next time that the page is loaded: that it contributes, and that it is paused.
    noted: Cell<(bool, bool)>,
    is_frame_due: Cell<bool>,
    /// What the page itself has received and not said yet.
    received_bytes: Cell<u64>,
    pub(crate) senses: Senses,
}

impl App {
    pub(crate) fn new(
        page: Page,
        view: View,
        worker_url: String,
        siblings: Option<Rc<Siblings>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            page: RefCell::new(page),
            events: RefCell::default(),
            is_dispatching: Cell::new(false),
            view: RefCell::new(view),
            peer: RefCell::new(None),
            receipts: Receipts::default(),
            worker_url,
            siblings,
            ask_again: RefCell::new(None),
            noted: Cell::new((false, false)),
            is_frame_due: Cell::new(false),
            received_bytes: Cell::new(0),
            senses: Senses::default(),
        })
    }

    /// What [`Action::AskAgain`] calls, once.
    pub(crate) fn when_asked_again(&self, call: Option<Function>) {
        self.ask_again.replace(call);
    }

    /// Takes in what happened, does what follows from it, and draws soon. What happens meanwhile comes after: the
    /// worker would otherwise hear that it is to stop before it hears that it is to start.
    pub(crate) fn dispatch(self: &Rc<Self>, event: Event) {
        self.events.borrow_mut().push_back(event);
        if self.is_dispatching.replace(true) {
            return;
        }
        loop {
            let next = self.events.borrow_mut().pop_front();
            let Some(event) = next else { break };
            let actions = self.page.borrow_mut().on_event(dom::now_ms(), event);
            for action in actions {
                self.perform(action);
            }
        }
        self.is_dispatching.set(false);
        let now = self.with_page(|page| (page.contributing, page.pause() == Some(Reason::Visitor)));
        if self.noted.replace(now) != now {
            resume::note(now.0, now.1);
        }
        self.draw_soon();
    }

    /// Dispatches later.
    fn dispatch_in(self: &Rc<Self>, delay_ms: u32, event: Event) {
        let app = Rc::clone(self);
        Timeout::new(delay_ms, move || app.dispatch(event)).forget();
    }

    /// Reads the state.
    pub(crate) fn with_page<T>(&self, read: impl FnOnce(&Page) -> T) -> T {
        read(&self.page.borrow())
    }

    /// Changes the view, and draws soon.
    pub(crate) fn with_view(self: &Rc<Self>, change: impl FnOnce(&mut View)) {
        change(&mut self.view.borrow_mut());
        self.draw_soon();
    }

    fn perform(self: &Rc<Self>, action: Action) {
        match action {
            Action::SpawnPeer => {
                let app = Rc::clone(self);
                let spawned = PeerWorker::spawn(&self.worker_url, move |event| app.dispatch(event));
                match spawned {
                    Ok(peer) => drop(self.peer.replace(Some(peer))),
                    Err(error) => self.dispatch(Event::PeerLost { reason: format!("{error:?}") }),
                }
            }
            Action::EndPeer => {
                // This may run inside one of the worker's own listeners: they go a turn later.
                let ended = self.peer.take();
                if let Some(peer) = &ended {
                    peer.end();
                }
                Timeout::new(0, move || drop(ended)).forget();
            }
            Action::Post(message) => {
                let posted = self.peer.borrow().as_ref().map_or(Ok(()), |peer| peer.post(&message));
                if let Err(error) = posted {
                    self.dispatch(Event::PeerLost { reason: format!("{error:?}") });
                }
            }
            Action::KeepIdentity(seed) => {
                // Private windows may refuse: the identity then lasts as long as the tab.
                let _ = LocalStorage::set(IDENTITY_KEY, seed);
            }
            Action::KeepName(name) => {
                let _ = LocalStorage::set(NAME_KEY, name);
            }
            Action::SaveReceipts => self.receipts.save(self),
            Action::MakeCard(card) => share::make(self, *card),
            Action::Remember(receipts) => {
                self.receipts.keep(self, &receipts);
                // What other tabs added meanwhile is in the storage, where there is one.
                let stored = LocalStorage::get(GIVEN_KEY);
                let mut kept: Kept = stored.unwrap_or_else(|_| self.with_page(|page| page.kept.clone()));
                receipts.into_iter().for_each(|receipt| kept.add(receipt));
                let _ = LocalStorage::set(GIVEN_KEY, &kept);
                self.dispatch(Event::Remembered(kept));
            }
            Action::KeepWay(way) => {
                let _ = LocalStorage::set(of_run(WAY_KEY), (network_kind(), way));
            }
            Action::Conduct(request) => senses::perform(self, request),
            Action::TryWays(attempts) => probe::begin(self, attempts),
            Action::Tell(_)
            | Action::TakeLead
            | Action::AskLoad
            | Action::TakeLoad
            | Action::LeaveLoad
            | Action::NoteLoad(_) => {
                if let Some(siblings) = &self.siblings {
                    siblings.perform(self, &action);
                }
            }
            Action::TickIn { delay_ms } => self.dispatch_in(delay_ms, Event::Tabs(TabEvent::Tick)),
            Action::Recall => {
                self.dispatch(Event::Remembered(kept()));
                self.count_receipts();
            }
            Action::ReviveIn { delay_ms } => self.dispatch_in(delay_ms, Event::Revive),
            Action::TryGraphicsIn { delay_ms } => self.dispatch_in(delay_ms, Event::TryGraphics),
            Action::AskAgain => {
                let call = self.ask_again.take();
                if let Some(call) = call {
                    let _ = call.call0(&JsValue::NULL);
                }
            }
            Action::Reload => renewal::reload(),
        }
    }

    /// Looks how many receipts this browser keeps.
    pub(crate) fn count_receipts(self: &Rc<Self>) {
        self.receipts.count(self);
    }

    /// Counts what the page itself has received.
    pub(crate) fn count_received(self: &Rc<Self>, n_bytes: usize) {
        let bytes = self.received_bytes.get() + n_bytes as u64;
        let is_due = bytes >= RECEIVED_BYTES;
        self.received_bytes.set(if is_due { 0 } else { bytes });
        if is_due {
            self.dispatch(Event::Received(bytes));
        }
    }

    /// Draws in the next animation frame, once for all that happens until then.
    pub(crate) fn draw_soon(self: &Rc<Self>) {
        if self.is_frame_due.replace(true) {
            return;
        }
        let app = Rc::clone(self);
        if dom::document().hidden() {
            Timeout::new(HIDDEN_FRAME_MS, move || app.draw()).forget();
            return;
        }
        let frame = Closure::once_into_js(move || app.draw());
        if dom::window().request_animation_frame(frame.unchecked_ref()).is_err() {
            self.is_frame_due.set(false);
        }
    }

    /// Draws now.
    pub(crate) fn draw(self: &Rc<Self>) {
        self.is_frame_due.set(false);
        let again_in_ms = self.view.borrow_mut().draw(dom::now_ms(), &self.page.borrow());
        if let Some(delay_ms) = again_in_ms {
            let app = Rc::clone(self);
            Timeout::new(delay_ms, move || app.draw_soon()).forget();
        }
    }
}

/// The identity that was kept, if it still is one.
pub(crate) fn kept_identity() -> Option<Vec<u8>> {
    LocalStorage::get::<Vec<u8>>(IDENTITY_KEY).ok().filter(|seed| seed.len() == 32)
}

/// What this browser has given before.
pub(crate) fn kept() -> Kept {
    LocalStorage::get(GIVEN_KEY).unwrap_or_default()
}

/// How this visitor wants to be called, if that is a name still.
pub(crate) fn kept_name() -> Option<DisplayName> {
    LocalStorage::get::<Option<DisplayName>>(NAME_KEY).ok().flatten()
}

/// What the run was at the last visit.
pub(crate) fn kept_run() -> Option<RunDescription> {
    LocalStorage::get(of_run(RUN_KEY)).ok()
}

/// The runs of this origin that the browser was told of, where there are several, each with its id.
pub(crate) fn kept_runs() -> Vec<(String, RunDescription)> {
    let Some(storage) = dom::window().local_storage().ok().flatten() else { return Vec::new() };
    let keys = (0..storage.length().unwrap_or(0)).filter_map(|idx| storage.key(idx).ok().flatten());
    let mut kept: Vec<(String, RunDescription)> = keys
        .filter_map(|key| {
            let id = id_of(key.strip_prefix(RUN_KEY)?)?.to_owned();
            Some((id, LocalStorage::get(&key).ok()?))
        })
        .collect();
    kept.sort_by(|one, other| one.0.cmp(&other.0));
    kept
}

/// Keeps what the run is, where that is another one than before.
pub(crate) fn keep_run(run: &RunDescription) {
    if kept_run().as_ref() != Some(run) {
        // Where there is no room, the next visit needs the backbone.
        let _ = LocalStorage::set(of_run(RUN_KEY), run);
    }
}

/// How the backbone was reached on a network of this kind.
pub(crate) fn kept_way() -> Option<Way> {
    let (kind, way) = LocalStorage::get::<(String, Way)>(of_run(WAY_KEY)).ok()?;
    (kind == network_kind()).then_some(way)
}

/// `wifi`, `cellular` and the like, where the browser says so: no page is told on which network it is.
fn network_kind() -> String {
    let navigator = JsValue::from(dom::window().navigator());
    let connection = Reflect::get(&navigator, &"connection".into()).unwrap_or_default();
    let kind = Reflect::get(&connection, &"type".into());
    kind.ok().and_then(|kind| kind.as_string()).unwrap_or_default()
}
