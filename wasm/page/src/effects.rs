//! Carries out the actions of the page's state with the browser: the worker, the other tabs, the sensors, the storage.

use std::cell::RefCell;
use std::convert::identity;
use std::rc::Rc;

use barnraise_messages::PageToPeer;
use barnraise_protocol::api::Runs;
use gloo::timers::callback::Timeout;
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::spawn_local;

use crate::app::App;
use crate::backbone;
use crate::kept;
use crate::kept_own::KeptOwn;
use crate::probe;
use crate::receipts::Receipts;
use crate::renewal;
use crate::requests;
use crate::sensors::Sensors;
use crate::share;
use crate::state::{PageAction, PageEvent, PeerLoss, TabEvent};
use crate::tabs::Siblings;
use crate::worker::PeerWorker;

/// A worker, while it runs.
type WorkerSlot = RefCell<Option<PeerWorker>>;

/// What the page holds of the browser.
pub(crate) struct Effects {
    peer: WorkerSlot,
    /// The worker that hosts experts.
    host: WorkerSlot,
    receipts: Receipts,
    own: KeptOwn,
    worker_url: String,
    siblings: Option<Rc<Siblings>>,
    sensors: Rc<Sensors>,
}

impl Effects {
    pub(crate) fn new(worker_url: String, siblings: Option<Rc<Siblings>>, sensors: Rc<Sensors>) -> Self {
        Self {
            peer: RefCell::new(None),
            host: RefCell::new(None),
            receipts: Receipts::default(),
            own: KeptOwn::default(),
            worker_url,
            siblings,
            sensors,
        }
    }

    /// Carries out one action; what comes of it is an event.
    pub(crate) fn perform(&self, app: &Rc<App>, action: PageAction) {
        match action {
            PageAction::SpawnPeer => self.spawn(app, &self.peer, identity),
            PageAction::EndPeer => end(&self.peer),
            PageAction::Post(message) => post(app, &self.peer, &message, identity),
            PageAction::SpawnHost => self.spawn(app, &self.host, of_host),
            PageAction::EndHost => end(&self.host),
            PageAction::PostHost(message) => post(app, &self.host, &message, of_host),
            PageAction::KeepIdentity(seed) => kept::keep_identity(&seed),
            PageAction::KeepName(name) => kept::keep_name(name.as_ref()),
            PageAction::SaveReceipts => self.receipts.save(app),
            PageAction::FindOwn { request } => self.own.find(app, request),
            PageAction::StoreOwn { request, choice } => self.own.keep(app, request, choice),
            PageAction::MakeCard(card) => share::make(app, *card),
            PageAction::Remember(receipts) => {
                self.receipts.keep(app, &receipts);
                // The storage, where there is one, has what other tabs added.
                let mut totals = kept::totals().unwrap_or_else(|| app.with_page(|page| page.totals.clone()));
                receipts.into_iter().for_each(|receipt| totals.add(receipt));
                kept::keep_totals(&totals);
                app.dispatch(PageEvent::Remembered(totals));
            }
            PageAction::SaveTransport(transport) => kept::keep_transport(transport),
            PageAction::Limits(request) => self.sensors.perform(app, request),
            PageAction::ProbeTransports(attempts) => probe::begin(app, attempts),
            PageAction::AskForColumns => backbone::ask_for_columns(app),
            PageAction::AskForCodes => {
                let app = Rc::clone(app);
                spawn_local(async move {
                    // Who has no answer is not led to a field for codes.
                    let runs = requests::get::<Runs>(requests::RUNS_URL).await;
                    app.dispatch(PageEvent::CodesKnown(runs.is_ok_and(|runs| runs.takes_codes)));
                });
            }
            PageAction::Broadcast(_)
            | PageAction::TakeLead
            | PageAction::RequestLock
            | PageAction::TakeLoad
            | PageAction::ReleaseLock
            | PageAction::StoreHolder(_) => {
                if let Some(siblings) = &self.siblings {
                    siblings.perform(app, &action);
                }
            }
            PageAction::TickIn { delay_ms } => app.dispatch_in(delay_ms, PageEvent::Tabs(TabEvent::Tick)),
            PageAction::Recall => {
                app.dispatch(PageEvent::Remembered(kept::totals().unwrap_or_default()));
                self.receipts.count(app);
            }
            PageAction::ReviveIn { delay_ms } => app.dispatch_in(delay_ms, PageEvent::Revive),
            PageAction::LookAtLoadingIn { delay_ms } => app.dispatch_in(delay_ms, PageEvent::LookAtLoading),
            PageAction::TryGraphicsIn { delay_ms } => app.dispatch_in(delay_ms, PageEvent::TryGraphics),
            PageAction::AskAgain => app.ask_again(),
            PageAction::Reload => renewal::reload(),
        }
    }

    /// Reports what this browser stores: the number of receipts, and what the visitor chose to train on.
    pub(crate) fn begin(&self, app: &Rc<App>) {
        self.receipts.count(app);
        self.own.find(app, 0);
    }

    /// `of_worker` makes the worker's events those of this slot.
    fn spawn(&self, app: &Rc<App>, slot: &WorkerSlot, of_worker: fn(PageEvent) -> PageEvent) {
        let dispatching = Rc::clone(app);
        let dispatch = move |event| dispatching.dispatch(of_worker(event));
        match PeerWorker::spawn(&self.worker_url, dispatch) {
            Ok(worker) => drop(slot.replace(Some(worker))),
            Err(error) => app.dispatch(of_worker(refused(&error))),
        }
    }
}

fn post(app: &Rc<App>, slot: &WorkerSlot, message: &PageToPeer, of_worker: fn(PageEvent) -> PageEvent) {
    let posted = slot.borrow().as_ref().map_or(Ok(()), |worker| worker.post(message));
    if let Err(error) = posted {
        app.dispatch(of_worker(refused(&error)));
    }
}

fn end(slot: &WorkerSlot) {
    // This may run inside one of the worker's own listeners: they go a turn later.
    let ended = slot.take();
    if let Some(worker) = &ended {
        worker.end();
    }
    Timeout::new(0, move || drop(ended)).forget();
}

fn refused(error: &JsValue) -> PageEvent {
    PageEvent::PeerLost { reason: PeerLoss::of_words(&format!("{error:?}")) }
}

/// The same event, of the worker that hosts experts.
fn of_host(event: PageEvent) -> PageEvent {
    match event {
        PageEvent::FromPeer(message) => PageEvent::FromHost(message),
        PageEvent::PeerLost { reason } => PageEvent::HostLost { reason },
        event => event,
    }
}
