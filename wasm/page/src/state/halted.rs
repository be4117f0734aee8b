//! A run that its operator has paused. The page learns it from the worker or from the web server, in either order.

use barnraise_protocol::Refusal;

use super::PageState;

impl PageState {
    /// The backbone refused a message, or paused the run. A pause is no failure; the status sentence shows it.
    pub(super) fn on_refused(&mut self, refusal: &Refusal) {
        match refusal {
            Refusal::Paused { reason } => self.operator_pause = Some(reason.as_str().to_owned()),
            refusal => self.on_failed(format!("the backbone says: {refusal}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::{ContributorEvent, PeerToPage};
    use barnraise_protocol::{Refusal, RefusalReason};

    use crate::fixture;
    use crate::state::PageEvent;

    #[test]
    fn a_pause_is_known_from_the_first_source_until_the_run_goes_on() {
        let mut page = fixture::page();
        let told = |event| PageEvent::FromPeer(PeerToPage::Event(event));
        let paused = Refusal::Paused { reason: RefusalReason::of("new data") };
        page.on_event(0.0, told(ContributorEvent::Refused { refusal: paused }));
        assert_eq!((page.operator_pause.as_deref(), &page.notice), (Some("new data"), &None));
        page.on_event(1.0, PageEvent::Live(fixture::live()));
        assert_eq!(page.operator_pause, None, "it goes on");
        let mut status = fixture::status();
        status.paused = Some("again".into());
        page.on_event(2.0, PageEvent::RunArrived(Box::new(status)));
        assert_eq!(page.operator_pause.as_deref(), Some("again"));
        page.on_event(3.0, told(ContributorEvent::Failed { message: "no gallery".into() }));
        assert_eq!(
            (page.operator_pause.as_deref(), page.notice.as_deref()),
            (Some("again"), Some("no gallery"))
        );
        page.on_event(4.0, told(ContributorEvent::Refused { refusal: Refusal::Evicted }));
        assert_eq!(page.operator_pause.as_deref(), Some("again"));
        assert!(page.notice.is_some_and(|notice| notice.contains(&Refusal::Evicted.to_string())));
    }
}
