//! Models to download, and the comparison of an earlier model with the newest.

use barnraise_messages::PageToPeer;
use barnraise_protocol::api::{ModelFile, Models};

use super::{GalleryRequest, PageAction, PageState, Prediction, WorkerState};

/// Preferred age of the earlier model.
const AN_HOUR_S: u64 = 3600;

/// Comparison with an earlier model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Comparison {
    /// The visitor asked for it.
    pub(crate) is_wanted: bool,
    /// The model that was asked, with its age then.
    pub(crate) asked: Option<ModelFile>,
    /// Its answer.
    pub(crate) prediction: Option<Prediction>,
    /// Why it did not answer.
    pub(crate) failure: Option<String>,
    pub(crate) request: u32,
}

impl Comparison {
    /// The question changed.
    pub(super) fn forget(&mut self) {
        (self.asked, self.prediction, self.failure) = (None, None, None);
    }

    /// Whether this request is the newest, and its question still stands.
    fn awaits(&self, request: u32) -> bool {
        self.asked.is_some() && request == self.request
    }
}

impl PageState {
    /// The earlier model whose age is nearest to an hour, where it is not the newest itself. There is none where experts
    /// are on other machines: they learn on.
    pub(crate) fn earlier_model(&self) -> Option<ModelFile> {
        if self.run.as_ref().is_some_and(|run| run.model.hosted.is_some()) {
            return None;
        }
        let Models { latest, earlier } = self.models.as_ref()?;
        let is_earlier = |model: &&ModelFile| latest.is_none_or(|latest| model.epoch < latest.epoch);
        earlier.iter().filter(is_earlier).min_by_key(|model| model.age_seconds.abs_diff(AN_HOUR_S)).copied()
    }

    pub(super) fn toggle_comparison(&mut self) -> Vec<PageAction> {
        self.comparison.is_wanted = !self.comparison.is_wanted;
        self.comparison.forget();
        let is_ready = matches!(self.peer, WorkerState::Ready { .. });
        if is_ready { self.compare().into_iter().collect() } else { Vec::new() }
    }

    /// Asks the earlier model about the current picture, unless it was asked.
    pub(super) fn compare(&mut self) -> Option<PageAction> {
        let model = self.earlier_model()?;
        let pixels = self.question.as_ref().map(|question| question.pixels.clone())?;
        let comparison = &mut self.comparison;
        let is_asked = comparison.asked.is_some_and(|asked| asked.epoch == model.epoch);
        if !comparison.is_wanted || is_asked {
            return None;
        }
        // The answer of another model is dropped.
        comparison.forget();
        comparison.asked = Some(model);
        comparison.request = comparison.request.wrapping_add(1);
        Some(PageAction::Post(PageToPeer::PredictEarlier {
            request: comparison.request,
            epoch: model.epoch,
            pixels,
        }))
    }

    /// The worker is gone: another one will be asked.
    pub(super) fn forget_asking(&mut self) {
        self.gallery_request = GalleryRequest::default();
        if self.comparison.prediction.is_none() {
            self.comparison.forget();
        }
    }

    pub(super) fn on_earlier(&mut self, request: u32, epoch: u64, probabilities: &[f32]) {
        if self.comparison.awaits(request) {
            self.comparison.prediction = Some(Prediction::new(epoch, probabilities));
            self.comparison.failure = None;
        }
    }

