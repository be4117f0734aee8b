//! A table, ratings or texts of the visitor's own. The worker makes samples of them; the page keeps their contents, for each new worker.

use barnraise_messages::{ByteBuf, PageToPeer};
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::columns::DataColumns;
use barnraise_protocol::run::RunDescription;

use super::OWN_BYTES_MAX;
use crate::format;
use crate::state::{PageAction, PageState, TabRole, WorkerState};

/// How far the files are that the visitor chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FilesProgress {
    /// The browser reads them.
    Reading,
    /// The worker makes samples of them, once it is there.
    Checking,
    /// The worker makes samples of them when this tab begins, as where they were kept at an earlier visit.
    Waiting,
    /// Their rows or sequences are trained on. Where the first row that was left out stands, and why, is in words.
    Used { n_samples: u32, n_broken: u32, first_broken: Option<String> },
    /// They are not as the run's are, or too large. Where there are contents the next start tries them once more.
    Refused { reason: String },
}

/// The table or the texts that the visitor chose.
#[derive(Debug, Default)]
pub(crate) struct OwnFiles {
    /// What they are called, and how far they are.
    chosen: Option<(String, FilesProgress)>,
    /// Where they could be read.
    contents: Option<Vec<ByteBuf>>,
    /// The worker does not have them yet.
    is_changed: bool,
    request: u32,
}

impl OwnFiles {
    /// Returns whether a worker may have them.
    pub(super) fn forget(&mut self) -> bool {
        let is_known = self.contents.is_some();
        *self = Self { request: self.request, ..Self::default() };
        is_known
    }

    /// The name and the contents, where they could be read.
    pub(super) fn contents(&self) -> Option<(String, Vec<ByteBuf>)> {
        let (name, _) = self.chosen.as_ref()?;
        Some((name.clone(), self.contents.clone()?))
    }

    /// They were kept at an earlier visit.
    pub(super) fn find(&mut self, name: String, contents: Vec<ByteBuf>) {
        self.chosen = Some((name, FilesProgress::Waiting));
        (self.contents, self.is_changed) = (Some(contents), true);
    }

    /// A new worker does not have them.
    pub(super) fn forget_posted(&mut self) {
        self.is_changed = self.contents.is_some();
        if let Some((_, progress @ FilesProgress::Checking)) = &mut self.chosen {
            *progress = FilesProgress::Waiting;
        }
    }
}

impl PageState {
    /// Whether the visitor may bring a table to this run, or ratings.
    pub(crate) fn takes_own_table(&self) -> bool {
        self.is_of_rows() && self.takes_own_files()
    }

    /// Whether what the visitor may bring are ratings.
    pub(crate) fn takes_own_ratings(&self) -> bool {
        self.takes_own_table() && self.n_items() > 0
    }

    /// Whether the visitor may bring texts to this run.
    pub(crate) fn takes_own_texts(&self) -> bool {
        self.is_of_text() && self.takes_own_files()
    }

    /// Whether the run says to everybody how files become samples.
    fn takes_own_files(&self) -> bool {
        let is_told = |run: &RunDescription| {
            run.data.manifest.preprocessing.is_some() && run.access.mode == AccessMode::Open
        };
        self.is_sampled() && self.run.as_ref().is_some_and(is_told)
    }

    /// The columns that a table of the visitor's must have.
    pub(crate) fn own_table_columns(&self) -> Vec<&str> {
        match &self.rows.columns {
            Some(DataColumns::Table(columns)) => {
                let inputs = columns.columns.iter().map(|column| column.name.as_str());
                inputs.chain([columns.target.as_str()]).collect()
            }
            Some(DataColumns::Ratings(columns)) => vec![&columns.item, &columns.rating],
            None => Vec::new(),
        }
    }

    /// What the files are called that were chosen, and how far they are.
    pub(crate) fn own_files(&self) -> Option<(&str, &FilesProgress)> {
        let (name, progress) = self.own_files.chosen.as_ref()?;
        Some((name.as_str(), progress))
    }

    /// Whether the worker has still to say what it makes of the files.
    pub(crate) fn must_check_own_files(&self) -> bool {
        let is_asked = matches!(self.own_files.chosen, Some((_, FilesProgress::Checking)));
        let is_taken = self.is_sampled() && self.own_files.contents.is_some();
        is_taken && (is_asked || self.own_files.is_changed)
    }

