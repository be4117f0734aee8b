//! When a host asks, what for, and what it makes of each answer.

use super::*;

/// A host with room for some places that holds 1 since 0 s.
fn host_with_a_place(n_room: usize) -> Host {
    let mut host = Host::new(n_room, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), vec![lease(1, 1)]);
    host
}

fn refused(refusal: LeaseRefusal) -> Vec<LeaseVerdict<ExpertLease>> {
    vec![LeaseVerdict::Refused(refusal)]
}

#[test]
fn a_renewal_says_how_many_rows_wait() {
    let mut host = host_with_a_place(1);
    host.holder.on_load(&place(&[1]), waiting(7));
    host.holder.on_load(&place(&[2]), waiting(9));
    let renewal = LeaseAsk::Renew { lease: lease(1, 1), load: waiting(7) };
    assert_eq!(host.asks(secs(10)), Some((vec![renewal], 0)));
}

#[test]
fn a_place_of_no_grid_is_not_claimed_again_and_a_backbone_that_waits_is_asked_later() {
    let mut host = Host::new(2, &[4, 5]);
    host.asks(secs(0)).unwrap();
    let quiet = LeaseVerdict::Refused(LeaseRefusal::Quiet { for_ms: 20_000 });
    let answer = [refused(LeaseRefusal::Unknown), vec![quiet]].concat();
    host.holder.on_answer(secs(0), answer, Vec::new());
    let claim = Some((vec![LeaseAsk::Claim(place(&[5]))], 0));
    assert_eq!(host.asks(secs(19)), None);
    assert_eq!(host.asks(secs(20)), claim);
    // No backbone makes a host wait for longer than leases last.
    host.holder.on_answer(secs(20), refused(LeaseRefusal::Busy { for_ms: u32::MAX }), Vec::new());
    assert_eq!(host.asks(secs(49)), None);
    assert_eq!(host.asks(secs(50)), claim);
    // One that has just forgotten a later term asks again as always.
    host.holder.on_answer(secs(50), refused(LeaseRefusal::Later { term: 3 }), Vec::new());
    assert_eq!(host.asks(secs(54)), None);
    assert_eq!(host.asks(secs(55)), claim);
    assert_eq!(host.said, []);
}

#[test]
fn a_host_that_finds_nothing_looks_again_within_the_interval_and_not_at_once() {
    let mut host = Host::new(3, &[]);
    assert_eq!(host.asks(secs(0)), Some((Vec::new(), 3)));
    host.holder.on_answer(secs(0), Vec::new(), Vec::new());
    assert_eq!(host.asks(secs(4)), None);
    assert_eq!(host.asks(secs(5)), Some((Vec::new(), 3)));
    // Looks of many hosts are spread over the last tenth of the interval, with both its ends.
    let (mut now, mut waits) = (secs(5), Vec::new());
    for _ in 0..5000 {
        host.holder.on_failed(now);
        let next = host.holder.next_deadline(now).unwrap();
        waits.push(next - now);
        now = next;
        assert_eq!(host.asks(now), Some((Vec::new(), 3)));
    }
    let (shortest, longest) = (waits.iter().min().copied(), waits.iter().max().copied());
    assert_eq!((shortest, longest), (Some(LOOK_INTERVAL * 9 / 10), Some(LOOK_INTERVAL)));
}

#[test]
fn a_host_that_is_paused_renews_and_takes_nothing_more() {
    let mut host = host_with_a_place(2);
    host.holder.set_paused(true);
    let renewal = LeaseAsk::Renew { lease: lease(1, 1), load: ExpertLoad::default() };
    assert_eq!(host.asks(secs(10)), Some((vec![renewal], 0)));
    host.holder.on_answer(secs(10), vec![LeaseVerdict::Granted(lease(1, 1))], Vec::new());
    assert_eq!(host.asks(secs(15)), None);
    host.holder.set_paused(false);
    assert_eq!(host.asks(secs(15)), Some((Vec::new(), 1)));
}

#[test]
fn a_question_that_failed_is_asked_again_soon_and_not_at_once() {
    let mut host = host_with_a_place(1);
    host.asks(secs(10)).unwrap();
    assert_eq!(host.holder.next_deadline(secs(10)), Some(HELD_TIME), "the end of the lease");
    host.holder.on_failed(secs(10));
    let again = host.holder.next_deadline(secs(10)).unwrap();
    assert!(again >= Moment::from_millis(11_800) && again <= secs(12), "{again:?}");
    // A failure of nothing changes nothing.
    host.holder.on_failed(secs(11));
    let just_before = |at: Moment| at - Duration::from_millis(1);
    assert_eq!(host.asks(just_before(again)), None);
    assert_eq!(host.asks(again).unwrap().0.len(), 1);
    // Likewise where the backbone could not say whether it is renewed.
    host.holder.on_answer(again, refused(LeaseRefusal::Quiet { for_ms: 9 }), Vec::new());
    assert_eq!(host.asks(just_before(again + secs(2))), None);
    assert_eq!(host.asks(again + secs(2)).unwrap().0.len(), 1);
}

#[test]
fn a_place_that_was_given_up_is_given_back_at_once_and_not_looked_for() {
    let mut host = host_with_a_place(1);
    host.holder.on_given_up(secs(6), &place(&[2]));
    assert!(host.holder.is_settled(), "it did not hold that one");
    host.holder.on_given_up(secs(6), &place(&[1]));
    assert_eq!(host.holder.next_deadline(secs(6)), Some(secs(6)));
    let release = LeaseAsk::Release { place: place(&[1]), copy: 0, term: 1, to: None };
    assert_eq!(host.asks(secs(6)), Some((vec![release], 0)));
    host.holder.on_answer(secs(6), vec![LeaseVerdict::Released], Vec::new());
    assert_eq!(host.asks(secs(10)), None);
    assert_eq!(host.asks(secs(11)), Some((Vec::new(), 1)), "another one, if there is any");
    assert_eq!(host.said, [HolderAction::Host(lease(1, 1))]);
}

