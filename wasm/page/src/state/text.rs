//! Filling the blanks of a text with the model.

use barnraise_messages::PageToPeer;

use super::{PageAction, PageState, WorkerState};

/// For each blank the likeliest pieces and their probabilities, the likeliest first.
pub(crate) type Guesses = Vec<Vec<(String, f32)>>;

/// What the worker answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FillingAnswer {
    /// The guesses of the model of an epoch.
    Filled { epoch: u64, blanks: Guesses },
    /// The worker could not fill the blanks, in its words.
    Failed { reason: String },
}

/// The text to fill, and the model's answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Filling {
    /// The text that waits for an answer.
    pub(crate) open: Option<String>,
    /// The answer of the newest text.
    pub(crate) answer: Option<FillingAnswer>,
    pub(crate) request: u32,
}

impl PageState {
    pub(super) fn ask_of_text(&mut self, text: String) -> Vec<PageAction> {
        self.filling.answer = None;
        self.filling.open = Some(text);
        match self.peer {
            WorkerState::Ready { .. } => self.post_text().into_iter().collect(),
            _ => self.load(),
        }
    }

    /// Posts the waiting text to the worker.
    pub(super) fn post_text(&mut self) -> Option<PageAction> {
        let text = self.filling.open.clone()?;
        self.filling.request = self.filling.request.wrapping_add(1);
        Some(PageAction::Post(PageToPeer::Fill { request: self.filling.request, text }))
    }

    pub(super) fn on_filled(&mut self, request: u32, answer: FillingAnswer) {
        if request == self.filling.request && self.filling.open.take().is_some() {
            self.filling.answer = Some(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::PeerToPage;
    use barnraise_protocol::contribute::DeviceKind;

    use super::super::PageEvent;
    use super::*;
    use crate::fixture;

    fn asked(actions: &[PageAction]) -> Vec<(u32, &str)> {
        let asked = |action| match action {
            &PageAction::Post(PageToPeer::Fill { request, ref text }) => Some((request, text.as_str())),
            _ => None,
        };
        actions.iter().filter_map(asked).collect()
    }

    #[test]
    fn a_text_loads_the_worker_and_the_newest_question_is_answered() {
        let mut page = fixture::text_page();
        let ask = |text: &str| PageEvent::TextAsked(text.into());
        assert_eq!(page.on_event(0.0, ask("the ___"))[0], PageAction::SpawnPeer);
        let ready = PageEvent::FromPeer(PeerToPage::Ready {
            identity: vec![7; 32],
            peer_id: "12D3".into(),
            device: DeviceKind::BrowserCpu,
            device_name: String::new(),
        });
        assert_eq!(asked(&page.on_event(1.0, ready)), [(1, "the ___")]);
        assert_eq!(asked(&page.on_event(2.0, ask("a ___"))), [(2, "a ___")]);
        let filled = |request| {
            let blanks = vec![vec![("cat".to_owned(), 0.5)]];
            PageEvent::FromPeer(PeerToPage::Filled { request, epoch: 7, blanks })
        };
        page.on_event(3.0, filled(1));
        assert_eq!(page.filling.answer, None, "another text was asked since");
        page.on_event(3.0, filled(2));
        let blanks = vec![vec![("cat".to_owned(), 0.5)]];
        assert_eq!(page.filling.answer, Some(FillingAnswer::Filled { epoch: 7, blanks }));
        page.on_event(4.0, ask("no blank"));
        let failed = PeerToPage::NotFilled { request: 3, reason: "no blanks".into() };
        page.on_event(5.0, PageEvent::FromPeer(failed));
        let reason = "no blanks".to_owned();
        assert_eq!(page.filling.answer, Some(FillingAnswer::Failed { reason }));
        assert!(!page.contributing, "asking is not contributing");
    }
}
