//! The round with honest, slow, vanishing and dishonest contributors.

mod limits;
mod open;

use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::gradient::Offer;
use proptest::prelude::*;

use super::*;
use crate::random::SplitMix64;
use crate::robust::Aggregation;

const N: usize = 3;
const S: Duration = Duration::from_secs(1);

fn config() -> CollectionConfig {
    CollectionConfig {
        target_batch_size: 100,
        n_parameters: N,
        codec: TensorCodec::F32,
        slow_codec: None,
        micro_batch_size: 1,
        contribution_samples_max: 100,
        samples_per_second_max: 1000,
        collect_timeout: S,
        in_flight_max: 8,
        contributors_max: 16,
        is_open: false,
        aggregation: Aggregation::Mean,
        gradient_norm_max: 1e3,
    }
}

fn peer(name: u8) -> PeerKey {
    PeerKey(vec![name])
}

fn offer(id: u64, epoch: u64, n_samples: u32) -> Offer {
    let transfer = Transfer::of(&[0; N * 4]);
    let n_values = N as u64;
    Offer { contribution_id: id, epoch, n_samples, loss: 2.0, n_values, codec: TensorCodec::F32, transfer }
}

fn report(epoch: u64, n_samples: u32) -> Report {
    Report { epoch, contribution_id: u64::MAX, n_samples, samples_per_second: 50.0 }
}

fn joined(names: &[u8]) -> CollectionRound {
    let mut round = CollectionRound::new(config(), 0);
    for &name in names {
        round.on_join(peer(name), DeviceKind::BrowserCpu, AddressGroup::UNKNOWN).unwrap();
    }
    round
}

fn actions(round: &mut CollectionRound) -> Vec<CollectionAction> {
    std::iter::from_fn(|| round.poll_action()).collect()
}

/// Offers, receives and persists in one go.
fn contribute(round: &mut CollectionRound, now: Moment, name: u8, offer: &Offer, values: [f32; N]) {
    let ticket = round.on_offer(now, &peer(name), offer).unwrap();
    round.on_gradient(now, ticket, values.to_vec());
    round.on_persisted(now, ticket);
}

/// Offers have streams of their own. A round that believed such a report would wait for samples that it has.
#[test]
fn a_report_that_arrives_after_the_offer_of_its_contribution_says_nothing() {
    let mut round = joined(&[1, 2]);
    let of = |contribution_id, n_samples| Report { contribution_id, ..report(0, n_samples) };
    round.on_report(S, &peer(1), &of(7, 10)).unwrap();
    round.on_offer(S, &peer(1), &offer(7, 0, 20)).unwrap();
    round.on_report(S, &peer(1), &of(7, 15)).unwrap();
    assert_eq!(round.n_samples(), 20);
    round.on_report(S, &peer(1), &of(8, 5)).unwrap();
    assert_eq!(round.n_samples(), 25);
}

#[test]
fn uneven_contributors_make_one_weighted_step() {
    let mut round = joined(&[1, 2]);
    round.on_report(S, &peer(1), &report(0, 60)).unwrap();
    assert_eq!(actions(&mut round), []);
    round.on_report(S, &peer(2), &report(0, 40)).unwrap();
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
    contribute(&mut round, S, 1, &offer(7, 0, 60), [1.0, 2.0, 3.0]);
    contribute(&mut round, S, 2, &offer(7, 0, 40), [-1.0, 0.0, 3.0]);
    let got = actions(&mut round);
    let Some(CollectionAction::Step(mean)) = got.last() else { panic!("{got:?}") };
    assert_eq!(mean.gradient, [0.2, 1.2, 3.0]);
    assert_eq!((mean.n_samples, mean.epoch, mean.loss), (100, 0, 2.0));
    assert_eq!(mean.sequences, [0, 1]);
    assert!(matches!(got[0], CollectionAction::Persist { sequence: 0, epoch: 0, .. }));
    assert!(matches!(got[1], CollectionAction::Acknowledge(_, accepted) if accepted.n_samples == 60));
    round.on_stepped(S);
    assert_eq!(actions(&mut round), [CollectionAction::Announce(1)]);
    assert_eq!(round.n_samples(), 0);
}

/// However few samples the others have.
#[test]
fn uneven_reports_are_due_as_soon_as_they_are_enough() {
    let mut round = joined(&[1, 2]);
    for epoch in 0..3 {
        let now = S * (epoch as u32 + 1);
        round.on_report(now, &peer(1), &report(epoch, 50)).unwrap();
        round.on_report(now, &peer(2), &report(epoch, 10)).unwrap();
        assert_eq!(actions(&mut round), []);
        round.on_other_aggregators(now, OtherAggregators { n_samples: 40, is_closing: false });
        assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(epoch)]);
        contribute(&mut round, now, 1, &offer(epoch, epoch, 50), [1.0; N]);
        contribute(&mut round, now, 2, &offer(epoch, epoch, 10), [1.0; N]);
        assert!(matches!(actions(&mut round).last(), Some(CollectionAction::Step(_))));
        round.on_stepped(now);
        assert_eq!(actions(&mut round), [CollectionAction::Announce(epoch + 1)]);
    }
}

