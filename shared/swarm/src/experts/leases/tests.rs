//! Leases: what is granted, renewed and refused; shares of addresses; which places are chosen, and who keeps checkpoints.

mod copying;
mod granting;
mod handing;
mod holding;
mod hosts;
mod voting;

use barnraise_protocol::access::{KeyPair, UnixTime};
use barnraise_protocol::dht::UnixMillis;
use barnraise_protocol::experts::leases::{
    COPIES_MAX, CopyHolder, ExpertLoad, LeaseAsk, LeasingHost, PLACES_MAX,
};
use barnraise_protocol::experts::{ExpertPlace, ExpertUid, GridShape, LayerId};

use super::*;
use crate::{AddressGroup, Moment};

const WALL: UnixMillis = UnixMillis(1_795_000_000_000);
const LAYER: LayerId = LayerId(2);

const fn secs(seconds: u64) -> Moment {
    Moment::from_secs(seconds)
}

fn place(indices: &[u16]) -> ExpertPlace {
    (LAYER, ExpertUid::new(indices).unwrap())
}

fn key(at: u8) -> PublicKey {
    KeyPair::from_seed(&[at; 32]).public()
}

/// So many rows wait.
fn waiting(n_waiting: u32) -> ExpertLoad {
    ExpertLoad { n_waiting, ..ExpertLoad::default() }
}

/// The holder of an expert itself.
fn expert(at: u8) -> CopyHolder {
    CopyHolder { copy: 0, holder: key(at) }
}

/// A run with one backbone, whose grid has these sides.
struct Run {
    book: LeaseBook,
    grantors: Grantors,
}

impl Run {
    fn new(sides: &[u16], has_granted: bool) -> Self {
        let backbone = KeyPair::from_seed(&[200; 32]);
        let grantors = Grantors::new([backbone.public()]).unwrap();
        let grids = vec![(LAYER, GridShape::new(sides).unwrap())];
        let run = LeasedRun { run_id: "barn".into(), grids, grantors: grantors.clone() };
        Self { book: LeaseBook::new(backbone, run, secs(0), has_granted, 7), grantors }
    }

    fn host(&mut self, now: Moment, at: u8, group: u64, n_room: u32) {
        let host = LeasingHost::new(n_room, [vec![at]]);
        self.book.on_host(now, key(at), AddressGroup(group), &host).unwrap();
    }

    fn vote(&mut self, now: Moment, at: u8, ask: &LeaseAsk) -> Result<ExpertLease, LeaseRefusal> {
        let wall = WALL.after(now);
        let term = self.book.term_of(wall, ask);
        let vote = self.book.vote(now, wall, key(at), ask, term);
        match count_votes(&self.grantors, (ask.of(), key(at), term), &[vote]) {
            LeaseVerdict::Granted(lease) => {
                lease.verify("barn", &self.grantors).unwrap();
                Ok(lease)
            }
            LeaseVerdict::Refused(refusal) => Err(refusal),
            LeaseVerdict::Released => panic!("no lease"),
        }
    }

    fn claim(&mut self, now: Moment, at: u8, place: ExpertPlace) -> Result<ExpertLease, LeaseRefusal> {
        self.vote(now, at, &LeaseAsk::Claim(place))
    }

    fn renew(&mut self, now: Moment, at: u8, lease: &ExpertLease) -> Result<ExpertLease, LeaseRefusal> {
        self.vote(now, at, &LeaseAsk::Renew { lease: lease.clone(), load: ExpertLoad::default() })
    }

    fn release(&mut self, now: Moment, at: u8, lease: &ExpertLease) {
        let ask = LeaseAsk::Release { place: lease.place, copy: lease.copy, term: lease.term, to: None };
        let verdict = self.book.vote(now, WALL.after(now), key(at), &ask, lease.term);
        assert_eq!(verdict, LeaseVerdict::Released);
    }
}

