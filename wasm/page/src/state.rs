//! What the page knows, and what follows from each thing that happens. Pure: never touches the
//! document, a socket or a clock.
//!
//! The driver feeds one [`Event`] at a time and carries out the [`Action`]s that come back; the
//! view is drawn from the fields.

mod away;
mod endurance;
mod events;
mod giving;
mod halted;
mod load;
mod models;
mod parts;
mod questions;
mod samples;
mod steering;
mod tabs;
mod text;

use barnraise_messages::{
    Activity, CheckOutcome, Conduct, Contribution, DeviceChange, DeviceChoice, Event as Told, PageToPeer,
    PeerToPage, Way,
};
use barnraise_protocol::api::{Contributions, DeviceCount, LiveProgress, Models, RunStatus};
use barnraise_protocol::contribute::{DeviceKind, Progress};
use barnraise_protocol::run::RunDescription;

use crate::conduct::Conductor;
use crate::history::History;
use crate::kept::{Given, Kept};
use crate::preflight::{Preflight, Surroundings};
pub(crate) use endurance::{Endurance, is_of_memory, is_of_version};
pub(crate) use events::{Action, Event};
pub(crate) use giving::{Giving, Rank};
pub(crate) use load::{Bearer, LoadEvent};
pub(crate) use models::Comparison;
pub(crate) use parts::{Backbone, Capabilities, Gallery, Peer, Prediction, Question, WebGpu};
pub(crate) use tabs::{Role, TabEvent, TabMessage, Tabs};
pub(crate) use text::Filling;

/// For the visitor; what the driver said of it is on the console.
const GRAPHICS_LOST: &str = "The graphics processor stopped answering. The processor goes on.";

/// Everything the view shows.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) capabilities: Capabilities,
    pub(crate) preflight: Preflight,
    pub(crate) backbone: Backbone,
    pub(crate) run: Option<RunDescription>,
    pub(crate) progress: Option<Progress>,
    /// When something was last heard of the run.
    pub(crate) heard_at_ms: Option<f64>,
    pub(crate) devices: Vec<DeviceCount>,
    /// Why the operator has paused the run, while that is so.
    pub(crate) operator_pause: Option<String>,
    pub(crate) history: History,
    pub(crate) peer: Peer,
    /// The visitor pressed Start and not yet Stop.
    pub(crate) contributing: bool,
    /// Whether the tab may work now, and how hard.
    pub(crate) conductor: Conductor,
    /// The worker was told to contribute.
    is_told_to_start: bool,
    /// How it was told to work, or works without being told.
    told_conduct: Conduct,
    /// When Start was pressed last.
    pub(crate) started_at_ms: Option<f64>,
    pub(crate) activity: Activity,
    pub(crate) contribution: Contribution,
    /// What this browser has given, over all visits.
    pub(crate) kept: Kept,
    /// What belongs to it: a name, receipts, a card.
    pub(crate) giving: Giving,
    /// Models to download.
    pub(crate) models: Option<Models>,
    pub(crate) comparison: Comparison,
    pub(crate) filling: Filling,
    /// Who gave the most.
    pub(crate) leaders: Option<Box<Contributions>>,
    /// Why another device computes than the one that was opened.
    pub(crate) device_change: Option<DeviceChange>,
    /// Why the worker is gone.
    pub(crate) trouble: Option<String>,
    /// Something worth a line that does not stop anything.
    pub(crate) notice: Option<String>,
    pub(crate) gallery: Option<Gallery>,
    pub(crate) question: Option<Question>,
    pub(crate) prediction: Option<Prediction>,
    pub(crate) checks: Option<(DeviceKind, Vec<CheckOutcome>)>,
    pub(crate) tabs: Tabs,
    pub(crate) endurance: Endurance,
    origin: String,
    identity: Option<Vec<u8>>,
    invitation: Option<String>,
    /// How the backbone was reached the last time on this network.
    kept_way: Option<Way>,
    /// How it is reached now, and what kept the better ways.
    pub(crate) way: Option<(Way, Vec<(Way, String)>)>,
    /// Who the worker says that it is.
    pub(crate) peer_id: Option<String>,
    pub(crate) device_choice: DeviceChoice,
    check_wanted: bool,
    /// It was contributing when it broke.
    broke_off: bool,
    /// The worker was wanted and could not be had: the reason may be that the backbone is away.
    is_unloaded: bool,
    /// The worker is being loaded to contribute, and for nothing else.
    loads_for_work: bool,
    /// The training program came over the network, and is counted once it is known how large it is.
    owes_program: bool,
    n_requests: u32,
}

