//! Joins the state to the browser: events in, actions out, one drawing per animation frame.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barnraise_messages::Way;
use gloo::storage::{LocalStorage, Storage};
use gloo::timers::callback::Timeout;
use js_sys::Reflect;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};

use crate::dom;
use crate::kept::Kept;
use crate::preflight::probe;
use crate::state::{Action, Event, Page};
use crate::view::View;
use crate::worker::PeerWorker;

/// Where the seed of this browser's identity is kept.
const IDENTITY_KEY: &str = "barnraise.identity";
/// Where it is kept what was given.
const GIVEN_KEY: &str = "barnraise.given";
/// Where it is kept how the backbone was reached, and on what kind of network.
const WAY_KEY: &str = "barnraise.way";
/// Hidden pages get no animation frames; they are drawn this often at most.
const HIDDEN_FRAME_MS: u32 = 250;

/// The page.
pub(crate) struct App {
    page: RefCell<Page>,
    view: RefCell<View>,
    peer: RefCell<Option<PeerWorker>>,
    worker_url: String,
    is_frame_due: Cell<bool>,
}

impl App {
    pub(crate) fn new(page: Page, view: View, worker_url: String) -> Rc<Self> {
        Rc::new(Self {
            page: RefCell::new(page),
            view: RefCell::new(view),
            peer: RefCell::new(None),
            worker_url,
            is_frame_due: Cell::new(false),
        })
    }

    /// Takes in what happened, does what follows from it, and draws soon.
    pub(crate) fn dispatch(self: &Rc<Self>, event: Event) {
        let actions = self.page.borrow_mut().on_event(dom::now_ms(), event);
        for action in actions {
            self.perform(action);
        }
        self.draw_soon();
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
            Action::Remember(receipt) => {
                // What other tabs added meanwhile is in the storage, where there is one.
                let stored = LocalStorage::get(GIVEN_KEY);
                let mut kept: Kept = stored.unwrap_or_else(|_| self.with_page(|page| page.kept.clone()));
                kept.add(*receipt);
                let _ = LocalStorage::set(GIVEN_KEY, &kept);
                self.dispatch(Event::Remembered(kept));
            }
            Action::KeepWay(way) => {
                let _ = LocalStorage::set(WAY_KEY, (network_kind(), way));
            }
            Action::TryWays(attempts) => probe::begin(self, attempts),
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

/// How the backbone was reached on a network of this kind.
pub(crate) fn kept_way() -> Option<Way> {
    let (kind, way) = LocalStorage::get::<(String, Way)>(WAY_KEY).ok()?;
    (kind == network_kind()).then_some(way)
}

/// `wifi`, `cellular` and the like, where the browser says so: no page is told on which network it is.
fn network_kind() -> String {
    let navigator = JsValue::from(dom::window().navigator());
    let connection = Reflect::get(&navigator, &"connection".into()).unwrap_or_default();
    let kind = Reflect::get(&connection, &"type".into());
    kind.ok().and_then(|kind| kind.as_string()).unwrap_or_default()
}
