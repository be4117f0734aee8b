//! More threads of this tab: workers with the same training program, each of which computes its part of every pass. Nothing is
//! shared between them: wasm that shares memory takes a toolchain that is not stable.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use barnraise_learning::DataShape;
use barnraise_learning::replicas::{Replica, ReplicaAnswer, ReplicaCall, StartReplicas};
use barnraise_messages::PeerToPage;
use barnraise_protocol::run::{ModelSpec, RunDescription};
use futures::FutureExt;
use futures::channel::oneshot;
use gloo::timers::callback::Interval;
use js_sys::{Array, Float32Array, Object, Reflect, Uint8Array};
use send_wrapper::SendWrapper;
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue, wasm_bindgen};
use web_sys::{Event, MessageEvent};

use crate::page;
use crate::replica::{self, CallKind};

/// Most threads that compute. The page has one more, which draws.
const THREADS_MAX: usize = 8;
/// Most parameters of all replicas together: each has its own, a gradient and activations.
const REPLICATED_PARAMETERS_MAX: usize = 1 << 23;

/// A replica that answers nothing for so long, twice, is asked for nothing more. A browser may end a worker without a word.
const SILENCE_MAX_MS: u32 = 60_000;

// Declared here because web-sys features are shared by the whole build, burn included.
#[wasm_bindgen]
extern "C" {
    type Worker;

    #[wasm_bindgen(constructor, catch)]
    fn new(url: &str, options: &JsValue) -> Result<Worker, JsValue>;

    #[wasm_bindgen(method, js_name = postMessage, catch)]
    fn post_message(this: &Worker, message: &JsValue, transfer: &Array) -> Result<(), JsValue>;

    #[wasm_bindgen(method, setter)]
    fn set_onmessage(this: &Worker, listener: &JsValue);

    #[wasm_bindgen(method, setter)]
    fn set_onmessageerror(this: &Worker, listener: &JsValue);

    #[wasm_bindgen(method, setter)]
    fn set_onerror(this: &Worker, listener: &JsValue);

    #[wasm_bindgen(method)]
    fn terminate(this: &Worker);
}

/// Starts the replicas of a run's model on this device; `None` where one thread is all that it may use.
pub(super) fn of_run(run: &RunDescription, n_parameters: usize) -> Option<StartReplicas> {
    let n_processors = page::scope()?.navigator().hardware_concurrency() as usize;
    let data = DataShape::of(&run.data.manifest.samples);
    start_replicas(&run.model, data, n_threads(n_processors, n_parameters) - 1)
}

/// Starts so many replicas of a model; `None` without any.
pub fn start_replicas(model: &ModelSpec, data: DataShape, n_replicas: usize) -> Option<StartReplicas> {
    let setup = replica::setup(model, data)?;
    let start = move || {
        let started = (0..n_replicas).map_while(|_| match WorkerReplica::start(&setup) {
            Ok(replica) => Some(Box::new(replica) as Box<dyn Replica>),
            Err(error) => {
                gloo::console::info!("a thread that computes could not be started:", error);
                None
            }
        });
        started.collect()
    };
    (n_replicas > 0).then(|| Box::new(start) as StartReplicas)
}

/// Threads that compute a pass of a model. Half of what the device has, but of two both: the others are left to everything else
/// that its owner does, and where two of them share a core they give little.
fn n_threads(n_processors: usize, n_parameters: usize) -> usize {
    let n_wanted = (n_processors / 2).max(2).min(n_processors).clamp(1, THREADS_MAX);
    n_wanted.min(1 + REPLICATED_PARAMETERS_MAX / n_parameters.max(1))
}

thread_local! {
    /// Replicas that run.
    static N_RUNNING: Cell<u32> = const { Cell::new(0) };
}

/// Counts them, and tells the page.
fn count(change: i32) {
    let n_running = N_RUNNING.get().saturating_add_signed(change);
    N_RUNNING.set(n_running);
    page::post(&PeerToPage::Threads { n_threads: n_running + 1 });
}

/// Those who wait for answers, in their order; `None` where the worker has failed.
type Waiting = Rc<RefCell<Option<VecDeque<oneshot::Sender<Vec<f32>>>>>>;

/// A worker, which ends with this. Everything stays on the thread that started it.
struct WorkerReplica(SendWrapper<RunningWorker>);

struct RunningWorker {
    worker: Worker,
    waiting: Waiting,
    _listeners: [Closure<dyn Fn(JsValue)>; 2],
    _watch: Interval,
}

