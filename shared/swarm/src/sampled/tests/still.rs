//! Runs that are still: who goes on with one, when, and with what.

use super::*;

/// A time of silence is over: the peer asks, and the others answer. Returns until when it listens.
fn listens(peer: &mut SampledPeer, others: &mut [SampledPeer], at: Moment) -> Moment {
    peer.on_timeout(at);
    for action in actions(peer) {
        let SampledAction::Meet { to, view, digest } = action else { continue };
        for other in others.iter_mut().filter(|other| other.peer() == to) {
            let answer = other.on_meet(at, peer.peer(), &view, &digest).unwrap();
            peer.on_met(at, to, &answer);
        }
    }
    at + 2 * S
}

/// A time of silence, after which the others answer what they are asked, and nothing is heard of a later round.
pub(super) fn is_silent(peer: &mut SampledPeer, others: &mut [SampledPeer]) {
    let at = peer.next_deadline().unwrap();
    let until = listens(peer, others, at);
    assert_eq!(peer.next_deadline(), Some(until), "it listens");
    peer.on_timeout(until);
}

/// It aggregates, and the others do not reach it: what it has is old.
#[test]
fn who_is_asked_nothing_in_a_run_that_goes_on_begins_no_round_with_an_old_model() {
    let [mut peer, mut others @ ..] = acquainted::<3>(SETTINGS);
    peer.on_average_seen(1, &model(1.0));
    for silence in 1..=4 {
        others.iter_mut().for_each(|other| other.on_active(Moment::ZERO, 4 * silence));
        is_silent(&mut peer, &mut others);
        assert_eq!((peer.own_round(), peer.round()), (0, 4 * silence));
    }
    // Then the others are silent as well.
    is_silent(&mut peer, &mut others);
    if peer.own_round() == 0 {
        is_silent(&mut peer, &mut others);
    }
    assert!(peer.own_round() > 16, "{}", peer.own_round());
}

/// What it has may be the newest that is left.
#[test]
fn who_has_an_older_average_goes_on_once_the_others_are_silent_as_well() {
    let settings = SampledSettings { activity_window: 40, ..SETTINGS };
    let [mut peer, mut others @ ..] = acquainted::<3>(settings);
    peer.on_average_seen(1, &model(1.0));
    others.iter_mut().for_each(|other| other.on_active(Moment::ZERO, 2));
    let goes_on = [1, 2].map(|_| {
        is_silent(&mut peer, &mut others);
        peer.own_round() > 2
    });
    assert_eq!(goes_on, [false, true]);
}

/// Others take the model of an aggregator of its round alone.
#[test]
fn who_goes_on_with_a_run_begins_the_next_round_that_it_aggregates() {
    let settings = SampledSettings { n_aggregators: 1, activity_window: 40, ..SETTINGS };
    for at in 0..4 {
        let mut others = Vec::from(acquainted::<4>(settings));
        let mut peer = others.remove(at);
        let is_own = |round: &u64| peer.candidates(*round, SampledRoles::is_aggregator)[0] == peer.peer();
        let own = (1..=settings.round_leap()).find(is_own).unwrap();
        peer.on_average_seen(0, &model(1.0));
        let silent_at = peer.next_deadline().unwrap();
        let until = listens(&mut peer, &mut others, silent_at);
        peer.on_timeout(until - Duration::from_nanos(1));
        assert_eq!(peer.own_round(), 0, "it listens");
        peer.on_timeout(until);
        assert_eq!(peer.own_round(), own);
    }
}

#[test]
fn who_aggregates_no_round_that_is_near_waits_for_the_others_at_first() {
    let settings = SampledSettings { n_aggregators: 1, ..SETTINGS };
    let mut others = Vec::from(acquainted::<6>(settings));
    let firsts = [1, 2].map(|round| others[0].candidates(round, SampledRoles::is_aggregator)[0]);
    let at = others.iter().position(|other| !firsts.contains(&other.peer())).unwrap();
    let mut peer = others.remove(at);
    peer.on_average_seen(0, &model(1.0));
    let rounds = [1, 2, 3].map(|_| {
        is_silent(&mut peer, &mut others);
        peer.own_round()
    });
    assert_eq!(rounds, [0, 0, 1]);
}

/// What a peer that trains does at a time.
type Begin = fn(&mut SampledPeer, Moment);

