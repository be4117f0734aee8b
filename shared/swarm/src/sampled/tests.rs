//! Single peers of the scheme, told one thing at a time.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use barnraise_protocol::access::Claims;
use barnraise_protocol::sampled::Aggregates;

use super::joining::{RENEW_EVERY, VIEWS_MAX};
use super::*;

mod knowing;
mod lasting;
mod relayed;
mod still;
mod tasks;

const RUN: Sha256Hash = Sha256Hash([5; 32]);
const S: Duration = Duration::from_secs(1);
const BOTH: SampledRoles = SampledRoles { trains: true, aggregates: Aggregates::Dialled };
const SETTINGS: SampledSettings = SampledSettings {
    sample_size: 2,
    n_aggregators: 2,
    success_fraction: 1.0,
    ping_timeout: S,
    activity_window: 4,
    round_estimate: Duration::from_secs(2),
    average: ModelAverage::Mean,
    exchange: ModelExchange::Sample,
};

fn stranger(at: u8, settings: SampledSettings, roles: SampledRoles) -> SampledPeer {
    let key = KeyPair::from_seed(&[at + 1; 32]);
    let identity =
        SampledIdentity { key, run: RUN, counter: 0, roles, addresses: Vec::new(), seed: at.into() };
    SampledPeer::new(settings, identity)
}

/// A member that knows nobody.
fn member(at: u8, settings: SampledSettings) -> SampledPeer {
    let mut peer = stranger(at, settings, BOTH);
    peer.join(Moment::ZERO, Vec::new());
    peer
}

/// Makes what `to` knows of itself known to `peer`.
fn knows(peer: &mut SampledPeer, of: &SampledPeer) {
    peer.on_view(of.peer(), &of.view());
}

/// `of` proves that it is active in a round.
fn proves(peer: &mut SampledPeer, of: &mut SampledPeer, round: u64) {
    of.on_active(Moment::ZERO, round);
    knows(peer, of);
}

/// Members that know each other, all active in round 0.
fn acquainted<const N: usize>(settings: SampledSettings) -> [SampledPeer; N] {
    let mut peers = std::array::from_fn(|at| member(at as u8, settings));
    let views: Vec<View> = peers.iter().map(SampledPeer::view).collect();
    for peer in &mut peers {
        views.iter().for_each(|view| peer.on_view(peer.peer(), view));
    }
    peers
}

fn model(value: f32) -> SampledModel {
    Arc::new([value])
}

fn actions(peer: &mut SampledPeer) -> Vec<SampledAction> {
    std::iter::from_fn(|| peer.poll_action()).collect()
}

fn pinged(peer: &mut SampledPeer) -> Vec<PublicKey> {
    let to = |action| match action {
        SampledAction::Ping { to, .. } => Some(to),
        _ => None,
    };
    actions(peer).into_iter().filter_map(to).collect()
}

/// Let in by the authority of a run that is not open, or by somebody else.
fn let_in(at: u8, by: u8, expires_at: UnixTime) -> SampledPeer {
    let authority = Authority { key: KeyPair::from_seed(&[200; 32]).public(), run_id: "barn".into() };
    let mut peer = stranger(at, SETTINGS, BOTH).by_approval(authority, UnixTime(1000));
    peer.on_approval(Moment::ZERO, approval(at, by, expires_at));
    peer
}

fn approval(at: u8, by: u8, expires_at: UnixTime) -> AccessToken {
    let claims = Claims {
        run_id: "barn".into(),
        user: "alice".into(),
        peer: KeyPair::from_seed(&[at + 1; 32]).public(),
        expires_at,
        token_id: TokenId([at; 16]),
        may_host: false,
    };
    AccessToken::sign(&KeyPair::from_seed(&[by; 32]), claims).unwrap()
}

/// What a peer tells those whom it meets now.
fn told(peer: &mut SampledPeer) -> (View, ViewDigest) {
    let meets = |action| match action {
        SampledAction::Meet { view, digest, .. } => Some((view, digest)),
        _ => None,
    };
    actions(peer).into_iter().find_map(meets).unwrap()
}

#[test]
fn in_a_run_that_is_not_open_members_are_told_to_those_alone_who_show_their_access() {
    let mut home = let_in(0, 200, UnixTime(1100));
    home.join(Moment::ZERO, Vec::new());
    for (by, is_let_in) in [(200, true), (201, false)] {
        let mut newcomer = let_in(1, by, UnixTime(1100));
        newcomer.join(Moment::ZERO, vec![home.peer()]);
        let (view, digest) = told(&mut newcomer);
        let answer = home.on_meet(Moment::ZERO, newcomer.peer(), &view, &digest);
        assert_eq!(answer.is_some(), is_let_in);
        // A stranger repeats what another one tells of itself.
        assert_eq!(home.on_meet(Moment::ZERO, member(9, SETTINGS).peer(), &view, &digest), None);
        let task = SampledTask::Train { round: 1 };
        let wanted = home.on_offer(Moment::ZERO, newcomer.peer(), task).unwrap();
        assert_eq!(wanted == ViewDigest::of_everything(), !is_let_in, "a digest tells who takes part");
        assert!(!home.on_view_before(Moment::ZERO, newcomer.peer(), task, &view));
        home.on_transfer_failed(Moment::ZERO, newcomer.peer(), task);
        assert_eq!(home.registry().members().count(), 1, "it has not joined yet");
        let Some(answer) = answer else { continue };
        assert!(answer.memberships.iter().any(|told| told.peer == home.peer()));
        newcomer.on_met(Moment::ZERO, home.peer(), &answer);
        let (view, digest) = told(&mut newcomer);
        home.on_meet(Moment::ZERO, newcomer.peer(), &view, &digest).unwrap();
        assert_eq!(home.registry().members().count(), 2);
        home.on_clock(UnixTime(1100));
        assert_eq!(home.registry().members().count(), 1, "its access has ended");
        home.on_clock(UnixTime(1000));
    }
}

