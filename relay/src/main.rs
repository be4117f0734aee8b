//! `barnraise-relay`: the relay as a small program of its own, without anything that trains.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use barnraise_relay::server::run_file;
use barnraise_relay::{LogFormat, log_layer};
use clap::Parser;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Runs a relay: peers behind NAT are reached through it; the same as `barnraise relay`.
#[derive(Debug, Parser)]
#[command(name = "barnraise-relay", version)]
struct RelayCli {
    /// The relay, as in relay.example.toml
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How log lines are written to standard error; RUST_LOG says which
    #[arg(long, env = "BARNRAISE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

fn main() -> anyhow::Result<()> {
    let cli = RelayCli::parse();
    let has_colours = std::io::stderr().is_terminal();
    tracing_subscriber::registry().with(log_layer(cli.log_format, std::io::stderr, has_colours)).init();
    barnraise_relay::install_crypto_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(run_file(&cli.config));
    runtime.shutdown_background();
    Ok(ended?)
}
