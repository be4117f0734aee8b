//! Peers that others reach through a relay alone: when they aggregate, and who believes them.

use super::*;

const TAB: SampledRoles = SampledRoles { trains: true, aggregates: Aggregates::Relayed };

/// Two that can be dialled and three tabs, all of which know each other.
fn natives_and_tabs(settings: SampledSettings) -> ([SampledPeer; 2], [SampledPeer; 3]) {
    let mut natives = acquainted::<2>(settings);
    let mut tabs = [10, 11, 12].map(|at| stranger(at, settings, TAB));
    tabs.iter_mut().for_each(|tab| tab.join(Moment::ZERO, Vec::new()));
    let all: Vec<View> = natives.iter().chain(&tabs).map(SampledPeer::view).collect();
    for peer in natives.iter_mut().chain(&mut tabs) {
        all.iter().for_each(|view| peer.on_view(peer.peer(), view));
        actions(peer);
    }
    (natives, tabs)
}

fn asked(sampling: &mut Sampling) -> BTreeSet<PublicKey> {
    std::iter::from_fn(|| sampling.poll_ping()).collect()
}

/// All that know the same choose the same.
#[test]
fn tabs_are_the_sample_where_no_peer_that_can_be_dialled_answers() {
    let (natives, tabs) = natives_and_tabs(SETTINGS);
    let of_natives: BTreeSet<PublicKey> = natives.iter().map(SampledPeer::peer).collect();
    let samples = tabs.each_ref().map(|peer| {
        let mut sampling = peer.aggregators(Moment::ZERO, 2);
        assert_eq!(asked(&mut sampling), of_natives);
        of_natives.iter().for_each(|native| sampling.on_unreachable(Moment::ZERO, *native));
        asked(&mut sampling).into_iter().for_each(|tab| sampling.on_pong(Moment::ZERO, tab));
        sampling.sample().unwrap()
    });
    assert_eq!(samples[0].len(), 2);
    assert!(samples.iter().all(|sample| *sample == samples[0]), "{samples:?}");
    let mut sampling = tabs[0].aggregators(Moment::ZERO, 2);
    asked(&mut sampling);
    sampling.on_pong(Moment::ZERO, natives[0].peer());
    sampling.on_unreachable(Moment::ZERO, natives[1].peer());
    assert_eq!((asked(&mut sampling).len(), sampling.sample()), (0, Some(vec![natives[0].peer()])));
}

/// Natives that are gone and known keep no tab from being believed, and a tab keeps no native from it.
#[test]
fn aggregators_are_believed_by_their_place_among_those_of_their_kind() {
    let settings = SampledSettings { n_aggregators: 1, ..SETTINGS };
    let ([mut peer, mut native], mut tabs) = natives_and_tabs(settings);
    peer.on_active(Moment::ZERO, 1);
    proves(&mut peer, &mut native, 1);
    tabs.iter_mut().for_each(|tab| proves(&mut peer, tab, 1));
    let task = SampledTask::Train { round: 1 };
    assert!(peer.is_plausible(native.peer(), task));
    let order = peer.candidates(1, |roles| roles.aggregates == Aggregates::Relayed);
    let believed: Vec<bool> = order.iter().map(|tab| peer.is_plausible(*tab, task)).collect();
    assert_eq!(believed, [true, true, false]);
    // Who aggregates for nobody is no aggregator.
    let mut other = stranger(20, settings, SampledRoles { trains: true, aggregates: Aggregates::Never });
    other.join(Moment::ZERO, Vec::new());
    proves(&mut peer, &mut other, 1);
    assert!(!peer.is_plausible(other.peer(), task));
}

