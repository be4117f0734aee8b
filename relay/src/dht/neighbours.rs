//! The peers closest to a key, from a recent copy of the routing table: asking the task that owns the
//! table for each key of each request would cost more than the answer.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use barnraise_protocol::dht::{PeerAddresses, Point, RecordKey};
use libp2p::Multiaddr;

use super::lock;
use crate::Node;

/// How old the copy of the table may be.
const AGE_MAX: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Neighbours {
    node: Node,
    copy: Mutex<Copy>,
    /// One asks for all.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Copy {
    peers: Arc<[(Point, PeerAddresses)]>,
    made: Option<Instant>,
}

impl Neighbours {
    pub(super) fn new(node: Node) -> Self {
        Self { node, copy: Mutex::new(Copy::default()), asking: tokio::sync::Mutex::new(()) }
    }

    /// The closest peers of each key, closest first, without `except`, at most `n_max` of each.
    pub(super) async fn closest(
        &self,
        keys: &[RecordKey],
        except: &[u8],
        n_max: usize,
    ) -> Vec<Vec<PeerAddresses>> {
        let peers = self.peers().await;
        let of_key = |key: &RecordKey| {
            let point = Point::of_key(key);
            let others = peers.iter().filter(|(_, peer)| peer.peer_id != except);
            let mut near: Vec<_> = others.map(|(of_peer, peer)| (of_peer.distance(&point), peer)).collect();
            if near.len() > n_max {
                near.select_nth_unstable_by_key(n_max, |(distance, _)| *distance);
                near.truncate(n_max);
            }
            near.sort_unstable_by_key(|(distance, _)| *distance);
            near.into_iter().map(|(_, peer)| peer.clone()).collect()
        };
        keys.iter().map(of_key).collect()
    }

    async fn peers(&self) -> Arc<[(Point, PeerAddresses)]> {
        if let Some(peers) = self.fresh() {
            return peers;
        }
        let _one = self.asking.lock().await;
        if let Some(peers) = self.fresh() {
            return peers;
        }
        let mut seen = HashSet::new();
        // A node that has stopped knows nobody.
        let contacts = self.node.contacts().await.unwrap_or_default().into_iter();
        let contacts = contacts.filter(|(peer, _)| seen.insert(*peer)).map(|(peer, addresses)| {
            let contact = PeerAddresses::new(peer.to_bytes(), addresses.iter().map(Multiaddr::to_vec));
            (Point::of_peer(&contact.peer_id), contact)
        });
        let peers: Arc<[_]> = contacts.collect();
        *lock(&self.copy) = Copy { peers: peers.clone(), made: Some(Instant::now()) };
        peers
    }

    fn fresh(&self) -> Option<Arc<[(Point, PeerAddresses)]>> {
        let copy = lock(&self.copy);
        copy.made.filter(|made| made.elapsed() < AGE_MAX).map(|_| copy.peers.clone())
    }
}