#[test]
fn what_others_have_counts_for_the_step_and_ours_may_be_nothing() {
    let mut round = joined(&[1]);
    round.on_report(S, &peer(1), &report(0, 40)).unwrap();
    round.on_other_aggregators(S, OtherAggregators { n_samples: 59, is_closing: false });
    assert_eq!(actions(&mut round), []);
    round.on_other_aggregators(S, OtherAggregators { n_samples: 60, is_closing: false });
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
    assert!(round.is_closing());
    contribute(&mut round, S, 1, &offer(7, 0, 40), [1.0, 2.0, 3.0]);
    let got = actions(&mut round);
    assert!(matches!(got.last(), Some(CollectionAction::Step(mean)) if mean.n_samples == 40), "{got:?}");
    round.reopen(S);
    // What was collected is still there, and the others still have the rest.
    let got = actions(&mut round);
    assert_eq!(got[..2], [CollectionAction::Announce(0), CollectionAction::RequestGradients(0)]);
    assert!(matches!(got.last(), Some(CollectionAction::Step(mean)) if mean.n_samples == 40), "{got:?}");
    round.on_stepped(S);
    assert_eq!(actions(&mut round), [CollectionAction::Announce(1)]);
    round.on_other_aggregators(S, OtherAggregators { n_samples: 70, is_closing: true });
    let got = actions(&mut round);
    let Some(CollectionAction::Step(mean)) = got.last() else { panic!("nobody here has anything: {got:?}") };
    assert_eq!((mean.n_samples, mean.loss, &mean.gradient[..]), (0, 0.0, &[0.0; N][..]));
}

#[test]
fn what_is_not_in_parameters_from_elsewhere_counts_by_its_age() {
    let mut round = joined(&[1, 2]);
    let late = offer(7, 0, 50);
    contribute(&mut round, S, 1, &late, [3.0; N]);
    let in_flight = round.on_offer(S, &peer(2), &offer(1, 0, 10)).unwrap();
    round.on_moved(S, 4);
    actions(&mut round);
    round.on_gradient(S, in_flight, vec![1.0; N]);
    assert_eq!(actions(&mut round), [CollectionAction::Refuse(in_flight, ContributionRefusal::Busy)]);
    round.restore(peer(1), AddressGroup::UNKNOWN, &late, &[3.0; N], 0).unwrap();
    let again = round.restore(peer(1), AddressGroup::UNKNOWN, &late, &[3.0; N], 1);
    assert_eq!(again, Err(ContributionRefusal::Duplicate { contribution_id: 7 }));
    assert_eq!(round.n_samples(), 10);
    contribute(&mut round, S, 2, &offer(2, 4, 90), [1.0; N]);
    let got = actions(&mut round);
    let Some(CollectionAction::Step(mean)) = got.last() else { panic!("{got:?}") };
    assert_eq!((mean.gradient[0], mean.n_samples, mean.sequences.len()), (1.2, 100, 2));
}

#[test]
fn what_was_accepted_counts_after_the_limits_have_changed() {
    let mut before = joined(&[1]);
    contribute(&mut before, S, 1, &offer(1, 0, 60), [2.0; N]);
    let slow = Offer { codec: TensorCodec::F16, transfer: Transfer::of(&[0; 6]), ..offer(2, 0, 20) };
    // Every limit on a contribution has changed after the restart.
    let limits = CollectionConfig {
        codec: TensorCodec::Int8,
        slow_codec: None,
        contribution_samples_max: 8,
        samples_per_second_max: 1,
        gradient_norm_max: 0.1,
        ..config()
    };
    let mut after = CollectionRound::new(limits, 0);
    after.restore(peer(1), AddressGroup::UNKNOWN, &offer(1, 0, 60), &[2.0; N], 0).unwrap();
    after.restore(peer(1), AddressGroup::UNKNOWN, &slow, &[2.0; N], 1).unwrap();
    assert_eq!((after.n_samples(), after.mean().gradient), (80, vec![2.0; N]));
    let short = after.restore(peer(1), AddressGroup::UNKNOWN, &offer(3, 0, 60), &[2.0; 1], 2);
    assert_eq!(short, Err(ContributionRefusal::Length { want: N as u64, got: 1 }));
    // New contributions are checked by them.
    after.on_join(peer(1), DeviceKind::BrowserCpu, AddressGroup::UNKNOWN).unwrap();
    let refused = after.on_offer(S, &peer(1), &offer(4, 0, 60));
    assert!(
        matches!(refused, Err(ContributionRefusal::Codec { want: TensorCodec::Int8, .. })),
        "{refused:?}"
    );
}

