//! The page's state and its view: dispatches events, hands out the actions, draws once per animation frame. What the
//! actions do is in [`crate::effects`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use gloo::timers::callback::Timeout;
use js_sys::Function;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};

use crate::dom;
use crate::limits::PauseReason;
use crate::resume;
use crate::state::{PageAction, PageEvent, PageState};
use crate::view::PageView;

/// Bytes that the page itself receives are reported in steps of this size.
const RECEIVED_BYTES: u64 = 16 * 1024;
/// Hidden pages get no animation frames; they are drawn this often at most.
const HIDDEN_FRAME_MS: u32 = 250;

/// Carries out an action.
type ActionHandler = Box<dyn Fn(&Rc<App>, PageAction)>;

/// The page.
pub(crate) struct App {
    page: RefCell<PageState>,
    /// Events that came while another one was dispatched.
    events: RefCell<VecDeque<PageEvent>>,
    is_dispatching: Cell<bool>,
    view: RefCell<PageView>,
    perform: ActionHandler,
    /// Resolves the wait for the next request to the web server.
    ask_again: RefCell<Option<Function>>,
    /// The state saved for the next load of the page: whether it contributes, and whether it is paused.
    noted: Cell<(bool, bool)>,
    is_frame_due: Cell<bool>,
    /// A draw is due without an event.
    is_redraw_due: Cell<bool>,
    /// Bytes that the page itself has received and not reported.
    received_bytes: Cell<u64>,
}

impl App {
    /// `perform` carries out each action.
    pub(crate) fn new(
        page: PageState,
        view: PageView,
        perform: impl Fn(&Rc<Self>, PageAction) + 'static,
    ) -> Rc<Self> {
        Rc::new(Self {
            page: RefCell::new(page),
            events: RefCell::default(),
            is_dispatching: Cell::new(false),
            view: RefCell::new(view),
            perform: Box::new(perform),
            ask_again: RefCell::new(None),
            noted: Cell::new((false, false)),
            is_frame_due: Cell::new(false),
            is_redraw_due: Cell::new(false),
            received_bytes: Cell::new(0),
        })
    }

    /// What [`PageAction::AskAgain`] calls, once.
    pub(crate) fn when_asked_again(&self, call: Option<Function>) {
        self.ask_again.replace(call);
    }

    /// Ends the wait for the next request to the web server.
    pub(crate) fn ask_again(&self) {
        let call = self.ask_again.take();
        if let Some(call) = call {
            // A promise that is resolved already ignores it.
            let _ = call.call0(&JsValue::NULL);
        }
    }

    /// Handles an event, carries out its actions, and draws soon. Events that come in the meantime are queued:
    /// otherwise the worker could be sent Stop before Start.
    pub(crate) fn dispatch(self: &Rc<Self>, event: PageEvent) {
        self.events.borrow_mut().push_back(event);
        if self.is_dispatching.replace(true) {
            return;
        }
        loop {
            let next = self.events.borrow_mut().pop_front();
            let Some(event) = next else { break };
            let actions = self.page.borrow_mut().on_event(dom::now_ms(), event);
            for action in actions {
                (self.perform)(self, action);
            }
        }
        self.is_dispatching.set(false);
        let now = self.with_page(|page| (page.contributing, page.pause() == Some(PauseReason::Visitor)));
        if self.noted.replace(now) != now {
            resume::note(now.0, now.1);
        }
        self.draw_soon();
    }

    /// Dispatches later.
    pub(crate) fn dispatch_in(self: &Rc<Self>, delay_ms: u32, event: PageEvent) {
        let app = Rc::clone(self);
        Timeout::new(delay_ms, move || app.dispatch(event)).forget();
    }

    /// Reads the state.
    pub(crate) fn with_page<T>(&self, read: impl FnOnce(&PageState) -> T) -> T {
        read(&self.page.borrow())
    }

    /// Changes the view, and draws soon.
    pub(crate) fn with_view(self: &Rc<Self>, change: impl FnOnce(&mut PageView)) {
        change(&mut self.view.borrow_mut());
        self.draw_soon();
    }

    /// Counts bytes that the page itself has received.
    pub(crate) fn count_received(self: &Rc<Self>, n_bytes: usize) {
        let bytes = self.received_bytes.get() + n_bytes as u64;
        let is_due = bytes >= RECEIVED_BYTES;
        self.received_bytes.set(if is_due { 0 } else { bytes });
        if is_due {
            self.dispatch(PageEvent::Received(bytes));
        }
    }

    /// Draws in the next animation frame, once for all events until then.
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
        // One timer is enough: what is drawn then says whether another is due.
        if let Some(delay_ms) = again_in_ms.filter(|_| !self.is_redraw_due.replace(true)) {
            let app = Rc::clone(self);
            let draw = move || {
                app.is_redraw_due.set(false);
                app.draw_soon();
            };
            Timeout::new(delay_ms, draw).forget();
        }
    }
}
