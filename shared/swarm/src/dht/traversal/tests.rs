#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dht::{FindResult, RecordName};

use super::*;

const LIFETIME: Duration = Duration::from_secs(3600);
const WALL: UnixMillis = UnixMillis(1_000_000);
const LIMITS: TraversalLimits = TraversalLimits {
    n_closest: 2,
    beam: 4,
    requests: 8,
    requests_per_key: 3,
    keys_per_request: 16,
    timeout: Duration::from_secs(3),
    patience: Duration::from_millis(500),
    requests_per_key_max: 100,
};

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn key(label: u8) -> RecordKey {
    RecordName::value(&[label]).key()
}

fn record(label: u8, expires_in: Duration) -> Record {
    Record::new(RecordName::value(&[label]), None, vec![label], WALL.after(expires_in))
}

fn contact(number: usize) -> PeerAddresses {
    PeerAddresses { peer_id: number.to_le_bytes().to_vec(), addresses: vec![vec![4, 1]] }
}

/// The first `n_peers` peers, closest to `key` first.
fn closest_to(key: &RecordKey, n_peers: usize) -> Vec<PeerAddresses> {
    let mut peers: Vec<PeerAddresses> = (0..n_peers).map(contact).collect();
    peers.sort_by_key(|peer| Point::of_peer(&peer.peer_id).distance(&Point::of_key(key)));
    peers
}

fn lookup(limits: TraversalLimits, goal: Goal, labels: &[u8]) -> Traversal {
    Traversal::new(limits, goal, LIFETIME, PeerKey(vec![0xff]), labels.iter().map(|&label| key(label)))
}

/// The lookup of one key that knows `peers`.
fn lookup_among(limits: TraversalLimits, peers: &[PeerAddresses]) -> Traversal {
    let mut traversal = lookup(limits, Goal::Closest, &[1]);
    traversal.on_local(WALL, &key(1), peers, Vec::new());
    traversal
}

/// One answer for each key: its records and the peers that are closest.
fn found(answers: &[(&[Record], &[PeerAddresses])]) -> FindResponse {
    let mut found = FindResponse::default();
    for (records, closest) in answers {
        let first = found.peers.len();
        found.peers.extend_from_slice(closest);
        let closest = (first..found.peers.len()).map(|at| at as u8).collect();
        found.answers.push(FindResult { records: records.to_vec(), closest });
    }
    found
}

fn nothing() -> FindResponse {
    found(&[(&[], &[])])
}

/// The peers that are asked at `now`, each with its keys.
fn asked(traversal: &mut Traversal, now: Moment) -> Vec<(PeerAddresses, Vec<RecordKey>)> {
    let asks = std::iter::from_fn(|| traversal.poll_action(now));
    asks.map(|TraversalAction::Ask { peer, keys }| (peer, keys)).collect()
}

fn peers_asked(traversal: &mut Traversal, now: Moment) -> Vec<PeerAddresses> {
    asked(traversal, now).into_iter().map(|(peer, _)| peer).collect()
}

#[test]
fn the_closest_peers_are_asked_first_until_enough_of_them_have_answered() {
    let peers = closest_to(&key(1), 6);
    let mut shuffled = peers.clone();
    shuffled.rotate_left(3);
    let mut traversal = lookup_among(LIMITS, &shuffled);
    assert_eq!(peers_asked(&mut traversal, at(0)), peers[..3], "three at a time");
    traversal.on_found(WALL, &peers[1].peer_id, nothing());
    assert_eq!(peers_asked(&mut traversal, at(10)), peers[3..4]);
    assert!(!traversal.is_done(), "the closest has not answered");
    traversal.on_found(WALL, &peers[0].peer_id, nothing());
    assert!(traversal.is_done());
    assert_eq!(peers_asked(&mut traversal, at(20)), []);
    // An answer that nobody waits for any more, and one that nobody asked for.
    traversal.on_found(WALL, &peers[0].peer_id, found(&[(&[record(1, LIFETIME)], &[])]));
    traversal.on_found(WALL, &peers[5].peer_id, found(&[(&[record(1, LIFETIME)], &[])]));
    let [outcome] = &traversal.into_outcomes()[..] else { panic!("one key") };
    assert_eq!((outcome.key, outcome.n_requests), (key(1), 4));
    assert_eq!((&outcome.closest[..], &outcome.lacked[..]), (&peers[..2], &peers[..2]));
    assert_eq!(outcome.records, []);
}

