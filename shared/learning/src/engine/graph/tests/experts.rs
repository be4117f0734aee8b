//! Hosted experts against the same mixture computed in one process, with experts missing.

use std::collections::HashMap;

use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::run::model::graph::{Block, Loss, Part};
use barnraise_protocol::run::model::operation::{Dense, Experts, Initial, Operation, Reshape, Route};
use barnraise_protocol::run::{
    DecayDescription, HostedExperts, ModelSpec, OptimizerDescription, ScheduleDescription,
};
use futures::channel::mpsc;
use futures::{StreamExt, future};

use super::*;
use crate::data_shape::RowTarget;
use crate::engine::graph::{GraphTargets, InputValues};
use crate::experts::{ExpertAnswers, ExpertCall, ExpertPort, Routes};
use crate::graph::HostedBody;
use crate::hosted::HostedExpert;
use crate::random::SplitMix64;

/// Both sides compute in single precision and sum in another order.
const TOLERANCE: f32 = 1e-5;
const N_SAMPLES: usize = 6;
const N_ACTIVE: usize = 2;
const SIDE: usize = 5;

fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut random = SplitMix64 { state: seed };
    (0..n).map(|_| random.next_signed_unit()).collect()
}

/// Two layers of experts with a residual around the first, on four tokens of a row.
fn mixture(side: usize, balance: f32) -> Graph {
    let dense = |name: &str, units: u32| {
        Block::new(name, Operation::Dense(Dense { units: units.into(), bias: true, initial: Initial::Lecun }))
    };
    let experts = |name: &str| {
        let options = Experts {
            part: "expert".into(),
            side: side as u32,
            dimensions: 1,
            active: N_ACTIVE as u32,
            route: Route::Token,
            capacity: 0.0,
            balance,
            jitter: 0.0,
        };
        Block::new(name, Operation::Experts(options))
    };
    let expert = vec![dense("up", 7), Block::new("act", Operation::Tanh), dense("down", 6)];
    Graph {
        name: "mixture".into(),
        parts: vec![Part { name: "expert".into(), blocks: expert }],
        blocks: vec![
            dense("first", 24),
            Block::new("tokens", Operation::Reshape(Reshape { shape: vec![4, 6] })),
            experts("moe"),
            Block::new("sum", Operation::Add).from(&["moe", "tokens"]),
            experts("again"),
            Block::new("flat", Operation::Flatten),
            dense("fc", 2),
        ],
        loss: Loss::Regression,
    }
}

const DATA: GraphData = GraphData::Rows { n_values: 8, target: RowTarget::Values(2) };

fn batch() -> GraphBatch {
    GraphBatch {
        n_samples: N_SAMPLES,
        inputs: vec![InputValues::Values(values(N_SAMPLES * 8, 1))],
        targets: GraphTargets::Values(values(N_SAMPLES * 2, 2)),
        masked: Vec::new(),
        seeds: Vec::new(),
    }
}

fn spec() -> ModelSpec {
    let optimizer = OptimizerDescription::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let schedule = ScheduleDescription { peak: 1.0, warmup_epochs: 0, decay: DecayDescription::Constant };
    let mut model = barnraise_protocol::run::Preset::Graph(mixture(SIDE, 0.0)).model(3);
    model.hosted = Some(HostedExperts { optimizer, schedule, codec: TensorCodec::F32 });
    model
}

/// Layer, choices and inputs of a call.
type HeldCall = (usize, Vec<Option<u32>>, Vec<f32>);

/// All hosts in this process.
struct Hosts {
    /// By layer and place; those that are missing are not here.
    experts: HashMap<(usize, usize), HostedExpert>,
    n_calls: u64,
    calls: HashMap<u64, HeldCall>,
    /// Whether an expert that was chosen answers.
    answers: fn(usize) -> bool,
}

impl Hosts {
    fn new(bodies: &[Arc<HostedBody>], there: &[usize]) -> Self {
        let mut experts = HashMap::new();
        for body in bodies {
            for &place in there {
                let expert = HostedExpert::new(&spec(), body, place, &ComputeDevice::cpu()).unwrap();
                experts.insert((body.layer, place), expert);
            }
        }
        Self { experts, n_calls: 0, calls: HashMap::new(), answers: |_| true }
    }