    pub(super) fn on_no_earlier(&mut self, request: u32, reason: String) {
        if self.comparison.awaits(request) {
            self.comparison.failure = Some(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_messages::PeerToPage;
    use barnraise_protocol::contribute::DeviceKind;

    use super::super::{PageEvent, PeerLoss};
    use super::*;
    use crate::fixture;

    fn model(epoch: u64, age_seconds: u64) -> ModelFile {
        ModelFile { epoch, age_seconds, n_bytes: 100 }
    }

    /// A page with the newest model in it, and some from before on the server.
    fn page() -> PageState {
        let mut page = fixture::page();
        page.peer = WorkerState::Ready { device: DeviceKind::BrowserCpu, device_name: String::new() };
        let earlier = vec![model(90, 600), model(50, 5000), model(3, 90_000)];
        page.on_event(0.0, PageEvent::ModelsKnown(Models { latest: Some(model(99, 5)), earlier }));
        page
    }

    fn earlier(page: &mut PageState, request: u32, epoch: u64) {
        let answer = PeerToPage::PredictedEarlier { request, epoch, probabilities: vec![0.2, 0.8] };
        page.on_event(3.0, PageEvent::FromPeer(answer));
    }

    fn asked(actions: &[PageAction]) -> Vec<(u32, u64)> {
        let asked = |action: &PageAction| match action {
            PageAction::Post(PageToPeer::PredictEarlier { request, epoch, .. }) => Some((*request, *epoch)),
            _ => None,
        };
        actions.iter().filter_map(asked).collect()
    }

    #[test]
    fn the_model_nearest_to_an_hour_is_asked_once_it_is_wanted() {
        let mut page = page();
        assert_eq!(page.earlier_model().unwrap().epoch, 50);
        assert_eq!(asked(&page.on_event(1.0, PageEvent::Drawn(vec![1]))), []);
        assert_eq!(asked(&page.on_event(2.0, PageEvent::ToggleComparison)), [(1, 50)]);
        earlier(&mut page, 1, 50);
        assert_eq!(page.comparison.prediction.as_ref().unwrap().ranking[0].0, 1);
        // Another picture asks both; an answer about the one before is not shown.
        assert_eq!(asked(&page.on_event(3.0, PageEvent::Drawn(vec![2]))), [(2, 50)]);
        earlier(&mut page, 1, 50);
        assert_eq!(page.comparison.prediction, None);
        earlier(&mut page, 2, 50);
        assert!(page.comparison.prediction.is_some());
        assert_eq!(page.on_event(4.0, PageEvent::ToggleComparison), []);
        assert_eq!(page.comparison.prediction, None);
        earlier(&mut page, 2, 50);
        assert_eq!(page.comparison.prediction, None, "nobody wants it any more");
    }

    #[test]
    fn the_newest_model_is_no_earlier_one() {
        let mut page = page();
        let both = |epoch| Models { latest: Some(model(99, 5)), earlier: vec![model(epoch, 5)] };
        page.on_event(1.0, PageEvent::ModelsKnown(both(99)));
        assert_eq!(page.earlier_model(), None);
        page.on_event(2.0, PageEvent::ModelsKnown(both(98)));
        assert_eq!(page.earlier_model().map(|model| model.epoch), Some(98));
    }

    #[test]
    fn without_a_model_from_before_nothing_is_asked() {
        let mut page = page();
        page.on_event(1.0, PageEvent::ModelsKnown(Models::default()));
        page.on_event(1.0, PageEvent::Drawn(vec![1]));
        assert_eq!(page.on_event(2.0, PageEvent::ToggleComparison), []);
    }

    #[test]
    fn another_worker_is_asked_what_the_one_before_did_not_answer() {
        let mut page = page();
        page.on_event(1.0, PageEvent::Toggle);
        page.on_event(1.0, PageEvent::Drawn(vec![1]));
        page.on_event(2.0, PageEvent::ToggleComparison);
        page.on_event(3.0, PageEvent::PeerLost { reason: PeerLoss::of_words("unreachable") });
        page.on_event(4.0, PageEvent::Revive);
        let ready = PeerToPage::Ready {
            identity: vec![7; 32],
            peer_id: "12D3".into(),
            device: DeviceKind::BrowserCpu,
            device_name: String::new(),
        };
        assert_eq!(asked(&page.on_event(5.0, PageEvent::FromPeer(ready))), [(2, 50)]);
        assert_eq!(page.comparison.asked.map(|model| model.epoch), Some(50));
    }

    #[test]
    fn a_model_that_cannot_be_had_says_why() {
        let mut page = page();
        page.on_event(1.0, PageEvent::Drawn(vec![1]));
        page.on_event(2.0, PageEvent::ToggleComparison);
        let failed = PeerToPage::NoEarlier { request: 1, reason: "404".into() };
        page.on_event(3.0, PageEvent::FromPeer(failed));
        assert_eq!(page.comparison.failure.as_deref(), Some("404"));
        page.on_event(4.0, PageEvent::ForgetQuestion);
        assert_eq!(page.comparison.failure, None);
    }
}
