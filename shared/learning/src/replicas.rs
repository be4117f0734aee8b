//! Other threads of this machine that compute on the same model: each pass is divided among them, and their gradients are
//! added up, as those of peers are (DeDLOC §3.1). A tab has workers for that; natively one engine has all threads.
//!
//! Who they are, and how they are reached, is the other side's: it implements [`Replica`], and has a [`ReplicaEngine`] answer.

use std::borrow::Cow;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use barnraise_protocol::dataset::{Ratings, RowTargets, TableRows};
use barnraise_protocol::run::ModelSpec;
use futures::FutureExt;

use crate::data_shape::DataShape;
use crate::device::{ComputeDevice, DeviceError};
use crate::engine::{Arithmetic, Engine, Input, OwnedInput, PassRead};
use crate::error::ModelError;
use crate::graph::ResolvedGraph;
use crate::masking::MaskedTokens;
use crate::parameters::ParameterSource;

/// Samples of passes whose gradient the replicas have are kept until it is here, at most so many bytes.
const PARTS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// So often threads are started again where all have failed, each time with the next parameters.
const STARTS_MAX: u32 = 3;

/// What a replica is asked for. Calls are answered in the order in which they are made.
#[derive(Debug)]
pub enum ReplicaCall<'a> {
    /// Take these parameters, `[n_parameters]`, and drop the gradient. The answer is empty.
    Load(&'a [f32]),
    /// A pass over samples, encoded. The answer is `[2, n_predictions]`: losses, and 1 where the top-1 prediction was correct.
    Step(Vec<u8>),
    /// The sum of the gradients, `[n_parameters]`, which is dropped then.
    Take,
    /// Drop the gradient. The answer is empty.
    Reset,
}

/// The answer to a call; `None` where the replica has failed, as it then does to each call.
pub type ReplicaAnswer = Pin<Box<dyn Future<Output = Option<Vec<f32>>> + Send>>;

/// A thread that computes on the same model. It ends when this is dropped.
pub trait Replica: Send + Sync {
    /// Sends a call before it returns.
    fn ask(&mut self, call: ReplicaCall<'_>) -> ReplicaAnswer;
}

/// Starts the replicas of a model.
pub type StartReplicas = Box<dyn Fn() -> Vec<Box<dyn Replica>> + Send + Sync>;

/// Samples of a pass, and what their dropout follows from.
type Part = (OwnedInput, Vec<u64>);

/// The replicas of a trainer. They start with the first pass.
pub(crate) struct Replicas {
    start: StartReplicas,
    n_parameters: usize,
    bytes_max: usize,
    running: Vec<RunningReplica>,
    n_starts: u32,
    has_started: bool,
    /// This thread computes the passes alone.
    rests: bool,
    /// Of those that have failed or have ended: this thread computes it.
    lost: Vec<Part>,
    /// Gradient that the replicas have given already, `[n_parameters]`; empty before.
    sum: Vec<f32>,
}

struct RunningReplica {
    replica: Box<dyn Replica>,
    /// The answer to its first call. Until it comes, it is asked for nothing that is waited for. Behind a mutex only so that a
    /// trainer can be shared; the lock is never contended.
    begins: Option<Mutex<ReplicaAnswer>>,
    /// What its gradient is of, and its bytes.
    parts: Vec<Part>,
    n_bytes: usize,
    has_failed: Arc<AtomicBool>,
}

impl Replicas {
    pub(crate) fn new(start: StartReplicas, n_parameters: usize) -> Self {
        Self {
            start,
            n_parameters,
            bytes_max: PARTS_BYTES_MAX,
            running: Vec::new(),
            n_starts: 0,
            has_started: false,
            rests: false,
            lost: Vec::new(),
            sum: Vec::new(),
        }
    }

    /// Whether they take part from now on. Where they do not, those end that have no part of a gradient.
    pub(crate) fn take_part(&mut self, take_part: bool) {
        self.rests = !take_part;
        if !take_part {
            self.running.retain(|running| !running.parts.is_empty());
            self.has_started = !self.running.is_empty();
        }
    }

    /// All end. What they have computed is computed here when it is wanted.
    pub(crate) fn end(&mut self) {
        self.lost.extend(self.running.drain(..).flat_map(|running| running.parts));
        self.has_started = false;
    }

    pub(crate) fn load(&mut self, source: ParameterSource<'_>) {
        if self.running.is_empty() && self.n_starts < STARTS_MAX {
            self.has_started = false;
        }
        // Where there is nobody to send them to, they need not lie in one place.
        let flat = if self.running.is_empty() { Cow::default() } else { source.flat() };
        self.drop_gradient(|| ReplicaCall::Load(&flat));
    }

    pub(crate) fn reset(&mut self) {
        self.drop_gradient(|| ReplicaCall::Reset);
    }

    fn drop_gradient<'a>(&mut self, call: impl Fn() -> ReplicaCall<'a>) {
        self.lost.clear();
        self.sum = Vec::new();
        // Those that have not begun get the parameters when they have.
        for running in self.running.iter_mut().filter(|running| running.begins.is_none()) {
            running.parts.clear();
            running.n_bytes = 0;
            // Nobody waits for the answer, which is empty.
            drop(running.replica.ask(call()));
        }
    }