    /// Whether the browser is to read the files that were chosen.
    pub(crate) fn reads_own_files(&self) -> bool {
        matches!(self.own_files(), Some((_, FilesProgress::Reading)))
    }

    /// The visitor chose files, in place of others.
    pub(super) fn begin_own_files(&mut self, name: String, n_bytes: u64) -> Vec<PageAction> {
        self.own.is_changed |= self.own_files.forget();
        let bytes_max = OWN_BYTES_MAX as u64;
        let progress = match n_bytes <= bytes_max {
            true => FilesProgress::Reading,
            false => FilesProgress::Refused {
                reason: format!("a tab has no room for more than {}", format::bytes(bytes_max)),
            },
        };
        self.own_files.chosen = Some((name, progress));
        self.store_own().into_iter().collect()
    }

    /// The browser has read the files: the worker is loaded, to make samples of them.
    pub(super) fn on_own_files(&mut self, now_ms: f64, contents: Option<Vec<Vec<u8>>>) -> Vec<PageAction> {
        let OwnFiles { chosen: Some((_, progress)), contents: kept, is_changed, .. } = &mut self.own_files
        else {
            return Vec::new();
        };
        match contents {
            _ if *progress != FilesProgress::Reading => Vec::new(),
            None => {
                *progress =
                    FilesProgress::Refused { reason: "this browser cannot read all of it".to_owned() };
                let mut actions: Vec<PageAction> = self.store_own().into_iter().collect();
                actions.extend(self.take_start_back(now_ms));
                actions
            }
            Some(contents) => {
                let contents = contents.into_iter().map(ByteBuf::from).collect();
                (*progress, *kept, *is_changed) = (FilesProgress::Checking, Some(contents), true);
                let mut actions: Vec<PageAction> = self.store_own().into_iter().collect();
                match self.peer {
                    WorkerState::Ready { .. } => actions.extend(self.post_own_files()),
                    _ => actions.extend(self.load()),
                }
                actions
            }
        }
    }

    /// Posts the files to a worker that does not have them.
    pub(in crate::state) fn post_own_files(&mut self) -> Option<PageAction> {
        // A follower's posts go to another tab.
        if !self.own_files.is_changed || self.role() == TabRole::Following {
            return None;
        }
        let (name, files) = self.own_files.contents()?;
        self.own_files.chosen = Some((name, FilesProgress::Checking));
        // They take the place of an earlier choice.
        (self.own_files.is_changed, self.own.is_changed) = (false, false);
        self.own_files.request = self.own_files.request.wrapping_add(1);
        let request = self.own_files.request;
        Some(PageAction::Post(PageToPeer::OwnFiles { request, files }))
    }

    /// The worker has made samples of files, or cannot. What the visitor wants to train on is not left out without a word.
    pub(in crate::state) fn on_own_files_checked(
        &mut self,
        now_ms: f64,
        request: u32,
        found: FilesProgress,
    ) -> Vec<PageAction> {
        let OwnFiles { chosen: Some((_, progress)), contents: Some(_), is_changed, request: newest } =
            &mut self.own_files
        else {
            return Vec::new();
        };
        if request != *newest {
            return Vec::new();
        }
        let is_refused = matches!(found, FilesProgress::Refused { .. });
        (*progress, *is_changed) = (found, is_refused);
        if is_refused { self.take_start_back(now_ms) } else { Vec::new() }
    }

    /// Why files that were chosen are not trained on.
    fn refusal(&self) -> Option<String> {
        match self.own_files()? {
            (name, FilesProgress::Refused { reason }) => Some(format!("{name} cannot be used: {reason}.")),
            _ => None,
        }
    }

    /// Likewise, where another try would be no other. Without them a start would train on the data of the run.
    pub(in crate::state) fn unusable_files(&self) -> Option<String> {
        if self.own_files.contents.is_some() { None } else { self.refusal() }
    }

    /// A start that waited for files that are refused is taken back, and the page says why.
    fn take_start_back(&mut self, now_ms: f64) -> Vec<PageAction> {
        if !self.contributing || self.is_start_posted {
            return Vec::new();
        }
        let actions = self.stop(now_ms);
        self.notice = self.refusal().or(self.notice.take());
        actions
    }
}
