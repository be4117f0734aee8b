//! Trainers find the best experts of a batch by the DHT, in virtual time at the round trips of Learning@home §4.1, and no later
//! than the paper's: 317 ms among 100 nodes, 528 ms among 1,000. `cargo xtask bench expert-search` has more nodes.

use std::time::Duration;

use barnraise_simulation::seeds;

use crate::dht_network::traversal;
use crate::expert_network::{ExpertNetwork, N_ROWS, SearchCache, SearchTimes};

const N_SEARCHES: usize = 10;

fn mean(times: &SearchTimes) -> Duration {
    times.took.iter().sum::<Duration>() / times.took.len() as u32
}

fn search(seed: u64, n_nodes: usize, n_dead: usize, cache: SearchCache) -> SearchTimes {
    let mut network = ExpertNetwork::new(seed, n_nodes, n_dead, traversal());
    let times = network.search(N_SEARCHES, cache);
    println!(
        "{n_nodes} nodes, {n_dead} dead, {cache:?}: {:?} on average, {:?} at most; a search looks {} prefixes up by {} requests \
         and finds {} records; {} of {} rows are best",
        mean(&times),
        times.took.iter().max().unwrap(),
        times.n_prefixes / N_SEARCHES,
        times.n_requests / N_SEARCHES,
        times.n_records / N_SEARCHES,
        times.n_best,
        times.n_rows,
    );
    times
}

fn check(n_nodes: usize, limit: Duration) {
    for seed in seeds(20_261_126..20_261_128) {
        for cache in [SearchCache::Cold, SearchCache::Warm] {
            let times = search(seed, n_nodes, 0, cache);
            assert_eq!((times.n_best, times.n_rows), (N_SEARCHES * N_ROWS, N_SEARCHES * N_ROWS));
            let with_dead = search(seed, n_nodes, n_nodes / 5, cache);
            if cache == SearchCache::Cold {
                assert!(mean(&times) < limit, "{:?}", mean(&times));
                assert!(mean(&with_dead) < 2 * limit, "{:?}", mean(&with_dead));
            }
        }
    }
}

#[test]
fn experts_of_a_hundred_nodes_are_found_within_the_papers_time() {
    check(100, Duration::from_millis(317));
}

#[test]
fn experts_of_a_thousand_nodes_are_found_within_the_papers_time() {
    check(1000, Duration::from_millis(528));
}
