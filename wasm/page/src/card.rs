//! The card that a visitor may share: what it says and where. Pure; drawn by [`crate::share`].

use crate::chart;
use crate::format;
use crate::state::Page;

/// Size in pixels, as others like pictures to be that a link is shown with.
pub(crate) const SIZE: (u32, u32) = (1200, 630);
/// Where the curve is, within the card: left, top, width, height.
const CURVE: (f64, f64, f64, f64) = (700.0, 190.0, 420.0, 250.0);
/// Longest line, so that it does not run into the curve.
const LINE_CHARS_MAX: usize = 40;

/// What a card says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Card {
    /// The run.
    pub(crate) title: String,
    /// Who gave, and what.
    pub(crate) headline: String,
    /// More of it, a line each.
    pub(crate) lines: Vec<String>,
    /// What the curve is of, with its newest value.
    pub(crate) curve_label: String,
    /// In pixels of the card.
    pub(crate) curve: Vec<(f64, f64)>,
    /// Where to go.
    pub(crate) place: String,
}

impl Card {
    /// The card of this visitor; `None` before anything was given.
    pub(crate) fn of(page: &Page) -> Option<Self> {
        let (run, given) = (page.run.as_ref()?, page.given()?);
        let samples = format::counted(given.n_samples, "sample", "samples");
        let headline = match &page.giving.name {
            Some(name) => format!("{name} gave {samples}"),
            None => format!("I gave {samples}"),
        };
        let updates = format::counted(given.n_contributions, "update", "updates");
        let mut lines = vec![format!("in {updates} and {}", format::duration(given.seconds()))];
        if let Some(rank) = page.rank() {
            let of = format::counted(rank.n_contributors, "contributor", "contributors");
            lines.push(format!("Place {} of {of}", format::count(rank.place)));
        }
        if let Some(progress) = &page.progress {
            lines.push(format!(
                "{} made so far, by all of us",
                format::counted(progress.epoch, "step", "steps")
            ));
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
            title: shortened(&run.title, 2 * LINE_CHARS_MAX - 20),
            headline: shortened(&headline, LINE_CHARS_MAX),
            lines: lines.iter().map(|line| shortened(line, LINE_CHARS_MAX)).collect(),
            curve_label,
            curve: chart::fit(&points, CURVE),
            place: shortened(page.origin().trim_start_matches("https://"), 2 * LINE_CHARS_MAX),
        })
    }

    /// In a sentence, for whoever cannot see it.
    pub(crate) fn in_words(&self) -> String {
        format!("{} {}. {}. {}", self.headline, self.lines.join(". "), self.title, self.place)
    }
}

fn shortened(text: &str, chars_max: usize) -> String {
    match text.chars().count() > chars_max {
        true => text.chars().take(chars_max - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_messages::DisplayName;
    use barnraise_protocol::api::HistoryPoint;

    use super::*;
    use crate::fixture;
    use crate::kept::Kept;

    fn page() -> Page {
        let mut kept = Kept::default();
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
        let card = Card::of(&page).unwrap();
        assert_eq!(card.headline, "I gave 128 samples");
        assert!(card.lines[0].starts_with("in 2 updates and "), "{card:?}");
        assert_eq!((card.curve_label.as_str(), card.curve.len()), ("Accuracy: 60.0 %", 3));
        let (left, top, width, height) = CURVE;
        for (x, y) in &card.curve {
            assert!((left..=left + width).contains(x) && (top..=top + height).contains(y), "{card:?}");
        }
        let page = page.called(DisplayName::new(&"W".repeat(32)).ok());
        let card = Card::of(&page).unwrap();
        assert!(card.headline.chars().count() <= LINE_CHARS_MAX && card.headline.ends_with('…'), "{card:?}");
        assert!(card.in_words().contains("127.0.0.1"));
    }

    #[test]
    fn who_gave_nothing_has_no_card() {
        assert_eq!(Card::of(&fixture::page()), None);
    }
}