/// As a tab that was at rest until its access ended: what it told before lets it in nowhere.
#[test]
fn who_comes_again_with_other_access_shows_that() {
    let (mut home, mut newcomer) = (let_in(0, 200, UnixTime(2000)), let_in(1, 200, UnixTime(1100)));
    home.join(Moment::ZERO, Vec::new());
    newcomer.join(Moment::ZERO, vec![home.peer()]);
    told(&mut newcomer);
    home.on_clock(UnixTime(1100));
    newcomer.on_clock(UnixTime(1100));
    newcomer.on_approval(S, approval(1, 200, UnixTime(1200)));
    newcomer.join(S, vec![home.peer()]);
    let (view, digest) = told(&mut newcomer);
    assert!(home.on_meet(S, newcomer.peer(), &view, &digest).is_some());
}

#[test]
fn who_has_longer_access_tells_it_and_stays() {
    let (mut home, mut other) = (let_in(0, 200, UnixTime(2000)), let_in(1, 200, UnixTime(1100)));
    home.join(Moment::ZERO, Vec::new());
    other.join(Moment::ZERO, Vec::new());
    knows(&mut home, &other);
    actions(&mut other);
    let at = RENEW_EVERY;
    other.on_view(home.peer(), &home.view());
    other.on_approval(at, approval(1, 200, UnixTime(1200)));
    // Nobody asked it for long: it asks, and then it tells.
    for _ in 0..2 {
        let (view, digest) = told(&mut other);
        let answer = home.on_meet(at, other.peer(), &view, &digest).unwrap();
        other.on_met(at, home.peer(), &answer);
    }
    home.on_clock(UnixTime(1150));
    assert_eq!(home.registry().members().count(), 2);
    home.on_revoked(&[TokenId([1; 16])]);
    assert_eq!(home.registry().members().count(), 1);
}

#[test]
fn a_run_may_leap_half_a_window() {
    let leap = |activity_window| SampledSettings { activity_window, ..SETTINGS }.round_leap();
    assert_eq!((leap(20), leap(5), leap(2)), (10, 2, 2));
}

#[test]
fn a_peer_answers_as_long_as_it_takes_part() {
    let mut peer = stranger(0, SETTINGS, BOTH);
    let other = member(1, SETTINGS).peer();
    assert_eq!((peer.view(), peer.counter()), (View::default(), 0));
    assert!(!peer.on_ping(Moment::ZERO, other, 1));
    peer.join(Moment::ZERO, Vec::new());
    assert_eq!((peer.view().memberships.len(), peer.counter()), (1, 1));
    assert!(peer.on_ping(Moment::ZERO, other, 1));
    peer.leave(Moment::ZERO);
    assert!(!peer.on_ping(Moment::ZERO, other, 1));
    assert_eq!(peer.counter(), 2);
}

/// `Δk * Δt_S` after the last sign that others know it.
#[test]
fn a_peer_that_is_asked_is_not_forgotten() {
    let [mut peer, other] = acquainted(SETTINGS);
    assert_eq!(peer.next_deadline(), Some(8 * S));
    peer.on_ping(5 * S, other.peer(), 1);
    assert_eq!(peer.next_deadline(), Some(13 * S));
    // A stranger does not know it, and it was in that round, or cannot have been.
    let stranger = member(9, SETTINGS).peer();
    // Nor does one keep it waiting that asks for the same round again and again.
    for (from, round) in [(stranger, 2), (other.peer(), 0), (other.peer(), 1), (other.peer(), u64::MAX)] {
        assert!(peer.on_ping(6 * S, from, round), "it answers anyway");
    }
    assert_eq!(peer.next_deadline(), Some(13 * S));
}

#[test]
fn a_model_is_wanted_of_what_the_peer_does_and_of_rounds_that_can_be() {
    let [mut peer, other, _] = acquainted(SETTINGS);
    // Three are active in round 0: 2 more are believed, and twice the window of a peer that was not asked for long.
    let asks =
        |peer: &mut SampledPeer, round| peer.on_offer(S, other.peer(), SampledTask::Train { round }).is_ok();
    assert!(!asks(&mut peer, 11));
    assert!(asks(&mut peer, 10));
    peer.on_transfer_failed(Moment::ZERO, other.peer(), SampledTask::Train { round: 10 });
    assert!(!asks(&mut peer, 0), "there is no round before the first");

    let mut idle = stranger(4, SETTINGS, SampledRoles { trains: false, aggregates: Aggregates::Dialled });
    assert_eq!(
        idle.on_offer(Moment::ZERO, other.peer(), SampledTask::Aggregate { round: 1 }),
        Err(OfferRefusal::Declined),
        "it takes no part"
    );
    idle.join(Moment::ZERO, Vec::new());
    assert_eq!(
        idle.on_offer(Moment::ZERO, other.peer(), SampledTask::Train { round: 1 }),
        Err(OfferRefusal::Declined)
    );
    assert!(idle.on_offer(Moment::ZERO, other.peer(), SampledTask::Aggregate { round: 1 }).is_ok());

    let mut tab = stranger(5, SETTINGS, SampledRoles { trains: true, aggregates: Aggregates::Never });
    tab.join(Moment::ZERO, Vec::new());
    assert_eq!(
        tab.on_offer(Moment::ZERO, other.peer(), SampledTask::Aggregate { round: 1 }),
        Err(OfferRefusal::Declined)
    );
    assert!(tab.on_offer(Moment::ZERO, other.peer(), SampledTask::Train { round: 1 }).is_ok());
}

/// Who is in a sample knows much the same.
#[test]
fn one_sender_tells_all_that_it_knows_and_the_others_of_themselves() {
    let [mut peer, one, two] = acquainted(SETTINGS);
    let task = SampledTask::Aggregate { round: 1 };
    let whole = peer.on_offer(Moment::ZERO, one.peer(), task).unwrap();
    assert!(!whole.has_membership(PeerPrefix::of(&two.peer()), 9));
    let own_alone = peer.on_offer(Moment::ZERO, two.peer(), task).unwrap();
    assert!(own_alone.has_membership(PeerPrefix::of(&one.peer()), 9));
    // The view of the other one ends nothing, its own does.
    peer.on_view(two.peer(), &View::default());
    assert!(peer.view_from.is_some());
    peer.on_view(one.peer(), &View::default());
    assert!(peer.view_from.is_none());
}

