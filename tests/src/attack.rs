//! What one machine with many keys may do to an open run, over real connections from one address of its own.
//!
//! Each [`Attack`] is a function that is run for each of the machine's keys, for as long as the machine is there. It may do
//! what it likes: nothing here keeps to a rule but the wire. What it computed honestly is counted, and what it was
//! acknowledged for. The machine has what is left of a processor ([`Background`]): its own is not the run's.

mod flood;
mod gradient_worker;
mod key;
mod offers;
mod streams;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::run::{RunDescription, run_hash};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::background::Background;
use crate::client::{EpochParameters, TestClient};
use crate::source_proxy::SourceProxy;
use gradient_worker::GradientWorker;
use key::AttackKey;

/// Connections that an address may have, less those of the machine's own business.
const CONNECTIONS_MAX: usize = 250;
/// Where there are more keys than connections, each has one for so long.
const TURN: Duration = Duration::from_secs(6);
/// Before one that was refused tries again.
const PAUSE: Duration = Duration::from_millis(200);
/// Parameters are fetched so often for all of the keys.
const STATE_EVERY: Duration = Duration::from_millis(100);
/// What a slow reader takes.
const SLOW_BYTES_PER_SECOND: u64 = 16 * 1024;

/// The attack that a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attack {
    /// Reports a step's samples and delivers none.
    Claim,
    /// Random gradients of as many samples as there may be.
    Random,
    /// Gradients that point the other way, after some that were honest.
    Flipped,
    /// Gradients several times as long, after some that were honest.
    Scaled,
    /// Gradients by parameters of long ago, after some that were honest.
    Stale,
    /// Contributions that come a few bytes at a time.
    Trickle,
    /// Seats, and nothing else.
    Seats,
    /// One honest gradient under every key and many numbers.
    Again,
    /// Honest contributions of one sample.
    Crumbs,
    /// Each key offers one forged gradient; then all keys fetch the evidence, again and again.
    Evidence,
    /// Parameters and evidence, read slowly on as many streams as there may be.
    SlowReaders,
    /// Guessed codes, signatures by other keys, logins that other peers began.
    Impostor,
    /// Pings without an end, whose answers nobody takes.
    Flood,
}

impl Attack {
    /// Each of them.
    pub const ALL: [Self; 13] = [
        Self::Claim,
        Self::Random,
        Self::Flipped,
        Self::Scaled,
        Self::Stale,
        Self::Trickle,
        Self::Seats,
        Self::Again,
        Self::Crumbs,
        Self::Evidence,
        Self::SlowReaders,
        Self::Impostor,
        Self::Flood,
    ];
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claim => "claims that come to nothing",
            Self::Random => "random gradients",
            Self::Flipped => "sign-flipped gradients",
            Self::Scaled => "scaled gradients",
            Self::Stale => "stale gradients",
            Self::Trickle => "trickling",
            Self::Seats => "taking seats",
            Self::Again => "the same again",
            Self::Crumbs => "a sample at a time",
            Self::Evidence => "forgeries and evidence",
            Self::SlowReaders => "slow readers",
            Self::Impostor => "logging in as others",
            Self::Flood => "pings and a closed window",
        })
    }
}

/// Counts of a machine so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttackCounts {
    /// Repetitions of its attack.
    pub n_acts: u64,
    /// Samples whose gradient it computed.
    pub n_worked: u64,
    /// Samples that it was acknowledged for.
    pub n_accepted: u64,
    /// The same, of keys that were not convicted.
    pub n_credited: u64,
    /// Keys that were convicted, as far as they were told.
    pub n_convicted: usize,
}

/// One machine; it goes when dropped.
#[derive(Debug)]
pub struct AttackMachine {
    counters: Arc<AttackCounters>,
    at_work: JoinHandle<Result<()>>,
    _background: Background,
}

/// Addresses of the attacked run.
#[derive(Debug, Clone)]
pub struct AttackTarget {
    /// Of its backbone, over TCP.
    pub backbone: Multiaddr,
    /// Of its page.
    pub page: SocketAddr,
    /// An honest contributor.
    pub honest: PeerId,
}

impl AttackMachine {
    /// Starts to attack with so many keys from the address `from`, one of this machine's.
    ///
    /// # Errors
    /// No threads.
    pub fn start(attack: Attack, n_keys: usize, from: IpAddr, target: AttackTarget) -> Result<Self> {
        let (background, counters) = (Background::start()?, Arc::new(AttackCounters::default()));
        let attacking = run(attack, n_keys, from, target, Arc::clone(&counters));
        let at_work = background.handle()?.spawn(attacking);
        Ok(Self { counters, at_work, _background: background })
    }

    /// What it did so far.
    pub fn counts(&self) -> AttackCounts {
        self.counters.counts()
    }

    /// Ends it, and says what it did: nothing more is counted.
    pub async fn end(mut self) -> AttackCounts {
        self.at_work.abort();
        // Ended as wanted, or before.
        let _ = (&mut self.at_work).await;
        self.counts()
    }

    /// Whether it still attacks; it ends by itself only where it could not begin.
    pub fn is_at_work(&self) -> bool {
        !self.at_work.is_finished()
    }
}

/// Counts what all keys do.
#[derive(Debug, Default)]
struct AttackCounters {
    n_acts: AtomicU64,
    n_worked: AtomicU64,
    of_keys: Mutex<KeyOutcomes>,
}

