#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::AtomicUsize;

use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::Preset;
use barnraise_protocol::run::model::presets::{Norm, ResNet};
use futures::FutureExt;
use futures::executor::block_on;

use super::*;
use crate::conformance::{N_SAMPLES, deviation, gradient, local_steps, models, synthetic_samples};
use crate::masking::EVALUATION_DRAW;
use crate::trainer::Trainer;

/// Computes at once, and fails in the end, where it is told so.
struct HereAndNow {
    engine: ReplicaEngine,
    /// Answers that it gives before it fails.
    n_left: usize,
    n_calls: Arc<AtomicUsize>,
}

impl Replica for HereAndNow {
    fn ask(&mut self, call: ReplicaCall<'_>) -> ReplicaAnswer {
        self.n_calls.fetch_add(1, Ordering::Relaxed);
        let answer = if self.n_left == 0 { None } else { self.engine.answer(call).now_or_never().flatten() };
        self.n_left = self.n_left.saturating_sub(1);
        async { answer }.boxed()
    }
}

/// `n_left` of each of them, with the number of all their calls.
fn threads(spec: &ModelSpec, data: DataShape, n_left: &[usize]) -> (StartReplicas, Arc<AtomicUsize>) {
    let n_calls = Arc::new(AtomicUsize::new(0));
    let (spec, n_left, counted) = (spec.clone(), n_left.to_vec(), n_calls.clone());
    let start = move || {
        let replica = |&n_left: &usize| -> Box<dyn Replica> {
            let engine = ReplicaEngine::new(&spec, data).unwrap();
            Box::new(HereAndNow { engine, n_left, n_calls: counted.clone() })
        };
        n_left.iter().map(replica).collect()
    };
    (Box::new(start), n_calls)
}

/// Of pictures, with its samples.
fn first_model() -> (ModelSpec, DataShape, Samples) {
    let (_, preset, data) = models().into_iter().next().unwrap();
    (preset.model(11), data, synthetic_samples(data))
}

fn trainer(spec: &ModelSpec, data: DataShape) -> Trainer {
    Trainer::new(spec, data, ComputeDevice::cpu()).unwrap()
}

fn part(samples: &Samples, n_samples: usize) -> Samples {
    let mut part = samples.none_of();
    (0..n_samples).for_each(|index| part.push(samples, index));
    part
}

#[test]
fn what_is_divided_among_threads_is_what_one_computes() {
    for (name, preset, data) in models() {
        let spec = preset.model(11);
        let samples = synthetic_samples(data);
        let mut alone = trainer(&spec, data);
        let (start, n_calls) = threads(&spec, data, &[usize::MAX; 3]);
        let mut divided = trainer(&spec, data).with_replicas(&spec, start);
        // Four even parts, parts of three and two samples, and fewer samples than threads.
        for n_samples in [N_SAMPLES, 11, 3, 1] {
            let samples = part(&samples, n_samples);
            let want = block_on(gradient(&mut alone, &[&samples, &samples])).unwrap();
            let got = block_on(gradient(&mut divided, &[&samples, &samples])).unwrap();
            assert_eq!((got.n_samples, got.n_correct), (want.n_samples, want.n_correct), "{name}");
            assert!((got.loss - want.loss).abs() < 1e-5 * want.loss.abs(), "{name}: {}", got.loss);
            let deviation = deviation(&got.values, &want.values);
            assert!(deviation < 1e-4, "{name}, {n_samples} samples: {deviation}");
        }
        let is_divided = n_calls.load(Ordering::Relaxed) > 0;
        assert_eq!(is_divided, spec.graph.is_of_samples(), "{name}");
        // With other parameters, and with those of each local step.
        let moved = divided.layout().initial_parameters(12);
        alone.load_parameters(&moved).unwrap();
        divided.load_parameters(&moved).unwrap();
        let want = block_on(gradient(&mut alone, &[&samples])).unwrap();
        let got = block_on(gradient(&mut divided, &[&samples])).unwrap();
        assert!(deviation(&got.values, &want.values) < 1e-4, "{name}");
        let [got, want] =
            [divided, alone].map(|trainer| block_on(local_steps(trainer, &spec, &samples)).unwrap());
        assert!(deviation(&got, &want) < 1e-3, "{name}: local steps");
    }
}

