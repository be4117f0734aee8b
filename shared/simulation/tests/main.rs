//! Virtual time, networks in it, and programs that run in it. One program: to link one for each
//! file took longer than to run them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod network;
mod nodes;
mod runtime;
