//! Pictures, a table, ratings or texts that the visitor brings to train on.

use web_sys::{Element, HtmlElement, HtmlInputElement};

use crate::dom::{DomError, Field, by_id, create};
use crate::format;
use crate::state::{FilesProgress, PageState, StoreOutcome, TabRole};

/// Columns of a table that are named.
const COLUMNS_SHOWN: usize = 20;

/// What leaves the tab of ratings.
const RATINGS_NOTE: &str = "From what is sent others can tell which ones you rated, and work out how.";

pub(crate) struct OwnView {
    section: Field,
    summary: Field,
    classes: Element,
    class_names: Vec<String>,
    choosing: [HtmlInputElement; 4],
    of_pictures: [Field; 2],
    of_table: Field,
    of_texts: Field,
    columns: Field,
    forget: HtmlElement,
    keep: HtmlInputElement,
    keep_note: Field,
    said: Field,
}

impl OwnView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            section: Field::find("own")?,
            summary: Field::find("own-summary")?,
            classes: by_id("own-class")?,
            class_names: Vec::new(),
            choosing: [by_id("own-folder")?, by_id("own-files")?, by_id("own-table")?, by_id("own-texts")?],
            of_pictures: [Field::find("own-of-folder")?, Field::find("own-of-class")?],
            of_table: Field::find("own-of-table")?,
            of_texts: Field::find("own-of-texts")?,
            columns: Field::find("own-columns")?,
            forget: by_id("own-forget")?,
            keep: by_id("own-keep")?,
            keep_note: Field::find("own-keep-note")?,
            said: Field::find("own-said")?,
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let (of_pictures, of_table, of_texts) =
            (page.takes_own_pictures(), page.takes_own_table(), page.takes_own_texts());
        let is_wanted = (of_pictures || of_table || of_texts || page.has_own()) && page.is_supported();
        self.section.set_hidden(!is_wanted);
        if !is_wanted {
            return;
        }
        self.of_pictures.iter_mut().for_each(|field| field.set_hidden(!of_pictures));
        self.of_table.set_hidden(!of_table);
        self.of_texts.set_hidden(!of_texts);
        if of_table {
            self.columns.set_text(&columns(page));
        }
        if self.class_names != page.class_names() && self.list_classes(page.class_names()).is_ok() {
            self.class_names = page.class_names().to_vec();
        }
        self.choosing.iter().for_each(|input| input.set_disabled(!page.may_choose_own()));
        self.forget.set_hidden(!page.has_own() || !page.may_choose_own());
        self.keep.set_checked(page.keeps_own());
        self.keep.set_disabled(!page.may_choose_own());
        self.keep_note.set_text(keep_note(page));
        self.summary.set_text(&summary(page));
        self.said.set_number(&said(page), page.n_own() as f64);
    }

    fn list_classes(&self, names: &[String]) -> Result<(), DomError> {
        self.classes.set_text_content(None);
        for (class, name) in names.iter().enumerate() {
            let option: Element = create("option")?;
            option.set_attribute("value", &class.to_string())?;
            option.set_text_content(Some(name));
            self.classes.append_child(&option)?;
        }
        Ok(())
    }
}

/// Rows of a table, passages of a text, or pictures.
fn counted(page: &PageState, n: usize) -> String {
    let (one, many) = match () {
        () if page.takes_own_ratings() => ("rating", "ratings"),
        () if page.takes_own_table() => ("row", "rows"),
        () if page.takes_own_texts() => ("passage", "passages"),
        () => ("picture", "pictures"),
    };
    format::counted(n as u64, one, many)
}

fn summary(page: &PageState) -> String {
    let n_own = if page.role() == TabRole::Following { 0 } else { page.n_own() };
    match (n_own, page.own_files()) {
        (0, Some((name, FilesProgress::Waiting))) if page.role() != TabRole::Following => {
            format!("Trains on {name}, which is yours")
        }
        (0, _) if page.takes_own_ratings() => "Train on ratings of your own".to_owned(),
        (0, _) if page.takes_own_table() => "Train on a table of your own".to_owned(),
        (0, _) if page.takes_own_texts() => "Train on texts of your own".to_owned(),
        (0, _) => "Train on pictures of your own".to_owned(),
        (n, _) => format!("Trains on {} of your own", counted(page, n)),
    }
}

