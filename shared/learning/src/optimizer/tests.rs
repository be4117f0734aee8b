//! The update rules against values from an independent double-precision computation of their
//! papers' formulas: two steps of learning rate 0.1 on a weight of three values and a bias.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::Preset;

use super::*;
use crate::data_shape::DataShape;

const START: [f32; 4] = [0.5, -1.0, 2.0, 0.25];
const GRADIENTS: [[f32; 4]; 2] = [[0.1, -0.2, 0.3, -0.4], [0.02, 0.5, -0.1, 0.2]];

fn optimizer(spec: OptimizerSpec) -> Optimizer {
    let model = Preset::Mlp { hidden: Vec::new() }.model(0);
    let shape = ImageShape { height: 1, width: 3, channels: 1 };
    Optimizer::new(spec, &ParameterLayout::of(&model, DataShape::Images { shape, n_classes: 1 }).unwrap())
        .unwrap()
}

fn after_two_steps(spec: OptimizerSpec) -> [f32; 4] {
    let mut optimizer = optimizer(spec);
    let mut parameters = START;
    for gradient in GRADIENTS {
        optimizer.step(&mut parameters, &gradient, 0.1).unwrap();
    }
    assert_eq!(optimizer.state().n_steps, 2);
    parameters
}

fn assert_close(got: [f32; 4], want: [f32; 4]) {
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-6, "got {got}, want {want}");
    }
}

#[test]
fn sgd_with_momentum() {
    let plain = OptimizerSpec::sgd_momentum();
    assert_close(after_two_steps(plain), [0.479, -1.012, 1.953, 0.306]);
    let decayed = OptimizerSpec::SgdMomentum { momentum: 0.9, nesterov: false, weight_decay: 0.01 };
    assert_close(after_two_steps(decayed), [0.477_560, -1.009_121, 1.947_232, 0.305_235]);
}

#[test]
fn nesterovs_momentum_looks_ahead() {
    let plain = OptimizerSpec::SgdMomentum { momentum: 0.9, nesterov: true, weight_decay: 0.0 };
    assert_close(after_two_steps(plain), [0.4691, -1.0408, 1.9377, 0.3204]);
    let decayed = OptimizerSpec::SgdMomentum { momentum: 0.9, nesterov: true, weight_decay: 0.01 };
    assert_close(after_two_steps(decayed), [0.466_833, -1.036_266, 1.928_596, 0.319_104]);
    let without = OptimizerSpec::SgdMomentum { momentum: 0.0, nesterov: true, weight_decay: 0.01 };
    let sgd = OptimizerSpec::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.01 };
    assert_eq!(after_two_steps(without), after_two_steps(sgd));
}

#[test]
fn a_reset_optimizer_is_a_fresh_one() {
    let mut optimizer = optimizer(OptimizerSpec::adam());
    let fresh = optimizer.state().clone();
    optimizer.step(&mut START.clone(), &GRADIENTS[0], 0.1).unwrap();
    assert_ne!(optimizer.state(), &fresh);
    optimizer.reset();
    assert_eq!(optimizer.state(), &fresh);
}

#[test]
fn adam_and_decoupled_weight_decay() {
    assert_close(after_two_steps(OptimizerSpec::adam()), [0.319_696, -0.944_222, 1.859_978, 0.376_634]);
    let decayed = OptimizerSpec::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    assert_close(after_two_steps(decayed), [0.318_796, -0.942_323, 1.856_08, 0.376_034]);
}

#[test]
fn lamb_scales_each_layer() {
    let spec = OptimizerSpec::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };
    assert_close(after_two_steps(spec), [0.201_066, -0.957_960, 1.779_64, 0.3025]);
}

#[test]
fn lars_follows_equations_7_to_9() {
    let eq8 = OptimizerSpec::Lars { momentum: 0.9, trust_coefficient: 0.02, weight_decay: 0.0 };
    assert_close(after_two_steps(eq8), [0.497_494, -0.999_827, 1.993_915, 0.250449]);
    let eq9 = OptimizerSpec::Lars { momentum: 0.9, trust_coefficient: 0.02, weight_decay: 0.01 };
    assert_close(after_two_steps(eq9), [0.497_483, -0.999_599, 1.993_67, 0.250_437]);
}

