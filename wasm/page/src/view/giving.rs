//! The visitor's rank, receipts, card and name, and the download of the model.

use barnraise_protocol::api::{ModelFile, Models, RefusalCount};

use crate::dom::{DomError, Field};
use crate::format;
use crate::state::{PageState, RECEIPTS_MAX, Rank};

pub(crate) struct GivingView {
    rank: Field,
    refusals: Field,
    receipts_section: Field,
    receipts: Field,
    receipts_note: Field,
    share: Field,
    share_note: Field,
    name_note: Field,
    model: Field,
    model_note: Field,
}

impl GivingView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            rank: Field::find("rank")?,
            refusals: Field::find("refusals")?,
            receipts_section: Field::find("belongings")?,
            receipts: Field::find("receipts")?,
            receipts_note: Field::find("receipts-note")?,
            share: Field::find("share")?,
            share_note: Field::find("share-note")?,
            name_note: Field::find("name-note")?,
            model: Field::find("model-file")?,
            model_note: Field::find("model-note")?,
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let rank = page.rank();
        self.rank.set_number(
            &rank.map(rank_in_words).unwrap_or_default(),
            rank.map_or(0.0, |rank| rank.place as f64),
        );
        self.rank.set_hidden(rank.is_none());
        let refusals = refusals_in_words(&page.contribution.refusals);
        self.refusals.set_optional(refusals.as_deref());
        self.draw_receipts(page);
        self.name_note.set_optional(page.giving.name_note.as_deref());
        let newest = page.models.as_ref().and_then(|models: &Models| models.latest);
        self.model.set_hidden(newest.is_none());
        if let Some(newest) = newest {
            self.model_note.set_number(&model_in_words(page, newest), newest.epoch as f64);
        }
    }

    fn draw_receipts(&mut self, page: &PageState) {
        let n_receipts = page.giving.n_receipts.unwrap_or_default();
        let has_given = page.given().is_some();
        self.receipts_section.set_hidden(n_receipts == 0 && !has_given);
        self.receipts.set_hidden(n_receipts == 0);
        self.receipts_note.set_number(&receipts_in_words(n_receipts), n_receipts as f64);
        self.share.set_hidden(!has_given);
        let (note, n_bytes) = match &page.giving.card {
            Some(Ok(n_bytes)) => ("The card is yours.".to_owned(), *n_bytes),
            Some(Err(reason)) => (format!("No card: {reason}."), 0),
            None => (String::new(), 0),
        };
        self.share_note.set_number(&note, n_bytes as f64);
    }
}

fn receipts_in_words(n_receipts: u64) -> String {
    if n_receipts == 0 {
        return String::new();
    }
    let receipts = format::counted(n_receipts, "receipt", "receipts");
    let text = format!(
        "{receipts}, each signed by who accepted the update; \u{201c}barnraise receipts\u{201d} checks the file."
    );
    match n_receipts < u64::from(RECEIPTS_MAX) {
        true => text,
        false => format!(
            "{text} This browser keeps no more: for each new one the oldest goes, so download them now."
        ),
    }
}

fn rank_in_words(rank: Rank) -> String {
    let of = format::counted(rank.n_contributors, "contributor", "contributors");
    format!("Place {} of {of}.", format::count(rank.place))
}

fn model_in_words(page: &PageState, model: ModelFile) -> String {
    format!(
        "After {}, {}, {}.",
        page.steps_in_words(model.epoch),
        format::bytes(model.n_bytes),
        format::ago(model.age_seconds)
    )
}

/// `Refused: 2 came too late for their step, 1 had numbers that are none.`
fn refusals_in_words(refusals: &[RefusalCount]) -> Option<String> {
    let reasons: Vec<String> = refusals
        .iter()
        .map(|RefusalCount { reason, n }| format!("{} {}", format::count(*n), reason_in_words(reason)))
        .collect();
    (!reasons.is_empty()).then(|| format!("Refused: {}.", reasons.join(", ")))
}

fn reason_in_words(reason: &str) -> &str {
    match reason {
        "epoch" => "too late for their step",
        "length" | "bytes" | "codec" => "in another form than this run wants",
        "samples" => "with more samples than one update may have",
        "rate" => "with more samples than the time allows",
        "not_finite" => "with numbers that are none",
        "norm" => "with a gradient longer than any honest one",
        "transfer" => "damaged on the way",
        "no_access" => "without access to the run",
        "account" => "without a valid commitment to their samples",
        "too_few" => "with fewer samples than are worth an update",
        "too_many" => "more than one device gives for a step",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn refusals_are_counted_by_reason() {
        let count = |reason: &str, n| RefusalCount { reason: reason.into(), n };
        let text = refusals_in_words(&[count("epoch", 2), count("not_finite", 1)]);
        assert_eq!(
            text.as_deref(),
            Some("Refused: 2 too late for their step, 1 with numbers that are none.")
        );
        assert_eq!(refusals_in_words(&[]), None);
    }

    #[test]
    fn a_visitor_is_told_before_the_oldest_receipts_are_deleted() {
        assert_eq!(receipts_in_words(0), "");
        assert!(receipts_in_words(1).starts_with("1 receipt, "));
        let (some, all) = (u64::from(RECEIPTS_MAX) - 1, u64::from(RECEIPTS_MAX));
        assert!(!receipts_in_words(some).contains("oldest"));
        assert!(
            receipts_in_words(all).starts_with("10,000 receipts")
                && receipts_in_words(all).contains("oldest")
        );
    }

    #[test]
    fn a_model_and_a_place_in_words() {
        let model = ModelFile { epoch: 1234, age_seconds: 120, n_bytes: 246_000 };
        assert_eq!(model_in_words(&fixture::page(), model), "After 1,234 steps, 246 kB, 2 minutes ago.");
        let sampled = model_in_words(&fixture::sampled_page(), model);
        assert!(sampled.starts_with("After 1,234 rounds, "), "{sampled}");
        assert_eq!(rank_in_words(Rank { place: 3, n_contributors: 17 }), "Place 3 of 17 contributors.");
    }
}