    /// As [`Engine::step`] in single precision: this thread computes the first samples, and each replica as many of the others.
    pub(crate) async fn step(
        &mut self,
        engine: &mut Engine,
        input: Input<'_>,
        seeds: Vec<u64>,
        n_samples: usize,
    ) -> PassRead {
        self.compute_lost(engine).await;
        let mut parts = self.parts(engine, input, &seeds, n_samples).await.into_iter();
        let mut answers = Vec::with_capacity(parts.len());
        let Some((own, seeds_of_own)) = parts.next() else {
            return engine.step(input, seeds, Arithmetic::Single).await;
        };
        for (running, part) in self.running.iter_mut().filter(|running| running.begins.is_none()).zip(parts) {
            match postcard::to_allocvec(&part) {
                Ok(encoded) => {
                    running.n_bytes += encoded.len();
                    let answer = running.replica.ask(ReplicaCall::Step(encoded));
                    answers.push((answer, running.has_failed.clone()));
                }
                Err(_) => running.has_failed.store(true, Ordering::Relaxed),
            }
            running.parts.push(part);
        }
        let own = engine.step(own.as_input(), seeds_of_own, Arithmetic::Single).await;
        Box::pin(joined(own, answers))
    }

    /// As [`Engine::take`], of all.
    pub(crate) async fn take(&mut self, engine: &mut Engine) -> Result<Vec<f32>, DeviceError> {
        self.collect().await;
        for (input, seeds) in std::mem::take(&mut self.lost) {
            engine.step(input.as_input(), seeds, Arithmetic::Single).await.await?;
        }
        let mut sum = engine.take().await?;
        add(&mut sum, std::mem::take(&mut self.sum));
        Ok(sum)
    }

    /// The parts of a pass, the first one for this thread; none where it computes all of it.
    async fn parts(
        &mut self,
        engine: &Engine,
        input: Input<'_>,
        seeds: &[u64],
        n_samples: usize,
    ) -> Vec<Part> {
        if self.rests {
            return Vec::new();
        }
        if !self.has_started {
            self.begin();
        }
        if self.running.iter().map(|running| running.n_bytes).sum::<usize>() > self.bytes_max {
            self.collect().await;
        }
        self.drop_failed();
        self.look_who_has_begun(engine).await;
        let n_others = self.running.iter().filter(|running| running.begins.is_none()).count();
        let n_parts = (n_others + 1).min(n_samples);
        if n_parts < 2 {
            return Vec::new();
        }
        let part = |nth: usize| {
            let range = n_samples * nth / n_parts..n_samples * (nth + 1) / n_parts;
            let seeds = seeds.get(range.clone()).unwrap_or_default().to_vec();
            Some((OwnedInput::of_part(input, range, n_samples)?, seeds))
        };
        (0..n_parts).map(part).collect::<Option<Vec<Part>>>().unwrap_or_default()
    }

    fn begin(&mut self) {
        self.has_started = true;
        self.n_starts += 1;
        for mut replica in (self.start)() {
            let begins = Some(Mutex::new(replica.ask(ReplicaCall::Reset)));
            let has_failed = Arc::default();
            self.running.push(RunningReplica { replica, begins, parts: Vec::new(), n_bytes: 0, has_failed });
        }
    }

    /// Sends those that have begun the parameters of this thread.
    async fn look_who_has_begun(&mut self, engine: &Engine) {
        let mut flat = None;
        for running in &mut self.running {
            let Some(begins) = &mut running.begins else { continue };
            let Some(begun) = begins.get_mut().unwrap_or_else(PoisonError::into_inner).now_or_never() else {
                continue;
            };
            running.begins = None;
            if flat.is_none() {
                flat = engine.parameters().await.ok();
            }
            match &flat {
                Some(flat) if begun.is_some() => drop(running.replica.ask(ReplicaCall::Load(flat))),
                _ => running.has_failed.store(true, Ordering::Relaxed),
            }
        }
        self.drop_failed();
    }

    /// One of the parts that are lost, whose losses are told already or will not be: the others later, as this thread has other
    /// things to do as well.
    async fn compute_lost(&mut self, engine: &mut Engine) {
        self.drop_failed();
        if let Some((input, seeds)) = self.lost.pop() {
            drop(engine.step(input.as_input(), seeds, Arithmetic::Single).await);
        }
    }

    /// Takes the gradients of the replicas here.
    async fn collect(&mut self) {
        self.drop_failed();
        let has_part = |running: &&mut RunningReplica| !running.parts.is_empty();
        let ask = |running: &mut RunningReplica| running.replica.ask(ReplicaCall::Take);
        let answers: Vec<ReplicaAnswer> = self.running.iter_mut().filter(has_part).map(ask).collect();
        for (running, answer) in self.running.iter_mut().filter(has_part).zip(answers) {
            match answer.await {
                Some(sum) if sum.len() == self.n_parameters => {
                    add(&mut self.sum, sum);
                    running.parts.clear();
                    running.n_bytes = 0;
                }
                _ => running.has_failed.store(true, Ordering::Relaxed),
            }
        }
        self.drop_failed();
    }

