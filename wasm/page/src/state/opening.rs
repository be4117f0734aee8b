//! What a page knows when it is opened: of the browser, and of earlier visits.

use barnraise_messages::TransportKind;

use super::PageState;
use super::own::OwnKeeping;
use crate::browser_totals::BrowserTotals;
use crate::kept::KeptRun;
use crate::limits::ResourceLimits;
use crate::preflight::{Preflight, Surroundings};

impl PageState {
    /// Sets the transport that reached the backbone before on this network.
    pub(crate) fn reached_by(self, kept: Option<TransportKind>) -> Self {
        Self { last_transport: kept, ..self }
    }

    /// Sets the browser's properties.
    pub(crate) fn within(self, surroundings: Surroundings) -> Self {
        Self { preflight: Preflight::new(surroundings), ..self }
    }

    /// Sets the totals of earlier visits.
    pub(crate) fn remembering(self, kept: BrowserTotals) -> Self {
        Self { totals: kept, ..self }
    }

    /// Sets the resource limits.
    pub(crate) fn with_limits(self, limits: ResourceLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the code of the invitation link that opened the page.
    pub(crate) fn invited_by(self, code: Option<String>) -> Self {
        Self { invitation: code, ..self }
    }

    /// Sets the run from an earlier visit.
    pub(crate) fn knowing(self, kept: Option<KeptRun>) -> Self {
        let Some(KeptRun { run, n_parameters }) = kept else { return self };
        Self { run: Some(run), n_parameters, ..self }
    }

    /// The browser looks for what the visitor chose at an earlier visit; nothing is trained on before.
    pub(crate) fn looking_for_own(mut self) -> Self {
        self.own_keeping = OwnKeeping::looking();
        self
    }

    /// Sets the first request number; it differs between tabs.
    pub(crate) fn asking_from(mut self, n_requests: u32) -> Self {
        self.n_requests = n_requests;
        self.comparison.request = n_requests;
        self.filling.request = n_requests;
        self
    }
}