/// What becomes of the choice when the tab is closed.
fn keep_note(page: &PageState) -> &'static str {
    match page.own_stored() {
        _ if page.role() == TabRole::Following => "",
        StoreOutcome::Refused => "This browser keeps nothing, as in a private window, or has no room left.",
        StoreOutcome::Unreadable => "This browser does not say what it has kept.",
        StoreOutcome::Looking => "Looking for what was kept.",
        StoreOutcome::Storing => "It is being stored.",
        _ if !page.keeps_own() => "Otherwise it is gone when the tab is closed.",
        StoreOutcome::Stored if page.has_own() => {
            "It is kept. Others who use this browser can train on it, too, and delete it."
        }
        _ => "What you choose is kept.",
    }
}

/// The columns that a table must have, once they are known; and what leaves the tab of ratings.
fn columns(page: &PageState) -> String {
    let names = page.own_table_columns();
    let n_more = names.len().saturating_sub(COLUMNS_SHOWN);
    let more = if n_more > 0 { format!(" and {n_more} more") } else { String::new() };
    let shown = names.iter().take(COLUMNS_SHOWN).copied().collect::<Vec<_>>();
    let wanted = match names.is_empty() {
        true => String::new(),
        false => format!("In any order, beside others: {}{more}. ", shown.join(", ")),
    };
    let note = if page.takes_own_ratings() { RATINGS_NOTE } else { "" };
    format!("{wanted}{note}").trim_end().to_owned()
}

/// How far a table or texts are. What is said fits one file and several.
fn said_of_files(page: &PageState, name: &str, progress: &FilesProgress) -> Vec<String> {
    match progress {
        FilesProgress::Reading | FilesProgress::Checking => vec![format!("Reading {name}.")],
        FilesProgress::Waiting => vec![format!("{name} is looked at when this tab begins.")],
        FilesProgress::Refused { reason } => vec![format!("{name} cannot be used: {reason}.")],
        FilesProgress::Used { n_samples, n_broken, first_broken } => {
            let used = counted(page, *n_samples as usize);
            let of = match page.takes_own_table() {
                true => format!(" of {}", format::count((n_samples + n_broken).into())),
                false => String::new(),
            };
            let left_out = |first| format!("Left out: {}; {first}.", counted(page, *n_broken as usize));
            std::iter::once(format!("{name}: {used}{of}.")).chain(first_broken.iter().map(left_out)).collect()
        }
    }
}

/// What was chosen, and what was left out of it.
fn said(page: &PageState) -> String {
    if page.role() == TabRole::Following {
        return "Choose in the tab that has the work.".to_owned();
    }
    let unread = page.n_own_unread();
    if unread > 0 {
        let read = format::counted(page.n_own() as u64, "picture", "pictures");
        return format!("Reading: {read} so far, {unread} to go.");
    }
    let by_class = page.own_by_class();
    let mut sentences = match page.own_files() {
        Some((name, progress)) => said_of_files(page, name, progress),
        None => Vec::new(),
    };
    if !by_class.is_empty() {
        let n_pictures = by_class.iter().map(|(_, n)| n).sum::<usize>();
        let pictures = format::counted(n_pictures as u64, "picture", "pictures");
        let classes = format::counted(by_class.len() as u64, "class", "classes");
        let counts: Vec<String> = by_class.into_iter().map(|(name, n)| format!("{n} {name}")).collect();
        sentences.push(format!("{pictures} of {classes}: {}.", counts.join(", ")));
    }
    let left_out = page.own_left_out();
    if !left_out.is_empty() {
        let reasons = left_out.iter().map(|(n, reason)| format!("{n} {reason}"));
        sentences.push(format!("Left out: {}.", reasons.collect::<Vec<_>>().join(", ")));
    }
    if page.contributing {
        sentences.push("Stop to choose others.".to_owned());
    }
    sentences.join(" ")
}

#[cfg(test)]
mod tests {
    use barnraise_messages::PeerToPage;
    use barnraise_protocol::columns::DataColumns;

    use super::*;
    use crate::fixture;
    use crate::state::{OwnFile, PageEvent, TabEvent};

