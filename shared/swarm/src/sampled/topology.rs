//! Who sends a model to whom, where all peers train each round: the graphs of decentralized training. Pure.
//!
//! Each peer computes the graph from the peers that it knows. Peers that know the same have the same graph.

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::run::ModelExchange;

/// Where two peers know others, one is found this far from its place.
const SLACK: usize = 2;

/// The graph of a round among some peers.
#[derive(Debug)]
pub(super) struct Topology {
    exchange: ModelExchange,
    round: u64,
    /// Orders of the peers, each with their places: by key, by the hash of each cycle, or by that of the round.
    rings: Vec<Ring>,
}

/// Peers in a circle, in the order of their places.
#[derive(Debug)]
struct Ring(Vec<([u8; 32], PublicKey)>);

impl Ring {
    fn new(peers: &[PublicKey], place: impl Fn(&PublicKey) -> [u8; 32]) -> Self {
        let mut ring: Vec<_> = peers.iter().map(|peer| (place(peer), *peer)).collect();
        ring.sort_unstable();
        ring.dedup();
        Self(ring)
    }

    fn at(&self, of: &PublicKey) -> Option<usize> {
        self.0.iter().position(|(_, peer)| peer == of)
    }

    /// The peer so many places after, or before, another place.
    fn peer(&self, place: usize, offset: isize) -> PublicKey {
        let n = self.0.len() as isize;
        self.0[(place as isize + offset).rem_euclid(n) as usize].1
    }

    /// The first place that is not before this hash.
    fn successor(&self, hash: &[u8; 32]) -> usize {
        self.0.partition_point(|(place, _)| place < hash)
    }
}

impl Topology {
    /// That of a round among these peers.
    pub(super) fn new(exchange: ModelExchange, round: u64, peers: &[PublicKey]) -> Self {
        let rings = match exchange {
            ModelExchange::Sample => Vec::new(),
            ModelExchange::Exponential => vec![Ring::new(peers, |peer| peer.0)],
            ModelExchange::Regular(k) => {
                (0..u64::from(k / 2)).map(|cycle| Ring::new(peers, |peer| hash(peer, cycle, 0))).collect()
            }
            ModelExchange::Epidemic(_) | ModelExchange::Gossip => {
                vec![Ring::new(peers, |peer| hash(peer, round, 0))]
            }
        };
        Self { exchange, round, rings }
    }

    /// Those to whom a peer sends its model. Empty where the peer is none of the graph, or alone.
    pub(super) fn receivers(&self, of: &PublicKey) -> Vec<PublicKey> {
        self.near_receivers(of, 0)
    }

    /// Those who send their models to a peer.
    pub(super) fn senders(&self, to: &PublicKey) -> Vec<PublicKey> {
        let mut senders = Vec::new();
        match self.exchange {
            ModelExchange::Sample => {}
            ModelExchange::Exponential => {
                for ring in &self.rings {
                    let at = ring.at(to).map(|at| ring.peer(at, -self.hop(ring)));
                    add(&mut senders, at, to);
                }
            }
            // They send to each other.
            ModelExchange::Regular(_) => senders = self.receivers(to),
            ModelExchange::Epidemic(_) | ModelExchange::Gossip => {
                for ring in &self.rings {
                    let peers = ring.0.iter().map(|(_, peer)| *peer);
                    senders.extend(peers.filter(|peer| self.drawn(ring, peer, 0).contains(to)));
                }
            }
        }
        senders
    }

    /// Whether one peer may send its model to another one, by what a third one knows: others may know a few peers more or less.
    pub(super) fn is_near(&self, from: &PublicKey, to: &PublicKey) -> bool {
        self.near_receivers(from, SLACK).contains(to)
    }

    /// Places between two peers that exchange models in this round.
    fn hop(&self, ring: &Ring) -> isize {
        let n_bits = usize::BITS - ring.0.len().saturating_sub(1).leading_zeros();
        1 << (self.round % u64::from(n_bits.max(1)))
    }

    fn near_receivers(&self, of: &PublicKey, slack: usize) -> Vec<PublicKey> {
        let mut receivers = Vec::new();
        let slack = slack as isize;
        for ring in &self.rings {
            let Some(at) = ring.at(of) else { continue };
            match self.exchange {
                ModelExchange::Sample => {}
                ModelExchange::Exponential => {
                    let hop = self.hop(ring);
                    (-slack..=slack).for_each(|off| add(&mut receivers, Some(ring.peer(at, hop + off)), of));
                }
                ModelExchange::Regular(_) => {
                    for offset in 1..=1 + slack {
                        add(&mut receivers, Some(ring.peer(at, offset)), of);
                        add(&mut receivers, Some(ring.peer(at, -offset)), of);
                    }
                }
                ModelExchange::Epidemic(_) | ModelExchange::Gossip => {
                    receivers = self.drawn(ring, of, slack as usize);
                }
            }
        }
        receivers
    }