#[test]
fn a_peer_beyond_the_beam_is_asked_once_a_closer_one_is_dead() {
    let peers = closest_to(&key(1), 6);
    let mut traversal =
        lookup_among(TraversalLimits { beam: 3, n_closest: 3, requests_per_key: 8, ..LIMITS }, &peers);
    assert_eq!(peers_asked(&mut traversal, at(0)), peers[..3]);
    traversal.on_found(WALL, &peers[0].peer_id, nothing());
    assert_eq!(peers_asked(&mut traversal, at(0)), [], "those in the beam are asked already");
    traversal.on_failure(&peers[1].peer_id);
    assert_eq!(peers_asked(&mut traversal, at(0)), peers[3..4]);
    traversal.on_found(WALL, &peers[2].peer_id, nothing());
    assert!(!traversal.is_done());
    traversal.on_found(WALL, &peers[3].peer_id, nothing());
    assert!(traversal.is_done());
    let outcome = &traversal.into_outcomes()[0];
    assert_eq!(outcome.closest, [peers[0].clone(), peers[2].clone(), peers[3].clone()]);
}

#[test]
fn a_peer_that_is_slow_delays_a_lookup_for_its_patience_only() {
    let peers = closest_to(&key(1), 4);
    let limits = TraversalLimits { requests_per_key: 1, n_closest: 1, ..LIMITS };
    let mut traversal = lookup_among(limits, &peers);
    assert_eq!(traversal.next_deadline(at(1000)), None);
    assert_eq!(peers_asked(&mut traversal, at(1000)), peers[..1]);
    assert_eq!(traversal.next_deadline(at(1000)), Some(at(1500)));
    assert_eq!(peers_asked(&mut traversal, at(1499)), []);
    assert_eq!(peers_asked(&mut traversal, at(1500)), peers[1..2]);
    assert_eq!(traversal.next_deadline(at(1500)), Some(at(2000)));
    assert_eq!(traversal.next_deadline(at(2000)), Some(at(4000)), "the patience is over, its time is not");
    traversal.on_timeout(at(3999));
    assert_eq!(traversal.next_deadline(at(3999)), Some(at(4000)));
    traversal.on_timeout(at(4000));
    assert_eq!(traversal.next_deadline(at(4000)), Some(at(4500)), "the first one is given up");
    traversal.on_found(WALL, &peers[0].peer_id, nothing());
    assert!(!traversal.is_done(), "its answer comes too late");
    traversal.on_found(WALL, &peers[1].peer_id, nothing());
    assert!(traversal.is_done());
    assert_eq!(traversal.into_outcomes()[0].closest, peers[1..2]);
}

#[test]
fn no_more_requests_are_under_way_than_the_limit() {
    let peers = closest_to(&key(1), 4);
    let mut traversal = lookup_among(TraversalLimits { requests: 2, requests_per_key: 8, ..LIMITS }, &peers);
    assert_eq!(peers_asked(&mut traversal, at(0)), peers[..2]);
    traversal.on_failure(&peers[0].peer_id);
    assert_eq!(peers_asked(&mut traversal, at(0)), peers[2..3]);
}

/// A lookup of many keys goes on for all of them.
#[test]
fn the_key_for_which_the_fewest_are_asked_comes_next() {
    let all = closest_to(&key(1), 8);
    let limits = TraversalLimits { requests: 5, requests_per_key: 2, ..LIMITS };
    let mut traversal = lookup(limits, Goal::Closest, &[1, 2]);
    traversal.on_local(WALL, &key(1), &all[..4], Vec::new());
    traversal.on_local(WALL, &key(2), &all[4..], Vec::new());
    traversal.on_local(WALL, &key(3), &all, Vec::new());
    let asked = asked(&mut traversal, at(0));
    assert_eq!(asked.len(), 4, "two for each key");
    let mut first: Vec<RecordKey> = asked[..2].iter().flat_map(|(_, keys)| keys.clone()).collect();
    first.sort_unstable();
    let mut both = vec![key(1), key(2)];
    both.sort_unstable();
    assert_eq!(first, both);
    for (peer, keys) in asked {
        assert_eq!(all[..4].contains(&peer), keys == [key(1)]);
    }
}

