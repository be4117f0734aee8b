//! The DHT on a node: serves the records that it stores, and searches and stores on behalf of clients.
//!
//! libp2p's Kademlia knows who is close to a key ([`NodeConfig::routing`](crate::NodeConfig::routing));
//! records travel in a conversation of our own (`protocol::dht`). What is decided is decided in `swarm::dht`;
//! here are streams, deadlines and limits. What a value means is never looked at.

mod config;
mod counters;
mod handover;
mod links;
mod metrics;
mod neighbours;
mod operations;
mod searches;
mod serve;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use barnraise_protocol::dht::{DhtRefusal, Freshness, Record, RecordKey, UnixMillis};
use barnraise_swarm::dht::{Cache, Eviction, Storage};
use barnraise_swarm::guard::RateLimiter;
use barnraise_swarm::{Moment, PeerKey};
use libp2p::PeerId;
use tokio_util::task::AbortOnDropHandle;

pub use self::config::{DhtConfig, DhtLimits};
use self::counters::Counters;
pub use self::counters::DhtCounters;
use self::links::Links;
use self::neighbours::Neighbours;
use self::searches::Searches;
use crate::tasks::{self, TaskSet};
use crate::{Node, NodeError};

/// How often is looked at what is due: refreshes of the cache, streams that nobody uses.
const TICK: Duration = Duration::from_millis(500);
/// Peers of which is remembered how many records they sent lately.
const SENDERS_MAX: usize = 20_000;

/// The DHT of a node; cheap to clone. It ends with the last clone.
#[derive(Clone, Debug)]
pub struct Dht {
    shared: Arc<DhtState>,
    _tasks: Arc<[AbortOnDropHandle<()>]>,
}

/// State that the handle and the tasks share.
#[derive(Debug)]
struct DhtState {
    node: Node,
    config: DhtConfig,
    here: PeerKey,
    started: Instant,
    storage: Mutex<Storage>,
    cache: Mutex<Cache>,
    links: Links,
    neighbours: Neighbours,
    on_behalf: Searches,
    counters: Counters,
    /// Records that each peer sent lately.
    senders: Mutex<RateLimiter<PeerId>>,
    /// Requests to other peers, each with a deadline.
    tasks: TaskSet,
}

impl Dht {
    /// Starts on a node with [`NodeConfig::routing`](crate::NodeConfig::routing); serves others with
    /// [`DhtConfig::serves`]. Peers to begin with are those that the node dials. Needs a tokio runtime.
    ///
    /// # Errors
    /// Another DHT on the same node.
    pub fn start(node: Node, config: DhtConfig) -> Result<Self, NodeError> {
        let incoming = config.serves.then(|| node.accept(barnraise_protocol::dht::PROTOCOL)).transpose()?;
        let shared = Arc::new(DhtState {
            here: PeerKey(node.peer_id().to_bytes()),
            started: Instant::now(),
            storage: Mutex::new(Storage::new(config.storage.clone(), Eviction::EarliestExpiry)),
            cache: Mutex::new(Cache::new(config.cache.clone())),
            links: Links::new(node.clone(), &config),
            neighbours: Neighbours::new(node.clone()),
            on_behalf: Searches::new(config.on_behalf_max),
            counters: Counters::default(),
            senders: Mutex::new(RateLimiter::new(config.records_per_peer_and_minute, SENDERS_MAX)),
            tasks: TaskSet::default(),
            node,
            config,
        });
        shared.node.register_metrics(|registry| metrics::register(registry, Arc::downgrade(&shared)));
        let mut tasks = vec![tasks::spawn("dht maintenance", maintain(shared.clone()))];
        if let Some(incoming) = incoming {
            tasks.push(tasks::spawn("dht", serve::run(shared.clone(), incoming)));
            tasks.push(tasks::spawn("dht handover", handover::run(shared.clone())));
        }
        Ok(Self { shared, _tasks: tasks.into() })
    }

    /// Has the peers closest to each record keep it. Returns, in order, how many do, or why none does.
    pub async fn store(&self, records: Vec<Record>) -> Vec<Result<usize, DhtRefusal>> {
        self.shared.store(records).await
    }

    /// Finds the records of each key, in order: nothing where there is none.
    pub async fn get(&self, keys: &[RecordKey], freshness: Freshness) -> Vec<Vec<Record>> {
        self.shared.get(keys, freshness).await
    }

    /// Finds the records of one key.
    pub async fn get_one(&self, key: RecordKey, freshness: Freshness) -> Vec<Record> {
        self.shared.get(&[key], freshness).await.pop().unwrap_or_default()
    }

    /// What has happened so far, for metrics.
    #[must_use]
    pub fn counters(&self) -> DhtCounters {
        self.shared.counters()
    }

    /// What the clock says that records expire by.
    #[must_use]
    pub fn now(&self) -> UnixMillis {
        self.shared.wall()
    }
}

impl DhtState {
    fn counters(&self) -> DhtCounters {
        let storage = lock(&self.storage);
        let (n_records, n_bytes) = (storage.n_records() as u64, storage.n_bytes() as u64);
        drop(storage);
        self.counters.snapshot(n_records, n_bytes, lock(&self.cache).n_records() as u64)
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    fn wall(&self) -> UnixMillis {
        let since = (self.config.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Searches again for what is asked for often, before it expires, and lets go of what nobody uses.
async fn maintain(shared: Arc<DhtState>) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        let now = shared.wall();
        lock(&shared.storage).on_timeout(now);
        shared.links.close_idle();
        let due = lock(&shared.cache).due(now);
        if !due.is_empty() {
            counters::add(&shared.counters.refreshed, due.len());
            shared.search(&due, Freshness::Newest).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
