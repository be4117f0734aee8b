//! Shards passed between peers: this machine says in the DHT which it keeps, finds out what others keep, and serves
//! what it has, as fast as its owner allows (DeDLOC appendix H).
//!
//! Whom to ask for what is decided in `swarm::shards`. What is served was compared with the manifest's hash, and
//! only to those who may take part in the run: in one with a list, who has shown a token that its authority signed.

mod announce;
mod serve;
mod throttle;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{Authority, KeyPair};
use barnraise_protocol::dataset::{Manifest, ShardEntry};
use barnraise_protocol::dht::shards::ShardSet;
use barnraise_protocol::run::RunDescription;
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::access::Policy;
use barnraise_swarm::shards::{Survey, Uplink};
use barnraise_swarm::{Moment, PeerKey};
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

pub(super) use announce::{is_circuit, to_announce};

use super::cache::ShardCache;
use crate::access::{Gate, system_clock};

/// How far clocks may differ, for signed requests; peers that pass shards on take none.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(30);
/// A goodbye that takes longer is not worth it: the record expires by itself.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// What this machine passes on, and what it knows of others. Cheap to clone.
#[derive(Clone)]
pub(super) struct Sharing {
    shared: Arc<Shared>,
}

struct Shared {
    cache: ShardCache,
    key: KeyPair,
    /// 0 where nothing is passed on.
    bytes_per_second: u64,
    uplink: Mutex<Uplink>,
    started: Instant,
    run: watch::Sender<Option<Arc<SharedRun>>>,
    found: Mutex<Found>,
    /// A shard is wanted, or another one is kept than before.
    stirred: Notify,
    n_bytes_passed_on: AtomicU64,
}

/// The run whose shards are passed on.
struct SharedRun {
    run_id: String,
    manifest: Manifest,
    gate: Gate,
}

/// What was found out last.
#[derive(Default)]
struct Found {
    /// Until it is taken.
    survey: Option<Survey>,
    addresses: HashMap<PeerId, Vec<Multiaddr>>,
}

/// Sharing over one node, connected with one backbone. It ends when this is dropped.
pub(super) struct Attached {
    sharing: Sharing,
    node: Node,
    backbone: PeerId,
    said: Arc<Mutex<Option<announce::Said>>>,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Sharing {
    /// - `bytes_per_second`: what others may have of this machine's uplink, all together; 0 for nothing
    pub(super) fn new(cache: ShardCache, key: KeyPair, bytes_per_second: u64) -> Self {
        let shared = Shared {
            cache,
            key,
            bytes_per_second,
            uplink: Mutex::new(Uplink::new(bytes_per_second)),
            started: Instant::now(),
            run: watch::channel(None).0,
            found: Mutex::default(),
            stirred: Notify::new(),
            n_bytes_passed_on: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Whether anything is passed on, so that others have to reach this machine.
    pub(super) fn serves(&self) -> bool {
        self.shared.bytes_per_second > 0
    }

    /// Bytes of shards that others were given.
    pub(super) fn n_bytes_passed_on(&self) -> u64 {
        self.shared.n_bytes_passed_on.load(Ordering::Relaxed)
    }

    /// From now on it is this run's.
    pub(super) fn on_run(&self, run: &RunDescription) {
        let authority = Authority { key: run.access.authority, run_id: run.run_id.clone() };
        let policy = Policy { mode: run.access.mode, authority, clock_tolerance: CLOCK_TOLERANCE };
        let gate = Gate::new(policy, self.shared.key.public(), system_clock());
        let shared = SharedRun { run_id: run.run_id.clone(), manifest: run.manifest.clone(), gate };
        *lock(&self.shared.found) = Found::default();
        self.shared.run.send_replace(Some(Arc::new(shared)));
    }

    /// A shard is wanted: what was found out since the last time, if anything.
    pub(super) fn survey(&self) -> Option<Survey> {
        self.shared.stirred.notify_one();
        lock(&self.shared.found).survey.take()
    }

    /// What is kept is not what it was.
    pub(super) fn on_kept(&self) {
        self.shared.stirred.notify_one();
    }

    /// Begins on a node that is connected with the backbone.
    ///
    /// # Errors
    /// The node serves shards already.
    pub(super) fn attach(&self, node: Node, backbone: PeerId) -> Result<Attached, NodeError> {
        let said = Arc::new(Mutex::new(None));
        let mut tasks = Vec::new();
        if self.serves() {
            tasks.push(serve::spawn(self.shared.clone(), node.clone())?);
            tasks.push(spawn(serve::keep_gate(self.shared.clone(), node.clone(), backbone)));
        }
        tasks.push(spawn(announce::run(self.shared.clone(), node.clone(), backbone, said.clone())));
        Ok(Attached { sharing: self.clone(), node, backbone, said, tasks })
    }
}

impl Attached {
    /// A stream to a peer that the last survey named; not over a relay, whose burden it would be instead of the
    /// backbone's.
    pub(super) async fn open(&self, peer: &PeerKey, protocol: &'static str) -> Result<Stream, String> {
        let peer = PeerId::from_bytes(&peer.0).map_err(|error| error.to_string())?;
        let addresses = lock(&self.sharing.shared.found).addresses.get(&peer).cloned().unwrap_or_default();
        self.node.dial_peer(peer, addresses).await.map_err(|error| error.to_string())?;
        let path = self.node.path(peer).await.map_err(|error| error.to_string())?;
        if path.is_some_and(|path| path.is_relayed()) {
            return Err("it can be reached through a relay only".to_owned());
        }
        self.node.open(peer, protocol).await.map_err(|error| error.to_string())
    }

    /// Nobody should ask here any more.
    pub(super) async fn farewell(self) {
        let Self { sharing, node, backbone, said, tasks } = self;
        // They would say it again.
        drop(tasks);
        let Some(said) = lock(&said).take() else { return };
        let goodbye = announce::withdraw(&sharing.shared, &node, backbone, said);
        // Without it, those who ask here find out that nobody answers.
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, goodbye).await;
    }
}

impl Shared {
    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// The run, once there is one.
    async fn run(&self) -> Arc<SharedRun> {
        let mut run = self.run.subscribe();
        let known = run.wait_for(Option::is_some).await.map(|known| known.clone());
        match known {
            Ok(Some(run)) => run,
            // The sender is part of this.
            _ => std::future::pending().await,
        }
    }

    /// Which of the run's shards are on disk.
    async fn kept(&self, run: &Arc<SharedRun>) -> ShardSet {
        let (cache, run) = (self.cache.clone(), run.clone());
        let look = move || {
            let names = cache.names();
            let shards = run.manifest.shards.iter().zip(0u32..);
            let kept = shards.filter(|(entry, _)| names.contains(&entry.sha256));
            kept.map(|(_, shard)| shard).collect()
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    /// The bytes of a shard, if they are here and what the manifest says.
    async fn read(&self, entry: ShardEntry) -> Option<Vec<u8>> {
        let cache = self.cache.clone();
        let read = move || cache.get(entry.sha256).filter(|bytes| Sha256Hash::of(bytes) == entry.sha256);
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }
}

fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