#[test]
fn a_peer_is_asked_once_for_all_keys_that_it_is_close_to() {
    let one = contact(0);
    // Key 3 has closer peers, enough to fill the beam; key 4 does not know the peer; key 5 has its record.
    let closer: Vec<PeerAddresses> =
        closest_to(&key(3), 40).into_iter().take_while(|peer| *peer != one).collect();
    let closer = &closer[..LIMITS.beam.min(closer.len())];
    assert_eq!(closer.len(), LIMITS.beam);
    let mut traversal = lookup(LIMITS, Goal::First, &[1, 1, 2, 3, 4, 5]);
    for label in [1, 2] {
        traversal.on_local(WALL, &key(label), std::slice::from_ref(&one), Vec::new());
    }
    traversal.on_local(WALL, &key(3), &[closer, std::slice::from_ref(&one)].concat(), Vec::new());
    traversal.on_local(WALL, &key(4), &[contact(100)], Vec::new());
    traversal.on_local(WALL, &key(5), std::slice::from_ref(&one), vec![record(5, LIFETIME)]);
    let asked = asked(&mut traversal, at(0));
    let mut of_one: Vec<_> = asked.iter().filter(|(peer, _)| *peer == one).collect();
    let (_, mut keys) = of_one.pop().unwrap().clone();
    assert_eq!(of_one, Vec::<&(PeerAddresses, Vec<RecordKey>)>::new(), "once");
    keys.sort_unstable();
    let mut wanted = vec![key(1), key(2)];
    wanted.sort_unstable();
    assert_eq!(keys, wanted);
}

#[test]
fn a_peer_that_has_answered_for_a_key_is_not_asked_for_it_again() {
    let limits = TraversalLimits { n_closest: 8, beam: 8, ..LIMITS };
    let mut traversal = lookup(limits, Goal::Closest, &[1, 2]);
    let [one, two, three] = [0, 1, 2].map(contact);
    traversal.on_local(WALL, &key(1), &[one.clone(), three.clone()], Vec::new());
    traversal.on_local(WALL, &key(2), std::slice::from_ref(&two), Vec::new());
    assert_eq!(peers_asked(&mut traversal, at(0)).len(), 3);
    traversal.on_found(WALL, &one.peer_id, nothing());
    // The second one names the first one for its own key.
    traversal.on_found(WALL, &two.peer_id, found(&[(&[], &[one.clone(), contact(7)])]));
    let again = asked(&mut traversal, at(0));
    let of_one: Vec<_> = again.iter().filter(|(peer, _)| *peer == one).collect();
    assert_eq!(of_one, [&(one, vec![key(2)])]);
}

#[test]
fn keys_that_do_not_fit_into_a_request_or_an_answer_are_asked_for_afterwards() {
    let one = contact(0);
    let labels = [1, 2, 3];
    let mut traversal = lookup(TraversalLimits { keys_per_request: 2, ..LIMITS }, Goal::Closest, &labels);
    for label in labels {
        traversal.on_local(WALL, &key(label), std::slice::from_ref(&one), Vec::new());
    }
    let mut answered = Vec::new();
    for n_keys in [2, 2, 1] {
        let [(peer, keys)] = &asked(&mut traversal, at(0))[..] else { panic!("one request at a time") };
        assert_eq!((peer, keys.len()), (&one, n_keys));
        answered.push(keys[0]);
        assert!(!traversal.is_done());
        // Only the first key fits into the answer.
        traversal.on_found(WALL, &one.peer_id, nothing());
    }
    assert!(traversal.is_done());
    assert_eq!(asked(&mut traversal, at(0)), []);
    answered.sort_unstable();
    let mut all = labels.map(key).to_vec();
    all.sort_unstable();
    assert_eq!(answered, all);
}

