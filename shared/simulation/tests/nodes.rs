//! Nodes that are state machines, which join, compute, leave, come back and restart.

use std::collections::VecDeque;
use std::time::Duration;

use barnraise_simulation::{
    Latency, Moment, NatKind, Network, NodeAction, NodeBandwidth, NodeId, NodeSimulation, SimulatedNode,
};

const SECOND: Duration = Duration::from_secs(1);
const FIRST: NodeId = NodeId(0);

/// Computes for a second again and again, and tells the first node each time.
#[derive(Default)]
struct Worker {
    at: usize,
    is_idle: bool,
    to_do: VecDeque<NodeAction<Work>>,
    heard: Vec<(Moment, usize)>,
    n_timeouts: u32,
    timeout_at: Option<Moment>,
}

#[derive(Debug, Clone)]
enum Work {
    Computed,
    Of(usize),
}

impl Worker {
    fn new(at: usize) -> Self {
        Self { at, is_idle: true, ..Self::default() }
    }
}

impl SimulatedNode for Worker {
    type Message = Work;

    fn on_message(&mut self, now: Moment, _: NodeId, message: Work) {
        match message {
            Work::Computed => {
                self.is_idle = true;
                self.to_do.push_back(NodeAction::Send { to: FIRST, message: Work::Of(self.at) });
            }
            Work::Of(worker) => self.heard.push((now, worker)),
        }
    }

    fn on_timeout(&mut self, _: Moment) {
        (self.n_timeouts, self.timeout_at) = (self.n_timeouts + 1, None);
    }

    fn poll_action(&mut self, _: Moment) -> Option<NodeAction<Work>> {
        if self.at > 0 && std::mem::take(&mut self.is_idle) {
            return Some(NodeAction::Compute { work: SECOND, message: Work::Computed });
        }
        self.to_do.pop_front()
    }

    fn next_deadline(&self, _: Moment) -> Option<Moment> {
        self.timeout_at
    }
}

fn simulation() -> NodeSimulation<Worker> {
    let network = Network::new(1, Latency::Constant(Duration::ZERO));
    NodeSimulation::new(1, network, vec![Worker::new(0)])
}

fn join(simulation: &mut NodeSimulation<Worker>) -> NodeId {
    let at = simulation.nodes.len();
    simulation.join(NodeBandwidth::UNLIMITED, NatKind::Restricted, Worker::new(at))
}

/// The seconds at which the first node heard of a worker.
fn heard_of(simulation: &NodeSimulation<Worker>, node: NodeId) -> Vec<f64> {
    let of = simulation.nodes[0].heard.iter().filter(|(_, worker)| *worker == node.0);
    of.map(|(at, _)| at.as_secs_f64()).collect()
}

#[test]
fn a_node_that_joins_computes_at_its_own_pace_or_slower() {
    let mut simulation = simulation();
    simulation.run_until(SECOND / 2);
    let quick = join(&mut simulation);
    let slow = join(&mut simulation);
    simulation.run_until(SECOND);
    simulation.network().throttle(slow, 2.0);
    simulation.run_until(SECOND * 4);
    assert_eq!(heard_of(&simulation, quick), [1.5, 2.5, 3.5]);
    // What it had begun was as quick as before.
    assert_eq!(heard_of(&simulation, slow), [1.5, 3.5]);
}

#[test]
fn a_node_that_left_neither_computes_nor_wakes() {
    let mut simulation = simulation();
    let node = join(&mut simulation);
    simulation.with(node, |worker, _| worker.timeout_at = Some(SECOND / 4));
    simulation.leave(node);
    simulation.run_until(SECOND * 3);
    assert_eq!(simulation.nodes[node.0].n_timeouts, 0);
    simulation.bring_up(node);
    simulation.run_until(SECOND * 5);
    assert_eq!(simulation.nodes[node.0].n_timeouts, 1, "at once when it is back");
    assert!(heard_of(&simulation, node).is_empty(), "what it computed is lost, and it waits for that");
}

#[test]
fn a_restart_begins_anew() {
    let mut simulation = simulation();
    let node = join(&mut simulation);
    simulation.run_until(SECOND / 2);
    simulation.restart(node, Worker::new(node.0));
    simulation.run_until(SECOND * 3);
    assert_eq!(heard_of(&simulation, node), [1.5, 2.5]);
}

#[test]
fn a_paused_node_handles_what_came_when_it_goes_on() {
    let mut simulation = simulation();
    let node = join(&mut simulation);
    simulation.network().pause(node, SECOND * 5);
    simulation.run_until(SECOND * 7);
    assert_eq!(heard_of(&simulation, node), [5.0, 6.0, 7.0]);
}
