//! State of the page, and its reaction to each event. Pure: never touches the document, a socket or a clock.
//!
//! The driver feeds one [`PageEvent`] at a time and carries out the [`PageAction`]s that come back; the
//! view is drawn from the fields.

mod admission;
mod away;
mod card;
mod endurance;
mod events;
mod giving;
mod halted;
mod hosting;
mod load;
mod models;
mod opening;
mod own;
mod parts;
mod questions;
mod rows;
mod samples;
mod steering;
mod tab_messages;
mod tabs;
mod text;

use barnraise_messages::{
    Activity, CheckOutcome, Contribution, ContributorEvent, DeviceChange, DeviceChoice, ExpertsSeen,
    Interruption, PacingSettings, PageToPeer, PeerToPage, TransportKind,
};
use barnraise_protocol::api::{Contributions, DeviceCount, LiveProgress, Models, RunStatus};
use barnraise_protocol::contribute::{DeviceKind, RunProgress};
use barnraise_protocol::run::RunDescription;

use crate::browser_totals::{BrowserTotals, RunTotals};
use crate::cost::{DataMeter, HourCost, HourEstimate, RunCost};
use crate::history::History;
use crate::limits::ResourceLimits;
use crate::preflight::{Capabilities, Preflight, WebGpu};
pub(crate) use admission::Admission;
pub(crate) use card::{CARD_SIZE, CardError, ShareCard};
pub(crate) use endurance::Endurance;
pub(crate) use events::{PageAction, PageEvent};
pub(crate) use giving::{Giving, RECEIPTS_MAX, Rank};
pub(crate) use hosting::{Hosting, HostingEnd, HostingStatus};
pub(crate) use models::Comparison;
pub(crate) use own::{FilesProgress, StoreOutcome, class_of_path};
pub(crate) use parts::{
    AnswerError, BackboneLoss, BackboneStatus, FoundOwn, Gallery, GalleryRequest, OwnChoice, OwnFile,
    PeerLoss, Prediction, Question, WorkerState,
};
pub(crate) use rows::{RowAnswer, Rows, placeholder};
pub(crate) use tab_messages::{LoadEvent, LockHolder, TabEvent, TabMessage, TabRole};
pub(crate) use tabs::Tabs;
pub(crate) use text::{Filling, FillingAnswer, Spoken};

/// Notice for the visitor; the driver's message is on the console.
const GRAPHICS_LOST: &str = "The graphics processor stopped answering. The processor goes on.";

