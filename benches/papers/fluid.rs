//! A network in virtual time: transfers are fluids that share the links of their ends.
//!
//! Rates are max-min fair (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2), which is
//! what TCP comes close to when round trips are alike; with weights, where senders share their links by plan. No packets, no losses, no latency: what is sent here takes
//! seconds.

use std::collections::VecDeque;

/// Transfers that end within this are one moment, in s.
const SAME_MOMENT_S: f64 = 1e-9;
/// Less than this is nothing: rounding must not keep a transfer alive, in bytes.
const NOTHING_BYTES: f64 = 1e-3;

/// What one node can send and receive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Link {
    /// Bytes per second.
    pub(crate) up: f64,
    /// Bytes per second.
    pub(crate) down: f64,
}

impl Link {
    /// The same both ways, as links are advertised.
    pub(crate) fn symmetric(gigabit_per_s: f64) -> Self {
        let bytes_per_s = gigabit_per_s * 1e9 / 8.0;
        Self { up: bytes_per_s, down: bytes_per_s }
    }
}

struct Flow<T> {
    from: usize,
    to: usize,
    bytes_left: f64,
    weight: f64,
    rate: f64,
    tag: T,
}

/// The nodes, what they send each other, and the time.
pub(crate) struct Fluid<T> {
    links: Vec<Link>,
    flows: Vec<Flow<T>>,
    /// Have arrived by now, in order.
    arrived: VecDeque<T>,
    now: f64,
    /// Something started or ended since the rates were found.
    is_stale: bool,
}

impl<T> Fluid<T> {
    /// A silent network.
    pub(crate) fn new(links: Vec<Link>) -> Self {
        Self { links, flows: Vec::new(), arrived: VecDeque::new(), now: 0.0, is_stale: false }
    }

    /// Seconds since the start.
    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// Begins a transfer between two nodes; `tag` comes back when all of it has arrived. Within a node it
    /// takes no time. Of a link that it shares it gets its `weight`'s part.
    pub(crate) fn send(&mut self, from: usize, to: usize, bytes: f64, weight: f64, tag: T) {
        if from == to || bytes <= NOTHING_BYTES {
            self.arrived.push_back(tag);
        } else {
            self.flows.push(Flow { from, to, bytes_left: bytes, weight, rate: 0.0, tag });
            self.is_stale = true;
        }
    }

    /// Goes on to the next arrival; `None` when nothing is under way.
    pub(crate) fn next(&mut self) -> Option<T> {
        if self.arrived.is_empty() && !self.flows.is_empty() {
            if self.is_stale {
                self.share();
            }
            let takes = self.flows.iter().map(|flow| flow.bytes_left / flow.rate);
            self.advance(takes.fold(f64::INFINITY, f64::min));
        }
        self.arrived.pop_front()
    }

