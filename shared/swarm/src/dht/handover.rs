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
        let is_replica = n_replicas > n_closer + usize::from(here.distance(&point) < new.distance(&point));
        is_replica && others.first().is_none_or(|first| here.distance(&point) < *first)
    };
    let records = storage.records().filter(|(key, _)| *of_keys.entry(**key).or_insert_with(|| is_due(key)));
    records.map(|(_, record)| record.clone()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use barnraise_protocol::dht::{RecordName, UnixMillis};

    use super::*;
    use crate::dht::{Eviction, StorageLimits};

    const NOW: UnixMillis = UnixMillis(1_000_000);

    fn peer(name: u8) -> PeerKey {
        PeerKey(vec![name])
    }

    fn closest_to(key: &RecordKey, names: impl Iterator<Item = u8>) -> Vec<PeerKey> {
        let mut peers: Vec<PeerKey> = names.map(peer).collect();
        peers.sort_by_key(|peer| Point::of_peer(&peer.0).distance(&Point::of_key(key)));
        peers
    }

    /// Of the holders the closest one hands over, and a newcomer that is no replica gets nothing.
    #[test]
    fn a_newcomer_gets_each_record_of_which_it_is_a_replica_once() {
        let (n_replicas, n_peers, newcomer) = (2, 5, 0);
        let (mut n_handed, mut n_kept) = (0, 0);
        for label in 0..24u8 {
            let name = RecordName::value(&[label]);
            let key = name.key();
            let record = Record::new(name, None, vec![label], NOW.after(Duration::from_secs(60)));
            let mut storage = Storage::new(StorageLimits::default(), Eviction::EarliestExpiry);
            storage.store(NOW, &peer(9), record.clone()).unwrap();
            let all = closest_to(&key, newcomer..n_peers);
            let is_replica = all[..n_replicas].contains(&peer(newcomer));
            let holders = closest_to(&key, 1..n_peers);
            for here in 1..n_peers {
                // The newcomer may be known already.
                for first in [newcomer, 1] {
                    let closest =
                        |key: &RecordKey| closest_to(key, (first..n_peers).filter(|name| *name != here));
                    let handed = handover(&storage, &peer(here), &peer(newcomer), n_replicas, closest);
                    let is_due = is_replica && holders[0] == peer(here);
                    assert_eq!(handed == [record.clone()], is_due, "record {label}, peer {here}");
                    assert_eq!(handed.len(), usize::from(is_due));
                    n_handed += usize::from(is_due);
                    n_kept += usize::from(!is_replica);
                }
            }
            // A peer that knows of no other one hands over all.
            assert_eq!(handover(&storage, &peer(1), &peer(newcomer), n_replicas, |_| vec![]).len(), 1);
        }
        assert!(n_handed > 0 && n_kept > 0);
    }
}
