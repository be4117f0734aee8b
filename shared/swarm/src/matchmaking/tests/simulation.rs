//! Peers in virtual time: messages that take their time, averagings that fail or give some the mean of few, peers that
//! die and come back, partitions that heal. Whatever happens, all agree in the end, and accepted work is in the model once.

mod few;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::*;
use crate::random::SplitMix64;

#[derive(Debug, Clone, PartialEq)]
enum Event {
    Standing { from: usize, to: usize, standing: Standing },
    Proposal { to: usize, proposal: Proposal },
    Gone { of: usize, to: usize },
    Contribute(usize),
    Collected { of: usize, life: u32 },
    Averaged { nonce: u64 },
    Followed { of: usize, attempt: u32, from: Vec<usize> },
    Tick(usize),
    Kill(usize),
    Restart(usize),
    Part(u32),
}

struct Peer {
    matchmaking: Matchmaking,
    is_alive: bool,
    life: u32,
    /// What it accepted, which survives a crash: number and samples.
    journal: Vec<(u64, u64)>,
    /// Of those, what is not in the model.
    accepted: Vec<(u64, u64)>,
    is_collecting: bool,
    told: Standing,
    n_contributors: u32,
    /// What it averages.
    round: Option<u64>,
    /// Names an attempt to follow; that of another number is over.
    n_followed: u32,
    /// The attempt to follow one that died.
    hangs_at: Option<(u32, Vec<usize>)>,
}

struct World {
    random: SplitMix64,
    now: Moment,
    queue: BinaryHeap<Reverse<(Moment, u64)>>,
    events: HashMap<u64, Event>,
    next: u64,
    peers: Vec<Peer>,
    /// Peers that are on different sides do not hear each other.
    sides: u32,
    rounds: HashMap<u64, Round>,
    /// Contributions in each model.
    lines: HashMap<Sha256Hash, BTreeSet<u64>>,
    arrivals: HashMap<(usize, usize), Moment>,
    failures: u64,
    /// In so many of a hundred averagings some members get another mean: of a reducer that died once it had told them.
    torn: u64,
    n_torn: u64,
    n_accepted: u64,
    is_contributing: bool,
    network: Network,
    /// When a proposal was last lost.
    lost_at: Moment,
}

/// Those who average.
struct Round {
    members: Vec<usize>,
    joined: Vec<usize>,
    /// All who should, where it does not end without them.
    n_awaited: Option<usize>,
}

/// How long what takes at most.
#[derive(Debug, Clone, Copy)]
struct Network {
    message_ms: usize,
    averaging_ms: u64,
    contribution_ms: usize,
    /// An averaging that not all members take part in ends after so long without a mean; otherwise it is of those who do.
    hangs_ms: Option<u64>,
    /// In so many of a hundred averagings a member does not hear of it.
    lost_proposals: usize,
    /// When the others notice that one has died, at the earliest and at the latest: until then what they expect of it
    /// does not come.
    noticed_ms: (usize, usize),
    config: MatchmakingConfig,
}

const NETWORK: Network = Network {
    message_ms: 40,
    averaging_ms: 150,
    contribution_ms: 220,
    hangs_ms: None,
    lost_proposals: 0,
    noticed_ms: (1, 1),
    config: CONFIG,
};

impl World {
    fn new(n_peers: usize, seed: u64) -> Self {
        Self::within(NETWORK, n_peers, seed)
    }

    fn within(network: Network, n_peers: usize, seed: u64) -> Self {
        let start = standing(0, 0);
        let matchmaking = |number: usize| Matchmaking::new(network.config, peer(number as u8), start);
        let peers = (0..n_peers).map(|number| Peer {
            matchmaking: matchmaking(number),
            is_alive: true,
            life: 0,
            journal: Vec::new(),
            accepted: Vec::new(),
            is_collecting: false,
            told: start,
            n_contributors: 1,
            round: None,
            n_followed: 0,
            hangs_at: None,
        });
        let mut world = Self {
            random: SplitMix64::new(seed),
            now: Moment::ZERO,
            queue: BinaryHeap::new(),
            events: HashMap::new(),
            next: 0,
            peers: peers.collect(),
            sides: 0,
            rounds: HashMap::new(),
            lines: HashMap::from([(start.model.hash, BTreeSet::new())]),
            arrivals: HashMap::new(),
            failures: 0,
            torn: 0,
            n_torn: 0,
            n_accepted: 0,
            is_contributing: true,
            network,
            lost_at: Moment::ZERO,
        };
        for number in 0..n_peers {
            world.after(0, Event::Tick(number));
            world.after(0, Event::Contribute(number));
        }
        world
    }