#[test]
fn a_place_has_one_holder_until_its_lease_is_over() {
    let mut run = Run::new(&[8], false);
    (1..=2).for_each(|at| run.host(secs(0), at, 0, 8));
    let lease = run.claim(secs(0), 1, place(&[3])).unwrap();
    assert_eq!(run.claim(secs(1), 2, place(&[3])), Err(LeaseRefusal::Held { for_ms: 29_000 }));
    let renewed = run.renew(secs(10), 1, &lease).unwrap();
    assert_eq!(renewed.term, lease.term, "a renewal has its term");
    assert!(run.claim(secs(39), 2, place(&[3])).is_err());
    let taken = run.claim(secs(40), 2, place(&[3])).unwrap();
    assert!(taken.term > lease.term);
    assert_eq!(run.renew(secs(40), 1, &renewed), Err(LeaseRefusal::Held { for_ms: 30_000 }));
    // Who gives it back frees it at once, and does not get it again by a message that is late.
    run.release(secs(41), 1, &lease);
    assert!(run.claim(secs(41), 1, place(&[3])).is_err(), "it is not the first one's to free");
    run.release(secs(41), 2, &taken);
    assert_eq!(run.renew(secs(41), 2, &taken), Err(LeaseRefusal::Later { term: taken.term }));
    run.claim(secs(41), 1, place(&[3])).unwrap();
    assert_eq!(run.claim(secs(41), 1, place(&[9])), Err(LeaseRefusal::Unknown));
}

#[test]
fn a_place_that_was_given_back_for_a_host_waits_for_it() {
    let mut run = Run::new(&[2], false);
    (1..=3).for_each(|at| run.host(secs(0), at, u64::from(at), 8));
    let leases = [0, 1].map(|index| run.claim(secs(0), 1, place(&[index])).unwrap());
    let ask = LeaseAsk::Release { place: place(&[1]), copy: 0, term: leases[1].term, to: Some(key(3)) };
    run.book.vote(secs(1), WALL, key(1), &ask, leases[1].term);
    assert_eq!(run.book.vacant(secs(2), &key(2), 8), []);
    assert_eq!(run.claim(secs(2), 2, place(&[1])), Err(LeaseRefusal::Held { for_ms: 29_000 }));
    // Once more it is not kept for longer.
    run.book.vote(secs(20), WALL, key(1), &ask, leases[1].term);
    assert_eq!(run.claim(secs(20), 2, place(&[1])), Err(LeaseRefusal::Held { for_ms: 11_000 }));
    assert_eq!(run.book.vacant(secs(21), &key(3), 8), [place(&[1])]);
    let taken = run.claim(secs(21), 3, place(&[1])).unwrap();
    // It comes back as any other.
    run.release(secs(22), 3, &taken);
    assert_eq!(run.book.vacant(secs(22), &key(2), 8), [place(&[1])]);
    // One that does not come loses it; and who gave it may have it again.
    let lease = run.renew(secs(23), 1, &leases[0]).unwrap();
    let ask = LeaseAsk::Release { place: place(&[0]), copy: 0, term: lease.term, to: Some(key(3)) };
    run.book.vote(secs(24), WALL, key(1), &ask, lease.term);
    assert!(run.claim(secs(53), 2, place(&[0])).is_err());
    run.claim(secs(54), 2, place(&[0])).unwrap();
    let taken = run.claim(secs(55), 1, place(&[1])).unwrap();
    let ask = LeaseAsk::Release { place: place(&[1]), copy: 0, term: taken.term, to: Some(key(3)) };
    run.book.vote(secs(56), WALL, key(1), &ask, taken.term);
    assert!(run.claim(secs(57), 2, place(&[1])).is_err());
    run.claim(secs(58), 1, place(&[1])).unwrap();
}

#[test]
fn a_host_keeps_no_two_places_for_others_and_all_together_few() {
    let mut run = Run::new(&[16], false);
    (1..=12).for_each(|at| run.host(secs(0), at, u64::from(at), 8));
    let give = |run: &mut Run, at: u8, index: u16| {
        let lease = run.claim(secs(1), at, place(&[index])).unwrap();
        let ask = LeaseAsk::Release { place: place(&[index]), copy: 0, term: lease.term, to: Some(key(99)) };
        run.book.vote(secs(1), WALL, key(at), &ask, lease.term);
    };
    give(&mut run, 1, 0);
    give(&mut run, 1, 1);
    assert!(run.claim(secs(2), 12, place(&[0])).is_err());
    run.claim(secs(2), 12, place(&[1])).unwrap();
    (2..=11).for_each(|at| give(&mut run, at, u16::from(at)));
    let n_kept = (2..=11).filter(|at| run.claim(secs(2), 12, place(&[*at])).is_err()).count();
    assert_eq!(n_kept, 7);
}

