//! `expert-search`: how long a trainer takes to find the best experts of a batch, in virtual time at the round trips of
//! Learning@home §4.1, beside the paper's figures.
//!
//! A batch has 64 rows that want four experts each. Each node hosts one expert on a square grid that is half full. Cold is the
//! first search of a trainer; warm is one after a search for other rows. What a processor takes is not in these times: a search
//! checks the signature of each record that it finds.

#[path = "../../../shared/swarm/tests/dht_network/mod.rs"]
#[allow(clippy::unwrap_used, clippy::panic, reason = "the simulation of the tests")]
mod dht_network;
#[path = "../../../shared/swarm/tests/expert_network/mod.rs"]
#[allow(clippy::unwrap_used, reason = "the simulation of the tests")]
mod expert_network;

use std::time::Duration;

use anyhow::{Result, ensure};
use barnraise_protocol::experts::GRID_SIDE_MAX;
use clap::Args;

use self::dht_network::traversal;
use self::expert_network::{ExpertNetwork, SearchCache, SearchTimes};
use crate::ratio::{short, table};

/// Nodes, and the paper's milliseconds (§4.1): mean and deviation.
const PAPER: [(usize, &str); 3] = [(100, "317 ± 58"), (1000, "528 ± 127"), (10_000, "764 ± 106")];
/// So many experts fill half of the largest square grid.
const NODES_MAX: usize = GRID_SIDE_MAX as usize * GRID_SIDE_MAX as usize / 2;

/// Which networks are simulated.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExpertSearchArgs {
    /// Nodes; each number is a network of its own, and one more in which some are dead
    #[arg(long, value_delimiter = ',', default_value = "100,1000,10000")]
    nodes: Vec<usize>,
    /// Share of the nodes that are dead
    #[arg(long, default_value_t = 0.2)]
    dead: f64,
    /// Searches in each network
    #[arg(long, default_value_t = 20)]
    searches: usize,
    #[arg(long, default_value_t = 20_261_126)]
    seed: u64,
}

/// Simulates the networks, and prints a row for each.
pub(crate) fn measure(args: &ExpertSearchArgs) -> Result<()> {
    ensure!(args.searches > 0 && (0.0..1.0).contains(&args.dead), "no search, or no node that lives");
    let heading =
        ["nodes", "dead", "cache", "ms", "paper, ms", "prefixes", "requests", "records", "best rows"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for &n_nodes in &args.nodes {
        ensure!((1..=NODES_MAX).contains(&n_nodes), "{n_nodes} nodes, 1 to {NODES_MAX} are possible");
        for n_dead in [0, (args.dead * n_nodes as f64) as usize] {
            let mut network = ExpertNetwork::new(args.seed, n_nodes, n_dead, traversal());
            for cache in [SearchCache::Cold, SearchCache::Warm] {
                rows.push(row(n_nodes, n_dead, cache, &network.search(args.searches, cache)));
            }
        }
    }
    println!("{}", table(&rows));
    Ok(())
}

fn row(n_nodes: usize, n_dead: usize, cache: SearchCache, times: &SearchTimes) -> Vec<String> {
    let n_searches = times.took.len() as f64;
    let of_search = |n: usize| short(n as f64 / n_searches);
    let paper = PAPER.iter().find(|(nodes, _)| *nodes == n_nodes).map_or("", |(_, paper)| paper);
    vec![
        n_nodes.to_string(),
        n_dead.to_string(),
        format!("{cache:?}").to_lowercase(),
        spread_ms(&times.took),
        paper.to_owned(),
        of_search(times.n_prefixes),
        of_search(times.n_requests),
        of_search(times.n_records),
        format!("{:.1} %", 100.0 * times.n_best as f64 / times.n_rows.max(1) as f64),
    ]
}

/// Mean and standard deviation, as in the paper.
fn spread_ms(took: &[Duration]) -> String {
    let ms: Vec<f64> = took.iter().map(|took| took.as_secs_f64() * 1e3).collect();
    let mean = ms.iter().sum::<f64>() / ms.len() as f64;
    let variance = ms.iter().map(|ms| (ms - mean).powi(2)).sum::<f64>() / ms.len() as f64;
    format!("{mean:.0} ± {:.0}", variance.sqrt())
}
