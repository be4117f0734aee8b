//! Operating a run while it trains: the admin API, its token, its audit log, and the commands that use it.
//!
//! It sends commands to the core and shows the replies. It never changes a run by itself.

pub mod command;
mod export;
pub mod http;
mod names;
mod state;
mod table;
pub mod token;

pub use self::state::{Admin, HostedRun};

/// File in the run's folder with the address at which the running backbone serves its operator.
pub const ADDRESS_FILE: &str = "operator.address";