#[test]
fn a_holder_that_nobody_followed_goes_on_with_its_term() {
    let mut run = Run::new(&[8], false);
    run.host(secs(0), 1, 0, 8);
    let lease = run.claim(secs(0), 1, place(&[3])).unwrap();
    run.host(secs(100), 1, 0, 8);
    assert_eq!(run.book.holder(secs(100), place(&[3])), None);
    assert_eq!(run.renew(secs(100), 1, &lease).unwrap().term, lease.term);
    assert_eq!(run.book.holder(secs(100), place(&[3])), Some(key(1)));
}

#[test]
fn after_a_restart_only_leases_that_hold_are_renewed() {
    let mut before = Run::new(&[8], false);
    before.host(secs(0), 1, 0, 8);
    let old = before.claim(secs(0), 1, place(&[1])).unwrap();
    let lease = before.claim(secs(30), 1, place(&[2])).unwrap();

    let mut run = Run::new(&[8], true);
    (1..=2).for_each(|at| run.host(secs(5), at, 0, 8));
    assert_eq!(run.claim(secs(5), 2, place(&[3])), Err(LeaseRefusal::Quiet { for_ms: 25_000 }));
    assert!(run.book.vacant(secs(5), &key(2), 8).is_empty());
    // Its clock of expirations has gone on: it is 40 s after the first grant, and 10 s after the second.
    let wall = WALL.after(secs(40));
    let ask = |lease: &ExpertLease| LeaseAsk::Renew { lease: lease.clone(), load: ExpertLoad::default() };
    let vote = run.book.vote(secs(5), wall, key(1), &ask(&lease), lease.term);
    assert!(matches!(vote, LeaseVerdict::Granted(_)), "{vote:?}");
    let expired = run.book.vote(secs(5), wall, key(1), &ask(&old), old.term);
    assert_eq!(expired, LeaseVerdict::Refused(LeaseRefusal::Quiet { for_ms: 25_000 }));
    let stolen = run.book.vote(secs(5), wall, key(2), &ask(&lease), lease.term);
    assert_eq!(stolen, LeaseVerdict::Refused(LeaseRefusal::Unknown), "it is another host's");
    let forged = ExpertLease { term: u64::MAX, ..lease.clone() };
    let forged = run.book.vote(secs(5), wall, key(1), &ask(&forged), u64::MAX);
    assert_eq!(forged, LeaseVerdict::Refused(LeaseRefusal::Unknown), "no backbone has signed that term");
    run.host(secs(30), 2, 0, 8);
    let wall = WALL.after(secs(65));
    let term = run.book.next_term(wall, place(&[3]));
    assert!(term > lease.term, "terms go on above those that are forgotten");
    let next = run.book.vote(secs(30), wall, key(2), &LeaseAsk::Claim(place(&[3])), term);
    assert!(matches!(next, LeaseVerdict::Granted(_)), "{next:?}");
}

#[test]
fn who_has_a_place_is_said_once_all_hosts_had_time_to_renew() {
    let mut run = Run::new(&[8], true);
    run.host(secs(0), 1, 1, 8);
    let places = [place(&[1]), place(&[2])];
    assert_eq!(run.book.holders(secs(0), &places), Err(LeaseRefusal::Quiet { for_ms: 12_000 }));
    let held = run.claim(secs(31), 1, place(&[1])).unwrap();
    assert_eq!(run.book.holders(secs(40), &places), Ok(vec![vec![expert(1)], vec![]]));
    run.renew(secs(41), 1, &held).unwrap();
    assert_eq!(run.book.holders(secs(70), &places), Ok(vec![vec![expert(1)], vec![]]));
    assert_eq!(run.book.holders(secs(72), &places), Ok(vec![vec![], vec![]]), "its lease is over");
    let new = Run::new(&[8], false);
    assert_eq!(new.book.holders(secs(0), &places), Ok(vec![vec![], vec![]]), "nobody had any before");
}

