//! The two curves and their table.

use barnraise_protocol::api::HistoryPoint;
use web_sys::Element;

use crate::chart::{Chart, Frame, VerticalScale, in_words, layout};
use crate::dom::{DomError, Field, by_id, document, set_attribute};
use crate::format;
use crate::history::History;
use crate::state::PageState;

/// Rows of the table.
const ROWS_MAX: usize = 40;
/// The table is written anew at most this often.
const TABLE_EVERY_MS: f64 = 2000.0;
const SVG_NAMESPACE: &str = "http://www.w3.org/2000/svg";

pub(crate) struct CurvesView {
    loss: Field,
    accuracy: Field,
    accuracy_label: Field,
    baseline: Field,
    loss_plot: Plot,
    accuracy_plot: Plot,
    table: Element,
    rows: Element,
    drawn_revision: Option<u64>,
    table_revision: u64,
    table_at_ms: f64,
}

/// An SVG element that fills its container.
struct Plot {
    place: Element,
    svg: Element,
    frame: Frame,
}

impl CurvesView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            loss: Field::find("loss")?,
            accuracy: Field::find("accuracy")?,
            accuracy_label: Field::find("accuracy-label")?,
            baseline: Field::find("baseline")?,
            loss_plot: Plot::find("loss-chart")?,
            accuracy_plot: Plot::find("accuracy-chart")?,
            table: by_id("table")?,
            rows: by_id("table-rows")?,
            drawn_revision: None,
            table_revision: 0,
            table_at_ms: f64::NEG_INFINITY,
        })
    }

    /// Measures the plots. Call it before any write: otherwise the browser has to lay out the page twice.
    pub(crate) fn measure(&mut self) {
        if self.loss_plot.measure() | self.accuracy_plot.measure() {
            self.drawn_revision = None;
        }
    }

    pub(crate) fn draw(&mut self, now_ms: f64, page: &PageState) {
        if let Some(progress) = &page.progress {
            if let Some(loss) = progress.train_loss {
                self.loss.set_number(&format::loss(loss), loss.into());
            }
            if let Some(accuracy) = progress.test_accuracy {
                self.accuracy.set_number(&format::percent(accuracy), accuracy.into());
            }
        }
        self.baseline.set_text(&baseline_in_words(page).unwrap_or_default());
        let revision = page.history.revision();
        if self.drawn_revision != Some(revision) {
            self.drawn_revision = Some(revision);
            let words = accuracy_in_words(page);
            self.accuracy_label.set_text(words);
            self.draw_plots(&page.history, words, page.step_names());
        }
        let is_open = self.table.has_attribute("open");
        if is_open && self.table_revision != revision && now_ms - self.table_at_ms >= TABLE_EVERY_MS {
            (self.table_revision, self.table_at_ms) = (revision, now_ms);
            self.rows.set_inner_html(&table_rows(page.history.points()));
        }
    }

    fn draw_plots(&self, history: &History, accuracy: &str, steps: (&str, &str)) {
        let (losses, accuracies) = (history.losses(), history.accuracies());
        let words = in_words("Training loss", &losses, steps, |loss| format::loss(loss as f32));
        self.loss_plot.draw(&layout(&losses, self.loss_plot.frame, VerticalScale::FromZero), &words);
        let words = in_words(accuracy, &accuracies, steps, |share| format::percent(share as f32));
        self.accuracy_plot.draw(&layout(&accuracies, self.accuracy_plot.frame, VerticalScale::Share), &words);
    }
}

/// What the accuracy is compared with: without it a number says little.
fn baseline_in_words(page: &PageState) -> Option<String> {
    let share = format::percent(page.majority_accuracy?);
    if page.tells_numbers() {
        return Some("Always saying the mean would explain 0 % of it.".to_owned());
    }
    let answer = if page.is_of_text() { "piece" } else { "class" };
    Some(format!("Always giving the commonest {answer} would be right {share} of the time."))
}

