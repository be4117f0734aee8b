//! Asking the model about a row of a table, or for items that somebody may like.

use barnraise_messages::PageToPeer;
use barnraise_protocol::columns::{ColumnContent, DataColumns};

use super::{PageAction, PageState, WorkerState};

/// Columns that are asked for; the others are as in the mean row.
pub(crate) const FIELDS_MAX: usize = 60;
/// Items that somebody may rate.
pub(crate) const RATED_MAX: usize = 50;

/// What the worker answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RowAnswer {
    /// Probabilities of the classes, or values.
    Told { epoch: u64, told: Vec<f32> },
    /// Numbers of items and what they would get, the best first.
    Recommended { epoch: u64, items: Vec<(u32, f32)> },
    /// There is no answer, in the words of who found out.
    Failed { reason: String },
}

/// What the visitor asks about, and the model's answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rows {
    /// How the run reads its data; `None` until it is known.
    pub(crate) columns: Option<DataColumns>,
    /// Of a table: what stands in the fields, one for each column.
    cells: Vec<String>,
    /// Of ratings: numbers of items and what the visitor gives them.
    pub(crate) rated: Vec<(u32, f32)>,
    /// Whether it waits for an answer.
    pub(crate) is_open: bool,
    pub(crate) answer: Option<RowAnswer>,
    request: u32,
}

impl PageState {
    /// Asks for the columns, where the run has some, and a model that can be asked or participants with a table of their own.
    pub(super) fn ask_for_columns(&self) -> Option<PageAction> {
        let has_model = self.models.as_ref().is_some_and(|models| models.latest.is_some());
        let is_wanted = has_model || self.takes_own_table();
        (is_wanted && self.is_of_rows() && self.rows.columns.is_none()).then_some(PageAction::AskForColumns)
    }

    /// Takes the columns, if they are the run's.
    pub(super) fn on_columns(&mut self, columns: DataColumns) {
        let run = self.run.as_ref();
        if run.is_some_and(|run| columns.check(&run.data.manifest.samples).is_ok()) {
            self.rows.columns = Some(columns);
        }
    }

    /// The visitor wants a row told of.
    pub(super) fn ask_of_row(&mut self, cells: Vec<String>) -> Vec<PageAction> {
        self.rows.cells = cells;
        self.ask_of_rows()
    }

    /// Tells of what is typed, once the visitor has asked for it: nothing is downloaded before.
    pub(super) fn on_row_typed(&mut self, cells: Vec<String>) -> Vec<PageAction> {
        let was_asked = self.rows.is_open || self.rows.answer.is_some();
        let is_ready = matches!(self.peer, WorkerState::Ready { .. });
        match was_asked && is_ready && cells != self.rows.cells {
            true => self.ask_of_row(cells),
            false => Vec::new(),
        }
    }

    /// The visitor gives an item a rating; one that it has is replaced.
    pub(super) fn rate(&mut self, name: &str, rating: &str) -> Vec<PageAction> {
        let Some(DataColumns::Ratings(columns)) = &self.rows.columns else { return Vec::new() };
        let n_items = self.n_items();
        let found = columns.find(name).filter(|&item| item < n_items);
        let rating = barnraise_protocol::columns::number(rating).map(|rating| columns.clamped(rating));
        let failed = |reason: String| Some(RowAnswer::Failed { reason });
        match (found, rating) {
            (Some(item), Some(rating)) => {
                self.rows.rated.retain(|&(known, _)| known != item);
                self.rows.rated.push((item, rating));
                let n_more = self.rows.rated.len().saturating_sub(RATED_MAX);
                self.rows.rated.drain(..n_more);
                self.ask_of_rows()
            }
            (None, _) => {
                self.rows.answer = failed(format!("nobody has rated “{}” here", name.trim()));
                Vec::new()
            }
            (_, None) => {
                self.rows.answer = failed("a rating is a number".into());
                Vec::new()
            }
        }
    }