    /// Those whom a peer of the ring draws by chance.
    fn drawn(&self, ring: &Ring, of: &PublicKey, slack: usize) -> Vec<PublicKey> {
        let mut drawn = Vec::new();
        for nth in 1..=u64::from(self.exchange.n_receivers()) {
            let place = ring.successor(&hash(of, self.round, nth));
            let mut after = (0..ring.0.len() as isize).map(|offset| ring.peer(place, offset));
            // Itself and those that it has drawn already are passed over.
            let next = after.find(|peer| peer != of && !drawn.contains(peer));
            add(&mut drawn, next, of);
            after.take(slack).for_each(|peer| add(&mut drawn, Some(peer), of));
        }
        drawn
    }
}

/// Adds a peer once, and never the one whose peers they are.
fn add(peers: &mut Vec<PublicKey>, peer: Option<PublicKey>, of: &PublicKey) {
    if let Some(peer) = peer.filter(|peer| peer != of && !peers.contains(peer)) {
        peers.push(peer);
    }
}

fn hash(peer: &PublicKey, round: u64, nth: u64) -> [u8; 32] {
    let numbers = [round, nth].map(u64::to_le_bytes).concat();
    Sha256Hash::of(&[&b"exchange"[..], &peer.0, &numbers].concat()).0
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const ALL: [ModelExchange; 5] = [
        ModelExchange::Exponential,
        ModelExchange::Regular(2),
        ModelExchange::Regular(4),
        ModelExchange::Epidemic(3),
        ModelExchange::Gossip,
    ];

    fn peers(n: u8) -> Vec<PublicKey> {
        (0..n).map(|at| PublicKey(Sha256Hash::of(&[at]).0)).collect()
    }

    #[test]
    fn who_receives_is_sent_to_and_nobody_by_itself() {
        for exchange in ALL {
            for (n, round) in (1..=17).flat_map(|n| (0..6).map(move |round| (n, round))) {
                let peers = peers(n);
                let topology = Topology::new(exchange, round, &peers);
                for (one, other) in peers.iter().flat_map(|one| peers.iter().map(move |other| (one, other))) {
                    let is_receiver = topology.receivers(one).contains(other);
                    let case = format!("{exchange:?} among {n} in round {round}");
                    assert_eq!(is_receiver, topology.senders(other).contains(one), "{case}");
                    assert!(!(is_receiver && one == other), "{case}");
                    assert!(!is_receiver || topology.is_near(one, other), "{case}");
                }
            }
        }
    }

    #[test]
    fn as_many_receive_as_is_said() {
        let peers = peers(40);
        for exchange in ALL {
            for round in 0..8 {
                let topology = Topology::new(exchange, round, &peers);
                for peer in &peers {
                    let (n, wanted) = (topology.receivers(peer).len(), exchange.n_receivers().into());
                    // Two cycles of a regular graph may have an edge in common.
                    let is_regular = matches!(exchange, ModelExchange::Regular(_));
                    assert!(n == wanted || is_regular && n < wanted && n + 2 >= wanted, "{exchange:?}: {n}");
                }
            }
        }
    }

    /// After `log2(n)` rounds of the exponential graph each has something of all; the others need some more.
    #[test]
    fn what_one_knows_comes_to_all() {
        let peers = peers(32);
        for (exchange, n_rounds) in ALL.into_iter().zip([5, 16, 6, 8, 16]) {
            let mut known: BTreeMap<PublicKey, BTreeSet<PublicKey>> =
                peers.iter().map(|peer| (*peer, [*peer].into())).collect();
            for round in 0..n_rounds {
                let topology = Topology::new(exchange, round, &peers);
                let before = known.clone();
                for peer in &peers {
                    for to in topology.receivers(peer) {
                        known.entry(to).or_default().extend(&before[peer]);
                    }
                }
            }
            let n_least = known.values().map(BTreeSet::len).min();
            assert_eq!(n_least, Some(32), "{exchange:?} after {n_rounds} rounds");
        }
    }

    #[test]
    fn a_peer_that_some_do_not_know_changes_little_for_the_others() {
        let all = peers(33);
        for exchange in ALL {
            let known = [&all[..], &all[..32]].map(|peers| Topology::new(exchange, 3, peers));
            for (from, to) in all[..32].iter().flat_map(|from| all[..32].iter().map(move |to| (from, to))) {
                if known[0].receivers(from).contains(to) {
                    assert!(known[1].is_near(from, to), "{exchange:?}");
                }
            }
            let strangers = all[..32].iter().filter(|from| !known[1].is_near(from, &all[0])).count();
            assert!(strangers > 8, "{exchange:?}: {strangers} of 32 are not near one");
        }
    }
}
