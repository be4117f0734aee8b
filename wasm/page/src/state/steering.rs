//! What the worker is told follows from what the visitor wants and what the conductor allows: that of the tab that has
//! the worker. A tab that follows shows why that one pauses, and passes its visitor's wishes on.

use barnraise_messages::{Conduct, Contribution, DeviceChoice, PageToPeer};

use super::tabs::Role;
use super::{Action, Page, Peer};
use crate::conduct::{Input, Reason, Request};

impl Page {
    /// Why the tab pauses though the visitor wants it to contribute, if it does.
    pub(crate) fn pause(&self) -> Option<Reason> {
        let reason = match self.role() {
            Role::Following => self.leader_pause(),
            Role::Alone | Role::Asking | Role::Leading => {
                self.conductor.reason().or(self.is_elsewhere().then_some(Reason::Elsewhere))
            }
        };
        reason.filter(|_| self.contributing)
    }

    pub(super) fn on_conduct(&mut self, now_ms: f64, input: Input) -> Vec<Action> {
        act(self.conductor.on_input(now_ms, input, self.contributing))
    }

    /// The button was pressed.
    pub(super) fn start(&mut self, now_ms: f64) -> Vec<Action> {
        if !self.is_supported() {
            return Vec::new();
        }
        self.contributing = true;
        self.broke_off = false;
        self.started_at_ms = Some(now_ms);
        self.notice = None;
        // It is the way to try again, too.
        self.trouble = None;
        self.is_unloaded = false;
        self.on_wanted(now_ms)
    }

    /// The tab was cut off while it contributed.
    pub(super) fn go_on(&mut self, now_ms: f64, is_paused: bool) -> Vec<Action> {
        let mut actions = self.start(now_ms);
        if is_paused && self.contributing {
            actions.extend(self.on_conduct(now_ms, Input::TogglePause));
        }
        actions
    }

    /// It was pressed again: what is finished is handed in.
    pub(super) fn stop(&mut self, now_ms: f64) -> Vec<Action> {
        self.contributing = false;
        self.broke_off = false;
        self.is_unloaded = false;
        self.endurance.reviving = None;
        self.on_wanted(now_ms)
    }

    /// The visitor has begun or ended.
    fn on_wanted(&mut self, now_ms: f64) -> Vec<Action> {
        act(self.conductor.on_wanted(now_ms, self.contributing))
    }

    /// The worker has done something.
    pub(super) fn on_work(&mut self, now_ms: f64, given: &Contribution) -> Vec<Action> {
        let bytes = given.bytes_up.saturating_add(given.bytes_down);
        let written = self.conductor.on_work(now_ms, bytes, given.pass);
        act(written.into_iter().chain(self.conductor.write_rest(now_ms)))
    }

    /// So much of the training program is here.
    pub(super) fn on_loading(&mut self, bytes: u64, bytes_total: Option<u64>) -> Vec<Action> {
        let Peer::Loading { bytes: before, .. } = self.peer else { return Vec::new() };
        self.peer = Peer::Loading { bytes, bytes_total };
        // What an earlier visit kept is there at once, and costs nothing.
        if before > 0 || bytes_total.is_none_or(|total| bytes >= total) {
            return Vec::new();
        }
        match self.preflight.program_bytes {
            Some(n_bytes) => self.conductor.on_received(n_bytes),
            // What is sent is a tenth of what it unfolds to: only the server knows.
            None => {
                self.owes_program = true;
                return vec![Action::TryWays(Vec::new())];
            }
        }
        Vec::new()
    }

    /// There is another worker, or none.
    pub(super) fn forget_told(&mut self) {
        self.is_told_to_start = false;
        self.told_conduct = Conduct::default();
        self.forget_asking();
    }

    /// Tells the worker what it does not know yet. A worker that may not work is not even loaded.
    pub(super) fn steer(&mut self) -> Vec<Action> {
        if self.role() == Role::Following {
            return Vec::new();
        }
        let may_work = self.contributing && self.conductor.reason().is_none() && self.may_bear();
        let wanted = may_work.then(|| self.wanted_conduct());
        match (&self.peer, wanted) {
            (Peer::Ready { .. }, Some(conduct)) => {
                let is_other = self.told_conduct != conduct;
                let is_started = std::mem::replace(&mut self.is_told_to_start, true);
                self.told_conduct = conduct;
                let conduct = is_other.then_some(PageToPeer::Conduct(conduct));
                let start = (!is_started).then_some(PageToPeer::Start);
                conduct.into_iter().chain(start).map(Action::Post).collect()
            }
            (Peer::Ready { .. }, None) if std::mem::take(&mut self.is_told_to_start) => {
                vec![Action::Post(PageToPeer::Stop)]
            }
            (Peer::Loading { .. }, None) if self.loads_in_vain() => {
                self.peer = Peer::Absent;
                self.forget_told();
                vec![Action::EndPeer]
            }
            // Where it could not be loaded it is loaded when the backbone is back, and after a crash not at once.
            (Peer::Absent, Some(_))
                if self.trouble.is_none() && !self.is_unloaded && self.endurance.reviving.is_none() =>
            {
                let actions = self.load();
                self.loads_for_work = true;
                actions
            }
            _ => Vec::new(),
        }
    }

    /// As the visitor wants it, within what the device has memory for.
    fn wanted_conduct(&self) -> Conduct {
        Conduct { pass_samples_max: self.pass_samples_max(), ..self.conductor.conduct() }
    }

    /// The processor, where the choice is free and the graphics processor is seen to be too small for the model.
    pub(super) fn fitting_device(&self) -> DeviceChoice {
        let is_too_small = self.run.as_ref().is_some_and(|run| self.preflight.lacks(run).is_some());
        match self.device_choice {
            DeviceChoice::Auto if is_too_small => DeviceChoice::Cpu,
            choice => choice,
        }
    }

    /// Whether a training program is on its way that nobody wants but for contributing, over a link that is not to be
    /// used for that now. It begins anew when it may.
    fn loads_in_vain(&self) -> bool {
        let Peer::Loading { bytes, bytes_total: Some(total) } = self.peer else { return false };
        let spares_data =
            matches!(self.pause(), Some(Reason::Metered | Reason::SavesData | Reason::Cap { .. }));
        bytes < total && spares_data && self.loads_for_work
    }
}

fn act(requests: impl IntoIterator<Item = Request>) -> Vec<Action> {
    requests.into_iter().map(Action::Conduct).collect()
}