#[test]
fn the_next_candidate_is_asked_in_the_place_of_one_that_is_gone() {
    let [mut peer, mut sender, ..] = acquainted::<5>(SETTINGS);
    proves(&mut peer, &mut sender, 1);
    let task = SampledTask::Train { round: 1 };
    assert!(peer.on_offer(Moment::ZERO, sender.peer(), task).is_ok());
    peer.on_model(S, sender.peer(), task, model(1.0));
    assert_eq!(actions(&mut peer), [SampledAction::Train { round: 1, model: model(1.0) }]);
    // A round takes its time: who missed some catches up.
    peer.on_trained(S, 1, model(2.0));
    assert_eq!(pinged(&mut peer), []);
    let at = S + SETTINGS.round_estimate / 8;
    assert_eq!(peer.next_deadline(), Some(at));
    peer.on_timeout(at - Duration::from_nanos(1));
    assert_eq!(pinged(&mut peer), []);
    peer.on_timeout(at);
    let first = pinged(&mut peer);
    assert!((1..=2).contains(&first.len()), "{first:?}");
    // Of another round nothing is known.
    peer.on_unreachable(S, first[0], 1);
    peer.on_pong(S, first[0], 1);
    assert_eq!(pinged(&mut peer), []);
    let mut asked = first.clone();
    for gone in first {
        peer.on_unreachable(S, gone, 2);
        asked.extend(pinged(&mut peer));
    }
    // Likewise where the peer does not take what it is sent for that round; where it takes it, it is there.
    let next = asked.last().copied().unwrap();
    let n_asked = asked.len();
    peer.on_pushed(S, next, SampledTask::Train { round: 2 }, PushOutcome::Delivered);
    assert_eq!(pinged(&mut peer), []);
    peer.on_pushed(S, next, SampledTask::Train { round: 2 }, PushOutcome::Failed);
    asked.extend(pinged(&mut peer));
    assert_eq!(asked.len(), n_asked + 1);
    assert_eq!(asked.iter().collect::<std::collections::BTreeSet<_>>().len(), asked.len(), "each once");
}

#[test]
fn pushes_that_nobody_took_are_repeated_with_another_sample_and_not_at_once() {
    let [mut peer, ..] = acquainted::<3>(SETTINGS);
    peer.resume(Moment::ZERO, 1, model(1.0));
    for to in pinged(&mut peer) {
        peer.on_pong(Moment::ZERO, to, 1);
    }
    let pushes = actions(&mut peer);
    assert!(!pushes.is_empty());
    let task = SampledTask::Train { round: 1 };
    // Where the peer itself is in the sample, it has it already.
    let is_own = peer.is_training();
    let fail = |peer: &mut SampledPeer, now, pushes: Vec<SampledAction>| {
        let mut failed = BTreeSet::new();
        for action in pushes {
            let SampledAction::Push { to, .. } = action else { continue };
            peer.on_pushed(now, to, task, PushOutcome::Failed);
            failed.insert(to);
        }
        failed
    };
    let first = fail(&mut peer, Moment::ZERO, pushes);
    // A connection may break: each of them is offered the model once more.
    assert_eq!(actions(&mut peer), []);
    assert_eq!(peer.next_deadline(), Some(S));
    peer.on_timeout(S);
    let again = actions(&mut peer);
    assert_eq!(fail(&mut peer, S, again), first);
    assert_eq!(actions(&mut peer), []);
    assert_eq!(peer.aggregation.sampling().is_some(), !is_own);
    assert_eq!(peer.next_deadline(), Some(if is_own { 8 * S } else { 2 * S }));
    peer.on_timeout(2 * S);
    assert_eq!(pinged(&mut peer).is_empty(), is_own);
}

/// Over all rounds since the first one.
#[test]
fn a_round_takes_what_it_took_in_the_mean() {
    let settings = SampledSettings { sample_size: 4, success_fraction: 0.75, ..SETTINGS };
    let [mut peer, mut sender, third, fourth] = acquainted(settings);
    let sends = |peer: &mut SampledPeer, sender: &SampledPeer, now, round| {
        let task = SampledTask::Aggregate { round };
        assert!(peer.on_offer(Moment::ZERO, sender.peer(), task).is_ok());
        peer.on_model(now, sender.peer(), task, model(1.0));
        assert_eq!(peer.own_round(), round);
    };
    sends(&mut peer, &sender, 10 * S, 1);
    assert_eq!(peer.joining_deadline(), Some(10 * S + 4 * 2 * S), "as it was estimated");
    let mut others = [third, fourth];
    others.iter_mut().for_each(|other| proves(&mut peer, other, 2));
    proves(&mut peer, &mut sender, 2);
    sends(&mut peer, &sender, 16 * S, 3);
    assert_eq!(peer.joining_deadline(), Some(16 * S + 4 * 3 * S), "two rounds took 6 s");
    sends(&mut peer, &others[0], 20 * S, 3);
    assert_eq!(peer.joining_deadline(), Some(20 * S + 4 * 3 * S), "the round is the same");
}

#[test]
fn models_of_senders_that_were_not_there_are_left_aside() {
    let [mut peer, mut sender, _] = acquainted(SETTINGS);
    let gets = |peer: &mut SampledPeer, sender: &SampledPeer, task| {
        peer.on_model(S, sender.peer(), task, model(1.0));
        peer.newest().map(|(round, _)| round)
    };
    assert_eq!(gets(&mut peer, &sender, SampledTask::Train { round: 0 }), None, "rounds begin with 1");
    assert_eq!(gets(&mut peer, &sender, SampledTask::Train { round: 1 }), None, "it was active in 0");
    let task = SampledTask::Aggregate { round: 1 };
    gets(&mut peer, &sender, task);
    assert_eq!(peer.own_round(), 1, "a trainer of 0 has something to average in 1");
    // Two have been active in round 1 now, and 2 more are believed: alone it cannot move the run further.
    proves(&mut peer, &mut sender, 4);
    assert_eq!(gets(&mut peer, &sender, SampledTask::Train { round: 4 }), None);
    assert_eq!(gets(&mut peer, &sender, SampledTask::Train { round: 3 }), Some(3));
}