/// A step that lasts longer than the time of silence is no reason to begin another round.
#[test]
fn who_is_in_the_midst_of_a_round_begins_no_other_one() {
    let cases: [(&str, Begin, bool); 4] = [
        ("trains", |_, _| (), false),
        ("looks for aggregators", |peer, now| peer.on_trained(now, 1, model(2.0)), false),
        (
            "looks for trainers",
            |peer, now| {
                peer.on_training_failed(1);
                peer.resume(now, 1, model(2.0));
            },
            false,
        ),
        ("does nothing", |peer, _| peer.on_training_failed(1), true),
    ];
    for (does, begin, goes_on) in cases {
        let [mut peer, mut others @ ..] = acquainted::<3>(SETTINGS);
        proves(&mut peer, &mut others[0], 1);
        peer.on_model(Moment::ZERO, others[0].peer(), SampledTask::Train { round: 1 }, model(1.0));
        let silent_at = peer.next_deadline().unwrap();
        let until = listens(&mut peer, &mut others, silent_at);
        begin(&mut peer, until - S / 2);
        assert_eq!(peer.own_round(), 1);
        peer.on_timeout(until);
        assert_eq!(peer.own_round() > 1, goes_on, "it {does}");
    }
}

/// The other trainers of the round are gone, or know of another aggregator.
#[test]
fn who_got_too_few_models_averages_them_after_the_time_of_four_rounds() {
    let settings = SampledSettings { activity_window: 40, ..SETTINGS };
    let [mut peer, others @ ..] = acquainted::<3>(settings);
    peer.on_model(S, others[0].peer(), SampledTask::Aggregate { round: 1 }, model(1.0));
    let at = S + 4 * 2 * S;
    assert_eq!((pinged(&mut peer), peer.next_deadline()), (Vec::new(), Some(at)));
    peer.on_timeout(at - S);
    assert_eq!(pinged(&mut peer), []);
    peer.on_timeout(at);
    for to in pinged(&mut peer) {
        peer.on_pong(at, to, 1);
    }
    let average = SampledAction::Average { round: 1 };
    assert!(actions(&mut peer).contains(&average));
}

#[test]
fn too_few_models_of_a_round_that_the_run_has_left_are_averaged_by_nobody() {
    let [mut peer, mut others @ ..] = acquainted::<3>(SETTINGS);
    peer.on_model(Moment::ZERO, others[0].peer(), SampledTask::Aggregate { round: 1 }, model(1.0));
    others.iter_mut().for_each(|other| proves(&mut peer, other, 2));
    is_silent(&mut peer, &mut others);
    assert_eq!((peer.round(), pinged(&mut peer)), (2, Vec::new()));
}

/// With each silence more senders are believed, until one of them delivers.
#[test]
fn who_gets_a_model_is_in_a_run_that_is_not_still() {
    let [mut peer, mut others @ ..] = acquainted::<3>(SETTINGS);
    is_silent(&mut peer, &mut others);
    is_silent(&mut peer, &mut others);
    assert_eq!(peer.joining.n_silences, 2);
    proves(&mut peer, &mut others[0], 1);
    peer.on_model(20 * S, others[0].peer(), SampledTask::Train { round: 1 }, model(1.0));
    assert!(peer.is_training());
    assert_eq!(peer.joining.n_silences, 0);
}

/// Its clock would keep it from a run that went on without it, and strangers would lead it anywhere.
#[test]
fn who_is_silent_twice_believes_those_whom_its_user_introduced_it_to() {
    for (is_introduced, round) in [(true, 5000), (false, 0)] {
        let mut others = [1, 2].map(|at| member(at, SETTINGS));
        let mut peer = stranger(9, SETTINGS, BOTH);
        others.iter().for_each(|other| knows(&mut peer, other));
        let introduced =
            if is_introduced { others.iter().map(SampledPeer::peer).collect() } else { Vec::new() };
        peer.join(Moment::ZERO, introduced);
        for other in &others {
            peer.on_met(Moment::ZERO, other.peer(), &other.view());
        }
        actions(&mut peer);
        others.iter_mut().for_each(|other| other.on_active(Moment::ZERO, 5000));
        let rounds = [1, 2].map(|_| {
            is_silent(&mut peer, &mut others);
            peer.round()
        });
        assert_eq!(rounds, [0, round]);
    }
}
