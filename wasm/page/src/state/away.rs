//! State of the run while the page's server does not answer: the worker may be connected to another backbone, which
//! sends it the run's progress.

use barnraise_messages::Activity;

use super::{BackboneStatus, PageState};

impl PageState {
    /// Whether the shown numbers of the run are outdated.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_server_away() && self.last_news_ms.is_some() && !self.is_in_touch()
    }

    /// Whether the tab takes part in the run although its page's server does not answer.
    pub(crate) fn goes_on_without_server(&self) -> bool {
        self.is_server_away() && self.is_in_touch()
    }

    fn is_server_away(&self) -> bool {
        matches!(self.backbone, BackboneStatus::Lost { .. })
    }

    /// Whether the worker's activity requires a connection to a backbone, which sends the run's progress every second, or to others
    /// that go on without one.
    pub(crate) fn is_in_touch(&self) -> bool {
        match self.activity {
            Activity::FetchingModel { .. }
            | Activity::FetchingData { .. }
            | Activity::WarmingUp
            | Activity::Training { .. }
            | Activity::Sending { .. }
            | Activity::BeingChecked { .. }
            | Activity::WaitingForOthers { .. }
            | Activity::WaitingForTurn { .. }
            | Activity::Averaging { .. } => true,
            Activity::Idle
            | Activity::Connecting
            | Activity::SigningIn { .. }
            | Activity::Reconnecting { .. }
            | Activity::Stopping
            | Activity::NotAdmitted { .. }
            | Activity::Broken { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::{Activity, ContributorEvent, Interruption, PeerToPage};

    use crate::fixture;
    use crate::state::{AnswerError, PageEvent, PageState};

    fn does(page: &mut PageState, activity: Activity) {
        page.on_event(2.0, PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Activity(activity))));
    }

    #[test]
    fn numbers_that_the_worker_updates_are_not_stale_while_the_server_is_away() {
        let mut page = fixture::page();
        page.on_event(0.0, PageEvent::RunArrived(Box::new(fixture::status())));
        does(&mut page, Activity::Training { epoch: 3 });
        assert!(!page.is_stale() && !page.goes_on_without_server(), "all is well");
        page.on_event(
            1.0,
            PageEvent::BackboneLost { reason: AnswerError::NoAnswer.into(), retry_in_ms: 1000 },
        );
        for (activity, goes_on) in [
            (Activity::Reconnecting { retry_in_ms: 400, reason: Interruption::Silent }, false),
            (Activity::FetchingModel { bytes: 1, bytes_total: 2 }, true),
            (Activity::Training { epoch: 4 }, true),
            (Activity::WaitingForOthers { epoch: 4 }, true),
            (Activity::Stopping, false),
            (Activity::Idle, false),
        ] {
            does(&mut page, activity.clone());
            assert_eq!((page.is_stale(), page.goes_on_without_server()), (!goes_on, goes_on), "{activity:?}");
        }
        does(&mut page, Activity::Training { epoch: 5 });
        page.on_event(3.0, PageEvent::Live(fixture::live()));
        assert!(!page.is_stale() && !page.goes_on_without_server(), "it is back");
    }
}
