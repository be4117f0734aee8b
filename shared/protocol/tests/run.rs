//! Checks of a run's names, codecs, slow links and local steps.

use barnraise_protocol::codec::{Density, Sparsity};
use barnraise_protocol::run::model::presets::{Swav, SwavTrunk};
use barnraise_protocol::run::{
    DecayDescription, GradientCodec, GradientCodecError, IdentityError, LocalSteps, ModelAverage,
    ModelExchange, NotRecomputable, OptimizerDescription, Preset, RECOMPUTED_STEPS_MAX, RunDescription,
    RunIdentity, Sampled, ScheduleDescription, Scheme, SlowLinks, SlowLinksError, Synchronous, TopK,
};
use barnraise_protocol::{TensorCodec, gradient};

use crate::fixture;

/// Of the fixture's run.
fn synchronous() -> Synchronous {
    fixture::run().synchronous().unwrap().clone()
}

fn density() -> Density {
    Density::from_share(0.01).unwrap()
}

#[test]
fn momentum_and_clipping_have_bounds() {
    let plain = TopK::plain(density(), 0);
    let full = TopK { momentum: 0.9, masking: true, clip_norm: Some(1.0), ..plain };
    for codec in [GradientCodec::F16, GradientCodec::TopK(plain), GradientCodec::TopK(full)] {
        assert_eq!(codec.validate(), Ok(()));
    }
    let masked = TopK { masking: true, ..plain };
    assert_eq!(GradientCodec::TopK(masked).validate(), Err(GradientCodecError::Masking));
    for momentum in [-0.1, 1.0, f32::NAN] {
        let error = GradientCodec::TopK(TopK { momentum, ..full }).validate();
        assert!(matches!(error, Err(GradientCodecError::Momentum(_))), "{momentum}");
    }
    for norm in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        let error = GradientCodec::TopK(TopK { clip_norm: Some(norm), ..full }).validate();
        assert!(matches!(error, Err(GradientCodecError::ClipNorm(_))), "{norm}");
    }
}

#[test]
fn a_run_has_a_name_for_addresses_and_texts_for_people() {
    let good = fixture::run().identity;
    assert_eq!(good.validate(), Ok(()));
    for id in ["", "A", "a b", "ä", &"a".repeat(65)] {
        let mut bad = good.clone();
        bad.run_id = id.to_owned();
        assert_eq!(bad.validate(), Err(IdentityError::Id), "{id}");
    }
    for (text, n_chars) in [(" ", 1), ("x", 101), ("é", 101)] {
        let mut bad = good.clone();
        bad.title = text.repeat(n_chars);
        assert_eq!(bad.validate(), Err(IdentityError::Title), "{text}");
    }
    for text in [" ".to_owned(), "é".repeat(501)] {
        let bad = RunIdentity { purpose: text, ..good.clone() };
        assert_eq!(bad.validate(), Err(IdentityError::Purpose));
    }
    let longest =
        RunIdentity { run_id: "a-90".repeat(16), title: "é".repeat(100), purpose: "é".repeat(500) };
    assert_eq!(longest.validate(), Ok(()));
}