impl Page {
    /// A page that was just opened.
    pub(crate) fn new(
        capabilities: Capabilities,
        device_choice: DeviceChoice,
        origin: String,
        identity: Option<Vec<u8>>,
    ) -> Self {
        Self {
            capabilities,
            preflight: Preflight::default(),
            backbone: Backbone::Asking,
            run: None,
            progress: None,
            heard_at_ms: None,
            devices: Vec::new(),
            operator_pause: None,
            history: History::default(),
            peer: Peer::Absent,
            contributing: false,
            conductor: Conductor::default(),
            is_told_to_start: false,
            told_conduct: Conduct::default(),
            started_at_ms: None,
            activity: Activity::Idle,
            contribution: Contribution::default(),
            kept: Kept::default(),
            giving: Giving::default(),
            models: None,
            comparison: Comparison::default(),
            filling: Filling::default(),
            leaders: None,
            device_change: None,
            trouble: None,
            notice: None,
            gallery: None,
            question: None,
            prediction: None,
            checks: None,
            tabs: Tabs::default(),
            endurance: Endurance::default(),
            origin,
            identity,
            invitation: None,
            kept_way: None,
            way: None,
            peer_id: None,
            device_choice,
            check_wanted: false,
            broke_off: false,
            is_unloaded: false,
            loads_for_work: false,
            owes_program: false,
            n_requests: 0,
        }
    }

    /// The same page, on a network where the backbone was reached so before.
    pub(crate) fn reached_by(self, kept_way: Option<Way>) -> Self {
        Self { kept_way, ..self }
    }

    /// The same page, in a browser that says this of itself.
    pub(crate) fn within(self, surroundings: Surroundings) -> Self {
        Self { preflight: Preflight::new(surroundings), ..self }
    }

    /// The same page, in a browser that has given this before.
    pub(crate) fn remembering(self, kept: Kept) -> Self {
        Self { kept, ..self }
    }

    /// The same page, which works as this one decides.
    pub(crate) fn conducted_by(self, conductor: Conductor) -> Self {
        Self { conductor, ..self }
    }

    /// Where this page comes from.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// What this browser has given to the run on show, over all visits.
    pub(crate) fn given(&self) -> Option<&Given> {
        self.kept.of(&self.run.as_ref()?.run_id)
    }

    /// The same page, opened by the link of an invitation.
    pub(crate) fn invited_by(self, code: Option<String>) -> Self {
        Self { invitation: code, ..self }
    }

    /// Where the visitor has to sign in for this tab to go on. An address of the web and nothing else: it
    /// comes from the backbone and becomes a link.
    pub(crate) fn sign_in_url(&self) -> Option<&str> {
        match &self.activity {
            Activity::SigningIn { url } if url.starts_with("https://") || url.starts_with("http://") => {
                Some(url)
            }
            _ => None,
        }
    }

    /// The same page, in a browser that was told of this run before.
    pub(crate) fn knowing(self, run: Option<RunDescription>) -> Self {
        Self { run, ..self }
    }

    /// The same page, with questions that are counted from here: those of other tabs are others.
    pub(crate) fn asking_from(mut self, n_requests: u32) -> Self {
        self.n_requests = n_requests;
        self.comparison.request = n_requests;
        self.filling.request = n_requests;
        self
    }

