//! Held-out pictures to pick from, a page of them at a time.

use web_sys::{Element, HtmlCanvasElement};

use crate::dom::{DomError, Field, by_id, create, set_attribute};
use crate::format;
use crate::picture;
use crate::state::PageState;

/// Pictures per page.
const PER_PAGE: usize = 20;

pub(crate) struct GalleryView {
    place: Element,
    load: Field,
    load_note: Field,
    more: Field,
    buttons: Vec<(usize, Element, HtmlCanvasElement)>,
    is_blank: bool,
    page_idx: usize,
    drawn_page: Option<usize>,
}

/// Label of the button that fetches the model.
fn load_text(page: &PageState) -> &'static str {
    match page.awaits_gallery() {
        false => "Bring the model into this tab",
        true if page.sign_in_url().is_some() => "Comes once you have signed in",
        true => "On its way…",
    }
}

/// What comes with a click, or why nothing came.
fn load_note(page: &PageState) -> String {
    match &page.gallery_request.failure {
        Some(reason) => format!("The pictures could not be had: {}.", format::reason(reason)),
        None => "A few megabytes, the same as for contributing.".into(),
    }
}

impl GalleryView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            place: by_id("gallery")?,
            load: Field::find("load-model")?,
            load_note: Field::find("load-note")?,
            more: Field::find("more")?,
            buttons: Vec::new(),
            is_blank: false,
            page_idx: 0,
            drawn_page: None,
        })
    }

    /// Shows the next page.
    pub(crate) fn turn_page(&mut self) {
        self.page_idx += 1;
    }

    /// Redraws the canvases after the browser cleared them.
    pub(crate) fn mend(&mut self) {
        self.is_blank = true;
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let is_needless = page.gallery.is_some() || !page.is_supported();
        self.load.set_hidden(is_needless);
        self.load_note.set_hidden(is_needless);
        let is_awaited = page.awaits_gallery();
        self.load.set_text(load_text(page));
        set_attribute(self.load.element(), "aria-disabled", if is_awaited { "true" } else { "false" });
        self.load_note.set_text(&load_note(page));
        let (Some(gallery), Some(shape)) = (&page.gallery, page.image_shape()) else { return };
        let n_pages = gallery.labels.len().div_ceil(PER_PAGE).max(1);
        self.more.set_hidden(n_pages < 2);
        let page_idx = self.page_idx % n_pages;
        if self.drawn_page.replace(page_idx) != Some(page_idx) {
            let first = page_idx * PER_PAGE;
            let shown = first..(first + PER_PAGE).min(gallery.labels.len());
            self.place.set_text_content(None);
            self.buttons = shown.filter_map(|idx| self.add(page, idx).ok()).collect();
            self.is_blank = true;
        }
        if std::mem::take(&mut self.is_blank) {
            for (idx, _, canvas) in &self.buttons {
                picture::show(canvas, page.gallery_image(*idx).unwrap_or_default(), shape);
            }
        }
        let picked = page.question.as_ref().and_then(|question| question.picked);
        for (idx, button, _) in &self.buttons {
            set_attribute(button, "aria-pressed", if picked == Some(*idx) { "true" } else { "false" });
        }
    }

    fn add(&self, page: &PageState, idx: usize) -> Result<(usize, Element, HtmlCanvasElement), DomError> {
        let label =
            page.gallery.as_ref().and_then(|gallery| gallery.labels.get(idx)).copied().unwrap_or_default();
        let button: Element = create("button")?;
        button.set_attribute("type", "button")?;
        button.set_attribute("data-idx", &idx.to_string())?;
        button.set_attribute("data-label", &label.to_string())?;
        button.set_attribute(
            "aria-label",
            &format!("{}, picture {}", page.class_name(label.into()), idx + 1),
        )?;
        let canvas: HtmlCanvasElement = create("canvas")?;
        canvas.set_class_name(page.image_shape().map_or("ink", picture::class_of));
        button.append_child(&canvas)?;
        self.place.append_child(&button)?;
        Ok((idx, button, canvas))
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::{Activity, ContributorEvent, PeerToPage};

    use super::*;
    use crate::fixture;
    use crate::state::PageEvent;

    #[test]
    fn a_visitor_who_has_to_sign_in_is_not_told_that_the_model_is_on_its_way() {
        let mut page = fixture::page();
        page.on_event(0.0, PageEvent::LoadModel);
        page.on_event(1.0, fixture::ready());
        assert_eq!(load_text(&page), "On its way…");
        let signing_in = Activity::SigningIn { url: "https://login.example/1".into() };
        let told = PeerToPage::Event(ContributorEvent::Activity(signing_in));
        page.on_event(2.0, PageEvent::FromPeer(told));
        assert_eq!(load_text(&page), "Comes once you have signed in");
    }
}