#[test]
fn what_is_granted_beyond_the_room_is_given_back() {
    let mut host = Host::new(1, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), vec![lease(1, 1), lease(2, 4)]);
    assert!(host.holder.holds(secs(0), &place(&[1])) && !host.holder.holds(secs(0), &place(&[2])));
    assert_eq!(host.holder.places().collect::<Vec<_>>(), [place(&[1])]);
    let release = LeaseAsk::Release { place: place(&[2]), copy: 0, term: 4, to: None };
    assert_eq!(host.asks(secs(0)), Some((vec![release], 0)));
    assert_eq!(host.said, [HolderAction::Host(lease(1, 1))]);
}

#[test]
fn a_place_that_comes_back_with_another_term_is_served_anew() {
    let mut host = host_with_a_place(1);
    for (at, term) in [(10, 1), (20, 2), (30, 2)] {
        host.asks(secs(at)).unwrap();
        host.holder.on_answer(secs(at), vec![LeaseVerdict::Granted(lease(1, term))], Vec::new());
    }
    assert_eq!(host.asks(secs(30)), None);
    assert_eq!(host.said, [HolderAction::Host(lease(1, 1)), HolderAction::Host(lease(1, 2))]);
    assert_eq!(host.holder.lease(secs(56), &place(&[1])), Some(&lease(1, 2)));
    assert_eq!(host.holder.lease(secs(57), &place(&[1])), None, "it is over");
}

#[test]
fn a_renewal_that_comes_too_late_is_given_back_and_the_place_claimed_under_another_term() {
    let renewed = |interrupt: fn(&mut LeaseHolder)| {
        let mut host = host_with_a_place(1);
        host.asks(secs(20)).unwrap();
        interrupt(&mut host.holder);
        host.holder.on_answer(secs(28), vec![LeaseVerdict::Granted(lease(1, 1))], Vec::new());
        assert!(!host.holder.holds(secs(28), &place(&[1])), "what it had may have been stored as of before");
        host.asks(secs(34)).unwrap().0
    };
    let release = LeaseAsk::Release { place: place(&[1]), copy: 0, term: 1, to: None };
    let lapsed = renewed(|holder| holder.on_timeout(secs(27)));
    assert_eq!(lapsed, [release.clone(), LeaseAsk::Claim(place(&[1]))]);
    let given_up = renewed(|holder| holder.on_given_up(secs(21), &place(&[1])));
    assert_eq!(given_up, [release]);
}

#[test]
fn a_lease_that_is_over_is_not_renewed_and_one_that_is_new_not_yet() {
    let mut host = host_with_a_place(2);
    assert_eq!(host.asks(secs(5)), Some((Vec::new(), 1)), "for what it has room for");
    host.holder.on_answer(secs(5), Vec::new(), Vec::new());
    let mut host = host_with_a_place(1);
    host.said.extend(host.holder.poll_action(secs(0)));
    assert_eq!(host.holder.poll_action(HELD_TIME), None, "before its driver says that time has passed");
    assert_eq!(host.asks(HELD_TIME), Some((vec![LeaseAsk::Claim(place(&[1]))], 0)));
}

#[test]
fn an_answer_from_before_a_suspension_counts_for_nothing() {
    let mut host = Host::new(1, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_suspended(secs(2));
    host.holder.on_answer(secs(3), Vec::new(), vec![lease(1, 1)]);
    assert!(!host.holder.holds(secs(3), &place(&[1])));
    assert_eq!(host.asks(secs(5)), Some((Vec::new(), 1)));
}

#[test]
fn a_question_has_no_more_places_than_a_message() {
    let mut host = Host::new(150, &[]);
    for (at, first) in [(0, 0), (5, 64)] {
        assert_eq!(host.asks(secs(at)), Some((Vec::new(), 64)));
        host.holder.on_answer(secs(at), Vec::new(), (first..first + 64).map(|at| lease(at, 1)).collect());
    }
    // All are due, and there is room for more.
    (0..40).for_each(|index| host.holder.on_given_up(secs(15), &place(&[index])));
    let (asks, n_vacant) = host.asks(secs(16)).unwrap();
    let n_releases = asks.iter().filter(|ask| matches!(ask, LeaseAsk::Release { .. })).count();
    assert_eq!((n_releases, asks.len(), n_vacant), (40, PLACES_MAX, 0));
    // What it holds comes before what it looks for.
    let mut host = Host::new(150, &[]);
    host.asks(secs(0)).unwrap();
    host.holder.on_answer(secs(0), Vec::new(), (0..64).map(|at| lease(at, 1)).collect());
    let asked = host.asks(secs(10)).map(|(asks, n_vacant)| (asks.len(), n_vacant));
    assert_eq!(asked, Some((PLACES_MAX, 0)));
    // A host that has no room asks for nothing.
    let mut full = Host::new(0, &[3]);
    assert_eq!((full.asks(secs(9)), full.holder.next_deadline(secs(9))), (None, None));
}

#[test]
fn an_answer_that_comes_when_its_lease_is_over_is_given_back() {
    for (at_ms, is_held) in [(26_999, true), (27_000, false)] {
        let (mut host, now) = (Host::new(1, &[]), Moment::from_millis(at_ms));
        host.asks(secs(0)).unwrap();
        host.holder.on_answer(now, Vec::new(), vec![lease(1, 1)]);
        assert_eq!((host.holder.places().count() == 1, host.holder.is_settled()), (is_held, is_held));
    }
}
