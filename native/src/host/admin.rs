//! Operating a run while it trains: the admin API, its token, its audit log, and the commands that use it.
//!
//! It sends commands to the core and shows the replies. It never changes a run by itself.

pub(crate) mod address;
pub(crate) mod audited;
pub(crate) mod client;
pub mod command;
mod export;
pub(crate) mod guard;
pub mod http;
mod names;
pub(crate) mod state;
mod table;
pub mod token;

pub use self::state::{Admin, HostedRun};
