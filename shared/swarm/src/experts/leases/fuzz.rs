//! Any sequence of questions, votes that are lost or late, restarts of backbones and of hosts, with clocks that run apart: no copy of
//! an expert ever has two hosts that serve it, no host has two of one expert, no two copies have a term in common, terms grow, and
//! what a backbone counts is what it has granted.

use std::collections::BTreeMap;

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::dht::UnixMillis;
use barnraise_protocol::experts::leases::{ExpertLease, ExpertLoad, Grantors, LeaseAsk, LeasingHost};
use barnraise_protocol::experts::{ExpertCopy, ExpertPlace, GridShape, LayerId};

use super::*;
use crate::random::SplitMix64;
use crate::{AddressGroup, Moment};

const N_HOSTS: usize = 4;
const START: UnixMillis = UnixMillis(1_795_000_000_000);

#[derive(Debug, Arbitrary)]
enum LeaseOperation {
    /// A host does what is due.
    Wake {
        host: u8,
    },
    /// One message arrives, whichever was sent first or last.
    Deliver {
        which: u8,
    },
    Lose {
        which: u8,
    },
    /// A backbone waits no longer for votes, and answers the host.
    Count {
        which: u8,
    },
    /// A host waits no longer for the answer.
    GiveUp {
        host: u8,
    },
    GiveBack {
        host: u8,
        which: u8,
    },
    Suspend {
        host: u8,
    },
    /// A host stops, and begins again with what is on its disk.
    RestartHost {
        host: u8,
    },
    /// A backbone forgets all that it has granted.
    RestartBackbone {
        backbone: u8,
    },
    Pass {
        millis: u16,
    },
    /// Rows wait for all that a host has.
    Load {
        host: u8,
        n_waiting: u16,
    },
}

enum LeaseMessage {
    Vote { ballot: usize, backbone: usize },
    Voted { ballot: usize, backbone: usize, votes: Vec<LeaseVerdict<LeaseGrant>> },
    Answer { ballot: usize },
}

/// A question of a host at its backbone.
struct Ballot {
    host: usize,
    question: u64,
    home: usize,
    /// Of the process of the backbone that counts.
    home_start: u32,
    asks: Vec<(LeaseAsk, u64)>,
    n_asked: usize,
    votes: BTreeMap<usize, Vec<LeaseVerdict<LeaseGrant>>>,
    verdicts: Option<Vec<LeaseVerdict<ExpertLease>>>,
}

struct FuzzedHost {
    holder: LeaseHolder,
    open: Option<u64>,
    served: Vec<ExpertPlace>,
    /// What is on its disk.
    disk: Vec<ExpertPlace>,
}

struct LeaseWorld {
    now: Moment,
    grantors: Grantors,
    books: Vec<LeaseBook>,
    began_at: Vec<Moment>,
    n_starts: Vec<u32>,
    hosts: Vec<FuzzedHost>,
    ballots: Vec<Ballot>,
    messages: Vec<LeaseMessage>,
    n_questions: u64,
    /// The last term of each copy, and its holder.
    terms: BTreeMap<ExpertCopy, (u64, usize)>,
    /// Whose each term of a place is.
    copies: BTreeMap<(ExpertPlace, u64), (u8, usize)>,
    n_copied: usize,
    n_gave_way: usize,
    n_hosted: usize,
    n_moved: usize,
}

fn key_of_backbone(at: usize) -> KeyPair {
    KeyPair::from_seed(&[at as u8 + 1; 32])
}

fn key_of_host(at: usize) -> PublicKey {
    KeyPair::from_seed(&[at as u8 + 101; 32]).public()
}

impl LeaseWorld {
    fn new(n_backbones: usize) -> Self {
        let grantors = Grantors::new((0..n_backbones).map(|at| key_of_backbone(at).public())).unwrap();
        let books = (0..n_backbones).map(|at| Self::book(at, &grantors, Moment::ZERO, false)).collect();
        let host = |at: usize| FuzzedHost {
            holder: LeaseHolder::new(2, [], at as u64),
            open: None,
            served: Vec::new(),
            disk: Vec::new(),
        };
        Self {
            now: Moment::ZERO,
            grantors,
            books,
            began_at: vec![Moment::ZERO; n_backbones],
            n_starts: vec![0; n_backbones],
            hosts: (0..N_HOSTS).map(host).collect(),
            ballots: Vec::new(),
            messages: Vec::new(),
            n_questions: 0,
            terms: BTreeMap::new(),
            copies: BTreeMap::new(),
            n_copied: 0,
            n_gave_way: 0,
            n_hosted: 0,
            n_moved: 0,
        }
    }

