//! Peers that average by the production driver, on the simulated clock and network.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use barnraise_averaging::{AverageError, Averaged, AveragingConfig, OpenError, Platform, RoundRegistry};
use barnraise_simulation::{Latency, Network, NodeBandwidth, NodeId, Runtime, StreamEnd, VirtualNetwork};
use barnraise_swarm::averaging::Group;
use barnraise_swarm::bandwidth::{Bandwidth, Bytes};
use barnraise_swarm::{Moment, PeerKey};
use futures::StreamExt as _;
use futures::future::LocalBoxFuture;

/// The seed of all of them: their network draws nothing.
const SEED: u64 = 1;
/// Upload of each stream, in bytes per second.
const SPEED: u64 = 1024 * 1024;

pub(crate) fn key(peer: usize) -> PeerKey {
    PeerKey(vec![peer as u8])
}

/// A link of which each transfer gets so much, however many there are.
fn link(bytes_per_s: u64) -> NodeBandwidth {
    NodeBandwidth { up_of_transfer: bytes_per_s as f64, ..NodeBandwidth::UNLIMITED }
}

/// A stream that is being opened to a peer.
type Call = (usize, PeerKey, StreamEnd);

/// One peer's clock and network.
pub(crate) struct SimulatedPlatform {
    me: usize,
    network: VirtualNetwork,
    calls: Mutex<futures::channel::mpsc::UnboundedSender<Call>>,
    pub(crate) bandwidth: Mutex<Bandwidth>,
}

impl Platform for SimulatedPlatform {
    type Stream = StreamEnd;

    fn now(&self) -> Moment {
        self.network.now()
    }

    fn sleep_until(&self, at: Moment) -> impl Future<Output = ()> + Send {
        self.network.sleep_until(at)
    }

    async fn open(&self, peer: &PeerKey) -> Result<StreamEnd, OpenError> {
        let to = usize::from(peer.0[0]);
        if self.network.is_killed(NodeId(to)) {
            return Err(OpenError::Network("connection refused".into()));
        }
        let (near, far) = self.network.stream(NodeId(self.me), NodeId(to));
        self.calls.lock().unwrap().unbounded_send((to, key(self.me), far)).unwrap();
        Ok(near)
    }

    fn on_moved(&self, bytes: Bytes) {
        self.bandwidth.lock().unwrap().on_moved(self.network.now(), bytes);
    }
}

/// The outcome of a peer's round.
pub(crate) type RoundOutcome = Result<Arc<Averaged>, AverageError>;
/// Time and outcome of each peer.
type RoundOutcomes = Rc<RefCell<Vec<Option<(Moment, RoundOutcome)>>>>;

/// Handles a stream that another peer opens.
type Taking = Rc<dyn Fn(PeerKey, StreamEnd) -> LocalBoxFuture<'static, ()>>;

/// Peers and their network.
pub(crate) struct AveragingSimulation {
    runtime: Runtime,
    pub(crate) peers: Vec<Arc<SimulatedPlatform>>,
    pub(crate) registries: Vec<Arc<RoundRegistry<StreamEnd>>>,
    /// The handler of incoming streams of each peer.
    #[allow(dead_code, reason = "the fuzz target replaces one")]
    pub(crate) taking: Rc<RefCell<Vec<Taking>>>,
    pub(crate) outcomes: RoundOutcomes,
}

