//! The platform that a contributor runs on: clock, network and caches. The only seam between tab and native peer.

use std::error::Error;
use std::time::Duration;

use barnraise_learning::DeviceChoice;
use barnraise_learning::replicas::StartReplicas;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::pieces::Pieces;
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::shards::Survey;
use barnraise_swarm::{Moment, PeerKey};
use futures::io::{AsyncRead, AsyncWrite};
use futures::stream::LocalBoxStream;

/// Why a platform has no connection, or no stream.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// A stream is wanted before there is a connection.
    #[error("there is no connection")]
    NotConnected,
    /// The backbone, or what stands for it, did not answer.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The peer speaks no protocol of a run's backbone, or those of another version.
    #[error(
        "{peer} is no backbone of this version: if it is a relay or a backbone of other runs, say which run is meant \
         by --run ID; if it is of another version, install that one"
    )]
    NoBackbone {
        /// Its peer id.
        peer: String,
    },
    /// A relay would carry the bytes between contributors, which only moves the load there.
    #[error("it can be reached through a relay only")]
    Relayed,
    /// Streams to other contributors, or from them, do not exist on this platform.
    #[error("no {protocol} stream to other contributors here")]
    NoPeers {
        /// The protocol of the stream.
        protocol: &'static str,
    },
    /// Streams of a protocol are accepted by something else already.
    #[error("{protocol} streams are accepted already")]
    Accepted {
        /// The protocol.
        protocol: &'static str,
    },
    /// An error of the platform's network, with its causes.
    #[error(transparent)]
    Network(Box<dyn Error + Send + Sync>),
}

impl PlatformError {
    /// An error of the platform's network.
    pub fn network(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Network(Box::new(error))
    }
}

/// Streams that other peers open, each with its peer.
pub type IncomingStreams<S> = LocalBoxStream<'static, (PeerKey, S)>;

/// Outcome of fetching a shard from another contributor.
#[derive(Debug, Clone, Copy)]
pub enum PeerShardOutcome<'a> {
    /// It arrived, and its hash is right.
    Delivered,
    /// The peer did not answer, declined or stalled.
    Failed(&'a (dyn Error + 'static)),
    /// The peer sent bytes with another hash than the manifest's, and is not asked again.
    Wrong,
}

/// Clock, network and shard cache of one peer. Nothing needs to be `Send`: all runs in one task. A platform that
/// cannot fetch shards from other contributors keeps the default methods.
pub trait Platform {
    /// A libp2p stream.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Monotonic time since an origin of the platform's choice.
    fn now(&self) -> Moment;

    /// Wall-clock time, for the expiry of tokens.
    fn unix_time(&self) -> UnixTime;

    /// The kind of a device on this platform.
    fn device_kind(&self, choice: DeviceChoice) -> DeviceKind;

    /// More threads for the passes of a run's model with `n_parameters`, beside the one that asks for them, where there are any.
    fn replicas(&self, run: &RunDescription, n_parameters: usize) -> Option<StartReplicas> {
        let _ = (run, n_parameters);
        None
    }

    /// Completes at `at` or soon after.
    fn sleep_until(&self, at: Moment) -> impl Future<Output = ()>;

    /// Lets all other ready tasks run, network events included.
    fn yield_now(&self) -> impl Future<Output = ()>;

    /// Dials the backbone at its current address, or another one of [`Self::set_other_backbones`]. Returns the
    /// bytes of its peer id.
    fn connect(&self) -> impl Future<Output = Result<Vec<u8>, PlatformError>>;

    /// Takes the addresses of the run's other backbones, sent by the connected one: multiaddresses with a peer id.
    fn set_other_backbones(&self, addresses: Vec<String>);

    /// Closes the connection, if there is one.
    fn disconnect(&self) -> impl Future<Output = ()>;