    #[test]
    fn it_says_what_was_chosen_and_what_was_left_out() {
        let mut page = fixture::sampled_page();
        assert_eq!((summary(&page).as_str(), said(&page).as_str()), ("Train on pictures of your own", ""));
        for file in [
            OwnFile::Begun,
            OwnFile::Begun,
            OwnFile::Read { class: 1, pixels: Some(vec![0; 784]) },
            OwnFile::WithoutClass,
        ] {
            page.on_event(0.0, PageEvent::OwnFile(file));
        }
        assert_eq!(said(&page), "Reading: 1 picture so far, 1 to go.");
        page.on_event(0.0, PageEvent::OwnFile(OwnFile::Read { class: 0, pixels: Some(vec![0; 784]) }));
        assert_eq!(summary(&page), "Trains on 2 pictures of your own");
        assert_eq!(
            said(&page),
            "2 pictures of 2 classes: 1 T-shirt, 1 Trouser. Left out: 1 in no folder with the name of a class."
        );
        // Its inputs are off, which no word of the leading tab explains here.
        let mut page = fixture::sampled_page();
        page.on_event(0.0, PageEvent::Tabs(TabEvent::Follow));
        assert_eq!(said(&page), "Choose in the tab that has the work.");
    }

    #[test]
    fn it_says_how_many_passages_texts_have() {
        let mut page = fixture::sampled_text_page();
        assert_eq!(summary(&page), "Train on texts of your own");
        page.on_event(0.0, fixture::ready());
        let begun = OwnFile::FilesBegun { name: "2 files".into(), n_bytes: 9 };
        page.on_event(0.0, PageEvent::OwnFile(begun));
        assert_eq!(said(&page), "Reading 2 files.");
        page.on_event(0.0, PageEvent::OwnFile(OwnFile::FilesRead(Some(vec![vec![1; 4], vec![1; 5]]))));
        let read = PeerToPage::OwnFilesRead { request: 1, n_samples: 7, n_broken: 0, first_broken: None };
        page.on_event(0.0, PageEvent::FromPeer(read));
        assert_eq!(
            (summary(&page).as_str(), said(&page).as_str()),
            ("Trains on 7 passages of your own", "2 files: 7 passages.")
        );
    }

    #[test]
    fn it_says_what_a_table_must_have_and_how_much_of_it_is_used() {
        let mut page = fixture::sampled_table_page();
        assert_eq!((summary(&page).as_str(), said(&page).as_str()), ("Train on a table of your own", ""));
        assert_eq!(columns(&page), "In any order, beside others: length, colour, kind.");
        let ratings = fixture::sampled_rating_page();
        assert_eq!(summary(&ratings), "Train on ratings of your own");
        assert_eq!(columns(&ratings), format!("In any order, beside others: film, stars. {RATINGS_NOTE}"));
        let mut unknown = fixture::sampled_rating_page();
        unknown.rows.columns = None;
        assert_eq!(columns(&unknown), RATINGS_NOTE);
        let mut many = fixture::sampled_table_page();
        if let Some(DataColumns::Table(table)) = &mut many.rows.columns {
            let column = table.columns[0].clone();
            table.columns = vec![column; COLUMNS_SHOWN + 2];
        }
        assert!(columns(&many).ends_with("length and 3 more."));
        page.on_event(0.0, fixture::ready());
        let mut choose = |answer: PeerToPage| {
            let begun = OwnFile::FilesBegun { name: "mine.csv".into(), n_bytes: 9 };
            page.on_event(0.0, PageEvent::OwnFile(begun));
            page.on_event(0.0, PageEvent::OwnFile(OwnFile::FilesRead(Some(vec![vec![1; 9]]))));
            let before = said(&page);
            page.on_event(0.0, PageEvent::FromPeer(answer));
            (before, summary(&page), said(&page))
        };
        let first_broken = Some("line 3: it has 2 values".to_owned());
        let read = PeerToPage::OwnFilesRead { request: 1, n_samples: 118, n_broken: 2, first_broken };
        let (before, summary, after) = choose(read);
        assert_eq!(before, "Reading mine.csv.");
        assert_eq!(summary, "Trains on 118 rows of your own");
        assert_eq!(after, "mine.csv: 118 rows of 120. Left out: 2 rows; line 3: it has 2 values.");
        let other = PeerToPage::NoOwnFiles { request: 2, reason: "it has no column kind".into() };
        let (_, summary, after) = choose(other);
        assert_eq!(
            (summary.as_str(), after.as_str()),
            ("Train on a table of your own", "mine.csv cannot be used: it has no column kind.")
        );
    }
}
