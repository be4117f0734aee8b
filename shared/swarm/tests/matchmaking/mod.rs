//! Matchmaking in virtual time: delayed messages, averagings that fail or give some members a partial mean, peers that
//! die and restart, partitions that heal. In the end all peers have the same model, and every accepted contribution is in
//! it exactly once.

mod averaging;
mod few;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::matchmaking::{
    AggregatorStatus, MEMBERS_MAX, ModelVersion, Proposal, ProposedMember, Ready,
};
use barnraise_simulation::{Latency, Network, NodeId, Simulation, seeds};
use barnraise_swarm::matchmaking::{
    GATHER, Matchmaking, MatchmakingAction, MatchmakingConfig, RETRY, SILENCE,
};
use barnraise_swarm::{Moment, PeerKey};

const CONFIG: MatchmakingConfig = MatchmakingConfig {
    target_batch_size: 100,
    silence: Duration::from_secs(5),
    gather: Duration::from_secs(1),
    retry: Duration::from_millis(200),
};

fn peer(number: u8) -> PeerKey {
    PeerKey(vec![number])
}

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

/// The status of a peer at the first model, without samples.
pub(crate) fn first_status() -> AggregatorStatus {
    AggregatorStatus {
        model: ModelVersion { n_samples_total: 0, epoch: 0, hash: Sha256Hash::of(&0u64.to_le_bytes()) },
        n_samples: 0,
        n_contributors: 1,
        samples_per_second: 1.0,
        is_closing: false,
        ready: None,
        is_busy: false,
        download_bytes_per_s: 1e6,
        upload_bytes_per_s: 1e6,
        is_reachable: true,
    }
}

#[derive(Debug, Clone, PartialEq)]
enum MatchmakingEvent {
    Standing {
        from: usize,
        to: usize,
        standing: AggregatorStatus,
    },
    Proposal {
        to: usize,
        proposal: Proposal,
    },
    Gone {
        of: usize,
        to: usize,
    },
    Contribute(usize),
    Collected {
        of: usize,
        life: u32,
    },
    Averaged {
        nonce: u64,
    },
    Followed {
        of: usize,
        attempt: u32,
        from: Vec<usize>,
    },
    Tick(usize),
    Kill(usize),
    Restart(usize),
    /// A partition: the side of each peer is a bit.
    Part(u32),
}

struct SimulatedAggregator {
    matchmaking: Matchmaking,
    life: u32,
    /// Accepted contributions, which survive a crash: number and samples.
    journal: Vec<(u64, u64)>,
    /// Those of them that are not in the model.
    accepted: Vec<(u64, u64)>,
    is_collecting: bool,
    last_sent: AggregatorStatus,
    n_contributors: u32,
    /// The averaging that it takes part in.
    round: Option<u64>,
    /// Number of the current attempt to follow; earlier ones are over.
    n_followed: u32,
    /// The attempt to follow a peer that died.
    hangs_at: Option<(u32, Vec<usize>)>,
}

struct MatchmakingSimulation {
    simulation: Simulation<MatchmakingEvent>,
    peers: Vec<SimulatedAggregator>,
    rounds: HashMap<u64, MatchmakingRound>,
    /// Contributions in each model.
    histories: HashMap<Sha256Hash, BTreeSet<u64>>,
    failures: u64,
    /// Percentage of averagings in which some members get another mean, from a reducer that died between two members.
    torn: u64,
    n_torn: u64,
    n_accepted: u64,
    is_contributing: bool,
    delays: NetworkDelays,
    /// When a proposal was last lost.
    lost_at: Moment,
}

/// An averaging.
struct MatchmakingRound {
    members: Vec<usize>,
    joined: Vec<usize>,
    /// Number of members without which it does not end.
    n_awaited: Option<usize>,
}

/// Largest delays, and losses.
#[derive(Debug, Clone, Copy)]
struct NetworkDelays {
    message_ms: usize,
    averaging_ms: u64,
    contribution_ms: usize,
    /// An averaging without all its members ends after this time without a mean; `None`: it is of the members that joined.
    hangs_ms: Option<u64>,
    /// Percentage of averagings whose proposal some members do not receive.
    lost_proposals: usize,
    /// Earliest and latest time after which the others notice a death.
    noticed_ms: (usize, usize),
    config: MatchmakingConfig,
}

