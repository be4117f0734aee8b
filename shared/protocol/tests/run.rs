//! Which compressions, links and local steps a run can have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;

use barnraise_protocol::codec::{Density, Sparsity};
use barnraise_protocol::run::{
    Compression, CompressionError, InnerDecay, InnerOptimizer, InnerSchedule, LocalSteps, ModelKind,
    ModelSpec, NotRecomputable, RECOMPUTED_STEPS_MAX, RunDescription, SlowLinks, SlowLinksError,
    is_recomputable,
};
use barnraise_protocol::{TensorCodec, gradient};

#[test]
fn momentum_and_clipping_are_for_sparse_gradients() {
    let sparsity = Sparsity { density: Density::from_share(0.01).unwrap(), warmup_epochs: 0 };
    let top_k = TensorCodec::TopK(sparsity);
    let full = Compression { momentum: 0.9, masking: true, clip_norm: Some(1.0) };
    assert_eq!(full.check(top_k), Ok(()));
    assert_eq!(full.check(TensorCodec::Int4), Err(CompressionError::Codec(TensorCodec::Int4)));
    assert_eq!(Compression::default().check(TensorCodec::F16), Ok(()));
    for momentum in [-0.1, 1.0, f32::NAN] {
        let error = Compression { momentum, ..full }.check(top_k);
        assert!(matches!(error, Err(CompressionError::Momentum(_))), "{momentum}");
    }
    for norm in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        let error = Compression { clip_norm: Some(norm), ..full }.check(top_k);
        assert!(matches!(error, Err(CompressionError::ClipNorm(_))), "{norm}");
    }
}

#[test]
fn parameters_travel_with_all_their_values() {
    for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
        assert!(codec.carries_state(), "{codec:?}");
    }
    let sparsity = Sparsity { density: Density::from_share(0.01).unwrap(), warmup_epochs: 0 };
    for codec in [TensorCodec::Int4, TensorCodec::TopK(sparsity)] {
        assert!(!codec.carries_state(), "{codec:?}");
    }
}

#[test]
fn slow_links_have_less_to_carry() {
    let slow = |codec| SlowLinks { below_bytes_per_second: 1000, codec };
    assert_eq!(slow(TensorCodec::Int8).check(TensorCodec::F16), Ok(()));
    for codec in [TensorCodec::F16, TensorCodec::F32] {
        let refused = SlowLinksError::NotShorter { slow: codec, other: TensorCodec::F16 };
        assert_eq!(slow(codec).check(TensorCodec::F16), Err(refused));
    }
    let none = SlowLinks { below_bytes_per_second: 0, ..slow(TensorCodec::Int8) };
    assert_eq!(none.check(TensorCodec::F16), Err(SlowLinksError::NoneIsSlow));
}

#[test]
fn a_gradient_travels_as_its_link_allows() {
    let alike = fixture::run();
    assert_eq!(alike.codec_of_link(None), alike.gradient_codec);
    assert!(alike.takes(alike.gradient_codec) && !alike.takes(TensorCodec::Int4));
    let slow = SlowLinks { below_bytes_per_second: 1000, codec: TensorCodec::Int4 };
    let run = RunDescription { slow_links: Some(slow), ..alike };
    assert_eq!(run.codec_of_link(None), TensorCodec::Int4);
    assert_eq!(run.codec_of_link(Some(999.0)), TensorCodec::Int4);
    assert_eq!(run.codec_of_link(Some(1000.0)), run.gradient_codec);
    assert!(run.takes(run.gradient_codec) && run.takes(TensorCodec::Int4) && !run.takes(TensorCodec::F32));
}

#[test]
fn few_local_steps_without_adam_are_recomputed() {
    let sgd = InnerOptimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let adam = InnerOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    let schedule = InnerSchedule { peak: 0.1, warmup_epochs: 0, decay: InnerDecay::Constant };
    let of = |steps, optimizer| {
        let steps = LocalSteps { steps, optimizer, schedule };
        is_recomputable(&ModelKind::LeNet, (TensorCodec::Int8, None), Some(&steps))
    };
    assert_eq!(of(RECOMPUTED_STEPS_MAX, sgd), Ok(()));
    let too_many = RECOMPUTED_STEPS_MAX + 1;
    assert_eq!(of(too_many, sgd), Err(NotRecomputable::LocalSteps(too_many)));
    assert_eq!(of(1, adam), Err(NotRecomputable::LocalSteps(1)));
    let of_codecs = |codec, slow| is_recomputable(&ModelKind::LeNet, (codec, slow), None);
    assert_eq!(of_codecs(TensorCodec::F16, Some(TensorCodec::Int8)), Ok(()));
    let refused = Err(NotRecomputable::Codec(TensorCodec::Int4));
    assert_eq!(of_codecs(TensorCodec::F16, Some(TensorCodec::Int4)), refused);
    let said = NotRecomputable::LocalSteps(1).to_string();
    assert!(said.contains("by adam; at most 32 by sgd-momentum"), "{said}");
}

#[test]
fn a_queue_and_local_steps_make_a_batch_one_whole() {
    let swav = |queue_samples| ModelKind::Swav {
        maps: vec![8],
        hidden: 16,
        projection: 8,
        prototypes: 4,
        small_crops: 2,
        small_side: 8,
        queue_samples,
        queue_after: 0,
        frozen_epochs: 1,
    };
    let alone = |kind| is_recomputable(&kind, (TensorCodec::F16, None), None);
    assert_eq!(alone(swav(0)), Ok(()));
    assert_eq!(alone(swav(1)), Err(NotRecomputable::Queue));
    let run = fixture::run();
    assert!(run.is_cuttable());
    let sgd = InnerOptimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let schedule = InnerSchedule { peak: 0.1, warmup_epochs: 0, decay: InnerDecay::Constant };
    let steps = LocalSteps { steps: 2, optimizer: sgd, schedule };
    let stepping = RunDescription { local_steps: Some(steps), ..run.clone() };
    let model = ModelSpec { kind: swav(0), ..run.model.clone() };
    assert!(!stepping.is_cuttable() && !RunDescription { model, ..run }.is_cuttable());
}

#[test]
fn an_offer_has_room_for_the_list_of_its_samples() {
    let run = fixture::run();
    assert_eq!(gradient::offer_bytes_max(&run), gradient::MESSAGE_BYTES_MAX);
    let recomputed = RunDescription { recomputed: true, ..run };
    assert_eq!(gradient::offer_bytes_max(&recomputed), gradient::MESSAGE_BYTES_MAX + 4096);
}
