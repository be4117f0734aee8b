//! What the model says about the picture on the table.

use web_sys::{Element, HtmlCanvasElement, HtmlElement};

use crate::dom::{DomError, Field, by_id, create};
use crate::format;
use crate::picture;
use crate::sentence::verdict;
use crate::state::{Page, Question};

/// Answers on show.
const BARS: usize = 3;

pub(crate) struct TrialView {
    section: HtmlElement,
    verdict: Field,
    epoch: Field,
    seen: HtmlCanvasElement,
    shown: Option<Vec<u8>>,
    bars: Vec<Bar>,
}

struct Bar {
    item: HtmlElement,
    name: Element,
    share: Element,
    fill: HtmlElement,
}

impl TrialView {
    pub(crate) fn find() -> Result<Self, DomError> {
        let list: Element = by_id("bars")?;
        Ok(Self {
            section: by_id("try")?,
            verdict: Field::find("prediction")?,
            epoch: Field::find("prediction-epoch")?,
            seen: by_id("seen")?,
            shown: None,
            bars: (0..BARS).map(|_| Bar::add(&list)).collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn draw(&mut self, page: &Page) {
        self.section.set_hidden(page.has_nothing_to_try());
        self.verdict.set_text(&verdict(page));
        self.draw_question(page);
        let ranking = page.prediction.as_ref().map_or(&[][..], |prediction| &prediction.ranking);
        for (idx, bar) in self.bars.iter().enumerate() {
            match ranking.get(idx) {
                Some(&(class, probability)) => bar.show(&page.class_name(class), class, probability),
                None => bar.item.set_hidden(true),
            }
        }
        if let Some(prediction) = &page.prediction {
            let text = format!("The model after {}.", format::counted(prediction.epoch, "step", "steps"));
            self.epoch.set_number(&text, prediction.epoch as f64);
        } else {
            self.epoch.set_text("");
        }
    }

    /// The canvas is empty.
    pub(crate) fn mend(&mut self) {
        self.shown = None;
    }

    fn draw_question(&mut self, page: &Page) {
        let (Some(shape), pixels) = (page.image_shape(), page.question.as_ref().map(Question::pixels)) else {
            return;
        };
        if self.shown.as_deref() != pixels {
            picture::show(&self.seen, pixels.unwrap_or_default(), shape);
            self.shown = pixels.map(<[u8]>::to_vec);
        }
    }
}

impl Bar {
    fn add(list: &Element) -> Result<Self, DomError> {
        let item: HtmlElement = create("li")?;
        item.set_hidden(true);
        let (name, share): (Element, Element) = (create("span")?, create("span")?);
        let (track, fill): (Element, HtmlElement) = (create("span")?, create("span")?);
        track.set_class_name("track");
        track.set_attribute("aria-hidden", "true")?;
        fill.set_class_name("fill");
        track.append_child(&fill)?;
        for child in [&name, &share, &track] {
            item.append_child(child)?;
        }
        list.append_child(&item)?;
        Ok(Self { item, name, share, fill })
    }

    fn show(&self, name: &str, class: usize, probability: f32) {
        self.item.set_hidden(false);
        let _ = self.item.set_attribute("data-class", &class.to_string());
        let _ = self.item.set_attribute("data-value", &probability.to_string());
        self.name.set_text_content(Some(name));
        self.share.set_text_content(Some(&format::percent(probability)));
        let _ = self.fill.style().set_property("transform", &format!("scaleX({probability:.4})"));
    }
}
