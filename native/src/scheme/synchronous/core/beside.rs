//! Answers while the core waits: for a disk, or for a thread that computes.
//!
//! Events that need neither are handled at once; the others wait, in their order. A step or a move to other parameters
//! [holds](barnraise_swarm::collection::CollectionRound::hold) the round first, so that nothing is collected meanwhile for
//! the epoch that it ends.

use std::collections::VecDeque;
use std::pin::pin;

use barnraise_protocol::contribute::BackboneToContributor;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Core, CoreEvent, EVENTS_MAX};
use crate::host::evaluator::Evaluated;
use crate::host::sessions::SessionEvent;

/// Events from the channel, and those that wait because the core was busy.
pub(super) struct Inbox {
    events: mpsc::Receiver<CoreEvent>,
    /// At most [`EVENTS_MAX`].
    waiting: VecDeque<CoreEvent>,
}

impl Inbox {
    pub(super) fn new(events: mpsc::Receiver<CoreEvent>) -> Self {
        Self { events, waiting: VecDeque::new() }
    }

    /// From which nothing comes.
    pub(super) fn closed() -> Self {
        Self::new(mpsc::channel(1).1)
    }

    /// The next event; `None` once there are none and their senders are gone.
    pub(super) async fn next(&mut self) -> Option<CoreEvent> {
        match self.waiting.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        }
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < EVENTS_MAX
    }
}

impl Core {
    /// Waits for `work`, and answers meanwhile: joins, leaves, reports and offers. Progress goes on, too.
    ///
    /// `work` borrows nothing of the core. What the core knows of its learner stays as it was.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep_until(self.progress_at) => self.publish_progress(),
                Some(event) = self.inbox.events.recv(), if self.inbox.has_room() => {
                    if let Some(event) = self.answer_at_once(event) {
                        self.inbox.waiting.push_back(event);
                    }
                    while let Some(message) = self.round.poll_message() {
                        self.pass_on(message);
                    }
                }
            }
        }
    }

    /// Handles an event that nothing has to be awaited for; returns any other.
    pub(super) fn answer_at_once(&mut self, event: CoreEvent) -> Option<CoreEvent> {
        let now = self.now();
        match event {
            CoreEvent::Session(event) => self.on_session(event),
            CoreEvent::Offer { peer, offer, answer } => self.on_offer(&peer, &offer, answer),
            CoreEvent::TransferFailed(ticket) => {
                self.receiving.remove(&ticket);
                self.round.on_transfer_failed(now, ticket);
            }
            CoreEvent::Evaluated(Evaluated { epoch, evaluation }) => {
                tracing::info!(epoch, accuracy = evaluation.accuracy, loss = evaluation.loss, "evaluated");
                self.learner.on_evaluated(epoch, evaluation.accuracy);
                self.outputs.status.on_new_history();
            }
            other @ (CoreEvent::Gradient { .. } | CoreEvent::Aggregator { .. } | CoreEvent::Operator(_)) => {
                return Some(other);
            }
        }
        None
    }

    fn on_session(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Join { peer, group, join, messages, answer } => {
                // A sender that is gone closed its stream meanwhile: its `Leave` follows.
                let _ = answer.send(self.on_join(peer, group, &join, messages));
            }
            SessionEvent::Leave { peer, session } => {
                if self.sessions.has(&peer, session) {
                    self.remove_session(&peer);
                }
            }
            SessionEvent::Report { peer, report, handled: _ } => {
                if let Err(error) = self.round.on_report(self.now(), &peer, &report) {
                    self.send_to(&peer, BackboneToContributor::Refused(error.into()));
                }
            }
        }
    }

    /// When progress is published again.
    pub(super) fn put_progress_off(&mut self) {
        self.progress_at = Instant::now() + self.progress_every;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use barnraise_swarm::PeerKey;

    use super::*;
    use crate::scheme::synchronous::aggregators::AggregatorEvent;

    fn event(number: usize) -> CoreEvent {
        CoreEvent::Aggregator { peer: PeerKey(number.to_le_bytes().to_vec()), event: AggregatorEvent::Gone }
    }

    #[tokio::test]
    async fn so_many_events_wait_and_come_before_those_of_the_channel() {
        let (events, heard) = mpsc::channel(1);
        let mut inbox = Inbox::new(heard);
        events.send(event(EVENTS_MAX)).await.unwrap();
        drop(events);
        for number in 0..EVENTS_MAX {
            assert!(inbox.has_room(), "{number}");
            inbox.waiting.push_back(event(number));
        }
        assert!(!inbox.has_room());
        for number in 0..=EVENTS_MAX {
            let Some(CoreEvent::Aggregator { peer, .. }) = inbox.next().await else { panic!("{number}") };
            assert_eq!(peer.0, number.to_le_bytes());
        }
        assert!(inbox.next().await.is_none() && Inbox::closed().next().await.is_none());
    }
}
