//! The visitor's questions to the model about pictures.

use barnraise_messages::PageToPeer;

use super::{PageAction, PageState, Prediction, Question, WorkerState};

/// Shortest interval between questions about the same picture, as the model changes.
const ASK_AGAIN_MS: f64 = 3000.0;

impl PageState {
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
        self.prediction = None;
        self.comparison.forget();
        self.question = Some(Question { pixels, picked, asked_at_ms: now_ms, is_open: true });
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
        (question.asked_at_ms, question.is_open) = (now_ms, true);
        let pixels = question.pixels.clone();
        let mut actions = vec![PageAction::Post(PageToPeer::Predict { request: self.n_requests, pixels })];
        actions.extend(self.compare());
        actions
    }

    pub(super) fn on_prediction(&mut self, request: u32, epoch: u64, probabilities: &[f32]) {
        let Some(question) = self.question.as_mut().filter(|_| request == self.n_requests) else {
            return;
        };
        question.is_open = false;
        self.prediction = Some(Prediction::new(epoch, probabilities));
    }

    /// Stops waiting for the answer.
    pub(super) fn close_question(&mut self) {
        if let Some(question) = &mut self.question {
            question.is_open = false;
        }
    }
}
