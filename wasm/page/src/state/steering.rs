//! Starts, stops and paces the worker, as the visitor wants and the resource limits allow. The leading tab decides; a
//! following tab shows the leader's pause and forwards its visitor's input.

use barnraise_messages::{Contribution, DeviceChoice, PacingSettings, PageToPeer};

use super::{PageAction, PageState, TabRole, WorkerState};
use crate::limits::{Input, LimitsRequest, PauseReason};

impl PageState {
    /// Reason of the pause, while the visitor wants to contribute.
    pub(crate) fn pause(&self) -> Option<PauseReason> {
        let reason = match self.role() {
            TabRole::Following => self.leader_pause(),
            TabRole::Alone | TabRole::Asking | TabRole::Leading => {
                self.limits.reason().or(self.is_elsewhere().then_some(PauseReason::Elsewhere))
            }
        };
        reason.filter(|_| self.contributing)
    }

    pub(super) fn on_limits_input(&mut self, now_ms: f64, input: Input) -> Vec<PageAction> {
        act(self.limits.on_input(now_ms, input, self.contributing || self.hosting.is_at_work()))
    }

    /// The visitor pressed Start.
    pub(super) fn start(&mut self, now_ms: f64) -> Vec<PageAction> {
        if !self.is_supported() {
            return Vec::new();
        }
        if let Some(notice) = self.unusable_files() {
            self.notice = Some(notice);
            return Vec::new();
        }
        self.contributing = true;
        self.broke_off = false;
        self.started_at_ms = Some(now_ms);
        self.notice = None;
        // Start also retries after a failure.
        self.trouble = None;
        self.is_unloaded = false;
        self.on_wanted(now_ms)
    }

    /// Resumes after a reload.
    pub(super) fn go_on(&mut self, now_ms: f64, is_paused: bool) -> Vec<PageAction> {
        let mut actions = self.start(now_ms);
        if is_paused && self.contributing {
            actions.extend(self.on_limits_input(now_ms, Input::TogglePause));
        }
        actions
    }

    /// The visitor pressed Stop: finished work is delivered.
    pub(super) fn stop(&mut self, now_ms: f64) -> Vec<PageAction> {
        self.contributing = false;
        self.broke_off = false;
        self.is_unloaded = false;
        self.endurance.reviving = None;
        self.on_wanted(now_ms)
    }

    /// The visitor has started or stopped.
    fn on_wanted(&mut self, now_ms: f64) -> Vec<PageAction> {
        act(self.limits.on_wanted(now_ms, self.contributing || self.hosting.is_at_work()))
    }

    /// The worker reported its contribution.
    pub(super) fn on_work(&mut self, now_ms: f64, given: &Contribution) -> Vec<PageAction> {
        let bytes = given.bytes_up.saturating_add(given.bytes_down);
        let is_measured = self.contributing && self.limits.reason().is_none() && given.n_accepted > 0;
        if is_measured {
            self.meter.on_bytes(now_ms, bytes);
        } else {
            self.meter.pause();
        }
        let written = self.limits.on_work(now_ms, bytes, given.pass);
        act(written.into_iter().chain(self.limits.write_rest(now_ms)))
    }

    /// Progress of loading the training program.
    pub(super) fn on_loading(&mut self, bytes: u64, bytes_total: Option<u64>) -> Vec<PageAction> {
        let WorkerState::Loading { bytes: before, .. } = self.peer else { return Vec::new() };
        self.peer = WorkerState::Loading { bytes, bytes_total };
        self.count_program(before, bytes, bytes_total)
    }

    /// Counts the training program for the day when it begins to arrive: after `before` bytes there are `bytes`.
    pub(super) fn count_program(
        &mut self,
        before: u64,
        bytes: u64,
        bytes_total: Option<u64>,
    ) -> Vec<PageAction> {
        // A cached program is complete at once, and needs no data.
        if before > 0 || bytes_total.is_none_or(|total| bytes >= total) {
            return Vec::new();
        }
        match self.preflight.program_bytes {
            Some(n_bytes) => self.limits.on_received(n_bytes),
            // Only the server knows the compressed size, about a tenth.
            None => {
                self.is_program_uncounted = true;
                return vec![PageAction::ProbeTransports(Vec::new())];
            }
        }
        Vec::new()
    }

    /// The worker was replaced or ended.
    pub(super) fn forget_posted(&mut self) {
        self.is_start_posted = false;
        self.posted_pacing = PacingSettings::default();
        self.forget_posted_own();
        self.forget_asking();
    }

    /// Sends the worker the changes of its task. A worker that may not compute is not loaded.
    pub(super) fn steer(&mut self) -> Vec<PageAction> {
        if self.role() == TabRole::Following {
            return Vec::new();
        }
        let may_work = self.contributing && self.limits.reason().is_none() && self.may_compute();
        // Data of the visitor's own counts from a start on.
        let awaits_own = !self.is_start_posted && (self.reads_own() || self.must_check_own_files());
        let wanted = may_work.then(|| self.wanted_pacing());
        match (&self.peer, wanted) {
            (WorkerState::Ready { .. }, Some(_)) if awaits_own => self.post_own_files().into_iter().collect(),
            (WorkerState::Ready { .. }, Some(pacing)) => {
                let is_other = self.posted_pacing != pacing;
                let is_started = std::mem::replace(&mut self.is_start_posted, true);
                self.posted_pacing = pacing;
                let pacing = is_other.then_some(PageToPeer::Pacing(pacing));
                let start = (!is_started).then_some(PageToPeer::Start);
                let own = if is_started { None } else { self.post_own_pictures() };
                let posts = pacing.into_iter().chain(start).map(PageAction::Post);
                own.into_iter().chain(posts).collect()
            }
            (WorkerState::Ready { .. }, None) if std::mem::take(&mut self.is_start_posted) => {
                vec![PageAction::Post(PageToPeer::Stop)]
            }
            (WorkerState::Loading { .. }, None) if self.loads_in_vain() => {
                self.peer = WorkerState::Absent;
                self.forget_posted();
                vec![PageAction::EndPeer]
            }
            // After a failed load it waits for the backbone, and after a crash for the delay.
            (WorkerState::Absent, Some(_))
                if self.trouble.is_none() && !self.is_unloaded && self.endurance.reviving.is_none() =>
            {
                let actions = self.load();
                self.loads_for_work = true;
                actions
            }
            _ => Vec::new(),
        }
    }

    /// Pacing by the resource limits, with batches that fit the memory.
    fn wanted_pacing(&self) -> PacingSettings {
        PacingSettings { pass_samples_max: self.pass_samples_max(), ..self.limits.pacing() }
    }

    /// The device to use: the CPU if the choice is free and the model is too large for the graphics processor.
    pub(super) fn fitting_device(&self) -> DeviceChoice {
        let is_too_small = self.preflight.lacks(self.n_parameters).is_some();
        match self.device_choice {
            DeviceChoice::Auto if is_too_small => DeviceChoice::Cpu,
            choice => choice,
        }
    }

    /// Whether to abort loading the training program, which is needed for contributing only, over a link that may not be
    /// used now. It is loaded again when it may.
    fn loads_in_vain(&self) -> bool {
        let WorkerState::Loading { bytes, bytes_total: Some(total) } = self.peer else { return false };
        let spares_data = matches!(
            self.pause(),
            Some(PauseReason::Metered | PauseReason::SavesData | PauseReason::Cap { .. })
        );
        bytes < total && spares_data && self.loads_for_work
    }
}

fn act(requests: impl IntoIterator<Item = LimitsRequest>) -> Vec<PageAction> {
    requests.into_iter().map(PageAction::Limits).collect()
}
