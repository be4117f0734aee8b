//! What follows from the actions of the state machine: averagings, steps, downloads of models.

use super::*;

impl MatchmakingSimulation {
    pub(super) fn act(&mut self, of: usize, action: MatchmakingAction) {
        match action {
            MatchmakingAction::Propose { model, members } => {
                let nonce = self.simulation.random.next_u64();
                let member = |(peer, standing): &(PeerKey, AggregatorStatus)| ProposedMember {
                    peer: peer.0.clone(),
                    n_samples: standing.ready.unwrap().n_samples,
                    n_reduced: 0,
                };
                let proposed = members.iter().map(member).collect();
                let proposal = Proposal {
                    model,
                    nonce,
                    group_size: MEMBERS_MAX as u16,
                    members: proposed,
                    reducers: Vec::new(),
                    check_seed: 0,
                    loss: 1.0,
                };
                // After a loss the network delivers for a while.
                let may_lose = self.simulation.now() >= self.lost_at + Duration::from_secs(10);
                let is_lossy = may_lose && self.below(100) < self.delays.lost_proposals as u64;
                if is_lossy {
                    self.lost_at = self.simulation.now();
                }
                for (other, _) in members.iter().filter(|(other, _)| *other != peer(of as u8)) {
                    let to = usize::from(other.0[0]);
                    if !(is_lossy && self.below(2) == 0) {
                        let event = MatchmakingEvent::Proposal { to, proposal: proposal.clone() };
                        self.simulation.send(NodeId(of), NodeId(to), event);
                    }
                }
                self.peers[of].matchmaking.on_proposal(self.simulation.now(), proposal).unwrap();
            }
            MatchmakingAction::Average(proposal) => {
                let nonce = proposal.nonce;
                self.leave_round(of);
                self.peers[of].round = Some(nonce);
                let n_awaited = self.delays.hangs_ms.map(|_| proposal.members.len());
                let members = proposal.members.iter().map(|member| usize::from(member.peer[0])).collect();
                let round = self.rounds.entry(nonce).or_insert(MatchmakingRound {
                    members,
                    joined: Vec::new(),
                    n_awaited,
                });
                round.joined.push(of);
                let n_joined = round.joined.len();
                if let Some(hangs_ms) = self.delays.hangs_ms.filter(|_| n_joined == 1) {
                    self.after(hangs_ms, MatchmakingEvent::Averaged { nonce });
                }
                if n_joined == n_awaited.unwrap_or(1) {
                    self.after(self.delays.averaging_ms, MatchmakingEvent::Averaged { nonce });
                }
            }
            MatchmakingAction::GiveUp => self.leave_round(of),
            MatchmakingAction::StepAlone => {
                let model = self.next_model(&[of], self.n_accepted);
                self.step(of, model);
            }
            MatchmakingAction::Reopen => {}
            MatchmakingAction::Follow(from) => {
                self.leave_round(of);
                let from = from.iter().map(|peer| usize::from(peer.0[0])).collect();
                self.peers[of].n_followed += 1;
                let (pause, attempt) = (20 + self.below(200), self.peers[of].n_followed);
                self.after(pause, MatchmakingEvent::Followed { of, attempt, from });
            }
        }
    }

    /// Breaks the streams to a dead peer: a peer that follows it asks the next one, and averagings that wait for it fail.
    pub(super) fn cut(&mut self, dead: usize, of: usize) {
        if let Some((attempt, from)) = self.peers[of].hangs_at.take() {
            self.after(20, MatchmakingEvent::Followed { of, attempt, from });
        }
        let nonce = self.peers[of].round;
        let waits = nonce.and_then(|nonce| self.rounds.get(&nonce)).is_some_and(|round| {
            round.members.contains(&dead) && round.n_awaited.is_some_and(|n| round.joined.len() < n)
        });
        if let Some(nonce) = nonce.filter(|_| waits) {
            self.after(self.delays.averaging_ms, MatchmakingEvent::Averaged { nonce });
        }
    }

    /// Removes a peer from its averaging.
    pub(super) fn leave_round(&mut self, of: usize) {
        if let Some(round) = self.peers[of].round.take().and_then(|nonce| self.rounds.get_mut(&nonce)) {
            round.joined.retain(|joined| *joined != of);
        }
    }

