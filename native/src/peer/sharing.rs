//! Shard exchange between peers (DeDLOC appendix H): this machine announces its cached shards in the DHT, searches the
//! holders of others, and serves its own at the upload rate that the user allows.
//!
//! `swarm::shards` decides which peer to ask for which shard. Shards are checked against the manifest's hash before they
//! are served. Only peers with access to the run receive any; in a closed run they show a token of its authority.

pub(super) mod announce;
mod serve;
mod throttle;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barnraise_contributor::PlatformError;
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dataset::{Manifest, ShardEntry};
use barnraise_protocol::dht::shards::ShardSet;
use barnraise_protocol::run::RunDescription;
use barnraise_relay::{Node, NodeError, tasks};
use barnraise_swarm::shards::{Survey, Uplink};
use barnraise_swarm::{Moment, PeerKey};
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use self::throttle::Throttled;
use super::cache::ShardCache;
use super::tokens::gate_of;
use crate::host::access::Gate;

/// Longest wait for the withdrawal of the record, which would also expire by itself.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// The shard exchange of this machine. Cheap to clone.
#[derive(Clone)]
pub(super) struct Sharing {
    shared: Arc<SharingState>,
}

struct SharingState {
    cache: ShardCache,
    key: KeyPair,
    /// Upload limit; 0 where nothing is served.
    bytes_per_second: u64,
    uplink: Mutex<Uplink>,
    started: Instant,
    run: watch::Sender<Option<Arc<SharedRun>>>,
    found: Mutex<SurveyResult>,
    /// Notified when a shard is wanted, or the cache has changed.
    changed: Notify,
    n_bytes_passed_on: AtomicU64,
}

/// The run whose shards are exchanged.
struct SharedRun {
    run_id: String,
    manifest: Manifest,
    gate: Gate,
}

/// Result of the latest search in the DHT.
#[derive(Default)]
struct SurveyResult {
    /// `None` once it was taken.
    survey: Option<Survey>,
    addresses: HashMap<PeerId, Vec<Multiaddr>>,
}

/// The shard exchange on one node, connected to one backbone. It ends when this is dropped.
pub(super) struct SharingSession {
    sharing: Sharing,
    node: Node,
    backbone: PeerId,
    said: Arc<Mutex<Option<announce::AnnouncedShards>>>,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Sharing {
    /// - `bytes_per_second`: upload limit over all peers; 0 serves nothing
    pub(super) fn new(cache: ShardCache, key: KeyPair, bytes_per_second: u64) -> Self {
        let shared = SharingState {
            cache,
            key,
            bytes_per_second,
            uplink: Mutex::new(Uplink::new(bytes_per_second)),
            started: Instant::now(),
            run: watch::channel(None).0,
            found: Mutex::default(),
            changed: Notify::new(),
            n_bytes_passed_on: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Whether shards are served, so that others have to reach this machine.
    pub(super) fn serves(&self) -> bool {
        self.shared.bytes_per_second > 0
    }

    /// A stream whose writes keep to the upload limit. Where nothing is served, nothing can be written.
    pub(super) fn throttled<S>(&self, stream: S) -> Throttled<S> {
        Throttled::new(stream, self.shared.clone())
    }

    /// Bytes of shards that were sent to other peers.
    pub(super) fn n_bytes_passed_on(&self) -> u64 {
        self.shared.n_bytes_passed_on.load(Ordering::Relaxed)
    }

    /// Sets the run whose shards are exchanged.
    pub(super) fn on_run(&self, run: &RunDescription) {
        let gate = gate_of(run, self.shared.key.public());
        let shared =
            SharedRun { run_id: run.identity.run_id.clone(), manifest: run.data.manifest.clone(), gate };
        *lock(&self.shared.found) = SurveyResult::default();
        self.shared.run.send_replace(Some(Arc::new(shared)));
    }

    /// Asks for a search, since a shard is wanted. Returns the latest result, unless it was taken before.
    pub(super) fn survey(&self) -> Option<Survey> {
        self.shared.changed.notify_one();
        lock(&self.shared.found).survey.take()
    }

    /// Notes that the cache has changed.
    pub(super) fn on_kept(&self) {
        self.shared.changed.notify_one();
    }

    /// Starts on a node that is connected to the backbone.
    ///
    /// # Errors
    /// The node serves shards already.
    pub(super) fn attach(&self, node: Node, backbone: PeerId) -> Result<SharingSession, NodeError> {
        let said = Arc::new(Mutex::new(None));
        let mut tasks = Vec::new();
        if self.serves() {
            tasks.push(serve::spawn(self.shared.clone(), node.clone())?);
            tasks.push(tasks::spawn(
                "access of sharers",
                serve::keep_gate(self.shared.clone(), node.clone(), backbone),
            ));
        }
        tasks.push(tasks::spawn(
            "announcing shards",
            announce::run(self.shared.clone(), node.clone(), backbone, said.clone()),
        ));
        Ok(SharingSession { sharing: self.clone(), node, backbone, said, tasks })
    }
}

impl SharingSession {
    /// Opens a stream to a peer of the latest survey, without a relay: that would only move the load from the backbone to
    /// the relay.
    pub(super) async fn open(&self, peer: &PeerKey, protocol: &'static str) -> Result<Stream, PlatformError> {
        let peer = PeerId::from_bytes(&peer.0).map_err(PlatformError::network)?;
        let addresses = lock(&self.sharing.shared.found).addresses.get(&peer).cloned().unwrap_or_default();
        self.node.dial_peer(peer, addresses).await.map_err(PlatformError::network)?;
        let path = self.node.path(peer).await.map_err(PlatformError::network)?;
        if path.is_some_and(|path| path.is_relayed()) {
            return Err(PlatformError::Relayed);
        }
        self.node.open(peer, protocol).await.map_err(PlatformError::network)
    }

    /// Stops serving, and withdraws the record of this machine.
    pub(super) async fn farewell(self) {
        let Self { sharing, node, backbone, said, tasks } = self;
        // They would announce again.
        drop(tasks);
        let Some(said) = lock(&said).take() else { return };
        let goodbye = announce::withdraw(&sharing.shared, &node, backbone, said);
        // Without it, peers find out by a failed request.
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, goodbye).await;
    }
}

impl SharingState {
    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// The run, once there is one.
    async fn run(&self) -> Arc<SharedRun> {
        let mut run = self.run.subscribe();
        let known = run.wait_for(Option::is_some).await.map(|known| known.clone());
        match known {
            Ok(Some(run)) => run,
            // Never: `self` owns the sender.
            _ => std::future::pending().await,
        }
    }

    /// The run's shards that are on disk.
    async fn kept(&self, run: &Arc<SharedRun>) -> ShardSet {
        let (cache, run) = (self.cache.clone(), run.clone());
        let look = move || {
            let names = cache.names();
            let shards = run.manifest.shards.iter().chain(&run.manifest.frozen).zip(0u32..);
            let kept = shards.filter(|(entry, _)| names.contains(&entry.sha256));
            kept.map(|(_, shard)| shard).collect()
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    /// The bytes of a cached shard.
    async fn read(&self, entry: ShardEntry) -> Option<Vec<u8>> {
        let cache = self.cache.clone();
        tokio::task::spawn_blocking(move || cache.get(entry.sha256)).await.ok().flatten()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
