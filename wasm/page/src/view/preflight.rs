//! The preflight: its summary line and details.

use web_sys::Element;

use crate::dom::{DomError, Field, by_id, create, set_attribute};
use crate::report::{self, ReportLine};
use crate::state::PageState;

pub(crate) struct PreflightView {
    block: Element,
    summary: Field,
    parts: [ReportPart; 5],
}

struct ReportPart {
    element: Element,
    lines: fn(&PageState) -> Vec<ReportLine>,
    shown: Vec<ReportLine>,
}

impl PreflightView {
    pub(crate) fn find() -> Result<Self, DomError> {
        let part =
            |id, lines| Ok::<_, DomError>(ReportPart { element: by_id(id)?, lines, shown: Vec::new() });
        Ok(Self {
            block: by_id("preflight")?,
            summary: Field::find("preflight-summary")?,
            parts: [
                part("preflight-browser", report::browser)?,
                part("preflight-graphics", report::graphics)?,
                part("preflight-processor", report::processor)?,
                part("preflight-transports", report::transports)?,
                part("preflight-data", report::data)?,
            ],
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let summary = report::summary(page);
        set_attribute(&self.block, "data-state", summary.state);
        self.summary.set_text(&summary.text);
        for part in &mut self.parts {
            part.draw(page);
        }
    }
}

impl ReportPart {
    fn draw(&mut self, page: &PageState) {
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

fn paragraph(line: &ReportLine) -> Result<Element, DomError> {
    let paragraph: Element = create("p")?;
    paragraph.set_attribute("data-state", line.state)?;
    if let Some(transport) = line.transport {
        paragraph.set_attribute("data-transport", &transport.to_string())?;
    }
    paragraph.set_text_content(Some(&line.text));
    Ok(paragraph)
}
