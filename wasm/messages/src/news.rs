//! What the contributor tells, on its way from the worker to the page: no faster than the page takes it.
//!
//! A page in the background, on a slow phone or beside a small model takes longer over an event than the worker over
//! a contribution, and the browser's queue between the two has no end. So one batch at a time is on its way. Until the
//! page asks for the next one, of each kind that replaces itself the newest is kept, and receipts are collected.

use barnraise_protocol::receipt::SignedReceipt;

use crate::{Event, PeerToPage};

/// Receipts that wait for the page at most: with so many the worker computes nothing more. A page keeps as many.
pub const RECEIPTS_MAX: usize = 10_000;

/// Events that the page has not taken yet. Pure.
#[derive(Debug, Default)]
pub struct News {
    /// In the order in which they are told.
    told: Vec<Event>,
    receipts: Vec<SignedReceipt>,
    is_awaited: bool,
}

impl News {
    /// Something happened.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Receipt(receipt) => self.receipts.push(*receipt),
            event => {
                if is_replaced(&event) {
                    let kind = std::mem::discriminant(&event);
                    self.told.retain(|told| std::mem::discriminant(told) != kind);
                }
                self.told.push(event);
            }
        }
    }

    /// What to post now, if the page is free and there is anything.
    pub fn take(&mut self) -> Option<PeerToPage> {
        if self.is_awaited || (self.told.is_empty() && self.receipts.is_empty()) {
            return None;
        }
        self.is_awaited = true;
        let receipts = std::mem::take(&mut self.receipts);
        let receipts = (!receipts.is_empty()).then_some(PeerToPage::Receipts { receipts });
        let told = std::mem::take(&mut self.told).into_iter().map(PeerToPage::Told);
        Some(PeerToPage::News { messages: receipts.into_iter().chain(told).collect() })
    }

    /// The page has taken what was posted.
    pub fn on_taken(&mut self) {
        self.is_awaited = false;
    }

    /// Whether the page is so far behind that nothing more should be made.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.receipts.len() >= RECEIPTS_MAX
    }
}

/// Whether a newer one says all that matters of those before.
fn is_replaced(event: &Event) -> bool {
    match event {
        Event::Described(_)
        | Event::Activity(_)
        | Event::Contribution(_)
        | Event::Progress(_)
        | Event::Gallery { .. }
        | Event::Failed { .. } => true,
        // Of these there are as many as the page asked for, and as there are devices.
        Event::Receipt(_) | Event::Prediction { .. } | Event::DeviceChanged { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use barnraise_protocol::access::{PublicKey, Signature, UnixTime};
    use barnraise_protocol::receipt::Receipt;

    use super::*;
    use crate::{Activity, Contribution};

    fn receipt(contribution_id: u64) -> SignedReceipt {
        let receipt = Receipt {
            run_id: "run".into(),
            peer: PublicKey([2; 32]),
            reducer: PublicKey([1; 32]),
            contribution_id,
            epoch: 1,
            n_samples: 64,
            n_bytes: 1,
            milliseconds: 1,
            issued_at: UnixTime(1),
        };
        SignedReceipt { receipt, signature: Signature::from([3; 64]) }
    }

    fn accepted(n_accepted: u64) -> Event {
        Event::Contribution(Contribution { n_accepted, ..Contribution::default() })
    }

    fn training(epoch: u64) -> Event {
        Event::Activity(Activity::Training { epoch })
    }

    fn posted(news: &mut News) -> Vec<PeerToPage> {
        match news.take() {
            Some(PeerToPage::News { messages }) => messages,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_page_that_takes_its_time_gets_the_newest_of_each_kind_and_every_receipt() {
        let mut news = News::default();
        news.add(training(1));
        assert_eq!(posted(&mut news), [PeerToPage::Told(training(1))]);
        for id in 0..5000 {
            news.add(training(id));
            news.add(Event::Receipt(Box::new(receipt(id))));
            news.add(accepted(id));
            assert_eq!(news.take(), None, "one batch is on its way");
        }
        news.on_taken();
        let messages = posted(&mut news);
        let receipts = (0..5000).map(receipt).collect();
        let told = [training(4999), accepted(4999)].map(PeerToPage::Told);
        assert_eq!(messages, [[PeerToPage::Receipts { receipts }].as_slice(), &told].concat());
        news.on_taken();
        assert_eq!(news.take(), None);
    }

    /// Who reads that nothing is going on has read the last count.
    #[test]
    fn the_order_is_that_of_the_newest() {
        let mut news = News::default();
        for event in [training(1), accepted(1), training(2), accepted(2), Event::Activity(Activity::Idle)] {
            news.add(event);
        }
        let told = [accepted(2), Event::Activity(Activity::Idle)].map(PeerToPage::Told);
        assert_eq!(posted(&mut news), told);
    }

    #[test]
    fn answers_are_told_one_by_one() {
        let mut news = News::default();
        let answer = |request| Event::Prediction { request, epoch: 1, probabilities: vec![1.0] };
        (0..3).for_each(|request| news.add(answer(request)));
        assert_eq!(posted(&mut news), [0, 1, 2].map(|request| PeerToPage::Told(answer(request))));
    }

    #[test]
    fn a_page_that_takes_nothing_holds_the_worker_up() {
        let mut news = News::default();
        for id in 0..RECEIPTS_MAX as u64 {
            assert!(!news.is_full());
            news.add(Event::Receipt(Box::new(receipt(id))));
        }
        assert!(news.is_full());
        news.take();
        assert!(!news.is_full());
    }
}