    /// Opens a stream to the backbone.
    fn open(&self, protocol: &'static str) -> impl Future<Output = Result<Self::Stream, PlatformError>>;

    /// Reads bytes stored with [`Self::cache`], perhaps before a restart. They are not trusted.
    fn cached(&self, sha256: Sha256Hash) -> impl Future<Output = Option<Vec<u8>>>;

    /// Stores bytes under their hash where there is room; a failure is not an error.
    fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) -> impl Future<Output = ()>;

    /// Deletes bytes stored with [`Self::cache`].
    fn evict(&self, sha256: Sha256Hash) -> impl Future<Output = ()> {
        let _ = sha256;
        std::future::ready(())
    }

    /// Reads an access token stored with [`Self::keep_token`], perhaps before a restart. It is not trusted.
    fn kept_token(&self, name: Sha256Hash) -> impl Future<Output = Option<Vec<u8>>> {
        let _ = name;
        std::future::ready(None)
    }

    /// Stores an access token under a name, where no shard takes its place; a failure is not an error.
    fn keep_token(&self, name: Sha256Hash, token: &[u8]) -> impl Future<Output = ()> {
        let _ = (name, token);
        std::future::ready(())
    }

    /// Whether [`Self::cache_model`] stores anything.
    fn caches_models(&self) -> bool {
        false
    }

    /// Stores the newest model in place of the previous one, for visits without a backbone; a failure is not an
    /// error. `file` are the pieces of one file, each made when it is asked for: together they are as large as the model.
    fn cache_model(&self, file: impl Iterator<Item = Vec<u8>>) -> impl Future<Output = ()> {
        let _ = file;
        std::future::ready(())
    }

    /// What [`Self::cache_model`] stored, perhaps before a restart. It is not trusted.
    fn cached_model(&self) -> impl Future<Output = Option<Pieces>> {
        std::future::ready(None)
    }

    /// The run is known, and that its model has `n_parameters`: its cached shards may be served to other contributors.
    fn on_run(&self, run: &RunDescription, n_parameters: usize) {
        let _ = (run, n_parameters);
    }

    /// Most bytes of cached shards.
    fn shard_cache_bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// Whether shards can be fetched from other contributors, so that a first survey is worth a wait.
    fn has_peers(&self) -> bool {
        false
    }

    /// A new survey of the holders of shards, if there is one. Called when a shard is wanted.
    fn survey(&self) -> Option<Survey> {
        None
    }

    /// Streams of a protocol, from now on, which peers open that a connection stands with, each with its peer. What is not taken
    /// soon is dropped.
    ///
    /// # Errors
    /// The platform accepts none, or they are accepted already.
    fn accept(&self, protocol: &'static str) -> Result<IncomingStreams<Self::Stream>, PlatformError> {
        Err(PlatformError::NoPeers { protocol })
    }

    /// Where others reach this peer, as binary multiaddresses without its peer id, the best first; nowhere, for now or for ever,
    /// where there are none.
    ///
    /// - `n_relays`: at so many relays it has a place where nobody can dial it; the first of them is the backbone
    fn addresses(&self, n_relays: usize) -> Vec<Vec<u8>> {
        let _ = n_relays;
        Vec::new()
    }

    /// Opens a stream to a host of experts, or to a member of a run without a server, at the addresses that it announced. Where a
    /// connection with it stands, there need be none.
    fn open_host(
        &self,
        host: &PeerKey,
        addresses: &[Vec<u8>],
        protocol: &'static str,
    ) -> impl Future<Output = Result<Self::Stream, PlatformError>> {
        let _ = (host, addresses);
        std::future::ready(Err(PlatformError::NoPeers { protocol }))
    }

    /// Opens a stream to another contributor from a survey.
    fn open_to(
        &self,
        peer: &PeerKey,
        protocol: &'static str,
    ) -> impl Future<Output = Result<Self::Stream, PlatformError>> {
        let _ = peer;
        std::future::ready(Err(PlatformError::NoPeers { protocol }))
    }

    /// Logs the outcome of a fetch from another contributor.
    fn on_peer_shard(&self, peer: &PeerKey, shard: u32, outcome: PeerShardOutcome<'_>) {
        let _ = (peer, shard, outcome);
    }
}