#[test]
fn a_claim_that_finds_no_majority_does_not_push_the_holder_out() {
    // The third of three backbones has not heard of the lease that the others granted.
    let backbones: Vec<KeyPair> = (201..=203).map(|at| KeyPair::from_seed(&[at; 32])).collect();
    let grantors = Grantors::new(backbones.iter().map(KeyPair::public)).unwrap();
    let run = LeasedRun {
        run_id: "barn".into(),
        grids: vec![(LAYER, GridShape::new(&[8]).unwrap())],
        grantors: grantors.clone(),
    };
    let mut third = LeaseBook::new(backbones[2].clone(), run, secs(0), false, 7);
    for at in 1..=2 {
        third.on_host(secs(0), key(at), AddressGroup(0), &LeasingHost::new(8, [])).unwrap();
    }
    let grant = |at: usize, term| {
        LeaseGrant::sign(&backbones[at], "barn", ((place(&[3]), 0), key(1), term), UnixTime(1)).unwrap()
    };
    let lease = ExpertLease {
        place: place(&[3]),
        copy: 0,
        holder: key(1),
        term: 5,
        grants: vec![grant(0, 5), grant(1, 5)],
    };
    let renewal = LeaseAsk::Renew { lease: lease.clone(), load: ExpertLoad::default() };
    let claim = LeaseAsk::Claim(place(&[3]));
    let release = |term| LeaseAsk::Release { place: place(&[3]), copy: 0, term, to: None };
    let granted = |vote: &LeaseVerdict<LeaseGrant>| matches!(vote, LeaseVerdict::Granted(_));
    assert!(granted(&third.vote(secs(1), WALL, key(2), &claim, 9)));
    let held = third.vote(secs(2), WALL, key(1), &renewal, 5);
    assert_eq!(held, LeaseVerdict::Refused(LeaseRefusal::Held { for_ms: 29_000 }), "one at a time");
    // The others have refused the claim, and its backbone says so.
    third.vote(secs(2), WALL, key(2), &release(9), 9);
    assert!(granted(&third.vote(secs(2), WALL, key(1), &renewal, 5)), "a lease of a majority is renewed");
    assert!(!granted(&third.vote(secs(3), WALL, key(2), &claim, 10)));
    // Likewise where nobody says so, once the grant has expired.
    third.vote(secs(3), WALL, key(1), &release(5), 5);
    assert!(granted(&third.vote(secs(3), WALL, key(2), &claim, 10)));
    third.on_host(secs(40), key(1), AddressGroup(0), &LeasingHost::new(8, [])).unwrap();
    assert!(!granted(&third.vote(secs(40), WALL, key(1), &renewal, 5)), "it has given it back");
    let next = ExpertLease { term: 7, grants: vec![grant(0, 7), grant(1, 7)], ..lease };
    let next = LeaseAsk::Renew { lease: next, load: ExpertLoad::default() };
    assert!(granted(&third.vote(secs(40), WALL, key(1), &next, 7)));
    assert!(!granted(&third.vote(secs(80), WALL, key(2), &claim, 10)), "no term is granted twice");
    assert!(granted(&third.vote(secs(80), WALL, key(2), &claim, 11)));
    third.vote(
        secs(81),
        WALL,
        key(2),
        &LeaseAsk::Renew {
            lease: ExpertLease { place: place(&[3]), copy: 0, holder: key(2), term: 11, grants: Vec::new() },
            load: ExpertLoad::default(),
        },
        11,
    );
    let late = third.vote(secs(120), WALL, key(1), &next, 7);
    assert_eq!(late, LeaseVerdict::Refused(LeaseRefusal::Later { term: 11 }), "a majority has gone on");
}

