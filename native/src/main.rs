//! The `barnraise` binary: reads the command line and starts what it asks for.

use barnraise_native::cli::{Cli, Command};
use clap::Parser;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match cli.command {
        Command::Serve(args) => {
            let config = args.config()?;
            tracing::info!(run = %config.run.id, "configuration is good");
        }
        Command::Join(args) => tracing::info!(address = ?args.address, "address is good"),
    }
    Ok(())
}