#[test]
fn what_a_thread_has_lost_is_computed_here() {
    let (spec, data, samples) = first_model();
    let mut alone = trainer(&spec, data);
    let want = block_on(gradient(&mut alone, &[&samples, &samples, &samples])).unwrap();
    // It fails before it has begun, with its first, second or third pass, with the answer to the gradient, and later.
    for n_left in 0..8 {
        let (start, n_calls) = threads(&spec, data, &[n_left, usize::MAX]);
        let mut divided = trainer(&spec, data).with_replicas(&spec, start);
        for _ in 0..3 {
            let got = block_on(gradient(&mut divided, &[&samples, &samples, &samples])).unwrap();
            assert_eq!(got.n_samples, want.n_samples);
            let deviation = deviation(&got.values, &want.values);
            assert!(deviation < 1e-4, "after {n_left} answers: {deviation}");
        }
        // It is asked for no more than what is under way when it fails.
        let of_the_other = 2 + 3 * 5;
        let n_asked = n_calls.load(Ordering::Relaxed) - of_the_other;
        assert!((n_left + 1..n_left + 4).contains(&n_asked), "{n_left}: {n_asked}");
    }
}

#[test]
fn threads_begin_with_the_first_pass_and_again_where_the_parameters_are() {
    let (spec, data, samples) = first_model();
    let (start, n_calls) = threads(&spec, data, &[usize::MAX]);
    let mut divided = trainer(&spec, data).with_replicas(&spec, start);
    let moved = divided.layout().initial_parameters(12);
    divided.load_parameters(&moved).unwrap();
    assert_eq!(n_calls.load(Ordering::Relaxed), 0);
    let mut alone = trainer(&spec, data);
    alone.load_parameters(&moved).unwrap();
    let want = block_on(gradient(&mut alone, &[&samples])).unwrap();
    for nth in 1..3 {
        divided.divide(true);
        block_on(divided.accumulate_samples(&samples, EVALUATION_DRAW)).unwrap();
        divided.divide(false);
        block_on(divided.accumulate_samples(&samples, EVALUATION_DRAW)).unwrap();
        let got = block_on(divided.take_mean_gradient()).unwrap().unwrap();
        assert!(deviation(&got.values, &want.values) < 1e-4, "what is accumulated stays");
        divided.divide(false);
        let alone = block_on(gradient(&mut divided, &[&samples])).unwrap();
        assert!(deviation(&alone.values, &want.values) < 1e-4);
        // It begins, and has parameters, a pass, its gradient, and none from then on.
        assert_eq!(n_calls.load(Ordering::Relaxed), nth * 5);
    }
}

#[test]
fn a_model_that_looks_at_all_samples_of_a_pass_has_no_replica() {
    let preset = Preset::ResNet18(ResNet { norm: Norm::Batch, small_pictures: true, width: 4 });
    let (_, data, _) = first_model();
    assert!(matches!(ReplicaEngine::new(&preset.model(1), data), Err(ModelError::Indivisible)));
}

#[test]
fn a_replica_takes_parameters_of_its_model_alone() {
    let (spec, data, _) = first_model();
    let mut replica = ReplicaEngine::new(&spec, data).unwrap();
    assert_eq!(block_on(replica.answer(ReplicaCall::Load(&[0.0; 3]))), None);
    assert_eq!(block_on(replica.answer(ReplicaCall::Step(vec![9; 4]))), None);
    assert_eq!(block_on(replica.answer(ReplicaCall::Reset)), Some(Vec::new()));
    assert_eq!(block_on(replica.answer(ReplicaCall::Take)), Some(Vec::new()), "no gradient yet");
}

#[test]
fn what_threads_have_when_they_end_is_computed_here() {
    let (spec, data, samples) = first_model();
    let want = block_on(gradient(&mut trainer(&spec, data), &[&samples, &samples])).unwrap();
    let (start, _) = threads(&spec, data, &[usize::MAX; 2]);
    let mut divided = trainer(&spec, data).with_replicas(&spec, start);
    block_on(divided.accumulate_samples(&samples, EVALUATION_DRAW)).unwrap();
    divided.end_threads();
    block_on(divided.accumulate_samples(&samples, EVALUATION_DRAW)).unwrap();
    divided.end_threads();
    let got = block_on(divided.take_mean_gradient()).unwrap().unwrap();
    assert_eq!(got.n_samples, want.n_samples);
    assert!(deviation(&got.values, &want.values) < 1e-4);
}

