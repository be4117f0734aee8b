#![allow(clippy::unwrap_used)]

use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::{ExpertPlace, ExpertUid, LayerId};

use super::*;
use crate::Moment;
use crate::random::SplitMix64;

const fn secs(seconds: u64) -> Moment {
    Moment::from_secs(seconds)
}

fn version(term: u64, n_steps: u64) -> CheckpointVersion {
    CheckpointVersion { term, n_steps }
}

fn place(index: u16) -> ExpertPlace {
    (LayerId(0), ExpertUid::new(&[index]).unwrap())
}

#[test]
fn an_answer_of_the_very_step_comes_first_and_then_one_that_waits_for_the_next_checkpoint() {
    let newest = version(2, 100);
    let offered = [version(1, 300), version(2, 99), version(2, 130), version(2, 100), version(2, 140)];
    assert_eq!(chosen(newest, &offered), Some(3));
    assert_eq!(chosen(newest, &offered[..3]), Some(2));
    assert_eq!(chosen(newest, &offered[..2]), None, "of before");
    assert_eq!(chosen(newest, &[version(3, 110)]), None, "another host went on from who knows where");
}

fn rows(seed: u64) -> Vec<f32> {
    let mut random = SplitMix64::new(seed);
    (0..256).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect()
}

fn mixed(a: &[f32], b: &[f32], share: f32) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + share * (b - a)).collect()
}

#[test]
fn an_answer_of_the_same_step_differs_by_rounding_alone() {
    let honest = rows(1);
    for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
        let sent = codec.decode(&codec.encode(&honest).unwrap(), honest.len()).unwrap();
        let given = (&honest[..], &mixed(&honest, &rows(3), 0.001)[..]);
        assert!(!difference(&sent, given, codec).unwrap().is_wrong(), "{codec:?}");
        let wrong = mixed(&honest, &rows(2), 0.2);
        assert!(difference(&wrong, given, codec).unwrap().is_wrong(), "{codec:?}");
    }
    let zeros = vec![0.0; honest.len()];
    assert_eq!(difference(&honest, (&zeros, &zeros), TensorCodec::F32), None);
}

#[test]
fn inputs_that_are_chosen_so_that_an_answer_cancels_convict_nobody() {
    // What is left of the terms is their rounding, which is another one on each device.
    let (here, elsewhere) = (rows(1), rows(2));
    let inputs = [1.0_f32; 512];
    let noisy = noisy(&inputs);
    assert!(noisy.iter().all(|value| (value - 1.0).abs() <= INPUT_NOISE) && noisy != inputs);
    let cancelled = (&here[..], &mixed(&here, &rows(3), 0.5)[..]);
    assert_eq!(difference(&elsewhere, cancelled, TensorCodec::F32), None);
    // Half as sensitive as that: it may differ by some rounding more.
    let sensitive = (&here[..], &mixed(&here, &rows(3), 0.05)[..]);
    let near = mixed(&here, &elsewhere, 0.08);
    assert!(!difference(&near, sensitive, TensorCodec::F32).unwrap().is_wrong());
    assert!(difference(&elsewhere, sensitive, TensorCodec::F32).unwrap().is_wrong());
}

#[test]
fn an_expert_on_its_way_is_not_far_and_one_that_makes_its_answers_up_is() {
    let (before, other) = (rows(1), rows(2));
    for moved in [0.0, 0.01, 0.1] {
        let after = mixed(&before, &other, moved);
        let drift = |claimed: &[f32]| AnswerDrift::of(claimed, (&before, &after), TensorCodec::F32).unwrap();
        for share in [-0.5, 0.0, 0.3, 1.0, 1.5] {
            let on_its_way = mixed(&before, &after, share);
            assert!(!drift(&on_its_way).is_far(), "{moved} {share}: {:?}", drift(&on_its_way));
        }
        // Where the expert has hardly moved, little can be made up.
        let made_up = rows(3);
        assert!(drift(&made_up).is_far(), "{moved}: {:?}", drift(&made_up));
        let grown: Vec<f32> = before.iter().map(|value| 9.0 * value).collect();
        assert!(drift(&grown).is_far());
    }
    assert_eq!(
        AnswerDrift::of(&before, (&before, &other), TensorCodec::F32),
        None,
        "too far from each other"
    );
    let zeros = vec![0.0; before.len()];
    assert_eq!(AnswerDrift::of(&before, (&zeros, &zeros), TensorCodec::F32), None);
    assert_eq!(AnswerDrift::of(&before[1..], (&before, &before), TensorCodec::F32), None);
}

