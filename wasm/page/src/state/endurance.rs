//! Fault tolerance of a tab. A crashed worker is restarted a few times, with smaller batches if it ran out of memory, and so is
//! one whose program does not come. A lost graphics processor is tried again later. A device that was asleep or offline reconnects
//! at once. Pure.

use std::collections::VecDeque;

use barnraise_messages::{Activity, Contribution, DeviceChange, DeviceChoice, PageToPeer};
use barnraise_protocol::api::RefusalCount;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::error::OlderThanRun;

use super::{
    BackboneStatus, GRAPHICS_LOST, PageAction, PageEvent, PageState, PeerLoss, TabRole, WorkerState,
};
use crate::format;

/// Delays before the first and the second restart of a crashed worker.
const REVIVE_AFTER_MS: [u32; 2] = [2_000, 20_000];
/// Older crashes do not count.
const CRASHES_WITHIN_MS: f64 = 600_000.0;
/// Delays before a lost graphics processor is tried again.
const TRY_GRAPHICS_AFTER_MS: [u32; 2] = [180_000, 900_000];
/// Factor by which each out-of-memory crash reduces the samples of a pass.
const BATCH_SHRINK_FACTOR: u32 = 4;
/// Interval at which a worker that loads is looked at.
const LOOK_AFTER_MS: u32 = 10_000;
/// Looks at which nothing more has come, after which the worker is replaced: its script, the browser's cache or a connection hangs.
const LOOKS_MAX: u32 = 3;
/// Workers that are replaced so, one after the other.
const STALLS_MAX: u32 = 3;
/// Longest silence of the backbone, which sends an event every second, before the connection counts as lost.
const HEARD_WITHIN_MS: f64 = 5_000.0;

/// Failures of this page.
#[derive(Debug, Default)]
pub(crate) struct Endurance {
    /// Times of recent crashes of the worker.
    crashes_ms: VecDeque<f64>,
    /// Why the worker crashed; set until it is restarted.
    pub(crate) reviving: Option<PeerLoss>,
    pub(super) loading: LoadingWatch,
    /// The device has no network.
    pub(crate) is_offline: bool,
    /// The server has a newer build of the page.
    pub(crate) has_new_version: bool,
    /// Contribution of the previous workers of this page.
    before: Contribution,
    n_graphics_tries: usize,
    /// Out-of-memory crashes of this page; never reset, as neither the device nor the run changes.
    pub(super) n_memory_crashes: u32,
    /// The graphics processor was lost, and the visitor left the choice to the tab.
    is_without_graphics: bool,
}

/// Whether the training program comes. Looks are counted, and not the time: a tab that was frozen has had none.
#[derive(Debug, Default)]
pub(super) struct LoadingWatch {
    is_open: bool,
    n_bytes: u64,
    /// Since those came.
    n_looks: u32,
    n_stalls: u32,
}

impl LoadingWatch {
    /// A worker begins to load.
    pub(super) fn begin(&mut self) -> Option<PageAction> {
        (self.n_bytes, self.n_looks) = (0, 0);
        (!std::mem::replace(&mut self.is_open, true))
            .then_some(PageAction::LookAtLoadingIn { delay_ms: LOOK_AFTER_MS })
    }
}

impl Endurance {
    /// Records a crash; returns the delay before a restart, or `None` after too many.
    fn on_crash(&mut self, now_ms: f64) -> Option<u32> {
        while self.crashes_ms.front().is_some_and(|at| now_ms - at > CRASHES_WITHIN_MS) {
            self.crashes_ms.pop_front();
        }
        let pause = REVIVE_AFTER_MS.get(self.crashes_ms.len()).copied();
        if pause.is_some() {
            self.crashes_ms.push_back(now_ms);
        }
        pause
    }

    /// A new worker counts from zero.
    pub(super) fn on_new_worker(&mut self, so_far: &Contribution) {
        self.before = Contribution { samples_per_second: 0.0, ..so_far.clone() };
    }

    /// Contribution of all workers of this tab.
    pub(super) fn with_before(&self, now: &Contribution) -> Contribution {
        let before = &self.before;
        Contribution {
            n_samples_accepted: before.n_samples_accepted + now.n_samples_accepted,
            n_samples_computed: before.n_samples_computed + now.n_samples_computed,
            n_accepted: before.n_accepted + now.n_accepted,
            n_samples_unanswered: before.n_samples_unanswered + now.n_samples_unanswered,
            n_refused: before.n_refused + now.n_refused,
            refusals: added(&before.refusals, &now.refusals),
            last_refusal: now.last_refusal.clone().or_else(|| before.last_refusal.clone()),
            bytes_up: before.bytes_up + now.bytes_up,
            bytes_down: before.bytes_down + now.bytes_down,
            ..now.clone()
        }
    }
}

