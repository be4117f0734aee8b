//! Hosts of experts that are killed at random, in virtual time: leases, checkpoints and their keepers are the production code.
//!
//! Of ten hosts three are killed in each ten minutes, at random, and come back some minutes later with what is on their disks. One of
//! three backbones is restarted now and then. No expert is away for longer than a minute, none ever has two hosts, and of what it
//! had learned each loses no more than what it learned since its last checkpoint. Where copies of experts that many rows wait for take
//! all room, they give way within another minute.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::dht::UnixMillis;
use barnraise_protocol::experts::checkpoints::ExpertCheckpoint;
use barnraise_protocol::experts::leases::{
    ExpertLease, ExpertLoad, Grantors, LeaseAsk, LeaseGrant, LeaseRefusal, LeaseVerdict, LeasingHost,
};
use barnraise_protocol::experts::{ExpertCopy, ExpertPlace, GridShape, LayerId};
use barnraise_simulation::{Latency, Moment, Network, Simulation, seeds};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::experts::checkpoints::{
    CheckpointSchedule, CheckpointShelf, CheckpointVersion, KEEPERS_WANTED, OfferVerdict,
};
use barnraise_swarm::experts::leases::{
    COPIED_ROWS, HolderAction, LeaseBook, LeaseHolder, LeasedRun, count_votes,
};

const N_BACKBONES: usize = 3;
const N_HOSTS: usize = 10;
/// Places of the grid; all hosts together have room for half as many more.
const SIDES: [u16; 2] = [6, 5];
const N_ROOM: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);
/// Of ten hosts, in each ten minutes.
const KILLED: usize = 3;
const GONE_FOR: (Duration, Duration) = (MINUTE, Duration::from_secs(240));
const BACKBONE_GONE_FOR: Duration = Duration::from_secs(15);
/// Four checkpoints of eight bytes for each expert that a host has room for.
const SHELF_BYTES: u64 = 4 * 8 * N_ROOM as u64;
const START: UnixMillis = UnixMillis(1_795_000_000_000);
/// A message is lost so often: its stream has broken.
const LOSS: f64 = 0.01;
const VOTE_TIMEOUT: Duration = Duration::from_secs(3);
const ASK_TIMEOUT: Duration = Duration::from_secs(8);

#[derive(Debug)]
enum HostsEvent {
    Wake { host: usize, life: u32 },
    Ask { host: usize, life: u32, question: u64, asks: Vec<LeaseAsk>, n_vacant: u8 },
    AskTimeout { host: usize, life: u32, question: u64 },
    Vote { ballot: usize, backbone: usize },
    Voted { ballot: usize, votes: Vec<LeaseVerdict<LeaseGrant>> },
    VoteTimeout { ballot: usize },
    Answer { ballot: usize, verdicts: Vec<LeaseVerdict<ExpertLease>> },
    Release { holder: PublicKey, backbone: usize, left_over: Vec<(ExpertCopy, u64)> },
    Gathered { host: usize, life: u32, lease: ExpertLease },
    Kill { host: usize },
    Return { host: usize },
    KillBackbone { backbone: usize },
    ReturnBackbone { backbone: usize },
}

/// An expert that a host serves: it steps ten times a second.
#[derive(Debug, Clone, Copy)]
struct SteppingExpert {
    term: u64,
    n_steps: u64,
    since: Moment,
}

impl SteppingExpert {
    fn version(&self, now: Moment) -> CheckpointVersion {
        let n_more = (now - self.since).as_millis() as u64 / 100;
        CheckpointVersion { term: self.term, n_steps: self.n_steps + n_more }
    }
}

struct LivingHost {
    key: KeyPair,
    life: u32,
    is_gone: bool,
    holder: LeaseHolder,
    schedule: CheckpointSchedule,
    shelf: CheckpointShelf,
    open: Option<u64>,
    wakes_at: Option<Moment>,
    served: BTreeMap<ExpertPlace, SteppingExpert>,
    disk: BTreeMap<ExpertPlace, CheckpointVersion>,
}

struct LeasingBackbone {
    book: LeaseBook,
    began_at: Moment,
    is_gone: bool,
    life: u32,
    shelf: CheckpointShelf,
}

struct OpenBallot {
    host: usize,
    life: u32,
    question: u64,
    home: usize,
    home_life: u32,
    asks: Vec<(LeaseAsk, u64)>,
    votes: Vec<Vec<LeaseVerdict<LeaseGrant>>>,
    n_asked: usize,
    is_counted: bool,
}

