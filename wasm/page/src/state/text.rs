//! Asking the model about a text: it fills its blanks, or goes on with it.

use barnraise_messages::PageToPeer;
use barnraise_protocol::api::ModelFile;

use super::{PageAction, PageState, WorkerState};

/// For each blank the likeliest pieces and their probabilities, the likeliest first.
pub(crate) type Guesses = Vec<Vec<(String, f32)>>;

/// What the worker answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FillingAnswer {
    /// The guesses of the model of an epoch.
    Filled { epoch: u64, blanks: Guesses },
    /// How the model of an epoch goes on, so far.
    Continued { epoch: u64, text: String, spoken: Spoken },
    /// The worker could not answer, in its words.
    Failed { reason: String },
}

/// How much of a continuation there is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spoken {
    pub(crate) n_tokens: u32,
    /// That they took.
    pub(crate) seconds: f64,
    /// Whether nothing follows.
    pub(crate) is_end: bool,
}

/// The text to ask about, and the model's answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Filling {
    /// The newest text.
    pub(crate) text: String,
    /// Whether it waits for an answer, or for the rest of it.
    pub(crate) is_open: bool,
    /// The answer of the newest text.
    pub(crate) answer: Option<FillingAnswer>,
    /// The earlier model that is to go on with it, with its age then.
    pub(crate) earlier: Option<ModelFile>,
    pub(crate) request: u32,
}

impl PageState {
    pub(super) fn ask_of_text(&mut self, text: String) -> Vec<PageAction> {
        self.filling.answer = None;
        self.filling.text = text;
        self.filling.is_open = true;
        match self.peer {
            WorkerState::Ready { .. } => self.post_text().into_iter().collect(),
            _ => self.load(),
        }
    }

    /// Goes on with what is typed, once the visitor has asked for it: nothing is downloaded before.
    pub(super) fn on_text_typed(&mut self, text: String) -> Vec<PageAction> {
        let was_asked = self.filling.is_open || self.filling.answer.is_some();
        let is_ready = matches!(self.peer, WorkerState::Ready { .. });
        let is_new = text != self.filling.text && !text.trim().is_empty();
        match self.goes_on_with_text() && was_asked && is_ready && is_new {
            true => self.ask_of_text(text),
            false => Vec::new(),
        }
    }

    /// Asks the earlier model, or the newest one again.
    pub(super) fn toggle_earlier_text(&mut self) -> Vec<PageAction> {
        self.filling.earlier = match self.filling.earlier {
            Some(_) => None,
            None => self.earlier_model(),
        };
        match self.filling.text.is_empty() {
            true => Vec::new(),
            false => self.ask_of_text(self.filling.text.clone()),
        }
    }

    /// Posts the waiting text to the worker.
    pub(super) fn post_text(&mut self) -> Option<PageAction> {
        if !self.filling.is_open {
            return None;
        }
        let goes_on = self.goes_on_with_text();
        let filling = &mut self.filling;
        // Another worker begins anew.
        filling.answer = None;
        filling.request = filling.request.wrapping_add(1);
        let (request, text) = (filling.request, filling.text.clone());
        let epoch = filling.earlier.map(|model| model.epoch);
        Some(PageAction::Post(match goes_on {
            true => PageToPeer::Continue { request, epoch, text },
            false => PageToPeer::Fill { request, text },
        }))
    }

    pub(super) fn on_filled(&mut self, request: u32, answer: FillingAnswer) {
        if request == self.filling.request && self.filling.is_open {
            self.filling.is_open = false;
            self.filling.answer = Some(answer);
        }
    }

    pub(super) fn on_continued(&mut self, request: u32, (epoch, token): (u64, &str), spoken: Spoken) {
        let filling = &mut self.filling;
        if request != filling.request || !filling.is_open {
            return;
        }
        filling.is_open = !spoken.is_end;
        let mut text = match filling.answer.take() {
            Some(FillingAnswer::Continued { text, .. }) => text,
            _ => String::new(),
        };
        text.push_str(token);
        filling.answer = Some(FillingAnswer::Continued { epoch, text, spoken });
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::PeerToPage;
    use barnraise_protocol::api::Models;
    use barnraise_protocol::contribute::DeviceKind;
    use barnraise_protocol::run::model::graph::Loss;

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

    #[test]
    fn a_text_is_gone_on_with_token_by_token_and_as_it_is_typed_once_it_was_asked_for() {
        let mut page = fixture::text_page();
        if let Some(run) = &mut page.run {
            run.model.graph.loss = Loss::CausalLanguageModel;
        }
        let typed = |text: &str| PageEvent::TextTyped(text.into());
        page.peer = WorkerState::Ready { device: DeviceKind::BrowserCpu, device_name: String::new() };
        assert!(page.on_event(0.0, typed("Once")).is_empty(), "nothing was asked for");
        let asked = |actions: &[PageAction]| match actions {
            [PageAction::Post(PageToPeer::Continue { request, epoch, text })] => {
                Some((*request, *epoch, text.clone()))
            }
            _ => None,
        };
        let first = page.on_event(1.0, PageEvent::TextAsked("Once".into()));
        assert_eq!(asked(&first), Some((1, None, "Once".into())));
        let token = |request, text: &str, n_tokens, is_end| {
            let (text, seconds) = (text.to_owned(), f64::from(n_tokens) / 10.0);
            PageEvent::FromPeer(PeerToPage::Continued { request, epoch: 7, text, n_tokens, seconds, is_end })
        };
        page.on_event(2.0, token(1, " upon", 1, false));
        page.on_event(2.0, token(1, " a", 2, false));
        let text = |page: &PageState| match &page.filling.answer {
            Some(FillingAnswer::Continued { text, .. }) => text.clone(),
            _ => String::new(),
        };
        assert_eq!((text(&page).as_str(), page.filling.is_open), (" upon a", true));
        assert!(page.on_event(2.5, typed("Once")).is_empty(), "it is the same text");
        assert!(page.on_event(2.5, typed("  ")).is_empty());
        let second = page.on_event(3.0, typed("Once there"));
        assert_eq!(asked(&second), Some((2, None, "Once there".into())));
        page.on_event(3.0, token(1, " time", 3, false));
        assert_eq!(page.filling.answer, None, "of the text before");
        page.on_event(3.0, token(2, " was", 1, false));
        page.on_event(3.0, token(2, "", 1, true));
        assert_eq!((text(&page).as_str(), page.filling.is_open), (" was", false));
        let earlier = vec![ModelFile { epoch: 3, age_seconds: 4000, n_bytes: 9 }];
        page.on_event(4.0, PageEvent::ModelsKnown(Models { latest: None, earlier }));
        let of_earlier = page.on_event(4.0, PageEvent::ToggleEarlierText);
        assert_eq!(asked(&of_earlier), Some((3, Some(3), "Once there".into())));
        let of_newest = page.on_event(5.0, PageEvent::ToggleEarlierText);
        assert_eq!(asked(&of_newest), Some((4, None, "Once there".into())));
    }
}
