//! Liveness in virtual time: a peer that computes has a contribution accepted within a bound. Peers and the backbone stall
//! for seconds or minutes at random moments, and are slow in between. The state machines are those of the tab, the native
//! peer and the backbone. Runs that clip gradients are excluded: they go at the pace of their median peer.

use barnraise_simulation::seeds;

use crate::world::{ChurnSimulation, InjectedFaults, Size};

const TROUBLE_MS: u64 = 3 * 60 * 1000;

#[test]
fn a_peer_that_computes_has_a_contribution_accepted_within_a_bound() {
    let (mut n_runs, mut n_checked) = (0, 0);
    for seed in seeds(0..500) {
        n_runs += 1;
        let n_peers = 1 + seed as usize % 4;
        // A contribution may be so large that no peer fills it in time.
        let size = Size { n_peers, target: 1024, samples_max: 16_384, n_killed: 0 };
        let mut world =
            ChurnSimulation::new(seed, size, InjectedFaults { stalls: true, ..InjectedFaults::default() });
        n_checked += world.run_stalling(TROUBLE_MS);
        world.check_the_end();
    }
    assert!(n_checked > n_runs * 100, "{n_checked} moments were checked in {n_runs} runs");
}
