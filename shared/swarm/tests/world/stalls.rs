//! Stalls and slowdowns of peers and backbone: tabs in the background, suspended laptops, a busy backbone.

use std::time::Duration;

use barnraise_simulation::NodeId;

use super::{COLLECT_TIMEOUT_MS, ChurnEvent, ChurnSimulation, LATENCY_MS, MICRO_BATCH, STORE_MS};

/// The slowest peer's batch and transfer, without slowdown.
const BATCH_MS_MAX: u64 = 200;
const TRANSFER_MS_MAX: u64 = 600;
/// The longest stall, and the largest slowdown.
const STALL_MS_MAX: usize = 40_000;
const SLOWER_MAX: usize = 20;
/// Longest pause between two faults.
const PAUSE_MS_MAX: usize = 12_000;

/// The stalls under way, and since when each peer and the backbone have been healthy.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// Since when each peer computes, connected and without slowdown.
    peers_since: Vec<u64>,
    backbone_since: u64,
    pub(super) accepted_at: u64,
    n_checked: u64,
}

impl Stalls {
    pub(super) fn new(n_peers: usize) -> Self {
        Self { peers_since: vec![0; n_peers], ..Self::default() }
    }
}

impl ChurnSimulation {
    /// Bound of the time until a contribution is accepted while one peer computes without faults, with any other peers. It
    /// computes a step alone and delivers. It waits for others three times: for those that delivered before, for those
    /// that reported when gradients are due, and once more for those that reported meanwhile.
    pub(crate) fn accepted_within_ms(&self) -> u64 {
        let compute = u64::from(self.size.target.div_ceil(MICRO_BATCH)) * BATCH_MS_MAX;
        compute + 3 * COLLECT_TIMEOUT_MS + 2 * (TRANSFER_MS_MAX + STORE_MS) + 10 * LATENCY_MS
    }

    /// Stalls and throttles peers and backbone at random until `end_ms`. Checks progress all the time, and until the bound
    /// has passed afterwards. Returns the number of checks.
    pub(crate) fn run_stalling(&mut self, end_ms: u64) -> u64 {
        let n_peers = self.size.n_peers;
        let mut at = 0;
        while at < end_ms {
            at += 1 + self.below(PAUSE_MS_MAX);
            let whom = self.below(n_peers + 1) as usize;
            let stall = 100 + self.below(STALL_MS_MAX);
            let event = match self.below(3) {
                _ if whom == n_peers => ChurnEvent::Stall(None, stall / 2),
                0 => ChurnEvent::Throttle(whom, 1 + self.below(SLOWER_MAX)),
                _ => ChurnEvent::Stall(Some(whom), stall),
            };
            self.after(at, event);
        }
        for peer in 0..n_peers {
            // A slowdown that begins later is that of a device which stays slow.
            self.after(end_ms, ChurnEvent::Throttle(peer, 1));
        }
        let calm = end_ms + 2 * STALL_MS_MAX as u64 + 4 * self.accepted_within_ms();
        while self.now() < calm {
            let event = self.simulation.next().expect("something always happens");
            self.on(event);
            self.check_progress();
        }
        self.stalls.n_checked
    }

    /// A stall of a peer, or of the backbone. Connections stay open.
    pub(super) fn stall(&mut self, of: Option<usize>, for_ms: u64) {
        let until = self.simulation.now() + Duration::from_millis(for_ms);
        let node = of.map_or(self.backbone(), NodeId);
        self.simulation.network.pause(node, until);
    }

    pub(super) fn throttle(&mut self, peer: usize, slower: u64) {
        self.simulation.network.throttle(NodeId(peer), slower as f64);
    }

    /// Checks that a contribution was accepted where one peer has computed for long enough.
    fn check_progress(&mut self) {
        let (now, backbone) = (self.now(), self.backbone());
        let (stalls, network) = (&mut self.stalls, &self.simulation.network);
        let paused_until = |node: NodeId| network.paused_until(node).as_millis() as u64;
        stalls.backbone_since = stalls.backbone_since.max(paused_until(backbone));
        for (peer, of) in self.peers.iter().enumerate() {
            stalls.peers_since[peer] = stalls.peers_since[peer].max(paused_until(NodeId(peer)));
            // A peer without a connection knows it, and when it retries.
            if network.slower(NodeId(peer)) > 1.0 || of.link.down().is_some() {
                stalls.peers_since[peer] = now;
            }
        }
        let within = self.accepted_within_ms();
        let backbone = self.stalls.backbone_since;
        let longest = self.stalls.peers_since.iter().map(|&since| since.max(backbone)).min().unwrap_or(0);
        if now < longest + within {
            return;
        }
        self.stalls.n_checked += 1;
        let waited = now - self.stalls.accepted_at;
        assert!(
            waited <= within,
            "nothing was accepted for {waited} ms, though a peer computed for {} ms: {:?}",
            now - longest,
            self.round
        );
    }
}
