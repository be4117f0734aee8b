//! Models that a trainer and an aggregator pull, hold and push.

use super::super::pull::Pull;
use super::super::training::Pushes;
use super::*;

/// A push to a peer by its number.
type Ended = (u8, PushOutcome);

/// Who was not reached is offered the model once more.
#[test]
fn pushes_are_lost_where_all_have_failed_and_else_over_once_each_has_ended() {
    use PushOutcome::{Busy, Declined, Delivered, Failed};
    let cases: [(&[Ended], bool, bool); 8] = [
        (&[(1, Delivered)], false, false),
        (&[(1, Delivered), (2, Busy)], false, false),
        (&[(1, Delivered), (2, Declined)], false, true),
        (&[(1, Delivered), (2, Failed), (2, Failed)], false, true),
        (&[(1, Failed), (1, Failed)], false, false),
        (&[(1, Failed), (1, Failed), (2, Failed)], false, false),
        (&[(1, Failed), (1, Failed), (2, Declined)], false, true),
        (&[(1, Failed), (1, Failed), (2, Failed), (2, Failed)], true, false),
    ];
    for (ended, is_lost, are_over) in cases {
        let mut pushes = Pushes::new(2);
        let mut was_lost = false;
        for (to, outcome) in ended {
            was_lost = pushes.on_pushed(PublicKey([*to; 32]), (S, *outcome));
        }
        assert_eq!((was_lost, pushes.are_over()), (is_lost, are_over), "{ended:?}");
    }
}

#[test]
fn a_trainer_hands_in_until_each_aggregator_has_answered() {
    let [mut sender, _] = acquainted(SETTINGS);
    let mut peer = stranger(9, SETTINGS, SampledRoles { trains: true, aggregates: Aggregates::Never });
    peer.join(Moment::ZERO, Vec::new());
    proves(&mut peer, &mut sender, 1);
    peer.on_model(S, sender.peer(), SampledTask::Train { round: 1 }, model(1.0));
    assert_eq!((peer.is_training(), peer.is_handing_in()), (true, false));
    // As long as a round takes at least.
    let now = S + SETTINGS.round_estimate / 8;
    peer.on_trained(now, 1, model(2.0));
    assert_eq!((peer.is_training(), peer.is_handing_in()), (false, true));
    let aggregators = pinged(&mut peer);
    assert_eq!(aggregators.len(), 2);
    aggregators.iter().for_each(|to| peer.on_pong(now, *to, 2));
    assert_eq!((actions(&mut peer).len(), peer.is_handing_in()), (2, true));
    for (at, round, outcome, is_handing_in) in [
        (0, 1, PushOutcome::Delivered, true),
        (0, 2, PushOutcome::Delivered, true),
        (1, 2, PushOutcome::Declined, false),
    ] {
        peer.on_pushed(now, aggregators[at], SampledTask::Aggregate { round }, outcome);
        assert_eq!(peer.is_handing_in(), is_handing_in, "{at} of round {round}");
    }
}

/// Or three of them would stall a round.
#[test]
fn strangers_who_prove_that_they_are_in_the_sample_make_room_for_the_next() {
    let tasks: [fn(u64) -> SampledTask; 2] =
        [|round| SampledTask::Train { round }, |round| SampledTask::Aggregate { round }];
    for of in tasks {
        let [mut peer, ..] = acquainted::<3>(SETTINGS);
        peer.on_active(Moment::ZERO, 1);
        let [mut first, second] = [10, 11].map(|at| member(at, SETTINGS));
        first.on_active(Moment::ZERO, 2);
        assert!(wants_to(&mut peer, &first, of(2)));
        assert!(!wants_to(&mut peer, &second, of(3)));
        assert!(peer.on_view_before(Moment::ZERO, first.peer(), of(2), &first.view()));
        assert!(wants_to(&mut peer, &second, of(3)));
    }
}

#[test]
fn models_that_lie_here_take_places_of_their_round_alone() {
    let settings = SampledSettings { sample_size: 3, ..SETTINGS };
    let [mut peer, others @ ..] = acquainted::<6>(settings);
    for other in &others[..4] {
        // Many may have died: each of them can be in the sample.
        peer.joining.n_silences = 2;
        peer.on_model(Moment::ZERO, other.peer(), SampledTask::Aggregate { round: 1 }, model(1.0));
    }
    let mut n_pulled = |round, senders: std::ops::Range<u8>| {
        let pull = Pull { round, since: Moment::ZERO, is_expected: true };
        let takes = |from: &u8| peer.aggregation.pull(PublicKey([*from; 32]), pull, &settings);
        senders.filter(takes).count()
    };
    assert_eq!(n_pulled(1, 0..10), 2, "four of six are here");
    assert_eq!(n_pulled(2, 10..20), 6);
}

#[test]
fn who_leaves_in_the_midst_of_a_round_pushes_nothing() {
    let [mut peer, others @ ..] = acquainted::<3>(SETTINGS);
    peer.resume(Moment::ZERO, 1, model(1.0));
    peer.leave(S);
    actions(&mut peer);
    others.iter().for_each(|other| peer.on_pong(S, other.peer(), 1));
    assert_eq!((actions(&mut peer), peer.next_deadline()), (Vec::new(), None));
}

#[test]
fn the_newest_average_is_kept() {
    let mut peer = member(0, SETTINGS);
    for (seen, newest) in [(3, 3), (2, 3), (4, 4)] {
        peer.on_average_seen(seen, &model(seen as f32));
        assert_eq!(peer.newest(), Some((newest, &model(newest as f32))));
    }
}
