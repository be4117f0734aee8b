//! One averaging round in virtual time (DeDLOC, section 3.2): who sends what to whom, chunk by chunk.
//!
//! A reducer adds up one chunk while it receives the next and returns the one before. Adding up itself takes
//! no time: it is a hundred times as fast as the links of Table 1.

use std::collections::VecDeque;

use barnraise_planning::Plan;

use crate::papers::fluid::{Fluid, Link};

/// Bytes of a chunk, the unit of pipelining.
pub(crate) const CHUNK_BYTES: f64 = 64.0 * 1024.0;

/// Who takes part in a round, and as what.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    /// Of each peer.
    pub(crate) links: Vec<Link>,
    /// Whether a peer has a gradient to send.
    pub(crate) sends: Vec<bool>,
    /// Whether a peer gets the average.
    pub(crate) receives: Vec<bool>,
    /// The share of the vector that each peer adds up; sums to 1.
    pub(crate) fractions: Vec<f64>,
    /// Of the vector, as it travels.
    pub(crate) n_bytes: f64,
}

#[derive(Clone, Copy)]
enum Chunk {
    ToReducer { from: usize, reducer: usize, index: usize },
    Back { reducer: usize, to: usize },
}

/// What one reducer has, and what it still has to return.
struct Part {
    /// Of its transfers on the links: its share of the vector, so that all parts are done together.
    weight: f64,
    /// Bytes of each chunk, in order.
    chunks: Vec<f64>,
    /// Contributions that have come, for each chunk.
    n_arrived: Vec<usize>,
    /// For each receiver: averaged chunks that wait behind the one on its way.
    waiting: Vec<VecDeque<usize>>,
    is_sending: Vec<bool>,
}

impl Round {
    /// All-reduce: everybody adds up the same share.
    pub(crate) fn all_reduce(links: Vec<Link>, n_bytes: f64) -> Self {
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
    pub(crate) fn parameter_server(links: Vec<Link>, server: usize, n_bytes: f64) -> Self {
        let n = links.len();
        let fractions = (0..n).map(|peer| f64::from(u8::from(peer == server))).collect();
        Self { links, sends: vec![true; n], receives: vec![true; n], fractions, n_bytes }
    }

    /// What a plan says, its roles in the order of the links.
    pub(crate) fn of_plan(plan: &Plan, links: Vec<Link>, n_bytes: f64) -> Self {
        Self {
            links,
            sends: plan.roles.iter().map(|role| role.contributes).collect(),
            receives: plan.roles.iter().map(|role| role.receives).collect(),
            fractions: plan.roles.iter().map(|role| role.fraction).collect(),
            n_bytes,
        }
    }

    /// Seconds until everybody has the whole average.
    pub(crate) fn seconds(&self) -> f64 {
        let n = self.links.len();
        let n_senders = self.sends.iter().filter(|sends| **sends).count();
        let mut network = Fluid::new(self.links.clone());
        let mut parts: Vec<Part> = self.fractions.iter().map(|f| Part::new(*f, self.n_bytes, n)).collect();
        for (reducer, part) in parts.iter().enumerate() {
            let Some(&first) = part.chunks.first() else { continue };
            for from in (0..n).filter(|peer| self.sends[*peer]) {
                network.send(from, reducer, first, part.weight, Chunk::ToReducer { from, reducer, index: 0 });
            }
        }
        while let Some(chunk) = network.next() {
            match chunk {
                Chunk::ToReducer { from, reducer, index } => {
                    let part = &mut parts[reducer];
                    if let Some(&next) = part.chunks.get(index + 1) {
                        let tag = Chunk::ToReducer { from, reducer, index: index + 1 };
                        network.send(from, reducer, next, part.weight, tag);
                    }
                    part.n_arrived[index] += 1;
                    if part.n_arrived[index] == n_senders {
                        part.waiting.iter_mut().for_each(|waiting| waiting.push_back(index));
                        let receivers = (0..n).filter(|peer| self.receives[*peer]);
                        receivers.for_each(|to| part.send_back(reducer, to, &mut network));
                    }
                }
                Chunk::Back { reducer, to } => {
                    parts[reducer].is_sending[to] = false;
                    parts[reducer].send_back(reducer, to, &mut network);
                }
            }
        }
        network.now()
    }
}

impl Part {
    fn new(fraction: f64, n_bytes_total: f64, n_receivers: usize) -> Self {
        let n_bytes = fraction * n_bytes_total;
        let n_chunks = (n_bytes / CHUNK_BYTES).ceil() as usize;
        let chunks = (0..n_chunks).map(|index| (n_bytes - index as f64 * CHUNK_BYTES).min(CHUNK_BYTES));
        Self {
            weight: fraction,
            chunks: chunks.collect(),
            n_arrived: vec![0; n_chunks],
            waiting: vec![VecDeque::new(); n_receivers],
            is_sending: vec![false; n_receivers],
        }
    }

    fn send_back(&mut self, reducer: usize, to: usize, network: &mut Fluid<Chunk>) {
        if self.is_sending[to] {
            return;
        }
        if let Some(index) = self.waiting[to].pop_front() {
            self.is_sending[to] = true;
            network.send(reducer, to, self.chunks[index], self.weight, Chunk::Back { reducer, to });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N_BYTES: f64 = 100e6;

    fn within(got: f64, want: f64, tolerance: f64) {
        assert!((got - want).abs() <= tolerance * want, "{got} s, {want} s were expected");
    }

    /// Each peer sends and receives `2 (n - 1) / n` of the vector (Patarasuk and Yuan, 2009).
    #[test]
    fn all_reduce_takes_what_the_formula_says() {
        for n in [2, 4, 8] {
            let round = Round::all_reduce(vec![Link::symmetric(1.0); n], N_BYTES);
            within(round.seconds(), 2.0 * (n - 1) as f64 / n as f64 * N_BYTES / 125e6, 0.05);
        }
    }

    /// All of the vector goes through one link once in each direction, for each of the others.
    #[test]
    fn a_parameter_server_is_bound_by_its_link() {
        let round = Round::parameter_server(vec![Link::symmetric(1.0); 5], 2, N_BYTES);
        within(round.seconds(), 4.0 * N_BYTES / 125e6, 0.05);
    }

    #[test]
    fn who_computes_nothing_only_receives() {
        let links = vec![Link { up: 1e9, down: 1e9 }, Link { up: 1.0, down: 10e6 }];
        let mut round = Round::parameter_server(links, 0, N_BYTES);
        round.sends[1] = false;
        within(round.seconds(), 10.0, 0.05);
    }
}