    fn drop_failed(&mut self) {
        for failed in self.running.extract_if(.., |running| running.has_failed.load(Ordering::Relaxed)) {
            self.lost.extend(failed.parts);
        }
    }
}

/// Adds to a sum, which may be empty.
fn add(sum: &mut Vec<f32>, more: Vec<f32>) {
    if sum.is_empty() {
        *sum = more;
    } else {
        sum.iter_mut().zip(more).for_each(|(sum, value)| *sum += value);
    }
}

/// `[2, n_predictions]` of all parts. Those of a replica that has failed are missing.
async fn joined(
    own: PassRead,
    answers: Vec<(ReplicaAnswer, Arc<AtomicBool>)>,
) -> Result<Vec<f32>, DeviceError> {
    let mut losses = own.await?;
    let mut right = losses.split_off(losses.len() / 2);
    for (answer, has_failed) in answers {
        match answer.await {
            Some(mut of_part) => {
                right.extend(of_part.split_off(of_part.len() / 2));
                losses.extend(of_part);
            }
            None => has_failed.store(true, Ordering::Relaxed),
        }
    }
    losses.extend(right);
    Ok(losses)
}

/// Whether a pass can be divided among threads that know the description alone.
pub(crate) fn is_divisible(spec: &ModelSpec, graph: &ResolvedGraph) -> bool {
    spec.graph.is_of_samples() && spec.hosted.is_none() && graph.frozen().n_parameters() == 0
}

/// What a replica is on its own thread.
pub struct ReplicaEngine {
    engine: Engine,
    n_parameters: usize,
}

impl ReplicaEngine {
    /// Of a model, on the processor.
    ///
    /// # Errors
    /// A specification that is out of bounds, does not fit the samples, or is of a model that cannot be divided.
    pub fn new(spec: &ModelSpec, data: DataShape) -> Result<Self, ModelError> {
        let graph = Arc::new(ResolvedGraph::of_model(spec, data)?);
        if !is_divisible(spec, &graph) {
            return Err(ModelError::Indivisible);
        }
        let flat = graph.layout().initial_parameters(spec.seed);
        let engine = Engine::new(&graph, &ComputeDevice::cpu(), &flat, None);
        Ok(Self { engine, n_parameters: flat.len() })
    }

    /// Answers a call; `None` where it cannot: then nothing that it answers counts any more.
    pub async fn answer(&mut self, call: ReplicaCall<'_>) -> Option<Vec<f32>> {
        match call {
            ReplicaCall::Load(flat) if flat.len() == self.n_parameters => self.engine.load(flat),
            ReplicaCall::Load(_) => return None,
            ReplicaCall::Reset => self.engine.reset(),
            ReplicaCall::Step(part) => {
                let (input, seeds): Part = postcard::from_bytes(&part).ok()?;
                return self.engine.step(input.as_input(), seeds, Arithmetic::Single).await.await.ok();
            }
            ReplicaCall::Take => return self.engine.take().await.ok(),
        }
        Some(Vec::new())
    }
}

impl OwnedInput {
    /// Some of the samples; `None` where they cannot be divided.
    pub(crate) fn of_part(input: Input<'_>, samples: Range<usize>, n_samples: usize) -> Option<Self> {
        fn cut<T: Clone>(values: &[T], samples: &Range<usize>, n_samples: usize) -> Vec<T> {
            let width = values.len() / n_samples.max(1);
            values.get(samples.start * width..samples.end * width).unwrap_or_default().to_vec()
        }
        let cut_words = |values: &[u32]| cut(values, &samples, n_samples);
        let cut_values = |values: &[f32]| cut(values, &samples, n_samples);
        Some(match input {
            Input::Images { images, labels } => Self::Images {
                images: cut(images, &samples, n_samples),
                labels: cut(labels, &samples, n_samples),
            },
            Input::Tokens(ids) => Self::Tokens(cut_words(ids)),
            Input::Masked(masked) => {
                let length = masked.inputs.len() / n_samples.max(1);
                let before = (samples.start * length) as u32;
                let positions = cut_words(&masked.positions).into_iter().map(|at| at - before).collect();
                let (inputs, targets) = (cut_words(&masked.inputs), cut_words(&masked.targets));
                Self::Masked(MaskedTokens { inputs, positions, targets })
            }
            Input::Rows(rows) => Self::Rows(TableRows {
                n_columns: rows.n_columns,
                values: cut_values(&rows.values),
                targets: match &rows.targets {
                    RowTargets::Classes(classes) => RowTargets::Classes(cut(classes, &samples, n_samples)),
                    RowTargets::Values { n_values, values } => {
                        RowTargets::Values { n_values: *n_values, values: cut_values(values) }
                    }
                },
            }),
            Input::Ratings(Ratings { users, items, ratings }) => Self::Ratings(Ratings {
                users: cut_words(users),
                items: cut_words(items),
                ratings: cut_values(ratings),
            }),
            Input::Crops { .. } => return None,
        })
    }
}

#[cfg(test)]
#[path = "replicas_tests.rs"]
mod tests;
