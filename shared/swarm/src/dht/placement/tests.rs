#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dht::record::RECORD_OVERHEAD_BYTES;
use barnraise_protocol::dht::{RecordName, UnixMillis};

use super::*;

const LIMITS: PlacementLimits =
    PlacementLimits { n_replicas: 2, requests: 8, timeout: Duration::from_secs(3) };
const OLDER: DhtRefusal = DhtRefusal::Older { held: UnixMillis(7) };

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

/// A record of `n_bytes` bytes on the wire.
fn record(label: u16, n_bytes: usize) -> Record {
    let value = vec![0; n_bytes - RECORD_OVERHEAD_BYTES];
    Record::new(RecordName::value(&label.to_le_bytes()), None, value, UnixMillis(1))
}

fn small(labels: impl IntoIterator<Item = u16>) -> Vec<Record> {
    labels.into_iter().map(|label| record(label, 200)).collect()
}

fn contact(name: u8) -> PeerAddresses {
    PeerAddresses { peer_id: vec![name], addresses: vec![vec![4, name]] }
}

fn contacts(names: &[u8]) -> Vec<PeerAddresses> {
    names.iter().map(|&name| contact(name)).collect()
}

/// The requests that are due at `now`: each peer and its records.
fn stores(placement: &mut Placement, now: Moment) -> Vec<(u8, Vec<Record>)> {
    let stores = std::iter::from_fn(|| placement.poll_action(now));
    let stores = stores.map(|PlacementAction::Store { peer, records }| {
        assert_eq!(peer, contact(peer.peer_id[0]), "with its addresses");
        (peer.peer_id[0], records)
    });
    let mut stores: Vec<(u8, Vec<Record>)> = stores.collect();
    stores.sort_by_key(|(name, _)| *name);
    stores
}

fn peers(stores: &[(u8, Vec<Record>)]) -> Vec<u8> {
    stores.iter().map(|(name, _)| *name).collect()
}

#[test]
fn a_record_is_stored_by_the_closest_peers() {
    let records = small([1]);
    let mut placement = Placement::new(LIMITS, records.clone(), |_| contacts(&[1, 2, 3]));
    assert!(!placement.is_done());
    assert_eq!(stores(&mut placement, at(0)), [(1, records.clone()), (2, records)]);
    placement.on_stored(&[1], &[Ok(())]);
    assert!(!placement.is_done());
    placement.on_stored(&[2], &[Ok(())]);
    // Another answer of the same peer, and one of a peer that was not asked.
    placement.on_stored(&[2], &[Ok(())]);
    placement.on_stored(&[3], &[Ok(())]);
    assert!(placement.is_done());
    assert_eq!(stores(&mut placement, at(0)), []);
    assert_eq!(placement.into_verdicts(), [Ok(2)]);
}

/// The closest peers of the keys differ; a peer that is close to many gets them in one message.
#[test]
fn records_of_many_keys_travel_together() {
    let records = small([1, 2, 3]);
    let first = records[0].name.key();
    let candidates = |key: &RecordKey| if *key == first { contacts(&[1, 2]) } else { contacts(&[2, 3]) };
    let mut placement = Placement::new(LIMITS, records.clone(), candidates);
    let Some(PlacementAction::Store { peer, .. }) = placement.poll_action(at(0)) else { panic!("a request") };
    assert_eq!(peer, contact(2), "the one with the most records first");
    let stores = stores(&mut placement, at(0));
    assert_eq!(peers(&stores), [1, 3]);
    assert_eq!(stores[0].1, records[..1]);
    assert_eq!(stores[1].1.len(), 2);
    placement.on_stored(&[3], &[Ok(()), Ok(())]);
    placement.on_failure(&[1]);
    placement.on_failure(&[2]);
    assert!(placement.is_done());
    assert_eq!(placement.into_verdicts(), [Err(DhtRefusal::Unreachable), Ok(1), Ok(1)]);
}

