//! Peers in virtual time: pipes with a speed, that can be cut or go silent, on one thread.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use barnraise_averaging::{AverageError, Averaged, Config, Hub, Platform};
use barnraise_swarm::averaging::Group;
use barnraise_swarm::bandwidth::{Bandwidth, Bytes};
use barnraise_swarm::{Moment, PeerKey};
use futures::executor::{LocalPool, LocalSpawner};
use futures::future::{AbortHandle, Abortable, LocalBoxFuture};
use futures::io::{AsyncRead, AsyncWrite};
use futures::task::LocalSpawnExt;
use tokio::io::DuplexStream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

/// What a transport holds of a stream.
const PIPE_BYTES: usize = 32 * 1024;
/// Written at once by a link that has a speed.
const PIECE_BYTES: usize = 8 * 1024;

pub(crate) fn key(peer: usize) -> PeerKey {
    PeerKey(vec![peer as u8])
}

#[derive(Default)]
struct Timers {
    n_set: u64,
    /// By the time and a number, so that timers of one moment wake in order.
    wakers: BTreeMap<(Moment, u64), Waker>,
}

/// Virtual time.
#[derive(Default)]
struct Clock {
    now_ns: AtomicU64,
    timers: Mutex<Timers>,
}

impl Clock {
    fn now(&self) -> Moment {
        Duration::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }

    /// Goes on to the next timer; false where there is none.
    fn advance(&self) -> bool {
        let next = self.timers.lock().unwrap().wakers.pop_first();
        let Some(((at, _), waker)) = next else { return false };
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns.fetch_max(at, Ordering::Relaxed);
        waker.wake();
        true
    }
}

struct Sleep {
    clock: Arc<Clock>,
    at: Moment,
    timer: Option<(Moment, u64)>,
}

