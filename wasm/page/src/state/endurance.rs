//! What keeps a tab at work overnight: a worker that crashed is started anew, a few times, and computes with less at
//! a time where it ran out of memory; a graphics processor that was lost is tried again; whoever was asleep or
//! offline goes on at once. Pure.

use std::collections::VecDeque;

use barnraise_messages::{Activity, Contribution, DeviceChange, DeviceChoice, PageToPeer};
use barnraise_protocol::api::RefusalCount;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::run::OLDER_HERE;

use super::{Action, Backbone, Event, GRAPHICS_LOST, Page, Peer};
use crate::format;

/// Pauses before a worker that crashed is started anew, one after the other.
const REVIVE_AFTER_MS: [u32; 2] = [2_000, 20_000];
/// Crashes before that long ago are forgiven.
const CRASHES_WITHIN_MS: f64 = 600_000.0;
/// Pauses before a graphics processor that was lost is tried again.
const TRY_GRAPHICS_AFTER_MS: [u32; 2] = [180_000, 900_000];
/// Each time that a worker ran out of memory, its passes have so many times fewer samples.
const LEANER: u32 = 4;
/// What a browser says of a program that stopped itself, in lower case.
const TRAP: &str = "runtimeerror: unreachable";
/// The backbone says something every second: a page that heard nothing for so long has lost it.
const HEARD_WITHIN_MS: f64 = 5_000.0;

/// What a page knows of its own troubles.
#[derive(Debug, Default)]
pub(crate) struct Endurance {
    /// When the worker crashed, of late.
    crashes_ms: VecDeque<f64>,
    /// Why the worker is gone that is about to be started anew.
    pub(crate) reviving: Option<String>,
    /// The device has no network.
    pub(crate) is_offline: bool,
    /// The server has another page than this one.
    pub(crate) has_new_version: bool,
    /// What the workers before this one gave.
    before: Contribution,
    n_graphics_tries: usize,
    /// How often a worker of this page ran out of memory: what the device has grows as little as what the run wants.
    pub(super) n_memory_crashes: u32,
    /// Its graphics processor was given up, though the visitor left the choice to the tab.
    is_without_graphics: bool,
}

impl Endurance {
    /// Notes a crash. After which pause to go on; `None` where it happens too often.
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

    /// A worker starts counting from nothing.
    pub(super) fn on_new_worker(&mut self, so_far: &Contribution) {
        self.before = Contribution { samples_per_second: 0.0, ..so_far.clone() };
    }

    /// What this tab has given, all its workers together.
    pub(super) fn with_before(&self, now: &Contribution) -> Contribution {
        let before = &self.before;
        Contribution {
            n_samples_accepted: before.n_samples_accepted + now.n_samples_accepted,
            n_samples_computed: before.n_samples_computed + now.n_samples_computed,
            n_accepted: before.n_accepted + now.n_accepted,
            n_refused: before.n_refused + now.n_refused,
            refusals: together(&before.refusals, &now.refusals),
            last_refusal: now.last_refusal.clone().or_else(|| before.last_refusal.clone()),
            bytes_up: before.bytes_up + now.bytes_up,
            bytes_down: before.bytes_down + now.bytes_down,
            ..now.clone()
        }
    }
}

/// By reason. Their number is bounded, as that of the reasons is.
fn together(before: &[RefusalCount], now: &[RefusalCount]) -> Vec<RefusalCount> {
    let mut counts = before.to_vec();
    for refusal in now {
        match counts.iter_mut().find(|count| count.reason == refusal.reason) {
            Some(count) => count.n += refusal.n,
            None => counts.push(refusal.clone()),
        }
    }
    counts
}