    pub(super) fn averaged(
        &mut self,
        nonce: u64,
        MatchmakingRound { joined, n_awaited, .. }: MatchmakingRound,
    ) {
        let is_missing = n_awaited.is_some_and(|n_awaited| joined.len() < n_awaited);
        let Some(&first) = joined.first() else { return };
        let is_connected = |&of: &usize| self.are_connected(first, of) || of == first;
        let (connected, disconnected): (Vec<usize>, Vec<usize>) =
            joined.iter().partition(|of| is_connected(of));
        let model = self.next_model(&connected, nonce);
        let is_torn = self.torn > 0 && self.below(100) < self.torn;
        let other = if is_torn { self.next_model(&connected, !nonce) } else { model };
        self.n_torn += u64::from(is_torn);
        for &of in &connected {
            if !self.is_alive(of) || self.peers[of].round.take_if(|round| *round == nonce).is_none() {
                continue;
            }
            let fails = is_missing || connected.len() < 2 || self.below(100) < self.failures as usize as u64;
            if fails {
                let until =
                    if nonce.is_multiple_of(2) { Moment::ZERO } else { self.simulation.now() + at(2000) };
                self.peers[of].matchmaking.on_partial_mean(self.simulation.now(), until);
                self.drive(of);
            } else {
                let gets_other = is_torn && self.below(2) == 0;
                self.step(of, if gets_other { other } else { model });
            }
        }
        for of in disconnected {
            let averages = self.peers[of].round.take_if(|round| *round == nonce).is_some();
            if self.is_alive(of) && averages {
                self.peers[of].matchmaking.on_failed(self.simulation.now());
                self.drive(of);
            }
        }
    }

    fn next_model(&mut self, of: &[usize], nonce: u64) -> ModelVersion {
        let before = self.peers[of[0]].matchmaking.own().model;
        let mut line = self.histories[&before.hash].clone();
        let mut n_samples_total = before.n_samples_total;
        for &member in of {
            for &(number, n_samples) in &self.peers[member].accepted {
                assert!(line.insert(number), "contribution {number} counts twice");
                n_samples_total += n_samples;
            }
        }
        let hash = Sha256Hash::of(&[before.hash.0.as_slice(), &nonce.to_le_bytes()].concat());
        self.histories.insert(hash, line);
        ModelVersion { n_samples_total, epoch: before.epoch + 1, hash }
    }

    fn step(&mut self, of: usize, model: ModelVersion) {
        self.carry(of, model);
        self.peers[of].matchmaking.on_stepped(self.simulation.now(), model);
        self.drive(of);
    }

    /// Keeps the contributions that are not in the new model for the next step.
    fn carry(&mut self, of: usize, model: ModelVersion) {
        let line = &self.histories[&model.hash];
        let peer = &mut self.peers[of];
        peer.accepted = peer.journal.iter().copied().filter(|(number, _)| !line.contains(number)).collect();
        self.peers[of].is_collecting = false;
    }

    pub(super) fn followed(&mut self, of: usize, attempt: u32, from: Vec<usize>) {
        if !self.is_alive(of) || self.peers[of].n_followed != attempt {
            return;
        }
        let is_heard = |&from: &usize| {
            self.peers[of]
                .matchmaking
                .known_peers(self.simulation.now())
                .any(|(donor, _)| *donor == peer(from as u8))
        };
        if from.iter().any(|from| !self.is_alive(*from) && is_heard(from)) {
            // The download hangs until the death is noticed.
            self.peers[of].hangs_at = Some((attempt, from));
            return;
        }
        let own = self.peers[of].matchmaking.own().model;
        let donor = from.iter().find(|&&from| self.are_connected(from, of));
        let model = donor.map(|&donor| self.peers[donor].matchmaking.own().model);
        match model.filter(|model| *model > own) {
            Some(model) => {
                self.step(of, model);
                self.peers[of].matchmaking.on_followed(self.simulation.now());
                self.drive(of);
            }
            None => {
                self.peers[of].matchmaking.on_failed(self.simulation.now());
                self.drive(of);
            }
        }
    }
}
