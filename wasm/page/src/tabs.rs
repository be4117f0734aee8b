//! Driver of the locks and the broadcast channel between the tabs of a browser. Decides nothing: see
//! [`crate::state::Tabs`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Function, Object, Promise, Reflect};
use wasm_bindgen::closure::Closure;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{EventTarget, MessageEvent};

use crate::app::App;
use crate::base::of_run;
use crate::dom::{DomListener, window};
use crate::kept::{self, BrowserStorage};
use crate::state::{LoadEvent, LockHolder, PageAction, PageEvent, TabEvent, TabMessage};

/// Name of the channel; it changes with the format of the messages.
const CHANNEL: &str = "barnraise.tabs.6";
/// Storage key of the holder of the compute lock.
const HOLDER_KEY: &str = "barnraise.compute-lock";

// Declared here because web-sys features are shared by the whole build, burn included.
#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(extends = EventTarget)]
    type BroadcastChannel;

    #[wasm_bindgen(constructor, catch)]
    fn new(name: &str) -> Result<BroadcastChannel, JsValue>;

    #[wasm_bindgen(method, catch, js_name = postMessage)]
    fn post_message(this: &BroadcastChannel, message: &JsValue) -> Result<(), JsValue>;

    type LockManager;

    #[wasm_bindgen(method, catch)]
    fn request(
        this: &LockManager,
        name: &str,
        options: &Object,
        granted: &Function,
    ) -> Result<Promise, JsValue>;
}

/// A lock that one tab holds at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    /// Leadership among the tabs of a run, with its worker. Held until the tab is closed.
    Lead,
    /// The compute lock of the browser, for all runs.
    Load,
}

impl Lock {
    fn name(self) -> String {
        match self {
            Self::Lead => of_run("barnraise.leader"),
            Self::Load => "barnraise.compute".to_owned(),
        }
    }
}

/// How a lock is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockRequest {
    /// Only if it is free.
    IfFree,
    /// Queued behind its holder and earlier requests.
    InTurn,
    /// Stolen from its holder.
    Taking,
}

/// State of a requested lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockState {
    NotYet,
    Held,
    /// Released by this tab.
    Left,
}

/// This tab's connection to the browser's other tabs.
pub(crate) struct Siblings {
    locks: LockManager,
    channel: BroadcastChannel,
    /// Leadership was requested in turn, and is not granted yet.
    is_lead_queued: Cell<bool>,
    /// The same for the compute lock.
    is_load_queued: Cell<bool>,
    /// Function that releases the compute lock.
    load: RefCell<Option<(Function, Rc<Cell<LockState>>)>>,
}

impl Siblings {
    /// `None` if the browser lacks locks or broadcast channels.
    pub(crate) fn find() -> Option<Rc<Self>> {
        let navigator = JsValue::from(window().navigator());
        let locks = Reflect::get(&navigator, &"locks".into()).ok().filter(JsValue::is_object)?;
        let has_channels = Reflect::has(&window(), &"BroadcastChannel".into()).unwrap_or_default();
        let channel = if has_channels { BroadcastChannel::new(&of_run(CHANNEL)).ok()? } else { return None };
        Some(Rc::new(Self {
            locks: locks.unchecked_into(),
            channel,
            is_lead_queued: Cell::new(false),
            is_load_queued: Cell::new(false),
            load: RefCell::new(None),
        }))
    }

    /// Listens to the other tabs, and requests leadership.
    pub(crate) fn join(self: &Rc<Self>, app: &Rc<App>) {
        let hearing = Rc::clone(app);
        let on_message = move |event: web_sys::Event| {
            let data = event.unchecked_ref::<MessageEvent>().data();
            // Messages of tabs of another build are ignored.
            if let Ok(message) = serde_wasm_bindgen::from_value::<TabMessage>(data) {
                hearing.dispatch(PageEvent::Tabs(TabEvent::Received(message)));
            }
        };
        DomListener::new(&self.channel, "message", on_message).keep();
        let reading = Rc::clone(app);
        // This event reaches all tabs except the writer.
        let on_stored = move |event: web_sys::Event| {
            let key = Reflect::get(&event, &"key".into()).ok().and_then(|key| key.as_string());
            if key.as_deref() == Some(HOLDER_KEY)
                && let Some(holder) = stored_holder()
            {
                reading.dispatch(of_load(LoadEvent::Noted(holder)));
            }
        };
        DomListener::new(&window(), "storage", on_stored).keep();
        self.ask(app, Lock::Lead, LockRequest::IfFree);
    }

    /// Carries out actions that concern the other tabs.
    pub(crate) fn perform(self: &Rc<Self>, app: &Rc<App>, action: &PageAction) {
        match action {
            PageAction::Broadcast(message) => self.tell(message),
            PageAction::TakeLead => self.ask(app, Lock::Lead, LockRequest::Taking),
            PageAction::RequestLock => self.ask(app, Lock::Load, LockRequest::IfFree),
            PageAction::TakeLoad => self.ask(app, Lock::Load, LockRequest::Taking),
            PageAction::ReleaseLock => self.leave_load(),
            PageAction::StoreHolder(holder) => {
                // Private windows may refuse: then other tabs do not know the run's title.
                BrowserStorage::Local.set(HOLDER_KEY, holder);
            }
            _ => {}
        }
    }