#[test]
fn nothing_is_acknowledged_before_it_is_stored() {
    let mut round = joined(&[1]);
    let ticket = round.on_offer(S, &peer(1), &offer(1, 0, 100)).unwrap();
    round.on_gradient(S, ticket, vec![1.0; N]);
    let got = actions(&mut round);
    assert!(
        matches!(got[..], [CollectionAction::RequestGradients(0), CollectionAction::Persist { .. }]),
        "{got:?}"
    );
    round.on_persist_failed(S, ticket);
    let got = actions(&mut round);
    assert_eq!(got[0], CollectionAction::Refuse(ticket, ContributionRefusal::Storage));
    assert_eq!(got[1], CollectionAction::Announce(0), "nothing was averaged, so nothing is stepped");
    contribute(&mut round, S, 1, &offer(1, 0, 100), [1.0; N]);
    assert!(matches!(actions(&mut round).last(), Some(CollectionAction::Step(_))));
}

#[test]
fn over_slow_links_gradients_may_travel_otherwise() {
    let mut round =
        CollectionRound::new(CollectionConfig { slow_codec: Some(TensorCodec::F16), ..config() }, 0);
    round.on_join(peer(1), DeviceKind::BrowserCpu, AddressGroup::UNKNOWN).unwrap();
    let slow = Offer { codec: TensorCodec::F16, transfer: Transfer::of(&[0; 6]), ..offer(1, 0, 10) };
    contribute(&mut round, S, 1, &slow, [1.0; N]);
    contribute(&mut round, S, 1, &offer(2, 0, 10), [2.0; N]);
    let long = Offer { codec: TensorCodec::F16, ..offer(3, 0, 10) };
    assert_eq!(round.on_offer(S, &peer(1), &long), Err(ContributionRefusal::Bytes { want: 6, got: 12 }));
    let other = Offer { codec: TensorCodec::Int8, ..offer(3, 0, 10) };
    let refused = Err(ContributionRefusal::Codec { want: TensorCodec::F32, got: TensorCodec::Int8 });
    assert_eq!(round.on_offer(S, &peer(1), &other), refused);
}

#[test]
fn every_invalid_contribution_is_refused_with_its_reason_and_the_round_goes_on() {
    let mut round = joined(&[1, 2]);
    let cases = [
        (Offer { epoch: 1, ..offer(1, 0, 10) }, ContributionRefusal::Epoch { want: 0, got: 1 }),
        (Offer { n_values: 4, ..offer(1, 0, 10) }, ContributionRefusal::Length { want: 3, got: 4 }),
        (
            Offer { codec: TensorCodec::F16, ..offer(1, 0, 10) },
            ContributionRefusal::Codec { want: TensorCodec::F32, got: TensorCodec::F16 },
        ),
        (
            Offer { transfer: Transfer::of(&[0; 40]), ..offer(1, 0, 10) },
            ContributionRefusal::Bytes { want: 12, got: 40 },
        ),
        (offer(1, 0, 0), ContributionRefusal::Samples { max: 100, got: 0 }),
        (offer(1, 0, 101), ContributionRefusal::Samples { max: 100, got: 101 }),
        (Offer { loss: f32::NAN, ..offer(1, 0, 10) }, ContributionRefusal::NotFinite { index: 3 }),
    ];
    for (invalid, want) in cases {
        assert_eq!(round.on_offer(S, &peer(1), &invalid), Err(want));
    }
    assert_eq!(round.on_offer(S, &peer(9), &offer(1, 0, 10)), Err(ContributionRefusal::NotJoined));
    let got = round.on_report(S, &peer(1), &report(0, 101));
    assert_eq!(got, Err(SessionError::TooManySamples { max: 100, got: 101 }));

    for (values, want) in [
        (vec![0.0, f32::NAN, 0.0], ContributionRefusal::NotFinite { index: 1 }),
        (vec![f32::INFINITY, 0.0, 0.0], ContributionRefusal::NotFinite { index: 0 }),
        (vec![0.0; 2], ContributionRefusal::Length { want: 3, got: 2 }),
        (vec![0.0, -1001.0, 0.0], ContributionRefusal::Norm { max: 1e3, got: 1001.0 }),
        (vec![f32::MAX; 3], ContributionRefusal::Norm { max: 1e3, got: f32::MAX }),
    ] {
        let ticket = round.on_offer(S, &peer(1), &offer(1, 0, 1)).unwrap();
        round.on_gradient(S, ticket, values);
        assert_eq!(actions(&mut round), [CollectionAction::Refuse(ticket, want)]);
    }
    contribute(&mut round, S + S, 2, &offer(1, 0, 100), [0.0, -1000.0, 0.0]);
    assert!(
        matches!(actions(&mut round).last(), Some(CollectionAction::Step(mean)) if mean.n_samples == 100)
    );
}

