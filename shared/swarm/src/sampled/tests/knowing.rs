//! What a member knows and tells: who answers, how far the run is, and itself.

use barnraise_protocol::sampled::MEMBER_ADDRESS_BYTES_MAX;

use super::*;

#[test]
fn a_peer_shows_the_access_that_it_got_last() {
    assert_eq!(member(1, SETTINGS).approval(), None, "the run is open");
    let mut peer = let_in(1, 200, UnixTime(1100));
    for expires_at in [1100, 1200].map(UnixTime) {
        peer.on_approval(S, approval(1, 200, expires_at));
        assert_eq!(peer.approval(), Some(&approval(1, 200, expires_at)));
    }
}

#[test]
fn the_last_round_that_is_listened_to_shows_that_others_know_a_peer() {
    let [mut peer, other] = acquainted(SETTINGS);
    for (round, silent_at) in [(11, 8 * S), (10, 9 * S)] {
        peer.on_ping(S, other.peer(), round);
        assert_eq!(peer.next_deadline(), Some(silent_at), "asked for round {round}");
    }
}

/// Or it would be sent all members again with each model.
#[test]
fn a_sender_hears_who_is_known_already() {
    let [mut peer, one, two] = acquainted(SETTINGS);
    let digest = peer.on_offer(Moment::ZERO, one.peer(), SampledTask::Train { round: 1 }).unwrap();
    assert_ne!(digest, ViewDigest::of_everything());
    for known in [one, two] {
        assert!(digest.has_membership(PeerPrefix::of(&known.peer()), known.counter()));
    }
}

#[test]
fn a_sender_that_fails_is_waited_for_no_longer_and_others_are() {
    let [mut peer, others @ ..] = acquainted::<4>(SETTINGS);
    let task = SampledTask::Aggregate { round: 1 };
    let mut is_asked_for_all = |at: usize, fails: Option<usize>| {
        if let Some(fails) = fails {
            peer.on_transfer_failed(Moment::ZERO, others[fails].peer(), task);
        }
        let asked = peer.on_offer(Moment::ZERO, others[at].peer(), task).unwrap();
        asked != ViewDigest::of_everything()
    };
    let asked =
        [(0, None), (1, None), (2, Some(1)), (1, Some(0))].map(|(at, fails)| is_asked_for_all(at, fails));
    assert_eq!(asked, [true, false, false, true]);
}

#[test]
fn a_member_tells_of_each_change() {
    let settings = SampledSettings { activity_window: 40, ..SETTINGS };
    let trainer = SampledRoles { trains: true, aggregates: Aggregates::Never };
    for (roles, address) in
        [(trainer, None), (BOTH, Some(vec![4; 8])), (BOTH, Some(vec![4; MEMBER_ADDRESS_BYTES_MAX]))]
    {
        let [mut peer, _] = acquainted(settings);
        let addresses: Vec<Vec<u8>> = address.into_iter().collect();
        peer.on_own_change(S, roles, addresses.clone());
        peer.on_timeout(RENEW_EVERY);
        let told = peer.registry().membership(&peer.peer()).and_then(Membership::joined).unwrap();
        assert_eq!((told.roles, &told.addresses), (roles, &addresses));
    }
}

/// It was in no sample for as many rounds as others remember.
#[test]
fn who_hears_that_it_is_forgotten_tells_that_it_is_there() {
    for (round, own) in [(3, 0), (4, 4)] {
        let [mut peer, mut others @ ..] = acquainted::<3>(SETTINGS);
        others.iter_mut().for_each(|other| proves(&mut peer, other, round));
        peer.on_time(S);
        assert_eq!(peer.round(), round);
        peer.on_meet(S, others[0].peer(), &View::default(), &ViewDigest::of_everything());
        assert_eq!(peer.registry.activity_of(&peer.peer()), Some(own));
        assert_eq!(!meets(&mut peer).is_empty(), own == round);
    }
}