    fn book(at: usize, grantors: &Grantors, now: Moment, has_granted: bool) -> LeaseBook {
        let grids = vec![(LayerId(1), GridShape::new(&[4]).unwrap())];
        let run = LeasedRun { run_id: "barn".into(), grids, grantors: grantors.clone() };
        LeaseBook::new(key_of_backbone(at), run, now, has_granted, at as u64)
    }

    /// Time by the clock of a host: they run up to five in a hundred fast or slow.
    fn host_time(&self, host: usize) -> Moment {
        self.now * (95 + 5 * (host as u32 % 3)) / 100
    }

    /// Wall clocks of backbones are some seconds apart.
    fn wall(&self, backbone: usize) -> UnixMillis {
        UnixMillis(START.0 + 7000 * backbone as u64).after(self.now)
    }

    fn book_time(&self, backbone: usize) -> Moment {
        self.now - self.began_at[backbone]
    }

    fn on(&mut self, operation: &LeaseOperation) {
        match *operation {
            LeaseOperation::Wake { host } => self.wake(usize::from(host) % N_HOSTS),
            LeaseOperation::Deliver { which } => {
                if !self.messages.is_empty() {
                    let message = self.messages.remove(usize::from(which) % self.messages.len());
                    self.deliver(message);
                }
            }
            LeaseOperation::Lose { which } => {
                if !self.messages.is_empty() {
                    self.messages.remove(usize::from(which) % self.messages.len());
                }
            }
            LeaseOperation::Count { which } => {
                if !self.ballots.is_empty() {
                    self.count(usize::from(which) % self.ballots.len());
                }
            }
            LeaseOperation::GiveUp { host } => {
                let host = usize::from(host) % N_HOSTS;
                let now = self.host_time(host);
                self.hosts[host].open = None;
                self.hosts[host].holder.on_failed(now);
            }
            LeaseOperation::GiveBack { host, which } => {
                let host = usize::from(host) % N_HOSTS;
                let (now, node) = (self.host_time(host), &mut self.hosts[host]);
                let held: Vec<ExpertPlace> = node.holder.places().collect();
                if !held.is_empty() {
                    let place = held[usize::from(which) % held.len()];
                    node.holder.on_given_up(now, &place);
                    node.served.retain(|served| *served != place);
                }
            }
            LeaseOperation::Suspend { host } => {
                let host = usize::from(host) % N_HOSTS;
                let now = self.host_time(host);
                self.hosts[host].holder.on_suspended(now);
                self.hosts[host].open = None;
                self.drain(host);
            }
            LeaseOperation::RestartHost { host } => {
                let host = usize::from(host) % N_HOSTS;
                let disk = self.hosts[host].disk.clone();
                let holder = LeaseHolder::new(2, disk.iter().copied(), host as u64);
                self.hosts[host] = FuzzedHost { holder, open: None, served: Vec::new(), disk };
            }
            LeaseOperation::RestartBackbone { backbone } => {
                let at = usize::from(backbone) % self.books.len();
                self.books[at] = Self::book(at, &self.grantors, Moment::ZERO, true);
                self.began_at[at] = self.now;
                self.n_starts[at] += 1;
            }
            LeaseOperation::Load { host, n_waiting } => {
                let node = &mut self.hosts[usize::from(host) % N_HOSTS];
                let held: Vec<ExpertPlace> = node.holder.places().collect();
                let load = ExpertLoad {
                    n_waiting: n_waiting.into(),
                    n_served: n_waiting.into(),
                    n_spare: (!n_waiting).into(),
                };
                held.iter().for_each(|place| node.holder.on_load(place, load));
            }
            LeaseOperation::Pass { millis } => self.now += Duration::from_millis(millis.into()),
        }
        self.check();
    }

    fn wake(&mut self, host: usize) {
        let now = self.host_time(host);
        self.hosts[host].holder.on_timeout(now);
        self.drain(host);
    }

