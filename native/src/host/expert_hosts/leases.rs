//! A backbone grants leases of experts' places: it asks the other named backbones for their grants, and answers the host that
//! asked with those of a majority.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::dht::UnixMillis;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::experts::leases::{
    self, CopyHolder, ExpertLease, Grantors, KEEPERS_MAX, KnownHost, LEASE_TIME, LeaseAnswer, LeaseAsk,
    LeaseAskError, LeaseGrant, LeaseQuestion, LeaseRefusal, LeaseVerdict, LeasingHost,
};
use barnraise_protocol::experts::{ExpertPlace, LayerId};
use barnraise_relay::tasks::TaskSet;
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::experts::audits::FarAnswers;
use barnraise_swarm::experts::leases::{
    AskedVoters, LeaseBook, LeaseStanding, LeasedRun, Voters, count_votes,
};
use barnraise_swarm::guard::RateLimiter;
use barnraise_swarm::{AddressGroup, Moment};
use futures::future::join_all;
use tokio::sync::Semaphore;

use crate::host::peer_id;

/// Timeout of another backbone's votes: the host that asked waits for them.
const VOTE_TIMEOUT: Duration = Duration::from_secs(3);
/// Questions that nobody waits for, on their way to backbones that hang.
const BESIDE_MAX: usize = 64;
/// Questions of one host. One with the most experts renews all of them by 64 questions every ten seconds.
const QUESTIONS_PER_MINUTE: u32 = 600;
/// Of these, such in which this backbone is to choose among vacant places, which takes it milliseconds in a large grid.
const CHOICES_PER_MINUTE: u32 = 30;
/// An address counts as so many hosts.
const GROUP_HOSTS: u32 = 8;
/// Most hosts, and addresses, whose rate is remembered.
const RATE_KEYS_MAX: usize = 8192;
/// A host that asks too often asks again then.
const SLOWER_MS: u32 = 1000;

/// Why another backbone has not voted.
#[derive(Debug, thiserror::Error)]
enum VoteError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Ask(#[from] LeaseAskError),
    #[error("its key is no peer's")]
    Key,
    #[error("no answer within {VOTE_TIMEOUT:?}")]
    Timeout,
}

struct Books {
    leases: LeaseBook,
    of_host: RateLimiter<PublicKey>,
    of_group: RateLimiter<AddressGroup>,
    choices: RateLimiter<PublicKey>,
    choices_of_group: RateLimiter<AddressGroup>,
    answers: FarAnswers,
}

/// The other backbones whose grants count. Cheap to clone.
#[derive(Clone)]
struct VotingBackbones {
    node: Node,
    here: PublicKey,
    voters: Arc<Mutex<Voters>>,
}

/// The leases of one run at one of its backbones.
pub(crate) struct LeaseService {
    run: LeasedRun,
    /// Layers whose experts make no step at any host.
    frozen: Vec<LayerId>,
    voting: VotingBackbones,
    /// Questions that nobody waits for.
    beside: TaskSet,
    beside_turns: Arc<Semaphore>,
    books: Mutex<Books>,
    started: Instant,
}

/// What a host asks for: each ask with the term of its claim.
type TermedAsks = Vec<(LeaseAsk, u64)>;

impl LeaseService {
    /// Of a backbone that begins now. Where it `has_granted` leases before, it grants none of other hosts until those have
    /// expired. Experts of the `frozen` layers make no step at any host.
    pub(crate) fn new(
        node: Node,
        key: KeyPair,
        (run, frozen): (LeasedRun, Vec<LayerId>),
        has_granted: bool,
    ) -> Self {
        let here = key.public();
        let seed = here.seed();
        let books = Books {
            leases: LeaseBook::new(key, run.clone(), Moment::ZERO, has_granted, seed),
            of_host: RateLimiter::new(QUESTIONS_PER_MINUTE, RATE_KEYS_MAX),
            of_group: RateLimiter::new(QUESTIONS_PER_MINUTE * GROUP_HOSTS, RATE_KEYS_MAX),
            choices: RateLimiter::new(CHOICES_PER_MINUTE, RATE_KEYS_MAX),
            choices_of_group: RateLimiter::new(CHOICES_PER_MINUTE * GROUP_HOSTS, RATE_KEYS_MAX),
            answers: FarAnswers::default(),
        };
        let voters = Arc::new(Mutex::new(Voters::new(&run.grantors, &here)));
        Self {
            run,
            frozen,
            voting: VotingBackbones { node, here, voters },
            beside: TaskSet::default(),
            beside_turns: Arc::new(Semaphore::new(BESIDE_MAX)),
            books: Mutex::new(books),
            started: Instant::now(),
        }
    }

    /// Whose grants make a lease.
    pub(crate) fn grantors(&self) -> &Grantors {
        &self.run.grantors
    }

