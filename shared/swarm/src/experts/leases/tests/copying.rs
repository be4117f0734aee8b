//! Copies of experts for load: who gets one, and when they end.

use barnraise_protocol::experts::checkpoints::TRANSFER_TIMEOUT;

use super::*;

/// A run with these places, all of which the host 1 has. `n_waiting` rows wait for the first, and none for the others.
fn loaded(n_places: u16, n_waiting: u32) -> (Run, Vec<ExpertLease>) {
    let mut run = Run::new(&[n_places], false);
    run.host(secs(0), 1, 0, 64);
    let leases: Vec<ExpertLease> =
        (0..n_places).map(|index| run.claim(secs(0), 1, place(&[index])).unwrap()).collect();
    // Twice: what waits once may be over in a moment.
    renew_all(&mut run, secs(1), &leases, n_waiting);
    renew_all(&mut run, secs(1), &leases, n_waiting);
    (run, leases)
}

fn renew_all(run: &mut Run, now: Moment, leases: &[ExpertLease], n_waiting: u32) {
    for (at, lease) in leases.iter().enumerate() {
        let n_waiting = if at == 0 { n_waiting } else { 0 };
        renew(run, now, lease, n_waiting);
    }
}

fn renew(run: &mut Run, now: Moment, lease: &ExpertLease, n_waiting: u32) {
    let at = (1..=9).find(|at| key(*at) == lease.holder).unwrap();
    run.vote(now, at, &LeaseAsk::Renew { lease: lease.clone(), load: waiting(n_waiting) }).unwrap();
}

fn chosen(run: &mut Run, now: Moment, at: u8) -> Vec<LeaseAsk> {
    run.host(now, at, 0, 8);
    run.book.chosen(now, &key(at), 8)
}

fn copy(index: u16, copy: u8) -> Vec<LeaseAsk> {
    vec![LeaseAsk::Copy((place(&[index]), copy))]
}

/// Has the host take what is chosen for it.
fn take(run: &mut Run, now: Moment, at: u8) -> ExpertLease {
    let chosen = chosen(run, now, at);
    run.vote(now, at, &chosen[0]).unwrap()
}

#[test]
fn a_copy_is_given_where_no_place_is_vacant_and_of_an_expert_with_many_rows() {
    let (mut run, leases) = loaded(3, COPIED_ROWS - 1);
    assert_eq!(chosen(&mut run, secs(2), 2), [], "they are few");
    renew(&mut run, secs(2), &leases[1], COPIED_ROWS);
    assert_eq!(chosen(&mut run, secs(2), 2), [], "it may be over in a moment");
    renew(&mut run, secs(2), &leases[1], COPIED_ROWS);
    assert_eq!(chosen(&mut run, secs(2), 1), [], "it has them all");
    assert_eq!(chosen(&mut run, secs(2), 2), copy(1, 1));
    run.release(secs(3), 1, &leases[2]);
    assert_eq!(chosen(&mut run, secs(3), 2), [LeaseAsk::Claim(place(&[2]))], "places come first");
    run.claim(secs(3), 2, place(&[2])).unwrap();
    let taken = take(&mut run, secs(3), 2);
    assert_eq!((taken.of(), taken.term > leases[1].term), ((place(&[1]), 1), true));
    let standing = run.book.standing(secs(3));
    assert_eq!((standing.n_places, standing.n_held, standing.n_copies, standing.n_hosts), (3, 3, 1, 2));
    let holders = run.book.holders(secs(3), &[place(&[1]), place(&[2])]).unwrap();
    assert_eq!(holders, [vec![expert(1), CopyHolder { copy: 1, holder: key(2) }], vec![expert(2)]]);
    assert_eq!(run.book.holder(secs(3), place(&[1])), Some(key(1)), "that of the expert itself");
}