const NETWORK: NetworkDelays = NetworkDelays {
    message_ms: 40,
    averaging_ms: 150,
    contribution_ms: 220,
    hangs_ms: None,
    lost_proposals: 0,
    noticed_ms: (1, 1),
    config: CONFIG,
};

impl MatchmakingSimulation {
    fn new(n_peers: usize, seed: u64) -> Self {
        Self::within(NETWORK, n_peers, seed)
    }

    fn within(delays: NetworkDelays, n_peers: usize, seed: u64) -> Self {
        let start = first_status();
        let matchmaking = |number: usize| Matchmaking::new(delays.config, peer(number as u8), start);
        let peers = (0..n_peers).map(|number| SimulatedAggregator {
            matchmaking: matchmaking(number),
            life: 0,
            journal: Vec::new(),
            accepted: Vec::new(),
            is_collecting: false,
            last_sent: start,
            n_contributors: 1,
            round: None,
            n_followed: 0,
            hangs_at: None,
        });
        let latency = Latency::Uniform(at(1), at(1 + delays.message_ms as u64));
        let mut world = Self {
            simulation: Simulation::new(seed, Network::new(n_peers, latency)),
            peers: peers.collect(),
            rounds: HashMap::new(),
            histories: HashMap::from([(start.model.hash, BTreeSet::new())]),
            failures: 0,
            torn: 0,
            n_torn: 0,
            n_accepted: 0,
            is_contributing: true,
            delays,
            lost_at: Moment::ZERO,
        };
        for number in 0..n_peers {
            world.after(0, MatchmakingEvent::Tick(number));
            world.after(0, MatchmakingEvent::Contribute(number));
        }
        world
    }

    fn after(&mut self, millis: u64, event: MatchmakingEvent) {
        self.simulation.after(at(millis), event);
    }

    fn below(&mut self, n: usize) -> u64 {
        self.simulation.random.below(n) as u64
    }

    fn now(&self) -> Moment {
        self.simulation.now()
    }

    fn is_alive(&self, of: usize) -> bool {
        !self.simulation.network.is_down(NodeId(of))
    }

    fn are_connected(&self, one: usize, other: usize) -> bool {
        self.is_alive(one)
            && self.is_alive(other)
            && self.simulation.network.is_connected(NodeId(one), NodeId(other))
    }

    fn run_until(&mut self, end: Moment) {
        while let Some(event) = self.simulation.next_until(end) {
            self.handle(event);
        }
    }

    fn run_for(&mut self, millis: u64) {
        let end = self.now() + at(millis);
        self.run_until(end);
    }

    fn handle(&mut self, event: MatchmakingEvent) {
        let now = self.now();
        match event {
            MatchmakingEvent::Standing { from, to, standing } => {
                self.peers[to].matchmaking.on_status(now, peer(from as u8), standing);
                self.drive(to);
            }
            MatchmakingEvent::Proposal { to, proposal } => {
                let _ = self.peers[to].matchmaking.on_proposal(now, proposal);
                self.drive(to);
            }
            MatchmakingEvent::Gone { of, to } => {
                self.peers[to].matchmaking.on_gone(now, &peer(of as u8));
                self.cut(of, to);
                self.drive(to);
            }
            MatchmakingEvent::Contribute(of) => {
                let longest = self.delays.contribution_ms;
                let pause = longest as u64 / 11 + self.below(longest * 10 / 11);
                if self.is_contributing {
                    self.after(pause, MatchmakingEvent::Contribute(of));
                }
                let is_open = self.peers[of].matchmaking.own().ready.is_none();
                if self.is_alive(of) && self.peers[of].n_contributors > 0 && is_open {
                    let n_samples = 1 + self.below(30);
                    self.n_accepted += 1;
                    let number = self.n_accepted;
                    self.peers[of].journal.push((number, n_samples));
                    self.peers[of].accepted.push((number, n_samples));
                    self.drive(of);
                }
            }
            MatchmakingEvent::Collected { of, life } => {
                if self.is_alive(of) && self.peers[of].life == life && self.peers[of].is_collecting {
                    self.peers[of].is_collecting = false;
                    let n_samples = self.peers[of].n_samples();
                    self.peers[of].matchmaking.on_ready(now, Ready { n_samples, loss: 1.0 });
                    self.drive(of);
                }
            }
            MatchmakingEvent::Averaged { nonce } => {
                if let Some(round) = self.rounds.remove(&nonce) {
                    self.averaged(nonce, round);
                }
            }
            MatchmakingEvent::Followed { of, attempt, from } => self.followed(of, attempt, from),
            MatchmakingEvent::Tick(of) => {
                self.after(250, MatchmakingEvent::Tick(of));
                if self.is_alive(of) {
                    self.peers[of].matchmaking.on_timeout(now);
                    self.drive(of);
                    if now.subsec_millis() < 250 {
                        self.broadcast_status(of);
                    }
                }
            }
            MatchmakingEvent::Kill(of) => {
                self.simulation.network.take_down(NodeId(of));
                let (earliest, latest) = self.delays.noticed_ms;
                for to in (0..self.peers.len()).filter(|to| *to != of) {
                    let noticed = earliest as u64 + self.below(latest - earliest + 1);
                    self.after(noticed, MatchmakingEvent::Gone { of, to });
                }
            }
            MatchmakingEvent::Restart(of) => {
                let model = self.peers[of].matchmaking.own().model;
                let own = AggregatorStatus { model, ..first_status() };
                self.peers[of].matchmaking = Matchmaking::new(self.delays.config, peer(of as u8), own);
                self.simulation.network.bring_up(NodeId(of));
                (self.peers[of].is_collecting, self.peers[of].round) = (false, None);
                self.peers[of].life += 1;
                self.peers[of].n_followed += 1;
                self.drive(of);
            }
            MatchmakingEvent::Part(sides) => {
                let one_side = (0..self.peers.len()).filter(|of| sides >> of & 1 == 1);
                self.simulation.network.partition(one_side.map(NodeId));
            }
        }
    }