/// All state that the view shows.
#[derive(Debug)]
pub(crate) struct PageState {
    pub(crate) capabilities: Capabilities,
    pub(crate) preflight: Preflight,
    pub(crate) backbone: BackboneStatus,
    pub(crate) run: Option<RunDescription>,
    /// Length of the run's flat parameter vector; 0 while the run is unknown.
    pub(crate) n_parameters: u64,
    pub(crate) progress: Option<RunProgress>,
    /// Time of the last news about the run.
    pub(crate) last_news_ms: Option<f64>,
    pub(crate) devices: Vec<DeviceCount>,
    /// Why the operator has paused the run; `None` while it runs.
    pub(crate) operator_pause: Option<String>,
    pub(crate) history: History,
    /// Accuracy of a model that always gives the commonest answer, where the backbone tells.
    pub(crate) majority_accuracy: Option<f32>,
    pub(crate) peer: WorkerState,
    /// The visitor pressed Start and not yet Stop.
    pub(crate) contributing: bool,
    /// Whether the tab may compute now, and how hard.
    pub(crate) limits: ResourceLimits,
    /// Start was sent to the worker.
    is_start_posted: bool,
    /// The last pacing sent to the worker, or its default.
    posted_pacing: PacingSettings,
    /// When Start was pressed last.
    pub(crate) started_at_ms: Option<f64>,
    pub(crate) activity: Activity,
    pub(crate) contribution: Contribution,
    /// Totals of this browser's contributions, over all visits.
    pub(crate) totals: BrowserTotals,
    /// Name, receipts and card of the visitor.
    pub(crate) giving: Giving,
    /// Models to download.
    pub(crate) models: Option<Models>,
    pub(crate) comparison: Comparison,
    pub(crate) filling: Filling,
    pub(crate) rows: Rows,
    /// What this tab sees of experts on other machines, while it computes.
    pub(crate) experts: Option<Box<ExpertsSeen>>,
    pub(crate) hosting: Hosting,
    /// The leaderboard.
    pub(crate) leaders: Option<Box<Contributions>>,
    /// Why the device changed.
    pub(crate) device_change: Option<DeviceChange>,
    /// Of the processor, that compute a pass.
    pub(crate) n_threads: u32,
    /// Why the worker is gone.
    pub(crate) trouble: Option<PeerLoss>,
    /// A notice that does not stop anything.
    pub(crate) notice: Option<String>,
    pub(crate) gallery: Option<Gallery>,
    pub(crate) gallery_request: GalleryRequest,
    pub(crate) question: Option<Question>,
    pub(crate) prediction: Option<Prediction>,
    /// The visitor chose a photo that cannot be read.
    pub(crate) is_photo_unreadable: bool,
    /// Pictures that the visitor brings.
    own: own::OwnPictures,
    /// A table or texts that the visitor brings.
    own_files: own::OwnFiles,
    /// Whether those are kept in this browser.
    own_keeping: own::OwnKeeping,
    pub(crate) checks: Option<(DeviceKind, Vec<CheckOutcome>)>,
    pub(crate) tabs: Tabs,
    pub(crate) endurance: Endurance,
    origin: String,
    identity: Option<Vec<u8>>,
    /// The identity is of an earlier visit.
    had_identity: bool,
    invitation: Option<String>,
    /// Whether a run at this address takes codes; `None` until it is asked.
    takes_codes: Option<bool>,
    /// The transport that reached the backbone the last time on this network.
    last_transport: Option<TransportKind>,
    /// The transport of the current connection, and why the better ones failed.
    pub(crate) connection: Option<(TransportKind, Vec<(TransportKind, String)>)>,
    /// Peer id of the worker.
    pub(crate) peer_id: Option<String>,
    pub(crate) device_choice: DeviceChoice,
    check_wanted: bool,
    /// It was contributing when the worker failed.
    broke_off: bool,
    /// The worker could not be loaded, perhaps because the backbone is away.
    is_unloaded: bool,
    /// The worker is being loaded for contributing only.
    loads_for_work: bool,
    /// The training program was downloaded, and will be counted once its size is known.
    is_program_uncounted: bool,
    n_requests: u32,
    /// Measures the data that contributing takes.
    meter: DataMeter,
    hour_estimate: HourEstimate,
}