#[test]
fn load_settles_before_the_next_copy_and_there_are_few() {
    let (mut run, leases) = loaded(1, COPIED_ROWS);
    let mut now = secs(1);
    let mut copies = Vec::new();
    for n in 1..COPIES_MAX {
        assert_eq!(chosen(&mut run, now, 1 + n), copy(0, n));
        copies.push(take(&mut run, now, 1 + n));
        // What is waiting on average says whether there is to be one more.
        let next_at = now + COPY_INTERVAL;
        while now < next_at {
            assert_eq!(chosen(&mut run, now, 9), [], "{now:?}");
            now = next_at.min(now + secs(10));
            renew(&mut run, now, &leases[0], 2 * COPIED_ROWS);
            for copy in &copies {
                renew(&mut run, now, copy, COPIED_ROWS);
            }
        }
        assert_eq!(chosen(&mut run, now, 1 + n), [], "it has one");
    }
    assert_eq!(chosen(&mut run, now, 9), [], "as many as there may be");
    let asked = LeaseAsk::Copy((place(&[0]), COPIES_MAX));
    run.host(now, 9, 0, 8);
    assert_eq!(run.vote(now, 9, &asked), Err(LeaseRefusal::Unknown));
    // One that ends makes room for the next one.
    run.release(now, 3, &copies[1]);
    assert_eq!(chosen(&mut run, now, 9), copy(0, 2));
}

#[test]
fn a_host_never_has_two_copies_and_no_two_copies_have_one_term() {
    let (mut run, leases) = loaded(1, COPIED_ROWS);
    run.host(secs(1), 2, 0, 8);
    let second = take(&mut run, secs(1), 2);
    for other in [2, 3] {
        let twice = LeaseRefusal::Twice { copy: 1, for_ms: 30_000 };
        assert_eq!(run.vote(secs(1), 2, &LeaseAsk::Copy((place(&[0]), other))), Err(twice));
    }
    run.host(secs(1), 3, 0, 8);
    let asked = LeaseAsk::Copy((place(&[0]), 2));
    let same_term = run.book.vote(secs(1), WALL, key(3), &asked, second.term);
    assert_eq!(same_term, LeaseVerdict::Refused(LeaseRefusal::Later { term: second.term }));
    // It may have the expert itself once its copy has ended.
    run.release(secs(2), 1, &leases[0]);
    let twice = LeaseRefusal::Twice { copy: 1, for_ms: 29_000 };
    assert_eq!(run.claim(secs(2), 2, place(&[0])), Err(twice));
    assert_eq!(chosen(&mut run, secs(2), 2), [], "it is for others");
    run.release(secs(3), 2, &second);
    let taken = run.claim(secs(3), 2, place(&[0])).unwrap();
    assert!(taken.term > second.term);
    let late = run.vote(secs(3), 2, &LeaseAsk::Renew { lease: second, load: ExpertLoad::default() });
    assert!(late.is_err(), "a message that is late brings no second one");
    // Nor does one at a backbone that has not heard of its end.
    let (mut other, _) = loaded(1, COPIED_ROWS);
    take(&mut other, secs(1), 2);
    let renewal = LeaseAsk::Renew { lease: taken, load: ExpertLoad::default() };
    let twice = LeaseRefusal::Twice { copy: 1, for_ms: 28_000 };
    assert_eq!(other.vote(secs(3), 2, &renewal), Err(twice));
}

fn wanted(run: &mut Run, now: Moment, lease: &ExpertLease) -> Result<(), LeaseRefusal> {
    run.book.check_wanted(now, &lease.holder, lease)
}