#[test]
fn the_first_valid_record_ends_a_lookup_that_wants_no_more() {
    let peers = closest_to(&key(1), 4);
    let (valid, expired) = (record(1, LIFETIME), record(1, Duration::ZERO));
    let too_far = record(1, LIFETIME + Duration::from_millis(1));
    for goal in [Goal::First, Goal::Closest] {
        let mut traversal = lookup(LIMITS, goal, &[1]);
        traversal.on_local(WALL, &key(1), &peers, Vec::new());
        peers_asked(&mut traversal, at(0));
        for (peer, invalid) in [(2, &expired), (1, &too_far)] {
            let answer = found(&[(std::slice::from_ref(invalid), &[])]);
            traversal.on_found(WALL, &peers[peer].peer_id, answer);
            assert!(!traversal.is_done());
        }
        peers_asked(&mut traversal, at(0));
        traversal.on_found(WALL, &peers[3].peer_id, found(&[(std::slice::from_ref(&valid), &[])]));
        assert_eq!(traversal.is_done(), goal == Goal::First);
        // An answer without a record changes nothing.
        traversal.on_found(WALL, &peers[0].peer_id, nothing());
        assert!(traversal.is_done());
        let outcome = &traversal.into_outcomes()[0];
        assert_eq!(outcome.records, std::slice::from_ref(&valid));
        assert_eq!(outcome.closest, peers);
        assert_eq!(outcome.lacked, peers[..3], "an invalid record is none");
    }
}

#[test]
fn an_own_record_ends_a_lookup_of_any_record_only() {
    let peers = closest_to(&key(1), 2);
    for (goal, expires_in) in
        [(Goal::First, LIFETIME), (Goal::First, Duration::ZERO), (Goal::Closest, LIFETIME)]
    {
        let mut traversal = lookup(LIMITS, goal, &[1]);
        traversal.on_local(WALL, &key(1), &peers, vec![record(1, expires_in)]);
        let is_enough = goal == Goal::First && !expires_in.is_zero();
        assert_eq!(traversal.is_done(), is_enough, "{goal:?}, {expires_in:?}");
        assert_eq!(peers_asked(&mut traversal, at(0)).is_empty(), is_enough);
        // What comes from elsewhere later does not begin it again.
        traversal.on_local(WALL, &key(1), &[contact(9)], Vec::new());
        assert_eq!(traversal.is_done(), is_enough);
        assert_eq!(traversal.into_outcomes()[0].records.len(), usize::from(!expires_in.is_zero()));
    }
}

#[test]
fn a_lookup_without_peers_ends_with_what_is_here() {
    let mut traversal = lookup(LIMITS, Goal::Closest, &[1]);
    traversal.on_local(WALL, &key(1), &[], vec![record(1, LIFETIME)]);
    assert_eq!(peers_asked(&mut traversal, at(0)), []);
    assert!(traversal.is_done());
    let outcome = &traversal.into_outcomes()[0];
    assert_eq!((outcome.records.len(), outcome.closest.len(), outcome.n_requests), (1, 0, 0));
}

#[test]
fn a_lookup_never_asks_the_peer_that_makes_it() {
    let here = PeerAddresses { peer_id: vec![0xff], addresses: Vec::new() };
    let one = contact(0);
    let mut traversal = lookup_among(LIMITS, &[here.clone(), one.clone()]);
    assert_eq!(peers_asked(&mut traversal, at(0)), std::slice::from_ref(&one));
    traversal.on_found(WALL, &one.peer_id, found(&[(&[], &[here, one.clone(), contact(1)])]));
    assert_eq!(peers_asked(&mut traversal, at(0)), [contact(1)]);
    // An address that is learned later is asked at.
    let unknown = PeerAddresses { addresses: Vec::new(), ..contact(2) };
    let mut traversal = lookup_among(LIMITS, &[unknown, contact(2)]);
    assert_eq!(peers_asked(&mut traversal, at(0)), [contact(2)]);
}

