//! What a contributor needs of the world around it. The only seam between the tab and the native peer.

use barnraise_learning::DeviceChoice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::shards::Survey;
use barnraise_swarm::{Moment, PeerKey};
use futures::io::{AsyncRead, AsyncWrite};

/// What came of asking another contributor for a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerShard<'a> {
    /// It is here, and right.
    Delivered,
    /// The peer did not answer, declined or stood still; why.
    Failed(&'a str),
    /// The peer sent other bytes than the manifest has, and is not asked again.
    Wrong,
}

/// Clock, network and shard cache of one peer. Nothing needs to be `Send`: all runs in one task. A platform that
/// cannot ask other contributors for shards leaves out what is for that.
pub trait Platform {
    /// A libp2p stream.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Now, since an origin of the platform's choice; monotonic.
    fn now(&self) -> Moment;

    /// Now, by the wall clock: for tokens, which say when they expire.
    fn unix_time(&self) -> UnixTime;

    /// How this platform's devices are called.
    fn device_kind(&self, choice: DeviceChoice) -> DeviceKind;

    /// Completes at `at` or soon after.
    fn sleep_until(&self, at: Moment) -> impl Future<Output = ()>;

    /// Lets everything else run that is ready, network events included.
    fn yield_now(&self) -> impl Future<Output = ()>;

    /// Dials the backbone, at whatever address it has now, or another one of [`Self::elsewhere`]; the bytes of its
    /// peer id.
    fn connect(&self) -> impl Future<Output = Result<Vec<u8>, String>>;

    /// Where other backbones of the run are, as the one that is connected says: multiaddresses with a peer id.
    fn elsewhere(&self, addresses: Vec<String>);

    /// Ends the connection, if there is one.
    fn disconnect(&self) -> impl Future<Output = ()>;

    /// Opens a stream to the backbone.
    fn open(&self, protocol: &'static str) -> impl Future<Output = Result<Self::Stream, String>>;

    /// Bytes that [`Self::cache`] kept, perhaps before a restart. They are not trusted.
    fn cached(&self, sha256: Sha256Hash) -> impl Future<Output = Option<Vec<u8>>>;

    /// Keeps bytes under their hash where there is room; failing to is not an error.
    fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) -> impl Future<Output = ()>;

    /// Lets go of what [`Self::cache`] kept.
    fn forget(&self, sha256: Sha256Hash) -> impl Future<Output = ()> {
        let _ = sha256;
        std::future::ready(())
    }

    /// Whether [`Self::keep_model`] keeps anything.
    fn keeps_models(&self) -> bool {
        false
    }

    /// Keeps the newest model for when no backbone can be reached, in place of the one before; failing to is not an
    /// error.
    fn keep_model(&self, model: &[u8]) -> impl Future<Output = ()> {
        let _ = model;
        std::future::ready(())
    }

    /// What [`Self::keep_model`] kept, perhaps before a restart. It is not trusted.
    fn kept_model(&self) -> impl Future<Output = Option<Vec<u8>>> {
        std::future::ready(None)
    }

    /// This is the run now: what is kept of its shards may be passed on to others.
    fn on_run(&self, run: &RunDescription) {
        let _ = run;
    }

    /// Bytes of shards that are kept at most.
    fn shard_room(&self) -> u64 {
        u64::MAX
    }

    /// Whether other contributors can be asked for shards at all, so that a first survey is worth a wait.
    fn has_peers(&self) -> bool {
        false
    }

    /// Who keeps which shards, where that is known better than before. Asked when a shard is wanted.
    fn survey(&self) -> Option<Survey> {
        None
    }

    /// Opens a stream to another contributor, which a survey named.
    fn open_to(
        &self,
        peer: &PeerKey,
        protocol: &'static str,
    ) -> impl Future<Output = Result<Self::Stream, String>> {
        let _ = peer;
        std::future::ready(Err(format!("no {protocol} stream to other contributors here")))
    }

    /// For the log.
    fn on_peer_shard(&self, peer: &PeerKey, shard: u32, outcome: PeerShard<'_>) {
        let _ = (peer, shard, outcome);
    }
}
