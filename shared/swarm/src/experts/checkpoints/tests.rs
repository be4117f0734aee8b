//! The shelf of a keeper, and the schedule of a host.

mod lost;

use std::collections::BTreeSet;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::experts::checkpoints::{CheckpointRefusal, ExpertCheckpoint};
use barnraise_protocol::experts::leases::ExpertLease;
use barnraise_protocol::experts::{ExpertPlace, ExpertUid, LayerId};

use super::*;
use crate::Moment;

const EXPERT_BYTES_MAX: u64 = 100;

const fn secs(seconds: u64) -> Moment {
    Moment::from_secs(seconds)
}

fn place(index: u16) -> ExpertPlace {
    (LayerId(0), ExpertUid::new(&[index]).unwrap())
}

fn checkpoint(index: u16, term: u64, n_steps: u64, n_bytes: u64) -> ExpertCheckpoint {
    let key = KeyPair::from_seed(&[index as u8; 32]);
    let lease = ExpertLease { place: place(index), copy: 0, holder: key.public(), term, grants: Vec::new() };
    let transfer = Transfer { n_bytes, sha256: Sha256Hash([n_steps as u8; 32]) };
    ExpertCheckpoint::sign(&key, "barn", (lease, n_steps, transfer)).unwrap()
}

fn offer(
    shelf: &mut CheckpointShelf,
    now: Moment,
    checkpoint: &ExpertCheckpoint,
) -> Result<OfferVerdict, CheckpointRefusal> {
    let verdict = shelf.on_offer(now, checkpoint, EXPERT_BYTES_MAX);
    if matches!(verdict, Ok(OfferVerdict::Wanted { .. })) {
        shelf.on_kept(now, checkpoint.clone());
    }
    verdict
}

const WANTED: Result<OfferVerdict, CheckpointRefusal> = Ok(OfferVerdict::Wanted { evicted: Vec::new() });
const KEPT: Result<OfferVerdict, CheckpointRefusal> = Ok(OfferVerdict::AlreadyKept);

#[test]
fn the_newest_checkpoint_of_an_expert_is_kept() {
    let mut shelf = CheckpointShelf::new(secs(0), 1000, []);
    assert_eq!(offer(&mut shelf, secs(0), &checkpoint(1, 5, 10, 50)), WANTED);
    assert_eq!(offer(&mut shelf, secs(1), &checkpoint(1, 5, 10, 50)), KEPT);
    assert_eq!(offer(&mut shelf, secs(1), &checkpoint(1, 5, 9, 50)), KEPT, "older");
    assert_eq!(offer(&mut shelf, secs(1), &checkpoint(1, 4, 99, 50)), KEPT, "of an earlier term");
    assert_eq!(offer(&mut shelf, secs(1), &checkpoint(1, 6, 3, 60)), WANTED);
    assert_eq!(shelf.newest(&(place(1), 0)), Some(&checkpoint(1, 6, 3, 60)));
    assert_eq!(shelf.n_bytes(), 60, "it is in the place of the one before");
    assert!(shelf.with_hash(place(1), &Sha256Hash([3; 32])).is_some());
    assert!(shelf.with_hash(place(1), &Sha256Hash([10; 32])).is_none());
    shelf.on_damaged(&(place(1), 0));
    assert_eq!((shelf.newest(&(place(1), 0)), shelf.n_bytes()), (None, 0));
}

#[test]
fn no_copy_of_an_expert_puts_another_one_out_of_its_place() {
    let mut shelf = CheckpointShelf::new(secs(0), 1000, []);
    let of_copy = |copy, term, n_steps| {
        let mut made = checkpoint(1, term, n_steps, 50);
        made.lease.copy = copy;
        made
    };
    let (expert, replica) = (of_copy(0, 5, 10), of_copy(2, 9, 3));
    assert_eq!(offer(&mut shelf, secs(0), &replica), WANTED);
    assert_eq!(offer(&mut shelf, secs(0), &expert), WANTED, "though its term is the earlier one");
    assert_eq!(offer(&mut shelf, secs(0), &of_copy(2, 9, 4)), WANTED);
    let kept: Vec<&ExpertCheckpoint> = shelf.of_place(place(1)).collect();
    assert_eq!(kept, [&expert, &of_copy(2, 9, 4)]);
    assert!(shelf.with_hash(place(1), &Sha256Hash([4; 32])).is_some());
    assert!(shelf.of_place(place(2)).next().is_none());
    // Who takes the place begins from the expert itself, also where a replica says that it has more steps.
    assert!(expert.rank() > of_copy(2, 9, 1 << 40).rank() && of_copy(1, 9, 4).rank() > replica.rank());
}