/// Three keys that nobody knows, which cost nothing, say that the run is anywhere.
#[test]
fn made_up_members_move_nobody_further_than_time_has_passed() {
    let [mut peer, honest, _] = acquainted(SETTINGS);
    for at in 10..14 {
        let mut liar = stranger(at, SETTINGS, BOTH);
        liar.sign_joined(ROUND_MAX);
        knows(&mut peer, &liar);
        assert_eq!(peer.registry.activity_of(&liar.peer()), Some(ROUND_MAX));
        let mut beyond = stranger(at + 10, SETTINGS, BOTH);
        beyond.sign_joined(u64::MAX);
        assert_eq!(beyond.registry.activity_of(&beyond.peer()), None, "that is not even read");
        for round in [3, ROUND_MAX, u64::MAX] {
            peer.on_model(Moment::ZERO, liar.peer(), SampledTask::Train { round }, model(9.0));
            peer.on_model(Moment::ZERO, liar.peer(), SampledTask::Aggregate { round }, model(9.0));
        }
    }
    assert_eq!((peer.own_round(), peer.round(), peer.round_max()), (0, 0, 2));
    assert_eq!(
        peer.on_offer(Moment::ZERO, honest.peer(), SampledTask::Train { round: u64::MAX }),
        Err(OfferRefusal::Declined)
    );
    // Nor do they in steps: each minute has as many rounds as are believed of its time.
    let mut liar = stranger(10, SETTINGS, BOTH);
    for second in 1..=60 {
        for _ in 0..4 {
            let round = peer.round_max();
            liar.sign_joined(round);
            knows(&mut peer, &liar);
            peer.on_model(second * S, liar.peer(), SampledTask::Train { round }, model(9.0));
        }
    }
    // A round was estimated to take 2 s. Sixteen in that time are 480 a minute, and a leap.
    assert!((400..=482).contains(&peer.own_round()), "{}", peer.own_round());
    let own = peer.registry.activity_of(&peer.peer()).unwrap();
    assert!(own <= peer.own_round(), "what it signs is no further");
}

/// Those whom a newcomer was told of say how far the run is, and nobody that they tell of.
#[test]
fn who_joins_believes_those_who_answer() {
    let [mut first, _, _] = acquainted(SETTINGS);
    first.on_active(Moment::ZERO, 20);
    for at in 10..14 {
        let mut liar = stranger(at, SETTINGS, BOTH);
        liar.sign_joined(ROUND_MAX - 1);
        knows(&mut first, &liar);
    }
    let mut peer = stranger(9, SETTINGS, BOTH);
    peer.join(Moment::ZERO, vec![first.peer()]);
    let answer = first.on_meet(S, peer.peer(), &View::default(), &ViewDigest::default()).unwrap();
    peer.on_met(S, first.peer(), &answer);
    let own = peer.registry.activity_of(&peer.peer());
    assert_eq!((own, peer.round_max()), (Some(20), 26), "as long as a peer may be silent, and a leap");
}

/// Rounds take an eighth of what was estimated, the least that they may take.
#[test]
fn who_is_in_no_sample_for_long_still_finds_a_fast_run() {
    let settings = SampledSettings { round_estimate: 8 * S, ..SETTINGS };
    let [mut one, mut two] = acquainted(settings);
    let takes = |peer: &mut SampledPeer, others: [&mut SampledPeer; 2], now, round| {
        let [sender, other] = others;
        proves(peer, sender, round);
        proves(peer, other, round);
        peer.on_model(now, sender.peer(), SampledTask::Train { round }, model(1.0));
        peer.own_round() == round
    };
    one.on_active(Moment::ZERO, 20);
    let mut newcomer = stranger(9, settings, BOTH);
    newcomer.join(Moment::ZERO, vec![one.peer()]);
    let answer =
        one.on_meet(Moment::ZERO, newcomer.peer(), &View::default(), &ViewDigest::default()).unwrap();
    newcomer.on_met(Moment::ZERO, one.peer(), &answer);
    assert!(takes(&mut newcomer, [&mut one, &mut two], 60 * S, 80));

    // One that was in slow rounds, until it was asked no more.
    assert!(takes(&mut newcomer, [&mut one, &mut two], 68 * S, 81));
    assert!(!takes(&mut newcomer, [&mut one, &mut two], 98 * S, 111), "it believes 15 of them, and a leap");
    let silent_at = newcomer.next_deadline().unwrap();
    assert_eq!(silent_at, (68 + 4 * 8) * S);
    newcomer.on_timeout(silent_at);
    assert!(takes(&mut newcomer, [&mut one, &mut two], 160 * S, 173));
}

/// A sender that is not in the sample of its round, as far as this peer knows, is one that nobody chose.
#[test]
fn models_are_taken_of_those_who_can_be_in_the_sample() {
    let settings = SampledSettings { sample_size: 2, n_aggregators: 1, ..SETTINGS };
    let [mut peer, mut others @ ..] = acquainted::<12>(settings);
    // It was in a round itself, so that it knows the others.
    peer.on_active(Moment::ZERO, 1);
    others.iter_mut().for_each(|other| proves(&mut peer, other, 1));
    let order = |peer: &SampledPeer, round| peer.registry.candidates(round, 4, peer.round_max());
    let (trainers, aggregators) = (order(&peer, 1), order(&peer, 2));
    let is_taken = |peer: &SampledPeer, from, task| from == peer.peer() || peer.is_plausible(from, task);
    let of =
        |order: &[PublicKey], task| order.iter().map(|from| is_taken(&peer, *from, task)).collect::<Vec<_>>();
    let taken = of(&trainers, SampledTask::Aggregate { round: 2 });
    assert_eq!(taken[..4], [true; 4]);
    assert!(taken[4..].iter().zip(&trainers[4..]).all(|(is_taken, from)| !is_taken || *from == peer.peer()));
    others.iter_mut().for_each(|other| proves(&mut peer, other, 2));
    let taken = |peer: &SampledPeer| {
        let task = SampledTask::Train { round: 2 };
        aggregators.iter().filter(|from| is_taken(peer, **from, task)).count()
    };
    let n_own = |n: usize| usize::from(aggregators[n..].contains(&peer.peer()));
    assert_eq!(taken(&peer), 2 + n_own(2));
    // Many may have died where the run is still: then more of them are taken.
    let n_own = n_own(4);
    peer.joining.n_silences = 1;
    assert_eq!(taken(&peer), 4 + n_own);
}