    async fn serve(&mut self, mut calls: mpsc::Receiver<ExpertCall>) {
        while let Some(call) = calls.next().await {
            match call {
                ExpertCall::Forward { layer, mut scores, n_active, inputs, answer, .. } => {
                    for scores in scores.chunks_mut(SIDE) {
                        for (place, score) in scores.iter_mut().enumerate() {
                            if !self.experts.contains_key(&(layer, place)) {
                                *score = f32::NEG_INFINITY;
                            }
                        }
                    }
                    let routes = Routes::best(&scores, SIDE, 1, n_active);
                    let is_there = |place: &u32| {
                        self.experts.contains_key(&(layer, *place as usize))
                            && (self.answers)(*place as usize)
                    };
                    let chosen: Vec<Option<u32>> =
                        routes.chosen().iter().map(|choice| choice.filter(is_there)).collect();
                    let mut given = vec![0.0; chosen.len() * 6];
                    for (pair, place) in chosen.iter().enumerate() {
                        let Some(place) = place else { continue };
                        let input = &inputs[pair / n_active * 6..][..6];
                        let row = self.experts[&(layer, *place as usize)].forward(input).await.unwrap();
                        given[pair * 6..][..6].copy_from_slice(&row);
                    }
                    self.n_calls += 1;
                    let call = self.n_calls;
                    self.calls.insert(call, (layer, chosen.clone(), inputs));
                    let _ = answer.send(ExpertAnswers { call, chosen, given, way_back: None });
                }
                ExpertCall::Backward { call, gradients, answer } => {
                    let (layer, chosen, inputs) = self.calls.remove(&call).unwrap();
                    let mut told = vec![0.0; inputs.len()];
                    for place in 0..SIDE {
                        let pairs: Vec<usize> = (0..chosen.len())
                            .filter(|&pair| chosen[pair].is_some_and(|chosen| chosen as usize == place))
                            .collect();
                        if pairs.is_empty() {
                            continue;
                        }
                        let of = |values: &[f32], at: &dyn Fn(usize) -> usize| -> Vec<f32> {
                            pairs.iter().flat_map(|&pair| values[at(pair) * 6..][..6].to_vec()).collect()
                        };
                        let expert = self.experts.get_mut(&(layer, place)).unwrap();
                        let inputs = of(&inputs, &|pair| pair / N_ACTIVE);
                        let back =
                            expert.backward(&inputs, &of(&gradients, &|pair| pair), 1.0).await.unwrap();
                        for (&pair, row) in pairs.iter().zip(back.chunks(6)) {
                            let told = &mut told[pair / N_ACTIVE * 6..][..6];
                            told.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                        }
                    }
                    let _ = answer.send(told);
                }
            }
        }
    }
}

/// Something of an engine that asks these hosts.
fn with<T>(hosts: &mut Hosts, work: impl AsyncFnOnce(ExpertPort) -> T) -> T {
    let (port, calls) = ExpertPort::new();
    block_on(async {
        let work = std::pin::pin!(work(port));
        let serving = std::pin::pin!(hosts.serve(calls));
        match future::select(work, serving).await {
            future::Either::Left((value, _)) => value,
            future::Either::Right(_) => panic!("the port was closed"),
        }
    })
}

fn hosted(balance: f32) -> GraphEngine {
    let resolved = ResolvedGraph::with_options(&mixture(SIDE, balance), DATA, None, true).unwrap();
    let flat = resolved.layout().initial_parameters(11);
    GraphEngine::new(Arc::new(resolved), ComputeDevice::cpu().burn(), &flat, None)
}

fn bodies_of(engine: &GraphEngine) -> Vec<Arc<HostedBody>> {
    engine.graph.hosted().into_iter().map(|(_, body)| body.clone()).collect()
}

/// Losses, gradient and output.
fn ask(engine: &mut GraphEngine, hosts: &mut Hosts) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    with(hosts, async |port| {
        engine.ask_experts(port);
        let output = engine.outputs(&batch()).await.await.unwrap();
        let losses = engine.step(batch(), Arithmetic::Single).await.await.unwrap();
        (losses, engine.take().await.unwrap(), output)
    })
}