#[test]
fn a_checkpoint_that_does_not_come_leaves_the_one_before() {
    let mut shelf = CheckpointShelf::new(secs(0), 1000, []);
    offer(&mut shelf, secs(0), &checkpoint(1, 5, 10, 50)).unwrap();
    let newer = checkpoint(1, 5, 11, 70);
    assert_eq!(shelf.on_offer(secs(1), &newer, EXPERT_BYTES_MAX), WANTED);
    assert_eq!(shelf.n_bytes(), 120, "both are on the disk for a while");
    assert_eq!(shelf.on_offer(secs(1), &newer, EXPERT_BYTES_MAX), Err(CheckpointRefusal::Busy));
    shelf.on_lost(&(place(1), 0));
    shelf.on_lost(&(place(1), 0));
    assert_eq!(shelf.newest(&(place(1), 0)), Some(&checkpoint(1, 5, 10, 50)));
    assert_eq!(shelf.n_bytes(), 50);
    shelf.on_kept(secs(2), newer);
    assert_eq!(shelf.newest(&(place(1), 0)), Some(&checkpoint(1, 5, 10, 50)), "nobody announced it");
}

#[test]
fn a_shelf_takes_no_more_than_it_has_room_for() {
    let mut shelf = CheckpointShelf::new(secs(0), 250, [checkpoint(0, 1, 1, 100)]);
    let too_large = CheckpointRefusal::TooLarge { max: 100, got: 101 };
    assert_eq!(offer(&mut shelf, secs(0), &checkpoint(1, 5, 10, 101)), Err(too_large));
    assert_eq!(offer(&mut shelf, secs(0), &checkpoint(1, 5, 10, 100)), WANTED);
    assert_eq!(offer(&mut shelf, secs(0), &checkpoint(2, 5, 10, 100)), Err(CheckpointRefusal::Full));
    // What nobody has offered again for long makes room, the oldest first, and not what was offered.
    assert_eq!(offer(&mut shelf, KEPT_LONG - secs(1), &checkpoint(0, 1, 1, 100)), KEPT);
    let evicted = vec![(place(1), 0)];
    let verdict = offer(&mut shelf, KEPT_LONG, &checkpoint(2, 5, 10, 100));
    assert_eq!(verdict, Ok(OfferVerdict::Wanted { evicted }));
    assert!(shelf.newest(&(place(0), 0)).is_some() && shelf.newest(&(place(1), 0)).is_none());
    assert_eq!(shelf.n_bytes(), 200);
    assert_eq!(offer(&mut shelf, KEPT_LONG, &checkpoint(3, 5, 10, 60)), Err(CheckpointRefusal::Full));
    assert_eq!(offer(&mut shelf, KEPT_LONG, &checkpoint(3, 5, 10, 50)), WANTED);
    assert_eq!(offer(&mut shelf, KEPT_LONG, &checkpoint(2, 5, 11, 100)), WANTED, "instead of the one before");
    let n_incoming = (10..20).filter(|index| {
        let mut large = CheckpointShelf::new(secs(0), 10_000, []);
        (10..*index).all(|before| large.on_offer(secs(0), &checkpoint(before, 1, 1, 10), 100) == WANTED)
    });
    assert_eq!(n_incoming.count(), TRANSFERS_MAX + 1, "as many at a time as there may be, and none");
}

#[test]
fn what_makes_room_stays_until_the_new_one_is_here() {
    let mut shelf = CheckpointShelf::new(secs(0), 200, [checkpoint(1, 1, 1, 100), checkpoint(2, 1, 1, 100)]);
    let new = checkpoint(3, 1, 1, 100);
    let wanted = Ok(OfferVerdict::Wanted { evicted: vec![(place(1), 0)] });
    assert_eq!(shelf.on_offer(KEPT_LONG, &new, EXPERT_BYTES_MAX), wanted);
    assert!(shelf.newest(&(place(1), 0)).is_some(), "it is there for the next host");
    // The room of one is given once.
    let other = checkpoint(4, 1, 1, 100);
    let of_other = Ok(OfferVerdict::Wanted { evicted: vec![(place(2), 0)] });
    assert_eq!(shelf.on_offer(KEPT_LONG, &other, EXPERT_BYTES_MAX), of_other);
    shelf.on_lost(&(place(3), 0));
    assert_eq!(shelf.on_kept(KEPT_LONG, other), [checkpoint(2, 1, 1, 100)]);
    assert!(shelf.newest(&(place(1), 0)).is_some() && shelf.newest(&(place(2), 0)).is_none());
    assert_eq!(shelf.n_bytes(), 200);
    // One that was offered again meanwhile stays.
    assert_eq!(shelf.on_offer(KEPT_LONG, &new, EXPERT_BYTES_MAX), wanted);
    assert_eq!(shelf.on_offer(KEPT_LONG, &checkpoint(1, 1, 1, 100), EXPERT_BYTES_MAX), KEPT);
    assert_eq!(shelf.on_kept(KEPT_LONG, new), []);
    assert_eq!(shelf.n_bytes(), 300, "for a while there is one more");
}