    /// Acts like a driver after each event.
    fn drive(&mut self, of: usize) {
        let now = self.now();
        loop {
            let here = &mut self.peers[of];
            let n_samples = here.n_samples();
            let own =
                AggregatorStatus { n_samples, is_closing: here.is_collecting, ..*here.matchmaking.own() };
            let n_contributors = here.n_contributors;
            let own =
                AggregatorStatus { is_closing: own.is_closing || own.ready.is_some(), n_contributors, ..own };
            here.matchmaking.on_own_status(now, own);
            let elsewhere = here.matchmaking.n_samples_elsewhere(now);
            let is_enough = n_samples + elsewhere >= self.delays.config.target_batch_size;
            let is_closing = is_enough || here.matchmaking.is_closing_elsewhere(now);
            if is_closing && !here.is_collecting && here.matchmaking.own().ready.is_none() {
                here.is_collecting = true;
                let (pause, life) = (self.below(60), self.peers[of].life);
                self.after(pause, MatchmakingEvent::Collected { of, life });
                continue;
            }
            let Some(action) = self.peers[of].matchmaking.poll_action() else { break };
            self.act(of, action);
        }
        if self.peers[of].last_sent != *self.peers[of].matchmaking.own() {
            self.broadcast_status(of);
        }
    }

    fn broadcast_status(&mut self, of: usize) {
        let standing = *self.peers[of].matchmaking.own();
        self.peers[of].last_sent = standing;
        for to in (0..self.peers.len()).filter(|to| *to != of) {
            // Messages of a link stay in order.
            let event = MatchmakingEvent::Standing { from: of, to, standing };
            self.simulation.send_in_order(NodeId(of), NodeId(to), event);
        }
    }

    /// Ends all faults, and runs until all peers agree.
    fn settle(&mut self) {
        self.simulation.network.heal();
        (self.failures, self.torn) = (0, 0);
        for of in 0..self.peers.len() {
            if !self.is_alive(of) {
                self.handle(MatchmakingEvent::Restart(of));
            }
        }
        let end = self.now() + Duration::from_secs(20);
        self.run_until(end);
        self.is_contributing = false;
        self.run_until(end + Duration::from_secs(20));
        let models: BTreeSet<ModelVersion> =
            self.peers.iter().map(|peer| peer.matchmaking.own().model).collect();
        assert_eq!(models.len(), 1, "all have the same model in the end: {models:?}");
    }

    fn line(&self) -> &BTreeSet<u64> {
        &self.histories[&self.peers[0].matchmaking.own().model.hash]
    }

    /// Accepted contributions that are neither in the model nor in the next step.
    fn lost(&self) -> Vec<u64> {
        let open =
            |number: &u64| self.peers.iter().any(|peer| peer.accepted.iter().any(|(n, _)| n == number));
        (1..=self.n_accepted).filter(|number| !self.line().contains(number) && !open(number)).collect()
    }
}

