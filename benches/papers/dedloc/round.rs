//! One averaging round in virtual time, chunk by chunk (DeDLOC §3.2).
//!
//! A reducer adds up one chunk while it receives the next and returns the one before, and a sender is at most a window
//! of chunks ahead of what came back, as in `barnraise_averaging`. Adding up itself takes no time: it is a hundred
//! times as fast as the links of Table 1. All strategies follow the same rules; they differ in the peers' fractions.

use std::collections::VecDeque;
use std::time::Duration;

use barnraise_planning::AveragingPlan;
use barnraise_protocol::average::CHUNK_VALUES;
use barnraise_simulation::{Latency, Network, NodeBandwidth, NodeId, Simulation};

/// Bytes of an f32.
pub(crate) const VALUE_BYTES: f64 = 4.0;

/// Nothing is drawn.
const SEED: u64 = 0;

/// How a link is divided among the parts that cross it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// By the lengths of the parts, so that all are done together, as plan (1) has it.
    ByLength,
    /// Equally, as TCP connections that know nothing of one another.
    Equal,
}

/// Rules that all strategies share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rules {
    /// The unit of pipelining.
    pub(crate) chunk_bytes: f64,
    /// Chunks that a sender may be ahead of the average of a part.
    pub(crate) window_chunks: usize,
    pub(crate) sharing: Sharing,
}

impl Default for Rules {
    fn default() -> Self {
        let window_chunks = barnraise_averaging::AveragingConfig::default().window_chunks as usize;
        let chunk_bytes = CHUNK_VALUES as f64 * VALUE_BYTES;
        Self { chunk_bytes, window_chunks, sharing: Sharing::ByLength }
    }
}

/// The peers of a round, with their roles and shares.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedRound {
    /// Of each peer.
    pub(crate) links: Vec<NodeBandwidth>,
    /// Whether a peer has a gradient to send.
    pub(crate) sends: Vec<bool>,
    /// Whether a peer gets the average.
    pub(crate) receives: Vec<bool>,
    /// The share of the vector that each peer adds up; sums to 1.
    pub(crate) fractions: Vec<f64>,
    /// Of the vector, as it travels.
    pub(crate) n_bytes: f64,
}

#[derive(Debug, Clone, Copy)]
enum Chunk {
    ToReducer { from: usize, reducer: usize, index: usize },
    Back { reducer: usize, to: usize },
}

/// What one reducer has, and what it still has to return.
struct ReducedPart {
    /// Of its transfers on the links.
    weight: f64,
    /// Bytes of each chunk, in order.
    chunks: Vec<f64>,
    /// Contributions that have come, for each chunk.
    n_arrived: Vec<usize>,
    /// Of each peer.
    ends: Vec<PartEnd>,
}

/// A peer's side of a part.
#[derive(Clone, Default)]
struct PartEnd {
    n_sent: usize,
    is_sending: bool,
    n_returned: usize,
    is_returning: bool,
    /// Averaged chunks that wait behind the one on its way.
    waiting: VecDeque<usize>,
}

impl SimulatedRound {
    /// All-reduce: everybody adds up the same share.
    pub(crate) fn all_reduce(links: Vec<NodeBandwidth>, n_bytes: f64) -> Self {
        let n = links.len();
        Self {
            links,
            sends: vec![true; n],
            receives: vec![true; n],
            fractions: vec![1.0 / n as f64; n],
            n_bytes,
        }
    }

    /// Parameter server: one peer adds everything up.
    pub(crate) fn parameter_server(links: Vec<NodeBandwidth>, server: usize, n_bytes: f64) -> Self {
        let n = links.len();
        let fractions = (0..n).map(|peer| f64::from(u8::from(peer == server))).collect();
        Self { links, sends: vec![true; n], receives: vec![true; n], fractions, n_bytes }
    }