#[test]
fn a_contribution_counts_once() {
    let mut round = joined(&[1, 2]);
    contribute(&mut round, S, 1, &offer(5, 0, 30), [1.0; N]);
    let twice = Err(ContributionRefusal::Duplicate { contribution_id: 5 });
    assert_eq!(round.on_offer(S, &peer(1), &offer(5, 0, 30)), twice);
    // Another peer's contribution of the same number is another contribution.
    contribute(&mut round, S, 2, &offer(5, 0, 100), [1.0; N]);
    assert!(
        matches!(actions(&mut round).last(), Some(CollectionAction::Step(mean)) if mean.n_samples == 130)
    );
    let next = Err(ContributionRefusal::Epoch { want: 1, got: 0 });
    assert_eq!(round.on_offer(S, &peer(1), &offer(6, 0, 30)), next, "a step is being made");
    round.on_stepped(S);
    assert_eq!(round.on_offer(S, &peer(1), &offer(5, 0, 30)), twice, "not even after the step");
    round.restore_counted_before(peer(2), 8);
    let before = Err(ContributionRefusal::Duplicate { contribution_id: 8 });
    assert_eq!(round.on_offer(S, &peer(2), &offer(8, 1, 30)), before, "nor after a restart");
    // While one is under way, the same peer cannot offer another.
    round.on_offer(S * 2, &peer(1), &offer(6, 1, 10)).unwrap();
    assert_eq!(round.on_offer(S * 2, &peer(1), &offer(7, 1, 10)), Err(ContributionRefusal::Busy));
}

#[test]
fn nobody_claims_more_than_a_device_could_compute() {
    let mut round = joined(&[1]);
    let mut config = config();
    config.target_batch_size = 10_000;
    round.config = config;
    contribute(&mut round, S, 1, &offer(1, 0, 100), [0.0; N]);
    let soon = S + Duration::from_millis(10);
    assert_eq!(
        round.on_offer(soon, &peer(1), &offer(2, 0, 50)),
        Err(ContributionRefusal::Rate { max: 10, got: 50 })
    );
    // Leaving and coming back changes nothing.
    round.on_leave(soon, &peer(1));
    round.on_join(peer(1), DeviceKind::BrowserCpu, AddressGroup::UNKNOWN).unwrap();
    assert_eq!(
        round.on_offer(soon, &peer(1), &offer(2, 0, 50)),
        Err(ContributionRefusal::Rate { max: 10, got: 50 })
    );
    contribute(&mut round, S + S, 1, &offer(2, 0, 50), [0.0; N]);
}

#[test]
fn who_reports_and_does_not_deliver_costs_one_deadline() {
    let mut round = joined(&[1, 2]);
    round.on_report(S, &peer(1), &report(0, 100)).unwrap();
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
    round.on_timeout(S);
    assert_eq!(actions(&mut round), [], "not before the deadline");
    let deadline = round.next_deadline().unwrap();
    round.on_timeout(deadline);
    assert_eq!(actions(&mut round), [CollectionAction::Announce(0)], "no step without samples");
    // A peer that was slow once counts again with its next report, whether it left meanwhile or not.
    for _ in 0..2 {
        let now = round.next_deadline().unwrap_or(deadline);
        round.on_report(now, &peer(1), &report(0, 100)).unwrap();
        assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
        round.on_timeout(round.next_deadline().unwrap());
        assert_eq!(actions(&mut round), [CollectionAction::Announce(0)]);
        round.on_leave(now, &peer(1));
        round.on_join(peer(1), DeviceKind::BrowserCpu, AddressGroup::UNKNOWN).unwrap();
    }
    contribute(&mut round, deadline * 9, 1, &offer(1, 0, 100), [1.0; N]);
    assert!(
        matches!(actions(&mut round).last(), Some(CollectionAction::Step(mean)) if mean.n_samples == 100)
    );
}

