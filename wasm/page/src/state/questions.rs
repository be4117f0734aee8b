//! The visitor's questions to the model about pictures.

use barnraise_messages::PageToPeer;

use super::{Gallery, GalleryRequest, PageAction, PageState, Prediction, Question, WorkerState};

/// Shortest interval between questions about the same picture, as the model changes.
const ASK_AGAIN_MS: f64 = 3000.0;

impl PageState {
    /// The visitor's requests to a worker that is ready, beside contributing.
    pub(super) fn asked_once_ready(&mut self, now_ms: f64) -> Vec<PageAction> {
        let mut actions = Vec::new();
        if self.check_wanted {
            actions.push(PageAction::Post(PageToPeer::SelfCheck));
        }
        // A tab that cannot be let in is not told of pictures that nobody asked for.
        if self.may_try() {
            actions.extend(self.ask_for_gallery());
        }
        if self.is_asking() {
            actions.extend(self.post_question(now_ms));
        }
        actions.extend(self.compare());
        actions.extend(self.post_text());
        actions.extend(self.post_row());
        actions.extend(self.post_own_files());
        actions
    }

    /// Whether the current question waits for its answer.
    pub(crate) fn is_asking(&self) -> bool {
        self.question.as_ref().is_some_and(|question| question.is_open)
    }

    /// The label of the picture, if it is from the gallery.
    pub(crate) fn label(&self) -> Option<usize> {
        let picked = self.question.as_ref()?.picked?;
        self.gallery.as_ref()?.labels.get(picked).copied().map(usize::from)
    }

    pub(super) fn ask(&mut self, now_ms: f64, pixels: Vec<u8>, picked: Option<usize>) -> Vec<PageAction> {
        (self.prediction, self.is_photo_unreadable) = (None, false);
        self.comparison.forget();
        self.question = Some(Question { pixels, picked, asked_at_ms: now_ms, is_open: true, failure: None });
        match self.peer {
            WorkerState::Ready { .. } => self.post_question(now_ms),
            _ => self.load(),
        }
    }

    /// Asks about the same picture again once there is a newer model. Only while contributing, which fetches the model
    /// anyway.
    pub(super) fn ask_again(&mut self, now_ms: f64, epoch: u64) -> Vec<PageAction> {
        let is_old = self.prediction.as_ref().is_some_and(|prediction| prediction.epoch < epoch);
        let is_due = self
            .question
            .as_ref()
            .is_some_and(|question| !question.is_open && now_ms - question.asked_at_ms >= ASK_AGAIN_MS);
        if is_old && is_due && self.contributing { self.post_question(now_ms) } else { Vec::new() }
    }

    pub(super) fn post_question(&mut self, now_ms: f64) -> Vec<PageAction> {
        let Some(question) = &mut self.question else {
            return Vec::new();
        };
        self.n_requests = self.n_requests.wrapping_add(1);
        (question.asked_at_ms, question.is_open, question.failure) = (now_ms, true, None);
        let pixels = question.pixels.clone();
        let mut actions = vec![PageAction::Post(PageToPeer::Predict { request: self.n_requests, pixels })];
        actions.extend(self.compare());
        actions
    }

    pub(super) fn on_prediction(&mut self, request: u32, epoch: u64, probabilities: &[f32]) {
        let Some(question) = self.question.as_mut().filter(|_| request == self.n_requests) else {
            return;
        };
        (question.is_open, question.failure) = (false, None);
        self.prediction = Some(Prediction::new(epoch, probabilities));
    }

    /// Ends the wait for an answer, for a reason; gives the reason back where nothing waits.
    pub(super) fn fail_question(&mut self, reason: String) -> Result<(), String> {
        match self.question.as_mut().filter(|question| question.is_open) {
            Some(question) => {
                (question.is_open, question.failure) = (false, Some(reason));
                Ok(())
            }
            None => Err(reason),
        }
    }

    /// The visitor wants the model and the pictures in this tab.
    pub(super) fn load_to_try(&mut self) -> Vec<PageAction> {
        match self.peer {
            WorkerState::Ready { .. } => self.ask_for_gallery().into_iter().collect(),
            WorkerState::Absent | WorkerState::Loading { .. } => self.load(),
        }
    }

    /// Whether the pictures are on their way, or a worker that fetches them is.
    pub(crate) fn awaits_gallery(&self) -> bool {
        self.gallery_request.is_open || matches!(self.peer, WorkerState::Loading { .. })
    }

    pub(super) fn ask_for_gallery(&mut self) -> Option<PageAction> {
        if self.gallery.is_some() || self.gallery_request.is_open || self.has_nothing_to_try() {
            return None;
        }
        self.gallery_request = GalleryRequest { is_open: true, failure: None };
        Some(PageAction::Post(PageToPeer::LoadGallery))
    }

    pub(super) fn on_gallery(&mut self, gallery: Gallery) {
        self.gallery = Some(gallery);
        self.gallery_request = GalleryRequest::default();
    }

    pub(super) fn on_no_gallery(&mut self, reason: String) {
        self.gallery_request = GalleryRequest { is_open: false, failure: Some(reason) };
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::{ContributorEvent, PeerToPage};

    use super::super::PageEvent;
    use super::*;
    use crate::fixture;
    use crate::sentence::verdict;

    fn told(event: ContributorEvent) -> PageEvent {
        PageEvent::FromPeer(PeerToPage::Event(event))
    }

    #[test]
    fn a_prediction_that_never_comes_is_said_where_it_is_waited_for() {
        let mut page = fixture::page();
        page.on_event(0.0, PageEvent::Drawn(vec![1]));
        page.on_event(1.0, fixture::ready());
        let failed = || told(ContributorEvent::Failed { message: "The prediction is lost".into() });
        page.on_event(2.0, failed());
        assert_eq!((verdict(&page), page.notice.as_deref()), ("The prediction is lost.".into(), None));
        page.on_event(3.0, failed());
        assert_eq!(page.notice.as_deref(), Some("The prediction is lost"), "nothing waits any more");
        page.on_event(4.0, PageEvent::Drawn(vec![2]));
        assert_eq!(verdict(&page), "Looking…");
    }

    #[test]
    fn pictures_that_cannot_be_had_are_asked_for_again_by_a_click() {
        let mut page = fixture::page();
        page.on_event(0.0, PageEvent::LoadModel);
        assert!(page.awaits_gallery());
        let asks = |actions: Vec<PageAction>| actions.contains(&PageAction::Post(PageToPeer::LoadGallery));
        assert!(asks(page.on_event(1.0, fixture::ready())) && page.awaits_gallery());
        assert!(!asks(page.on_event(2.0, PageEvent::LoadModel)), "they are on their way");
        page.on_event(3.0, told(ContributorEvent::NoGallery { reason: "nobody is there".into() }));
        assert!(!page.awaits_gallery());
        assert_eq!(page.gallery_request.failure.as_deref(), Some("nobody is there"));
        assert_eq!(page.notice, None, "it is said at the pictures");
        assert!(asks(page.on_event(4.0, PageEvent::LoadModel)));
        page.on_event(5.0, told(ContributorEvent::Gallery { images: Vec::new(), labels: Vec::new() }));
        assert!(page.gallery.is_some() && !page.awaits_gallery() && page.gallery_request.failure.is_none());
    }
}