struct HostsWorld {
    simulation: Simulation<HostsEvent>,
    grantors: Grantors,
    backbones: Vec<LeasingBackbone>,
    hosts: Vec<LivingHost>,
    ballots: Vec<OpenBallot>,
    n_questions: u64,
    /// Since when nobody serves a place, and its steps then.
    away: BTreeMap<ExpertPlace, (Moment, u64)>,
    longest_away: Duration,
    most_lost: u64,
    n_moved: usize,
    /// For how many experts many rows wait, always.
    n_busy: u64,
    /// Leases of their copies, and those that gave way.
    n_copied: usize,
    n_gave_way: usize,
}

fn grid() -> GridShape {
    GridShape::new(&SIDES).unwrap()
}

fn all_places() -> BTreeSet<ExpertPlace> {
    (0..grid().n_places()).map(|number| (LayerId(0), grid().uid(number).unwrap())).collect()
}

fn backbone_key(at: usize) -> KeyPair {
    KeyPair::from_seed(&[at as u8 + 1; 32])
}

impl HostsWorld {
    fn new(seed: u64, n_busy: u64) -> Self {
        let grantors = Grantors::new((0..N_BACKBONES).map(|at| backbone_key(at).public())).unwrap();
        let simulation = Simulation::new(seed, Network::new(0, Latency::Constant(Duration::ZERO)));
        let hosts = (0..N_HOSTS).map(|at| LivingHost {
            key: KeyPair::from_seed(&[at as u8 + 101; 32]),
            life: 0,
            is_gone: true,
            holder: LeaseHolder::new(0, [], 0),
            schedule: CheckpointSchedule::new(0),
            shelf: CheckpointShelf::new(Moment::ZERO, SHELF_BYTES, []),
            open: None,
            wakes_at: None,
            served: BTreeMap::new(),
            disk: BTreeMap::new(),
        });
        let hosts = hosts.collect();
        let mut world = Self {
            simulation,
            grantors,
            backbones: Vec::new(),
            hosts,
            ballots: Vec::new(),
            n_questions: 0,
            away: BTreeMap::new(),
            longest_away: Duration::ZERO,
            most_lost: 0,
            n_moved: 0,
            n_busy,
            n_copied: 0,
            n_gave_way: 0,
        };
        world.backbones = (0..N_BACKBONES).map(|at| world.new_backbone(at, 0)).collect();
        // All at once: two of them never get the same place.
        (0..N_HOSTS).for_each(|host| world.on(HostsEvent::Return { host }));
        world
    }

    fn new_backbone(&self, at: usize, life: u32) -> LeasingBackbone {
        let (grids, grantors) = (vec![(LayerId(0), grid())], self.grantors.clone());
        let run = LeasedRun { run_id: "barn".into(), grids, grantors };
        let book = LeaseBook::new(backbone_key(at), run, Moment::ZERO, life > 0, at as u64);
        let shelf = CheckpointShelf::new(Moment::ZERO, 1000, []);
        LeasingBackbone { book, began_at: self.simulation.now(), is_gone: false, life, shelf }
    }

    fn now(&self) -> Moment {
        self.simulation.now()
    }

    /// By the clock of a host: some are fast, some slow.
    fn host_time(&self, host: usize) -> Moment {
        self.now() * (995 + 5 * (host as u32 % 3)) / 1000
    }

    fn book_time(&self, backbone: usize) -> Moment {
        self.now() - self.backbones[backbone].began_at
    }

    fn wall(&self, backbone: usize) -> UnixMillis {
        UnixMillis(START.0 + 2000 * backbone as u64).after(self.now())
    }

    /// Sends a message that may be lost.
    fn send(&mut self, event: HostsEvent) {
        let random = &mut self.simulation.random;
        let latency = random.duration(Duration::from_millis(20)..Duration::from_millis(200));
        if !random.chance(LOSS) {
            self.simulation.after(latency, event);
        }
    }

    fn run_until(&mut self, end: Moment) {
        while let Some(event) = self.simulation.next_until(end) {
            self.on(event);
            self.check();
        }
    }

    fn is_alive(&self, host: usize, life: u32) -> bool {
        !self.hosts[host].is_gone && self.hosts[host].life == life
    }