impl Sleep {
    fn new(clock: &Arc<Clock>, at: Moment) -> Self {
        Self { clock: Arc::clone(clock), at, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.at {
            return Poll::Ready(());
        }
        let clock = Arc::clone(&self.clock);
        let mut timers = clock.timers.lock().unwrap();
        let timer = self.timer.unwrap_or_else(|| {
            timers.n_set += 1;
            (self.at, timers.n_set)
        });
        timers.wakers.insert(timer, context.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.clock.timers.lock().unwrap().wakers.remove(&timer);
        }
    }
}

/// What is known of a peer from outside.
struct Host {
    /// Its streams carry nothing, and nobody hears of it.
    is_silent: AtomicBool,
    /// Opening a stream to it fails.
    is_dead: AtomicBool,
    /// Of all it uploads, on each stream alone.
    bytes_per_s: AtomicU64,
}

/// Pairs between which nothing is carried.
type Partitions = Arc<Mutex<BTreeSet<[usize; 2]>>>;

/// One end of a stream, whose owner or other end may go silent.
pub(crate) struct Pipe {
    inner: Compat<DuplexStream>,
    hosts: [Arc<Host>; 2],
    pair: [usize; 2],
    partitions: Partitions,
    clock: Arc<Clock>,
    pause: Option<Sleep>,
}

impl Pipe {
    fn is_silent(&self) -> bool {
        self.hosts.iter().any(|host| host.is_silent.load(Ordering::Relaxed))
            || self.partitions.lock().unwrap().contains(&self.pair)
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        if let Some(pause) = &mut self.pause {
            std::task::ready!(Pin::new(pause).poll(context));
            self.pause = None;
        }
        let bytes = &bytes[..bytes.len().min(PIECE_BYTES)];
        let n_bytes = std::task::ready!(Pin::new(&mut self.inner).poll_write(context, bytes))?;
        let bytes_per_s = self.hosts[0].bytes_per_s.load(Ordering::Relaxed);
        let takes = Duration::from_secs_f64(n_bytes as f64 / bytes_per_s as f64);
        self.pause = Some(Sleep::new(&self.clock, self.clock.now() + takes));
        Poll::Ready(Ok(n_bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(context)
    }
}

/// A stream on its way to a peer.
type Call = (usize, PeerKey, Pipe);

/// One peer's clock and network.
pub(crate) struct Peer {
    me: usize,
    clock: Arc<Clock>,
    hosts: Arc<Vec<Arc<Host>>>,
    partitions: Partitions,
    calls: Mutex<futures::channel::mpsc::UnboundedSender<Call>>,
    pub(crate) bandwidth: Mutex<Bandwidth>,
}

impl Platform for Peer {
    type Stream = Pipe;

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn sleep_until(&self, at: Moment) -> impl Future<Output = ()> + Send {
        Sleep::new(&self.clock, at)
    }

    async fn open(&self, peer: &PeerKey) -> Result<Pipe, String> {
        let to = usize::from(peer.0[0]);
        if self.hosts[to].is_dead.load(Ordering::Relaxed) {
            return Err("connection refused".to_owned());
        }
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let pipe = |inner: DuplexStream, from: usize, to: usize| Pipe {
            inner: inner.compat(),
            hosts: [Arc::clone(&self.hosts[from]), Arc::clone(&self.hosts[to])],
            pair: pair(from, to),
            partitions: Arc::clone(&self.partitions),
            clock: Arc::clone(&self.clock),
            pause: None,
        };
        let call = (to, key(self.me), pipe(far, to, self.me));
        self.calls.lock().unwrap().unbounded_send(call).unwrap();
        Ok(pipe(near, self.me, to))
    }

    fn on_moved(&self, bytes: Bytes) {
        self.bandwidth.lock().unwrap().on_moved(self.clock.now(), bytes);
    }
}

/// What a peer's round gave.
pub(crate) type Outcome = Result<Arc<Averaged>, AverageError>;
/// And when, for each peer.
type Outcomes = Rc<RefCell<Vec<Option<(Moment, Outcome)>>>>;

/// What a peer does with a stream that another one opens to it.
type Taking = Rc<dyn Fn(PeerKey, Pipe) -> LocalBoxFuture<'static, ()>>;

/// Peers and their network.
pub(crate) struct World {
    pool: LocalPool,
    spawner: LocalSpawner,
    clock: Arc<Clock>,
    hosts: Arc<Vec<Arc<Host>>>,
    partitions: Partitions,
    pub(crate) peers: Vec<Arc<Peer>>,
    pub(crate) hubs: Vec<Arc<Hub<Pipe>>>,
    alive: Rc<RefCell<Vec<Vec<AbortHandle>>>>,
    /// How each peer takes streams.
    pub(crate) taking: Rc<RefCell<Vec<Taking>>>,
    pub(crate) outcomes: Outcomes,
}

impl World {
    /// `n` peers, each of which uploads a MiB a second on each stream.
    pub(crate) fn new(n: usize) -> Self {
        let pool = LocalPool::new();
        let spawner = pool.spawner();
        let clock = Arc::new(Clock::default());
        let host = || {
            Arc::new(Host {
                is_silent: AtomicBool::new(false),
                is_dead: AtomicBool::new(false),
                bytes_per_s: AtomicU64::new(1024 * 1024),
            })
        };
        let hosts: Arc<Vec<Arc<Host>>> = Arc::new((0..n).map(|_| host()).collect());
        let partitions = Partitions::default();
        let (calls, mut called) = futures::channel::mpsc::unbounded();
        let peer = |me| {
            let calls = Mutex::new(calls.clone());
            let (clock, hosts) = (Arc::clone(&clock), Arc::clone(&hosts));
            let (partitions, bandwidth) = (Arc::clone(&partitions), Mutex::default());
            Arc::new(Peer { me, clock, hosts, partitions, calls, bandwidth })
        };
        let peers: Vec<Arc<Peer>> = (0..n).map(peer).collect();
        let hubs: Vec<Arc<Hub<Pipe>>> = (0..n).map(|_| Arc::default()).collect();
        let take = |(hub, peer): (&Arc<Hub<Pipe>>, &Arc<Peer>)| -> Taking {
            let (hub, peer) = (Arc::clone(hub), Arc::clone(peer));
            Rc::new(move |from, pipe| {
                let (hub, peer) = (Arc::clone(&hub), Arc::clone(&peer));
                Box::pin(async move { hub.take(&*peer, from, pipe).await })
            })
        };
        let taking = hubs.iter().zip(&peers).map(take).collect();
        let world = Self {
            pool,
            spawner,
            clock: Arc::clone(&clock),
            hosts: Arc::clone(&hosts),
            partitions: Arc::clone(&partitions),
            peers,
            hubs,
            alive: Rc::new(RefCell::new((0..n).map(|_| Vec::new()).collect())),
            taking: Rc::new(RefCell::new(taking)),
            outcomes: Rc::new(RefCell::new(vec![None; n])),
        };
        let (alive, spawner) = (Rc::clone(&world.alive), world.spawner.clone());
        let taking = Rc::clone(&world.taking);
        let answering = async move {
            while let Some((to, from, pipe)) = futures::StreamExt::next(&mut called).await {
                let taking = Rc::clone(&taking.borrow()[to]);
                run(&alive, &spawner, to, taking(from, pipe));
            }
        };
        world.spawner.spawn_local(answering).unwrap();
        world
    }

    pub(crate) fn spawn(&self, peer: usize, future: impl Future<Output = ()> + 'static) {
        run(&self.alive, &self.spawner, peer, future);
    }

    /// `peer` begins the round after `delay`.
    pub(crate) fn average(
        &self,
        peer: usize,
        delay: Duration,
        group: &Arc<Group>,
        config: &Config,
        values: Vec<f32>,
    ) {
        let (hub, platform) = (Arc::clone(&self.hubs[peer]), Arc::clone(&self.peers[peer]));
        let (group, config, outcomes) = (Arc::clone(group), config.clone(), Rc::clone(&self.outcomes));
        self.spawn(peer, async move {
            platform.sleep_until(platform.now() + delay).await;
            let outcome = hub.average(&*platform, &config, &group, &key(peer), values).await;
            outcomes.borrow_mut()[peer] = Some((platform.now(), outcome));
        });
    }

    /// Does something at a time.
    pub(crate) fn at(&self, at: Moment, what: impl FnOnce() + 'static) {
        let sleep = Sleep::new(&self.clock, at);
        self.spawner
            .spawn_local(async move {
                sleep.await;
                what();
            })
            .unwrap();
    }

    /// Ends a peer, as SIGKILL does: its streams are cut.
    pub(crate) fn kill(&self, peer: usize) -> impl FnOnce() + 'static {
        let (alive, host) = (Rc::clone(&self.alive), Arc::clone(&self.hosts[peer]));
        move || {
            host.is_dead.store(true, Ordering::Relaxed);
            alive.borrow_mut()[peer].drain(..).for_each(|task| task.abort());
        }
    }

    /// Nothing goes to or comes from a peer any more, and nobody is told.
    pub(crate) fn silence(&self, peer: usize) -> impl FnOnce() + 'static {
        let host = Arc::clone(&self.hosts[peer]);
        move || host.is_silent.store(true, Ordering::Relaxed)
    }