/// It has nothing yet, and one of them may die.
#[test]
fn a_model_is_offered_again_to_those_who_pull_it_from_another_one() {
    let [mut peer, other, third] = acquainted(SETTINGS);
    let task = SampledTask::Train { round: 1 };
    peer.aggregation = Aggregation::default();
    peer.resume(Moment::ZERO, 1, model(1.0));
    for to in [other.peer(), third.peer()] {
        peer.on_pong(Moment::ZERO, to, 1);
    }
    let pushed = |peer: &mut SampledPeer| -> Vec<PublicKey> {
        let to = |action| match action {
            SampledAction::Push { to, .. } => Some(to),
            _ => None,
        };
        actions(peer).into_iter().filter_map(to).collect()
    };
    let first = pushed(&mut peer);
    assert!(!first.is_empty());
    for to in &first {
        peer.on_pushed(S, *to, task, PushOutcome::Busy);
    }
    assert_eq!(pushed(&mut peer), [], "not at once");
    assert_eq!(peer.next_deadline(), Some(2 * S), "after the time of a ping");
    peer.on_timeout(2 * S);
    let mut again = pushed(&mut peer);
    again.sort_unstable();
    let mut sorted = first.clone();
    sorted.sort_unstable();
    assert_eq!(again, sorted);
    for to in &first {
        peer.on_pushed(2 * S, *to, task, PushOutcome::Declined);
    }
    peer.on_timeout(4 * S);
    assert_eq!(pushed(&mut peer), [], "it has one by now");
}

/// A sender that was wanted and sends nothing keeps the round from nobody.
#[test]
fn a_second_model_of_a_round_is_pulled_where_the_first_does_not_come() {
    let [mut peer, slow, next, last] = acquainted(SETTINGS);
    let task = SampledTask::Train { round: 1 };
    let offers =
        |peer: &mut SampledPeer, from: &SampledPeer, now| peer.on_offer(now, from.peer(), task).map(drop);
    assert_eq!(offers(&mut peer, &slow, Moment::ZERO), Ok(()));
    assert_eq!(offers(&mut peer, &next, S), Err(OfferRefusal::Busy));
    let digest = peer.on_offer(2 * S, next.peer(), task).unwrap();
    assert_ne!(digest, ViewDigest::of_everything(), "nor did its view");
    assert_eq!(offers(&mut peer, &last, 9 * S), Err(OfferRefusal::Busy), "two at a time");
    peer.on_transfer_failed(9 * S, slow.peer(), task);
    assert_eq!(offers(&mut peer, &last, 9 * S), Ok(()));
}

/// Strangers have a place of their own, and lose it where their view proves nothing.
#[test]
fn unknown_senders_take_no_place_of_the_sample() {
    let [mut peer, mut known, mut third] = acquainted(SETTINGS);
    peer.on_active(Moment::ZERO, 1);
    proves(&mut peer, &mut known, 2);
    proves(&mut peer, &mut third, 2);
    let strangers: [SampledPeer; 3] = std::array::from_fn(|at| member(10 + at as u8, SETTINGS));
    let task = SampledTask::Train { round: 2 };
    assert!(wants_to(&mut peer, &strangers[0], task));
    assert!(!wants_to(&mut peer, &strangers[1], task));
    assert!(!wants_to(&mut peer, &strangers[1], SampledTask::Train { round: 3 }));
    assert!(wants_to(&mut peer, &known, task), "it is served beside them");
    let view = strangers[0].view();
    assert!(!peer.on_view_before(S, strangers[0].peer(), task, &view), "it was in no round");
    assert!(peer.on_view_before(S, known.peer(), task, &known.view()));
    peer.on_transfer_failed(S, strangers[0].peer(), task);
    assert!(wants_to(&mut peer, &strangers[1], SampledTask::Train { round: 3 }));
}

/// The file of members is older than the model.
#[test]
fn a_run_of_which_nobody_is_left_begins_again_with_those_who_come() {
    let [mut old, dead, _] = acquainted(SETTINGS);
    proves(&mut old, &mut member(7, SETTINGS), 3);
    let mut peer = stranger(0, SETTINGS, BOTH).with_view(&old.view()).with_model(90, model(1.0));
    peer.join(Moment::ZERO, Vec::new());
    while !peer.joining.is_member() {
        for (to, _) in meets(&mut peer) {
            peer.on_not_met(Moment::ZERO, to);
        }
    }
    assert_eq!(peer.own_round(), 91);
    assert!(peer.registry.membership(&dead.peer()).is_none(), "nobody waits for those who are gone");
    let mut newcomer = stranger(1, SETTINGS, BOTH);
    newcomer.join(S, vec![peer.peer()]);
    let answer = peer.on_meet(S, newcomer.peer(), &View::default(), &ViewDigest::default()).unwrap();
    newcomer.on_met(S, peer.peer(), &answer);
    assert_eq!(newcomer.round(), 91);
    knows(&mut peer, &newcomer);
    peer.on_timeout(2 * S);
    assert_eq!(pinged(&mut peer), [newcomer.peer()]);
    peer.on_pong(2 * S, newcomer.peer(), 91);
    assert!(actions(&mut peer).iter().any(|action| matches!(action, SampledAction::Push { .. })));
}

