//! What a contributor needs of the world around it. The only seam between the tab and the native peer.

use barnraise_learning::DeviceChoice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_swarm::Moment;
use futures::io::{AsyncRead, AsyncWrite};

/// Clock, network and shard cache of one peer. Nothing needs to be `Send`: all runs in one task.
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
}