/// Each key may say that it is a tab that averages, and is then one of few: who is offered its average asks the others first.
#[test]
fn an_average_of_a_tab_is_taken_once_those_that_can_be_dialled_are_silent() {
    let settings = SampledSettings { n_aggregators: 1, ..SETTINGS };
    let (mut natives, mut tabs) = natives_and_tabs(settings);
    let mut peer = stranger(30, settings, SampledRoles { trains: true, aggregates: Aggregates::Never });
    peer.join(Moment::ZERO, Vec::new());
    tabs.iter().chain(&natives).for_each(|other| knows(&mut peer, other));
    actions(&mut peer);
    peer.on_active(Moment::ZERO, 1);
    let of_natives: BTreeSet<PublicKey> = natives.iter().map(SampledPeer::peer).collect();
    tabs.iter_mut().for_each(|tab| proves(&mut peer, tab, 2));
    let from = peer.candidates(2, |roles| roles.aggregates == Aggregates::Relayed)[0];
    let task = SampledTask::Train { round: 2 };
    assert_eq!(peer.on_offer(S, from, task), Err(OfferRefusal::Busy));
    assert_eq!(pinged(&mut peer).into_iter().collect::<BTreeSet<_>>(), of_natives);
    assert_eq!(peer.on_offer(S + S / 2, from, task), Err(OfferRefusal::Busy), "they have a second");
    assert_eq!(peer.on_offer(2 * S, from, task).map(|_| ()), Ok(()));
    peer.on_transfer_failed(2 * S, from, task);
    // Once more, where one of them is live.
    assert_eq!(peer.on_offer(10 * S, from, task), Err(OfferRefusal::Busy));
    assert_eq!(pinged(&mut peer).len(), 2);
    peer.on_pong(10 * S, natives[1].peer(), 3);
    assert_eq!(peer.on_offer(12 * S, from, task), Err(OfferRefusal::Busy));
    assert_eq!(pinged(&mut peer), []);
    // Nor where it begins with a round of which nobody can be a candidate.
    let far = SampledTask::Train { round: 6 };
    let _ = peer.on_offer(12 * S, from, far);
    peer.on_transfer_failed(12 * S, from, far);
    assert_eq!(peer.on_offer(12 * S, from, task), Err(OfferRefusal::Busy));
    // Nobody is a tab by what comes before the model alone.
    assert!(!peer.on_view_before(12 * S, from, task, &View::default()));
    proves(&mut peer, &mut natives[1], 2);
    assert!(peer.on_offer(12 * S, natives[1].peer(), task).is_ok());
    peer.on_transfer_failed(12 * S, natives[1].peer(), task);
    // Where nothing comes of those that are live for eight rounds' time it is believed.
    for (at, is_ok) in [(19 * S, false), (28 * S - S / 100, false), (28 * S, true)] {
        let is_taken_at_once = peer.on_offer(at, from, task).is_ok();
        peer.on_pong(at, natives[1].peer(), 3);
        assert_eq!(is_taken_at_once || peer.on_offer(at, from, task).is_ok(), is_ok, "at {at:?}");
    }
    peer.on_transfer_failed(28 * S, from, task);
    let next = SampledTask::Train { round: 3 };
    tabs.iter_mut().for_each(|tab| proves(&mut peer, tab, 3));
    let from = peer.candidates(3, |roles| roles.aggregates == Aggregates::Relayed)[0];
    assert_eq!(peer.on_offer(40 * S, from, next), Err(OfferRefusal::Busy));
    peer.joining.n_silences = 2;
    assert!(peer.on_offer(40 * S, from, next).is_ok(), "the run stands still with it");
}

/// One key that is far ahead has its model averaged alone by nobody.
#[test]
fn a_round_that_few_are_near_waits_for_half_of_its_models_for_ever() {
    let settings = SampledSettings { sample_size: 4, activity_window: 40, ..SETTINGS };
    let [mut peer, mut ahead, _, _] = acquainted(settings);
    proves(&mut peer, &mut ahead, 8);
    peer.on_model(S, ahead.peer(), SampledTask::Aggregate { round: 9 }, model(9.0));
    assert_eq!((peer.own_round(), peer.enough_at()), (9, None));
}

