//! Injected faults: deaths, clock jumps, partitions.

use barnraise_simulation::NodeId;
use barnraise_swarm::AddressGroup;
use barnraise_swarm::collection::CollectionRound;

use super::{ChurnEvent, ChurnSimulation, LATENCY_MS, SILENCE_MS, UNNOTICED_MS, config, key};

impl ChurnSimulation {
    /// Schedules the faults of a round that takes about `round_ms`.
    pub(super) fn schedule_faults(&mut self, round_ms: u64) {
        if self.faults.stalls {
            return;
        }
        let n_peers = self.size.n_peers;
        let mut victims: Vec<usize> = (0..n_peers).collect();
        self.simulation.random.shuffle(&mut victims);
        for &victim in &victims[..self.size.n_killed] {
            let at = self.below(round_ms as usize + 1);
            self.after(at, ChurnEvent::Kill(victim));
        }
        let at = self.below(round_ms as usize + 1);
        self.after(at, ChurnEvent::ClockJumps(victims[n_peers - 1]));
        if self.faults.partitions && !victims.iter().any(|peer| self.is_cut(*peer)) && self.below(2) == 0 {
            self.seen.n_partitions += 1;
            self.partition(&victims[..n_peers / 2]);
        }
        if self.faults.backbone_dies {
            match self.below(4) {
                0 => {
                    let at = self.below(round_ms as usize + 1);
                    self.after(at, ChurnEvent::KillBackbone);
                }
                1 => self.dies_before_answer = true,
                _ => {}
            }
        }
    }

    /// Partitions these peers from the backbone. Both ends notice it after a while, each at its own time.
    pub(super) fn partition(&mut self, peers: &[usize]) {
        self.simulation.network.partition(peers.iter().copied().map(NodeId));
        for &peer in peers {
            let (session, noticed, unnoticed) =
                (self.peers[peer].session, self.below(SILENCE_MS), self.below(UNNOTICED_MS));
            self.after(noticed, ChurnEvent::Disconnected(peer, session));
            self.after(unnoticed, ChurnEvent::Lost(peer, session));
        }
        let heals = 2000 + self.below(12_000);
        self.after(heals, ChurnEvent::Heal);
    }

    pub(super) fn kill_backbone(&mut self) {
        self.seen.n_backbone_deaths += 1;
        self.is_up = false;
        self.flights.clear();
        self.collecting_since = None;
        for (peer, session) in std::mem::take(&mut self.sessions) {
            // Some connections are reset, others go silent.
            if self.below(2) == 0 {
                self.after(LATENCY_MS, ChurnEvent::Disconnected(peer, session));
            }
        }
        self.after(1000, ChurnEvent::StartBackbone);
    }

    /// As `Learner::recover` does it.
    pub(super) fn start_backbone(&mut self) {
        (self.is_up, self.boot, self.boot_ms) = (true, self.boot + 1, self.now());
        let epoch = self.n_committed;
        self.round = CollectionRound::new(config(&self.size, self.faults.clips_gradients), epoch);
        let before = epoch.checked_sub(1).and_then(|before| self.journal.get(&before));
        for entry in before.iter().flat_map(|entries| entries.values()) {
            self.round.restore_counted_before(key(entry.peer), entry.offer.contribution_id);
        }
        for (&sequence, entry) in self.journal.get(&epoch).iter().flat_map(|entries| entries.iter()) {
            self.round
                .restore(key(entry.peer), AddressGroup::UNKNOWN, &entry.offer, &entry.values, sequence)
                .unwrap();
        }
    }
}
