//! What clients and addresses hold of a host's memory, and of its time.
//!
//! Dynamic thresholds, as [`crate::guard::FairShares`] has them for slots: an address holds at most as many bytes as are left
//! free, a client half of that. Nothing is reserved for anybody, and a single one never takes all.

use std::collections::HashMap;

use super::request::{GROUP_CLIENTS, ServedRequest, ServingLimits};
use crate::{AddressGroup, PeerKey};

/// Of one client, or one address.
#[derive(Debug, Default, Clone)]
struct Holding {
    n_requests: usize,
    n_bytes: u64,
    /// Rows that wait or are computed.
    n_rows: u64,
    /// Turn of its next request while others of it wait: that of the last one, and as much later as that takes.
    next_turn: u64,
}

/// Of all of them. It has entries for those alone that hold a request.
#[derive(Debug)]
pub(super) struct Holdings {
    bytes_max: u64,
    n_bytes: u64,
    n_rows: u64,
    clients: HashMap<PeerKey, Holding>,
    groups: HashMap<AddressGroup, Holding>,
}

impl Holdings {
    pub(super) fn new(limits: &ServingLimits) -> Self {
        let (clients, groups) = (HashMap::new(), HashMap::new());
        Self { bytes_max: limits.bytes_max, n_bytes: 0, n_rows: 0, clients, groups }
    }

    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    pub(super) fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Whether there is room for a request.
    pub(super) fn has_room(&self, request: &ServedRequest) -> bool {
        let n_free = self.bytes_max.saturating_sub(self.n_bytes);
        let of_client = self.clients.get(&request.client).map_or(0, |own| own.n_bytes);
        let of_group = self.groups.get(&request.group).map_or(0, |own| own.n_bytes);
        of_client.saturating_add(request.n_bytes) <= n_free / 2
            && of_group.saturating_add(request.n_bytes) <= n_free
    }

    /// A request was admitted.
    pub(super) fn take(&mut self, request: &ServedRequest) {
        self.n_bytes += request.n_bytes;
        let client = self.clients.entry(request.client.clone()).or_default();
        let group = self.groups.entry(request.group).or_default();
        for holding in [client, group] {
            holding.n_requests += 1;
            holding.n_bytes += request.n_bytes;
        }
    }

    /// A request is over, and its bytes are free.
    pub(super) fn give_back(&mut self, request: &ServedRequest) {
        self.n_bytes -= request.n_bytes;
        if let Some(client) = self.clients.get_mut(&request.client) {
            client.give_back(request.n_bytes);
            if client.n_requests == 0 {
                self.clients.remove(&request.client);
            }
        }
        if let Some(group) = self.groups.get_mut(&request.group) {
            group.give_back(request.n_bytes);
            if group.n_requests == 0 {
                self.groups.remove(&request.group);
            }
        }
    }

    /// The rows of a request begin to wait. Returns its turn, not before `last_turn`.
    pub(super) fn wait(&mut self, request: &ServedRequest, last_turn: u64) -> u64 {
        let n_rows = u64::from(request.n_rows);
        self.n_rows += n_rows;
        let mut turn = last_turn;
        for holding in self.both(request).into_iter().flatten() {
            turn = turn.max(if holding.n_rows > 0 { holding.next_turn } else { 0 });
        }
        // An address has as many turns as several clients.
        let weights = [u64::from(GROUP_CLIENTS), 1];
        for (holding, weight) in self.both(request).into_iter().zip(weights) {
            let Some(holding) = holding else { continue };
            holding.next_turn = turn.saturating_add(n_rows * weight);
            holding.n_rows += n_rows;
        }
        turn
    }

    /// The rows of a request no longer wait, and are not computed.
    pub(super) fn wait_no_more(&mut self, request: &ServedRequest) {
        let n_rows = u64::from(request.n_rows);
        self.n_rows -= n_rows;
        for holding in self.both(request).into_iter().flatten() {
            holding.n_rows -= n_rows;
        }
    }

    /// Rows that are before those of a request that comes now, where clients take turns: as many as its own for each client,
    /// and no more than there are.
    pub(super) fn rows_before(&self, request: &ServedRequest) -> u64 {
        let of_client = self.clients.get(&request.client).map_or(0, |own| own.n_rows);
        let of_group = self.groups.get(&request.group).map_or(0, |own| own.n_rows);
        let own = of_client.max(of_group / u64::from(GROUP_CLIENTS)) + u64::from(request.n_rows);
        own.saturating_mul(self.clients.len() as u64).min(self.n_rows)
    }

    fn both(&mut self, request: &ServedRequest) -> [Option<&mut Holding>; 2] {
        [self.clients.get_mut(&request.client), self.groups.get_mut(&request.group)]
    }
}

impl Holding {
    fn give_back(&mut self, n_bytes: u64) {
        self.n_requests -= 1;
        self.n_bytes -= n_bytes;
    }
}
