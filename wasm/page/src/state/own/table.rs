//! A table of the visitor's own. The worker reads its rows; the page keeps the text, for each new worker.

use barnraise_messages::PageToPeer;
use barnraise_protocol::columns::{DataColumns, TableColumns};
use barnraise_protocol::dataset::{SampleKind, TableTarget};

use super::OWN_BYTES_MAX;
use crate::format;
use crate::state::{PageAction, PageState, TabRole, WorkerState};

/// How far the table is that the visitor chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TableProgress {
    /// The browser reads the file.
    Reading,
    /// The worker reads its rows, once it is there.
    Checking,
    /// Its rows are trained on. Where the first one that was left out stands, and why, is in words.
    Used { n_rows: u32, n_broken: u32, first_broken: Option<String> },
    /// It is not the run's, or too large.
    Refused { reason: String },
}

/// The table that the visitor chose.
#[derive(Debug, Default)]
pub(crate) struct OwnTable {
    /// Its name, and how far it is.
    file: Option<(String, TableProgress)>,
    /// Where it is not refused.
    text: Option<Vec<u8>>,
    /// The worker does not have it yet.
    is_changed: bool,
    request: u32,
}

impl OwnTable {
    /// Returns whether a worker may have it.
    pub(super) fn forget(&mut self) -> bool {
        let is_known = self.text.is_some();
        *self = Self { request: self.request, ..Self::default() };
        is_known
    }

    /// A new worker does not have it.
    pub(super) fn forget_posted(&mut self) {
        self.is_changed = self.text.is_some();
    }
}

impl PageState {
    /// Whether the visitor may bring a table to this run.
    pub(crate) fn takes_own_table(&self) -> bool {
        self.is_sampled() && self.table_schema().is_some()
    }

    /// Columns of the run's table, and what is to be told of a row.
    fn table_schema(&self) -> Option<(&TableColumns, &TableTarget)> {
        match (&self.rows.columns, &self.run.as_ref()?.data.manifest.samples) {
            (Some(DataColumns::Table(columns)), SampleKind::Rows(shape)) => Some((columns, &shape.target)),
            _ => None,
        }
    }

    /// The columns that a table of the visitor's must have.
    pub(crate) fn own_table_columns(&self) -> Vec<&str> {
        let Some((columns, _)) = self.table_schema() else { return Vec::new() };
        let inputs = columns.columns.iter().map(|column| column.name.as_str());
        inputs.chain([columns.target.as_str()]).collect()
    }

    /// Name of the table that was chosen, and how far it is.
    pub(crate) fn own_table(&self) -> Option<(&str, &TableProgress)> {
        self.own_table.file.as_ref().map(|(name, progress)| (name.as_str(), progress))
    }

    /// Whether the browser is to read the file that was chosen.
    pub(crate) fn reads_own_table(&self) -> bool {
        matches!(self.own_table(), Some((_, TableProgress::Reading)))
    }

    /// The visitor chose a file, in place of another one.
    pub(super) fn begin_own_table(&mut self, name: String, n_bytes: u64) {
        self.own.is_changed |= self.own_table.forget();
        let bytes_max = OWN_BYTES_MAX as u64;
        let progress = match n_bytes <= bytes_max {
            true => TableProgress::Reading,
            false => TableProgress::Refused {
                reason: format!("it has more than {}, which a tab has no room for", format::bytes(bytes_max)),
            },
        };
        self.own_table.file = Some((name, progress));
    }

    /// The browser has read the file: the worker is loaded, to look at its rows.
    pub(super) fn on_own_table(&mut self, text: Option<Vec<u8>>) -> Vec<PageAction> {
        let OwnTable { file: Some((_, progress)), text: kept, is_changed, .. } = &mut self.own_table else {
            return Vec::new();
        };
        match text {
            _ if *progress != TableProgress::Reading => Vec::new(),
            None => {
                *progress = TableProgress::Refused { reason: "this browser cannot read it".to_owned() };
                Vec::new()
            }
            Some(text) => {
                (*progress, *kept, *is_changed) = (TableProgress::Checking, Some(text), true);
                match self.peer {
                    WorkerState::Ready { .. } => self.post_own_table().into_iter().collect(),
                    _ => self.load(),
                }
            }
        }
    }

    /// Posts the table to a worker that does not have it.
    pub(in crate::state) fn post_own_table(&mut self) -> Option<PageAction> {
        // A follower's posts go to another tab.
        if !self.own_table.is_changed || self.role() == TabRole::Following {
            return None;
        }
        let (columns, target) = self.table_schema()?;
        let (columns, target) = (columns.clone(), target.clone());
        let text = self.own_table.text.clone()?;
        // It takes the place of an earlier choice.
        (self.own_table.is_changed, self.own.is_changed) = (false, false);
        self.own_table.request = self.own_table.request.wrapping_add(1);
        let request = self.own_table.request;
        Some(PageAction::Post(PageToPeer::OwnTable { request, text, columns, target }))
    }

    /// The worker has read the rows of a table.
    pub(in crate::state) fn on_own_rows(&mut self, request: u32, found: TableProgress) {
        let OwnTable { file: Some((_, progress)), text: text @ Some(_), is_changed, request: newest } =
            &mut self.own_table
        else {
            return;
        };
        if request != *newest {
            return;
        }
        if matches!(found, TableProgress::Refused { .. }) {
            (*text, *is_changed) = (None, false);
        }
        *progress = found;
    }
}
