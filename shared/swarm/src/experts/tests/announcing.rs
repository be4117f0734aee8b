//! Announcements of a host.

use barnraise_protocol::dht::{PeerToNode, RECORDS_BYTES_MAX, RECORDS_MAX};

use super::*;

fn announcer() -> ExpertAnnouncer {
    ExpertAnnouncer::new(host(0), RUN.to_owned(), vec![vec![4, 127, 0, 0, 1]], 1)
}

fn expert(at: &[u16]) -> AnnouncedExpert {
    AnnouncedExpert { uid: uid(at), n_waiting: 0, n_steps: 0 }
}

fn put(announcer: &mut ExpertAnnouncer, now: Moment) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some(AnnouncerAction::Put(batch)) = announcer.poll_action(now, wall(now)).unwrap() {
        assert!(!batch.is_empty());
        assert_eq!(PeerToNode::Put(batch.clone()).check(), Ok(()), "it fits into one message");
        records.extend(batch);
    }
    records
}

#[test]
fn a_host_tells_of_its_experts_again_and_again() {
    let mut announcer = announcer();
    assert_eq!((announcer.next_deadline(), put(&mut announcer, SECOND)), (None, vec![]));
    announcer.on_expert(SECOND, LAYER, expert(&[3, 1])).unwrap();
    announcer.on_expert(SECOND, LAYER, expert(&[3, 2])).unwrap();
    assert_eq!(announcer.next_deadline(), Some(SECOND), "the first ones at once");
    let records = put(&mut announcer, SECOND);
    // The root's entry of both once, and one entry for each.
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|record| record.check(wall(SECOND), LIFETIME).is_ok()));
    assert!(records.iter().all(|record| record.expires_at == wall(SECOND + LIFETIME)));
    let due = announcer.next_deadline().unwrap();
    assert!(due <= SECOND + ANNOUNCEMENT_INTERVAL && due >= SECOND + ANNOUNCEMENT_INTERVAL * 9 / 10);
    assert_eq!(put(&mut announcer, due - Duration::from_millis(1)), []);
    assert_eq!(put(&mut announcer, due).len(), 3);
    // A new one comes soon, a changed one with the next announcement.
    let next = announcer.next_deadline().unwrap();
    announcer.on_expert(due, LAYER, AnnouncedExpert { n_waiting: 9, ..expert(&[3, 1]) }).unwrap();
    assert_eq!(announcer.next_deadline(), Some(next));
    announcer.on_expert(due, LayerId(4), expert(&[7])).unwrap();
    let soon = announcer.next_deadline().unwrap();
    assert!(soon > due && soon <= due + 2 * SECOND);
    assert_eq!(put(&mut announcer, soon).len(), 4);
    // What failed is told soon again; what is gone is not.
    announcer.on_put_failed(soon);
    let again = announcer.next_deadline().unwrap();
    assert!(again <= soon + 2 * SECOND);
    announcer.on_removed(LayerId(4), uid(&[7]));
    announcer.on_removed(LAYER, uid(&[3, 2]));
    assert_eq!(put(&mut announcer, again).len(), 2);
    announcer.on_removed(LAYER, uid(&[3, 1]));
    assert_eq!(announcer.next_deadline(), None);
}

#[test]
fn where_a_host_is_found_is_told_soon() {
    let mut announcer = announcer();
    announcer.on_expert(Moment::ZERO, LAYER, expert(&[5])).unwrap();
    put(&mut announcer, Moment::ZERO);
    let due = announcer.next_deadline().unwrap();
    announcer.on_addresses(SECOND, vec![vec![4, 127, 0, 0, 1]]);
    assert_eq!(announcer.next_deadline(), Some(due), "nothing has changed");
    announcer.on_addresses(SECOND, vec![vec![4, 10, 0, 0, 1]]);
    let soon = announcer.next_deadline().unwrap();
    assert!(soon <= 3 * SECOND);
    let records = put(&mut announcer, soon);
    let (last, found) = barnraise_protocol::dht::experts::read_host(&records[0]).unwrap();
    assert_eq!((last, found.addresses), (5, vec![vec![4, 10, 0, 0, 1]]));
}

