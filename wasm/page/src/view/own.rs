//! Pictures or a table that the visitor brings to train on.

use web_sys::{Element, HtmlElement, HtmlInputElement};

use crate::dom::{DomError, Field, by_id, create};
use crate::format;
use crate::state::{PageState, TabRole, TableProgress};

/// Columns of a table that are named.
const COLUMNS_SHOWN: usize = 20;

pub(crate) struct OwnView {
    section: Field,
    summary: Field,
    classes: Element,
    class_names: Vec<String>,
    choosing: [HtmlInputElement; 3],
    of_pictures: [Field; 2],
    of_table: Field,
    columns: Field,
    forget: HtmlElement,
    said: Field,
}

impl OwnView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            section: Field::find("own")?,
            summary: Field::find("own-summary")?,
            classes: by_id("own-class")?,
            class_names: Vec::new(),
            choosing: [by_id("own-folder")?, by_id("own-files")?, by_id("own-table")?],
            of_pictures: [Field::find("own-of-folder")?, Field::find("own-of-class")?],
            of_table: Field::find("own-of-table")?,
            columns: Field::find("own-columns")?,
            forget: by_id("own-forget")?,
            said: Field::find("own-said")?,
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let (of_pictures, of_table) = (page.takes_own_pictures(), page.takes_own_table());
        let is_wanted = (of_pictures || of_table) && page.is_supported();
        self.section.set_hidden(!is_wanted);
        if !is_wanted {
            return;
        }
        self.of_pictures.iter_mut().for_each(|field| field.set_hidden(!of_pictures));
        self.of_table.set_hidden(!of_table);
        if of_table {
            self.columns.set_text(&columns(&page.own_table_columns()));
        }
        if self.class_names != page.class_names() && self.list_classes(page.class_names()).is_ok() {
            self.class_names = page.class_names().to_vec();
        }
        self.choosing.iter().for_each(|input| input.set_disabled(!page.may_choose_own()));
        self.forget.set_hidden(!page.has_own() || !page.may_choose_own());
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

/// Rows of a table, or pictures.
fn counted(page: &PageState, n: usize) -> String {
    match page.takes_own_table() {
        true => format::counted(n as u64, "row", "rows"),
        false => format::counted(n as u64, "picture", "pictures"),
    }
}

fn summary(page: &PageState) -> String {
    match page.n_own() {
        0 if page.takes_own_table() => "Train on a table of your own".to_owned(),
        0 => "Train on pictures of your own".to_owned(),
        n => format!("Trains on {} of your own", counted(page, n)),
    }
}

/// The columns that a table must have.
fn columns(names: &[&str]) -> String {
    let n_more = names.len().saturating_sub(COLUMNS_SHOWN);
    let more = if n_more > 0 { format!(" and {n_more} more") } else { String::new() };
    let shown = names.iter().take(COLUMNS_SHOWN).copied().collect::<Vec<_>>();
    format!("In any order, beside others: {}{more}.", shown.join(", "))
}

/// How far a table is.
fn said_of_table(name: &str, progress: &TableProgress) -> Vec<String> {
    match progress {
        TableProgress::Reading | TableProgress::Checking => vec![format!("{name} is being read.")],
        TableProgress::Refused { reason } => vec![format!("{name} is not used: {reason}.")],
        TableProgress::Used { n_rows, n_broken, first_broken } => {
            let rows = |n: u32| format::counted(n.into(), "row", "rows");
            let used = format!("{name}: {} of {}.", rows(*n_rows), format::count((n_rows + n_broken).into()));
            let first = first_broken.iter().map(|first| format!("Left out: {}; {first}.", rows(*n_broken)));
            std::iter::once(used).chain(first).collect()
        }
    }
}

/// What was chosen, and what was left out of it.
fn said(page: &PageState) -> String {
    let unread = page.n_own_unread();
    if unread > 0 {
        let read = format::counted(page.n_own() as u64, "picture", "pictures");
        return format!("Reading: {read} so far, {unread} to go.");
    }
    let by_class = page.own_by_class();
    let mut sentences = match page.own_table() {
        Some((name, progress)) => said_of_table(name, progress),
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
    if page.role() == TabRole::Following {
        sentences.push("Choose in the tab that has the work.".to_owned());
    } else if page.contributing {
        sentences.push("Stop to choose others.".to_owned());
    }
    sentences.join(" ")
}

#[cfg(test)]
mod tests {
    use barnraise_messages::PeerToPage;

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
    fn it_says_what_a_table_must_have_and_how_much_of_it_is_used() {
        let mut page = fixture::sampled_table_page();
        assert_eq!((summary(&page).as_str(), said(&page).as_str()), ("Train on a table of your own", ""));
        let wanted = columns(&page.own_table_columns());
        assert_eq!(wanted, "In any order, beside others: length, colour, kind.");
        let many = ["x"; COLUMNS_SHOWN + 3];
        assert!(columns(&many).ends_with("x and 3 more."));
        page.on_event(0.0, fixture::ready());
        let mut choose = |answer: PeerToPage| {
            let begun = OwnFile::TableBegun { name: "mine.csv".into(), n_bytes: 9 };
            page.on_event(0.0, PageEvent::OwnFile(begun));
            page.on_event(0.0, PageEvent::OwnFile(OwnFile::TableRead(Some(vec![1; 9]))));
            let before = said(&page);
            page.on_event(0.0, PageEvent::FromPeer(answer));
            (before, summary(&page), said(&page))
        };
        let first_broken = Some("line 3: it has 2 values".to_owned());
        let read = PeerToPage::OwnRowsRead { request: 1, n_rows: 118, n_broken: 2, first_broken };
        let (before, summary, after) = choose(read);
        assert_eq!(before, "mine.csv is being read.");
        assert_eq!(summary, "Trains on 118 rows of your own");
        assert_eq!(after, "mine.csv: 118 rows of 120. Left out: 2 rows; line 3: it has 2 values.");
        let other = PeerToPage::NoOwnRows { request: 2, reason: "it has no column kind".into() };
        let (_, summary, after) = choose(other);
        assert_eq!(
            (summary.as_str(), after.as_str()),
            ("Train on a table of your own", "mine.csv is not used: it has no column kind.")
        );
    }
}