#[test]
fn layer_wise_rules_move_a_layer_of_zeros() {
    for spec in [OptimizerSpec::lamb(), OptimizerSpec::lars()] {
        let mut parameters = [0.0; 4];
        optimizer(spec).step(&mut parameters, &GRADIENTS[0], 0.1).unwrap();
        assert!(parameters.iter().all(|value| value.is_finite() && *value != 0.0), "{spec:?}");
    }
}

#[test]
fn a_restored_optimizer_goes_on_bit_for_bit() {
    for spec in
        [OptimizerSpec::sgd_momentum(), OptimizerSpec::adam(), OptimizerSpec::lamb(), OptimizerSpec::lars()]
    {
        let mut first = optimizer(spec);
        let mut parameters = START;
        first.step(&mut parameters, &GRADIENTS[0], 0.1).unwrap();
        let mut second = optimizer(spec);
        second.restore(first.state().clone()).unwrap();
        let mut copy = parameters;
        first.step(&mut parameters, &GRADIENTS[1], 0.1).unwrap();
        second.step(&mut copy, &GRADIENTS[1], 0.1).unwrap();
        assert_eq!(parameters.map(f32::to_bits), copy.map(f32::to_bits));
        assert_eq!(first.state(), second.state());
    }
}

#[test]
fn wrong_input_is_refused_and_changes_nothing() {
    let mut optimizer = optimizer(OptimizerSpec::sgd_momentum());
    let mut parameters = START;
    let nan = [0.0, f32::NAN, 0.0, 0.0];
    let refused = optimizer.step(&mut parameters, &nan, 0.1);
    assert_eq!(refused, Err(OptimizerError::NotFinite { index: 1 }));
    let refused = optimizer.step(&mut parameters, &[0.0; 3], 0.1);
    assert!(matches!(refused, Err(OptimizerError::Length { want: 4, got: 3, .. })));
    assert!(optimizer.step(&mut parameters, &[0.0; 4], f32::INFINITY).is_err());
    assert_eq!(parameters, START);
    assert_eq!(optimizer.state().n_steps, 0);
    let other = OptimizerState { n_steps: 0, beta_products: [1.0; 2], moments: Vec::new() };
    assert_eq!(optimizer.restore(other), Err(OptimizerError::Moments { want: 1, got: 0 }));
}

#[test]
fn a_state_that_no_step_leads_to_is_refused() {
    for spec in [OptimizerSpec::adam(), OptimizerSpec::lamb()] {
        let mut optimizer = optimizer(spec);
        let good = optimizer.state().clone();
        let mut negative = good.clone();
        negative.moments[1][2] = -0.5;
        let what = "a second moment";
        assert_eq!(optimizer.restore(negative), Err(OptimizerError::Unreachable { what, got: -0.5 }));
        for product in [f64::NAN, -0.1, 1.5, f64::INFINITY] {
            let mut forged = good.clone();
            forged.beta_products[1] = product;
            assert!(
                matches!(optimizer.restore(forged), Err(OptimizerError::Unreachable { .. })),
                "{product}"
            );
        }
        let mut first_moment = good;
        first_moment.moments[0][2] = -0.5;
        optimizer.restore(first_moment).unwrap();
    }
}

#[test]
fn an_operator_writes_what_differs_from_the_published_values() {
    let parse = |text: &str| toml::from_str::<OptimizerSpec>(text);
    assert_eq!(parse("kind = 'sgd-momentum'").unwrap(), OptimizerSpec::sgd_momentum());
    assert_eq!(parse("kind = 'adam'").unwrap(), OptimizerSpec::adam());
    assert_eq!(parse("kind = 'lamb'").unwrap(), OptimizerSpec::lamb());
    let lars = OptimizerSpec::Lars { momentum: 0.9, trust_coefficient: 0.02, weight_decay: 1e-4 };
    assert_eq!(parse("kind = 'lars'\ntrust_coefficient = 0.02\nweight_decay = 1e-4").unwrap(), lars);
    let nesterov = OptimizerSpec::SgdMomentum { momentum: 0.9, nesterov: true, weight_decay: 0.0 };
    assert_eq!(parse("kind = 'sgd-momentum'\nnesterov = true").unwrap(), nesterov);
    assert!(parse("kind = 'lars'\ntrust = 0.02").is_err());
    assert!(parse("kind = 'sgd'").is_err());
}

