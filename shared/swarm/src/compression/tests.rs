#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::codec::{Density, Sparsity};
use barnraise_protocol::gradient::Refusal;
use proptest::prelude::*;

use super::*;

const PLAIN: Compression = Compression { momentum: 0.0, masking: false, clip_norm: None };

fn top_k(share: f64) -> TensorCodec {
    TensorCodec::TopK(Sparsity { density: Density::from_share(share).unwrap(), warmup_epochs: 0 })
}

/// What the receiver has of a contribution.
fn sent(compressor: &mut Compressor, mean: &[f32], n_samples: u32, epoch: u64) -> Vec<f32> {
    let bytes = compressor.compress(mean.to_vec(), n_samples, epoch).unwrap();
    compressor.codec.decode(&bytes, mean.len()).unwrap()
}

#[test]
fn floats_are_sent_as_they_are_and_nothing_is_kept() {
    for codec in [TensorCodec::F32, TensorCodec::F16] {
        let mut compressor = Compressor::new(codec, PLAIN, 2, 10);
        compressor.add_late(vec![5.0, 5.0], 10, 0);
        let mean = [0.1, -7.0];
        assert_eq!(compressor.compress(mean.to_vec(), 10, 1), codec.encode(&mean));
        compressor.settle(Fate::NotCounted);
        assert_eq!(compressor.compress(mean.to_vec(), 10, 2), codec.encode(&mean));
        assert!(compressor.state.residual.is_empty());
    }
}

#[test]
fn what_is_owed_over_a_slow_link_comes_over_a_fast_one() {
    let mut compressor = Compressor::new(TensorCodec::F32, PLAIN, 2, 10);
    compressor.keep_always();
    compressor.set_codec(top_k(0.5));
    assert_eq!(sent(&mut compressor, &[127.0, 1.0], 10, 0), [127.0, 0.0]);
    compressor.settle(Fate::Counted);
    compressor.set_codec(TensorCodec::F32);
    assert_eq!(sent(&mut compressor, &[0.0, 2.0], 10, 1), [0.0, 3.0]);
    compressor.settle(Fate::Counted);
    assert_eq!(compressor.state.residual, [0.0, 0.0]);
}

#[test]
fn what_waits_has_the_momentum_that_an_optimizer_would_give_it() {
    let settings = Compression { momentum: 0.5, masking: true, ..PLAIN };
    let mut compressor = Compressor::new(top_k(0.5), settings, 2, 10);
    for epoch in 0..3 {
        assert_eq!(sent(&mut compressor, &[127.0, 1.0], 10, epoch), [127.0, 0.0]);
        compressor.settle(Fate::Counted);
    }
    // Velocities 1, 1.5 and 1.75, times 10 samples; what was sent has none.
    assert_eq!(compressor.state.residual, [0.0, 42.5]);
    // Away for two steps, in which it goes on: 0.875 and 0.4375.
    sent(&mut compressor, &[127.0, 0.0], 10, 4);
    compressor.settle(Fate::Counted);
    assert_eq!(compressor.state.residual, [0.0, 42.5 + 8.75 + 4.375]);
}

#[test]
fn a_sent_value_loses_its_velocity_where_the_run_says_so() {
    for (masking, owed) in [(true, 4.0), (false, 2.0 + 4.0)] {
        let settings = Compression { momentum: 0.5, masking, ..PLAIN };
        let mut compressor = Compressor::new(top_k(0.5), settings, 2, 10);
        for epoch in 0..2 {
            sent(&mut compressor, &[4.0, 3.0], 1, epoch);
            compressor.settle(Fate::Counted);
        }
        // First 4 goes, then 3 + (1.5 + 3), and of the first value the gradient waits, with or without half of 4.
        assert_eq!(compressor.state.residual[0], owed);
    }
}

