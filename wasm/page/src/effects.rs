//! Carries out the actions of the page's state with the browser: the worker, the other tabs, the sensors, the storage.

use std::cell::RefCell;
use std::rc::Rc;

use barnraise_protocol::api::Runs;
use gloo::timers::callback::Timeout;
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

/// What the page holds of the browser.
pub(crate) struct Effects {
    peer: RefCell<Option<PeerWorker>>,
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
            PageAction::SpawnPeer => self.spawn(app),
            PageAction::EndPeer => {
                // This may run inside one of the worker's own listeners: they go a turn later.
                let ended = self.peer.take();
                if let Some(peer) = &ended {
                    peer.end();
                }
                Timeout::new(0, move || drop(ended)).forget();
            }
            PageAction::Post(message) => {
                let posted = self.peer.borrow().as_ref().map_or(Ok(()), |peer| peer.post(&message));
                if let Err(error) = posted {
                    app.dispatch(PageEvent::PeerLost { reason: PeerLoss::of_words(&format!("{error:?}")) });
                }
            }
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

    fn spawn(&self, app: &Rc<App>) {
        let dispatching = Rc::clone(app);
        let spawned = PeerWorker::spawn(&self.worker_url, move |event| dispatching.dispatch(event));
        match spawned {
            Ok(peer) => drop(self.peer.replace(Some(peer))),
            Err(error) => {
                app.dispatch(PageEvent::PeerLost { reason: PeerLoss::of_words(&format!("{error:?}")) });
            }
        }
    }
}