/// Adds counts by reason. The number of reasons is bounded.
fn added(before: &[RefusalCount], now: &[RefusalCount]) -> Vec<RefusalCount> {
    let mut counts = before.to_vec();
    for refusal in now {
        match counts.iter_mut().find(|count| count.reason == refusal.reason) {
            Some(count) => count.n += refusal.n,
            None => counts.push(refusal.clone()),
        }
    }
    counts
}

impl PageState {
    /// The worker is gone.
    pub(super) fn on_peer_lost(&mut self, now_ms: f64, reason: PeerLoss) -> Vec<PageAction> {
        let lost = std::mem::replace(&mut self.peer, WorkerState::Absent);
        self.forget_posted();
        self.experts = None;
        // The worker's last message is more specific than the browser's.
        let reason = match std::mem::replace(&mut self.activity, Activity::Idle) {
            Activity::Broken { reason } => PeerLoss::of_interruption(reason),
            _ => reason,
        };
        if self.contributing && reason.is_of_version() {
            // The reloaded page resumes.
            self.endurance.reviving = Some(reason);
            return vec![PageAction::EndPeer, PageAction::Reload];
        }
        let mut actions = vec![PageAction::EndPeer];
        let pause = match lost {
            WorkerState::Ready { .. } => self.endurance.on_crash(now_ms),
            WorkerState::Absent | WorkerState::Loading { .. } => None,
        };
        // A device with little memory keeps its processor, as long as batches can be smaller.
        let was_ready = matches!(lost, WorkerState::Ready { .. });
        let is_leaner = was_ready && reason.is_of_memory() && self.shrink_batches();
        let on_gpu = matches!(lost, WorkerState::Ready { device: DeviceKind::BrowserWebGpu, .. });
        if on_gpu && !is_leaner && pause.is_some() && self.device_choice == DeviceChoice::Auto {
            // A driver that crashed the worker would crash it again: use the CPU.
            self.device_choice = DeviceChoice::Cpu;
            self.contributing |= self.broke_off;
            self.notice = Some(GRAPHICS_LOST.to_owned());
            self.device_change = Some(DeviceChange::Lost { detail: reason.to_string() });
            actions.extend(self.load());
            actions.extend(self.on_graphics_lost());
            return actions;
        }
        let is_at_work = self.contributing || self.broke_off;
        if let Some(delay_ms) = pause.filter(|_| is_at_work) {
            self.contributing = true;
            self.broke_off = false;
            self.endurance.reviving = Some(reason);
            actions.push(PageAction::ReviveIn { delay_ms });
            return actions;
        }
        self.endurance.reviving = None;
        self.is_unloaded = matches!(lost, WorkerState::Loading { .. });
        if !self.is_unloaded || !matches!(self.backbone, BackboneStatus::Lost { .. }) {
            self.broke_off |= self.contributing;
            self.contributing = false;
            self.notice = None;
            self.trouble = Some(reason);
        }
        actions
    }

    /// Reduces the samples of a pass after an out-of-memory crash; returns whether that is possible.
    fn shrink_batches(&mut self) -> bool {
        let before = self.pass_samples_max();
        self.endurance.n_memory_crashes = self.endurance.n_memory_crashes.saturating_add(1);
        let now = self.pass_samples_max();
        if let Some((run, n_samples)) = self.run.as_ref().zip(now) {
            self.notice = Some(format!(
                "This device ran out of memory. It goes on with {} at a time, where the run has {}.",
                format::counted(n_samples.into(), "sample", "samples"),
                format::count(run.scheme.micro_batch_size().into()),
            ));
        }
        now != before
    }

    /// Most samples of a pass after out-of-memory crashes, if the run's batches can be cut.
    pub(crate) fn pass_samples_max(&self) -> Option<u32> {
        let run = self.run.as_ref().filter(|run| run.is_cuttable())?;
        let fewer = BATCH_SHRINK_FACTOR.saturating_pow(self.endurance.n_memory_crashes);
        let most = (run.scheme.micro_batch_size() / fewer).max(1);
        (most < run.scheme.micro_batch_size()).then_some(most)
    }

    /// The delay after a crash is over.
    pub(super) fn revive(&mut self) -> Vec<PageAction> {
        self.endurance.reviving = None;
        Vec::new()
    }

    /// Replaces a worker whose program does not come, a few times.
    fn look_at_loading(&mut self, now_ms: f64) -> Vec<PageAction> {
        let watch = &mut self.endurance.loading;
        let WorkerState::Loading { bytes, bytes_total } = self.peer else {
            *watch = LoadingWatch::default();
            return Vec::new();
        };
        let again = PageAction::LookAtLoadingIn { delay_ms: LOOK_AFTER_MS };
        // Where all is here, the device is at work.
        let comes = bytes != watch.n_bytes || bytes_total == Some(bytes) || self.endurance.is_offline;
        watch.n_bytes = bytes;
        watch.n_looks = if comes { 0 } else { watch.n_looks + 1 };
        if watch.n_looks < LOOKS_MAX {
            return vec![again];
        }
        if watch.n_stalls >= STALLS_MAX {
            *watch = LoadingWatch::default();
            return self.on_peer_lost(now_ms, PeerLoss::of_words("the training program does not arrive"));
        }
        watch.n_stalls += 1;
        let for_work = self.loads_for_work;
        self.peer = WorkerState::Absent;
        let mut actions = vec![PageAction::EndPeer];
        actions.extend(self.load());
        self.loads_for_work = for_work;
        actions.push(again);
        actions
    }