impl AveragingSimulation {
    /// `n` peers, each of which uploads a MiB a second on each stream.
    pub(crate) fn new(n: usize) -> Self {
        let runtime = Runtime::new(SEED, Network::new(n, Latency::Constant(Duration::ZERO)));
        let (calls, mut called) = futures::channel::mpsc::unbounded();
        let peer = |me| {
            let (network, calls) = (runtime.network().clone(), Mutex::new(calls.clone()));
            network.change(|network| network.set_bandwidth(NodeId(me), link(SPEED)));
            Arc::new(SimulatedPlatform { me, network, calls, bandwidth: Mutex::default() })
        };
        let peers: Vec<Arc<SimulatedPlatform>> = (0..n).map(peer).collect();
        let registries: Vec<Arc<RoundRegistry<StreamEnd>>> = (0..n).map(|_| Arc::default()).collect();
        let take = |(registry, peer): (&Arc<RoundRegistry<StreamEnd>>, &Arc<SimulatedPlatform>)| -> Taking {
            let (registry, peer) = (Arc::clone(registry), Arc::clone(peer));
            Rc::new(move |from, stream| {
                let (registry, peer) = (Arc::clone(&registry), Arc::clone(&peer));
                Box::pin(async move { registry.take(&*peer, from, stream).await })
            })
        };
        let taking: Rc<RefCell<Vec<Taking>>> =
            Rc::new(RefCell::new(registries.iter().zip(&peers).map(take).collect()));
        let (tasks, handlers) = (runtime.tasks().clone(), Rc::clone(&taking));
        runtime.at(Moment::ZERO, async move {
            while let Some((to, from, stream)) = called.next().await {
                let taking = Rc::clone(&handlers.borrow()[to]);
                tasks.spawn(NodeId(to), taking(from, stream));
            }
        });
        Self { runtime, peers, registries, taking, outcomes: Rc::new(RefCell::new(vec![None; n])) }
    }

    pub(crate) fn spawn(&self, peer: usize, future: impl Future<Output = ()> + 'static) {
        self.runtime.tasks().spawn(NodeId(peer), future);
    }

    /// `peer` begins the round after `delay`.
    pub(crate) fn average(
        &self,
        peer: usize,
        delay: Duration,
        group: &Arc<Group>,
        config: &AveragingConfig,
        values: Vec<f32>,
    ) {
        let (registry, platform) = (Arc::clone(&self.registries[peer]), Arc::clone(&self.peers[peer]));
        let (group, config, outcomes) = (Arc::clone(group), config.clone(), Rc::clone(&self.outcomes));
        self.spawn(peer, async move {
            platform.sleep_until(platform.now() + delay).await;
            let outcome = registry.average(&*platform, &config, &group, &key(peer), values).await;
            outcomes.borrow_mut()[peer] = Some((platform.now(), outcome));
        });
    }

    /// Runs `what` at a time.
    pub(crate) fn at(&self, at: Moment, what: impl FnOnce() + 'static) {
        self.runtime.at(at, async move { what() });
    }

    /// Ends a peer, as SIGKILL does: its streams are cut.
    pub(crate) fn kill(&self, peer: usize) -> impl FnOnce() + 'static {
        let tasks = self.runtime.tasks().clone();
        move || tasks.kill(NodeId(peer))
    }

    /// A peer neither sends nor receives anything any more, without an error.
    pub(crate) fn silence(&self, peer: usize) -> impl FnOnce() + 'static {
        self.fault(move |network| network.take_down(NodeId(peer)))
    }

    /// Two peers cannot reach each other any more, without an error.
    pub(crate) fn part(&self, one: usize, other: usize) -> impl FnOnce() + 'static {
        self.fault(move |network| network.cut(NodeId(one), NodeId(other)))
    }

    /// Sets the upload speed of each of a peer's streams.
    pub(crate) fn set_speed(&self, peer: usize, bytes_per_s: u64) {
        self.fault(move |network| network.set_bandwidth(NodeId(peer), link(bytes_per_s)))();
    }

    /// Sets the download speed of a peer, which its streams share.
    pub(crate) fn set_download(&self, peer: usize, bytes_per_s: u64) {
        let bandwidth = NodeBandwidth { down: bytes_per_s as f64, ..link(SPEED) };
        self.fault(move |network| network.set_bandwidth(NodeId(peer), bandwidth))();
    }

    fn fault(&self, change: impl FnOnce(&mut Network) + 'static) -> impl FnOnce() + 'static {
        let network = self.runtime.network().clone();
        move || network.change(change)
    }

    /// Runs until no task and no timer is left.
    pub(crate) fn run(&mut self) {
        self.runtime.run();
    }

    /// The outcome of a peer that must have one, and when it came.
    pub(crate) fn outcome(&self, peer: usize) -> (Moment, RoundOutcome) {
        self.outcomes.borrow()[peer].clone().unwrap_or_else(|| panic!("peer {peer} has no outcome"))
    }
}
