//! Keeps what the visitor chose in this browser, where they want that.

use barnraise_messages::ByteBuf;

use super::{OwnFiles, OwnPictures};
use crate::state::{FoundOwn, OwnChoice, PageAction, PageState, TabRole};

/// What the browser does with the choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum StoreOutcome {
    /// Nothing.
    #[default]
    None,
    /// It looks for the choice of an earlier visit.
    Looking,
    /// It stores the choice as it is now.
    Storing,
    /// It has the choice as it is now.
    Stored,
    /// It does not store it.
    Refused,
    /// It does not say what it has of an earlier visit.
    Unreadable,
}

/// Whether the choice is kept from one visit to the next.
#[derive(Debug, Default)]
pub(crate) struct OwnKeeping {
    /// The visitor wants that.
    is_wanted: bool,
    outcome: StoreOutcome,
    /// Of the newest look or change of the store.
    request: u32,
    /// Of an earlier visit, while this run is not known.
    found: Option<Box<OwnChoice>>,
}

impl OwnKeeping {
    /// At the start of a page.
    pub(in crate::state) fn looking() -> Self {
        Self { outcome: StoreOutcome::Looking, ..Self::default() }
    }

    /// An action on the store, of which this is the newest.
    fn next(&mut self, outcome: StoreOutcome) -> u32 {
        self.outcome = outcome;
        self.request = self.request.wrapping_add(1);
        self.request
    }
}

impl PageState {
    /// Whether the visitor wants the choice to be kept.
    pub(crate) fn keeps_own(&self) -> bool {
        self.own_keeping.is_wanted
    }

    /// What the browser does with the choice.
    pub(crate) fn own_stored(&self) -> StoreOutcome {
        self.own_keeping.outcome
    }

    /// The visitor wants the choice to be kept, or not any longer.
    pub(in crate::state) fn keep_own(&mut self, is_wanted: bool) -> Vec<PageAction> {
        self.own_keeping.is_wanted = is_wanted;
        if is_wanted {
            return self.store_own().into_iter().collect();
        }
        let request = self.own_keeping.next(StoreOutcome::None);
        vec![PageAction::StoreOwn { request, choice: None }]
    }

    /// Keeps the choice as it is now, where the visitor wants that and all of it is read.
    pub(in crate::state) fn store_own(&mut self) -> Option<PageAction> {
        let is_complete = self.own.n_unread == 0 && !self.reads_own_files();
        if !self.own_keeping.is_wanted || !is_complete {
            return None;
        }
        let samples = self.run.as_ref()?.data.manifest.samples.clone();
        let (name, files) = self.own_files.contents().unwrap_or_default();
        let pixels = ByteBuf::from(self.own.pixels.clone());
        let labels = ByteBuf::from(self.own.labels.clone());
        let has_any = !files.is_empty() || !labels.is_empty();
        let choice = has_any.then(|| Box::new(OwnChoice { samples, pixels, labels, name, files }));
        let request = self.own_keeping.next(StoreOutcome::Storing);
        Some(PageAction::StoreOwn { request, choice })
    }

    /// The browser has stored the choice, or refuses.
    pub(in crate::state) fn on_own_stored(&mut self, request: u32, is_stored: bool) {
        let keeping = &mut self.own_keeping;
        if request == keeping.request {
            keeping.outcome = match is_stored {
                true if keeping.is_wanted => StoreOutcome::Stored,
                true => StoreOutcome::None,
                false => StoreOutcome::Refused,
            };
        }
    }

    /// The browser has looked for the choice of an earlier visit.
    pub(in crate::state) fn on_own_found(&mut self, request: u32, found: FoundOwn) {
        let keeping = &mut self.own_keeping;
        if keeping.outcome != StoreOutcome::Looking || request != keeping.request {
            return;
        }
        match found {
            FoundOwn::Nothing => keeping.outcome = StoreOutcome::None,
            FoundOwn::Unreadable => keeping.outcome = StoreOutcome::Unreadable,
            FoundOwn::Choice(choice) => {
                keeping.outcome = StoreOutcome::None;
                keeping.found = Some(choice);
            }
        }
    }