#[test]
fn who_leaves_takes_only_its_report_along() {
    let mut round = joined(&[1, 2]);
    contribute(&mut round, S, 1, &offer(1, 0, 50), [1.0; N]);
    round.on_report(S, &peer(2), &report(0, 50)).unwrap();
    actions(&mut round);
    round.on_leave(S, &peer(2));
    assert_eq!(actions(&mut round), [CollectionAction::Announce(0)]);
    round.on_leave(S, &peer(1));
    assert_eq!(round.n_samples(), 50, "what was accepted stays");
    round.on_join(peer(3), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
    contribute(&mut round, S, 3, &offer(1, 0, 50), [3.0; N]);
    let got = actions(&mut round);
    assert!(matches!(got.last(), Some(CollectionAction::Step(mean)) if mean.gradient == [2.0; N]), "{got:?}");
}

#[test]
fn a_stalled_transfer_costs_its_own_share_only() {
    let mut round = joined(&[1, 2]);
    let slow = round.on_offer(S, &peer(1), &offer(1, 0, 40)).unwrap();
    contribute(&mut round, S, 2, &offer(1, 0, 100), [1.0; N]);
    actions(&mut round);
    round.on_timeout(round.next_deadline().unwrap());
    let got = actions(&mut round);
    assert!(
        matches!(&got[..], [CollectionAction::Abandon(_), CollectionAction::Step(mean)] if mean.n_samples == 100)
    );
    round.on_gradient(S * 9, slow, vec![1.0; N]);
    assert_eq!(actions(&mut round), [CollectionAction::Refuse(slow, ContributionRefusal::Busy)]);
    // Its samples were given back: it may claim them again in the next epoch.
    round.on_stepped(S * 9);
    round.on_offer(S * 9, &peer(1), &offer(2, 1, 40)).unwrap();
}

#[test]
fn a_restart_restores_the_same_sum() {
    let values = [[0.1, 0.7, -3.0], [1e-3, 0.2, 0.9], [5.0, -0.3, 0.11]];
    let mut live = joined(&[1]);
    let mut restored = CollectionRound::new(config(), 0);
    for (id, values) in values.into_iter().enumerate() {
        let offer = offer(id as u64, 0, 30);
        contribute(&mut live, S * (id as u32 + 1), 1, &offer, values);
        restored.restore(peer(1), AddressGroup::UNKNOWN, &offer, &values, id as u32).unwrap();
        let again = restored.restore(peer(1), AddressGroup::UNKNOWN, &offer, &values, 99);
        assert!(matches!(again, Err(ContributionRefusal::Duplicate { .. })));
    }
    restored.on_join(peer(1), DeviceKind::BrowserCpu, AddressGroup::UNKNOWN).unwrap();
    let last = offer(9, 0, 10);
    contribute(&mut live, S * 9, 1, &last, [1.0; N]);
    contribute(&mut restored, S * 9, 1, &last, [1.0; N]);
    let step = |round: &mut CollectionRound| actions(round).pop().unwrap();
    assert_eq!(step(&mut live), step(&mut restored));
}

#[test]
fn a_restart_repeats_the_same_clipping_after_the_configuration_has_changed() {
    let robust = Aggregation::CenteredClip { places: 4 };
    let with = |aggregation| {
        let mut round = CollectionRound::new(CollectionConfig { aggregation, ..config() }, 0);
        (1..=4).for_each(|name| {
            round.on_join(peer(name), DeviceKind::BrowserCpu, AddressGroup::UNKNOWN).unwrap();
        });
        round
    };
    let (mut live, mut restored) = (with(robust), with(Aggregation::Mean));
    restored.aggregate_by(robust);
    let values = [[0.1, 0.7, -3.0], [0.2, 0.6, -2.5], [0.15, 0.3, -2.0], [-500.0, 0.0, 7.0]];
    for (name, values) in (1..).zip(values) {
        contribute(&mut live, S, name, &offer(1, 0, 25), values);
        restored
            .restore(peer(name), AddressGroup::UNKNOWN, &offer(1, 0, 25), &values, u32::from(name) - 1)
            .unwrap();
    }
    let got = actions(&mut live).pop().unwrap();
    let CollectionAction::Step(mean) = got else { panic!("{got:?}") };
    assert_eq!(mean, restored.mean());
    assert_eq!((mean.n_samples, mean.aggregation), (100, robust));
    assert!(mean.gradient[0] > 0.0, "{:?}", mean.gradient);
    let verdicts: Vec<_> = mean.outcomes.iter().map(|of| of.outcome.verdict).collect();
    assert_eq!(verdicts[3], crate::robust::ClipVerdict::LeftOut, "{:?}", mean.outcomes);
    // In the middle of an epoch nothing changes; after it, the configuration counts again.
    restored.aggregate_by(Aggregation::Mean);
    assert_eq!(mean, restored.mean());
    restored.on_stepped(S);
    restored.aggregate_by(Aggregation::Mean);
    restored.restore(peer(1), AddressGroup::UNKNOWN, &offer(2, 1, 25), &[1.0; N], 0).unwrap();
    assert_eq!((restored.mean().gradient, restored.mean().aggregation), (vec![1.0; N], Aggregation::Mean));
}

#[test]
fn a_report_of_another_epoch_or_after_all_is_offered_changes_nothing() {
    let mut round = joined(&[1, 2]);
    assert_eq!((round.samples_per_second(), round.n_samples()), (0.0, 0));
    round.on_report(S, &peer(1), &report(1, 60)).unwrap();
    assert_eq!(round.n_samples(), 0, "of an epoch that is not yet");
    round.on_report(S, &peer(1), &report(0, 60)).unwrap();
    round.on_report(S, &peer(2), &report(0, 40)).unwrap();
    assert_eq!(round.samples_per_second(), 100.0);
    round.on_offer(S, &peer(1), &offer(1, 0, 60)).unwrap();
    round.on_report(S, &peer(1), &report(0, 30)).unwrap();
    assert_eq!(round.n_samples(), 100, "it crossed the request for gradients");
    round.on_report(S, &peer(2), &report(0, 50)).unwrap();
    assert_eq!(round.n_samples(), 110, "this one has not answered that yet");
    for (said, believed) in [(f32::NAN, 0.0), (-1.0, 0.0), (1e9, 1000.0)] {
        round.on_report(S, &peer(1), &Report { samples_per_second: said, ..report(0, 1) }).unwrap();
        assert_eq!(round.samples_per_second(), believed + 50.0, "{said}");
    }
}

#[test]
fn what_was_restored_may_be_enough() {
    let mut round = joined(&[]);
    round.restore(peer(1), AddressGroup::UNKNOWN, &offer(1, 0, 100), &[1.0; N], 0).unwrap();
    assert!(!round.has_actions());
    round.resume(S);
    assert!(round.has_actions());
    let got = actions(&mut round);
    assert!(matches!(got.last(), Some(CollectionAction::Step(mean)) if mean.n_samples == 100), "{got:?}");
}

#[test]
fn what_is_being_stored_is_waited_for_time_and_again() {
    let mut round = joined(&[1]);
    let ticket = round.on_offer(S, &peer(1), &offer(1, 0, 100)).unwrap();
    round.on_gradient(S, ticket, vec![1.0; N]);
    for seconds in 2..5 {
        assert_eq!(round.next_deadline(), Some(S * seconds));
        round.on_timeout(S * seconds);
    }
    round.pause();
    assert_eq!(round.next_deadline(), None, "nothing is waited for in a pause");
    round.unpause(S * 5);
    actions(&mut round);
    round.on_persisted(S * 5, ticket);
    assert!(matches!(actions(&mut round).last(), Some(CollectionAction::Step(_))));
}

#[test]
fn of_peers_that_left_as_many_are_remembered_as_there_is_room_for() {
    let mut round = joined(&[]);
    let name = |n: usize| PeerKey((n as u32).to_be_bytes().to_vec());
    let mut offered = |n: usize| {
        round.on_join(name(n), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
        let ticket = round.on_offer(S, &name(n), &offer(1, 0, 1)).unwrap();
        round.on_transfer_failed(S, ticket);
        // The first one stays.
        if n > 0 {
            round.on_leave(S, &name(n));
        }
        while round.poll_action().is_some() {}
        (round.claim_allowances.len(), [0, 1, 2].map(|n| round.claim_allowances.contains_key(&name(n))))
    };
    for n in 0..CLAIM_ALLOWANCES_MAX {
        assert_eq!(offered(n).0, n + 1);
    }
    assert_eq!(offered(CLAIM_ALLOWANCES_MAX), (CLAIM_ALLOWANCES_MAX, [true, false, true]));
    assert_eq!(
        offered(2),
        (CLAIM_ALLOWANCES_MAX, [true, false, true]),
        "one that is known takes nobody's place"
    );
}

#[test]
fn an_address_has_seats_until_the_last_is_given_back() {
    let mut seats = shares::Seats::default();
    let (here, there) = (AddressGroup(1), AddressGroup(2));
    assert!(!seats.has_others(here));
    seats.take(here);
    seats.take(here);
    assert!(!seats.has_others(here) && seats.has_others(there));
    seats.give_back(here);
    assert!(seats.n_groups() == 1 && seats.has_others(there));
    seats.give_back(here);
    seats.give_back(there);
    assert!(seats.n_groups() == 0 && !seats.has_others(there));
}

/// A Byzantine-robust round with a session for each name.
fn byzantine_robust(names: &[u8]) -> CollectionRound {
    let aggregation = Aggregation::CenteredClip { places: 16 };
    let config = CollectionConfig { aggregation, samples_per_second_max: 100_000, ..config() };
    let mut round = CollectionRound::new(config, 0);
    names
        .iter()
        .for_each(|&name| round.on_join(peer(name), DeviceKind::BrowserCpu, AddressGroup::UNKNOWN).unwrap());
    round
}

#[test]
fn dishonest_peers_that_are_first_do_not_step_without_the_others() {
    let mut round = byzantine_robust(&[1, 2, 3, 4, 5]);
    // Each claims the whole target at once.
    for dishonest in [1, 2] {
        contribute(&mut round, S, dishonest, &offer(1, 0, 100), [-9.0; N]);
    }
    for (honest, n_samples) in [(3, 10), (4, 10), (5, 10), (3, 20), (4, 20)] {
        round.on_report(S, &peer(honest), &report(0, n_samples)).unwrap();
        let got = actions(&mut round);
        assert!(!got.iter().any(|action| matches!(action, CollectionAction::RequestGradients(_))), "{got:?}");
    }
    // As each peer's claim up to the median one counts: 5 times 20.
    round.on_report(S, &peer(5), &report(0, 20)).unwrap();
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
    for (honest, n_samples) in [(3, 20), (4, 20), (5, 20)] {
        contribute(&mut round, S, honest, &offer(1, 0, n_samples), [1.0, 1.5, 2.0 + f32::from(honest)]);
    }
    let got = actions(&mut round);
    let Some(CollectionAction::Step(mean)) = got.last() else { panic!("{got:?}") };
    assert_eq!((mean.n_samples, mean.outcomes.len()), (260, 5));
    assert!(mean.gradient.iter().all(|value| *value > 0.0), "{:?}", mean.gradient);
}

#[test]
fn peers_that_say_nothing_are_waited_for_once() {
    let mut round = byzantine_robust(&[1, 2, 3, 4, 5, 6, 7]);
    for name in [1, 2, 3] {
        round.on_report(S, &peer(name), &report(0, 40)).unwrap();
        assert_eq!(actions(&mut round), []);
    }
    let deadline = round.next_deadline().unwrap();
    assert_eq!(deadline, S + S, "from the moment on at which there were enough samples");
    // Another peer gives no more time.
    round.on_join(peer(8), DeviceKind::BrowserCpu, AddressGroup::UNKNOWN).unwrap();
    round.on_timeout(deadline - Duration::from_millis(1));
    assert_eq!(actions(&mut round), []);
    round.on_timeout(deadline);
    assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
    assert_eq!(
        [1, 3, 4, 8].map(|name| round.contributors[&peer(name)].is_silent),
        [false, false, true, true]
    );
    for name in [1, 2, 3] {
        contribute(&mut round, deadline, name, &offer(1, 0, 40), [1.0; N]);
    }
    assert!(
        matches!(actions(&mut round).last(), Some(CollectionAction::Step(mean)) if mean.n_samples == 120)
    );
    // The next epoch does not wait for them again, but for one that has spoken since.
    round.on_stepped(deadline);
    let wait = |round: &mut CollectionRound, names: &[u8]| {
        for &name in names {
            round.on_report(deadline, &peer(name), &report(round.epoch(), 40)).unwrap();
        }
        actions(round).contains(&CollectionAction::RequestGradients(round.epoch()))
    };
    assert!(wait(&mut round, &[1, 2, 3]));
    for name in [1, 2, 3] {
        contribute(&mut round, deadline + S, name, &offer(2, 1, 40), [1.0; N]);
    }
    actions(&mut round);
    round.on_stepped(deadline);
    (4..=7).for_each(|name| round.on_report(S, &peer(name), &report(2, 1)).unwrap());
    let is_silent = |name| round.contributors[&peer(name)].is_silent;
    assert_eq!([4, 7, 8].map(is_silent), [false, false, true]);
    (4..=7).for_each(|name| round.on_report(S, &peer(name), &report(2, 0)).unwrap());
    assert!(!wait(&mut round, &[1, 2, 3]), "{:?}", round.next_deadline());
    assert_eq!(round.next_deadline(), Some(deadline + S));
    // Of three, the largest claim counts as much as the middle one.
    let mut three = byzantine_robust(&[1, 2, 3]);
    for (name, n_samples) in [(1, 100), (2, 10), (3, 10)] {
        three.on_report(S, &peer(name), &report(0, n_samples)).unwrap();
    }
    assert_eq!((three.n_samples(), three.n_samples_believed()), (120, 30));
    assert_eq!(actions(&mut three), []);
    // Samples on their way are claimed, too.
    let mut three = byzantine_robust(&[1, 2, 3]);
    for name in [1, 2, 3] {
        three.on_offer(S, &peer(name), &offer(1, 0, 40)).unwrap();
    }
    assert_eq!(actions(&mut three), [CollectionAction::RequestGradients(0)]);
    // With one or two there is nothing to compare.
    let mut two = byzantine_robust(&[1, 2]);
    contribute(&mut two, S, 1, &offer(1, 0, 100), [1.0; N]);
    assert!(matches!(actions(&mut two).last(), Some(CollectionAction::Step(_))));
}

/// Operations of peers that report, deliver, stall, leave, repeat themselves and are dishonest, in any order.
#[derive(Debug, Clone)]
enum PeerOperation {
    Join(u8),
    Leave(u8),
    Report(u8, u32),
    Offer { name: u8, id: u64, epoch_back: u64, n_samples: u32 },
    Deliver { newest: bool, bad: bool },
    Persist { fails: bool },
    Wait,
}

fn step() -> impl Strategy<Value = PeerOperation> {
    let name = 0u8..4;
    prop_oneof![
        name.clone().prop_map(PeerOperation::Join),
        name.clone().prop_map(PeerOperation::Leave),
        (name.clone(), 0u32..120).prop_map(|(name, n)| PeerOperation::Report(name, n)),
        (name, 0u64..9, 0u64..2, 0u32..110).prop_map(|(name, id, epoch_back, n_samples)| {
            PeerOperation::Offer { name, id, epoch_back, n_samples }
        }),
        any::<(bool, bool)>().prop_map(|(newest, bad)| PeerOperation::Deliver { newest, bad: bad && newest }),
        any::<bool>().prop_map(|fails| PeerOperation::Persist { fails }),
        Just(PeerOperation::Wait),
    ]
}

proptest! {
    /// For any behaviour of peers: each step has at least the target's samples, all of them from contributions that
    /// were persisted once, and a round that waits has a deadline.
    #[test]
    fn sequences_of_operations(
        steps in proptest::collection::vec(step(), 1..200),
        seed: u64,
        is_wary: bool,
    ) {
        let mut round = if is_wary { byzantine_robust(&[]) } else { CollectionRound::new(config(), 0) };
        let mut random = SplitMix64::new(seed);
        let (mut now, mut open, mut stored) = (S, Vec::new(), Vec::new());
        let mut accepted = 0u64;
        let mut samples = BTreeMap::new();
        for step in steps {
            match step {
                PeerOperation::Join(name) => drop(round.on_join(peer(name), DeviceKind::NativeCpu, AddressGroup::UNKNOWN)),
                PeerOperation::Leave(name) => round.on_leave(now, &peer(name)),
                PeerOperation::Report(name, n) => drop(round.on_report(now, &peer(name), &report(round.epoch(), n))),
                PeerOperation::Offer { name, id, epoch_back, n_samples } => {
                    let offer = offer(id, round.epoch().saturating_sub(epoch_back), n_samples);
                    if let Ok(ticket) = round.on_offer(now, &peer(name), &offer) {
                        samples.insert(ticket, n_samples);
                        open.push(ticket);
                    }
                }
                PeerOperation::Deliver { newest, bad } => {
                    let at = if newest { open.len().checked_sub(1) } else { Some(random.below(open.len())) };
                    if let Some(at) = at.filter(|&at| at < open.len()) {
                        let values = if bad { vec![f32::NAN; N] } else { vec![1.0; N] };
                        round.on_gradient(now, open.remove(at), values);
                    }
                }
                PeerOperation::Persist { fails } => if let Some(ticket) = stored.pop() {
                    if fails { round.on_persist_failed(now, ticket) } else { round.on_persisted(now, ticket) }
                },
                PeerOperation::Wait => {
                    now += S;
                    round.on_timeout(now);
                }
            }
            let actions = actions(&mut round);
            let steps = actions.iter().any(|action| matches!(action, CollectionAction::Step(_)));
            for action in actions {
                match action {
                    CollectionAction::Persist { ticket, epoch, .. } => {
                        prop_assert_eq!(epoch, round.epoch());
                        stored.push(ticket);
                    }
                    CollectionAction::Acknowledge(ticket, told) => {
                        prop_assert_eq!(Some(&told.n_samples), samples.get(&ticket));
                        accepted += u64::from(told.n_samples);
                    }
                    CollectionAction::Step(mean) => {
                        prop_assert!(mean.n_samples >= 100);
                        prop_assert_eq!(mean.n_samples, accepted);
                        prop_assert!(mean.gradient.iter().all(|value| (value - 1.0).abs() < 1e-5));
                        accepted = 0;
                        round.on_stepped(now);
                    }
                    CollectionAction::RequestGradients(_) => {
                        prop_assert!(steps || round.next_deadline().is_some());
                    }
                    CollectionAction::Abandon(ticket) => open.retain(|known| *known != ticket),
                    CollectionAction::Refuse(..) | CollectionAction::Announce(_) | CollectionAction::Evict(_) => {}
                }
            }
        }
    }
}