    /// The visitor takes a rating back.
    pub(super) fn unrate(&mut self, item: u32) -> Vec<PageAction> {
        self.rows.rated.retain(|&(known, _)| known != item);
        match self.rows.rated.is_empty() {
            true => {
                (self.rows.answer, self.rows.is_open) = (None, false);
                Vec::new()
            }
            false => self.ask_of_rows(),
        }
    }

    fn ask_of_rows(&mut self) -> Vec<PageAction> {
        self.rows.is_open = true;
        match self.peer {
            WorkerState::Ready { .. } => self.post_row().into_iter().collect(),
            _ => self.load(),
        }
    }

    /// Posts the waiting question to the worker. What is shown stays until the answer is there.
    pub(super) fn post_row(&mut self) -> Option<PageAction> {
        if !self.rows.is_open {
            return None;
        }
        let rows = &mut self.rows;
        rows.request = rows.request.wrapping_add(1);
        let request = rows.request;
        match &rows.columns {
            Some(DataColumns::Table(columns)) => {
                let cell = |column: usize| rows.cells.get(column).map_or("", String::as_str);
                match columns.row(cell) {
                    Ok(values) => Some(PageAction::Post(PageToPeer::Tell { request, values })),
                    Err(error) => {
                        (rows.is_open, rows.answer) =
                            (false, Some(RowAnswer::Failed { reason: error.to_string() }));
                        None
                    }
                }
            }
            Some(DataColumns::Ratings(_)) => {
                let rated = rows.rated.clone();
                Some(PageAction::Post(PageToPeer::Recommend { request, rated }))
            }
            None => None,
        }
    }

    pub(super) fn on_row_answer(&mut self, request: u32, answer: RowAnswer) {
        if request == self.rows.request && self.rows.is_open {
            self.rows.is_open = false;
            self.rows.answer = Some(answer);
        }
    }

    /// Number of fields that the visitor may fill in.
    pub(crate) fn n_fields(&self) -> usize {
        match &self.rows.columns {
            Some(DataColumns::Table(columns)) => columns.columns.len().min(FIELDS_MAX),
            _ => 0,
        }
    }
}

