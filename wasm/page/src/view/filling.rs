//! The form that asks the model about a text: to fill its blanks, or to go on with it.

use barnraise_protocol::access::AccessMode;
use web_sys::{Element, HtmlInputElement};

use crate::dom::{DomError, Field, by_id, create, set_attribute};
use crate::format;
use crate::sentence::{UNANSWERED, before, which_model};
use crate::state::{BackboneStatus, FillingAnswer, PageState, Spoken, WorkerState};

/// What stands in the form before the visitor typed, where the model fills blanks.
const BLANKED: &str = "The ___ of the";
/// And where it goes on.
const BEGUN: &str = "Once upon a time";

pub(crate) struct FillingView {
    section: Field,
    label: Field,
    input: HtmlInputElement,
    button: Field,
    earlier: Field,
    said: Field,
    continued: Field,
    begun: Field,
    gone_on: Field,
    epoch: Field,
    list: Element,
    shown: Vec<String>,
}

impl FillingView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            section: Field::find("fill")?,
            label: Field::find("fill-label")?,
            input: by_id("fill-text")?,
            button: Field::find("fill-button")?,
            earlier: Field::find("fill-earlier")?,
            said: Field::find("fill-said")?,
            continued: Field::find("continued")?,
            begun: Field::find("continued-begin")?,
            gone_on: Field::find("continued-text")?,
            epoch: Field::find("fill-epoch")?,
            list: by_id("fills")?,
            shown: Vec::new(),
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let goes_on = page.goes_on_with_text();
        let may_ask = goes_on || page.fills_blanks();
        self.section.set_hidden(!may_ask || !may_answer(page) || !page.is_supported());
        let (label, button, begun, other) = match goes_on {
            true => ("A text to go on with.", "Go on", BEGUN, BLANKED),
            false => {
                ("A text with blanks, such as: The cat sat on the ___.", "Fill in the blanks", BLANKED, BEGUN)
            }
        };
        if !self.label.shows(label) && self.input.value() == other {
            self.input.set_value(begun);
        }
        self.label.set_text(label);
        self.button.set_text(button);
        self.said.set_text(&said(page));
        self.draw_continuation(page);
        let lines: Vec<String> = match &page.filling.answer {
            Some(FillingAnswer::Filled { blanks, .. }) => {
                blanks.iter().map(|guesses| line(guesses)).collect()
            }
            _ => Vec::new(),
        };
        let (epoch, text) = source(page).unzip();
        self.epoch.set_number(&text.unwrap_or_default(), epoch.map_or(f64::NAN, |epoch: u64| epoch as f64));
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

    fn draw_continuation(&mut self, page: &PageState) {
        let (filling, earlier) = (&page.filling, page.earlier_model());
        let is_offered = page.goes_on_with_text() && (earlier.is_some() || filling.earlier.is_some());
        self.earlier.set_hidden(!is_offered);
        let is_pressed = if filling.earlier.is_some() { "true" } else { "false" };
        set_attribute(self.earlier.element(), "aria-pressed", is_pressed);
        if let Some(model) = filling.earlier.or(earlier) {
            self.earlier.set_text(&format!("By the model of {}", before(model.age_seconds)));
        }
        match &filling.answer {
            Some(FillingAnswer::Continued { text, .. }) => {
                self.continued.set_hidden(false);
                self.begun.set_text(filling.text.trim_end());
                self.gone_on.set_text(text);
            }
            _ => self.continued.set_hidden(true),
        }
    }
}

/// The epoch of the model that answered, and which one it is, in words.
fn source(page: &PageState) -> Option<(u64, String)> {
    match page.filling.answer.as_ref()? {
        FillingAnswer::Filled { epoch, .. } => Some((*epoch, which_model(page, *epoch))),
        FillingAnswer::Continued { epoch, spoken, .. } => {
            Some((*epoch, format!("{} {}", which_model(page, *epoch), rate(*spoken))))
        }
        FillingAnswer::Failed { .. } => None,
    }
}

/// `120 tokens, 35 a second.`
fn rate(spoken: Spoken) -> String {
    let Spoken { n_tokens, seconds, .. } = spoken;
    let tokens = format::counted(n_tokens.into(), "token", "tokens");
    match seconds > 0.0 && n_tokens > 1 {
        true => format!("{tokens}, {:.0} a second.", f64::from(n_tokens) / seconds),
        false => format!("{tokens}."),
    }
}

/// Whether the web server has a model, or this browser may have cached one.
fn may_answer(page: &PageState) -> bool {
    let is_open = || page.run.as_ref().is_some_and(|run| run.access.mode == AccessMode::Open);
    let is_away = matches!(page.backbone, BackboneStatus::Lost { .. });
    page.models.as_ref().is_some_and(|models| models.latest.is_some()) || (is_away && is_open())
}

fn said(page: &PageState) -> String {
    let filling = &page.filling;
    match (filling.is_open, &filling.answer, &page.peer) {
        (true, _, WorkerState::Loading { .. }) => "Fetching the model first…".into(),
        (true, _, WorkerState::Absent) if page.trouble.is_some() => UNANSWERED.into(),
        (true, Some(FillingAnswer::Continued { .. }), _) => "It goes on:".into(),
        (true, ..) => "Looking…".into(),
        (false, Some(FillingAnswer::Failed { reason }), _) => format!("That does not work: {reason}."),
        (false, Some(FillingAnswer::Filled { .. }), _) => {
            "For each blank, what the model thinks likeliest:".into()
        }
        (false, Some(FillingAnswer::Continued { .. }), _) => "It went on:".into(),
        (false, None, _) if page.goes_on_with_text() => {
            "Begin a text. What follows is drawn at random from what the model thinks likely.".into()
        }
        (false, None, _) => "Put ___ where a word is missing.".into(),
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

    #[test]
    fn the_rate_is_that_of_all_tokens() {
        let spoken = |n_tokens, seconds| Spoken { n_tokens, seconds, is_end: false };
        assert_eq!(rate(spoken(1, 0.5)), "1 token.");
        assert_eq!(rate(spoken(30, 1.5)), "30 tokens, 20 a second.");
        assert_eq!(rate(spoken(30, 0.0)), "30 tokens.");
    }
}