    fn after(&mut self, millis: u64, event: Event) {
        self.next += 1;
        self.queue.push(Reverse((self.now + at(millis), self.next)));
        self.events.insert(self.next, event);
    }

    fn below(&mut self, n: usize) -> u64 {
        self.random.below(n) as u64
    }

    fn hear_each_other(&self, one: usize, other: usize) -> bool {
        let side = |number: usize| self.sides >> number & 1;
        self.peers[one].is_alive && self.peers[other].is_alive && side(one) == side(other)
    }

    fn run_until(&mut self, end: Moment) {
        while let Some(&Reverse((time, number))) = self.queue.peek()
            && time <= end
        {
            self.queue.pop();
            self.now = self.now.max(time);
            let event = self.events.remove(&number).unwrap();
            self.handle(event);
        }
        self.now = end;
    }

    fn run_for(&mut self, millis: u64) {
        let end = self.now + at(millis);
        self.run_until(end);
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Standing { from, to, standing } => {
                if self.hear_each_other(from, to) {
                    self.peers[to].matchmaking.on_standing(now, peer(from as u8), standing);
                    self.drive(to);
                }
            }
            Event::Proposal { to, proposal } => {
                if self.peers[to].is_alive {
                    let _ = self.peers[to].matchmaking.on_proposal(now, proposal);
                    self.drive(to);
                }
            }
            Event::Gone { of, to } => {
                self.peers[to].matchmaking.on_gone(now, &peer(of as u8));
                self.cut(of, to);
                self.drive(to);
            }
            Event::Contribute(of) => {
                let longest = self.network.contribution_ms;
                let pause = longest as u64 / 11 + self.below(longest * 10 / 11);
                if self.is_contributing {
                    self.after(pause, Event::Contribute(of));
                }
                let is_open = self.peers[of].matchmaking.own().ready.is_none();
                if self.peers[of].is_alive && self.peers[of].n_contributors > 0 && is_open {
                    let n_samples = 1 + self.below(30);
                    self.n_accepted += 1;
                    let number = self.n_accepted;
                    self.peers[of].journal.push((number, n_samples));
                    self.peers[of].accepted.push((number, n_samples));
                    self.drive(of);
                }
            }
            Event::Collected { of, life } => {
                if self.peers[of].is_alive && self.peers[of].life == life && self.peers[of].is_collecting {
                    self.peers[of].is_collecting = false;
                    let n_samples = self.peers[of].n_samples();
                    self.peers[of].matchmaking.on_ready(now, Ready { n_samples, loss: 1.0 });
                    self.drive(of);
                }
            }
            Event::Averaged { nonce } => {
                if let Some(round) = self.rounds.remove(&nonce) {
                    self.averaged(nonce, round);
                }
            }
            Event::Followed { of, attempt, from } => self.followed(of, attempt, from),
            Event::Tick(of) => {
                self.after(250, Event::Tick(of));
                if self.peers[of].is_alive {
                    self.peers[of].matchmaking.on_timeout(now);
                    self.drive(of);
                    if now.subsec_millis() < 250 {
                        self.tell(of);
                    }
                }
            }
            Event::Kill(of) => {
                self.peers[of].is_alive = false;
                let (earliest, latest) = self.network.noticed_ms;
                for to in (0..self.peers.len()).filter(|to| *to != of) {
                    let noticed = earliest as u64 + self.below(latest - earliest + 1);
                    self.after(noticed, Event::Gone { of, to });
                }
            }
            Event::Restart(of) => {
                let model = self.peers[of].matchmaking.own().model;
                let own = Standing { model, ..standing(0, 0) };
                self.peers[of].matchmaking = Matchmaking::new(self.network.config, peer(of as u8), own);
                self.peers[of].is_alive = true;
                (self.peers[of].is_collecting, self.peers[of].round) = (false, None);
                self.peers[of].life += 1;
                self.peers[of].n_followed += 1;
                self.drive(of);
            }
            Event::Part(sides) => self.sides = sides,
        }
    }

    /// What a driver does after each event.
    fn drive(&mut self, of: usize) {
        let now = self.now;
        loop {
            let here = &mut self.peers[of];
            let n_samples = here.n_samples();
            let own = Standing { n_samples, is_closing: here.is_collecting, ..*here.matchmaking.own() };
            let n_contributors = here.n_contributors;
            let own = Standing { is_closing: own.is_closing || own.ready.is_some(), n_contributors, ..own };
            here.matchmaking.on_own(now, own);
            let elsewhere = here.matchmaking.n_samples_elsewhere(now);
            let is_enough = n_samples + elsewhere >= self.network.config.target_batch_size;
            let is_closing = is_enough || here.matchmaking.is_closing_elsewhere(now);
            if is_closing && !here.is_collecting && here.matchmaking.own().ready.is_none() {
                here.is_collecting = true;
                let (pause, life) = (self.below(60), self.peers[of].life);
                self.after(pause, Event::Collected { of, life });
                continue;
            }
            let Some(action) = self.peers[of].matchmaking.poll_action() else { break };
            self.act(of, action);
        }
        if self.peers[of].told != *self.peers[of].matchmaking.own() {
            self.tell(of);
        }
    }

    fn tell(&mut self, of: usize) {
        let standing = *self.peers[of].matchmaking.own();
        self.peers[of].told = standing;
        for to in (0..self.peers.len()).filter(|to| *to != of) {
            let sent = self.now + at(1 + self.below(self.network.message_ms));
            // In order.
            let arrival = sent.max(self.arrivals.get(&(of, to)).copied().unwrap_or_default());
            self.arrivals.insert((of, to), arrival);
            let millis = arrival.saturating_sub(self.now).as_millis() as u64;
            self.after(millis, Event::Standing { from: of, to, standing });
        }
    }

    fn act(&mut self, of: usize, action: Action) {
        match action {
            Action::Propose { model, members } => {
                let nonce = self.random.next_u64();
                let member = |(peer, standing): &(PeerKey, Standing)| ProposedMember {
                    peer: peer.0.clone(),
                    n_samples: standing.ready.unwrap().n_samples,
                    n_reduced: 0,
                };
                let proposed = members.iter().map(member).collect();
                let proposal = Proposal { model, nonce, members: proposed, ..proposal(0, &[]) };
                // A link that is up again delivers for a while.
                let may_lose = self.now >= self.lost_at + Duration::from_secs(10);
                let is_lossy = may_lose && self.below(100) < self.network.lost_proposals as u64;
                if is_lossy {
                    self.lost_at = self.now;
                }
                for (other, _) in members.iter().filter(|(other, _)| *other != peer(of as u8)) {
                    let (to, pause) = (usize::from(other.0[0]), 1 + self.below(self.network.message_ms));
                    if self.hear_each_other(of, to) && !(is_lossy && self.below(2) == 0) {
                        self.after(pause, Event::Proposal { to, proposal: proposal.clone() });
                    }
                }
                self.peers[of].matchmaking.on_proposal(self.now, proposal).unwrap();
            }
            Action::Average(proposal) => {
                let nonce = proposal.nonce;
                self.leave_round(of);
                self.peers[of].round = Some(nonce);
                let n_awaited = self.network.hangs_ms.map(|_| proposal.members.len());
                let members = proposal.members.iter().map(|member| usize::from(member.peer[0])).collect();
                let round =
                    self.rounds.entry(nonce).or_insert(Round { members, joined: Vec::new(), n_awaited });
                round.joined.push(of);
                let n_joined = round.joined.len();
                if let Some(hangs_ms) = self.network.hangs_ms.filter(|_| n_joined == 1) {
                    self.after(hangs_ms, Event::Averaged { nonce });
                }
                if n_joined == n_awaited.unwrap_or(1) {
                    self.after(self.network.averaging_ms, Event::Averaged { nonce });
                }
            }
            Action::GiveUp => self.leave_round(of),
            Action::StepAlone => {
                let model = self.next_model(&[of], self.n_accepted);
                self.step(of, model);
            }
            Action::Reopen => {}
            Action::Follow(from) => {
                self.leave_round(of);
                let from = from.iter().map(|peer| usize::from(peer.0[0])).collect();
                self.peers[of].n_followed += 1;
                let (pause, attempt) = (20 + self.below(200), self.peers[of].n_followed);
                self.after(pause, Event::Followed { of, attempt, from });
            }
        }
    }

    /// Streams to one that died break: a peer that followed it asks the next one, and averagings that wait for it fail.
    fn cut(&mut self, dead: usize, of: usize) {
        if let Some((attempt, from)) = self.peers[of].hangs_at.take() {
            self.after(20, Event::Followed { of, attempt, from });
        }
        let nonce = self.peers[of].round;
        let waits = nonce.and_then(|nonce| self.rounds.get(&nonce)).is_some_and(|round| {
            round.members.contains(&dead) && round.n_awaited.is_some_and(|n| round.joined.len() < n)
        });
        if let Some(nonce) = nonce.filter(|_| waits) {
            self.after(self.network.averaging_ms, Event::Averaged { nonce });
        }
    }

    /// Its streams are cut.
    fn leave_round(&mut self, of: usize) {
        if let Some(round) = self.peers[of].round.take().and_then(|nonce| self.rounds.get_mut(&nonce)) {
            round.joined.retain(|joined| *joined != of);
        }
    }

    fn averaged(&mut self, nonce: u64, Round { joined, n_awaited, .. }: Round) {
        let is_missing = n_awaited.is_some_and(|n_awaited| joined.len() < n_awaited);
        let Some(&first) = joined.first() else { return };
        let together = |&of: &usize| self.hear_each_other(first, of) || of == first;
        let (together, apart): (Vec<usize>, Vec<usize>) = joined.iter().partition(|of| together(of));
        let model = self.next_model(&together, nonce);
        let is_torn = self.torn > 0 && self.below(100) < self.torn;
        let other = if is_torn { self.next_model(&together, !nonce) } else { model };
        self.n_torn += u64::from(is_torn);
        for &of in &together {
            if !self.peers[of].is_alive || self.peers[of].round.take_if(|round| *round == nonce).is_none() {
                continue;
            }
            let fails = is_missing || together.len() < 2 || self.below(100) < self.failures as usize as u64;
            if fails {
                let until = if nonce.is_multiple_of(2) { Moment::ZERO } else { self.now + at(2000) };
                self.peers[of].matchmaking.on_not_whole(self.now, until);
                self.drive(of);
            } else {
                let gets_other = is_torn && self.below(2) == 0;
                self.step(of, if gets_other { other } else { model });
            }
        }
        for of in apart {
            let averages = self.peers[of].round.take_if(|round| *round == nonce).is_some();
            if self.peers[of].is_alive && averages {
                self.peers[of].matchmaking.on_failed(self.now);
                self.drive(of);
            }
        }
    }

    fn next_model(&mut self, of: &[usize], nonce: u64) -> ModelVersion {
        let before = self.peers[of[0]].matchmaking.own().model;
        let mut line = self.lines[&before.hash].clone();
        let mut n_samples_total = before.n_samples_total;
        for &member in of {
            for &(number, n_samples) in &self.peers[member].accepted {
                assert!(line.insert(number), "contribution {number} counts twice");
                n_samples_total += n_samples;
            }
        }
        let hash = Sha256Hash::of(&[before.hash.0.as_slice(), &nonce.to_le_bytes()].concat());
        self.lines.insert(hash, line);
        ModelVersion { n_samples_total, epoch: before.epoch + 1, hash }
    }

    fn step(&mut self, of: usize, model: ModelVersion) {
        self.carry(of, model);
        self.peers[of].matchmaking.on_stepped(self.now, model);
        self.drive(of);
    }

    /// What is not in the new model counts for the next one.
    fn carry(&mut self, of: usize, model: ModelVersion) {
        let line = &self.lines[&model.hash];
        let peer = &mut self.peers[of];
        peer.accepted = peer.journal.iter().copied().filter(|(number, _)| !line.contains(number)).collect();
        self.peers[of].is_collecting = false;
    }

    fn followed(&mut self, of: usize, attempt: u32, from: Vec<usize>) {
        if !self.peers[of].is_alive || self.peers[of].n_followed != attempt {
            return;
        }
        let is_heard = |&from: &usize| {
            self.peers[of].matchmaking.colleagues(self.now).any(|(donor, _)| *donor == peer(from as u8))
        };
        if from.iter().any(|from| !self.peers[*from].is_alive && is_heard(from)) {
            // Nothing comes of it, and nobody knows that yet.
            self.peers[of].hangs_at = Some((attempt, from));
            return;
        }
        let own = self.peers[of].matchmaking.own().model;
        let donor = from.iter().find(|&&from| self.hear_each_other(from, of));
        let model = donor.map(|&donor| self.peers[donor].matchmaking.own().model);
        match model.filter(|model| *model > own) {
            Some(model) => {
                self.step(of, model);
                self.peers[of].matchmaking.on_followed(self.now);
                self.drive(of);
            }
            None => {
                self.peers[of].matchmaking.on_failed(self.now);
                self.drive(of);
            }
        }
    }

    /// Ends all faults, and lets everybody finish.
    fn settle(&mut self) {
        self.sides = 0;
        (self.failures, self.torn) = (0, 0);
        for of in 0..self.peers.len() {
            if !self.peers[of].is_alive {
                self.handle(Event::Restart(of));
            }
        }
        let end = self.now + Duration::from_secs(20);
        self.run_until(end);
        self.is_contributing = false;
        self.run_until(end + Duration::from_secs(20));
        let models: BTreeSet<ModelVersion> =
            self.peers.iter().map(|peer| peer.matchmaking.own().model).collect();
        assert_eq!(models.len(), 1, "all have the same model in the end: {models:?}");
    }

    fn line(&self) -> &BTreeSet<u64> {
        &self.lines[&self.peers[0].matchmaking.own().model.hash]
    }

    /// Accepted contributions that are neither in the model nor about to be.
    fn lost(&self) -> Vec<u64> {
        let open =
            |number: &u64| self.peers.iter().any(|peer| peer.accepted.iter().any(|(n, _)| n == number));
        (1..=self.n_accepted).filter(|number| !self.line().contains(number) && !open(number)).collect()
    }
}