    fn on(&mut self, event: HostsEvent) {
        match event {
            HostsEvent::Wake { host, life } if self.is_alive(host, life) => {
                self.hosts[host].wakes_at = None;
                self.wake(host);
            }
            HostsEvent::Ask { host, life, question, asks, n_vacant } => {
                self.asked((host, life, question), asks, n_vacant);
            }
            HostsEvent::AskTimeout { host, life, question }
                if self.is_alive(host, life) && self.hosts[host].open == Some(question) =>
            {
                let now = self.host_time(host);
                self.hosts[host].open = None;
                self.hosts[host].holder.on_failed(now);
                self.wake(host);
            }
            HostsEvent::Vote { ballot, backbone } if !self.backbones[backbone].is_gone => {
                let votes = self.vote(ballot, backbone);
                self.send(HostsEvent::Voted { ballot, votes });
            }
            HostsEvent::Voted { ballot, votes } => {
                self.ballots[ballot].votes.push(votes);
                if self.ballots[ballot].votes.len() == N_BACKBONES {
                    self.count(ballot);
                }
            }
            HostsEvent::VoteTimeout { ballot } => self.count(ballot),
            HostsEvent::Answer { ballot, verdicts } => self.answered(ballot, verdicts),
            HostsEvent::Release { holder, backbone, left_over } => {
                let (now, wall) = (self.book_time(backbone), self.wall(backbone));
                for ((place, copy), term) in left_over {
                    let release = LeaseAsk::Release { place, copy, term, to: None };
                    self.backbones[backbone].book.vote(now, wall, holder, &release, term);
                }
            }
            HostsEvent::Gathered { host, life, lease } if self.is_alive(host, life) => {
                self.gathered(host, &lease);
                self.wake(host);
            }
            HostsEvent::Kill { host } if !self.hosts[host].is_gone => {
                let served: Vec<ExpertPlace> = self.hosts[host].served.keys().copied().collect();
                served.into_iter().for_each(|place| self.stop(host, place));
                self.hosts[host].is_gone = true;
                let gone_for = self.simulation.random.duration(GONE_FOR.0..GONE_FOR.1);
                self.simulation.after(gone_for, HostsEvent::Return { host });
            }
            HostsEvent::Return { host } => self.begin(host),
            HostsEvent::KillBackbone { backbone } => {
                self.backbones[backbone].is_gone = true;
                self.simulation.after(BACKBONE_GONE_FOR, HostsEvent::ReturnBackbone { backbone });
            }
            HostsEvent::ReturnBackbone { backbone } => {
                let life = self.backbones[backbone].life + 1;
                let restarted = self.new_backbone(backbone, life);
                let before = std::mem::replace(&mut self.backbones[backbone], restarted);
                self.backbones[backbone].shelf = before.shelf;
            }
            _ => {}
        }
    }

    fn begin(&mut self, at: usize) {
        let now = self.host_time(at);
        let host = &mut self.hosts[at];
        host.life += 1;
        let seed = (u64::from(host.life) << 8) + at as u64;
        host.is_gone = false;
        host.holder = LeaseHolder::new(N_ROOM, host.disk.keys().copied(), seed);
        host.schedule = CheckpointSchedule::new(seed);
        (host.open, host.wakes_at) = (None, None);
        host.served.clear();
        // What it kept is on its disk.
        let kept: Vec<ExpertCheckpoint> =
            all_places().iter().filter_map(|place| host.shelf.newest(&(*place, 0)).cloned()).collect();
        host.shelf = CheckpointShelf::new(now, SHELF_BYTES, kept);
        self.wake(at);
    }

    fn wake(&mut self, at: usize) {
        let now = self.host_time(at);
        let load = ExpertLoad { n_waiting: COPIED_ROWS, ..ExpertLoad::default() };
        for place in (0..self.n_busy).map(|number| (LayerId(0), grid().uid(number).unwrap())) {
            self.hosts[at].holder.on_load(&place, load);
        }
        self.hosts[at].holder.on_timeout(now);
        while let Some(action) = self.hosts[at].holder.poll_action(now) {
            let life = self.hosts[at].life;
            match action {
                HolderAction::Ask { asks, n_vacant } => {
                    self.n_questions += 1;
                    let question = self.n_questions;
                    self.hosts[at].open = Some(question);
                    self.simulation.after(ASK_TIMEOUT, HostsEvent::AskTimeout { host: at, life, question });
                    self.send(HostsEvent::Ask { host: at, life, question, asks, n_vacant });
                }
                // What is away and what is lost is counted of the experts themselves.
                HolderAction::Host(lease) if lease.copy > 0 => self.n_copied += 1,
                HolderAction::Host(lease) => {
                    let takes = Duration::from_millis(500)..Duration::from_secs(8);
                    let takes = self.simulation.random.duration(takes);
                    self.simulation.after(takes, HostsEvent::Gathered { host: at, life, lease });
                }
                HolderAction::Stop { place, .. } => self.stop(at, place),
                HolderAction::Yield(_) => {}
            }
        }
        while let Some(place) = self.hosts[at].schedule.next_due(now) {
            self.store(at, place);
        }
        let host = &self.hosts[at];
        let next = [host.holder.next_deadline(now), host.schedule.next_deadline()];
        if let Some(next) = next.into_iter().flatten().min() {
            let wait = (next.saturating_sub(now) * 1006 / 1000).max(Duration::from_millis(1));
            let wakes_at = self.now() + wait;
            if host.wakes_at.is_none_or(|known| wakes_at < known) {
                let wake = HostsEvent::Wake { host: at, life: host.life };
                self.hosts[at].wakes_at = Some(wakes_at);
                self.simulation.after(wait, wake);
            }
        }
    }