#[test]
fn many_experts_are_told_in_batches_that_fit() {
    let mut announcer = ExpertAnnouncer::new(host(0), RUN.to_owned(), vec![vec![9; 160]; 9], 1);
    let shape = grid(&[8, 512]);
    for number in 0..ANNOUNCED_MAX as u64 {
        let uid = shape.uid(number).unwrap();
        announcer
            .on_expert(Moment::ZERO, LAYER, AnnouncedExpert { uid, n_waiting: 0, n_steps: u64::MAX })
            .unwrap();
    }
    let more = announcer.on_expert(Moment::ZERO, LAYER, expert(&[9, 9]));
    assert_eq!(more, Err(ExpertAnnounceError::TooMany));
    announcer.on_expert(Moment::ZERO, LAYER, expert(&[0, 0])).unwrap();
    let records = put(&mut announcer, Moment::ZERO);
    assert_eq!(records.len(), ANNOUNCED_MAX + 8);
    assert!(records.len() > RECORDS_MAX);
}

#[test]
fn a_host_announces_no_more_experts_than_it_may() {
    let (mut announcer, shape) = (announcer(), grid(&[512, 512]));
    let of = |number| AnnouncedExpert { uid: shape.uid(number).unwrap(), n_waiting: 0, n_steps: 0 };
    let n_max = ANNOUNCED_MAX as u64;
    (0..n_max).for_each(|number| announcer.on_expert(SECOND, LAYER, of(number)).unwrap());
    assert_eq!(announcer.on_expert(SECOND, LAYER, of(n_max)), Err(ExpertAnnounceError::TooMany));
    assert_eq!(announcer.on_expert(SECOND, LAYER, of(7)), Ok(()), "it has that one");
    announcer.on_removed(LAYER, of(7).uid);
    assert_eq!(announcer.on_expert(SECOND, LAYER, of(n_max)), Ok(()));
}

#[test]
fn a_batch_has_as_many_records_as_a_message_and_the_rest_comes_after_it() {
    let mut announcer = announcer();
    // An entry of the root and one of its own for each.
    (0..512).for_each(|first| announcer.on_expert(SECOND, LAYER, expert(&[first, 0])).unwrap());
    announcer.on_expert(SECOND, LayerId(9), expert(&[0])).unwrap();
    let batches = std::iter::from_fn(|| announcer.poll_action(SECOND, wall(SECOND)).unwrap());
    let lengths: Vec<usize> = batches.map(|AnnouncerAction::Put(batch)| batch.len()).collect();
    assert_eq!(lengths, [RECORDS_MAX, 1]);
}

#[test]
fn a_batch_may_be_as_large_as_a_message_to_the_byte() {
    let announcing = |n_bytes: usize| {
        let addresses = vec![vec![9; n_bytes], vec![9; 160]];
        let mut announcer = ExpertAnnouncer::new(host(0), RUN.to_owned(), addresses, 1);
        announcer.on_expert(SECOND, LAYER, expert(&[0])).unwrap();
        announcer
    };
    let n_bytes_of = |n_bytes: &usize| put(&mut announcing(*n_bytes), SECOND)[0].n_bytes();
    let fitting = (0..=160).find(|n_bytes| n_bytes_of(n_bytes) * 512 == RECORDS_BYTES_MAX).unwrap();
    let mut announcer = announcing(fitting);
    (1..512).for_each(|first| announcer.on_expert(SECOND, LAYER, expert(&[first])).unwrap());
    let batches = std::iter::from_fn(|| announcer.poll_action(SECOND, wall(SECOND)).unwrap());
    let lengths: Vec<usize> = batches.map(|AnnouncerAction::Put(batch)| batch.len()).collect();
    assert_eq!(lengths, [512]);
}