    /// Lets all flow for `seconds`, after which some have arrived.
    fn advance(&mut self, seconds: f64) {
        self.now += seconds;
        for flow in &mut self.flows {
            flow.bytes_left -= flow.rate * seconds;
        }
        let has_ended = |flow: &Flow<T>| flow.bytes_left <= NOTHING_BYTES.max(flow.rate * SAME_MOMENT_S);
        let (ended, going): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.flows).into_iter().partition(has_ended);
        self.flows = going;
        self.arrived.extend(ended.into_iter().map(|flow| flow.tag));
        self.is_stale = true;
    }

    /// Progressive filling: all rates rise together until a link is full; its transfers keep what they have.
    fn share(&mut self) {
        let n = self.links.len();
        // A node's upload, then its download.
        let mut free: Vec<f64> = self.links.iter().map(|link| link.up).collect();
        free.extend(self.links.iter().map(|link| link.down));
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); 2 * n];
        for (index, flow) in self.flows.iter().enumerate() {
            users[flow.from].push(index);
            users[n + flow.to].push(index);
        }
        let mut is_rising = vec![true; self.flows.len()];
        let mut rising: Vec<f64> =
            users.iter().map(|users| users.iter().map(|&index| self.flows[index].weight).sum()).collect();
        let mut n_rising: Vec<usize> = users.iter().map(Vec::len).collect();
        // What a transfer of weight 1 gets when the first link is full, and which link that is.
        let fullest = |free: &[f64], rising: &[f64], n_rising: &[usize]| {
            let links = (0..free.len()).filter(|&link| n_rising[link] > 0);
            let shares = links.map(|link| (link, free[link].max(0.0) / rising[link]));
            shares.min_by(|a, b| a.1.total_cmp(&b.1))
        };
        while let Some((link, share)) = fullest(&free, &rising, &n_rising) {
            for &index in &users[link] {
                if !std::mem::replace(&mut is_rising[index], false) {
                    continue;
                }
                let flow = &mut self.flows[index];
                flow.rate = share * flow.weight;
                for end in [flow.from, n + flow.to] {
                    free[end] -= flow.rate;
                    rising[end] -= flow.weight;
                    n_rising[end] -= 1;
                }
            }
        }
        self.is_stale = false;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn links(rates: &[(f64, f64)]) -> Vec<Link> {
        rates.iter().map(|&(up, down)| Link { up, down }).collect()
    }

    /// Tags with the moments at which they arrive.
    fn all(network: &mut Fluid<&'static str>) -> Vec<(&'static str, f64)> {
        let mut arrived = Vec::new();
        while let Some(tag) = network.next() {
            arrived.push((tag, network.now()));
        }
        arrived
    }

    #[test]
    fn two_transfers_share_a_link_and_the_longer_one_gets_the_rest() {
        let mut network = Fluid::new(links(&[(10.0, 10.0), (9.0, 9.0), (9.0, 9.0)]));
        network.send(0, 1, 10.0, 1.0, "short");
        network.send(0, 2, 28.0, 1.0, "long");
        let arrived = all(&mut network);
        // 5 B/s each for 2 s; then the long one has 18 bytes left at the 9 B/s of its receiver.
        assert_eq!(arrived.len(), 2);
        assert_eq!(arrived[0].0, "short");
        assert!((arrived[0].1 - 2.0).abs() < 1e-9, "{arrived:?}");
        assert!((arrived[1].1 - 4.0).abs() < 1e-9, "{arrived:?}");
    }

    #[test]
    fn a_slow_receiver_leaves_its_share_of_the_sender_to_the_others() {
        let mut network = Fluid::new(links(&[(10.0, 1.0), (1.0, 2.0), (1.0, 100.0)]));
        network.send(0, 1, 4.0, 1.0, "slow");
        network.send(0, 2, 16.0, 1.0, "fast");
        let arrived = all(&mut network);
        // 2 B/s and 8 B/s.
        assert!(arrived.iter().all(|(_, at)| (at - 2.0).abs() < 1e-9), "{arrived:?}");
    }

    #[test]
    fn a_shared_link_is_divided_by_weight() {
        let mut network = Fluid::new(links(&[(4.0, 4.0), (9.0, 9.0), (9.0, 9.0)]));
        network.send(0, 1, 3.0, 3.0, "heavy");
        network.send(0, 2, 1.0, 1.0, "light");
        let arrived = all(&mut network);
        assert!(arrived.len() == 2 && arrived.iter().all(|(_, at)| (at - 1.0).abs() < 1e-9), "{arrived:?}");
    }

    #[test]
    fn what_stays_in_a_node_costs_nothing() {
        let mut network = Fluid::new(links(&[(1.0, 1.0)]));
        network.send(0, 0, 1e12, 1.0, "here");
        assert_eq!(all(&mut network), [("here", 0.0)]);
    }

    #[test]
    fn no_link_carries_more_than_it_can() {
        let mut network = Fluid::new(links(&[(3.0, 5.0), (7.0, 2.0), (4.0, 4.0), (1.0, 9.0)]));
        for from in 0..4 {
            for to in 0..4 {
                network.send(from, to, 100.0, 1.0, "");
            }
        }
        network.share();
        for node in 0..4 {
            let up: f64 = network.flows.iter().filter(|flow| flow.from == node).map(|flow| flow.rate).sum();
            let down: f64 = network.flows.iter().filter(|flow| flow.to == node).map(|flow| flow.rate).sum();
            assert!(up <= network.links[node].up + 1e-9 && down <= network.links[node].down + 1e-9);
        }
        // Max-min: each transfer has a full link on its way.
        assert!(network.flows.iter().all(|flow| flow.rate > 0.0));
    }
}