impl Page {
    /// The worker is gone.
    pub(super) fn on_peer_lost(&mut self, now_ms: f64, reason: String) -> Vec<Action> {
        let lost = std::mem::replace(&mut self.peer, Peer::Absent);
        self.forget_told();
        // What the peer said with its last breath tells more than what the browser makes of it.
        let reason = match std::mem::replace(&mut self.activity, Activity::Idle) {
            Activity::Broken { reason } => reason,
            // A panic says what it is; memory that is not granted stops the program without a word.
            _ if reason.to_ascii_lowercase().contains(TRAP) => format!("{reason}, probably out of memory"),
            _ => reason,
        };
        if self.contributing && is_of_version(&reason) {
            // It goes on in the new page, as after any other reload.
            self.endurance.reviving = Some(reason);
            return vec![Action::EndPeer, Action::Reload];
        }
        let mut actions = vec![Action::EndPeer];
        let pause = match lost {
            Peer::Ready { .. } => self.endurance.on_crash(now_ms),
            Peer::Absent | Peer::Loading { .. } => None,
        };
        // A device that is short of memory goes on computing, as long as it can do so in smaller pieces.
        let was_ready = matches!(lost, Peer::Ready { .. });
        let is_leaner = was_ready && is_of_memory(&reason) && self.make_leaner();
        let on_gpu = matches!(lost, Peer::Ready { device: DeviceKind::BrowserWebGpu, .. });
        if on_gpu && !is_leaner && pause.is_some() && self.device_choice == DeviceChoice::Auto {
            // A driver that takes the whole worker down does so again: go on with the CPU.
            self.device_choice = DeviceChoice::Cpu;
            self.contributing |= self.broke_off;
            self.notice = Some(GRAPHICS_LOST.to_owned());
            self.device_change = Some(DeviceChange::Lost { detail: reason });
            actions.extend(self.load());
            actions.extend(self.on_graphics_lost());
            return actions;
        }
        let is_at_work = self.contributing || self.broke_off;
        if let Some(delay_ms) = pause.filter(|_| is_at_work) {
            self.contributing = true;
            self.broke_off = false;
            self.endurance.reviving = Some(reason);
            actions.push(Action::ReviveIn { delay_ms });
            return actions;
        }
        self.endurance.reviving = None;
        self.is_unloaded = matches!(lost, Peer::Loading { .. });
        if !self.is_unloaded || !matches!(self.backbone, Backbone::Lost { .. }) {
            self.broke_off |= self.contributing;
            self.contributing = false;
            self.notice = None;
            self.trouble = Some(reason);
        }
        actions
    }

    /// The device has too little memory for passes such as those before. Whether there are smaller ones.
    fn make_leaner(&mut self) -> bool {
        let before = self.pass_samples_max();
        self.endurance.n_memory_crashes = self.endurance.n_memory_crashes.saturating_add(1);
        let now = self.pass_samples_max();
        if let Some((run, n_samples)) = self.run.as_ref().zip(now) {
            self.notice = Some(format!(
                "This device ran out of memory. It goes on with {} at a time, where the run has {}.",
                format::counted(n_samples.into(), "sample", "samples"),
                format::count(run.micro_batch_size.into()),
            ));
        }
        now != before
    }

    /// Most samples of a pass once the worker ran out of memory, where passes of the run may be smaller than it says.
    pub(crate) fn pass_samples_max(&self) -> Option<u32> {
        let run = self.run.as_ref().filter(|run| run.is_cuttable())?;
        let fewer = LEANER.saturating_pow(self.endurance.n_memory_crashes);
        let most = (run.micro_batch_size / fewer).max(1);
        (most < run.micro_batch_size).then_some(most)
    }

    /// The pause after a crash is over: what may work is loaded now.
    pub(super) fn revive(&mut self) -> Vec<Action> {
        self.endurance.reviving = None;
        Vec::new()
    }

    /// The tab chose its graphics processor itself, and lost it: it is tried again later, a few times.
    pub(super) fn on_graphics_lost(&mut self) -> Option<Action> {
        let delay_ms = *TRY_GRAPHICS_AFTER_MS.get(self.endurance.n_graphics_tries)?;
        self.endurance.n_graphics_tries += 1;
        self.endurance.is_without_graphics = true;
        Some(Action::TryGraphicsIn { delay_ms })
    }