fn accuracy_in_words(page: &PageState) -> &'static str {
    if page.goes_on_with_text() {
        "Pieces foreseen in text it never saw"
    } else if page.is_of_text() {
        "Masked pieces guessed in text it never saw"
    } else if page.tells_numbers() {
        "Variance explained of what it never saw (R²)"
    } else if page.is_of_rows() {
        "Accuracy on rows it never saw"
    } else if page.has_nothing_to_try() {
        "Accuracy on pictures it never saw, by those most alike"
    } else {
        "Accuracy on pictures it never saw"
    }
}

impl Plot {
    fn find(id: &'static str) -> Result<Self, DomError> {
        let figure: Element = by_id(id)?;
        let place = figure.query_selector(".plot")?.ok_or(DomError::Element(id))?;
        let svg = document().create_element_ns(Some(SVG_NAMESPACE), "svg")?;
        svg.set_attribute("role", "img")?;
        place.append_child(&svg)?;
        Ok(Self { place, svg, frame: Frame { width: 0.0, height: 0.0 } })
    }

    /// Measures the container; returns whether its size changed.
    fn measure(&mut self) -> bool {
        let frame =
            Frame { width: self.place.client_width().into(), height: self.place.client_height().into() };
        std::mem::replace(&mut self.frame, frame) != frame
    }

    fn draw(&self, chart: &Chart, words: &str) {
        set_attribute(&self.svg, "aria-label", words);
        self.svg.set_inner_html(&chart.markup());
    }
}

/// Rows of the table, the newest first. Of the points of one row, an evaluated one is shown: otherwise accuracies would
/// be lost. Numbers only: it contains no text from outside.
fn table_rows(points: &[HistoryPoint]) -> String {
    let Some((newest, before)) = points.split_last() else { return String::new() };
    let n_close = before.len().div_ceil(ROWS_MAX - 1).max(1);
    let shown = before.rchunks(n_close).filter_map(|close| {
        let evaluated = close.iter().rev().find(|point| point.test_accuracy.is_some());
        evaluated.or(close.last())
    });
    let dash = || "–".to_owned();
    let row = |point: &HistoryPoint| {
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            format::count(point.epoch),
            format::count(point.n_samples_total),
            point.train_loss.map_or_else(dash, format::loss),
            point.test_accuracy.map_or_else(dash, format::percent),
        )
    };
    std::iter::once(newest).chain(shown).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_begins_with_the_newest() {
        let point =
            |epoch| HistoryPoint { epoch, n_samples_total: 0, train_loss: None, test_accuracy: Some(0.5) };
        let points: Vec<HistoryPoint> = (1..=500).map(point).collect();
        let rows = table_rows(&points);
        assert!(rows.matches("<tr>").count() <= ROWS_MAX);
        assert!(rows.starts_with("<tr><td>500</td><td>0</td><td>–</td><td>50.0 %</td></tr>"), "{rows}");
        assert_eq!(table_rows(&[]), "");
        assert_eq!(table_rows(&points[..1]).matches("<tr>").count(), 1);
    }

    #[test]
    fn no_evaluation_falls_between_the_rows() {
        let point = |epoch: u64| HistoryPoint {
            epoch,
            n_samples_total: 0,
            train_loss: Some(1.0),
            test_accuracy: (epoch % 25 == 3).then_some(epoch as f32 / 1000.0),
        };
        let points: Vec<HistoryPoint> = (1..=500).map(point).collect();
        let rows = table_rows(&points);
        assert!(rows.matches("<tr>").count() <= ROWS_MAX);
        for evaluated in points.iter().filter_map(|point| point.test_accuracy) {
            assert!(
                rows.contains(&format!("<td>{}</td>", format::percent(evaluated))),
                "{evaluated}: {rows}"
            );
        }
        let epochs: Vec<&str> =
            rows.split("<tr><td>").skip(1).filter_map(|row| row.split('<').next()).collect();
        let epochs: Vec<u64> = epochs.into_iter().filter_map(|epoch| epoch.parse().ok()).collect();
        assert!(
            epochs.first() == Some(&500) && epochs.is_sorted_by(|newer, older| newer > older),
            "{epochs:?}"
        );
    }
}