#[test]
fn a_trainer_keeps_some_answers_of_the_last_minutes_within_its_bytes() {
    let mut samples = AnswerSamples::new(7);
    let (mut n_kept, n_bytes) = (0, 100_000);
    for at in 0..120_000_u64 {
        let now = Duration::from_millis(at);
        if samples.wants(now, n_bytes) {
            samples.keep(now, n_bytes, at);
            n_kept += 1;
        }
        assert!(samples.newest_first().count() * n_bytes <= ANSWER_BYTES_MAX);
    }
    // 41 take half of the bytes, in 90 of the 120 seconds.
    assert!((30..90).contains(&n_kept), "{n_kept}");
    let kept: Vec<u64> = samples.newest_first().copied().collect();
    assert!(kept.iter().all(|at| kept[0] - at <= 90_000) && kept.is_sorted_by(|a, b| a > b), "{kept:?}");
    assert!(samples.any().is_some_and(|any| kept.contains(any)));
    let third = kept[2];
    assert_eq!(samples.take(|at| *at == third), Some(third));
    assert_eq!(samples.take(|at| *at == third), None);
    assert!(!samples.wants(secs(500), ANSWER_BYTES_MAX / 2 + 1), "one alone would take all");
    samples.forget_old(secs(120 + 91));
    assert!(samples.is_empty() && samples.wants(secs(500), n_bytes));
}

#[test]
fn a_host_that_is_far_again_and_again_gets_no_places() {
    let (host, other) = (PublicKey([1; 32]), PublicKey([2; 32]));
    let mut answers = FarAnswers::default();
    let mut far = |at, host, index, n_steps| {
        answers.on_between(secs(at), host, (place(index), version(1, n_steps)), true)
    };
    assert!(!far(0, host, 0, 10));
    assert!((1..9).all(|at| !far(at, host, 0, 10)), "one excursion");
    assert!(!far(60, host, 0, 80) && !far(60, other, 0, 80));
    assert!(!far(3630, host, 1, 80), "the first is long ago");
    assert!(far(3632, host, 2, 80));
    assert_eq!(answers.distrusted_for(secs(60), &other), None);
    assert_eq!(answers.distrusted_for(secs(3632), &host), Some(DISTRUSTED_FOR));
    assert_eq!(answers.distrusted_for(secs(3632) + DISTRUSTED_FOR, &host), None);
}

#[test]
fn a_host_that_is_near_more_often_is_trusted() {
    let host = PublicKey([1; 32]);
    let mut answers = FarAnswers::default();
    let mut between = |at, is_far| answers.on_between(secs(at), host, (place(0), version(1, at)), is_far);
    assert!((0..4).all(|at| !between(at, false)));
    assert!((4..7).all(|at| !between(at, true)), "three of seven");
    assert!(between(7, true), "four of eight");
}

#[test]
fn any_number_of_hosts_takes_bounded_memory() {
    let mut answers = FarAnswers::default();
    let named = |number: u32| {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        PublicKey(key)
    };
    for number in 0..5000_u32 {
        answers.on_between(secs(number.into()), named(number), (place(0), version(1, 1)), true);
    }
    assert_eq!(answers.n_hosts(), 4096);
    for at in 0..1000 {
        answers.on_between(secs(5000), named(4999), (place(0), version(1, at)), false);
    }
    assert_eq!(answers.n_hosts(), 4096);
}
