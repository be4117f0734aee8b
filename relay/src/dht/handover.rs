//! Hands records over to new peers that are closer to their keys than the peers that store them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dht::{PeerAddresses, Purpose, RecordKey};
use barnraise_swarm::PeerKey;
use libp2p::PeerId;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::operations::batches;
use super::{DhtState, counters, lock};
use crate::NodeEvent;

/// Newcomers are looked at together, so that a swarm that starts does not cost a look at every record for
/// each of its peers.
const GATHER: Duration = Duration::from_secs(1);
/// Newcomers looked at together, at most; others get theirs when the records are refreshed.
const NEWCOMERS_MAX: usize = 32;
/// Keys that the routing table is asked for in one go.
const KEYS_AT_ONCE: usize = 64;

pub(super) async fn run(shared: Arc<DhtState>) {
    let mut events = shared.node.events();
    let mut newcomers: HashSet<PeerId> = HashSet::new();
    let mut until = Instant::now();
    loop {
        let event = match newcomers.is_empty() {
            true => Some(events.recv().await),
            // Events that arrive meanwhile wait in the channel.
            false => tokio::time::timeout_at(until, events.recv()).await.ok(),
        };
        match event {
            Some(Ok(NodeEvent::Routable(peer))) if newcomers.len() < NEWCOMERS_MAX => {
                if newcomers.is_empty() {
                    until = Instant::now() + GATHER;
                }
                newcomers.insert(peer);
            }
            Some(Ok(_) | Err(RecvError::Lagged(_))) => {}
            Some(Err(RecvError::Closed)) => return,
            None => hand_over(&shared, std::mem::take(&mut newcomers)).await,
        }
    }
}

async fn hand_over(shared: &Arc<DhtState>, newcomers: HashSet<PeerId>) {
    let mut keys: Vec<RecordKey> = lock(&shared.storage).records().map(|(key, _)| *key).collect();
    keys.sort_unstable();
    keys.dedup();
    let n_replicas = shared.config.placement.n_replicas;
    let mut closest: HashMap<RecordKey, Vec<PeerAddresses>> = HashMap::new();
    for keys in keys.chunks(KEYS_AT_ONCE) {
        // One more, because the newcomer may be among them.
        let known = shared.neighbours.closest(keys, &shared.here.0, n_replicas + 1).await;
        closest.extend(keys.iter().copied().zip(known));
    }
    for newcomer in newcomers {
        let peer = PeerKey(newcomer.to_bytes());
        let of_key = |key: &RecordKey| {
            let closest = closest.get(key).map_or(&[][..], Vec::as_slice);
            closest.iter().map(|contact| PeerKey(contact.peer_id.clone())).collect()
        };
        let due = {
            let storage = lock(&shared.storage);
            barnraise_swarm::dht::handover(&storage, &shared.here, &peer, n_replicas, of_key)
        };
        // Its addresses are in the routing table.
        let contact = PeerAddresses::new(peer.0, []);
        for records in batches(due) {
            let n_records = records.len();
            if shared.send_records(&contact, records, Purpose::Replica).await.is_err() {
                break;
            }
            counters::add(&shared.counters.records_handed_over, n_records);
        }
    }
}
