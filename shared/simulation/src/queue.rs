//! Events in the order of their time; those of one moment in the order in which they were scheduled.

use std::collections::BTreeMap;

use crate::Moment;

/// A scheduled event, by its time and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    pub(crate) at: Moment,
    pub(crate) number: u64,
}

/// All that is scheduled.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    events: BTreeMap<EventId, E>,
    n_pushed: u64,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self { events: BTreeMap::new(), n_pushed: 0 }
    }

    pub(crate) fn push(&mut self, at: Moment, event: E) -> EventId {
        self.n_pushed += 1;
        let id = EventId { at, number: self.n_pushed };
        self.events.insert(id, event);
        id
    }

    /// Postpones an event that was taken out, in front of those that were scheduled after it.
    pub(crate) fn put_back(&mut self, id: EventId, at: Moment, event: E) {
        self.events.insert(EventId { at, ..id }, event);
    }

    pub(crate) fn get_mut(&mut self, id: EventId) -> Option<&mut E> {
        self.events.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: EventId) -> Option<E> {
        self.events.remove(&id)
    }

    pub(crate) fn next_at(&self) -> Option<Moment> {
        self.events.keys().next().map(|id| id.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(EventId, E)> {
        self.events.pop_first()
    }
}
