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
