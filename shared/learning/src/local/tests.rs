//! Trajectories on a quadratic, whose values are known in closed form: the loss is `Σ c (w - 1)² / 2`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::Preset;

use super::*;
use crate::data_shape::DataShape;
use crate::schedule::Decay;

const START: [f32; 4] = [0.5, -1.0, 2.0, 0.25];
const CURVATURE: [f32; 4] = [1.0, 0.1, 2.0, 0.5];
const RATE: f32 = 0.125;

fn layout() -> ParameterLayout {
    let model = Preset::Mlp { hidden: Vec::new() }.model(0);
    let shape = ImageShape { height: 1, width: 3, channels: 1 };
    ParameterLayout::of(&model, DataShape::Images { shape, n_classes: 1 }).unwrap()
}

fn describe(steps: u32, optimizer: OptimizerSpec, schedule: ScheduleSpec) -> run::LocalSteps {
    run::LocalSteps { steps, optimizer: optimizer.into(), schedule: schedule.into() }
}

fn described(steps: u32, optimizer: OptimizerSpec) -> run::LocalSteps {
    describe(steps, optimizer, ScheduleSpec::constant(RATE))
}

fn local(steps: u32, optimizer: OptimizerSpec) -> LocalSteps {
    LocalSteps::new(&described(steps, optimizer), &layout(), &START).unwrap()
}

fn gradient(at: &[f32]) -> Vec<f32> {
    at.iter().zip(CURVATURE).map(|(w, c)| c * (w - 1.0)).collect()
}

fn walk(local: &mut LocalSteps, n_steps: u32) {
    for _ in 0..n_steps {
        let gradient = gradient(local.parameters());
        local.step(&gradient, 64);
    }
}

fn assert_close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-6, "got {got}, want {want}");
    }
}

#[test]
fn a_trajectory_of_one_step_is_the_mean_gradient_times_the_learning_rate() {
    let mut local = local(1, OptimizerSpec::plain_sgd());
    let gradients = [[1.0, -2.0, 3.0, -4.0], [0.5, 0.5, 0.5, 0.5]];
    local.step(&gradients[0], 30);
    assert_eq!(local.parameters(), START, "the next trajectory starts where the first one did");
    local.step(&gradients[1], 10);
    let mean = [0, 1, 2, 3].map(|index| RATE * (0.75 * gradients[0][index] + 0.25 * gradients[1][index]));
    assert_close(&local.take().unwrap().unwrap(), &mean);
    assert_eq!(local.take(), Ok(None));
}

#[test]
fn a_trajectory_is_what_as_many_steps_on_one_machine_give() {
    for spec in [
        OptimizerSpec::plain_sgd(),
        OptimizerSpec::adam(),
        OptimizerSpec::SgdMomentum { momentum: 0.9, nesterov: true, weight_decay: 0.01 },
    ] {
        let mut local = local(5, spec);
        walk(&mut local, 5);
        let mut alone = Optimizer::new(spec, &layout()).unwrap();
        let mut parameters = START;
        for _ in 0..5 {
            let gradient = gradient(&parameters);
            alone.step(&mut parameters, &gradient, RATE).unwrap();
        }
        let difference: Vec<f32> = START.iter().zip(parameters).map(|(epoch, end)| epoch - end).collect();
        assert_eq!(local.take().unwrap().unwrap(), difference);
        // The outer step at rate 1 ends where the trajectory does.
        let mut outer = Optimizer::new(OptimizerSpec::plain_sgd(), &layout()).unwrap();
        let mut epoch = START;
        outer.step(&mut epoch, &difference, 1.0).unwrap();
        assert_close(&epoch, &parameters);
    }
}

#[test]
fn a_fast_peer_follows_several_trajectories_and_a_slow_one_less_than_one() {
    // Plain SGD has no state: all its trajectories are alike.
    let mut one = local(4, OptimizerSpec::plain_sgd());
    walk(&mut one, 4);
    let whole = one.take().unwrap().unwrap();
    let mut fast = local(4, OptimizerSpec::plain_sgd());
    walk(&mut fast, 12);
    assert_close(&fast.take().unwrap().unwrap(), &whole);
    let mut slow = local(4, OptimizerSpec::plain_sgd());
    walk(&mut slow, 1);
    let first = slow.take().unwrap().unwrap();
    assert_close(&first, &gradient(&START).iter().map(|slope| RATE * slope).collect::<Vec<_>>());
    assert_eq!(slow.parameters(), START, "the next trajectory starts at the epoch again");
    // A trajectory that is cut short counts with its samples.
    let mut cut = local(4, OptimizerSpec::plain_sgd());
    walk(&mut cut, 5);
    let mean: Vec<f32> = whole.iter().zip(&first).map(|(whole, first)| (4.0 * whole + first) / 5.0).collect();
    assert_close(&cut.take().unwrap().unwrap(), &mean);
}

#[test]
fn a_new_epoch_is_begun_with_the_optimizer_of_the_old_one() {
    let mut local = local(2, OptimizerSpec::adam());
    walk(&mut local, 3);
    local.begin(&[0.0; 4]);
    assert_eq!((local.parameters(), local.epoch_parameters()), (&[0.0; 4][..], &[0.0; 4][..]));
    assert_eq!(local.take(), Ok(None), "what was not taken belonged to the old parameters");
    assert_eq!(local.optimizer.state().n_steps, 3);
    local.reset();
    assert_eq!(local.optimizer.state().n_steps, 0);
}

