//! `barnraise-relay`: the relay as a small program of its own, without anything that trains.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use barnraise_relay::server::run_file;
use clap::Parser;
use tracing_subscriber::EnvFilter;

/// A server that others meet at, and are reached through; the same as `barnraise relay`.
#[derive(Debug, Parser)]
#[command(name = "barnraise-relay", version)]
struct Cli {
    /// The relay, as in relay.example.toml
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(barnraise_relay::server::LOG_DEFAULT));
    let has_colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(has_colours)
        .with_writer(std::io::stderr)
        .init();
    barnraise_relay::install_crypto_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(run_file(&cli.config));
    runtime.shutdown_background();
    Ok(ended?)
}