    fn tell(&self, message: &TabMessage) {
        let told = serde_wasm_bindgen::to_value(message).map_err(JsValue::from);
        if let Err(error) = told.and_then(|message| self.channel.post_message(&message)) {
            gloo::console::error!("a message to the other tabs was lost:", error);
        }
    }

    fn leave_load(&self) {
        if let Some((release, hold)) = self.load.take() {
            hold.set(LockState::Left);
            let _ = release.call0(&JsValue::NULL);
        }
    }

    fn is_queued(&self, lock: Lock) -> &Cell<bool> {
        match lock {
            Lock::Lead => &self.is_lead_queued,
            Lock::Load => &self.is_load_queued,
        }
    }

    fn ask(self: &Rc<Self>, app: &Rc<App>, lock: Lock, asking: LockRequest) {
        if asking == LockRequest::InTurn && self.is_queued(lock).replace(true) {
            return;
        }
        let options = Object::new();
        let option = match asking {
            LockRequest::IfFree => Some("ifAvailable"),
            LockRequest::InTurn => None,
            LockRequest::Taking => Some("steal"),
        };
        if let Some(option) = option {
            // A new object takes any field.
            let _ = Reflect::set(&options, &option.into(), &JsValue::TRUE);
        }
        let hold = Rc::new(Cell::new(LockState::NotYet));
        let granted = self.on_granted(app, lock, asking, &hold);
        let asked = self.locks.request(&lock.name(), &options, granted.unchecked_ref());
        let (siblings, app) = (Rc::clone(self), Rc::clone(app));
        spawn_local(async move {
            let ended = match asked {
                Ok(asked) => JsFuture::from(asked).await,
                Err(error) => Err(error),
            };
            match (ended, hold.get()) {
                (Ok(_), _) | (Err(_), LockState::Left) => {}
                (Err(_), LockState::Held) => siblings.on_lost(&app, lock, &hold),
                (Err(error), LockState::NotYet) => on_refused(&app, lock, asking, error),
            }
        });
    }

    /// Another tab took it.
    fn on_lost(self: &Rc<Self>, app: &Rc<App>, lock: Lock, hold: &Rc<Cell<LockState>>) {
        match lock {
            Lock::Lead => {
                app.dispatch(PageEvent::Tabs(TabEvent::Deposed));
                self.ask(app, Lock::Lead, LockRequest::InTurn);
            }
            Lock::Load => {
                // This tab itself may have taken the lock while it was granted in turn.
                let is_same = |(_, held): &(Function, Rc<Cell<LockState>>)| Rc::ptr_eq(held, hold);
                if self.load.borrow().as_ref().is_some_and(is_same) {
                    self.load.take();
                    app.dispatch(of_load(LoadEvent::Taken(stored_holder())));
                }
            }
        }
    }

    /// The callback that gets the lock, or null if it is not free. The lock is held until the returned promise resolves,
    /// or the tab is closed.
    fn on_granted(
        self: &Rc<Self>,
        app: &Rc<App>,
        lock: Lock,
        asking: LockRequest,
        hold: &Rc<Cell<LockState>>,
    ) -> JsValue {
        let (siblings, app, hold) = (Rc::clone(self), Rc::clone(app), Rc::clone(hold));
        Closure::once_into_js(move |found: JsValue| -> JsValue {
            if found.is_null() || found.is_undefined() {
                app.dispatch(match lock {
                    Lock::Lead => PageEvent::Tabs(TabEvent::Follow),
                    Lock::Load => of_load(LoadEvent::Elsewhere(stored_holder())),
                });
                siblings.ask(&app, lock, LockRequest::InTurn);
                return JsValue::UNDEFINED;
            }
            if asking == LockRequest::InTurn {
                siblings.is_queued(lock).set(false);
            }
            hold.set(LockState::Held);
            let mut release = None;
            let held = Promise::new(&mut |resolve, _| release = Some(resolve));
            app.dispatch(match lock {
                Lock::Lead => {
                    let (identity, transport) = (kept::identity(), kept::transport());
                    PageEvent::Tabs(TabEvent::Lead { identity, transport })
                }
                Lock::Load => {
                    siblings.load.replace(release.map(|release| (release, hold)));
                    of_load(LoadEvent::Granted)
                }
            });
            held.into()
        })
    }
}

/// The browser refused the request.
fn on_refused(app: &Rc<App>, lock: Lock, asking: LockRequest, error: JsValue) {
    match (lock, asking) {
        (Lock::Lead, LockRequest::IfFree) => app.dispatch(PageEvent::Tabs(TabEvent::Unshared)),
        // Then each run computes for itself.
        (Lock::Load, LockRequest::IfFree | LockRequest::Taking) => app.dispatch(of_load(LoadEvent::Granted)),
        (Lock::Lead, LockRequest::Taking) | (_, LockRequest::InTurn) => {
            gloo::console::error!("the browser's lock was refused:", error);
        }
    }
}

fn of_load(event: LoadEvent) -> PageEvent {
    PageEvent::Tabs(TabEvent::Load(event))
}

/// The stored holder of the compute lock.
fn stored_holder() -> Option<LockHolder> {
    BrowserStorage::Local.get(HOLDER_KEY)
}
