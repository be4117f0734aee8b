//! The nodes' machines and what is between them: latency, bandwidth, loss, partitions, address translators.
//!
//! It only answers questions. What is under way is in the [`crate::Simulation`].

mod fluid;
mod latency;
mod nat;

use std::collections::BTreeSet;
use std::time::Duration;

pub(crate) use self::fluid::{Flow, Fluid};
pub use self::latency::Latency;
pub use self::nat::{Dial, NatKind};
use crate::Moment;
use crate::random::Random;

/// A lost message of a stream is sent again after this.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// A node, by its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// What a node's link carries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeBandwidth {
    /// Upload, in bytes per second.
    pub up: f64,
    /// Download, in bytes per second.
    pub down: f64,
    /// Upload of one transfer, in bytes per second: the limit of a connection's window.
    pub up_of_transfer: f64,
}

impl NodeBandwidth {
    /// More than anything needs; finite, so that rates are numbers.
    pub const UNLIMITED: Self = Self { up: 1e15, down: 1e15, up_of_transfer: 1e15 };

    /// Upload and download in bytes per second.
    pub fn new(up: f64, down: f64) -> Self {
        Self { up, down, ..Self::UNLIMITED }
    }

    /// The same both ways, as links are advertised.
    pub fn symmetric(gigabit_per_s: f64) -> Self {
        let bytes_per_s = gigabit_per_s * 1e9 / 8.0;
        Self::new(bytes_per_s, bytes_per_s)
    }
}

#[derive(Debug, Clone)]
struct Machine {
    bandwidth: NodeBandwidth,
    nat: NatKind,
    is_down: bool,
    is_killed: bool,
    paused_until: Moment,
    slower: f64,
    /// Nodes of different sides do not reach each other.
    side: u32,
}

/// The machines and what is between them.
#[derive(Debug, Clone)]
pub struct Network {
    machines: Vec<Machine>,
    latency: Latency,
    loss: f64,
    cut: BTreeSet<[NodeId; 2]>,
    relay: Option<NodeId>,
    /// Grows with each change that may stop a transfer or let it go on.
    pub(crate) n_changes: u64,
}

impl Network {
    /// `n_nodes` public nodes without limits.
    pub fn new(n_nodes: usize, latency: Latency) -> Self {
        let mut network = Self {
            machines: Vec::new(),
            latency,
            loss: 0.0,
            cut: BTreeSet::new(),
            relay: None,
            n_changes: 0,
        };
        for _ in 0..n_nodes {
            network.join(NodeBandwidth::UNLIMITED, NatKind::Public);
        }
        network
    }

    /// Adds a node.
    pub fn join(&mut self, bandwidth: NodeBandwidth, nat: NatKind) -> NodeId {
        let machine = Machine {
            bandwidth,
            nat,
            is_down: false,
            is_killed: false,
            paused_until: Moment::ZERO,
            slower: 1.0,
            side: 0,
        };
        self.machines.push(machine);
        self.n_changes += 1;
        NodeId(self.machines.len() - 1)
    }

    /// The number of nodes, those that are down included.
    pub fn n_nodes(&self) -> usize {
        self.machines.len()
    }

    /// Sets the probability with which a message is lost. A message of a stream comes later instead.
    #[must_use]
    pub fn with_loss(mut self, probability: f64) -> Self {
        self.loss = probability;
        self
    }

    /// Sets the relay of nodes that cannot dial each other.
    pub fn set_relay(&mut self, relay: NodeId) {
        self.relay = Some(relay);
        self.n_changes += 1;
    }

    /// Sets what a node's link carries.
    pub fn set_bandwidth(&mut self, node: NodeId, bandwidth: NodeBandwidth) {
        self.machines[node.0].bandwidth = bandwidth;
        self.n_changes += 1;
    }

    /// Unplugs a node: nothing reaches it and nothing leaves it, without an error, until [`Self::bring_up`].
    pub fn take_down(&mut self, node: NodeId) {
        self.machines[node.0].is_down = true;
        self.n_changes += 1;
    }

    /// Plugs a node in again.
    pub fn bring_up(&mut self, node: NodeId) {
        self.machines[node.0].is_down = false;
        self.n_changes += 1;
    }

    /// Whether a node is unplugged.
    pub fn is_down(&self, node: NodeId) -> bool {
        self.machines[node.0].is_down
    }

    /// The process of a node is gone, while its machine still answers.
    pub(crate) fn kill(&mut self, node: NodeId) {
        self.machines[node.0].is_killed = true;
    }

    /// Whether the process of a node is gone: it refuses connections.
    pub fn is_killed(&self, node: NodeId) -> bool {
        self.machines[node.0].is_killed
    }

    /// Puts these nodes on one side and all others on the other, until [`Self::heal`].
    pub fn partition(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.machines.iter_mut().for_each(|machine| machine.side = 0);
        nodes.into_iter().for_each(|node| self.machines[node.0].side = 1);
        self.n_changes += 1;
    }

    /// Cuts one pair of nodes off from each other, until [`Self::mend`] or [`Self::heal`].
    pub fn cut(&mut self, one: NodeId, other: NodeId) {
        self.cut.insert([one.min(other), one.max(other)]);
        self.n_changes += 1;
    }

