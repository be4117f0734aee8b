//! Async code in virtual time: a clock to sleep by, streams in memory, and tasks that stall or are killed with their node.

mod cpu;
mod stream;

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::executor::{LocalPool, LocalSpawner};
use futures::future::{AbortHandle, Abortable, select};
use futures::task::LocalSpawnExt;

pub use self::cpu::{Cpu, CpuTask};
pub use self::stream::StreamEnd;
use self::stream::{StreamEvent, Streams};
use crate::Moment;
use crate::network::{Network, NodeId};
use crate::queue::EventId;
use crate::random::Random;
use crate::simulation::Simulation;

#[derive(Debug)]
enum RuntimeEvent {
    Wake(Waker),
    Stream(StreamEvent),
}

struct Shared {
    simulation: Simulation<RuntimeEvent>,
    streams: Streams,
    /// The clock that this one follows, where another executor has it.
    clock: Option<Box<dyn Fn() -> Moment + Send>>,
    /// Waits for the next event on that executor.
    driver: Option<Waker>,
}

/// The clock and the network of async code. Its clones are the same network.
#[derive(Clone)]
pub struct VirtualNetwork(Arc<Mutex<Shared>>);

impl VirtualNetwork {
    /// A network at the start of its time.
    pub fn new(seed: u64, network: Network) -> Self {
        let (simulation, streams) = (Simulation::new(seed, network), Streams::default());
        Self(Arc::new(Mutex::new(Shared { simulation, streams, clock: None, driver: None })))
    }

    /// A network whose time is that of another executor. [`Self::drive`] is to be a task there.
    pub fn following(seed: u64, network: Network, clock: impl Fn() -> Moment + Send + 'static) -> Self {
        let following = Self::new(seed, network);
        following.with(|shared| shared.clock = Some(Box::new(clock)));
        following
    }

    /// Time since the start.
    pub fn now(&self) -> Moment {
        self.with(|shared| shared.simulation.now())
    }

    /// Completes at `at`.
    pub fn sleep_until(&self, at: Moment) -> Sleep {
        Sleep { network: self.clone(), at, timer: None }
    }

    /// Completes after `time`.
    pub fn sleep(&self, time: Duration) -> Sleep {
        self.sleep_until(self.now().saturating_add(time))
    }

    /// Whether a node was killed: it refuses streams.
    pub fn is_killed(&self, node: NodeId) -> bool {
        self.with(|shared| shared.simulation.network.is_killed(node))
    }

    /// A stream: the end of the first node and that of the second. It carries nothing while they are not connected.
    pub fn stream(&self, from: NodeId, to: NodeId) -> (StreamEnd, StreamEnd) {
        let [there, back] = self.with(|shared| shared.streams.open(from, to));
        (StreamEnd::new(self.clone(), back, there), StreamEnd::new(self.clone(), there, back))
    }

    /// Breaks all streams between two nodes: both ends get an error.
    pub fn reset(&self, one: NodeId, other: NodeId) {
        let wakers = self.with(|shared| shared.streams.reset(one, other));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Changes the network: a fault, or its end.
    pub fn change<T>(&self, change: impl FnOnce(&mut Network) -> T) -> T {
        self.with(|shared| change(&mut shared.simulation.network))
    }

    /// Draws how long a message from one node to the other would be under way.
    pub fn latency(&self, from: NodeId, to: NodeId) -> Duration {
        self.with(|shared| {
            let simulation = &mut shared.simulation;
            simulation.network.reliable_delay(from, to, &mut simulation.random)
        })
    }

    /// Draws from the seed.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        self.with(|shared| draw(&mut shared.simulation.random))
    }

    /// Does what is due whenever the other executor's clock, for which `sleep_until` waits, says so. It never ends.
    pub async fn drive<F: Future<Output = ()>>(&self, sleep_until: impl Fn(Moment) -> F) {
        loop {
            while self.step(self.now()) {}
            let next = self.with(|shared| shared.simulation.next_at());
            let earlier = poll_fn(|context| {
                let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let at = shared.simulation.next_at();
                shared.driver = Some(context.waker().clone());
                if at == next { Poll::Pending } else { Poll::Ready(()) }
            });
            match next {
                Some(at) => {
                    select(pin!(sleep_until(at)), pin!(earlier)).await;
                }
                None => earlier.await,
            }
        }
    }

    /// Does what happens next up to `end`; false where there is nothing.
    fn step(&self, end: Moment) -> bool {
        let woken = self.with(|shared| {
            Some(match shared.simulation.next_until(end)? {
                RuntimeEvent::Wake(waker) => vec![waker],
                RuntimeEvent::Stream(event) => shared.streams.on_event(&mut shared.simulation, event),
            })
        });
        let is_any = woken.is_some();
        woken.into_iter().flatten().for_each(Waker::wake);
        is_any
    }