    /// The hosts that have copies of these experts now, as far as this backbone has granted them.
    ///
    /// # Errors
    /// It began a moment ago, and does not know yet.
    pub(crate) fn holders(&self, places: &[ExpertPlace]) -> Result<Vec<Vec<CopyHolder>>, LeaseRefusal> {
        self.books().leases.holders(self.now(), places)
    }

    /// [`LeaseBook::has_copies`]
    pub(crate) fn has_copies(&self, place: ExpertPlace) -> bool {
        self.books().leases.has_copies(self.now(), place)
    }

    /// The hosts that keep the checkpoints of an expert.
    pub(crate) fn keepers(&self, place: ExpertPlace) -> Vec<KnownHost> {
        self.books().leases.keepers(self.now(), place, KEEPERS_MAX)
    }

    /// An answer of a host lies between two checkpoints, the later one of which is this, or is far from both. Returns whether the
    /// host gets no places from now on.
    pub(crate) fn on_between(
        &self,
        host: PublicKey,
        before: (ExpertPlace, CheckpointVersion),
        is_far: bool,
    ) -> bool {
        self.books().answers.on_between(self.now(), host, before, is_far)
    }

    /// How the experts stand.
    pub(crate) fn standing(&self) -> LeaseStanding {
        self.books().leases.standing(self.now())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a question of a peer with this key, from this address.
    pub(crate) async fn answer(
        &self,
        peer: PublicKey,
        group: AddressGroup,
        question: LeaseQuestion,
    ) -> LeaseAnswer {
        if let Err(refusal) = self.check(peer, group, &question) {
            return LeaseAnswer::Refused(refusal);
        }
        match question {
            LeaseQuestion::Lease { host, asks, n_vacant, .. } => {
                let places: Vec<ExpertPlace> = asks.iter().map(|ask| ask.of().0).collect();
                match self.lease((peer, group), &host, asks, n_vacant.into()).await {
                    Ok((asked, vacant)) => {
                        let (grantors, frozen) = (self.run.grantors.clone(), self.frozen.clone());
                        let (books, now) = (self.books(), self.now());
                        let copied = places.into_iter().filter(|place| books.leases.is_copied(now, *place));
                        LeaseAnswer::Leased { grantors, asked, vacant, copied: copied.collect(), frozen }
                    }
                    Err(refusal) => LeaseAnswer::Refused(refusal),
                }
            }
            LeaseQuestion::Vote { holder, host, asks, .. } => {
                let heard = self.books().leases.on_host(self.now(), holder, AddressGroup::UNKNOWN, &host);
                match heard {
                    Ok(()) => LeaseAnswer::Voted(self.own_votes(holder, &asks)),
                    Err(refusal) => LeaseAnswer::Refused(refusal),
                }
            }
            LeaseQuestion::Holders { places, .. } => {
                self.holders(&places).map_or_else(LeaseAnswer::Refused, LeaseAnswer::Holders)
            }
            LeaseQuestion::Keepers { places, .. } => {
                LeaseAnswer::Keepers(places.into_iter().map(|place| self.keepers(place)).collect())
            }
        }
    }

    fn check(
        &self,
        peer: PublicKey,
        group: AddressGroup,
        question: &LeaseQuestion,
    ) -> Result<(), LeaseRefusal> {
        question.check(&self.run.run_id)?;
        let (mut books, now) = (self.books(), self.now());
        let asks_for = match question {
            LeaseQuestion::Lease { .. } => Some(&peer),
            LeaseQuestion::Vote { holder, .. } => Some(holder),
            LeaseQuestion::Holders { .. } | LeaseQuestion::Keepers { .. } => None,
        };
        let is_named = self.run.grantors.keys().contains(&peer);
        if let Some(left) = asks_for.and_then(|host| books.answers.distrusted_for(now, host)) {
            if let LeaseQuestion::Vote { asks, .. } = question
                && is_named
            {
                // Where the others renew it, the place only looks vacant here.
                for ask in asks.iter().filter(|(ask, _)| matches!(ask, LeaseAsk::Renew { .. })) {
                    books.leases.on_held_elsewhere(now, ask.0.of(), LEASE_TIME);
                }
            }
            let for_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
            return Err(LeaseRefusal::Distrusted { for_ms });
        }
        if matches!(question, LeaseQuestion::Vote { .. }) {
            return if is_named { Ok(()) } else { Err(LeaseRefusal::NotNamed) };
        }
        // In this order, so that a host which asks too often does not use up the rate of its address.
        match books.of_host.take(now, &peer) && books.of_group.take(now, &group) {
            true => Ok(()),
            false => Err(LeaseRefusal::Busy { for_ms: SLOWER_MS }),
        }
    }

    async fn lease(
        &self,
        (holder, group): (PublicKey, AddressGroup),
        host: &LeasingHost,
        asks: Vec<LeaseAsk>,
        n_vacant: usize,
    ) -> Result<(Vec<LeaseVerdict<ExpertLease>>, Vec<ExpertLease>), LeaseRefusal> {
        let n_asked = asks.len();
        let (termed, refused) = self.terms((holder, group), host, asks, n_vacant)?;
        let chosen: Vec<_> = termed.iter().skip(n_asked).map(|(ask, _)| ask.of()).collect();
        let mut verdicts = self.collect(holder, host, termed.clone()).await;
        // One more attempt where a backbone knows a later term than this one.
        let is_behind = |(verdict, later): &(_, Option<u64>)| {
            later.filter(|_| matches!(verdict, LeaseVerdict::<ExpertLease>::Refused(_)))
        };
        let again: Vec<(usize, u64)> = verdicts
            .iter()
            .zip(&termed)
            .enumerate()
            .filter(|(_, (_, (ask, _)))| ask.is_claim())
            .filter_map(|(at, (verdict, _))| Some((at, is_behind(verdict)?.checked_add(1)?)))
            .collect();
        if !again.is_empty() {
            let asks = again.iter().filter_map(|(at, term)| Some((termed.get(*at)?.0.clone(), *term)));
            let anew = self.collect(holder, host, asks.collect()).await;
            for ((at, _), verdict) in again.into_iter().zip(anew) {
                if let Some(before) = verdicts.get_mut(at) {
                    *before = verdict;
                }
            }
        }
        let mut asked: Vec<LeaseVerdict<ExpertLease>> =
            verdicts.into_iter().map(|(verdict, _)| verdict).collect();
        let of_vacant = asked.split_off(n_asked.min(asked.len()));
        for (verdict, refusal) in asked.iter_mut().zip(refused) {
            if let Some(refusal) = refusal {
                *verdict = LeaseVerdict::Refused(refusal);
            }
        }
        for (copy, verdict) in chosen.into_iter().zip(&of_vacant) {
            if let LeaseVerdict::Refused(LeaseRefusal::Held { for_ms }) = verdict {
                let time = Duration::from_millis(u64::from(*for_ms));
                self.books().leases.on_held_elsewhere(self.now(), copy, time);
            }
        }
        let granted = |verdict| match verdict {
            LeaseVerdict::Granted(lease) => Some(lease),
            _ => None,
        };
        Ok((asked, of_vacant.into_iter().filter_map(granted).collect()))
    }

    /// The asks of a host with the terms of its claims, those that this backbone chose at the end; and of each of its own asks why this
    /// backbone does not even ask the others. Such an ask has the term 0, which nobody grants.
    fn terms(
        &self,
        (holder, group): (PublicKey, AddressGroup),
        host: &LeasingHost,
        asks: Vec<LeaseAsk>,
        n_vacant: usize,
    ) -> Result<(TermedAsks, Vec<Option<LeaseRefusal>>), LeaseRefusal> {
        let (mut books, now, wall) = (self.books(), self.now(), wall());
        let may_choose =
            n_vacant > 0 && books.choices.take(now, &holder) && books.choices_of_group.take(now, &group);
        let n_vacant = if may_choose { n_vacant } else { 0 };
        let book = &mut books.leases;
        book.on_host(now, holder, group, host)?;
        let (mut termed, mut refused) = (Vec::with_capacity(asks.len()), Vec::with_capacity(asks.len()));
        for ask in asks {
            let checked = match &ask {
                LeaseAsk::Claim(place) if !book.has(*place) => Err(LeaseRefusal::Unknown),
                LeaseAsk::Claim(place) => book.check_share(now, &holder, (*place, 0)),
                LeaseAsk::Renew { lease, .. } => book.check_wanted(now, &holder, lease),
                LeaseAsk::Release { .. } => Ok(()),
                // Which copies there are is for the backbones to say.
                LeaseAsk::Copy(_) => Err(LeaseRefusal::Unknown),
            };
            let term = if checked.is_ok() { book.term_of(wall, &ask) } else { 0 };
            refused.push(checked.err());
            termed.push((ask, term));
        }
        for ask in book.chosen(now, &holder, n_vacant) {
            let term = book.term_of(wall, &ask);
            termed.push((ask, term));
        }
        Ok((termed, refused))
    }

    /// Asks all backbones, and counts their votes; of each ask with the latest term that one of them knows.
    async fn collect(
        &self,
        holder: PublicKey,
        host: &LeasingHost,
        asks: TermedAsks,
    ) -> Vec<(LeaseVerdict<ExpertLease>, Option<u64>)> {
        let is_refused = |ask: &LeaseAsk, term: u64| term == 0 && !matches!(ask, LeaseAsk::Release { .. });
        let wanted: TermedAsks = asks.iter().filter(|(ask, term)| !is_refused(ask, *term)).cloned().collect();
        let mut ballots = vec![self.own_votes(holder, &wanted)];
        ballots.extend(self.votes_of_others(holder, host, wanted).await);
        let mut counted = Vec::with_capacity(asks.len());
        let mut left_over = Vec::new();
        let mut at = 0;
        for (ask, term) in asks {
            if is_refused(&ask, term) {
                counted.push((LeaseVerdict::Refused(LeaseRefusal::Unknown), None));
                continue;
            }
            let votes: Vec<LeaseVerdict<LeaseGrant>> =
                ballots.iter().filter_map(|ballot| ballot.get(at)).map(LeaseVerdict::clone).collect();
            at += 1;
            let later = votes.iter().filter_map(|vote| match vote {
                LeaseVerdict::Refused(LeaseRefusal::Later { term }) => Some(*term),
                _ => None,
            });
            let later = later.max();
            if matches!(ask, LeaseAsk::Release { .. }) {
                counted.push((LeaseVerdict::Released, None));
                continue;
            }
            let of @ (place, copy) = ask.of();
            let verdict = count_votes(&self.run.grantors, (of, holder, term), &votes);
            let is_minority = matches!(verdict, LeaseVerdict::Refused(_))
                && votes.iter().any(|vote| matches!(vote, LeaseVerdict::Granted(_)));
            if is_minority && ask.is_claim() {
                left_over.push((LeaseAsk::Release { place, copy, term, to: None }, term));
            }
            counted.push((verdict, later));
        }
        if !left_over.is_empty() {
            // Grants that make no lease would keep the place from others.
            self.own_votes(holder, &left_over);
            self.votes_of_others(holder, host, left_over).await;
        }
        counted
    }

    fn own_votes(&self, holder: PublicKey, asks: &[(LeaseAsk, u64)]) -> Vec<LeaseVerdict<LeaseGrant>> {
        self.books().leases.votes(self.now(), wall(), holder, asks)
    }

    /// The votes of those other backbones that have given any. Those that hang are told, and not waited for.
    async fn votes_of_others(
        &self,
        holder: PublicKey,
        host: &LeasingHost,
        asks: TermedAsks,
    ) -> Vec<Vec<LeaseVerdict<LeaseGrant>>> {
        let run_id = self.run.run_id.clone();
        let question = LeaseQuestion::Vote { run_id, holder, host: host.clone(), asks };
        let AskedVoters { waited_for, beside } = self.voting.voters().asked();
        for other in beside {
            // One that is back answers one of those before.
            let Ok(turn) = self.beside_turns.clone().try_acquire_owned() else { break };
            let (voting, question) = (self.voting.clone(), question.clone());
            self.beside.spawn("asking a backbone that hangs", async move {
                drop(voting.votes_of(other, &question).await);
                drop(turn);
            });
        }
        let voted = join_all(waited_for.iter().map(|other| self.voting.votes_of(*other, &question))).await;
        voted.into_iter().flatten().collect()
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }
}

impl VotingBackbones {
    fn voters(&self) -> MutexGuard<'_, Voters> {
        self.voters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What another backbone says to a question for its votes; `None` where it says nothing of use.
    async fn votes_of(
        &self,
        other: PublicKey,
        question: &LeaseQuestion,
    ) -> Option<Vec<LeaseVerdict<LeaseGrant>>> {
        let asked = tokio::time::timeout(VOTE_TIMEOUT, self.ask(other, question)).await;
        match &asked {
            Ok(_) => self.voters().on_answered(&other),
            Err(_) => self.voters().on_silent(other),
        }
        match asked.unwrap_or(Err(VoteError::Timeout)) {
            Ok(votes) => Some(votes),
            Err(error) => {
                tracing::debug!(%other, %error, "a backbone has not voted on leases");
                None
            }
        }
    }

    async fn ask(
        &self,
        other: PublicKey,
        question: &LeaseQuestion,
    ) -> Result<Vec<LeaseVerdict<LeaseGrant>>, VoteError> {
        // The links of aggregators keep the connection.
        let mut stream = self.node.open(peer_id(other).ok_or(VoteError::Key)?, leases::PROTOCOL).await?;
        match leases::ask(&mut stream, question, &self.here).await? {
            LeaseAnswer::Voted(votes) => {
                // Only its own grants count.
                let own = |vote: LeaseVerdict<LeaseGrant>| match vote {
                    LeaseVerdict::Granted(grant) if grant.grantor != other => {
                        LeaseVerdict::Refused(LeaseRefusal::Unknown)
                    }
                    vote => vote,
                };
                Ok(votes.into_iter().map(own).collect())
            }
            _ => Err(LeaseAskError::Unexpected.into()),
        }
    }
}

fn wall() -> UnixMillis {
    UnixMillis(0).after(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