#[test]
fn unusable_hyperparameters_are_named() {
    let spec = OptimizerSpec::SgdMomentum { momentum: 1.0, nesterov: false, weight_decay: 0.0 };
    assert!(matches!(spec.validate(), Err(OptimizerError::Hyperparameter { name: "momentum", .. })));
    let spec = OptimizerSpec::Adam { beta1: 0.9, beta2: 0.999, epsilon: 0.0, weight_decay: 0.0 };
    assert!(matches!(spec.validate(), Err(OptimizerError::Hyperparameter { name: "epsilon", .. })));
    let spec = OptimizerSpec::Lars { momentum: 0.0, trust_coefficient: 1.0, weight_decay: f32::NAN };
    assert!(matches!(spec.validate(), Err(OptimizerError::Hyperparameter { name: "weight_decay", .. })));
}

fn all_rules() -> [OptimizerSpec; 5] {
    [
        OptimizerSpec::SgdMomentum { momentum: 0.9, nesterov: false, weight_decay: 0.01 },
        OptimizerSpec::SgdMomentum { momentum: 0.9, nesterov: true, weight_decay: 0.01 },
        OptimizerSpec::Lars { momentum: 0.9, trust_coefficient: 0.02, weight_decay: 0.01 },
        OptimizerSpec::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 },
        OptimizerSpec::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 },
    ]
}

#[test]
fn a_step_that_leaves_the_finite_numbers_leaves_no_trace() {
    for spec in all_rules() {
        let (mut optimizer, mut without) = (optimizer(spec), optimizer(spec));
        // So large that no rule bounds the step.
        let mut parameters = START.map(|value| 1e3 * value);
        let mut want = parameters;
        optimizer.step(&mut parameters, &GRADIENTS[0], 0.1).unwrap();
        without.step(&mut want, &GRADIENTS[0], 0.1).unwrap();
        let refused = optimizer.step(&mut parameters, &[9.0, 8.0, -9.0, 9.0], f32::MAX);
        assert!(matches!(refused, Err(OptimizerError::Diverged { .. })), "{spec:?}: {refused:?}");
        assert_eq!(parameters.map(f32::to_bits), want.map(f32::to_bits), "{spec:?}");
        assert_eq!(optimizer.state(), without.state(), "{spec:?}");
        optimizer.step(&mut parameters, &GRADIENTS[1], 0.1).unwrap();
        without.step(&mut want, &GRADIENTS[1], 0.1).unwrap();
        assert_eq!(parameters.map(f32::to_bits), want.map(f32::to_bits), "{spec:?}");
    }
}

/// The parameters of runs are what their optimizer made of them at the time: a later program must repeat the steps bit
/// for bit. The bits are those of the program that first had these rules.
#[test]
fn golden_bits_of_each_rule() {
    let bits = all_rules().map(|spec| {
        let mut optimizer = optimizer(spec);
        let mut parameters = START;
        for step in 0..20_u16 {
            let gradient = [1.0, -0.7, 0.4, 0.9].map(|of| of / f32::from(1 + step * step));
            optimizer.step(&mut parameters, &gradient, 0.1).unwrap();
        }
        (parameters.map(f32::to_bits), optimizer.state().moments[0][1].to_bits())
    });
    let golden = [
        ([0xbf97_68b1, 0x3e82_2abd, 0x3f8e_d242, 0xbf9e_ddc9], 0xbe75_718e),
        ([0xbf99_2a1d, 0x3e89_5d87, 0x3f8c_89e5, 0xbfa0_4553], 0xbe71_bed1),
        ([0x3e61_7f0d, 0xbf3d_4588, 0x3fda_b426, 0x3e45_ce09], 0xbc87_cce5),
        ([0xbebe_b35e, 0xbdf0_e931, 0x3f8c_8567, 0xbf1e_151a], 0xbcc0_5176),
        ([0xbf86_288c, 0x3f11_ee98, 0x3ec5_acec, 0x3cf8_fd2e], 0xbcc0_5176),
    ];
    assert_eq!(bits, golden);
}

