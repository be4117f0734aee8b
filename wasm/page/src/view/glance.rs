//! What a newcomer asks first: how it goes, who helps, and what it costs.

use crate::cost::HourCost;
use crate::dom::{DomError, Field};
use crate::format;
use crate::state::PageState;

pub(crate) struct GlanceView {
    accuracy: Field,
    baseline: Field,
    contributors: Field,
    steps: Field,
    cost: Field,
    cost_note: Field,
}

impl GlanceView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            accuracy: Field::find("glance-accuracy")?,
            baseline: Field::find("glance-baseline")?,
            contributors: Field::find("glance-contributors")?,
            steps: Field::find("glance-steps")?,
            cost: Field::find("glance-cost")?,
            cost_note: Field::find("glance-cost-note")?,
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let (cost, note) = cost(page);
        self.cost.set_text(&cost);
        self.cost_note.set_text(note);
        self.baseline.set_text(&baseline(page));
        let Some(progress) = &page.progress else { return };
        let accuracy = progress.test_accuracy.map_or_else(|| "not yet".into(), format::percent);
        self.accuracy.set_text(&accuracy);
        self.contributors.set_text(&match progress.n_contributors {
            0 => "nobody".to_owned(),
            n => format::count(n.into()),
        });
        self.steps.set_text(&format!("{} made", page.steps_in_words(progress.epoch)));
    }
}

/// What the accuracy is compared with.
fn baseline(page: &PageState) -> String {
    page.majority_accuracy
        .map_or_else(String::new, |share| format::unbroken(&format!("guessing: {}", format::percent(share))))
}

/// The data of an hour, or of a step while nobody computes; and what the number is.
fn cost(page: &PageState) -> (String, &'static str) {
    let Some(cost) = page.run_cost() else { return ("–".into(), "") };
    match page.hour_cost() {
        Some(HourCost::Measured(bytes) | HourCost::OfOthers(bytes)) => {
            (format::bytes(bytes), "an hour, about")
        }
        Some(HourCost::Estimated(bytes)) => (format::rough_bytes(bytes), "an hour, roughly"),
        None => (format::bytes(cost.step_bytes()), "each time the model improves"),
    }
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::api::{AcceptedTotals, Contributions};

    use super::*;
    use crate::fixture;
    use crate::state::PageEvent;

    #[test]
    fn the_cost_is_by_the_hour_once_it_is_known_what_others_gave() {
        let mut page = fixture::page();
        assert_eq!(cost(&page), ("247 kB".into(), "each time the model improves"));
        for (at_ms, epoch) in [(0.0, 9), (10_000.0, 10)] {
            let mut live = fixture::live();
            live.progress.epoch = epoch;
            page.on_event(at_ms, PageEvent::Live(live));
        }
        assert_eq!(cost(&page), ("90 MB".into(), "an hour, roughly"));
        let totals = AcceptedTotals { n_contributions: 60, n_samples: 1, n_bytes: 7_000_000, seconds: 360 };
        let leaders = Contributions { totals, ..Contributions::default() };
        page.on_event(0.0, PageEvent::LeadersKnown(Box::new(leaders)));
        assert_eq!(cost(&page), ("144 MB".into(), "an hour, about"));
        page.run = None;
        assert_eq!(cost(&page).0, "–");
    }

    #[test]
    fn an_accuracy_has_its_baseline() {
        let mut page = fixture::page();
        assert_eq!(baseline(&page), "");
        page.majority_accuracy = Some(0.162);
        assert_eq!(baseline(&page), "guessing: 16.2\u{a0}%");
    }
}