    fn drain(&mut self, host: usize) {
        let now = self.host_time(host);
        while let Some(action) = self.hosts[host].holder.poll_action(now) {
            let node = &mut self.hosts[host];
            match action {
                HolderAction::Ask { asks, n_vacant } => {
                    assert!(asks.len() + usize::from(n_vacant) <= 64);
                    self.n_questions += 1;
                    node.open = Some(self.n_questions);
                    self.ask(host, self.n_questions, asks, n_vacant);
                }
                HolderAction::Host(lease) => {
                    if !node.served.contains(&lease.place) {
                        node.served.push(lease.place);
                    }
                    if !node.disk.contains(&lease.place) {
                        node.disk.push(lease.place);
                    }
                    self.n_hosted += 1;
                    let (term, before) =
                        self.terms.insert(lease.of(), (lease.term, host)).unwrap_or_default();
                    // A lease that was over here may be renewed after all.
                    let is_same = lease.term == term && before == host;
                    assert!(lease.term > term || is_same, "{} after {term}", lease.term);
                    self.n_moved += usize::from(term > 0 && before != host);
                    let is_new = !self.copies.contains_key(&(lease.place, lease.term));
                    self.n_copied += usize::from(lease.copy > 0 && is_new);
                    let of_term = (lease.copy, host);
                    let known = *self.copies.entry((lease.place, lease.term)).or_insert(of_term);
                    assert_eq!(known, of_term, "two copies have the term {}", lease.term);
                }
                HolderAction::Stop { place, .. } => node.served.retain(|served| *served != place),
                HolderAction::Yield(place) => assert!(!node.served.contains(&place)),
            }
        }
    }

    fn ask(&mut self, host: usize, question: u64, asks: Vec<LeaseAsk>, n_vacant: u8) {
        let home = host % self.books.len();
        let (now, wall, key) = (self.book_time(home), self.wall(home), key_of_host(host));
        let book = &mut self.books[home];
        let leasing = LeasingHost::new(2, []);
        book.on_host(now, key, AddressGroup::UNKNOWN, &leasing).unwrap();
        let n_asked = asks.len();
        let chosen = book.chosen(now, &key, n_vacant.into());
        // Nobody votes for the term 0.
        let n_gave_way = &mut self.n_gave_way;
        let term = |ask: LeaseAsk| match &ask {
            LeaseAsk::Renew { lease, .. } if book.check_wanted(now, &key, lease).is_err() => {
                *n_gave_way += 1;
                (ask, 0)
            }
            _ => (ask.clone(), book.term_of(wall, &ask)),
        };
        let asks = asks.into_iter().chain(chosen).map(term).collect();
        let ballot = self.ballots.len();
        self.ballots.push(Ballot {
            host,
            question,
            home,
            home_start: self.n_starts[home],
            asks,
            n_asked,
            votes: BTreeMap::new(),
            verdicts: None,
        });
        for backbone in 0..self.books.len() {
            self.messages.push(LeaseMessage::Vote { ballot, backbone });
        }
    }

    fn deliver(&mut self, message: LeaseMessage) {
        match message {
            LeaseMessage::Vote { ballot, backbone } => {
                let (now, wall) = (self.book_time(backbone), self.wall(backbone));
                let of = &self.ballots[ballot];
                let key = key_of_host(of.host);
                let book = &mut self.books[backbone];
                book.on_host(now, key, AddressGroup::UNKNOWN, &LeasingHost::new(2, [])).unwrap();
                let gives_way = LeaseVerdict::Refused(LeaseRefusal::GivesWay);
                let vote = |(ask, term): &(LeaseAsk, u64)| match *term {
                    0 => gives_way.clone(),
                    term => book.vote(now, wall, key, ask, term),
                };
                let votes = of.asks.iter().map(vote).collect();
                self.messages.push(LeaseMessage::Voted { ballot, backbone, votes });
            }
            LeaseMessage::Voted { ballot, backbone, votes } => {
                self.ballots[ballot].votes.insert(backbone, votes);
                if self.ballots[ballot].votes.len() == self.books.len() {
                    self.count(ballot);
                }
            }
            LeaseMessage::Answer { ballot } => {
                let of = &mut self.ballots[ballot];
                let (host, question) = (of.host, of.question);
                let Some(mut asked) = of.verdicts.take() else { return };
                let vacant = asked.split_off(of.n_asked);
                let granted = |verdict| match verdict {
                    LeaseVerdict::Granted(lease) => Some(lease),
                    _ => None,
                };
                let vacant = vacant.into_iter().filter_map(granted).collect();
                if self.hosts[host].open == Some(question) {
                    let now = self.host_time(host);
                    self.hosts[host].open = None;
                    self.hosts[host].holder.on_answer(now, asked, vacant);
                    self.drain(host);
                }
            }
        }
    }