#[test]
fn threads_that_have_failed_are_started_again_with_other_parameters_a_few_times() {
    let (spec, data, samples) = first_model();
    let (start, n_calls) = threads(&spec, data, &[0]);
    let mut divided = trainer(&spec, data).with_replicas(&spec, start);
    for nth in 1..6 {
        block_on(gradient(&mut divided, &[&samples, &samples])).unwrap();
        assert_eq!(n_calls.load(Ordering::Relaxed), nth.min(STARTS_MAX as usize), "one call each");
        let flat = divided.layout().initial_parameters(nth as u64);
        divided.load_parameters(&flat).unwrap();
    }
}

/// Begins when it is told to.
struct LateReplica {
    within: HereAndNow,
    begins: Option<futures::channel::oneshot::Receiver<()>>,
}

impl Replica for LateReplica {
    fn ask(&mut self, call: ReplicaCall<'_>) -> ReplicaAnswer {
        let answer = self.within.ask(call);
        match self.begins.take() {
            Some(begins) => begins.then(|_| answer).boxed(),
            None => answer,
        }
    }
}

#[test]
fn a_thread_that_has_not_begun_is_not_waited_for() {
    let (spec, data, samples) = first_model();
    let mut alone = trainer(&spec, data);
    let want = block_on(gradient(&mut alone, &[&samples])).unwrap();
    let n_calls = Arc::new(AtomicUsize::new(0));
    let (begin, begins) = futures::channel::oneshot::channel();
    let engine = ReplicaEngine::new(&spec, data).unwrap();
    let within = HereAndNow { engine, n_left: usize::MAX, n_calls: n_calls.clone() };
    let late = std::sync::Mutex::new(Some(LateReplica { within, begins: Some(begins) }));
    let start = move || -> Vec<Box<dyn Replica>> {
        late.lock().unwrap().take().into_iter().map(|late| Box::new(late) as Box<dyn Replica>).collect()
    };
    let mut divided = trainer(&spec, data).with_replicas(&spec, Box::new(start));
    let got = block_on(gradient(&mut divided, &[&samples])).unwrap();
    assert!(deviation(&got.values, &want.values) < 1e-5);
    assert_eq!(n_calls.load(Ordering::Relaxed), 1, "it is asked for nothing else");
    begin.send(()).unwrap();
    let got = block_on(gradient(&mut divided, &[&samples])).unwrap();
    assert!(deviation(&got.values, &want.values) < 1e-4);
    assert_eq!(n_calls.load(Ordering::Relaxed), 5, "parameters, a pass, its gradient, and none");
}

#[test]
fn gradients_are_fetched_before_too_much_is_kept() {
    let (spec, data, samples) = first_model();
    let Samples::Images(pictures) = samples else { panic!("no pictures") };
    let input = Input::Images { images: &pictures.images, labels: &pictures.labels };
    let graph = Arc::new(ResolvedGraph::of_model(&spec, data).unwrap());
    let flat = graph.layout().initial_parameters(spec.seed);
    let engine = || Engine::new(&graph, &ComputeDevice::cpu(), &flat, None);
    let (start, n_calls) = threads(&spec, data, &[usize::MAX]);
    let (mut here, mut alone) = (engine(), engine());
    let mut replicas = Replicas::new(start, flat.len());
    replicas.bytes_max = pictures.images.len();
    for _ in 0..6 {
        block_on(async { replicas.step(&mut here, input, Vec::new(), N_SAMPLES).await.await }).unwrap();
        block_on(async { alone.step(input, Vec::new(), Arithmetic::Single).await.await }).unwrap();
        assert!(replicas.running[0].n_bytes < 2 * pictures.images.len());
    }
    // It begins, and has parameters, six passes of half of the pictures, and the gradient of each two, of the last ones below.
    assert_eq!(n_calls.load(Ordering::Relaxed), 2 + 6 + 2);
    let (got, want) = (block_on(replicas.take(&mut here)).unwrap(), block_on(alone.take()).unwrap());
    assert!(deviation(&got, &want) < 1e-4);
    assert_eq!(n_calls.load(Ordering::Relaxed), 2 + 6 + 3);
}
