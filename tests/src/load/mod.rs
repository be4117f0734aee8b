//! Many sessions as tabs open them, from one process: each with its own identity, Noise, identify and ping, on
//! WebTransport or WebSocket, through a circuit of a relay to a node behind it, with conversations that stay
//! open.
//!
//! It never measures more than what the sessions themselves see; what they cost is read from the system with
//! [`ProcessUsage`].

mod process_usage;
mod session;
mod session_pool;
mod target;
mod webtransport;

pub use self::process_usage::ProcessUsage;
pub use self::session::{LoadSession, SessionError, TransportKind};
pub use self::session_pool::{SessionPool, relay_toml};
pub use self::target::RelayedTarget;
pub use self::webtransport::{DialError, WebTransportDialer};

/// A conversation in which the node sends a message at intervals, as a backbone reports its run's progress.
pub const HEARTBEAT: &str = "/barnraise-load/heartbeat/1";
/// A conversation in which the node sends as many bytes as it is asked for, again and again.
pub const PULL: &str = "/barnraise-load/pull/1";
/// Bytes of one message of [`HEARTBEAT`]: a progress report of a run with one contributor has 40.
pub const HEARTBEAT_BYTES: usize = 40;
