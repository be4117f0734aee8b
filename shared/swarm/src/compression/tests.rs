#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::codec::Density;
use barnraise_protocol::gradient::ContributionRefusal;
use barnraise_protocol::run::TopK;
use proptest::prelude::*;

use super::*;

fn plain(share: f64) -> TopK {
    TopK::plain(Density::from_share(share).unwrap(), 0)
}

fn top_k(share: f64) -> GradientCodec {
    GradientCodec::TopK(plain(share))
}

/// A contribution as its receiver decodes it.
fn sent(compressor: &mut Compressor, mean: &[f32], n_samples: u32, epoch: u64) -> Vec<f32> {
    let bytes = compressor.compress(mean.to_vec(), n_samples, epoch).unwrap();
    compressor.encoding().decode(&bytes, mean.len()).unwrap()
}

#[test]
fn floats_are_sent_as_they_are_and_nothing_is_kept() {
    for codec in [GradientCodec::F32, GradientCodec::F16] {
        let mut compressor = Compressor::new(codec, 2, 10);
        compressor.add_late(vec![5.0, 5.0], 10, 0);
        let mean = [0.1, -7.0];
        assert_eq!(compressor.compress(mean.to_vec(), 10, 1), codec.encoding().encode(&mean));
        compressor.settle(ContributionOutcome::NotCounted);
        assert_eq!(compressor.compress(mean.to_vec(), 10, 2), codec.encoding().encode(&mean));
        assert!(compressor.state.residual.is_empty());
    }
}

#[test]
fn the_residual_of_a_slow_link_comes_over_a_fast_one() {
    let mut compressor = Compressor::new(GradientCodec::F32, 2, 10);
    compressor.keep_always();
    compressor.set_codec(top_k(0.5));
    assert_eq!(sent(&mut compressor, &[127.0, 1.0], 10, 0), [127.0, 0.0]);
    compressor.settle(ContributionOutcome::Counted);
    compressor.set_codec(GradientCodec::F32);
    assert_eq!(sent(&mut compressor, &[0.0, 2.0], 10, 1), [0.0, 3.0]);
    compressor.settle(ContributionOutcome::Counted);
    assert_eq!(compressor.state.residual, [0.0, 0.0]);
}

#[test]
fn what_waits_has_the_momentum_that_an_optimizer_would_give_it() {
    let codec = GradientCodec::TopK(TopK { momentum: 0.5, masking: true, ..plain(0.5) });
    let mut compressor = Compressor::new(codec, 2, 10);
    for epoch in 0..3 {
        assert_eq!(sent(&mut compressor, &[127.0, 1.0], 10, epoch), [127.0, 0.0]);
        compressor.settle(ContributionOutcome::Counted);
    }
    // Velocities 1, 1.5 and 1.75, times 10 samples; what was sent has none.
    assert_eq!(compressor.state.residual, [0.0, 42.5]);
    // Away for two steps, in which it goes on: 0.875 and 0.4375.
    sent(&mut compressor, &[127.0, 0.0], 10, 4);
    compressor.settle(ContributionOutcome::Counted);
    assert_eq!(compressor.state.residual, [0.0, 42.5 + 8.75 + 4.375]);
}

#[test]
fn a_sent_value_loses_its_velocity_where_the_run_says_so() {
    for (masking, residual) in [(true, 4.0), (false, 2.0 + 4.0)] {
        let codec = GradientCodec::TopK(TopK { momentum: 0.5, masking, ..plain(0.5) });
        let mut compressor = Compressor::new(codec, 2, 10);
        for epoch in 0..2 {
            sent(&mut compressor, &[4.0, 3.0], 1, epoch);
            compressor.settle(ContributionOutcome::Counted);
        }
        // First 4 goes, then 3 + (1.5 + 3), and of the first value the gradient waits, with or without half of 4.
        assert_eq!(compressor.state.residual[0], residual);
    }
}