/// One that can be dialled, and on which trainers call, needs to ask nobody; one that is back does.
#[test]
fn who_aggregates_for_all_takes_no_average_of_a_tab() {
    let settings = SampledSettings { n_aggregators: 1, ..SETTINGS };
    let ([mut native, mut gone], mut tabs) = natives_and_tabs(settings);
    gone.leave(Moment::ZERO);
    knows(&mut native, &gone);
    tabs.iter_mut().for_each(|tab| proves(&mut native, tab, 2));
    let from = native.candidates(2, |roles| roles.aggregates == Aggregates::Relayed)[0];
    let task = SampledTask::Train { round: 2 };
    assert!(native.on_offer(S, from, task).is_ok());
    native.on_transfer_failed(S, from, task);
    native.on_aggregate(S, tabs[0].peer(), 1, model(1.0));
    assert_eq!(native.on_offer(S, from, task), Err(OfferRefusal::Busy));
}

/// One key that says that others can dial it, and hands on nothing, does not hold the run for ever.
#[test]
fn where_the_run_stands_still_tabs_are_asked_with_those_that_can_be_dialled() {
    let (natives, tabs) = natives_and_tabs(SETTINGS);
    let mut peer = stranger(30, SETTINGS, TAB);
    natives.iter().chain(&tabs).for_each(|other| knows(&mut peer, other));
    let first = |peer: &SampledPeer| -> BTreeSet<PublicKey> {
        (1..20).flat_map(|round| asked(&mut peer.aggregators(Moment::ZERO, round))).collect()
    };
    let of_natives: BTreeSet<PublicKey> = natives.iter().map(SampledPeer::peer).collect();
    assert_eq!(first(&peer), of_natives);
    peer.joining.n_silences = 2;
    assert!(tabs.iter().all(|tab| first(&peer).contains(&tab.peer())));
}

/// Any number of keys that say that others can dial them, and are silent, cost sixteen pings, and push out nobody who was heard.
#[test]
fn of_those_that_are_silent_a_few_are_asked_and_those_that_were_heard_in_any_case() {
    let (natives, tabs) = natives_and_tabs(SETTINGS);
    let mut peer = stranger(30, SETTINGS, SampledRoles { trains: true, aggregates: Aggregates::Never });
    peer.join(Moment::ZERO, Vec::new());
    natives.iter().chain(&tabs).for_each(|other| knows(&mut peer, other));
    for at in 100..200 {
        let mut silent = stranger(at, SETTINGS, BOTH);
        silent.join(Moment::ZERO, Vec::new());
        knows(&mut peer, &silent);
    }
    actions(&mut peer);
    natives.iter().for_each(|native| peer.on_pong(Moment::ZERO, native.peer(), 1));
    let of_tabs: BTreeSet<PublicKey> = tabs.iter().map(SampledPeer::peer).collect();
    let of_natives: BTreeSet<PublicKey> = natives.iter().map(SampledPeer::peer).collect();
    for round in 1..4 {
        let mut sampling = peer.aggregators(Moment::ZERO, round);
        let mut all = BTreeSet::new();
        loop {
            let asked = asked(&mut sampling);
            all.extend(&asked);
            if asked.is_empty() || all.iter().any(|peer| of_tabs.contains(peer)) {
                break;
            }
            asked.into_iter().for_each(|peer| sampling.on_unreachable(Moment::ZERO, peer));
        }
        assert!(all.is_superset(&of_natives), "round {round}");
        assert!(all.len() <= 16 + 2 + 2, "round {round}: {}", all.len());
    }
    // So it is where a tab offers its average.
    peer.on_active(Moment::ZERO, 1);
    let mut tabs = tabs;
    tabs.iter_mut().for_each(|tab| proves(&mut peer, tab, 2));
    let from = peer.candidates(2, |roles| roles.aggregates == Aggregates::Relayed)[0];
    assert_eq!(peer.on_offer(S, from, SampledTask::Train { round: 2 }), Err(OfferRefusal::Busy));
    let pinged: BTreeSet<PublicKey> = pinged(&mut peer).into_iter().collect();
    assert!(pinged.is_superset(&of_natives) && pinged.len() == 16, "{}", pinged.len());
}

