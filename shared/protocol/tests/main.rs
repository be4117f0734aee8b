//! What peers say to each other: golden bytes, both sides of each conversation, and what a hostile peer may send. One program: to link one for each
//! file took longer than to run them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod backbones;
mod conversations;
mod dataset;
mod dht;
mod evidence;
mod expert_audits;
mod expert_hosts;
mod experts;
mod fixture;
mod golden;
mod messages;
mod model;
mod presets;
mod receipts;
mod run;
mod sampled;
mod streamed;
mod versions;
