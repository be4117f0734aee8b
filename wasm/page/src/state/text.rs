//! A text with blanks, and what the model puts into them.

use barnraise_messages::PageToPeer;

use super::{Action, Page, Peer};

/// For each blank the likeliest pieces and their probabilities, the likeliest first.
pub(crate) type Guesses = Vec<Vec<(String, f32)>>;

/// What was asked of the model, and what it said.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Filling {
    /// The text, while its answer is waited for.
    pub(crate) open: Option<String>,
    /// Epoch of the model, and its guesses; or why there are none.
    pub(crate) answer: Option<Result<(u64, Guesses), String>>,
    pub(crate) request: u32,
}

impl Page {
    pub(super) fn ask_of_text(&mut self, text: String) -> Vec<Action> {
        self.filling.answer = None;
        self.filling.open = Some(text);
        match self.peer {
            Peer::Ready { .. } => self.post_text().into_iter().collect(),
            _ => self.load(),
        }
    }

    /// Asks the worker, where something waits to be asked.
    pub(super) fn post_text(&mut self) -> Option<Action> {
        let text = self.filling.open.clone()?;
        self.filling.request = self.filling.request.wrapping_add(1);
        Some(Action::Post(PageToPeer::Fill { request: self.filling.request, text }))
    }

    pub(super) fn on_filled(&mut self, request: u32, answer: Result<(u64, Guesses), String>) {
        if request == self.filling.request && self.filling.open.take().is_some() {
            self.filling.answer = Some(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::PeerToPage;
    use barnraise_protocol::contribute::DeviceKind;

    use super::super::Event;
    use super::*;
    use crate::fixture;

    fn asked(actions: &[Action]) -> Vec<(u32, &str)> {
        let asked = |action| match action {
            &Action::Post(PageToPeer::Fill { request, ref text }) => Some((request, text.as_str())),
            _ => None,
        };
        actions.iter().filter_map(asked).collect()
    }

    #[test]
    fn a_text_loads_the_worker_and_the_newest_question_is_answered() {
        let mut page = fixture::text_page();
        let ask = |text: &str| Event::TextAsked(text.into());
        assert_eq!(page.on_event(0.0, ask("the ___"))[0], Action::SpawnPeer);
        let ready = Event::FromPeer(PeerToPage::Ready {
            identity: vec![7; 32],
            peer_id: "12D3".into(),
            device: DeviceKind::BrowserCpu,
            device_name: String::new(),
        });
        assert_eq!(asked(&page.on_event(1.0, ready)), [(1, "the ___")]);
        assert_eq!(asked(&page.on_event(2.0, ask("a ___"))), [(2, "a ___")]);
        let filled = |request| {
            let blanks = vec![vec![("cat".to_owned(), 0.5)]];
            Event::FromPeer(PeerToPage::Filled { request, epoch: 7, blanks })
        };
        page.on_event(3.0, filled(1));
        assert_eq!(page.filling.answer, None, "another text was asked since");
        page.on_event(3.0, filled(2));
        assert_eq!(page.filling.answer, Some(Ok((7, vec![vec![("cat".to_owned(), 0.5)]]))));
        page.on_event(4.0, ask("no blank"));
        let failed = PeerToPage::NotFilled { request: 3, reason: "no blanks".into() };
        page.on_event(5.0, Event::FromPeer(failed));
        assert_eq!(page.filling.answer, Some(Err("no blanks".into())));
        assert!(!page.contributing, "asking is not contributing");
    }
}
