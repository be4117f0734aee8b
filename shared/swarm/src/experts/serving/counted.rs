//! Which backward requests an expert has stepped by, so that none is counted twice.
//!
//! Of each session of a client the newest ids are remembered; those below them count as counted, so that a repeated request is
//! refused however old it is. A session ([`ServedRequest::session`]) begins with each process of the client, at random, so that
//! none depends on its clock. Here and below a client is one session of a peer. A client is forgotten once it was silent for [`REPEAT_HORIZON`]: until then it may repeat a request. As
//! many clients as an expert remembers are remembered; the backward requests of further ones wait until there is room.
//!
//! The state of an expert that is written to disk is its parameters, its optimizer, and this, all of the same step and in one
//! piece. A host that stops between a step and its answer begins again with what it has written: either the step is in it,
//! with the request's id, and the repeated request is a duplicate; or neither is, and the repeated request is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

#[cfg(doc)]
use super::request::ServedRequest;
use super::request::WAIT_MAX;
use crate::guard::FairShares;
use crate::{AddressGroup, Moment, PeerKey};

/// Most clients that an expert remembers.
pub const COUNTED_CLIENTS_MAX: usize = 1024;
/// Most ids of a client that an expert remembers. A client that has more requests in flight at one expert loses some.
pub const COUNTED_IDS_MAX: usize = 64;
/// Longest time after which a client repeats a request.
pub const REPEAT_HORIZON: Duration = Duration::from_secs(180);
/// Most bytes of a client's key.
const KEY_BYTES_MAX: usize = 64;

// A request that was admitted is counted, or dropped, before its client is forgotten.
const _: () = assert!(WAIT_MAX.as_secs() * 2 < REPEAT_HORIZON.as_secs());

/// Of one expert.
#[derive(Debug)]
pub(super) struct CountedRequests {
    clients: BTreeMap<PeerKey, CountedClient>,
    slots: FairShares<AddressGroup>,
}

#[derive(Debug)]
struct CountedClient {
    group: AddressGroup,
    heard_at: Moment,
    /// Ids below count as counted.
    floor: u64,
    ids: BTreeSet<u64>,
}

/// What lasts of an expert beside its parameters and its optimizer: the requests that it has stepped by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedState {
    clients: Vec<CountedClientState>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CountedClientState {
    key: ByteBuf,
    group: AddressGroup,
    floor: u64,
    /// Growing, none below `floor`.
    ids: Vec<u64>,
}

/// A state that no host has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CountedStateError {
    /// Too many clients.
    #[error("{got} clients, an expert remembers at most {COUNTED_CLIENTS_MAX}")]
    Clients {
        /// What came.
        got: usize,
    },
    /// Too many ids of a client.
    #[error("{got} requests of a client, an expert remembers at most {COUNTED_IDS_MAX}")]
    Ids {
        /// What came.
        got: usize,
    },
    /// A key that is none.
    #[error("a key of {got} bytes, it has 1 to {KEY_BYTES_MAX}")]
    Key {
        /// What came.
        got: usize,
    },
    /// Ids out of order, or below the floor; or a client twice.
    #[error("the requests of a client are not in order")]
    Order,
}

impl CountedState {
    /// Checks that a host may have written it.
    ///
    /// # Errors
    /// No host writes such a state.
    pub fn check(&self) -> Result<(), CountedStateError> {
        CountedRequests::restored(Moment::ZERO, self).map(drop)
    }
}

impl Default for CountedRequests {
    fn default() -> Self {
        Self { clients: BTreeMap::new(), slots: FairShares::new(COUNTED_CLIENTS_MAX) }
    }
}

impl CountedRequests {
    /// Whether the expert has stepped by the request, or may have.
    pub(super) fn has(&self, client: &PeerKey, id: u64) -> bool {
        self.clients.get(client).is_some_and(|client| id < client.floor || client.ids.contains(&id))
    }

    /// Makes sure that a request of the client can be remembered. Returns whether it can.
    pub(super) fn reserve(&mut self, now: Moment, client: &PeerKey, group: AddressGroup) -> bool {
        if let Some(client) = self.clients.get_mut(client) {
            client.heard_at = client.heard_at.max(now);
            return true;
        }
        if client.0.is_empty() || client.0.len() > KEY_BYTES_MAX {
            return false;
        }
        if !self.slots.has_slot(&group, 1) {
            self.forget_silent(now);
        }
        if !self.slots.take(&group) {
            return false;
        }
        let known = CountedClient { group, heard_at: now, floor: 0, ids: BTreeSet::new() };
        self.clients.insert(client.clone(), known);
        true
    }

