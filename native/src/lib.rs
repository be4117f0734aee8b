//! The native side of Barnraise: the library of the `barnraise` binary.
//!
//! Drivers and storage around the pure core: command line, configuration, data, checkpoints and
//! journal, the HTTP server. It never decides how a run progresses (`barnraise-swarm` does), never
//! computes a step (`barnraise-learning` does) and never speaks a transport itself (`barnraise-relay`
//! does).

pub mod cli;
pub mod computing;
pub mod config;
pub mod data;
pub mod devices;
pub mod exported;
pub mod host;
mod http_agent;
pub mod logging;
pub mod net;
mod part;
pub mod peer;
pub mod pretrained;
pub mod scheme;
pub mod serve;
pub mod storage;
mod text_table;
pub mod top;

#[cfg(test)]
#[path = "../../shared/protocol/tests/fixture/mod.rs"]
mod fixture;
