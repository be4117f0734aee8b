//! The records that are handed to a peer that joins.

use barnraise_protocol::dht::{Point, Record, RecordKey};

use super::storage::Storage;
use crate::PeerKey;

/// Records of `storage` that `here` hands over to `newcomer`: the newcomer is among the `n_replicas` closest peers of the
/// key, and `here` is the closest of those that store the record already.
///
/// `closest` returns the closest known peers of a key, closest first, without `here`. The newcomer may be among them.
pub fn handover(
    storage: &Storage,
    here: &PeerKey,
    newcomer: &PeerKey,
    n_replicas: usize,
    closest: impl Fn(&RecordKey) -> Vec<PeerKey>,
) -> Vec<Record> {
    let (here, new) = (Point::of_peer(&here.0), Point::of_peer(&newcomer.0));
    let mut of_keys = std::collections::HashMap::new();
    let is_due = |key: &RecordKey| {
        let point = Point::of_key(key);
        let others = closest(key).into_iter().filter(|peer| peer != newcomer);
        let mut others: Vec<_> = others.map(|peer| Point::of_peer(&peer.0).distance(&point)).collect();
        others.sort_unstable();
        let n_closer = others.partition_point(|other| *other < new.distance(&point));
        let is_replica = n_closer + usize::from(here.distance(&point) < new.distance(&point)) < n_replicas;
        is_replica && others.first().is_none_or(|first| here.distance(&point) < *first)
    };
    let records = storage.records().filter(|(key, _)| *of_keys.entry(**key).or_insert_with(|| is_due(key)));
    records.map(|(_, record)| record.clone()).collect()
}