/// Nobody answered when it came back, though the run had gone on.
#[test]
fn who_went_on_alone_follows_those_who_answer_after_silence() {
    let [mut old, mut one, mut two] = acquainted(SETTINGS);
    proves(&mut old, &mut one, 24);
    proves(&mut old, &mut two, 24);
    let mut peer = stranger(9, SETTINGS, BOTH).with_view(&old.view()).with_model(24, model(1.0));
    peer.join(Moment::ZERO, Vec::new());
    while !peer.joining.is_member() {
        for (to, _) in meets(&mut peer) {
            peer.on_not_met(Moment::ZERO, to);
        }
    }
    assert_eq!(peer.own_round(), 25);
    let far = 5000;
    one.on_active(Moment::ZERO, far);
    two.on_active(Moment::ZERO, far);
    let mut now = Moment::ZERO;
    while peer.joining.n_silences == 0 {
        now = peer.next_deadline().unwrap().max(now);
        peer.on_timeout(now);
    }
    for (to, _) in meets(&mut peer) {
        let asked = [&mut one, &mut two].into_iter().find(|other| other.peer() == to);
        match asked {
            Some(asked) => {
                let answer = asked.on_meet(now, peer.peer(), &View::default(), &ViewDigest::default());
                peer.on_met(now, to, &answer.unwrap());
            }
            None => peer.on_not_met(now, to),
        }
    }
    assert_eq!(peer.registry.activity_of(&peer.peer()), Some(far), "it is in the round of the others");
}

/// Of those that it asks first most are gone, and who is not may be one that tells of itself alone.
#[test]
fn who_comes_back_joins_the_run_where_the_one_who_answers_knows_it_to_be() {
    let settings = SampledSettings { sample_size: 3, success_fraction: 0.6, ..SETTINGS };
    for at in 1..20 {
        let mut others: [SampledPeer; 4] = acquainted(settings);
        let [old, live, gone, _] = &mut others;
        proves(old, live, 24);
        proves(old, gone, 24);
        let mut peer = stranger(8 + at, settings, BOTH).with_view(&old.view()).with_model(24, model(1.0));
        let far = 44;
        live.on_active(Moment::ZERO, far);
        proves(live, gone, far);
        peer.join(Moment::ZERO, Vec::new());
        let now = Moment::ZERO;
        while peer.registry.activity_of(&peer.peer()) != Some(far) {
            let mut has_met = false;
            for action in actions(&mut peer) {
                let SampledAction::Meet { to, view, digest } = action else { continue };
                has_met = true;
                match to == live.peer() {
                    true => peer.on_met(now, to, &live.on_meet(now, peer.peer(), &view, &digest).unwrap()),
                    false => peer.on_not_met(now, to),
                }
            }
            assert!(has_met, "it hears of it at once");
        }
    }
}

/// An earlier process of this peer told of more than it remembers.
#[test]
fn who_finds_a_later_event_of_its_own_signs_another_one() {
    let [mut first, mut peer, _] = acquainted(SETTINGS);
    let mut later = stranger(1, SETTINGS, BOTH);
    later.identity.counter = 7;
    later.leave(Moment::ZERO);
    later.join(Moment::ZERO, Vec::new());
    later.leave(Moment::ZERO);
    assert_eq!(later.counter(), 9);
    knows(&mut first, &later);
    // Of those who tell all that they know, the asker is told of itself first, even where its digest has it.
    let answer = first.on_meet(S, peer.peer(), &View::default(), &ViewDigest::of_everything()).unwrap();
    assert_eq!(answer.memberships[1].counter, 9);
    peer.on_met(S, first.peer(), &answer);
    assert!(!peer.is_registered());
    peer.on_active(S, 1);
    assert!(peer.is_registered());
    assert_eq!(peer.counter(), 10);
}

/// Whether the peer wants the model of a round for a task.
fn wants_to(peer: &mut SampledPeer, of: &SampledPeer, task: SampledTask) -> bool {
    peer.on_offer(Moment::ZERO, of.peer(), task).is_ok()
}

#[test]
fn an_aggregator_pulls_twice_a_sample_of_a_round_and_four_times_in_all() {
    let [mut peer, others @ ..] = acquainted::<10>(SETTINGS);
    let of = |round| SampledTask::Aggregate { round };
    let pulled: Vec<bool> = others[..5].iter().map(|other| wants_to(&mut peer, other, of(1))).collect();
    assert_eq!(pulled, [true, true, true, true, false]);
    assert!(!wants_to(&mut peer, &others[0], of(2)), "one model of a peer at a time");
    peer.on_transfer_failed(S, others[0].peer(), of(2));
    assert!(!wants_to(&mut peer, &others[0], of(2)), "what has ended is of another round");
    let later: Vec<bool> = others[4..].iter().map(|other| wants_to(&mut peer, other, of(2))).collect();
    assert_eq!(later, [true, true, true, true, false]);
    // Eight are pulled: a third round has to wait.
    assert!(!wants_to(&mut peer, &others[8], of(3)));
    peer.on_transfer_failed(S, others[0].peer(), of(1));
    assert!(wants_to(&mut peer, &others[8], of(3)));
}

#[test]
fn an_aggregator_counts_each_trainer_once_and_only_those_of_its_round() {
    let settings = SampledSettings { sample_size: 3, ..SETTINGS };
    let [mut peer, others @ ..] = acquainted::<6>(settings);
    let send = |peer: &mut SampledPeer, other: &SampledPeer, round| {
        let task = SampledTask::Aggregate { round };
        if !wants_to(peer, other, task) {
            return false;
        }
        peer.on_model(S, other.peer(), task, model(1.0));
        true
    };
    assert!(send(&mut peer, &others[0], 1));
    assert!(!send(&mut peer, &others[0], 1), "it is there");
    assert!(send(&mut peer, &others[1], 1));
    assert_eq!(pinged(&mut peer), [], "two of three");
    assert!(send(&mut peer, &others[2], 1));
    let mut asked = pinged(&mut peer);
    assert!(!asked.is_empty());
    // What comes while the sample is looked for counts.
    assert!(send(&mut peer, &others[3], 1));
    let mut n_collected = 3;
    let mut averaged = None;
    while let Some(to) = asked.pop() {
        peer.on_pong(S, to, 1);
        for action in actions(&mut peer) {
            match action {
                SampledAction::Ping { to, .. } => asked.push(to),
                SampledAction::Collect { round: 1, .. } => n_collected += 1,
                SampledAction::Average { round } => averaged = Some((round, n_collected)),
                _ => {}
            }
        }
    }
    assert_eq!(averaged, Some((1, 4)));
    assert!(!send(&mut peer, &others[4], 1), "the round is over");
    // An average of another round is none of this one.
    peer.on_averaged(S, 2, &model(9.0));
    assert!(peer.newest().is_none());
    peer.on_averaged(S, 1, &model(1.0));
    assert_eq!(peer.newest(), Some((1, &model(1.0))));
    peer.on_average_seen(1, &model(2.0));
    assert_eq!(peer.newest(), Some((1, &model(1.0))), "the first of a round stays");
}

