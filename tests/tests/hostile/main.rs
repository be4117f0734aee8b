//! Peers that misbehave: each is stopped by its limit, counted under its reason, and the others train on.
//!
//! A backbone in its own process, honest contributors, and an attacker from another address, at a low priority: its
//! processor is not the run's. The tests compare the accepted contributions of the honest peers under attack and without,
//! in alternating windows of one run, until noise does not explain the difference any more
//! (`barnraise_tests::verdict`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod attacked_run;
mod connections;
mod conversations;
mod dht;
mod honest;

/// Limits that a test of a few seconds reaches. The model is small, so that the backbone is
/// busy with little but the attack.
const RUN: &str = r#"
[run]
id = "hostile-run"

[model]
kind = { mlp = { hidden = [16] } }

[data]
shuffle_buffer_samples = 1000

[scheme.synchronous]
target_batch_size = 256
micro_batch_size = 32
gradient_codec = "f32"
state_codec = "f32"
optimizer = { kind = "sgd-momentum", momentum = 0.9 }
schedule = { peak = 0.05, warmup_steps = 0, decay = { kind = "constant" } }

[network]
operator = "127.0.0.1:0"
upnp = false

[limits]
connections_per_address = 40
connections_per_address_and_minute = 60
pending_handshakes = 24
handshake_timeout = "1s"
bad_messages_per_peer_and_minute = 20
block_duration = "2s"

[conversations]
per_peer = 16
first_message_timeout = "1s"
message_timeout = "2s"
stall_timeout = "3s"

[dht]
records_per_owner = 100
records_per_peer_and_minute = 3000
message_timeout = "2s"

[storage]
checkpoint_every_epochs = 1000000

[evaluation]
every_epochs = 1000000
"#;