    /// Whether there may be a choice of an earlier visit.
    pub(super) fn looks_for_own(&self) -> bool {
        let is_wanted = self.run.as_ref().is_none_or(|run| run.sampled().is_some());
        let keeping = &self.own_keeping;
        is_wanted && (keeping.outcome == StoreOutcome::Looking || keeping.found.is_some())
    }

    /// Chooses what was found, once it is known that it is of this run. What this run does not take is deleted: nobody could see it.
    pub(in crate::state) fn take_found_own(&mut self) -> Option<PageAction> {
        let manifest = &self.run.as_ref()?.data.manifest;
        let found = self.own_keeping.found.take()?;
        let is_of_run = found.samples == manifest.samples;
        if self.role() == TabRole::Following || self.has_own() {
            return None;
        }
        let is_taken = self.takes_own_pictures() || self.takes_own_texts() || self.takes_own_table();
        if !is_of_run || !is_taken {
            let request = self.own_keeping.next(StoreOutcome::None);
            return Some(PageAction::StoreOwn { request, choice: None });
        }
        (self.own_keeping.is_wanted, self.own_keeping.outcome) = (true, StoreOutcome::Stored);
        let OwnChoice { pixels, labels, name, files, .. } = *found;
        if files.is_empty() {
            let (pixels, labels) = (pixels.into_vec(), labels.into_vec());
            self.own = OwnPictures { pixels, labels, is_changed: true, ..OwnPictures::default() };
            return None;
        }
        self.own_files.find(name, files);
        None
    }

    /// Another tab has the work, in which the kept choice may change.
    pub(in crate::state) fn let_go_of_kept_own(&mut self) {
        let is_there = matches!(self.own_keeping.outcome, StoreOutcome::Storing | StoreOutcome::Stored);
        if self.own_keeping.is_wanted && is_there {
            let request = self.own_keeping.request;
            (self.own, self.own_files) = (OwnPictures::default(), OwnFiles::default());
            self.own_keeping = OwnKeeping { request, ..OwnKeeping::default() };
        }
    }