#[test]
fn who_waits_for_an_answer_asks_nobody_before_its_time() {
    let others: [SampledPeer; 5] = acquainted(SETTINGS);
    let early = Duration::from_nanos(1);
    let mut peer = stranger(9, SETTINGS, BOTH).with_view(&others[0].view());
    peer.join(Moment::ZERO, Vec::new());
    let n_asked = [Moment::ZERO, 2 * S - early, 2 * S].map(|now| {
        peer.on_timeout(now);
        meets(&mut peer).len()
    });
    assert_eq!(n_asked, [2, 0, 2], "others, after the time of two pings");

    let mut peer = stranger(9, SETTINGS, BOTH);
    peer.join(Moment::ZERO, vec![others[0].peer()]);
    peer.on_not_met(Moment::ZERO, others[0].peer());
    let n_asked = [Moment::ZERO, 2 * S - early, 2 * S].map(|now| {
        peer.on_timeout(now);
        meets(&mut peer).len()
    });
    assert_eq!(n_asked, [1, 0, 1], "it once more, after the estimate of a round");
}

/// Keys cost nothing: two that are made up say that the run is anywhere.
fn is_told_lies(peer: &mut SampledPeer) {
    for at in 100..102 {
        let mut liar = stranger(at, SETTINGS, BOTH);
        liar.sign_joined(ROUND_MAX - 1);
        knows(peer, &liar);
    }
}

/// Half of those who answer may tell of later rounds than there are.
#[test]
fn who_joins_believes_those_in_the_middle_of_the_answers() {
    let cases: [(&[u64], u64); 4] =
        [(&[10], 10), (&[10, 20], 10), (&[10, 20, 30], 20), (&[10, 20, 30, 40], 20)];
    for (rounds, believed) in cases {
        let active = |(at, round): (u8, &u64)| {
            let mut other = member(at, SETTINGS);
            other.on_active(Moment::ZERO, *round);
            other
        };
        let others: Vec<SampledPeer> = (10..).zip(rounds).map(active).collect();
        let mut peer = stranger(9, SETTINGS, BOTH);
        peer.join(Moment::ZERO, others.iter().map(SampledPeer::peer).collect());
        is_told_lies(&mut peer);
        for other in &others {
            peer.on_met(Moment::ZERO, other.peer(), &other.view());
        }
        let round_max = believed + SETTINGS.activity_window + SETTINGS.round_leap();
        assert_eq!(peer.round_max(), round_max, "{rounds:?}");
    }
}

/// Its user introduced it to nobody, this time.
#[test]
fn who_comes_back_believes_those_whom_it_knew() {
    let mut other = member(1, SETTINGS);
    let mut peer = stranger(9, SETTINGS, BOTH).with_view(&other.view());
    peer.join(Moment::ZERO, Vec::new());
    is_told_lies(&mut peer);
    other.on_active(Moment::ZERO, 20);
    peer.on_met(Moment::ZERO, other.peer(), &other.view());
    assert_eq!((peer.round(), peer.round_max()), (20, 26));
}

/// The same ones as long as they take part, another peer others.
#[test]
fn who_cannot_be_dialled_calls_on_the_aggregators_next_to_it() {
    let settings = SampledSettings { activity_window: 40, ..SETTINGS };
    let others: [SampledPeer; 20] = acquainted(settings);
    let mut peer = stranger(40, settings, SampledRoles { trains: true, aggregates: Aggregates::Never });
    peer.join(Moment::ZERO, Vec::new());
    knows(&mut peer, &others[0]);
    let own = peer.peer();
    let mut nearest: Vec<PublicKey> = others.iter().map(SampledPeer::peer).collect();
    nearest.sort_unstable_by_key(|other| other.0.iter().zip(own.0).map(|(a, b)| a ^ b).collect::<Vec<u8>>());
    let at = peer.next_deadline().unwrap();
    peer.on_timeout(at);
    assert_eq!(meets(&mut peer).into_iter().map(|(to, _)| to).collect::<Vec<_>>(), nearest[..16]);
}