impl WorkerReplica {
    fn start(setup: &[u8]) -> Result<Self, JsValue> {
        let scope = page::scope().ok_or(JsValue::NULL)?;
        let options = Object::new();
        Reflect::set(&options, &"type".into(), &"module".into())?;
        Reflect::set(&options, &"name".into(), &"replica".into())?;
        // The loader that this worker was started with.
        let replica =
            Self(SendWrapper::new(RunningWorker::of(Worker::new(&scope.location().href(), &options)?)));
        let message = Object::new();
        Reflect::set(&message, &"module".into(), &wasm_bindgen::module())?;
        Reflect::set(&message, &"setup".into(), &Uint8Array::from(setup))?;
        replica.0.worker.post_message(&message, &Array::new())?;
        Ok(replica)
    }
}

impl RunningWorker {
    /// Listens to a worker.
    fn of(worker: Worker) -> Self {
        let waiting: Waiting = Rc::new(RefCell::new(Some(VecDeque::new())));
        let n_answered = Rc::new(Cell::new(0_u64));
        let (answered, counted) = (Rc::clone(&waiting), Rc::clone(&n_answered));
        let on_answer = Closure::<dyn Fn(JsValue)>::new(move |event: JsValue| {
            counted.set(counted.get() + 1);
            let data = event.unchecked_ref::<MessageEvent>().data();
            match data.dyn_ref::<Float32Array>() {
                Some(values) => {
                    let first = answered.borrow_mut().as_mut().and_then(VecDeque::pop_front);
                    // Nobody may wait for it any more.
                    let _ = first.map(|first| first.send(values.to_vec()));
                }
                None => *answered.borrow_mut() = None,
            }
        });
        let lost = Rc::clone(&waiting);
        let on_error = Closure::<dyn Fn(JsValue)>::new(move |event: JsValue| {
            // The tab goes on without it: to the page this is no error.
            event.unchecked_ref::<Event>().prevent_default();
            *lost.borrow_mut() = None;
        });
        worker.set_onmessage(on_answer.as_ref());
        worker.set_onmessageerror(on_error.as_ref());
        worker.set_onerror(on_error.as_ref());
        let (silent, n_before) = (Rc::clone(&waiting), Cell::new(None));
        let watch = Interval::new(SILENCE_MAX_MS, move || {
            let is_awaited = silent.borrow().as_ref().is_some_and(|waiting| !waiting.is_empty());
            let now = is_awaited.then(|| n_answered.get());
            if now.is_some() && n_before.replace(now) == now {
                *silent.borrow_mut() = None;
            }
        });
        count(1);
        Self { worker, waiting, _listeners: [on_answer, on_error], _watch: watch }
    }
}

impl Replica for WorkerReplica {
    fn ask(&mut self, call: ReplicaCall<'_>) -> ReplicaAnswer {
        let (kind, values) = match call {
            ReplicaCall::Load(flat) => (CallKind::Load, Float32Array::from(flat).buffer()),
            ReplicaCall::Step(part) => (CallKind::Step, Uint8Array::from(part.as_slice()).buffer()),
            ReplicaCall::Take => (CallKind::Take, Uint8Array::new_with_length(0).buffer()),
            ReplicaCall::Reset => (CallKind::Reset, Uint8Array::new_with_length(0).buffer()),
        };
        let (answer, answers) = oneshot::channel();
        let mut waiting = self.0.waiting.borrow_mut();
        if let Some(waiting) = &mut *waiting {
            waiting.push_back(answer);
        }
        let message = Array::of2(&JsValue::from(kind as u8), &values);
        if self.0.worker.post_message(&message, &Array::of1(&values)).is_err() {
            *waiting = None;
        }
        answers.map(Result::ok).boxed()
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.worker.set_onmessage(&JsValue::NULL);
        self.worker.set_onmessageerror(&JsValue::NULL);
        self.worker.set_onerror(&JsValue::NULL);
        self.worker.terminate();
        count(-1);
    }
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    #[wasm_bindgen_test]
    fn half_of_the_processors_compute_and_no_more_than_the_model_has_room_for() {
        let of_small: Vec<usize> = [0, 1, 2, 3, 4, 6, 8, 16, 64].map(|n| n_threads(n, 50_000)).to_vec();
        assert_eq!(of_small, [1, 1, 2, 2, 2, 3, 4, 8, 8]);
        let of_eight: Vec<usize> =
            [2_700_000, 6_400_000, 8_388_608, 8_388_609].map(|n| n_threads(8, n)).to_vec();
        assert_eq!(of_eight, [4, 2, 2, 1]);
    }
}