    /// A browser opens a lost processor in a new worker only. What was accepted is kept; a gradient that was
    /// being summed is not.
    pub(super) fn try_graphics(&mut self) -> Vec<Action> {
        let on_cpu = matches!(self.peer, Peer::Ready { device: DeviceKind::BrowserCpu, .. });
        if !on_cpu || !self.contributing || !std::mem::take(&mut self.endurance.is_without_graphics) {
            return Vec::new();
        }
        self.device_choice = DeviceChoice::Auto;
        self.device_change = None;
        self.notice = None;
        self.peer = Peer::Absent;
        self.forget_told();
        // Another one is loaded where that is decided, and as soon as it may work.
        vec![Action::EndPeer]
    }

    /// The network came or went.
    pub(super) fn on_network(&mut self, now_ms: f64, is_online: bool) -> Vec<Action> {
        self.endurance.is_offline = !is_online;
        match self.backbone {
            _ if is_online => self.wake(now_ms),
            // A stream may hang for minutes on a network that is gone.
            Backbone::Live => vec![Action::AskAgain],
            Backbone::Asking | Backbone::Lost { .. } => Vec::new(),
        }
    }

    /// The device was asleep, the tab was hidden or frozen, or the network is another one: what waits for a time
    /// to pass need not, and what is connected may be so no more.
    pub(super) fn wake(&mut self, now_ms: f64) -> Vec<Action> {
        let mut actions = Vec::new();
        let is_quiet = self.heard_at_ms.is_none_or(|at| now_ms - at > HEARD_WITHIN_MS);
        if is_quiet || !matches!(self.backbone, Backbone::Live) {
            actions.push(Action::AskAgain);
        }
        if matches!(self.peer, Peer::Ready { .. }) {
            actions.push(Action::Post(PageToPeer::Woke));
        }
        actions
    }

    /// The server has another page, or this one is no longer looked at: while the tab does nothing and nobody
    /// looks, it is loaded again.
    pub(super) fn renew(&self, is_hidden: bool) -> Vec<Action> {
        let is_at_rest = !self.contributing && self.peer == Peer::Absent && self.question.is_none();
        let may_reload = is_hidden && is_at_rest && self.endurance.has_new_version;
        if may_reload { vec![Action::Reload] } else { Vec::new() }
    }

    /// The run speaks a newer version than this page: the new one is offered, and loaded at once where the tab would
    /// otherwise stand still. It goes on there, as after any other reload, a few times at most.
    pub(super) fn on_older_here(&mut self, reason: &str, is_broken: bool) -> Vec<Action> {
        self.endurance.has_new_version = true;
        if !is_broken || !self.contributing {
            return Vec::new();
        }
        self.peer = Peer::Absent;
        self.forget_told();
        self.endurance.reviving = Some(reason.to_owned());
        vec![Action::EndPeer, Action::Reload]
    }

    /// What concerns the tab and not the run.
    pub(super) fn on_tab_event(&mut self, now_ms: f64, event: &Event) -> Vec<Action> {
        match *event {
            Event::Revive => self.revive(),
            Event::TryGraphics => self.try_graphics(),
            Event::TakeLoad => self.on_take_load(),
            Event::Woke => self.wake(now_ms),
            Event::Network { is_online } => self.on_network(now_ms, is_online),
            Event::NewVersion { is_hidden } => {
                self.endurance.has_new_version = true;
                self.renew(is_hidden)
            }
            Event::Hidden => self.renew(true),
            Event::Reload => vec![Action::Reload],
            _ => Vec::new(),
        }
    }
}

/// Whether these are the words of `worker.js` for a server that has another build of the program, or of the worker for
/// a run that speaks a newer version than it does.
pub(crate) fn is_of_version(reason: &str) -> bool {
    reason.contains("newer version of this page") || reason.contains(OLDER_HERE)
}

/// Whether a program that ended with these words had too little memory.
pub(crate) fn is_of_memory(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    ["out of memory", "memory allocation", "could not allocate", "allocation failed", "rangeerror"]
        .iter()
        .any(|words| reason.contains(words))
}

#[cfg(test)]
#[path = "endurance/tests.rs"]
mod tests;
