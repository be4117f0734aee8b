//! Queue of the contributor's events from the worker to the page, sent no faster than the page takes them.
//!
//! A page in the background, on a slow phone or beside a small model takes longer over an event than the worker over
//! a contribution, and the browser's message queue is unbounded. So one batch at a time is in flight. Until the page
//! asks for the next one, the queue keeps the newest event of each kind that replaces itself, and all receipts.

use barnraise_protocol::receipt::SignedReceipt;

use crate::{ContributorEvent, PeerToPage};

/// Most receipts that wait for the page; at this number the worker stops computing. A page stores as many.
pub const RECEIPTS_MAX: usize = 10_000;

/// Events that the page has not taken yet. Pure.
#[derive(Debug, Default)]
pub struct EventQueue {
    /// In the order in which they are sent.
    events: Vec<ContributorEvent>,
    receipts: Vec<SignedReceipt>,
    is_awaited: bool,
}

impl EventQueue {
    /// Queues an event.
    pub fn add(&mut self, event: ContributorEvent) {
        match event {
            ContributorEvent::Receipt(receipt) => self.receipts.push(*receipt),
            event => {
                if is_replaced(&event) {
                    let kind = std::mem::discriminant(&event);
                    self.events.retain(|queued| std::mem::discriminant(queued) != kind);
                }
                self.events.push(event);
            }
        }
    }

    /// The next batch to post; `None` while one is in flight, or without events.
    pub fn take(&mut self) -> Option<PeerToPage> {
        if self.is_awaited || (self.events.is_empty() && self.receipts.is_empty()) {
            return None;
        }
        self.is_awaited = true;
        let receipts = std::mem::take(&mut self.receipts);
        let receipts = (!receipts.is_empty()).then_some(PeerToPage::Receipts { receipts });
        let events = std::mem::take(&mut self.events).into_iter().map(PeerToPage::Event);
        Some(PeerToPage::Events { messages: receipts.into_iter().chain(events).collect() })
    }

    /// The page has taken the batch that was posted.
    pub fn on_acknowledged(&mut self) {
        self.is_awaited = false;
    }

    /// Whether the page is so far behind that the worker has to stop computing.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.receipts.len() >= RECEIPTS_MAX
    }
}

/// Whether a newer event of the same kind replaces this one.
fn is_replaced(event: &ContributorEvent) -> bool {
    match event {
        ContributorEvent::Described(_)
        | ContributorEvent::Activity(_)
        | ContributorEvent::Contribution(_)
        | ContributorEvent::Progress(_)
        | ContributorEvent::Experts(_)
        | ContributorEvent::Gallery { .. }
        | ContributorEvent::NoGallery { .. }
        | ContributorEvent::Refused { .. }
        | ContributorEvent::Failed { .. } => true,
        // Bounded by the page's requests, and by the number of devices.
        ContributorEvent::Receipt(_)
        | ContributorEvent::Prediction { .. }
        | ContributorEvent::DeviceChanged { .. } => false,
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

    fn accepted(n_accepted: u64) -> ContributorEvent {
        ContributorEvent::Contribution(Contribution { n_accepted, ..Contribution::default() })
    }

    fn training(epoch: u64) -> ContributorEvent {
        ContributorEvent::Activity(Activity::Training { epoch })
    }

    fn posted(news: &mut EventQueue) -> Vec<PeerToPage> {
        match news.take() {
            Some(PeerToPage::Events { messages }) => messages,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_page_that_takes_its_time_gets_the_newest_of_each_kind_and_every_receipt() {
        let mut news = EventQueue::default();
        news.add(training(1));
        assert_eq!(posted(&mut news), [PeerToPage::Event(training(1))]);
        for id in 0..5000 {
            news.add(training(id));
            news.add(ContributorEvent::Receipt(Box::new(receipt(id))));
            news.add(accepted(id));
            assert_eq!(news.take(), None, "one batch is on its way");
        }
        news.on_acknowledged();
        let messages = posted(&mut news);
        let receipts = (0..5000).map(receipt).collect();
        let told = [training(4999), accepted(4999)].map(PeerToPage::Event);
        assert_eq!(messages, [[PeerToPage::Receipts { receipts }].as_slice(), &told].concat());
        news.on_acknowledged();
        assert_eq!(news.take(), None);
    }

    /// The last count comes before the idle activity.
    #[test]
    fn the_order_is_that_of_the_newest() {
        let mut news = EventQueue::default();
        for event in
            [training(1), accepted(1), training(2), accepted(2), ContributorEvent::Activity(Activity::Idle)]
        {
            news.add(event);
        }
        let told = [accepted(2), ContributorEvent::Activity(Activity::Idle)].map(PeerToPage::Event);
        assert_eq!(posted(&mut news), told);
    }

    #[test]
    fn answers_are_sent_one_by_one() {
        let mut news = EventQueue::default();
        let answer = |request| ContributorEvent::Prediction { request, epoch: 1, probabilities: vec![1.0] };
        (0..3).for_each(|request| news.add(answer(request)));
        assert_eq!(posted(&mut news), [0, 1, 2].map(|request| PeerToPage::Event(answer(request))));
    }

    #[test]
    fn a_page_that_takes_nothing_holds_the_worker_up() {
        let mut news = EventQueue::default();
        for id in 0..RECEIPTS_MAX as u64 {
            assert!(!news.is_full());
            news.add(ContributorEvent::Receipt(Box::new(receipt(id))));
        }
        assert!(news.is_full());
        news.take();
        assert!(!news.is_full());
    }
}
