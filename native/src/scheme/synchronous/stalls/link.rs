//! The connection between a contributor and its backbone, which stalls and breaks.

use std::cell::Cell;
use std::rc::Rc;

use barnraise_contributor::PlatformError;
use barnraise_simulation::{Latency, Network, NodeId, StreamEnd, VirtualNetwork};
use barnraise_swarm::Moment;
use tokio::task::spawn_local;
use tokio::time::Instant;

/// The backbone's place in the network; the contributors follow.
const BACKBONE: NodeId = NodeId(0);

/// A network of a backbone and contributors, whose messages take up to so many milliseconds each. It follows the paused clock of
/// the runtime.
pub(super) fn network(delay_ms_max: &[u64], seed: u64) -> VirtualNetwork {
    let most = |node: usize| node.checked_sub(1).map_or(0, |peer| delay_ms_max[peer]);
    let cell = |from: usize, to: usize| {
        Latency::Uniform(Moment::ZERO, Moment::from_millis(most(from).max(most(to))))
    };
    let n_nodes = 1 + delay_ms_max.len();
    let rows = (0..n_nodes).map(|from| (0..n_nodes).map(|to| cell(from, to)).collect()).collect();
    let origin = Instant::now();
    let network = Network::new(n_nodes, Latency::Matrix(rows));
    let network = VirtualNetwork::following(seed, network, move || origin.elapsed());
    let driven = network.clone();
    spawn_local(async move { driven.drive(|at| tokio::time::sleep_until(origin + at)).await });
    network
}

/// The connection of one contributor.
pub(super) struct StallableLink {
    network: VirtualNetwork,
    node: NodeId,
    /// Until then no bytes arrive in either direction.
    stalled_until: Cell<Moment>,
    /// Until then dials fail.
    away_until: Cell<Moment>,
    is_up: Cell<bool>,
}

impl StallableLink {
    /// The connection of the contributor with this number.
    pub(super) fn new(network: &VirtualNetwork, number: u64) -> Rc<Self> {
        Rc::new(Self {
            network: network.clone(),
            node: NodeId(1 + number as usize),
            stalled_until: Cell::new(Moment::ZERO),
            away_until: Cell::new(Moment::ZERO),
            is_up: Cell::new(false),
        })
    }

    pub(super) fn network(&self) -> &VirtualNetwork {
        &self.network
    }

    pub(super) fn stall(self: &Rc<Self>, until: Moment) {
        self.stalled_until.set(self.stalled_until.get().max(until));
        self.network.change(|network| network.cut(BACKBONE, self.node));
        let link = Rc::clone(self);
        spawn_local(async move {
            link.network.sleep_until(until).await;
            if link.stalled_until.get() <= link.network.now() {
                link.network.change(|network| network.mend(BACKBONE, link.node));
            }
        });
    }

    /// The connection breaks for both sides, and there is none until then.
    pub(super) fn cut(&self, until: Moment) {
        self.away_until.set(self.away_until.get().max(until));
        self.hang_up();
    }

    pub(super) fn hang_up(&self) {
        self.is_up.set(false);
        self.network.reset(BACKBONE, self.node);
    }

    pub(super) async fn dial(&self) -> Result<(), PlatformError> {
        self.network.sleep_until(self.stalled_until.get()).await;
        let latency = self.network.latency(self.node, BACKBONE);
        self.network.sleep(latency).await;
        if self.away_until.get() > self.network.now() {
            return Err(PlatformError::Network("no route".into()));
        }
        self.is_up.set(true);
        Ok(())
    }

    /// A stream on the connection: its two ends.
    pub(super) async fn open(&self) -> Result<(StreamEnd, StreamEnd), PlatformError> {
        self.network.sleep_until(self.stalled_until.get()).await;
        if !self.is_up.get() {
            return Err(PlatformError::NotConnected);
        }
        Ok(self.network.stream(self.node, BACKBONE))
    }
}