    /// What a plan says, its roles in the order of the links.
    pub(crate) fn of_plan(plan: &AveragingPlan, links: Vec<NodeBandwidth>, n_bytes: f64) -> Self {
        Self {
            links,
            sends: plan.roles.iter().map(|role| role.contributes).collect(),
            receives: plan.roles.iter().map(|role| role.receives).collect(),
            fractions: plan.roles.iter().map(|role| role.fraction).collect(),
            n_bytes,
        }
    }

    /// Seconds until everybody has the whole average.
    pub(crate) fn seconds(&self, rules: Rules) -> f64 {
        let n = self.links.len();
        let n_senders = self.sends.iter().filter(|sends| **sends).count();
        // What is sent here takes seconds: latency is left out.
        let mut nodes = Network::new(n, Latency::Constant(Duration::ZERO));
        (0..n).for_each(|node| nodes.set_bandwidth(NodeId(node), self.links[node]));
        let mut network = Simulation::new(SEED, nodes);
        let part = |fraction: &f64| ReducedPart::new(*fraction, self.n_bytes, n, rules);
        let mut parts: Vec<ReducedPart> = self.fractions.iter().map(part).collect();
        for (reducer, part) in parts.iter_mut().enumerate() {
            let senders = (0..n).filter(|peer| self.sends[*peer]);
            senders.for_each(|from| part.send(from, reducer, rules.window_chunks, &mut network));
        }
        while let Some(chunk) = network.next() {
            match chunk {
                Chunk::ToReducer { from, reducer, index } => {
                    let part = &mut parts[reducer];
                    part.ends[from].is_sending = false;
                    part.send(from, reducer, rules.window_chunks, &mut network);
                    part.n_arrived[index] += 1;
                    if part.n_arrived[index] == n_senders {
                        for to in (0..n).filter(|peer| self.receives[*peer]) {
                            part.ends[to].waiting.push_back(index);
                            part.send_back(reducer, to, &mut network);
                        }
                    }
                }
                Chunk::Back { reducer, to } => {
                    let part = &mut parts[reducer];
                    part.ends[to].is_returning = false;
                    part.ends[to].n_returned += 1;
                    part.send_back(reducer, to, &mut network);
                    if self.sends[to] {
                        part.send(to, reducer, rules.window_chunks, &mut network);
                    }
                }
            }
        }
        network.now().as_secs_f64()
    }
}

impl ReducedPart {
    fn new(fraction: f64, n_bytes_total: f64, n_peers: usize, rules: Rules) -> Self {
        let (n_bytes, chunk_bytes) = (fraction * n_bytes_total, rules.chunk_bytes);
        let n_chunks = (n_bytes / chunk_bytes).ceil() as usize;
        let chunks = (0..n_chunks).map(|index| (n_bytes - index as f64 * chunk_bytes).min(chunk_bytes));
        let weight = match rules.sharing {
            Sharing::ByLength => fraction,
            Sharing::Equal => 1.0,
        };
        let ends = vec![PartEnd::default(); n_peers];
        Self { weight, chunks: chunks.collect(), n_arrived: vec![0; n_chunks], ends }
    }

    fn send(&mut self, from: usize, reducer: usize, window: usize, network: &mut Simulation<Chunk>) {
        let end = &mut self.ends[from];
        // What stays with the reducer is its own.
        let is_ahead = from != reducer && end.n_sent >= end.n_returned + window;
        if end.is_sending || is_ahead || end.n_sent == self.chunks.len() {
            return;
        }
        let index = end.n_sent;
        (end.n_sent, end.is_sending) = (index + 1, true);
        let chunk = Chunk::ToReducer { from, reducer, index };
        network.transfer(NodeId(from), NodeId(reducer), (self.chunks[index], self.weight), chunk);
    }