    /// What follows in this tab; [`Page::on_event`] minds the others.
    fn on_event_here(&mut self, now_ms: f64, event: Event) -> Vec<Action> {
        match event {
            Event::RunArrived(status) => self.on_run(now_ms, *status),
            Event::BackboneLost { reason, retry_in_ms } => {
                self.backbone = Backbone::Lost { reason, retry_in_ms };
                if self.is_unloaded && self.trouble.take().is_some() {
                    // That is why it could not be loaded: it will be.
                    self.contributing |= self.broke_off;
                }
                Vec::new()
            }
            Event::Live(live) => self.on_live(now_ms, live),
            Event::LeadersKnown(leaders) => {
                self.leaders = Some(leaders);
                Vec::new()
            }
            Event::ModelsKnown(models) => {
                self.models = Some(models);
                Vec::new()
            }
            Event::ToggleComparison => self.toggle_comparison(),
            Event::TextAsked(text) => self.ask_of_text(text),
            Event::NameTyped(_)
            | Event::ReceiptsCounted(_)
            | Event::ReceiptsWanted
            | Event::CardWanted
            | Event::CardMade(_) => self.on_giving(event),
            Event::Remembered(kept) => {
                self.kept = kept;
                Vec::new()
            }
            Event::Toggle if self.contributing => self.stop(now_ms),
            Event::Toggle => self.start(now_ms),
            Event::GoOn { is_paused } => self.go_on(now_ms, is_paused),
            Event::LoadModel => self.load(),
            Event::Drawn(pixels) => self.ask(now_ms, pixels, None),
            Event::Picked(idx) => match self.gallery_image(idx).map(<[u8]>::to_vec) {
                Some(pixels) => self.ask(now_ms, pixels, Some(idx)),
                None => Vec::new(),
            },
            Event::ForgetQuestion => {
                (self.question, self.prediction) = (None, None);
                self.comparison.forget();
                Vec::new()
            }
            Event::CheckDevice => {
                self.check_wanted = true;
                self.load()
            }
            Event::GraphicsKnown(adapter) => {
                self.capabilities.web_gpu =
                    if adapter.is_some() { WebGpu::Adapter } else { WebGpu::NoAdapter };
                self.preflight.adapter = adapter;
                Vec::new()
            }
            Event::WayTried(way, tried) => {
                self.preflight.on_tried(way, tried);
                Vec::new()
            }
            Event::ProgramMeasured(n_bytes) => {
                self.preflight.program_bytes = Some(n_bytes);
                if std::mem::take(&mut self.owes_program) {
                    self.conductor.on_received(n_bytes);
                }
                Vec::new()
            }
            Event::PreflightLeft => {
                self.preflight.leave();
                Vec::new()
            }
            Event::Received(bytes) => {
                self.conductor.on_received(bytes);
                Vec::new()
            }
            Event::Conduct(input) => self.on_conduct(now_ms, input),
            Event::FromPeer(message) => self.on_peer(now_ms, message),
            Event::PeerLost { reason } => self.on_peer_lost(now_ms, reason),
            event => self.on_tab_event(now_ms, &event),
        }
    }

    /// Whether this browser can take part at all.
    pub(crate) fn is_supported(&self) -> bool {
        self.capabilities.secure
    }

    /// Whether the visitor wants to know how well the device computes.
    pub(crate) fn is_check_wanted(&self) -> bool {
        self.check_wanted
    }

    fn on_run(&mut self, now_ms: f64, status: RunStatus) -> Vec<Action> {
        self.backbone = Backbone::Live;
        self.heard_at_ms = Some(now_ms);
        self.run = Some(status.run);
        self.progress = Some(status.progress);
        self.devices = status.devices;
        self.operator_pause = status.paused;
        self.history.replace(status.history);
        let is_at_work = self.peer != Peer::Absent || self.contributing || self.is_unloaded;
        let attempts = self.preflight.begin(&status.addresses, is_at_work);
        if !attempts.is_empty() {
            return vec![Action::TryWays(attempts)];
        }
        // What could not be had while the backbone was away is there again.
        if self.is_unloaded && self.trouble.is_none() { self.load() } else { Vec::new() }
    }

    fn on_live(&mut self, now_ms: f64, live: LiveProgress) -> Vec<Action> {
        self.backbone = Backbone::Live;
        self.devices = live.devices;
        self.operator_pause = live.paused;
        live.steps.into_iter().for_each(|step| self.history.push(step));
        if let Some(evaluation) = live.evaluation {
            self.history.set_accuracy(evaluation.epoch, evaluation.test_accuracy);
        }
        self.on_progress(now_ms, live.progress)
    }

    fn on_progress(&mut self, now_ms: f64, progress: Progress) -> Vec<Action> {
        self.progress = Some(progress);
        self.heard_at_ms = Some(now_ms);
        self.ask_again(now_ms, progress.epoch)
    }

    fn load(&mut self) -> Vec<Action> {
        self.loads_for_work = false;
        if self.peer != Peer::Absent || !self.is_supported() {
            return Vec::new();
        }
        self.trouble = None;
        self.is_unloaded = false;
        self.endurance.reviving = None;
        self.endurance.on_new_worker(&self.contribution);
        self.activity = Activity::Idle;
        self.peer = Peer::Loading { bytes: 0, bytes_total: None };
        self.forget_told();
        self.conductor.on_worker();
        let hello = PageToPeer::Hello {
            origin: self.origin.clone(),
            identity: self.identity.clone(),
            device: self.fitting_device(),
            invitation: self.invitation.clone(),
            // What was seen to work just now, rather than what did the last time.
            way: self.preflight.best_way().or(self.kept_way),
        };
        vec![Action::SpawnPeer, Action::Post(hello)]
    }

