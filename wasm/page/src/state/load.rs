//! One browser carries one load: of its tabs, whichever runs of one origin they are of, one computes. It holds a lock
//! that all runs share for as long as it may work. A tab of another run waits for its turn, says which run has it, and
//! takes over where its visitor wants that. Pure; the driver in [`crate::tabs`] has the lock.

use serde::{Deserialize, Serialize};

use super::tabs::Role;
use super::{Action, Page};
use crate::conduct::Reason;

/// Who computes in this browser, as it wrote down for the tabs of other runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bearer {
    /// Where its page comes from, which says of which run it is.
    origin: String,
    /// What its run is called, once that is known.
    title: Option<String>,
}

/// What this tab has of the browser's load.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Load {
    /// It does not want to compute now.
    #[default]
    Unwanted,
    /// The lock was asked for, which takes milliseconds.
    Asked,
    /// A tab of another run has it, which may have written down who it is.
    Elsewhere(Option<Bearer>),
    /// This one may compute.
    Borne,
    /// A tab of another run took it, and this one stopped.
    Taken,
}

/// What the driver says of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoadEvent {
    /// This tab has it.
    Granted,
    /// Another one has it; this one has it in its turn.
    Elsewhere(Option<Bearer>),
    /// Another one has it from now on, or is called otherwise.
    Noted(Bearer),
    /// Another one took it from this one.
    Taken(Option<Bearer>),
}

impl Page {
    /// Whether tabs of other runs let this one compute. Where there are no locks, each tab is for itself.
    pub(super) fn may_bear(&self) -> bool {
        match self.role() {
            Role::Alone => true,
            Role::Leading => self.tabs.load == Load::Borne,
            Role::Asking | Role::Following => false,
        }
    }

    /// What the run is called that this browser computes for, while this tab waits for that one, if it is known.
    pub(crate) fn elsewhere(&self) -> Option<&str> {
        match &self.tabs.load {
            Load::Elsewhere(bearer) => bearer.as_ref()?.title.as_deref(),
            _ => self.tabs.leader_elsewhere.as_deref(),
        }
    }

    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self.tabs.load, Load::Elsewhere(_))
    }

    /// A tab that rests from heat keeps the load: the device is hot, whichever run it computes for.
    fn wants_load(&self) -> bool {
        let rests = self.conductor.reason().is_some_and(|reason| !matches!(reason, Reason::Hot { .. }));
        self.role() == Role::Leading && self.contributing && !rests
    }

    /// Asks for the load once it is wanted, and leaves it once it is not.
    pub(super) fn mind_load(&mut self) -> Vec<Action> {
        let is_wanted = self.wants_load();
        match self.tabs.load {
            Load::Unwanted | Load::Taken if is_wanted => {
                self.tabs.load = Load::Asked;
                vec![Action::AskLoad]
            }
            Load::Unwanted | Load::Taken => Vec::new(),
            _ if !is_wanted => {
                self.tabs.load = Load::Unwanted;
                vec![Action::LeaveLoad]
            }
            Load::Borne => self.note_bearer().into_iter().collect(),
            Load::Asked | Load::Elsewhere(_) => Vec::new(),
        }
    }

    pub(super) fn on_load(&mut self, now_ms: f64, event: LoadEvent) -> Vec<Action> {
        let is_own = |bearer: &Bearer| bearer.origin == self.origin;
        match event {
            LoadEvent::Granted if self.wants_load() => {
                (self.tabs.load, self.tabs.noted) = (Load::Borne, None);
                Vec::new()
            }
            // It was wanted when it was asked for.
            LoadEvent::Granted => {
                self.tabs.load = Load::Unwanted;
                vec![Action::LeaveLoad]
            }
            // The tab that led before this one is being closed, or does not answer.
            LoadEvent::Elsewhere(Some(bearer)) if self.tabs.load == Load::Asked && is_own(&bearer) => {
                self.take_load()
            }
            LoadEvent::Elsewhere(bearer) if self.tabs.load == Load::Asked => {
                self.tabs.load = Load::Elsewhere(bearer);
                Vec::new()
            }
            LoadEvent::Noted(bearer) if self.is_elsewhere() && !is_own(&bearer) => {
                self.tabs.load = Load::Elsewhere(Some(bearer));
                Vec::new()
            }
            LoadEvent::Taken(by) if self.tabs.load == Load::Borne => {
                self.tabs.load = Load::Taken;
                let by = by.filter(|by| !is_own(by));
                let actions = self.stop(now_ms);
                self.notice = Some(taken(by.as_ref()));
                actions
            }
            // What is written down may come after the lock is gone.
            LoadEvent::Noted(bearer) if self.tabs.load == Load::Taken && !is_own(&bearer) => {
                self.notice = Some(taken(Some(&bearer)));
                Vec::new()
            }
            LoadEvent::Elsewhere(_) | LoadEvent::Noted(_) | LoadEvent::Taken(_) => Vec::new(),
        }
    }

    /// The visitor wants this tab to compute, and the one that does to stop.
    pub(super) fn on_take_load(&mut self) -> Vec<Action> {
        if self.is_elsewhere() { self.take_load() } else { Vec::new() }
    }

    /// Whoever loses it reads who has it: that is written down before.
    fn take_load(&mut self) -> Vec<Action> {
        (self.tabs.load, self.tabs.noted) = (Load::Asked, None);
        self.note_bearer().into_iter().chain([Action::TakeLoad]).collect()
    }

    /// Writes down who computes, where that is not what was written before.
    fn note_bearer(&mut self) -> Option<Action> {
        let title = self.run.as_ref().map(|run| run.title.clone());
        let bearer = Bearer { origin: self.origin.clone(), title };
        let is_noted = self.tabs.noted.as_ref() == Some(&bearer);
        self.tabs.noted = Some(bearer.clone());
        (!is_noted).then_some(Action::NoteLoad(bearer))
    }
}

/// What the visitor of a tab is told that stopped, by whom it did.
fn taken(by: Option<&Bearer>) -> String {
    format!(
        "In another tab, you let this browser contribute to {} instead. It computes for one run at a time.",
        by.and_then(|by| by.title.as_deref()).unwrap_or("another run")
    )
}

#[cfg(test)]
#[path = "load/tests.rs"]
mod tests;