    fn send_back(&mut self, reducer: usize, to: usize, network: &mut Simulation<Chunk>) {
        let end = &mut self.ends[to];
        if end.is_returning {
            return;
        }
        if let Some(index) = end.waiting.pop_front() {
            end.is_returning = true;
            let chunk = Chunk::Back { reducer, to };
            network.transfer(NodeId(reducer), NodeId(to), (self.chunks[index], self.weight), chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N_BYTES: f64 = 100e6;
    /// Fine chunks, so that filling the pipeline takes next to nothing.
    const RULES: Rules = Rules { chunk_bytes: 65_536.0, window_chunks: 8, sharing: Sharing::ByLength };

    fn within(got: f64, want: f64, tolerance: f64) {
        assert!((got - want).abs() <= tolerance * want, "{got} s, {want} s were expected");
    }

    /// Each peer sends and receives `2 (n - 1) / n` of the vector (Patarasuk and Yuan, 2009).
    #[test]
    fn all_reduce_takes_what_the_formula_says() {
        for n in [2, 4, 8] {
            let round = SimulatedRound::all_reduce(vec![NodeBandwidth::symmetric(1.0); n], N_BYTES);
            within(round.seconds(RULES), 2.0 * (n - 1) as f64 / n as f64 * N_BYTES / 125e6, 0.05);
        }
    }

    /// All of the vector goes through one link once in each direction, for each of the others.
    #[test]
    fn a_parameter_server_is_bound_by_its_link() {
        let round = SimulatedRound::parameter_server(vec![NodeBandwidth::symmetric(1.0); 5], 2, N_BYTES);
        within(round.seconds(RULES), 4.0 * N_BYTES / 125e6, 0.05);
    }

    /// The last chunk comes back when all have gone there, one after the other.
    #[test]
    fn to_fill_the_pipeline_takes_a_chunk() {
        let links = vec![NodeBandwidth::symmetric(1.0), NodeBandwidth::symmetric(1.0)];
        let mut round = SimulatedRound::parameter_server(links, 1, N_BYTES);
        (round.sends[1], round.receives[1]) = (false, false);
        let chunk = 10e6;
        let rules = Rules { chunk_bytes: chunk, window_chunks: 64, sharing: Sharing::ByLength };
        within(round.seconds(rules), (N_BYTES + chunk) / 125e6, 0.001);
    }

    /// 9 of 10 bytes go to a reducer that takes no more than what fills its share of the sender's link: shared by
    /// length nobody waits; shared equally the small part is done first, and the large one is late.
    #[test]
    fn parts_shared_by_their_length_end_together() {
        let links =
            vec![NodeBandwidth::symmetric(1.0), NodeBandwidth::symmetric(0.9), NodeBandwidth::symmetric(1.0)];
        let round = SimulatedRound {
            links,
            sends: vec![true, false, false],
            receives: vec![false, false, true],
            fractions: vec![0.0, 0.9, 0.1],
            n_bytes: N_BYTES,
        };
        let rules = Rules { window_chunks: usize::MAX / 2, ..RULES };
        within(round.seconds(rules), N_BYTES / 125e6, 0.05);
        let equal_s = round.seconds(Rules { sharing: Sharing::Equal, ..rules });
        // 0.1 of the vector at half of the link, then 0.8 at 0.9 of it.
        within(equal_s, (0.2 + 0.8 / 0.9) * N_BYTES / 125e6, 0.05);
    }

    /// With a window of one chunk a sender waits for each chunk's way there and back.
    #[test]
    fn a_window_of_one_chunk_sends_one_after_the_other() {
        let links = vec![NodeBandwidth::symmetric(1.0), NodeBandwidth::symmetric(1.0)];
        let mut round = SimulatedRound::parameter_server(links, 1, N_BYTES);
        round.receives[1] = false;
        let rules = Rules { chunk_bytes: 1e6, window_chunks: 1, sharing: Sharing::ByLength };
        within(round.seconds(rules), 2.0 * N_BYTES / 125e6, 0.01);
    }

    #[test]
    fn who_computes_nothing_only_receives() {
        let links = vec![NodeBandwidth::new(1e9, 1e9), NodeBandwidth::new(1.0, 10e6)];
        let mut round = SimulatedRound::parameter_server(links, 0, N_BYTES);
        round.sends[1] = false;
        within(round.seconds(RULES), 10.0, 0.05);
    }
}