    fn asked(&mut self, (host, life, question): (usize, u32, u64), asks: Vec<LeaseAsk>, n_vacant: u8) {
        let home = host % N_BACKBONES;
        if self.backbones[home].is_gone {
            return;
        }
        let (now, wall, key) = (self.book_time(home), self.wall(home), self.hosts[host].key.public());
        let backbone = &mut self.backbones[home];
        let leasing = LeasingHost::new(N_ROOM as u32, [vec![host as u8]]);
        backbone.book.on_host(now, key, AddressGroup(host as u64 + 1), &leasing).unwrap();
        let n_asked = asks.len();
        let chosen = backbone.book.chosen(now, &key, n_vacant.into());
        let n_gave_way = &mut self.n_gave_way;
        // The others are not asked about what gives way.
        let term = |ask: LeaseAsk| match &ask {
            LeaseAsk::Renew { lease, .. } if backbone.book.check_wanted(now, &key, lease).is_err() => {
                *n_gave_way += 1;
                (ask, 0)
            }
            _ => (ask.clone(), backbone.book.term_of(wall, &ask)),
        };
        let asks = asks.into_iter().chain(chosen).map(term).collect();
        let home_life = self.backbones[home].life;
        let (votes, is_counted, ballot) = (Vec::new(), false, self.ballots.len());
        let open = OpenBallot { host, life, question, home, home_life, asks, votes, n_asked, is_counted };
        self.ballots.push(open);
        let votes = self.vote(ballot, home);
        self.ballots[ballot].votes.push(votes);
        for backbone in (0..N_BACKBONES).filter(|backbone| *backbone != home) {
            self.send(HostsEvent::Vote { ballot, backbone });
        }
        self.simulation.after(VOTE_TIMEOUT, HostsEvent::VoteTimeout { ballot });
    }

    fn vote(&mut self, ballot: usize, backbone: usize) -> Vec<LeaseVerdict<LeaseGrant>> {
        let (now, wall) = (self.book_time(backbone), self.wall(backbone));
        let of = &self.ballots[ballot];
        let key = self.hosts[of.host].key.public();
        let book = &mut self.backbones[backbone].book;
        let leasing = LeasingHost::new(N_ROOM as u32, [vec![of.host as u8]]);
        book.on_host(now, key, AddressGroup::UNKNOWN, &leasing).unwrap();
        let vote = |(ask, term): &(LeaseAsk, u64)| match *term {
            0 => LeaseVerdict::Refused(LeaseRefusal::GivesWay),
            term => book.vote(now, wall, key, ask, term),
        };
        of.asks.iter().map(vote).collect()
    }