#[derive(Debug, Default)]
struct KeyOutcomes {
    accepted: HashMap<PeerId, u64>,
    convicted: HashSet<PeerId>,
}

impl AttackCounters {
    fn act(&self) {
        self.n_acts.fetch_add(1, Ordering::Relaxed);
    }

    fn of_keys(&self) -> MutexGuard<'_, KeyOutcomes> {
        self.of_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_convicted(&self, key: PeerId) -> bool {
        self.of_keys().convicted.contains(&key)
    }

    fn counts(&self) -> AttackCounts {
        let of_keys = self.of_keys();
        let n_accepted = of_keys.accepted.values().sum();
        let credited = of_keys.accepted.iter().filter(|(key, _)| !of_keys.convicted.contains(*key));
        AttackCounts {
            n_acts: self.n_acts.load(Ordering::Relaxed),
            n_worked: self.n_worked.load(Ordering::Relaxed),
            n_accepted,
            n_credited: credited.map(|(_, n_samples)| n_samples).sum(),
            n_convicted: of_keys.convicted.len(),
        }
    }
}

/// State that the keys of a machine share.
struct AttackContext {
    attack: Attack,
    n_keys: usize,
    from: IpAddr,
    target: AttackTarget,
    /// To be dialled.
    address: Multiaddr,
    run: Arc<RunDescription>,
    run_hash: Sha256Hash,
    client: TestClient,
    gradient_worker: GradientWorker,
    /// The newest parameters that are known, and since when.
    newest: tokio::sync::Mutex<(Instant, Arc<EpochParameters>)>,
    /// The first that were.
    oldest: Arc<EpochParameters>,
    /// An honest gradient, for everybody.
    common: tokio::sync::Mutex<Option<Arc<gradient_worker::ComputedGradient>>>,
    connection_slots: Semaphore,
    counters: Arc<AttackCounters>,
}

impl AttackContext {
    /// Parameters that are hardly older than those of the run.
    async fn state(&self) -> Result<Arc<EpochParameters>> {
        let mut newest = self.newest.lock().await;
        if newest.0.elapsed() > STATE_EVERY {
            let state = self.client.state(&self.run).await?;
            *newest = (Instant::now(), Arc::new(state));
        }
        Ok(Arc::clone(&newest.1))
    }
}

async fn run(
    attack: Attack,
    n_keys: usize,
    from: IpAddr,
    target: AttackTarget,
    counters: Arc<AttackCounters>,
) -> Result<()> {
    let pace = (attack == Attack::SlowReaders).then_some(SLOW_BYTES_PER_SECOND);
    let usual = SourceProxy::open(from, &target.backbone).await?;
    let proxy = SourceProxy::paced(from, &target.backbone, pace).await?;
    let client = TestClient::connect(usual.address()).await?;
    let run = Arc::new(client.describe().await?);
    let oldest = Arc::new(client.state(&run).await?);
    let gradient_worker = GradientWorker::open(&client, Arc::clone(&run)).await?;
    let shared = Arc::new(AttackContext {
        attack,
        n_keys,
        from,
        target,
        address: proxy.address(),
        run_hash: run_hash(&run)?,
        client,
        run,
        gradient_worker,
        newest: tokio::sync::Mutex::new((Instant::now(), Arc::clone(&oldest))),
        oldest,
        common: tokio::sync::Mutex::default(),
        connection_slots: Semaphore::new(CONNECTIONS_MAX),
        counters,
    });
    let mut keys = JoinSet::new();
    for number in 0..n_keys {
        keys.spawn(run_key(Arc::clone(&shared), number));
    }
    while keys.join_next().await.is_some() {}
    // All were convicted: it has nothing left but its address.
    std::future::pending().await
}

/// A key does the same over and over, until it is convicted.
async fn run_key(shared: Arc<AttackContext>, number: usize) -> Result<()> {
    let keypair = Keypair::generate_ed25519();
    let peer = keypair.public().to_peer_id();
    let is_of_use = || shared.attack == Attack::Evidence || !shared.counters.is_convicted(peer);
    while is_of_use() {
        let slot = shared.connection_slots.acquire().await?;
        let turn = if shared.n_keys > CONNECTIONS_MAX { TURN } else { Duration::MAX };
        // One that ends early was refused, or its connection ended.
        let _ = tokio::time::timeout(turn, act(&shared, &keypair, number)).await;
        drop(slot);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn act(shared: &Arc<AttackContext>, keypair: &Keypair, number: usize) -> Result<()> {
    if shared.attack == Attack::Flood {
        return flood::ping_and_read_nothing(shared, keypair).await;
    }
    let mut key = AttackKey::connect(shared, keypair, number).await?;
    match shared.attack {
        Attack::Claim => offers::claim(&key).await,
        Attack::Random => offers::random(&mut key).await,
        Attack::Flipped => offers::flipped(&mut key).await,
        Attack::Scaled => offers::scaled(&mut key).await,
        Attack::Stale => offers::stale(&mut key).await,
        Attack::Again => offers::again(&mut key).await,
        Attack::Crumbs => offers::crumbs(&mut key).await,
        Attack::Trickle => streams::trickle(&mut key).await,
        Attack::Seats => streams::sit(&key).await,
        Attack::Evidence => streams::cheat_and_fetch_evidence(&mut key).await,
        Attack::SlowReaders => streams::read_slowly(&mut key).await,
        Attack::Impostor => streams::pretend(&mut key).await,
        Attack::Flood => Ok(()),
    }
}
