//! One clock, one order of events, one network, one seed.

use std::collections::HashMap;
use std::time::Duration;

use crate::Moment;
use crate::network::{Flow, Fluid, Network, NodeId};
use crate::queue::{EventId, EventQueue};
use crate::random::Random;

/// What is scheduled, and what stands in its way.
#[derive(Debug)]
pub(crate) enum Scheduled<E> {
    /// Happens at these nodes, when neither is paused any more.
    Event { at: [Option<NodeId>; 2], event: E },
    /// Is dropped where the nodes are not connected when it arrives.
    Message { from: NodeId, to: NodeId, event: E },
    /// Waits until the nodes are connected.
    Reliable { from: NodeId, to: NodeId, event: E },
}

#[derive(Debug)]
struct TransferTag<E> {
    from: NodeId,
    to: NodeId,
    /// The latency follows the last byte.
    is_delivered: bool,
    event: E,
}

/// Events of the type `E` in virtual time. The caller handles one after the other:
///
/// ```
/// use std::time::Duration;
/// use barnraise_simulation::{Latency, Network, NodeId, Simulation};
///
/// let network = Network::new(2, Latency::Constant(Duration::from_millis(40)));
/// let mut simulation = Simulation::new(7, network);
/// simulation.send(NodeId(0), NodeId(1), "ping");
/// while let Some(event) = simulation.next() {
///     if event == "ping" {
///         simulation.send(NodeId(1), NodeId(0), "pong");
///     }
/// }
/// assert_eq!(simulation.now(), Duration::from_millis(80));
/// ```
#[derive(Debug)]
pub struct Simulation<E> {
    /// The machines, and what is between them.
    pub network: Network,
    /// All that is drawn.
    pub random: Random,
    seed: u64,
    now: Moment,
    queue: EventQueue<Scheduled<E>>,
    fluid: Fluid<TransferTag<E>>,
    /// Changes of the network that the fluid knows, and when the next pause ends that stops a transfer.
    n_changes: u64,
    resumes_at: Option<Moment>,
    /// Messages of streams between nodes that are not connected.
    held: Vec<(EventId, Scheduled<E>)>,
    /// When the last message of an ordered stream arrives.
    arrivals: HashMap<(NodeId, NodeId), Moment>,
}

impl<E> Simulation<E> {
    /// Nothing has happened yet.
    pub fn new(seed: u64, network: Network) -> Self {
        Self {
            network,
            random: Random::new(seed),
            seed,
            now: Moment::ZERO,
            queue: EventQueue::new(),
            fluid: Fluid::new(),
            n_changes: 0,
            resumes_at: None,
            held: Vec::new(),
            arrivals: HashMap::new(),
        }
    }

    /// The seed that repeats it.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Time since the start.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Schedules an event that no node is asked about: a fault, or a moment at which the test looks.
    pub fn after(&mut self, delay: Duration, event: E) -> EventId {
        self.push(delay, Scheduled::Event { at: [None, None], event })
    }

    /// Schedules an event at a node. It waits while the node is paused.
    pub fn after_at(&mut self, node: NodeId, delay: Duration, event: E) -> EventId {
        self.push(delay, Scheduled::Event { at: [Some(node), None], event })
    }

    /// Schedules an event that takes two nodes. It waits while either is paused.
    pub fn after_at_both(&mut self, nodes: [NodeId; 2], delay: Duration, event: E) -> EventId {
        self.push(delay, Scheduled::Event { at: nodes.map(Some), event })
    }

    /// Schedules the end of a computation that begins now, and takes `work` at the node's own pace.
    pub fn compute(&mut self, node: NodeId, work: Duration, event: E) -> EventId {
        let takes = work.mul_f64(self.network.slower(node));
        self.after_at(node, takes, event)
    }

    /// Sends a message, which may be lost, and may overtake another.
    pub fn send(&mut self, from: NodeId, to: NodeId, event: E) {
        if let Some(delay) = self.network.delay(from, to, &mut self.random) {
            self.push(delay, Scheduled::Message { from, to, event });
        }
    }

    /// Sends a message that does not overtake others of the same two nodes which were sent so. It may be lost.
    pub fn send_in_order(&mut self, from: NodeId, to: NodeId, event: E) {
        let Some(delay) = self.network.delay(from, to, &mut self.random) else { return };
        let at = self.in_order(from, to, delay);
        self.queue.push(at, Scheduled::Message { from, to, event });
    }

    /// Sends bytes that share the links of both ends. The message arrives with the last of them. Of a link that it shares it gets
    /// its `weight`'s part. It stops while the nodes are not connected or either is paused.
    pub fn transfer(&mut self, from: NodeId, to: NodeId, (bytes, weight): (f64, f64), event: E) {
        self.flow((from, to), (bytes, weight), true, event);
    }

