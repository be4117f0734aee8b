//! Real processes on loopback: a backbone, native peers, and dishonest peers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod admin;
mod aggregators;
mod archive;
mod attacked_connections;
mod compression;
mod contributing;
mod credits;
mod dht;
mod dishonest;
#[cfg(target_os = "linux")]
mod disk;
mod donor;
mod equivalence;
mod expert_access;
mod expert_audits;
mod expert_copies;
mod expert_operating;
mod experts;
mod few;
mod groups;
mod kills;
mod lifecycle;
mod local_steps;
mod model_file;
mod operator;
mod outvoted;
mod pretrained;
mod progress;
mod recomputed;
mod reducers;
mod runs;
mod s3;
mod sampled;
mod shards;
mod streams;
mod tables;
mod text;
mod versions;

/// A small model and short epochs; F32 on the wire, so that values can be compared.
const SMALL: &str = r#"
[run]
id = "test-run"

[model]
kind = { mlp = { hidden = [32] } }

[data]
shuffle_buffer_samples = 1000

[scheme.synchronous]
target_batch_size = 256
micro_batch_size = 32
gradient_codec = "f32"
state_codec = "f32"
optimizer = { kind = "sgd-momentum", momentum = 0.9 }
schedule = { peak = 0.05, warmup_steps = 0, decay = { kind = "constant" } }
contribution_samples_max = 1024
collect_timeout = "2s"

[storage]
checkpoint_every_epochs = 7

[evaluation]
every_epochs = 10
"#;

/// The same for backbones that wait for each other and for contributors, however long it takes.
fn patient(small: &str) -> String {
    let sections = small.replace("collect_timeout = \"2s\"", "collect_timeout = \"100s\"");
    assert_ne!(sections, small);
    let waits = "silence = \"100s\"\ngather_timeout = \"100s\"\npatience = \"100s\"\n\
                 reducer_timeout = \"110s\"\ndeadline = \"120s\"\n";
    format!("{sections}\n[aggregators]\n{waits}")
}
