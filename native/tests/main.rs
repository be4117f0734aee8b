//! What a backbone serves, and what comes with the program. One program: to link one for each
//! file took longer than to run them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admin;
mod dashboard;
mod deploy;
mod descriptions;
#[path = "../../shared/protocol/tests/fixture/mod.rs"]
mod fixture;
mod http;
mod models;
mod named_sets;
mod reference;
mod site;
