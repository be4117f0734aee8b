//! `kills`: kills a real backbone any number of times at random moments of its writing, and checks its state after each
//! restart. Not a figure but a check: it fails at the first contribution that is lost or counts twice.

use std::time::Instant;

use anyhow::Result;
use barnraise_tests::kills;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Kills
    #[arg(long, default_value_t = 1000)]
    n: u64,
    /// Of the moments
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// `kills`.
pub(crate) async fn kill(args: &KillArgs) -> Result<()> {
    let began = Instant::now();
    println!("{} kills from the seed {}", args.n, args.seed);
    let outcome = kills::kill(args.n, args.seed).await?;
    println!("{outcome}; in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}