/// The contacts of a peer replace those that it was known with, and the lookup finds closer peers step by step.
#[test]
fn a_lookup_goes_on_to_closer_peers_that_it_learns_of() {
    let peers = closest_to(&key(1), 40);
    let limits = TraversalLimits { requests_per_key: 1, ..LIMITS };
    let mut traversal = lookup_among(limits, &peers[39..]);
    for at_distance in (0..40).rev() {
        assert_eq!(peers_asked(&mut traversal, at(0)), peers[at_distance..=at_distance]);
        assert!(!traversal.is_done());
        let closer = at_distance.checked_sub(1).map(|closer| peers[closer].clone());
        let answer = found(&[(&[], &closer.into_iter().collect::<Vec<_>>())]);
        traversal.on_found(WALL, &peers[at_distance].peer_id, answer);
    }
    assert!(traversal.is_done());
    let outcome = &traversal.into_outcomes()[0];
    assert_eq!((&outcome.closest[..], outcome.n_requests), (&peers[..], 40));
}

#[test]
fn a_peer_is_suspect_once_most_of_its_contacts_do_not_answer() {
    let is_suspect = |n_named_answered: usize, n_named_failed: usize| {
        let (contact, point) = (contact(0), Point::of_peer(&[]));
        let (asked, is_dead) = (None, false);
        LookupPeer { contact, point, asked, is_dead, n_named_answered, n_named_failed }.is_suspect()
    };
    for (n_answered, n_failed) in [(0, 5), (1, 7), (3, 11)] {
        assert!(is_suspect(n_answered, n_failed));
        assert!(!is_suspect(n_answered, n_failed - 1));
    }
}

/// The attacker names peers that do not exist, closer to the key than all others.
#[test]
fn invented_contacts_are_ignored_after_a_few() {
    let peers = closest_to(&key(1), 200);
    let (invented, honest) = (&peers[..20], &peers[100..104]);
    let attacker = &peers[150];
    let limits = TraversalLimits { requests_per_key: 1, ..LIMITS };
    let mut traversal = lookup_among(limits, &[honest, std::slice::from_ref(attacker)].concat());
    for expected in [&honest[0], &honest[1]] {
        assert_eq!(peers_asked(&mut traversal, at(0)), std::slice::from_ref(expected));
        let named = if expected == &honest[0] { std::slice::from_ref(attacker) } else { &[] };
        if expected == &honest[0] {
            traversal.on_found(WALL, &expected.peer_id, found(&[(&[], named)]));
        } else {
            // In place of the attacker: it is as close as it likes to be.
            traversal.on_found(WALL, &expected.peer_id, found(&[(&[], invented)]));
        }
    }
    let mut n_invented = 0;
    for _ in 0..20 {
        let Some(TraversalAction::Ask { peer, .. }) = traversal.poll_action(at(0)) else { break };
        assert!(invented.contains(&peer), "no other is closer");
        n_invented += 1;
        traversal.on_failure(&peer.peer_id);
    }
    assert_eq!(n_invented, 5);
    assert!(traversal.is_done(), "the honest ones have answered");
}