    fn count(&mut self, ballot: usize) {
        let of = &mut self.ballots[ballot];
        let home = &self.backbones[of.home];
        if of.is_counted || home.is_gone || home.life != of.home_life {
            return;
        }
        of.is_counted = true;
        let holder = self.hosts[of.host].key.public();
        let votes = std::mem::take(&mut of.votes);
        let verdict = |(at, (ask, term)): (usize, &(LeaseAsk, u64))| {
            let votes: Vec<_> = votes.iter().map(|votes| votes[at].clone()).collect();
            match ask {
                LeaseAsk::Release { .. } => LeaseVerdict::Released,
                _ => count_votes(&self.grantors, (ask.of(), holder, *term), &votes),
            }
        };
        let verdicts: Vec<LeaseVerdict<ExpertLease>> = of.asks.iter().enumerate().map(verdict).collect();
        let (home, n_asked) = (of.home, of.n_asked);
        let left_over =
            of.asks.iter().zip(&verdicts).filter_map(|((ask, term), verdict)| match (ask, verdict) {
                (LeaseAsk::Claim(_) | LeaseAsk::Copy(_), LeaseVerdict::Refused(_)) => Some((ask.of(), *term)),
                _ => None,
            });
        let left_over: Vec<(ExpertCopy, u64)> = left_over.collect();
        let vacant: Vec<ExpertCopy> = of.asks.iter().skip(n_asked).map(|(ask, _)| ask.of()).collect();
        let now = self.book_time(home);
        for (copy, verdict) in vacant.into_iter().zip(&verdicts[n_asked..]) {
            if let LeaseVerdict::Refused(LeaseRefusal::Held { for_ms }) = verdict {
                let time = Duration::from_millis(u64::from(*for_ms));
                self.backbones[home].book.on_held_elsewhere(now, copy, time);
            }
        }
        self.send(HostsEvent::Answer { ballot, verdicts });
        for backbone in 0..N_BACKBONES {
            self.send(HostsEvent::Release { holder, backbone, left_over: left_over.clone() });
        }
    }

    fn answered(&mut self, ballot: usize, mut asked: Vec<LeaseVerdict<ExpertLease>>) {
        let of = &self.ballots[ballot];
        let (host, life, question) = (of.host, of.life, of.question);
        if !self.is_alive(host, life) || self.hosts[host].open != Some(question) {
            return;
        }
        let vacant = asked.split_off(of.n_asked);
        let granted = |verdict| match verdict {
            LeaseVerdict::Granted(lease) => Some(lease),
            _ => None,
        };
        let now = self.host_time(host);
        self.hosts[host].open = None;
        self.hosts[host].holder.on_answer(now, asked, vacant.into_iter().filter_map(granted).collect());
        self.wake(host);
    }

    /// The newest state of an expert that this host can have.
    fn newest(&self, host: usize, place: ExpertPlace) -> CheckpointVersion {
        let own = self.hosts[host].disk.get(&place).copied();
        let of_hosts = self.hosts.iter().filter(|other| !other.is_gone);
        let of_hosts = of_hosts.filter_map(|other| other.shelf.newest(&(place, 0)));
        let of_backbones = self.backbones.iter().filter(|other| !other.is_gone);
        let of_backbones = of_backbones.filter_map(|other| other.shelf.newest(&(place, 0)));
        let kept = of_hosts.chain(of_backbones).map(ExpertCheckpoint::version);
        kept.chain(own).max().unwrap_or_default()
    }

    fn gathered(&mut self, at: usize, lease: &ExpertLease) {
        let (now, real, place) = (self.host_time(at), self.now(), lease.place);
        let holds = self.hosts[at].holder.lease(now, &place).is_some_and(|held| held.term == lease.term);
        if !holds || self.hosts[at].served.contains_key(&place) {
            return;
        }
        let n_steps = self.newest(at, place).n_steps;
        self.hosts[at].served.insert(place, SteppingExpert { term: lease.term, n_steps, since: real });
        self.hosts[at].schedule.on_hosted(now, place);
        if let Some((since, before)) = self.away.remove(&place) {
            self.longest_away = self.longest_away.max(real - since);
            self.most_lost = self.most_lost.max(before.saturating_sub(n_steps));
            self.n_moved += 1;
        }
    }

    fn stop(&mut self, at: usize, place: ExpertPlace) {
        let now = self.now();
        let Some(expert) = self.hosts[at].served.remove(&place) else { return };
        self.hosts[at].schedule.on_removed(&place);
        let version = expert.version(now);
        if !self.hosts[at].is_gone {
            self.hosts[at].disk.insert(place, version);
        }
        self.away.insert(place, (now, version.n_steps));
    }