impl Peer {
    fn n_samples(&self) -> u64 {
        self.accepted.iter().map(|(_, n_samples)| n_samples).sum()
    }
}

#[test]
fn without_faults_all_steps_are_of_all() {
    for seed in 0..20 {
        let mut world = World::new(2 + seed as usize % 7, seed);
        world.settle();
        assert!(world.lost().is_empty(), "seed {seed}");
        let model = world.peers[0].matchmaking.own().model;
        assert!(model.epoch > 20, "seed {seed}: {} steps in 20 s", model.epoch);
    }
}

#[test]
fn nothing_is_lost_when_averagings_fail_and_peers_die() {
    for seed in 0..60 {
        let mut world = World::new(3 + seed as usize % 6, seed);
        world.failures = 20;
        for second in 1..40 {
            world.run_until(Duration::from_secs(second));
            let n = world.peers.len();
            let of = world.below(n) as usize;
            if world.peers[of].is_alive && world.below(100) < 50 {
                let pause = 200 + world.below(4000);
                world.handle(Event::Kill(of));
                world.after(pause, Event::Restart(of));
            }
        }
        world.run_until(Duration::from_secs(46));
        world.settle();
        let lost = world.lost();
        assert!(lost.is_empty(), "seed {seed}: {lost:?} of {}", world.n_accepted);
    }
}