    fn on_peer(&mut self, now_ms: f64, message: PeerToPage) -> Vec<Action> {
        match message {
            PeerToPage::Loading { bytes, bytes_total } => return self.on_loading(bytes, bytes_total),
            PeerToPage::Ready { identity, peer_id, device, device_name } => {
                self.peer_id = Some(peer_id);
                return self.on_ready(now_ms, identity, device, device_name);
            }
            PeerToPage::Told(told) => return self.on_told(now_ms, told),
            PeerToPage::Receipts { receipts } => return vec![Action::Remember(receipts)],
            PeerToPage::Connected { way, failures } => {
                self.kept_way = Some(way);
                self.way = Some((way, failures));
                return vec![Action::KeepWay(way)];
            }
            PeerToPage::PredictedEarlier { request, epoch, probabilities } => {
                self.on_earlier(request, Ok((epoch, probabilities)));
            }
            PeerToPage::NoEarlier { request, reason } => self.on_earlier(request, Err(reason)),
            PeerToPage::Filled { request, epoch, blanks } => self.on_filled(request, Ok((epoch, blanks))),
            PeerToPage::NotFilled { request, reason } => self.on_filled(request, Err(reason)),
            PeerToPage::Downloaded { bytes } => self.conductor.on_received(bytes),
            // Between the worker and the browser, and taken apart before it comes here.
            PeerToPage::DialRtc { .. } | PeerToPage::News { .. } => {}
            PeerToPage::SelfCheck { device, checks } => self.checks = Some((device, checks)),
            PeerToPage::Failed { message } if matches!(self.peer, Peer::Ready { .. }) => {
                self.on_failed(message);
            }
            PeerToPage::Failed { message } => return self.on_peer_lost(now_ms, message),
        }
        Vec::new()
    }

    fn on_told(&mut self, now_ms: f64, told: Told) -> Vec<Action> {
        match told {
            // Known from the web server, and told together.
            Told::Described(_) | Told::Receipt(_) => {}
            Told::Activity(activity) => {
                let is_broken = matches!(activity, Activity::Broken { .. });
                if let Activity::Reconnecting { reason, .. } | Activity::Broken { reason } = &activity
                    && is_of_version(reason)
                {
                    let actions = self.on_older_here(reason, is_broken);
                    if !actions.is_empty() {
                        self.activity = activity;
                        return actions;
                    }
                }
                if is_broken {
                    self.is_told_to_start = false;
                    // Pressing the button is the way to try again what trying again does not mend.
                    self.broke_off |= self.contributing;
                    self.contributing = false;
                }
                self.activity = activity;
            }
            Told::Progress(progress) => return self.on_progress(now_ms, progress),
            Told::Contribution(contribution) => {
                let actions = self.on_work(now_ms, &contribution);
                self.contribution = self.endurance.with_before(&contribution);
                return actions;
            }
            Told::Prediction { request, epoch, probabilities } => {
                self.on_prediction(request, epoch, &probabilities);
            }
            Told::Gallery { images, labels } => self.gallery = Some(Gallery { images, labels }),
            Told::DeviceChanged { device, device_name, reason } => {
                self.peer = Peer::Ready { device, device_name };
                self.conductor.on_device();
                let is_lost = matches!(reason, DeviceChange::Lost { .. });
                self.device_change = Some(reason);
                if is_lost {
                    self.notice = Some(GRAPHICS_LOST.to_owned());
                    if self.device_choice == DeviceChoice::Auto {
                        return self.on_graphics_lost().into_iter().collect();
                    }
                }
            }
            Told::Failed { message } if self.is_of_a_pause(&message) => {}
            Told::Failed { message } => self.on_failed(message),
        }
        Vec::new()
    }

    fn on_failed(&mut self, message: String) {
        self.close_question();
        self.notice = Some(message);
    }

    fn on_ready(
        &mut self,
        now_ms: f64,
        identity: Vec<u8>,
        device: DeviceKind,
        device_name: String,
    ) -> Vec<Action> {
        self.peer = Peer::Ready { device, device_name };
        self.identity = Some(identity.clone());
        let mut actions = vec![Action::KeepIdentity(identity)];
        if self.giving.name.is_some() {
            actions.push(self.post_name());
        }
        actions.extend(self.steer());
        actions.extend(self.asked_once_ready(now_ms));
        actions
    }

    /// What the visitor wants of a worker beside contributing.
    fn asked_once_ready(&mut self, now_ms: f64) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.check_wanted {
            actions.push(Action::Post(PageToPeer::SelfCheck));
        }
        if self.gallery.is_none() && !self.has_nothing_to_try() {
            actions.push(Action::Post(PageToPeer::LoadGallery));
        }
        if self.is_asking() {
            actions.extend(self.post_question(now_ms));
        }
        actions.extend(self.compare());
        actions.extend(self.post_text());
        actions
    }
}

#[cfg(test)]
#[path = "state/tests.rs"]
mod tests;
