#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

const TIMEOUT: Duration = Duration::from_secs(2);

fn peer(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

fn peers(numbers: impl IntoIterator<Item = u8>) -> Vec<PublicKey> {
    numbers.into_iter().map(peer).collect()
}

/// Asks for three of six candidates; this peer is none of them.
fn three_of_six() -> Sampling {
    Sampling::new(Moment::ZERO, peer(99), 7, (3, 2), peers(1..=6), TIMEOUT)
}

fn pings(sampling: &mut Sampling) -> Vec<PublicKey> {
    std::iter::from_fn(|| sampling.poll_ping()).collect()
}

#[test]
fn the_first_are_asked_at_once_and_are_the_sample_if_they_answer() {
    let mut sampling = three_of_six();
    assert_eq!(pings(&mut sampling), peers(1..=3));
    // Their order is that of the round, and not that of the answers.
    for number in [3, 1, 2] {
        assert_eq!(sampling.sample(), None);
        sampling.on_pong(Moment::ZERO, peer(number));
    }
    assert_eq!(sampling.sample(), Some(peers(1..=3)));
    assert_eq!((pings(&mut sampling), sampling.next_deadline()), (Vec::new(), None));
}

#[test]
fn the_others_are_asked_one_by_one_in_place_of_silent_ones() {
    let mut sampling = three_of_six();
    pings(&mut sampling);
    sampling.on_pong(Moment::ZERO, peer(2));
    assert_eq!(sampling.next_deadline(), Some(TIMEOUT));
    sampling.on_timeout(TIMEOUT);
    assert_eq!(pings(&mut sampling), peers([4]));
    // A peer that cannot be reached costs no time.
    sampling.on_unreachable(TIMEOUT, peer(4));
    assert_eq!(pings(&mut sampling), peers([5]));
    sampling.on_pong(TIMEOUT, peer(5));
    assert_eq!(pings(&mut sampling), peers([6]));
    sampling.on_timeout(3 * TIMEOUT);
    assert_eq!(sampling.sample(), Some(peers([2, 5])), "all were asked, and two are enough");
}

#[test]
fn a_late_answer_counts_and_that_of_a_peer_that_was_not_asked_does_not() {
    let mut sampling = three_of_six();
    sampling.on_pong(Moment::ZERO, peer(1));
    sampling.on_pong(Moment::ZERO, peer(2));
    sampling.on_timeout(TIMEOUT);
    sampling.on_pong(TIMEOUT, peer(6));
    assert_eq!(sampling.sample(), None);
    sampling.on_pong(TIMEOUT, peer(3));
    sampling.on_pong(TIMEOUT, peer(4));
    assert_eq!(sampling.sample(), Some(peers(1..=3)));
}

#[test]
fn too_few_are_looked_for_again_and_not_before_their_time() {
    let mut sampling = three_of_six();
    for number in 1..=6 {
        assert_eq!(sampling.retry_at(), None, "before peer {number}");
        sampling.on_unreachable(Moment::ZERO, peer(number));
    }
    assert_eq!((sampling.sample(), sampling.retry_at()), (None, Some(TIMEOUT)));
}

#[test]
fn this_peer_itself_is_not_asked() {
    let mut sampling = Sampling::new(Moment::ZERO, peer(2), 7, (2, 2), peers(1..=3), TIMEOUT);
    assert_eq!(pings(&mut sampling), peers([1]));
    sampling.on_pong(Moment::ZERO, peer(1));
    assert_eq!(sampling.sample(), Some(peers([1, 2])));
}

/// Asks for two of five candidates, of which the first two are preferred and one is enough.
fn first_two_of_five() -> Sampling {
    Sampling::in_turn(Moment::ZERO, peer(99), 7, (2, 1), (peers(1..=5), 2), TIMEOUT)
}

#[test]
fn where_one_of_the_first_answers_no_other_is_asked() {
    let mut sampling = first_two_of_five();
    assert_eq!(pings(&mut sampling), peers(1..=2));
    sampling.on_pong(Moment::ZERO, peer(2));
    sampling.on_timeout(TIMEOUT);
    assert_eq!((pings(&mut sampling), sampling.sample()), (Vec::new(), Some(peers([2]))));
}

#[test]
fn where_none_of_the_first_answers_the_others_are_asked_as_if_they_were_all() {
    let mut sampling = first_two_of_five();
    pings(&mut sampling);
    sampling.on_unreachable(Moment::ZERO, peer(2));
    assert_eq!(pings(&mut sampling), [], "the first one may answer");
    sampling.on_timeout(TIMEOUT);
    assert_eq!(pings(&mut sampling), peers([3, 4]));
    sampling.on_unreachable(TIMEOUT, peer(3));
    sampling.on_pong(TIMEOUT, peer(4));
    assert_eq!((pings(&mut sampling), sampling.sample()), (peers([5]), None));
    sampling.on_pong(TIMEOUT, peer(5));
    assert_eq!(sampling.sample(), Some(peers([4, 5])));
    // One of the first was only slow.
    sampling.on_pong(TIMEOUT, peer(1));
    assert_eq!(sampling.sample(), Some(peers([1])));
}

#[test]
fn where_nobody_is_preferred_the_others_are_asked_at_once() {
    let mut sampling = Sampling::in_turn(Moment::ZERO, peer(3), 7, (2, 1), (peers(1..=3), 0), TIMEOUT);
    assert_eq!(pings(&mut sampling), peers([1, 2]));
    (1..=2).for_each(|number| sampling.on_unreachable(Moment::ZERO, peer(number)));
    assert_eq!(sampling.sample(), Some(peers([3])), "this peer itself");
}