    /// Ends what [`Self::cut`] did to a pair of nodes.
    pub fn mend(&mut self, one: NodeId, other: NodeId) {
        self.cut.remove(&[one.min(other), one.max(other)]);
        self.n_changes += 1;
    }

    /// Ends partitions and cuts.
    pub fn heal(&mut self) {
        self.machines.iter_mut().for_each(|machine| machine.side = 0);
        self.cut.clear();
        self.n_changes += 1;
    }

    /// Whether a partition has this node on its smaller side, as [`Self::partition`] was told.
    pub fn is_parted(&self, node: NodeId) -> bool {
        self.machines[node.0].side != 0
    }

    /// A node computes nothing until then, as a suspended laptop or a hidden tab.
    pub fn pause(&mut self, node: NodeId, until: Moment) {
        let machine = &mut self.machines[node.0];
        machine.paused_until = machine.paused_until.max(until);
        self.n_changes += 1;
    }

    /// Until when a node is paused; before now where it is not.
    pub fn paused_until(&self, node: NodeId) -> Moment {
        self.machines[node.0].paused_until
    }

    /// A node computes this many times as slowly as it could; 1 is its own pace.
    pub fn throttle(&mut self, node: NodeId, slower: f64) {
        self.machines[node.0].slower = slower;
    }

    /// How many times as slowly as it could a node computes.
    pub fn slower(&self, node: NodeId) -> f64 {
        self.machines[node.0].slower
    }

    /// What it takes `from` to connect to `to`.
    pub fn dial(&self, from: NodeId, to: NodeId) -> Dial {
        self.machines[from.0].nat.dial(self.machines[to.0].nat)
    }

    /// Whether messages go from one node to the other: both are up, on the same side, and either can dial the other, or there
    /// is a relay that both reach.
    pub fn is_connected(&self, from: NodeId, to: NodeId) -> bool {
        let reaches = |one: NodeId, other: NodeId| {
            let [one_machine, other_machine] = [one, other].map(|node| &self.machines[node.0]);
            !one_machine.is_down
                && !other_machine.is_down
                && one_machine.side == other_machine.side
                && !self.cut.contains(&[one.min(other), one.max(other)])
        };
        from == to
            || match self.easiest(from, to) {
                Dial::Direct => reaches(from, to),
                Dial::HolePunch => reaches(from, to) && self.relay.is_some(),
                Dial::Relay => self.relay.is_some_and(|relay| reaches(from, relay) && reaches(relay, to)),
            }
    }

    /// A connection may be opened by either end.
    fn easiest(&self, one: NodeId, other: NodeId) -> Dial {
        match (self.dial(one, other), self.dial(other, one)) {
            (Dial::Direct, _) | (_, Dial::Direct) => Dial::Direct,
            (Dial::HolePunch, _) | (_, Dial::HolePunch) => Dial::HolePunch,
            (Dial::Relay, Dial::Relay) => Dial::Relay,
        }
    }

    /// The relay that carries what goes from one node to the other.
    fn relay_between(&self, from: NodeId, to: NodeId) -> Option<NodeId> {
        self.relay.filter(|_| self.easiest(from, to) == Dial::Relay)
    }

    /// How long a message is under way; `None` where it is lost.
    pub(crate) fn delay(&self, from: NodeId, to: NodeId, random: &mut Random) -> Option<Duration> {
        let latency = self.latency(from, to, random);
        (!random.chance(self.loss)).then_some(latency)
    }

    /// How long a message of a stream is under way: each loss costs it a retransmission.
    pub(crate) fn reliable_delay(&self, from: NodeId, to: NodeId, random: &mut Random) -> Duration {
        let mut delay = self.latency(from, to, random);
        while self.loss < 1.0 && random.chance(self.loss) {
            delay += RETRANSMISSION;
        }
        delay
    }

    fn latency(&self, from: NodeId, to: NodeId, random: &mut Random) -> Duration {
        match self.relay_between(from, to) {
            _ if from == to => Duration::ZERO,
            Some(relay) => self.latency.of(from, relay, random) + self.latency.of(relay, to, random),
            None => self.latency.of(from, to, random),
        }
    }

    /// Bytes per second of all links: a node's upload, then its download.
    pub(crate) fn link_rates(&self) -> Vec<f64> {
        self.machines.iter().flat_map(|machine| [machine.bandwidth.up, machine.bandwidth.down]).collect()
    }

    /// The links between two nodes, in the order of [`Self::link_rates`], and the most of one transfer.
    pub(crate) fn path(&self, from: NodeId, to: NodeId) -> (Vec<usize>, f64) {
        let rate_max = self.machines[from.0].bandwidth.up_of_transfer;
        let links = match self.relay_between(from, to) {
            _ if from == to => Vec::new(),
            Some(relay) => vec![2 * from.0, 2 * relay.0 + 1, 2 * relay.0, 2 * to.0 + 1],
            None => vec![2 * from.0, 2 * to.0 + 1],
        };
        (links, rate_max)
    }
}