#[test]
fn a_trainer_pulls_one_model_of_a_round_and_three_at_a_time() {
    let [mut peer, others @ ..] = acquainted::<6>(SETTINGS);
    let of = |round| SampledTask::Train { round };
    assert!(wants_to(&mut peer, &others[0], of(1)));
    assert!(!wants_to(&mut peer, &others[1], of(1)), "it is under way");
    assert!(!wants_to(&mut peer, &others[0], of(2)), "one model of a peer at a time");
    assert!(wants_to(&mut peer, &others[1], of(2)));
    assert!(wants_to(&mut peer, &others[2], of(3)));
    assert!(!wants_to(&mut peer, &others[3], of(4)), "three at a time");
    peer.on_transfer_failed(S, others[0].peer(), of(1));
    assert!(wants_to(&mut peer, &others[3], of(4)));
}

#[test]
fn a_later_round_ends_the_training_in_progress_and_no_round_is_trained_twice() {
    let [mut peer, mut sender, mut third] = acquainted(SETTINGS);
    let mut gets = |peer: &mut SampledPeer, round| {
        proves(peer, &mut third, round);
        proves(peer, &mut sender, round);
        peer.on_model(S, sender.peer(), SampledTask::Train { round }, model(round as f32));
        actions(peer)
    };
    let train = |round| SampledAction::Train { round, model: model(round as f32) };
    assert_eq!(gets(&mut peer, 1), [train(1)]);
    assert!(peer.is_training());
    assert_eq!(gets(&mut peer, 1), []);
    assert_eq!(gets(&mut peer, 2), [SampledAction::CancelTraining, train(2)]);
    // The result of what was ended comes too late.
    peer.on_trained(S, 1, model(5.0));
    peer.on_training_failed(1);
    assert!(peer.is_training());
    peer.on_training_failed(2);
    assert!(!peer.is_training());
    assert_eq!(actions(&mut peer), []);
    assert_eq!(gets(&mut peer, 3), [train(3)], "nothing is in progress");
    assert_eq!((peer.own_round(), peer.round()), (3, 3));
}

#[test]
fn who_leaves_tells_others_and_ends_what_it_does() {
    let [mut peer, mut sender, _] = acquainted(SETTINGS);
    proves(&mut peer, &mut sender, 1);
    peer.on_model(S, sender.peer(), SampledTask::Train { round: 1 }, model(1.0));
    actions(&mut peer);
    peer.leave(S);
    let told = actions(&mut peer);
    assert_eq!(told.first(), Some(&SampledAction::CancelTraining));
    let is_leaving = |action: &SampledAction| match action {
        SampledAction::Meet { view, .. } => view.memberships[0].joined().is_none(),
        _ => false,
    };
    assert!(told.len() > 1 && told[1..].iter().all(is_leaving), "{told:?}");
    peer.leave(S);
    assert_eq!(actions(&mut peer), [], "it has left");
    assert_eq!(peer.next_deadline(), None);
}

/// Whom it meets, and whether it asks them for all that they know.
fn meets(peer: &mut SampledPeer) -> Vec<(PublicKey, bool)> {
    let everything = ViewDigest::of_everything();
    let meet = |action| match action {
        SampledAction::Meet { to, digest, .. } => Some((to, digest != everything)),
        _ => None,
    };
    actions(peer).into_iter().filter_map(meet).collect()
}

/// Two are asked for all that they know, the others are told.
#[test]
fn who_joins_asks_how_far_the_run_is() {
    let [mut first, second, third] = acquainted(SETTINGS);
    proves(&mut first, &mut member(7, SETTINGS), 2);
    let mut peer = stranger(9, SETTINGS, BOTH);
    let introduced: Vec<PublicKey> = [&first, &second, &third].map(SampledPeer::peer).to_vec();
    peer.join(Moment::ZERO, introduced.clone());
    let asked: Vec<(PublicKey, bool)> =
        introduced.iter().zip([true, true, false]).map(|(to, is_asked)| (*to, is_asked)).collect();
    assert_eq!(meets(&mut peer), asked);
    assert!(!peer.joining.is_member());
    // One has answered: it is a member when the others have, or when the time of two pings is over.
    let answer = first.on_meet(S, peer.peer(), &View::default(), &ViewDigest::default()).unwrap();
    peer.on_met(S, first.peer(), &answer);
    peer.on_not_met(S, second.peer());
    assert!(!peer.joining.is_member());
    assert_eq!(peer.next_deadline(), Some(2 * S));
    peer.on_timeout(2 * S);
    assert!(peer.joining.is_member());
    let own =
        peer.registry().membership(&peer.peer()).and_then(Membership::joined).map(|joined| joined.round);
    assert_eq!(own, Some(peer.round()));
    let n_asked = meets(&mut peer).into_iter().filter(|(_, is_asked)| *is_asked).count();
    assert_eq!(n_asked, 2, "it tells of itself, and asks who joined meanwhile");
}

/// Those who join together know nobody at first but the one through whom they come.
#[test]
fn who_has_joined_asks_for_more_as_long_as_it_is_told_of_others() {
    let n_asks = |n_others: usize| {
        let [mut home] = acquainted(SETTINGS);
        let mut peer = stranger(9, SETTINGS, BOTH);
        peer.join(Moment::ZERO, vec![home.peer()]);
        let mut n_asks = 0;
        while meets(&mut peer).contains(&(home.peer(), true)) {
            let answer = home.on_meet(S, peer.peer(), &View::default(), &ViewDigest::default()).unwrap();
            peer.on_met(S, home.peer(), &answer);
            if n_asks < n_others {
                knows(&mut home, &member(10 + n_asks as u8, SETTINGS));
            }
            n_asks += 1;
        }
        assert!(peer.joining.is_member());
        n_asks
    };
    // It asks how far the run is, who joined meanwhile, and whether there are more of them.
    assert_eq!([n_asks(0), n_asks(1), n_asks(5)], [2, 3, 7]);
    assert_eq!(n_asks(2 * VIEWS_MAX), 2 + VIEWS_MAX, "no more than all that there can be");
}