#[test]
fn a_stateless_contribution_depends_on_its_own_samples_alone() {
    let momentum = OptimizerSpec::SgdMomentum { momentum: 0.9, nesterov: false, weight_decay: 0.01 };
    let once = |is_stateless: bool, n_steps_before: u32, n_takes_before: usize| {
        let local = local(4, momentum);
        let mut local = if is_stateless { local.stateless() } else { local };
        for _ in 0..n_takes_before {
            walk(&mut local, n_steps_before);
            local.take().unwrap();
        }
        // Steps that were not taken before new parameters came do not count either.
        walk(&mut local, 3);
        local.begin(&START);
        // One and a half trajectories; the second goes on with the momentum of the first.
        walk(&mut local, 6);
        local.take().unwrap().unwrap()
    };
    let alone = once(true, 0, 0);
    for (n_steps, n_takes) in [(1, 1), (4, 3), (7, 2)] {
        assert_eq!(once(true, n_steps, n_takes), alone, "after {n_takes} of {n_steps} steps");
        assert_ne!(once(false, n_steps, n_takes), alone, "or nothing was shown");
    }
}

#[test]
fn the_learning_rate_is_that_of_the_epoch() {
    let schedule = ScheduleSpec { peak: 0.5, warmup_steps: 0, decay: Decay::Step { every: 10, factor: 0.5 } };
    let described = describe(1, OptimizerSpec::plain_sgd(), schedule);
    let mut local = LocalSteps::new(&described, &layout(), &START).unwrap();
    for (epoch, rate) in [(0, 0.5), (10, 0.25), (25, 0.125)] {
        local.on_epoch(epoch);
        local.step(&[1.0; 4], 1);
        assert_close(&local.take().unwrap().unwrap(), &[rate; 4]);
    }
}

#[test]
fn values_that_are_not_finite_are_reported_and_dropped() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut local = local(3, OptimizerSpec::adam());
        walk(&mut local, 4);
        local.step(&[0.0, 0.0, bad, 0.0], 64);
        walk(&mut local, 4);
        assert_eq!(local.take(), Err(2));
        assert_eq!(local.optimizer.state().n_steps, 0);
        walk(&mut local, 1);
        assert!(local.take().unwrap().unwrap().iter().all(|value| value.is_finite()));
    }
}

#[test]
fn an_invalid_configuration_is_named() {
    let rate = ScheduleSpec::constant(RATE);
    for got in [0, STEPS_MAX + 1] {
        let error = check(&describe(got, OptimizerSpec::adam(), rate));
        assert_eq!(error, Err(LocalStepsError::Steps { max: STEPS_MAX, got }));
    }
    for by_layer in [OptimizerSpec::lamb(), OptimizerSpec::lars()] {
        assert_eq!(check(&describe(1, by_layer, rate)), Err(LocalStepsError::Kind(by_layer)));
    }
    let wild = OptimizerSpec::SgdMomentum { momentum: 1.0, nesterov: false, weight_decay: 0.0 };
    assert!(matches!(check(&describe(1, wild, rate)), Err(LocalStepsError::Optimizer(_))));
    let none = ScheduleSpec::constant(0.0);
    assert!(matches!(check(&describe(1, OptimizerSpec::adam(), none)), Err(LocalStepsError::Schedule(_))));
}

#[test]
fn a_description_has_the_configured_values() {
    for decay in [
        Decay::Constant,
        Decay::Cosine { steps: 9, floor: 0.01 },
        Decay::Linear { steps: 8, floor: 0.02 },
        Decay::Step { every: 7, factor: 0.5 },
    ] {
        let schedule = ScheduleSpec { peak: 0.5, warmup_steps: 3, decay };
        let nesterov = OptimizerSpec::SgdMomentum { momentum: 0.8, nesterov: true, weight_decay: 0.1 };
        for optimizer in [OptimizerSpec::adam(), nesterov, OptimizerSpec::lamb(), OptimizerSpec::lars()] {
            let described = describe(16, optimizer, schedule);
            assert_eq!(OptimizerSpec::from(described.optimizer), optimizer);
            assert_eq!(ScheduleSpec::from(described.schedule), schedule);
        }
    }
}

/// The division of trajectories into contributions does not matter, as long as none is cut: their mean over samples is
/// the same.
#[test]
fn contributions_of_parts_have_the_mean_of_the_whole() {
    let spec = OptimizerSpec::SgdMomentum { momentum: 0.5, nesterov: false, weight_decay: 0.0 };
    let contribute = |parts: &[std::ops::Range<u32>]| {
        let mut local = local(2, spec);
        let mut sum = [0f32; 4];
        for part in parts {
            let mut weight = 0;
            for index in part.clone() {
                let samples = 10 + 37 * index % 50;
                let gradient = gradient(local.parameters());
                local.step(&gradient, samples);
                weight += samples;
            }
            let mean = local.take().unwrap().unwrap();
            sum.iter_mut().zip(mean).for_each(|(sum, mean)| *sum += weight as f32 * mean);
        }
        sum
    };
    let whole = contribute(std::slice::from_ref(&(0..8)));
    for at in [2, 4, 6] {
        for (whole, part) in whole.iter().zip(contribute(&[0..at, at..8])) {
            assert!((whole - part).abs() < 1e-4, "{whole} and {part}");
        }
    }
}