#[test]
fn a_host_holds_no_more_than_it_has_room_for() {
    let mut run = Run::new(&[8], false);
    run.host(secs(0), 1, 0, 2);
    run.claim(secs(0), 1, place(&[0])).unwrap();
    let second = run.claim(secs(0), 1, place(&[1])).unwrap();
    assert_eq!(run.claim(secs(0), 1, place(&[2])), Err(LeaseRefusal::Room { n_room: 2 }));
    assert!(run.claim(secs(0), 1, place(&[1])).is_ok(), "it has that one");
    let renewed = run.renew(secs(1), 1, &second);
    assert!(matches!(renewed, Err(LeaseRefusal::Later { .. })), "which has a later term now: {renewed:?}");
    let renewed = run.claim(secs(1), 1, place(&[1])).unwrap();
    run.vote(secs(2), 1, &LeaseAsk::Renew { lease: renewed, load: waiting(7) }).unwrap();
    let standing = LeaseStanding { n_places: 8, n_held: 2, n_copies: 0, n_hosts: 1, n_rows_waiting: 7 };
    assert_eq!(run.book.standing(secs(3)), standing);
    assert_eq!(run.book.standing(secs(40)), LeaseStanding { n_places: 8, ..LeaseStanding::default() });
    // Places that have expired count no longer.
    run.host(secs(40), 1, 0, 2);
    run.claim(secs(40), 1, place(&[2])).unwrap();
    assert_eq!(
        run.book.vote(secs(40), WALL, key(9), &LeaseAsk::Claim(place(&[5])), 1),
        LeaseVerdict::Refused(LeaseRefusal::Room { n_room: 0 }),
        "a host that nobody knows"
    );
}

#[test]
fn no_address_has_more_than_half_of_what_others_might_take() {
    let mut run = Run::new(&[8], false);
    (1..=3).for_each(|at| run.host(secs(0), at, 5, 8));
    run.host(secs(0), 9, 6, 8);
    let mut n_granted = 0;
    for (at, index) in [(1, 0), (2, 1), (3, 2), (1, 3), (2, 4)] {
        let wanted = run.book.check_share(secs(0), &key(at), (place(&[index]), 0));
        if wanted.is_ok() {
            run.claim(secs(0), at, place(&[index])).unwrap();
            n_granted += 1;
        } else {
            assert_eq!(wanted, Err(LeaseRefusal::Share { max: 4, for_ms: 120_000 }));
        }
    }
    assert_eq!(n_granted, 4, "three keys of one address have half of the places");
    assert_eq!(run.book.vacant(secs(0), &key(3), 8), []);
    assert_eq!(run.book.vacant(secs(0), &key(9), 8).len(), 4);
    // What nobody wants is anybody's.
    run.host(VACANT_LONG, 3, 5, 8);
    assert_eq!(run.book.vacant(VACANT_LONG, &key(3), 8).len(), 8);
    // Where addresses tell hosts apart no better than keys, keys count alone.
    run.host(secs(0), 4, 0, 8);
    assert!(run.book.check_share(secs(0), &key(4), (place(&[7]), 0)).is_ok());
}

#[test]
fn places_that_lost_their_host_are_filled_first_and_then_those_beside_the_busiest() {
    let mut run = Run::new(&[3, 3], false);
    run.host(secs(0), 1, 0, 9);
    let lost = run.claim(secs(0), 1, place(&[2, 2])).unwrap();
    let quiet = run.claim(secs(0), 1, place(&[0, 0])).unwrap();
    let busy = run.claim(secs(0), 1, place(&[1, 1])).unwrap();
    for (lease, n_waiting) in [(&quiet, 3), (&busy, 500)] {
        run.vote(secs(5), 1, &LeaseAsk::Renew { lease: lease.clone(), load: waiting(n_waiting) }).unwrap();
    }
    run.release(secs(6), 1, &lost);
    run.host(secs(6), 2, 0, 9);
    let chosen = run.book.vacant(secs(6), &key(2), 4);
    assert_eq!(chosen[0], lost.place);
    let mut beside = chosen[1..3].to_vec();
    beside.sort_unstable();
    assert_eq!(beside, [place(&[1, 0]), place(&[1, 2])]);
    assert_eq!(chosen[3].1.indices()[0], 0, "the quiet ones come before those without neighbours");
    assert_eq!(run.book.vacant(secs(6), &key(2), 9).len(), 7);
    // A grid with more places than anybody looks at.
    let mut large = Run::new(&[512, 512, 512], false);
    large.host(secs(0), 1, 0, 64);
    assert_eq!(large.book.vacant(secs(0), &key(1), 64).len(), 64);
}