#[test]
fn a_contribution_that_does_not_count_comes_with_the_next_one_as_a_mean() {
    let mut compressor = Compressor::new(top_k(0.5), 2, 10);
    sent(&mut compressor, &[127.0, 1.0], 10, 0);
    compressor.settle(ContributionOutcome::Counted);
    let before = compressor.state.residual.clone();
    sent(&mut compressor, &[254.0, 2.0], 30, 1);
    compressor.settle(ContributionOutcome::NotCounted);
    assert_eq!(compressor.state.residual, before, "nothing of it arrived");
    // An epoch late: 30 samples count as 15. Their mean with 5 new ones, not their sum.
    sent(&mut compressor, &[127.0, 0.0], 5, 2);
    let fresh = &compressor.state.in_flight.as_ref().unwrap().fresh;
    assert_eq!(fresh.mean, [(15.0 * 254.0 + 5.0 * 127.0) / 20.0, 1.5]);
    assert_eq!((fresh.weight, fresh.epoch), (20.0, 2));
}

#[test]
fn one_that_may_have_counted_is_not_sent_again() {
    let mut compressor = Compressor::new(top_k(0.5), 2, 10);
    let mut twin = Compressor::new(top_k(0.5), 2, 10);
    for (compressor, outcome) in
        [(&mut compressor, ContributionOutcome::Unknown), (&mut twin, ContributionOutcome::Counted)]
    {
        sent(compressor, &[3.0, 1.0], 10, 0);
        compressor.settle(outcome);
    }
    assert_eq!(compressor.state.residual, twin.state.residual);
    // Neither is one whose outcome was never reported.
    let mut unsettled = Compressor::new(top_k(0.5), 2, 10);
    sent(&mut unsettled, &[3.0, 1.0], 10, 0);
    assert_eq!(sent(&mut unsettled, &[3.0, 1.0], 10, 1), sent(&mut twin, &[3.0, 1.0], 10, 1));
}

#[test]
fn the_outcomes_of_all_answers() {
    let outcome = |refusal, was_cut| ContributionOutcome::of::<()>(&Err(refusal), was_cut);
    assert_eq!(ContributionOutcome::of(&Ok(()), true), Some(ContributionOutcome::Counted));
    assert_eq!(
        outcome(ContributionRefusal::Duplicate { contribution_id: 1 }, true),
        Some(ContributionOutcome::Counted)
    );
    for again in [ContributionRefusal::Busy, ContributionRefusal::Storage, ContributionRefusal::NotJoined] {
        assert_eq!(outcome(again, false), None);
    }
    assert_eq!(
        outcome(ContributionRefusal::NotFinite { index: 1 }, false),
        Some(ContributionOutcome::Rejected)
    );
    assert_eq!(
        outcome(ContributionRefusal::Norm { max: 1.0, got: 2.0 }, false),
        Some(ContributionOutcome::Rejected)
    );
    assert_eq!(
        outcome(ContributionRefusal::Rate { max: 1, got: 2 }, true),
        Some(ContributionOutcome::NotCounted)
    );
    let epoch = |want| ContributionRefusal::Epoch { want, got: 5 };
    assert_eq!(outcome(epoch(9), false), Some(ContributionOutcome::NotCounted));
    assert_eq!(
        outcome(epoch(6), true),
        Some(ContributionOutcome::NotCounted),
        "a duplicate would have been named"
    );
    assert_eq!(outcome(epoch(7), true), Some(ContributionOutcome::Unknown));
}

#[test]
fn few_samples_do_not_bring_the_whole_residual() {
    let mut compressor = Compressor::new(top_k(0.5), 2, 100);
    for epoch in 0..2 {
        sent(&mut compressor, &[127.0, 100.0], 64, epoch);
        compressor.settle(ContributionOutcome::Counted);
    }
    assert_eq!(compressor.state.residual[0], 127.0 * 64.0, "the other one was larger then");
    // The mean of one sample with a 64th of that, and not 127 × 64 more than it.
    assert_eq!(sent(&mut compressor, &[127.0, 0.0], 1, 2)[0], 254.0);
    compressor.settle(ContributionOutcome::Counted);
    assert_eq!(compressor.state.residual[0], 127.0 * 63.0);
}

#[test]
fn a_gradient_is_clipped_to_its_share_of_the_norm() {
    let codec = GradientCodec::TopK(TopK { clip_norm: Some(5.0), ..plain(1.0) });
    let mut compressor = Compressor::new(codec, 2, 400);
    let length = |values: &[f32]| values[0].hypot(values[1]);
    // A quarter of a step: the root of four times the norm.
    assert!((length(&sent(&mut compressor, &[300.0, 400.0], 100, 0)) - 10.0).abs() < 0.1);
    let mut compressor = Compressor::new(codec, 2, 400);
    assert!((length(&sent(&mut compressor, &[3.0, 4.0], 800, 0)) - 5.0).abs() < 0.1);
}