/// Whatever they are about to do. They come back within seconds, often after the next round.
#[test]
fn three_in_ten_killed_in_every_round() {
    let mut n_killed = 0;
    for seed in 100..120 {
        println!("seed {seed}");
        let mut world = World::new(10, seed);
        let mut n_rounds = 0;
        while n_rounds < 30 {
            world.run_for(50);
            assert!(world.now < Duration::from_secs(300), "seed {seed}: {n_rounds} rounds in 300 s");
            let newest = world.peers.iter().map(|peer| peer.matchmaking.own().model.epoch).max().unwrap();
            if newest <= n_rounds {
                continue;
            }
            n_rounds = newest;
            for _ in 0..3 {
                let pause = world.below(150);
                world.run_for(pause);
                let alive: Vec<usize> = (0..10).filter(|&of| world.peers[of].is_alive).collect();
                if alive.is_empty() {
                    break;
                }
                let of = alive[world.below(alive.len()) as usize];
                let away = 200 + world.below(2000);
                world.handle(Event::Kill(of));
                world.after(away, Event::Restart(of));
                n_killed += 1;
            }
        }
        // Until all are back.
        world.run_for(3000);
        world.settle();
        let lost = world.lost();
        assert!(lost.is_empty(), "seed {seed}: {lost:?} of {}", world.n_accepted);
    }
    // Otherwise the runs above were too easy to show anything.
    assert!(n_killed > 20 * 30, "{n_killed}");
}

#[test]
fn members_that_got_different_means_agree_again() {
    let mut n_torn = 0;
    for seed in 200..240 {
        let mut world = World::new(3 + seed as usize % 6, seed);
        world.torn = 30;
        world.run_until(Duration::from_secs(40));
        n_torn += world.n_torn;
        world.settle();
        let lost = world.lost();
        assert!(lost.is_empty(), "seed {seed}: {lost:?} of {}", world.n_accepted);
    }
    assert!(n_torn > 100, "{n_torn}");
}

#[test]
fn sides_of_a_partition_agree_when_it_heals() {
    for seed in 0..40 {
        let mut world = World::new(4 + seed as usize % 4, seed);
        for second in (2..40).step_by(6) {
            world.run_until(Duration::from_secs(second));
            let sides = world.below(256) as u32;
            world.handle(Event::Part(sides));
            world.run_until(Duration::from_secs(second + 3));
            world.handle(Event::Part(0));
        }
        world.settle();
        let lost = world.lost();
        assert!(lost.is_empty(), "seed {seed}: {lost:?} of {}", world.n_accepted);
        let model = world.peers[0].matchmaking.own().model;
        assert!(model.epoch > 40, "seed {seed}: {}", model.epoch);
    }
}
