//! The leaderboard, and the totals of this browser.

use barnraise_protocol::api::{Contributions, ContributorTotals};
use web_sys::Element;

use crate::browser_totals::RunTotals;
use crate::dom::{DomError, Field, by_id, create, set_attribute};
use crate::format;
use crate::state::PageState;

/// Rows of the table, laid out before their content is known.
pub(crate) const N_ROWS: usize = 5;
/// Characters of a peer id that are shown, from its end: the beginning is the same for all.
const ID_CHARS: usize = 8;
const DASH: &str = "–";

pub(crate) struct LeadersView {
    given: Field,
    summary: Field,
    rows: Vec<Row>,
}

struct Row {
    row: Element,
    cells: [Element; 5],
    texts: [String; 5],
}

impl LeadersView {
    pub(crate) fn find() -> Result<Self, DomError> {
        let place: Element = by_id("leader-rows")?;
        let rows = (0..N_ROWS).map(|_| Row::new(&place)).collect::<Result<_, _>>()?;
        Ok(Self { given: Field::find("given")?, summary: Field::find("leaders-summary")?, rows })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let given = page.given();
        self.given.set_number(&own_total(given), given.map_or(0, |given| given.n_samples) as f64);
        self.given.set_hidden(given.is_none());
        let Some(leaders) = &page.leaders else { return };
        self.summary.set_text(&summary(leaders));
        for (idx, row) in self.rows.iter_mut().enumerate() {
            let totals = leaders.contributors.get(idx);
            let is_own = totals.is_some_and(|totals| page.peer_id.as_ref() == Some(&totals.peer));
            row.draw(totals.map(|totals| texts(totals, is_own)), is_own);
        }
    }
}

impl Row {
    fn new(place: &Element) -> Result<Self, DomError> {
        let row: Element = create("tr")?;
        let mut cells = Vec::new();
        for (idx, name) in ["peer", "samples", "updates", "time", "sent"].into_iter().enumerate() {
            let cell: Element = create(if idx == 0 { "th" } else { "td" })?;
            cell.set_attribute("class", name)?;
            cell.set_text_content(Some(DASH));
            row.append_child(&cell)?;
            cells.push(cell);
        }
        row.set_attribute("aria-hidden", "true")?;
        place.append_child(&row)?;
        let cells = cells.try_into().map_err(|_| DomError::Element("leader-rows"))?;
        Ok(Self { row, cells, texts: std::array::from_fn(|_| DASH.to_owned()) })
    }

    fn draw(&mut self, texts: Option<[String; 5]>, is_own: bool) {
        set_attribute(&self.row, "aria-hidden", if texts.is_none() { "true" } else { "false" });
        let texts = texts.unwrap_or_else(|| std::array::from_fn(|_| DASH.to_owned()));
        for ((cell, shown), text) in self.cells.iter().zip(&mut self.texts).zip(texts) {
            if *shown != text {
                // As text, never as markup: it comes from outside.
                cell.set_text_content(Some(&text));
                *shown = text;
            }
        }
        set_attribute(&self.row, "data-own", if is_own { "true" } else { "false" });
    }
}

fn own_total(given: Option<&RunTotals>) -> String {
    let Some(given) = given else { return String::new() };
    format!(
        "Over all your visits: {} accepted in {}, {} of computing, {} of gradients.",
        format::counted(given.n_samples, "sample", "samples"),
        format::counted(given.n_contributions, "update", "updates"),
        format::duration(given.seconds()),
        format::bytes(given.n_bytes)
    )
}

fn texts(totals: &ContributorTotals, is_own: bool) -> [String; 5] {
    let given = &totals.totals;
    let n_chars = totals.peer.chars().count();
    let end: String = totals.peer.chars().skip(n_chars.saturating_sub(ID_CHARS)).collect();
    [
        match &totals.name {
            Some(name) if is_own => format!("This tab, {name}"),
            None if is_own => "This tab".into(),
            // With the id, as names are not unique.
            Some(name) => format!("{name} …{end}"),
            None => format!("…{end}"),
        },
        format::count(given.n_samples),
        format::count(given.n_contributions),
        format::duration(given.seconds),
        format::bytes(given.n_bytes),
    ]
}

fn summary(leaders: &Contributions) -> String {
    match leaders.n_contributors {
        0 => "Nothing was accepted yet.".into(),
        n => format!(
            "{} gave {} in {}.",
            format::counted(n, "contributor", "contributors"),
            format::counted(leaders.totals.n_samples, "sample", "samples"),
            format::duration(leaders.totals.seconds)
        ),
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::DisplayName;
    use barnraise_protocol::api::AcceptedTotals as Totals;

    use super::*;

    #[test]
    fn a_row_says_who_by_the_end_of_the_id_and_what() {
        let given = Totals { n_contributions: 45, n_samples: 12_345, n_bytes: 3_400_000, seconds: 4000 };
        let totals =
            ContributorTotals { peer: "12D3KooWabcdEFGH".into(), name: None, totals: given, last_epoch: 3 };
        assert_eq!(texts(&totals, false), ["…abcdEFGH", "12,345", "45", "1.1 h", "3.4 MB"]);
        assert_eq!(texts(&totals, true)[0], "This tab");
        let named = ContributorTotals { name: DisplayName::new("Ada").ok(), ..totals.clone() };
        assert_eq!([&texts(&named, false)[0], &texts(&named, true)[0]], ["Ada …abcdEFGH", "This tab, Ada"]);
        let short = ContributorTotals { peer: "é".into(), ..totals };
        assert_eq!(texts(&short, false)[0], "…é");
    }

    #[test]
    fn the_summary_counts_everybody() {
        let totals = Totals { n_contributions: 3, n_samples: 1, n_bytes: 9, seconds: 59 };
        let leaders = Contributions { totals, n_contributors: 2, ..Contributions::default() };
        assert_eq!(summary(&leaders), "2 contributors gave 1 sample in 59 s.");
        assert_eq!(summary(&Contributions::default()), "Nothing was accepted yet.");
    }
}