/// One of the invented contacts is named by an honest peer too: it exists.
#[test]
fn a_contact_that_an_honest_peer_names_as_well_is_asked() {
    let peers = closest_to(&key(1), 200);
    let (invented, real, honest, attacker) = (&peers[1..11], &peers[30], &peers[100], &peers[101]);
    let limits = TraversalLimits { requests_per_key: 1, n_closest: 3, ..LIMITS };
    let mut traversal = lookup_among(limits, &[honest.clone(), attacker.clone()]);
    assert_eq!(peers_asked(&mut traversal, at(0)), std::slice::from_ref(honest));
    traversal.on_found(WALL, &honest.peer_id, nothing());
    assert_eq!(peers_asked(&mut traversal, at(0)), std::slice::from_ref(attacker));
    let named = [invented, std::slice::from_ref(real)].concat();
    traversal.on_found(WALL, &attacker.peer_id, found(&[(&[], &named)]));
    for _ in 0..4 {
        let [peer] = &peers_asked(&mut traversal, at(0))[..] else { panic!("one after the other") };
        traversal.on_failure(&peer.peer_id);
    }
    // A contact of the honest peer that answers names it.
    traversal.on_local(WALL, &key(1), &peers[..1], Vec::new());
    assert_eq!(peers_asked(&mut traversal, at(0)), peers[..1]);
    traversal.on_found(WALL, &peers[0].peer_id, found(&[(&[], std::slice::from_ref(real))]));
    let [fifth] = &peers_asked(&mut traversal, at(0))[..] else { panic!("the fifth") };
    traversal.on_failure(&fifth.peer_id);
    assert_eq!(peers_asked(&mut traversal, at(0)), std::slice::from_ref(real), "the others are ignored");
}

/// Contacts that answer are to a peer's credit: two more of them may be dead for each.
#[test]
fn a_peer_whose_contacts_answer_may_have_dead_ones_as_well() {
    let peers = closest_to(&key(1), 60);
    let (named, honest) = (&peers[..20], &peers[50]);
    let limits = TraversalLimits { requests_per_key: 1, n_closest: 8, beam: 20, ..LIMITS };
    let mut traversal = lookup_among(limits, std::slice::from_ref(honest));
    assert_eq!(peers_asked(&mut traversal, at(0)), std::slice::from_ref(honest));
    traversal.on_found(WALL, &honest.peer_id, found(&[(&[], named)]));
    for peer in &named[..8] {
        assert_eq!(peers_asked(&mut traversal, at(0)), std::slice::from_ref(peer));
        match *peer == named[1] {
            true => traversal.on_found(WALL, &peer.peer_id, nothing()),
            false => traversal.on_failure(&peer.peer_id),
        }
    }
    assert!(traversal.is_done(), "seven were dead: the rest is ignored");
    assert_eq!(traversal.into_outcomes()[0].closest, [named[1].clone(), honest.clone()]);
}

/// However many keys a contact was named for, by how many peers.
#[test]
fn a_dead_contact_counts_once_against_each_peer_that_named_it() {
    let mut traversal = lookup(LIMITS, Goal::Closest, &[1, 2]);
    let [one, two, dead] = [0, 1, 2].map(contact);
    traversal.on_local(WALL, &key(1), &[one.clone(), two.clone()], Vec::new());
    traversal.on_local(WALL, &key(2), &[one.clone(), two.clone()], Vec::new());
    assert_eq!(asked(&mut traversal, at(0)).len(), 2);
    let named = std::slice::from_ref(&dead);
    traversal.on_found(WALL, &one.peer_id, found(&[(&[], named), (&[], named)]));
    traversal.on_found(WALL, &two.peer_id, found(&[(&[], named), (&[], named)]));
    traversal.poll_action(at(0));
    traversal.on_failure(&dead.peer_id);
    for namer in [&one, &two] {
        assert_eq!(traversal.peers[traversal.positions[&namer.peer_id]].n_named_failed, 1);
    }
}

#[test]
fn a_peer_that_is_dead_for_one_key_is_asked_for_no_other() {
    let one = contact(0);
    let mut traversal = lookup(LIMITS, Goal::Closest, &[1, 2, 3]);
    traversal.on_local(WALL, &key(1), std::slice::from_ref(&one), Vec::new());
    traversal.on_local(WALL, &key(2), &[contact(1)], Vec::new());
    assert_eq!(peers_asked(&mut traversal, at(0)).len(), 2);
    traversal.on_local(WALL, &key(3), std::slice::from_ref(&one), Vec::new());
    traversal.on_failure(&one.peer_id);
    traversal.on_found(WALL, &contact(1).peer_id, found(&[(&[], std::slice::from_ref(&one))]));
    assert_eq!(asked(&mut traversal, at(0)), []);
    assert!(traversal.is_done());
    assert!(traversal.into_outcomes().iter().all(|outcome| !outcome.closest.contains(&one)));
}