#[test]
fn keepers_stay_the_same_while_hosts_come_and_go() {
    let mut run = Run::new(&[64], false);
    (1..=10).for_each(|at| run.host(secs(0), at, 0, 8));
    let lease = run.claim(secs(0), 1, place(&[0])).unwrap();
    let keepers = |run: &Run, now, index| -> Vec<PublicKey> {
        run.book.keepers(now, place(&[index]), 2).iter().map(|host| host.peer).collect()
    };
    assert!(!run.book.keepers(secs(1), lease.place, 10).iter().any(|host| host.peer == key(1)));
    let before: Vec<Vec<PublicKey>> = (0..64).map(|index| keepers(&run, secs(1), index)).collect();
    assert!((1..=10).all(|at| before.iter().flatten().any(|keeper| *keeper == key(at))), "all keep some");
    // One of ten has gone silent.
    (1..=9).for_each(|at| run.host(secs(20), at, 0, 8));
    let n_changed = (0..64).filter(|index| keepers(&run, secs(31), *index) != before[usize::from(*index)]);
    let n_lost = before.iter().filter(|keepers| keepers.contains(&key(10))).count();
    assert_eq!(n_changed.count(), n_lost);
}

#[test]
fn a_majority_makes_a_lease_and_a_minority_does_not_speak_for_all() {
    let backbones: Vec<KeyPair> = (1..=3).map(|at| KeyPair::from_seed(&[at; 32])).collect();
    let grantors = Grantors::new(backbones.iter().map(KeyPair::public)).unwrap();
    let leased = ((place(&[1]), 0), key(9), 5);
    let grant = |at: usize| {
        LeaseVerdict::Granted(LeaseGrant::sign(&backbones[at], "barn", leased, UnixTime(1)).unwrap())
    };
    let held = LeaseVerdict::Refused(LeaseRefusal::Held { for_ms: 1 });
    let later = LeaseVerdict::Refused(LeaseRefusal::Later { term: 9 });
    let count = |votes: &[LeaseVerdict<LeaseGrant>]| count_votes(&grantors, leased, votes);
    assert!(matches!(count(&[grant(0), held.clone(), grant(2)]), LeaseVerdict::Granted(_)));
    let few = LeaseVerdict::Refused(LeaseRefusal::Majority { want: 2, got: 1 });
    assert_eq!(count(&[grant(0)]), few);
    assert_eq!(count(&[grant(0), held.clone()]), few, "the third may still grant it");
    assert_eq!(count(&[held.clone(), held.clone()]), LeaseVerdict::Refused(LeaseRefusal::Held { for_ms: 1 }));
    assert_eq!(count(&[held.clone(), later]), LeaseVerdict::Refused(LeaseRefusal::Later { term: 9 }));
    let quiet = LeaseVerdict::Refused(LeaseRefusal::Quiet { for_ms: 1 });
    for votes in [[held.clone(), quiet.clone()], [quiet, held.clone()]] {
        assert_eq!(
            count(&votes),
            LeaseVerdict::Refused(LeaseRefusal::Held { for_ms: 1 }),
            "a backbone that is quiet knows less"
        );
    }
    assert_eq!(count(&[]), LeaseVerdict::Refused(LeaseRefusal::Majority { want: 2, got: 0 }));
}

/// A host and what it has been told to do.
struct Host {
    holder: LeaseHolder,
    said: Vec<HolderAction>,
}

impl Host {
    fn new(n_room: usize, own: &[u16]) -> Self {
        let own = own.iter().map(|index| place(&[*index]));
        Self { holder: LeaseHolder::new(n_room, own, 3), said: Vec::new() }
    }