#[test]
fn one_holder_does_not_take_all_slots() {
    let mut shelf = CheckpointShelf::new(secs(0), 1000, []);
    let key = KeyPair::from_seed(&[9; 32]);
    let of_one = |index: u16| {
        let lease =
            ExpertLease { place: place(index), copy: 0, holder: key.public(), term: 1, grants: Vec::new() };
        let transfer = Transfer { n_bytes: 10, sha256: Sha256Hash([1; 32]) };
        ExpertCheckpoint::sign(&key, "barn", (lease, 1, transfer)).unwrap()
    };
    assert_eq!(shelf.on_offer(secs(0), &of_one(1), EXPERT_BYTES_MAX), WANTED);
    assert_eq!(shelf.on_offer(secs(0), &of_one(2), EXPERT_BYTES_MAX), Err(CheckpointRefusal::Busy));
    assert_eq!(shelf.on_offer(secs(0), &checkpoint(3, 1, 1, 10), EXPERT_BYTES_MAX), WANTED, "another host");
    shelf.on_lost(&(place(1), 0));
    assert_eq!(shelf.on_offer(secs(0), &of_one(2), EXPERT_BYTES_MAX), WANTED);
}

#[test]
fn each_expert_is_stored_once_a_minute_and_soon_where_it_is_new() {
    let mut schedule = CheckpointSchedule::new(7);
    (0..20).for_each(|index| schedule.on_hosted(secs(100), place(index)));
    let mut at = secs(100);
    let mut first = BTreeSet::new();
    while at <= secs(105) {
        while let Some(place) = schedule.next_due(at) {
            assert!(first.insert(place), "{place:?} twice");
        }
        at += Duration::from_millis(50);
    }
    assert_eq!(first.len(), 20);
    let next = schedule.next_deadline().unwrap();
    assert!(next >= secs(154) && next <= secs(165), "{next:?}");
    schedule.on_removed(&place(3));
    let due = std::iter::from_fn(|| schedule.next_due(secs(166)));
    assert_eq!(due.count(), 19);
}

#[test]
fn a_state_is_offered_until_enough_peers_keep_it_and_reminded_of_later() {
    let mut schedule = CheckpointSchedule::new(7);
    schedule.on_hosted(secs(0), place(1));
    assert_eq!(schedule.next_due(secs(5)), Some(place(1)));
    let version = |n_steps| CheckpointVersion { term: 1, n_steps };
    assert!(schedule.is_offered(secs(5), &place(1), version(4)));
    schedule.on_offered(secs(5), &place(1), version(4), 0);
    assert_eq!(schedule.next_due(secs(19)), None);
    assert_eq!(schedule.next_due(secs(20)), Some(place(1)), "sooner than a minute");
    assert!(schedule.is_offered(secs(20), &place(1), version(4)));
    schedule.on_offered(secs(20), &place(1), version(4), KEEPERS_WANTED - 1);
    assert_eq!(schedule.next_due(secs(50)), None, "there are no more peers");
    assert!(schedule.is_offered(secs(20), &place(1), version(4)));
    schedule.on_offered(secs(20), &place(1), version(4), KEEPERS_WANTED);
    assert!(!schedule.is_offered(secs(80), &place(1), version(4)));
    assert!(schedule.is_offered(secs(80), &place(1), version(5)), "it has learned");
    assert!(schedule.is_offered(secs(320), &place(1), version(4)), "a keeper may be gone");
    assert!(schedule.is_offered(secs(0), &place(2), version(0)), "it is given away when it is stopped");
}

