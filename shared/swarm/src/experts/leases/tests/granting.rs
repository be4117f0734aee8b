//! What a backbone grants to whom, at the bounds of each promise.

use super::*;

const fn millis(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

/// All vacant places that a host is offered, in their order.
fn vacant(run: &mut Run, now: Moment, at: u8) -> Vec<u16> {
    let mut places = run.book.vacant(now, &key(at), 64);
    places.sort_unstable();
    places.iter().map(|(_, uid)| uid.indices()[0]).collect()
}

#[test]
fn what_a_host_holds_counts_as_its_share_until_it_is_over() {
    let mut run = Run::new(&[8], false);
    (1..=2).for_each(|at| run.host(secs(0), at, 5, 8));
    run.claim(secs(0), 1, place(&[0])).unwrap();
    (1..=4).for_each(|index| _ = run.claim(secs(1), 2, place(&[index])).unwrap());
    let share = |run: &Run, now, index| run.book.check_share(now, &key(1), (place(&[index]), 0));
    assert_eq!(share(&run, secs(2), 0), Ok(()), "it has that one");
    let later = |for_ms| Err(LeaseRefusal::Share { max: 4, for_ms });
    assert_eq!(share(&run, secs(2), 1), later(149_000), "another one of the same address has it");
    assert_eq!(share(&run, secs(2), 5), later(118_000));
    run.host(secs(30), 1, 5, 8);
    assert_eq!(run.book.holder(secs(30), place(&[0])), None);
    assert_eq!(share(&run, secs(30), 0), later(120_000), "it had that one");
    // Its address has half of the places again.
    run.host(secs(130), 2, 5, 8);
    (1..=4).for_each(|index| _ = run.claim(secs(130), 2, place(&[index])).unwrap());
    assert_eq!(share(&run, millis(149_999), 0), later(1));
    assert_eq!(share(&run, secs(150), 0), Ok(()), "nobody has wanted it for so long");
    assert_eq!(share(&run, secs(150), 1), later(130_000));
}

#[test]
fn after_a_forged_lease_no_other_renewal_of_a_message_is_looked_at() {
    let mut run = Run::new(&[8], false);
    run.host(secs(0), 1, 0, 8);
    let lease = run.claim(secs(0), 1, place(&[0])).unwrap();
    let forged = ExpertLease { place: place(&[1]), ..lease.clone() };
    let renewal = |lease: &ExpertLease| {
        (LeaseAsk::Renew { lease: lease.clone(), load: ExpertLoad::default() }, lease.term)
    };
    let claim = (LeaseAsk::Claim(place(&[2])), lease.term);
    let asks = [renewal(&lease), renewal(&forged), renewal(&lease), claim];
    let votes = run.book.votes(secs(1), WALL.after(secs(1)), key(1), &asks);
    let is_granted = |vote: &LeaseVerdict<LeaseGrant>| matches!(vote, LeaseVerdict::Granted(_));
    assert_eq!(votes.iter().map(is_granted).collect::<Vec<_>>(), [true, false, false, true]);
}

#[test]
fn a_place_that_others_have_granted_is_offered_once_that_may_be_over() {
    let mut run = Run::new(&[4], false);
    run.host(secs(100), 1, 0, 8);
    run.book.on_held_elsewhere(secs(100), (place(&[1]), 0), secs(10));
    run.book.on_held_elsewhere(secs(100), (place(&[2]), 0), Duration::MAX);
    assert_eq!(vacant(&mut run, millis(109_999), 1), [0, 3]);
    assert_eq!(vacant(&mut run, secs(110), 1), [0, 1, 3]);
    assert_eq!(vacant(&mut run, millis(129_999), 1), [0, 1, 3]);
    assert_eq!(vacant(&mut run, secs(130), 1), [0, 1, 2, 3], "for no longer than a lease");
    // What others say takes bounded memory.
    for index in 0..LEASES_MAX as u32 {
        let other = ExpertUid::new(&[(index >> 9) as u16, (index % 512) as u16]).unwrap();
        run.book.on_held_elsewhere(secs(130), ((LayerId(9), other), 0), secs(30));
    }
    run.book.on_held_elsewhere(secs(130), (place(&[1]), 0), secs(30));
    assert_eq!(vacant(&mut run, secs(131), 1), [0, 1, 2, 3]);
    assert_eq!(vacant(&mut run, secs(160), 1), [0, 1, 2, 3]);
    run.book.on_held_elsewhere(secs(160), (place(&[1]), 0), secs(30));
    assert_eq!(vacant(&mut run, secs(160), 1), [0, 2, 3], "what is over makes room");
}

#[test]
fn a_backbone_that_was_restarted_offers_places_once_all_hosts_have_renewed() {
    let mut run = Run::new(&[3], true);
    run.host(secs(0), 1, 0, 8);
    assert_eq!(vacant(&mut run, millis(11_999), 1), [0; 0]);
    assert_eq!(vacant(&mut run, secs(12), 1), [0, 1, 2], "others may grant them");
    assert_eq!(run.claim(millis(29_999), 1, place(&[0])), Err(LeaseRefusal::Quiet { for_ms: 1 }));
    run.claim(secs(30), 1, place(&[0])).unwrap();
}

#[test]
fn a_host_whose_answer_was_lost_is_offered_its_place_again_and_nobody_else_is() {
    let mut run = Run::new(&[2], false);
    (1..=2).for_each(|at| run.host(secs(100), at, 0, 8));
    let lease = run.claim(secs(100), 1, place(&[0])).unwrap();
    assert_eq!(vacant(&mut run, millis(111_999), 1), [1], "it may be on its way");
    assert_eq!(vacant(&mut run, secs(112), 1), [0, 1]);
    assert_eq!(vacant(&mut run, secs(112), 2), [1]);
    run.renew(secs(112), 1, &lease).unwrap();
    assert_eq!(vacant(&mut run, secs(125), 1), [1], "it knows of it");
}

#[test]
fn a_lease_holds_for_its_time_and_no_longer() {
    let mut run = Run::new(&[8], false);
    run.host(secs(100), 1, 0, 8);
    run.claim(secs(100), 1, place(&[3])).unwrap();
    let holder = |run: &Run, now| run.book.holder(now, place(&[3]));
    assert_eq!(holder(&run, millis(129_999)), Some(key(1)));
    assert_eq!(holder(&run, secs(130)), None);
    let lease = run.claim(secs(131), 1, place(&[3])).unwrap();
    run.release(secs(132), 1, &lease);
    assert_eq!(holder(&run, secs(132)), None, "it was given back");
}

#[test]
fn only_the_holder_gives_a_lease_back_and_only_that_one() {
    let mut run = Run::new(&[8], false);
    (1..=2).for_each(|at| run.host(secs(0), at, 0, 8));
    let first = run.claim(secs(0), 1, place(&[3])).unwrap();
    run.release(secs(1), 2, &first);
    assert_eq!(run.book.holder(secs(1), place(&[3])), Some(key(1)), "another host has said it");
    let second = run.claim(secs(2), 1, place(&[3])).unwrap();
    run.release(secs(3), 1, &first);
    assert_eq!(run.book.holder(secs(3), place(&[3])), Some(key(1)), "it came late");
    run.release(secs(4), 1, &second);
    assert_eq!(run.book.holder(secs(4), place(&[3])), None);
}

#[test]
fn a_renewal_is_worth_nothing_to_a_host_that_knows_the_term_of_another_one() {
    let mut run = Run::new(&[8], false);
    (1..=2).for_each(|at| run.host(secs(0), at, 0, 8));
    let lease = run.claim(secs(0), 1, place(&[3])).unwrap();
    let term = lease.term;
    let stolen = ExpertLease { holder: key(2), ..lease.clone() };
    assert_eq!(run.renew(secs(1), 2, &stolen), Err(LeaseRefusal::Later { term }));
    run.renew(secs(10), 1, &lease).unwrap();
    let older = ExpertLease { term: term - 1, ..stolen };
    let refusal = run.renew(secs(11), 2, &older);
    assert_eq!(refusal, Err(LeaseRefusal::Later { term }), "a majority has renewed it");
    assert_eq!(run.book.holder(secs(11), place(&[3])), Some(key(1)));
}

#[test]
fn after_a_restart_a_grant_of_its_own_counts_within_its_time_alone() {
    let mut before = Run::new(&[8], false);
    before.host(secs(0), 1, 0, 8);
    let lease = before.claim(secs(0), 1, place(&[1])).unwrap();
    let vote = |wall: UnixMillis| {
        let mut run = Run::new(&[8], true);
        run.host(secs(0), 1, 0, 8);
        let ask = LeaseAsk::Renew { lease: lease.clone(), load: ExpertLoad::default() };
        run.book.vote(secs(0), wall, key(1), &ask, lease.term)
    };
    let granted = |vote: &LeaseVerdict<LeaseGrant>| matches!(vote, LeaseVerdict::Granted(_));
    let quiet = LeaseVerdict::Refused(LeaseRefusal::Quiet { for_ms: 30_000 });
    assert!(granted(&vote(WALL)) && granted(&vote(WALL.after(secs(29)))));
    assert_eq!(vote(WALL.after(secs(30))), quiet, "it has expired");
    // Its clock was ahead when it gave that grant: nobody knows when it is over.
    assert_eq!(vote(WALL.before(secs(1))), quiet);
}

#[test]
fn a_backbone_that_the_run_does_not_name_grants_nothing() {
    let run = Run::new(&[8], false).book.run().clone();
    let mut stranger = LeaseBook::new(KeyPair::from_seed(&[99; 32]), run, secs(0), false, 7);
    stranger.on_host(secs(0), key(1), AddressGroup(0), &LeasingHost::new(8, [])).unwrap();
    assert!(!stranger.is_grantor());
    let unknown = LeaseVerdict::Refused(LeaseRefusal::Unknown);
    assert_eq!(stranger.vote(secs(0), WALL, key(1), &LeaseAsk::Claim(place(&[3])), 9), unknown);
    // One that it names grants no place of another layer.
    let mut run = Run::new(&[8], false);
    run.host(secs(0), 1, 0, 8);
    let elsewhere = (LayerId(3), ExpertUid::new(&[3]).unwrap());
    assert!(run.book.is_grantor() && !run.book.has(elsewhere));
    assert_eq!(run.claim(secs(0), 1, elsewhere), Err(LeaseRefusal::Unknown));
}

#[test]
fn terms_of_a_place_grow_also_where_the_clock_goes_back() {
    let mut run = Run::new(&[8], false);
    run.host(secs(0), 1, 0, 8);
    let first = run.claim(secs(0), 1, place(&[3])).unwrap();
    run.release(secs(0), 1, &first);
    run.claim(secs(0), 1, place(&[4])).unwrap();
    let long_ago = UnixMillis(5);
    assert_eq!(run.book.next_term(long_ago, place(&[3])), first.term + 1, "it is remembered");
    assert_eq!(run.book.next_term(long_ago, place(&[5])), 5);
    assert_eq!(run.book.next_term(WALL.after(secs(9)), place(&[3])), WALL.after(secs(9)).0);
}

#[test]
fn the_neighbourhood_with_the_most_rows_for_each_of_its_experts_gets_more_of_them() {
    let mut run = Run::new(&[2, 12], false);
    run.host(secs(0), 1, 0, 24);
    // A mean of 5 rows against one of 7.
    for (indices, n_waiting) in [([0, 0], 10), ([0, 1], 0), ([1, 0], 7)] {
        let lease = run.claim(secs(0), 1, place(&indices)).unwrap();
        run.vote(secs(1), 1, &LeaseAsk::Renew { lease, load: waiting(n_waiting) }).unwrap();
    }
    let chosen = run.book.vacant(secs(1), &key(1), 64);
    let rows: Vec<u16> = chosen.iter().map(|(_, uid)| uid.indices()[0]).collect();
    assert_eq!(rows, [vec![1; 11], vec![0; 10]].concat());
    let standing = LeaseStanding { n_places: 24, n_held: 3, n_copies: 0, n_hosts: 1, n_rows_waiting: 17 };
    assert_eq!(run.book.standing(secs(1)), standing);
}

#[test]
fn all_places_of_a_large_grid_are_offered_in_time() {
    let mut run = Run::new(&[512, 512], false);
    run.host(secs(0), 1, 0, 64);
    let mut rows = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let chosen = run.book.vacant(secs(0), &key(1), 64);
        assert_eq!(chosen.len(), 64);
        rows.extend(chosen.iter().map(|(_, uid)| uid.indices()[0] / 8));
    }
    assert!(rows.len() > 4, "not the same stretch each time: {rows:?}");
}
