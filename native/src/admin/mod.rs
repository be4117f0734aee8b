//! Operating a run while it trains: the admin API, its token, its audit log, and the commands that use it.
//!
//! It says words to the core and shows what the core answers. It never changes a run by itself.

pub mod audit;
pub mod command;
mod export;
pub mod http;
pub mod kept;
mod names;
pub mod problem;
pub mod settings;
mod table;
pub mod token;
pub mod view;

pub use self::http::{Admin, Run};

/// Where a backbone serves its operator now: a file in the run's folder.
pub const ADDRESS_FILE: &str = "operator.address";
