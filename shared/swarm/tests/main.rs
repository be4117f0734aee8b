//! The state machines of a swarm in virtual time, against trouble and attackers. One program: to link one for each
//! file took longer than to run them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod churn;
mod closing;
mod compression_training;
mod dht_crowd;
mod dht_network;
mod dht_simulation;
mod dht_storage;
mod expert_hosts;
mod expert_network;
mod expert_search;
mod experts;
mod matchmaking;
mod open_run;
mod open_run_simulation;
mod sampled;
mod shard_exchange;
mod small_network;
mod stalls;
mod world;
