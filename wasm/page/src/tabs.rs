//! The lock and the channel that the tabs of a browser agree by. Decides nothing: see [`crate::state::Tabs`].

use std::cell::Cell;
use std::rc::Rc;

use js_sys::{Function, Object, Promise, Reflect};
use wasm_bindgen::closure::Closure;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{EventTarget, MessageEvent};

use crate::app::{App, kept_identity, kept_way};
use crate::base::of_run;
use crate::dom::{Listener, window};
use crate::state::{Event, TabEvent, TabMessage};

/// Whoever holds it has the worker of a run; where one origin serves several, each has one of its own.
const LOCK: &str = "barnraise.contributor";
/// Tabs of another format of messages speak elsewhere.
const CHANNEL: &str = "barnraise.tabs.1";

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

/// How the lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asking {
    /// Now or not at all.
    IfFree,
    /// Once all who have it, or asked before, are gone.
    InTurn,
    /// From whoever has it.
    Taking,
}

/// This tab's way to the others.
pub(crate) struct Siblings {
    locks: LockManager,
    channel: BroadcastChannel,
    /// The lock was asked for in turn, and is not granted yet.
    is_queued: Cell<bool>,
}

impl Siblings {
    /// Where the browser has locks and channels.
    pub(crate) fn find() -> Option<Rc<Self>> {
        let navigator = JsValue::from(window().navigator());
        let locks = Reflect::get(&navigator, &"locks".into()).ok().filter(JsValue::is_object)?;
        let has_channels = Reflect::has(&window(), &"BroadcastChannel".into()).unwrap_or_default();
        let channel = if has_channels { BroadcastChannel::new(&of_run(CHANNEL)).ok()? } else { return None };
        Some(Rc::new(Self { locks: locks.unchecked_into(), channel, is_queued: Cell::new(false) }))
    }

    /// Listens to the others, and asks for the lock.
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
        self.ask(app, Asking::IfFree);
    }

    /// Takes the lock from whoever has it.
    pub(crate) fn take_lead(self: &Rc<Self>, app: &Rc<App>) {
        self.ask(app, Asking::Taking);
    }

    /// Tells the other tabs.
    pub(crate) fn tell(&self, message: &TabMessage) {
        let told = serde_wasm_bindgen::to_value(message).map_err(JsValue::from);
        if let Err(error) = told.and_then(|message| self.channel.post_message(&message)) {
            gloo::console::error!("a message to the other tabs was lost:", error);
        }
    }

    fn ask(self: &Rc<Self>, app: &Rc<App>, asking: Asking) {
        if asking == Asking::InTurn && self.is_queued.replace(true) {
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
        let is_held = Rc::new(Cell::new(false));
        let granted = self.on_granted(app, asking, &is_held);
        let asked = self.locks.request(&of_run(LOCK), &options, granted.unchecked_ref());
        let (siblings, app) = (Rc::clone(self), Rc::clone(app));
        spawn_local(async move {
            let ended = match asked {
                Ok(asked) => JsFuture::from(asked).await,
                Err(error) => Err(error),
            };
            match ended {
                Ok(_) => {}
                Err(_) if is_held.get() => {
                    app.dispatch(Event::Tabs(TabEvent::Deposed));
                    siblings.ask(&app, Asking::InTurn);
                }
                Err(_) if asking == Asking::IfFree => app.dispatch(Event::Tabs(TabEvent::Unshared)),
                Err(error) => gloo::console::error!("the browser's lock was refused:", error),
            }
        });
    }

    /// What is called with the lock, or with nothing where it is not free. It is held until the tab is gone: the
    /// promise that is returned never resolves.
    fn on_granted(self: &Rc<Self>, app: &Rc<App>, asking: Asking, is_held: &Rc<Cell<bool>>) -> JsValue {
        let (siblings, app, is_held) = (Rc::clone(self), Rc::clone(app), Rc::clone(is_held));
        Closure::once_into_js(move |lock: JsValue| -> JsValue {
            if lock.is_null() || lock.is_undefined() {
                app.dispatch(Event::Tabs(TabEvent::Follow));
                siblings.ask(&app, Asking::InTurn);
                return JsValue::UNDEFINED;
            }
            if asking == Asking::InTurn {
                siblings.is_queued.set(false);
            }
            is_held.set(true);
            let (identity, way) = (kept_identity(), kept_way());
            app.dispatch(Event::Tabs(TabEvent::Lead { identity, way }));
            Promise::new(&mut |_, _| {}).into()
        })
    }
}