#[test]
fn a_lookup_ends_after_the_most_requests_for_its_key() {
    let peers = closest_to(&key(1), 6);
    let limits = TraversalLimits { requests_per_key: 1, n_closest: 3, requests_per_key_max: 2, ..LIMITS };
    let mut traversal = lookup_among(limits, &peers);
    assert_eq!(peers_asked(&mut traversal, at(0)), peers[..1]);
    assert_eq!(peers_asked(&mut traversal, at(500)), peers[1..2]);
    assert_eq!(peers_asked(&mut traversal, at(1000)), [], "two were asked");
    traversal.on_found(WALL, &peers[1].peer_id, nothing());
    assert!(!traversal.is_done(), "one of them may still answer");
    traversal.on_failure(&peers[0].peer_id);
    assert!(traversal.is_done());
    assert_eq!(traversal.into_outcomes()[0].closest, peers[1..2]);
}

/// Each of the attacker's peers names a closer one, and among the closest is always one that may still answer.
#[test]
fn an_attacker_with_ever_closer_peers_does_not_keep_a_lookup_going() {
    let peers = closest_to(&key(1), 100);
    let limits = TraversalLimits { requests_per_key_max: 20, ..LIMITS };
    let mut traversal = lookup_among(limits, &peers[97..]);
    let mut closer = peers[..97].iter().rev();
    let mut waiting = std::collections::VecDeque::new();
    loop {
        waiting.extend(peers_asked(&mut traversal, at(0)));
        let Some(peer) = waiting.pop_front() else { break };
        let named: Vec<PeerAddresses> = closer.by_ref().take(1).cloned().collect();
        traversal.on_found(WALL, &peer.peer_id, found(&[(&[], &named)]));
    }
    assert!(traversal.is_done());
    assert_eq!(traversal.into_outcomes()[0].n_requests, 20);
}

/// The peer is asked for another key, and not for the one that has had all its requests.
#[test]
fn a_key_that_has_had_its_requests_travels_with_no_other() {
    let peers = closest_to(&key(1), 3);
    let limits = TraversalLimits { requests_per_key_max: 2, ..LIMITS };
    let mut traversal = lookup(limits, Goal::Closest, &[1, 2]);
    traversal.on_local(WALL, &key(1), &peers, Vec::new());
    traversal.on_local(WALL, &key(2), &[contact(9)], Vec::new());
    let mut first = peers_asked(&mut traversal, at(0));
    first.sort_by_key(|peer| peer.peer_id.clone());
    let mut wanted = vec![peers[0].clone(), peers[1].clone(), contact(9)];
    wanted.sort_by_key(|peer| peer.peer_id.clone());
    assert_eq!(first, wanted);
    traversal.on_local(WALL, &key(2), &peers[2..], Vec::new());
    assert_eq!(asked(&mut traversal, at(0)), [(peers[2].clone(), vec![key(2)])]);
}

#[test]
fn a_candidate_remembers_the_first_few_that_named_it() {
    let mut search = Search::new(key(1));
    let [named, known] = [1, 2].map(|name: u8| Point::of_peer(&[name]));
    search.add(7, &known, None, false);
    for by in [0, 1, 1, 2, 0, 3, 4, 5] {
        search.add(8, &named, Some(by), false);
        search.add(7, &known, Some(by), false);
    }
    assert_eq!(search.candidate(8).unwrap().named_by, [0, 1, 2, 3]);
    assert!(search.candidate(7).unwrap().named_by.is_empty(), "it needs no other peer to name it");
    assert!(search.candidate(9).is_none());
    search.add(9, &Point::of_peer(&[3]), Some(1), true);
    assert_eq!(search.candidate(9).unwrap().state, CandidateState::Failed);
    search.set_state(8, CandidateState::Asked);
    search.set_state(10, CandidateState::Asked);
    assert_eq!(search.candidate(8).unwrap().state, CandidateState::Asked);
    search.fail(8);
    assert_eq!(search.candidate(8).unwrap().state, CandidateState::Failed);
}