#[test]
fn who_reaches_nobody_asks_again_and_who_has_the_first_model_begins_alone() {
    let gone = member(1, SETTINGS).peer();
    let mut peer = stranger(9, SETTINGS, BOTH);
    peer.join(Moment::ZERO, vec![gone]);
    actions(&mut peer);
    peer.on_not_met(S, gone);
    assert!(!peer.joining.is_member());
    assert_eq!(peer.next_deadline(), Some(3 * S), "after the estimate of a round");
    peer.on_timeout(3 * S);
    assert_eq!(actions(&mut peer).len(), 1);
    // Silence is no answer either: it waits for one.
    assert_eq!(peer.next_deadline(), Some(5 * S));
    peer.on_timeout(5 * S);
    assert_eq!(peer.next_deadline(), Some(7 * S));
    assert!(!peer.joining.is_member());

    let mut peer = stranger(9, SETTINGS, BOTH).with_model(4, model(1.0));
    peer.join(Moment::ZERO, vec![gone]);
    actions(&mut peer);
    peer.on_not_met(S, gone);
    assert!(peer.joining.is_member());
    assert_eq!((peer.round(), peer.own_round()), (5, 5), "it goes on where the model ends");
}

/// Those whom it happens to ask first may be gone, or slow.
#[test]
fn who_goes_on_with_a_run_asks_every_member_and_waits_for_those_that_are_slow_before_it_begins_alone() {
    let others: [SampledPeer; 5] = acquainted(SETTINGS);
    let mut peer = stranger(9, SETTINGS, BOTH).with_view(&others[0].view()).with_model(4, model(1.0));
    peer.join(Moment::ZERO, Vec::new());
    let first = meets(&mut peer);
    assert_eq!(first.len(), 2, "as many as a sample has");
    for (gone, _) in first {
        peer.on_not_met(S, gone);
    }
    let more = meets(&mut peer);
    assert_eq!(more.iter().map(|(_, is_asked)| *is_asked).collect::<Vec<_>>(), [true, true]);
    peer.on_not_met(S, more[0].0);
    assert_eq!(peer.next_deadline(), Some(3 * S), "the time of two pings");
    peer.on_timeout(3 * S);
    let last = meets(&mut peer);
    assert_eq!(last.len(), 1);
    peer.on_not_met(3 * S, last[0].0);
    assert!(meets(&mut peer).is_empty() && !peer.joining.is_member(), "one of them may be slow");

    // It answers after the time of all pings, and is believed.
    let (slow, mut others): (Vec<SampledPeer>, Vec<SampledPeer>) =
        others.into_iter().partition(|other| other.peer() == more[1].0);
    let [mut slow] = <[SampledPeer; 1]>::try_from(slow).unwrap();
    slow.on_active(Moment::ZERO, 9);
    proves(&mut slow, &mut others[0], 9);
    peer.on_timeout(5 * S);
    peer.on_timeout(7 * S);
    assert!(!peer.joining.is_member());
    let answer = slow.on_meet(7 * S, peer.peer(), &View::default(), &ViewDigest::default()).unwrap();
    peer.on_met(7 * S, slow.peer(), &answer);
    assert_eq!((peer.joining.is_member(), peer.round()), (true, 9));
}

#[test]
fn who_goes_on_with_a_run_begins_alone_once_every_member_is_gone() {
    let others: [SampledPeer; 3] = acquainted(SETTINGS);
    let mut peer = stranger(9, SETTINGS, BOTH).with_view(&others[0].view()).with_model(4, model(1.0));
    peer.join(Moment::ZERO, Vec::new());
    let mut gone = BTreeSet::new();
    while !peer.joining.is_member() {
        let asked: Vec<PublicKey> = meets(&mut peer).into_iter().map(|(to, _)| to).collect();
        assert!(!asked.is_empty(), "{gone:?}");
        asked.into_iter().for_each(|to| {
            assert!(gone.insert(to), "nobody is asked twice");
            peer.on_not_met(S, to);
        });
    }
    assert_eq!((gone.len(), peer.own_round()), (3, 5));
}

/// Its view of them is from the one through which it came.
#[test]
fn who_cannot_be_dialled_calls_on_aggregators_until_it_leaves() {
    let [mut home, mut near, far] = acquainted(SETTINGS);
    let mut peer = stranger(9, SETTINGS, SampledRoles { trains: true, aggregates: Aggregates::Never });
    let mut other_tab = stranger(8, SETTINGS, SampledRoles { trains: true, aggregates: Aggregates::Never });
    other_tab.join(Moment::ZERO, Vec::new());
    knows(&mut home, &other_tab);
    peer.join(Moment::ZERO, vec![home.peer()]);
    assert_eq!(peer.next_deadline(), Some(2 * S), "no call before it takes part");
    actions(&mut peer);
    let answer = home.on_meet(S, peer.peer(), &View::default(), &ViewDigest::default()).unwrap();
    peer.on_met(S, home.peer(), &answer);
    // As a newcomer it tells some members of itself, in any role; then it calls.
    let told = meets(&mut peer);
    let called = &told[SETTINGS.sample_size..];
    assert_eq!(called[0], (home.peer(), true), "which tells it the news");
    let others: BTreeSet<(PublicKey, bool)> = called[1..].iter().copied().collect();
    assert_eq!(others, BTreeSet::from([(near.peer(), false), (far.peer(), false)]));

    // One of them is active, the other one is not for longer than the window.
    proves(&mut peer, &mut home, 5);
    proves(&mut peer, &mut near, 5);
    assert_eq!(peer.next_deadline(), Some(8 * S), "a time of silence");
    peer.on_ping(5 * S, home.peer(), 6);
    peer.on_ping(15 * S, home.peer(), 7);
    assert_eq!(peer.next_deadline(), Some(21 * S), "the next call");
    peer.on_timeout(21 * S);
    assert_eq!(meets(&mut peer), [(home.peer(), true), (near.peer(), false)]);
    peer.leave(22 * S);
    actions(&mut peer);
    assert_eq!(peer.next_deadline(), None);
}