#[test]
fn numbers_that_exploded_are_forgotten() {
    let fresh = || {
        let mut compressor = Compressor::new(top_k(0.5), 2, 10);
        sent(&mut compressor, &[3.0, 2.0], 10, 0);
        compressor.settle(ContributionOutcome::Counted);
        compressor
    };
    let mut compressor = fresh();
    let error = compressor.compress(vec![0.0, f32::INFINITY], 10, 1);
    assert_eq!(error, Err(CodecError::NotFinite { index: 1 }));
    assert!(compressor.state.residual.is_empty());
    let mut compressor = fresh();
    sent(&mut compressor, &[1.0, 1.0], 10, 1);
    compressor.settle(ContributionOutcome::Rejected);
    assert!(compressor.state.residual.is_empty());
}

#[test]
fn a_peer_that_was_away_for_long_begins_anew() {
    let mut compressor = Compressor::new(top_k(0.5), 2, 10);
    sent(&mut compressor, &[127.0, 100.0], 10, 0);
    compressor.settle(ContributionOutcome::Counted);
    assert_eq!(sent(&mut compressor, &[127.0, 0.0], 10, ABSENCE_EPOCHS_MAX + 1), [127.0, 0.0]);
}

#[test]
fn the_warm_up_sends_more() {
    let codec = GradientCodec::TopK(TopK { warmup_epochs: 30, ..plain(0.01) });
    let mut compressor = Compressor::new(codec, 1000, 10);
    let mean: Vec<f32> = (1..=1000).map(|value| value as f32).collect();
    for (epoch, n_sent) in [(0, 250), (10, 63), (20, 16), (30, 10)] {
        let values = sent(&mut compressor, &mean, 10, epoch);
        assert_eq!(values.iter().filter(|value| **value != 0.0).count(), n_sent);
        compressor.settle(ContributionOutcome::Counted);
    }
}

#[test]
fn of_floats_what_is_late_is_kept_where_that_is_asked_for() {
    for codec in [GradientCodec::F32, GradientCodec::F16] {
        let mut dropping = Compressor::new(codec, 2, 10);
        let mut keeping = Compressor::new(codec, 2, 10);
        keeping.keep_always();
        assert_eq!((dropping.keeps(), keeping.keeps()), (false, true));
        for (compressor, want) in [(&mut dropping, [4.0, 0.0]), (&mut keeping, [3.0, 2.0])] {
            // Two epochs late: 30 samples count as 10.
            compressor.add_late(vec![2.0, 4.0], 30, 1);
            assert_eq!(sent(compressor, &[4.0, 0.0], 10, 3), want);
            compressor.settle(ContributionOutcome::Counted);
            assert_eq!(sent(compressor, &[1.0, 1.0], 10, 4), [1.0, 1.0], "nothing comes twice");
            compressor.settle(ContributionOutcome::NotCounted);
        }
        for value in sent(&mut keeping, &[3.0, 3.0], 10, 5) {
            assert!((value - 7.0 / 3.0).abs() < 1e-3, "{value}");
        }
    }
}

#[test]
fn a_contribution_that_is_recomputed_has_no_residual() {
    for codec in [GradientCodec::Int8, top_k(0.5)] {
        let mut compressor = Compressor::new(codec, 2, 10);
        assert!(compressor.keeps());
        compressor.keep_nothing();
        assert!(!compressor.keeps());
        compressor.add_late(vec![5.0, 5.0], 10, 0);
        for epoch in 1..3 {
            let bytes = compressor.compress(vec![127.0, 0.3], 10, epoch);
            assert_eq!(bytes, codec.encoding().encode(&[127.0, 0.3]), "as a backbone encodes it");
            compressor.settle(ContributionOutcome::NotCounted);
        }
        assert!(compressor.state.residual.is_empty() && compressor.state.late.is_none());
    }
}

#[test]
fn a_residual_is_of_use_for_so_many_steps_and_not_for_one_more() {
    for (epoch, second) in [(ABSENCE_EPOCHS_MAX, 100.0), (ABSENCE_EPOCHS_MAX + 1, 0.0)] {
        let mut compressor = Compressor::new(top_k(0.5), 2, 10);
        sent(&mut compressor, &[127.0, 100.0], 10, 0);
        compressor.settle(ContributionOutcome::Counted);
        sent(&mut compressor, &[127.0, 0.0], 10, epoch);
        compressor.settle(ContributionOutcome::Counted);
        assert_eq!(compressor.state.residual[1], 10.0 * second, "{epoch}");
    }
}

