//! Nodes that are state machines, driven as a driver of the field drives them.

use std::fmt::Debug;
use std::time::Duration;

use crate::Moment;
use crate::network::{NatKind, Network, NodeBandwidth, NodeId};
use crate::queue::EventId;
use crate::simulation::Simulation;

/// A node whose decisions are a state machine without I/O. After each event its actions are polled until there is none.
pub trait SimulatedNode {
    /// What the nodes send each other.
    type Message: Debug;

    /// A message has arrived.
    fn on_message(&mut self, now: Moment, from: NodeId, message: Self::Message);

    /// [`Self::next_deadline`] is over.
    fn on_timeout(&mut self, now: Moment);

    /// The next thing to do; `None` when there is nothing more for now.
    fn poll_action(&mut self, now: Moment) -> Option<NodeAction<Self::Message>>;

    /// When to call [`Self::on_timeout`].
    fn next_deadline(&self, now: Moment) -> Option<Moment>;
}

/// What a node asks its driver for.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeAction<M> {
    /// A message, on a stream of its own: it may be lost, and may overtake others.
    Send {
        /// The receiver.
        to: NodeId,
        /// It.
        message: M,
    },
    /// A computation, which takes `work` at the node's own pace; the message comes back to the node with its end.
    Compute {
        /// How long it takes where nothing slows the node down.
        work: Duration,
        /// Its result.
        message: M,
    },
    /// Many bytes, which share the links of both ends; the message arrives with the last of them.
    Transfer {
        /// The receiver.
        to: NodeId,
        /// How many.
        bytes: f64,
        /// What they are.
        message: M,
    },
}

#[derive(Debug)]
enum NodeEvent<M> {
    Message {
        from: NodeId,
        to: NodeId,
        message: M,
    },
    /// Of a life of the node.
    Computed {
        node: NodeId,
        life: u32,
        message: M,
    },
    Deadline(NodeId),
}

/// Nodes of one kind in one network.
#[derive(Debug)]
pub struct NodeSimulation<N: SimulatedNode> {
    /// To look at. What changes a node goes through [`Self::with`], so that its actions are carried out.
    pub nodes: Vec<N>,
    simulation: Simulation<NodeEvent<N::Message>>,
    timers: Vec<Option<(Moment, EventId)>>,
    /// Grows with each restart.
    lives: Vec<u32>,
    n_events: u64,
}

impl<N: SimulatedNode> NodeSimulation<N> {
    /// The nodes of a network, in its order.
    ///
    /// # Panics
    /// Where the network has another number of nodes.
    pub fn new(seed: u64, network: Network, nodes: Vec<N>) -> Self {
        assert_eq!(network.n_nodes(), nodes.len(), "a node for each machine of the network");
        let (timers, lives) = (vec![None; nodes.len()], vec![0; nodes.len()]);
        Self { nodes, simulation: Simulation::new(seed, network), timers, lives, n_events: 0 }
    }

    /// Time since the start.
    pub fn now(&self) -> Moment {
        self.simulation.now()
    }

    /// Messages and deadlines that were handled.
    pub fn n_events(&self) -> u64 {
        self.n_events
    }

    /// The machines, and what is between them.
    pub fn network(&mut self) -> &mut Network {
        &mut self.simulation.network
    }

    /// All that is drawn.
    pub fn random(&mut self) -> &mut crate::Random {
        &mut self.simulation.random
    }

    /// A node joins.
    pub fn join(&mut self, bandwidth: NodeBandwidth, nat: NatKind, node: N) -> NodeId {
        let at = self.simulation.network.join(bandwidth, nat);
        self.nodes.push(node);
        self.timers.push(None);
        self.lives.push(0);
        self.drive(at);
        at
    }

    /// A node leaves without a word: nothing reaches it, and it does nothing.
    pub fn leave(&mut self, node: NodeId) {
        self.simulation.network.take_down(node);
    }

    /// A node that left is back, as it was.
    pub fn bring_up(&mut self, node: NodeId) {
        self.simulation.network.bring_up(node);
        self.drive(node);
    }

    /// Another process begins in a node's place: what the one before computed and waited for is gone.
    pub fn restart(&mut self, at: NodeId, node: N) {
        self.lives[at.0] += 1;
        self.nodes[at.0] = node;
        self.bring_up(at);
    }

    /// Does something to a node, and carries out what the node wants after it.
    pub fn with<T>(&mut self, node: NodeId, act: impl FnOnce(&mut N, Moment) -> T) -> T {
        let done = act(&mut self.nodes[node.0], self.simulation.now());
        self.drive(node);
        done
    }

    /// Handles the next event up to `end`; false where there is none.
    pub fn step(&mut self, end: Moment) -> bool {
        let Some(event) = self.simulation.next_until(end) else { return false };
        let now = self.simulation.now();
        self.n_events += 1;
        let node = match event {
            NodeEvent::Message { from, to, message } => {
                self.nodes[to.0].on_message(now, from, message);
                to
            }
            // A node that is down neither computes nor wakes.
            NodeEvent::Computed { node, .. } if self.simulation.network.is_down(node) => return true,
            NodeEvent::Computed { node, life, .. } if self.lives[node.0] != life => return true,
            NodeEvent::Computed { node, message, .. } => {
                self.nodes[node.0].on_message(now, node, message);
                node
            }
            NodeEvent::Deadline(node) => {
                self.timers[node.0] = None;
                if self.simulation.network.is_down(node) {
                    return true;
                }
                self.nodes[node.0].on_timeout(now);
                node
            }
        };
        self.drive(node);
        true
    }

    /// Runs until nothing is left to happen, or until then.
    pub fn run_until(&mut self, end: Moment) {
        while self.step(end) {}
    }

    /// Runs while `is_wanted`; whether it stopped for that, and not because nothing is left to happen.
    pub fn run_while(&mut self, is_wanted: impl Fn(&Self) -> bool) -> bool {
        while is_wanted(self) {
            if !self.step(Moment::MAX) {
                return false;
            }
        }
        true
    }

    /// As a driver of the field: all actions, then the timer.
    fn drive(&mut self, at: NodeId) {
        let now = self.simulation.now();
        let node = &mut self.nodes[at.0];
        while let Some(action) = node.poll_action(now) {
            match action {
                NodeAction::Send { to, message } => {
                    self.simulation.send(at, to, NodeEvent::Message { from: at, to, message });
                }
                NodeAction::Compute { work, message } => {
                    let event = NodeEvent::Computed { node: at, life: self.lives[at.0], message };
                    self.simulation.compute(at, work, event);
                }
                NodeAction::Transfer { to, bytes, message } => {
                    let event = NodeEvent::Message { from: at, to, message };
                    self.simulation.transfer(at, to, (bytes, 1.0), event);
                }
            }
        }
        let due = node.next_deadline(now);
        if due == self.timers[at.0].map(|(due, _)| due) {
            return;
        }
        if let Some((_, timer)) = self.timers[at.0].take() {
            self.simulation.cancel(timer);
        }
        self.timers[at.0] = due.map(|due| {
            let delay = due.saturating_sub(now);
            (due, self.simulation.after_at(at, delay, NodeEvent::Deadline(at)))
        });
    }
}
