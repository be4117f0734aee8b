//! The native side of Barnraise: what the `barnraise` binary is made of.
//!
//! Drivers and storage around the pure core: command line, configuration, data, checkpoints and
//! journal, the HTTP server. It never decides how a run progresses (`barnraise-swarm` does), never
//! computes a step (`barnraise-learning` does) and never speaks a transport itself (`barnraise-relay`
//! does).

pub mod access;
pub mod admin;
pub mod backbone;
pub mod cli;
pub mod config;
pub mod contributions;
pub mod data;
pub mod http;
pub mod http_listener;
pub mod logging;
pub mod models;
pub mod page;
pub mod peer;
pub mod readiness;
pub mod recomputation;
pub mod site;
pub mod storage;
pub mod top;
pub mod visitors;

#[cfg(test)]
#[path = "../../shared/protocol/tests/fixture/mod.rs"]
mod fixture;