    /// What it asks for, and how many vacant places it takes.
    fn asks(&mut self, now: Moment) -> Option<(Vec<LeaseAsk>, u8)> {
        self.holder.on_timeout(now);
        while let Some(action) = self.holder.poll_action(now) {
            match action {
                HolderAction::Ask { asks, n_vacant } => return Some((asks, n_vacant)),
                other => self.said.push(other),
            }
        }
        None
    }
}

fn lease(index: u16, term: u64) -> ExpertLease {
    ExpertLease { place: place(&[index]), copy: 0, holder: key(1), term, grants: Vec::new() }
}

#[test]
fn a_host_claims_what_is_on_its_disk_and_then_what_is_vacant() {
    let mut host = Host::new(3, &[4, 5]);
    let claims = vec![LeaseAsk::Claim(place(&[4])), LeaseAsk::Claim(place(&[5]))];
    assert_eq!(host.asks(secs(0)), Some((claims, 0)));
    assert_eq!(host.asks(secs(1)), None, "one question at a time");
    let held = LeaseVerdict::Refused(LeaseRefusal::Held { for_ms: 9 });
    host.holder.on_answer(secs(1), vec![LeaseVerdict::Granted(lease(4, 1)), held], Vec::new());
    assert_eq!(host.asks(secs(1)), Some((Vec::new(), 2)), "the other one has a host");
    assert_eq!(host.said, [HolderAction::Host(lease(4, 1)), HolderAction::Yield(place(&[5]))]);
    host.holder.on_answer(secs(2), Vec::new(), vec![lease(6, 1), lease(7, 1)]);
    assert_eq!(host.asks(secs(3)), None);
    assert!(host.holder.holds(secs(26), &place(&[4])) && !host.holder.holds(secs(27), &place(&[4])));
    assert_eq!(host.holder.lease(secs(3), &place(&[7])), Some(&lease(7, 1)));
    assert!(host.holder.next_deadline(secs(3)).is_some_and(|at| at > secs(8) && at <= secs(10)));
    let (renewals, n_vacant) = host.asks(secs(11)).unwrap();
    assert_eq!((renewals.len(), n_vacant), (3, 0), "it has no room for more");
}

#[test]
fn a_lease_counts_from_the_question_and_is_over_before_the_backbone_thinks_so() {
    let mut host = Host::new(1, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(7), Vec::new(), vec![lease(1, 1)]);
    assert!(host.holder.holds(secs(26), &place(&[1])) && !host.holder.holds(secs(27), &place(&[1])));
    // It asks again and again, and nobody answers.
    for at in [11, 14, 17, 20, 23] {
        assert!(host.asks(secs(at)).is_some(), "{at}");
        host.holder.on_failed(secs(at + 1));
    }
    let claim = (vec![LeaseAsk::Claim(place(&[1]))], 0);
    assert_eq!(host.asks(secs(27)), Some(claim), "it is claimed again");
    let stop = HolderAction::Stop { place: place(&[1]), is_taken: false };
    assert_eq!(host.said, [HolderAction::Host(lease(1, 1)), stop]);
    // An answer that is older than the lease would be counts for nothing.
    host.holder.on_answer(secs(60), vec![LeaseVerdict::Granted(lease(1, 2))], Vec::new());
    assert_eq!(
        host.asks(secs(60)).unwrap().0[0],
        LeaseAsk::Release { place: place(&[1]), copy: 0, term: 2, to: None }
    );
    assert!(!host.holder.holds(secs(60), &place(&[1])));
}

#[test]
fn a_host_stops_at_once_where_another_one_follows_it() {
    let mut host = Host::new(1, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), vec![lease(1, 1)]);
    host.asks(secs(10)).unwrap();
    let few = LeaseVerdict::Refused(LeaseRefusal::Majority { want: 2, got: 1 });
    host.holder.on_answer(secs(10), vec![few], Vec::new());
    assert!(host.holder.holds(secs(11), &place(&[1])), "it may be renewed yet");
    host.asks(secs(13)).unwrap();
    let later = LeaseVerdict::Refused(LeaseRefusal::Later { term: 2 });
    host.holder.on_answer(secs(13), vec![later], Vec::new());
    assert!(!host.holder.holds(secs(13), &place(&[1])));
    host.asks(secs(13));
    assert_eq!(host.said.last(), Some(&HolderAction::Stop { place: place(&[1]), is_taken: true }));
}

