//! `dht`: batches stored in and found in the DHT of many peers on this machine, beside hivemind's.
//!
//! The procedure and its defaults are those of hivemind's own benchmark. Several tasks run at once. In each round of a
//! task random peers store one subkey each of a fresh dictionary, and other random peers get the
//! newest values of all of it, while peers die. A batch is the stores, or the gets, of one round of one task.

pub(crate) mod experts;
mod hivemind;
mod swarm;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Deserialize;

use crate::ratio::{Spread, short, table};

/// As hivemind's benchmark has them.
#[derive(Debug, Clone, Args)]
pub(crate) struct DhtArgs {
    /// Peers; each number is a run of its own
    #[arg(long, value_delimiter = ',', default_value = "32,64")]
    peers: Vec<usize>,
    /// Peers that a new one is told of
    #[arg(long, default_value_t = 4)]
    initial_peers: usize,
    /// Tasks at once
    #[arg(long, default_value_t = 10)]
    tasks: usize,
    /// Rounds of each task
    #[arg(long, default_value_t = 16)]
    rounds: usize,
    /// Peers that store in a round
    #[arg(long, default_value_t = 8)]
    store_peers: usize,
    /// Peers that get in a round
    #[arg(long, default_value_t = 8)]
    get_peers: usize,
    /// Seconds until a record expires
    #[arg(long, default_value_t = 300)]
    expiration: u64,
    /// Share of the peers that die meanwhile
    #[arg(long, default_value_t = 0.1)]
    failure_rate: f64,
    /// Seconds in which the peers of a new swarm find each other
    #[arg(long, default_value_t = 20)]
    settle: u64,
    /// Only ours
    #[arg(long)]
    alone: bool,
    #[arg(long, default_value_t = 30)]
    seed: u64,
}

/// Measurements of a swarm.
#[derive(Debug, Clone, Default, Deserialize)]
struct DhtMeasurement {
    /// Seconds of each batch.
    store_s: Vec<f64>,
    get_s: Vec<f64>,
    n_stores: usize,
    n_stored: usize,
    n_gets: usize,
    n_got: usize,
    total_s: f64,
    /// Requests that the peers that stayed sent meanwhile, where that is counted.
    #[serde(default)]
    n_requests: u64,
}

/// Runs both, one after the other, and prints how much faster ours is.
pub(crate) fn compare(args: &DhtArgs, runtime: &tokio::runtime::Runtime) -> Result<()> {
    for &n_peers in &args.peers {
        let ours = runtime.block_on(swarm::measure(args, n_peers))?;
        let theirs = if args.alone { None } else { Some(hivemind::measure(args, n_peers)?) };
        print(args, n_peers, &ours, theirs.as_ref())?;
    }
    Ok(())
}

fn print(
    args: &DhtArgs,
    n_peers: usize,
    ours: &DhtMeasurement,
    theirs: Option<&DhtMeasurement>,
) -> Result<()> {
    let DhtArgs { tasks, rounds, store_peers, get_peers, failure_rate, .. } = args;
    println!(
        "\n{n_peers} peers, {tasks} tasks of {rounds} rounds, batches of {store_peers} stores and \
         {get_peers} gets, {:.0} % of the peers die\n",
        100.0 * failure_rate
    );
    let heading =
        ["", "store, s a batch", "mean", "get, s a batch", "mean", "stored", "found", "all of it, s"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for (name, measured) in [("Barnraise", Some(ours)), ("hivemind", theirs)] {
        let Some(measured) = measured else { continue };
        rows.push(vec![
            name.to_owned(),
            Spread::of(&measured.store_s).to_string(),
            precise(mean(&measured.store_s)),
            Spread::of(&measured.get_s).to_string(),
            precise(mean(&measured.get_s)),
            share(measured.n_stored, measured.n_stores),
            share(measured.n_got, measured.n_gets),
            short(measured.total_s),
        ]);
    }
    println!("{}", table(&rows));
    let n_operations = (ours.n_stores + ours.n_gets).max(1);
    println!(
        "Barnraise sent {} requests for a store or a get",
        short(ours.n_requests as f64 / n_operations as f64)
    );
    let Some(theirs) = theirs else { return Ok(()) };
    ensure!(!theirs.store_s.is_empty() && !ours.store_s.is_empty(), "nothing was measured");
    let times = |theirs: &[f64], ours: &[f64]| short(mean(theirs) / mean(ours));
    println!(
        "Means: stores {} times, gets {} times as fast as hivemind",
        times(&theirs.store_s, &ours.store_s),
        times(&theirs.get_s, &ours.get_s)
    );
    Ok(())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn precise(seconds: f64) -> String {
    format!("{seconds:.4}")
}

fn share(part: usize, whole: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}
