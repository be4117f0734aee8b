//! What this browser can do for the run: a line, and what is behind it.

use web_sys::Element;

use crate::dom::{DomError, Field, by_id, create, set_attribute};
use crate::preflight::words::{self, Line};
use crate::state::Page;

pub(crate) struct PreflightView {
    block: Element,
    summary: Field,
    parts: [Part; 5],
}

struct Part {
    element: Element,
    lines: fn(&Page) -> Vec<Line>,
    shown: Vec<Line>,
}

impl PreflightView {
    pub(crate) fn find() -> Result<Self, DomError> {
        let part = |id, lines| Ok::<_, DomError>(Part { element: by_id(id)?, lines, shown: Vec::new() });
        Ok(Self {
            block: by_id("preflight")?,
            summary: Field::find("preflight-summary")?,
            parts: [
                part("preflight-browser", words::browser)?,
                part("preflight-graphics", words::graphics)?,
                part("preflight-processor", words::processor)?,
                part("preflight-ways", words::ways)?,
                part("preflight-data", words::data)?,
            ],
        })
    }

    pub(crate) fn draw(&mut self, page: &Page) {
        let summary = words::summary(page);
        set_attribute(&self.block, "data-state", summary.state);
        self.summary.set_text(&summary.text);
        for part in &mut self.parts {
            part.draw(page);
        }
    }
}

impl Part {
    fn draw(&mut self, page: &Page) {
        let lines = (self.lines)(page);
        if self.shown == lines {
            return;
        }
        self.element.set_text_content(None);
        for line in &lines {
            if let Ok(paragraph) = paragraph(line) {
                let _ = self.element.append_child(&paragraph);
            }
        }
        self.shown = lines;
    }
}

fn paragraph(line: &Line) -> Result<Element, DomError> {
    let paragraph: Element = create("p")?;
    paragraph.set_attribute("data-state", line.state)?;
    if let Some(way) = line.way {
        paragraph.set_attribute("data-way", &way.to_string())?;
    }
    paragraph.set_text_content(Some(&line.text));
    Ok(paragraph)
}
