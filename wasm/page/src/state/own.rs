//! Pictures, a table, ratings or texts of the visitor's own, which this tab trains on in a run whose participants have data of their own (MoDEST
//! §3). They stay in this tab, and are gone with it, unless the visitor wants them to be kept in this browser.

mod files;
mod keeping;

use std::collections::BTreeMap;

use barnraise_messages::{Activity, PageToPeer};
use barnraise_protocol::dataset::{ImageShape, class_of_folder};

pub(crate) use self::files::{FilesProgress, OwnFiles};
pub(crate) use self::keeping::{OwnKeeping, StoreOutcome};
use super::{OwnFile, PageAction, PageState, TabRole, WorkerState};

/// Most bytes of all pictures, as the run's are, and of other files: they are in memory twice.
const OWN_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What the visitor has chosen.
#[derive(Debug, Default)]
pub(crate) struct OwnPictures {
    /// `[n_samples, height, width, channels]`
    pixels: Vec<u8>,
    /// `[n_samples]`
    labels: Vec<u8>,
    /// Files that were chosen and are not read yet.
    n_unread: usize,
    /// Of those that were chosen: in no folder of a class, no pictures, or more than there is room for.
    n_without_class: usize,
    n_unreadable: usize,
    n_too_many: usize,
    /// What the worker trains on is another choice.
    is_changed: bool,
}

impl PageState {
    /// Whether the visitor may bring pictures to this run.
    pub(crate) fn takes_own_pictures(&self) -> bool {
        self.is_sampled() && self.image_shape().is_some()
    }

    /// Whether the visitor may choose now: what is trained on changes with the next start.
    pub(crate) fn may_choose_own(&self) -> bool {
        (self.takes_own_pictures() || self.takes_own_table() || self.takes_own_texts())
            && !self.contributing
            && (self.activity == Activity::Idle || self.peer == WorkerState::Absent)
            && self.role() != TabRole::Following
            && !self.reads_own()
    }

    /// Whether the browser is to read files that were chosen: the worker starts then.
    pub(crate) fn reads_own(&self) -> bool {
        self.own.n_unread > 0 || self.reads_own_files() || self.looks_for_own()
    }

    pub(super) fn on_own_file(&mut self, now_ms: f64, file: OwnFile) -> Vec<PageAction> {
        let n_values = self.image_shape().map(ImageShape::n_values);
        let own = &mut self.own;
        match file {
            OwnFile::WithoutClass => own.n_without_class += 1,
            OwnFile::Begun => own.n_unread += 1,
            // Of those that were chosen before this tab let go of them.
            OwnFile::Read { .. } if own.n_unread == 0 => {}
            OwnFile::Read { class, pixels } => {
                own.n_unread -= 1;
                match pixels {
                    // The run may have become another one meanwhile.
                    Some(pixels) if Some(pixels.len()) != n_values => own.n_unreadable += 1,
                    Some(pixels) if own.pixels.len() + pixels.len() > OWN_BYTES_MAX => own.n_too_many += 1,
                    Some(pixels) => {
                        own.pixels.extend(pixels);
                        own.labels.push(class);
                        own.is_changed = true;
                    }
                    None => own.n_unreadable += 1,
                }
                return self.store_own().into_iter().collect();
            }
            OwnFile::FilesBegun { name, n_bytes } => return self.begin_own_files(name, n_bytes),
            OwnFile::FilesRead(contents) => return self.on_own_files(now_ms, contents),
        }
        Vec::new()
    }

    /// The visitor takes the choice back.
    pub(super) fn forget_own(&mut self) -> Vec<PageAction> {
        let is_changed = self.own_files.forget() | self.own.is_changed | !self.own.labels.is_empty();
        self.own = OwnPictures { is_changed, ..OwnPictures::default() };
        self.store_own().into_iter().collect()
    }

    /// The pictures that the worker is to train on, if that changed. Before it starts.
    pub(super) fn post_own_pictures(&mut self) -> Option<PageAction> {
        if !std::mem::take(&mut self.own.is_changed) {
            return None;
        }
        let OwnPictures { pixels, labels, .. } = &self.own;
        Some(PageAction::Post(PageToPeer::OwnPictures { pixels: pixels.clone(), labels: labels.clone() }))
    }

