//! The locks and the channel that the tabs of a browser agree by. Decides nothing: see [`crate::state::Tabs`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gloo::storage::{LocalStorage, Storage};
use js_sys::{Function, Object, Promise, Reflect};
use wasm_bindgen::closure::Closure;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{EventTarget, MessageEvent};

use crate::app::{App, kept_identity, kept_way};
use crate::base::of_run;
use crate::dom::{Listener, window};
use crate::state::{Action, Bearer, Event, LoadEvent, TabEvent, TabMessage};

/// Tabs of another format of messages speak elsewhere.
const CHANNEL: &str = "barnraise.tabs.2";
/// Where it is kept who computes in this browser.
const BEARER_KEY: &str = "barnraise.bearer";

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

/// What one tab has at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    /// The worker of a run; where one origin serves several, each has one of its own. Held until the tab is gone.
    Lead,
    /// The browser's one load, which is computed for whichever run.
    Load,
}

impl Lock {
    fn name(self) -> String {
        match self {
            Self::Lead => of_run("barnraise.contributor"),
            Self::Load => "barnraise.load".to_owned(),
        }
    }
}

/// How a lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asking {
    /// Now or not at all.
    IfFree,
    /// Once all who have it, or asked before, are gone.
    InTurn,
    /// From whoever has it.
    Taking,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    NotYet,
    Held,
    /// Given back by this tab.
    Left,
}

/// This tab's way to the others.
pub(crate) struct Siblings {
    locks: LockManager,
    channel: BroadcastChannel,
    /// The lead was asked for in turn, and is not granted yet.
    is_lead_queued: Cell<bool>,
    /// The same of the load.
    is_load_queued: Cell<bool>,
    /// Called to give the load back.
    load: RefCell<Option<(Function, Rc<Cell<Hold>>)>>,
}

impl Siblings {
    /// Where the browser has locks and channels.
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

    /// Listens to the others, and asks for the lead.
    pub(crate) fn join(self: &Rc<Self>, app: &Rc<App>) {
        let hearing = Rc::clone(app);
        let on_message = move |event: web_sys::Event| {
            let data = event.unchecked_ref::<MessageEvent>().data();
            // What a tab of another build says is not for this one.
            if let Ok(message) = serde_wasm_bindgen::from_value::<TabMessage>(data) {
                hearing.dispatch(Event::Tabs(TabEvent::Heard(message)));
            }
        };
        Listener::new(&self.channel, "message", on_message).keep();
        let reading = Rc::clone(app);
        // Told to all tabs but the one that wrote.
        let on_stored = move |event: web_sys::Event| {
            let key = Reflect::get(&event, &"key".into()).ok().and_then(|key| key.as_string());
            if key.as_deref() == Some(BEARER_KEY)
                && let Some(bearer) = bearer()
            {
                reading.dispatch(of_load(LoadEvent::Noted(bearer)));
            }
        };
        Listener::new(&window(), "storage", on_stored).keep();
        self.ask(app, Lock::Lead, Asking::IfFree);
    }