/// What a field says while nothing stands in it: the mean of the numbers in this column.
pub(crate) fn placeholder(content: &ColumnContent) -> Option<String> {
    match content {
        ColumnContent::Number(scale) => {
            // Two digits of what differs.
            let digits = (2.0 - scale.deviation.log10().ceil()).clamp(0.0, 6.0) as usize;
            Some(format!("{:.digits$}", scale.mean))
        }
        ColumnContent::Words(_) => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use barnraise_messages::PeerToPage;
    use barnraise_protocol::api::{ModelFile, Models};
    use barnraise_protocol::columns::Scale;

    use super::super::PageEvent;
    use super::*;
    use crate::fixture;

    fn models() -> PageEvent {
        let latest = Some(ModelFile { epoch: 9, age_seconds: 1, n_bytes: 1 });
        PageEvent::ModelsKnown(Models { latest, earlier: Vec::new() })
    }

    fn posted(actions: &[PageAction]) -> Vec<&PageToPeer> {
        let mut posted = Vec::new();
        for action in actions {
            if let PageAction::Post(message) = action {
                posted.push(message);
            }
        }
        posted
    }

    fn row(cells: [&str; 2]) -> Vec<String> {
        cells.map(str::to_owned).into()
    }

    #[test]
    fn a_row_is_told_of_as_it_is_typed_once_it_was_asked_for() {
        let mut page = fixture::table_page();
        assert_eq!(page.on_event(0.0, models()), [PageAction::AskForColumns]);
        page.on_event(0.0, PageEvent::ColumnsKnown(Box::new(fixture::rating_columns())));
        assert_eq!(page.rows.columns, None, "they are of another run");
        page.on_event(0.0, PageEvent::ColumnsKnown(Box::new(fixture::table_columns())));
        assert!(page.on_event(0.0, models()).is_empty(), "they are known");
        assert!(
            page.on_event(1.0, PageEvent::RowTyped(row(["1", "red"]))).is_empty(),
            "nothing was asked for"
        );
        assert_eq!(page.on_event(2.0, PageEvent::RowAsked(row(["10", "red"])))[0], PageAction::SpawnPeer);
        let actions = page.on_event(3.0, fixture::ready());
        let values = vec![2.0, 1.5, -1.5];
        assert!(posted(&actions).contains(&&PageToPeer::Tell { request: 1, values }), "{actions:?}");
        let told =
            |request| PageEvent::FromPeer(PeerToPage::Told { request, epoch: 7, told: vec![0.1, 0.9] });
        page.on_event(4.0, told(1));
        assert_eq!(page.rows.answer, Some(RowAnswer::Told { epoch: 7, told: vec![0.1, 0.9] }));
        assert!(page.on_event(5.0, PageEvent::RowTyped(row(["10", "red"]))).is_empty(), "it is the same");
        let actions = page.on_event(5.0, PageEvent::RowTyped(row(["", "white"])));
        let values = vec![0.0, -0.5, 0.5];
        assert_eq!(posted(&actions), [&PageToPeer::Tell { request: 2, values }]);
        page.on_event(6.0, told(1));
        assert!(page.rows.is_open, "an answer to another row");
        assert!(page.on_event(6.0, PageEvent::RowTyped(row(["long", "white"]))).is_empty());
        let Some(RowAnswer::Failed { reason }) = &page.rows.answer else { panic!("{:?}", page.rows) };
        assert!(reason.contains("\"long\" came"), "{reason}");
        assert!(!page.contributing, "asking is not contributing");
    }

    #[test]
    fn what_was_rated_leads_to_items_and_can_be_taken_back() {
        let mut page = fixture::rating_page();
        page.on_event(0.0, models());
        page.on_event(0.0, PageEvent::ColumnsKnown(Box::new(fixture::rating_columns())));
        page.on_event(1.0, fixture::ready());
        let rated =
            |name: &str, rating: &str| PageEvent::ItemRated { name: name.into(), rating: rating.into() };
        assert!(page.on_event(2.0, rated("Alien", "5")).is_empty(), "nobody has rated it");
        assert!(matches!(&page.rows.answer, Some(RowAnswer::Failed { reason }) if reason.contains("Alien")));
        let recommend =
            |request, rated: &[(u32, f32)]| PageToPeer::Recommend { request, rated: rated.into() };
        assert_eq!(posted(&page.on_event(3.0, rated("Jaws", "9"))), [&recommend(1, &[(0, 5.0)])]);
        let more = page.on_event(4.0, rated("Psycho", "2"));
        assert_eq!(posted(&more), [&recommend(2, &[(0, 5.0), (1, 2.0)])]);
        let again = page.on_event(4.0, rated("Jaws", "1"));
        assert_eq!(posted(&again), [&recommend(3, &[(1, 2.0), (0, 1.0)])]);
        let items = vec![(1, 4.5)];
        page.on_event(5.0, PageEvent::FromPeer(PeerToPage::Recommended { request: 3, epoch: 7, items }));
        assert_eq!(page.rows.answer, Some(RowAnswer::Recommended { epoch: 7, items: vec![(1, 4.5)] }));
        assert_eq!(posted(&page.on_event(6.0, PageEvent::ItemUnrated(1))), [&recommend(4, &[(0, 1.0)])]);
        assert!(page.on_event(7.0, PageEvent::ItemUnrated(0)).is_empty() && page.rows.answer.is_none());
    }

    #[test]
    fn a_field_says_the_mean_with_the_digits_that_matter() {
        let of = |mean, deviation| placeholder(&ColumnContent::Number(Scale { mean, deviation }));
        assert_eq!(of(5.8433, 0.825).as_deref(), Some("5.84"));
        assert_eq!(of(37_418.4, 12_000.0).as_deref(), Some("37418"));
        assert_eq!(of(0.001_234, 0.0002).as_deref(), Some("0.00123"));
        assert_eq!(placeholder(&ColumnContent::Words(Vec::new())), None);
    }
}