impl SimulatedAggregator {
    fn n_samples(&self) -> u64 {
        self.accepted.iter().map(|(_, n_samples)| n_samples).sum()
    }
}

#[test]
fn without_faults_all_steps_are_of_all() {
    for seed in seeds(0..20) {
        let mut world = MatchmakingSimulation::new(2 + seed as usize % 7, seed);
        world.settle();
        assert!(world.lost().is_empty(), "seed {seed}");
        let model = world.peers[0].matchmaking.own().model;
        assert!(model.epoch > 20, "seed {seed}: {} steps in 20 s", model.epoch);
    }
}

#[test]
fn nothing_is_lost_when_averagings_fail_and_peers_die() {
    for seed in seeds(0..60) {
        let mut world = MatchmakingSimulation::new(3 + seed as usize % 6, seed);
        world.failures = 20;
        for second in 1..40 {
            world.run_until(Duration::from_secs(second));
            let n = world.peers.len();
            let of = world.below(n) as usize;
            if world.is_alive(of) && world.below(100) < 50 {
                let pause = 200 + world.below(4000);
                world.handle(MatchmakingEvent::Kill(of));
                world.after(pause, MatchmakingEvent::Restart(of));
            }
        }
        world.run_until(Duration::from_secs(46));
        world.settle();
        let lost = world.lost();
        assert!(lost.is_empty(), "seed {seed}: {lost:?} of {}", world.n_accepted);
    }
}

/// At random moments. They restart within seconds, often after the next round.
#[test]
fn three_in_ten_killed_in_every_round() {
    let (mut n_runs, mut n_killed) = (0, 0);
    for seed in seeds(100..120) {
        println!("seed {seed}");
        n_runs += 1;
        let mut world = MatchmakingSimulation::new(10, seed);
        let mut n_rounds = 0;
        while n_rounds < 30 {
            world.run_for(50);
            assert!(world.now() < Duration::from_secs(300), "seed {seed}: {n_rounds} rounds in 300 s");
            let newest = world.peers.iter().map(|peer| peer.matchmaking.own().model.epoch).max().unwrap();
            if newest <= n_rounds {
                continue;
            }
            n_rounds = newest;
            for _ in 0..3 {
                let pause = world.below(150);
                world.run_for(pause);
                let alive: Vec<usize> = (0..10).filter(|&of| world.is_alive(of)).collect();
                if alive.is_empty() {
                    break;
                }
                let of = alive[world.below(alive.len()) as usize];
                let away = 200 + world.below(2000);
                world.handle(MatchmakingEvent::Kill(of));
                world.after(away, MatchmakingEvent::Restart(of));
                n_killed += 1;
            }
        }
        // Until all have restarted.
        world.run_for(3000);
        world.settle();
        let lost = world.lost();
        assert!(lost.is_empty(), "seed {seed}: {lost:?} of {}", world.n_accepted);
    }
    // The runs above had faults enough.
    assert!(n_killed > n_runs * 30, "{n_killed} in {n_runs} runs");
}

#[test]
fn members_that_got_different_means_agree_again() {
    let (mut n_runs, mut n_torn) = (0, 0);
    for seed in seeds(200..240) {
        n_runs += 1;
        let mut world = MatchmakingSimulation::new(3 + seed as usize % 6, seed);
        world.torn = 30;
        world.run_until(Duration::from_secs(40));
        n_torn += world.n_torn;
        world.settle();
        let lost = world.lost();
        assert!(lost.is_empty(), "seed {seed}: {lost:?} of {}", world.n_accepted);
    }
    assert!(2 * n_torn > 5 * n_runs, "{n_torn} in {n_runs} runs");
}

#[test]
fn sides_of_a_partition_agree_when_it_heals() {
    for seed in seeds(0..40) {
        let mut world = MatchmakingSimulation::new(4 + seed as usize % 4, seed);
        for second in (2..40).step_by(6) {
            world.run_until(Duration::from_secs(second));
            let sides = world.below(256) as u32;
            world.handle(MatchmakingEvent::Part(sides));
            world.run_until(Duration::from_secs(second + 3));
            world.handle(MatchmakingEvent::Part(0));
        }
        world.settle();
        let lost = world.lost();
        assert!(lost.is_empty(), "seed {seed}: {lost:?} of {}", world.n_accepted);
        let model = world.peers[0].matchmaking.own().model;
        assert!(model.epoch > 40, "seed {seed}: {}", model.epoch);
    }
}
