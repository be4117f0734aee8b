//! What the page knows, and what follows from each thing that happens. Pure: never touches the
//! document, a socket or a clock.
//!
//! The driver feeds one [`Event`] at a time and carries out the [`Action`]s that come back; the
//! view is drawn from the fields.

mod events;
mod parts;
mod samples;

use barnraise_messages::{
    Activity, CheckOutcome, Contribution, DeviceChange, DeviceChoice, Event as Told, PageToPeer, PeerToPage,
    Way,
};
use barnraise_protocol::api::{Contributions, DeviceCount, LiveProgress, RunStatus};
use barnraise_protocol::contribute::{DeviceKind, Progress};
use barnraise_protocol::run::RunDescription;

use crate::history::History;
use crate::kept::{Given, Kept};
use crate::preflight::{Preflight, Surroundings};
pub(crate) use events::{Action, Event};
pub(crate) use parts::{Backbone, Capabilities, Gallery, Peer, Prediction, Question, WebGpu};

/// A question about the same picture is asked again at most this often while the model changes.
const ASK_AGAIN_MS: f64 = 3000.0;

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
    pub(crate) history: History,
    pub(crate) peer: Peer,
    /// The visitor pressed Start and not yet Stop.
    pub(crate) contributing: bool,
    /// When Start was pressed last.
    pub(crate) started_at_ms: Option<f64>,
    pub(crate) activity: Activity,
    pub(crate) contribution: Contribution,
    /// What this browser has given, over all visits.
    pub(crate) kept: Kept,
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
            history: History::default(),
            peer: Peer::Absent,
            contributing: false,
            started_at_ms: None,
            activity: Activity::Idle,
            contribution: Contribution::default(),
            kept: Kept::default(),
            leaders: None,
            device_change: None,
            trouble: None,
            notice: None,
            gallery: None,
            question: None,
            prediction: None,
            checks: None,
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

    /// Takes in what happened at `now_ms` (any origin, never going back) and says what to do.
    pub(crate) fn on_event(&mut self, now_ms: f64, event: Event) -> Vec<Action> {
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
            Event::Remembered(kept) => {
                self.kept = kept;
                Vec::new()
            }
            Event::Toggle if self.contributing => self.stop(),
            Event::Toggle => self.start(now_ms),
            Event::LoadModel => self.load(),
            Event::Drawn(pixels) => self.ask(now_ms, pixels, None),
            Event::Picked(idx) => match self.gallery_image(idx).map(<[u8]>::to_vec) {
                Some(pixels) => self.ask(now_ms, pixels, Some(idx)),
                None => Vec::new(),
            },
            Event::ForgetQuestion => {
                (self.question, self.prediction) = (None, None);
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
                Vec::new()
            }
            Event::PreflightLeft => {
                self.preflight.leave();
                Vec::new()
            }
            Event::FromPeer(message) => self.on_peer(now_ms, message),
            Event::PeerLost { reason } => self.on_peer_lost(reason),
        }
    }

    /// Whether this browser can take part at all.
    pub(crate) fn is_supported(&self) -> bool {
        self.capabilities.secure
    }

    /// Whether the numbers of the run are those of a while ago.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self.backbone, Backbone::Lost { .. }) && self.heard_at_ms.is_some()
    }

    /// Whether the visitor wants to know how well the device computes.
    pub(crate) fn is_check_wanted(&self) -> bool {
        self.check_wanted
    }

    /// Whether the question on the table waits for its answer.
    pub(crate) fn is_asking(&self) -> bool {
        self.question.as_ref().is_some_and(|question| question.is_open)
    }

    /// What the picture of the question is, where that is known.
    pub(crate) fn label(&self) -> Option<usize> {
        let picked = self.question.as_ref()?.picked?;
        self.gallery.as_ref()?.labels.get(picked).copied().map(usize::from)
    }

    fn on_run(&mut self, now_ms: f64, status: RunStatus) -> Vec<Action> {
        self.backbone = Backbone::Live;
        self.heard_at_ms = Some(now_ms);
        self.run = Some(status.run);
        self.progress = Some(status.progress);
        self.devices = status.devices;
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
        live.steps.into_iter().for_each(|step| self.history.push(step));
        if let Some(evaluation) = live.evaluation {
            self.history.set_accuracy(evaluation.epoch, evaluation.test_accuracy);
        }
        self.on_progress(now_ms, live.progress)
    }

    fn on_progress(&mut self, now_ms: f64, progress: Progress) -> Vec<Action> {
        self.progress = Some(progress);
        self.heard_at_ms = Some(now_ms);
        let is_old = self.prediction.as_ref().is_some_and(|prediction| prediction.epoch < progress.epoch);
        let is_due = self
            .question
            .as_ref()
            .is_some_and(|question| !question.is_open && now_ms - question.asked_at_ms >= ASK_AGAIN_MS);
        // Only while contributing: the newest model is in the tab then anyway.
        if is_old && is_due && self.contributing { self.post_question(now_ms) } else { Vec::new() }
    }

    fn start(&mut self, now_ms: f64) -> Vec<Action> {
        if !self.is_supported() {
            return Vec::new();
        }
        self.contributing = true;
        self.broke_off = false;
        self.started_at_ms = Some(now_ms);
        self.notice = None;
        match self.peer {
            Peer::Ready { .. } => vec![Action::Post(PageToPeer::Start)],
            _ => self.load(),
        }
    }

    fn stop(&mut self) -> Vec<Action> {
        self.contributing = false;
        self.broke_off = false;
        self.is_unloaded = false;
        match self.peer {
            Peer::Ready { .. } => vec![Action::Post(PageToPeer::Stop)],
            _ => Vec::new(),
        }
    }

    fn load(&mut self) -> Vec<Action> {
        if self.peer != Peer::Absent || !self.is_supported() {
            return Vec::new();
        }
        self.trouble = None;
        self.is_unloaded = false;
        self.activity = Activity::Idle;
        self.peer = Peer::Loading { bytes: 0, bytes_total: None };
        let hello = PageToPeer::Hello {
            origin: self.origin.clone(),
            identity: self.identity.clone(),
            device: self.device_choice,
            invitation: self.invitation.clone(),
            // What was seen to work just now, rather than what did the last time.
            way: self.preflight.best_way().or(self.kept_way),
        };
        vec![Action::SpawnPeer, Action::Post(hello)]
    }

    fn on_peer(&mut self, now_ms: f64, message: PeerToPage) -> Vec<Action> {
        match message {
            PeerToPage::Loading { bytes, bytes_total } => {
                if matches!(self.peer, Peer::Loading { .. }) {
                    self.peer = Peer::Loading { bytes, bytes_total };
                }
            }
            PeerToPage::Ready { identity, peer_id, device, device_name } => {
                self.peer_id = Some(peer_id);
                return self.on_ready(now_ms, identity, device, device_name);
            }
            PeerToPage::Told(told) => return self.on_told(now_ms, told),
            PeerToPage::Connected { way, failures } => {
                self.kept_way = Some(way);
                self.way = Some((way, failures));
                return vec![Action::KeepWay(way)];
            }
            // Between the worker and the browser.
            PeerToPage::DialRtc { .. } => {}
            PeerToPage::SelfCheck { device, checks } => self.checks = Some((device, checks)),
            PeerToPage::Failed { message } if matches!(self.peer, Peer::Ready { .. }) => {
                self.on_failed(message);
            }
            PeerToPage::Failed { message } => return self.on_peer_lost(message),
        }
        Vec::new()
    }

    fn on_told(&mut self, now_ms: f64, told: Told) -> Vec<Action> {
        match told {
            // Known from the web server.
            Told::Described(_) => {}
            Told::Activity(activity) => {
                if matches!(activity, Activity::Broken { .. }) {
                    // Pressing the button is the way to try again what trying again does not mend.
                    self.broke_off |= self.contributing;
                    self.contributing = false;
                }
                self.activity = activity;
            }
            Told::Progress(progress) => return self.on_progress(now_ms, progress),
            Told::Contribution(contribution) => self.contribution = contribution,
            Told::Receipt(receipt) => return vec![Action::Remember(receipt)],
            Told::Prediction { request, epoch, probabilities } => {
                self.on_prediction(request, epoch, &probabilities);
            }
            Told::Gallery { images, labels } => self.gallery = Some(Gallery { images, labels }),
            Told::DeviceChanged { device, device_name, reason } => {
                self.peer = Peer::Ready { device, device_name };
                if matches!(reason, DeviceChange::Lost { .. }) {
                    self.notice = Some(GRAPHICS_LOST.to_owned());
                }
                self.device_change = Some(reason);
            }
            Told::Failed { message } => self.on_failed(message),
        }
        Vec::new()
    }

    fn on_failed(&mut self, message: String) {
        if let Some(question) = &mut self.question {
            question.is_open = false;
        }
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
        if self.contributing {
            actions.push(Action::Post(PageToPeer::Start));
        }
        if self.check_wanted {
            actions.push(Action::Post(PageToPeer::SelfCheck));
        }
        if self.gallery.is_none() && !self.has_nothing_to_try() {
            actions.push(Action::Post(PageToPeer::LoadGallery));
        }
        if self.is_asking() {
            actions.extend(self.post_question(now_ms));
        }
        actions
    }

    fn on_prediction(&mut self, request: u32, epoch: u64, probabilities: &[f32]) {
        let Some(question) = self.question.as_mut().filter(|_| request == self.n_requests) else {
            return;
        };
        question.is_open = false;
        let mut ranking: Vec<(usize, f32)> = probabilities.iter().copied().enumerate().collect();
        ranking.sort_by(|a, b| b.1.total_cmp(&a.1));
        self.prediction = Some(Prediction { epoch, ranking });
    }

    fn on_peer_lost(&mut self, reason: String) -> Vec<Action> {
        let lost = std::mem::replace(&mut self.peer, Peer::Absent);
        // What the peer said with its last breath tells more than what the browser makes of it.
        let reason = match std::mem::replace(&mut self.activity, Activity::Idle) {
            Activity::Broken { reason } => reason,
            _ => reason,
        };
        let on_gpu = matches!(lost, Peer::Ready { device: DeviceKind::BrowserWebGpu, .. });
        let mut actions = vec![Action::EndPeer];
        if on_gpu && self.device_choice == DeviceChoice::Auto {
            // A driver that takes the whole worker down does so again: go on with the CPU.
            self.device_choice = DeviceChoice::Cpu;
            self.contributing |= self.broke_off;
            self.notice = Some(GRAPHICS_LOST.to_owned());
            self.device_change = Some(DeviceChange::Lost { detail: reason });
            actions.extend(self.load());
            return actions;
        }
        self.is_unloaded = matches!(lost, Peer::Loading { .. });
        if !self.is_unloaded || !matches!(self.backbone, Backbone::Lost { .. }) {
            self.broke_off |= self.contributing;
            self.contributing = false;
            self.notice = None;
            self.trouble = Some(reason);
        }
        actions
    }

    fn ask(&mut self, now_ms: f64, pixels: Vec<u8>, picked: Option<usize>) -> Vec<Action> {
        self.prediction = None;
        self.question = Some(Question { pixels, picked, asked_at_ms: now_ms, is_open: true });
        match self.peer {
            Peer::Ready { .. } => self.post_question(now_ms),
            _ => self.load(),
        }
    }

    fn post_question(&mut self, now_ms: f64) -> Vec<Action> {
        let Some(question) = &mut self.question else {
            return Vec::new();
        };
        self.n_requests = self.n_requests.wrapping_add(1);
        (question.asked_at_ms, question.is_open) = (now_ms, true);
        let pixels = question.pixels.clone();
        vec![Action::Post(PageToPeer::Predict { request: self.n_requests, pixels })]
    }
}

#[cfg(test)]
#[path = "state/tests.rs"]
mod tests;
