//! What is still known of the run while the server of this page does not answer: the worker may be with another backbone,
//! which tells it how the run goes on.

use barnraise_messages::Activity;

use super::{Backbone, Page};

impl Page {
    /// Whether the numbers of the run are those of a while ago.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_server_away() && self.heard_at_ms.is_some() && !self.is_worker_in_touch()
    }

    /// Whether the tab goes on with the run although the server of its page does not answer.
    pub(crate) fn goes_on_without_server(&self) -> bool {
        self.is_server_away() && self.is_worker_in_touch()
    }

    fn is_server_away(&self) -> bool {
        matches!(self.backbone, Backbone::Lost { .. })
    }

    /// Whether the worker does what it can do with a backbone only, which tells it every second how the run stands.
    fn is_worker_in_touch(&self) -> bool {
        match self.activity {
            Activity::FetchingModel { .. }
            | Activity::FetchingData { .. }
            | Activity::WarmingUp
            | Activity::Training { .. }
            | Activity::Sending { .. }
            | Activity::BeingChecked { .. }
            | Activity::WaitingForOthers { .. } => true,
            Activity::Idle
            | Activity::Connecting
            | Activity::SigningIn { .. }
            | Activity::Reconnecting { .. }
            | Activity::Stopping
            | Activity::Broken { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::{Activity, Event as Told, PeerToPage};

    use crate::fixture;
    use crate::state::{Event, Page};

    fn does(page: &mut Page, activity: Activity) {
        page.on_event(2.0, Event::FromPeer(PeerToPage::Told(Told::Activity(activity))));
    }

    #[test]
    fn numbers_that_the_worker_brings_up_to_date_are_not_old_while_the_server_is_away() {
        let mut page = fixture::page();
        page.on_event(0.0, Event::RunArrived(Box::new(fixture::status())));
        does(&mut page, Activity::Training { epoch: 3 });
        assert!(!page.is_stale() && !page.goes_on_without_server(), "all is well");
        page.on_event(1.0, Event::BackboneLost { reason: "no answer".into(), retry_in_ms: 1000 });
        for (activity, goes_on) in [
            (Activity::Reconnecting { retry_in_ms: 400, reason: "cut".into() }, false),
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
        page.on_event(3.0, Event::Live(fixture::live()));
        assert!(!page.is_stale() && !page.goes_on_without_server(), "it is back");
    }
}