#[test]
fn checkpoints_of_many_hosts_are_spread_over_all_of_their_time() {
    let mut schedule = CheckpointSchedule::new(7);
    let spread = |times: Vec<Moment>| (times.iter().min().copied(), times.iter().max().copied());
    let first = (0..60_000).map(|_| {
        schedule.on_hosted(secs(100), place(1));
        schedule.next_deadline().unwrap()
    });
    assert_eq!(spread(first.collect()), (Some(secs(100)), Some(secs(105))));
    let mut at = schedule.next_deadline().unwrap();
    let intervals = (0..60_000).map(|_| {
        assert_eq!(schedule.next_due(at - Duration::from_millis(1)), None);
        assert_eq!(schedule.next_due(at), Some(place(1)));
        let before = std::mem::replace(&mut at, schedule.next_deadline().unwrap());
        at - before
    });
    assert_eq!(spread(intervals.collect()), (Some(secs(54)), Some(OFFER_INTERVAL)));
    // Nothing is told of an expert that is gone.
    schedule.on_removed(&place(1));
    schedule.on_offered(at, &place(1), CheckpointVersion { term: 1, n_steps: 1 }, KEEPERS_WANTED);
    assert_eq!((schedule.next_due(at), schedule.next_deadline()), (None, None));
}

#[test]
fn the_longest_due_is_stored_first() {
    let mut schedule = CheckpointSchedule::new(7);
    for (index, at) in [(1, 50), (2, 10), (3, 30)] {
        schedule.on_hosted(secs(at), place(index));
    }
    let order: Vec<ExpertPlace> = std::iter::from_fn(|| schedule.next_due(secs(55))).collect();
    assert_eq!(order, [place(2), place(3), place(1)]);
    let version = CheckpointVersion { term: 1, n_steps: 1 };
    // Where nobody keeps it, it is offered soon again, and not later than it would have been.
    schedule.on_offered(secs(55), &place(2), version, 0);
    assert_eq!(schedule.next_deadline(), Some(secs(70)));
    schedule.on_offered(secs(69), &place(2), version, 0);
    assert_eq!(schedule.next_deadline(), Some(secs(70)));
}

#[test]
fn an_older_checkpoint_does_not_remind_of_the_newer_one() {
    let mut shelf = CheckpointShelf::new(secs(0), 100, []);
    assert_eq!(offer(&mut shelf, secs(0), &checkpoint(1, 5, 10, 100)), WANTED);
    assert_eq!(offer(&mut shelf, KEPT_LONG - secs(1), &checkpoint(1, 5, 9, 100)), KEPT);
    let verdict = offer(&mut shelf, KEPT_LONG, &checkpoint(2, 5, 10, 100));
    assert_eq!(verdict, Ok(OfferVerdict::Wanted { evicted: vec![(place(1), 0)] }));
}

#[test]
fn as_few_checkpoints_are_deleted_as_make_room_and_never_the_one_before() {
    let kept = [checkpoint(1, 1, 1, 90), checkpoint(2, 1, 1, 60), checkpoint(3, 1, 1, 50)];
    let mut shelf = CheckpointShelf::new(secs(0), 200, kept);
    assert_eq!(shelf.on_offer(secs(1), &checkpoint(2, 1, 1, 60), 100), KEPT);
    // The one before gives its place, and both are there until the new one has come.
    assert_eq!(shelf.on_offer(KEPT_LONG, &checkpoint(1, 1, 2, 50), 100), WANTED);
    assert_eq!(shelf.n_bytes(), 250);
    assert_eq!(shelf.on_kept(KEPT_LONG, checkpoint(1, 1, 2, 50)), [checkpoint(1, 1, 1, 90)]);
    assert_eq!(shelf.n_bytes(), 160);
    let verdict = shelf.on_offer(KEPT_LONG, &checkpoint(4, 1, 1, 90), 100);
    assert_eq!(verdict, Ok(OfferVerdict::Wanted { evicted: vec![(place(3), 0)] }), "that is just enough");
    assert_eq!(shelf.on_offer(KEPT_LONG, &checkpoint(5, 1, 1, 101), 200), Err(CheckpointRefusal::Full));
    assert_eq!(shelf.on_kept(KEPT_LONG, checkpoint(4, 1, 1, 90)), [checkpoint(3, 1, 1, 50)]);
    assert_eq!(shelf.n_bytes(), 200);
    let too_large = CheckpointRefusal::TooLarge { max: 200, got: 201 };
    assert_eq!(
        shelf.on_offer(KEPT_LONG, &checkpoint(5, 1, 1, 201), 900),
        Err(too_large),
        "by all of the shelf"
    );
}
