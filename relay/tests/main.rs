//! Nodes on loopback. One program: to link one for each
//! file took longer than to run them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod dht;
mod node;
mod proxies;
mod rotation;
mod tls;
mod transports;
mod usage;
mod webtransport;