#[test]
fn a_record_goes_to_the_next_peer_where_one_has_no_place() {
    let records = small([1, 2]);
    let mut placement = Placement::new(LIMITS, records.clone(), |_| contacts(&[1, 2, 3]));
    let sent = stores(&mut placement, at(0));
    let full = sent[0].1.iter().map(|record| match *record == records[0] {
        true => Err(DhtRefusal::Full),
        false => Err(OLDER),
    });
    placement.on_stored(&[1], &full.collect::<Vec<_>>());
    assert_eq!(stores(&mut placement, at(0)), [(3, records[..1].to_vec())], "another would refuse it too");
    let verdicts = sent[1].1.iter().map(|record| match *record == records[0] {
        true => Ok(()),
        false => Err(DhtRefusal::Signature),
    });
    placement.on_stored(&[2], &verdicts.collect::<Vec<_>>());
    placement.on_stored(&[3], &[Err(DhtRefusal::Busy)]);
    assert!(placement.is_done(), "there is no fourth");
    assert_eq!(placement.into_verdicts(), [Ok(1), Err(DhtRefusal::Signature)], "the last reason");
}

#[test]
fn records_for_a_peer_that_fails_go_to_others_those_that_wait_for_it_too() {
    let n_records = RECORDS_MAX as u16 + 1;
    let records = small(0..n_records);
    let limits = PlacementLimits { n_replicas: 1, ..LIMITS };
    let mut placement = Placement::new(limits, records, |_| contacts(&[1, 2]));
    let sent = stores(&mut placement, at(0));
    assert_eq!((peers(&sent), sent[0].1.len()), (vec![1], RECORDS_MAX));
    placement.on_failure(&[1]);
    let sent = stores(&mut placement, at(0));
    assert_eq!((peers(&sent), sent[0].1.len()), (vec![2], RECORDS_MAX));
    placement.on_stored(&[2], &vec![Ok(()); RECORDS_MAX]);
    let sent = stores(&mut placement, at(0));
    assert_eq!((peers(&sent), sent[0].1.len()), (vec![2], 1), "what did not fit into one message");
    placement.on_stored(&[2], &[Ok(())]);
    assert!(placement.is_done());
    assert!(placement.into_verdicts().iter().all(|verdict| *verdict == Ok(1)));
}

#[test]
fn a_message_is_full_and_no_fuller() {
    let n_bytes = 4096;
    let n_full = RECORDS_BYTES_MAX / n_bytes;
    let records = |n_records: usize| (0..n_records as u16).map(|label| record(label, n_bytes)).collect();
    let limits = PlacementLimits { n_replicas: 1, ..LIMITS };
    for (n_records, n_rest) in [(n_full, 0), (n_full + 1, 1)] {
        let mut placement = Placement::new(limits.clone(), records(n_records), |_| contacts(&[1]));
        let sent = stores(&mut placement, at(0));
        assert_eq!(sent[0].1.len(), n_full);
        placement.on_stored(&[1], &vec![Ok(()); n_full]);
        assert_eq!(placement.is_done(), n_rest == 0);
        let rest = stores(&mut placement, at(0));
        assert_eq!(rest.iter().map(|(_, records)| records.len()).sum::<usize>(), n_rest);
    }
}

#[test]
fn no_more_peers_are_asked_at_a_time_than_the_limit() {
    let limits = PlacementLimits { n_replicas: 3, requests: 2, ..LIMITS };
    let mut placement = Placement::new(limits, small([1]), |_| contacts(&[1, 2, 3]));
    let sent = peers(&stores(&mut placement, at(0)));
    assert_eq!(sent.len(), 2);
    placement.on_stored(&[sent[0]], &[Ok(())]);
    assert_eq!(stores(&mut placement, at(0)).len(), 1);
}

#[test]
fn a_peer_that_does_not_answer_has_failed_after_the_timeout() {
    let limits = PlacementLimits { n_replicas: 1, ..LIMITS };
    let mut placement = Placement::new(limits, small([1]), |_| contacts(&[1, 2]));
    assert_eq!(placement.next_deadline(), None);
    assert_eq!(peers(&stores(&mut placement, at(5000))), [1]);
    assert_eq!(placement.next_deadline(), Some(at(8000)));
    placement.on_timeout(at(7999));
    assert_eq!(stores(&mut placement, at(7999)), []);
    placement.on_timeout(at(8000));
    assert_eq!(placement.next_deadline(), None);
    assert_eq!(peers(&stores(&mut placement, at(8000))), [2]);
    assert_eq!(placement.next_deadline(), Some(at(11_000)));
    placement.on_stored(&[1], &[Ok(())]);
    assert!(!placement.is_done(), "its answer comes too late");
    placement.on_timeout(at(11_001));
    assert!(placement.is_done());
    assert_eq!(placement.into_verdicts(), [Err(DhtRefusal::Unreachable)]);
}
