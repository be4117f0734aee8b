//! The compute lock of a browser: of all its tabs, over all runs of one origin, one computes at a time. That tab holds
//! the lock for as long as it may compute. A tab of another run queues for the lock, shows which run holds it, and
//! takes it over if its visitor wants. Pure; the driver in [`crate::tabs`] has the lock.

use super::tab_messages::{ComputeLock, LoadEvent, LockHolder, TabRole};
use super::{PageAction, PageState};
use crate::limits::PauseReason;

impl PageState {
    /// Whether this tab holds the compute lock. Without locks every tab computes for itself.
    pub(super) fn may_compute(&self) -> bool {
        match self.role() {
            TabRole::Alone => true,
            TabRole::Leading => self.tabs.load == ComputeLock::Held,
            TabRole::Asking | TabRole::Following => false,
        }
    }

    /// Title of the run that holds the lock while this tab waits for it, if it is known.
    pub(crate) fn elsewhere(&self) -> Option<&str> {
        match &self.tabs.load {
            ComputeLock::Elsewhere(holder) => holder.as_ref()?.title.as_deref(),
            _ => self.tabs.leader_elsewhere.as_deref(),
        }
    }

    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self.tabs.load, ComputeLock::Elsewhere(_))
    }

    /// Whether this tab wants the lock. A tab that rests from heat keeps it: the device is hot for every run.
    fn wants_load(&self) -> bool {
        let rests = self.limits.reason().is_some_and(|reason| !matches!(reason, PauseReason::Hot { .. }));
        self.role() == TabRole::Leading && self.contributing && !rests
    }

    /// Requests the lock once it is wanted, and releases it once it is not.
    pub(super) fn update_lock(&mut self) -> Vec<PageAction> {
        let is_wanted = self.wants_load();
        match self.tabs.load {
            ComputeLock::Unwanted | ComputeLock::Taken if is_wanted => {
                self.tabs.load = ComputeLock::Asked;
                vec![PageAction::RequestLock]
            }
            ComputeLock::Unwanted | ComputeLock::Taken => Vec::new(),
            _ if !is_wanted => {
                self.tabs.load = ComputeLock::Unwanted;
                vec![PageAction::ReleaseLock]
            }
            ComputeLock::Held => self.note_holder().into_iter().collect(),
            ComputeLock::Asked | ComputeLock::Elsewhere(_) => Vec::new(),
        }
    }

    pub(super) fn on_load(&mut self, now_ms: f64, event: LoadEvent) -> Vec<PageAction> {
        let is_own = |holder: &LockHolder| holder.origin == self.origin;
        match event {
            LoadEvent::Granted if self.wants_load() => {
                (self.tabs.load, self.tabs.noted) = (ComputeLock::Held, None);
                Vec::new()
            }
            // No longer wanted.
            LoadEvent::Granted => {
                self.tabs.load = ComputeLock::Unwanted;
                vec![PageAction::ReleaseLock]
            }
            // The previous leader of this run is being closed, or does not answer.
            LoadEvent::Elsewhere(Some(holder)) if self.tabs.load == ComputeLock::Asked && is_own(&holder) => {
                self.take_load()
            }
            LoadEvent::Elsewhere(holder) if self.tabs.load == ComputeLock::Asked => {
                self.tabs.load = ComputeLock::Elsewhere(holder);
                Vec::new()
            }
            LoadEvent::Noted(holder) if self.is_elsewhere() && !is_own(&holder) => {
                self.tabs.load = ComputeLock::Elsewhere(Some(holder));
                Vec::new()
            }
            LoadEvent::Taken(by) if self.tabs.load == ComputeLock::Held => {
                self.tabs.load = ComputeLock::Taken;
                let by = by.filter(|by| !is_own(by));
                let actions = self.stop(now_ms);
                self.notice = Some(taken(by.as_ref()));
                actions
            }
            // The stored holder may change after the lock was taken.
            LoadEvent::Noted(holder) if self.tabs.load == ComputeLock::Taken && !is_own(&holder) => {
                self.notice = Some(taken(Some(&holder)));
                Vec::new()
            }
            LoadEvent::Elsewhere(_) | LoadEvent::Noted(_) | LoadEvent::Taken(_) => Vec::new(),
        }
    }

    /// The visitor wants this tab to compute instead of the holder.
    pub(super) fn on_take_load(&mut self) -> Vec<PageAction> {
        if self.is_elsewhere() { self.take_load() } else { Vec::new() }
    }

    /// Takes the lock. The new holder is stored first, as the old one reads it.
    fn take_load(&mut self) -> Vec<PageAction> {
        (self.tabs.load, self.tabs.noted) = (ComputeLock::Asked, None);
        self.note_holder().into_iter().chain([PageAction::TakeLoad]).collect()
    }

    /// Stores this tab as the holder, if that changed.
    fn note_holder(&mut self) -> Option<PageAction> {
        let title = self.run.as_ref().map(|run| run.identity.title.clone());
        let holder = LockHolder { origin: self.origin.clone(), title };
        let is_noted = self.tabs.noted.as_ref() == Some(&holder);
        self.tabs.noted = Some(holder.clone());
        (!is_noted).then_some(PageAction::StoreHolder(holder))
    }
}

/// Notice in a tab that lost the lock.
fn taken(by: Option<&LockHolder>) -> String {
    format!(
        "In another tab, you let this browser contribute to {} instead. It computes for one run at a time.",
        by.and_then(|by| by.title.as_deref()).unwrap_or("another run")
    )
}

#[cfg(test)]
#[path = "load/tests.rs"]
mod tests;
