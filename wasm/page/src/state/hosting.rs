//! Hosting of experts in a second worker of this tab, while the visitor wants it and the resource limits allow it. Only the
//! leading tab hosts, and only in an open run. What ended hosting never starts it again: the visitor does. Pure.

use barnraise_messages::{HostedWork, PageToPeer, PeerToPage};
use barnraise_protocol::access::AccessMode;

use super::{PageAction, PageState, PeerLoss, TabRole};
use crate::limits::PauseReason;

/// Longest wait for the worker to hand its experts over.
const HAND_OVER_MAX_MS: f64 = 60_000.0;

/// This tab as a host of experts.
#[derive(Debug, Default)]
pub(crate) struct Hosting {
    pub(crate) status: HostingStatus,
    /// The last report of the worker that there is.
    pub(crate) work: HostedWork,
}

/// Status of hosting.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum HostingStatus {
    /// Not wanted so far.
    #[default]
    Off,
    /// The training program is loading, or has not reported yet. No expert is here.
    Starting { bytes: u64, bytes_total: Option<u64> },
    /// It hosts, or says why it hosts no expert at the moment.
    Serving { problem: Option<String> },
    /// Its experts go to other peers.
    Ending { why: HostingEnd, since_ms: f64 },
    /// It ended, for these reasons.
    Ended { causes: Vec<HostingEnd> },
}

/// Why hosting ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum HostingEnd {
    /// The visitor ended it.
    Visitor,
    /// The resource limits ended it.
    Limits(PauseReason),
    /// Another tab of this browser leads.
    OtherTab,
    /// The hand-over took too long.
    Overdue,
    /// In the worker's words.
    Told(String),
    /// The worker could not be loaded, or crashed.
    Lost(PeerLoss),
}

impl Hosting {
    /// Whether there is a worker.
    pub(crate) fn is_at_work(&self) -> bool {
        match self.status {
            HostingStatus::Off | HostingStatus::Ended { .. } => false,
            HostingStatus::Starting { .. } | HostingStatus::Serving { .. } | HostingStatus::Ending { .. } => {
                true
            }
        }
    }
}

impl PageState {
    /// Whether the visitor is offered to host, or sees how it goes.
    pub(crate) fn offers_hosting(&self) -> bool {
        let run = self.run.as_ref().filter(|run| run.access.mode == AccessMode::Open);
        let has_experts = run.is_some_and(|run| run.model.hosted.is_some());
        let leads = matches!(self.role(), TabRole::Alone | TabRole::Leading);
        self.hosting.is_at_work() || (has_experts && leads && self.is_supported())
    }

    /// What stands against hosting now; it ends hosting that is under way.
    pub(crate) fn against_hosting(&self) -> Option<HostingEnd> {
        match self.role() {
            TabRole::Following => Some(HostingEnd::OtherTab),
            TabRole::Alone | TabRole::Asking | TabRole::Leading => {
                self.limits.obstacle().map(HostingEnd::Limits)
            }
        }
    }

    /// The visitor pressed the button.
    pub(super) fn toggle_hosting(&mut self, now_ms: f64) -> Vec<PageAction> {
        if self.hosting.is_at_work() {
            return self.end_hosting(now_ms, HostingEnd::Visitor);
        }
        if !self.offers_hosting() || self.against_hosting().is_some() {
            return Vec::new();
        }
        let status = HostingStatus::Starting { bytes: 0, bytes_total: None };
        self.hosting = Hosting { status, work: HostedWork::default() };
        let host = PageToPeer::Host {
            origin: self.origin.clone(),
            device: self.device_choice,
            transport: self.preflight.best_transport().or(self.last_transport),
        };
        vec![PageAction::SpawnHost, PageAction::PostHost(host)]
    }

    /// Ends hosting where it may not go on, and a hand-over that takes too long.
    pub(super) fn mind_hosting(&mut self, now_ms: f64) -> Vec<PageAction> {
        match self.hosting.status {
            HostingStatus::Ending { since_ms, .. } if now_ms - since_ms >= HAND_OVER_MAX_MS => {
                self.on_hosting_over(Some(HostingEnd::Overdue))
            }
            _ => match self.against_hosting() {
                Some(why) => self.end_hosting(now_ms, why),
                None => Vec::new(),
            },
        }
    }

    fn end_hosting(&mut self, now_ms: f64, why: HostingEnd) -> Vec<PageAction> {
        match self.hosting.status {
            HostingStatus::Starting { .. } => self.on_hosting_over(Some(why)),
            HostingStatus::Serving { .. } => {
                self.hosting.status = HostingStatus::Ending { why, since_ms: now_ms };
                vec![PageAction::PostHost(PageToPeer::Stop)]
            }
            HostingStatus::Off | HostingStatus::Ending { .. } | HostingStatus::Ended { .. } => Vec::new(),
        }
    }

    /// Ends the worker. `last` is added to the reason for which it was ending.
    pub(super) fn on_hosting_over(&mut self, last: Option<HostingEnd>) -> Vec<PageAction> {
        if !self.hosting.is_at_work() {
            return Vec::new();
        }
        let first = match std::mem::take(&mut self.hosting.status) {
            HostingStatus::Ending { why, .. } => Some(why),
            _ => None,
        };
        let status = HostingStatus::Ended { causes: first.into_iter().chain(last).collect() };
        self.hosting = Hosting { status, work: HostedWork::default() };
        vec![PageAction::EndHost]
    }

    /// Handles a message of the worker that hosts; one that has ended may still have sent some.
    pub(super) fn on_host(&mut self, message: PeerToPage) -> Vec<PageAction> {
        if !self.hosting.is_at_work() {
            return Vec::new();
        }
        match message {
            PeerToPage::Loading { bytes, bytes_total } => {
                let HostingStatus::Starting { bytes: before, .. } = self.hosting.status else {
                    return Vec::new();
                };
                self.hosting.status = HostingStatus::Starting { bytes, bytes_total };
                return self.count_program(before, bytes, bytes_total);
            }
            PeerToPage::Connected { transport, .. } => {
                self.last_transport = Some(transport);
                return vec![PageAction::SaveTransport(transport)];
            }
            PeerToPage::Hosting { work, problem } => {
                let bytes = |work: &HostedWork| work.bytes_received.saturating_add(work.bytes_sent);
                let n_new = bytes(&work).saturating_sub(bytes(&self.hosting.work));
                self.limits.on_received(n_new);
                self.hosting.work = work;
                if !matches!(self.hosting.status, HostingStatus::Ending { .. }) {
                    self.hosting.status = HostingStatus::Serving { problem };
                }
            }
            PeerToPage::NotHosting { reason } => {
                return self.on_hosting_over(reason.map(HostingEnd::Told));
            }
            PeerToPage::Downloaded { bytes } => self.limits.on_received(bytes),
            PeerToPage::Failed { message } => {
                return self.on_hosting_over(Some(HostingEnd::Lost(PeerLoss::of_words(&message))));
            }
            PeerToPage::Outdated => {
                self.endurance.has_new_version = true;
                return self.on_hosting_over(Some(HostingEnd::Lost(PeerLoss::Outdated)));
            }
            // A worker that contributes sends the others.
            _ => {}
        }
        Vec::new()
    }
}

#[cfg(test)]
#[path = "hosting/tests.rs"]
mod tests;