#[test]
fn the_usual_weight_of_a_contribution_follows_slowly() {
    let mut compressor = Compressor::new(top_k(0.5), 2, 100);
    for (epoch, n_samples, usual) in [(0, 64, 64.0), (1, 8, 57.0), (2, 113, 64.0)] {
        sent(&mut compressor, &[127.0, 100.0], n_samples, epoch);
        compressor.settle(ContributionOutcome::Counted);
        assert_eq!(compressor.state.weight, usual);
    }
}

#[test]
fn of_stale_gradients_the_older_one_weighs_less_in_any_order() {
    let older = (vec![9.0, 0.0], 30, 1);
    let newer = (vec![0.0, 6.0], 20, 3);
    for late in [[&older, &newer], [&newer, &older]] {
        let mut compressor = Compressor::new(top_k(0.5), 2, 10);
        for (mean, n_samples, epoch) in late {
            compressor.add_late(mean.clone(), *n_samples, *epoch);
        }
        // Two epochs older: 30 samples count as 10.
        let kept = compressor.state.late.as_ref().unwrap();
        assert_eq!((kept.weight, kept.epoch), (30.0, 3));
        assert!((kept.mean[0] - 3.0).abs() < 1e-5 && (kept.mean[1] - 4.0).abs() < 1e-5, "{:?}", kept.mean);
    }
}

#[test]
fn where_a_run_has_no_momentum_no_velocity_is_kept_in_memory() {
    let velocity = |momentum| {
        let codec = GradientCodec::TopK(TopK { momentum, masking: true, ..plain(0.5) });
        let mut compressor = Compressor::new(codec, 2, 10);
        for epoch in 0..2 {
            sent(&mut compressor, &[4.0, 3.0], 1, epoch);
            compressor.settle(ContributionOutcome::Counted);
        }
        compressor.state.momentum.n_values()
    };
    assert_eq!((velocity(0.0), velocity(0.5)), (0, 2));
}

#[test]
fn the_velocity_waits_while_a_fast_link_needs_none() {
    let slow = GradientCodec::TopK(TopK { momentum: 0.5, ..plain(0.5) });
    let mut compressor = Compressor::new(slow, 2, 10);
    // Of two values one is sent; over the fast link comes the other, and then the slow one goes on where it was.
    for (epoch, codec, mean, want) in [
        (0, slow, [4.0, 3.0], [4.0, 0.0]),
        (1, GradientCodec::F32, [0.0, 0.0], [0.0, 3.0]),
        (2, slow, [0.0, 0.0], [2.0, 0.0]),
    ] {
        compressor.set_codec(codec);
        assert_eq!(sent(&mut compressor, &mean, 1, epoch), want, "{epoch}");
        compressor.settle(ContributionOutcome::Counted);
    }
    assert_eq!(compressor.state.residual, [0.0, 1.5]);
}

proptest! {
    /// What arrives and what is kept is what was computed, for all weights and outcomes; as far
    /// as floats add up.
    #[test]
    fn nothing_gets_lost(
        contributions in proptest::collection::vec(
            (proptest::collection::vec(-1f32..1.0, 70), 1u32..500), 1..12,
        ),
        codec in prop_oneof![Just(top_k(0.05)), Just(GradientCodec::Int4), Just(GradientCodec::Int8)],
    ) {
        let mut compressor = Compressor::new(codec, 70, 500);
        let (mut computed, mut arrived) = (vec![0f64; 70], vec![0f64; 70]);
        for (epoch, (mean, n_samples)) in contributions.iter().enumerate() {
            let values = sent(&mut compressor, mean, *n_samples, epoch as u64);
            compressor.settle(ContributionOutcome::Counted);
            let weight = f64::from(*n_samples);
            for (index, (mean, value)) in mean.iter().zip(values).enumerate() {
                computed[index] += weight * f64::from(*mean);
                arrived[index] += weight * f64::from(value);
            }
        }
        for (index, kept) in compressor.state.residual.iter().enumerate() {
            let off = computed[index] - arrived[index] - f64::from(*kept);
            prop_assert!(off.abs() < 0.01, "value {}: {} is missing", index, off);
        }
    }
}