#[test]
fn hosted_experts_compute_what_a_dense_mixture_does_with_any_of_them_missing() {
    for there in [vec![0, 1, 2, 3, 4], vec![0, 2, 3], vec![4, 1]] {
        // The loss that balances is over all places of the grid, also those that nobody hosts.
        let balance = if there.len() == SIDE { 0.1 } else { 0.0 };
        let mut engine = hosted(balance);
        let bodies = bodies_of(&engine);
        assert_eq!(bodies.len(), 2);
        let mut hosts = Hosts::new(&bodies, &there);
        let before: HashMap<(usize, usize), Vec<f32>> =
            hosts.experts.iter().map(|(&at, expert)| (at, expert.state().parameters)).collect();
        let of_hosted = engine.graph.layout().clone();
        let flat = of_hosted.initial_parameters(11);
        let (losses, gradient, output) = ask(&mut engine, &mut hosts);

        // The mixture of those that are there, with their weights among its own.
        let side = there.len();
        let resolved = ResolvedGraph::of(&mixture(side, balance), DATA).unwrap();
        let layout = resolved.layout().clone();
        let mut dense = vec![0.0; layout.n_parameters()];
        let expert_of = |name: &str| {
            let (layer, rest) = name.split_once(".experts.")?;
            let (place, tensor) = rest.split_once('.')?;
            let layer = if layer == "moe" { 0 } else { 1 };
            let place = there[place.parse::<usize>().unwrap()];
            let segment = bodies[layer].graph.layout().segments().iter().find(|one| one.name == tensor)?;
            Some(((layer, place), segment.range()))
        };
        let own = |name: &str| of_hosted.segments().iter().find(|one| one.name == name).unwrap().range();
        let columns = |values: &[f32]| -> Vec<f32> {
            values
                .chunks(SIDE)
                .flat_map(|row| there.iter().map(|&place| row[place]).collect::<Vec<_>>())
                .collect()
        };
        for segment in layout.segments() {
            let values = match expert_of(&segment.name) {
                Some((at, range)) => before[&at][range].to_vec(),
                None if segment.name.contains("gate") => columns(&flat[own(&segment.name)]),
                None => flat[own(&segment.name)].to_vec(),
            };
            dense[segment.range()].copy_from_slice(&values);
        }
        let mut reference = GraphEngine::new(Arc::new(resolved), ComputeDevice::cpu().burn(), &dense, None);
        let want_output = block_on(block_on(reference.outputs(&batch()))).unwrap();
        let (want_losses, want) = pass(&mut reference, &batch());
        assert_near("outputs", &output, &want_output, TOLERANCE);
        assert_near("losses", &losses, &want_losses, TOLERANCE);
        for segment in layout.segments() {
            let got = match expert_of(&segment.name) {
                // A step of plain SGD at rate 1 by the mean gradient.
                Some((at, range)) => {
                    let after = hosts.experts[&at].state().parameters;
                    let moved = before[&at][range.clone()].iter().zip(&after[range]);
                    moved.map(|(before, after)| (before - after) * N_SAMPLES as f32).collect()
                }
                None if segment.name.contains("gate") => {
                    let all = &gradient[own(&segment.name)];
                    let mut missing = (0..all.len()).filter(|at| !there.contains(&(at % SIDE)));
                    assert!(missing.all(|at| all[at] == 0.0));
                    columns(all)
                }
                None => gradient[own(&segment.name)].to_vec(),
            };
            assert_near(&segment.name, &got, &want[segment.range()], TOLERANCE);
        }
    }
}

/// Experts that were chosen and do not answer: weights add up to 1 over those that do, and inputs without any get nothing.
#[test]
fn the_gradient_is_that_of_the_experts_that_answered() {
    let mut engine = hosted(0.0);
    let bodies = bodies_of(&engine);
    let layout = engine.graph.layout().clone();
    let parameters = layout.initial_parameters(11);
    let fresh = || {
        let mut hosts = Hosts::new(&bodies, &[0, 1, 2, 3, 4]);
        hosts.answers = |place| place % 2 == 0;
        hosts
    };
    let (_, gradient, _) = ask(&mut engine, &mut fresh());
    // Choices change along a gate, and balance with them: the blocks around it tell enough.
    let (mut got, mut want) = (Vec::new(), Vec::new());
    for segment in layout.trained().iter().filter(|segment| segment.name.starts_with("fc")) {
        let range = segment.range();
        let norm = gradient[range.clone()].iter().map(|value| value * value).sum::<f32>().sqrt();
        let losses = [1e-2, -1e-2].map(|step: f32| {
            let mut moved = parameters.clone();
            let slopes = &gradient[range.clone()];
            moved[range.clone()]
                .iter_mut()
                .zip(slopes)
                .for_each(|(value, slope)| *value += step * slope / norm);
            engine.load(&moved);
            let (losses, _, _) = ask(&mut engine, &mut fresh());
            losses[..N_SAMPLES].iter().map(|&loss| f64::from(loss)).sum::<f64>()
        });
        got.push(norm);
        want.push(((losses[0] - losses[1]) / 2e-2) as f32);
    }
    assert_near("around experts", &got, &want, 1e-2);
}

/// A frozen expert tells the same gradient, and makes no step.
#[test]
fn a_frozen_expert_passes_gradients_on_and_stays_as_it_is() {
    let bodies = bodies_of(&hosted(0.0));
    let mut hosts = Hosts::new(&bodies, &[0]);
    let expert = hosts.experts.get_mut(&(0, 0)).unwrap();
    let inputs: Vec<f32> = (0..12).map(|at| at as f32 / 12.0 - 0.4).collect();
    let before = expert.state();
    let gradients = vec![0.5; block_on(expert.forward(&inputs)).unwrap().len()];
    let frozen = block_on(expert.backward_frozen(&inputs, &gradients)).unwrap();
    assert_eq!(expert.state(), before);
    assert!(block_on(expert.backward_frozen(&inputs, &gradients[1..])).is_err());
    assert_eq!(block_on(expert.backward(&inputs, &gradients, 1.0)).unwrap(), frozen);
    assert_eq!(expert.n_steps(), 1);
    assert_ne!(expert.state().parameters, before.parameters);
}

/// Nobody behind the port: the pass is computed without experts.
#[test]
fn a_pass_without_any_host_goes_on() {
    let mut engine = hosted(0.0);
    let (port, calls) = ExpertPort::new();
    drop(calls);
    engine.ask_experts(port);
    let (losses, gradient) = pass(&mut engine, &batch());
    assert!(losses.iter().chain(&gradient).all(|value| value.is_finite()));
    let fc = engine.graph.layout().segments().iter().find(|one| one.name == "fc.bias").unwrap().range();
    assert!(gradient[fc].iter().any(|value| *value != 0.0));
}