    /// Stores an expert, and gives it to its keepers.
    fn store(&mut self, at: usize, place: ExpertPlace) {
        let (now, real) = (self.host_time(at), self.now());
        let Some(version) = self.hosts[at].served.get(&place).map(|expert| expert.version(real)) else {
            return;
        };
        self.hosts[at].disk.insert(place, version);
        let Some(lease) = self.hosts[at].holder.lease(now, &place).cloned() else { return };
        if !self.hosts[at].schedule.is_offered(now, &place, version) {
            return;
        }
        let transfer = Transfer::of(&version.n_steps.to_le_bytes());
        let key = &self.hosts[at].key;
        let made = ExpertCheckpoint::sign(key, "barn", (lease, version.n_steps, transfer)).unwrap();
        assert!(made.is_valid("barn", &self.grantors));
        let home = at % N_BACKBONES;
        let mut n_keepers = 0;
        if !self.backbones[home].is_gone {
            let keepers = self.backbones[home].book.keepers(self.book_time(home), place, 4);
            let keys: Vec<PublicKey> = keepers.iter().map(|keeper| keeper.peer).collect();
            for key in keys {
                let keeper = self.hosts.iter_mut().find(|host| host.key.public() == key).unwrap();
                if n_keepers < KEEPERS_WANTED && !keeper.is_gone {
                    n_keepers += usize::from(keep(&mut keeper.shelf, real, &made));
                }
            }
            if n_keepers < KEEPERS_WANTED {
                n_keepers += usize::from(keep(&mut self.backbones[home].shelf, real, &made));
            }
        }
        self.hosts[at].schedule.on_offered(now, &place, version, n_keepers);
    }

    fn check(&self) {
        let mut holders: BTreeMap<ExpertCopy, usize> = BTreeMap::new();
        for (at, host) in self.hosts.iter().enumerate().filter(|(_, host)| !host.is_gone) {
            let now = self.host_time(at);
            for lease in host.holder.places().filter_map(|place| host.holder.lease(now, &place)) {
                assert_eq!(holders.insert(lease.of(), at), None, "{:?} has two hosts", lease.of());
            }
        }
    }

    /// Places that a host serves.
    fn served(&self) -> BTreeSet<ExpertPlace> {
        let alive = self.hosts.iter().filter(|host| !host.is_gone);
        alive.flat_map(|host| host.served.keys().copied()).collect()
    }
}

fn keep(shelf: &mut CheckpointShelf, now: Moment, made: &ExpertCheckpoint) -> bool {
    match shelf.on_offer(now, made, 100) {
        Ok(OfferVerdict::AlreadyKept) => true,
        Ok(OfferVerdict::Wanted { .. }) => {
            shelf.on_kept(now, made.clone());
            true
        }
        Err(_) => false,
    }
}

/// Half an hour, in which hosts and backbones are killed; how long an expert was away at most.
fn half_an_hour(world: &mut HostsWorld) -> Duration {
    world.run_until(2 * MINUTE);
    assert_eq!(world.served(), all_places(), "all cells are filled");
    let started = world.now();
    for round in 0..3 {
        let mut hosts: Vec<usize> = (0..N_HOSTS).collect();
        world.simulation.random.shuffle(&mut hosts);
        for host in hosts.into_iter().take(KILLED) {
            let at = world.simulation.random.duration(Duration::ZERO..10 * MINUTE);
            world.simulation.after(at, HostsEvent::Kill { host });
        }
        let at = world.simulation.random.duration(Duration::ZERO..9 * MINUTE);
        world.simulation.after(at, HostsEvent::KillBackbone { backbone: round });
        world.run_until(started + 10 * MINUTE * (round as u32 + 1));
    }
    let now = world.now();
    let still_away = world.away.values().map(|(since, _)| now - *since).max().unwrap_or_default();
    let longest = world.longest_away.max(still_away);
    println!(
        "{} experts found another host or their own again, away for {longest:?} at most; {} steps of ten a second were lost; {} copies",
        world.n_moved, world.most_lost, world.n_copied
    );
    assert!(world.n_moved > 10, "the hosts that were killed had experts: {}", world.n_moved);
    longest
}

#[test]
fn no_expert_is_away_for_longer_than_a_minute_while_hosts_are_killed() {
    for seed in seeds(0..3) {
        let mut world = HostsWorld::new(seed, 0);
        let longest = half_an_hour(&mut world);
        assert!(longest <= MINUTE, "{longest:?}");
        assert!(world.most_lost <= 900, "{} steps: more than a checkpoint and a half", world.most_lost);
        assert_eq!(world.n_copied, 0, "nothing waits");
    }
}

#[test]
fn copies_that_take_all_room_keep_no_expert_away_for_longer_than_two_minutes() {
    for seed in seeds(0..2) {
        // With three copies of each all room is taken, and less is left while hosts are away.
        let mut world = HostsWorld::new(seed, 7);
        let longest = half_an_hour(&mut world);
        assert!(longest <= 2 * MINUTE, "{longest:?}");
        let n_gave_way = world.n_gave_way;
        assert!(world.n_copied > 14 && n_gave_way > 10, "{} copies, {n_gave_way} gave way", world.n_copied);
    }
}