#[test]
fn a_contribution_that_does_not_count_comes_with_the_next_one_as_a_mean() {
    let mut compressor = Compressor::new(top_k(0.5), PLAIN, 2, 10);
    sent(&mut compressor, &[127.0, 1.0], 10, 0);
    compressor.settle(Fate::Counted);
    let before = compressor.state.residual.clone();
    sent(&mut compressor, &[254.0, 2.0], 30, 1);
    compressor.settle(Fate::NotCounted);
    assert_eq!(compressor.state.residual, before, "nothing of it arrived");
    // An epoch late: 30 samples count as 15. Their mean with 5 new ones, not their sum.
    sent(&mut compressor, &[127.0, 0.0], 5, 2);
    let fresh = &compressor.state.in_flight.as_ref().unwrap().fresh;
    assert_eq!(fresh.mean, [(15.0 * 254.0 + 5.0 * 127.0) / 20.0, 1.5]);
    assert_eq!((fresh.weight, fresh.epoch), (20.0, 2));
}

#[test]
fn one_that_may_have_counted_is_not_sent_again() {
    let mut compressor = Compressor::new(top_k(0.5), PLAIN, 2, 10);
    let mut twin = Compressor::new(top_k(0.5), PLAIN, 2, 10);
    for (compressor, fate) in [(&mut compressor, Fate::Unknown), (&mut twin, Fate::Counted)] {
        sent(compressor, &[3.0, 1.0], 10, 0);
        compressor.settle(fate);
    }
    assert_eq!(compressor.state.residual, twin.state.residual);
    // Neither is one whose fate was never told.
    let mut untold = Compressor::new(top_k(0.5), PLAIN, 2, 10);
    sent(&mut untold, &[3.0, 1.0], 10, 0);
    assert_eq!(sent(&mut untold, &[3.0, 1.0], 10, 1), sent(&mut twin, &[3.0, 1.0], 10, 1));
}

#[test]
fn the_answers_and_their_fates() {
    let fate = |refusal, was_cut| Fate::of::<()>(&Err(refusal), was_cut);
    assert_eq!(Fate::of(&Ok(()), true), Some(Fate::Counted));
    assert_eq!(fate(Refusal::Duplicate { contribution_id: 1 }, true), Some(Fate::Counted));
    for again in [Refusal::Busy, Refusal::Storage, Refusal::NotJoined] {
        assert_eq!(fate(again, false), None);
    }
    assert_eq!(fate(Refusal::NotFinite { index: 1 }, false), Some(Fate::Rejected));
    assert_eq!(fate(Refusal::Norm { max: 1.0, got: 2.0 }, false), Some(Fate::Rejected));
    assert_eq!(fate(Refusal::Rate { max: 1, got: 2 }, true), Some(Fate::NotCounted));
    let epoch = |want| Refusal::Epoch { want, got: 5 };
    assert_eq!(fate(epoch(9), false), Some(Fate::NotCounted));
    assert_eq!(fate(epoch(6), true), Some(Fate::NotCounted), "a duplicate would have been named");
    assert_eq!(fate(epoch(7), true), Some(Fate::Unknown));
}

#[test]
fn few_samples_do_not_bring_all_that_is_owed() {
    let mut compressor = Compressor::new(top_k(0.5), PLAIN, 2, 100);
    for epoch in 0..2 {
        sent(&mut compressor, &[127.0, 100.0], 64, epoch);
        compressor.settle(Fate::Counted);
    }
    assert_eq!(compressor.state.residual[0], 127.0 * 64.0, "the other one was larger then");
    // The mean of one sample with a 64th of that, and not 127 × 64 more than it.
    assert_eq!(sent(&mut compressor, &[127.0, 0.0], 1, 2)[0], 254.0);
    compressor.settle(Fate::Counted);
    assert_eq!(compressor.state.residual[0], 127.0 * 63.0);
}

#[test]
fn a_gradient_is_clipped_to_its_share_of_the_norm() {
    let settings = Compression { clip_norm: Some(5.0), ..PLAIN };
    let mut compressor = Compressor::new(top_k(1.0), settings, 2, 400);
    let length = |values: &[f32]| values[0].hypot(values[1]);
    // A quarter of a step: the root of four times the norm.
    assert!((length(&sent(&mut compressor, &[300.0, 400.0], 100, 0)) - 10.0).abs() < 0.1);
    let mut compressor = Compressor::new(top_k(1.0), settings, 2, 400);
    assert!((length(&sent(&mut compressor, &[3.0, 4.0], 800, 0)) - 5.0).abs() < 0.1);
}

