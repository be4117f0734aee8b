//! A run that its operator has paused. The backbone tells contributors, and the web server everybody, a moment earlier or
//! later.

use barnraise_protocol::contribute::PAUSED;

use super::Page;

impl Page {
    /// Whether a message is the backbone's word for a pause. Then nothing has failed, and the sentence says it.
    pub(super) fn is_of_a_pause(&mut self, message: &str) -> bool {
        let Some((_, reason)) = message.split_once(PAUSED) else { return false };
        self.operator_pause = Some(reason.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::{Event as Told, PeerToPage};
    use barnraise_protocol::contribute::PAUSED;

    use crate::fixture;
    use crate::state::Event;

    #[test]
    fn a_pause_is_known_from_whoever_tells_it_first_until_the_run_goes_on() {
        let mut page = fixture::page();
        let failed = |message: String| Event::FromPeer(PeerToPage::Told(Told::Failed { message }));
        page.on_event(0.0, failed(format!("the backbone says: {PAUSED}new data")));
        assert_eq!((page.operator_pause.as_deref(), &page.notice), (Some("new data"), &None));
        page.on_event(1.0, Event::Live(fixture::live()));
        assert_eq!(page.operator_pause, None, "it goes on");
        let mut status = fixture::status();
        status.paused = Some("again".into());
        page.on_event(2.0, Event::RunArrived(Box::new(status)));
        assert_eq!(page.operator_pause.as_deref(), Some("again"));
        page.on_event(3.0, failed("no gallery".into()));
        assert_eq!(
            (page.operator_pause.as_deref(), page.notice.as_deref()),
            (Some("again"), Some("no gallery"))
        );
    }
}