    /// The expert has stepped by a request.
    pub(super) fn count(&mut self, now: Moment, client: &PeerKey, id: u64) {
        let Some(client) = self.clients.get_mut(client) else { return };
        client.heard_at = client.heard_at.max(now);
        client.ids.insert(id);
        while client.ids.len() > COUNTED_IDS_MAX
            && let Some(oldest) = client.ids.pop_first()
        {
            client.floor = client.floor.max(oldest.saturating_add(1));
        }
    }

    pub(super) fn state(&self) -> CountedState {
        let counted = self.clients.iter().filter(|(_, client)| !client.ids.is_empty());
        let clients = counted.map(|(key, client)| CountedClientState {
            key: ByteBuf::from(key.0.clone()),
            group: client.group,
            floor: client.floor,
            ids: client.ids.iter().copied().collect(),
        });
        CountedState { clients: clients.collect() }
    }

    pub(super) fn restored(now: Moment, state: &CountedState) -> Result<Self, CountedStateError> {
        if state.clients.len() > COUNTED_CLIENTS_MAX {
            return Err(CountedStateError::Clients { got: state.clients.len() });
        }
        let mut restored = Self::default();
        for client in &state.clients {
            let (key, got) = (PeerKey(client.key.to_vec()), client.ids.len());
            if key.0.is_empty() || key.0.len() > KEY_BYTES_MAX {
                return Err(CountedStateError::Key { got: key.0.len() });
            }
            if got > COUNTED_IDS_MAX {
                return Err(CountedStateError::Ids { got });
            }
            let grows = client.ids.windows(2).all(|pair| pair[0] < pair[1]);
            let is_known = restored.clients.contains_key(&key);
            if !grows || is_known || client.ids.first().is_some_and(|id| *id < client.floor) {
                return Err(CountedStateError::Order);
            }
            // Shares are those of the host that it came from.
            restored.slots.occupy(&client.group);
            let ids = client.ids.iter().copied().collect();
            let known = CountedClient { group: client.group, heard_at: now, floor: client.floor, ids };
            restored.clients.insert(key, known);
        }
        Ok(restored)
    }

