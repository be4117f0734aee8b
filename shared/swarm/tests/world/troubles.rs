//! What befalls the world: deaths, clocks that jump, partitions.

use barnraise_swarm::round::{AddressGroup, AveragingRound};

use super::{Event, LATENCY_MS, SILENCE_MS, UNNOTICED_MS, World, config, key};

impl World {
    /// What happens in a round that takes about `round_ms`.
    pub(super) fn trouble(&mut self, round_ms: u64) {
        if self.troubles.stalls {
            return;
        }
        let n_peers = self.size.n_peers;
        let mut victims: Vec<usize> = (0..n_peers).collect();
        self.random.shuffle(&mut victims);
        for &victim in &victims[..self.size.n_killed] {
            let at = self.below(round_ms as usize + 1);
            self.after(at, Event::Kill(victim));
        }
        let at = self.below(round_ms as usize + 1);
        self.after(at, Event::ClockJumps(victims[n_peers - 1]));
        if self.troubles.partitions && self.cut.is_empty() && self.below(2) == 0 {
            self.seen.n_partitions += 1;
            self.partition(&victims[..n_peers / 2]);
        }
        if self.troubles.backbone_dies {
            match self.below(4) {
                0 => {
                    let at = self.below(round_ms as usize + 1);
                    self.after(at, Event::KillBackbone);
                }
                1 => self.dies_before_it_tells = true,
                _ => {}
            }
        }
    }

    /// Nothing gets through to these peers or from them. Both ends notice it after a while, each for itself.
    pub(super) fn partition(&mut self, peers: &[usize]) {
        self.cut.extend(peers);
        for &peer in peers {
            let (session, noticed, unnoticed) =
                (self.peers[peer].session, self.below(SILENCE_MS), self.below(UNNOTICED_MS));
            self.after(noticed, Event::Disconnected(peer, session));
            self.after(unnoticed, Event::Lost(peer, session));
        }
        let heals = 2000 + self.below(12_000);
        self.after(heals, Event::Heal);
    }

    /// Whether it would have to come through a partition.
    pub(super) fn is_cut(&self, event: &Event) -> bool {
        match event {
            Event::Answer(peer, ..)
            | Event::Hear(peer, ..)
            | Event::Report(peer, ..)
            | Event::Offer(peer, ..) => self.cut.contains(peer),
            _ => false,
        }
    }

    pub(super) fn kill_backbone(&mut self) {
        self.seen.n_backbone_deaths += 1;
        self.is_up = false;
        self.flights.clear();
        self.collecting_since = None;
        for (peer, session) in std::mem::take(&mut self.sessions) {
            // Some connections are reset, others only go silent.
            if self.below(2) == 0 {
                self.after(LATENCY_MS, Event::Disconnected(peer, session));
            }
        }
        self.after(1000, Event::StartBackbone);
    }

    /// As `Learner::recover` does it.
    pub(super) fn start_backbone(&mut self) {
        (self.is_up, self.boot, self.boot_ms) = (true, self.boot + 1, self.now);
        let epoch = self.n_committed;
        self.round = AveragingRound::new(config(&self.size, self.troubles.is_wary), epoch);
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
