//! The model's prediction for the current picture.

use web_sys::{Element, HtmlCanvasElement, HtmlElement};

use crate::dom::{DomError, Field, by_id, create, set_attribute};
use crate::format;
use crate::picture;
use crate::sentence::{ask_first, before, verdict, which_model};
use crate::state::{Comparison, PageState, Prediction, Question};

/// Classes that are shown.
const BARS: usize = 3;

pub(crate) struct TrialView {
    section: HtmlElement,
    title: Field,
    sketch: HtmlElement,
    clear: HtmlElement,
    photo: HtmlElement,
    sketch_hint: Field,
    verdict: Field,
    epoch: Field,
    seen: HtmlCanvasElement,
    shown: Option<Vec<u8>>,
    bars: Vec<Bar>,
    compare: Field,
    caption: Field,
    earlier: Field,
    earlier_caption: Field,
    earlier_bars: Vec<Bar>,
}

/// A name with a share, and a bar of its length.
pub(super) struct Bar {
    item: HtmlElement,
    name: Element,
    share: Element,
    fill: HtmlElement,
}

impl TrialView {
    pub(crate) fn find() -> Result<Self, DomError> {
        let (list, earlier_list): (Element, Element) = (by_id("bars")?, by_id("earlier-bars")?);
        let bars = |list: &Element| (0..BARS).map(|_| Bar::add(list)).collect::<Result<_, _>>();
        Ok(Self {
            section: by_id("try")?,
            title: Field::find("ask-title")?,
            sketch: by_id("sketch")?,
            clear: by_id("clear")?,
            photo: by_id("photo")?,
            sketch_hint: Field::find("sketch-hint")?,
            verdict: Field::find("prediction")?,
            epoch: Field::find("prediction-epoch")?,
            seen: by_id("seen")?,
            shown: None,
            bars: bars(&list)?,
            compare: Field::find("compare")?,
            caption: Field::find("bars-caption")?,
            earlier: Field::find("earlier")?,
            earlier_caption: Field::find("earlier-caption")?,
            earlier_bars: bars(&earlier_list)?,
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        self.section.set_hidden(!page.may_try() || !page.is_supported());
        let takes_photos = page.takes_photos();
        self.title.set_text(if takes_photos { "Choose a photo" } else { "Draw something" });
        self.sketch.set_hidden(takes_photos);
        self.clear.set_hidden(takes_photos);
        self.photo.set_hidden(!takes_photos);
        self.sketch_hint.set_text(&sketch_hint(page));
        self.verdict.set_text(&verdict(page));
        self.draw_question(page);
        show_bars(&self.bars, page, page.prediction.as_ref());
        self.draw_comparison(page);
        if let Some(prediction) = &page.prediction {
            let text = which_model(page, prediction.epoch);
            self.epoch.set_number(&text, prediction.epoch as f64);
        } else {
            self.epoch.set_text("");
        }
    }

    /// Draws the prediction of an earlier model beside the newest, if the visitor wants it.
    fn draw_comparison(&mut self, page: &PageState) {
        let (comparison, earlier) = (&page.comparison, page.earlier_model());
        self.compare.set_hidden(earlier.is_none() && !comparison.is_wanted);
        let is_pressed = if comparison.is_wanted { "true" } else { "false" };
        set_attribute(self.compare.element(), "aria-pressed", is_pressed);
        if let Some(model) = earlier {
            self.compare.set_text(&format!("Compare with the model of {}", before(model.age_seconds)));
        }
        self.earlier.set_hidden(!comparison.is_wanted);
        let now = page.prediction.as_ref().filter(|_| comparison.is_wanted);
        let now = now.map(|now| format!("Now, after {}", page.steps_in_words(now.epoch)));
        self.caption.set_optional(now.as_deref());
        self.earlier_caption.set_number(
            &earlier_in_words(page, comparison),
            comparison.prediction.as_ref().map_or(f64::NAN, |found| found.epoch as f64),
        );
        show_bars(&self.earlier_bars, page, comparison.prediction.as_ref());
    }

    /// Redraws the canvas after the browser cleared it.
    pub(crate) fn mend(&mut self) {
        self.shown = None;
    }

    fn draw_question(&mut self, page: &PageState) {
        let (Some(shape), pixels) = (page.image_shape(), page.question.as_ref().map(Question::pixels)) else {
            return;
        };
        if self.shown.as_deref() != pixels {
            self.seen.set_class_name(picture::class_of(shape));
            picture::show(&self.seen, pixels.unwrap_or_default(), shape);
            self.shown = pixels.map(<[u8]>::to_vec);
        }
    }
}

/// What to ask about, and how far the answer may be trusted.
fn sketch_hint(page: &PageState) -> String {
    if page.takes_photos() {
        return "Its middle is what the model sees. It knows the kinds above and no others: of anything else it may be sure, and \
            wrong."
            .into();
    }
    let name = page.run.as_ref().map_or("other pictures", |run| &run.data.manifest.name);
    format!(
        "Its outline, or the whole shape. The model learned from {name}, not from drawings: of yours it may be sure, and \
         wrong."
    )
}

fn show_bars(bars: &[Bar], page: &PageState, prediction: Option<&Prediction>) {
    let ranking = prediction.map_or(&[][..], |prediction| &prediction.ranking);
    for (idx, bar) in bars.iter().enumerate() {
        match ranking.get(idx) {
            Some(&(class, probability)) => {
                bar.show(&page.class_name(class), class, probability, &format::percent(probability));
            }
            None => bar.hide(),
        }
    }
}

fn earlier_in_words(page: &PageState, comparison: &Comparison) -> String {
    match (&comparison.failure, comparison.asked) {
        (Some(reason), _) => format!("The earlier model could not be had: {reason}."),
        (None, Some(model)) if comparison.prediction.is_some() => {
            let (when, steps) = (before(model.age_seconds), page.steps_in_words(model.epoch));
            format!("{}{}, after {steps}", when[..1].to_uppercase(), &when[1..])
        }
        (None, Some(_)) => "Fetching the earlier model…".into(),
        (None, None) => ask_first(page).into(),
    }
}

impl Bar {
    pub(super) fn add(list: &Element) -> Result<Self, DomError> {
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

    pub(super) fn hide(&self) {
        self.item.set_hidden(true);
    }

    /// `text` says the share, which is from 0 to 1.
    pub(super) fn show(&self, name: &str, class: usize, share: f32, text: &str) {
        self.item.set_hidden(false);
        let _ = self.item.set_attribute("data-class", &class.to_string());
        let _ = self.item.set_attribute("data-value", &share.to_string());
        self.name.set_text_content(Some(name));
        self.share.set_text_content(Some(text));
        let _ = self.fill.style().set_property("transform", &format!("scaleX({share:.4})"));
    }
}