#[test]
fn numbers_that_exploded_are_forgotten() {
    let fresh = || {
        let mut compressor = Compressor::new(top_k(0.5), PLAIN, 2, 10);
        sent(&mut compressor, &[3.0, 2.0], 10, 0);
        compressor.settle(Fate::Counted);
        compressor
    };
    let mut compressor = fresh();
    let error = compressor.compress(vec![0.0, f32::INFINITY], 10, 1);
    assert_eq!(error, Err(CodecError::NotFinite { index: 1 }));
    assert!(compressor.state.residual.is_empty());
    let mut compressor = fresh();
    sent(&mut compressor, &[1.0, 1.0], 10, 1);
    compressor.settle(Fate::Rejected);
    assert!(compressor.state.residual.is_empty());
}

#[test]
fn whoever_was_away_for_long_begins_anew() {
    let mut compressor = Compressor::new(top_k(0.5), PLAIN, 2, 10);
    sent(&mut compressor, &[127.0, 100.0], 10, 0);
    compressor.settle(Fate::Counted);
    assert_eq!(sent(&mut compressor, &[127.0, 0.0], 10, ABSENCE_EPOCHS_MAX + 1), [127.0, 0.0]);
}

#[test]
fn the_warm_up_sends_more() {
    let sparsity = Sparsity { density: Density::from_share(0.01).unwrap(), warmup_epochs: 30 };
    let mut compressor = Compressor::new(TensorCodec::TopK(sparsity), PLAIN, 1000, 10);
    let mean: Vec<f32> = (1..=1000).map(|value| value as f32).collect();
    for (epoch, n_sent) in [(0, 250), (10, 63), (20, 16), (30, 10)] {
        let values = sent(&mut compressor, &mean, 10, epoch);
        assert_eq!(values.iter().filter(|value| **value != 0.0).count(), n_sent);
        compressor.settle(Fate::Counted);
    }
}

#[test]
fn of_floats_what_is_late_is_kept_where_that_is_asked_for() {
    for codec in [TensorCodec::F32, TensorCodec::F16] {
        let mut dropping = Compressor::new(codec, PLAIN, 2, 10);
        let mut keeping = Compressor::new(codec, PLAIN, 2, 10);
        keeping.keep_always();
        assert_eq!((dropping.keeps(), keeping.keeps()), (false, true));
        for (compressor, want) in [(&mut dropping, [4.0, 0.0]), (&mut keeping, [3.0, 2.0])] {
            // Two epochs late: 30 samples count as 10.
            compressor.add_late(vec![2.0, 4.0], 30, 1);
            assert_eq!(sent(compressor, &[4.0, 0.0], 10, 3), want);
            compressor.settle(Fate::Counted);
            assert_eq!(sent(compressor, &[1.0, 1.0], 10, 4), [1.0, 1.0], "nothing comes twice");
            compressor.settle(Fate::NotCounted);
        }
        for value in sent(&mut keeping, &[3.0, 3.0], 10, 5) {
            assert!((value - 7.0 / 3.0).abs() < 1e-3, "{value}");
        }
    }
}

proptest! {
    /// What arrives and what is kept is what was computed, whatever the weights and whatever became of it; as far
    /// as floats add up.
    #[test]
    fn nothing_gets_lost(
        contributions in proptest::collection::vec(
            (proptest::collection::vec(-1f32..1.0, 70), 1u32..500), 1..12,
        ),
        codec in prop_oneof![Just(top_k(0.05)), Just(TensorCodec::Int4), Just(TensorCodec::Int8)],
    ) {
        let mut compressor = Compressor::new(codec, PLAIN, 70, 500);
        let (mut computed, mut arrived) = (vec![0f64; 70], vec![0f64; 70]);
        for (epoch, (mean, n_samples)) in contributions.iter().enumerate() {
            let values = sent(&mut compressor, mean, *n_samples, epoch as u64);
            compressor.settle(Fate::Counted);
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