    fn count(&mut self, ballot: usize) {
        let of = &mut self.ballots[ballot];
        if of.verdicts.is_some() || of.votes.is_empty() || of.home_start != self.n_starts[of.home] {
            return;
        }
        let holder = key_of_host(of.host);
        let ballots: Vec<_> = std::mem::take(&mut of.votes).into_values().collect();
        let count = |(at, (ask, term)): (usize, &(LeaseAsk, u64))| match ask {
            LeaseAsk::Release { .. } => LeaseVerdict::Released,
            _ => {
                let votes: Vec<_> = ballots.iter().map(|ballot| ballot[at].clone()).collect();
                count_votes(&self.grantors, (ask.of(), holder, *term), &votes)
            }
        };
        let verdicts: Vec<LeaseVerdict<ExpertLease>> = of.asks.iter().enumerate().map(count).collect();
        for verdict in &verdicts {
            if let LeaseVerdict::Granted(lease) = verdict {
                lease.verify("barn", &self.grantors).unwrap();
            }
        }
        of.verdicts = Some(verdicts);
        self.messages.push(LeaseMessage::Answer { ballot });
    }

    fn check(&self) {
        let mut served: BTreeMap<ExpertCopy, usize> = BTreeMap::new();
        for (host, node) in self.hosts.iter().enumerate() {
            let now = self.host_time(host);
            assert!(node.holder.places().count() <= 2, "no more than there is room for");
            for lease in node.holder.places().filter_map(|place| node.holder.lease(now, &place)) {
                let other = served.insert(lease.of(), host);
                assert_eq!(other, None, "{:?} has two hosts, {host} too", lease.of());
            }
        }
        self.books.iter().for_each(LeaseBook::check_counts);
    }
}

#[test]
fn lease_sequence() {
    fuzz!("lease_sequence", |input| {
        let Some((n_backbones, operations)) = value::<(u8, Vec<LeaseOperation>)>(input) else { return };
        let mut world = LeaseWorld::new(usize::from(n_backbones % 3) + 1);
        operations.iter().take(200).for_each(|operation| world.on(operation));
    });
}

mod tests {
    use super::*;

    /// Operations by chance, of which most are those of a busy run, from many seeds.
    #[test]
    fn busy_runs_by_chance() {
        let (mut n_copied, mut n_gave_way) = (0, 0);
        for seed in 0..30 {
            let mut random = SplitMix64::new(seed);
            let mut world = LeaseWorld::new(seed as usize % 3 + 1);
            for _ in 0..1500 {
                let mut byte = || random.below(256) as u8;
                let operation = match byte() % 32 {
                    0..8 => LeaseOperation::Wake { host: byte() },
                    8..22 => LeaseOperation::Deliver { which: byte() },
                    22 => LeaseOperation::Lose { which: byte() },
                    23 | 24 => LeaseOperation::Count { which: byte() },
                    25 if byte() < 60 => LeaseOperation::GiveUp { host: byte() },
                    26 if byte() < 40 => LeaseOperation::GiveBack { host: byte(), which: byte() },
                    27 if byte() < 30 => LeaseOperation::Suspend { host: byte() },
                    28 if byte() < 60 => LeaseOperation::RestartHost { host: byte() },
                    29 if byte() < 20 => LeaseOperation::RestartBackbone { backbone: byte() },
                    30 => LeaseOperation::Load { host: byte(), n_waiting: u16::from(byte()) * 64 },
                    _ => LeaseOperation::Pass { millis: u16::from(byte()) * 16 },
                };
                world.on(&operation);
            }
            n_copied += world.n_copied;
            n_gave_way += world.n_gave_way;
            assert!(world.n_hosted > 5, "seed {seed}: {} leases", world.n_hosted);
            println!(
                "seed {seed}: {} leases, {} of them of another host's place",
                world.n_hosted, world.n_moved
            );
        }
        assert!(n_copied > 5 && n_gave_way > 0, "{n_copied} copies, {n_gave_way} gave way");
    }
}
