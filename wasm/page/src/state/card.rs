//! Content and layout of the card that a visitor may share. Drawn by [`crate::share`].

use barnraise_messages::DisplayName;

use super::PageState;
use crate::chart;
use crate::format;

/// Size in pixels, as usual for link previews.
pub(crate) const CARD_SIZE: (u32, u32) = (1200, 630);
/// Place of the curve in the card: left, top, width, height.
const CURVE: (f64, f64, f64, f64) = (700.0, 190.0, 420.0, 250.0);
/// Longest line, so that it does not run into the curve.
const LINE_CHARS_MAX: usize = 40;

/// Why there is no card to share. For people, without a full stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CardError {
    /// The visitor closed the dialog.
    #[error("it was not shared")]
    NotShared,
    /// The browser has no canvas, or cannot make a picture of it.
    #[error("this browser could not draw it")]
    NotDrawn,
}

/// Content of a card.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ShareCard {
    /// Title of the run.
    pub(crate) title: String,
    /// The visitor's name and number of samples.
    pub(crate) headline: String,
    /// Details, a line each.
    pub(crate) lines: Vec<String>,
    /// Label of the curve, with its newest value.
    pub(crate) curve_label: String,
    /// Points in pixels of the card.
    pub(crate) curve: Vec<(f64, f64)>,
    /// Address of the run.
    pub(crate) place: String,
}

impl ShareCard {
    /// The card of this visitor; `None` before anything was given.
    pub(crate) fn of(page: &PageState) -> Option<Self> {
        let (run, given) = (page.run.as_ref()?, page.given()?);
        let samples = format::counted(given.n_samples, "sample", "samples");
        let gave = format!(" gave {samples}");
        // A long name gives way to what was given.
        let name = page.giving.name.as_ref().map_or("I", DisplayName::as_str);
        let headline = shortened(name, LINE_CHARS_MAX.saturating_sub(gave.chars().count())) + &gave;
        let updates = format::counted(given.n_contributions, "update", "updates");
        let mut lines = vec![format!("in {updates} and {}", format::duration(given.seconds()))];
        if let Some(rank) = page.rank() {
            let of = format::counted(rank.n_contributors, "contributor", "contributors");
            lines.push(format!("Place {} of {of}", format::count(rank.place)));
        }
        if let Some(progress) = &page.progress {
            lines.push(format!("{} made so far, by all of us", page.steps_in_words(progress.epoch)));
        }
        let (accuracies, losses) = (page.history.accuracies(), page.history.losses());
        let (points, curve_label) = match (accuracies.last(), losses.last()) {
            (Some(newest), _) => {
                let label = format!("Accuracy: {}", format::percent(newest.1 as f32));
                (accuracies, label)
            }
            (None, Some(newest)) => {
                let label = format!("Loss: {}", format::loss(newest.1 as f32));
                (losses, label)
            }
            (None, None) => (Vec::new(), String::new()),
        };
        Some(Self {
            title: shortened(&run.identity.title, 2 * LINE_CHARS_MAX - 20),
            headline,
            lines: lines.iter().map(|line| shortened(line, LINE_CHARS_MAX)).collect(),
            curve_label,
            curve: chart::fit(&points, CURVE),
            place: shortened(page.origin().trim_start_matches("https://"), 2 * LINE_CHARS_MAX),
        })
    }

    /// Text alternative for screen readers.
    pub(crate) fn in_words(&self) -> String {
        format!("{} {}. {}. {}", self.headline, self.lines.join(". "), self.title, self.place)
    }
}

fn shortened(text: &str, chars_max: usize) -> String {
    match text.chars().count() > chars_max {
        true => text.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::api::HistoryPoint;

    use super::*;
    use crate::browser_totals::BrowserTotals;
    use crate::fixture;

    fn page() -> PageState {
        let mut kept = BrowserTotals::default();
        [1, 2].into_iter().for_each(|id| kept.add(fixture::receipt("garments", id)));
        fixture::page().remembering(kept)
    }

    #[test]
    fn a_card_says_what_was_given_and_how_it_is_learning() {
        let mut page = page();
        for epoch in 1..=3 {
            page.history.push(HistoryPoint {
                epoch,
                n_samples_total: 0,
                train_loss: Some(1.0),
                test_accuracy: Some(0.2 * epoch as f32),
            });
        }
        let card = ShareCard::of(&page).unwrap();
        assert_eq!(card.headline, "I gave 128 samples");
        assert!(card.lines[0].starts_with("in 2 updates and "), "{card:?}");
        assert_eq!((card.curve_label.as_str(), card.curve.len()), ("Accuracy: 60.0 %", 3));
        let (left, top, width, height) = CURVE;
        for (x, y) in &card.curve {
            assert!((left..=left + width).contains(x) && (top..=top + height).contains(y), "{card:?}");
        }
        let page = page.called(DisplayName::new(&"W".repeat(32)).ok());
        let card = ShareCard::of(&page).unwrap();
        let is_short = card.headline.chars().count() <= LINE_CHARS_MAX;
        assert!(is_short && card.headline.ends_with("W… gave 128 samples"), "{card:?}");
        assert!(card.in_words().contains("127.0.0.1"));
    }

    #[test]
    fn without_contributions_there_is_no_card() {
        assert_eq!(ShareCard::of(&fixture::page()), None);
    }
}
