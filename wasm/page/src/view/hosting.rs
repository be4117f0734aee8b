//! The button that hosts experts in this tab, and how that goes.

use web_sys::HtmlButtonElement;

use crate::dom::{DomError, Field, by_id, set_attribute};
use crate::format;
use crate::sentence::{hosting_button, hosting_sentence};
use crate::state::PageState;

pub(crate) struct HostingView {
    section: Field,
    toggle: HtmlButtonElement,
    toggle_text: Field,
    said: Field,
    announcement: Field,
}

impl HostingView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            section: Field::find("host")?,
            toggle: by_id("host-toggle")?,
            toggle_text: Field::find("host-toggle")?,
            said: Field::find("host-said")?,
            announcement: Field::find("host-announcement")?,
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        self.section.set_hidden(!page.offers_hosting());
        if !page.offers_hosting() {
            return;
        }
        let (text, may_press) = hosting_button(page);
        self.toggle_text.set_text(text);
        self.toggle.set_disabled(!may_press);
        let sentence = hosting_sentence(page);
        set_attribute(self.section.element(), "data-state", sentence.doing);
        self.said.set_number(&format::unbroken(&sentence.text), page.hosting.work.n_experts.into());
        self.announcement.set_text(&sentence.spoken);
    }
}