    /// This tab has the work of another one from now on, and trains on what was kept there.
    pub(in crate::state) fn look_for_own(&mut self) -> Option<PageAction> {
        if self.has_own() || !self.is_sampled() {
            return None;
        }
        let request = self.own_keeping.next(StoreOutcome::Looking);
        Some(PageAction::FindOwn { request })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_messages::{PageToPeer, PeerToPage};

    use super::*;
    use crate::fixture;
    use crate::state::{OwnFile, PageEvent, TabEvent};

    /// The newest request for the store, and what it is to keep.
    fn stored(actions: Vec<PageAction>) -> Option<(u32, Option<OwnChoice>)> {
        actions.into_iter().find_map(|action| match action {
            PageAction::StoreOwn { request, choice } => Some((request, choice.map(|choice| *choice))),
            _ => None,
        })
    }

    fn posted(actions: Vec<PageAction>) -> Vec<PageToPeer> {
        let post = |action| match action {
            PageAction::Post(message) => Some(message),
            _ => None,
        };
        actions.into_iter().filter_map(post).collect()
    }

    fn pictures(page: &PageState, labels: &[u8]) -> OwnChoice {
        OwnChoice {
            samples: page.run.as_ref().unwrap().data.manifest.samples.clone(),
            pixels: ByteBuf::from(labels.iter().flat_map(|label| [*label; 784]).collect::<Vec<u8>>()),
            labels: ByteBuf::from(labels),
            name: String::new(),
            files: Vec::new(),
        }
    }

    fn table(page: &PageState) -> OwnChoice {
        let (name, files) = ("mine.csv".to_owned(), vec![ByteBuf::from(b"some")]);
        OwnChoice { name, files, ..pictures(page, &[]) }
    }

    fn chosen(page: &mut PageState, class: u8) -> Vec<PageAction> {
        let mut actions = page.on_event(0.0, PageEvent::OwnFile(OwnFile::Begun));
        let read = OwnFile::Read { class, pixels: Some(vec![class; 784]) };
        actions.extend(page.on_event(0.0, PageEvent::OwnFile(read)));
        actions
    }

    fn chosen_table(page: &mut PageState, n_bytes: u64) -> Vec<PageAction> {
        let mut actions = Vec::new();
        for file in [
            OwnFile::FilesBegun { name: "mine.csv".into(), n_bytes },
            OwnFile::FilesRead(Some(vec![b"some".to_vec()])),
        ] {
            actions.extend(page.on_event(0.0, PageEvent::OwnFile(file)));
        }
        actions
    }

    fn told(page: &mut PageState, request: u32, is_stored: bool) -> StoreOutcome {
        page.on_event(0.0, PageEvent::OwnStored { request, is_stored });
        page.own_stored()
    }

    fn found(request: u32, choice: OwnChoice) -> PageEvent {
        PageEvent::OwnFound { request, found: FoundOwn::Choice(Box::new(choice)) }
    }

    #[test]
    fn a_choice_is_kept_where_the_visitor_wants_that_as_it_changes_and_until_it_is_taken_back() {
        let mut page = fixture::sampled_page();
        assert_eq!(stored(chosen(&mut page, 2)), None, "nobody asked for it");
        let one = pictures(&page, &[2]);
        assert_eq!(stored(page.on_event(1.0, PageEvent::KeepOwn(true))), Some((1, Some(one))));
        page.on_event(2.0, PageEvent::OwnFile(OwnFile::Begun));
        let (two, three) = (stored(chosen(&mut page, 1)), stored(chosen(&mut page, 0)));
        assert_eq!((two, three), (None, None), "one more is being read");
        let unreadable = OwnFile::Read { class: 0, pixels: None };
        let all = pictures(&page, &[2, 1, 0]);
        assert_eq!(stored(page.on_event(4.0, PageEvent::OwnFile(unreadable))), Some((2, Some(all))));
        assert_eq!(told(&mut page, 1, false), StoreOutcome::Storing, "of an earlier choice");
        assert_eq!(told(&mut page, 2, true), StoreOutcome::Stored);
        assert_eq!(stored(page.on_event(5.0, PageEvent::OwnForgotten)), Some((3, None)));
        chosen(&mut page, 1);
        assert_eq!(told(&mut page, 4, false), StoreOutcome::Refused);
        // It is taken back also where there was no room for it: an earlier one may be there.
        assert_eq!(stored(page.on_event(6.0, PageEvent::OwnForgotten)), Some((5, None)));
        chosen(&mut page, 1);
        assert_eq!(stored(page.on_event(7.0, PageEvent::KeepOwn(false))), Some((7, None)));
        assert_eq!(told(&mut page, 7, true), StoreOutcome::None);

        let mut page = fixture::sampled_table_page();
        page.on_event(0.0, PageEvent::KeepOwn(true));
        let wanted = table(&page);
        let actions = chosen_table(&mut page, 9);
        assert_eq!(stored(actions.into_iter().rev().collect()), Some((2, Some(wanted))));
        // In its place one that is too large: none is kept.
        assert_eq!(stored(chosen_table(&mut page, u64::MAX)), Some((3, None)));
    }

    #[test]
    fn nothing_is_trained_on_before_the_kept_choice_is_found() {
        let mut page = fixture::sampled_page().looking_for_own();
        page.on_event(0.0, fixture::ready());
        assert!(posted(page.on_event(0.0, PageEvent::Toggle)).is_empty() && !page.may_choose_own());
        let choice = pictures(&page, &[1]);
        let posts = posted(page.on_event(1.0, found(0, choice.clone())));
        let own = PageToPeer::OwnPictures { pixels: vec![1; 784], labels: vec![1] };
        assert!(posts.starts_with(&[own]) && posts.contains(&PageToPeer::Start), "{posts:?}");
        assert!(page.keeps_own() && page.own_stored() == StoreOutcome::Stored && page.n_own() == 1);
        let late = PageEvent::OwnFound { request: 0, found: FoundOwn::Unreadable };
        page.on_event(2.0, late.clone());
        assert!(page.own_stored() == StoreOutcome::Stored && page.n_own() == 1);

        for (answer, outcome) in [
            (PageEvent::OwnFound { request: 0, found: FoundOwn::Nothing }, StoreOutcome::None),
            (late, StoreOutcome::Unreadable),
        ] {
            let mut page = fixture::sampled_page().looking_for_own();
            page.on_event(0.0, fixture::ready());
            page.on_event(0.0, PageEvent::Toggle);
            assert!(posted(page.on_event(5.0, answer)).contains(&PageToPeer::Start));
            assert!(page.own_stored() == outcome && !page.keeps_own());
        }

        // Of a run that was here before, or while none is known.
        let mut page = fixture::sampled_page().looking_for_own();
        let other = table(&fixture::sampled_table_page());
        assert_eq!(stored(page.on_event(0.0, found(0, other))), Some((1, None)), "nobody could see it");
        assert!(!page.has_own() && !page.keeps_own() && page.may_choose_own());
        let mut page = fixture::sampled_page().looking_for_own();
        let run = page.run.take();
        page.on_event(0.0, found(0, choice));
        assert!(!page.has_own() && page.reads_own());
        page.run = run;
        page.on_event(0.0, fixture::ready());
        assert!(page.n_own() == 1 && !page.reads_own());
    }

    #[test]
    fn a_kept_table_is_looked_at_when_the_tab_begins() {
        let mut page = fixture::sampled_table_page().looking_for_own();
        let kept = table(&page);
        assert_eq!(page.on_event(0.0, found(0, kept)), [], "nothing is loaded");
        page.on_event(1.0, PageEvent::Toggle);
        let posts = posted(page.on_event(2.0, fixture::ready()));
        assert!(matches!(posts[..], [PageToPeer::OwnFiles { .. }]), "{posts:?}");
        let read = PeerToPage::OwnFilesRead { request: 1, n_samples: 3, n_broken: 0, first_broken: None };
        assert!(posted(page.on_event(3.0, PageEvent::FromPeer(read))).contains(&PageToPeer::Start));
    }

    #[test]
    fn what_is_kept_is_that_of_the_tab_that_has_the_work() {
        for event in [TabEvent::Follow, TabEvent::Deposed] {
            let mut page = fixture::sampled_page().looking_for_own();
            let choice = pictures(&page, &[1]);
            page.on_event(0.0, found(0, choice.clone()));
            page.on_event(0.0, PageEvent::OwnFile(OwnFile::Begun));
            page.on_event(1.0, PageEvent::Tabs(event));
            assert!(!page.has_own() && !page.keeps_own(), "it may change there");
            let late = OwnFile::Read { class: 1, pixels: Some(vec![1; 784]) };
            page.on_event(1.0, PageEvent::OwnFile(late));
            assert!(!page.has_own(), "it was chosen before");
            let lead = TabEvent::Lead { identity: None, transport: None };
            let actions = page.on_event(2.0, PageEvent::Tabs(lead));
            assert!(actions.contains(&PageAction::FindOwn { request: 1 }), "{actions:?}");
            page.on_event(3.0, PageEvent::OwnFound { request: 0, found: FoundOwn::Unreadable });
            page.on_event(4.0, found(1, choice));
            assert_eq!(page.n_own(), 1);
        }
    }
}
