//! What only a browser has: the clock, the shard cache and the network of a worker.

mod cache;
mod clock;
mod message_channel;
mod network;
mod replicas;
mod rtc;

use std::rc::Rc;

use barnraise_contributor::{IncomingStreams, Platform, PlatformError};
use barnraise_learning::DeviceChoice;
use barnraise_learning::replicas::StartReplicas;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::pieces::Pieces;
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::{Moment, PeerKey};
use libp2p::PeerId;
use web_time::Instant;

use crate::page::EventSender;

pub(crate) use cache::ShardCache;
use clock::Yielder;
pub use network::{Behaviour, NetworkError, swarm};
pub(crate) use network::{TabNetwork, fetch_status};
pub use replicas::start_replicas;

/// The browser as the contributor sees it.
pub(crate) struct BrowserPlatform {
    origin: Instant,
    yielder: Yielder,
    network: Rc<TabNetwork>,
    cache: ShardCache,
    event_sender: EventSender,
}

impl BrowserPlatform {
    /// `origin` is where the page came from: `https://host:port`. No pass begins while the page is too far behind.
    pub(crate) fn new(origin: &str, network: Rc<TabNetwork>, event_sender: EventSender) -> Self {
        Self {
            origin: Instant::now(),
            yielder: Yielder::new(),
            cache: ShardCache::new(origin),
            network,
            event_sender,
        }
    }

    /// The kind of a device in a browser.
    pub(crate) fn kind(choice: DeviceChoice) -> DeviceKind {
        match choice {
            DeviceChoice::Cpu => DeviceKind::BrowserCpu,
            DeviceChoice::Wgpu | DeviceChoice::Cuda => DeviceKind::BrowserWebGpu,
        }
    }
}

/// Now, for the expiry of tokens and records.
pub(crate) fn unix_time() -> UnixTime {
    UnixTime((js_sys::Date::now() / 1000.0) as u64)
}

impl Platform for BrowserPlatform {
    type Stream = libp2p::Stream;

    fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    fn unix_time(&self) -> UnixTime {
        unix_time()
    }

    fn device_kind(&self, choice: DeviceChoice) -> DeviceKind {
        Self::kind(choice)
    }

    fn replicas(&self, run: &RunDescription, n_parameters: usize) -> Option<StartReplicas> {
        replicas::of_run(run, n_parameters)
    }

    async fn sleep_until(&self, at: Moment) {
        gloo::timers::future::sleep(at.saturating_sub(self.now())).await;
    }

    async fn yield_now(&self) {
        self.yielder.yield_now().await;
        self.event_sender.wait_for_page().await;
    }

    async fn connect(&self) -> Result<Vec<u8>, PlatformError> {
        self.network.connect().await.map_err(PlatformError::network)
    }

    fn set_other_backbones(&self, addresses: Vec<String>) {
        self.network.set_other_backbones(&addresses);
    }

    async fn disconnect(&self) {
        self.network.disconnect().await;
    }

    async fn open(&self, protocol: &'static str) -> Result<libp2p::Stream, PlatformError> {
        self.network.open(protocol).await
    }

    fn accept(&self, protocol: &'static str) -> Result<IncomingStreams<libp2p::Stream>, PlatformError> {
        self.network.accept(protocol)
    }

    fn addresses(&self, n_relays: usize) -> Vec<Vec<u8>> {
        self.network.addresses(n_relays)
    }

    async fn open_host(
        &self,
        host: &PeerKey,
        addresses: &[Vec<u8>],
        protocol: &'static str,
    ) -> Result<libp2p::Stream, PlatformError> {
        let host = PeerId::from_bytes(&host.0).map_err(PlatformError::network)?;
        self.network.open_host(host, addresses, protocol).await.map_err(PlatformError::network)
    }

    async fn cached(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        self.cache.get(sha256).await
    }

    async fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) {
        self.cache.put(sha256, bytes).await;
    }

    async fn kept_token(&self, name: Sha256Hash) -> Option<Vec<u8>> {
        self.cache.token(name).await
    }

    async fn keep_token(&self, name: Sha256Hash, token: &[u8]) {
        self.cache.put_token(name, token).await;
    }

    fn caches_models(&self) -> bool {
        true
    }

    async fn cache_model(&self, file: impl Iterator<Item = Vec<u8>>) {
        self.cache.put_model(file).await;
    }

    async fn cached_model(&self) -> Option<Pieces> {
        self.cache.model().await
    }
}