/// A time of silence, after which these others answer what they are asked, and nothing is heard of a later round.
fn is_silent(peer: &mut SampledPeer, others: &mut [SampledPeer]) {
    let at = peer.joining_deadline().unwrap();
    peer.on_timeout(at);
    loop {
        let asked = actions(peer);
        if asked.is_empty() {
            break;
        }
        for action in asked {
            let SampledAction::Meet { to, view, digest } = action else { continue };
            match others.iter_mut().find(|other| other.peer() == to) {
                Some(other) => {
                    let answer = other.on_meet(at, peer.peer(), &view, &digest).unwrap();
                    peer.on_met(at, to, &answer);
                }
                None => peer.on_not_met(at, to),
            }
        }
    }
    let until = peer.joining_deadline().unwrap();
    assert_eq!((until, peer.own_round()), (at + 2 * S, 0), "it listens");
    peer.on_timeout(until);
}

#[test]
fn a_tab_goes_on_with_a_run_that_is_still_where_nobody_who_can_be_dialled_answers() {
    for (n_natives, rounds) in [(0, [true, true, true]), (1, [false, false, true])] {
        let settings = SampledSettings { sample_size: 4, n_aggregators: 3, ..SETTINGS };
        let (natives, tabs) = natives_and_tabs(settings);
        let [mut peer, one, other] = tabs;
        let mut others = Vec::from([one, other]);
        others.extend(natives.into_iter().take(n_natives));
        peer.on_average_seen(0, &model(1.0));
        let goes_on = [1, 2, 3].map(|_| {
            if peer.own_round() == 0 {
                is_silent(&mut peer, &mut others);
            }
            peer.own_round() > 0
        });
        assert_eq!(goes_on, rounds, "with {n_natives}");
    }
}

/// The one that it was told of is gone, and a sample of one has no place for another: it would tell nobody that it is there.
#[test]
fn who_was_forgotten_tells_one_that_has_just_answered() {
    let settings = SampledSettings { sample_size: 1, n_aggregators: 1, ..SETTINGS };
    let [home, other] = acquainted::<2>(settings);
    let mut peer = stranger(9, settings, TAB);
    [&home, &other].into_iter().for_each(|known| knows(&mut peer, known));
    peer.join(Moment::ZERO, vec![home.peer()]);
    peer.on_not_met(Moment::ZERO, home.peer());
    assert!(meets(&mut peer).iter().any(|(to, _)| *to == other.peer()), "it is asked next");
    peer.on_met(Moment::ZERO, other.peer(), &other.view());
    let told: BTreeSet<PublicKey> = meets(&mut peer).into_iter().map(|(to, _)| to).collect();
    assert!(told.contains(&other.peer()), "{told:?}");
}

/// One that is reached is dialled by the others of its kind, and a browser has few circuits.
#[test]
fn a_tab_that_nobody_reaches_calls_on_tabs_as_well() {
    for (aggregates, n_tabs) in [(Aggregates::Never, 3), (Aggregates::Relayed, 0)] {
        let (natives, tabs) = natives_and_tabs(SETTINGS);
        let mut peer = stranger(20, SETTINGS, SampledRoles { trains: true, aggregates });
        natives.iter().chain(&tabs).for_each(|other| knows(&mut peer, other));
        peer.join(Moment::ZERO, Vec::new());
        for other in natives.iter().chain(&tabs) {
            peer.on_met(Moment::ZERO, other.peer(), &other.view());
        }
        actions(&mut peer);
        peer.call_if_due(20 * S);
        let called = meets(&mut peer).into_iter().map(|(to, _)| to);
        let is_tab = |to: &PublicKey| tabs.iter().any(|tab| tab.peer() == *to);
        let called: Vec<bool> = called.map(|to| is_tab(&to)).collect();
        assert_eq!(called, [vec![false; 2], vec![true; n_tabs]].concat());
    }
}
