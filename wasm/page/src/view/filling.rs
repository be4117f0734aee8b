//! The form that fills the blanks of a text.

use barnraise_protocol::access::AccessMode;
use web_sys::Element;

use crate::dom::{DomError, Field, by_id, create};
use crate::format;
use crate::sentence::{UNANSWERED, which_model};
use crate::state::{BackboneStatus, FillingAnswer, PageState, WorkerState};

pub(crate) struct FillingView {
    section: Field,
    said: Field,
    epoch: Field,
    list: Element,
    shown: Vec<String>,
}

impl FillingView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            section: Field::find("fill")?,
            said: Field::find("fill-said")?,
            epoch: Field::find("fill-epoch")?,
            list: by_id("fills")?,
            shown: Vec::new(),
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        self.section.set_hidden(!page.fills_blanks() || !may_answer(page) || !page.is_supported());
        self.said.set_text(&said(page));
        let (epoch, lines): (Option<u64>, Vec<String>) = match &page.filling.answer {
            Some(FillingAnswer::Filled { epoch, blanks }) => {
                (Some(*epoch), blanks.iter().map(|guesses| line(guesses)).collect())
            }
            _ => (None, Vec::new()),
        };
        let text = epoch.map(|epoch| which_model(page, epoch));
        self.epoch.set_number(&text.unwrap_or_default(), epoch.map_or(f64::NAN, |epoch| epoch as f64));
        if self.shown != lines {
            self.list.set_text_content(None);
            for text in &lines {
                if let Ok(item) = create::<Element>("li") {
                    // As text, never as markup.
                    item.set_text_content(Some(text));
                    let _ = self.list.append_child(&item);
                }
            }
            self.shown = lines;
        }
    }
}

/// Whether the web server has a model, or this browser may have cached one.
fn may_answer(page: &PageState) -> bool {
    let is_open = || page.run.as_ref().is_some_and(|run| run.access.mode == AccessMode::Open);
    let is_away = matches!(page.backbone, BackboneStatus::Lost { .. });
    page.models.as_ref().is_some_and(|models| models.latest.is_some()) || (is_away && is_open())
}

fn said(page: &PageState) -> String {
    match (&page.filling.open, &page.filling.answer, &page.peer) {
        (Some(_), _, WorkerState::Loading { .. }) => "Fetching the model first…".into(),
        (Some(_), _, WorkerState::Absent) if page.trouble.is_some() => UNANSWERED.into(),
        (Some(_), ..) => "Looking…".into(),
        (None, Some(FillingAnswer::Failed { reason }), _) => format!("That does not work: {reason}."),
        (None, Some(FillingAnswer::Filled { .. }), _) => {
            "For each blank, what the model thinks likeliest:".into()
        }
        (None, None, _) => "Put ___ where a word is missing.".into(),
    }
}

/// `house 45.0 %, barn 12.3 %, field 3.1 %`
fn line(guesses: &[(String, f32)]) -> String {
    let texts: Vec<String> =
        guesses.iter().map(|(piece, share)| format!("{piece} {}", format::percent(*share))).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::state::{AnswerError, PageEvent, PeerLoss};

    #[test]
    fn guesses_are_a_line_and_failures_a_sentence() {
        assert_eq!(line(&[("house".into(), 0.45), ("barn".into(), 0.1)]), "house 45.0 %, barn 10.0 %");
        let mut page = fixture::text_page();
        page.filling.answer = Some(FillingAnswer::Failed { reason: "no blank".into() });
        assert_eq!(said(&page), "That does not work: no blank.");
    }

    #[test]
    fn without_a_backbone_a_cached_model_may_answer_where_models_are_public() {
        let mut page = fixture::text_page();
        assert!(!may_answer(&page), "no model was evaluated yet");
        page.on_event(0.0, PageEvent::BackboneLost { reason: AnswerError::NoAnswer.into(), retry_in_ms: 1 });
        assert!(may_answer(&page));
        if let Some(run) = &mut page.run {
            run.access.mode = AccessMode::Invitation;
        }
        assert!(!may_answer(&page));
    }

    #[test]
    fn a_question_waits_for_as_long_as_a_worker_may_answer_it() {
        let mut page = fixture::text_page();
        page.on_event(0.0, PageEvent::TextAsked("the ___".into()));
        assert_eq!(said(&page), "Fetching the model first…");
        page.on_event(1.0, PageEvent::PeerLost { reason: PeerLoss::of_words("out of memory") });
        assert_eq!(said(&page), UNANSWERED);
        page.on_event(2.0, PageEvent::TextAsked("the ___".into()));
        assert_eq!(said(&page), "Fetching the model first…");
    }
}