#[test]
fn copies_give_way_one_by_one_to_a_place_that_nobody_takes() {
    let (mut run, leases) = loaded(2, COPIED_ROWS);
    let first = take(&mut run, secs(1), 2);
    (0..2).for_each(|_| renew(&mut run, secs(2), &leases[1], COPIED_ROWS));
    let second = take(&mut run, secs(2), 3);
    assert_eq!((first.of(), second.of()), ((place(&[0]), 1), (place(&[1]), 1)));
    run.release(secs(25), 1, &leases[0]);
    let now = secs(25) + VACANT_SHORT;
    for lease in [&first, &second] {
        renew(&mut run, secs(25), lease, COPIED_ROWS);
        assert_eq!(wanted(&mut run, now - secs(1), lease), Ok(()), "others may take it");
    }
    renew(&mut run, secs(25), &leases[1], COPIED_ROWS);
    assert_eq!(wanted(&mut run, now, &leases[1]), Ok(()), "an expert itself gives way to none");
    let made_up = ExpertLease { term: 1, ..first.clone() };
    assert_eq!(wanted(&mut run, now, &made_up), Ok(()), "that is no lease");
    assert_eq!(run.book.check_wanted(now, &key(9), &first), Ok(()), "it is another host's");
    assert_eq!(wanted(&mut run, now, &second), Ok(()), "its host has room for the place beside");
    assert_eq!(wanted(&mut run, now, &first), Err(LeaseRefusal::GivesWay));
    run.host(now, 3, 0, 1);
    assert_eq!(wanted(&mut run, now, &second), Ok(()), "one at a time");
    assert_eq!(wanted(&mut run, now + secs(1), &first), Err(LeaseRefusal::GivesWay), "it is told again");
    let renewed =
        run.vote(now + secs(1), 2, &LeaseAsk::Renew { lease: first.clone(), load: waiting(COPIED_ROWS) });
    assert_eq!(renewed, Err(LeaseRefusal::GivesWay));
    run.release(now + secs(1), 2, &first);
    assert_eq!(chosen(&mut run, now + secs(1), 2), [LeaseAsk::Claim(place(&[0]))]);
    run.claim(now + secs(1), 2, place(&[0])).unwrap();
    renew(&mut run, now + secs(1), &leases[1], COPIED_ROWS);
    renew(&mut run, now + secs(1), &second, COPIED_ROWS);
    assert_eq!(wanted(&mut run, now + secs(20), &second), Ok(()), "all places have a host again");
}

#[test]
fn a_copy_whose_host_is_full_makes_room_for_a_place_of_another_expert() {
    let (mut run, leases) = loaded(2, COPIED_ROWS);
    let copy = take(&mut run, secs(1), 2);
    run.release(secs(5), 1, &leases[1]);
    let now = secs(5) + VACANT_SHORT;
    assert_eq!(wanted(&mut run, now, &copy), Ok(()), "it has room");
    run.host(now, 2, 0, 1);
    assert_eq!(wanted(&mut run, now, &copy), Err(LeaseRefusal::GivesWay));
}

/// Few rows wait.
const fn rows(n_served: u32, n_spare: u32) -> ExpertLoad {
    ExpertLoad { n_waiting: 3, n_served, n_spare }
}

/// Has these be renewed every ten seconds with what their hosts say, each as long as it is wanted. Returns when each ended, in seconds.
fn ended(run: &mut Run, leases: &[(&ExpertLease, ExpertLoad)], until: u64) -> Vec<Option<u64>> {
    let mut ended = vec![None; leases.len()];
    for at in (11..until).step_by(10) {
        for ((lease, load), ended) in leases.iter().zip(&mut ended).filter(|(_, ended)| ended.is_none()) {
            let holder = (1..=9).find(|at| key(*at) == lease.holder).unwrap();
            if wanted(run, secs(at), lease) == Err(LeaseRefusal::GivesWay) {
                *ended = Some(at);
                run.release(secs(at), holder, lease);
            } else {
                let renewal = LeaseAsk::Renew { lease: (*lease).clone(), load: *load };
                run.vote(secs(at), holder, &renewal).unwrap();
            }
        }
    }
    ended
}

#[test]
fn a_copy_is_idle_where_few_rows_wait_and_the_others_could_do_what_it_does() {
    let idle_at = Some(1 + IDLE_LONG.as_secs());
    for (of_expert, of_copy, ends_at) in [
        // Two that are busy for half of the time, and two that are for a third of it.
        (rows(500, 500), rows(500, 500), None),
        (rows(333, 667), rows(333, 667), idle_at),
        // Nobody asks for its rows, or for hardly any.
        (rows(900, 0), rows(1, 900), None),
        (rows(900, 100), rows(1, 900), idle_at),
        (rows(333, 667), ExpertLoad { n_waiting: COPIED_ROWS, ..rows(333, 667) }, None),
        // What its host says that it computes counts as twice what the other does.
        (rows(3, 1000), rows(u32::MAX, 0), idle_at),
        (rows(3, u32::MAX), rows(1, u32::MAX), idle_at),
    ] {
        let (mut run, leases) = loaded(1, COPIED_ROWS);
        let copy = take(&mut run, secs(1), 2);
        let ended = ended(&mut run, &[(&leases[0], of_expert), (&copy, of_copy)], 1500);
        assert_eq!(ended, [None, ends_at], "{of_expert:?} {of_copy:?}");
    }
}