    /// A new worker knows of none.
    pub(super) fn forget_posted_own(&mut self) {
        self.own.is_changed = !self.own.labels.is_empty();
        self.own_files.forget_posted();
    }

    /// Whether there is a choice to take back.
    pub(crate) fn has_own(&self) -> bool {
        !self.own.labels.is_empty() || self.own_files().is_some()
    }

    /// Pictures of each class that has any, with its name.
    pub(crate) fn own_by_class(&self) -> Vec<(String, usize)> {
        let mut counts = BTreeMap::new();
        self.own.labels.iter().for_each(|label| *counts.entry(*label).or_insert(0) += 1);
        counts.into_iter().map(|(class, n)| (self.class_name(class.into()), n)).collect()
    }

    /// Pictures that are read, or rows or sequences that are trained on.
    pub(crate) fn n_own(&self) -> usize {
        match self.own_files() {
            Some((_, FilesProgress::Used { n_samples, .. })) => *n_samples as usize,
            _ => self.own.labels.len(),
        }
    }

    /// Files that are not read yet.
    pub(crate) fn n_own_unread(&self) -> usize {
        self.own.n_unread
    }

    /// What was left out of the choice, as counts and reasons.
    pub(crate) fn own_left_out(&self) -> Vec<(usize, &'static str)> {
        let OwnPictures { n_without_class, n_unreadable, n_too_many, .. } = self.own;
        let reasons = [
            (n_without_class, "in no folder with the name of a class"),
            (n_unreadable, "cannot be read as a picture"),
            (n_too_many, "more than this tab has room for"),
        ];
        reasons.into_iter().filter(|(n, _)| *n > 0).collect()
    }
}