    /// Schedules another attempt with a lost graphics processor, a few times.
    pub(super) fn on_graphics_lost(&mut self) -> Option<PageAction> {
        let delay_ms = *TRY_GRAPHICS_AFTER_MS.get(self.endurance.n_graphics_tries)?;
        self.endurance.n_graphics_tries += 1;
        self.endurance.is_without_graphics = true;
        Some(PageAction::TryGraphicsIn { delay_ms })
    }

    /// Restarts the worker, as a browser reopens a lost processor in a new worker only. The gradient in progress is
    /// lost.
    pub(super) fn try_graphics(&mut self) -> Vec<PageAction> {
        let on_cpu = matches!(self.peer, WorkerState::Ready { device: DeviceKind::BrowserCpu, .. });
        if !on_cpu || !self.contributing || !std::mem::take(&mut self.endurance.is_without_graphics) {
            return Vec::new();
        }
        self.device_choice = DeviceChoice::Auto;
        self.device_change = None;
        self.notice = None;
        self.peer = WorkerState::Absent;
        self.forget_posted();
        // `steer` loads another worker once it may compute.
        vec![PageAction::EndPeer]
    }

    /// The network came or went.
    pub(super) fn on_network(&mut self, now_ms: f64, is_online: bool) -> Vec<PageAction> {
        self.endurance.is_offline = !is_online;
        match self.backbone {
            _ if is_online => self.wake(now_ms),
            // Without a network a stream may hang for minutes.
            BackboneStatus::Live => vec![PageAction::AskAgain],
            BackboneStatus::Asking | BackboneStatus::Lost { .. } => Vec::new(),
        }
    }

    /// The device was asleep, the tab was hidden or frozen, or the network changed: retries are due at once, and
    /// connections may be dead.
    pub(super) fn wake(&mut self, now_ms: f64) -> Vec<PageAction> {
        let mut actions = Vec::new();
        let is_quiet = self.last_news_ms.is_none_or(|at| now_ms - at > HEARD_WITHIN_MS);
        if is_quiet || !matches!(self.backbone, BackboneStatus::Live) {
            actions.push(PageAction::AskAgain);
        }
        if matches!(self.peer, WorkerState::Ready { .. }) {
            actions.push(PageAction::Post(PageToPeer::Woke));
        }
        actions
    }

    /// Reloads the page for a new build, while the tab is idle and hidden.
    pub(super) fn renew(&self, is_hidden: bool) -> Vec<PageAction> {
        let is_at_work = self.contributing || self.hosting.is_at_work();
        let is_at_rest = !is_at_work && self.peer == WorkerState::Absent && self.question.is_none();
        let may_reload = is_hidden && is_at_rest && self.endurance.has_new_version;
        if may_reload { vec![PageAction::Reload] } else { Vec::new() }
    }

    /// The run requires a newer build than this page. Offers a reload, and reloads at once if the tab could not
    /// contribute otherwise. The reloaded page resumes, a few times at most.
    pub(super) fn on_older_here(&mut self, versions: &OlderThanRun, is_broken: bool) -> Vec<PageAction> {
        self.endurance.has_new_version = true;
        if !is_broken || !self.contributing {
            return Vec::new();
        }
        self.peer = WorkerState::Absent;
        self.forget_posted();
        self.endurance.reviving = Some(PeerLoss::OlderThanRun(versions.clone()));
        vec![PageAction::EndPeer, PageAction::Reload]
    }

    /// Events of the tab itself.
    pub(super) fn on_tab_event(&mut self, now_ms: f64, event: &PageEvent) -> Vec<PageAction> {
        match *event {
            PageEvent::Revive => self.revive(),
            PageEvent::LookAtLoading if self.role() == TabRole::Following => {
                // The tab that has the worker looks.
                self.endurance.loading = LoadingWatch::default();
                Vec::new()
            }
            PageEvent::LookAtLoading => self.look_at_loading(now_ms),
            PageEvent::TryGraphics => self.try_graphics(),
            PageEvent::TakeLoad => self.on_take_load(),
            PageEvent::Woke => self.wake(now_ms),
            PageEvent::Network { is_online } => self.on_network(now_ms, is_online),
            PageEvent::NewVersion { is_hidden } => {
                self.endurance.has_new_version = true;
                self.renew(is_hidden)
            }
            PageEvent::Hidden => self.renew(true),
            PageEvent::Reload => vec![PageAction::Reload],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
#[path = "endurance/tests.rs"]
mod tests;