    /// Does what concerns the other tabs.
    pub(crate) fn perform(self: &Rc<Self>, app: &Rc<App>, action: &Action) {
        match action {
            Action::Tell(message) => self.tell(message),
            Action::TakeLead => self.ask(app, Lock::Lead, Asking::Taking),
            Action::AskLoad => self.ask(app, Lock::Load, Asking::IfFree),
            Action::TakeLoad => self.ask(app, Lock::Load, Asking::Taking),
            Action::LeaveLoad => self.leave_load(),
            Action::NoteLoad(bearer) => {
                // Private windows may refuse: the others then say that it is another run.
                let _ = LocalStorage::set(BEARER_KEY, bearer);
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
            hold.set(Hold::Left);
            let _ = release.call0(&JsValue::NULL);
        }
    }

    fn is_queued(&self, lock: Lock) -> &Cell<bool> {
        match lock {
            Lock::Lead => &self.is_lead_queued,
            Lock::Load => &self.is_load_queued,
        }
    }

    fn ask(self: &Rc<Self>, app: &Rc<App>, lock: Lock, asking: Asking) {
        if asking == Asking::InTurn && self.is_queued(lock).replace(true) {
            return;
        }
        let options = Object::new();
        let option = match asking {
            Asking::IfFree => Some("ifAvailable"),
            Asking::InTurn => None,
            Asking::Taking => Some("steal"),
        };
        if let Some(option) = option {
            // A new object takes any field.
            let _ = Reflect::set(&options, &option.into(), &JsValue::TRUE);
        }
        let hold = Rc::new(Cell::new(Hold::NotYet));
        let granted = self.on_granted(app, lock, asking, &hold);
        let asked = self.locks.request(&lock.name(), &options, granted.unchecked_ref());
        let (siblings, app) = (Rc::clone(self), Rc::clone(app));
        spawn_local(async move {
            let ended = match asked {
                Ok(asked) => JsFuture::from(asked).await,
                Err(error) => Err(error),
            };
            match (ended, hold.get()) {
                (Ok(_), _) | (Err(_), Hold::Left) => {}
                (Err(_), Hold::Held) => siblings.on_lost(&app, lock, &hold),
                (Err(error), Hold::NotYet) => on_refused(&app, lock, asking, error),
            }
        });
    }

    /// Another tab took it.
    fn on_lost(self: &Rc<Self>, app: &Rc<App>, lock: Lock, hold: &Rc<Cell<Hold>>) {
        match lock {
            Lock::Lead => {
                app.dispatch(Event::Tabs(TabEvent::Deposed));
                self.ask(app, Lock::Lead, Asking::InTurn);
            }
            Lock::Load => {
                // By this tab itself, where the lock came in its turn in the moment in which it was taken.
                let is_same = |(_, held): &(Function, Rc<Cell<Hold>>)| Rc::ptr_eq(held, hold);
                if self.load.borrow().as_ref().is_some_and(is_same) {
                    self.load.take();
                    app.dispatch(of_load(LoadEvent::Taken(bearer())));
                }
            }
        }
    }

    /// What is called with the lock, or with nothing where it is not free. It is held until the tab is gone or gives it
    /// back: the promise that is returned does not resolve before.
    fn on_granted(
        self: &Rc<Self>,
        app: &Rc<App>,
        lock: Lock,
        asking: Asking,
        hold: &Rc<Cell<Hold>>,
    ) -> JsValue {
        let (siblings, app, hold) = (Rc::clone(self), Rc::clone(app), Rc::clone(hold));
        Closure::once_into_js(move |found: JsValue| -> JsValue {
            if found.is_null() || found.is_undefined() {
                app.dispatch(match lock {
                    Lock::Lead => Event::Tabs(TabEvent::Follow),
                    Lock::Load => of_load(LoadEvent::Elsewhere(bearer())),
                });
                siblings.ask(&app, lock, Asking::InTurn);
                return JsValue::UNDEFINED;
            }
            if asking == Asking::InTurn {
                siblings.is_queued(lock).set(false);
            }
            hold.set(Hold::Held);
            let mut release = None;
            let held = Promise::new(&mut |resolve, _| release = Some(resolve));
            app.dispatch(match lock {
                Lock::Lead => {
                    let (identity, way) = (kept_identity(), kept_way());
                    Event::Tabs(TabEvent::Lead { identity, way })
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

/// The browser does not give this lock to anybody.
fn on_refused(app: &Rc<App>, lock: Lock, asking: Asking, error: JsValue) {
    match (lock, asking) {
        (Lock::Lead, Asking::IfFree) => app.dispatch(Event::Tabs(TabEvent::Unshared)),
        // Then each run's tabs are for themselves.
        (Lock::Load, Asking::IfFree | Asking::Taking) => app.dispatch(of_load(LoadEvent::Granted)),
        (Lock::Lead, Asking::Taking) | (_, Asking::InTurn) => {
            gloo::console::error!("the browser's lock was refused:", error);
        }
    }
}

fn of_load(event: LoadEvent) -> Event {
    Event::Tabs(TabEvent::Load(event))
}

/// Who computes in this browser, as it wrote down.
fn bearer() -> Option<Bearer> {
    LocalStorage::get(BEARER_KEY).ok()
}