    /// Nothing passes between two peers any more, and neither is told.
    pub(crate) fn part(&self, one: usize, other: usize) -> impl FnOnce() + 'static {
        let partitions = Arc::clone(&self.partitions);
        move || {
            partitions.lock().unwrap().insert(pair(one, other));
        }
    }

    /// What a peer uploads on each stream from now on.
    pub(crate) fn set_speed(&self, peer: usize, bytes_per_s: u64) {
        self.hosts[peer].bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }

    /// Lets time pass until nothing is left that could happen.
    pub(crate) fn run(&mut self) {
        loop {
            self.pool.run_until_stalled();
            if !self.clock.advance() {
                break;
            }
        }
    }

    /// The outcome of a peer that must have one, and when it came.
    pub(crate) fn outcome(&self, peer: usize) -> (Moment, Outcome) {
        self.outcomes.borrow()[peer].clone().unwrap_or_else(|| panic!("peer {peer} has no outcome"))
    }
}

fn pair(one: usize, other: usize) -> [usize; 2] {
    [one.min(other), one.max(other)]
}

fn run(
    alive: &Rc<RefCell<Vec<Vec<AbortHandle>>>>,
    spawner: &LocalSpawner,
    peer: usize,
    future: impl Future<Output = ()> + 'static,
) {
    let (handle, registration) = AbortHandle::new_pair();
    alive.borrow_mut()[peer].push(handle);
    let task = Abortable::new(future, registration);
    let task = async move {
        // Whoever was killed ends early.
        let _ = task.await;
    };
    spawner.spawn_local(task).unwrap();
}
