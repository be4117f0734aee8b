//! Whoever computes has something accepted, in virtual time: peers and the backbone stand still for seconds or minutes
//! at random moments, and are slow in between. The state machines are those of the tab, the native peer and the backbone.
//! Runs that clip gradients are none of these: they go at the pace of their median peer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod world;

use world::{Size, Troubles, World};

const TROUBLE_MS: u64 = 3 * 60 * 1000;

#[test]
fn whoever_computes_has_something_accepted_within_a_stated_time() {
    let mut n_checked = 0;
    for seed in 0..500 {
        println!("seed {seed}");
        let n_peers = 1 + seed as usize % 4;
        // A contribution may be so large that nobody fills it in time.
        let size = Size { n_peers, target: 1024, samples_max: 16_384, n_killed: 0 };
        let mut world = World::new(seed, size, Troubles { stalls: true, ..Troubles::default() });
        n_checked += world.run_stalling(TROUBLE_MS);
        world.check_the_end();
    }
    assert!(n_checked > 500 * 100, "{n_checked} moments in which something had to come");
}