/// Whatever the rule, and without a moment.
#[test]
fn running_statistics_move_by_what_the_gradient_says() {
    use barnraise_protocol::run::model::graph::Block;
    use barnraise_protocol::run::model::operation::{BatchNorm, Operation};

    let mut model = Preset::Mlp { hidden: Vec::new() }.model(0);
    let norm = BatchNorm { epsilon: 1e-5, momentum: 0.1, running: true };
    model.graph.blocks.push(Block::new("bn", Operation::BatchNorm(norm)));
    let shape = ImageShape { height: 1, width: 3, channels: 1 };
    let layout = ParameterLayout::of(&model, DataShape::Images { shape, n_classes: 1 }).unwrap();
    assert_eq!((layout.n_trained(), layout.n_parameters()), (6, 8));
    for spec in [OptimizerSpec::sgd_momentum(), OptimizerSpec::adam(), OptimizerSpec::lamb()] {
        let mut optimizer = Optimizer::new(spec, &layout).unwrap();
        let mut parameters = [0.5, -1.0, 2.0, 0.25, 1.0, 0.1, 3.0, 1.0];
        for _ in 0..2 {
            let gradient = [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0 / 1024.0, -0.5 / 1024.0];
            optimizer.step(&mut parameters, &gradient, 0.01).unwrap();
        }
        assert_eq!(parameters[6..], [1.0, 2.0], "{spec:?}");
        assert!(optimizer.state().moments.iter().all(|moment| moment.len() == 6));
        let saved = optimizer.state().clone();
        optimizer.restore(saved).unwrap();
    }
}

#[test]
fn a_gradient_in_parts_and_in_large_tensors_makes_the_same_step() {
    let model = Preset::Mlp { hidden: vec![300] }.model(0);
    let shape = ImageShape { height: 28, width: 28, channels: 1 };
    let layout = ParameterLayout::of(&model, DataShape::Images { shape, n_classes: 10 }).unwrap();
    let start = layout.initial_parameters(3);
    let gradient = layout.initial_parameters(4);
    let parts: Vec<Vec<f32>> =
        layout.trained().iter().map(|segment| gradient[segment.range()].to_vec()).collect();
    assert!(parts.iter().any(|part| part.len() > 3 * (1 << 16)), "several threads take a part");
    let specs =
        [OptimizerSpec::adam(), OptimizerSpec::lamb(), OptimizerSpec::lars(), OptimizerSpec::sgd_momentum()];
    for spec in specs {
        let (mut whole, mut in_parts) = (start.clone(), start.clone());
        let mut of_whole = Optimizer::new(spec, &layout).unwrap();
        let mut of_parts = of_whole.clone();
        for _ in 0..2 {
            of_whole.step(&mut whole, &gradient, 0.01).unwrap();
            of_parts.step_in_parts(&mut in_parts, &parts, 0.01).unwrap();
        }
        assert_eq!(whole, in_parts);
        assert_eq!(of_whole.state(), of_parts.state());
        let expected = of_parts.state().clone();
        let too_short = of_parts.step_in_parts(&mut in_parts, &parts[1..], 0.01).unwrap_err();
        assert!(matches!(too_short, OptimizerError::Length { .. }), "{too_short}");
        assert_eq!((of_parts.state(), in_parts), (&expected, whole), "nothing has changed");
    }
}

#[test]
fn a_moment_that_would_leave_the_range_is_refused() {
    let mut optimizer = optimizer(OptimizerSpec::adam());
    let mut parameters = START;
    let huge = [0.1, 1e25, 0.1, 0.1];
    let refused = optimizer.step(&mut parameters, &huge, 0.1).unwrap_err();
    assert_eq!(refused, OptimizerError::Diverged { index: 1 });
    assert_eq!((optimizer.state().n_steps, parameters), (0, START));
}