#[test]
fn a_copy_whose_state_is_on_its_way_is_not_idle() {
    let (mut run, leases) = loaded(1, COPIED_ROWS);
    let copy = take(&mut run, secs(1), 2);
    let ended = ended(&mut run, &[(&leases[0], rows(9, 900)), (&copy, rows(0, 0))], 3000);
    let at = ended[1].unwrap();
    assert!(at > TRANSFER_TIMEOUT.as_secs() && at < (TRANSFER_TIMEOUT + 2 * IDLE_LONG).as_secs(), "{at}");
}

#[test]
fn idle_copies_end_one_after_the_other_the_last_one_first() {
    let (mut run, leases) = loaded(1, COPIED_ROWS);
    let mut copies = Vec::new();
    for number in 1..COPIES_MAX {
        run.host(secs(1), 1 + number, 0, 8);
        copies.push(run.vote(secs(1), 1 + number, &LeaseAsk::Copy((place(&[0]), number))).unwrap());
    }
    let all: Vec<_> = leases.iter().chain(&copies).map(|lease| (lease, rows(100, 900))).collect();
    let ended: Vec<u64> = ended(&mut run, &all, 1500).into_iter().flatten().collect();
    let [first, second, third] = ended.as_slice() else { panic!("{ended:?}") };
    let interval = COPY_INTERVAL.as_secs();
    assert!(
        *third > IDLE_LONG.as_secs() && *second >= third + interval && *first >= second + interval,
        "{ended:?}"
    );
}

#[test]
fn an_address_has_no_more_replicas_than_half_of_the_places() {
    let (mut run, leases) = loaded(2, COPIED_ROWS);
    (0..2).for_each(|_| renew(&mut run, secs(1), &leases[1], COPIED_ROWS));
    // Long after the backbone began.
    let now = secs(20);
    let chosen_at = |run: &mut Run, at: u8| {
        run.host(now, at, 7, 8);
        run.book.chosen(now, &key(at), 8)
    };
    let first = chosen_at(&mut run, 2);
    run.vote(now, 2, &first[0]).unwrap();
    assert_eq!(chosen_at(&mut run, 3), [], "hosts at its address have one of two");
    assert_eq!(run.book.check_share(now, &key(3), (place(&[0]), 0)), Ok(()), "replicas are no places");
}

#[test]
fn a_copy_that_gives_way_is_given_back_and_its_host_looks_for_another_place() {
    let mut host = Host::new(1, &[]);
    host.asks(secs(0)).unwrap();
    let copied = ExpertLease { copy: 2, ..lease(1, 5) };
    host.holder.on_answer(secs(0), Vec::new(), vec![copied.clone()]);
    assert!(host.asks(secs(10)).is_some());
    let gives_way = LeaseVerdict::Refused(LeaseRefusal::GivesWay);
    host.holder.on_answer(secs(10), vec![gives_way], Vec::new());
    assert!(!host.holder.holds(secs(10), &place(&[1])));
    let (asks, n_vacant) = host.asks(secs(12)).unwrap();
    assert_eq!(asks, [LeaseAsk::Release { place: place(&[1]), copy: 2, term: 5, to: None }]);
    assert_eq!(n_vacant, 1);
    assert_eq!(host.said.last(), Some(&HolderAction::Stop { place: place(&[1]), is_taken: true }));
    // It never has two, also where both come.
    host.holder.on_answer(secs(12), vec![LeaseVerdict::Released], vec![lease(1, 6), copied]);
    assert_eq!(host.holder.lease(secs(12), &place(&[1])), Some(&lease(1, 6)));
    let release = LeaseAsk::Release { place: place(&[1]), copy: 2, term: 5, to: None };
    assert_eq!(host.asks(secs(12)), Some((vec![release], 0)));
}

#[test]
fn a_copy_that_has_lapsed_is_not_claimed() {
    let mut host = Host::new(2, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), vec![ExpertLease { copy: 1, ..lease(1, 5) }, lease(2, 5)]);
    host.holder.on_suspended(secs(1));
    assert_eq!(host.asks(secs(1)), Some((vec![LeaseAsk::Claim(place(&[2]))], 0)));
}