#[test]
fn a_host_that_leaves_gives_all_back_and_takes_nothing() {
    let mut host = Host::new(2, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), vec![lease(1, 1)]);
    host.holder.on_leaving();
    assert_eq!(host.asks(secs(9)).map(|(asks, n_vacant)| (asks.len(), n_vacant)), None);
    assert_eq!(host.asks(secs(10)).unwrap().0.len(), 1, "until it is handed over, it is renewed");
    host.holder.on_answer(secs(10), vec![LeaseVerdict::Granted(lease(1, 1))], Vec::new());
    host.holder.on_given_up(secs(11), &place(&[1]));
    assert!(!host.holder.is_settled());
    let release = LeaseAsk::Release { place: place(&[1]), copy: 0, term: 1, to: None };
    assert_eq!(host.asks(secs(11)), Some((vec![release], 0)));
    host.holder.on_answer(secs(11), vec![LeaseVerdict::Released], Vec::new());
    assert!(host.holder.is_settled() && host.asks(secs(60)).is_none());
}

#[test]
fn a_machine_that_was_suspended_holds_nothing_until_it_has_asked() {
    let mut host = Host::new(1, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), vec![lease(1, 1)]);
    host.holder.on_suspended(secs(2));
    assert!(!host.holder.holds(secs(2), &place(&[1])));
    assert_eq!(host.asks(secs(2)), Some((vec![LeaseAsk::Claim(place(&[1]))], 0)));
    assert_eq!(host.said.last(), Some(&HolderAction::Stop { place: place(&[1]), is_taken: false }));
}

#[test]
fn a_host_that_has_no_access_any_more_stops_at_once_and_claims_its_places_when_it_is_back() {
    let mut host = Host::new(2, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), vec![lease(1, 1), lease(2, 1)]);
    assert!(matches!(host.asks(secs(10)), Some((asks, 0)) if asks.len() == 2));
    host.holder.on_no_access(secs(10));
    assert!(!host.holder.holds(secs(10), &place(&[1])) && !host.holder.holds(secs(10), &place(&[2])));
    // It does not ask on and on.
    assert_eq!(host.asks(secs(10)), None);
    let stops = [1, 2].map(|index| HolderAction::Stop { place: place(&[index]), is_taken: false });
    assert_eq!(host.said[host.said.len() - 2..], stops);
    let claims = vec![LeaseAsk::Claim(place(&[1])), LeaseAsk::Claim(place(&[2]))];
    assert_eq!(host.asks(secs(12)), Some((claims, 0)));
    host.holder.on_no_access(secs(12));
    assert!(host.asks(secs(17)).is_some(), "it may be let in at any time");
}

#[test]
fn a_host_with_many_places_renews_them_in_several_questions() {
    let mut host = Host::new(150, &[]);
    let mut next = 0;
    for at in [0, 6, 12] {
        let (asks, n_vacant) = host.asks(secs(at)).unwrap();
        let renewed = asks.iter().map(|ask| LeaseVerdict::Granted(lease(ask.of().0.1.indices()[0], 1)));
        let found = (next..next + u16::from(n_vacant)).map(|index| lease(index, 1)).collect();
        next += u16::from(n_vacant);
        assert!(asks.len() + usize::from(n_vacant) <= PLACES_MAX);
        host.holder.on_answer(secs(at), renewed.collect(), found);
        while let Some((asks, 0)) = host.asks(secs(at)) {
            let renewed = asks.iter().map(|ask| LeaseVerdict::Granted(lease(ask.of().0.1.indices()[0], 1)));
            host.holder.on_answer(secs(at), renewed.collect(), Vec::new());
        }
    }
    assert!(next >= 128, "{next}");
    assert!((0..next).all(|index| host.holder.holds(secs(20), &place(&[index]))));
}
