//! Experts on other machines: which there are, and what became of this tab's rows.

use web_sys::Element;

use crate::dom::{DomError, Field, by_id, create, document, set_attribute};
use crate::expert_grid::{self, GridPicture};
use crate::state::PageState;

const SVG_NAMESPACE: &str = "http://www.w3.org/2000/svg";

pub(crate) struct ExpertsView {
    section: Field,
    said: Field,
    place: Element,
    table: Element,
    rows: Element,
    layers: Vec<LayerView>,
}

/// The picture of a layer.
struct LayerView {
    caption: Element,
    svg: Element,
    drawn: Option<GridPicture>,
}

impl ExpertsView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            section: Field::find("experts")?,
            said: Field::find("experts-said")?,
            place: by_id("experts-layers")?,
            table: by_id("experts-table")?,
            rows: by_id("experts-rows")?,
            layers: Vec::new(),
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        self.section.set_hidden(page.experts.is_none());
        let Some(seen) = &page.experts else { return };
        let n_answered = seen.n_rows as f64;
        self.said.set_number(&expert_grid::sentence(seen), n_answered);
        while self.layers.len() < seen.layers.len() {
            match LayerView::add(&self.place) {
                Ok(layer) => self.layers.push(layer),
                Err(_) => break,
            }
        }
        for (number, view) in self.layers.iter_mut().enumerate() {
            let picture = seen.layers.get(number).map(|layer| expert_grid::picture(number, layer));
            view.draw(number, seen.layers.len() > 1, picture);
        }
        if self.table.has_attribute("open") {
            self.rows.set_inner_html(&expert_grid::table_rows(seen));
        }
    }
}

impl LayerView {
    fn add(place: &Element) -> Result<Self, DomError> {
        let figure: Element = create("figure")?;
        let caption: Element = create("figcaption")?;
        let svg = document().create_element_ns(Some(SVG_NAMESPACE), "svg")?;
        svg.set_attribute("role", "img")?;
        figure.append_child(&caption)?;
        figure.append_child(&svg)?;
        place.append_child(&figure)?;
        Ok(Self { caption, svg, drawn: None })
    }

    fn draw(&mut self, number: usize, is_named: bool, picture: Option<GridPicture>) {
        if self.drawn == picture {
            return;
        }
        let GridPicture { view_box, width, markup, words } =
            picture.as_ref().cloned().unwrap_or_else(GridPicture::empty);
        self.caption.set_text_content(is_named.then(|| format!("Layer {}", number + 1)).as_deref());
        set_attribute(&self.svg, "viewBox", &view_box);
        set_attribute(&self.svg, "width", &width.to_string());
        set_attribute(&self.svg, "aria-label", &words);
        self.svg.set_inner_html(&markup);
        self.drawn = picture;
    }
}