impl PageState {
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
            backbone: BackboneStatus::Asking,
            run: None,
            n_parameters: 0,
            progress: None,
            last_news_ms: None,
            devices: Vec::new(),
            operator_pause: None,
            history: History::default(),
            majority_accuracy: None,
            peer: WorkerState::Absent,
            contributing: false,
            limits: ResourceLimits::default(),
            is_start_posted: false,
            posted_pacing: PacingSettings::default(),
            started_at_ms: None,
            activity: Activity::Idle,
            contribution: Contribution::default(),
            totals: BrowserTotals::default(),
            giving: Giving::default(),
            models: None,
            comparison: Comparison::default(),
            filling: Filling::default(),
            rows: Rows::default(),
            experts: None,
            hosting: Hosting::default(),
            leaders: None,
            device_change: None,
            n_threads: 1,
            trouble: None,
            notice: None,
            gallery: None,
            gallery_request: GalleryRequest::default(),
            question: None,
            prediction: None,
            is_photo_unreadable: false,
            own: own::OwnPictures::default(),
            own_files: own::OwnFiles::default(),
            own_keeping: own::OwnKeeping::default(),
            checks: None,
            tabs: Tabs::default(),
            endurance: Endurance::default(),
            origin,
            had_identity: identity.is_some(),
            identity,
            invitation: None,
            takes_codes: None,
            last_transport: None,
            connection: None,
            peer_id: None,
            device_choice,
            check_wanted: false,
            broke_off: false,
            is_unloaded: false,
            loads_for_work: false,
            is_program_uncounted: false,
            n_requests: 0,
            meter: DataMeter::default(),
            hour_estimate: HourEstimate::default(),
        }
    }

    /// Origin of this page, with the prefix of its run.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// Totals of this browser's contributions to this run, over all visits.
    pub(crate) fn given(&self) -> Option<&RunTotals> {
        self.totals.of(&self.run.as_ref()?.identity.run_id)
    }

    /// Data that the run costs a contributor; `None` while it is unknown.
    pub(crate) fn run_cost(&self) -> Option<RunCost> {
        self.run.as_ref().map(|run| RunCost::of(run, self.n_parameters))
    }

    /// Data that an hour of contributing takes, from the best source that there is.
    pub(crate) fn hour_cost(&self) -> Option<HourCost> {
        let of_others = || self.run_cost()?.hour_bytes(&self.leaders.as_ref()?.totals);
        let measured = self.meter.hour_bytes().map(HourCost::Measured);
        let known = measured.or_else(|| of_others().map(HourCost::OfOthers));
        known.or_else(|| self.hour_estimate.hour_bytes().map(HourCost::Estimated))
    }

    /// Reaction within this tab; [`PageState::on_event`] handles the other tabs.
    fn on_event_here(&mut self, now_ms: f64, event: PageEvent) -> Vec<PageAction> {
        match event {
            PageEvent::RunArrived(status) => self.on_run(now_ms, *status),
            PageEvent::BackboneLost { reason, retry_in_ms } => {
                self.backbone = BackboneStatus::Lost { reason, retry_in_ms };
                if self.is_unloaded && self.trouble.take().is_some() {
                    // The lost backbone explains the failed load: it is retried later.
                    self.contributing |= self.broke_off;
                }
                Vec::new()
            }
            PageEvent::Live(live) => self.on_live(now_ms, live),
            PageEvent::LeadersKnown(leaders) => {
                self.leaders = Some(leaders);
                Vec::new()
            }
            PageEvent::ModelsKnown(models) => {
                self.models = Some(models);
                self.ask_for_columns().into_iter().collect()
            }
            PageEvent::ColumnsKnown(columns) => {
                self.on_columns(*columns);
                Vec::new()
            }
            PageEvent::RowAsked(cells) => self.ask_of_row(cells),
            PageEvent::RowTyped(cells) => self.on_row_typed(cells),
            PageEvent::ItemRated { name, rating } => self.rate(&name, &rating),
            PageEvent::ItemUnrated(item) => self.unrate(item),
            PageEvent::CodesKnown(takes_codes) => {
                self.takes_codes = Some(takes_codes);
                Vec::new()
            }
            PageEvent::ToggleComparison => self.toggle_comparison(),
            PageEvent::TextAsked(text) => self.ask_of_text(text),
            PageEvent::TextTyped(text) => self.on_text_typed(text),
            PageEvent::ToggleEarlierText => self.toggle_earlier_text(),
            PageEvent::NameTyped(_)
            | PageEvent::ReceiptsCounted(_)
            | PageEvent::ReceiptsWanted
            | PageEvent::CardWanted
            | PageEvent::CardMade(_) => self.on_giving(event),
            PageEvent::Remembered(kept) => {
                self.totals = kept;
                Vec::new()
            }
            PageEvent::Toggle if self.contributing => self.stop(now_ms),
            PageEvent::Toggle => self.start(now_ms),
            PageEvent::GoOn { is_paused } => self.go_on(now_ms, is_paused),
            PageEvent::LoadModel => self.load_to_try(),
            PageEvent::Drawn(pixels) => self.ask(now_ms, pixels, None),
            PageEvent::Picked(idx) => match self.gallery_image(idx).map(<[u8]>::to_vec) {
                Some(pixels) => self.ask(now_ms, pixels, Some(idx)),
                None => Vec::new(),
            },
            PageEvent::ForgetQuestion | PageEvent::PhotoUnreadable => {
                (self.question, self.prediction) = (None, None);
                self.is_photo_unreadable = event == PageEvent::PhotoUnreadable;
                self.comparison.forget();
                Vec::new()
            }
            PageEvent::OwnFile(file) => self.on_own_file(now_ms, file),
            PageEvent::OwnForgotten => self.forget_own(),
            PageEvent::OwnFound { request, found } => {
                self.on_own_found(request, found);
                Vec::new()
            }
            PageEvent::KeepOwn(is_wanted) => self.keep_own(is_wanted),
            PageEvent::OwnStored { request, is_stored } => {
                self.on_own_stored(request, is_stored);
                Vec::new()
            }
            PageEvent::CheckDevice => {
                self.check_wanted = true;
                self.load()
            }
            PageEvent::GraphicsKnown(adapter) => {
                self.capabilities.web_gpu =
                    if adapter.is_some() { WebGpu::Adapter } else { WebGpu::NoAdapter };
                self.preflight.adapter = adapter;
                Vec::new()
            }
            PageEvent::TransportProbed(transport, tried) => {
                self.preflight.on_tried(transport, tried);
                Vec::new()
            }
            PageEvent::ProgramMeasured(n_bytes) => {
                self.preflight.program_bytes = Some(n_bytes);
                if std::mem::take(&mut self.is_program_uncounted) {
                    self.limits.on_received(n_bytes);
                }
                Vec::new()
            }
            PageEvent::PreflightLeft => {
                self.preflight.leave();
                Vec::new()
            }
            PageEvent::Received(bytes) => {
                self.limits.on_received(bytes);
                Vec::new()
            }
            PageEvent::Limits(input) => self.on_limits_input(now_ms, input),
            PageEvent::FromPeer(message) => self.on_peer(now_ms, message),
            PageEvent::PeerLost { reason } => self.on_peer_lost(now_ms, reason),
            PageEvent::ToggleHosting => self.toggle_hosting(now_ms),
            PageEvent::FromHost(message) => self.on_host(message),
            PageEvent::HostLost { reason } => self.on_hosting_over(Some(HostingEnd::Lost(reason))),
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

    fn on_run(&mut self, now_ms: f64, status: RunStatus) -> Vec<PageAction> {
        self.backbone = BackboneStatus::Live;
        self.last_news_ms = Some(now_ms);
        self.run = Some(status.run);
        self.n_parameters = status.n_parameters;
        self.progress = Some(status.progress);
        self.devices = status.devices;
        self.operator_pause = status.paused;
        self.history.replace(status.history);
        self.majority_accuracy = status.majority_accuracy.or(self.majority_accuracy);
        let is_at_work = self.peer != WorkerState::Absent || self.contributing || self.is_unloaded;
        let mut actions: Vec<PageAction> = self.ask_for_codes().into_iter().collect();
        let attempts = self.preflight.begin(&status.addresses, is_at_work);
        if !attempts.is_empty() {
            actions.push(PageAction::ProbeTransports(attempts));
        } else if self.is_unloaded && self.trouble.is_none() {
            // The backbone is back: retry the load that failed.
            actions.extend(self.load());
        }
        actions
    }

    fn on_live(&mut self, now_ms: f64, live: LiveProgress) -> Vec<PageAction> {
        self.backbone = BackboneStatus::Live;
        self.devices = live.devices;
        self.operator_pause = live.paused;
        live.steps.into_iter().for_each(|step| self.history.push(step));
        if let Some(evaluation) = live.evaluation {
            self.history.set_accuracy(evaluation.epoch, evaluation.test_accuracy);
        }
        self.on_progress(now_ms, live.progress)
    }

    fn on_progress(&mut self, now_ms: f64, mut progress: RunProgress) -> Vec<PageAction> {
        // Tabs that go on alone evaluate nothing.
        progress.test_accuracy =
            progress.test_accuracy.or(self.progress.as_ref().and_then(|it| it.test_accuracy));
        if let Some(cost) = self.run_cost() {
            self.hour_estimate.on_progress(now_ms, cost, &progress);
        }
        self.progress = Some(progress);
        self.last_news_ms = Some(now_ms);
        self.ask_again(now_ms, progress.epoch)
    }

    fn load(&mut self) -> Vec<PageAction> {
        self.loads_for_work = false;
        if self.peer != WorkerState::Absent || !self.is_supported() {
            return Vec::new();
        }
        self.trouble = None;
        self.is_unloaded = false;
        self.endurance.reviving = None;
        self.endurance.on_new_worker(&self.contribution);
        self.activity = Activity::Idle;
        self.peer = WorkerState::Loading { bytes: 0, bytes_total: None };
        self.forget_posted();
        self.limits.on_worker();
        let hello = PageToPeer::Hello {
            origin: self.origin.clone(),
            identity: self.identity.clone(),
            device: self.fitting_device(),
            invitation: self.invitation.clone(),
            // The transport that the preflight found to work goes before that of the last time.
            transport: self.preflight.best_transport().or(self.last_transport),
        };
        let look = self.endurance.loading.begin();
        [PageAction::SpawnPeer, PageAction::Post(hello)].into_iter().chain(look).collect()
    }

    fn on_peer(&mut self, now_ms: f64, message: PeerToPage) -> Vec<PageAction> {
        match message {
            PeerToPage::Loading { bytes, bytes_total } => return self.on_loading(bytes, bytes_total),
            PeerToPage::Ready { identity, peer_id, device, device_name } => {
                self.peer_id = Some(peer_id);
                return self.on_ready(now_ms, identity, device, device_name);
            }
            PeerToPage::Event(event) => return self.on_contributor_event(now_ms, event),
            PeerToPage::Receipts { receipts } => return vec![PageAction::Remember(receipts)],
            PeerToPage::Threads { n_threads } => self.n_threads = n_threads,
            PeerToPage::Connected { transport, failures } => {
                self.last_transport = Some(transport);
                self.connection = Some((transport, failures));
                return vec![PageAction::SaveTransport(transport)];
            }
            PeerToPage::PredictedEarlier { request, epoch, probabilities } => {
                self.on_earlier(request, epoch, &probabilities);
            }
            PeerToPage::NoEarlier { request, reason } => self.on_no_earlier(request, reason),
            PeerToPage::Filled { request, epoch, blanks } => {
                self.on_filled(request, FillingAnswer::Filled { epoch, blanks });
            }
            PeerToPage::Continued { request, epoch, text, n_tokens, seconds, is_end } => {
                self.on_continued(request, (epoch, &text), Spoken { n_tokens, seconds, is_end });
            }
            PeerToPage::NotFilled { request, reason } => {
                self.on_filled(request, FillingAnswer::Failed { reason });
            }
            PeerToPage::Told { request, epoch, told } => {
                self.on_row_answer(request, RowAnswer::Told { epoch, told });
            }
            PeerToPage::Recommended { request, epoch, items } => {
                self.on_row_answer(request, RowAnswer::Recommended { epoch, items });
            }
            PeerToPage::NotTold { request, reason } => {
                self.on_row_answer(request, RowAnswer::Failed { reason });
            }
            PeerToPage::OwnFilesRead { request, n_samples, n_broken, first_broken } => {
                let used = FilesProgress::Used { n_samples, n_broken, first_broken };
                return self.on_own_files_checked(now_ms, request, used);
            }
            PeerToPage::NoOwnFiles { request, reason } => {
                return self.on_own_files_checked(now_ms, request, FilesProgress::Refused { reason });
            }
            PeerToPage::Downloaded { bytes } => self.limits.on_received(bytes),
            // Handled by the driver.
            PeerToPage::DialRtc { .. } | PeerToPage::Events { .. } => {}
            // Of another worker.
            PeerToPage::Hosting { .. } | PeerToPage::NotHosting { .. } => {}
            PeerToPage::SelfCheck { device, checks } => self.checks = Some((device, checks)),
            PeerToPage::Failed { message } if matches!(self.peer, WorkerState::Ready { .. }) => {
                self.on_failed(message);
            }
            PeerToPage::Failed { message } => {
                return self.on_peer_lost(now_ms, PeerLoss::of_words(&message));
            }
            PeerToPage::Outdated => return self.on_peer_lost(now_ms, PeerLoss::Outdated),
        }
        Vec::new()
    }

    fn on_contributor_event(&mut self, now_ms: f64, event: ContributorEvent) -> Vec<PageAction> {
        match event {
            // Known from the web server, and sent in batches.
            ContributorEvent::Described(_) | ContributorEvent::Receipt(_) => {}
            ContributorEvent::Activity(activity) => {
                let is_broken = matches!(activity, Activity::NotAdmitted { .. } | Activity::Broken { .. });
                if let Activity::Reconnecting { reason: Interruption::OlderThanRun(versions), .. }
                | Activity::Broken { reason: Interruption::OlderThanRun(versions) } = &activity
                {
                    let actions = self.on_older_here(versions, is_broken);
                    if !actions.is_empty() {
                        self.activity = activity;
                        return actions;
                    }
                }
                if is_broken {
                    self.is_start_posted = false;
                    // A retry cannot fix it; the visitor may press the button again.
                    self.broke_off |= self.contributing;
                    self.contributing = false;
                }
                if is_broken || activity == Activity::Idle {
                    self.experts = None;
                }
                self.activity = activity;
            }
            ContributorEvent::Experts(seen) => self.experts = Some(seen),
            ContributorEvent::Progress(progress) => return self.on_progress(now_ms, progress),
            ContributorEvent::Contribution(contribution) => {
                let actions = self.on_work(now_ms, &contribution);
                self.contribution = self.endurance.with_before(&contribution);
                return actions;
            }
            ContributorEvent::Prediction { request, epoch, probabilities } => {
                self.on_prediction(request, epoch, &probabilities);
            }
            ContributorEvent::Gallery { images, labels } => self.on_gallery(Gallery { images, labels }),
            ContributorEvent::NoGallery { reason } => self.on_no_gallery(reason),
            ContributorEvent::DeviceChanged { device, device_name, reason } => {
                self.peer = WorkerState::Ready { device, device_name };
                self.limits.on_device();
                let is_lost = matches!(reason, DeviceChange::Lost { .. });
                self.device_change = Some(reason);
                if is_lost {
                    self.notice = Some(GRAPHICS_LOST.to_owned());
                    if self.device_choice == DeviceChoice::Auto {
                        return self.on_graphics_lost().into_iter().collect();
                    }
                }
            }
            ContributorEvent::Refused { refusal } => self.on_refused(&refusal),
            ContributorEvent::Failed { message } => self.on_failed(message),
        }
        Vec::new()
    }

    /// What a question waits for is said beside it, all else in the card.
    fn on_failed(&mut self, message: String) {
        if let Err(message) = self.fail_question(message) {
            self.notice = Some(message);
        }
    }

    fn on_ready(
        &mut self,
        now_ms: f64,
        identity: Vec<u8>,
        device: DeviceKind,
        device_name: String,
    ) -> Vec<PageAction> {
        self.peer = WorkerState::Ready { device, device_name };
        self.n_threads = 1;
        self.identity = Some(identity.clone());
        let mut actions = vec![PageAction::KeepIdentity(identity)];
        if self.giving.name.is_some() {
            actions.push(self.post_name());
        }
        actions.extend(self.steer());
        actions.extend(self.asked_once_ready(now_ms));
        actions
    }
}

#[cfg(test)]
#[path = "state/tests.rs"]
mod tests;