    fn forget_silent(&mut self, now: Moment) {
        let slots = &mut self.slots;
        self.clients.retain(|_, client| {
            let stays = client.heard_at + REPEAT_HORIZON > now;
            if !stays {
                slots.give_back(&client.group);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: AddressGroup = AddressGroup::UNKNOWN;

    fn client(number: u16) -> PeerKey {
        PeerKey(number.to_le_bytes().to_vec())
    }

    #[test]
    fn what_is_older_than_the_window_counts_as_counted() {
        let mut counted = CountedRequests::default();
        assert!(counted.reserve(Moment::ZERO, &client(0), GROUP));
        let n = COUNTED_IDS_MAX as u64 + 10;
        (0..n).map(|at| 100 + at * 2).for_each(|id| counted.count(Moment::ZERO, &client(0), id));
        assert!((0..n).all(|at| counted.has(&client(0), 100 + at * 2)));
        assert!(counted.has(&client(0), 0) && counted.has(&client(0), 117), "they may have been");
        assert!(!counted.has(&client(0), 121) && !counted.has(&client(0), 100 + n * 2));
        assert!(!counted.has(&client(1), 100), "ids are a client's own");
    }

    #[test]
    fn a_client_is_remembered_while_it_may_repeat_and_the_others_wait() {
        let mut counted = CountedRequests::default();
        let mut group = 0;
        let mut n_clients = 0_u16;
        // Each address has half of what the ones before it left.
        while counted.reserve(Moment::ZERO, &client(n_clients), AddressGroup(group)) || group < 20 {
            if counted.clients.contains_key(&client(n_clients)) { n_clients += 1 } else { group += 1 }
        }
        assert!(n_clients > 1000 && usize::from(n_clients) <= COUNTED_CLIENTS_MAX, "{n_clients}");
        let soon = REPEAT_HORIZON - Duration::from_secs(1);
        assert!(!counted.reserve(soon, &client(5000), AddressGroup(0)), "nobody is forgotten");
        assert!(counted.reserve(soon, &client(0), AddressGroup(0)), "it is known");
        assert!(counted.reserve(REPEAT_HORIZON, &client(5000), AddressGroup(0)));
        assert_eq!(counted.clients.len(), 2, "the one that was heard of, and the new one");
        assert!(!counted.reserve(Moment::ZERO, &PeerKey(vec![0; 65]), AddressGroup(9)), "no key");
    }

    #[test]
    fn a_state_comes_back_as_it_was_and_a_forged_one_does_not() {
        let mut counted = CountedRequests::default();
        for number in 0..3 {
            assert!(counted.reserve(Moment::ZERO, &client(number), GROUP));
        }
        (0..100).for_each(|id| counted.count(Moment::ZERO, &client(0), id));
        counted.count(Moment::ZERO, &client(1), 7);
        let state = counted.state();
        let restored = CountedRequests::restored(Moment::ZERO, &state).unwrap();
        assert_eq!(restored.state(), state);
        assert!(restored.has(&client(0), 3) && restored.has(&client(1), 7) && !restored.has(&client(1), 8));
        assert!(!restored.clients.contains_key(&client(2)), "it has nothing to be remembered");

        let error = |state| CountedRequests::restored(Moment::ZERO, &state).map(|_| ()).unwrap_err();
        let with = |change: &dyn Fn(&mut CountedClientState)| {
            let mut state = state.clone();
            change(&mut state.clients[0]);
            state
        };
        assert_eq!(error(with(&|client| client.ids[0] = 0)), CountedStateError::Order);
        assert_eq!(error(with(&|client| client.ids.swap(0, 1))), CountedStateError::Order);
        assert_eq!(
            error(with(&|client| client.key = state.clients[1].key.clone())),
            CountedStateError::Order
        );
        assert_eq!(error(with(&|client| client.ids.push(1000))), CountedStateError::Ids { got: 65 });
        assert_eq!(error(with(&|client| client.key.clear())), CountedStateError::Key { got: 0 });
        let many = CountedState { clients: vec![state.clients[0].clone(); COUNTED_CLIENTS_MAX + 1] };
        assert_eq!(error(many), CountedStateError::Clients { got: 1025 });
    }

    #[test]
    fn a_state_at_its_limits_comes_back_and_one_beyond_them_does_not() {
        let client = |number: u16, ids: &[u64]| CountedClientState {
            key: ByteBuf::from(number.to_le_bytes().to_vec()),
            group: AddressGroup(7),
            floor: 5,
            ids: ids.to_vec(),
        };
        let restored = |clients: Vec<CountedClientState>| {
            CountedRequests::restored(Moment::ZERO, &CountedState { clients })
        };
        let full = (0..COUNTED_CLIENTS_MAX as u16).map(|number| client(number, &[5])).collect();
        let mut counted = restored(full).unwrap();
        // It has as many clients as there may be, all of one address, until they are forgotten.
        let other = PeerKey(vec![9; KEY_BYTES_MAX]);
        let late = REPEAT_HORIZON - Duration::from_millis(1);
        assert!(!counted.reserve(late, &other, AddressGroup(8)));
        assert!(
            counted.reserve(REPEAT_HORIZON, &other, AddressGroup(8)),
            "with the longest key that there is"
        );
        let again =
            |number: u8| counted.reserve(REPEAT_HORIZON, &PeerKey(vec![1, 2, number]), AddressGroup(7));
        assert!((0..=255).all(again), "the address has room again");
        let error = |clients| restored(clients).map(|_| ()).unwrap_err();
        assert_eq!(error(vec![client(1, &[5, 6, 6])]), CountedStateError::Order, "one twice");
        assert_eq!(error(vec![client(1, &[4, 6])]), CountedStateError::Order, "one below the floor");
        let long = |n_bytes| CountedClientState { key: ByteBuf::from(vec![1; n_bytes]), ..client(1, &[5]) };
        assert_eq!(error(vec![long(KEY_BYTES_MAX + 1)]), CountedStateError::Key { got: 65 });
        let restored = restored(vec![long(KEY_BYTES_MAX)]).unwrap();
        let peer = PeerKey(vec![1; KEY_BYTES_MAX]);
        assert!(restored.has(&peer, 4) && restored.has(&peer, 5) && !restored.has(&peer, 6));
        assert!(!CountedRequests::default().reserve(Moment::ZERO, &PeerKey(Vec::new()), AddressGroup(9)));
    }
}