#[test]
fn a_scheme_says_how_much_is_computed_at_once() {
    let mut run = fixture::run();
    let scheme = synchronous();
    assert!(run.sampled().is_none() && scheme.micro_batch_size > 1);
    assert_eq!(run.scheme.micro_batch_size(), scheme.micro_batch_size);
    assert_eq!(run.scheme.step_samples(), scheme.target_batch_size);
    let sampled = Sampled {
        sample_size: 3,
        n_aggregators: 2,
        success_fraction: 0.8,
        average: ModelAverage::Mean,
        exchange: ModelExchange::Sample,
        ping_timeout_ms: 2000,
        activity_window: 20,
        round_estimate_ms: 5000,
        micro_batch_size: 8,
        local_passes: 1,
        local_shards: 2,
        state_codec: scheme.state_codec,
        optimizer: scheme.optimizer,
        schedule: scheme.schedule,
    };
    run.scheme = Scheme::Sampled(sampled);
    assert_eq!(run.sampled(), Some(&sampled));
    assert!(run.synchronous().is_none());
    assert_eq!((run.scheme.micro_batch_size(), run.scheme.step_samples()), (8, 24));
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
fn slow_links_have_less_to_carry_and_the_same_momentum() {
    let slow = |codec| SlowLinks { below_bytes_per_second: 1000, codec };
    let f16 = GradientCodec::F16;
    assert_eq!(slow(GradientCodec::Int8).check(f16), Ok(()));
    for codec in [f16, GradientCodec::F32] {
        assert_eq!(slow(codec).check(f16), Err(SlowLinksError::NotShorter { slow: codec, other: f16 }));
    }
    let none = SlowLinks { below_bytes_per_second: 0, ..slow(GradientCodec::Int8) };
    assert_eq!(none.check(f16), Err(SlowLinksError::NoneIsSlow));
    let top_k = |share, momentum| {
        let density = Density::from_share(share).unwrap();
        GradientCodec::TopK(TopK { momentum, ..TopK::plain(density, 0) })
    };
    assert_eq!(slow(top_k(0.01, 0.9)).check(top_k(0.1, 0.9)), Ok(()));
    for (momentum, other) in [(0.9, f16), (0.0, top_k(0.1, 0.9)), (0.5, top_k(0.1, 0.9))] {
        let error = slow(top_k(0.01, momentum)).check(other);
        assert!(matches!(error, Err(SlowLinksError::Momentum { .. })), "{momentum}: {error:?}");
    }
    let error = slow(top_k(0.01, 1.0)).check(f16);
    assert!(matches!(error, Err(SlowLinksError::Codec(_))), "{error:?}");
}

#[test]
fn a_gradient_travels_as_its_link_allows() {
    let alike = synchronous();
    assert_eq!(alike.codec_of_link(None), alike.gradient_codec);
    assert!(alike.takes(alike.gradient_codec.encoding()) && !alike.takes(TensorCodec::Int4));
    let slow = SlowLinks { below_bytes_per_second: 1000, codec: GradientCodec::Int4 };
    let run = Synchronous { slow_links: Some(slow), ..alike };
    assert_eq!(run.codec_of_link(None), GradientCodec::Int4);
    assert_eq!(run.codec_of_link(Some(999.0)), GradientCodec::Int4);
    assert_eq!(run.codec_of_link(Some(1000.0)), run.gradient_codec);
    for (codec, is_taken) in [(TensorCodec::F16, true), (TensorCodec::Int4, true), (TensorCodec::F32, false)]
    {
        assert_eq!(run.takes(codec), is_taken, "{codec:?}");
    }
}

#[test]
fn few_local_steps_without_adam_are_recomputed() {
    let sgd = OptimizerDescription::SgdMomentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let adam = OptimizerDescription::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    let schedule = ScheduleDescription { peak: 0.1, warmup_epochs: 0, decay: DecayDescription::Constant };
    let of = |steps, optimizer| {
        let local_steps = Some(LocalSteps { steps, optimizer, schedule });
        let scheme = Synchronous { gradient_codec: GradientCodec::Int8, local_steps, ..synchronous() };
        scheme.check_recomputable(&Preset::LeNet.graph())
    };
    assert_eq!(of(RECOMPUTED_STEPS_MAX, sgd), Ok(()));
    let too_many = RECOMPUTED_STEPS_MAX + 1;
    assert_eq!(of(too_many, sgd), Err(NotRecomputable::LocalSteps(too_many)));
    assert_eq!(of(1, adam), Err(NotRecomputable::LocalSteps(1)));
    let over_slow_links = |codec| {
        let slow_links = Some(SlowLinks { below_bytes_per_second: 1, codec });
        Synchronous { slow_links, ..synchronous() }.check_recomputable(&Preset::LeNet.graph())
    };
    assert_eq!(over_slow_links(GradientCodec::Int8), Ok(()));
    let refused = Err(NotRecomputable::Codec(GradientCodec::Int4));
    assert_eq!(over_slow_links(GradientCodec::Int4), refused);
    let error = NotRecomputable::LocalSteps(1).to_string();
    assert!(error.contains("by adam; at most 32 by sgd-momentum"), "{error}");
}

#[test]
fn a_queue_and_local_steps_make_a_batch_one_whole() {
    let swav = |queue_samples| {
        Preset::Swav(Swav {
            trunk: SwavTrunk::Convolutions(vec![8]),
            hidden: 16,
            projection: 8,
            prototypes: 4,
            small_crops: 2,
            small_side: 8,
            queue_samples,
            queue_after: 0,
            frozen_epochs: 1,
        })
    };
    let alone = |kind: Preset| synchronous().check_recomputable(&kind.graph());
    assert_eq!(alone(swav(0)), Ok(()));
    assert_eq!(alone(swav(1)), Err(NotRecomputable::Queue));
    let run = fixture::run();
    assert!(run.is_cuttable());
    let sgd = OptimizerDescription::SgdMomentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let schedule = ScheduleDescription { peak: 0.1, warmup_epochs: 0, decay: DecayDescription::Constant };
    let steps = LocalSteps { steps: 2, optimizer: sgd, schedule };
    let mut stepping = run.clone();
    stepping.synchronous_mut().unwrap().local_steps = Some(steps);
    let model = swav(0).model(1);
    assert!(!stepping.is_cuttable() && !RunDescription { model, ..run }.is_cuttable());
}

#[test]
fn an_offer_has_room_for_the_list_of_its_samples() {
    let run = fixture::run();
    assert_eq!(gradient::offer_bytes_max(&run), gradient::MESSAGE_BYTES_MAX);
    let mut recomputed = run;
    recomputed.synchronous_mut().unwrap().recomputed = true;
    assert_eq!(gradient::offer_bytes_max(&recomputed), gradient::MESSAGE_BYTES_MAX + 4096);
}