    /// All that happens here goes through this.
    fn with<T>(&self, act: impl FnOnce(&mut Shared) -> T) -> T {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &mut *guard;
        if let Some(clock) = &shared.clock {
            shared.simulation.advance(clock());
        }
        let done = act(shared);
        let driver = shared.driver.take();
        drop(guard);
        if let Some(driver) = driver {
            driver.wake();
        }
        done
    }
}

/// A wait in virtual time.
pub struct Sleep {
    network: VirtualNetwork,
    at: Moment,
    timer: Option<EventId>,
}

impl Sleep {
    /// Waits until another moment instead.
    pub fn reset(&mut self, at: Moment) {
        self.cancel();
        self.at = at;
    }

    fn cancel(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.network.with(|shared| shared.simulation.cancel(timer));
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (at, timer, waker) = (self.at, self.timer, context.waker().clone());
        let timer = self.network.with(|shared| {
            let wait = at.checked_sub(shared.simulation.now()).filter(|wait| !wait.is_zero())?;
            let waiting = timer.and_then(|timer| Some((timer, shared.simulation.event_mut(timer)?)));
            Some(match waiting {
                Some((timer, event)) => {
                    *event = RuntimeEvent::Wake(waker);
                    timer
                }
                None => shared.simulation.after(wait, RuntimeEvent::Wake(waker)),
            })
        });
        if timer.is_none() {
            self.cancel();
        }
        self.timer = timer;
        if timer.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

struct NodeTasks {
    cpu: Cpu,
    /// With what is gone once the task has ended.
    running: Vec<(AbortHandle, Weak<()>)>,
    /// Of those tasks; with one more, those that have ended are forgotten.
    running_max: usize,
}

/// Least of [`NodeTasks::running_max`].
const RUNNING_MAX: usize = 64;

impl NodeTasks {
    fn add(&mut self, handle: AbortHandle, alive: &Rc<()>) {
        if self.running.len() >= self.running_max {
            self.running.retain(|(_, alive)| alive.strong_count() > 0);
            self.running_max = RUNNING_MAX.max(2 * self.running.len());
        }
        self.running.push((handle, Rc::downgrade(alive)));
    }
}

/// One thread that runs the tasks of all nodes, in an order that follows from the seed. Its clones are the same.
#[derive(Clone)]
pub struct Tasks {
    spawner: LocalSpawner,
    network: VirtualNetwork,
    nodes: Rc<RefCell<Vec<NodeTasks>>>,
}

impl Tasks {
    /// Starts a task of a node. That of a node that was killed never begins.
    pub fn spawn(&self, node: NodeId, task: impl Future<Output = ()> + 'static) {
        if self.network.is_killed(node) {
            return;
        }
        let (handle, registration) = AbortHandle::new_pair();
        let alive = Rc::new(());
        let cpu = {
            let node = &mut self.nodes.borrow_mut()[node.0];
            node.add(handle, &alive);
            node.cpu.clone()
        };
        let task = Abortable::new(cpu.run(task), registration);
        // It ends early where its node is killed, and is dropped with the runtime.
        let _ = self.spawner.spawn_local(async move {
            let _ = task.await;
            drop(alive);
        });
    }

    /// Kills a node, as SIGKILL does: its tasks end, and its streams with them.
    pub fn kill(&self, node: NodeId) {
        self.network.change(|network| network.kill(node));
        let running = std::mem::take(&mut self.nodes.borrow_mut()[node.0].running);
        running.iter().for_each(|(handle, _)| handle.abort());
    }

    /// What a node's tasks run on.
    pub fn cpu(&self, node: NodeId) -> Cpu {
        self.nodes.borrow()[node.0].cpu.clone()
    }
}

/// Nodes whose code is async: their tasks, clock and network.
pub struct Runtime {
    pool: LocalPool,
    network: VirtualNetwork,
    tasks: Tasks,
}

impl Runtime {
    /// Nothing runs yet.
    pub fn new(seed: u64, network: Network) -> Self {
        let (pool, n_nodes) = (LocalPool::new(), network.n_nodes());
        let network = VirtualNetwork::new(seed, network);
        let node = |_| NodeTasks { cpu: Cpu::new(&network), running: Vec::new(), running_max: RUNNING_MAX };
        let nodes = Rc::new(RefCell::new((0..n_nodes).map(node).collect()));
        let tasks = Tasks { spawner: pool.spawner(), network: network.clone(), nodes };
        Self { pool, network, tasks }
    }

    /// The clock and the network.
    pub fn network(&self) -> &VirtualNetwork {
        &self.network
    }

    /// The nodes' tasks.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Runs something from a time on that is of no node, and that no node stalls: a fault of the test.
    pub fn at(&self, at: Moment, task: impl Future<Output = ()> + 'static) {
        let sleep = self.network.sleep_until(at);
        // It is dropped with the runtime.
        let _ = self.tasks.spawner.spawn_local(async move {
            sleep.await;
            task.await;
        });
    }

    /// Runs until no task can go on.
    pub fn run(&mut self) {
        loop {
            self.pool.run_until_stalled();
            if !self.network.step(Moment::MAX) {
                break;
            }
        }
    }
}