/// The class that a folder on the way to a file is of, the innermost first.
pub(crate) fn class_of_path(path: &str, class_names: &[String]) -> Option<u8> {
    let mut folders: Vec<&str> = path.split('/').collect();
    folders.pop();
    folders.iter().rev().find_map(|folder| class_of_folder(folder, class_names))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::fixture;
    use crate::state::{PageEvent, PeerToPage};

    fn read(class: u8, n_values: usize) -> PageEvent {
        PageEvent::OwnFile(OwnFile::Read { class, pixels: Some(vec![class; n_values]) })
    }

    fn posted(actions: Vec<PageAction>) -> Vec<PageToPeer> {
        let post = |action| match action {
            PageAction::Post(message) => Some(message),
            _ => None,
        };
        actions.into_iter().filter_map(post).collect()
    }

    fn ready() -> PageEvent {
        PageEvent::FromPeer(PeerToPage::Ready {
            identity: vec![7; 32],
            peer_id: "12D3".into(),
            device: barnraise_protocol::contribute::DeviceKind::BrowserCpu,
            device_name: String::new(),
        })
    }

    #[test]
    fn the_folder_of_a_picture_is_its_class() {
        let names = ["T-shirt/top", "Trouser"].map(String::from);
        for (path, class) in [
            ("mine/Trouser/a.jpg", Some(1)),
            ("t-shirt-top/a.jpg", Some(0)),
            ("Trouser/T-Shirt-Top/x/a.jpg", Some(0)),
            ("T-shirt/top/a.jpg", None),
            ("mine/other/a.jpg", None),
            ("Trouser", None),
            ("", None),
        ] {
            assert_eq!(class_of_path(path, &names), class, "{path}");
        }
    }

    #[test]
    fn what_was_chosen_goes_to_the_worker_before_it_starts_and_to_each_new_one() {
        let mut page = fixture::sampled_page();
        assert!(page.may_choose_own() && !fixture::page().may_choose_own());
        page.on_event(0.0, PageEvent::OwnFile(OwnFile::Begun));
        assert!(!page.may_choose_own(), "one is being read");
        page.on_event(0.0, read(2, 784));
        page.on_event(0.0, PageEvent::OwnFile(OwnFile::WithoutClass));
        page.on_event(0.0, PageEvent::OwnFile(OwnFile::Begun));
        page.on_event(0.0, PageEvent::OwnFile(OwnFile::Begun));
        page.on_event(0.0, read(1, 783));
        page.on_event(0.0, PageEvent::OwnFile(OwnFile::Read { class: 1, pixels: None }));
        assert_eq!(page.own_by_class(), [("Pullover".to_owned(), 1)]);
        let left_out: Vec<usize> = page.own_left_out().into_iter().map(|(n, _)| n).collect();
        assert_eq!(left_out, [1, 2]);
        page.on_event(1.0, PageEvent::Toggle);
        let own = PageToPeer::OwnPictures { pixels: vec![2; 784], labels: vec![2] };
        let first = posted(page.on_event(2.0, ready()));
        assert_eq!(first[..2], [own.clone(), PageToPeer::Start]);
        assert!(!page.may_choose_own(), "it trains");
        page.on_event(3.0, PageEvent::PeerLost { reason: crate::state::PeerLoss::of_words("gone") });
        page.on_event(4.0, PageEvent::Toggle);
        page.on_event(5.0, PageEvent::Toggle);
        let again = posted(page.on_event(6.0, ready()));
        assert!(again.contains(&own), "{again:?}");
    }

    #[test]
    fn the_worker_starts_when_the_files_are_read() {
        let mut page = fixture::sampled_page();
        page.on_event(0.0, ready());
        page.on_event(1.0, PageEvent::OwnFile(OwnFile::Begun));
        page.on_event(1.0, PageEvent::OwnFile(OwnFile::Begun));
        page.on_event(2.0, PageEvent::Toggle);
        assert!(posted(page.on_event(3.0, read(2, 784))).is_empty(), "one more is being read");
        let own = PageToPeer::OwnPictures { pixels: vec![2; 784], labels: vec![2] };
        let unreadable = PageEvent::OwnFile(OwnFile::Read { class: 1, pixels: None });
        let posts = posted(page.on_event(4.0, unreadable));
        assert!(posts.starts_with(&[own]) && posts.contains(&PageToPeer::Start), "{posts:?}");
        let mut page = fixture::sampled_table_page();
        page.on_event(0.0, ready());
        page.on_event(1.0, begun(9));
        let started = posted(page.on_event(2.0, PageEvent::Toggle));
        assert!(!started.contains(&PageToPeer::Start), "{started:?}");
        let posts = posted(page.on_event(3.0, table_read(b"some")));
        assert!(matches!(posts[..], [PageToPeer::OwnFiles { .. }]), "{posts:?}");
        assert!(posted(page.on_event(4.0, told(2, 7))).is_empty(), "of another table");
        assert!(posted(page.on_event(5.0, told(1, 7))).contains(&PageToPeer::Start));
    }

    #[test]
    fn a_choice_that_is_taken_back_is_told_and_one_that_is_too_large_is_counted() {
        let mut page = fixture::sampled_page();
        page.on_event(0.0, PageEvent::OwnFile(OwnFile::Begun));
        page.on_event(0.0, read(0, 784));
        page.on_event(1.0, PageEvent::Toggle);
        page.on_event(2.0, ready());
        page.on_event(3.0, PageEvent::Toggle);
        page.on_event(4.0, PageEvent::OwnForgotten);
        let posts = posted(page.on_event(5.0, PageEvent::Toggle));
        assert_eq!(posts[0], PageToPeer::OwnPictures { pixels: Vec::new(), labels: Vec::new() });
        page.own.pixels = vec![0; OWN_BYTES_MAX];
        page.on_event(6.0, PageEvent::OwnFile(OwnFile::Begun));
        page.on_event(6.0, read(0, 784));
        assert_eq!(page.own_left_out().first().unwrap().0, 1);
    }

    fn begun(n_bytes: u64) -> PageEvent {
        PageEvent::OwnFile(OwnFile::FilesBegun { name: "mine.csv".into(), n_bytes })
    }

    fn table_read(text: &[u8]) -> PageEvent {
        PageEvent::OwnFile(OwnFile::FilesRead(Some(vec![text.to_vec()])))
    }

    fn told(request: u32, n_samples: u32) -> PageEvent {
        let answer = PeerToPage::OwnFilesRead { request, n_samples, n_broken: 0, first_broken: None };
        PageEvent::FromPeer(answer)
    }

    fn texts(posts: Vec<PageToPeer>) -> Vec<(u32, Vec<u8>)> {
        let text = |post| match post {
            PageToPeer::OwnFiles { request, files, .. } => {
                Some((request, files.iter().flat_map(|file| file.iter().copied()).collect()))
            }
            _ => None,
        };
        posts.into_iter().filter_map(text).collect()
    }

    #[test]
    fn a_table_is_read_by_the_worker_at_once_and_by_each_new_one() {
        let mut page = fixture::sampled_table_page();
        assert!(page.may_choose_own() && !page.takes_own_pictures());
        assert!(!fixture::table_page().takes_own_table(), "its participants have the run's data");
        page.on_event(0.0, begun(9));
        assert!(!page.may_choose_own(), "it is being read");
        assert_eq!(page.on_event(1.0, table_read(b"some"))[0], PageAction::SpawnPeer);
        assert_eq!(texts(posted(page.on_event(2.0, ready()))), [(1, b"some".to_vec())]);
        assert!(!page.contributing && page.may_choose_own());
        page.on_event(3.0, told(0, 7));
        assert_eq!(page.own_files(), Some(("mine.csv", &FilesProgress::Checking)), "of another table");
        page.on_event(3.0, told(1, 7));
        assert_eq!(page.n_own(), 7);
        let started = posted(page.on_event(4.0, PageEvent::Toggle));
        assert!(started.contains(&PageToPeer::Start) && texts(started).is_empty(), "it knows the table");
        page.on_event(5.0, PageEvent::PeerLost { reason: crate::state::PeerLoss::of_words("gone") });
        page.on_event(6.0, PageEvent::Toggle);
        page.on_event(7.0, PageEvent::Toggle);
        let again = posted(page.on_event(8.0, ready()));
        assert!(!again.contains(&PageToPeer::Start), "it has to look at the table first: {again:?}");
        assert_eq!(texts(again), [(2, b"some".to_vec())]);
        assert!(posted(page.on_event(9.0, told(2, 7))).contains(&PageToPeer::Start));
    }

    #[test]
    fn ratings_go_to_the_worker_where_the_run_says_how_they_are_read() {
        let mut page = fixture::sampled_rating_page();
        assert!(page.takes_own_ratings() && page.may_choose_own());
        page.on_event(0.0, ready());
        page.on_event(0.0, begun(9));
        assert_eq!(texts(posted(page.on_event(1.0, table_read(b"some")))), [(1, b"some".to_vec())]);
        page.run.as_mut().unwrap().data.manifest.preprocessing = None;
        assert!(!page.takes_own_table() && !page.takes_own_ratings() && !page.may_choose_own());
        assert!(!fixture::rating_page().takes_own_table(), "its participants have the run's data");
    }

    #[test]
    fn all_texts_that_were_chosen_go_to_the_worker() {
        let mut page = fixture::sampled_text_page();
        assert!(page.may_choose_own() && !page.takes_own_table() && !page.takes_own_pictures());
        page.on_event(0.0, ready());
        let begun = OwnFile::FilesBegun { name: "2 files".into(), n_bytes: 5 };
        page.on_event(1.0, PageEvent::OwnFile(begun));
        let files = vec![b"one".to_vec(), b"tw".to_vec()];
        let posts = posted(page.on_event(2.0, PageEvent::OwnFile(OwnFile::FilesRead(Some(files.clone())))));
        let [PageToPeer::OwnFiles { request: 1, files: posted }] = &posts[..] else { panic!("{posts:?}") };
        assert!(posted.iter().eq(&files), "{posts:?}");
    }

    #[test]
    fn nothing_else_is_trained_on_in_place_of_files_that_are_too_large_or_cannot_be_read() {
        for event in [begun(u64::MAX), PageEvent::OwnFile(OwnFile::FilesRead(None))] {
            let mut page = fixture::sampled_table_page();
            page.on_event(0.0, ready());
            page.on_event(0.0, begun(9));
            page.on_event(1.0, event);
            let posts = posted(page.on_event(2.0, PageEvent::Toggle));
            assert!(!page.contributing && posts.is_empty(), "{posts:?}");
            assert!(
                page.notice.as_ref().unwrap().starts_with("mine.csv cannot be used: "),
                "{:?}",
                page.notice
            );
        }
    }

    #[test]
    fn a_table_goes_to_this_tabs_worker_and_to_no_other_tab() {
        let mut page = fixture::sampled_table_page();
        page.on_event(0.0, begun(9));
        page.on_event(0.0, PageEvent::Tabs(crate::state::TabEvent::Follow));
        let mut actions = page.on_event(1.0, table_read(b"some"));
        actions.extend(page.on_event(2.0, ready()));
        assert!(!format!("{actions:?}").contains("OwnFiles"), "{actions:?}");
    }

    #[test]
    fn a_table_that_is_refused_is_not_left_out_without_a_word() {
        let refused = |request| {
            let reason = "it has no column kind".into();
            PageEvent::FromPeer(PeerToPage::NoOwnFiles { request, reason })
        };
        let is_refused =
            |page: &PageState| matches!(page.own_files(), Some((_, FilesProgress::Refused { .. })));
        let mut page = fixture::sampled_table_page();
        page.on_event(0.0, ready());
        page.on_event(0.0, begun(9));
        assert_eq!(texts(posted(page.on_event(1.0, table_read(b"some")))).len(), 1);
        page.on_event(2.0, refused(1));
        assert!(is_refused(&page) && page.n_own() == 0);
        // The network may have failed: another try, and no training on other data.
        let posts = posted(page.on_event(3.0, PageEvent::Toggle));
        assert!(page.contributing && !posts.contains(&PageToPeer::Start), "{posts:?}");
        assert_eq!(texts(posts), [(2, b"some".to_vec())]);
        let posts = posted(page.on_event(4.0, refused(2)));
        assert!(!page.contributing && is_refused(&page) && posts.is_empty(), "{posts:?}");
        assert_eq!(page.notice.as_deref(), Some("mine.csv cannot be used: it has no column kind."));
        page.on_event(5.0, PageEvent::Toggle);
        assert!(posted(page.on_event(6.0, told(3, 3))).contains(&PageToPeer::Start));
        assert_eq!((page.n_own(), page.notice.as_deref()), (3, None));

        let mut page = fixture::sampled_table_page();
        page.on_event(0.0, ready());
        page.on_event(0.0, begun(9));
        page.on_event(1.0, PageEvent::Toggle);
        assert!(page.contributing);
        let posts = posted(page.on_event(2.0, PageEvent::OwnFile(OwnFile::FilesRead(None))));
        assert!(!page.contributing && posts.is_empty() && page.notice.is_some(), "{posts:?}");
    }

    #[test]
    fn a_table_that_is_taken_back_or_too_large_is_trained_on_no_more() {
        let mut page = fixture::sampled_table_page();
        page.on_event(0.0, ready());
        page.on_event(3.0, begun(9));
        page.on_event(3.0, table_read(b"more"));
        page.on_event(4.0, told(1, 3));
        assert_eq!(page.n_own(), 3);
        // The next one is too large: the worker is to forget the one that it has.
        page.on_event(5.0, begun(OWN_BYTES_MAX as u64 + 1));
        assert!(page.on_event(5.0, table_read(b"much")).is_empty() && page.n_own() == 0 && page.has_own());
        page.on_event(6.0, PageEvent::OwnForgotten);
        assert!(!page.has_own());
        let posts = posted(page.on_event(7.0, PageEvent::Toggle));
        assert_eq!(posts[0], PageToPeer::OwnPictures { pixels: Vec::new(), labels: Vec::new() });
    }
}