    /// The next event, to whose time the clock goes; `None` where nothing is left that can happen.
    #[allow(
        clippy::should_implement_trait,
        reason = "what is handled next depends on what is done with this one"
    )]
    pub fn next(&mut self) -> Option<E> {
        self.next_until(Moment::MAX)
    }

    /// The next event up to `end`; `None` where there is none, and then it is `end`, unless that is the end of time.
    pub fn next_until(&mut self, end: Moment) -> Option<E> {
        loop {
            let Some(at) = self.next_at().filter(|at| *at <= end) else {
                if end < Moment::MAX {
                    self.advance(end);
                }
                return None;
            };
            self.advance(at);
            if let Some(transfer) = self.fluid.pop() {
                if let Some(event) = self.arrived(transfer) {
                    return Some(event);
                }
            } else if self.queue.next_at().is_some_and(|at| at <= self.now)
                && let Some((id, scheduled)) = self.queue.pop()
                && let Some(event) = self.due(id, scheduled)
            {
                return Some(event);
            }
        }
    }

    /// When something happens next.
    pub(crate) fn next_at(&mut self) -> Option<Moment> {
        self.follow_network();
        let fluid = self.fluid.next_s().map(|seconds| self.now.max(moment(seconds)));
        [fluid, self.queue.next_at(), self.resumes_at].into_iter().flatten().min()
    }

    /// Takes an event back.
    pub fn cancel(&mut self, id: EventId) -> Option<E> {
        self.queue.remove(id).map(Scheduled::into_event)
    }

    pub(crate) fn event_mut(&mut self, id: EventId) -> Option<&mut E> {
        self.queue.get_mut(id).map(|scheduled| match scheduled {
            Scheduled::Event { event, .. }
            | Scheduled::Message { event, .. }
            | Scheduled::Reliable { event, .. } => event,
        })
    }

    /// Lets time pass, though not past an event that is due.
    pub(crate) fn advance(&mut self, to: Moment) {
        self.now = self.now.max(to);
        self.fluid.advance(self.now.as_secs_f64());
    }

    /// Sends a part of a stream, which is never lost, and waits while the nodes are not connected.
    pub(crate) fn send_reliably(&mut self, from: NodeId, to: NodeId, event: E) {
        let delay = self.network.reliable_delay(from, to, &mut self.random);
        let at = self.in_order(from, to, delay);
        self.queue.push(at, Scheduled::Reliable { from, to, event });
    }

    /// Sends bytes; the event is the sender's, when the last one has left.
    pub(crate) fn upload(&mut self, from: NodeId, to: NodeId, bytes: f64, event: E) {
        self.flow((from, to), (bytes, 1.0), false, event);
    }

    fn flow(
        &mut self,
        (from, to): (NodeId, NodeId),
        (bytes, weight): (f64, f64),
        is_delivered: bool,
        event: E,
    ) {
        let (links, rate_max) = self.network.path(from, to);
        let tag = TransferTag { from, to, is_delivered, event };
        let is_blocked = self.is_stopped(from, to);
        self.fluid.send(Flow { links, bytes, weight, rate_max, is_blocked, tag });
        if is_blocked {
            self.block();
        }
    }

    fn push(&mut self, delay: Duration, scheduled: Scheduled<E>) -> EventId {
        self.queue.push(self.now.saturating_add(delay), scheduled)
    }

    fn in_order(&mut self, from: NodeId, to: NodeId, delay: Duration) -> Moment {
        let last = self.arrivals.entry((from, to)).or_default();
        *last = (*last).max(self.now.saturating_add(delay));
        *last
    }

    fn arrived(&mut self, transfer: TransferTag<E>) -> Option<E> {
        let TransferTag { from, to, is_delivered, event } = transfer;
        if !is_delivered {
            return Some(event);
        }
        let delay = self.network.reliable_delay(from, to, &mut self.random);
        self.push(delay, Scheduled::Reliable { from, to, event });
        None
    }

    /// An event whose time has come; `None` where it is postponed, held or lost.
    fn due(&mut self, id: EventId, scheduled: Scheduled<E>) -> Option<E> {
        let awake_at = match &scheduled {
            Scheduled::Event { at, .. } => {
                at.iter().flatten().map(|node| self.network.paused_until(*node)).max().unwrap_or_default()
            }
            Scheduled::Message { to, .. } | Scheduled::Reliable { to, .. } => self.network.paused_until(*to),
        };
        match scheduled {
            Scheduled::Message { from, to, .. } if !self.network.is_connected(from, to) => None,
            Scheduled::Reliable { from, to, .. } if !self.network.is_connected(from, to) => {
                self.held.push((id, scheduled));
                None
            }
            scheduled if awake_at > self.now => {
                self.queue.put_back(id, awake_at, scheduled);
                None
            }
            scheduled => Some(scheduled.into_event()),
        }
    }

    /// Takes over what has changed in the network.
    fn follow_network(&mut self) {
        let has_resumed = self.resumes_at.is_some_and(|at| at <= self.now);
        if self.n_changes == self.network.n_changes && !has_resumed {
            return;
        }
        if self.fluid.is_idle() && self.held.is_empty() {
            self.resumes_at = None;
            return;
        }
        self.n_changes = self.network.n_changes;
        self.fluid.set_links(self.network.link_rates());
        self.block();
        for (id, scheduled) in std::mem::take(&mut self.held) {
            self.queue.put_back(id, self.now, scheduled);
        }
    }

    fn is_stopped(&self, from: NodeId, to: NodeId) -> bool {
        let is_paused = |node: NodeId| self.network.paused_until(node) > self.now;
        !self.network.is_connected(from, to) || is_paused(from) || is_paused(to)
    }

    /// Stops the transfers that do not go on for now.
    fn block(&mut self) {
        let (network, now) = (&self.network, self.now);
        let mut resumes_at: Option<Moment> = None;
        self.fluid.block(|transfer| {
            let ends = [transfer.from, transfer.to].map(|node| network.paused_until(node));
            let pauses = ends.into_iter().filter(|until| *until > now).max();
            resumes_at = [resumes_at, pauses].into_iter().flatten().min();
            pauses.is_some() || !network.is_connected(transfer.from, transfer.to)
        });
        self.resumes_at = resumes_at;
    }
}

impl<E> Scheduled<E> {
    fn into_event(self) -> E {
        match self {
            Self::Event { event, .. } | Self::Message { event, .. } | Self::Reliable { event, .. } => event,
        }
    }
}

fn moment(seconds: f64) -> Moment {
    Moment::try_from_secs_f64(seconds).unwrap_or(Moment::MAX)
}
